/* Cast and CastLike. Floats become integers by cutting off; what an integer type cannot hold keeps its low bits, as other runtimes on this
   processor do; NaN becomes 0. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/ftoa.h"
#include "workers/engine/ops/args.h"

static enum status cast_type(struct shaping *s, int64_t to, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    if (to <= 0 || to >= DT_END || !dtype_bytes((enum dtype)to))
        return node_error(s->node, e, "a cast to %s is not supported", dtype_name(to > 0 && to < 64 ? (enum dtype)to : DT_NONE));
    type_tensor(&s->out[0], (enum dtype)to, s->in[0].rank, s->in[0].dims);
    enum dtype from = s->in[0].dtype;
    uint32_t n;
    const dim *v = arg_values(s, 0, &n);
    if (!v || !s->syms || dtype_is_float(from) || from == DT_STR || !(dtype_is_int((enum dtype)to) || to == DT_BOOL))
        return ST_OK;
    dim *w = values_room(s, 0, n);
    for (uint32_t i = 0; w && i < n; i++)
        w[i] = to != DT_BOOL ? v[i] : dim_known(v[i]) ? v[i] != 0 : DIM_UNKNOWN;
    return ST_OK;
}

static enum status cast_shape(struct shaping *s, struct err *e)
{
    return cast_type(s, node_int(s->node, "to", 0), e);
}

static enum status castlike_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 1, TYPES_ALL, e));
    return cast_type(s, (int64_t)s->in[1].dtype, e);
}

static int64_t whole(double x)
{
    if (x != x)
        return 0;
    if (x >= 9223372036854775807.0)
        return INT64_MAX;
    return x <= -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

static uint64_t whole_u64(double x)
{
    if (x >= 18446744073709551615.0)
        return UINT64_MAX;
    return x >= 9223372036854775808.0 ? (uint64_t)x : (uint64_t)whole(x);
}

#define LOOP(F, T, expression)                                                        \
    {                                                                                 \
        const F *x = from;                                                            \
        T *y = to;                                                                    \
        for (int64_t i = 0; i < n; i++)                                               \
            y[i] = (T)(expression);                                                   \
    } break
#define FROM_INT(F)                                   \
    switch (dt) {                                     \
    case DT_F32:                                      \
        LOOP(F, float, x[i]);                         \
    case DT_F64:                                      \
        LOOP(F, double, x[i]);                        \
    case DT_I8:                                       \
    case DT_U8:                                       \
        LOOP(F, uint8_t, x[i]);                       \
    case DT_I16:                                      \
    case DT_U16:                                      \
        LOOP(F, uint16_t, x[i]);                      \
    case DT_I32:                                      \
    case DT_U32:                                      \
        LOOP(F, uint32_t, x[i]);                      \
    case DT_I64:                                      \
    case DT_U64:                                      \
        LOOP(F, uint64_t, x[i]);                      \
    case DT_BOOL:                                     \
        LOOP(F, uint8_t, x[i] != 0);                  \
    case DT_F16:                                      \
        LOOP(F, uint16_t, f64_to_f16((double)x[i]));  \
    case DT_BF16:                                     \
        LOOP(F, uint16_t, f32_to_bf16((float)x[i]));  \
    default:                                          \
        break;                                        \
    }
#define FROM_FLOAT(F)                                         \
    switch (dt) {                                             \
    case DT_F32:                                              \
        LOOP(F, float, x[i]);                                 \
    case DT_F64:                                              \
        LOOP(F, double, x[i]);                                \
    case DT_I8:                                               \
    case DT_U8:                                               \
        LOOP(F, uint8_t, whole((double)x[i]));                \
    case DT_I16:                                              \
    case DT_U16:                                              \
        LOOP(F, uint16_t, whole((double)x[i]));               \
    case DT_I32:                                              \
    case DT_U32:                                              \
        LOOP(F, uint32_t, whole((double)x[i]));               \
    case DT_I64:                                              \
        LOOP(F, int64_t, whole((double)x[i]));                \
    case DT_U64:                                              \
        LOOP(F, uint64_t, whole_u64((double)x[i]));           \
    case DT_BOOL:                                             \
        LOOP(F, uint8_t, (x[i] < 0) | (x[i] > 0) | (x[i] != x[i])); \
    case DT_F16:                                              \
        LOOP(F, uint16_t, f64_to_f16((double)x[i]));          \
    case DT_BF16:                                             \
        LOOP(F, uint16_t, f32_to_bf16((float)x[i]));          \
    default:                                                  \
        break;                                                \
    }

/* Neither side is a string. */
static void cast_numbers(enum dtype df, enum dtype dt, int64_t n, const void *from, void *to)
{
    switch (df) {
    case DT_F32:
        if (dtype_is_half(dt))
            half_narrow(dt, n, from, to);
        else
            FROM_FLOAT(float);
        break;
    case DT_F64:
        FROM_FLOAT(double);
        break;
    case DT_I8:
        FROM_INT(int8_t);
        break;
    case DT_I16:
        FROM_INT(int16_t);
        break;
    case DT_I32:
        FROM_INT(int32_t);
        break;
    case DT_I64:
        FROM_INT(int64_t);
        break;
    case DT_U8:
        FROM_INT(uint8_t);
        break;
    case DT_U16:
        FROM_INT(uint16_t);
        break;
    case DT_U32:
        FROM_INT(uint32_t);
        break;
    case DT_U64:
        FROM_INT(uint64_t);
        break;
    case DT_BOOL: {
        const uint8_t *b = from;
        size_t z = dtype_bytes(dt);
        for (int64_t i = 0; i < n; i++)
            element_set(dt, (char *)to + (size_t)i * z, b[i] ? 1 : 0, b[i] ? 1 : 0);
        break;
    }
    case DT_F16:
    case DT_BF16: {
        if (dt == DT_F32) {
            half_widen(df, n, from, 1, to);
            break;
        }
        float wide[256];
        for (int64_t i = 0; i < n; i += 256) {
            int64_t c = n - i < 256 ? n - i : 256;
            half_widen(df, c, (const uint16_t *)from + i, 1, wide);
            cast_numbers(DT_F32, dt, c, wide, (char *)to + (size_t)i * dtype_bytes(dt));
        }
        break;
    }
    default:
        BUG("a cast from type %d", df);
    }
}

/* Numbers as texts have them: 314.15926, 1e-5, +INF, -inf, NaN */
static int parse(const struct str *s, double *f, int64_t *whole_, uint64_t *large)
{
    char text[128], *end;
    if (s->len == 0 || s->len >= sizeof text)
        return 0;
    memcpy(text, s->data, s->len);
    text[s->len] = '\0';
    *f = strtod(text, &end);
    if (*end || end == text)
        return 0;
    char *dot;
    errno = 0;
    *whole_ = strtoll(text, &dot, 10);
    if (*dot || errno)
        *whole_ = whole(*f);
    errno = 0;
    *large = strtoull(text, &dot, 10);
    if (*dot || errno)
        *large = whole_u64(*f);
    return 1;
}

static enum status from_strings(const struct node *node, const struct tensor *x, struct tensor *y, struct err *e)
{
    const struct str *s = tensor_data(x);
    size_t z = dtype_bytes(y->dtype);
    char *to = tensor_data(y);
    for (int64_t i = 0, n = tensor_count(x); i < n; i++, to += z) {
        double f = 0;
        int64_t w = 0;
        uint64_t large = 0;
        if (!parse(&s[i], &f, &w, &large))
            return node_error(node, e, "'%.*s' (element %lld) is not a number", (int)(s[i].len < 60 ? s[i].len : 60), s[i].data, (long long)i);
        if (y->dtype == DT_BOOL)
            w = f != 0;
        element_set(y->dtype, to, f, y->dtype == DT_U64 ? (int64_t)large : w);
    }
    return ST_OK;
}

static size_t number_text(const struct tensor *x, int64_t i, char *out, size_t cap)
{
    int n;
    if (!dtype_is_float(x->dtype)) {
        n = x->dtype == DT_U64    ? snprintf(out, cap, "%llu", (unsigned long long)((const uint64_t *)tensor_data(x))[i])
            : x->dtype == DT_BOOL ? snprintf(out, cap, "%s", tensor_i64(x, i) ? "True" : "False")
                                  : snprintf(out, cap, "%lld", (long long)tensor_i64(x, i));
        return (size_t)n;
    }
    double v = tensor_f64(x, i);
    if (isnan(v) || isinf(v)) {
        n = snprintf(out, cap, "%s", isnan(v) ? "NaN" : v > 0 ? "INF" : "-INF");
        return (size_t)n;
    }
    if (x->dtype != DT_F64)
        return ftoa((float)v, out);
    for (int digits = 15; digits <= 17; digits++) { /* the shortest that reads back the same */
        n = snprintf(out, cap, "%.*g", digits, v);
        if (strtod(out, NULL) == v) /* NOLINT: exact on purpose */
            break;
    }
    return (size_t)n;
}

static enum status to_strings(struct run *r, const struct tensor *x, struct tensor *y, struct err *e)
{
    struct str *to = tensor_data(y);
    for (int64_t i = 0, n = tensor_count(x); i < n; i++) {
        char text[64];
        size_t len = number_text(x, i, text, sizeof text);
        TRY(run_string(r, text, len, &to[i], e));
    }
    return ST_OK;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    if (x->dtype == y->dtype)
        memcpy(tensor_data(y), tensor_data(x), (size_t)tensor_count(x) * dtype_bytes(x->dtype));
    else if (x->dtype == DT_STR)
        return from_strings(n, x, y, e);
    else if (y->dtype == DT_STR)
        return to_strings(r, x, y, e);
    else
        cast_numbers(x->dtype, y->dtype, tensor_count(x), tensor_data(x), tensor_data(y));
    return ST_OK;
}

static enum status cast_check(struct node *n, struct err *e)
{
    if (!node_attr(n, "to"))
        return node_error(n, e, "the attribute 'to' is missing");
    return ST_OK;
}

const struct op_def ops_cast[] = {
    {.domain = "", .name = "Cast", .since = 6, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .check = cast_check,
     .shape = cast_shape, .run = run, .follow = follow_elementwise},
    {.domain = "", .name = "CastLike", .since = 15, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = castlike_shape, .run = run, .follow = follow_elementwise},
    {0},
};
