/* The first look at a graph: ops are found and checked, values have makers, nodes get an order. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

/* What is not supported -------------------------------------------------------------------------------------------------------------- */

struct listing {
    struct unsupported *list;
    size_t cap, count;
};

static enum status list_unsupported(const struct graph *g, struct listing *l, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        int known = 0;
        for (uint32_t k = 0; k < n->n_attr; k++)
            for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++)
                TRY(list_unsupported(n->attr[k].graphs[b], l, e));
        if (n->def || op_find(n->domain, n->op, n->opset, &known))
            continue;
        struct unsupported u = {.opset = n->opset, .other_opset = known, .count = 1};
        snprintf(u.op, sizeof u.op, "%s.%s", n->domain[0] ? n->domain : "ai.onnx", n->op);
        snprintf(u.node, sizeof u.node, "%s", n->name);
        size_t at = 0;
        while (at < l->count && strcmp(l->list[at].op, u.op) != 0)
            at++;
        if (at < l->count) {
            l->list[at].count++;
            continue;
        }
        if (mem_grow((void **)&l->list, &l->cap, l->count, sizeof *l->list) != 0)
            return err_nomem(e, "a list of nodes");
        l->list[l->count++] = u;
    }
    return ST_OK;
}

enum status graph_unsupported(const struct graph *g, struct unsupported **out, uint32_t *count, struct err *e)
{
    struct listing l = {0};
    enum status st = list_unsupported(g, &l, e);
    if (st != ST_OK) {
        mem_free(l.list);
        return st;
    }
    *out = l.list;
    *count = (uint32_t)l.count;
    return ST_OK;
}

enum status graph_refuse_unsupported(const struct graph *g, struct err *e)
{
    struct unsupported *list = NULL;
    uint32_t count = 0;
    char text[sizeof e->text] = "";
    size_t n = 0, room = sizeof text - 40;
    TRY(graph_unsupported(g, &list, &count, e));
    uint32_t shown = 0;
    for (; shown < count && n < room; shown++) {
        char more[48] = "", one[512];
        if (list[shown].count > 1)
            snprintf(more, sizeof more, " (nor are %u more such nodes)", list[shown].count - 1);
        int len = snprintf(one, sizeof one, "%snode '%s': op '%s' (opset %d) is not supported by this version%s", shown ? "; " : "", list[shown].node,
                           list[shown].op, list[shown].opset, more);
        if ((size_t)len >= sizeof one || n + (size_t)len >= room)
            break;
        memcpy(text + n, one, (size_t)len + 1);
        n += (size_t)len;
    }
    mem_free(list);
    if (!count)
        return ST_OK;
    if (shown < count)
        snprintf(text + n, sizeof text - n, "; and %u more ops", count - shown);
    return err_set(e, ST_USER, "%s", text);
}

/* Once: ops, checks, order ------------------------------------------------------------------------------------------------------------ */

enum status graph_check_arity(const struct node *n, struct err *e)
{
    const struct op_def *d = n->def;
    uint32_t need = d->min_in;
    if (n->n_own < need || (d->max_in != 0xffff && n->n_own > d->max_in))
        return node_error(n, e, "has %u inputs where %u to %u are expected", n->n_own, d->min_in, d->max_in);
    if (n->n_out < d->min_out || (d->max_out != 0xffff && n->n_out > d->max_out))
        return node_error(n, e, "has %u outputs where %u to %u are expected", n->n_out, d->min_out, d->max_out);
    for (uint32_t i = 0; i < need; i++)
        if (n->in[i] < 0 && d->max_in != 0xffff)
            return node_error(n, e, "input %u is left out, but needed", i);
    return ST_OK;
}

enum status graph_check_attrs(const struct node *n, struct err *e)
{
    return n->bad_attr ? node_error(n, e, "attribute '%s' is of the wrong kind", n->bad_attr) : ST_OK;
}

/* The captures of its bodies become inputs behind a node's own. */
static enum status add_captures(struct node *n, struct err *e)
{
    for (uint32_t k = 0; k < n->n_attr; k++)
        for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++) {
            const struct graph *body = n->attr[k].graphs[b];
            int32_t *in = mem_resize(n->in, (n->n_in + body->n_captures + 1) * sizeof *in);
            if (!in)
                return err_nomem(e, "a node");
            n->in = in;
            for (uint32_t i = 0; i < body->n_captures; i++)
                n->in[n->n_in++] = body->captured[i];
        }
    return ST_OK;
}

/* Who makes what; each value is made once. */
enum status graph_find_producers(struct graph *g, struct err *e)
{
    for (uint32_t v = 0; v < g->n_values; v++)
        g->values[v].producer = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++) {
            int32_t v = g->nodes[i]->out[k];
            if (v < 0)
                continue;
            if (g->values[v].producer >= 0 || g->values[v].constant.buffer)
                return node_error(g->nodes[i], e, "'%s' is made twice", g->values[v].name);
            g->values[v].producer = (int32_t)i;
        }
    for (uint32_t i = 0; i < g->n_in; i++)
        if (g->values[g->in[i]].producer >= 0)
            return node_error(g->nodes[g->values[g->in[i]].producer], e, "makes '%s', which is an input of the graph", g->values[g->in[i]].name);
    return ST_OK;
}

static int is_given(const struct graph *g, int32_t v)
{
    if (g->values[v].producer >= 0 || g->values[v].constant.buffer)
        return 1;
    for (uint32_t i = 0; i < g->n_in; i++)
        if (g->in[i] == v)
            return 1;
    for (uint32_t i = 0; i < g->n_captures; i++)
        if (g->captures[i] == v)
            return 1;
    return 0;
}

/* Depth first from each node to those whose values it needs, without recursion; the order of the file is kept where it can be. */
static enum status visit(struct graph *g, struct node **order, uint32_t *placed, uint8_t *state, uint32_t *stack, uint32_t *next, uint32_t first, struct err *e)
{
    uint32_t top = 0;
    if (state[first])
        return ST_OK;
    stack[0] = first;
    next[0] = 0;
    state[first] = 1;
    for (;;) {
        struct node *n = g->nodes[stack[top]];
        if (next[top] == n->n_in) {
            state[stack[top]] = 2;
            order[(*placed)++] = n;
            if (top-- == 0)
                return ST_OK;
            continue;
        }
        int32_t v = n->in[next[top]++];
        if (v < 0)
            continue;
        int32_t p = g->values[v].producer;
        if (p < 0) {
            if (!is_given(g, v))
                return node_error(n, e, "its input '%s' is made by no node, and is neither an input nor an initializer of the graph", g->values[v].name);
            continue;
        }
        if (state[p] == 1)
            return node_error(n, e, "it needs '%s', which depends on it: the graph has a cycle", g->values[v].name);
        if (state[p] == 0) {
            top++;
            stack[top] = (uint32_t)p;
            next[top] = 0;
            state[p] = 1;
        }
    }
}

enum status graph_sort(struct graph *g, struct err *e)
{
    uint32_t n = g->n_nodes, placed = 0;
    struct node **order = mem_array(n + 1, sizeof *order);
    uint8_t *state = mem_array(n + 1, 1);
    uint32_t *stack = mem_array(n + 1, sizeof *stack), *next = mem_array(n + 1, sizeof *next);
    enum status st = order && state && stack && next ? ST_OK : err_nomem(e, "a graph's order");
    for (uint32_t i = 0; i < n && st == ST_OK; i++)
        st = visit(g, order, &placed, state, stack, next, i, e);
    if (st == ST_OK && n)
        memcpy(g->nodes, order, n * sizeof *order);
    for (uint32_t i = 0; i < n && st == ST_OK; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            if (g->nodes[i]->out[k] >= 0)
                g->values[g->nodes[i]->out[k]].producer = (int32_t)i;
    mem_free(order);
    mem_free(state);
    mem_free(stack);
    mem_free(next);
    return st;
}

enum status graph_prepare(struct graph *g, struct err *e)
{
    if (g->depth > BODY_DEPTH_MAX)
        return err_set(e, ST_USER, "bodies lie more than %d deep in each other", BODY_DEPTH_MAX);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        n->def = op_find(n->domain, n->op, n->opset, NULL);
        TRY(graph_check_arity(n, e));
        for (uint32_t k = 0; k < n->n_attr; k++)
            for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++)
                TRY(graph_prepare(n->attr[k].graphs[b], e));
        if (n->def->check)
            TRY(n->def->check(n, e));
        TRY(graph_check_attrs(n, e));
        TRY(add_captures(n, e));
    }
    TRY(graph_find_producers(g, e));
    TRY(graph_sort(g, e));
    for (uint32_t i = 0; i < g->n_out; i++)
        if (!is_given(g, g->out[i]))
            return err_set(e, ST_USER, "output '%s' is made by no node", g->values[g->out[i]].name);
    g->finished = 1;
    return ST_OK;
}
