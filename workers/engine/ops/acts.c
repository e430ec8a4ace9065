#include "workers/engine/ops/acts.h"

#include <math.h>
#include <strings.h>

static const struct {
    const char *name;
    struct acts f;
    int params;
} known[] = {
    {"Relu", {ACTS_RELU, 0, 0}, 0},
    {"Tanh", {ACTS_TANH, 0, 0}, 0},
    {"Sigmoid", {ACTS_SIGMOID, 0, 0}, 0},
    {"Affine", {ACTS_AFFINE, 1, 0}, 2},
    {"LeakyRelu", {ACTS_LEAKY, 0.01f, 0}, 1},
    {"ThresholdedRelu", {ACTS_THRESHOLDED, 1, 0}, 1},
    {"ScaledTanh", {ACTS_SCALED_TANH, 1, 1}, 2},
    {"HardSigmoid", {ACTS_HARD_SIGMOID, 0.2f, 0.5f}, 2},
    {"Elu", {ACTS_ELU, 1, 0}, 1},
    {"Softsign", {ACTS_SOFTSIGN, 0, 0}, 0},
    {"Softplus", {ACTS_SOFTPLUS, 0, 0}, 0},
    {"Clip", {ACTS_CLIP, -INFINITY, INFINITY}, 2},
    {"HardSwish", {ACTS_HARD_SWISH, 1.0f / 6, 0.5f}, 0},
    {"Gelu", {ACTS_GELU, 0, 0}, 0},
    {"FastGelu", {ACTS_GELU_TANH, 0, 0}, 0},
    {"QuickGelu", {ACTS_QUICK_GELU, 1.702f, 0}, 1},
};

enum status acts_find(const struct node *n, const char *name, struct acts *out, struct err *e)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(known[i].name, name)) {
            *out = known[i].f;
            return ST_OK;
        }
    return node_error(n, e, "activation '%s' is not supported", name);
}

int acts_params(const struct acts *f)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].f.kind == f->kind)
            return known[i].params;
    return 0;
}

static float clip(float x, float lo, float hi)
{
    x = x > lo ? x : lo;
    return x < hi ? x : hi;
}

static float one(const struct acts *f, float x)
{
    double d = (double)x;
    switch (f->kind) {
    case ACTS_RELU: return x > 0 ? x : 0;
    case ACTS_TANH: return (float)tanh(d);
    case ACTS_SIGMOID: return (float)(1 / (1 + exp(-d)));
    case ACTS_AFFINE: return x * f->a + f->b;
    case ACTS_LEAKY: return x < 0 ? x * f->a : x;
    case ACTS_THRESHOLDED: return x > f->a ? x : 0;
    case ACTS_SCALED_TANH: return (float)((double)f->a * tanh((double)f->b * d));
    case ACTS_HARD_SIGMOID: return clip(x * f->a + f->b, 0, 1);
    case ACTS_ELU: return x < 0 ? (float)((double)f->a * expm1(d)) : x;
    case ACTS_SOFTSIGN: return x / (1 + fabsf(x));
    case ACTS_SOFTPLUS: return (float)(d > 0 ? d + log1p(exp(-d)) : log1p(exp(d)));
    case ACTS_CLIP: return clip(x, f->a, f->b);
    case ACTS_HARD_SWISH: return x * clip(x * f->a + f->b, 0, 1);
    case ACTS_GELU: return (float)(0.5 * d * (1 + erf(d * 0.70710678118654752440)));
    case ACTS_GELU_TANH: return (float)(0.5 * d * (1 + tanh(0.79788456080286535588 * (d + 0.044715 * d * d * d))));
    case ACTS_QUICK_GELU: return (float)(d / (1 + exp(-(double)f->a * d)));
    case ACTS_NONE: break;
    }
    return x;
}

void acts_run(const struct acts *f, const struct kernels *k, size_t n, float *x)
{
    (void)k;
    if (f->kind == ACTS_NONE)
        return;
    for (size_t i = 0; i < n; i++)
        x[i] = one(f, x[i]);
}
