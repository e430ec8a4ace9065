/* Products with constant weights, and what follows them: bias, activation, residual. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

static int is_linear(const struct node *n)
{
    return n && strcmp(n->domain, "ebb") == 0 && strcmp(n->op, "Linear") == 0;
}

/* A constant that adds one number to each of n columns. */
static int is_bias(const struct graph *g, int32_t v, int64_t n)
{
    const struct tensor *t = constant_f32(g, v, -1);
    if (!t || t->rank < 1 || t->dims[t->rank - 1] != n)
        return 0;
    return tensor_count(t) == n;
}

enum status fuse_linear(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    int gemm = node_is(n, "Gemm");
    if (!gemm && !node_is(n, "MatMul"))
        return ST_OK;
    const struct tensor *w = constant_f32(g, n->in[1], 2);
    const struct type *x = &g->values[n->in[0]].type;
    if (!w || x->dtype != DT_F32 || x->rank < 2 || constant_of(g, n->in[0]) || w->dims[0] == 0 || w->dims[1] == 0)
        return ST_OK;
    int64_t turned = gemm ? node_int(n, "transB", 0) : 0, width = turned ? w->dims[0] : w->dims[1];
    int32_t bias = -1, out = n->out[0];
    if (gemm) {
        if (node_float(n, "alpha", 1) != 1 || node_int(n, "transA", 0))
            return ST_OK;
        if (n->n_in > 2 && n->in[2] >= 0) {
            if (node_float(n, "beta", 1) != 1 || !is_bias(g, n->in[2], width))
                return ST_OK;
            bias = n->in[2];
        }
    }
    struct node *add = bias < 0 ? only_user(g, out) : NULL;
    if (node_is(add, "Add") && add->in[0] != add->in[1] && is_bias(g, other_input(add, out), width) &&
        same_dims(&g->values[out].type, &g->values[add->out[0]].type)) {
        bias = other_input(add, out);
        out = add->out[0];
    }
    int32_t in[3] = {n->in[0], n->in[1], bias};
    struct node *made = rewrite_node(g, "ebb", "Linear", 1, n->name, bias >= 0 ? 3 : 2, in, out);
    if (!made)
        return err_nomem(e, "the model's graph");
    ++*changed;
    return turned ? rewrite_int(made, "transposed", 1, e) : ST_OK;
}

/* As ops/fused.c knows them by name. */
static const char *activation(const struct node *n)
{
    if (node_is(n, "Gelu")) {
        const char *how = node_string(n, "approximate", "none");
        return strcmp(how, "tanh") == 0 ? "gelu_tanh" : "gelu";
    }
    if (node_is(n, "Relu"))
        return "relu";
    if (node_is(n, "Tanh"))
        return "tanh";
    if (node_is(n, "Sigmoid"))
        return "sigmoid";
    if (node_is(n, "Swish") && node_float(n, "alpha", 1) == 1)
        return "silu";
    return NULL;
}

enum status fuse_epilogue(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!is_linear(n) || n->out[0] < 0 || n->n_in > 3)
        return ST_OK;
    struct node *next = only_user(g, n->out[0]);
    const char *act = next ? activation(next) : NULL;
    const char *had = node_string(n, "activation", "");
    int32_t in[4] = {n->in[0], n->in[1], n->n_in > 2 ? n->in[2] : -1, -1}, out;
    uint32_t n_in = n->n_in;
    int64_t turned = node_int(n, "transposed", 0);
    if (act && !*had) {
        out = next->out[0];
    } else if (node_is(next, "Add") && next->in[0] != next->in[1] && same_dims(&g->values[n->out[0]].type, &g->values[next->out[0]].type) &&
               same_dims(&g->values[other_input(next, n->out[0])].type, &g->values[next->out[0]].type)) {
        in[3] = other_input(next, n->out[0]);
        n_in = 4;
        out = next->out[0];
        act = *had ? had : NULL;
    } else {
        return ST_OK;
    }
    char *kept = act ? mem_strdup(act) : NULL;
    if (act && !kept)
        return err_nomem(e, "the model's graph");
    struct node *made = rewrite_node(g, "ebb", "Linear", 1, n->name, n_in, in, out);
    enum status st = made ? ST_OK : err_nomem(e, "the model's graph");
    if (st == ST_OK && turned)
        st = rewrite_int(made, "transposed", 1, e);
    if (st == ST_OK && kept)
        st = rewrite_string(made, "activation", kept, e);
    mem_free(kept);
    if (st == ST_OK) {
        n->out[0] = -1; /* its product goes nowhere else */
        ++*changed;
    }
    return st;
}

/* Row j of w as published ([k][n], or [n][k] when turned) to row `to` of all ([k][n_all]). */
static void append(float *all, int64_t n_all, int64_t first, const struct tensor *w, int turned)
{
    const float *p = tensor_data(w);
    int64_t k = turned ? w->dims[1] : w->dims[0], n = turned ? w->dims[0] : w->dims[1];
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            all[i * n_all + first + j] = turned ? p[j * k + i] : p[i * n + j];
}

/* Queries, keys and values of one input in one product. */
enum status fuse_qkv(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (strcmp(n->domain, "ebb") != 0 || strcmp(n->op, "Attention") != 0 || n->n_in < 3 || n->out[0] < 0)
        return ST_OK;
    struct node *part[3];
    int64_t k = 0, each = 0;
    for (int i = 0; i < 3; i++) {
        int32_t p = g->values[n->in[i]].producer;
        part[i] = p >= 0 ? g->nodes[p] : NULL;
        if (!is_linear(part[i]) || part[i]->n_in != 3 || node_attr(part[i], "activation") || part[i]->in[0] != part[0]->in[0] ||
            uses_of(g, n->in[i]) != 1)
            return ST_OK;
        const struct tensor *w = constant_of(g, part[i]->in[1]);
        int turned = node_int(part[i], "transposed", 0) != 0;
        int64_t wk = turned ? w->dims[1] : w->dims[0], wn = turned ? w->dims[0] : w->dims[1];
        if (i && (wk != k || wn != each))
            return ST_OK;
        k = wk;
        each = wn;
    }
    float *all = mem_array((size_t)(k * 3 * each), sizeof *all), *bias = mem_array((size_t)(3 * each), sizeof *bias);
    char name[160];
    enum status st = all && bias ? ST_OK : err_nomem(e, "the model's graph");
    int32_t w = -1, b = -1, v = -1;
    struct node *made = NULL;
    if (st == ST_OK) {
        for (int i = 0; i < 3; i++) {
            append(all, 3 * each, i * each, constant_of(g, part[i]->in[1]), node_int(part[i], "transposed", 0) != 0);
            memcpy(bias + i * each, tensor_data(constant_of(g, part[i]->in[2])), (size_t)each * sizeof *bias);
        }
        snprintf(name, sizeof name, "%.120s.qkv.weight", part[0]->name);
        w = graph_constant(g, name, DT_F32, 2, (const int64_t[]){k, 3 * each}, all);
        snprintf(name, sizeof name, "%.120s.qkv.bias", part[0]->name);
        b = graph_constant(g, name, DT_F32, 1, (const int64_t[]){3 * each}, bias);
        snprintf(name, sizeof name, "%.120s.qkv", part[0]->name);
        v = graph_value(g, name);
        if (w >= 0 && b >= 0 && v >= 0) {
            g->values[v].type = g->values[n->in[0]].type;
            g->values[v].type.dims[g->values[v].type.rank - 1] = 3 * each;
            made = rewrite_node(g, "ebb", "Linear", 1, name, 3, (const int32_t[]){part[0]->in[0], w, b}, v);
        }
        st = made ? ST_OK : err_nomem(e, "the model's graph");
    }
    mem_free(all);
    mem_free(bias);
    if (st == ST_OK) {
        n->in[0] = v;
        n->in[1] = n->n_in == 4 ? n->in[3] : -1; /* what is added to the scores */
        n->n_in -= 2;
        ++*changed;
    }
    return st;
}
