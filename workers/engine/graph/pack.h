/* Packing: a graph over texts [batch, length] can run on the tokens of many texts laid end to end, as one text of batch 1, when each token is treated by
   itself everywhere but in ops that know where a sequence begins and ends (Attention, SeqPool, SeqCumSum and Positions of domain "ebb"). Nothing is padded then,
   and a text's result is what it would be alone.

   pack_prove follows the axes of the graph's inputs through every node and says whether that is so. */
#ifndef EBB_GRAPH_PACK_H
#define EBB_GRAPH_PACK_H

#include "workers/engine/graph/graph.h"

enum { PACK_WHY_MAX = 200 };

/* What an output holds, of a micro-batch of packed texts. */
enum packed_kind {
    PACKED_NO,
    PACKED_TOKENS,      /* [1, tokens, ...] */
    PACKED_SEQS,        /* [texts, ...] */
    /* of values on the way alone */
    PACKED_SAME,        /* the same for all texts */
    PACKED_SIZES,       /* elements are sizes */
    PACKED_PLACES,      /* made of places in a text: each axis of a text's length is the longest text's */
    PACKED_PLACE_SIZES, /* sizes of such */
};

/* 1: every input has the sizes [batch, length] of the same two symbols, and the graph packs; kinds has room for g->n_out. 0: it does not, and why
   names the first node that is in the way. -1: memory is out. */
int pack_prove(const struct graph *g, enum packed_kind *kinds, char why[PACK_WHY_MAX]);
/* The same for every value of g, for which of has room; only of a graph that packs (else 0). */
int pack_values(const struct graph *g, enum packed_kind *of);

/* The next run is of packed texts: inputs are [1, s->tokens]. s lives until run_graph returns; NULL: not packed. */
void run_pack(struct run *r, const struct seqs *s);

#endif
