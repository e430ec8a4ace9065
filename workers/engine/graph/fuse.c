#include "workers/engine/graph/fuse.h"

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

typedef enum status pass_fn(struct graph *g, struct node *n, uint32_t *changed, struct err *e);

static enum status every_node(struct graph *g, pass_fn *pass, uint32_t *changed, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) /* nodes made on the way come at the end */
        TRY(pass(g, g->nodes[i], changed, e));
    return graph_rework(g, e);
}

static enum status with_uniform(struct graph *g, const struct given *given, uint32_t n_given, uint32_t *changed, struct err *e)
{
    struct uniform *u;
    TRY(uniform_find(g, given, n_given, &u, e));
    uint32_t simpler = 0;
    enum status st = uniform_simplify(g, u, &simpler, e);
    uint32_t values = g->n_values;
    for (uint32_t i = 0; i < g->n_nodes && st == ST_OK; i++) {
        st = fuse_pool(g, g->nodes[i], u, changed, e);
        if (st == ST_OK)
            st = fuse_positions(g, g->nodes[i], u, changed, e);
        if (g->n_values != values) /* u knows nothing of new values */
            break;
    }
    mem_free(u);
    *changed += simpler;
    if (st != ST_OK)
        return st;
    return graph_rework(g, e);
}

enum status graph_fuse(struct graph *g, const struct given *given, uint32_t n_given, struct err *e)
{
    /* Sizes and masks first: they hide everything else. Norms, activations and heads before products, products before what hangs on them. */
    static pass_fn *const passes[] = {fuse_dynamic, fuse_norm, fuse_gelu, fuse_silu, fuse_conv, fuse_range, fuse_attention, fuse_linear, fuse_epilogue, fuse_qkv};
    uint32_t changed = 1;
    TRY(every_node(g, fuse_table, &changed, e));
    for (int round = 0; changed && round < 64; round++) {
        changed = 0;
        TRY(with_uniform(g, given, n_given, &changed, e));
    }
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        changed = 1;
        for (int round = 0; changed && round < 8; round++) {
            changed = 0;
            TRY(every_node(g, passes[i], &changed, e));
        }
    }
    return ST_OK;
}
