/* Halves: an op that does not take f16 or bf16 is given f32, and what it makes is rounded back. That is what it would do inside. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

static int is_half(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16;
}

static enum dtype half_of(const struct type *in, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (in[i].kind == VALUE_TENSOR && is_half(in[i].dtype))
            return in[i].dtype;
    return DT_NONE;
}

static enum status add_cast(struct graph *g, const struct node *of, int32_t from, int32_t to, enum dtype d, struct err *e)
{
    char *name = mem_printf("%s/cast.%llu", of->name, (unsigned long long)g->made++);
    struct node *n = name ? graph_node(g, "", "Cast", 13, name, 1, &from, 1, &to) : NULL;
    struct attr a = {.name = mem_strdup("to"), .kind = ATTR_INT, .i = d};
    mem_free(name);
    enum status st = n && a.name ? node_add_attr(n, &a, e) : err_nomem(e, "a node");
    if (st != ST_OK) {
        mem_free(a.name);
        return st;
    }
    n->def = op_find("", "Cast", 13, NULL);
    BUG_IF(!n->def, "there is no Cast");
    return n->def->check ? n->def->check(n, e) : ST_OK;
}

static int32_t new_value(struct graph *g, int32_t of)
{
    char *name = mem_printf("%s.f32.%llu", g->values[of].name, (unsigned long long)g->made++);
    int32_t v = name ? graph_value(g, name) : -1;
    mem_free(name);
    return v;
}

enum status graph_widen(struct graph *g, struct node *n, struct type *in, struct type *out, const struct tensor **constants, int *done, struct err *e)
{
    struct shaping s;
    struct err why;
    *done = 0;
    graph_shaping(g, n, in, out, constants, &s);
    enum dtype half = half_of(in, n->n_own);
    if (half == DT_NONE || n->n_own != n->n_in) /* an op with bodies: they are looked at by themselves */
        return ST_OK;
    for (uint32_t i = 0; i < n->n_in; i++)
        if (in[i].kind == VALUE_TENSOR && is_half(in[i].dtype)) {
            in[i].dtype = DT_F32;
            constants[i] = NULL;
        }
    if (n->def->shape(&s, &why) != ST_OK)
        return ST_OK;
    for (uint32_t i = 0; i < n->n_in; i++) {
        int32_t v = n->in[i];
        if (v < 0 || g->values[v].type.kind != VALUE_TENSOR || !is_half(g->values[v].type.dtype))
            continue;
        int32_t wide = new_value(g, v);
        if (wide < 0)
            return err_nomem(e, "a graph");
        TRY(add_cast(g, n, v, wide, DT_F32, e));
        n->in[i] = wide;
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        int32_t v = n->out[k];
        if (v < 0 || out[k].kind != VALUE_TENSOR || out[k].dtype != DT_F32)
            continue;
        int32_t wide = new_value(g, v);
        if (wide < 0)
            return err_nomem(e, "a graph");
        n->out[k] = wide;
        TRY(add_cast(g, n, wide, v, half, e));
    }
    *done = 1;
    return ST_OK;
}
