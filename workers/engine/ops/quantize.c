/* QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: per tensor, per axis, in blocks along an axis. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/quant.h"
#include "workers/engine/ops/wide.h"

int quant_range(enum dtype d, int32_t *lo, int32_t *hi)
{
    switch (d) {
    case DT_U8: *lo = 0, *hi = UINT8_MAX; return 1;
    case DT_I8: *lo = INT8_MIN, *hi = INT8_MAX; return 1;
    case DT_U16: *lo = 0, *hi = UINT16_MAX; return 1;
    case DT_I16: *lo = INT16_MIN, *hi = INT16_MAX; return 1;
    default: *lo = *hi = 0; return 0;
    }
}

/* Where the scale of element (outer, k, inner) stands. */
struct scales {
    int64_t count, inner; /* along the axis; elements behind one index of it */
    int single, per_axis; /* one scale for all; one for each index of the axis; else blocks: */
    int64_t block, blocks; /* indices of the axis that share a scale; how many such */
};

static enum status scales_of(const struct node *n, const struct tensor *x, const struct tensor *scale, struct scales *out, struct err *e)
{
    uint32_t axis;
    *out = (struct scales){.count = 1, .inner = 1, .block = 1, .blocks = 1};
    if (tensor_count(scale) == 1 && scale->rank <= 1) {
        out->inner = tensor_count(x);
        out->single = 1;
        return ST_OK;
    }
    TRY(axis_in(n, node_int(n, "axis", 1), (int)x->rank, &axis, e));
    out->count = x->dims[axis];
    for (uint32_t i = axis + 1; i < x->rank; i++)
        out->inner *= x->dims[i];
    int64_t block = node_int(n, "block_size", 0);
    if (scale->rank == 1) {
        if (scale->dims[0] != out->count)
            return node_error(n, e, "%lld scales for %lld indices of axis %u", (long long)scale->dims[0], (long long)out->count, axis);
        out->per_axis = 1;
        return ST_OK;
    }
    if (scale->rank != x->rank || block < 1)
        return node_error(n, e, "its scales have %u axes, its input %u, and attribute 'block_size' is %lld", scale->rank, x->rank,
                          (long long)block);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t want = i == axis ? (x->dims[i] + block - 1) / block : x->dims[i];
        if (scale->dims[i] != want)
            return node_error(n, e, "its scales have %lld along axis %u; %lld are needed", (long long)scale->dims[i], i, (long long)want);
    }
    out->block = block;
    out->blocks = scale->dims[axis];
    return ST_OK;
}

static int64_t scale_at(const struct scales *s, int64_t outer, int64_t k, int64_t inner)
{
    if (s->single || s->per_axis)
        return s->single ? 0 : k;
    return (outer * s->blocks + k / s->block) * s->inner + inner;
}

static int is_quantized(enum dtype d)
{
    int32_t lo, hi;
    return quant_range(d, &lo, &hi);
}

static enum dtype quantized_type(const struct shaping *s)
{
    if (shape_has(s, 2))
        return s->in[2].dtype;
    int64_t d = node_int(s->node, "output_dtype", 0);
    return d ? (enum dtype)d : DT_U8;
}

static enum status same_counts(struct shaping *s, struct err *e)
{
    if (!shape_has(s, 2) || s->in[1].rank < 0 || s->in[2].rank < 0)
        return ST_OK;
    dim a = type_count(s, &s->in[1]), b = type_count(s, &s->in[2]);
    if (dim_known(a) && dim_known(b) && a != b)
        return node_error(s->node, e, "%lld scales but %lld zero points", (long long)a, (long long)b);
    return ST_OK;
}

static enum status quantize_shape(struct shaping *s, struct err *e)
{
    if (s->in[0].kind != VALUE_TENSOR || (!dtype_is_float(s->in[0].dtype) && s->in[0].dtype != DT_I32))
        return node_error(s->node, e, "its input is of type %s", dtype_name(s->in[0].dtype));
    TRY(shape_float(s, 1, 0, e));
    enum dtype d = quantized_type(s);
    if (!is_quantized(d))
        return node_error(s->node, e, "quantising to %s is not supported; int8, uint8, int16 and uint16 are", dtype_name(d));
    TRY(same_counts(s, e));
    shape_as(s, 0, 0);
    s->out[0].dtype = d;
    return ST_OK;
}

static int32_t int_at(enum dtype d, const void *p, int64_t i)
{
    switch (d) {
    case DT_U8: return ((const uint8_t *)p)[i];
    case DT_I8: return ((const int8_t *)p)[i];
    case DT_U16: return ((const uint16_t *)p)[i];
    case DT_I16: return ((const int16_t *)p)[i];
    default: return ((const int32_t *)p)[i];
    }
}

static void int_set(enum dtype d, void *p, int64_t i, int32_t v)
{
    switch (d) {
    case DT_U8: ((uint8_t *)p)[i] = (uint8_t)v; return;
    case DT_I8: ((int8_t *)p)[i] = (int8_t)v; return;
    case DT_U16: ((uint16_t *)p)[i] = (uint16_t)v; return;
    case DT_I16: ((int16_t *)p)[i] = (int16_t)v; return;
    default: ((int32_t *)p)[i] = v; return;
    }
}

static enum status quantize_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *scale = run_in(r, 1), *zero = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    struct scales s;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    TRY(scales_of(n, x, scale, &s, e));
    const float *from, *by;
    int32_t lo, hi;
    TRY(wide_f32(r, x, &from, e));
    TRY(wide_f32(r, scale, &by, e));
    quant_range(y->dtype, &lo, &hi);
    int64_t i = 0;
    int bytes = lo >= INT8_MIN && hi <= UINT8_MAX;
    for (int64_t outer = 0, outers = tensor_count(x) / (s.count * s.inner); outer < outers; outer++)
        for (int64_t k = 0; k < s.count; k++) {
            if (bytes && (s.single || s.per_axis)) { /* one scale for all that lie behind each other */
                int64_t at = scale_at(&s, outer, k, 0);
                float scale_of = by[at];
                int32_t zero_of = zero ? int_at(zero->dtype, tensor_data(zero), at) : 0;
                uint8_t *to = (uint8_t *)tensor_data(y) + i;
                for (int64_t j = 0; j < s.inner; j++)
                    to[j] = (uint8_t)quant_one(from[i + j], scale_of, zero_of, lo, hi);
                i += s.inner;
                continue;
            }
            for (int64_t j = 0; j < s.inner; j++, i++) {
                int64_t at = scale_at(&s, outer, k, j);
                int_set(y->dtype, tensor_data(y), i, quant_one(from[i], by[at], zero ? int_at(zero->dtype, tensor_data(zero), at) : 0, lo, hi));
            }
        }
    return ST_OK;
}

static enum status dequantize_shape(struct shaping *s, struct err *e)
{
    enum dtype d = s->in[0].dtype;
    if (s->in[0].kind != VALUE_TENSOR || (!is_quantized(d) && d != DT_I32))
        return node_error(s->node, e, "dequantising %s is not supported; int8, uint8, int16, uint16 and int32 are", dtype_name(d));
    TRY(shape_float(s, 1, 0, e));
    if (shape_has(s, 2))
        TRY(shape_type(s, 2, d, e));
    TRY(same_counts(s, e));
    int64_t to = node_int(s->node, "output_dtype", 0);
    shape_as(s, 0, 0);
    s->out[0].dtype = to ? (enum dtype)to : s->in[1].dtype;
    return dtype_is_float(s->out[0].dtype) ? ST_OK : node_error(s->node, e, "attribute 'output_dtype' is %s", dtype_name(s->out[0].dtype));
}

static enum status dequantize_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *scale = run_in(r, 1), *zero = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    struct scales s;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    TRY(scales_of(n, x, scale, &s, e));
    const float *by;
    float *to;
    TRY(wide_f32(r, scale, &by, e));
    TRY(wide_f32_out(r, y, &to, e));
    int64_t i = 0;
    for (int64_t outer = 0, outers = tensor_count(x) / (s.count * s.inner); outer < outers; outer++)
        for (int64_t k = 0; k < s.count; k++)
            for (int64_t j = 0; j < s.inner; j++, i++) {
                int64_t at = scale_at(&s, outer, k, j);
                int64_t v = (int64_t)int_at(x->dtype, tensor_data(x), i) - (zero ? int_at(zero->dtype, tensor_data(zero), at) : 0);
                to[i] = (float)v * by[at];
            }
    wide_f32_done(y, to);
    return ST_OK;
}

static int quantize_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    if (in != 0 || s->in[0].rank < 0)
        return -1;
    int64_t own = node_int(s->node, "axis", 1);
    own = own < 0 ? own + s->in[0].rank : own;
    if (s->in[1].rank > 1) /* in blocks: the scales have this axis too */
        return -1;
    return s->in[1].rank == 1 && (int64_t)axis == own && s->in[1].dims[0] != 1 ? -1 : (int)axis;
}

/* DynamicQuantizeLinear: scale and zero point from the least and the largest element --------------------------------------------------- */

static enum status dynamic_shape(struct shaping *s, struct err *e)
{
    TRY(shape_type(s, 0, DT_F32, e));
    shape_as(s, 0, 0);
    s->out[0].dtype = DT_U8;
    if (shape_wants(s, 1))
        type_tensor(&s->out[1], DT_F32, 0, NULL);
    if (shape_wants(s, 2))
        type_tensor(&s->out[2], DT_U8, 0, NULL);
    return ST_OK;
}

void quant_dynamic(size_t n, const float *x, float *scale, uint8_t *zero)
{
    float least[16] = {0}, most[16] = {0}, lo = 0, hi = 0; /* in lanes, which vectors take; the order does not matter */
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) {
            least[k] = x[i + (size_t)k] < least[k] ? x[i + (size_t)k] : least[k];
            most[k] = x[i + (size_t)k] > most[k] ? x[i + (size_t)k] : most[k];
        }
    for (; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    for (int k = 0; k < 16; k++) {
        lo = least[k] < lo ? least[k] : lo;
        hi = most[k] > hi ? most[k] : hi;
    }
    *scale = (hi - lo) / 255;
    *zero = 0;
    if (!(*scale > 0)) {
        *scale = 1;
        return;
    }
    float z = quant_round(0 - lo / *scale);
    *zero = (uint8_t)(z >= 255 ? 255 : z > 0 ? z : 0);
}

static enum status dynamic_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0), *s = n->n_out > 1 ? run_out(r, 1) : NULL, *z = n->n_out > 2 ? run_out(r, 2) : NULL;
    float scale;
    uint8_t zero;
    (void)e;
    quant_dynamic((size_t)tensor_count(x), tensor_data(x), &scale, &zero);
    const float *from = tensor_data(x);
    for (int64_t i = 0; y && i < tensor_count(x); i++)
        ((uint8_t *)tensor_data(y))[i] = (uint8_t)quant_one(from[i], scale, zero, 0, 255);
    if (s)
        *(float *)tensor_data(s) = scale;
    if (z)
        *(uint8_t *)tensor_data(z) = zero;
    return ST_OK;
}

#define TURN(d, op, from, in, fn) {.domain = d, .name = op, .since = from, .until = OPSET_ANY, .min_in = in, .max_in = 3, .min_out = 1, .max_out = 1, \
                                   .shape = fn##_shape, .run = fn##_run, .follow = quantize_follow}
const struct op_def ops_quantize[] = {
    TURN("", "QuantizeLinear", 10, 2, quantize),
    TURN("", "DequantizeLinear", 10, 2, dequantize),
    TURN("com.microsoft", "QuantizeLinear", 1, 3, quantize),
    TURN("com.microsoft", "DequantizeLinear", 1, 3, dequantize),
    {.domain = "", .name = "DynamicQuantizeLinear", .since = 11, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 3,
     .shape = dynamic_shape, .run = dynamic_run},
    {0},
};
