/* What the files that are compiled once per instruction set share: vectors, sixteen lanes, the names of their functions.
   -DISA=name -DISA_LEVEL=3|2|1. The same source gives the same bits:
   - an element of a product is one chain of fused multiply-adds over k, from zero; tiles, blocks of k and edges only decide where
     the running sum rests (a register, or memory as f32, which is exact);
   - a reduction along a row goes through 16 lanes, element j into lane j % 16, and one fixed tree at the end, whatever the
     width of a vector;
   - everything else is the same sequence of IEEE operations on each element. No libm, no approximate instructions.
   Contraction is off (-ffp-contract=off): where a fused multiply-add is meant, mul_add() stands. */
#ifndef EBB_ENGINE_ISA_H
#define EBB_ENGINE_ISA_H

#include <immintrin.h>
#include <string.h>

#if defined(EBB_EMULATE) /* tests: the tables of levels 2 and 3 with all their instructions on any processor */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#undef _mm512_madd_epi16 /* SIMDe 0.7.4 has it with the arguments of the masked one */
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#endif

#include "workers/engine/cpu/kernels.h"

#define ISA_PASTE_(isa, name) isa##_##name
#define ISA_PASTE(isa, name) ISA_PASTE_(isa, name)
#define SYM(name) ISA_PASTE(ISA, name)
#define INL static inline __attribute__((always_inline))
#if defined(EBB_EMULATE)
#define WORK static __attribute__((noinline)) /* compiled once, for all tiles: emulated instructions are long */
#else
#define WORK INL
#endif

/* Per table the shape of a tile and the width of a vector. */
#if ISA_LEVEL == 3
enum { MR = 14, NR = 32 };
#elif ISA_LEVEL == 2
enum { MR = 6, NR = 16 };
#else
enum { MR = 2, NR = 16 };
#endif
#if ISA_LEVEL == 3
enum { VL = 16 };
#elif ISA_LEVEL == 2
enum { VL = 8 };
#else
enum { VL = 4 };
#endif
enum { NV = 16 / VL, TV = NR / VL };
_Static_assert(NR % 16 == 0, "a panel is made of whole 16-lane blocks");

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
struct v16 {
    vf v[NV];
};

INL vf load(const float *p)
{
    return *(const vfu *)p;
}

INL void store(float *p, vf x)
{
    *(vfu *)p = x;
}

INL vf splat(float x)
{
    return x - (vf){0}; /* x - 0 is x, for -0 too */
}

/* A word of any kind in every lane, bit by bit. */
INL vf splat_bits(const float *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return (vf)(x - (vi){0});
}

#if ISA_LEVEL == 3 && !defined(EBB_EMULATE)
INL vf mul_add(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
#elif ISA_LEVEL == 2 && !defined(EBB_EMULATE)
INL vf mul_add(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
#else
/* Without the instruction: a * b is exact in double; the sum is rounded to odd, so that rounding it once more to float gives
   what one rounding would (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
typedef double vd __attribute__((vector_size(16)));
typedef int64_t vl __attribute__((vector_size(16)));

INL vd fma_odd(vd a, vd b, vd c)
{
    vd p = a * b, s = p + c, t = s - p;
    vd err = (p - (s - t)) + (c - t); /* exact: s + err = p + c; NaN beside infinities */
    vl up = err > (vd){0}, down = err < (vd){0};
    vl away = (up & (s < (vd){0})) | (down & (s > (vd){0})); /* -1 where s was rounded away from zero */
    return (vd)(((vl)s + away) | ((up | down) & (vl){1, 1}));
}

INL __m128 mul_add4(__m128 a, __m128 b, __m128 c)
{
    /* conversions by name: written as casts of elements, gcc 12 drops the rounding to float between two of them */
    vd lo = fma_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    vd hi = fma_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)), _mm_cvtps_pd(_mm_movehl_ps(c, c)));
    return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}

#if defined(EBB_EMULATE)
WORK vf mul_add(vf a, vf b, vf c)
{
    __m128 x[VL / 4], y[VL / 4], z[VL / 4];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(z, &c, sizeof z);
    for (int i = 0; i < VL / 4; i++)
        z[i] = mul_add4(x[i], y[i], z[i]);
    memcpy(&c, z, sizeof z);
    return c;
}
#else
INL vf mul_add(vf a, vf b, vf c)
{
    return mul_add4(a, b, c);
}
#endif
#endif

/* Where the mask's bits are all ones a, where they are zeros b. */
INL vf choose(vi mask, vf a, vf b)
{
#if ISA_LEVEL == 2
    return _mm256_blendv_ps(b, a, (__m256)mask);
#else
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
#endif
}

/* a > b ? a : b, also for zeros and NaN: as the instructions have it */
INL vf larger(vf a, vf b)
{
#if defined(EBB_EMULATE)
    return choose(a > b, a, b);
#elif ISA_LEVEL == 3
    return _mm512_max_ps(a, b);
#elif ISA_LEVEL == 2
    return _mm256_max_ps(a, b);
#else
    return _mm_max_ps(a, b);
#endif
}

INL vf smaller(vf a, vf b)
{
#if defined(EBB_EMULATE)
    return choose(a < b, a, b);
#elif ISA_LEVEL == 3
    return _mm512_min_ps(a, b);
#elif ISA_LEVEL == 2
    return _mm256_min_ps(a, b);
#else
    return _mm_min_ps(a, b);
#endif
}

/* Sixteen lanes -------------------------------------------------------------------------------------------------------------------- */

INL struct v16 load16(const float *p)
{
    struct v16 r;
#pragma GCC unroll 4
    for (int i = 0; i < NV; i++)
        r.v[i] = load(p + i * VL);
    return r;
}

INL void store16(float *p, struct v16 x)
{
#pragma GCC unroll 4
    for (int i = 0; i < NV; i++)
        store(p + i * VL, x.v[i]);
}

/* The last n < 16 of a row; the other lanes hold `rest`. */
INL struct v16 load_part(const float *p, size_t n, float rest)
{
    float t[16];
    for (size_t i = 0; i < 16; i++)
        t[i] = i < n ? p[i] : rest;
    return load16(t);
}

INL void store_part(float *p, size_t n, struct v16 x)
{
    float t[16];
    store16(t, x);
    memcpy(p, t, n * sizeof *t);
}

/* The tree: lanes i and i + 8 meet, then i and i + 4, i + 2, i + 1. */
INL __m128 halves16(struct v16 x, const int largest)
{
#if defined(EBB_EMULATE)
    float t[16];
    store16(t, x);
    for (int w = 8; w >= 4; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] = !largest ? t[i] + t[i + w] : t[i + w] > t[i] ? t[i + w] : t[i];
    return _mm_loadu_ps(t);
#else
#define MEET(add, max, a, b) (largest ? max(b, a) : add(a, b))
#if ISA_LEVEL == 3
    __m256 y = MEET(_mm256_add_ps, _mm256_max_ps, _mm512_castps512_ps256(x.v[0]), _mm512_extractf32x8_ps(x.v[0], 1));
#elif ISA_LEVEL == 2
    __m256 y = MEET(_mm256_add_ps, _mm256_max_ps, x.v[0], x.v[1]);
#endif
#if ISA_LEVEL >= 2
    return MEET(_mm_add_ps, _mm_max_ps, _mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
#else
    return MEET(_mm_add_ps, _mm_max_ps, MEET(_mm_add_ps, _mm_max_ps, x.v[0], x.v[2]), MEET(_mm_add_ps, _mm_max_ps, x.v[1], x.v[3]));
#endif
#undef MEET
#endif
}

INL float sum16(struct v16 x)
{
    __m128 y = halves16(x, 0);
    y = y + _mm_movehl_ps(y, y);
    return y[0] + y[1];
}

INL float max16(struct v16 x)
{
    __m128 y = halves16(x, 1);
    float t[4];
    _mm_storeu_ps(t, y);
    t[0] = t[2] > t[0] ? t[2] : t[0];
    t[1] = t[3] > t[1] ? t[3] : t[1];
    return t[1] > t[0] ? t[1] : t[0];
}

/* The first n lanes of x, `rest` in the others. */
INL struct v16 first16(struct v16 x, size_t n, float rest)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int i = 0; i < NV; i++)
        x.v[i] = choose((vi)load((const float *)lanes + i * VL) < (int32_t)n, x.v[i], splat(rest));
    return x;
}

#define EACH(r, expr)                                                                                                            \
    do {                                                                                                                         \
        _Pragma("GCC unroll 4") for (int l = 0; l < NV; l++)(r).v[l] = (expr);                                                   \
    } while (0)

INL struct v16 zero16(void)
{
    struct v16 r;
    EACH(r, (vf){0});
    return r;
}

/* The files and what each gives to the table ------------------------------------------------------------------------------------------ */

/* c[mr][NR] (+)= a[mr][kc] b[kc][NR]: in products.c, used by attention.c too. Rows lie lda apart. */
typedef void tile_fn(uint32_t kc, const float *a, size_t lda, const float *b, float *c, size_t ldc, int first);
extern tile_fn *const SYM(row_tiles)[MR + 1];

size_t SYM(f32_packed_bytes)(uint32_t n, uint32_t k);
void SYM(f32_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed);
void SYM(f32_run)(const struct gemm_args *g);
size_t SYM(bf16_packed_bytes)(uint32_t n, uint32_t k);
void SYM(bf16_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed);
void SYM(bf16_run)(const struct gemm_args *g);
size_t SYM(int8_packed_bytes)(uint32_t n, uint32_t k);
void SYM(int8_pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed);
void SYM(int8_run)(const struct gemm_args *g);
size_t SYM(matmul_scratch)(const struct matmul_args *g);
void SYM(matmul)(const struct matmul_args *g);

void SYM(attention)(const struct attention_args *a);

void SYM(finish)(const struct epilogue *e, uint32_t row0, uint32_t rows, uint32_t n, float *c, size_t ldc);
void SYM(map)(enum act f, float p, float q, size_t n, const float *x, float *y);

void SYM(norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps, float *y,
               size_t ldy);
void SYM(rms_norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, float eps, float *y, size_t ldy);
void SYM(embed)(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type, float *y,
                size_t ldy);
void SYM(pool)(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y);
void SYM(unit)(uint32_t n, float *x);
float SYM(sum)(size_t n, const float *x);
float SYM(max)(size_t n, const float *x);
float SYM(min)(size_t n, const float *x);
float SYM(squares)(size_t n, const float *x, float mean);
float SYM(dot)(size_t n, const float *x, const float *y);
void SYM(softmax)(size_t n, const float *x, float *y);
void SYM(log_softmax)(size_t n, const float *x, float *y);

#endif
