/* Activations that exporters wrote as sums and products. */
#include <math.h>

#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

static enum status gelu(struct graph *g, int32_t x, struct node *last, int tanh_form, uint32_t *changed, struct err *e)
{
    if (g->values[x].type.dtype != DT_F32)
        return ST_OK;
    struct node *made = rewrite_node(g, "", "Gelu", 20, last->name, 1, &x, last->out[0]);
    if (!made)
        return err_nomem(e, "the model's graph");
    ++*changed;
    return rewrite_string(made, "approximate", tanh_form ? "tanh" : "none", e);
}

/* The node that completes x * 0.5 * (1 + f), from the one that makes 1 + f; NULL. */
static struct node *half_times(const struct graph *g, int32_t x, const struct node *one_plus)
{
    struct node *m = only_user(g, one_plus->out[0]);
    if (!node_is(m, "Mul") || m->in[0] == m->in[1])
        return NULL;
    int32_t other = other_input(m, one_plus->out[0]);
    struct node *half_x = made_by(g, other, "Mul");
    if (half_x && ((half_x->in[0] == x && constant_is(g, half_x->in[1], 0.5)) || (half_x->in[1] == x && constant_is(g, half_x->in[0], 0.5))))
        return m;
    struct node *next = only_user(g, m->out[0]);
    if (!node_is(next, "Mul") || next->in[0] == next->in[1])
        return NULL;
    int32_t last = other_input(next, m->out[0]);
    return (other == x && constant_is(g, last, 0.5)) || (constant_is(g, other, 0.5) && last == x) ? next : NULL;
}

static struct node *plus_one(const struct graph *g, int32_t v)
{
    struct node *a = only_user(g, v);
    return node_is(a, "Add") && a->in[0] != a->in[1] && constant_is(g, other_input(a, v), 1) ? a : NULL;
}

/* v = factor * what; -1 */
static int32_t times(const struct graph *g, int32_t v, double factor)
{
    struct node *m = made_by(g, v, "Mul");
    if (m)
        return constant_is(g, m->in[1], factor) ? m->in[0] : constant_is(g, m->in[0], factor) ? m->in[1] : -1;
    m = made_by(g, v, "Div");
    return m && constant_is(g, m->in[1], 1 / factor) ? m->in[0] : -1;
}

static int is_cube(const struct graph *g, int32_t v, int32_t x)
{
    struct node *p = made_by(g, v, NULL);
    if (node_is(p, "Pow"))
        return p->in[0] == x && constant_is(g, p->in[1], 3);
    if (!node_is(p, "Mul"))
        return 0;
    for (int i = 0; i < 2; i++) {
        struct node *s = made_by(g, p->in[i], "Mul");
        if (p->in[1 - i] == x && s && s->in[0] == x && s->in[1] == x)
            return 1;
    }
    return 0;
}

enum status fuse_gelu(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    int tanh_form = node_is(n, "Tanh");
    if (!tanh_form && !node_is(n, "Erf"))
        return ST_OK;
    struct node *one_plus = plus_one(g, n->out[0]);
    if (!one_plus)
        return ST_OK;
    int32_t x;
    if (!tanh_form) {
        x = times(g, n->in[0], 0.70710678118654752);
    } else {
        struct node *sum = made_by(g, times(g, n->in[0], 0.79788456080286536), "Add");
        if (!sum)
            return ST_OK;
        x = sum->in[0];
        if (!is_cube(g, times(g, sum->in[1], 0.044715), x)) {
            x = sum->in[1];
            if (!is_cube(g, times(g, sum->in[0], 0.044715), x))
                return ST_OK;
        }
    }
    struct node *last = x >= 0 ? half_times(g, x, one_plus) : NULL;
    return last ? gelu(g, x, last, tanh_form, changed, e) : ST_OK;
}

static int clips(const struct graph *g, const struct node *n, double low, double high)
{
    if (!node_is(n, "Clip"))
        return 0;
    if (n->opset < 11)
        return fabs((double)node_float(n, "min", -1e30f) - low) < 1e-6 && fabs((double)node_float(n, "max", 1e30f) - high) < 1e-6;
    double a, b;
    return n->n_in == 3 && constant_number(g, n->in[1], &a) && constant_number(g, n->in[2], &b) && a == low && b == high;
}

/* x * sigmoid(x); x * clip(x + 3, 0, 6) / 6; x * hardsigmoid(x) with its slope of 1/6. */
enum status fuse_silu(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    const char *op = NULL;
    int32_t x = n->n_in ? n->in[0] : -1;
    struct node *last = NULL;
    if (x < 0 || n->n_out < 1 || n->out[0] < 0)
        return ST_OK;
    int sigmoid = node_is(n, "Sigmoid");
    if (sigmoid || (node_is(n, "HardSigmoid") && fabs((double)node_float(n, "alpha", 0.2f) - 1.0 / 6) < 1e-6 && node_float(n, "beta", 0.5f) == 0.5f)) {
        last = only_user(g, n->out[0]);
        if (!node_is(last, "Mul") || last->in[0] == last->in[1] || other_input(last, n->out[0]) != x)
            return ST_OK;
        op = sigmoid ? "Swish" : "HardSwish";
    } else if (clips(g, n, 0, 6)) {
        struct node *three = made_by(g, x, "Add"), *m = only_user(g, n->out[0]);
        if (!three || !node_is(m, "Mul") || m->in[0] == m->in[1])
            return ST_OK;
        x = constant_is(g, three->in[1], 3) ? three->in[0] : constant_is(g, three->in[0], 3) ? three->in[1] : -1;
        if (x < 0 || other_input(m, n->out[0]) != x)
            return ST_OK;
        last = only_user(g, m->out[0]);
        if (!last || !((node_is(last, "Div") && last->in[0] == m->out[0] && constant_is(g, last->in[1], 6)) ||
                       (node_is(last, "Mul") && constant_is(g, other_input(last, m->out[0]), 1.0 / 6))))
            return ST_OK;
        op = "HardSwish";
    } else {
        return ST_OK;
    }
    if (g->values[x].type.dtype != DT_F32)
        return ST_OK;
    if (!rewrite_node(g, "", op, *op == 'S' ? 24 : 14, last->name, 1, &x, last->out[0]))
        return err_nomem(e, "the model's graph");
    ++*changed;
    return ST_OK;
}
