/* Arithmetic of quantised ops. Sums of products are exact in int32; what leaves them is rounded once. */
#ifndef EBB_OPS_QUANT_H
#define EBB_OPS_QUANT_H

#include "workers/engine/graph/op.h"

/* To the nearest whole number, halves to even: adding 1.5 * 2^23 leaves no bits for fractions. What is too large for that is beyond every quantised
   type. */
static inline float quant_round(float x)
{
    float whole = (x + 12582912.0f) - 12582912.0f;
    return x < 4194304.0f && x > -4194304.0f ? whole : x;
}
int quant_range(enum dtype d, int32_t *lo, int32_t *hi); /* 0: not a quantised type */
/* x / scale, rounded, + zero, within lo and hi; NaN becomes lo */
static inline int32_t quant_one(float x, float scale, int32_t zero, int32_t lo, int32_t hi)
{
    float q = quant_round(x / scale) + (float)zero;
    q = q > (float)lo ? q : (float)lo;
    return (int32_t)(q < (float)hi ? q : (float)hi);
}
/* As DynamicQuantizeLinear says: 0 is always representable. */
void quant_dynamic(size_t n, const float *x, float *scale, uint8_t *zero);

/* Integer products: c = (a - za) (b - zb), exact while |sum| < 2^31. The left side are m rows of k; the right side is packed once. */
enum { QUANT_NR = 16 };
static inline size_t quant_packed(size_t k, size_t n) /* int16 elements */
{
    return (n + QUANT_NR - 1) / QUANT_NR * QUANT_NR * ((k + 1) / 2 * 2);
}
/* b is k rows of n elements, ldb apart (or columns, when row and column steps say so), uint8 or int8; zero: one or n zero points of b's type, or NULL */
void quant_pack(enum dtype d, size_t k, size_t n, const void *b, size_t row_step, size_t col_step, const void *zero, int zero_per_column,
                int16_t *packed);
/* a's rows as int16, less their zero point (one, or one per row), each row padded to an even k */
void quant_widen(enum dtype d, size_t m, size_t k, const void *a, size_t lda, const void *zero, int zero_per_row, int16_t *out);
void quant_gemm(const struct kernels *kernels, size_t m, size_t n, size_t k, const int16_t *a, const int16_t *packed, int32_t *c, size_t ldc);

#endif
