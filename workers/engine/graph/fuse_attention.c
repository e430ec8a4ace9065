/* Attention as exporters take it apart: heads made by Reshape and Transpose, q k^T, a scale (on the product, or its root on both sides), softmax, the
   product with v, and the way back. Found from the Softmax outwards. A mask must have been simplified away (a text alone has none); what is added to the scores
   beside it is taken over where it is the same for all texts of a batch: [1, heads, L, L], as relative positions are. */
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

static int has_perm(const struct node *n, const int64_t *perm, uint32_t rank)
{
    uint32_t count;
    const int64_t *p = node_ints(n, "perm", &count);
    if (!node_is(n, "Transpose") || !p || count != rank)
        return 0;
    for (uint32_t i = 0; i < rank; i++)
        if (p[i] != perm[i])
            return 0;
    return 1;
}

/* v = x * number or x / number: x, and *scale is multiplied; v itself otherwise. */
static int32_t unscale(const struct graph *g, int32_t v, double *scale)
{
    struct node *n = made_by(g, v, NULL);
    double c;
    if (node_is(n, "Mul")) {
        if (constant_number(g, n->in[1], &c) && g->values[n->in[1]].type.dtype == DT_F32) {
            *scale *= c;
            return n->in[0];
        }
        if (constant_number(g, n->in[0], &c) && g->values[n->in[0]].type.dtype == DT_F32) {
            *scale *= c;
            return n->in[1];
        }
    }
    if (node_is(n, "Div") && constant_number(g, n->in[1], &c) && c != 0) {
        *scale /= c;
        return n->in[0];
    }
    return v;
}

struct heads {
    dim batch, length, count, dim;
};

/* v [B, L, heads, dim] = Reshape of x [B, L, heads * dim]: x, or -1. */
static int32_t split_heads(const struct graph *g, int32_t v, struct heads *h)
{
    struct node *n = made_by(g, v, "Reshape");
    if (!n)
        return -1;
    const struct type *x = &g->values[n->in[0]].type, *t = &g->values[v].type;
    if (x->dtype != DT_F32 || x->rank != 3 || t->rank != 4 || x->dims[0] != t->dims[0] || x->dims[1] != t->dims[1] || !dim_known(t->dims[2]) ||
        !dim_known(t->dims[3]) || x->dims[2] != t->dims[2] * t->dims[3] || t->dims[0] == DIM_UNKNOWN || t->dims[1] == DIM_UNKNOWN)
        return -1;
    *h = (struct heads){t->dims[0], t->dims[1], t->dims[2], t->dims[3]};
    return n->in[0];
}

static const int64_t to_heads[4] = {0, 2, 1, 3}, keys_turned[4] = {0, 2, 3, 1}, last_two[4] = {0, 1, 3, 2}, last_two_of_3[3] = {0, 2, 1};

/* v [B, heads, L, dim] */
static int32_t rows_of(const struct graph *g, int32_t v, struct heads *h)
{
    struct node *n = made_by(g, v, "Transpose");
    return n && has_perm(n, to_heads, 4) ? split_heads(g, n->in[0], h) : -1;
}

/* v [B, heads, dim, L] */
static int32_t columns_of(const struct graph *g, int32_t v, struct heads *h)
{
    struct node *n = made_by(g, v, "Transpose");
    if (n && has_perm(n, keys_turned, 4))
        return split_heads(g, n->in[0], h);
    if (n && has_perm(n, last_two, 4))
        return rows_of(g, n->in[0], h);
    /* turned as [B * heads, L, dim] */
    struct node *out = made_by(g, v, "Reshape"), *turn = out ? made_by(g, out->in[0], "Transpose") : NULL;
    struct node *in = turn && has_perm(turn, last_two_of_3, 3) ? made_by(g, turn->in[0], "Reshape") : NULL;
    if (!in)
        return -1;
    int32_t x = rows_of(g, in->in[0], h);
    const struct type *flat = &g->values[turn->in[0]].type, *t = &g->values[v].type;
    if (x < 0 || flat->rank != 3 || t->rank != 4 || flat->dims[1] != h->length || flat->dims[2] != h->dim || t->dims[0] != h->batch ||
        t->dims[1] != h->count || t->dims[2] != h->dim || t->dims[3] != h->length)
        return -1;
    return x;
}

static int same_heads(const struct heads *a, const struct heads *b)
{
    return a->batch == b->batch && a->length == b->length && a->count == b->count && a->dim == b->dim;
}

/* Past a guard that makes NaN zero, which a row of -infinity alone would need: there is no mask here. */
static struct node *after_softmax(const struct graph *g, const struct node *softmax, int32_t *p)
{
    *p = softmax->out[0];
    struct node *user = only_user(g, *p);
    if (user)
        return user;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        if (node_is(n, "Where") && n->in[2] == *p && constant_is(g, n->in[1], 0)) {
            struct node *nan = made_by(g, n->in[0], "IsNaN");
            if (nan && nan->in[0] == *p && uses_of(g, *p) == 2 && only_user(g, n->out[0])) {
                *p = n->out[0];
                return only_user(g, *p);
            }
        }
    }
    return NULL;
}

/* v = scores + bias, the bias one number for each head, query and key: the scores, and *bias. Else v. */
static int32_t without_bias(const struct graph *g, int32_t v, int32_t *bias)
{
    struct node *n = made_by(g, v, "Add");
    const struct type *t = &g->values[v].type;
    for (int i = 0; n && i < 2 && n->in[0] != n->in[1] && t->rank == 4; i++) {
        const struct type *b = &g->values[n->in[i]].type;
        int front = b->rank == 4 && dim_known(b->dims[0]) && b->dims[0] == 1;
        if (b->kind == VALUE_TENSOR && b->dtype == DT_F32 && (front || b->rank == 3) && dim_known(t->dims[1]) && t->dims[2] == t->dims[3] &&
            b->dims[front] == t->dims[1] && b->dims[front + 1] == t->dims[2] && b->dims[front + 2] == t->dims[3]) {
            *bias = n->in[i];
            return n->in[!i];
        }
    }
    return v;
}

/* The Reshape that takes v, when beside it there are only Shapes of v; these look at `like` from now on, which has the same sizes, if `turn`. NULL: there is more. */
static struct node *merged_by(struct graph *g, int32_t v, int32_t like, int turn)
{
    struct node *merge = NULL;
    uint32_t found = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] != v)
                continue;
            found++;
            if (node_is(n, "Shape")) {
                if (turn)
                    n->in[k] = like;
                continue;
            }
            if (merge || k || !node_is(n, "Reshape"))
                return NULL;
            merge = n;
        }
    }
    return turn || found == uses_of(g, v) ? merge : NULL;
}

enum status fuse_attention(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "Softmax"))
        return ST_OK;
    int64_t axis = node_int(n, "axis", n->opset < 13 ? 1 : -1);
    double scale = 1;
    struct heads hq, hk, hv;
    if (axis != -1 && axis != 3)
        return ST_OK;
    int32_t bias = -1;
    struct node *scores = made_by(g, unscale(g, without_bias(g, n->in[0], &bias), &scale), "MatMul");
    if (!scores)
        return ST_OK;
    int32_t turned = unscale(g, scores->in[0], &scale), q = rows_of(g, turned, &hq), k = columns_of(g, unscale(g, scores->in[1], &scale), &hk);
    int32_t p;
    struct node *mix = after_softmax(g, n, &p);
    if (q < 0 || k < 0 || !node_is(mix, "MatMul") || mix->in[0] != p || !same_heads(&hq, &hk))
        return ST_OK;
    int32_t v = rows_of(g, mix->in[1], &hv);
    struct node *back = only_user(g, mix->out[0]);
    int32_t heads = q >= 0 ? made_by(g, turned, "Transpose")->in[0] : -1; /* [B, L, heads, dim], as what comes out before it is merged */
    struct node *merge = back && has_perm(back, to_heads, 4) && !is_output(g, back->out[0]) ? merged_by(g, back->out[0], heads, 0) : NULL;
    if (v < 0 || !same_heads(&hq, &hv) || !node_is(merge, "Reshape") || !same_dims(&g->values[merge->out[0]].type, &g->values[q].type))
        return ST_OK;
    struct node *made = rewrite_node(g, "ebb", "Attention", 1, n->name, bias < 0 ? 3 : 4, (const int32_t[]){q, k, v, bias}, merge->out[0]);
    if (!made)
        return err_nomem(e, "the model's graph");
    merged_by(g, back->out[0], heads, 1);
    ++*changed;
    TRY(rewrite_int(made, "heads", hq.count, e));
    return rewrite_float(made, "scale", (float)scale, e);
}
