/* Building and freeing a graph. */
#include "workers/engine/graph/graph.h"

#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/inner.h"

enum status graph_new(const struct kernels *k, struct graph *outer, struct graph **out, struct err *e)
{
    struct graph *g = mem_zalloc(sizeof *g);
    if (!g)
        return err_nomem(e, "a graph");
    g->kernels = k;
    g->outer = outer;
    g->depth = outer ? outer->depth + 1 : 0;
    g->syms = outer ? outer->syms : NULL;
    g->name = mem_strdup("");
    enum status st = g->name ? ST_OK : err_nomem(e, "a graph");
    if (st == ST_OK && !outer)
        st = syms_new(&g->syms, e);
    if (st != ST_OK) {
        graph_free(g);
        return st;
    }
    *out = g;
    return ST_OK;
}

void attr_release(struct attr *a)
{
    uint32_t tensors = a->kind == ATTR_TENSOR ? 1 : a->kind == ATTR_TENSORS ? a->count : 0;
    uint32_t graphs = a->kind == ATTR_GRAPH ? 1 : a->kind == ATTR_GRAPHS ? a->count : 0;
    for (uint32_t i = 0; a->tensors && i < tensors; i++)
        tensor_release(&a->tensors[i]);
    for (uint32_t i = 0; a->graphs && i < graphs; i++)
        graph_free(a->graphs[i]);
    for (uint32_t i = 0; a->strings && i < a->count; i++)
        mem_free((void *)a->strings[i].data);
    mem_free((void *)a->s.data);
    mem_free(a->strings);
    mem_free(a->tensors);
    mem_free(a->graphs);
    mem_free(a->floats);
    mem_free(a->ints);
    mem_free(a->name);
    *a = (struct attr){0};
}

void node_free(struct node *n)
{
    if (!n)
        return;
    if (n->def && n->def->release && n->state)
        n->def->release(n);
    for (uint32_t i = 0; i < n->n_attr; i++)
        attr_release(&n->attr[i]);
    mem_free(n->attr);
    mem_free(n->in);
    mem_free(n->out);
    mem_free(n->name);
    mem_free((void *)n->op);
    mem_free((void *)n->domain);
    mem_free(n);
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        node_free(g->nodes[i]);
    for (uint32_t i = 0; i < g->n_values; i++) {
        mem_free(g->values[i].name);
        tensor_release(&g->values[i].constant);
    }
    mem_free(g->nodes);
    mem_free(g->values);
    mem_free(g->in);
    mem_free(g->out);
    mem_free(g->captures);
    mem_free(g->captured);
    mem_free(g->index);
    mem_free(g->ends_at);
    mem_free(g->ends);
    mem_free(g->name);
    if (!g->outer) {
        room_free(g->room);
        syms_free(g->syms);
    }
    mem_free(g);
}

/* Room for the elements of shape tensors ------------------------------------------------------------------------------------------------ */

enum { ROOM_DIMS = 2048 };
struct room {
    struct room *next;
    uint32_t used;
    dim dims[ROOM_DIMS];
};

dim *room_get(struct room **room, uint32_t count)
{
    BUG_IF(count > ROOM_DIMS, "%u elements of a shape", count);
    if (!*room || ROOM_DIMS - (*room)->used < count) {
        struct room *r = mem_alloc(sizeof *r);
        if (!r)
            return NULL;
        r->next = *room;
        r->used = 0;
        *room = r;
    }
    dim *at = (*room)->dims + (*room)->used;
    (*room)->used += count;
    return at;
}

void room_free(struct room *r)
{
    while (r) {
        struct room *next = r->next;
        mem_free(r);
        r = next;
    }
}

void room_reset(struct room *r)
{
    if (!r)
        return;
    room_free(r->next);
    r->next = NULL;
    r->used = 0;
}

struct graph *graph_outermost(struct graph *g)
{
    while (g->outer)
        g = g->outer;
    return g;
}

/* Values ----------------------------------------------------------------------------------------------------------------------------- */

static uint32_t hash(const char *s)
{
    uint32_t h = 2166136261u;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    return h ^ h >> 15;
}

static int grow_index(struct graph *g)
{
    uint32_t cap = g->index_cap ? g->index_cap * 2 : 64;
    uint32_t *index = mem_array(cap, sizeof *index);
    if (!index)
        return -1;
    for (uint32_t i = 0; i < g->n_values; i++) {
        uint32_t at = hash(g->values[i].name) & (cap - 1);
        while (index[at])
            at = (at + 1) & (cap - 1);
        index[at] = i + 1;
    }
    mem_free(g->index);
    g->index = index;
    g->index_cap = cap;
    return 0;
}

int32_t graph_find(const struct graph *g, const char *name)
{
    if (!g->index_cap)
        return -1;
    for (uint32_t at = hash(name) & (g->index_cap - 1); g->index[at]; at = (at + 1) & (g->index_cap - 1))
        if (strcmp(g->values[g->index[at] - 1].name, name) == 0)
            return (int32_t)g->index[at] - 1;
    return -1;
}

int32_t graph_value(struct graph *g, const char *name)
{
    int32_t found = graph_find(g, name);
    if (found >= 0)
        return found;
    if (g->n_values >= 1u << 24 || (g->n_values * 2 >= g->index_cap && grow_index(g) != 0))
        return -1;
    char *copy = mem_strdup(name);
    if (!copy || mem_grow((void **)&g->values, &g->values_cap, g->n_values, sizeof *g->values) != 0) {
        mem_free(copy);
        return -1;
    }
    g->values[g->n_values] = (struct graph_value){.name = copy, .producer = -1, .type = {.rank = -1}};
    uint32_t at = hash(name) & (g->index_cap - 1);
    while (g->index[at])
        at = (at + 1) & (g->index_cap - 1);
    g->index[at] = g->n_values + 1;
    return (int32_t)g->n_values++;
}

/* Elements of small whole-number tensors, for shape functions. NULL where there are none, or memory is out. */
const dim *tensor_values(const struct tensor *t, dim *room)
{
    int64_t n = tensor_count(t);
    const void *p = tensor_data(t);
#define FROM(name, type)                          \
    case DT_##name:                               \
        for (int64_t i = 0; i < n; i++)           \
            room[i] = (dim)((const type *)p)[i];  \
        break;
    switch (t->dtype) {
        FROM(U8, uint8_t)
        FROM(I8, int8_t)
        FROM(U16, uint16_t)
        FROM(I16, int16_t)
        FROM(I32, int32_t)
        FROM(U32, uint32_t)
        FROM(BOOL, uint8_t)
    case DT_I64:
        for (int64_t i = 0; i < n; i++)
            room[i] = ((const int64_t *)p)[i] < DIM_LEAST ? DIM_LEAST : ((const int64_t *)p)[i];
        break;
    case DT_U64:
        for (int64_t i = 0; i < n; i++)
            room[i] = ((const uint64_t *)p)[i] > INT64_MAX ? INT64_MAX : (dim)((const uint64_t *)p)[i];
        break;
    default:
        return NULL;
    }
#undef FROM
    return room;
}

int tensor_has_values(const struct tensor *t)
{
    return (dtype_is_int(t->dtype) || t->dtype == DT_BOOL) && tensor_count(t) <= VALUES_MAX;
}

int graph_set_constant(struct graph *g, int32_t v, struct tensor *t)
{
    struct graph_value *value = &g->values[v];
    struct type type;
    type_tensor(&type, t->dtype, (int)t->rank, t->dims);
    if (tensor_has_values(t)) {
        int64_t n = tensor_count(t);
        dim *room = room_get(&graph_outermost(g)->room, n ? (uint32_t)n : 1);
        if (!room)
            return -1;
        type.values = tensor_values(t, room);
    }
    tensor_release(&value->constant);
    value->constant = *t;
    value->type = type;
    value->producer = -1;
    *t = (struct tensor){0};
    return 0;
}

int32_t graph_constant(struct graph *g, const char *name, enum dtype d, uint32_t rank, const int64_t *dims, const void *data)
{
    struct tensor t;
    struct err e;
    int32_t v = graph_value(g, name);
    if (v < 0 || tensor_copy(&t, d, rank, dims, data, &e) != ST_OK)
        return -1;
    if (graph_set_constant(g, v, &t) == 0)
        return v;
    tensor_release(&t);
    return -1;
}

static int append(int32_t **list, size_t *cap, uint32_t *count, int32_t v)
{
    if (v < 0 || mem_grow((void **)list, cap, *count, sizeof **list) != 0)
        return -1;
    (*list)[(*count)++] = v;
    return 0;
}

int32_t graph_input(struct graph *g, const char *name, const struct type *t)
{
    int32_t v = graph_value(g, name);
    if (append(&g->in, &g->in_cap, &g->n_in, v) != 0)
        return -1;
    g->values[v].type = *t;
    return v;
}

int32_t graph_output(struct graph *g, int32_t value)
{
    return append(&g->out, &g->out_cap, &g->n_out, value) == 0 ? value : -1;
}

int32_t graph_capture(struct graph *body, const char *name, int32_t outer_value)
{
    int32_t v = graph_value(body, name);
    if (v < 0 || mem_grow((void **)&body->captured, &body->captured_cap, body->n_captures, sizeof *body->captured) != 0)
        return -1;
    body->captured[body->n_captures] = outer_value;
    return append(&body->captures, &body->captures_cap, &body->n_captures, v) == 0 ? v : -1;
}

/* Nodes ------------------------------------------------------------------------------------------------------------------------------ */

static int32_t *copy_numbers(const int32_t *from, uint32_t count)
{
    int32_t *to = mem_array(count ? count : 1, sizeof *to);
    if (to && count)
        memcpy(to, from, count * sizeof *to);
    return to;
}

struct node *graph_node(struct graph *g, const char *domain, const char *op, int opset, const char *name, uint32_t n_in, const int32_t *in,
                        uint32_t n_out, const int32_t *out)
{
    struct node *n = mem_zalloc(sizeof *n);
    if (!n)
        return NULL;
    if (strcmp(domain, "ai.onnx") == 0)
        domain = "";
    n->op = mem_strdup(op);
    n->domain = mem_strdup(domain);
    n->name = name && name[0] ? mem_strdup(name) : mem_printf("%s_%llu", op, (unsigned long long)g->made++);
    n->in = copy_numbers(in, n_in);
    n->out = copy_numbers(out, n_out);
    n->n_in = n->n_own = n_in;
    n->n_out = n_out;
    n->opset = opset;
    n->kernels = g->kernels;
    if (!n->op || !n->domain || !n->name || !n->in || !n->out ||
        mem_grow((void **)&g->nodes, &g->nodes_cap, g->n_nodes, sizeof *g->nodes) != 0) {
        node_free(n);
        return NULL;
    }
    g->nodes[g->n_nodes++] = n;
    return n;
}

enum status node_add_attr(struct node *n, const struct attr *a, struct err *e)
{
    struct attr *more = mem_resize(n->attr, (n->n_attr + 1) * sizeof *more);
    if (!more)
        return err_nomem(e, "an attribute");
    n->attr = more;
    n->attr[n->n_attr++] = *a;
    return ST_OK;
}
