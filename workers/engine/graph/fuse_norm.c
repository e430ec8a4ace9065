/* Layer normalisation as exporters wrote it before it was an op: x - mean, squared, its mean, + eps, the root, the quotient, gamma, beta. */
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

/* ReduceMean over the last axis alone, keeping it. */
static int mean_of_last(const struct graph *g, const struct node *n)
{
    uint32_t count = 0;
    const int64_t *axes = node_ints(n, "axes", &count);
    int64_t axis;
    int rank = g->values[n->in[0]].type.rank;
    if (!node_is(n, "ReduceMean") || node_int(n, "keepdims", 1) != 1 || rank < 1)
        return 0;
    if (axes && count == 1) {
        axis = axes[0];
    } else {
        double x;
        if (axes || n->n_in < 2 || !constant_number(g, n->in[1], &x))
            return 0;
        axis = (int64_t)x;
    }
    return axis == -1 || axis == rank - 1;
}

/* x of pow(x, 2) or x * x; -1 */
static int32_t squared(const struct graph *g, const struct node *n)
{
    if (node_is(n, "Pow") && constant_is(g, n->in[1], 2))
        return n->in[0];
    return node_is(n, "Mul") && n->in[0] == n->in[1] ? n->in[0] : -1;
}

static int is_weight(const struct graph *g, int32_t v, dim width)
{
    const struct tensor *t = constant_f32(g, v, 1);
    return t && t->dims[0] == width;
}

enum status fuse_norm(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "Sqrt"))
        return ST_OK;
    struct node *add = made_by(g, n->in[0], "Add");
    double eps;
    if (!add)
        return ST_OK;
    int32_t var = constant_number(g, add->in[1], &eps) ? add->in[0] : constant_number(g, add->in[0], &eps) ? add->in[1] : -1;
    struct node *mean2 = made_by(g, var, "ReduceMean");
    if (!mean2 || !mean_of_last(g, mean2))
        return ST_OK;
    struct node *square = made_by(g, mean2->in[0], NULL);
    int32_t d = square ? squared(g, square) : -1;
    struct node *sub = made_by(g, d, "Sub"), *mean = sub ? made_by(g, sub->in[1], "ReduceMean") : NULL;
    if (!mean || !mean_of_last(g, mean) || mean->in[0] != sub->in[0])
        return ST_OK;
    int32_t x = sub->in[0];
    const struct type *t = &g->values[x].type;
    if (t->dtype != DT_F32 || t->rank < 1 || !dim_known(t->dims[t->rank - 1]))
        return ST_OK;
    dim width = t->dims[t->rank - 1];

    struct node *whole = only_user(g, n->out[0]);
    if (whole && node_is(whole, "Reciprocal")) {
        int32_t r = whole->out[0];
        whole = only_user(g, r);
        if (!whole || !node_is(whole, "Mul") || other_input(whole, r) != d)
            return ST_OK;
    } else if (!whole || !node_is(whole, "Div") || whole->in[0] != d || whole->in[1] != n->out[0]) {
        return ST_OK;
    }
    struct node *scale = only_user(g, whole->out[0]);
    if (!scale || !node_is(scale, "Mul") || !is_weight(g, other_input(scale, whole->out[0]), width))
        return ST_OK;
    struct node *shift = only_user(g, scale->out[0]);
    int has_beta = shift && node_is(shift, "Add") && is_weight(g, other_input(shift, scale->out[0]), width);
    int32_t in[3] = {x, other_input(scale, whole->out[0]), has_beta ? other_input(shift, scale->out[0]) : -1};
    const char *name = has_beta ? shift->name : scale->name;
    struct node *made = rewrite_node(g, "", "LayerNormalization", 17, name, has_beta ? 3 : 2, in, has_beta ? shift->out[0] : scale->out[0]);
    if (!made)
        return err_nomem(e, "the model's graph");
    ++*changed;
    TRY(rewrite_int(made, "axis", -1, e));
    return rewrite_float(made, "epsilon", (float)eps, e);
}
