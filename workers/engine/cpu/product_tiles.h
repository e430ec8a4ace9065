/* Tiles of products: MR rows of activations x NR outputs, summed over words of k while they stay in registers; what follows the sum is done before they leave.
   products.c says how words lie. */
#ifndef EBB_ENGINE_PRODUCT_TILES_H
#define EBB_ENGINE_PRODUCT_TILES_H

#include "workers/engine/cpu/pack.h"

/* What a word holds and how two are multiplied. */
enum word { F32, I16, U8, DP };

WORK vf multiply_add(const enum word w, vf x, vf y, vf acc)
{
    switch (w) {
#if ISA_LEVEL == 3
    case I16: return (vf)((vi)acc + (vi)_mm512_madd_epi16((__m512i)x, (__m512i)y));
#elif ISA_LEVEL == 2
    case I16: return (vf)((vi)acc + (vi)_mm256_madd_epi16((__m256i)x, (__m256i)y));
#else
    case I16: return (vf)((vi)acc + (vi)_mm_madd_epi16((__m128i)x, (__m128i)y));
#endif
#if defined(EBB_VNNI) && ISA_LEVEL == 3
    case U8: return (vf)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)x, (__m512i)y);
#elif defined(EBB_VNNI)
    case U8: return (vf)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)x, (__m256i)y);
#endif
#if defined(EBB_BF16)
    case DP: return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)y);
#endif
    default: return mul_add(x, y, acc);
    }
}

/* Activations in int8 have a scale for each row and for each BLOCK of k. */
enum { BLOCK = INT8_BLOCK };

/* What a tile needs beside its words; pointers to its own part. */
struct side {
    int first, last;        /* block of k: sums start from zero; what follows the sum is done before it leaves the registers */
    const float *row_scale; /* int8: of each block and row: [block][mr] */
    const int32_t *start;   /* int8 in bytes: -128 times the sum of a block's weights, [block][NR], as activations are 128 too large */
    const float *scale;     /* int8: of each output */
    const float *bias;      /* NULL: none */
    const float *res;       /* NULL: none */
    size_t ldres;
};

INL void finish_sums(const enum word word, const int mr, const struct side *s, vf acc[MR][TV])
{
    if (word == I16 || word == U8)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++) {
            vf scale = load(s->scale + j * VL);
#pragma GCC unroll 14
            for (int i = 0; i < mr; i++)
                acc[i][j] = acc[i][j] * scale;
        }
    if (s->bias)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++) {
            vf bias = load(s->bias + j * VL);
#pragma GCC unroll 14
            for (int i = 0; i < mr; i++)
                acc[i][j] = acc[i][j] + bias;
        }
    if (s->res)
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = acc[i][j] + load(s->res + (size_t)i * s->ldres + j * VL);
}

/* Sums stay in their registers, in this order: else gcc 12 has all products of a tile ready before it adds the first, and no room for them. */
#if defined(EBB_EMULATE) || ISA_LEVEL == 1
#define STAY(acc)
#else
#define STAY(acc)                                                                                                                \
    for (int j = 0; j < TV; j++)                                                                                                 \
        __asm__ volatile("" : "+v"((acc)[j]));
#endif

/* acc (+)= a[kd][mr] b[kd][NR] */
INL void multiply_words(const enum word word, const int mr, uint32_t kd, const float *a, const float *b, vf acc[MR][TV])
{
    for (uint32_t k = 0; k < kd; k++) {
        vf w[TV];
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            w[j] = load(b + j * VL);
        for (int j = 0; j < NR; j += 16)
            _mm_prefetch((const char *)(b + 8 * NR + j), _MM_HINT_T0);
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++) {
            vf x = splat_bits(a + i);
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = multiply_add(word, x, w[j], acc[i][j]);
            STAY(acc[i])
        }
        a += mr;
        b += NR;
    }
}

INL void store_tile(const int mr, vf acc[MR][TV], float *c, size_t ldc)
{
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            store(c + (size_t)i * ldc + j * VL, acc[i][j]);
}

/* c[mr][NR] (+)= a[kd][mr] b[kd][NR] */
WORK void float_tile(const enum word word, const int mr, uint32_t kd, const float *a, const float *b, float *c, size_t ldc,
                     const struct side *s)
{
    vf acc[MR][TV];
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            acc[i][j] = s->first ? (vf){0} : load(c + (size_t)i * ldc + j * VL);
    multiply_words(word, mr, kd, a, b, acc);
    if (s->last)
        finish_sums(word, mr, s, acc);
    store_tile(mr, acc, c, ldc);
}

/* The same over exact sums of BLOCKs, each of which goes into c with the row's scale of that block. */
WORK void exact_tile(const enum word word, const int mr, uint32_t kd, const float *a, const float *b, float *c, size_t ldc,
                     const struct side *s)
{
    const uint32_t block = word == U8 ? BLOCK / 4 : BLOCK / 2;
    const float *scale = s->row_scale;
    const int32_t *start = s->start;
    uint32_t k = 0;
    int first = s->first;
    do { /* once where there is no k */
        uint32_t n = kd - k < block ? kd - k : block;
        vf acc[MR][TV];
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = word == U8 ? load((const float *)start + j * VL) : (vf){0};
        multiply_words(word, mr, n, a, b, acc);
        k += n;
        a += n * (uint32_t)mr;
        b += n * NR;
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++) {
                vf before = first ? (vf){0} : load(c + (size_t)i * ldc + j * VL);
                acc[i][j] = mul_add(__builtin_convertvector((vi)acc[i][j], vf), splat(scale[i]), before);
            }
        if (s->last && k == kd)
            finish_sums(word, mr, s, acc);
        store_tile(mr, acc, c, ldc);
        scale += mr;
        start += word == U8 ? NR : 0;
        first = 0;
    } while (k < kd);
}

INL void tile(const enum word word, const int mr, uint32_t kd, const float *a, const float *b, float *c, size_t ldc, const struct side *s)
{
    if (word == I16 || word == U8)
        exact_tile(word, mr, kd, a, b, c, ldc, s);
    else
        float_tile(word, mr, kd, a, b, c, ldc, s);
}

typedef void packed_tile_fn(uint32_t kd, const float *a, const float *b, float *c, size_t ldc, const struct side *s);
#define TILE(word, mr)                                                                                                           \
    static __attribute__((noinline, unused)) void word##_##mr(uint32_t kd, const float *a, const float *b, float *c, size_t ldc, \
                                                              const struct side *s)                                              \
    {                                                                                                                            \
        tile(word, mr, kd, a, b, c, ldc, s);                                                                                     \
    }
#if ISA_LEVEL == 3
#define EACH_MR(X, w) X(w, 1) X(w, 2) X(w, 3) X(w, 4) X(w, 5) X(w, 6) X(w, 7) X(w, 8) X(w, 9) X(w, 10) X(w, 11) X(w, 12) X(w, 13) X(w, 14)
#elif ISA_LEVEL == 2
#define EACH_MR(X, w) X(w, 1) X(w, 2) X(w, 3) X(w, 4) X(w, 5) X(w, 6)
#else
#define EACH_MR(X, w) X(w, 1) X(w, 2)
#endif
#define NAME_OF(word, mr) word##_##mr,
#define TILES(word)                                                                                                              \
    EACH_MR(TILE, word)                                                                                                          \
    static __attribute__((unused)) packed_tile_fn *const word##_tiles[MR + 1] = {NULL, EACH_MR(NAME_OF, word)};

TILES(F32)
#if defined(EBB_VNNI)
enum { INT8 = U8, INT8_GROUP = 4 };
TILES(U8)
#define INT8_TILES U8_tiles
#else
enum { INT8 = I16, INT8_GROUP = 2 };
TILES(I16)
#define INT8_TILES I16_tiles
#endif
#if defined(EBB_BF16)
TILES(DP)
#endif

/* The same on rows that lie lda apart, for attention. Rows in threes share an address register. */
WORK void row_tile(const int mr, uint32_t kc, const float *a, size_t lda, const float *b, float *c, size_t ldc, int first)
{
    vf acc[MR][TV];
    const float *row[(MR + 2) / 3];
#pragma GCC unroll 5
    for (int g = 0; g < (mr + 2) / 3; g++)
        row[g] = a + (size_t)(3 * g) * lda;
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            acc[i][j] = first ? (vf){0} : load(c + (size_t)i * ldc + j * VL);
    for (uint32_t k = 0; k < kc; k++) {
        vf w[TV];
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            w[j] = load(b + j * VL);
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++) {
            vf x = splat(row[i / 3][(size_t)(i % 3) * lda]);
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = mul_add(x, w[j], acc[i][j]);
        }
#pragma GCC unroll 5
        for (int g = 0; g < (mr + 2) / 3; g++)
            row[g]++;
        b += NR;
    }
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            store(c + (size_t)i * ldc + j * VL, acc[i][j]);
}

#endif
