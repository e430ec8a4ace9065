#include "workers/engine/ops/bodies.h"

#include <string.h>

#include "base/mem.h"

struct graph *body_of(const struct node *n, const char *name, uint32_t *first_capture)
{
    uint32_t at = n->n_own;
    for (uint32_t k = 0; k < n->n_attr; k++) {
        const struct attr *a = &n->attr[k];
        if (strcmp(a->name, name) == 0 && a->kind == ATTR_GRAPH) {
            *first_capture = at;
            return a->graphs[0];
        }
        for (uint32_t b = 0; a->graphs && b < (a->kind == ATTR_GRAPH ? 1 : a->count); b++)
            at += a->graphs[b]->n_captures;
    }
    return NULL;
}

enum status body_check(const struct node *n, const char *name, struct err *e)
{
    uint32_t at;
    return body_of(n, name, &at) ? ST_OK : node_error(n, e, "has no attribute '%s', or it is no graph", name);
}

enum status body_infer(const struct shaping *s, struct graph *body, const struct type *in, uint32_t first_capture, struct err *e)
{
    return graph_infer(body, in, NULL, s->in + first_capture, s->constants + first_capture, e);
}

enum status body_start(struct run *r, const struct graph *body, uint32_t first_capture, struct run **out, struct err *e)
{
    static const struct value none;
    TRY(run_body(r, body, out, e));
    for (uint32_t i = 0; i < body->n_captures; i++) {
        const struct value *v = run_in_value(r, first_capture + i);
        TRY(run_give_capture(*out, i, v ? v : &none, e));
    }
    return ST_OK;
}

void body_like(const struct graph *g, uint32_t i, struct tensor *out)
{
    const struct type *t = body_out(g, i);
    *out = (struct tensor){.dtype = t->dtype, .rank = t->rank < 0 ? 0 : (uint32_t)t->rank};
    for (int k = 0; k < t->rank; k++)
        out->dims[k] = dim_known(t->dims[k]) ? t->dims[k] : 0;
}

int type_merge(struct shaping *s, struct type *into, const struct type *other, uint32_t *free)
{
    int changed = 0;
    if (into->kind == VALUE_NONE || other->kind == VALUE_NONE || into->kind != other->kind) {
        if (into->kind == other->kind)
            return 0;
        if (into->kind == VALUE_NONE && into->optional) {
            *into = *other;
            into->optional = 1;
            return 1;
        }
        return other->kind == VALUE_NONE && other->optional ? (changed = !into->optional, into->optional = 1, changed) : -1;
    }
    if (into->dtype == DT_NONE && other->dtype != DT_NONE)
        into->dtype = other->dtype, changed = 1;
    if (into->dtype != other->dtype && other->dtype != DT_NONE)
        return -1;
    if (other->optional && !into->optional)
        into->optional = changed = 1;
    if (into->rank != other->rank && into->rank >= 0)
        into->rank = -1, changed = 1;
    for (int i = 0; i < into->rank; i++) {
        if (into->dims[i] == other->dims[i] || (free && *free >> i & 1))
            continue;
        into->dims[i] = dim_fresh(s->syms);
        if (free)
            *free |= 1u << i;
        changed = 1;
    }
    if (into->values != other->values)
        into->values = NULL;
    return changed;
}

enum status value_make(struct run *r, struct value *v, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e)
{
    int64_t bytes = tensor_size(d, rank, dims);
    struct buffer *b;
    if (bytes < 0)
        return node_error(run_node(r), e, "a part of it would have sizes that cannot be");
    TRY(run_buffer(r, (size_t)bytes, &b, e));
    value_clear(v);
    v->kind = VALUE_TENSOR;
    v->tensor = (struct tensor){.dtype = d, .rank = rank, .buffer = b};
    if (rank)
        memcpy(v->tensor.dims, dims, rank * sizeof *dims);
    return ST_OK;
}

int64_t scalar_int(const struct tensor *t, int64_t i)
{
    const void *p = tensor_data(t);
    return t->dtype == DT_I32 ? ((const int32_t *)p)[i] : t->dtype == DT_BOOL ? ((const uint8_t *)p)[i] : ((const int64_t *)p)[i];
}

enum status run_stack(struct run *r, uint32_t i, const struct value *items, int64_t axis, int new_axis, int backwards, const struct tensor *like,
                      struct err *e)
{
    const struct node *n = run_node(r);
    const struct tensor *first = items->count ? &items->items[0].tensor : like;
    int64_t dims[RANK_MAX], before = 1, behind = 1, along = 0;
    uint32_t rank = first->rank + (new_axis ? 1 : 0), at;
    TRY(axis_in(n, axis, (int)rank, &at, e));
    if (rank > RANK_MAX)
        return node_error(n, e, "its output would have rank %u; at most %d is supported", rank, RANK_MAX);
    for (uint32_t k = 0, from = 0; k < rank; k++)
        dims[k] = new_axis && k == at ? 1 : first->dims[from++];
    for (uint32_t k = 0; k < rank; k++)
        (k < at ? (void)(before *= dims[k]) : k > at ? (void)(behind *= dims[k]) : (void)0);
    for (uint32_t k = 0; k < items->count; k++) {
        const struct tensor *t = &items->items[k].tensor;
        int same = t->rank == first->rank && t->dtype == first->dtype;
        for (uint32_t d = 0; same && d < t->rank; d++)
            same = t->dims[d] == first->dims[d] || (!new_axis && d == at);
        if (!same)
            return node_error(n, e, "tensors %u and 0 of what it puts together are of different types or sizes", k);
        along += new_axis ? 1 : t->dims[at];
    }
    dims[at] = along;
    TRY(run_make(r, i, first->dtype, rank, dims, e));
    struct tensor *y = run_out(r, i);
    if (!y)
        return ST_OK;
    size_t each = dtype_bytes(first->dtype), row = (size_t)(along * behind) * each;
    char *to = tensor_data(y);
    for (uint32_t k = 0; k < items->count; k++) {
        const struct tensor *t = &items->items[backwards ? items->count - 1 - k : k].tensor;
        size_t part = (size_t)((new_axis ? 1 : t->dims[at]) * behind) * each;
        const char *from = tensor_data(t);
        for (int64_t b = 0; b < before && part; b++)
            memcpy(to + (size_t)b * row, from + (size_t)b * part, part);
        to += part;
    }
    return ST_OK;
}
