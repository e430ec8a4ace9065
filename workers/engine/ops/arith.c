/* Arithmetic of two operands. Integers wrap around; a division by an integer zero is an error. */
#include <math.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/binary.h"
#include "workers/engine/ops/walk.h"

/* Signed integers wrap: C leaves that undefined, so they are computed without a sign. */
#define WRAPPING(name, op)                                                        \
    BINARY_FLOAT(BINARY_ROW, name, RESULT_SAME, x op y)                           \
    BINARY_ROW(name##_I8, int8_t, int8_t, x op y)                                 \
    BINARY_ROW(name##_I16, int16_t, int16_t, x op y)                              \
    BINARY_ROW(name##_I32, int32_t, int32_t, (uint32_t)x op (uint32_t)y)          \
    BINARY_ROW(name##_I64, int64_t, int64_t, (uint64_t)x op (uint64_t)y)          \
    BINARY_ROW(name##_U8, uint8_t, uint8_t, x op y)                               \
    BINARY_ROW(name##_U16, uint16_t, uint16_t, (uint32_t)x op (uint32_t)y)        \
    BINARY_ROW(name##_U32, uint32_t, uint32_t, x op y)                            \
    BINARY_ROW(name##_U64, uint64_t, uint64_t, x op y)                            \
    static binary_row *const name##_rows[DT_END] = {ROWS_FLOAT(name), ROWS_SIGNED(name), ROWS_UNSIGNED(name)};
WRAPPING(Add, +)
WRAPPING(Sub, -)
WRAPPING(Mul, *)

/* The least integer by -1 would trap. */
BINARY_FLOAT(BINARY_ROW, Div, RESULT_SAME, x / y)
BINARY_SIGNED(BINARY_ROW, Div, RESULT_SAME, y == -1 ? 0 - (uint64_t)x : (uint64_t)(x / y))
BINARY_UNSIGNED(BINARY_ROW, Div, RESULT_SAME, x / y)
static binary_row *const Div_rows[DT_END] = {ROWS_FLOAT(Div), ROWS_SIGNED(Div), ROWS_UNSIGNED(Div)};

/* Mod has the sign of the divisor, fmod that of the dividend. */
BINARY_FLOAT(BINARY_ROW, Fmod, RESULT_SAME, fmod((double)x, (double)y))
BINARY_SIGNED(BINARY_ROW, Fmod, RESULT_SAME, y == -1 ? 0 : x % y)
BINARY_UNSIGNED(BINARY_ROW, Fmod, RESULT_SAME, x % y)
static binary_row *const Fmod_rows[DT_END] = {ROWS_FLOAT(Fmod), ROWS_SIGNED(Fmod), ROWS_UNSIGNED(Fmod)};
BINARY_SIGNED(BINARY_ROW, Mod, RESULT_SAME, y == -1 ? 0 : (x % y != 0 && (x < 0) != (y < 0)) ? x % y + y : x % y)
static double floor_mod(double x, double y)
{
    double r = fmod(x, y);
    return r != 0 ? ((r < 0) != (y < 0) ? r + y : r) : copysign(0.0, y);
}
BINARY_FLOAT(BINARY_ROW, Mod, RESULT_SAME, floor_mod((double)x, (double)y))
static binary_row *const Mod_rows[DT_END] = {ROWS_FLOAT(Mod), ROWS_SIGNED(Mod), ROWS_UNSIGNED(Fmod)};

BINARY_FLOAT(BINARY_ROW, PRelu, RESULT_SAME, x < 0 ? x * y : x)
BINARY_ROW(PRelu_I32, int32_t, int32_t, x < 0 ? (uint32_t)x * (uint32_t)y : (uint32_t)x)
BINARY_ROW(PRelu_I64, int64_t, int64_t, x < 0 ? (uint64_t)x * (uint64_t)y : (uint64_t)x)
BINARY_ROW(PRelu_U32, uint32_t, uint32_t, y ? x : x)
BINARY_ROW(PRelu_U64, uint64_t, uint64_t, y ? x : x)
static binary_row *const PRelu_rows[DT_END] = {ROWS_FLOAT(PRelu),     [DT_I32] = PRelu_I32, [DT_I64] = PRelu_I64,
                                               [DT_U32] = PRelu_U32, [DT_U64] = PRelu_U64};

#define VALUES_SHAPE(name, f)                                             \
    static enum status name##_shape(struct shaping *s, struct err *e)     \
    {                                                                     \
        TRY(binary_shape(s, TYPES_NUMBER, 0, e));                         \
        if (!dtype_is_float(s->in[0].dtype))                              \
            binary_values(s, f);                                          \
        return ST_OK;                                                     \
    }
VALUES_SHAPE(Add, dim_add)
VALUES_SHAPE(Sub, dim_sub)
VALUES_SHAPE(Mul, dim_mul)
VALUES_SHAPE(Div, value_div)

#define PLAIN_RUN(name)                                                                        \
    static enum status name##_run(struct run *r, const struct node *n, struct err *e)          \
    {                                                                                          \
        (void)e;                                                                               \
        return binary_run(r, n, name##_rows, 0);                                               \
    }
PLAIN_RUN(Add)
PLAIN_RUN(Sub)
PLAIN_RUN(Mul)
PLAIN_RUN(PRelu)

static enum status no_zeros(const struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *b = run_in(r, 1);
    if (dtype_is_float(b->dtype) || !tensor_count(run_in(r, 0)))
        return ST_OK;
    for (int64_t i = 0, c = tensor_count(b); i < c; i++)
        if (!tensor_i64(b, i))
            return node_error(n, e, "division by zero (element %lld of input 1)", (long long)i);
    return ST_OK;
}

static enum status Div_run(struct run *r, const struct node *n, struct err *e)
{
    TRY(no_zeros(r, n, e));
    return binary_run(r, n, Div_rows, 0);
}

static enum status Mod_shape(struct shaping *s, struct err *e)
{
    return binary_shape(s, TYPES_NUMBER, 0, e);
}

static enum status Mod_run(struct run *r, const struct node *n, struct err *e)
{
    TRY(no_zeros(r, n, e));
    return binary_run(r, n, node_int(n, "fmod", 0) ? Fmod_rows : Mod_rows, 0);
}

/* Opsets before 7: a slope of one axis belongs to the channels, axis 1. */
static int prelu_channels(const struct node *n, int rank_x, int rank_slope)
{
    return n->opset < 7 && rank_slope == 1 && rank_x > 2;
}

static enum status PRelu_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_FLOAT | TYPE(I32) | TYPE(I64) | TYPE(U32) | TYPE(U64), e));
    TRY(arg_same(s, 1, e));
    struct type slope = s->in[1];
    if (prelu_channels(s->node, s->in[0].rank, slope.rank))
        for (int i = 2; i < s->in[0].rank; i++)
            slope.dims[slope.rank++] = 1;
    struct type both = {0};
    TRY(type_broadcast(s, &s->in[0], &slope, &both, e));
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    if (s->in[0].rank >= 0 && both.rank > s->in[0].rank)
        return node_error(s->node, e, "the slope has more axes than the input");
    for (int i = 0; both.rank >= 0 && i < s->in[0].rank; i++)
        if (dim_known(both.dims[i]) && dim_known(s->in[0].dims[i]) && both.dims[i] != s->in[0].dims[i])
            return node_error(s->node, e, "the slope is larger than the input along axis %d", i);
    return ST_OK;
}

static enum status PRelu_legacy_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor slope = *run_in(r, 1), *y = run_out(r, 0);
    if (!prelu_channels(n, (int)x->rank, (int)slope.rank))
        return PRelu_run(r, n, e);
    for (uint32_t i = 2; i < x->rank; i++)
        slope.dims[slope.rank++] = 1;
    if (y)
        binary_broadcast(x, &slope, y, PRelu_rows, 0);
    return ST_OK;
}

/* Pow ------------------------------------------------------------------------------------------------------------------------------ */

/* f32 is computed in double and rounded; for the exponents 2, 3, 0.5, 1 and -1 that is what the operations give too, up to the product of
   three factors, which is exact enough in double to round alike. */
static void pow_row(int64_t n, const float *x, double y, float *out)
{
    if (y == 2)
        for (int64_t i = 0; i < n; i++)
            out[i] = x[i] * x[i];
    else if (y == 3)
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)((double)x[i] * (double)x[i] * (double)x[i]);
    else if (y == 1)
        for (int64_t i = 0; i < n; i++)
            out[i] = x[i];
    else if (y == -1)
        for (int64_t i = 0; i < n; i++)
            out[i] = 1 / x[i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)pow((double)x[i], y);
}

static int64_t pow_int(int64_t x, int64_t y)
{
    if (y < 0)
        return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    uint64_t r = 1, b = (uint64_t)x;
    for (; y; y >>= 1, b *= b)
        if (y & 1)
            r *= b;
    return (int64_t)r;
}

static enum status Pow_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    TRY(arg_type(s, 1, TYPES_NUMBER, e));
    struct type b = s->in[1];
    b.dtype = s->in[0].dtype;
    if (s->node->opset < 7 && node_attr(s->node, "axis") && s->in[0].rank > 0 && b.rank > 0)
        return node_error(s->node, e, "the attribute axis of opsets before 7 is not supported: convert the model to opset 7 or later");
    TRY(type_broadcast(s, &s->in[0], &b, &s->out[0], e));
    s->out[0].dtype = s->in[0].dtype;
    return ST_OK;
}

static enum status Pow_run(struct run *r, const struct node *node, struct err *e)
{
    (void)node, (void)e;
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 1);
    struct tensor *out = run_out(r, 0);
    if (!out)
        return ST_OK;
    if (a->dtype == DT_F32 && tensor_count(b) == 1 && tensor_count(a) == tensor_count(out)) {
        pow_row(tensor_count(a), tensor_data(a), tensor_f64(b, 0), tensor_data(out));
        return ST_OK;
    }
    struct walk w;
    walk_init(&w, out->rank, out->dims);
    walk_broadcast(&w, a->rank, a->dims);
    walk_broadcast(&w, b->rank, b->dims);
    walk_merge(&w);
    if (walk_empty(&w))
        return ST_OK;
    struct walk_at p = {0};
    uint32_t last = w.rank - 1;
    char *to = tensor_data(out);
    size_t z = dtype_bytes(out->dtype);
    int whole = !dtype_is_float(a->dtype) && !dtype_is_float(b->dtype);
    do {
        for (int64_t i = 0; i < w.dims[last]; i++, to += z) {
            int64_t ia = p.at[0] + i * w.step[0][last], ib = p.at[1] + i * w.step[1][last];
            if (whole) {
                element_set(out->dtype, to, 0, pow_int(tensor_i64(a, ia), tensor_i64(b, ib)));
            } else {
                double v = pow(tensor_f64(a, ia), tensor_f64(b, ib));
                element_set(out->dtype, to, v, v != v ? 0 : v >= 9.2e18 ? INT64_MAX : v <= -9.2e18 ? INT64_MIN : (int64_t)v);
            }
        }
    } while (walk_next(&w, &p));
    return ST_OK;
}

#define ROW(NAME, SINCE, FLAGS, SHAPE, RUN, FOLLOW)                                                                                       \
    {.domain = "", .name = NAME, .since = SINCE, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,                \
     .flags = FLAGS, .shape = SHAPE, .run = RUN, .follow = FOLLOW}

const struct op_def ops_arith[] = {
    ROW("Add", 1, OP_IN_PLACE, Add_shape, Add_run, binary_follow),
    ROW("Sub", 1, OP_IN_PLACE, Sub_shape, Sub_run, binary_follow),
    ROW("Mul", 1, OP_IN_PLACE, Mul_shape, Mul_run, binary_follow),
    ROW("Div", 1, OP_IN_PLACE, Div_shape, Div_run, binary_follow),
    ROW("Mod", 10, OP_IN_PLACE, Mod_shape, Mod_run, follow_elementwise),
    ROW("PRelu", 1, OP_IN_PLACE, PRelu_shape, PRelu_legacy_run, follow_elementwise),
    ROW("Pow", 1, 0, Pow_shape, Pow_run, follow_elementwise),
    {0},
};
