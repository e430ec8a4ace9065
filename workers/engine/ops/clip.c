/* Clip: limits as attributes (opset 6), later as inputs; without limits nothing changes. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    for (uint32_t i = 1; i < s->n_in; i++) {
        if (!arg_there(s, i))
            continue;
        TRY(arg_same(s, i, e));
        dim n = type_count(s, &s->in[i]);
        if (dim_known(n) && n != 1)
            return node_error(s->node, e, "a limit has %lld elements instead of one", (long long)n);
    }
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

/* NaN stays; where the limits cross, the upper one counts. */
#define LIMIT_LOOP(T)                                   \
    {                                                   \
        const T *x = px;                                \
        T *y = py, low, high;                           \
        memcpy(&low, plow, sizeof low);                 \
        memcpy(&high, phigh, sizeof high);              \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) \
        {                                               \
            T v = x[i];                                 \
            v = v < low ? low : v;                      \
            y[i] = v > high ? high : v;                 \
        }                                               \
    } break

static void limit(enum dtype d, int64_t n, const void *px, const void *plow, const void *phigh, void *py)
{
    switch (d) {
    case DT_F32:
        LIMIT_LOOP(float);
    case DT_F64:
        LIMIT_LOOP(double);
    case DT_I8:
        LIMIT_LOOP(int8_t);
    case DT_I16:
        LIMIT_LOOP(int16_t);
    case DT_I32:
        LIMIT_LOOP(int32_t);
    case DT_I64:
        LIMIT_LOOP(int64_t);
    case DT_U8:
        LIMIT_LOOP(uint8_t);
    case DT_U16:
        LIMIT_LOOP(uint16_t);
    case DT_U32:
        LIMIT_LOOP(uint32_t);
    case DT_U64:
        LIMIT_LOOP(uint64_t);
    default:
        BUG("limits of type %d", d);
    }
}

static void least_and_largest(enum dtype d, void *low, void *high)
{
    int bits = (int)dtype_bytes(d) * 8;
    int is_signed = TYPES_SIGNED >> d & 1;
    if (dtype_is_float(d)) {
        element_set(d, low, -HUGE_VAL, 0);
        element_set(d, high, HUGE_VAL, 0);
    } else if (is_signed) {
        element_set(d, low, 0, INT64_MIN >> (64 - bits));
        element_set(d, high, 0, INT64_MAX >> (64 - bits));
    } else {
        element_set(d, low, 0, 0);
        element_set(d, high, 0, -1);
    }
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *in;
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    enum dtype d = x->dtype;
    _Alignas(8) char low[8], high[8];
    least_and_largest(d, low, high);
    if (n->opset < 11) {
        if (node_attr(n, "min"))
            element_set(d, low, (double)node_float(n, "min", 0), (int64_t)node_float(n, "min", 0));
        if (node_attr(n, "max"))
            element_set(d, high, (double)node_float(n, "max", 0), (int64_t)node_float(n, "max", 0));
    }
    for (uint32_t i = 1; i < 3; i++) {
        if (!node_has(n, i) || !(in = run_in(r, i)))
            continue;
        if (tensor_count(in) != 1)
            return node_error(n, e, "a limit has %lld elements instead of one", (long long)tensor_count(in));
        memcpy(i == 1 ? low : high, tensor_data(in), dtype_bytes(d));
    }
    int64_t count = tensor_count(x);
    if (!dtype_is_half(d)) {
        limit(d, count, tensor_data(x), low, high, tensor_data(y));
        return ST_OK;
    }
    float wide[256], wl, wh;
    half_widen(d, 1, low, 1, &wl);
    half_widen(d, 1, high, 1, &wh);
    for (int64_t i = 0; i < count; i += 256) {
        int64_t c = count - i < 256 ? count - i : 256;
        half_widen(d, c, (const uint16_t *)tensor_data(x) + i, 1, wide);
        limit(DT_F32, c, wide, &wl, &wh, wide);
        half_narrow(d, c, wide, (uint16_t *)tensor_data(y) + i);
    }
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    return in == 0 ? follow_elementwise(s, in, axis, out) : -1;
}

const struct op_def ops_clip[] = {
    {.domain = "", .name = "Clip", .since = 6, .until = 10, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_IN_PLACE,
     .shape = shape, .run = run, .follow = follow},
    {.domain = "", .name = "Clip", .since = 11, .until = OPSET_ANY, .min_in = 1, .max_in = 3, .min_out = 1, .max_out = 1, .flags = OP_IN_PLACE,
     .shape = shape, .run = run, .follow = follow},
    {0},
};
