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

static float ref_exp(float x)
{
    x = x > EXP_MIN ? x : EXP_MIN;
    float t = fmaf(x, EXP_LOG2E, EXP_ROUND_MAGIC), n = t - EXP_ROUND_MAGIC;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    static const float coefficient[] = {EXP_E4, EXP_E3, EXP_E2, EXP_E1, EXP_E0, 1, 1};
    float p = coefficient[0];
    for (int i = 1; i < 7; i++)
        p = fmaf(p, r, coefficient[i]);
    return bits_float(float_bits(p) + ((float_bits(t) - float_bits(EXP_ROUND_MAGIC)) << 23));
}

static float ref_erf(float z)
{
    float a = fabsf(z) < ERF_MAX ? fabsf(z) : ERF_MAX, t = a * a;
    static const float over[] = {ERF_P5, ERF_P4, ERF_P3, ERF_P2, ERF_P1, ERF_P0};
    static const float under[] = {ERF_Q5, ERF_Q4, ERF_Q3, ERF_Q2, ERF_Q1, 1};
    float p = over[0], q = under[0];
    for (int i = 1; i < 6; i++) {
        p = fmaf(p, t, over[i]);
        q = fmaf(q, t, under[i]);
    }
    float y = a * p / q;
    return copysignf(y < 1 ? y : 1, z);
}

static float ref_tanh(float u)
{
    float e = ref_exp(-fabsf(u * 2));
    return copysignf((1 - e) / (1 + e), u);
}

static float ref_act(enum act act, float x)
{
    float h = x * 0.5f;
    switch (act) {
    case ACT_GELU: return fmaf(h, ref_erf(x * GELU_SQRT_HALF), h);
    case ACT_GELU_TANH: return fmaf(h, ref_tanh(x * GELU_TANH_C * fmaf(x * x, GELU_TANH_CUBE, 1)), h);
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_TANH: return ref_tanh(x);
    case ACT_NONE: break;
    }
    return x;
}

static void ref_gemm(const struct gemm_args *g)
{
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t j = 0; j < g->n; j++) {
            float sum = 0;
            for (uint32_t k = 0; k < g->k; k++)
                sum = fmaf(g->a[i * g->lda + k], g->packed[(size_t)j * g->k + k], sum);
            if (g->bias)
                sum += g->bias[j];
            sum = ref_act(g->act, sum);
            if (g->res)
                sum += g->res[i * g->ldres + j];
            g->c[i * g->ldc + j] = sum;
        }
}

/* Element j went into lane[j % 16]; the lanes meet in a tree. */
static float lanes_sum(float lane[16])
{
    for (int w = 8; w >= 1; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

static float sum_of_squares(uint32_t n, const float *x, float mean)
{
    float lane[16] = {0};
    for (uint32_t j = 0; j < n; j++)
        lane[j % 16] = fmaf(x[j] - mean, x[j] - mean, lane[j % 16]);
    return lanes_sum(lane);
}

static void ref_norm(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps,
                     float *y, size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float lane[16] = {0};
        for (uint32_t j = 0; j < n; j++)
            lane[j % 16] += x[j];
        float mean = lanes_sum(lane) / (float)n;
        float scale = 1 / sqrtf(sum_of_squares(n, x, mean) / (float)n + eps);
        for (uint32_t j = 0; j < n; j++)
            y[j] = fmaf((x[j] - mean) * scale, gamma[j], beta[j]);
    }
}

static void ref_unit(uint32_t n, float *x)
{
    float length = sqrtf(sum_of_squares(n, x, 0));
    length = length > 1e-12f ? length : 1e-12f;
    for (uint32_t j = 0; j < n; j++)
        x[j] /= length;
}

static void ref_attention(const struct attention_args *a)
{
    float *score = a->scratch;
    for (uint32_t i = 0; i < a->len; i++) {
        float max = -INFINITY, lane[16] = {0};
        for (uint32_t j = 0; j < a->len; j++) {
            float dot = 0;
            for (uint32_t d = 0; d < a->dim; d++)
                dot = fmaf(a->q[i * a->ld + d], a->k[j * a->ld + d], dot);
            score[j] = dot * a->scale;
            if (a->bias)
                score[j] += a->bias[(ptrdiff_t)i * a->ldbias + j];
            max = score[j] > max ? score[j] : max;
        }
        for (uint32_t j = 0; j < a->len; j++) {
            score[j] = ref_exp(score[j] - max);
            lane[j % 16] += score[j];
        }
        float inverse = 1 / lanes_sum(lane);
        for (uint32_t d = 0; d < a->dim; d++) {
            float sum = 0;
            for (uint32_t j = 0; j < a->len; j++)
                sum = fmaf(score[j], a->v[j * a->ld + d], sum);
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
    .gemm = ref_gemm,
    .attention = ref_attention,
    .norm = ref_norm,
    .embed = ref_embed,
    .pool = ref_pool,
    .unit = ref_unit,
};
