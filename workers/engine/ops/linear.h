/* y = act(x W^T + b) + residual. Weights are packed once, in the panels that the kernels want. */
#ifndef EBB_ENGINE_OPS_LINEAR_H
#define EBB_ENGINE_OPS_LINEAR_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct linear {
    const struct kernels *kernels;
    uint32_t n, k; /* outputs, inputs */
    float *packed, *bias;
};

size_t linear_bytes(const struct kernels *kernels, uint32_t n, uint32_t k);
/* Zero weights. On failure l is as after linear_release. */
MUST_USE enum status linear_init(struct linear *l, const struct kernels *kernels, uint32_t n, uint32_t k, struct err *e);
void linear_release(struct linear *l);
/* Outputs first..first+count-1: w has count rows of k, as published. Several projections of one input share one product so. */
void linear_set(struct linear *l, uint32_t first, uint32_t count, const float *w, const float *bias);
void linear_run(const struct linear *l, uint32_t rows, const float *x, size_t ldx, enum act act, const float *res, size_t ldres,
                float *y, size_t ldy);

#endif
