/* Functions of one element, in vectors: the polynomials of poly.h. Included by files that are compiled per instruction set. */
#ifndef EBB_ENGINE_ELEMENT_H
#define EBB_ENGINE_ELEMENT_H

#include "workers/engine/cpu/isa.h"
#include "workers/engine/cpu/poly.h"

INL vi sign_bit(void)
{
    return (vi)splat(-0.0f);
}

INL vf copy_sign(vf magnitude, vf sign)
{
    return (vf)(((vi)magnitude & ~sign_bit()) | ((vi)sign & sign_bit()));
}

INL vf negative_abs(vf x)
{
    return (vf)((vi)x | sign_bit());
}

/* x = n ln 2 + r; returns r + r^2 (..), which is exp(r) - 1; n rests in the low bits of *t. */
INL vf exp_parts(vf x, vf *t)
{
    *t = mul_add(x, splat(EXP_LOG2E), splat(EXP_ROUND_MAGIC));
    vf n = *t - splat(EXP_ROUND_MAGIC);
    return mul_add(n, splat(-EXP_LN2_LO), mul_add(n, splat(-EXP_LN2_HI), x));
}

INL vf exp_poly(vf r)
{
    vf p = mul_add(splat(EXP_E4), r, splat(EXP_E3));
    p = mul_add(p, r, splat(EXP_E2));
    p = mul_add(p, r, splat(EXP_E1));
    return mul_add(p, r, splat(EXP_E0));
}

/* x <= 0; 0 below EXP_MIN */
INL vf exp_neg(vf x)
{
    vf t, r = exp_parts(x, &t), p = exp_poly(r);
    p = mul_add(p, r, splat(1));
    p = mul_add(p, r, splat(1));
    p = (vf)((vu)p + (((vu)t - (vu)splat(EXP_ROUND_MAGIC)) << 23));
    return (vf)((vi)p & (x >= splat(EXP_MIN)));
}

/* exp(x) - 1 for x <= 0, near 0 as exact as elsewhere */
INL vf expm1_neg(vf x)
{
    x = larger(splat(EXP_MIN), x); /* NaN stays: the second is taken where none is larger */
    vf t, r = exp_parts(x, &t), p = mul_add(exp_poly(r), r, splat(1)) * r;
    vf scale = (vf)((vu)splat(1) + (((vu)t - (vu)splat(EXP_ROUND_MAGIC)) << 23));
    return mul_add(p, scale, scale - splat(1));
}

INL vf exp_any(vf x)
{
    vf y = smaller(splat(EXP_HIGHEST), larger(splat(EXP_LOWEST), x));
    vf t, r = exp_parts(y, &t), p = exp_poly(r);
    p = mul_add(p, r, splat(1));
    p = mul_add(p, r, splat(1));
    vi n = (vi)((vu)t - (vu)splat(EXP_ROUND_MAGIC)), half = n >> 1;
    vf a = (vf)(((vu)half << 23) + (vu)splat(1)), b = (vf)((((vu)n - (vu)half) << 23) + (vu)splat(1));
    return choose(x != x, x, p * a * b);
}

INL vf log_of(vf x)
{
    vi tiny = x < splat(0x1p-126f);
    vf scaled = choose(tiny, x * splat(0x1p24f), x);
    vi n = (vi)((vu)scaled - LOG_SQRT_HALF) >> 23;
    vf f = (vf)((vu)scaled - ((vu)n << 23)) - splat(1), f2 = f * f;
    n -= tiny & 24;
    vf e = __builtin_convertvector(n, vf);
    vf p = mul_add(splat(LOG_P8), f, splat(LOG_P7));
    p = mul_add(p, f, splat(LOG_P6));
    p = mul_add(p, f, splat(LOG_P5));
    p = mul_add(p, f, splat(LOG_P4));
    p = mul_add(p, f, splat(LOG_P3));
    p = mul_add(p, f, splat(LOG_P2));
    p = mul_add(p, f, splat(LOG_P1));
    p = mul_add(p, f, splat(LOG_P0));
    vf y = mul_add(e, splat(EXP_LN2_LO), f2 * f * p);
    y = mul_add(e, splat(EXP_LN2_HI), f + mul_add(f2, splat(-0.5f), y));
    y = choose(x == splat(__builtin_inff()), x, y);
    y = choose(x == (vf){0}, splat(-__builtin_inff()), y);
    return choose((x < (vf){0}) | (x != x), splat(__builtin_nanf("")), y);
}

INL vf erf_of(vf z)
{
    vf a = smaller((vf)((vi)z & ~sign_bit()), splat(ERF_MAX)), t = a * a;
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

INL vf tanh_of(vf x)
{
    vf m = expm1_neg(negative_abs(x * splat(2)));
    return copy_sign(m / (splat(2) + m), x);
}

INL vf sigmoid_of(vf x)
{
    vf e = exp_neg(negative_abs(x));
    return choose(x < (vf){0}, e, splat(1)) / (splat(1) + e);
}

INL vf gelu(vf x)
{
    vf h = x * splat(0.5f);
    return mul_add(h, erf_of(x * splat(GELU_SQRT_HALF)), h);
}

INL vf gelu_tanh(vf x)
{
    vf u = x * splat(GELU_TANH_C) * mul_add(x * x, splat(GELU_TANH_CUBE), splat(1));
    vf h = x * splat(0.5f);
    return mul_add(h, tanh_of(u), h);
}

INL vf hard_sigmoid(vf x, vf p, vf q)
{
    vf y = mul_add(x, p, q);
    return smaller(splat(1), larger((vf){0}, y));
}

/* NaN stays NaN */
WORK vf activate(const enum act act, vf x, vf p, vf q)
{
    switch (act) {
    case ACT_GELU: return gelu(x);
    case ACT_GELU_TANH: return gelu_tanh(x);
    case ACT_RELU: return larger((vf){0}, x);
    case ACT_TANH: return choose(x != x, x, tanh_of(x));
    case ACT_SILU: return x * sigmoid_of(x);
    case ACT_SIGMOID: return choose(x != x, x, sigmoid_of(x));
    case ACT_CLIP: return smaller(q, larger(p, x));
    case ACT_LEAKY_RELU: return choose(x < (vf){0}, x * p, x);
    case ACT_HARD_SIGMOID: return hard_sigmoid(x, p, q);
    case ACT_HARD_SWISH: return x * hard_sigmoid(x, p, q);
    case ACT_QUICK_GELU: return x * sigmoid_of(x * p);
    case ACT_ELU: return choose(x < (vf){0}, p * expm1_neg(x), x);
    case ACT_SOFTPLUS: return choose(x > (vf){0}, x, (vf){0}) + choose(x != x, x, log_of(splat(1) + exp_neg(negative_abs(x))));
    case ACT_EXP: return exp_any(x);
    case ACT_LOG: return log_of(x);
    case ACT_ERF: return choose(x != x, x, erf_of(x));
    case ACT_NONE:
    case ACTS: break;
    }
    return x;
}

/* CASE(act) once for each: so that the function is chosen outside a loop */
#define EACH_ACT(CASE)                                                                                                           \
    CASE(ACT_NONE)                                                                                                               \
    CASE(ACT_GELU)                                                                                                               \
    CASE(ACT_GELU_TANH)                                                                                                          \
    CASE(ACT_RELU)                                                                                                               \
    CASE(ACT_TANH)                                                                                                               \
    CASE(ACT_SILU)                                                                                                               \
    CASE(ACT_SIGMOID)                                                                                                            \
    CASE(ACT_CLIP)                                                                                                               \
    CASE(ACT_LEAKY_RELU)                                                                                                         \
    CASE(ACT_HARD_SIGMOID)                                                                                                       \
    CASE(ACT_HARD_SWISH)                                                                                                         \
    CASE(ACT_QUICK_GELU)                                                                                                         \
    CASE(ACT_ELU)                                                                                                                \
    CASE(ACT_SOFTPLUS)                                                                                                           \
    CASE(ACT_EXP)                                                                                                                \
    CASE(ACT_LOG)                                                                                                                \
    CASE(ACT_ERF)

#endif
