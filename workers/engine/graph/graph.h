/* A graph of ops over named values: what every model file becomes. Built by a loader or by hand, then finished once (types, folding, fusion, plans);
   read-only and shared by all lanes after that. */
#ifndef EBB_GRAPH_GRAPH_H
#define EBB_GRAPH_GRAPH_H

#include "base/status.h"
#include "workers/engine/graph/op.h"

struct graph_value {
    char *name;
    struct type type;        /* as declared or inferred */
    struct tensor constant;  /* buffer != NULL: a constant */
    int32_t producer;        /* node; -1: input or constant */
    uint32_t uses;
};

struct graph {
    struct graph *outer;     /* of the body of an If, Loop or Scan: captured values are further inputs, see captures */
    struct syms *syms;       /* the outermost graph's */
    const struct kernels *kernels;
    char *name;
    uint32_t n_values, n_nodes, n_in, n_out, n_captures;
    struct graph_value *values;
    struct node **nodes;     /* in an order in which they can run */
    int32_t *in, *out;       /* values */
    uint32_t n_taken;        /* of the inputs, the last ones: they cross a cut (part.h), and whoever gives them has looked at their sizes */
    int32_t *captures;       /* values of this graph that stand for ... */
    int32_t *captured;       /* ... these values of `outer`; the node that owns the body has them as further inputs behind its own */

    /* graph.c's and finish.c's own */
    uint32_t depth;          /* bodies around this one */
    int finished;            /* prepared: nodes have their ops and are in order */
    uint32_t *index, index_cap; /* values by name */
    size_t values_cap, nodes_cap, in_cap, out_cap, captures_cap, captured_cap;
    uint32_t *ends_at;       /* n_nodes + 1: which of ... */
    int32_t *ends;           /* ... these values are not needed once node i has run */
    struct room *room;       /* for type.values; the outermost graph's */
    uint64_t made;           /* names made */
    uint64_t run_bytes;      /* the outermost graph's, see graph_opts */
    int no_fold;
};

MUST_USE enum status graph_new(const struct kernels *k, struct graph *outer, struct graph **out, struct err *e);
void graph_free(struct graph *g); /* nodes, attributes, states, constants */

/* Building. Names are copied. Each returns the number of a value or node, or -1 when memory is out. */
int32_t graph_value(struct graph *g, const char *name); /* found or made */
int32_t graph_constant(struct graph *g, const char *name, enum dtype d, uint32_t rank, const int64_t *dims, const void *data);
int32_t graph_input(struct graph *g, const char *name, const struct type *t);
int32_t graph_output(struct graph *g, int32_t value);
int32_t graph_capture(struct graph *body, const char *name, int32_t outer_value); /* a value of body that stands for one of body->outer */
int32_t graph_find(const struct graph *g, const char *name);                      /* -1: none */
struct node *graph_node(struct graph *g, const char *domain, const char *op, int opset, const char *name, uint32_t n_in, const int32_t *in,
                        uint32_t n_out, const int32_t *out);
MUST_USE enum status node_add_attr(struct node *n, const struct attr *a, struct err *e); /* takes what a owns, name too; on failure nothing */
void attr_release(struct attr *a);
void node_free(struct node *n);

/* Each kind of node that this version has no op for, bodies included: the first such node and how many there are. NULL where all is known. Before
   or after graph_finish. */
struct unsupported {
    char op[160]; /* "ai.onnx.Foo" */
    char node[160];
    int opset;
    int other_opset; /* the op is there, for other opsets */
    uint32_t count;
};
MUST_USE enum status graph_unsupported(const struct graph *g, struct unsupported **out, uint32_t *count, struct err *e); /* mem_free(*out) */

enum { BODY_DEPTH_MAX = 8 }; /* bodies in bodies */

/* Order, checks, types, folding; then the passes of fuse.h; then plans. Cycles, values that nobody makes, unknown ops and wrong types are ST_USER naming
   the node. */
struct given { /* an input that holds one number throughout, known beforehand: the mask of a text alone, without padding */
    int32_t value;
    double number;
};
struct graph_opts {
    int no_fold, no_fuse;    /* for tests */
    int precision;           /* enum precision of the linear layers */
    struct packfile *pack;   /* of their weights; NULL: none. Outlives the graph */
    const struct given *given;
    uint32_t n_given;
    uint64_t run_bytes;      /* most memory of a run: what would take more is refused, ST_USER naming the node; 0: half of the machine's */
};
MUST_USE enum status graph_finish(struct graph *g, const struct graph_opts *o, struct err *e);
/* The same in two steps, between which a graph can be cut (part.h): all but the plans, which pack weights; and these. */
MUST_USE enum status graph_resolve(struct graph *g, const struct graph_opts *o, struct err *e);
MUST_USE enum status graph_plan(struct graph *g, struct err *e);

/* A lane's memory for running g: buffers are kept between runs, so that steady work allocates nothing. One thread at a time. */
MUST_USE enum status run_new(const struct graph *g, struct run **out, struct err *e);
void run_free(struct run *r);
/* The tensor of input i for the next run: caller's memory, read only, alive until run_graph returns. */
MUST_USE enum status run_set(struct run *r, uint32_t i, enum dtype d, uint32_t rank, const int64_t *dims, const void *data, struct err *e);
MUST_USE enum status run_set_value(struct run *r, uint32_t i, const struct value *v, struct err *e);
/* ST_USER: sizes that do not go together, an index out of range, more memory than run_bytes...: names the node. Outputs live until the next run. */
MUST_USE enum status run_graph(struct run *r, struct err *e);
const struct value *run_result(const struct run *r, uint32_t i);
size_t run_bytes(const struct run *r); /* held now */

/* Work on a device goes by tickets, so that two micro-batches can be under way; the processor completes inline. */
typedef uint64_t ticket;
MUST_USE enum status run_submit(struct run *r, ticket *out, struct err *e);
MUST_USE enum status run_wait(struct run *r, ticket t, struct err *e);

#endif
