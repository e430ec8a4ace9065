/* Col2Im: windows laid out as columns are added up to images. CenterCropPad. DeformConv. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

enum { AXES_MAX = 6 };

static int64_t attr_at(const struct node *n, const char *name, uint32_t i, int64_t otherwise)
{
    uint32_t count;
    const int64_t *v = node_ints(n, name, &count);
    return v && i < count ? v[i] : otherwise;
}

static enum status col_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    const dim *image, *block;
    uint32_t n_image, n_block;
    if (x->kind != VALUE_TENSOR || x->dtype == DT_STR || x->dtype == DT_BOOL)
        return node_error(s->node, e, "its input is of type %s", dtype_name(x->dtype));
    TRY(shape_rank(s, 0, 3, e));
    TRY(shape_type(s, 1, DT_I64, e));
    TRY(shape_type(s, 2, DT_I64, e));
    if (!shape_ints(s, 1, &image, &n_image) || !shape_ints(s, 2, &block, &n_block) || x->rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, s->in[1].rank == 1 && dim_known(s->in[1].dims[0]) ? 2 + (int)s->in[1].dims[0] : -1);
        return ST_OK;
    }
    if (n_image != n_block || n_image < 1 || n_image > AXES_MAX)
        return node_error(s->node, e, "an image of %u axes and blocks of %u", n_image, n_block);
    dim dims[RANK_MAX] = {x->dims[0], x->dims[1]};
    for (uint32_t i = 0; i < n_image; i++) {
        if ((dim_known(image[i]) && image[i] < 1) || (dim_known(block[i]) && block[i] < 1))
            return node_error(s->node, e, "sizes of image and block must be positive");
        dims[1] = dim_div(s->syms, dims[1], block[i]);
        dims[2 + i] = image[i] == DIM_UNKNOWN ? dim_fresh(s->syms) : image[i];
    }
    type_tensor(&s->out[0], x->dtype, 2 + (int)n_image, dims);
    return ST_OK;
}

static enum status col_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *b = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    uint32_t axes = y->rank - 2;
    const int64_t *block = tensor_data(b);
    int64_t windows[AXES_MAX], taps = 1, places = 1;
    for (uint32_t i = 0; i < axes; i++) {
        int64_t d = attr_at(n, "dilations", i, 1), st = attr_at(n, "strides", i, 1);
        int64_t room = y->dims[2 + i] + attr_at(n, "pads", i, 0) + attr_at(n, "pads", i + axes, 0) - d * (block[i] - 1) - 1;
        if (st < 1 || d < 1 || room < 0)
            return node_error(n, e, "its blocks do not fit the image");
        windows[i] = room / st + 1;
        taps *= block[i], places *= windows[i];
    }
    if (x->dims[1] % taps || x->dims[2] != places || x->dims[1] / taps != y->dims[1])
        return node_error(n, e, "its input is %lld x %lld; blocks of %lld at %lld places are needed", (long long)x->dims[1], (long long)x->dims[2],
                          (long long)taps, (long long)places);
    double *in, *sum;
    void *p;
    TRY(wide_load(r, x, &in, e));
    TRY(run_scratch(r, (size_t)tensor_count(y) * sizeof(double), &p, e));
    sum = memset(p, 0, (size_t)tensor_count(y) * sizeof(double));
    int64_t plane = tensor_count(y) / (y->dims[0] * y->dims[1]);
    for (int64_t i = 0, all = tensor_count(x); i < all; i++) {
        int64_t place = i % places, tap = i / places % taps, at = 0, step = 1;
        for (uint32_t a = axes; a-- > 0; place /= windows[a], tap /= block[a], step *= y->dims[2 + a]) {
            int64_t v = place % windows[a] * attr_at(n, "strides", a, 1) + tap % block[a] * attr_at(n, "dilations", a, 1) - attr_at(n, "pads", a, 0);
            at = at < 0 || v < 0 || v >= y->dims[2 + a] ? -1 : at + v * step;
        }
        if (at >= 0)
            sum[i / (places * taps) * plane + at] += in[i];
    }
    wide_store(y, sum);
    return ST_OK;
}

/* CenterCropPad ------------------------------------------------------------------------------------------------------------------------------- */

static enum status crop_axes(const struct node *n, int rank, uint32_t *axes, uint32_t *count, struct err *e)
{
    const int64_t *v = node_ints(n, "axes", count);
    if (!v)
        *count = (uint32_t)rank;
    if (*count > (uint32_t)rank)
        return node_error(n, e, "%u axes of %d", *count, rank);
    for (uint32_t i = 0; i < *count; i++) {
        axes[i] = i;
        if (v)
            TRY(axis_in(n, v[i], rank, &axes[i], e));
    }
    return ST_OK;
}

static enum status crop_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    const dim *size;
    uint32_t axes[RANK_MAX], n_axes, count;
    if (x->kind != VALUE_TENSOR || x->dtype == DT_STR)
        return node_error(s->node, e, "its input is of type %s", dtype_name(x->dtype));
    type_unknown(s, &s->out[0], x->dtype, x->rank);
    if (x->rank < 0)
        return ST_OK;
    TRY(crop_axes(s->node, x->rank, axes, &n_axes, e));
    dim dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    int known = shape_ints(s, 1, &size, &count);
    if (known && count != n_axes)
        return node_error(s->node, e, "%u sizes for %u axes", count, n_axes);
    for (uint32_t i = 0; i < n_axes; i++) {
        dims[axes[i]] = known && size[i] != DIM_UNKNOWN ? size[i] : dim_fresh(s->syms);
        if (dim_known(dims[axes[i]]) && known && dims[axes[i]] < 0)
            return node_error(s->node, e, "size %lld", (long long)dims[axes[i]]);
    }
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    return ST_OK;
}

static enum status crop_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    (void)n, (void)e;
    if (!y)
        return ST_OK;
    size_t size = dtype_bytes(x->dtype);
    memset(tensor_data(y), 0, (size_t)tensor_count(y) * size);
    for (int64_t i = 0, all = tensor_count(y); i < all; i++) {
        int64_t left = i, at = 0, step = 1;
        for (uint32_t a = y->rank; a-- > 0; left /= y->dims[a], step *= x->dims[a]) {
            int64_t from = x->dims[a], to = y->dims[a], v = left % to + (from > to ? (from - to) / 2 : -((to - from) / 2));
            at = at < 0 || v < 0 || v >= from ? -1 : at + v * step;
        }
        if (at >= 0)
            memcpy((char *)tensor_data(y) + (size_t)i * size, (const char *)tensor_data(x) + (size_t)at * size, size);
    }
    return ST_OK;
}

static int crop_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    uint32_t axes[RANK_MAX], count;
    (void)out;
    if (in != 0 || s->in[0].rank < 0 || crop_axes(s->node, s->in[0].rank, axes, &count, NULL) != ST_OK)
        return -1;
    for (uint32_t i = 0; i < count; i++)
        if (axes[i] == axis)
            return -1;
    return (int)axis;
}

/* DeformConv, two spatial axes: each tap is displaced by an offset of its own and read bilinearly ---------------------------------------------- */

static enum status deform_check(struct node *n, struct err *e)
{
    if (node_int(n, "group", 1) < 1 || node_int(n, "offset_group", 1) < 1)
        return node_error(n, e, "groups must be positive");
    return ST_OK;
}

static enum status deform_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *w = &s->in[1];
    for (uint32_t i = 0; i < 5 && i < s->n_in; i++)
        if (i < 3 || shape_has(s, i))
            TRY(shape_float(s, i, i == 3 ? 1 : 4, e));
    TRY(shape_rank(s, 0, 4, e));
    TRY(shape_rank(s, 1, 4, e));
    type_unknown(s, &s->out[0], x->dtype, 4);
    if (x->rank < 0 || w->rank < 0)
        return ST_OK;
    struct space p;
    TRY(space_read(s->node, 4, w->dims + 2, &p, e));
    dim dims[RANK_MAX] = {x->dims[0], w->dims[0]};
    for (uint32_t i = 1; i < 3; i++)
        TRY(space_out(&p, s->syms, s->node, i, x->dims[1 + i], &dims[1 + i], e));
    type_tensor(&s->out[0], x->dtype, 4, dims);
    return ST_OK;
}

static double bilinear(const double *x, int64_t h, int64_t w, double py, double px)
{
    if (!(py > -1 && px > -1 && py < (double)h && px < (double)w))
        return 0;
    int64_t y0 = (int64_t)floor(py), x0 = (int64_t)floor(px);
    double ly = py - (double)y0, lx = px - (double)x0, sum = 0;
    for (int k = 0; k < 4; k++) {
        int64_t a = y0 + k / 2, b = x0 + k % 2;
        if (a >= 0 && b >= 0 && a < h && b < w)
            sum += (k / 2 ? ly : 1 - ly) * (k % 2 ? lx : 1 - lx) * x[a * w + b];
    }
    return sum;
}

static enum status deform_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[5] = {0};
    struct tensor *y = run_out(r, 0);
    double *v[5] = {0};
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    for (uint32_t i = 0; i < n->n_in && i < 5; i++) {
        in[i] = run_in(r, i);
        if (in[i])
            TRY(wide_load(r, in[i], &v[i], e));
    }
    struct space p;
    TRY(space_read(n, 4, in[1]->dims + 2, &p, e));
    int64_t groups = node_int(n, "group", 1), og = node_int(n, "offset_group", 1), c = in[0]->dims[1], h = in[0]->dims[2], w = in[0]->dims[3];
    int64_t oc = y->dims[1], oh = y->dims[2], ow = y->dims[3], kh = p.kernel[1], kw = p.kernel[2], taps = kh * kw;
    if (c % groups || oc % groups || c % og || in[1]->dims[1] != c / groups || tensor_count(in[2]) != y->dims[0] * og * 2 * taps * oh * ow ||
        (in[3] && tensor_count(in[3]) != oc) || (in[4] && tensor_count(in[4]) != y->dims[0] * og * taps * oh * ow))
        return node_error(n, e, "its weights, offsets, bias or mask do not go with its input");
    for (int64_t i = 0, all = tensor_count(y); i < all; i++) {
        int64_t q = i % (oh * ow), o = i / (oh * ow) % oc, b = i / (oh * ow * oc), g = o / (oc / groups);
        double sum = in[3] ? v[3][o] : 0;
        for (int64_t k = 0; k < c / groups; k++) {
            int64_t channel = g * (c / groups) + k, d = channel / (c / og);
            for (int64_t t = 0; t < taps; t++) {
                const double *off = v[2] + (((b * og + d) * taps + t) * 2) * oh * ow + q;
                double py = (double)(q / ow * p.stride[1] - p.begin[1] + t / kw * p.dilation[1]) + off[0];
                double px = (double)(q % ow * p.stride[2] - p.begin[2] + t % kw * p.dilation[2]) + off[oh * ow];
                double value = bilinear(v[0] + (b * c + channel) * h * w, h, w, py, px) * v[1][(o * (c / groups) + k) * taps + t];
                sum += in[4] ? value * v[4][((b * og + d) * taps + t) * oh * ow + q] : value;
            }
        }
        wide_put(y->dtype, tensor_data(y), (size_t)i, sum);
    }
    return ST_OK;
}

static int deform_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return axis == 0 && (in == 0 || in == 2 || in == 4) ? 0 : -1;
}

const struct op_def ops_col2im[] = {
    {.domain = "", .name = "Col2Im", .since = 18, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
     .shape = col_shape, .run = col_run, .follow = follow_axis0},
    {.domain = "", .name = "CenterCropPad", .since = 18, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = crop_shape, .run = crop_run, .follow = crop_follow},
    {.domain = "", .name = "DeformConv", .since = 19, .until = OPSET_ANY, .min_in = 3, .max_in = 5, .min_out = 1, .max_out = 1,
     .check = deform_check, .shape = deform_shape, .run = deform_run, .follow = deform_follow},
    {0},
};
