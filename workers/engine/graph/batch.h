/* Batching: records of equal sizes can run as one, stacked along axis 0 of every input, where no node mixes them. That is proved by following that
   axis from the inputs through every node (op.h, follow); each output must have it as axis 0. Otherwise a graph runs record by record. */
#ifndef EBB_GRAPH_BATCH_H
#define EBB_GRAPH_BATCH_H

#include "workers/engine/graph/graph.h"

enum { BATCH_WHY_MAX = 200 };

/* 1: it is so; 0: it is not, and why names the first input, node or output that is in the way; -1: memory is out. g is finished. */
int batch_prove(const struct graph *g, char why[BATCH_WHY_MAX]);

/* Of each value of g, for which of has room: the axis along which each record has its index, or one of these. As batch_prove. */
enum { BATCH_SAME = -1, BATCH_SIZES = -2, BATCH_MIXED = -3 }; /* the same for all records; sizes, of which some depend on how many records there are; mixed */
int batch_values(const struct graph *g, int *of);

#endif
