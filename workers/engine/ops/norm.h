/* Layer normalisation, row by row. */
#ifndef EBB_ENGINE_OPS_NORM_H
#define EBB_ENGINE_OPS_NORM_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct norm {
    const struct kernels *kernels;
    uint32_t n;
    float eps;
    float *gamma, *beta; /* filled by the loader */
};

size_t norm_bytes(uint32_t n);
MUST_USE enum status norm_init(struct norm *o, const struct kernels *kernels, uint32_t n, float eps, struct err *e);
void norm_release(struct norm *o);
void norm_run(const struct norm *o, uint32_t rows, const float *x, size_t ldx, float *y, size_t ldy); /* y may be x */

#endif
