/* BatchNormalization, InstanceNormalization, GroupNormalization: y = x * scale + shift with one scale and one shift per channel, which the last
   two take from the record itself. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/wide.h"

/* n elements; scale and shift were computed in double */
static void affine(enum dtype d, const void *x, size_t first, size_t n, double scale, double shift, enum dtype to, void *y)
{
    if (d == DT_F32 && to == DT_F32) {
        const float *from = (const float *)x + first;
        float *out = (float *)y + first, s = (float)scale, t = (float)shift;
        for (size_t i = 0; i < n; i++)
            out[i] = from[i] * s + t;
        return;
    }
    for (size_t i = first; i < first + n; i++)
        wide_put(to, y, i, wide_get(d, x, i) * scale + shift);
}

/* Mean and variance in double, element j in lane j mod 8. */
static void moments(enum dtype d, const void *x, size_t first, size_t n, double *mean, double *variance)
{
    double lane[8] = {0}, m = 0;
    const float *f = d == DT_F32 ? (const float *)x + first : NULL;
    for (int pass = 0; pass < 2; pass++) {
        size_t j = 0;
        memset(lane, 0, sizeof lane);
        for (; f && j + 8 <= n; j += 8)
            for (int l = 0; l < 8; l++) {
                double v = (double)f[j + (size_t)l];
                lane[l] += pass ? (v - m) * (v - m) : v;
            }
        for (; j < n; j++) {
            double v = wide_get(d, x, first + j);
            lane[j % 8] += pass ? (v - m) * (v - m) : v;
        }
        double sum = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
        if (pass == 0)
            m = n ? sum / (double)n : 0;
        else
            *variance = n ? sum / (double)n : 0;
    }
    *mean = m;
}

static enum status channel_params(struct shaping *s, uint32_t first, uint32_t last, dim channels, struct err *e)
{
    for (uint32_t i = first; i <= last; i++) {
        TRY(shape_float(s, i, 1, e));
        TRY(shape_rank(s, i, 1, e));
        if (s->in[i].rank == 1 && dim_known(channels) && dim_known(s->in[i].dims[0]) && s->in[i].dims[0] != channels)
            return node_error(s->node, e, "input %u has %lld values; there are %lld channels", i, (long long)s->in[i].dims[0],
                              (long long)channels);
    }
    return ST_OK;
}

static dim channels_of(const struct type *x)
{
    return x->rank >= 2 ? x->dims[1] : x->rank == 1 ? 1 : DIM_UNKNOWN;
}

static enum status batch_check(struct node *n, struct err *e)
{
    if (node_int(n, "training_mode", 0) || (n->opset < 7 && !node_int(n, "is_test", 0)))
        return node_error(n, e, "training mode is not supported: export the model for inference");
    if (n->opset < 9 && !node_int(n, "spatial", 1))
        return node_error(n, e, "attribute 'spatial' is 0; statistics for each place are not supported");
    for (uint32_t i = 1; i < n->n_out; i++)
        if (n->out[i] >= 0)
            return node_error(n, e, "its output %u is of training: export the model for inference", i);
    return ST_OK;
}

static enum status batch_shape(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 1, e));
    TRY(channel_params(s, 1, 4, channels_of(&s->in[0]), e));
    for (uint32_t o = 0; o < s->n_out; o++)
        shape_as(s, o, o == 0 ? 0 : 1); /* beyond the first: never used, see check */
    return ST_OK;
}

static enum status batch_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *p[5];
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    for (uint32_t i = 1; i < 5; i++)
        p[i] = run_in(r, i);
    double eps = (double)node_float(n, "epsilon", 1e-5f);
    size_t channels = x->rank > 1 ? (size_t)x->dims[1] : 1, each = 1;
    for (uint32_t i = 2; i < x->rank; i++)
        each *= (size_t)x->dims[i];
    for (size_t i = 0, all = (size_t)tensor_count(x) / each; i < all; i++) {
        size_t c = i % channels;
        double scale = wide_get(p[1]->dtype, tensor_data(p[1]), c) / sqrt(wide_get(p[4]->dtype, tensor_data(p[4]), c) + eps);
        double shift = wide_get(p[2]->dtype, tensor_data(p[2]), c) - wide_get(p[3]->dtype, tensor_data(p[3]), c) * scale;
        affine(x->dtype, tensor_data(x), i * each, each, scale, shift, y->dtype, tensor_data(y));
    }
    return ST_OK;
}

static int batch_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return in == 0 && (axis != 1 || s->in[0].rank < 2) ? (int)axis : -1;
}

static enum status instance_shape(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 3, e));
    TRY(channel_params(s, 1, 2, channels_of(&s->in[0]), e));
    shape_as(s, 0, 0);
    return ST_OK;
}

/* Statistics over `group` channels at a time. */
static enum status grouped(struct run *r, const struct node *n, size_t group, int scale_per_group)
{
    const struct tensor *x = run_in(r, 0), *gamma = run_in(r, 1), *beta = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    double eps = (double)node_float(n, "epsilon", 1e-5f);
    size_t channels = (size_t)x->dims[1], each = (size_t)tensor_count(x) / ((size_t)x->dims[0] * channels);
    for (size_t i = 0, all = (size_t)x->dims[0] * channels; i < all; i += group) {
        double mean, variance;
        moments(x->dtype, tensor_data(x), i * each, group * each, &mean, &variance);
        double inverse = 1 / sqrt(variance + eps);
        for (size_t j = i; j < i + group; j++) {
            size_t c = j % channels, at = scale_per_group ? c / group : c;
            double scale = wide_get(gamma->dtype, tensor_data(gamma), at) * inverse;
            double shift = wide_get(beta->dtype, tensor_data(beta), at) - mean * scale;
            affine(x->dtype, tensor_data(x), j * each, each, scale, shift, y->dtype, tensor_data(y));
        }
    }
    return ST_OK;
}

static enum status instance_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    return grouped(r, n, 1, 0);
}

static enum status group_check(struct node *n, struct err *e)
{
    if (node_int(n, "num_groups", 0) < 1)
        return node_error(n, e, "attribute 'num_groups' is missing or not positive");
    return ST_OK;
}

static enum status group_shape(struct shaping *s, struct err *e)
{
    int64_t groups = node_int(s->node, "num_groups", 1);
    TRY(shape_float(s, 0, 2, e));
    dim c = channels_of(&s->in[0]);
    if (dim_known(c) && c % groups)
        return node_error(s->node, e, "%lld channels do not go into %lld groups", (long long)c, (long long)groups);
    TRY(channel_params(s, 1, 2, s->node->opset < 21 ? groups : c, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status group_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    const struct tensor *x = run_in(r, 0);
    return grouped(r, n, (size_t)(x->dims[1] / node_int(n, "num_groups", 1)), n->opset < 21);
}

const struct op_def ops_channel_norm[] = {
    {.domain = "", .name = "BatchNormalization", .since = 6, .until = OPSET_ANY, .min_in = 5, .max_in = 5, .min_out = 1, .max_out = 5,
     .flags = OP_IN_PLACE, .check = batch_check, .shape = batch_shape, .run = batch_run, .follow = batch_follow},
    {.domain = "", .name = "InstanceNormalization", .since = 6, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
     .shape = instance_shape, .run = instance_run, .follow = follow_axis0},
    {.domain = "", .name = "GroupNormalization", .since = 18, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
     .check = group_check, .shape = group_shape, .run = group_run, .follow = follow_axis0},
    {0},
};
