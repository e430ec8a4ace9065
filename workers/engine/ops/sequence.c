/* Sequences of tensors. An item is shared, never copied. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/bodies.h"

static void sequence_of(struct type *t, const struct type *element)
{
    *t = *element;
    t->kind = VALUE_SEQUENCE;
    t->values = NULL;
    t->optional = 0;
}

static enum status want_sequence(const struct shaping *s, uint32_t i, struct err *e)
{
    return s->in[i].kind == VALUE_SEQUENCE ? ST_OK : node_error(s->node, e, "input %u is no sequence", i);
}

static enum status want_tensor(const struct shaping *s, uint32_t i, struct err *e)
{
    return s->in[i].kind == VALUE_TENSOR ? ST_OK : node_error(s->node, e, "input %u is no tensor", i);
}

static void element_of(struct shaping *s, const struct type *sequence, struct type *t)
{
    (void)s;
    *t = *sequence;
    t->kind = VALUE_TENSOR;
    t->optional = 0;
    t->values = NULL;
}

/* "" for the last; -count <= position <= count + beyond - 1 */
static enum status position_of(struct run *r, uint32_t input, uint32_t count, uint32_t beyond, uint32_t *out, struct err *e)
{
    const struct tensor *t = run_in(r, input);
    int64_t at = t ? scalar_int(t, 0) : (int64_t)count + beyond - 1;
    if (at < 0 && t)
        at += count;
    if (at < 0 || at >= (int64_t)count + beyond)
        return node_error(run_node(r), e, "position %lld is outside a sequence of %u", (long long)(t ? scalar_int(t, 0) : at), count);
    *out = (uint32_t)at;
    return ST_OK;
}

/* SequenceEmpty, SequenceConstruct ----------------------------------------------------------------------------------------------------------- */

static enum status empty_shape(struct shaping *s, struct err *e)
{
    int64_t d = node_int(s->node, "dtype", DT_F32);
    if (d < 0 || d >= DT_END || !dtype_bytes((enum dtype)d))
        return node_error(s->node, e, "its elements are of a type that is not supported");
    s->out[0] = (struct type){.kind = VALUE_SEQUENCE, .dtype = (enum dtype)d, .rank = -1};
    return ST_OK;
}

static enum status empty_run(struct run *r, const struct node *n, struct err *e)
{
    struct value none = {.kind = VALUE_SEQUENCE, .element = (enum dtype)node_int(n, "dtype", DT_F32)};
    return value_share(run_out_value(r, 0), &none, e);
}

static enum status construct_shape(struct shaping *s, struct err *e)
{
    TRY(want_tensor(s, 0, e));
    struct type t = s->in[0];
    for (uint32_t i = 0; i < s->n_in; i++) {
        TRY(want_tensor(s, i, e));
        if (s->in[i].dtype != t.dtype || (s->syms && type_merge(s, &t, &s->in[i], NULL) < 0))
            return node_error(s->node, e, "inputs 0 and %u are of different types", i);
    }
    sequence_of(&s->out[0], &t);
    return ST_OK;
}

static enum status construct_run(struct run *r, const struct node *n, struct err *e)
{
    struct value *y = run_out_value(r, 0);
    if (!y)
        return ST_OK;
    value_clear(y);
    y->kind = VALUE_SEQUENCE;
    y->element = run_in(r, 0)->dtype;
    for (uint32_t i = 0; i < n->n_in; i++)
        TRY(value_append(run_pool(r), y, run_in(r, i), e));
    return ST_OK;
}

/* SequenceAt, SequenceLength ------------------------------------------------------------------------------------------------------------------ */

static enum status at_shape(struct shaping *s, struct err *e)
{
    TRY(want_sequence(s, 0, e));
    TRY(want_tensor(s, 1, e));
    if (s->syms)
        element_of(s, &s->in[0], &s->out[0]);
    return ST_OK; /* running tells */
}

static enum status at_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    const struct value *x = run_in_value(r, 0);
    uint32_t at;
    TRY(position_of(r, 1, x->count, 0, &at, e));
    return run_out_value(r, 0) ? value_share(run_out_value(r, 0), &x->items[at], e) : ST_OK;
}

static enum status length_shape(struct shaping *s, struct err *e)
{
    TRY(want_sequence(s, 0, e));
    type_tensor(&s->out[0], DT_I64, 0, NULL);
    return ST_OK;
}

static enum status length_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    (void)e;
    *(int64_t *)tensor_data(run_out(r, 0)) = run_in_value(r, 0)->count;
    return ST_OK;
}

/* SequenceInsert, SequenceErase ----------------------------------------------------------------------------------------------------------------- */

static enum status insert_shape(struct shaping *s, struct err *e)
{
    TRY(want_sequence(s, 0, e));
    TRY(want_tensor(s, 1, e));
    struct type t = s->in[0], item = s->in[1];
    if (t.dtype != item.dtype && t.dtype != DT_NONE)
        return node_error(s->node, e, "puts a tensor of %s into a sequence of %s", dtype_name(item.dtype), dtype_name(t.dtype));
    t.kind = VALUE_TENSOR;
    if (s->syms)
        (void)type_merge(s, &t, &item, NULL);
    sequence_of(&s->out[0], &t);
    return ST_OK;
}

/* All items but one, and perhaps one more. */
static enum status edit(struct run *r, uint32_t without, uint32_t at, const struct tensor *more, struct err *e)
{
    const struct value *x = run_in_value(r, 0);
    struct value *y = run_out_value(r, 0);
    if (!y)
        return ST_OK;
    value_clear(y);
    y->kind = VALUE_SEQUENCE;
    y->element = x->element != DT_NONE || !more ? x->element : more->dtype;
    for (uint32_t i = 0; i <= x->count; i++) {
        if (more && i == at)
            TRY(value_append(run_pool(r), y, more, e));
        if (i < x->count && i != without)
            TRY(value_append(run_pool(r), y, &x->items[i].tensor, e));
    }
    return ST_OK;
}

static enum status insert_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    uint32_t at;
    TRY(position_of(r, 2, run_in_value(r, 0)->count, 1, &at, e));
    return edit(r, UINT32_MAX, at, run_in(r, 1), e);
}

static enum status erase_shape(struct shaping *s, struct err *e)
{
    TRY(want_sequence(s, 0, e));
    s->out[0] = s->in[0];
    return ST_OK;
}

static enum status erase_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    uint32_t at;
    TRY(position_of(r, 1, run_in_value(r, 0)->count, 0, &at, e));
    return edit(r, at, 0, NULL, e);
}

/* SplitToSequence, ConcatFromSequence ------------------------------------------------------------------------------------------------------------ */

static enum status split_shape(struct shaping *s, struct err *e)
{
    uint32_t axis;
    TRY(want_tensor(s, 0, e));
    struct type t = s->in[0];
    if (t.rank >= 0 && s->syms) {
        TRY(axis_in(s->node, node_int(s->node, "axis", 0), t.rank, &axis, e));
        int whole = s->n_in < 2 || s->in[1].kind == VALUE_NONE; /* one by one */
        if (whole && !node_int(s->node, "keepdims", 1)) {
            memmove(t.dims + axis, t.dims + axis + 1, (size_t)(t.rank - 1 - (int)axis) * sizeof *t.dims);
            t.rank--;
        } else {
            t.dims[axis] = whole ? 1 : dim_fresh(s->syms);
        }
    }
    sequence_of(&s->out[0], &t);
    return ST_OK;
}

/* A part of x along an axis, as a tensor of its own. */
static enum status part_of(struct run *r, const struct tensor *x, uint32_t axis, int64_t from, int64_t count, int keep, struct value *out, struct err *e)
{
    int64_t dims[RANK_MAX], before = 1, behind = 1;
    uint32_t rank = 0;
    for (uint32_t k = 0; k < x->rank; k++) {
        if (k != axis || keep)
            dims[rank++] = k == axis ? count : x->dims[k];
        (k < axis ? (void)(before *= x->dims[k]) : k > axis ? (void)(behind *= x->dims[k]) : (void)0);
    }
    TRY(value_make(r, out, x->dtype, rank, dims, e));
    size_t each = (size_t)behind * dtype_bytes(x->dtype), part = each * (size_t)count;
    for (int64_t b = 0; b < before && part; b++)
        memcpy((char *)tensor_data(&out->tensor) + (size_t)b * part, (const char *)tensor_data(x) + (size_t)(b * x->dims[axis] + from) * each, part);
    return ST_OK;
}

static enum status split_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *split = run_in(r, 1);
    struct value *y = run_out_value(r, 0), part = {0};
    uint32_t axis;
    TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
    int keep = split || node_int(n, "keepdims", 1);
    int64_t size = x->dims[axis], at = 0, pieces = split ? tensor_count(split) : 0, chunk = split && split->rank == 0 ? scalar_int(split, 0) : 1;
    if (chunk < 1)
        return node_error(n, e, "splits into parts of %lld", (long long)chunk);
    if (!y)
        return ST_OK;
    value_clear(y);
    y->kind = VALUE_SEQUENCE;
    y->element = x->dtype;
    enum status st = ST_OK;
    for (int64_t i = 0; st == ST_OK && (split && split->rank ? i < pieces : at < size); i++) {
        int64_t count = split && split->rank ? scalar_int(split, i) : chunk < size - at ? chunk : size - at;
        if (count < 0 || count > size - at) {
            st = node_error(n, e, "its parts do not add up to %lld", (long long)size);
            break;
        }
        st = part_of(r, x, axis, at, count, keep, &part, e);
        if (st == ST_OK)
            st = value_append(run_pool(r), y, &part.tensor, e);
        at += count;
    }
    value_clear(&part);
    if (st == ST_OK && at != size)
        st = node_error(n, e, "its parts do not add up to %lld", (long long)size);
    return st;
}

static enum status concat_shape(struct shaping *s, struct err *e)
{
    TRY(want_sequence(s, 0, e));
    if (!node_attr(s->node, "axis"))
        return node_error(s->node, e, "has no attribute 'axis'");
    if (!s->syms)
        return ST_OK;
    struct type t;
    element_of(s, &s->in[0], &t);
    int new_axis = node_int(s->node, "new_axis", 0) != 0;
    if (t.rank >= 0) {
        uint32_t axis;
        if (t.rank + new_axis > RANK_MAX)
            return node_error(s->node, e, "would have rank %d", t.rank + new_axis);
        TRY(axis_in(s->node, node_int(s->node, "axis", 0), t.rank + new_axis, &axis, e));
        if (new_axis) {
            memmove(t.dims + axis + 1, t.dims + axis, (size_t)(t.rank - (int)axis) * sizeof *t.dims);
            t.rank++;
        }
        t.dims[axis] = dim_fresh(s->syms);
    }
    s->out[0] = t;
    return ST_OK;
}

static enum status concat_run(struct run *r, const struct node *n, struct err *e)
{
    const struct value *x = run_in_value(r, 0);
    if (!x->count)
        return node_error(n, e, "its sequence is empty");
    return run_stack(r, 0, x, node_int(n, "axis", 0), node_int(n, "new_axis", 0) != 0, 0, NULL, e);
}

/* SequenceMap: a body for each item ----------------------------------------------------------------------------------------------------------------- */

static enum status map_check(struct node *n, struct err *e)
{
    uint32_t at;
    TRY(body_check(n, "body", e));
    const struct graph *g = body_of(n, "body", &at);
    if (g->n_in != n->n_own || g->n_out < n->n_out)
        return node_error(n, e, "has %u inputs and %u outputs, its body %u and %u", n->n_own, n->n_out, g->n_in, g->n_out);
    return ST_OK;
}

static enum status map_shape(struct shaping *s, struct err *e)
{
    uint32_t at;
    const struct node *n = s->node;
    struct graph *g = body_of(n, "body", &at);
    TRY(want_sequence(s, 0, e));
    if (!s->syms)
        return ST_OK;
    struct type *in = mem_array(n->n_own + 1, sizeof *in);
    if (!in)
        return err_nomem(e, "types");
    for (uint32_t i = 0; i < n->n_own; i++) {
        if (s->in[i].kind == VALUE_SEQUENCE)
            element_of(s, &s->in[i], &in[i]);
        else
            in[i] = s->in[i];
        in[i].values = NULL;
    }
    enum status st = body_infer(s, g, in, at, e);
    mem_free(in);
    TRY(st);
    for (uint32_t i = 0; i < n->n_out; i++) {
        if (body_out(g, i)->kind != VALUE_TENSOR)
            return node_error(n, e, "its body gives no tensor");
        sequence_of(&s->out[i], body_out(g, i));
    }
    return ST_OK;
}

static enum status map_run(struct run *r, const struct node *n, struct err *e)
{
    uint32_t at;
    const struct graph *g = body_of(n, "body", &at);
    const struct value *x = run_in_value(r, 0);
    struct run *body;
    TRY(body_start(r, g, at, &body, e));
    for (uint32_t k = 0; k < n->n_out; k++) {
        struct value *y = run_out_value(r, k);
        if (!y)
            continue;
        value_clear(y);
        y->kind = VALUE_SEQUENCE;
        y->element = body_out(g, k)->dtype;
    }
    enum status st = ST_OK;
    for (uint32_t i = 0; i < x->count && st == ST_OK; i++) {
        for (uint32_t k = 0; k < n->n_own && st == ST_OK; k++) {
            const struct value *v = run_in_value(r, k);
            if (v->kind == VALUE_SEQUENCE && i >= v->count)
                st = node_error(n, e, "input %u has %u items where the first has %u", k, v->count, x->count);
            else
                st = run_give(body, k, v->kind == VALUE_SEQUENCE ? &v->items[i] : v, e);
        }
        if (st == ST_OK)
            st = run_go(body, e);
        for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++)
            if (run_out_value(r, k))
                st = value_append(run_pool(r), run_out_value(r, k), &run_taken(body, k)->tensor, e);
    }
    run_done(body);
    return st;
}

#define OP(text, first, in_min, in_max, out_max, prefix)                                                                                         \
    {.domain = "", .name = text, .since = first, .until = 99, .min_in = in_min, .max_in = in_max, .min_out = 1, .max_out = out_max,              \
     .flags = OP_VALUES | OP_HOST, .shape = prefix##_shape, .run = prefix##_run}

const struct op_def ops_sequence[] = {
    OP("SequenceEmpty", 11, 0, 0, 1, empty),
    OP("SequenceConstruct", 11, 1, 0xffff, 1, construct),
    OP("SequenceAt", 11, 2, 2, 1, at),
    OP("SequenceLength", 11, 1, 1, 1, length),
    OP("SequenceInsert", 11, 2, 3, 1, insert),
    OP("SequenceErase", 11, 1, 2, 1, erase),
    OP("SplitToSequence", 11, 1, 2, 1, split),
    OP("ConcatFromSequence", 11, 1, 1, 1, concat),
    {.domain = "", .name = "SequenceMap", .since = 17, .until = 99, .min_in = 1, .max_in = 0xffff, .min_out = 1, .max_out = 0xffff,
     .flags = OP_VALUES | OP_NO_FOLD, .check = map_check, .shape = map_shape, .run = map_run},
    {0},
};
