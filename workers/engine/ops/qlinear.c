/* Element-wise and pooling ops of com.microsoft on quantised tensors: computed in float between taking the scales off and putting them on. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/quant.h"
#include "workers/engine/ops/wide.h"

struct scale {
    float by;
    int32_t zero;
};

static enum status byte_type(const struct shaping *s, uint32_t i, struct err *e)
{
    if (!shape_has(s, i) || (s->in[i].dtype != DT_U8 && s->in[i].dtype != DT_I8))
        return node_error(s->node, e, "input %u is of type %s; int8 or uint8 is needed", i, shape_has(s, i) ? dtype_name(s->in[i].dtype) : "none");
    return ST_OK;
}

/* Scale in input i, zero point in input i + 1 (which may be left out). */
static struct scale scale_of(const struct run *r, const struct node *n, uint32_t i)
{
    const struct tensor *s = run_in(r, i), *z = i + 1 < n->n_in ? run_in(r, i + 1) : NULL;
    return (struct scale){(float)wide_get(s->dtype, tensor_data(s), 0), z ? (int32_t)wide_get(z->dtype, tensor_data(z), 0) : 0};
}

static float taken_off(const struct tensor *t, int64_t i, struct scale s)
{
    int32_t v = t->dtype == DT_I8 ? ((const int8_t *)tensor_data(t))[i] : ((const uint8_t *)tensor_data(t))[i];
    return (float)(v - s.zero) * s.by;
}

static void put_on(struct tensor *t, int64_t i, float x, struct scale s)
{
    int32_t lo, hi;
    quant_range(t->dtype, &lo, &hi);
    ((uint8_t *)tensor_data(t))[i] = (uint8_t)quant_one(x, s.by, s.zero, lo, hi);
}

static enum status one_number(const struct shaping *s, uint32_t i, enum dtype d, int optional, struct err *e)
{
    if (optional && !shape_has(s, i))
        return ST_OK;
    TRY(shape_type(s, i, d, e));
    dim n = s->in[i].rank < 0 ? DIM_UNKNOWN : s->in[i].rank == 0 ? 1 : s->in[i].dims[0];
    if (s->in[i].rank > 1 || (dim_known(n) && n != 1))
        return node_error(s->node, e, "input %u must be one number", i);
    return ST_OK;
}

/* QLinearAdd, QLinearMul: A, scale, zero, B, scale, zero, scale, zero --------------------------------------------------------------------- */

static enum status binary_shape(struct shaping *s, struct err *e)
{
    TRY(byte_type(s, 0, e));
    TRY(shape_type(s, 3, s->in[0].dtype, e));
    for (uint32_t i = 1; i < 8; i += i == 1 ? 3 : 2) {
        TRY(one_number(s, i, DT_F32, 0, e));
        TRY(one_number(s, i + 1, s->in[0].dtype, 1, e));
    }
    struct type out;
    TRY(type_broadcast(s, &s->in[0], &s->in[3], &out, e));
    s->out[0] = out;
    s->out[0].kind = VALUE_TENSOR;
    s->out[0].dtype = s->in[0].dtype;
    s->out[0].values = NULL;
    return ST_OK;
}

static enum status binary_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 3);
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y)
        return ST_OK;
    struct scale sa = scale_of(r, n, 1), sb = scale_of(r, n, 4), sy = scale_of(r, n, 6);
    int multiply = n->op[7] == 'M';
    for (int64_t i = 0, all = tensor_count(y); i < all; i++) {
        int64_t left = i, ia = 0, ib = 0, step_a = 1, step_b = 1;
        for (uint32_t d = y->rank; d-- > 0; left /= y->dims[d]) {
            int64_t at = left % y->dims[d];
            if (d + a->rank >= y->rank) {
                int64_t size = a->dims[d + a->rank - y->rank];
                ia += size == 1 ? 0 : at * step_a;
                step_a *= size;
            }
            if (d + b->rank >= y->rank) {
                int64_t size = b->dims[d + b->rank - y->rank];
                ib += size == 1 ? 0 : at * step_b;
                step_b *= size;
            }
        }
        float x = taken_off(a, ia, sa), w = taken_off(b, ib, sb);
        put_on(y, i, multiply ? x * w : x + w, sy);
    }
    return ST_OK;
}

static int binary_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    int ra = s->in[0].rank, rb = s->in[3].rank;
    (void)out;
    if ((in != 0 && in != 3) || ra < 0 || rb < 0)
        return -1;
    int other = in == 0 ? rb : ra, own = in == 0 ? ra : rb, rank = ra > rb ? ra : rb, at = (int)axis + rank - own, there = at - (rank - other);
    const struct type *t = &s->in[in == 0 ? 3 : 0];
    return there < 0 || t->dims[there] == 1 || t->dims[there] == s->in[in].dims[axis] ? at : -1;
}

/* QLinearSigmoid, QLinearLeakyRelu: X, scale, zero, scale, zero --------------------------------------------------------------------------- */

static enum status unary_shape(struct shaping *s, struct err *e)
{
    TRY(byte_type(s, 0, e));
    for (uint32_t i = 1; i < 5; i += 2) {
        TRY(one_number(s, i, DT_F32, 0, e));
        TRY(one_number(s, i + 1, s->in[0].dtype, 1, e));
    }
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status unary_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y)
        return ST_OK;
    struct scale sx = scale_of(r, n, 1), sy = scale_of(r, n, 3);
    float alpha = node_float(n, "alpha", 0.01f);
    for (int64_t i = 0, all = tensor_count(y); i < all; i++) {
        float v = taken_off(x, i, sx);
        put_on(y, i, n->op[7] == 'S' ? (float)(1 / (1 + exp(-(double)v))) : v < 0 ? v * alpha : v, sy);
    }
    return ST_OK;
}

/* QLinearGlobalAveragePool: X, scale, zero, scale, zero ------------------------------------------------------------------------------------ */

static enum status global_check(struct node *n, struct err *e)
{
    return node_int(n, "channels_last", 0) ? node_error(n, e, "channels last is not supported") : ST_OK;
}

static enum status global_shape(struct shaping *s, struct err *e)
{
    TRY(unary_shape(s, e));
    for (int i = 2; i < s->out[0].rank; i++)
        s->out[0].dims[i] = 1;
    return ST_OK;
}

static enum status global_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    struct scale sx = scale_of(r, n, 1), sy = scale_of(r, n, 3);
    int64_t each = tensor_count(x) / tensor_count(y);
    for (int64_t i = 0; i < tensor_count(y); i++) {
        int64_t sum = 0;
        for (int64_t j = i * each; j < (i + 1) * each; j++)
            sum += (x->dtype == DT_I8 ? ((const int8_t *)tensor_data(x))[j] : ((const uint8_t *)tensor_data(x))[j]) - sx.zero;
        put_on(y, i, (float)sum * sx.by / (float)each, sy);
    }
    return ST_OK;
}

/* QLinearConcat: scale, zero, then (X, scale, zero) for each input -------------------------------------------------------------------------- */

static enum status concat_shape(struct shaping *s, struct err *e)
{
    TRY(one_number(s, 0, DT_F32, 0, e));
    TRY(byte_type(s, 1, e));
    if (s->n_in < 5 || (s->n_in - 2) % 3)
        return node_error(s->node, e, "%u inputs; scale and zero point, then three for each tensor are needed", s->n_in);
    int rank = s->in[2].rank;
    uint32_t axis = 0;
    for (uint32_t i = 2; i < s->n_in; i += 3) {
        TRY(shape_type(s, i, s->in[1].dtype, e));
        TRY(one_number(s, i + 1, DT_F32, 0, e));
        TRY(one_number(s, i + 2, s->in[1].dtype, 0, e));
        rank = s->in[i].rank < 0 ? -1 : rank;
        if (rank >= 0)
            TRY(shape_rank(s, i, rank, e));
    }
    if (rank < 0) {
        type_unknown(s, &s->out[0], s->in[1].dtype, -1);
        return ST_OK;
    }
    TRY(axis_in(s->node, node_int(s->node, "axis", 1), rank, &axis, e));
    dim dims[RANK_MAX];
    memcpy(dims, s->in[2].dims, sizeof dims);
    for (uint32_t i = 5; i < s->n_in; i += 3)
        for (int d = 0; d < rank; d++)
            if (d == (int)axis)
                dims[d] = dim_add(s->syms, dims[d], s->in[i].dims[d]);
            else if (dim_known(dims[d]) && dim_known(s->in[i].dims[d]) && dims[d] != s->in[i].dims[d])
                return node_error(s->node, e, "input %u is of another shape than input 2", i);
    type_tensor(&s->out[0], s->in[1].dtype, rank, dims);
    return ST_OK;
}

static enum status concat_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    TRY(axis_in(n, node_int(n, "axis", 1), (int)y->rank, &axis, e));
    struct scale sy = scale_of(r, n, 0);
    int64_t inner = 1, at = 0;
    for (uint32_t d = axis + 1; d < y->rank; d++)
        inner *= y->dims[d];
    for (uint32_t i = 2; i < n->n_in; i += 3) {
        const struct tensor *x = run_in(r, i);
        struct scale sx = scale_of(r, n, i + 1);
        int64_t row = x->dims[axis] * inner, all = tensor_count(x);
        for (int64_t j = 0; j < all; j++)
            put_on(y, j / row * y->dims[axis] * inner + at + j % row, taken_off(x, j, sx), sy);
        at += row;
    }
    return ST_OK;
}

static int concat_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    int rank = s->in[2].rank;
    int64_t own = node_int(s->node, "axis", 1);
    (void)out;
    return in >= 2 && (in - 2) % 3 == 0 && rank >= 0 && (int64_t)axis != (own < 0 ? own + rank : own) ? (int)axis : -1;
}

#define Q(op, least, most, fn, fl)                                                                                               \
    {.domain = "com.microsoft", .name = op, .since = 1, .until = OPSET_ANY, .min_in = least, .max_in = most, .min_out = 1,       \
     .max_out = 1, .shape = fn##_shape, .run = fn##_run, .follow = fl}
static int every_axis(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return in == 0 ? (int)axis : -1;
}

const struct op_def ops_qlinear[] = {
    Q("QLinearAdd", 7, 8, binary, binary_follow),
    Q("QLinearMul", 7, 8, binary, binary_follow),
    Q("QLinearSigmoid", 4, 5, unary, every_axis),
    Q("QLinearLeakyRelu", 4, 5, unary, every_axis),
    Q("QLinearConcat", 5, 0xffff, concat, concat_follow),
    {.domain = "com.microsoft", .name = "QLinearGlobalAveragePool", .since = 1, .until = OPSET_ANY, .min_in = 4, .max_in = 5, .min_out = 1,
     .max_out = 1, .check = global_check, .shape = global_shape, .run = global_run, .follow = follow_axis0},
    {0},
};
