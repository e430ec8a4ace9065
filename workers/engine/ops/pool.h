/* One vector from the tokens of each sequence, scaled to length 1 where the model says so. */
#ifndef EBB_ENGINE_OPS_POOL_H
#define EBB_ENGINE_OPS_POOL_H

#include "workers/engine/cpu/kernels.h"

struct pool {
    const struct kernels *kernels;
    enum pooling how;
    int normalize;
    uint32_t n;
};

void pool_run(const struct pool *o, uint32_t n_seqs, const uint32_t *lengths, const float *x, size_t ldx, float *y);

#endif
