/* Concat and Split: runs of elements that lie together. */
#include <string.h>

#include "workers/engine/ops/args.h"

/* Concat ---------------------------------------------------------------------------------------------------------------------------- */

static int64_t concat_axis(const struct node *n)
{
    return node_int(n, "axis", n->opset < 4 ? 1 : 0);
}

static void concat_values(struct shaping *s)
{
    uint32_t n[64], total = 0;
    const dim *v[64];
    if (!s->syms || s->n_in > 64 || dtype_is_float(s->in[0].dtype) || s->in[0].dtype == DT_STR)
        return;
    int some = 0;
    for (uint32_t i = 0; i < s->n_in; i++) {
        if (s->in[i].rank != 1 || !dim_known(s->in[i].dims[0]) || s->in[i].dims[0] > VALUES_MAX)
            return;
        v[i] = arg_values(s, i, &n[i]);
        n[i] = (uint32_t)s->in[i].dims[0];
        some |= v[i] != NULL;
        total += n[i];
        if (total > VALUES_MAX)
            return;
    }
    dim *to = some ? values_room(s, 0, total) : NULL;
    for (uint32_t i = 0; to && i < s->n_in; i++)
        for (uint32_t k = 0; k < n[i]; k++)
            *to++ = v[i] ? v[i][k] : DIM_UNKNOWN;
}

static enum status concat_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    struct type t = s->in[0];
    t.values = NULL;
    uint32_t axis = 0;
    int known = 1;
    for (uint32_t i = 0; i < s->n_in; i++) {
        TRY(arg_same(s, i, e));
        const struct type *x = &s->in[i];
        if (x->rank < 0) {
            known = 0;
            continue;
        }
        TRY(axis_in(s->node, concat_axis(s->node), x->rank, &axis, e));
        if (i == 0 || t.rank < 0) {
            t = *x;
            continue;
        }
        if (x->rank != t.rank)
            return node_error(s->node, e, "input %u has %d axes, others %d", i, x->rank, t.rank);
        for (int k = 0; k < t.rank; k++) {
            if (k == (int)axis)
                t.dims[k] = dim_add(s->syms, t.dims[k], x->dims[k]);
            else if (dim_known(t.dims[k]) && dim_known(x->dims[k]) && t.dims[k] != x->dims[k])
                return node_error(s->node, e, "input %u has size %lld along axis %d, others %lld", i, (long long)x->dims[k], k,
                                  (long long)t.dims[k]);
            else if (!dim_known(t.dims[k]))
                t.dims[k] = x->dims[k];
        }
    }
    if (t.rank >= 0 && (!known || t.dims[axis] == DIM_UNKNOWN))
        t.dims[axis] = dim_fresh(s->syms);
    type_tensor(&s->out[0], s->in[0].dtype, t.rank, t.dims);
    concat_values(s);
    return sizes_told(s, e);
}

static int64_t product(const int64_t *dims, uint32_t first, uint32_t last)
{
    int64_t p = 1;
    for (uint32_t i = first; i < last; i++)
        p *= dims[i];
    return p;
}

static enum status concat_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y)
        return ST_OK;
    TRY(axis_in(n, concat_axis(n), (int)y->rank, &axis, e));
    size_t z = dtype_bytes(y->dtype), row = (size_t)product(y->dims, axis, y->rank) * z, at = 0;
    int64_t rows = product(y->dims, 0, axis);
    for (uint32_t i = 0; i < n->n_in; i++) {
        const struct tensor *x = run_in(r, i);
        size_t part = (size_t)product(x->dims, axis, x->rank) * z;
        const char *from = tensor_data(x);
        char *to = (char *)tensor_data(y) + at;
        for (int64_t k = 0; k < rows && part; k++)
            memcpy(to + (size_t)k * row, from + (size_t)k * part, part);
        at += part;
    }
    return ST_OK;
}

static int concat_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    if (s->in[in].rank < 0 || axis_in(s->node, concat_axis(s->node), s->in[in].rank, &a, NULL) != ST_OK)
        return -1;
    return a == axis ? -1 : (int)axis;
}

/* Split ----------------------------------------------------------------------------------------------------------------------------- */

/* Sizes of the parts of an axis; each DIM_UNKNOWN where they cannot be told. */
static enum status parts(const struct shaping *s, dim size, dim *out, struct err *e)
{
    const struct node *n = s->node;
    uint32_t count = 0, c = s->n_out;
    enum arg got = ARG_NONE;
    int64_t given[VALUES_MAX];
    if (n->opset >= 13) {
        if (arg_there(s, 1)) {
            dim v[VALUES_MAX];
            TRY(arg_dims(s, 1, VALUES_MAX, v, &count, &got, e));
            memcpy(given, v, count * sizeof *v);
        }
    } else {
        const int64_t *a = node_ints(n, "split", &count);
        if (a && count > VALUES_MAX)
            return node_error(n, e, "%u parts, at most %d are supported", count, VALUES_MAX);
        got = a ? ARG_KNOWN : ARG_NONE;
        for (uint32_t i = 0; i < count; i++)
            given[i] = a[i];
    }
    if (got == ARG_KNOWN) {
        dim sum = 0;
        if (count != c)
            return node_error(n, e, "%u sizes for %u outputs", count, c);
        for (uint32_t i = 0; i < c; i++) {
            out[i] = given[i];
            if (dim_known(out[i]) && out[i] < 0)
                return node_error(n, e, "part %u has size %lld", i, (long long)out[i]);
            sum = dim_add(s->syms, sum, out[i]);
        }
        if (dim_known(sum) && dim_known(size) && sum != size)
            return node_error(n, e, "the parts have %lld elements together, the axis has %lld", (long long)sum, (long long)size);
        return ST_OK;
    }
    for (uint32_t i = 0; i < c; i++)
        out[i] = DIM_UNKNOWN;
    if (got == ARG_UNKNOWN)
        return ST_OK;
    int64_t want = node_int(n, "num_outputs", c);
    if (want != c)
        return node_error(n, e, "num_outputs is %lld, but the node has %u outputs", (long long)want, c);
    if (dim_known(size) && n->opset < 18 && size % c != 0)
        return node_error(n, e, "an axis of size %lld cannot be split into %u equal parts", (long long)size, c);
    dim each = dim_ceil_div(s->syms, size, c);
    dim left = size;
    for (uint32_t i = 0; i < c; i++) {
        if (dim_known(size)) {
            out[i] = left < each ? left : each;
            left -= out[i];
        } else if (i + 1 < c || n->opset < 18) {
            out[i] = each;
        } else {
            out[i] = dim_sub(s->syms, size, dim_mul(s->syms, each, c - 1));
        }
    }
    return ST_OK;
}

static enum status split_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    dim sizes[VALUES_MAX];
    uint32_t axis;
    if (s->n_out > VALUES_MAX)
        return node_error(s->node, e, "%u parts, at most %d are supported", s->n_out, VALUES_MAX);
    for (uint32_t i = 0; i < s->n_out; i++)
        type_tensor(&s->out[i], x->dtype, x->rank, x->dims);
    if (x->rank < 0)
        return ST_OK;
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    TRY(parts(s, x->dims[axis], sizes, e));
    uint32_t n = 0, at = 0;
    const dim *v = s->syms && x->rank == 1 ? arg_values(s, 0, &n) : NULL;
    for (uint32_t i = 0; i < s->n_out; i++) {
        s->out[i].dims[axis] = sizes[i] == DIM_UNKNOWN ? dim_fresh(s->syms) : sizes[i];
        if (!v || !dim_known(sizes[i]) || at + sizes[i] > n)
            continue;
        dim *w = values_room(s, i, (uint32_t)sizes[i]);
        for (uint32_t k = 0; w && k < (uint32_t)sizes[i]; k++)
            w[k] = v[at + k];
        at += (uint32_t)sizes[i];
    }
    return ST_OK;
}

static enum status split_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    uint32_t axis;
    TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
    /* an output that nobody wants still has its place: it begins where the one before it ends */
    int64_t inner = product(x->dims, axis + 1, x->rank), rows = product(x->dims, 0, axis);
    size_t z = dtype_bytes(x->dtype), row = (size_t)(x->dims[axis] * inner) * z, at = 0;
    int64_t equal = (x->dims[axis] + n->n_out - 1) / n->n_out, left = x->dims[axis];
    uint32_t count = 0;
    const int64_t *attr = n->opset < 13 ? node_ints(n, "split", &count) : NULL;
    const struct tensor *in = n->opset >= 13 && node_has(n, 1) ? run_in(r, 1) : NULL;
    for (uint32_t i = 0; i < n->n_out; i++) {
        int64_t size = in ? tensor_i64(in, i) : attr ? attr[i] : left < equal ? left : equal;
        left -= size;
        size_t part = (size_t)(size * inner) * z;
        struct tensor *y = run_out(r, i);
        for (int64_t k = 0; y && part && k < rows; k++)
            memcpy((char *)tensor_data(y) + (size_t)k * part, (const char *)tensor_data(x) + at + (size_t)k * row, part);
        at += part;
    }
    return ST_OK;
}

static int split_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    if (in != 0 || s->in[0].rank < 0 || axis_in(s->node, node_int(s->node, "axis", 0), s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return a == axis ? -1 : (int)axis;
}

const struct op_def ops_concat[] = {
    {.domain = "", .name = "Concat", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 0xffff, .min_out = 1, .max_out = 1,
     .shape = concat_shape, .run = concat_run, .follow = concat_follow},
    {.domain = "", .name = "Split", .since = 2, .until = 12, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 0xffff, .shape = split_shape,
     .run = split_run, .follow = split_follow},
    {.domain = "", .name = "Split", .since = 13, .until = OPSET_ANY, .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 0xffff,
     .shape = split_shape, .run = split_run, .follow = split_follow},
    {0},
};
