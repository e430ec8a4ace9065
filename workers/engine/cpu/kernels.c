/* One source, compiled once per instruction set (-DISA=name -DISA_LEVEL=3|2|1), each giving the same bits:
   - an element of a product is one chain of fused multiply-adds over k, from zero; tiles, blocks of k and edges only decide where
     the running sum rests (a register, or memory as f32, which is exact);
   - a reduction along a row goes through 16 lanes, element j into lane j % 16, and one fixed tree at the end, whatever the
     width of a vector;
   - everything else is the same sequence of IEEE operations on each element. No libm, no approximate instructions.
   Contraction is off (-ffp-contract=off): where a fused multiply-add is meant, mul_add() stands. */
#include <immintrin.h>
#include <string.h>

#include "workers/engine/cpu/kernels.h"
#include "workers/engine/cpu/poly.h"

/* Per table the shape of a tile, and the rows that pass while a panel's block of k (KC) stays in the first-level cache; the
   width of a vector is what the compiler was told. Apart, so that a test can run the tiles of AVX-512 on any processor. */
#if ISA_LEVEL == 3
enum { MR = 14, NR = 32, MC = 112 };
#elif ISA_LEVEL == 2
enum { MR = 6, NR = 16, MC = 48 };
#else
enum { MR = 2, NR = 16, MC = 48 };
#endif
#if defined(__AVX512F__)
enum { VL = 16 };
#elif defined(__FMA__)
enum { VL = 8 };
#else
enum { VL = 4 };
#endif
enum { NV = 16 / VL, TV = NR / VL, KC = 384 };
_Static_assert(NR % 16 == 0, "a panel is made of whole 16-lane blocks");

#define INL static inline __attribute__((always_inline))

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

#if defined(__AVX512F__)
INL vf mul_add(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
#elif defined(__FMA__)
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

#if ISA_LEVEL == 3 /* only in a test, where the tiles of AVX-512 would take long to compile */
static __attribute__((noinline))
#else
INL
#endif
vf mul_add(vf a, vf b, vf c)
{
    /* conversions by name: written as casts of elements, gcc 12 drops the rounding to float between two of them */
    vd lo = fma_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    vd hi = fma_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)), _mm_cvtps_pd(_mm_movehl_ps(c, c)));
    return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}
#endif

INL vf choose(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

INL vf larger(vf a, vf b)
{
    return choose(a > b, a, b);
}

INL vf smaller(vf a, vf b)
{
    return choose(a < b, a, b);
}

/* Functions of one element ------------------------------------------------------------------------------------------------------- */

/* x <= 0 */
INL vf exp_neg(vf x)
{
    x = larger(x, splat(EXP_MIN));
    vf t = mul_add(x, splat(EXP_LOG2E), splat(EXP_ROUND_MAGIC)), n = t - splat(EXP_ROUND_MAGIC);
    vf r = mul_add(n, splat(-EXP_LN2_LO), mul_add(n, splat(-EXP_LN2_HI), x));
    vf p = mul_add(splat(EXP_E4), r, splat(EXP_E3));
    p = mul_add(p, r, splat(EXP_E2));
    p = mul_add(p, r, splat(EXP_E1));
    p = mul_add(p, r, splat(EXP_E0));
    p = mul_add(p, r, splat(1));
    p = mul_add(p, r, splat(1));
    return (vf)((vu)p + (((vu)t - (vu)splat(EXP_ROUND_MAGIC)) << 23));
}

INL vf copy_sign(vf magnitude, vf sign)
{
    vi top = (vi)splat(-0.0f);
    return (vf)(((vi)magnitude & ~top) | ((vi)sign & top));
}

INL vf erf_of(vf z)
{
    vf a = smaller((vf)((vi)z & ~(vi)splat(-0.0f)), splat(ERF_MAX)), t = a * a;
    vf p = mul_add(splat(ERF_P5), t, splat(ERF_P4)), q = mul_add(splat(ERF_Q5), t, splat(ERF_Q4));
    p = mul_add(p, t, splat(ERF_P3));
    p = mul_add(p, t, splat(ERF_P2));
    p = mul_add(p, t, splat(ERF_P1));
    p = mul_add(p, t, splat(ERF_P0));
    q = mul_add(q, t, splat(ERF_Q3));
    q = mul_add(q, t, splat(ERF_Q2));
    q = mul_add(q, t, splat(ERF_Q1));
    q = mul_add(q, t, splat(1));
    return copy_sign(smaller(a * p / q, splat(1)), z);
}

INL vf gelu(vf x)
{
    vf h = x * splat(0.5f);
    return mul_add(h, erf_of(x * splat(GELU_SQRT_HALF)), h);
}

INL vf tanh_of(vf u)
{
    vf e = exp_neg((vf)((vi)(u * splat(2)) | (vi)splat(-0.0f))); /* exp(-2|u|) */
    return copy_sign((splat(1) - e) / (splat(1) + e), u);
}

INL vf gelu_tanh(vf x)
{
    vf u = x * splat(GELU_TANH_C) * mul_add(x * x, splat(GELU_TANH_CUBE), splat(1));
    vf h = x * splat(0.5f);
    return mul_add(h, tanh_of(u), h);
}

INL vf activate(enum act act, vf x)
{
    switch (act) {
    case ACT_GELU: return gelu(x);
    case ACT_GELU_TANH: return gelu_tanh(x);
    case ACT_RELU: return larger(x, (vf){0});
    case ACT_TANH: return tanh_of(x);
    case ACT_NONE: break;
    }
    return x;
}

/* Products ----------------------------------------------------------------------------------------------------------------------- */

/* c[mr][NR] (+)= a[mr][kc] b[kc][NR]. Rows in threes share an address register. */
INL void tile(const int mr, uint32_t kc, const float *a, size_t lda, const float *b, float *c, size_t ldc, int first)
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

typedef void tile_fn(uint32_t kc, const float *a, size_t lda, const float *b, float *c, size_t ldc, int first);
#define TILE(mr)                                                                                                                 \
    static __attribute__((noinline)) void tile_##mr(uint32_t kc, const float *a, size_t lda, const float *b, float *c,           \
                                                    size_t ldc, int first)                                                       \
    {                                                                                                                            \
        tile(mr, kc, a, lda, b, c, ldc, first);                                                                                  \
    }
TILE(1) TILE(2)
#if ISA_LEVEL >= 2
TILE(3) TILE(4) TILE(5) TILE(6)
#endif
#if ISA_LEVEL >= 3
TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)
#endif
static tile_fn *const tiles[MR + 1] = {
    NULL, tile_1, tile_2,
#if ISA_LEVEL >= 2
    tile_3, tile_4, tile_5, tile_6,
#endif
#if ISA_LEVEL >= 3
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14,
#endif
};

/* What follows the last of k, on a tile that is still in the first-level cache. */
INL void finish(const enum act act, uint32_t mr, const float *bias, float *c, size_t ldc)
{
    for (uint32_t i = 0; i < mr; i++)
        for (int j = 0; j < NR; j += VL) {
            vf x = load(c + i * ldc + j);
            if (bias)
                x = x + load(bias + j);
            store(c + i * ldc + j, activate(act, x));
        }
}

static void finish_tile(enum act act, uint32_t mr, const float *bias, float *c, size_t ldc)
{
    switch (act) {
    case ACT_NONE: finish(ACT_NONE, mr, bias, c, ldc); break;
    case ACT_GELU: finish(ACT_GELU, mr, bias, c, ldc); break;
    case ACT_GELU_TANH: finish(ACT_GELU_TANH, mr, bias, c, ldc); break;
    case ACT_RELU: finish(ACT_RELU, mr, bias, c, ldc); break;
    case ACT_TANH: finish(ACT_TANH, mr, bias, c, ldc); break;
    }
}

static void add_residual(uint32_t mr, uint32_t n, const float *res, size_t ldres, float *c, size_t ldc)
{
    for (uint32_t i = 0; i < mr; i++)
        for (uint32_t j = 0; j < n; j++)
            c[i * ldc + j] += res[i * ldres + j];
}

/* One tile over one block of k. A panel that reaches beyond n goes through a tile of its own: nothing outside c is touched. */
static void gemm_tile(const struct gemm_args *g, uint32_t i, uint32_t mr, uint32_t j, uint32_t k0, uint32_t kc)
{
    _Alignas(64) float edge[MR * NR];
    uint32_t n = g->n - j < NR ? g->n - j : NR;
    float *home = g->c + i * g->ldc + j, *c = home;
    size_t ldc = g->ldc;
    if (n < NR) {
        c = edge;
        ldc = NR;
        if (k0 > 0) {
            memset(edge, 0, sizeof edge);
            for (uint32_t r = 0; r < mr; r++)
                memcpy(edge + r * NR, home + r * g->ldc, n * sizeof *edge);
        }
    }
    tiles[mr](kc, g->a + i * g->lda + k0, g->lda, g->packed + (size_t)(j / NR) * g->k * NR + (size_t)k0 * NR, c, ldc, k0 == 0);
    if (k0 + kc == g->k) {
        if (g->bias || g->act != ACT_NONE)
            finish_tile(g->act, mr, g->bias ? g->bias + j : NULL, c, ldc);
        if (g->res)
            add_residual(mr, n, g->res + i * g->ldres + j, g->ldres, c, ldc);
    }
    if (n < NR)
        for (uint32_t r = 0; r < mr; r++)
            memcpy(home + r * g->ldc, edge + r * NR, n * sizeof *edge);
}

/* A block of rows and k stays in the second-level cache while all panels pass, a panel's block of k in the first. */
static void gemm(const struct gemm_args *g)
{
    for (uint32_t i0 = 0; i0 < g->m; i0 += MC) {
        uint32_t rows = g->m - i0 < MC ? g->m - i0 : MC, tiles_n = (rows + MR - 1) / MR;
        for (uint32_t k0 = 0; k0 < g->k; k0 += KC) {
            uint32_t kc = g->k - k0 < KC ? g->k - k0 : KC;
            for (uint32_t j = 0; j < g->n; j += NR)
                for (uint32_t t = 0; t < tiles_n; t++) { /* tiles of nearly equal height: no slow sliver at the end */
                    uint32_t r0 = rows * t / tiles_n, r1 = rows * (t + 1) / tiles_n;
                    gemm_tile(g, i0 + r0, r1 - r0, j, k0, kc);
                }
        }
    }
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
INL struct v16 load_part(const float *p, uint32_t n, float rest)
{
    float t[16];
    for (uint32_t i = 0; i < 16; i++)
        t[i] = i < n ? p[i] : rest;
    return load16(t);
}

INL void store_part(float *p, uint32_t n, struct v16 x)
{
    float t[16];
    store16(t, x);
    memcpy(p, t, n * sizeof *t);
}

INL float sum16(struct v16 x)
{
    float t[16];
    store16(t, x);
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] += t[i + w];
    return t[0];
}

INL float max16(struct v16 x)
{
    float t[16];
    store16(t, x);
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] = t[i + w] > t[i] ? t[i + w] : t[i];
    return t[0];
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

/* Adding +0 to a lane that a row does not reach changes no bit: a sum that starts at +0 never becomes -0. */
static float row_sum(uint32_t n, const float *x)
{
    struct v16 acc = zero16();
    uint32_t j = 0;
    for (; j + 16 <= n; j += 16) {
        struct v16 y = load16(x + j);
        EACH(acc, acc.v[l] + y.v[l]);
    }
    if (j < n) {
        struct v16 y = load_part(x + j, n - j, 0);
        EACH(acc, acc.v[l] + y.v[l]);
    }
    return sum16(acc);
}

/* The sum of (x - mean)^2 */
static float row_squares(uint32_t n, const float *x, float mean)
{
    struct v16 acc = zero16();
    uint32_t j = 0;
    for (; j + 16 <= n; j += 16) {
        struct v16 y = load16(x + j);
        EACH(y, y.v[l] - splat(mean));
        EACH(acc, mul_add(y.v[l], y.v[l], acc.v[l]));
    }
    if (j < n) {
        struct v16 y = load_part(x + j, n - j, mean);
        EACH(y, y.v[l] - splat(mean));
        EACH(acc, mul_add(y.v[l], y.v[l], acc.v[l]));
    }
    return sum16(acc);
}

INL struct v16 norm16(struct v16 x, float mean, float scale, struct v16 gamma, struct v16 beta)
{
    EACH(x, mul_add((x.v[l] - splat(mean)) * splat(scale), gamma.v[l], beta.v[l]));
    return x;
}

static void norm(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps, float *y,
                 size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float mean = row_sum(n, x) / (float)n;
        float scale = 1 / __builtin_sqrtf(row_squares(n, x, mean) / (float)n + eps);
        uint32_t j = 0;
        for (; j + 16 <= n; j += 16)
            store16(y + j, norm16(load16(x + j), mean, scale, load16(gamma + j), load16(beta + j)));
        if (j < n)
            store_part(y + j, n - j,
                       norm16(load_part(x + j, n - j, 0), mean, scale, load_part(gamma + j, n - j, 0),
                              load_part(beta + j, n - j, 0)));
    }
}

static void unit(uint32_t n, float *x)
{
    float length = __builtin_sqrtf(row_squares(n, x, 0));
    length = length > 1e-12f ? length : 1e-12f;
    for (uint32_t j = 0; j < n; j++)
        x[j] /= length;
}

/* Attention ---------------------------------------------------------------------------------------------------------------------- */

/* x = exp(x * scale + bias - max), up to the end of the 16-lane block with zeros; returns the sum. x has room for whole blocks. */
static float softmax_row(uint32_t n, float *x, float scale, const float *bias)
{
    uint32_t full = n / 16 * 16, rest = n - full;
    struct v16 top;
    EACH(top, splat(-__builtin_inff()));
    for (uint32_t j = 0; j < n; j += 16) {
        struct v16 y = load16(x + j);
        EACH(y, y.v[l] * splat(scale));
        if (bias) {
            struct v16 b = j == full ? load_part(bias + j, rest, 0) : load16(bias + j);
            EACH(y, y.v[l] + b.v[l]);
        }
        store16(x + j, y);
        if (j == full)
            y = load_part(x + j, rest, -__builtin_inff());
        EACH(top, larger(y.v[l], top.v[l]));
    }
    float max = max16(top);
    struct v16 acc = zero16();
    for (uint32_t j = 0; j < n; j += 16) {
        struct v16 y = load16(x + j);
        EACH(y, exp_neg(y.v[l] - splat(max)));
        store16(x + j, y);
        if (j == full) {
            y = load_part(x + j, rest, 0);
            store16(x + j, y);
        }
        EACH(acc, acc.v[l] + y.v[l]);
    }
    return sum16(acc);
}

/* panels[j / NR][d][j % NR] = x[j][d], with zeros beyond len */
static void pack_keys(uint32_t len, uint32_t dim, const float *x, size_t ld, float *panels)
{
    for (uint32_t j0 = 0; j0 < len; j0 += NR, panels += (size_t)NR * dim) {
        uint32_t n = len - j0 < NR ? len - j0 : NR;
        if (n < NR)
            memset(panels, 0, sizeof *panels * NR * dim);
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t d = 0; d < dim; d++)
                panels[(size_t)d * NR + j] = x[(j0 + j) * ld + d];
    }
}

/* panels[d / NR][j][d % NR] = x[j][d], with zeros beyond dim */
static void pack_values(uint32_t len, uint32_t dim, const float *x, size_t ld, float *panels)
{
    for (uint32_t d0 = 0; d0 < dim; d0 += NR) {
        uint32_t n = dim - d0 < NR ? dim - d0 : NR;
        for (uint32_t j = 0; j < len; j++, panels += NR) {
            memcpy(panels, x + j * ld + d0, n * sizeof *panels);
            if (n < NR)
                memset(panels + n, 0, (NR - n) * sizeof *panels);
        }
    }
}

static void attention(const struct attention_args *a)
{
    uint32_t cols = (a->len + NR - 1) / NR * NR, dims = (a->dim + NR - 1) / NR * NR;
    float *keys = a->scratch, *values = keys + (size_t)cols * a->dim, *scores = values + (size_t)a->len * dims;
    _Alignas(64) float o[MR * NR];
    pack_keys(a->len, a->dim, a->k, a->ld, keys);
    pack_values(a->len, a->dim, a->v, a->ld, values);
    uint32_t tiles_n = (a->len + MR - 1) / MR;
    for (uint32_t t = 0; t < tiles_n; t++) {
        uint32_t r0 = a->len * t / tiles_n, mr = a->len * (t + 1) / tiles_n - r0;
        float inverse[MR];
        for (uint32_t j = 0; j < cols; j += NR)
            tiles[mr](a->dim, a->q + r0 * a->ld, a->ld, keys + (size_t)j * a->dim, scores + j, cols, 1);
        for (uint32_t r = 0; r < mr; r++)
            inverse[r] = 1 / softmax_row(a->len, scores + (size_t)r * cols, a->scale,
                                         a->bias ? a->bias + (ptrdiff_t)(r0 + r) * a->ldbias : NULL);
        for (uint32_t d = 0; d < dims; d += NR) {
            uint32_t n = a->dim - d < NR ? a->dim - d : NR;
            tiles[mr](a->len, scores, cols, values + (size_t)d * a->len, o, NR, 1);
            for (uint32_t r = 0; r < mr; r++) {
                float *y = a->out + (r0 + r) * a->ldo + d;
                for (uint32_t j = 0; j < n; j++)
                    y[j] = o[r * NR + j] * inverse[r];
            }
        }
    }
}

/* The ends ----------------------------------------------------------------------------------------------------------------------- */

static void embed(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type,
                  float *y, size_t ldy)
{
    for (uint32_t i = 0; i < len; i++, y += ldy, position += n) {
        const float *w = word + (size_t)ids[i] * n;
        for (uint32_t j = 0; j < n; j++)
            y[j] = (w[j] + type[j]) + position[j];
    }
}

static void pool(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y)
{
    memcpy(y, x, n * sizeof *y);
    if (how == POOL_CLS)
        return;
    for (uint32_t i = 1; i < len; i++) {
        x += ldx;
        if (how == POOL_MAX)
            for (uint32_t j = 0; j < n; j++)
                y[j] = x[j] > y[j] ? x[j] : y[j];
        else
            for (uint32_t j = 0; j < n; j++)
                y[j] += x[j];
    }
    if (how == POOL_MAX)
        return;
    float by = how == POOL_MEAN ? (float)len : __builtin_sqrtf((float)len);
    for (uint32_t j = 0; j < n; j++)
        y[j] /= by;
}

#define NAME_(isa) kernels_##isa
#define NAME(isa) NAME_(isa)
#define TEXT_(isa) #isa
#define TEXT(isa) TEXT_(isa)
const struct kernels NAME(ISA) = {
    .name = TEXT(ISA),
    .mr = MR,
    .nr = NR,
    .gemm = gemm,
    .attention = attention,
    .norm = norm,
    .embed = embed,
    .pool = pool,
    .unit = unit,
};
