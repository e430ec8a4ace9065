/* One vector from the tokens of each sequence. */
#ifndef EBB_ENGINE_OPS_POOL_H
#define EBB_ENGINE_OPS_POOL_H

#include "workers/engine/cpu/kernels.h"

struct pool {
    const struct kernels *kernels;
    enum pooling how;
    uint32_t n;
};

/* Rows of y are ldy apart. */
void pool_run(const struct pool *o, uint32_t n_seqs, const uint32_t *lengths, const float *x, size_t ldx, float *y, size_t ldy);

#endif
