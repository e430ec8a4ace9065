/* LRN, LpNormalization, MeanVarianceNormalization: in double, element by element. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/wide.h"

static enum status lrn_check(struct node *n, struct err *e)
{
    return node_int(n, "size", 0) > 0 ? ST_OK : node_error(n, e, "attribute 'size' is missing or not positive");
}

static enum status lrn_shape(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 2, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status lrn_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int64_t size = node_int(n, "size", 1), channels = x->dims[1], each = tensor_count(x) / (x->dims[0] * channels);
    double alpha = (double)node_float(n, "alpha", 1e-4f) / (double)size, beta = (double)node_float(n, "beta", 0.75f),
           bias = (double)node_float(n, "bias", 1), *in;
    TRY(wide_load(r, x, &in, e));
    for (int64_t b = 0; b < x->dims[0]; b++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t lo = c - (size - 1) / 2, hi = c + size / 2;
            lo = lo > 0 ? lo : 0, hi = hi < channels - 1 ? hi : channels - 1;
            for (int64_t i = 0; i < each; i++) {
                double sum = 0;
                for (int64_t k = lo; k <= hi; k++)
                    sum += in[(b * channels + k) * each + i] * in[(b * channels + k) * each + i];
                int64_t at = (b * channels + c) * each + i;
                wide_put(y->dtype, tensor_data(y), (size_t)at, in[at] / pow(bias + alpha * sum, beta));
            }
        }
    return ST_OK;
}

static int lrn_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)out;
    return axis != 1 ? (int)axis : -1;
}

static enum status lp_check(struct node *n, struct err *e)
{
    int64_t p = node_int(n, "p", 2);
    return p == 1 || p == 2 ? ST_OK : node_error(n, e, "attribute 'p' is %lld; 1 or 2 is needed", (long long)p);
}

static enum status lp_shape(struct shaping *s, struct err *e)
{
    uint32_t axis;
    TRY(shape_float(s, 0, 1, e));
    if (s->in[0].rank >= 0)
        TRY(axis_in(s->node, node_int(s->node, "axis", -1), s->in[0].rank, &axis, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status lp_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    TRY(axis_in(n, node_int(n, "axis", -1), (int)x->rank, &axis, e));
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int64_t count = x->dims[axis], step = 1, p = node_int(n, "p", 2);
    for (uint32_t i = axis + 1; i < x->rank; i++)
        step *= x->dims[i];
    double *in;
    TRY(wide_load(r, x, &in, e));
    for (int64_t i = 0; i < tensor_count(x) / count; i++) {
        double *row = in + i / step * step * count + i % step, norm = 0;
        for (int64_t k = 0; k < count; k++)
            norm += p == 1 ? fabs(row[k * step]) : row[k * step] * row[k * step];
        norm = p == 1 ? norm : sqrt(norm);
        for (int64_t k = 0; k < count; k++)
            row[k * step] = norm != 0 ? row[k * step] / norm : 0;
    }
    wide_store(y, in);
    return ST_OK;
}

static int lp_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    int64_t own = node_int(s->node, "axis", -1);
    return s->in[0].rank >= 0 && (int64_t)axis != (own < 0 ? own + s->in[0].rank : own) ? (int)axis : -1;
}

/* Bit i: axis i is part of the mean. */
static enum status mean_axes(const struct node *n, int rank, uint32_t *out, struct err *e)
{
    static const int64_t usual[] = {0, 2, 3};
    uint32_t count, axis;
    const int64_t *axes = node_ints(n, "axes", &count);
    if (!axes)
        axes = usual, count = 3;
    *out = 0;
    for (uint32_t i = 0; i < count; i++) {
        TRY(axis_in(n, axes[i], rank, &axis, e));
        *out |= 1u << axis;
    }
    return ST_OK;
}

static enum status mean_shape(struct shaping *s, struct err *e)
{
    uint32_t axes;
    TRY(shape_float(s, 0, 1, e));
    if (s->in[0].rank >= 0)
        TRY(mean_axes(s->node, s->in[0].rank, &axes, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status mean_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    uint32_t axes;
    TRY(mean_axes(n, (int)x->rank, &axes, e));
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int64_t step[RANK_MAX], groups = 1; /* of an axis that is kept, in the table of means */
    for (uint32_t i = x->rank; i-- > 0;) {
        step[i] = axes >> i & 1 ? 0 : groups;
        groups *= axes >> i & 1 ? 1 : x->dims[i];
    }
    double *in, *sum;
    void *p;
    TRY(wide_load(r, x, &in, e));
    TRY(run_scratch(r, (size_t)groups * 2 * sizeof(double), &p, e));
    sum = memset(p, 0, (size_t)groups * 2 * sizeof(double));
    int64_t all = tensor_count(x);
    double each = (double)(all / groups);
    for (int pass = 0; pass < 3; pass++)
        for (int64_t i = 0; i < all; i++) {
            int64_t left = i, g = 0;
            for (uint32_t a = x->rank; a-- > 0; left /= x->dims[a])
                g += left % x->dims[a] * step[a];
            double d = in[i] - sum[g] / each;
            if (pass == 0)
                sum[g] += in[i];
            else if (pass == 1)
                sum[groups + g] += d * d;
            else
                wide_put(y->dtype, tensor_data(y), (size_t)i, d / (sqrt(sum[groups + g] / each) + 1e-9));
        }
    return ST_OK;
}

static int mean_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    uint32_t axes;
    (void)in, (void)out;
    return s->in[0].rank >= 0 && mean_axes(s->node, s->in[0].rank, &axes, NULL) == ST_OK && !(axes >> axis & 1) ? (int)axis : -1;
}

#define ONE .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1
const struct op_def ops_lrn[] = {
    {.domain = "", .name = "LRN", .since = 1, .until = OPSET_ANY, ONE, .check = lrn_check, .shape = lrn_shape, .run = lrn_run, .follow = lrn_follow},
    {.domain = "", .name = "LpNormalization", .since = 1, .until = OPSET_ANY, ONE, .check = lp_check, .shape = lp_shape, .run = lp_run,
     .follow = lp_follow},
    {.domain = "", .name = "MeanVarianceNormalization", .since = 9, .until = OPSET_ANY, ONE, .shape = mean_shape, .run = mean_run,
     .follow = mean_follow},
    {0},
};
