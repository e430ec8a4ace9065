/* Activations by name, over rows of floats: what RNNs and fused convolutions and products name in their attributes. */
#ifndef EBB_OPS_ACTS_H
#define EBB_OPS_ACTS_H

#include "workers/engine/graph/op.h"

enum acts_kind {
    ACTS_NONE, ACTS_RELU, ACTS_TANH, ACTS_SIGMOID, ACTS_AFFINE, ACTS_LEAKY, ACTS_THRESHOLDED, ACTS_SCALED_TANH, ACTS_HARD_SIGMOID, ACTS_ELU,
    ACTS_SOFTSIGN, ACTS_SOFTPLUS, ACTS_CLIP, ACTS_HARD_SWISH, ACTS_GELU, ACTS_GELU_TANH, ACTS_QUICK_GELU
};
struct acts {
    enum acts_kind kind;
    float a, b;
};

/* By ONNX's name, whatever its case; a and b get their defaults. ST_USER: unknown. */
MUST_USE enum status acts_find(const struct node *n, const char *name, struct acts *out, struct err *e);
int acts_params(const struct acts *f); /* how many of a and b it takes */
void acts_run(const struct acts *f, const struct kernels *k, size_t n, float *x);

#endif
