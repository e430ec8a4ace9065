#include "workers/engine/ops/quant.h"

#include <string.h>

#include "workers/engine/cpu/conv_int.h"

_Static_assert((int)QUANT_NR == (int)INT_NR, "one width of panels");

static int16_t byte_at(enum dtype d, const void *p, size_t i)
{
    return d == DT_I8 ? ((const int8_t *)p)[i] : ((const uint8_t *)p)[i];
}

void quant_pack(enum dtype d, size_t k, size_t n, const void *b, size_t row_step, size_t col_step, const void *zero, int zero_per_column,
                int16_t *packed)
{
    memset(packed, 0, quant_packed(k, n) * sizeof *packed);
    size_t even = (k + 1) / 2 * 2;
    for (size_t j = 0; j < n; j++) {
        int16_t z = zero ? byte_at(d, zero, zero_per_column ? j : 0) : 0, *panel = packed + j / QUANT_NR * QUANT_NR * even;
        for (size_t i = 0; i < k; i++)
            panel[i / 2 * 2 * QUANT_NR + j % QUANT_NR * 2 + i % 2] = (int16_t)(byte_at(d, b, i * row_step + j * col_step) - z);
    }
}

void quant_widen(enum dtype d, size_t m, size_t k, const void *a, size_t lda, const void *zero, int zero_per_row, int16_t *out)
{
    size_t even = (k + 1) / 2 * 2;
    for (size_t i = 0; i < m; i++, out += even) {
        int16_t z = zero ? byte_at(d, zero, zero_per_row ? i : 0) : 0;
        if (d == DT_I8)
            for (size_t j = 0; j < k; j++)
                out[j] = (int16_t)(((const int8_t *)a)[i * lda + j] - z);
        else
            for (size_t j = 0; j < k; j++)
                out[j] = (int16_t)(((const uint8_t *)a)[i * lda + j] - z);
        if (even > k)
            out[k] = 0;
    }
}

void quant_gemm(const struct kernels *kernels, size_t m, size_t n, size_t k, const int16_t *a, const int16_t *packed, int32_t *c, size_t ldc)
{
    size_t even = (k + 1) / 2 * 2;
    int_gemm_of(kernels)(&(struct int_gemm){.m = (uint32_t)m, .n = (uint32_t)n, .k = (uint32_t)even, .a = a, .lda = even, .packed = packed, .c = c,
                                            .ldc = ldc});
}
