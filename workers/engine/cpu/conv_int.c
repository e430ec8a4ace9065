/* Compiled once per instruction set. Pairs of k go through the multiply-and-add-pairs instruction, which is exact for sums of two products. */
#include <immintrin.h>
#include <string.h>

#include "workers/engine/cpu/conv_int.h"

#define INL static inline __attribute__((always_inline))

#if defined(__AVX512BW__)
enum { VL = 16, MR = 8 };
typedef __m512i vec;
INL vec pairs(vec a, vec b)
{
    return _mm512_madd_epi16(a, b);
}
INL vec add(vec a, vec b)
{
    return _mm512_add_epi32(a, b);
}
INL vec load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INL void store(void *p, vec x)
{
    _mm512_storeu_si512(p, x);
}
INL vec splat(int32_t x)
{
    return _mm512_set1_epi32(x);
}
#elif defined(__AVX2__)
enum { VL = 8, MR = 4 };
typedef __m256i vec;
INL vec pairs(vec a, vec b)
{
    return _mm256_madd_epi16(a, b);
}
INL vec add(vec a, vec b)
{
    return _mm256_add_epi32(a, b);
}
INL vec load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INL void store(void *p, vec x)
{
    _mm256_storeu_si256(p, x);
}
INL vec splat(int32_t x)
{
    return _mm256_set1_epi32(x);
}
#else
enum { VL = 4, MR = 2 };
typedef __m128i vec;
INL vec pairs(vec a, vec b)
{
    return _mm_madd_epi16(a, b);
}
INL vec add(vec a, vec b)
{
    return _mm_add_epi32(a, b);
}
INL vec load(const void *p)
{
    return _mm_loadu_si128(p);
}
INL void store(void *p, vec x)
{
    _mm_storeu_si128(p, x);
}
INL vec splat(int32_t x)
{
    return _mm_set1_epi32(x);
}
#endif
enum { NV = INT_NR / VL };

INL void tile(const int mr, uint32_t k, const int16_t *a, size_t lda, const int16_t *b, int32_t c[MR * INT_NR])
{
    vec acc[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            acc[i][j] = splat(0);
    for (uint32_t p = 0; p < k; p += 2, b += 2 * INT_NR) {
        vec w[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            w[j] = load(b + j * 2 * VL);
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            int32_t two;
            memcpy(&two, a + (size_t)i * lda + p, sizeof two);
            vec x = splat(two);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++)
                acc[i][j] = add(acc[i][j], pairs(x, w[j]));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            store(c + i * INT_NR + j * VL, acc[i][j]);
}

static void gemm(const struct int_gemm *g)
{
    _Alignas(64) int32_t c[MR * INT_NR];
    for (uint32_t j = 0; j < g->n; j += INT_NR) {
        const int16_t *b = g->packed + (size_t)(j / INT_NR) * g->k * INT_NR;
        uint32_t n = g->n - j < INT_NR ? g->n - j : INT_NR;
        for (uint32_t i = 0; i < g->m; i += MR) {
            const int16_t *a = g->a + i * g->lda;
            uint32_t m = g->m - i < MR ? g->m - i : MR;
            if (m == MR)
                tile(MR, g->k, a, g->lda, b, c);
            else
                for (uint32_t r = 0; r < m; r++)
                    tile(1, g->k, a + r * g->lda, g->lda, b, c + r * INT_NR);
            for (uint32_t r = 0; r < m; r++)
                memcpy(g->c + (i + r) * g->ldc + j, c + r * INT_NR, n * sizeof *c);
        }
    }
}

#define NAME_(isa) int_gemm_##isa
#define NAME(isa) NAME_(isa)
void NAME(ISA)(const struct int_gemm *g)
{
    gemm(g);
}
