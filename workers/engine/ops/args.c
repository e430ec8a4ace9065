#include "workers/engine/ops/args.h"

#include <string.h>

enum status arg_type(const struct shaping *s, uint32_t i, uint32_t types, struct err *e)
{
    if (!arg_there(s, i))
        return node_error(s->node, e, "input %u is missing", i);
    if (s->in[i].kind != VALUE_TENSOR)
        return node_error(s->node, e, "input %u is a sequence, a tensor is wanted", i);
    if (!(types >> s->in[i].dtype & 1))
        return node_error(s->node, e, "input %u is of type %s, which is not supported here", i, dtype_name(s->in[i].dtype));
    return ST_OK;
}

enum status arg_same(const struct shaping *s, uint32_t i, struct err *e)
{
    TRY(arg_type(s, i, ~0u, e));
    if (s->in[i].dtype != s->in[0].dtype)
        return node_error(s->node, e, "input 0 is of type %s and input %u of type %s; they must be the same", dtype_name(s->in[0].dtype), i,
                          dtype_name(s->in[i].dtype));
    return ST_OK;
}

const dim *arg_values(const struct shaping *s, uint32_t i, uint32_t *count)
{
    const struct type *t = &s->in[i];
    if (!arg_there(s, i) || !t->values || t->rank < 0)
        return NULL;
    int64_t n = 1;
    for (int k = 0; k < t->rank; k++) {
        if (!dim_known(t->dims[k]) || t->dims[k] > VALUES_MAX)
            return NULL;
        n *= t->dims[k];
        if (n > VALUES_MAX)
            return NULL;
    }
    *count = (uint32_t)n;
    return t->values;
}

static enum status ints_of(const struct node *n, const struct tensor *t, uint32_t i, uint32_t cap, int64_t *out, uint32_t *count, struct err *e)
{
    int64_t c = tensor_count(t);
    if (c < 0 || c > cap)
        return node_error(n, e, "input %u has %lld elements, at most %u make sense", i, (long long)c, cap);
    for (int64_t k = 0; k < c; k++)
        out[k] = tensor_i64(t, k);
    *count = (uint32_t)c;
    return ST_OK;
}

enum status arg_ints(const struct shaping *s, uint32_t i, uint32_t cap, int64_t *out, uint32_t *count, enum arg *got, struct err *e)
{
    *count = 0;
    *got = ARG_NONE;
    if (!arg_there(s, i))
        return ST_OK;
    TRY(arg_type(s, i, TYPES_INT, e));
    *got = ARG_UNKNOWN;
    if (s->constants && s->constants[i] && s->constants[i]->buffer) {
        *got = ARG_KNOWN;
        return ints_of(s->node, s->constants[i], i, cap, out, count, e);
    }
    uint32_t c = 0;
    const dim *v = arg_values(s, i, &c);
    if (!v)
        return ST_OK;
    if (c > cap)
        return node_error(s->node, e, "input %u has %u elements, at most %u make sense", i, c, cap);
    for (uint32_t k = 0; k < c; k++) {
        if (!dim_known(v[k]))
            return ST_OK;
        out[k] = v[k];
    }
    *count = c;
    *got = ARG_KNOWN;
    return ST_OK;
}

enum status arg_dims(const struct shaping *s, uint32_t i, uint32_t cap, dim *out, uint32_t *count, enum arg *got, struct err *e)
{
    TRY(arg_ints(s, i, cap, out, count, got, e));
    for (uint32_t k = 0; *got == ARG_KNOWN && k < *count; k++)
        if (out[k] < DIM_LEAST) /* "from the very start", as exporters write it; what lies there names expressions */
            out[k] = DIM_LEAST;
    if (*got != ARG_UNKNOWN)
        return ST_OK;
    uint32_t c = 0;
    const dim *v = arg_values(s, i, &c);
    if (!v)
        return ST_OK;
    memcpy(out, v, c * sizeof *v); /* arg_ints has compared c with cap */
    *count = c;
    *got = ARG_KNOWN;
    return ST_OK;
}

enum status sizes_told(const struct shaping *s, struct err *e)
{
    for (int i = 0; !s->syms && i < s->out[0].rank; i++)
        if (!dim_known(s->out[0].dims[i]))
            return node_error(s->node, e, "the size of axis %d of the output is out of range", i);
    return ST_OK;
}

static enum status axes_sort(const struct node *n, int64_t *axes, uint32_t count, int rank, uint32_t *out, struct err *e)
{
    uint32_t seen = 0, c = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t a;
        TRY(axis_in(n, axes[k], rank, &a, e));
        if (seen >> a & 1)
            return node_error(n, e, "axis %lld is named twice", (long long)axes[k]);
        seen |= 1u << a;
    }
    for (uint32_t a = 0; a < RANK_MAX; a++)
        if (seen >> a & 1)
            out[c++] = a;
    return ST_OK;
}

static enum status axes_attr(const struct node *n, int64_t *axes, uint32_t *count, enum arg *got, struct err *e)
{
    const int64_t *a = node_ints(n, "axes", count);
    if (!a)
        *count = 0;
    if (*count > RANK_MAX)
        return node_error(n, e, "%u axes, at most %d make sense", *count, RANK_MAX);
    *got = node_attr(n, "axes") ? ARG_KNOWN : ARG_NONE;
    for (uint32_t i = 0; i < *count; i++)
        axes[i] = a[i];
    return ST_OK;
}

enum status arg_axes(const struct shaping *s, uint32_t i, int rank, uint32_t *out, uint32_t *count, enum arg *got, struct err *e)
{
    int64_t axes[RANK_MAX];
    if (i && arg_there(s, i))
        TRY(arg_ints(s, i, RANK_MAX, axes, count, got, e));
    else
        TRY(axes_attr(s->node, axes, count, got, e));
    return axes_sort(s->node, axes, *count, rank, out, e);
}

enum status run_axes(const struct run *r, const struct node *n, uint32_t i, uint32_t rank, uint32_t *out, uint32_t *count, enum arg *got,
                     struct err *e)
{
    int64_t axes[RANK_MAX];
    const struct tensor *t = i && node_has(n, i) ? run_in(r, i) : NULL;
    if (t) {
        TRY(ints_of(n, t, i, RANK_MAX, axes, count, e));
        *got = ARG_KNOWN;
    } else {
        TRY(axes_attr(n, axes, count, got, e));
    }
    return axes_sort(n, axes, *count, (int)rank, out, e);
}

double tensor_f64(const struct tensor *t, int64_t i)
{
    const void *p = tensor_data(t);
    switch (t->dtype) {
    case DT_F32:
        return (double)((const float *)p)[i];
    case DT_F64:
        return ((const double *)p)[i];
    case DT_F16:
        return (double)f16_to_f32(((const uint16_t *)p)[i]);
    case DT_BF16:
        return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_U64:
        return (double)((const uint64_t *)p)[i];
    default:
        return (double)tensor_i64(t, i);
    }
}

/* Casting a float outside the range of an integer is undefined in C. */
static int64_t to_i64(double f)
{
    if (f != f)
        return 0;
    if (f >= 9223372036854775807.0)
        return INT64_MAX;
    if (f <= -9223372036854775808.0)
        return INT64_MIN;
    return (int64_t)f;
}

int64_t tensor_i64(const struct tensor *t, int64_t i)
{
    const void *p = tensor_data(t);
    switch (t->dtype) {
    case DT_I64:
        return ((const int64_t *)p)[i];
    case DT_I32:
        return ((const int32_t *)p)[i];
    case DT_I16:
        return ((const int16_t *)p)[i];
    case DT_I8:
        return ((const int8_t *)p)[i];
    case DT_U64:
        return (int64_t)((const uint64_t *)p)[i];
    case DT_U32:
        return ((const uint32_t *)p)[i];
    case DT_U16:
        return ((const uint16_t *)p)[i];
    case DT_U8:
    case DT_BOOL:
        return ((const uint8_t *)p)[i];
    case DT_F32:
    case DT_F64:
    case DT_F16:
    case DT_BF16:
        return to_i64(tensor_f64(t, i));
    case DT_NONE:
    case DT_STR:
    case DT_END:
        break;
    }
    return 0;
}

void element_set(enum dtype d, void *element, double f, int64_t i)
{
    union {
        float f32;
        double f64;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        uint8_t u8;
    } u = {.u64 = 0};
    switch (d) {
    case DT_F32:
        u.f32 = (float)f;
        break;
    case DT_F64:
        u.f64 = f;
        break;
    case DT_F16:
        u.u16 = f64_to_f16(f);
        break;
    case DT_BF16:
        u.u16 = f32_to_bf16((float)f);
        break;
    case DT_U8:
    case DT_I8:
        u.u8 = (uint8_t)i;
        break;
    case DT_BOOL:
        u.u8 = i != 0;
        break;
    case DT_U16:
    case DT_I16:
        u.u16 = (uint16_t)i;
        break;
    case DT_U32:
    case DT_I32:
        u.u32 = (uint32_t)i;
        break;
    case DT_U64:
    case DT_I64:
        u.u64 = (uint64_t)i;
        break;
    case DT_NONE:
    case DT_STR:
    case DT_END:
        BUG("a number for an element of type %d", d);
    }
    memcpy(element, &u, dtype_bytes(d));
}

/* The conversions of dtype.h without branches, so that the compiler makes vectors of them. */
static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    uint32_t scaled = bits_of(float_of(rest) * 0x1p112f); /* the exponent's bias; subnormals come out right */
    return float_of(sign | (rest >= 0x7c00u << 13 ? rest | 0x7f800000u : scaled));
}

static inline uint16_t narrow_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    uint32_t normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f); /* 2^-24 is the last bit of 0.5: the sum rounds */
    uint32_t r = rest < 113u << 23 ? small : normal;
    r = r > 0x7c00 || rest >= 0x47800000u ? 0x7c00 : r; /* 65536 and more */
    r = rest > 0x7f800000u ? 0x7e00 | (rest >> 13 & 0x1ff) : r;
    return (uint16_t)(sign | r);
}

static inline uint16_t narrow_bf16(float f)
{
    uint32_t u = bits_of(f), r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000u ? (u >> 16 | 0x40) : r);
}

void half_widen(enum dtype d, int64_t n, const void *from, int64_t step, float *to)
{
    const uint16_t *f = from;
    if (d == DT_F16 && step == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = widen_f16(f[i]);
    else if (d == DT_F16)
        for (int64_t i = 0; i < n; i++)
            to[i] = widen_f16(f[i * step]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = float_of((uint32_t)f[i * step] << 16);
}

void half_narrow(enum dtype d, int64_t n, const float *from, void *to)
{
    uint16_t *t = to;
    if (d == DT_F16)
        for (int64_t i = 0; i < n; i++)
            t[i] = narrow_f16(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            t[i] = narrow_bf16(from[i]);
}

/* ONNX divides towards zero, dim_div towards minus infinity; expressions are sizes. */
dim value_div(struct syms *s, dim a, dim b)
{
    if (dim_known(a) && dim_known(b))
        return b == 0 ? DIM_UNKNOWN : a / b;
    if (dim_known(b) && b <= 0)
        return DIM_UNKNOWN;
    return dim_div(s, a, b);
}

dim value_equal(struct syms *s, dim a, dim b)
{
    (void)s;
    if (a == DIM_UNKNOWN || b == DIM_UNKNOWN)
        return DIM_UNKNOWN;
    if (dim_known(a) && dim_known(b))
        return a == b;
    if (a == b)
        return 1;
    /* expressions are sizes: never negative */
    if ((dim_known(a) && a < 0) || (dim_known(b) && b < 0))
        return 0;
    return DIM_UNKNOWN;
}

dim *values_room(struct shaping *s, uint32_t out, uint32_t count)
{
    if (!s->syms || count > VALUES_MAX || !s->room)
        return NULL;
    dim *v = s->room(s, count);
    s->out[out].values = v;
    return v;
}

dim dim_of_value(struct syms *s, dim v)
{
    return v == DIM_UNKNOWN || (dim_known(v) && v < 0) ? dim_fresh(s) : v;
}

dim dims_product(struct syms *s, const dim *dims, int first, int last)
{
    dim p = 1;
    for (int i = first; i < last; i++)
        p = dim_mul(s, p, dims[i]);
    return p;
}
