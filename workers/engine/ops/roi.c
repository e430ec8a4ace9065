/* RoiAlign and MaxRoiPool: regions of images become maps of one size. In double. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/wide.h"

static enum status align_check(struct node *n, struct err *e)
{
    const char *mode = node_string(n, "mode", "avg"), *how = node_string(n, "coordinate_transformation_mode", "half_pixel");
    if (strcmp(mode, "avg") && strcmp(mode, "max"))
        return node_error(n, e, "attribute 'mode' is '%s'", mode);
    if (strcmp(how, "half_pixel") && strcmp(how, "output_half_pixel"))
        return node_error(n, e, "attribute 'coordinate_transformation_mode' is '%s'", how);
    if (node_int(n, "output_height", 1) < 1 || node_int(n, "output_width", 1) < 1 || node_int(n, "sampling_ratio", 0) < 0)
        return node_error(n, e, "output sizes must be positive and the sampling ratio not negative");
    return ST_OK;
}

static enum status align_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *rois = &s->in[1];
    TRY(shape_float(s, 0, 4, e));
    TRY(shape_rank(s, 0, 4, e));
    TRY(shape_float(s, 1, 2, e));
    TRY(shape_rank(s, 1, 2, e));
    TRY(shape_type(s, 2, DT_I64, e));
    TRY(shape_rank(s, 2, 1, e));
    if (rois->rank == 2 && dim_known(rois->dims[1]) && rois->dims[1] != 4)
        return node_error(s->node, e, "its regions have %lld numbers; 4 are needed", (long long)rois->dims[1]);
    dim count = rois->rank == 2 ? rois->dims[0] : dim_fresh(s->syms), c = x->rank == 4 ? x->dims[1] : dim_fresh(s->syms);
    type_tensor(&s->out[0], x->dtype, 4, (dim[]){count, c, node_int(s->node, "output_height", 1), node_int(s->node, "output_width", 1)});
    return ST_OK;
}

/* One bilinear sample: four places and weights; zero weights outside. */
struct sample {
    int64_t at[4];
    double weight[4];
};

static struct sample sample_at(double y, double x, int64_t h, int64_t w)
{
    struct sample s = {0};
    if (!(y >= -1 && y <= (double)h && x >= -1 && x <= (double)w))
        return s;
    y = y > 0 ? y : 0;
    x = x > 0 ? x : 0;
    int64_t y0 = (int64_t)y, x0 = (int64_t)x, y1 = y0 + 1, x1 = x0 + 1;
    if (y0 >= h - 1)
        y0 = y1 = h - 1, y = (double)y0;
    if (x0 >= w - 1)
        x0 = x1 = w - 1, x = (double)x0;
    double ly = y - (double)y0, lx = x - (double)x0;
    return (struct sample){{y0 * w + x0, y0 * w + x1, y1 * w + x0, y1 * w + x1}, {(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx}};
}

static enum status align_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *rois = run_in(r, 1), *batches = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int half = !strcmp(node_string(n, "coordinate_transformation_mode", n->opset < 16 ? "output_half_pixel" : "half_pixel"), "half_pixel");
    int max = node_string(n, "mode", "avg")[0] == 'm';
    double scale = (double)node_float(n, "spatial_scale", 1), *in, *region;
    int64_t ratio = node_int(n, "sampling_ratio", 0), oh = y->dims[2], ow = y->dims[3], h = x->dims[2], w = x->dims[3];
    if (batches->dims[0] != rois->dims[0] || tensor_count(x) == 0)
        return node_error(n, e, "%lld batch indices for %lld regions, or an empty image", (long long)batches->dims[0], (long long)rois->dims[0]);
    TRY(wide_load(r, x, &in, e));
    TRY(wide_load(r, rois, &region, e));
    for (int64_t i = 0; i < rois->dims[0]; i++, region += 4) {
        int64_t b = ((const int64_t *)tensor_data(batches))[i];
        if (b < 0 || b >= x->dims[0])
            return node_error(n, e, "region %lld is of image %lld; there are %lld", (long long)i, (long long)b, (long long)x->dims[0]);
        double off = half ? 0.5 : 0, x0 = region[0] * scale - off, y0 = region[1] * scale - off, rw = region[2] * scale - off - x0,
               rh = region[3] * scale - off - y0;
        if (!half)
            rw = rw > 1 ? rw : 1, rh = rh > 1 ? rh : 1;
        double bh = rh / (double)oh, bw = rw / (double)ow;
        double ny = ratio ? (double)ratio : ceil(bh), nx = ratio ? (double)ratio : ceil(bw);
        if (!(ny < 1e4 && nx < 1e4))
            return node_error(n, e, "region %lld is too large", (long long)i);
        int64_t gh = (int64_t)ny, gw = (int64_t)nx;
        for (int64_t p = 0; p < oh * ow; p++)
            for (int64_t c = 0; c < x->dims[1]; c++) {
                const double *plane = in + (b * x->dims[1] + c) * h * w;
                double value = 0;
                int some = 0;
                for (int64_t gy = 0; gy < gh; gy++)
                    for (int64_t gx = 0; gx < gw; gx++) {
                        struct sample s = sample_at(y0 + (double)(p / ow) * bh + ((double)gy + 0.5) * bh / (double)gh,
                                                    x0 + (double)(p % ow) * bw + ((double)gx + 0.5) * bw / (double)gw, h, w);
                        for (int k = 0; k < 4; k++) {
                            double v = s.weight[k] * plane[s.at[k]];
                            value = !max ? value + v : !some || v > value ? v : value;
                            some = 1;
                        }
                    }
                if (!max)
                    value /= (double)(gh * gw > 0 ? gh * gw : 1);
                wide_put(y->dtype, tensor_data(y), (size_t)((i * x->dims[1] + c) * oh * ow + p), value);
            }
    }
    return ST_OK;
}

static int align_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)axis, (void)out;
    return -1; /* regions name images by number */
}

static enum status pool_check(struct node *n, struct err *e)
{
    uint32_t count;
    const int64_t *p = node_ints(n, "pooled_shape", &count);
    return p && count == 2 && p[0] > 0 && p[1] > 0 ? ST_OK : node_error(n, e, "attribute 'pooled_shape' must hold two positive numbers");
}

static enum status pool_shape(struct shaping *s, struct err *e)
{
    uint32_t count;
    const int64_t *p = node_ints(s->node, "pooled_shape", &count);
    const struct type *x = &s->in[0], *rois = &s->in[1];
    TRY(shape_float(s, 0, 4, e));
    TRY(shape_rank(s, 0, 4, e));
    TRY(shape_float(s, 1, 2, e));
    TRY(shape_rank(s, 1, 2, e));
    if (rois->rank == 2 && dim_known(rois->dims[1]) && rois->dims[1] != 5)
        return node_error(s->node, e, "its regions have %lld numbers; 5 are needed", (long long)rois->dims[1]);
    type_tensor(&s->out[0], x->dtype, 4, (dim[]){rois->rank == 2 ? rois->dims[0] : dim_fresh(s->syms), x->rank == 4 ? x->dims[1] : dim_fresh(s->syms), p[0], p[1]});
    return ST_OK;
}

static int64_t within(double x, int64_t n)
{
    return x < 0 ? 0 : x > (double)n ? n : (int64_t)x;
}

static enum status pool_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *rois = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    double scale = (double)node_float(n, "spatial_scale", 1), *in, *region;
    int64_t oh = y->dims[2], ow = y->dims[3], h = x->dims[2], w = x->dims[3];
    TRY(wide_load(r, x, &in, e));
    TRY(wide_load(r, rois, &region, e));
    for (int64_t i = 0; i < rois->dims[0]; i++, region += 5) {
        double b = region[0];
        if (!(b >= 0 && b < (double)x->dims[0]))
            return node_error(n, e, "region %lld is of image %g; there are %lld", (long long)i, b, (long long)x->dims[0]);
        double x0 = round(region[1] * scale), y0 = round(region[2] * scale), rw = fmax(round(region[3] * scale) - x0 + 1, 1),
               rh = fmax(round(region[4] * scale) - y0 + 1, 1);
        for (int64_t c = 0; c < x->dims[1]; c++)
            for (int64_t p = 0; p < oh * ow; p++) {
                const double *plane = in + ((int64_t)b * x->dims[1] + c) * h * w;
                double bh = rh / (double)oh, bw = rw / (double)ow, py = (double)(p / ow), px = (double)(p % ow);
                int64_t h0 = within(floor(py * bh) + y0, h), h1 = within(ceil((py + 1) * bh) + y0, h), w0 = within(floor(px * bw) + x0, w),
                        w1 = within(ceil((px + 1) * bw) + x0, w);
                double best = h0 < h1 && w0 < w1 ? -INFINITY : 0;
                for (int64_t a = h0; a < h1; a++)
                    for (int64_t d = w0; d < w1; d++)
                        best = plane[a * w + d] > best ? plane[a * w + d] : best;
                wide_put(y->dtype, tensor_data(y), (size_t)((i * x->dims[1] + c) * oh * ow + p), best);
            }
    }
    return ST_OK;
}

const struct op_def ops_roi[] = {
    {.domain = "", .name = "RoiAlign", .since = 10, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
     .check = align_check, .shape = align_shape, .run = align_run, .follow = align_follow},
    {.domain = "", .name = "MaxRoiPool", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .check = pool_check, .shape = pool_shape, .run = pool_run, .follow = align_follow},
    {0},
};
