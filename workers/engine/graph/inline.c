/* An If with a constant condition: the branch that is taken stands in its place, the other one goes. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

/* The condition of an If that is known; -1 where it is not. */
static int known_condition(const struct graph *g, const struct node *n)
{
    if (strcmp(n->op, "If") != 0 || n->domain[0] || n->in[0] < 0)
        return -1;
    const struct tensor *t = &g->values[n->in[0]].constant;
    return t->buffer && t->dtype == DT_BOOL && tensor_count(t) == 1 ? *(const uint8_t *)tensor_data(t) : -1;
}

static struct attr *branch_of(const struct node *n, const char *name)
{
    for (uint32_t i = 0; i < n->n_attr; i++)
        if (strcmp(n->attr[i].name, name) == 0 && n->attr[i].kind == ATTR_GRAPH)
            return &n->attr[i];
    return NULL;
}

/* The bodies of nodes that have moved lie in g now, and capture its values. */
static void move_bodies(struct graph *g, const struct node *n, const int32_t *to)
{
    for (uint32_t k = 0; k < n->n_attr; k++)
        for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++) {
            struct graph *body = n->attr[k].graphs[b];
            body->outer = g;
            for (uint32_t i = 0; i < body->n_captures; i++)
                body->captured[i] = to[body->captured[i]];
        }
}

/* Which value of g each value of the branch becomes. */
static enum status map_values(struct graph *g, const struct node *n, struct graph *b, int32_t *to, struct err *e)
{
    for (uint32_t v = 0; v < b->n_values; v++)
        to[v] = -1;
    for (uint32_t i = 0; i < b->n_captures; i++)
        to[b->captures[i]] = b->captured[i];
    for (uint32_t i = 0; i < n->n_out; i++) /* what a node of the branch makes, it makes for the outside */
        if (n->out[i] >= 0 && to[b->out[i]] < 0 && b->values[b->out[i]].producer >= 0)
            to[b->out[i]] = n->out[i];
    for (uint32_t v = 0; v < b->n_values; v++) {
        if (to[v] >= 0)
            continue;
        char *name = mem_printf("%s/%s.%llu", n->name, b->values[v].name, (unsigned long long)g->made++);
        to[v] = name ? graph_value(g, name) : -1;
        mem_free(name);
        if (to[v] < 0)
            return err_nomem(e, "a graph");
        if (b->values[v].constant.buffer) {
            struct tensor t;
            tensor_share(&t, &b->values[v].constant);
            if (graph_set_constant(g, to[v], &t) != 0) {
                tensor_release(&t);
                return err_nomem(e, "a constant");
            }
        }
        g->values[to[v]].type = b->values[v].type;
    }
    return ST_OK;
}

/* n is g's no more; its nodes are appended. */
static enum status splice(struct graph *g, struct node *n, struct graph *b, struct err *e)
{
    int32_t *to = mem_array(b->n_values + 1, sizeof *to);
    enum status st = to ? map_values(g, n, b, to, e) : err_nomem(e, "a graph");
    for (uint32_t i = 0; i < n->n_out && st == ST_OK; i++) {
        int32_t from = to[b->out[i]], out = n->out[i];
        if (out < 0 || from == out)
            continue;
        struct node *id = graph_node(g, "", "Identity", 13, NULL, 1, &from, 1, &out);
        if (!id)
            st = err_nomem(e, "a node");
        else
            id->def = op_find("", "Identity", 13, NULL);
    }
    for (uint32_t i = 0; i < b->n_nodes && st == ST_OK; i++) {
        struct node *m = b->nodes[i];
        if (mem_grow((void **)&g->nodes, &g->nodes_cap, g->n_nodes, sizeof *g->nodes) != 0) {
            st = err_nomem(e, "a graph");
            memmove(b->nodes, b->nodes + i, (b->n_nodes - i) * sizeof *b->nodes); /* those that have moved are g's */
            b->n_nodes -= i;
            break;
        }
        for (uint32_t k = 0; k < m->n_in; k++)
            m->in[k] = m->in[k] < 0 ? -1 : to[m->in[k]];
        for (uint32_t k = 0; k < m->n_out; k++)
            m->out[k] = m->out[k] < 0 || b->values[m->out[k]].constant.buffer ? -1 : to[m->out[k]]; /* or folded */
        move_bodies(g, m, to);
        g->nodes[g->n_nodes++] = m;
    }
    if (st == ST_OK)
        b->n_nodes = 0;
    mem_free(to);
    return st;
}

enum status graph_inline_ifs(struct graph *g, int *changed, struct err *e)
{
    uint32_t count = g->n_nodes;
    for (uint32_t i = 0; i < count; i++) {
        struct node *n = g->nodes[i];
        int condition = known_condition(g, n);
        struct attr *a = condition < 0 ? NULL : branch_of(n, condition ? "then_branch" : "else_branch");
        if (!a)
            continue;
        memmove(g->nodes + i, g->nodes + i + 1, (g->n_nodes - i - 1) * sizeof *g->nodes);
        g->n_nodes--;
        count--;
        i--;
        enum status st = splice(g, n, a->graphs[0], e);
        node_free(n);
        TRY(st);
        *changed = 1;
    }
    return ST_OK;
}
