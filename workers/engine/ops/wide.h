/* Elements of any number type as doubles or floats, and small helpers that the ops of images, sequences and trees share. */
#ifndef EBB_OPS_WIDE_H
#define EBB_OPS_WIDE_H

#include "workers/engine/graph/op.h"
#include "workers/engine/ops/args.h"

double wide_get(enum dtype d, const void *p, size_t i);
void wide_put(enum dtype d, void *p, size_t i, double x); /* integers: rounded to even and clamped to the type */

/* The elements as doubles: a copy in the node's scratch memory. */
MUST_USE enum status wide_load(struct run *r, const struct tensor *t, double **out, struct err *e);
void wide_store(struct tensor *t, const double *x);

/* The elements as floats: where they are if they are f32, else a copy in scratch memory (f64 is rounded). NULL for no tensor. */
MUST_USE enum status wide_f32(struct run *r, const struct tensor *t, const float **out, struct err *e);
/* Where to write an output's elements as floats, and what puts them in their place when they are there. */
MUST_USE enum status wide_f32_out(struct run *r, struct tensor *t, float **out, struct err *e);
void wide_f32_done(struct tensor *t, const float *x);
MUST_USE enum status wide_i64(struct run *r, const struct tensor *t, const int64_t **out, struct err *e);

/* Shapes ---------------------------------------------------------------------------------------------------------------------- */

/* Output `out` is as input `in`: type and sizes. */
void shape_as(struct shaping *s, uint32_t out, uint32_t in);
int shape_has(const struct shaping *s, uint32_t i);   /* input i is there */
int shape_wants(const struct shaping *s, uint32_t o); /* output o is there */
/* ST_USER, naming the input, unless it is there, a tensor of a float type, of at least `rank` axes (where its rank is known). */
MUST_USE enum status shape_float(const struct shaping *s, uint32_t i, int rank, struct err *e);
MUST_USE enum status shape_rank(const struct shaping *s, uint32_t i, int rank, struct err *e); /* that many axes or unknown */
MUST_USE enum status shape_type(const struct shaping *s, uint32_t i, enum dtype d, struct err *e);
/* f32, f16, bf16 or f64 inputs give an output like input 0: ops that work on one tensor. */
MUST_USE enum status shape_like_float(struct shaping *s, struct err *e);
/* The whole of a small integer input when it is known: at load time a constant. 0 when not. */
int shape_ints(const struct shaping *s, uint32_t i, const dim **values, uint32_t *count);

int follow_axis0(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out); /* axis 0 of input 0 stays axis 0 */
/* every axis of input 0 but the last stays */
int follow_but_last(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out);
void release_state(struct node *n); /* mem_free of a state without pointers */

#endif
