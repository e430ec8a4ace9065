#include "workers/engine/ops/wide.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

double wide_get(enum dtype d, const void *p, size_t i)
{
    switch (d) {
    case DT_F32: return (double)((const float *)p)[i];
    case DT_F64: return ((const double *)p)[i];
    case DT_F16: return (double)f16_to_f32(((const uint16_t *)p)[i]);
    case DT_BF16: return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_U8:
    case DT_BOOL: return ((const uint8_t *)p)[i];
    case DT_I8: return ((const int8_t *)p)[i];
    case DT_U16: return ((const uint16_t *)p)[i];
    case DT_I16: return ((const int16_t *)p)[i];
    case DT_U32: return ((const uint32_t *)p)[i];
    case DT_I32: return ((const int32_t *)p)[i];
    case DT_U64: return (double)((const uint64_t *)p)[i];
    case DT_I64: return (double)((const int64_t *)p)[i];
    case DT_STR:
    case DT_NONE:
    case DT_END: break;
    }
    BUG("element type %d is not a number", (int)d);
}

static double clamp(double x, double lo, double hi)
{
    return x >= hi ? hi : x > lo ? nearbyint(x) : lo; /* NaN becomes the least */
}

void wide_put(enum dtype d, void *p, size_t i, double x)
{
    switch (d) {
    case DT_F32: ((float *)p)[i] = (float)x; return;
    case DT_F64: ((double *)p)[i] = x; return;
    case DT_F16: ((uint16_t *)p)[i] = f64_to_f16(x); return;
    case DT_BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)x); return;
    case DT_BOOL: ((uint8_t *)p)[i] = x != 0; return;
    case DT_U8: ((uint8_t *)p)[i] = (uint8_t)clamp(x, 0, UINT8_MAX); return;
    case DT_I8: ((int8_t *)p)[i] = (int8_t)clamp(x, INT8_MIN, INT8_MAX); return;
    case DT_U16: ((uint16_t *)p)[i] = (uint16_t)clamp(x, 0, UINT16_MAX); return;
    case DT_I16: ((int16_t *)p)[i] = (int16_t)clamp(x, INT16_MIN, INT16_MAX); return;
    case DT_U32: ((uint32_t *)p)[i] = (uint32_t)clamp(x, 0, UINT32_MAX); return;
    case DT_I32: ((int32_t *)p)[i] = (int32_t)clamp(x, INT32_MIN, INT32_MAX); return;
    case DT_U64: ((uint64_t *)p)[i] = x >= 0x1p64 ? UINT64_MAX : (uint64_t)clamp(x, 0, 0x1p64); return;
    case DT_I64: ((int64_t *)p)[i] = x >= 0x1p63 ? INT64_MAX : x > -0x1p63 ? (int64_t)nearbyint(x) : INT64_MIN; return;
    case DT_STR:
    case DT_NONE:
    case DT_END: break;
    }
    BUG("element type %d is not a number", (int)d);
}

enum status wide_load(struct run *r, const struct tensor *t, double **out, struct err *e)
{
    size_t n = (size_t)tensor_count(t);
    void *p;
    TRY(run_scratch(r, (n + 1) * sizeof(double), &p, e));
    *out = p;
    const void *from = tensor_data(t);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = wide_get(t->dtype, from, i);
    return ST_OK;
}

void wide_store(struct tensor *t, const double *x)
{
    size_t n = (size_t)tensor_count(t);
    void *to = tensor_data(t);
    for (size_t i = 0; i < n; i++)
        wide_put(t->dtype, to, i, x[i]);
}

enum status wide_f32(struct run *r, const struct tensor *t, const float **out, struct err *e)
{
    *out = NULL;
    if (!t)
        return ST_OK;
    const void *from = tensor_data(t);
    if (t->dtype == DT_F32) {
        *out = from;
        return ST_OK;
    }
    size_t n = (size_t)tensor_count(t);
    void *p;
    TRY(run_scratch(r, (n + 1) * sizeof(float), &p, e));
    float *to = p;
    for (size_t i = 0; i < n; i++)
        to[i] = (float)wide_get(t->dtype, from, i);
    *out = to;
    return ST_OK;
}

enum status wide_f32_out(struct run *r, struct tensor *t, float **out, struct err *e)
{
    *out = NULL;
    if (!t)
        return ST_OK;
    if (!t->buffer) /* sizes beyond what can be counted: its shape function could not tell them */
        return err_set(e, ST_USER, "an output's size cannot be told from its inputs");
    if (t->dtype == DT_F32) {
        *out = tensor_data(t);
        return ST_OK;
    }
    void *p;
    TRY(run_scratch(r, ((size_t)tensor_count(t) + 1) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

void wide_f32_done(struct tensor *t, const float *x)
{
    if (!t || t->dtype == DT_F32)
        return;
    size_t n = (size_t)tensor_count(t);
    void *to = tensor_data(t);
    for (size_t i = 0; i < n; i++)
        wide_put(t->dtype, to, i, (double)x[i]);
}

enum status wide_i64(struct run *r, const struct tensor *t, const int64_t **out, struct err *e)
{
    if (t->dtype == DT_I64) {
        *out = tensor_data(t);
        return ST_OK;
    }
    size_t n = (size_t)tensor_count(t);
    void *p;
    TRY(run_scratch(r, (n + 1) * sizeof(int64_t), &p, e));
    int64_t *to = p;
    const void *from = tensor_data(t);
    for (size_t i = 0; i < n; i++)
        to[i] = t->dtype == DT_U64 ? (int64_t)((const uint64_t *)from)[i] : (int64_t)wide_get(t->dtype, from, i);
    *out = to;
    return ST_OK;
}

void shape_as(struct shaping *s, uint32_t out, uint32_t in)
{
    if (!shape_wants(s, out))
        return;
    s->out[out] = s->in[in];
    s->out[out].values = NULL;
    s->out[out].optional = 0;
}

int shape_has(const struct shaping *s, uint32_t i)
{
    return i < s->n_in && s->in[i].kind != VALUE_NONE;
}

int shape_wants(const struct shaping *s, uint32_t o)
{
    return o < s->n_out;
}

enum status shape_rank(const struct shaping *s, uint32_t i, int rank, struct err *e)
{
    if (!shape_has(s, i))
        return node_error(s->node, e, "input %u is missing", i);
    if (s->in[i].rank >= 0 && s->in[i].rank != rank)
        return node_error(s->node, e, "input %u has %d axes; %d are needed", i, s->in[i].rank, rank);
    return ST_OK;
}

enum status shape_type(const struct shaping *s, uint32_t i, enum dtype d, struct err *e)
{
    if (!shape_has(s, i))
        return node_error(s->node, e, "input %u is missing", i);
    if (s->in[i].kind != VALUE_TENSOR || s->in[i].dtype != d)
        return node_error(s->node, e, "input %u is of type %s; %s is needed", i,
                          s->in[i].kind == VALUE_TENSOR ? dtype_name(s->in[i].dtype) : "sequence", dtype_name(d));
    return ST_OK;
}

enum status shape_float(const struct shaping *s, uint32_t i, int rank, struct err *e)
{
    if (!shape_has(s, i))
        return node_error(s->node, e, "input %u is missing", i);
    const struct type *t = &s->in[i];
    if (t->kind != VALUE_TENSOR || !dtype_is_float(t->dtype))
        return node_error(s->node, e, "input %u is of type %s; a floating point type is needed", i,
                          t->kind == VALUE_TENSOR ? dtype_name(t->dtype) : "sequence");
    if (t->rank >= 0 && t->rank < rank)
        return node_error(s->node, e, "input %u has %d axes; at least %d are needed", i, t->rank, rank);
    return ST_OK;
}

enum status shape_like_float(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 0, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

int shape_ints(const struct shaping *s, uint32_t i, const dim **values, uint32_t *count)
{
    if (!shape_has(s, i) || !s->in[i].values || s->in[i].rank > 1)
        return 0;
    int64_t n = s->in[i].rank == 1 ? s->in[i].dims[0] : 1;
    if (n < 0 || n > VALUES_MAX)
        return 0;
    *values = s->in[i].values;
    *count = (uint32_t)n;
    return 1;
}

int follow_axis0(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return in == 0 && axis == 0 ? 0 : -1;
}

int follow_but_last(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return in == 0 && s->in[0].rank > 0 && (int)axis < s->in[0].rank - 1 ? (int)axis : -1;
}

void release_state(struct node *n)
{
    mem_free(n->state);
    n->state = NULL;
}
