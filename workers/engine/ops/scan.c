/* Scan: a body over the slices of tensors, with carried state. Since opset 9 axes can be chosen; in opset 8 every tensor has a batch in front, each
   element of which is scanned by itself, as far as sequence_lens says. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/bodies.h"

enum { MERGES = 16 };

struct scan {
    uint32_t n_state, n_in, n_out; /* carried; scanned; gathered */
    uint32_t first;                /* input of the node that is the first state */
    int batched;                   /* opset 8 */
};

static struct scan scan_of(const struct node *n, const struct graph *g)
{
    struct scan s = {.batched = n->opset < 9};
    int64_t scanned = node_int(n, "num_scan_inputs", 0);
    s.first = s.batched ? 1 : 0;
    s.n_in = scanned < 0 || scanned > (int64_t)n->n_own - s.first ? 0 : (uint32_t)scanned;
    s.n_state = n->n_own - s.first - s.n_in;
    s.n_out = g->n_out < s.n_state ? 0 : g->n_out - s.n_state;
    return s;
}

static int64_t listed(const struct node *n, const char *name, uint32_t i)
{
    uint32_t count;
    const int64_t *v = node_ints(n, name, &count);
    return i < count ? v[i] : 0;
}

static enum status check_list(const struct node *n, const char *name, uint32_t want, struct err *e)
{
    uint32_t count;
    (void)node_ints(n, name, &count);
    return count && count != want ? node_error(n, e, "attribute '%s' has %u elements where %u are needed", name, count, want) : ST_OK;
}

static enum status check(struct node *n, struct err *e)
{
    uint32_t at;
    TRY(body_check(n, "body", e));
    const struct graph *g = body_of(n, "body", &at);
    struct scan s = scan_of(n, g);
    if (!s.n_in || g->n_in != s.n_state + s.n_in || g->n_out < s.n_state || n->n_out > g->n_out)
        return node_error(n, e, "scans %u inputs with %u states, but its body has %u inputs and %u outputs", s.n_in, s.n_state, g->n_in, g->n_out);
    for (uint32_t i = s.first; i < n->n_own; i++)
        if (n->in[i] < 0)
            return node_error(n, e, "input %u is left out, but needed", i);
    if (!s.batched) {
        TRY(check_list(n, "scan_input_axes", s.n_in, e));
        TRY(check_list(n, "scan_input_directions", s.n_in, e));
        TRY(check_list(n, "scan_output_axes", s.n_out, e));
        TRY(check_list(n, "scan_output_directions", s.n_out, e));
    } else {
        TRY(check_list(n, "directions", s.n_in, e));
    }
    return ST_OK;
}

static void drop_axis(struct type *t, uint32_t axis)
{
    memmove(t->dims + axis, t->dims + axis + 1, (size_t)(t->rank - 1 - (int)axis) * sizeof *t->dims);
    t->rank--;
}

static void add_axis(struct type *t, uint32_t axis, dim d)
{
    memmove(t->dims + axis + 1, t->dims + axis, (size_t)(t->rank - (int)axis) * sizeof *t->dims);
    t->dims[axis] = d;
    t->rank++;
}

/* The body's inputs, from the node's. */
static enum status first_types(struct shaping *s, const struct scan *c, struct type *in, dim *batch, dim *steps, struct err *e)
{
    const struct node *n = s->node;
    for (uint32_t i = 0; i < c->n_state + c->n_in; i++) {
        struct type *t = &in[i];
        uint32_t axis = 0;
        *t = s->in[c->first + i];
        t->values = NULL;
        if (i >= c->n_state && t->kind != VALUE_TENSOR)
            return node_error(n, e, "input %u is no tensor", c->first + i);
        if (t->rank < 0)
            continue;
        if (c->batched) {
            if (t->rank < 1)
                return node_error(n, e, "input %u has no batch", c->first + i);
            *batch = t->dims[0];
            drop_axis(t, 0);
        }
        if (i < c->n_state)
            continue;
        TRY(axis_in(n, c->batched ? 0 : listed(n, "scan_input_axes", i - c->n_state), t->rank, &axis, e));
        if (*steps == DIM_UNKNOWN || dim_known(t->dims[axis]))
            *steps = t->dims[axis];
        drop_axis(t, axis);
    }
    return ST_OK;
}

static enum status shape(struct shaping *s, struct err *e)
{
    const struct node *n = s->node;
    uint32_t at;
    struct graph *g = body_of(n, "body", &at);
    if (!s->syms)
        return ST_OK;
    struct scan c = scan_of(n, g);
    struct type *in = mem_array(c.n_state + c.n_in, sizeof *in);
    uint32_t *free = mem_array(c.n_state + 1, sizeof *free);
    dim batch = DIM_UNKNOWN, steps = DIM_UNKNOWN;
    enum status st = in && free ? first_types(s, &c, in, &batch, &steps, e) : err_nomem(e, "types");
    int changed = 1;
    for (int round = 0; changed && st == ST_OK; round++) {
        changed = 0;
        st = round < MERGES ? body_infer(s, g, in, at, e) : node_error(n, e, "the types that it carries do not come to rest");
        for (uint32_t i = 0; i < c.n_state && st == ST_OK; i++) {
            int m = type_merge(s, &in[i], body_out(g, i), &free[i]);
            changed |= m;
            if (m < 0)
                st = node_error(n, e, "state %u changes its type", i);
        }
    }
    for (uint32_t i = 0; i < n->n_out && st == ST_OK; i++) {
        struct type t = i < c.n_state ? in[i] : *body_out(g, i);
        t.values = NULL;
        if (t.rank >= RANK_MAX - 1) {
            st = node_error(n, e, "output %u would have rank %d; at most %d is supported", i, t.rank + 2, RANK_MAX);
            break;
        }
        if (t.rank >= 0 && i >= c.n_state) {
            uint32_t axis = 0;
            st = c.batched ? ST_OK : axis_in(n, listed(n, "scan_output_axes", i - c.n_state), t.rank + 1, &axis, e);
            if (st == ST_OK)
                add_axis(&t, axis, steps == DIM_UNKNOWN ? dim_fresh(s->syms) : steps);
        }
        if (t.rank >= 0 && c.batched)
            add_axis(&t, 0, batch == DIM_UNKNOWN ? dim_fresh(s->syms) : batch);
        s->out[i] = t;
    }
    mem_free(in);
    mem_free(free);
    return st;
}

/* Slice `at` of t along an axis, as a tensor without it. */
static enum status slice(struct run *r, const struct tensor *t, uint32_t axis, int64_t at, struct value *out, struct err *e)
{
    int64_t dims[RANK_MAX], before = 1, behind = 1;
    uint32_t rank = 0;
    for (uint32_t k = 0; k < t->rank; k++) {
        if (k != axis)
            dims[rank++] = t->dims[k];
        (k < axis ? (void)(before *= t->dims[k]) : k > axis ? (void)(behind *= t->dims[k]) : (void)0);
    }
    TRY(value_make(r, out, t->dtype, rank, dims, e));
    size_t part = (size_t)behind * dtype_bytes(t->dtype);
    for (int64_t b = 0; b < before && part; b++)
        memcpy((char *)tensor_data(&out->tensor) + (size_t)b * part, (const char *)tensor_data(t) + (size_t)(b * t->dims[axis] + at) * part, part);
    return ST_OK;
}

struct going {
    struct value *state;    /* n_state */
    struct value *gathered; /* n_out sequences */
    struct value part;
};

static enum status go(struct run *r, struct run *body, const struct scan *c, const struct tensor *in, const uint32_t *axis, int64_t steps, struct going *v,
                      struct err *e)
{
    const struct node *n = run_node(r);
    for (int64_t i = 0; i < steps; i++) {
        for (uint32_t k = 0; k < c->n_state; k++) {
            TRY(run_give(body, k, &v->state[k], e));
            value_clear(&v->state[k]);
        }
        for (uint32_t k = 0; k < c->n_in; k++) {
            int backwards = listed(n, c->batched ? "directions" : "scan_input_directions", k) != 0;
            TRY(slice(r, &in[k], axis[k], backwards ? steps - 1 - i : i, &v->part, e));
            TRY(run_give(body, c->n_state + k, &v->part, e));
        }
        TRY(run_go(body, e));
        for (uint32_t k = 0; k < c->n_state; k++)
            TRY(value_share(&v->state[k], run_taken(body, k), e));
        for (uint32_t k = 0; k < c->n_out; k++) {
            const struct value *y = run_taken(body, c->n_state + k);
            if (y->kind != VALUE_TENSOR)
                return node_error(n, e, "its body gives no tensor to gather");
            TRY(value_append(run_pool(r), &v->gathered[k], &y->tensor, e));
        }
    }
    return ST_OK;
}

static enum status run_plain(struct run *r, const struct node *n, const struct graph *g, struct run *body, const struct scan *c, struct tensor *in,
                             uint32_t *axis, struct going *v, struct err *e)
{
    int64_t steps = -1;
    for (uint32_t k = 0; k < c->n_in; k++) {
        in[k] = *run_in(r, c->n_state + k);
        TRY(axis_in(n, listed(n, "scan_input_axes", k), (int)in[k].rank, &axis[k], e));
        if (steps >= 0 && in[k].dims[axis[k]] != steps)
            return node_error(n, e, "its inputs have %lld and %lld slices", (long long)steps, (long long)in[k].dims[axis[k]]);
        steps = in[k].dims[axis[k]];
    }
    for (uint32_t k = 0; k < c->n_state; k++)
        TRY(value_share(&v->state[k], run_in_value(r, k), e));
    TRY(go(r, body, c, in, axis, steps, v, e));
    for (uint32_t k = 0; k < n->n_out; k++) {
        if (!run_out_value(r, k))
            continue;
        if (k < c->n_state) {
            TRY(value_share(run_out_value(r, k), &v->state[k], e));
            continue;
        }
        uint32_t i = k - c->n_state;
        struct tensor like;
        body_like(g, k, &like);
        TRY(run_stack(r, k, &v->gathered[i], listed(n, "scan_output_axes", i), 1, listed(n, "scan_output_directions", i) != 0, &like, e));
    }
    return ST_OK;
}

/* Element b of a batch, as a tensor of its own. */
static void element(const struct tensor *t, int64_t b, struct tensor *out)
{
    *out = *t;
    out->rank--;
    memmove(out->dims, t->dims + 1, out->rank * sizeof *out->dims);
    out->offset += (size_t)(b * tensor_count(out)) * dtype_bytes(t->dtype);
}

/* What one element of the batch gave goes to its place; behind a shorter sequence lie zeros. */
static enum status put(struct run *r, uint32_t k, const struct value *items, int64_t b, int64_t batch, int64_t steps, const struct tensor *like, struct err *e)
{
    const struct tensor *first = items->count ? &items->items[0].tensor : like;
    int64_t dims[RANK_MAX] = {batch};
    uint32_t rank = first->rank + (steps >= 0 ? 2 : 1);
    if (rank > RANK_MAX)
        return node_error(run_node(r), e, "output %u would have rank %u", k, rank);
    if (steps >= 0)
        dims[1] = steps;
    memcpy(dims + (steps >= 0 ? 2 : 1), first->dims, first->rank * sizeof *dims);
    size_t part = (size_t)tensor_count(first) * dtype_bytes(first->dtype);
    if (b == 0) {
        TRY(run_make(r, k, first->dtype, rank, dims, e));
        memset(tensor_data(run_out(r, k)), 0, part * (size_t)(batch * (steps >= 0 ? steps : 1)));
    }
    struct tensor *y = run_out(r, k);
    int same = y->rank == rank && memcmp(y->dims, dims, rank * sizeof *dims) == 0;
    char *to = (char *)tensor_data(y) + (size_t)(b * (steps >= 0 ? steps : 1)) * part;
    for (uint32_t i = 0; i < items->count && same; i++) {
        same = (size_t)tensor_count(&items->items[i].tensor) * dtype_bytes(first->dtype) == part;
        if (same && part)
            memcpy(to + i * part, tensor_data(&items->items[i].tensor), part);
    }
    return same ? ST_OK : node_error(run_node(r), e, "output %u has other sizes for another record", k);
}

static enum status run_batched(struct run *r, const struct node *n, const struct graph *g, struct run *body, const struct scan *c, struct tensor *in,
                               uint32_t *axis, struct going *v, struct err *e)
{
    const struct tensor *lens = run_in(r, 0), *first = run_in(r, 1 + c->n_state);
    int64_t batch = first->rank >= 2 ? first->dims[0] : 0, most = first->rank >= 2 ? first->dims[1] : 0;
    for (uint32_t i = 1; i < n->n_own; i++) {
        const struct tensor *t = run_in(r, i);
        if (!t || t->rank < 1 || t->dims[0] != batch || (i > c->n_state && (t->rank < 2 || t->dims[1] != most)))
            return node_error(n, e, "input %u does not have the batch and the length of the others", i);
    }
    if (lens && tensor_count(lens) != batch)
        return node_error(n, e, "has %lld lengths for a batch of %lld", (long long)tensor_count(lens), (long long)batch);
    for (int64_t b = 0; b < batch; b++) {
        int64_t steps = lens ? scalar_int(lens, b) : most;
        if (steps < 0 || steps > most)
            return node_error(n, e, "length %lld is outside 0..%lld", (long long)steps, (long long)most);
        for (uint32_t k = 0; k < c->n_state; k++) {
            struct value one = {.kind = VALUE_TENSOR};
            element(run_in(r, 1 + k), b, &one.tensor);
            TRY(value_share(&v->state[k], &one, e));
        }
        for (uint32_t k = 0; k < c->n_in; k++) {
            element(run_in(r, 1 + c->n_state + k), b, &in[k]);
            axis[k] = 0;
        }
        for (uint32_t k = 0; k < c->n_out; k++)
            value_clear(&v->gathered[k]), v->gathered[k].kind = VALUE_SEQUENCE;
        TRY(go(r, body, c, in, axis, steps, v, e));
        for (uint32_t k = 0; k < n->n_out; k++) {
            struct tensor like;
            body_like(g, k, &like);
            if (!run_out_value(r, k))
                continue;
            if (k >= c->n_state) {
                TRY(put(r, k, &v->gathered[k - c->n_state], b, batch, most, &like, e));
            } else {
                struct value one = {.kind = VALUE_SEQUENCE, .items = &v->state[k], .count = 1};
                TRY(put(r, k, &one, b, batch, -1, &like, e));
            }
        }
    }
    return batch ? ST_OK : node_error(n, e, "has an empty batch");
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    uint32_t at;
    const struct graph *g = body_of(n, "body", &at);
    struct scan c = scan_of(n, g);
    struct run *body = NULL;
    uint32_t values = c.n_state + c.n_out + 1;
    void *memory, *tensors, *axes;
    TRY(run_scratch(r, values * sizeof(struct value), &memory, e));
    TRY(run_scratch(r, c.n_in * sizeof(struct tensor), &tensors, e));
    TRY(run_scratch(r, c.n_in * sizeof(uint32_t), &axes, e));
    memset(memory, 0, values * sizeof(struct value));
    struct going v = {.state = memory, .gathered = (struct value *)memory + c.n_state};
    for (uint32_t k = 0; k < c.n_out; k++)
        v.gathered[k].kind = VALUE_SEQUENCE;
    enum status st = body_start(r, g, at, &body, e);
    if (st == ST_OK)
        st = (c.batched ? run_batched : run_plain)(r, n, g, body, &c, tensors, axes, &v, e);
    if (body)
        run_done(body);
    value_release(&v.part);
    for (uint32_t k = 0; k < c.n_state + c.n_out; k++)
        value_release((struct value *)memory + k);
    return st;
}

const struct op_def ops_scan[] = {
    {.domain = "", .name = "Scan", .since = 8, .until = 99, .min_in = 1, .max_in = 0xffff, .min_out = 1, .max_out = 0xffff,
     .flags = OP_VALUES | OP_NO_FOLD, .check = check, .shape = shape, .run = run},
    {0},
};
