#include "workers/tensor_in/elements.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void tensor_in_release(struct tensor_in *t)
{
    mem_free(t->data);
    memset(t, 0, sizeof *t);
}

enum status tensor_in_reserve(struct tensor_in *t, uint64_t count, struct err *e)
{
    size_t want;
    if (__builtin_mul_overflow(count, dtype_bytes(t->dtype), &want))
        return err_nomem(e, "a tensor of a record");
    if (want <= t->cap && t->data)
        return ST_OK;
    if (want < 256)
        want = 256;
    void *p = mem_resize(t->data, want);
    if (!p)
        return err_nomem(e, "a tensor of a record");
    t->data = p;
    t->cap = want;
    return ST_OK;
}

static void words_of(char *to, size_t size, uint32_t rank, const int64_t *dims)
{
    size_t at = (size_t)snprintf(to, size, "[");
    for (uint32_t i = 0; i < rank && at < size; i++) {
        if (dims[i] < 0)
            at += (size_t)snprintf(to + at, size - at, "%sany", i ? ", " : "");
        else
            at += (size_t)snprintf(to + at, size - at, "%s%lld", i ? ", " : "", (long long)dims[i]);
    }
    if (at < size)
        snprintf(to + at, size - at, "]");
}

enum status tensor_in_fits(const struct tensor_want *w, const struct tensor_in *t, struct err *e)
{
    int fits = w->rank == t->rank;
    for (uint32_t i = 0; fits && i < w->rank; i++)
        fits = w->dims[i] < 0 || w->dims[i] == t->dims[i];
    if (fits)
        return ST_OK;
    char has[256], wants[256];
    words_of(has, sizeof has, t->rank, t->dims);
    words_of(wants, sizeof wants, w->rank, w->dims);
    return err_set(e, ST_USER, "'%s' has the shape %s, the model wants %s", w->name, has, wants);
}

static const char *put_signed(const struct numeral *n, int64_t low, int64_t high, int64_t *v)
{
    if (!n->whole)
        return "is no whole number";
    if (n->negative ? n->magnitude > (uint64_t)high + 1 || -(int64_t)(n->magnitude - 1) - 1 < low : n->magnitude > (uint64_t)high)
        return "is outside of the type's range";
    *v = n->negative && n->magnitude ? -(int64_t)(n->magnitude - 1) - 1 : (int64_t)n->magnitude;
    return NULL;
}

static const char *put_unsigned(const struct numeral *n, uint64_t high, uint64_t *v)
{
    if (!n->whole)
        return "is no whole number";
    if ((n->negative && n->magnitude) || n->magnitude > high)
        return "is outside of the type's range";
    *v = n->magnitude;
    return NULL;
}

#define PUT_SIGNED(type, low, high)                                                                                              \
    do {                                                                                                                         \
        wrong = put_signed(n, low, high, &s);                                                                                    \
        if (!wrong)                                                                                                              \
            ((type *)data)[at] = (type)s;                                                                                        \
        return wrong;                                                                                                            \
    } while (0)
#define PUT_UNSIGNED(type, high)                                                                                                 \
    do {                                                                                                                         \
        wrong = put_unsigned(n, high, &u);                                                                                       \
        if (!wrong)                                                                                                              \
            ((type *)data)[at] = (type)u;                                                                                        \
        return wrong;                                                                                                            \
    } while (0)

static int finite(double x)
{
    return x - x == 0;
}

const char *element_put(enum dtype d, void *data, uint64_t at, const struct numeral *n)
{
    static const char large[] = "is too large for the type";
    const char *wrong;
    int64_t s;
    uint64_t u;
    switch (d) {
    case DT_F64:
        ((double *)data)[at] = n->real;
        return NULL;
    case DT_F32: {
        float f = (float)n->real;
        ((float *)data)[at] = f;
        return finite(n->real) && !finite((double)f) ? large : NULL;
    }
    case DT_F16:
        ((uint16_t *)data)[at] = f64_to_f16(n->real);
        return finite(n->real) && (((uint16_t *)data)[at] & 0x7c00) == 0x7c00 ? large : NULL;
    case DT_BF16: {
        float f = (float)n->real;
        ((uint16_t *)data)[at] = f32_to_bf16(f);
        return finite(n->real) && (((uint16_t *)data)[at] & 0x7f80) == 0x7f80 ? large : NULL;
    }
    case DT_I8:
        PUT_SIGNED(int8_t, INT8_MIN, INT8_MAX);
    case DT_I16:
        PUT_SIGNED(int16_t, INT16_MIN, INT16_MAX);
    case DT_I32:
        PUT_SIGNED(int32_t, INT32_MIN, INT32_MAX);
    case DT_I64:
        PUT_SIGNED(int64_t, INT64_MIN, INT64_MAX);
    case DT_U8:
        PUT_UNSIGNED(uint8_t, UINT8_MAX);
    case DT_U16:
        PUT_UNSIGNED(uint16_t, UINT16_MAX);
    case DT_U32:
        PUT_UNSIGNED(uint32_t, UINT32_MAX);
    case DT_U64:
        PUT_UNSIGNED(uint64_t, UINT64_MAX);
    case DT_BOOL:
        PUT_UNSIGNED(uint8_t, 1);
    case DT_NONE:
    case DT_STR:
    case DT_END:
        break;
    }
    return "is a number, the model wants something else";
}
