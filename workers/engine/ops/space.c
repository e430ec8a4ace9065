#include "workers/engine/ops/space.h"

#include <string.h>

static enum status read_ints(const struct node *n, const char *name, uint32_t want, uint32_t each, int64_t least, int64_t otherwise,
                             int64_t *first, int64_t *second, struct err *e)
{
    uint32_t count;
    const int64_t *v = node_ints(n, name, &count);
    if (v && count != want * each)
        return node_error(n, e, "attribute '%s' has %u values; %u are needed for %u spatial axes", name, count, want * each, want);
    for (uint32_t i = 0; i < SPACE_MAX; i++) {
        uint32_t skip = SPACE_MAX - want;
        first[i] = i < skip ? (least > 0 ? 1 : 0) : v ? v[i - skip] : otherwise;
        if (second)
            second[i] = i < skip ? 0 : v ? v[i - skip + want] : otherwise;
        if (i >= skip && v && (first[i] < least || first[i] > 1 << 24 || (second && (second[i] < least || second[i] > 1 << 24))))
            return node_error(n, e, "attribute '%s' holds %lld; it must be %lld or more", name,
                              (long long)(second && second[i] < least ? second[i] : first[i]), (long long)least);
    }
    return ST_OK;
}

static enum status read_auto(const struct node *n, enum space_auto *out, struct err *e)
{
    const char *how = node_string(n, "auto_pad", "NOTSET");
    if (!strcmp(how, "NOTSET") || !how[0])
        *out = SPACE_GIVEN;
    else if (!strcmp(how, "SAME_UPPER"))
        *out = SPACE_SAME_UPPER;
    else if (!strcmp(how, "SAME_LOWER"))
        *out = SPACE_SAME_LOWER;
    else if (!strcmp(how, "VALID"))
        *out = SPACE_VALID;
    else
        return node_error(n, e, "attribute 'auto_pad' is '%s'; NOTSET, SAME_UPPER, SAME_LOWER or VALID is needed", how);
    return ST_OK;
}

enum status space_read(const struct node *n, int rank, const dim *weights, struct space *out, struct err *e)
{
    if (rank < 3 || rank > 2 + SPACE_MAX)
        return node_error(n, e, "its input has %d axes; one to three spatial axes behind batch and channels are supported", rank);
    uint32_t axes = (uint32_t)rank - 2, count;
    *out = (struct space){.n = axes, .ceil = node_int(n, "ceil_mode", 0) != 0};
    TRY(read_ints(n, "strides", axes, 1, 1, 1, out->stride, NULL, e));
    TRY(read_ints(n, "dilations", axes, 1, 1, 1, out->dilation, NULL, e));
    TRY(read_ints(n, "pads", axes, 2, 0, 0, out->begin, out->end, e));
    TRY(read_auto(n, &out->how, e));
    if (out->how != SPACE_GIVEN)
        memset(out->begin, 0, sizeof out->begin), memset(out->end, 0, sizeof out->end);
    if (node_ints(n, "kernel_shape", &count)) {
        TRY(read_ints(n, "kernel_shape", axes, 1, 1, 1, out->kernel, NULL, e));
    } else if (!weights) {
        return node_error(n, e, "attribute 'kernel_shape' is missing");
    }
    if (weights)
        for (uint32_t i = 0; i < SPACE_MAX; i++) {
            dim w = i < SPACE_MAX - axes ? 1 : weights[i - (SPACE_MAX - axes)];
            if (count && dim_known(w) && w != out->kernel[i])
                return node_error(n, e, "attribute 'kernel_shape' says %lld where the weights have %lld", (long long)out->kernel[i],
                                  (long long)w);
            if (dim_known(w) && w < 1)
                return node_error(n, e, "its weights have no elements along a spatial axis");
            if (!count)
                out->kernel[i] = w;
        }
    return ST_OK;
}

enum status space_check(struct node *n, struct err *e)
{
    enum space_auto how;
    return read_auto(n, &how, e);
}

enum status space_out(const struct space *p, struct syms *syms, const struct node *n, uint32_t i, dim in, dim *out, struct err *e)
{
    if (p->how == SPACE_SAME_UPPER || p->how == SPACE_SAME_LOWER) {
        *out = dim_ceil_div(syms, in, p->stride[i]);
        return ST_OK;
    }
    dim padded = dim_add(syms, in, p->begin[i] + p->end[i]);
    dim reach = dim_add(syms, dim_mul(syms, dim_sub(syms, p->kernel[i], 1), p->dilation[i]), 1);
    if (dim_known(padded) && dim_known(reach) && padded < reach)
        return node_error(n, e, "its window of %lld does not fit the padded input of %lld", (long long)reach, (long long)padded);
    dim room = dim_sub(syms, padded, reach);
    if (!p->ceil) {
        *out = dim_add(syms, dim_div(syms, room, p->stride[i]), 1);
        return ST_OK;
    }
    /* a last window that would begin in the padding behind does not count */
    dim all = dim_add(syms, dim_ceil_div(syms, room, p->stride[i]), 1);
    dim begun = dim_ceil_div(syms, dim_add(syms, in, p->begin[i]), p->stride[i]);
    *out = dim_min(syms, all, begun);
    return ST_OK;
}

void space_pads(struct space *p, const int64_t in[SPACE_MAX], const int64_t out[SPACE_MAX])
{
    if (p->how != SPACE_SAME_UPPER && p->how != SPACE_SAME_LOWER)
        return;
    for (uint32_t i = 0; i < SPACE_MAX; i++) {
        int64_t all = (out[i] - 1) * p->stride[i] + (p->kernel[i] - 1) * p->dilation[i] + 1 - in[i];
        all = all > 0 ? all : 0;
        p->begin[i] = p->how == SPACE_SAME_UPPER ? all / 2 : all - all / 2;
        p->end[i] = all - p->begin[i];
    }
}

void space_dims(const struct tensor *t, int64_t out[SPACE_MAX])
{
    uint32_t axes = t->rank - 2;
    for (uint32_t i = 0; i < SPACE_MAX; i++)
        out[i] = i < SPACE_MAX - axes ? 1 : t->dims[2 + i - (SPACE_MAX - axes)];
}
