/* Slice: from start to end by steps, along some axes. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

struct slice {
    int known;               /* all that follows is */
    uint32_t count;
    uint32_t axes[RANK_MAX];
    dim start[RANK_MAX], end[RANK_MAX];
    int64_t step[RANK_MAX];
};

/* Lists of starts, ends, axes and steps, from attributes or inputs; axes made positive. */
static enum status list(const struct node *n, struct slice *c, uint32_t rank, const dim *starts, uint32_t n_starts, const dim *ends,
                        uint32_t n_ends, const int64_t *axes, uint32_t n_axes, const int64_t *steps, uint32_t n_steps, struct err *e)
{
    uint32_t seen = 0;
    if (n_starts != n_ends || (axes && n_axes != n_starts) || (steps && n_steps != n_starts))
        return node_error(n, e, "starts, ends, axes and steps must be equally many");
    if (n_starts > rank)
        return node_error(n, e, "%u axes of a tensor of rank %u", n_starts, rank);
    c->known = 1;
    c->count = n_starts;
    for (uint32_t i = 0; i < n_starts; i++) {
        TRY(axis_in(n, axes ? axes[i] : (int64_t)i, (int)rank, &c->axes[i], e));
        if (seen >> c->axes[i] & 1)
            return node_error(n, e, "axis %u is named twice", c->axes[i]);
        seen |= 1u << c->axes[i];
        c->start[i] = starts[i];
        c->end[i] = ends[i];
        c->step[i] = steps ? steps[i] : 1;
        if (c->step[i] == 0)
            return node_error(n, e, "a step is 0");
    }
    return ST_OK;
}

static enum status read_attrs(const struct node *n, uint32_t rank, struct slice *c, struct err *e)
{
    uint32_t a, b, k;
    const int64_t *starts = node_ints(n, "starts", &a), *ends = node_ints(n, "ends", &b), *axes = node_ints(n, "axes", &k);
    if (!starts || !ends)
        return node_error(n, e, "the attributes 'starts' and 'ends' are needed");
    if (a > RANK_MAX || b > RANK_MAX || k > RANK_MAX)
        return node_error(n, e, "too many axes");
    return list(n, c, rank, starts, a, ends, b, axes, k, NULL, 0, e);
}

static enum status read_inputs(const struct shaping *s, uint32_t rank, struct slice *c, struct err *e)
{
    dim starts[RANK_MAX], ends[RANK_MAX];
    int64_t axes[RANK_MAX], steps[RANK_MAX];
    uint32_t a, b, k, t;
    enum arg ga, gb, gk, gt;
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    TRY(arg_type(s, 2, TYPES_INDEX, e));
    TRY(arg_dims(s, 1, RANK_MAX, starts, &a, &ga, e));
    TRY(arg_dims(s, 2, RANK_MAX, ends, &b, &gb, e));
    TRY(arg_ints(s, 3, RANK_MAX, axes, &k, &gk, e));
    TRY(arg_ints(s, 4, RANK_MAX, steps, &t, &gt, e));
    if (ga == ARG_UNKNOWN && gb == ARG_KNOWN && dim_known(s->in[1].rank == 1 ? s->in[1].dims[0] : DIM_UNKNOWN) && s->in[1].dims[0] == b) {
        for (a = 0; a < b; a++)
            starts[a] = DIM_UNKNOWN;
        ga = ARG_KNOWN;
    }
    if (gb == ARG_UNKNOWN && ga == ARG_KNOWN) {
        for (b = 0; b < a; b++)
            ends[b] = DIM_UNKNOWN;
        gb = ARG_KNOWN;
    }
    if (ga != ARG_KNOWN || gb != ARG_KNOWN || gk == ARG_UNKNOWN || gt == ARG_UNKNOWN)
        return ST_OK;
    return list(s->node, c, rank, starts, a, ends, b, gk == ARG_KNOWN ? axes : NULL, k, gt == ARG_KNOWN ? steps : NULL, t, e);
}

static enum status read_slice(const struct shaping *s, uint32_t rank, struct slice *c, struct err *e)
{
    c->known = 0;
    return s->node->opset < 10 ? read_attrs(s->node, rank, c, e) : read_inputs(s, rank, c, e);
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Where it begins and how many elements it has, along an axis of a known size. */
static void bounds(int64_t size, int64_t *start, int64_t end, int64_t step, int64_t *count)
{
    int64_t a = *start < 0 ? *start + size : *start;
    int64_t b = end < 0 ? (end < INT64_MIN + size ? INT64_MIN : end + size) : end;
    if (step > 0) {
        a = clamp(a, 0, size);
        b = clamp(b, 0, size);
        *count = b > a ? (b - a - 1) / step + 1 : 0;
    } else {
        a = clamp(a, -1, size - 1);
        b = clamp(b, -1, size - 1);
        *count = a > b ? (int64_t)(((uint64_t)(a - b) - 1) / (0 - (uint64_t)step)) + 1 : 0;
    }
    *start = a;
}

/* The same with sizes that are not known yet; DIM_UNKNOWN where it cannot be told. */
static dim sliced(struct syms *s, dim size, dim start, dim end, int64_t step)
{
    if (dim_known(size) && dim_known(start) && dim_known(end)) {
        int64_t n, a = start;
        bounds(size, &a, end, step, &n);
        return n;
    }
    if (step < 0 || start == DIM_UNKNOWN || end == DIM_UNKNOWN) {
        if (step == -1 && dim_known(start) && start == -1 && dim_known(end) && end <= -(int64_t)0x7fffffff)
            return size; /* all of it, backwards */
        return DIM_UNKNOWN;
    }
    /* One element is cut from an end often, and then there is one: for 1 and -1 the size is taken to be at least that. */
    dim a = start, b = end;
    if (dim_known(a) && a < 0)
        a = a == -1 ? dim_sub(s, size, 1) : dim_max(s, dim_add(s, size, a), 0);
    else if (a != 0 && a != 1)
        a = dim_min(s, a, size);
    if (dim_known(b) && b >= 0x7fffffff)
        b = size;
    else if (dim_known(b) && b < 0)
        b = b == -1 ? dim_sub(s, size, 1) : dim_max(s, dim_add(s, size, b), 0);
    else if (b != size && b != 1)
        b = dim_min(s, b, size);
    dim n = a == 0 || (a == 1 && b == size) ? dim_sub(s, b, a) : dim_max(s, dim_sub(s, b, a), 0);
    return step == 1 ? n : dim_ceil_div(s, n, step);
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    type_tensor(y, x->dtype, x->rank, x->dims);
    if (x->rank < 0)
        return ST_OK;
    struct slice c;
    TRY(read_slice(s, (uint32_t)x->rank, &c, e));
    if (!c.known) {
        type_unknown(s, y, x->dtype, x->rank);
        return ST_OK;
    }
    for (uint32_t i = 0; i < c.count; i++) {
        dim d = sliced(s->syms, x->dims[c.axes[i]], c.start[i], c.end[i], c.step[i]);
        y->dims[c.axes[i]] = d == DIM_UNKNOWN ? dim_fresh(s->syms) : d;
    }
    uint32_t n;
    const dim *v = s->syms && x->rank == 1 && c.count == 1 ? arg_values(s, 0, &n) : NULL;
    if (v && dim_known(c.start[0]) && dim_known(c.end[0])) {
        int64_t count, at = c.start[0];
        bounds(n, &at, c.end[0], c.step[0], &count);
        dim *w = values_room(s, 0, (uint32_t)count);
        for (int64_t i = 0; w && i < count; i++, at += c.step[0])
            w[i] = v[at];
    }
    return sizes_told(s, e);
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    struct slice c = {0};
    if (n->opset < 10) {
        TRY(read_attrs(n, x->rank, &c, e));
    } else {
        int64_t v[4][RANK_MAX] = {{0}};
        uint32_t count[4] = {0};
        for (uint32_t i = 1; i <= 4; i++) {
            const struct tensor *t = node_has(n, i) ? run_in(r, i) : NULL;
            count[i - 1] = t ? (uint32_t)tensor_count(t) : 0;
            for (uint32_t k = 0; t && k < count[i - 1] && k < RANK_MAX; k++)
                v[i - 1][k] = tensor_i64(t, k);
        }
        TRY(list(n, &c, x->rank, v[0], count[0], v[1], count[1], node_has(n, 3) ? v[2] : NULL, count[2], node_has(n, 4) ? v[3] : NULL, count[3],
                 e));
    }
    int64_t from[RANK_MAX], to[RANK_MAX], at = 0;
    row_major(x->rank, x->dims, from);
    row_major(y->rank, y->dims, to);
    for (uint32_t i = 0; i < c.count; i++) {
        int64_t count, start = c.start[i];
        uint32_t a = c.axes[i];
        bounds(x->dims[a], &start, c.end[i], c.step[i], &count);
        at += count ? start * from[a] : 0;
        from[a] *= count > 1 ? c.step[i] : 1;
    }
    if (tensor_count(y) == 0)
        return ST_OK;
    size_t z = dtype_bytes(x->dtype);
    copy_steps(z, y->rank, y->dims, (const char *)tensor_data(x) + at * (int64_t)z, from, tensor_data(y), to);
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    struct slice c;
    if (in != 0 || s->in[0].rank < 0 || read_slice(s, (uint32_t)s->in[0].rank, &c, NULL) != ST_OK || !c.known)
        return -1;
    for (uint32_t i = 0; i < c.count; i++) {
        int whole = c.step[i] == 1 && c.start[i] == 0 && (c.end[i] == s->in[0].dims[axis] || (dim_known(c.end[i]) && c.end[i] >= 0x7fffffff));
        if (c.axes[i] == axis && !whole)
            return -1;
    }
    return (int)axis;
}

const struct op_def ops_slice[] = {
    {.domain = "", .name = "Slice", .since = 1, .until = 9, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = shape, .run = run,
     .follow = follow},
    {.domain = "", .name = "Slice", .since = 10, .until = OPSET_ANY, .min_in = 3, .max_in = 5, .min_out = 1, .max_out = 1, .shape = shape,
     .run = run, .follow = follow},
    {0},
};
