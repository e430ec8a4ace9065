#include "workers/engine/ops/panel.h"

#include <string.h>

void panel_pack(const struct kernels *k, size_t n, size_t depth, const float *w, size_t out_step, size_t in_step, float *packed)
{
    size_t nr = k->nr, full = n / nr * nr;
    if (full < n)
        memset(packed + full * depth, 0, nr * depth * sizeof *packed);
    for (size_t j0 = 0; j0 < n; j0 += nr, packed += nr * depth) {
        size_t count = n - j0 < nr ? n - j0 : nr;
        for (size_t i = 0; i < depth; i++)
            for (size_t j = 0; j < count; j++)
                packed[i * nr + j] = w[(j0 + j) * out_step + i * in_step];
    }
}

void panel_gemm(const struct kernels *k, size_t m, size_t n, size_t depth, const float *a, size_t lda, const float *packed, float *c, size_t ldc)
{
    if (depth == 0) {
        for (size_t i = 0; i < m; i++)
            memset(c + i * ldc, 0, n * sizeof *c);
        return;
    }
    k->product[PREC_F32].run(&(struct gemm_args){.m = (uint32_t)m, .n = (uint32_t)n, .k = (uint32_t)depth, .a = a, .lda = lda, .packed = packed, .c = c, .ldc = ldc});
}
