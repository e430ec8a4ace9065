/* Segments: where a graph can be cut, so that its parts run on different devices or workers. A cut lies between two nodes that follow each other; what is
   made before it and needed behind it travels. Cut points are those that the fewest bytes cross. Inputs of the graph and what costs next to nothing to
   make from them (masks, positions, shapes) are made anew on both sides, and do not count.

   A stage is a run of consecutive segments. */
#ifndef EBB_GRAPH_SEGMENT_H
#define EBB_GRAPH_SEGMENT_H

#include "workers/engine/graph/graph.h"

struct segment {
    uint32_t first, count;   /* nodes */
    double flops;            /* multiplications and additions, for the sizes given */
    uint64_t weight_bytes;   /* of constants that it is the first to use, as they stand in the file */
    uint64_t out_bytes;      /* what crosses the cut behind it, or its results, for the sizes given */
};

struct cutting {
    const int64_t *where; /* sizes of the symbols for which cuts are chosen: where a graph is cut must not depend on the sizes that somebody asks about */
    const int64_t *sizes; /* and for which costs are told: of symbol i, in the order of syms; sizes that depend on others count as 1 */
    uint32_t symbols;     /* of both */
    int first_alone;      /* inputs of the graph are there for the first part alone: they cross as all else does */
    const uint8_t *stays; /* of each value: 1: it cannot cross a cut; NULL: all can. What is no plain tensor never does */
};

/* Of a finished graph. *out has *count segments in the order of the nodes, at least one where there is a node; mem_free it. */
MUST_USE enum status graph_segments(const struct graph *g, const struct cutting *c, struct segment **out, uint32_t *count, struct err *e);
/* For each value: is it made anew wherever it is needed? Inputs and constants are. mem_free(*out). */
MUST_USE enum status graph_cheap(const struct graph *g, const struct cutting *c, uint8_t **out, struct err *e);
/* May v ever cross? */
int graph_can_cross(const struct graph *g, const struct cutting *c, int32_t v);

/* The work of one node, bodies not included. */
double node_flops(const struct graph *g, const struct node *n, const int64_t *value, uint32_t values);

#endif
