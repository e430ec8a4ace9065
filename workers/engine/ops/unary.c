/* Functions of one element. f32: one operation of IEEE 754, or one of the kernels' functions, or, for those that models hardly use (Sin to Atanh,
   Celu, Selu, Mish), libm's in double, rounded once: their last bit may differ between versions of libm, not between processors. f64 is libm's. f16 and
   bf16 are widened to f32 and rounded. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"

struct unary {
    float a, b; /* the op's attributes */
    const struct vec *vec;
};

typedef void unary_f32(const struct unary *u, int64_t n, const float *x, float *y);
typedef void unary_f64(const struct unary *u, int64_t n, const double *x, double *y);

static enum status shape_like(struct shaping *s, uint32_t types, struct err *e)
{
    TRY(arg_type(s, 0, types, e));
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

static enum status float_shape(struct shaping *s, struct err *e)
{
    return shape_like(s, TYPES_FLOAT, e);
}

static enum status number_shape(struct shaping *s, struct err *e)
{
    return shape_like(s, TYPES_NUMBER, e);
}

static enum status int_shape(struct shaping *s, struct err *e)
{
    return shape_like(s, TYPES_INT, e);
}

static enum status bool_shape(struct shaping *s, struct err *e)
{
    return shape_like(s, TYPE(BOOL), e);
}

static enum status test_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_FLOAT, e));
    type_tensor(&s->out[0], DT_BOOL, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

/* Runs a function of floats over any type of float. */
static void run_float(const struct unary *u, const struct tensor *x, struct tensor *y, unary_f32 *f, unary_f64 *d)
{
    int64_t n = tensor_count(x);
    if (x->dtype == DT_F32) {
        f(u, n, tensor_data(x), tensor_data(y));
    } else if (x->dtype == DT_F64) {
        d(u, n, tensor_data(x), tensor_data(y));
    } else {
        const uint16_t *from = tensor_data(x);
        uint16_t *to = tensor_data(y);
        float wide[256];
        for (int64_t i = 0; i < n; i += 256) {
            int64_t c = n - i < 256 ? n - i : 256;
            half_widen(x->dtype, c, from + i, 1, wide);
            f(u, c, wide, wide);
            half_narrow(x->dtype, c, wide, to + i);
        }
    }
}

/* name, f32 of x, f64 of x */
#define SIMPLE_MAP(X)                                                                              \
    X(Ceil, ceilf(x), ceil(x))                                                                     \
    X(Floor, floorf(x), floor(x))                                                                  \
    X(Round, rintf(x), rint(x)) /* to even: the rounding mode of every thread of ours */           \
    X(Sqrt, sqrtf(x), sqrt(x))                                                                     \
    X(Reciprocal, 1.0f / x, 1.0 / x)                                                               \
    X(Sin, (float)sin((double)x), sin(x))                                                          \
    X(Cos, (float)cos((double)x), cos(x))                                                          \
    X(Tan, (float)tan((double)x), tan(x))                                                          \
    X(Asin, (float)asin((double)x), asin(x))                                                       \
    X(Acos, (float)acos((double)x), acos(x))                                                       \
    X(Atan, (float)atan((double)x), atan(x))                                                       \
    X(Sinh, (float)sinh((double)x), sinh(x))                                                       \
    X(Cosh, (float)cosh((double)x), cosh(x))                                                       \
    X(Asinh, (float)asinh((double)x), asinh(x))                                                    \
    X(Acosh, (float)acosh((double)x), acosh(x))                                                    \
    X(Atanh, (float)atanh((double)x), atanh(x))                                                    \
    X(Softsign, x / (1.0f + fabsf(x)), x / (1.0 + fabs(x)))                                        \
    X(Mish, (float)((double)x * tanh(softplus((double)x))), x * tanh(softplus(x)))                 \
    X(Celu, x < 0 ? (float)celu(u, (double)x) : x, x < 0 ? celu(u, x) : x)                         \
    X(Selu, x > 0 ? u->b * x : (float)((double)u->b * (double)u->a * expm1((double)x)),            \
      (double)u->b * (x > 0 ? x : (double)u->a * expm1(x)))                                        \
    X(ThresholdedRelu, x > u->a ? x : 0.0f, x > (double)u->a ? x : 0.0)

/* name, the kernels' function for f32, f64 of x */
#define VECTOR_MAP(X)                                                      \
    X(Exp, ACT_EXP, exp(x))                                                \
    X(Log, ACT_LOG, log(x))                                                \
    X(Erf, ACT_ERF, erf(x))                                                \
    X(Tanh, ACT_TANH, tanh(x))                                             \
    X(Sigmoid, ACT_SIGMOID, 1 / (1 + exp(-x)))                             \
    X(Softplus, ACT_SOFTPLUS, softplus(x))                                 \
    X(Elu, ACT_ELU, x < 0 ? (double)u->a * expm1(x) : x)                   \
    X(LeakyRelu, ACT_LEAKY_RELU, x < 0 ? (double)u->a * x : x)             \
    X(HardSigmoid, ACT_HARD_SIGMOID, hard(x, (double)u->a, (double)u->b))  \
    X(HardSwish, ACT_HARD_SWISH, x * hard(x, 1.0 / 6, 0.5))                \
    X(Swish, ACT_QUICK_GELU, x / (1 + exp(-(double)u->a * x)))             \
    X(GeluErf, ACT_GELU, 0.5 * x * (1 + erf(x * 0.70710678118654752440)))  \
    X(GeluTanh, ACT_GELU_TANH, 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))))

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static inline double hard(double x, double a, double b)
{
    double v = a * x + b;
    v = v < 0 ? 0 : v;
    return v > 1 ? 1 : v;
}

static double celu(const struct unary *u, double x)
{
    return (double)u->a * expm1(x / (double)u->a);
}

#define X(name, f32, f64)                                                               \
    static void name##_f32(const struct unary *u, int64_t n, const float *px, float *py) \
    {                                                                                   \
        (void)u;                                                                        \
        for (int64_t i = 0; i < n; i++) {                                               \
            float x = px[i];                                                            \
            py[i] = f32;                                                                \
        }                                                                               \
    }                                                                                   \
    static void name##_f64(const struct unary *u, int64_t n, const double *px, double *py) \
    {                                                                                   \
        (void)u;                                                                        \
        for (int64_t i = 0; i < n; i++) {                                               \
            double x = px[i];                                                           \
            py[i] = f64;                                                                \
        }                                                                               \
    }
SIMPLE_MAP(X)
#undef X

#define X(name, act, f64)                                                                  \
    static void name##_f32(const struct unary *u, int64_t n, const float *px, float *py)   \
    {                                                                                      \
        u->vec->map(act, u->a, u->b, (size_t)n, px, py);                                   \
    }                                                                                      \
    static void name##_f64(const struct unary *u, int64_t n, const double *px, double *py) \
    {                                                                                      \
        (void)u;                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                  \
            double x = px[i];                                                              \
            py[i] = f64;                                                                   \
        }                                                                                  \
    }
VECTOR_MAP(X)
#undef X

/* name, its two attributes and what they are where the node does not say */
#define ATTR_MAP(X)                                    \
    X(Ceil, "", 0, "", 0)                              \
    X(Floor, "", 0, "", 0)                             \
    X(Round, "", 0, "", 0)                             \
    X(Sqrt, "", 0, "", 0)                              \
    X(Reciprocal, "", 0, "", 0)                        \
    X(Exp, "", 0, "", 0)                               \
    X(Log, "", 0, "", 0)                               \
    X(Erf, "", 0, "", 0)                               \
    X(Sin, "", 0, "", 0)                               \
    X(Cos, "", 0, "", 0)                               \
    X(Tan, "", 0, "", 0)                               \
    X(Asin, "", 0, "", 0)                              \
    X(Acos, "", 0, "", 0)                              \
    X(Atan, "", 0, "", 0)                              \
    X(Sinh, "", 0, "", 0)                              \
    X(Cosh, "", 0, "", 0)                              \
    X(Tanh, "", 0, "", 0)                              \
    X(Asinh, "", 0, "", 0)                             \
    X(Acosh, "", 0, "", 0)                             \
    X(Atanh, "", 0, "", 0)                             \
    X(Sigmoid, "", 0, "", 0)                           \
    X(Softplus, "", 0, "", 0)                          \
    X(Softsign, "", 0, "", 0)                          \
    X(HardSwish, "", 1.0f / 6, "", 0.5f)               \
    X(Mish, "", 0, "", 0)                              \
    X(HardSigmoid, "alpha", 0.2f, "beta", 0.5f)        \
    X(LeakyRelu, "alpha", 0.01f, "", 0)                \
    X(Elu, "alpha", 1, "", 0)                          \
    X(Celu, "alpha", 1, "", 0)                         \
    X(Selu, "alpha", 1.67326319217681884765625f, "gamma", 1.05070102214813232421875f) \
    X(ThresholdedRelu, "alpha", 1, "", 0)              \
    X(Swish, "alpha", 1, "", 0)

#define X(name, an, av, bn, bv)                                                                                  \
    static enum status name##_run(struct run *r, const struct node *n, struct err *e)                            \
    {                                                                                                            \
        (void)e;                                                                                                 \
        struct unary u = {.a = *(an) ? node_float(n, an, av) : (av),                                             \
                          .b = *(bn) ? node_float(n, bn, bv) : (bv),                                             \
                          .vec = &n->kernels->vec};                                                              \
        if (run_out(r, 0))                                                                                       \
            run_float(&u, run_in(r, 0), run_out(r, 0), name##_f32, name##_f64);                                  \
        return ST_OK;                                                                                            \
    }
ATTR_MAP(X)
#undef X

static enum status gelu_check(struct node *n, struct err *e)
{
    const char *a = node_string(n, "approximate", "none");
    if (strcmp(a, "none") != 0 && strcmp(a, "tanh") != 0)
        return node_error(n, e, "approximate is '%s'; it must be 'none' or 'tanh'", a);
    return ST_OK;
}

static enum status Gelu_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    int tanh_ = strcmp(node_string(n, "approximate", "none"), "tanh") == 0;
    if (run_out(r, 0))
        run_float(&(struct unary){.vec = &n->kernels->vec}, run_in(r, 0), run_out(r, 0), tanh_ ? GeluTanh_f32 : GeluErf_f32, tanh_ ? GeluTanh_f64 : GeluErf_f64);
    return ST_OK;
}

/* Functions of every type of number: `expression` of x, an element of type T (float for halves) */
#define NUMBER_LOOP(T, expression)             \
    {                                          \
        const T *px = tensor_data(in);         \
        T *py = tensor_data(out);              \
        for (int64_t i = 0; i < n; i++) {      \
            T x = px[i];                       \
            py[i] = (T)(expression);           \
        }                                      \
    } break

#define NUMBER_RUN(name, expression)                                                         \
    static void name##_f32(const struct unary *u, int64_t n, const float *px, float *py)     \
    {                                                                                        \
        (void)u;                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                    \
            float x = px[i];                                                                 \
            py[i] = (float)(expression);                                                     \
        }                                                                                    \
    }                                                                                        \
    static void name##_f64(const struct unary *u, int64_t n, const double *px, double *py)   \
    {                                                                                        \
        (void)u;                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                    \
            double x = px[i];                                                                \
            py[i] = (double)(expression);                                                    \
        }                                                                                    \
    }                                                                                        \
    static enum status name##_run(struct run *r, const struct node *node, struct err *e)     \
    {                                                                                        \
        (void)node, (void)e;                                                                 \
        const struct tensor *in = run_in(r, 0);                                              \
        struct tensor *out = run_out(r, 0);                                                  \
        if (!out)                                                                            \
            return ST_OK;                                                                    \
        int64_t n = tensor_count(in);                                                        \
        switch (in->dtype) {                                                                 \
        case DT_I8:                                                                          \
            NUMBER_LOOP(int8_t, expression);                                                 \
        case DT_I16:                                                                         \
            NUMBER_LOOP(int16_t, expression);                                                \
        case DT_I32:                                                                         \
            NUMBER_LOOP(int32_t, expression);                                                \
        case DT_I64:                                                                         \
            NUMBER_LOOP(int64_t, expression);                                                \
        case DT_U8:                                                                          \
            NUMBER_LOOP(uint8_t, expression);                                                \
        case DT_U16:                                                                         \
            NUMBER_LOOP(uint16_t, expression);                                               \
        case DT_U32:                                                                         \
            NUMBER_LOOP(uint32_t, expression);                                               \
        case DT_U64:                                                                         \
            NUMBER_LOOP(uint64_t, expression);                                               \
        default:                                                                             \
            run_float(&(struct unary){0}, in, out, name##_f32, name##_f64);                  \
        }                                                                                    \
        return ST_OK;                                                                        \
    }

/* The sign of what is neither above nor equal to 0; NaN stays NaN. */
static inline float below_f32(float x)
{
    return x < 0 ? -1 : x;
}

static inline double below_f64(double x)
{
    return x < 0 ? -1 : x;
}

/* The least integer stays itself, as in other runtimes: the difference is taken without a sign. */
#define NEGATIVE(x) _Generic((x), float: -(x), double: -(x), int32_t: (int32_t)(0 - (uint32_t)(x)), \
                             int64_t: (int64_t)(0 - (uint64_t)(x)), default: 0 - (x))
NUMBER_RUN(Neg, NEGATIVE(x))
NUMBER_RUN(Abs, _Generic((x), float: fabsf((float)x), double: fabs((double)x), default: (x > 0 ? x : NEGATIVE(x))))
NUMBER_RUN(Sign, x > 0 ? 1 : x == 0 ? 0 : _Generic((x), float: below_f32((float)x), double: below_f64((double)x), default: -1))
NUMBER_RUN(Relu, (x > 0 || x != x) ? x : 0)

static enum status Not_run(struct run *r, const struct node *node, struct err *e)
{
    (void)node, (void)e;
    if (!run_out(r, 0))
        return ST_OK;
    const uint8_t *x = tensor_data(run_in(r, 0));
    uint8_t *y = tensor_data(run_out(r, 0));
    int64_t n = tensor_count(run_in(r, 0));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] ? 0 : 1;
    return ST_OK;
}

static enum status BitwiseNot_run(struct run *r, const struct node *node, struct err *e)
{
    (void)node, (void)e;
    if (!run_out(r, 0))
        return ST_OK;
    const uint8_t *x = tensor_data(run_in(r, 0));
    uint8_t *y = tensor_data(run_out(r, 0));
    int64_t n = tensor_count(run_in(r, 0)) * (int64_t)dtype_bytes(run_in(r, 0)->dtype);
    for (int64_t i = 0; i < n; i++)
        y[i] = (uint8_t)~x[i];
    return ST_OK;
}

static enum status IsNaN_run(struct run *r, const struct node *node, struct err *e)
{
    (void)node, (void)e;
    if (!run_out(r, 0))
        return ST_OK;
    uint8_t *y = tensor_data(run_out(r, 0));
    int64_t n = tensor_count(run_in(r, 0));
    for (int64_t i = 0; i < n; i++)
        y[i] = (uint8_t)isnan(tensor_f64(run_in(r, 0), i));
    return ST_OK;
}

static enum status IsInf_run(struct run *r, const struct node *node, struct err *e)
{
    (void)e;
    if (!run_out(r, 0))
        return ST_OK;
    int up = node_int(node, "detect_positive", 1) != 0, down = node_int(node, "detect_negative", 1) != 0;
    uint8_t *y = tensor_data(run_out(r, 0));
    int64_t n = tensor_count(run_in(r, 0));
    for (int64_t i = 0; i < n; i++) {
        double x = tensor_f64(run_in(r, 0), i);
        y[i] = isinf(x) && (x > 0 ? up : down) ? 1 : 0;
    }
    return ST_OK;
}

static void Shrink_f64(const struct unary *u, int64_t n, const double *px, double *py)
{
    double bias = (double)u->a, lambd = (double)u->b;
    for (int64_t i = 0; i < n; i++) {
        double x = px[i];
        py[i] = x < -lambd ? x + bias : x > lambd ? x - bias : 0;
    }
}

static void Shrink_f32(const struct unary *u, int64_t n, const float *px, float *py)
{
    for (int64_t i = 0; i < n; i++) {
        float x = px[i];
        py[i] = x < -u->b ? x + u->a : x > u->b ? x - u->a : 0;
    }
}

static enum status Shrink_run(struct run *r, const struct node *node, struct err *e)
{
    (void)e;
    struct unary u = {.a = node_float(node, "bias", 0), .b = node_float(node, "lambd", 0.5f)};
    const struct tensor *in = run_in(r, 0);
    struct tensor *out = run_out(r, 0);
    if (!out)
        return ST_OK;
    if (dtype_is_float(in->dtype)) {
        run_float(&u, in, out, Shrink_f32, Shrink_f64);
        return ST_OK;
    }
    size_t z = dtype_bytes(in->dtype);
    for (int64_t i = 0, n = tensor_count(in); i < n; i++) {
        double x = tensor_f64(in, i), y;
        Shrink_f64(&u, 1, &x, &y);
        element_set(in->dtype, (char *)tensor_data(out) + (size_t)i * z, y, (int64_t)y);
    }
    return ST_OK;
}

#define ROW(NAME, SINCE, SHAPE) \
    {.domain = "", .name = #NAME, .since = SINCE, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, \
     .flags = OP_IN_PLACE, .shape = SHAPE, .run = NAME##_run, .follow = follow_elementwise}

const struct op_def ops_unary[] = {
    ROW(Abs, 1, number_shape),
    ROW(Neg, 1, number_shape),
    ROW(Sign, 9, number_shape),
    ROW(Relu, 1, number_shape),
    ROW(Shrink, 9, number_shape),
    ROW(BitwiseNot, 18, int_shape),
    ROW(Not, 1, bool_shape),
    ROW(Ceil, 1, float_shape),
    ROW(Floor, 1, float_shape),
    ROW(Round, 11, float_shape),
    ROW(Sqrt, 1, float_shape),
    ROW(Reciprocal, 1, float_shape),
    ROW(Exp, 1, float_shape),
    ROW(Log, 1, float_shape),
    ROW(Erf, 9, float_shape),
    ROW(Sin, 7, float_shape),
    ROW(Cos, 7, float_shape),
    ROW(Tan, 7, float_shape),
    ROW(Asin, 7, float_shape),
    ROW(Acos, 7, float_shape),
    ROW(Atan, 7, float_shape),
    ROW(Sinh, 9, float_shape),
    ROW(Cosh, 9, float_shape),
    ROW(Tanh, 1, float_shape),
    ROW(Asinh, 9, float_shape),
    ROW(Acosh, 9, float_shape),
    ROW(Atanh, 9, float_shape),
    ROW(Sigmoid, 1, float_shape),
    ROW(Softplus, 1, float_shape),
    ROW(Softsign, 1, float_shape),
    ROW(HardSwish, 14, float_shape),
    ROW(Mish, 18, float_shape),
    ROW(HardSigmoid, 1, float_shape),
    ROW(LeakyRelu, 1, float_shape),
    ROW(Elu, 1, float_shape),
    ROW(Celu, 12, float_shape),
    ROW(Selu, 1, float_shape),
    ROW(ThresholdedRelu, 10, float_shape),
    ROW(Swish, 24, float_shape),
    {.domain = "", .name = "Gelu", .since = 20, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_IN_PLACE,
     .check = gelu_check, .shape = float_shape, .run = Gelu_run, .follow = follow_elementwise},
    {.domain = "", .name = "IsNaN", .since = 9, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = test_shape,
     .run = IsNaN_run, .follow = follow_elementwise},
    {.domain = "", .name = "IsInf", .since = 10, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = test_shape,
     .run = IsInf_run, .follow = follow_elementwise},
    {0},
};
