/* Tensors made of sizes and numbers: Shape, Size, Range, ConstantOfShape, EyeLike, OneHot. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

/* Shape, Size ------------------------------------------------------------------------------------------------------------------------- */

static void part(const struct node *n, int64_t rank, int64_t *first, int64_t *last)
{
    int64_t a = node_int(n, "start", 0), b = node_int(n, "end", rank);
    a += a < 0 ? rank : 0;
    b += b < 0 ? rank : 0;
    *first = a < 0 ? 0 : a > rank ? rank : a;
    *last = b < *first ? *first : b > rank ? rank : b;
}

static enum status shape_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    type_unknown(s, &s->out[0], DT_I64, 1);
    if (x->rank < 0)
        return ST_OK;
    int64_t a, b;
    part(s->node, x->rank, &a, &b);
    s->out[0].dims[0] = b - a;
    dim *v = values_room(s, 0, (uint32_t)(b - a));
    for (int64_t i = a; v && i < b; i++)
        v[i - a] = x->dims[i];
    return ST_OK;
}

static enum status shape_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    const struct tensor *x = run_in(r, 0);
    int64_t a, b;
    if (!run_out(r, 0))
        return ST_OK;
    part(n, x->rank, &a, &b);
    if (b > a)
        memcpy(tensor_data(run_out(r, 0)), x->dims + a, (size_t)(b - a) * sizeof *x->dims);
    return ST_OK;
}

static enum status size_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    type_tensor(&s->out[0], DT_I64, 0, NULL);
    dim *v = values_room(s, 0, 1);
    if (v)
        *v = type_count(s, &s->in[0]);
    return ST_OK;
}

static enum status size_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n, (void)e;
    if (run_out(r, 0))
        *(int64_t *)tensor_data(run_out(r, 0)) = tensor_count(run_in(r, 0));
    return ST_OK;
}

/* Range --------------------------------------------------------------------------------------------------------------------------------- */

enum { RANGE_MAX = 1 << 30 };

static enum status range_count(const struct node *n, const struct tensor *const *in, int64_t *count, struct err *e)
{
    for (int i = 0; i < 3; i++)
        if (tensor_count(in[i]) != 1)
            return node_error(n, e, "input %d has %lld elements instead of one", i, (long long)tensor_count(in[i]));
    double c;
    if (dtype_is_float(in[0]->dtype)) {
        c = ceil((tensor_f64(in[1], 0) - tensor_f64(in[0], 0)) / tensor_f64(in[2], 0));
        if (tensor_f64(in[2], 0) == 0)
            return node_error(n, e, "the step is 0");
    } else {
        int64_t a = tensor_i64(in[0], 0), b = tensor_i64(in[1], 0), step = tensor_i64(in[2], 0), d;
        if (step == 0)
            return node_error(n, e, "the step is 0");
        if (__builtin_sub_overflow(b, a, &d) || step == INT64_MIN)
            return node_error(n, e, "the range is too long");
        c = (d > 0) != (step > 0) ? 0 : (double)(d / step + (d % step != 0));
    }
    if (!(c < RANGE_MAX))
        return node_error(n, e, "the range is too long: %g elements", c);
    *count = c > 0 ? (int64_t)c : 0;
    return ST_OK;
}

static enum status range_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(F32) | TYPE(F64) | TYPE(F16) | TYPE(BF16) | TYPE(I16) | TYPE(I32) | TYPE(I64), e));
    TRY(arg_same(s, 1, e));
    TRY(arg_same(s, 2, e));
    type_unknown(s, &s->out[0], s->in[0].dtype, 1);
    const struct tensor *in[3] = {s->constants[0], s->constants[1], s->constants[2]};
    if (in[0] && in[1] && in[2] && in[0]->buffer && in[1]->buffer && in[2]->buffer)
        return range_count(s->node, in, &s->out[0].dims[0], e);
    const dim *v[3];
    uint32_t n;
    for (uint32_t i = 0; i < 3; i++)
        if (!(v[i] = arg_values(s, i, &n)) || n != 1)
            return ST_OK;
    if (!dim_known(*v[2]) || *v[2] <= 0)
        return ST_OK;
    dim d = dim_max(s->syms, dim_sub(s->syms, *v[1], *v[0]), 0);
    d = *v[0] == 0 && !dim_known(*v[1]) ? *v[1] : d; /* from 0 to a size */
    d = *v[2] == 1 ? d : dim_ceil_div(s->syms, d, *v[2]);
    if (d != DIM_UNKNOWN)
        s->out[0].dims[0] = d;
    dim *w = dim_known(d) && d <= VALUES_MAX && dim_known(*v[0]) ? values_room(s, 0, (uint32_t)d) : NULL;
    for (int64_t i = 0; w && i < d; i++)
        w[i] = *v[0] + i * *v[2];
    return ST_OK;
}

static enum status range_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[3] = {run_in(r, 0), run_in(r, 1), run_in(r, 2)};
    struct tensor *y = run_out(r, 0);
    (void)n, (void)e;
    if (!y)
        return ST_OK;
    double a = tensor_f64(in[0], 0), step = tensor_f64(in[2], 0);
    int64_t ia = tensor_i64(in[0], 0), istep = tensor_i64(in[2], 0);
    size_t z = dtype_bytes(y->dtype);
    char *to = tensor_data(y);
    int f32 = y->dtype == DT_F32;
    for (int64_t i = 0, c = tensor_count(y); i < c; i++, to += z)
        element_set(y->dtype, to, f32 ? (double)((float)a + (float)i * (float)step) : a + (double)i * step,
                    (int64_t)((uint64_t)ia + (uint64_t)i * (uint64_t)istep));
    return ST_OK;
}

/* ConstantOfShape ----------------------------------------------------------------------------------------------------------------------- */

static const struct tensor *fill_value(const struct node *n)
{
    const struct attr *a = node_attr(n, "value");
    return a && a->kind == ATTR_TENSOR ? a->tensors : NULL;
}

static enum status fill_check(struct node *n, struct err *e)
{
    const struct tensor *v = fill_value(n);
    if (node_attr(n, "value") && !v)
        return node_error(n, e, "the attribute 'value' is not a tensor");
    if (v && tensor_count(v) != 1)
        return node_error(n, e, "the attribute 'value' has %lld elements instead of one", (long long)tensor_count(v));
    return ST_OK;
}

static enum status fill_shape(struct shaping *s, struct err *e)
{
    const struct tensor *value = fill_value(s->node);
    enum dtype d = value ? value->dtype : DT_F32;
    dim dims[RANK_MAX];
    uint32_t n;
    enum arg got;
    TRY(arg_type(s, 0, TYPE(I64), e));
    TRY(arg_dims(s, 0, RANK_MAX, dims, &n, &got, e));
    if (got != ARG_KNOWN) {
        dim rank = s->in[0].rank == 1 ? s->in[0].dims[0] : DIM_UNKNOWN;
        type_unknown(s, &s->out[0], d, dim_known(rank) && rank <= RANK_MAX ? (int)rank : -1);
        return ST_OK;
    }
    type_tensor(&s->out[0], d, (int)n, dims);
    for (uint32_t i = 0; i < n; i++)
        if (dim_known(dims[i]) && dims[i] < 0)
            return node_error(s->node, e, "size %u is %lld", i, (long long)dims[i]);
    dim count = n <= 1 ? type_count(s, &s->out[0]) : DIM_UNKNOWN;
    if (dim_known(count) && count <= VALUES_MAX && !dtype_is_float(d) && d != DT_STR) {
        dim *v = values_room(s, 0, (uint32_t)count);
        for (int64_t i = 0; v && i < count; i++)
            v[i] = tensor_i64(value, 0);
    }
    return ST_OK;
}

static enum status fill_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    static const char zero[16];
    const struct tensor *v = fill_value(n);
    struct tensor *y = run_out(r, 0);
    if (y)
        fill_elements(dtype_bytes(y->dtype), v ? tensor_data(v) : zero, tensor_count(y), tensor_data(y));
    return ST_OK;
}

/* EyeLike --------------------------------------------------------------------------------------------------------------------------------- */

static enum status eye_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER | TYPE(BOOL), e));
    int64_t d = node_int(s->node, "dtype", (int64_t)s->in[0].dtype);
    if (d <= 0 || d >= DT_END || !((TYPES_NUMBER | TYPE(BOOL)) >> d & 1))
        return node_error(s->node, e, "the type %lld is not supported", (long long)d);
    if (s->in[0].rank >= 0 && s->in[0].rank != 2)
        return node_error(s->node, e, "a matrix is wanted, not %d axes", s->in[0].rank);
    type_tensor(&s->out[0], (enum dtype)d, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

static enum status eye_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    size_t z = dtype_bytes(y->dtype);
    memset(tensor_data(y), 0, (size_t)tensor_count(y) * z);
    int64_t k = node_int(n, "k", 0), rows = y->dims[0], cols = y->dims[1];
    if (k <= -rows || k >= cols)
        return ST_OK;
    for (int64_t i = k < 0 ? -k : 0; i < rows && i + k < cols; i++)
        element_set(y->dtype, (char *)tensor_data(y) + (size_t)(i * cols + i + k) * z, 1, 1);
    return ST_OK;
}

/* OneHot ---------------------------------------------------------------------------------------------------------------------------------- */

static enum status onehot_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    TRY(arg_type(s, 1, TYPES_NUMBER, e));
    TRY(arg_type(s, 2, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    uint32_t axis, n;
    type_tensor(y, s->in[2].dtype, -1, NULL);
    if (x->rank < 0)
        return ST_OK;
    if (x->rank + 1 > RANK_MAX)
        return node_error(s->node, e, "the result has %d axes, at most %d are supported", x->rank + 1, RANK_MAX);
    TRY(axis_in(s->node, node_int(s->node, "axis", -1), x->rank + 1, &axis, e));
    y->rank = x->rank + 1;
    for (int i = 0, k = 0; i < y->rank; i++)
        y->dims[i] = i == (int)axis ? DIM_UNKNOWN : x->dims[k++];
    const struct tensor *c = s->constants[1];
    const dim *v = arg_values(s, 1, &n);
    if (c && c->buffer) {
        if (tensor_count(c) != 1)
            return node_error(s->node, e, "the depth has %lld elements instead of one", (long long)tensor_count(c));
        y->dims[axis] = tensor_i64(c, 0);
        if (y->dims[axis] < 0)
            return node_error(s->node, e, "the depth is %lld", (long long)y->dims[axis]);
    } else if (v && n == 1) {
        y->dims[axis] = *v;
    }
    if (y->dims[axis] == DIM_UNKNOWN)
        y->dims[axis] = dim_fresh(s->syms);
    return sizes_told(s, e);
}

static enum status onehot_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *values = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y)
        return ST_OK;
    if (tensor_count(values) != 2)
        return node_error(n, e, "'values' has %lld elements instead of two", (long long)tensor_count(values));
    TRY(axis_in(n, node_int(n, "axis", -1), (int)y->rank, &axis, e));
    size_t z = dtype_bytes(y->dtype);
    const char *off = tensor_data(values), *on = off + z;
    fill_elements(z, off, tensor_count(y), tensor_data(y));
    int64_t depth = y->dims[axis], inner = 1;
    for (uint32_t i = axis; i < x->rank; i++)
        inner *= x->dims[i];
    for (int64_t k = 0, c = tensor_count(x); k < c; k++) {
        int64_t i = tensor_i64(x, k);
        if (i < -depth || i >= depth)
            continue; /* outside: all off */
        i += i < 0 ? depth : 0;
        memcpy((char *)tensor_data(y) + (size_t)((k / inner * depth + i) * inner + k % inner) * z, on, z);
    }
    return ST_OK;
}

static int onehot_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    if (in != 0 || s->in[0].rank < 0 || axis_in(s->node, node_int(s->node, "axis", -1), s->in[0].rank + 1, &a, NULL) != ST_OK)
        return -1;
    return axis < a ? (int)axis : (int)axis + 1;
}

const struct op_def ops_shapes[] = {
    {.domain = "", .name = "Shape", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_HOST,
     .shape = shape_shape, .run = shape_run},
    {.domain = "", .name = "Size", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_HOST,
     .shape = size_shape, .run = size_run},
    {.domain = "", .name = "Range", .since = 11, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .shape = range_shape,
     .run = range_run},
    {.domain = "", .name = "ConstantOfShape", .since = 9, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .check = fill_check, .shape = fill_shape, .run = fill_run},
    {.domain = "", .name = "EyeLike", .since = 9, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = eye_shape,
     .run = eye_run},
    {.domain = "", .name = "OneHot", .since = 9, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .shape = onehot_shape,
     .run = onehot_run, .follow = onehot_follow},
    {0},
};
