/* Convolution with what follows it: batch normalisation and per-channel scales go into the weights, an activation and a residual into the epilogue
   (FusedConv of com.microsoft, which has room for them). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

static int is_fused(const struct node *n)
{
    return n && strcmp(n->domain, "com.microsoft") == 0 && strcmp(n->op, "FusedConv") == 0;
}

/* A constant with one number per channel for a result of `rank` axes: [C, 1, 1], [1, C, 1, 1], or [1] and the like for all alike. */
static const float *per_channel(const struct graph *g, int32_t v, int rank, int64_t channels, int *all_alike)
{
    const struct tensor *t = constant_f32(g, v, -1);
    if (!t || rank < 3 || t->rank > (uint32_t)rank)
        return NULL;
    int64_t count = tensor_count(t);
    *all_alike = count == 1;
    if (count == 1)
        return tensor_data(t);
    if (count != channels || t->rank < (uint32_t)rank - 1)
        return NULL;
    return t->dims[t->rank - ((uint32_t)rank - 1)] == channels ? tensor_data(t) : NULL;
}

/* y = conv * scale + shift, per channel, becomes the convolution's own. scale or shift may be NULL. */
static enum status fold(struct graph *g, struct node *conv, const float *scale, int scale_alike, const float *shift, int shift_alike, struct node *last,
                        uint32_t *changed, struct err *e)
{
    const struct tensor *w = constant_of(g, conv->in[1]), *b = conv->n_in > 2 && conv->in[2] >= 0 ? constant_of(g, conv->in[2]) : NULL;
    int64_t channels = w->dims[0], each = channels ? tensor_count(w) / channels : 0;
    float *weights = mem_array((size_t)(channels * each) + 1, sizeof *weights), *bias = mem_array((size_t)channels + 1, sizeof *bias);
    enum status st = weights && bias ? ST_OK : err_nomem(e, "the model's graph");
    if (st == ST_OK) {
        const float *p = tensor_data(w), *old = b ? tensor_data(b) : NULL;
        for (int64_t c = 0; c < channels; c++) {
            float s = scale ? scale[scale_alike ? 0 : c] : 1;
            for (int64_t i = 0; i < each; i++)
                weights[c * each + i] = p[c * each + i] * s;
            bias[c] = (old ? old[c] * s : 0) + (shift ? shift[shift_alike ? 0 : c] : 0);
        }
        char name[160];
        snprintf(name, sizeof name, "%.120s.weight.%u", conv->name, (unsigned)g->n_values);
        int32_t wi = graph_constant(g, name, DT_F32, w->rank, w->dims, weights);
        snprintf(name, sizeof name, "%.120s.bias.%u", conv->name, (unsigned)g->n_values);
        int32_t bi = wi < 0 ? -1 : graph_constant(g, name, DT_F32, 1, &channels, bias);
        if (bi < 0) {
            st = err_nomem(e, "the model's graph");
        } else {
            int32_t was = conv->out[0], out = last->out[0];
            int32_t in[3] = {conv->in[0], wi, bi};
            struct node *made = rewrite_node(g, "", "Conv", conv->opset, conv->name, 3, in, out);
            st = made ? node_copy_attrs(made, conv, e) : err_nomem(e, "the model's graph");
            conv->out[0] = -1;
            g->values[was].producer = -1;
            ++*changed;
        }
    }
    mem_free(weights);
    mem_free(bias);
    return st;
}

static enum status batch_norm(struct graph *g, struct node *conv, struct node *bn, int64_t channels, uint32_t *changed, struct err *e)
{
    const float *p[4];
    for (int i = 0; i < 4; i++) {
        const struct tensor *t = constant_f32(g, bn->in[1 + i], 1);
        if (!t || t->dims[0] != channels)
            return ST_OK;
        p[i] = tensor_data(t);
    }
    if (node_int(bn, "training_mode", 0) || (bn->n_out > 1 && bn->out[1] >= 0))
        return ST_OK;
    double eps = (double)node_float(bn, "epsilon", 1e-5f);
    float *scale = mem_array((size_t)(2 * channels) + 1, sizeof *scale);
    if (!scale)
        return err_nomem(e, "the model's graph");
    float *shift = scale + channels;
    for (int64_t c = 0; c < channels; c++) {
        double s = (double)p[0][c] / sqrt((double)p[3][c] + eps);
        scale[c] = (float)s;
        shift[c] = (float)((double)p[1][c] - (double)p[2][c] * s);
    }
    enum status st = fold(g, conv, scale, 0, shift, 0, bn, changed, e);
    mem_free(scale);
    return st;
}

struct activation {
    const char *name;
    uint32_t params;
    float a, b;
};

static int activation_of(const struct graph *g, const struct node *n, struct activation *out)
{
    double low = -INFINITY, high = INFINITY;
    *out = (struct activation){0};
    if (node_is(n, "Relu") || node_is(n, "Sigmoid") || node_is(n, "Tanh") || node_is(n, "HardSwish")) {
        out->name = n->op;
    } else if (node_is(n, "LeakyRelu")) {
        *out = (struct activation){"LeakyRelu", 1, node_float(n, "alpha", 0.01f), 0};
    } else if (node_is(n, "HardSigmoid")) {
        *out = (struct activation){"HardSigmoid", 2, node_float(n, "alpha", 0.2f), node_float(n, "beta", 0.5f)};
    } else if (node_is(n, "Clip")) {
        if (n->opset < 11) {
            low = (double)node_float(n, "min", -INFINITY);
            high = (double)node_float(n, "max", INFINITY);
        } else if ((n->n_in > 1 && n->in[1] >= 0 && !constant_number(g, n->in[1], &low)) || (n->n_in > 2 && n->in[2] >= 0 && !constant_number(g, n->in[2], &high))) {
            return 0;
        }
        *out = (struct activation){"Clip", 2, (float)low, (float)high};
    }
    return out->name != NULL;
}

static enum status fuse_into(struct graph *g, struct node *conv, struct node *next, int32_t residual, const struct activation *act, uint32_t *changed, struct err *e)
{
    int32_t in[4] = {conv->in[0], conv->in[1], conv->n_in > 2 ? conv->in[2] : -1, residual >= 0 ? residual : conv->n_in > 3 ? conv->in[3] : -1};
    struct node *made = rewrite_node(g, "com.microsoft", "FusedConv", 1, conv->name, in[3] >= 0 ? 4 : 3, in, next->out[0]);
    if (!made)
        return err_nomem(e, "the model's graph");
    TRY(node_copy_attrs(made, conv, e));
    if (act) {
        TRY(rewrite_string(made, "activation", act->name, e));
        if (act->params) {
            float *params = mem_array(act->params, sizeof *params);
            char *name = mem_strdup("activation_params");
            if (!params || !name)
                return err_nomem(e, "the model's graph");
            params[0] = act->a;
            if (act->params > 1)
                params[1] = act->b;
            struct attr a = {.name = name, .kind = ATTR_FLOATS, .count = act->params, .floats = params};
            TRY(node_add_attr(made, &a, e));
        }
    }
    conv->out[0] = -1;
    ++*changed;
    return ST_OK;
}

enum status fuse_conv(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    int fused = is_fused(n);
    if ((!fused && !node_is(n, "Conv")) || n->out[0] < 0)
        return ST_OK;
    const struct tensor *w = constant_f32(g, n->in[1], -1);
    struct node *next = only_user(g, n->out[0]);
    const struct type *out = &g->values[n->out[0]].type;
    if (!w || w->rank < 3 || !next || next->n_in < 1 || next->out[0] < 0 || out->dtype != DT_F32 || (n->n_in > 2 && n->in[2] >= 0 && !constant_f32(g, n->in[2], 1)))
        return ST_OK;
    if (!fused) {
        if (node_is(next, "BatchNormalization") && next->in[0] == n->out[0])
            return batch_norm(g, n, next, w->dims[0], changed, e);
        int alike;
        if (node_is(next, "Mul") || node_is(next, "Add")) {
            const float *c = next->in[0] == next->in[1] ? NULL : per_channel(g, other_input(next, n->out[0]), out->rank, w->dims[0], &alike);
            if (c && node_is(next, "Mul"))
                return fold(g, n, c, alike, NULL, 0, next, changed, e);
            if (c)
                return fold(g, n, NULL, 0, c, alike, next, changed, e);
        }
        if (node_is(next, "Add") && next->in[0] != next->in[1] && same_dims(out, &g->values[next->out[0]].type) &&
            same_dims(&g->values[other_input(next, n->out[0])].type, out))
            return fuse_into(g, n, next, other_input(next, n->out[0]), NULL, changed, e);
    }
    struct activation act;
    if (!node_attr(n, "activation") && activation_of(g, next, &act) && next->in[0] == n->out[0])
        return fuse_into(g, n, next, -1, &act, changed, e);
    return ST_OK;
}
