/* Where a model can be cut, so that its parts run on different devices or workers: a run of segments, each with what it weighs, what it costs, and what
   crosses the cut behind it. Of ONNX models the graph tells (graph/segment.h), of directories the configuration: embeddings, each layer, what is on top. */
#ifndef EBB_ENGINE_CUT_H
#define EBB_ENGINE_CUT_H

#include <stdint.h>

#include "base/status.h"

struct loading;

struct cut_segment {
    char first[96];        /* the op, or the layer, with which it begins */
    uint64_t weight_bytes; /* that it is the first to use: in memory; of ONNX models in the file */
    double flops;          /* multiplications and additions */
    uint64_t out_bytes;    /* what crosses the cut behind it; of the last one, its results */
};

struct cut {
    uint32_t tokens; /* asked: length of the one text, or size of axes that are open */
    struct cut_segment *list;
    uint32_t count;
};

void cut_release(struct cut *c);
/* After the walk over a model's tensors with l->marking. top_k: tokens for a mask. Of graphs: graph_model_cut. */
MUST_USE enum status cut_encoder(struct cut *out, const struct loading *l, uint32_t top_k, struct err *e);

#endif
