/* An op: how a kind of node is checked, shaped, prepared and run. One file of workers/engine/ops/ defines one op or one family of them, its
   functions in this order, and a table `const struct op_def ops_NAME[]` that ends with a row of zeros; registry.c lists the tables.

   The way of a node: the loader makes it with its attributes -> check (once) -> shape with symbolic sizes (once; types flow through the
   graph, constants fold) -> plan (once; weights are packed) -> for each micro-batch: shape with numbers -> run. */
#ifndef EBB_GRAPH_OP_H
#define EBB_GRAPH_OP_H

#include <stdint.h>

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"
#include "workers/engine/graph/sym.h"
#include "workers/engine/graph/tensor.h"

struct graph;
struct packfile;
struct run;

/* Attributes ---------------------------------------------------------------------------------------------------------------------- */

enum attr_kind { ATTR_FLOAT = 1, ATTR_INT = 2, ATTR_STRING = 3, ATTR_TENSOR = 4, ATTR_GRAPH = 5, ATTR_FLOATS = 6, ATTR_INTS = 7,
                 ATTR_STRINGS = 8, ATTR_TENSORS = 9, ATTR_GRAPHS = 10, ATTR_TYPE = 13, ATTR_TYPES = 14 }; /* as ONNX numbers them */
struct attr {
    char *name;
    enum attr_kind kind;
    uint32_t count;         /* of a list */
    float f;
    int64_t i;
    struct str s;           /* NUL behind it */
    float *floats;
    int64_t *ints;
    struct str *strings;
    struct tensor *tensors; /* one for ATTR_TENSOR; constants of the graph */
    struct graph **graphs;  /* one for ATTR_GRAPH */
    int type_kind;          /* ATTR_TYPE (Optional): enum value_kind, and its element type in i */
};

enum { NODE_INPUTS_INLINE = 4 };
struct node {
    const struct op_def *def;
    char *name;             /* as the file says, or made: "MatMul_12" */
    const char *op;         /* op type */
    const char *domain;     /* "" is ai.onnx */
    int opset;              /* of its domain, in this model */
    uint32_t n_in, n_out;
    int32_t *in, *out;      /* numbers of the graph's values; -1: left out */
    uint32_t n_attr;
    struct attr *attr;
    void *state;            /* the op's own, made by check or plan, freed by release; read-only at run time */
    const struct kernels *kernels;
    enum value_kind out_kind; /* unused by most */
    uint32_t n_own;         /* of its inputs, without those that its bodies capture: they follow behind these */
    int precision;          /* enum precision: of the weights, where the op has some */
    struct packfile *pack;  /* of packed weights; NULL: none */
    const char *bad_attr;   /* asked for as another kind than it is */
};

/* By name; the default where the node does not say. A wrong kind is ST_USER naming node and attribute (loader checks kinds against the
   first call: the error is remembered in c and check fails). */
const struct attr *node_attr(const struct node *n, const char *name); /* NULL: not there */
int64_t node_int(const struct node *n, const char *name, int64_t otherwise);
float node_float(const struct node *n, const char *name, float otherwise);
const char *node_string(const struct node *n, const char *name, const char *otherwise);
/* *count is 0 and NULL returned where it is not there */
const int64_t *node_ints(const struct node *n, const char *name, uint32_t *count);
const float *node_floats(const struct node *n, const char *name, uint32_t *count);
/* ST_USER: "node 'conv1' (Conv): <text>" - how every message of an op begins. */
MUST_USE enum status node_error(const struct node *n, struct err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Types --------------------------------------------------------------------------------------------------------------------------- */

enum { VALUES_MAX = 64 };
struct type {
    enum value_kind kind; /* VALUE_NONE: the input or output is left out */
    int optional;         /* may be an empty optional */
    enum dtype dtype;     /* of a tensor, of a sequence's elements */
    int rank;             /* -1: not known (load time only) */
    dim dims[RANK_MAX];
    /* The elements, where this is an integer or bool tensor of at most VALUES_MAX elements and they are known: always at run time,
       at load time for constants and for sums, parts and products of sizes. NULL otherwise. Not to be changed. */
    const dim *values;
};

struct shaping {
    struct syms *syms;      /* NULL at run time */
    const struct node *node;
    uint32_t n_in, n_out;
    const struct type *in;  /* n_in; kind VALUE_NONE where left out */
    struct type *out;       /* n_out; all zero when shape is called */
    const struct tensor *const *constants; /* load time: the input's tensor where it is a constant, else NULL; run time: every tensor input */
    dim *(*room)(struct shaping *s, uint32_t count); /* for out[i].values; lives as long as needed; NULL when memory is out */
    void *owner;                                     /* of room; not for ops */
    int packed;                                      /* run time: the micro-batch is of packed texts, see run_seqs */
};

/* Helpers for shape functions. */
void type_tensor(struct type *t, enum dtype d, int rank, const dim *dims); /* dims may be NULL: fresh ones are to be set by the caller */
void type_unknown(struct shaping *s, struct type *t, enum dtype d, int rank); /* rank >= 0: fresh sizes; -1: unknown rank */
/* NumPy's broadcasting of two shapes; sizes that cannot go together are ST_USER. A symbol beside 1 wins; two different symbols: the first,
   as they must be equal when it runs (checked there). */
MUST_USE enum status type_broadcast(struct shaping *s, const struct type *a, const struct type *b, struct type *out, struct err *e);
dim type_count(struct shaping *s, const struct type *t); /* product of the sizes */
/* -rank <= axis < rank, made positive; else ST_USER */
MUST_USE enum status axis_in(const struct node *n, int64_t axis, int rank, uint32_t *out, struct err *e);

/* Running -------------------------------------------------------------------------------------------------------------------------- */

/* One node's turn. Outputs whose sizes shape could tell are there already; an op with OP_MAKES or OP_VALUES makes the others with run_make; for every
   other op sizes that cannot be told are an error of what the run was given. */
const struct tensor *run_in(const struct run *r, uint32_t i);   /* NULL: left out */
const struct value *run_in_value(const struct run *r, uint32_t i);
struct tensor *run_out(struct run *r, uint32_t i);              /* NULL: nobody wants it */
struct value *run_out_value(struct run *r, uint32_t i);
MUST_USE enum status run_make(struct run *r, uint32_t i, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e);
/* Output i shares the memory of input j, from byte offset on, under other sizes: nothing is copied. Only from an op with OP_VIEW. */
void run_view(struct run *r, uint32_t i, uint32_t j, size_t offset, uint32_t rank, const int64_t *dims);
/* 64-byte aligned, until the node's turn ends; kept by the run, so that steady work allocates nothing. */
MUST_USE enum status run_scratch(struct run *r, size_t bytes, void **out, struct err *e);
/* A copy in the run's string memory. */
MUST_USE enum status run_string(struct run *r, const char *data, size_t len, struct str *out, struct err *e);
/* Packed sequences of this micro-batch, for ops that look at a whole sequence: NULL where the graph does not run packed. */
const struct seqs *run_seqs(const struct run *r);
struct seqs {
    uint32_t count, tokens;
    const uint32_t *lengths; /* of each; their sum is tokens */
};

enum op_flags {
    OP_VIEW = 1,        /* calls run_view (reshape and its kin) */
    OP_IN_PLACE = 2,    /* output 0 may take the memory of an input of the same size and type that ends here: element i of the output depends
                           on element i of the inputs alone, and is written after it was read */
    OP_NO_FOLD = 4,     /* not folded although its inputs are constants */
    OP_VALUES = 8,      /* works on sequences or optionals: run_in_value */
    OP_PLANNED = 32,    /* constants among its inputs, the first apart, are read by check, shape and plan alone: their memory may go then */
    OP_MAKES = 64,      /* run makes those outputs whose sizes only the elements of its inputs tell (run_make) */
    OP_HOST = 16,       /* works on shapes: stays on the processor whatever the device */
};

struct op_def {
    const char *domain, *name;
    uint16_t since, until; /* opsets of the domain for which this row serves, both included */
    uint16_t min_in, max_in, min_out, max_out; /* max 0xffff: any number */
    uint32_t flags;
    /* Attributes make sense; state that needs nothing else is made. NULL: nothing to check. */
    enum status (*check)(struct node *n, struct err *e);
    /* out[] from in[]: types, sizes, and values where they can be told. Wrong types and sizes are ST_USER through node_error. Called at load time
       and for each new shape at run time. */
    enum status (*shape)(struct shaping *s, struct err *e);
    /* Once, with the types of all inputs and the constants among them: packs weights, chooses a kernel. NULL: nothing. */
    enum status (*plan)(struct node *n, const struct shaping *s, struct err *e);
    enum status (*run)(struct run *r, const struct node *n, struct err *e);
    void (*release)(struct node *n); /* frees n->state */
    /* Batching: does each index along `axis` of input `in` stay by itself? Returns the axis of output `out` that it becomes, or -1 when the op mixes
       indices of that axis (or when that is not known). NULL: mixes. */
    int (*follow)(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out);
};

/* NULL: no such op. *known is 1 when another opset has it. */
const struct op_def *op_find(const char *domain, const char *name, int opset, int *known);
/* `follow` for ops that work element by element with broadcasting. */
int follow_elementwise(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out);

#endif
