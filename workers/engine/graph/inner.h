/* What the files of graph/ and the ops with bodies (ops/control.c) share. Not for other ops. */
#ifndef EBB_GRAPH_INNER_H
#define EBB_GRAPH_INNER_H

#include "workers/engine/graph/graph.h"

/* Building and finishing ------------------------------------------------------------------------------------------------------------- */

struct room;
dim *room_get(struct room **room, uint32_t count); /* at most 2048 */
void room_free(struct room *r);
void room_reset(struct room *r); /* all of it is free again */
struct graph *graph_outermost(struct graph *g);
int graph_set_constant(struct graph *g, int32_t v, struct tensor *t); /* takes t; 0, or -1 when memory is out */
int tensor_has_values(const struct tensor *t);                        /* small, of whole numbers or bools */
const dim *tensor_values(const struct tensor *t, dim *room);          /* room for all its elements */

/* After a pass has rewritten: new nodes get their ops and are checked, those that nobody needs go, the rest is put in order and typed. */
MUST_USE enum status graph_rework(struct graph *g, struct err *e);

/* n's shape function refuses its types. If it takes f32 where it is given halves, casts are put around it (*done; g is to be put in order then). The arrays have
   room for n's inputs and outputs. */
MUST_USE enum status graph_widen(struct graph *g, struct node *n, struct type *in, struct type *out, const struct tensor **constants, int *done, struct err *e);

/* Each If with a constant condition gives way to the branch that is taken; *changed is raised then, and g is to be put in order. */
MUST_USE enum status graph_inline_ifs(struct graph *g, int *changed, struct err *e);

/* order.c, for finish.c: all ops are known; nodes have theirs and are checked, bodies too, and all is put in order; the parts of that. */
MUST_USE enum status graph_refuse_unsupported(const struct graph *g, struct err *e);
MUST_USE enum status graph_prepare(struct graph *g, struct err *e);
MUST_USE enum status graph_check_arity(const struct node *n, struct err *e);
MUST_USE enum status graph_check_attrs(const struct node *n, struct err *e);
MUST_USE enum status graph_find_producers(struct graph *g, struct err *e); /* each value is made once */
MUST_USE enum status graph_sort(struct graph *g, struct err *e);           /* cycles are refused */

/* The types of everything in a body (load time), given those of its inputs and captures and which of these are constants. The types of its
   outputs are those of g->values[g->out[i]] then. */
MUST_USE enum status graph_infer(struct graph *g, const struct type *in, const struct tensor *const *in_constants, const struct type *captures,
                                 const struct tensor *const *capture_constants, struct err *e);
/* Of one node, with what is known of its inputs at load time. The arrays have room for n->n_in and n->n_out. */
void graph_shaping(struct graph *g, const struct node *n, struct type *in, struct type *out, const struct tensor **constants, struct shaping *s);

/* Running ---------------------------------------------------------------------------------------------------------------------------- */

/* All memory that grows with what a run is given counts to its pool, and is never more than `most`. */
struct pool;
MUST_USE enum status pool_new(uint64_t most, struct pool **out, struct err *e);
void pool_free(struct pool *p); /* buffers that are still held too */
struct buffer *pool_get(struct pool *p, size_t bytes); /* refs 1; NULL: memory is out, or pool_full */
int pool_full(const struct pool *p, size_t bytes);     /* such a buffer would be beyond the bound */
size_t pool_bytes(const struct pool *p);               /* held now */
uint64_t pool_most(const struct pool *p);
int pool_charge(struct pool *p, size_t bytes); /* memory that the caller has for itself: 0, or -1 where it would be beyond the bound */
void pool_credit(struct pool *p, size_t bytes);
void pool_trim(struct pool *p);                /* buffers that nobody holds go */
void buffer_keep(struct buffer *b);   /* of a run: counts; constants are left alone */
void buffer_drop(struct buffer *b);

void value_clear(struct value *v);                                     /* lets go of its buffers; keeps room for items */
MUST_USE enum status value_share(struct value *to, const struct value *from, struct err *e);
void value_release(struct value *v);                                   /* the room too */
MUST_USE enum status value_append(struct pool *p, struct value *sequence, const struct tensor *t, struct err *e); /* shares */

/* A buffer of r's memory for r's node; ST_USER where the run would be beyond its bound, naming node and size. */
MUST_USE enum status run_buffer(struct run *r, size_t bytes, struct buffer **out, struct err *e);

/* A body's run: made when first asked for, kept by r; shares r's memory. Its inputs and captures are set (shared, not copied), it runs, its results
   are taken. */
MUST_USE enum status run_body(struct run *r, const struct graph *body, struct run **out, struct err *e);
MUST_USE enum status run_give(struct run *body, uint32_t i, const struct value *v, struct err *e);
MUST_USE enum status run_give_capture(struct run *body, uint32_t i, const struct value *v, struct err *e);
MUST_USE enum status run_go(struct run *body, struct err *e);
const struct value *run_taken(const struct run *body, uint32_t i); /* result i, until the body runs again or run_done */
void run_done(struct run *body);                                   /* lets go of what it was given and gave */
/* One node on its own, for folding: inputs are constants, outputs become constants (of unset dtype where left out). */
MUST_USE enum status run_once(const struct graph *g, struct node *n, const struct tensor *const *in, struct tensor *out, struct err *e);
struct pool *run_pool(struct run *r);
const struct node *run_node(const struct run *r); /* whose turn it is */

#endif
