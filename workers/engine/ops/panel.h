/* Products with weights in the kernels' panels, for ops that pack theirs themselves. */
#ifndef EBB_OPS_PANEL_H
#define EBB_OPS_PANEL_H

#include <stddef.h>

#include "workers/engine/cpu/kernels.h"

/* Floats of n outputs over k inputs, packed. */
static inline size_t panel_floats(const struct kernels *k, size_t n, size_t depth)
{
    return k->product[PREC_F32].packed_bytes((uint32_t)n, (uint32_t)depth) / sizeof(float);
}
/* Weight of output j and input i is w[j * out_step + i * in_step]. */
void panel_pack(const struct kernels *k, size_t n, size_t depth, const float *w, size_t out_step, size_t in_step, float *packed);
/* c = a w: m rows of `depth` to m rows of n */
void panel_gemm(const struct kernels *k, size_t m, size_t n, size_t depth, const float *a, size_t lda, const float *packed, float *c, size_t ldc);

#endif
