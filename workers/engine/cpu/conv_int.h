/* Products of 16-bit integers with exact 32-bit sums: what quantised convolutions and products come down to once their zero points are
   taken off. Exact, hence the same on every processor. */
#ifndef EBB_ENGINE_CONV_INT_H
#define EBB_ENGINE_CONV_INT_H

#include <stddef.h>
#include <stdint.h>

enum { INT_NR = 16 }; /* columns of a panel */

/* c[i][j] = sum over k of a[i][k] * b[k][j]. k is even; packed[j / 16][k / 2][j % 16][k % 2], zeros beyond n. */
struct int_gemm {
    uint32_t m, n, k;
    const int16_t *a;
    size_t lda;
    const int16_t *packed;
    int32_t *c;
    size_t ldc;
};

void int_gemm_avx512(const struct int_gemm *g);
void int_gemm_avx2(const struct int_gemm *g);
void int_gemm_generic(const struct int_gemm *g);
void int_gemm_reference(const struct int_gemm *g);
struct kernels;
typedef void int_gemm_fn(const struct int_gemm *g);
int_gemm_fn *int_gemm_of(const struct kernels *k); /* that of the same instruction set */

#endif
