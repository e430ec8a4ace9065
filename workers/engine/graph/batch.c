#include "workers/engine/graph/batch.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

/* What a value is to a batch; >= 0: each record has its index along that axis. */
enum {
    FREE = BATCH_SAME,   /* the same for any batch */
    SIZES = BATCH_SIZES, /* whole numbers, all known as sizes, and the batch's is among them */
    MIXED = BATCH_MIXED,
};

struct proof {
    const struct graph *g;
    int *of;     /* of each value */
    dim batch;
    int symbol;
    char *why;
};

/* The axis that is the batch, where it is one axis and no other size depends on it; FREE where none does. */
static int batch_axis(const struct proof *p, const struct type *t)
{
    int found = FREE;
    if (t->kind != VALUE_TENSOR || t->rank < 0)
        return MIXED;
    for (int i = 0; i < t->rank; i++) {
        if (!dim_uses(p->g->syms, t->dims[i], p->symbol))
            continue;
        if (t->dims[i] != p->batch || found != FREE)
            return MIXED;
        found = i;
    }
    return found;
}

static int values_use_batch(const struct proof *p, const struct type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->dims[i]; /* known, as the values are */
    for (int64_t i = 0; i < n; i++)
        if (dim_uses(p->g->syms, t->values[i], p->symbol))
            return 1;
    return 0;
}

static int is(const struct node *n, const char *op)
{
    return !n->domain[0] && strcmp(n->op, op) == 0;
}

/* Ops for which a size that depends on the batch says how large the output is, and nothing of what it holds. */
static int takes_sizes(const struct node *n)
{
    return is(n, "Reshape") || is(n, "Expand");
}

static int has_body(const struct node *n)
{
    for (uint32_t k = 0; k < n->n_attr; k++)
        if (n->attr[k].graphs)
            return 1;
    return 0;
}

/* Output o of a node; its inputs are known. */
static int of_output(const struct proof *p, const struct shaping *s, uint32_t o)
{
    const struct node *n = s->node;
    const struct type *t = &s->out[o];
    int carried = 0, sizes = 0, at = FREE;
    for (uint32_t i = 0; i < n->n_in; i++) {
        int of = n->in[i] < 0 ? FREE : p->of[n->in[i]];
        if (of == MIXED)
            return MIXED;
        carried += of >= 0;
        sizes += of == SIZES;
    }
    if (t->kind == VALUE_TENSOR && t->values)
        return values_use_batch(p, t) ? SIZES : FREE;
    if (!carried && !sizes)
        return FREE;
    if (has_body(n) || t->kind != VALUE_TENSOR)
        return MIXED;
    if (!carried) /* zeros for each record, say: all of them are alike */
        return is(n, "ConstantOfShape") || (is(n, "Expand") && p->of[n->in[0]] == FREE) ? batch_axis(p, t) : MIXED;
    if (!n->def->follow || (sizes && !takes_sizes(n)))
        return MIXED;
    for (uint32_t i = 0; i < n->n_in; i++) {
        int of = n->in[i] < 0 ? FREE : p->of[n->in[i]];
        if (of < 0)
            continue;
        int to = n->def->follow(s, i, (uint32_t)of, o);
        if (to < 0 || (at != FREE && at != to))
            return MIXED;
        at = to;
    }
    return at == batch_axis(p, t) ? at : MIXED;
}

static int prove(struct proof *p, struct type *types, const struct tensor **constants)
{
    const struct graph *g = p->g;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        if (t->kind == VALUE_TENSOR && t->rank >= 1 && i == 0)
            p->batch = t->dims[0];
        if (t->kind != VALUE_TENSOR || t->rank < 1 || t->dims[0] != p->batch || (p->symbol = dim_symbol(g->syms, p->batch)) < 0 || batch_axis(p, t) != 0) {
            snprintf(p->why, BATCH_WHY_MAX, "input '%.100s' has no first axis of any size, or not the one that the other inputs have", g->values[g->in[i]].name);
            return 0;
        }
        p->of[g->in[i]] = 0;
    }
    if (!g->n_in) {
        snprintf(p->why, BATCH_WHY_MAX, "it has no inputs");
        return 0;
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        struct shaping s;
        graph_shaping((struct graph *)g, n, types, types + n->n_in, constants, &s);
        for (uint32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0)
                s.out[k] = g->values[n->out[k]].type;
        for (uint32_t k = 0; k < n->n_out; k++) {
            if (n->out[k] < 0)
                continue;
            int of = of_output(p, &s, k);
            p->of[n->out[k]] = of;
            if (of == MIXED && !p->why[0])
                snprintf(p->why, BATCH_WHY_MAX, "node '%.100s' (%.40s) may mix records", n->name, n->op);
        }
    }
    for (uint32_t i = 0; i < g->n_out; i++)
        if (p->of[g->out[i]] != 0) {
            if (p->of[g->out[i]] != MIXED)
                snprintf(p->why, BATCH_WHY_MAX, "output '%.100s' has no part for each record", g->values[g->out[i]].name);
            return 0;
        }
    return 1;
}

static int prove_all(const struct graph *g, int *values, char why[BATCH_WHY_MAX])
{
    struct proof p = {.g = g, .why = why, .symbol = -1};
    uint32_t most_in = 1, most = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        uint32_t all = g->nodes[i]->n_in + g->nodes[i]->n_out;
        most = all > most ? all : most;
        most_in = g->nodes[i]->n_in > most_in ? g->nodes[i]->n_in : most_in;
    }
    struct type *types = mem_array(most, sizeof *types);
    const struct tensor **constants = mem_array(most_in, sizeof *constants);
    p.of = mem_array(g->n_values + 1, sizeof *p.of);
    int r = -1;
    why[0] = '\0';
    if (types && constants && p.of) {
        for (uint32_t v = 0; v < g->n_values; v++)
            p.of[v] = FREE;
        r = prove(&p, types, constants);
    }
    if (values && r == 1)
        memcpy(values, p.of, g->n_values * sizeof *values);
    mem_free(types);
    mem_free(constants);
    mem_free(p.of);
    return r;
}

int batch_prove(const struct graph *g, char why[BATCH_WHY_MAX])
{
    return prove_all(g, NULL, why);
}

int batch_values(const struct graph *g, int *of)
{
    char why[BATCH_WHY_MAX];
    return prove_all(g, of, why);
}
