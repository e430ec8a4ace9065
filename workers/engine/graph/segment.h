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

/* Of a finished graph, for symbols of those sizes (value[i] for symbol i, in the order of syms; sizes that depend on others count as 1). *out has *count
   segments in the order of the nodes, at least one where there is a node; mem_free it. */
MUST_USE enum status graph_segments(const struct graph *g, const int64_t *value, uint32_t values, struct segment **out, uint32_t *count, struct err *e);

/* The work of one node, bodies not included. */
double node_flops(const struct graph *g, const struct node *n, const int64_t *value, uint32_t values);

#endif
