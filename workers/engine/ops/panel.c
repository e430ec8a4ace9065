#include "workers/engine/ops/panel.h"

#include <string.h>

void panel_pack(const struct kernels *k, size_t n, size_t depth, const float *w, size_t out_step, size_t in_step, float *packed)
{
    memset(packed, 0, panel_floats(k, n, depth) * sizeof *packed);
    if (depth > 0 && n > 0)
        k->product[PREC_F32].pack((uint32_t)n, (uint32_t)depth, 0, (uint32_t)n, w, out_step, in_step, packed);
}

void panel_gemm(const struct kernels *k, size_t m, size_t n, size_t depth, const float *a, size_t lda, const float *packed, float *c, size_t ldc)
{
    if (depth == 0) {
        for (size_t i = 0; i < m; i++)
            memset(c + i * ldc, 0, n * sizeof *c);
        return;
    }
    k->product[PREC_F32].run(&(struct gemm_args){.m = (uint32_t)m, .n = (uint32_t)n, .k = (uint32_t)depth, .a = a, .lda = lda, .packed = packed,
                                                 .c = c, .ldc = ldc});
}
