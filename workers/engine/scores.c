#include "workers/engine/scores.h"

#include <string.h>

/* e^x = 2^n e^r, |r| <= ln 2 / 2, and e^r by its series up to r^13 / 13!. x is at most 0 but for rounding; below -700 it is 0. */
static double exp_of(double x)
{
    static const double ln2_hi = 0x1.62e42fee00000p-1, ln2_lo = 0x1.a39ef35793c76p-33, log2e = 0x1.71547652b82fep+0;
    if (!(x > -700))
        return x <= -700 ? 0 : x; /* NaN stays */
    double n = x * log2e;
    int64_t whole = (int64_t)(n < 0 ? n - 0.5 : n + 0.5);
    double r = x - (double)whole * ln2_hi - (double)whole * ln2_lo, sum = 1;
    for (int i = 13; i >= 1; i--)
        sum = 1 + sum * r / i;
    uint64_t bits = (uint64_t)(whole + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

static float largest(uint32_t n, const float *x)
{
    float max = x[0];
    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_of_exps(uint32_t n, const float *x, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp_of((double)x[i] - (double)max);
    return sum;
}

static float sigmoid(float x)
{
    double e = exp_of(x < 0 ? (double)x : -(double)x);
    return (float)(x < 0 ? e / (1 + e) : 1 / (1 + e));
}

void scores_row(enum scoring how, uint32_t n, float *x)
{
    if (how == SCORING_SIGMOID)
        for (uint32_t i = 0; i < n; i++)
            x[i] = sigmoid(x[i]);
    if (how != SCORING_SOFTMAX)
        return;
    float max = largest(n, x);
    double sum = sum_of_exps(n, x, max);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(exp_of((double)x[i] - (double)max) / sum);
}

void scores_top(uint32_t n, const float *x, uint32_t k, int32_t *ids, float *out)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (have == k && !(x[i] > x[ids[k - 1]]))
            continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && x[i] > x[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = (int32_t)i;
    }
    float max = x[ids[0]];
    double sum = sum_of_exps(n, x, max);
    for (uint32_t i = 0; i < have; i++)
        out[i] = (float)(exp_of((double)x[ids[i]] - (double)max) / sum);
}
