/* What ops need when they look at their inputs: which types they take, integers that stand in tensors, arithmetic on sizes. */
#ifndef EBB_OPS_ARGS_H
#define EBB_OPS_ARGS_H

#include "workers/engine/graph/op.h"

enum { OPSET_ANY = 0xffff };

#define TYPE(d) (1u << DT_##d)
#define TYPES_FLOAT (TYPE(F32) | TYPE(F64) | TYPE(F16) | TYPE(BF16))
#define TYPES_SIGNED (TYPE(I8) | TYPE(I16) | TYPE(I32) | TYPE(I64))
#define TYPES_UNSIGNED (TYPE(U8) | TYPE(U16) | TYPE(U32) | TYPE(U64))
#define TYPES_INT (TYPES_SIGNED | TYPES_UNSIGNED)
#define TYPES_NUMBER (TYPES_FLOAT | TYPES_INT)
#define TYPES_ALL (TYPES_NUMBER | TYPE(BOOL) | TYPE(STR))
#define TYPES_INDEX (TYPE(I32) | TYPE(I64))

/* Input i is there, a tensor, and of one of the types; else ST_USER. */
MUST_USE enum status arg_type(const struct shaping *s, uint32_t i, uint32_t types, struct err *e);
/* The same, and of the type of input 0. */
MUST_USE enum status arg_same(const struct shaping *s, uint32_t i, struct err *e);
static inline int arg_there(const struct shaping *s, uint32_t i)
{
    return i < s->n_in && s->in[i].kind != VALUE_NONE;
}
/* Whether the node has input i at all: for check, where there are no types yet. */
static inline int node_has(const struct node *n, uint32_t i)
{
    return i < n->n_in && n->in[i] >= 0;
}

/* Elements of an integer tensor that is a scalar or a row. */
enum arg { ARG_NONE, ARG_UNKNOWN, ARG_KNOWN };
MUST_USE enum status arg_ints(const struct shaping *s, uint32_t i, uint32_t cap, int64_t *out, uint32_t *count, enum arg *got, struct err *e);
/* Some may be expressions or DIM_UNKNOWN, see below. Then *got is ARG_KNOWN all the same. */
MUST_USE enum status arg_dims(const struct shaping *s, uint32_t i, uint32_t cap, dim *out, uint32_t *count, enum arg *got, struct err *e);
/* The values of input i and their number, or NULL. */
const dim *arg_values(const struct shaping *s, uint32_t i, uint32_t *count);

/* The last word of a shape function whose sizes are products or sums of what a file or an input says: when the model runs all sizes of output 0 are
   numbers, or they were too large for one. */
MUST_USE enum status sizes_told(const struct shaping *s, struct err *e);

/* Axes from the attribute `axes`, or from input i (where i > 0): sorted, each once, 0 <= axis < rank; a repeated one is ST_USER. */
MUST_USE enum status arg_axes(const struct shaping *s, uint32_t i, int rank, uint32_t *out, uint32_t *count, enum arg *got, struct err *e);
/* The same at run time. */
MUST_USE enum status run_axes(const struct run *r, const struct node *n, uint32_t i, uint32_t rank, uint32_t *out, uint32_t *count,
                              enum arg *got, struct err *e);

/* One element as a number, whatever the type. */
double tensor_f64(const struct tensor *t, int64_t i);
int64_t tensor_i64(const struct tensor *t, int64_t i);
/* A number as one element. */
void element_set(enum dtype d, void *element, double f, int64_t i);

/* Widens elements to float and narrows them again (rounding to nearest even), for f16 and bf16. */
void half_widen(enum dtype d, int64_t n, const void *from, int64_t step, float *to);
void half_narrow(enum dtype d, int64_t n, const float *from, void *to);
static inline int dtype_is_half(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16;
}

/* Elements of `values`: numbers, expressions of sizes, or DIM_UNKNOWN. dim_add, dim_sub and dim_mul serve for them too. */
dim value_div(struct syms *s, dim a, dim b);
dim value_equal(struct syms *s, dim a, dim b); /* 0, 1 or DIM_UNKNOWN */
/* Out 0 gets `count` values that the caller fills; NULL at run time, when it is too many or memory is out. */
dim *values_room(struct shaping *s, uint32_t out, uint32_t count);
/* A size from a value: what is not known becomes a fresh symbol. */
dim dim_of_value(struct syms *s, dim v);
/* Of sizes first..last-1 */
dim dims_product(struct syms *s, const dim *dims, int first, int last);

#endif
