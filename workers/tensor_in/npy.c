/* Elements of a .npy array, in their type and byte order, to those of the model's input. */
#include <stdio.h>
#include <string.h>

#include "workers/tensor_in/elements.h"

static uint64_t bits_of(const uint8_t *p, uint32_t size, int big)
{
    uint64_t v = 0;
    for (uint32_t i = 0; i < size; i++)
        v |= (uint64_t)p[i] << 8 * (big ? size - 1 - i : i);
    return v;
}

static void read_element(const struct npy *n, const uint8_t *p, struct numeral *out)
{
    uint64_t bits = bits_of(p, n->size, n->big_endian);
    *out = (struct numeral){.whole = n->kind != 'f'};
    if (n->kind == 'f' && n->size == 8) {
        memcpy(&out->real, &bits, 8);
    } else if (n->kind == 'f' && n->size == 4) {
        uint32_t half = (uint32_t)bits;
        float f;
        memcpy(&f, &half, 4);
        out->real = (double)f;
    } else if (n->kind == 'f') {
        out->real = (double)f16_to_f32((uint16_t)bits);
    } else if (n->kind == 'i') {
        uint32_t unused = 64 - 8 * n->size;
        int64_t v = (int64_t)(bits << unused) >> unused;
        out->negative = v < 0;
        out->magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
        out->real = (double)v;
    } else {
        out->magnitude = n->kind == 'b' ? bits != 0 : bits;
        out->real = (double)out->magnitude;
    }
}

/* The same bytes will do */
static int same_type(const struct npy *n, enum dtype d)
{
    if (n->big_endian && n->size > 1)
        return 0;
    switch (d) {
    case DT_F16:
        return n->kind == 'f' && n->size == 2;
    case DT_F32:
        return n->kind == 'f' && n->size == 4;
    case DT_F64:
        return n->kind == 'f' && n->size == 8;
    case DT_I8:
    case DT_I16:
    case DT_I32:
    case DT_I64:
        return n->kind == 'i' && n->size == dtype_bytes(d);
    case DT_U8:
    case DT_U16:
    case DT_U32:
    case DT_U64:
        return n->kind == 'u' && n->size == dtype_bytes(d);
    default: /* a boolean may be any byte at rest */
        return 0;
    }
}

enum status tensor_in_npy(const struct tensor_want *w, const struct npy *n, int row, const void *data, size_t len, struct tensor_in *out,
                          struct err *e)
{
    BUG_IF(w->rank > RANK_MAX || !dtype_bytes(w->dtype), "an input of rank %u and type %d", w->rank, (int)w->dtype);
    out->dtype = w->dtype;
    out->count = 0;
    if (row && !n->rank)
        return err_set(e, ST_USER, "'%s': an array without axes has no rows", w->name);
    out->rank = n->rank - (row ? 1 : 0);
    uint64_t count = 1;
    for (uint32_t i = 0; i < out->rank; i++) {
        out->dims[i] = (int64_t)n->dims[i + (row ? 1 : 0)];
        count *= (uint64_t)out->dims[i]; /* npy_parse has checked the product */
    }
    TRY(tensor_in_fits(w, out, e));
    if (len != count * n->size)
        return err_set(e, ST_USER, "'%s' has %zu bytes, %llu are needed", w->name, len, (unsigned long long)(count * n->size));
    if (n->kind == 'f' && !dtype_is_float(w->dtype))
        return err_set(e, ST_USER, "'%s' holds floats, the model wants %s", w->name, dtype_name(w->dtype));
    TRY(tensor_in_reserve(out, count, e));
    const uint8_t *p = data;
    if (same_type(n, w->dtype)) {
        if (len)
            memcpy(out->data, p, len);
    } else {
        for (uint64_t i = 0; i < count; i++, p += n->size) {
            struct numeral v;
            read_element(n, p, &v);
            const char *bad = element_put(w->dtype, out->data, i, &v);
            if (bad)
                return err_set(e, ST_USER, "'%s': element %llu %s (%s)", w->name, (unsigned long long)i, bad, dtype_name(w->dtype));
        }
    }
    out->count = count;
    return ST_OK;
}
