/* A run from inside: what run.c, run_memory.c and run_node.c share. */
#ifndef EBB_GRAPH_RUNNING_H
#define EBB_GRAPH_RUNNING_H

#include "workers/engine/graph/inner.h"

/* What was seen of an input when its node was last shaped. */
struct seen {
    struct tensor t; /* type and sizes */
    enum value_kind kind;
    uint32_t bytes;  /* of elements kept */
    uint8_t data[VALUES_MAX * 8];
};

struct slot {
    int valid;
    uint32_t n_seen;
    uint32_t *watch;      /* its inputs that are not constants */
    struct seen *seen;    /* of each */
    struct type *out;     /* what shape said */
    size_t *out_bytes;    /* SIZE_MAX: not told */
    uint32_t n_ends;      /* see graph.ends */
    const int32_t *ends;
    uint32_t n_takers;    /* inputs of which output 0 may take the memory */
    uint32_t *takers;
};

struct strings {
    struct strings *next;
    size_t used, cap;
    char data[];
};

struct chunk {
    void *base;
    size_t used, cap;
};

enum { CHUNKS = 16 };

struct run {
    const struct graph *g;
    struct run *root;      /* the outermost; owns the pool and the strings */
    struct pool *pool;
    struct value *values;  /* of the graph's values */
    struct slot *slots;    /* of its nodes */
    struct run *bodies, *next_body;
    struct buffer *borrowed; /* of each input: the caller's memory */
    int32_t *symbol;         /* of each size of each input: which symbol it is, -1 */
    int64_t *symbol_size;    /* in this run; -1: not seen yet */
    uint32_t symbols;

    /* the node whose turn it is */
    const struct node *node;
    const struct slot *slot;
    const struct value **in; /* NULL: left out */
    struct value **out;

    /* for shape functions */
    struct type *in_types;
    const struct tensor **constants;
    dim *in_values;
    struct room *room;
    struct strings *strings, *spare;
    struct chunk chunk[CHUNKS];
    uint32_t chunks;
    const struct seqs *seqs;
};

/* An input's buffer has this owner: never counted down to nothing, never taken over. */
extern char running_caller;

MUST_USE enum status running_new(const struct graph *g, struct run *root, struct run **out, struct err *e);
void running_free_strings(struct strings *s);
/* One node; r->in and r->out are set. */
MUST_USE enum status running_turn(struct run *r, const struct node *n, struct slot *s, struct err *e);

#endif
