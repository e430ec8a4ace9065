/* CenterCropPad: each of some axes is brought to a size, by cutting or by zeros, as much before as behind. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

static enum status axes_of(const struct node *n, int rank, uint32_t *axes, uint32_t *count, struct err *e)
{
    const int64_t *a = node_ints(n, "axes", count);
    if (!a) {
        *count = (uint32_t)rank;
        for (int i = 0; i < rank; i++)
            axes[i] = (uint32_t)i;
        return ST_OK;
    }
    if (*count > RANK_MAX)
        return node_error(n, e, "too many axes");
    for (uint32_t i = 0; i < *count; i++)
        TRY(axis_in(n, a[i], rank, &axes[i], e));
    return ST_OK;
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER | TYPE(BOOL), e));
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    const struct type *x = &s->in[0];
    uint32_t axes[RANK_MAX], count, n;
    dim want[RANK_MAX];
    enum arg got;
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank < 0)
        return ST_OK;
    TRY(axes_of(s->node, x->rank, axes, &count, e));
    TRY(arg_dims(s, 1, RANK_MAX, want, &n, &got, e));
    if (got == ARG_KNOWN && n != count)
        return node_error(s->node, e, "%u sizes for %u axes", n, count);
    for (uint32_t i = 0; i < count; i++) {
        dim d = got == ARG_KNOWN ? want[i] : DIM_UNKNOWN;
        if (dim_known(d) && d < 0)
            return node_error(s->node, e, "size %u is %lld", i, (long long)d);
        s->out[0].dims[axes[i]] = d == DIM_UNKNOWN ? dim_fresh(s->syms) : d;
    }
    return sizes_told(s, e);
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    (void)n, (void)e;
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y || !tensor_count(y))
        return ST_OK;
    int64_t dims[RANK_MAX], from[RANK_MAX], to[RANK_MAX], f = 0, t = 0;
    size_t z = dtype_bytes(x->dtype);
    row_major(x->rank, x->dims, from);
    row_major(y->rank, y->dims, to);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t a = x->dims[i], b = y->dims[i];
        dims[i] = a < b ? a : b;
        f += a > b ? (a - b) / 2 * from[i] : 0;
        t += a < b ? (b - a) / 2 * to[i] : 0;
    }
    memset(tensor_data(y), 0, (size_t)tensor_count(y) * z);
    copy_steps(z, x->rank, dims, (const char *)tensor_data(x) + f * (int64_t)z, from, (char *)tensor_data(y) + t * (int64_t)z, to);
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t axes[RANK_MAX], count;
    if (in != 0 || s->in[0].rank < 0 || axes_of(s->node, s->in[0].rank, axes, &count, NULL) != ST_OK)
        return -1;
    for (uint32_t i = 0; i < count; i++)
        if (axes[i] == axis)
            return -1;
    return (int)axis;
}

const struct op_def ops_crop[] = {
    {.domain = "", .name = "CenterCropPad", .since = 18, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = shape, .run = run, .follow = follow},
    {0},
};
