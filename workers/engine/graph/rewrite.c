#include "workers/engine/graph/rewrite.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

int node_is(const struct node *n, const char *op)
{
    return n && n->domain[0] == '\0' && strcmp(n->op, op) == 0;
}

struct node *made_by(const struct graph *g, int32_t v, const char *op)
{
    if (v < 0 || g->values[v].producer < 0)
        return NULL;
    struct node *n = g->nodes[g->values[v].producer];
    return !op || node_is(n, op) ? n : NULL;
}

int is_output(const struct graph *g, int32_t v)
{
    for (uint32_t i = 0; i < g->n_out; i++)
        if (g->out[i] == v)
            return 1;
    return 0;
}

/* A node whose outputs all went to others no longer counts. */
static int is_dead(const struct node *n)
{
    for (uint32_t i = 0; i < n->n_out; i++)
        if (n->out[i] >= 0)
            return 0;
    return n->n_out > 0;
}

uint32_t uses_of(const struct graph *g, int32_t v)
{
    uint32_t uses = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        if (is_dead(n))
            continue;
        for (uint32_t j = 0; j < n->n_in; j++)
            uses += n->in[j] == v;
    }
    for (uint32_t i = 0; i < g->n_out; i++)
        uses += g->out[i] == v;
    return uses;
}

struct node *only_user(const struct graph *g, int32_t v)
{
    struct node *user = NULL;
    if (is_output(g, v))
        return NULL;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        if (is_dead(n))
            continue;
        for (uint32_t j = 0; j < n->n_in; j++) {
            if (n->in[j] != v)
                continue;
            if (user)
                return NULL;
            user = n;
        }
    }
    return user;
}

const struct tensor *constant_of(const struct graph *g, int32_t v)
{
    return v >= 0 && g->values[v].constant.buffer ? &g->values[v].constant : NULL;
}

int constant_number(const struct graph *g, int32_t v, double *out)
{
    const struct tensor *t = constant_of(g, v);
    if (!t || tensor_count(t) != 1)
        return 0;
    const void *p = tensor_data(t);
    switch (t->dtype) {
    case DT_F32: *out = *(const float *)p; return 1;
    case DT_F64: *out = *(const double *)p; return 1;
    case DT_F16: *out = f16_to_f32(*(const uint16_t *)p); return 1;
    case DT_BF16: *out = bf16_to_f32(*(const uint16_t *)p); return 1;
    case DT_I32: *out = *(const int32_t *)p; return 1;
    case DT_I64: *out = (double)*(const int64_t *)p; return 1;
    case DT_BOOL: *out = *(const uint8_t *)p != 0; return 1;
    default: return 0;
    }
}

int constant_is(const struct graph *g, int32_t v, double number)
{
    double x;
    return constant_number(g, v, &x) && fabs(x - number) <= 1e-6 * fabs(number);
}

const struct tensor *constant_f32(const struct graph *g, int32_t v, int rank)
{
    const struct tensor *t = constant_of(g, v);
    return t && t->dtype == DT_F32 && (rank < 0 || t->rank == (uint32_t)rank) ? t : NULL;
}

int same_dims(const struct type *a, const struct type *b)
{
    if (a->kind != VALUE_TENSOR || b->kind != VALUE_TENSOR || a->dtype != b->dtype || a->rank < 0 || a->rank != b->rank)
        return 0;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i] || a->dims[i] == DIM_UNKNOWN)
            return 0;
    return 1;
}

int replace_value(struct graph *g, int32_t from, int32_t to)
{
    if (is_output(g, from))
        return 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t j = 0; j < g->nodes[i]->n_in; j++)
            if (g->nodes[i]->in[j] == from)
                g->nodes[i]->in[j] = to;
    return 1;
}

int32_t other_input(const struct node *n, int32_t v)
{
    return n->in[0] == v ? n->in[1] : n->in[0];
}

struct node *rewrite_node(struct graph *g, const char *domain, const char *op, int opset, const char *name, uint32_t n_in, const int32_t *in,
                          int32_t out)
{
    int32_t maker = g->values[out].producer;
    if (maker >= 0)
        for (uint32_t i = 0; i < g->nodes[maker]->n_out; i++)
            if (g->nodes[maker]->out[i] == out)
                g->nodes[maker]->out[i] = -1;
    g->values[out].producer = -1;
    struct node *n = graph_node(g, domain, op, opset, name, n_in, in, 1, &out);
    if (n)
        g->values[out].producer = (int32_t)g->n_nodes - 1;
    return n;
}

static enum status add(struct node *n, const char *name, struct attr *a, struct err *e)
{
    a->name = mem_strdup(name);
    if (!a->name)
        return err_nomem(e, "a fused node");
    enum status st = node_add_attr(n, a, e);
    if (st != ST_OK)
        mem_free(a->name);
    return st;
}

enum status rewrite_int(struct node *n, const char *name, int64_t v, struct err *e)
{
    struct attr a = {.kind = ATTR_INT, .i = v};
    return add(n, name, &a, e);
}

enum status rewrite_float(struct node *n, const char *name, float v, struct err *e)
{
    struct attr a = {.kind = ATTR_FLOAT, .f = v};
    return add(n, name, &a, e);
}

enum status rewrite_string(struct node *n, const char *name, const char *v, struct err *e)
{
    char *copy = mem_strdup(v);
    if (!copy)
        return err_nomem(e, "a fused node");
    struct attr a = {.kind = ATTR_STRING, .s = {copy, strlen(copy)}};
    enum status st = add(n, name, &a, e);
    if (st != ST_OK)
        mem_free(copy);
    return st;
}

enum status node_copy_attrs(struct node *to, const struct node *from, struct err *e)
{
    for (uint32_t i = 0; i < from->n_attr; i++) {
        const struct attr *a = &from->attr[i];
        struct attr copy = {.kind = a->kind, .count = a->count, .f = a->f, .i = a->i};
        enum status st = ST_OK;
        if (a->kind == ATTR_INTS && a->count) {
            if ((copy.ints = mem_array(a->count, sizeof *copy.ints)))
                memcpy(copy.ints, a->ints, a->count * sizeof *copy.ints);
        } else if (a->kind == ATTR_FLOATS && a->count) {
            if ((copy.floats = mem_array(a->count, sizeof *copy.floats)))
                memcpy(copy.floats, a->floats, a->count * sizeof *copy.floats);
        } else if (a->kind == ATTR_STRING) {
            copy.s = (struct str){mem_strndup(a->s.data, a->s.len), a->s.len};
        } else {
            BUG_IF(a->kind != ATTR_INT && a->kind != ATTR_FLOAT && a->count, "attribute '%s' of '%s' cannot be copied", a->name, from->name);
        }
        st = add(to, a->name, &copy, e);
        if (st != ST_OK) {
            attr_release(&copy);
            return st;
        }
    }
    return ST_OK;
}
