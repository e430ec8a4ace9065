/* Outputs whose size only the elements tell: NonZero, Compress, Unique. */
#include <stdlib.h>
#include <string.h>

#include "workers/engine/ops/args.h"

static int64_t product(const int64_t *dims, uint32_t first, uint32_t last)
{
    int64_t p = 1;
    for (uint32_t i = first; i < last; i++)
        p *= dims[i];
    return p;
}

/* NonZero ----------------------------------------------------------------------------------------------------------------------------- */

static enum status nonzero_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    type_unknown(s, &s->out[0], DT_I64, 2);
    if (s->in[0].rank >= 0)
        s->out[0].dims[0] = s->in[0].rank ? s->in[0].rank : 1;
    return ST_OK;
}

static int is_zero(const struct tensor *x, int64_t i)
{
    if (x->dtype == DT_STR)
        return ((const struct str *)tensor_data(x))[i].len == 0;
    return dtype_is_float(x->dtype) ? tensor_f64(x, i) == 0 : tensor_i64(x, i) == 0;
}

static enum status nonzero_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    const struct tensor *x = run_in(r, 0);
    int64_t count = tensor_count(x), found = 0;
    for (int64_t i = 0; i < count; i++)
        found += !is_zero(x, i);
    uint32_t rank = x->rank ? x->rank : 1;
    TRY(run_make(r, 0, DT_I64, 2, (int64_t[]){rank, found}, e));
    if (!run_out(r, 0))
        return ST_OK;
    int64_t *y = tensor_data(run_out(r, 0));
    int64_t k = 0;
    for (int64_t i = 0; i < count; i++) {
        if (is_zero(x, i))
            continue;
        int64_t rest = i;
        for (uint32_t a = rank; a-- > 0;) {
            int64_t d = x->rank ? x->dims[a] : 1;
            y[a * found + k] = rest % d;
            rest /= d;
        }
        k++;
    }
    return ST_OK;
}

/* Compress ---------------------------------------------------------------------------------------------------------------------------- */

static enum status compress_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPE(BOOL), e));
    const struct type *x = &s->in[0];
    if (s->in[1].rank >= 0 && s->in[1].rank != 1)
        return node_error(s->node, e, "the condition has %d axes instead of one", s->in[1].rank);
    if (!node_attr(s->node, "axis")) {
        type_unknown(s, &s->out[0], x->dtype, 1);
        return ST_OK;
    }
    uint32_t axis;
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank < 0)
        return ST_OK;
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    s->out[0].dims[axis] = dim_fresh(s->syms);
    return ST_OK;
}

static enum status compress_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *c = run_in(r, 1);
    const uint8_t *keep = tensor_data(c);
    int flat = !node_attr(n, "axis");
    uint32_t axis = 0, rank = flat ? 1 : x->rank;
    int64_t dims[RANK_MAX] = {tensor_count(x)};
    if (!flat) {
        TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
        memcpy(dims, x->dims, rank * sizeof *dims);
    }
    int64_t size = dims[axis], length = tensor_count(c) < size ? tensor_count(c) : size, kept = 0;
    for (int64_t i = 0; i < length; i++)
        kept += keep[i] != 0;
    int64_t outer = product(dims, 0, axis), inner = product(dims, axis + 1, rank);
    dims[axis] = kept;
    TRY(run_make(r, 0, x->dtype, rank, dims, e));
    if (!run_out(r, 0))
        return ST_OK;
    size_t row = (size_t)inner * dtype_bytes(x->dtype);
    char *to = tensor_data(run_out(r, 0));
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < length; i++)
            if (keep[i]) {
                memcpy(to, (const char *)tensor_data(x) + (size_t)(o * size + i) * row, row);
                to += row;
            }
    return ST_OK;
}

static int compress_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    if (in != 0 || !node_attr(s->node, "axis") || s->in[0].rank < 0 ||
        axis_in(s->node, node_int(s->node, "axis", 0), s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return axis != a ? (int)axis : -1;
}

/* Unique ------------------------------------------------------------------------------------------------------------------------------ */

static enum status unique_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    for (uint32_t i = 1; i < s->n_out; i++)
        type_unknown(s, &s->out[i], DT_I64, 1);
    if (!node_attr(s->node, "axis")) {
        type_unknown(s, &s->out[0], x->dtype, 1);
        return ST_OK;
    }
    uint32_t axis;
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank < 0)
        return ST_OK;
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    s->out[0].dims[axis] = dim_fresh(s->syms);
    return ST_OK;
}

/* Slices along an axis, compared element by element. */
struct slices {
    const struct tensor *x;
    int64_t outer, size, inner;
};

static int compare_elements(const struct tensor *x, int64_t i, int64_t j)
{
    if (x->dtype == DT_STR) {
        const struct str *s = tensor_data(x);
        size_t n = s[i].len < s[j].len ? s[i].len : s[j].len;
        int c = n ? memcmp(s[i].data, s[j].data, n) : 0;
        return c ? c : (s[i].len > s[j].len) - (s[i].len < s[j].len);
    }
    if (dtype_is_float(x->dtype)) {
        double a = tensor_f64(x, i), b = tensor_f64(x, j);
        if (a != a || b != b)
            return (a != a) - (b != b); /* NaN behind all else */
        return (a > b) - (a < b);
    }
    if (x->dtype == DT_U64) {
        uint64_t a = (uint64_t)tensor_i64(x, i), b = (uint64_t)tensor_i64(x, j);
        return (a > b) - (a < b);
    }
    int64_t a = tensor_i64(x, i), b = tensor_i64(x, j);
    return (a > b) - (a < b);
}

static int compare_slices(const struct slices *s, int64_t i, int64_t j)
{
    for (int64_t o = 0; o < s->outer; o++)
        for (int64_t k = 0; k < s->inner; k++) {
            int c = compare_elements(s->x, (o * s->size + i) * s->inner + k, (o * s->size + j) * s->inner + k);
            if (c)
                return c;
        }
    return 0;
}

static int compare_at(const void *a, const void *b, void *ctx)
{
    int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    int c = compare_slices(ctx, i, j);
    return c ? c : (i > j) - (i < j);
}

static int compare_first(const void *a, const void *b)
{
    int64_t i = ((const int64_t *)a)[0], j = ((const int64_t *)b)[0];
    return (i > j) - (i < j);
}

static enum status unique_run(struct run *r, const struct node *n, struct err *e)
{
    struct slices s = {.x = run_in(r, 0)};
    int flat = !node_attr(n, "axis"), sorted = node_int(n, "sorted", 1) != 0;
    uint32_t axis = 0, rank = flat ? 1 : s.x->rank;
    int64_t dims[RANK_MAX] = {tensor_count(s.x)};
    if (!flat) {
        TRY(axis_in(n, node_int(n, "axis", 0), (int)s.x->rank, &axis, e));
        memcpy(dims, s.x->dims, rank * sizeof *dims);
    }
    s.outer = product(dims, 0, axis);
    s.size = dims[axis];
    s.inner = product(dims, axis + 1, rank);
    size_t count = (size_t)s.size;
    void *p;
    TRY(run_scratch(r, count * 5 * sizeof(int64_t), &p, e));
    /* order: of all slices; group: first slice, count and old number of each group; of: group of each slice */
    int64_t *order = p, (*group)[3] = (int64_t(*)[3])(order + count), *of = order + 4 * count, groups = 0;
    for (int64_t i = 0; i < s.size; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, compare_at, &s);
    for (int64_t i = 0; i < s.size; i++) {
        if (i == 0 || compare_slices(&s, order[i - 1], order[i]) != 0) {
            group[groups][0] = order[i];
            group[groups][1] = 0;
            group[groups][2] = groups;
            groups++;
        }
        group[groups - 1][1]++;
        of[order[i]] = groups - 1;
    }
    if (!sorted) { /* in order of first appearance */
        qsort(group, (size_t)groups, sizeof *group, compare_first);
        for (int64_t g = 0; g < groups; g++)
            order[group[g][2]] = g;
        for (int64_t i = 0; i < s.size; i++)
            of[i] = order[of[i]];
    }
    int64_t shown[RANK_MAX];
    memcpy(shown, dims, sizeof shown);
    shown[axis] = groups;
    TRY(run_make(r, 0, s.x->dtype, rank, shown, e));
    TRY(run_make(r, 1, DT_I64, 1, &groups, e));
    TRY(run_make(r, 2, DT_I64, 1, &s.size, e));
    TRY(run_make(r, 3, DT_I64, 1, &groups, e));
    size_t row = (size_t)s.inner * dtype_bytes(s.x->dtype);
    char *y = run_out(r, 0) ? tensor_data(run_out(r, 0)) : NULL;
    for (int64_t o = 0; y && o < s.outer; o++)
        for (int64_t g = 0; g < groups; g++, y += row)
            memcpy(y, (const char *)tensor_data(s.x) + (size_t)(o * s.size + group[g][0]) * row, row);
    for (int64_t g = 0; g < groups; g++) {
        if (run_out(r, 1))
            ((int64_t *)tensor_data(run_out(r, 1)))[g] = group[g][0];
        if (run_out(r, 3))
            ((int64_t *)tensor_data(run_out(r, 3)))[g] = group[g][1];
    }
    if (run_out(r, 2) && count)
        memcpy(tensor_data(run_out(r, 2)), of, count * sizeof *of);
    return ST_OK;
}

const struct op_def ops_nonzero[] = {
    {.domain = "", .name = "NonZero", .since = 9, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .flags = OP_MAKES, .shape = nonzero_shape, .run = nonzero_run},
    {.domain = "", .name = "Compress", .since = 9, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .flags = OP_MAKES, .shape = compress_shape, .run = compress_run, .follow = compress_follow},
    {.domain = "", .name = "Unique", .since = 11, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 4,
     .flags = OP_MAKES, .shape = unique_shape, .run = unique_run},
    {0},
};
