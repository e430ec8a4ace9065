/* Each kernel as one would write it down from its definition: one element at a time, no tiles, no vectors. Slow, and kept for
   ever: the fast kernels are compared with it bit by bit. A panel is one column wide, so a packed matrix is the matrix. */
#include <math.h>
#include <string.h>

#include "workers/engine/cpu/kernels.h"
#include "workers/engine/cpu/poly.h"

static float bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* exp(x) - 1 = 2^n (p + 1) - 1, where p = r + r^2 (..) */
static float exp_poly(float x, float *t)
{
    *t = fmaf(x, EXP_LOG2E, EXP_ROUND_MAGIC);
    float n = *t - EXP_ROUND_MAGIC;
    return fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
}

static float horner(const float *coefficient, int n, float x)
{
    float p = coefficient[0];
    for (int i = 1; i < n; i++)
        p = fmaf(p, x, coefficient[i]);
    return p;
}

static const float exp_terms[] = {EXP_E4, EXP_E3, EXP_E2, EXP_E1, EXP_E0, 1, 1};

/* x <= 0 */
static float ref_exp(float x)
{
    float t, r = exp_poly(x, &t), p = horner(exp_terms, 7, r);
    return x >= EXP_MIN ? bits_float(float_bits(p) + ((float_bits(t) - float_bits(EXP_ROUND_MAGIC)) << 23)) : 0;
}

static float ref_expm1(float x)
{
    x = EXP_MIN > x ? EXP_MIN : x;
    float t, r = exp_poly(x, &t), p = horner(exp_terms, 6, r) * r;
    float scale = bits_float(float_bits(1.0f) + ((float_bits(t) - float_bits(EXP_ROUND_MAGIC)) << 23));
    return fmaf(p, scale, scale - 1);
}

static float ref_exp_any(float x)
{
    if (isnan(x))
        return x;
    x = x < EXP_LOWEST ? EXP_LOWEST : x > EXP_HIGHEST ? EXP_HIGHEST : x;
    float t, r = exp_poly(x, &t), p = horner(exp_terms, 7, r);
    int32_t n = (int32_t)(float_bits(t) - float_bits(EXP_ROUND_MAGIC)), half = n >> 1;
    return p * bits_float((uint32_t)(half + 127) << 23) * bits_float((uint32_t)(n - half + 127) << 23);
}

static float ref_log(float x)
{
    static const float terms[] = {LOG_P8, LOG_P7, LOG_P6, LOG_P5, LOG_P4, LOG_P3, LOG_P2, LOG_P1, LOG_P0};
    if (x < 0 || isnan(x))
        return NAN;
    if (x == 0)
        return -INFINITY;
    if (isinf(x))
        return x;
    int tiny = x < 0x1p-126f;
    uint32_t bits = float_bits(tiny ? x * 0x1p24f : x);
    int32_t n = ((int32_t)bits - LOG_SQRT_HALF) >> 23;
    float f = bits_float(bits - ((uint32_t)n << 23)) - 1, f2 = f * f, e = (float)(n - (tiny ? 24 : 0));
    float y = fmaf(e, EXP_LN2_LO, f2 * f * horner(terms, 9, f));
    return fmaf(e, EXP_LN2_HI, f + fmaf(f2, -0.5f, y));
}

static float ref_erf(float z)
{
    float a = fabsf(z) < ERF_MAX ? fabsf(z) : ERF_MAX, t = a * a;
    static const float over[] = {ERF_P5, ERF_P4, ERF_P3, ERF_P2, ERF_P1, ERF_P0};
    static const float under[] = {ERF_Q5, ERF_Q4, ERF_Q3, ERF_Q2, ERF_Q1, 1};
    float y = a * horner(over, 6, t) / horner(under, 6, t);
    return isnan(z) ? z : copysignf(y < 1 ? y : 1, z);
}

static float ref_tanh(float x)
{
    float m = ref_expm1(-fabsf(x * 2));
    return isnan(x) ? x : copysignf(m / (2 + m), x);
}

static float ref_sigmoid(float x)
{
    float e = ref_exp(-fabsf(x));
    return isnan(x) ? x : (x < 0 ? e : 1) / (1 + e);
}

static float ref_hard_sigmoid(float x, float p, float q)
{
    float y = fmaf(x, p, q);
    y = 0 > y ? 0 : y;
    return 1 < y ? 1 : y;
}

static float ref_act(enum act act, float p, float q, float x)
{
    float h = x * 0.5f;
    switch (act) {
    case ACT_GELU: return fmaf(h, ref_erf(x * GELU_SQRT_HALF), h);
    case ACT_GELU_TANH: return fmaf(h, ref_tanh(x * GELU_TANH_C * fmaf(x * x, GELU_TANH_CUBE, 1)), h);
    case ACT_RELU: return 0 > x ? 0 : x;
    case ACT_TANH: return ref_tanh(x);
    case ACT_SILU: return x * ref_sigmoid(x);
    case ACT_SIGMOID: return ref_sigmoid(x);
    case ACT_CLIP: x = p > x ? p : x; return q < x ? q : x;
    case ACT_LEAKY_RELU: return x < 0 ? x * p : x;
    case ACT_HARD_SIGMOID: return ref_hard_sigmoid(x, p, q);
    case ACT_HARD_SWISH: return x * ref_hard_sigmoid(x, p, q);
    case ACT_QUICK_GELU: return x * ref_sigmoid(x * p);
    case ACT_ELU: return x < 0 ? p * ref_expm1(x) : x;
    case ACT_SOFTPLUS: return isnan(x) ? x : (x > 0 ? x : 0) + ref_log(1 + ref_exp(-fabsf(x)));
    case ACT_EXP: return ref_exp_any(x);
    case ACT_LOG: return ref_log(x);
    case ACT_ERF: return ref_erf(x);
    case ACT_NONE:
    case ACTS: break;
    }
    return x;
}

static void ref_map(enum act f, float p, float q, size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ref_act(f, p, q, x[i]);
}

/* What follows the sum of row i, column j */
static float ref_epilogue(const struct epilogue *e, uint32_t i, uint32_t j, float sum)
{
    if (e->bias)
        sum += e->bias[j];
    if (e->row_bias)
        sum += e->row_bias[i];
    if (e->res && e->res_first)
        sum += e->res[i * e->ldres + j];
    sum = ref_act(e->act, e->p, e->q, sum);
    if (e->res && !e->res_first)
        sum += e->res[i * e->ldres + j];
    return sum;
}

static void ref_finish(const struct epilogue *e, uint32_t row0, uint32_t rows, uint32_t n, float *c, size_t ldc)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < n; j++)
            c[i * ldc + j] = ref_epilogue(e, row0 + i, j, c[i * ldc + j]);
}

/* Products: a packed matrix is the matrix, in f32 (bf16: rounded), row by row; int8 has its scales behind. ---------------------------- */

static size_t ref_f32_bytes(uint32_t n, uint32_t k)
{
    return (sizeof(float) * n * k + 63) / 64 * 64;
}

static void ref_f32_pack(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    (void)n;
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t i = 0; i < k; i++)
            ((float *)packed)[(size_t)(first + j) * k + i] = w[j * row + i * column];
}

static void ref_f32_run(const struct gemm_args *g)
{
    const float *w = g->packed;
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t j = 0; j < g->n; j++) {
            float sum = 0;
            for (uint32_t k = 0; k < g->k; k++)
                sum = fmaf(g->a[i * g->lda + k], w[(size_t)j * g->k + k], sum);
            g->c[i * g->ldc + j] = ref_epilogue(&g->e, i, j, sum);
        }
}

/* To 8 bits of fraction, nearest even */
static float ref_bf16(float x)
{
    uint32_t u = float_bits(x), rest = u & 0xffff, odd = (u >> 16) & 1;
    if (isnan(x))
        return x;
    u -= rest;
    return bits_float(rest > 0x8000 || (rest == 0x8000 && odd) ? u + 0x10000 : u);
}

static void ref_bf16_pack(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    (void)n;
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t i = 0; i < k; i++)
            ((float *)packed)[(size_t)(first + j) * k + i] = ref_bf16(w[j * row + i * column]);
}

static void ref_bf16_run(const struct gemm_args *g)
{
    const float *w = g->packed;
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t j = 0; j < g->n; j++) {
            float sum = 0;
            for (uint32_t k = 0; k < g->k; k++)
                sum = fmaf(ref_bf16(g->a[i * g->lda + k]), w[(size_t)j * g->k + k], sum);
            g->c[i * g->ldc + j] = ref_epilogue(&g->e, i, j, sum);
        }
}

static float magnitude(uint32_t k, const float *x, size_t step)
{
    float top = 0;
    for (uint32_t i = 0; i < k; i++)
        top = fabsf(x[i * step]) > top ? fabsf(x[i * step]) : top;
    return top < 1e-30f ? 0 : top;
}

static size_t ref_int8_bytes(uint32_t n, uint32_t k)
{
    return ((size_t)n * k + 63) / 64 * 64 + (sizeof(float) * n + 63) / 64 * 64;
}

static float *ref_scales(uint32_t n, uint32_t k, const void *packed)
{
    return (float *)((const char *)packed + ((size_t)n * k + 63) / 64 * 64);
}

static int ref_quantise(float x, float inverse)
{
    return (int)lrintf(x * inverse);
}

static void ref_int8_pack(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed)
{
    for (uint32_t j = 0; j < count; j++) {
        float top = magnitude(k, w + j * row, column), inverse = top > 0 ? 127 / top : 0;
        ref_scales(n, k, packed)[first + j] = top / 127;
        for (uint32_t i = 0; i < k; i++)
            ((int8_t *)packed)[(size_t)(first + j) * k + i] = (int8_t)ref_quantise(w[j * row + i * column], inverse);
    }
}

static void ref_int8_run(const struct gemm_args *g)
{
    const int8_t *w = g->packed;
    const float *scale = ref_scales(g->n, g->k, g->packed);
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t j = 0; j < g->n; j++) {
            const float *a = g->a + i * g->lda;
            float all = 0;
            for (uint32_t k0 = 0; k0 < g->k; k0 += INT8_BLOCK) {
                uint32_t n = g->k - k0 < INT8_BLOCK ? g->k - k0 : INT8_BLOCK;
                float top = magnitude(n, a + k0, 1), inverse = top > 0 ? 127 / top : 0;
                int32_t sum = 0;
                for (uint32_t k = k0; k < k0 + n; k++)
                    sum += ref_quantise(a[k], inverse) * w[(size_t)j * g->k + k];
                all = fmaf((float)sum, top / 127, all);
            }
            g->c[i * g->ldc + j] = ref_epilogue(&g->e, i, j, all * scale[j]);
        }
}

static size_t ref_matmul_scratch(const struct matmul_args *g)
{
    (void)g;
    return 0;
}

static void ref_matmul(const struct matmul_args *g)
{
    for (uint32_t b = 0; b < g->batches; b++) {
        struct epilogue e = g->e;
        e.res = e.res ? e.res + b * g->c_batch : NULL;
        for (uint32_t i = 0; i < g->m; i++)
            for (uint32_t j = 0; j < g->n; j++) {
                float sum = 0;
                for (uint32_t k = 0; k < g->k; k++)
                    sum = fmaf(g->a[b * g->a_batch + i * g->a_row + k * g->a_col], g->b[b * g->b_batch + k * g->b_row + j * g->b_col], sum);
                g->c[b * g->c_batch + i * g->ldc + j] = ref_epilogue(&e, i, j, sum);
            }
    }
}

/* Reductions ----------------------------------------------------------------------------------------------------------------------- */

/* Element j went into lane[j % 16]; the lanes meet in a tree. */
static float lanes_sum(float lane[16])
{
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

static float ref_sum(size_t n, const float *x)
{
    float lane[16] = {0};
    for (size_t j = 0; j < n; j++)
        lane[j % 16] += x[j];
    return lanes_sum(lane);
}

static float ref_max(size_t n, const float *x)
{
    float max = -INFINITY;
    for (size_t j = 0; j < n; j++)
        max = x[j] > max ? x[j] : max;
    return max;
}

static float ref_min(size_t n, const float *x)
{
    float min = INFINITY;
    for (size_t j = 0; j < n; j++)
        min = x[j] < min ? x[j] : min;
    return min;
}

static float ref_squares(size_t n, const float *x, float mean)
{
    float lane[16] = {0};
    for (size_t j = 0; j < n; j++)
        lane[j % 16] = fmaf(x[j] - mean, x[j] - mean, lane[j % 16]);
    return lanes_sum(lane);
}

static float ref_dot(size_t n, const float *x, const float *y)
{
    float lane[16] = {0};
    for (size_t j = 0; j < n; j++)
        lane[j % 16] = fmaf(x[j], y[j], lane[j % 16]);
    return lanes_sum(lane);
}

static float ref_exp_sum(size_t n, const float *x, float max)
{
    float lane[16] = {0};
    for (size_t j = 0; j < n; j++)
        lane[j % 16] += ref_exp(x[j] - max);
    return lanes_sum(lane);
}

static void ref_softmax(size_t n, const float *x, float *y)
{
    float max = ref_max(n, x), inverse = 1 / ref_exp_sum(n, x, max);
    for (size_t j = 0; j < n; j++)
        y[j] = ref_exp(x[j] - max) * inverse;
}

static void ref_log_softmax(size_t n, const float *x, float *y)
{
    float max = ref_max(n, x), log_sum = ref_log(ref_exp_sum(n, x, max));
    for (size_t j = 0; j < n; j++)
        y[j] = (x[j] - max) - log_sum;
}

static float ref_scale(float x, const float *gamma, const float *beta, uint32_t j)
{
    return gamma && beta ? fmaf(x, gamma[j], beta[j]) : gamma ? x * gamma[j] : beta ? x + beta[j] : x;
}

static void ref_norm(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps,
                     float *y, size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float mean = ref_sum(n, x) / (float)n, scale = 1 / sqrtf(ref_squares(n, x, mean) / (float)n + eps);
        for (uint32_t j = 0; j < n; j++)
            y[j] = ref_scale((x[j] - mean) * scale, gamma, beta, j);
    }
}

static void ref_rms_norm(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, float eps, float *y, size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float scale = 1 / sqrtf(ref_squares(n, x, 0) / (float)n + eps);
        for (uint32_t j = 0; j < n; j++)
            y[j] = ref_scale(x[j] * scale, gamma, NULL, j);
    }
}

static void ref_unit(uint32_t n, float *x)
{
    float length = sqrtf(ref_squares(n, x, 0));
    length = length > 1e-12f ? length : 1e-12f;
    for (uint32_t j = 0; j < n; j++)
        x[j] /= length;
}

static void ref_attention(const struct attention_args *a)
{
    int rounded = a->precision == PREC_BF16;
    float *score = a->scratch;
    for (uint32_t i = 0; i < a->len; i++) {
        float max = -INFINITY, lane[16] = {0};
        for (uint32_t j = 0; j < a->len; j++) {
            float dot = 0;
            for (uint32_t d = 0; d < a->dim; d++) {
                float q = a->q[i * a->ld + d], k = a->k[j * a->ld + d];
                dot = rounded ? fmaf(ref_bf16(q), ref_bf16(k), dot) : fmaf(q, k, dot);
            }
            score[j] = dot * a->scale;
            if (a->bias)
                score[j] += a->bias[(ptrdiff_t)i * a->ldbias + j];
            max = score[j] > max ? score[j] : max;
        }
        for (uint32_t j = 0; j < a->len; j++) {
            score[j] = ref_exp(score[j] - max);
            score[j] = rounded ? ref_bf16(score[j]) : score[j];
            lane[j % 16] += score[j];
        }
        float inverse = 1 / lanes_sum(lane);
        for (uint32_t d = 0; d < a->dim; d++) {
            float sum = 0;
            for (uint32_t j = 0; j < a->len; j++) {
                float v = a->v[j * a->ld + d];
                sum = fmaf(score[j], rounded ? ref_bf16(v) : v, sum);
            }
            a->out[i * a->ldo + d] = sum * inverse;
        }
    }
}

static void ref_embed(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type,
                      float *y, size_t ldy)
{
    for (uint32_t i = 0; i < len; i++)
        for (uint32_t j = 0; j < n; j++)
            y[i * ldy + j] = (word[(size_t)ids[i] * n + j] + type[j]) + position[(size_t)i * n + j];
}

static void ref_pool(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y)
{
    for (uint32_t j = 0; j < n; j++) {
        float v = x[j];
        for (uint32_t i = 1; i < len && how != POOL_CLS; i++) {
            float w = x[i * ldx + j];
            v = how == POOL_MAX ? (w > v ? w : v) : v + w;
        }
        if (how == POOL_MEAN)
            v /= (float)len;
        else if (how == POOL_MEAN_SQRT)
            v /= sqrtf((float)len);
        y[j] = v;
    }
}

const struct kernels kernels_reference = {
    .name = "reference",
    .mr = 1,
    .nr = 1,
    .product = {
        [PREC_F32] = {"x86-f32", "reference-f32", ref_f32_bytes, ref_f32_pack, ref_f32_run},
        [PREC_BF16] = {"x86-bf16-fma", "reference-bf16", ref_f32_bytes, ref_bf16_pack, ref_bf16_run},
        [PREC_INT8] = {"x86-int8", "reference-int8b128", ref_int8_bytes, ref_int8_pack, ref_int8_run},
    },
    .matmul_scratch = ref_matmul_scratch,
    .matmul = ref_matmul,
    .finish = ref_finish,
    .attention = ref_attention,
    .norm = ref_norm,
    .rms_norm = ref_rms_norm,
    .embed = ref_embed,
    .pool = ref_pool,
    .unit = ref_unit,
    .vec = {
        .map = ref_map,
        .sum = ref_sum,
        .max = ref_max,
        .min = ref_min,
        .squares = ref_squares,
        .dot = ref_dot,
        .softmax = ref_softmax,
        .log_softmax = ref_log_softmax,
    },
};
