/* What the ops with bodies share: where a body's captures stand among a node's inputs, types that two ways lead to, scalars, stacking. */
#ifndef EBB_OPS_BODIES_H
#define EBB_OPS_BODIES_H

#include "workers/engine/graph/inner.h"

/* The body in attribute `name`, and the number of the node's input that is its first capture. NULL: there is none. */
struct graph *body_of(const struct node *n, const char *name, uint32_t *first_capture);
/* ST_USER unless the attribute is there and a graph. */
MUST_USE enum status body_check(const struct node *n, const char *name, struct err *e);
/* Load time: infers a body with the captures that its node has. */
MUST_USE enum status body_infer(const struct shaping *s, struct graph *body, const struct type *in, uint32_t first_capture, struct err *e);
static inline const struct type *body_out(const struct graph *body, uint32_t i)
{
    return &body->values[body->out[i]].type;
}
/* A tensor as the body makes it, without memory, for an output that gathers nothing: sizes that are not known are 0. */
void body_like(const struct graph *g, uint32_t i, struct tensor *out);
/* Run time: the body's run with its captures given. */
MUST_USE enum status body_start(struct run *r, const struct graph *body, uint32_t first_capture, struct run **out, struct err *e);

/* A type that holds both: sizes that differ become fresh ones (unless free says that into's is one already), ranks that differ unknown. 1: into was
   changed; -1: they cannot be one. free may be NULL. */
int type_merge(struct shaping *s, struct type *into, const struct type *other, uint32_t *free);

/* A new tensor in the run's memory. The caller's reference goes with value_clear. */
MUST_USE enum status value_make(struct run *r, struct value *v, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e);
/* Elements of small tensors as numbers. */
int64_t scalar_int(const struct tensor *t, int64_t i);

/* Output i becomes the items of a sequence along a new axis (or an existing one), backwards where asked. All have the sizes of the first, but for the
   existing axis. `like` tells type and sizes where there are no items. */
MUST_USE enum status run_stack(struct run *r, uint32_t i, const struct value *items, int64_t axis, int new_axis, int backwards, const struct tensor *like,
                               struct err *e);

#endif
