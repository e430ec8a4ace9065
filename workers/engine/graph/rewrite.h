/* Tools of the passes that rewrite a finished graph: who makes a value, who uses it, and how one node takes the place of several. */
#ifndef EBB_GRAPH_REWRITE_H
#define EBB_GRAPH_REWRITE_H

#include "workers/engine/graph/graph.h"

/* The node that makes v when it is domain "" op `op` (any when op is NULL), else NULL. */
struct node *made_by(const struct graph *g, int32_t v, const char *op);
int node_is(const struct node *n, const char *op); /* of the standard domain */
/* How often v is used: by nodes (bodies that capture it included) and as an output of the graph. */
uint32_t uses_of(const struct graph *g, int32_t v);
int is_output(const struct graph *g, int32_t v);
/* The only node that uses v, or NULL when there are several, or v is an output of the graph. */
struct node *only_user(const struct graph *g, int32_t v);

const struct tensor *constant_of(const struct graph *g, int32_t v); /* NULL: not a constant */
/* A constant of one element of a float or integer type. 1: it is one. */
int constant_number(const struct graph *g, int32_t v, double *out);
int constant_is(const struct graph *g, int32_t v, double number); /* within 1e-6 of it, relatively */
/* A constant f32 tensor of exactly `rank` axes (-1: any); NULL otherwise. */
const struct tensor *constant_f32(const struct graph *g, int32_t v, int rank);

int same_dims(const struct type *a, const struct type *b); /* surely the same shape and element type */
/* Every use of `from` becomes one of `to`. Outputs of the graph keep their place and name: where `from` is one, 0 is returned and nothing done. */
int replace_value(struct graph *g, int32_t from, int32_t to);
/* Of a binary node: the input that is not v. */
int32_t other_input(const struct node *n, int32_t v);

/* A node of domain "ebb" that makes `out` from now on; the node that made it so far makes nothing any more and goes at the next graph_sweep. The types
   of `out` stay. NULL: memory is out. */
struct node *rewrite_node(struct graph *g, const char *domain, const char *op, int opset, const char *name, uint32_t n_in, const int32_t *in,
                          int32_t out);
MUST_USE enum status rewrite_int(struct node *n, const char *name, int64_t v, struct err *e);
MUST_USE enum status rewrite_float(struct node *n, const char *name, float v, struct err *e);
MUST_USE enum status rewrite_string(struct node *n, const char *name, const char *v, struct err *e);

/* Numbers, lists of numbers and strings: what ops without bodies have. */
MUST_USE enum status node_copy_attrs(struct node *to, const struct node *from, struct err *e);

#endif
