/* Batching: records of equal sizes can run as one, stacked along axis 0 of every input, where no node mixes them. That is proved by following that
   axis from the inputs through every node (op.h, follow); each output must have it as axis 0. Otherwise a graph runs record by record. */
#ifndef EBB_GRAPH_BATCH_H
#define EBB_GRAPH_BATCH_H

#include "workers/engine/graph/graph.h"

enum { BATCH_WHY_MAX = 200 };

/* 1: it is so; 0: it is not, and why names the first input, node or output that is in the way; -1: memory is out. g is finished. */
int batch_prove(const struct graph *g, char why[BATCH_WHY_MAX]);

#endif
