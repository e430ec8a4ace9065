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

/* The others. */
static float one(const struct acts *f, float x)
{
    switch (f->kind) {
    case ACTS_AFFINE: return x * f->a + f->b;
    case ACTS_THRESHOLDED: return x > f->a ? x : 0;
    case ACTS_SCALED_TANH: return (float)((double)f->a * tanh((double)f->b * (double)x));
    case ACTS_SOFTSIGN: return x / (1 + fabsf(x));
    default: break;
    }
    return x;
}

/* Those that the kernels have; ACTS: none. */
static enum act fast(enum acts_kind kind)
{
    switch (kind) {
    case ACTS_RELU: return ACT_RELU;
    case ACTS_TANH: return ACT_TANH;
    case ACTS_SIGMOID: return ACT_SIGMOID;
    case ACTS_LEAKY: return ACT_LEAKY_RELU;
    case ACTS_HARD_SIGMOID: return ACT_HARD_SIGMOID;
    case ACTS_ELU: return ACT_ELU;
    case ACTS_SOFTPLUS: return ACT_SOFTPLUS;
    case ACTS_CLIP: return ACT_CLIP;
    case ACTS_HARD_SWISH: return ACT_HARD_SWISH;
    case ACTS_GELU: return ACT_GELU;
    case ACTS_GELU_TANH: return ACT_GELU_TANH;
    case ACTS_QUICK_GELU: return ACT_QUICK_GELU;
    default: return ACTS;
    }
}

void acts_run(const struct acts *f, const struct kernels *k, size_t n, float *x)
{
    if (f->kind == ACTS_NONE)
        return;
    if (fast(f->kind) != ACTS) {
        k->vec.map(fast(f->kind), f->a, f->b, n, x, x);
        return;
    }
    for (size_t i = 0; i < n; i++)
        x[i] = one(f, x[i]);
}
