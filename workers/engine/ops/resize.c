/* Resize and Upsample. Each output index along an axis is a short list of input indices with weights (one for nearest, two for linear, four for cubic,
   more with antialias); axes that change are done one after another, from the last to the first. Sums run in double, in the order of the list. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/wide.h"

enum mode { NEAREST, LINEAR, CUBIC };
enum coordinates { HALF_PIXEL, HALF_PIXEL_SYMMETRIC, PYTORCH_HALF_PIXEL, ALIGN_CORNERS, ASYMMETRIC, TF_HALF_PIXEL, TF_CROP };
enum nearest { ROUND_FLOOR, ROUND_CEIL, FLOOR, CEIL };

struct how {
    enum mode mode;
    enum coordinates coordinates;
    enum nearest nearest;
    int antialias, exclude_outside;
    enum { STRETCH, NOT_LARGER, NOT_SMALLER } policy;
    double cubic_a, extrapolation;
};

static int one_of(const char *s, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(s, names[i]))
            return i;
    return -1;
}

static int is_upsample(const struct node *n)
{
    return n->op[0] == 'U';
}

static enum status how_of(const struct node *n, struct how *out, struct err *e)
{
    static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
    static const char *const coordinates[] = {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                                              "tf_half_pixel_for_nn", "tf_crop_and_resize", NULL};
    static const char *const rounds[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil", NULL};
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller", NULL};
    int old = is_upsample(n) || n->opset < 11;
    const char *mode = node_string(n, "mode", "nearest");
    if (!strcmp(mode, "bilinear") && is_upsample(n))
        mode = "linear";
    const char *text[4] = {mode, node_string(n, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel"),
                           node_string(n, "nearest_mode", old ? "floor" : "round_prefer_floor"), node_string(n, "keep_aspect_ratio_policy", "stretch")};
    const char *const *lists[4] = {modes, coordinates, rounds, policies};
    int v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = one_of(text[i], lists[i]);
        if (v[i] < 0)
            return node_error(n, e, "'%s' is not supported", text[i]);
    }
    *out = (struct how){.mode = (enum mode)v[0], .coordinates = (enum coordinates)v[1], .nearest = (enum nearest)v[2],
                        .antialias = node_int(n, "antialias", 0) != 0, .exclude_outside = node_int(n, "exclude_outside", 0) != 0,
                        .cubic_a = (double)node_float(n, "cubic_coeff_a", -0.75f),
                        .extrapolation = (double)node_float(n, "extrapolation_value", 0)};
    out->policy = v[3] == 1 ? NOT_LARGER : v[3] == 2 ? NOT_SMALLER : STRETCH;
    return ST_OK;
}

static enum status resize_check(struct node *n, struct err *e)
{
    struct how h;
    return how_of(n, &h, e);
}

/* Inputs: which one is what, by opset; -1: none. */
struct ports {
    int roi, scales, sizes;
};

static struct ports ports_of(const struct node *n)
{
    if (is_upsample(n))
        return (struct ports){-1, n->opset < 9 ? -1 : 1, -1};
    return n->opset < 11 ? (struct ports){-1, 1, -1} : (struct ports){1, 2, 3};
}

static const struct tensor *constant(const struct shaping *s, int port)
{
    if (port < 0 || (uint32_t)port >= s->n_in || !s->constants)
        return NULL;
    const struct tensor *t = s->constants[port];
    return t && t->buffer && tensor_count(t) > 0 ? t : NULL;
}

/* Is input `port` there, and not an empty tensor? -1: that is not known. */
static int given(const struct shaping *s, int port)
{
    if (port < 0 || !shape_has(s, (uint32_t)port))
        return 0;
    const struct type *t = &s->in[port];
    return t->rank == 1 ? (dim_known(t->dims[0]) ? t->dims[0] > 0 : -1) : t->rank < 0 ? -1 : 0;
}

/* axes[i] is the axis that value i of scales, sizes and half of roi is for. */
static enum status axes_of(const struct node *n, int rank, uint32_t *axes, uint32_t *count, struct err *e)
{
    uint32_t k;
    const int64_t *v = node_ints(n, "axes", &k);
    if (v && k > (uint32_t)rank)
        return node_error(n, e, "attribute 'axes' has %u values for %d axes", k, rank);
    *count = v ? k : (uint32_t)rank;
    for (uint32_t i = 0; i < *count; i++) {
        axes[i] = i;
        if (v)
            TRY(axis_in(n, v[i], rank, &axes[i], e));
    }
    return ST_OK;
}

static float scale_value(const struct node *n, const struct tensor *t, uint32_t i, uint32_t *count)
{
    if (t) {
        *count = (uint32_t)tensor_count(t);
        return i < *count ? (float)wide_get(t->dtype, tensor_data(t), i) : 0;
    }
    const float *v = node_floats(n, "scales", count);
    return v && i < *count ? v[i] : 0;
}

static enum status from_scales(struct shaping *s, const struct tensor *t, int rank, const uint32_t *axes, uint32_t n_axes, struct err *e)
{
    const struct type *x = &s->in[0];
    dim dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    for (uint32_t i = 0, count; i < n_axes; i++) {
        float f = scale_value(s->node, t, i, &count);
        if (count != n_axes || !(f > 0))
            return node_error(s->node, e, "%u scales for %u axes, or one that is not positive", count, n_axes);
        dim d = x->dims[axes[i]];
        if (f == 1)
            continue;
        if (dim_known(d)) {
            double to = floor((double)((float)d * f));
            if (to > 1e9)
                return node_error(s->node, e, "scale %g makes an axis of %g", (double)f, to);
            dims[axes[i]] = (dim)to;
        } else if (f == floorf(f) && f < 1e6f) {
            dims[axes[i]] = dim_mul(s->syms, d, (dim)f);
        } else if (1 / f == floorf(1 / f) && f > 1e-6f) {
            dims[axes[i]] = dim_div(s->syms, d, (dim)(1 / f));
        } else {
            dims[axes[i]] = dim_fresh(s->syms);
        }
    }
    type_tensor(&s->out[0], x->dtype, rank, dims);
    return ST_OK;
}

/* The scale with which the aspect is kept, from the sizes asked for. */
static double kept_scale(const struct how *h, const int64_t *in, const int64_t *sizes, const uint32_t *axes, uint32_t n_axes)
{
    double scale = 0;
    for (uint32_t i = 0; i < n_axes; i++) {
        double f = (double)sizes[i] / (double)in[axes[i]];
        if (i == 0 || (h->policy == NOT_LARGER ? f < scale : f > scale))
            scale = f;
    }
    return scale;
}

static enum status resize_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    struct ports p = ports_of(s->node);
    struct how h;
    TRY(how_of(s->node, &h, e));
    if (x->kind != VALUE_TENSOR || x->dtype == DT_STR || x->dtype == DT_BOOL)
        return node_error(s->node, e, "its input is not a tensor of numbers");
    if (x->rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, -1);
        return ST_OK;
    }
    uint32_t axes[RANK_MAX], n_axes, count;
    TRY(axes_of(s->node, x->rank, axes, &n_axes, e));
    type_unknown(s, &s->out[0], x->dtype, x->rank);
    const dim *sizes;
    int has_sizes = given(s, p.sizes);
    if (has_sizes > 0) {
        if (!shape_ints(s, (uint32_t)p.sizes, &sizes, &count))
            return ST_OK;
        if (count != n_axes)
            return node_error(s->node, e, "%u sizes for %u axes", count, n_axes);
        dim dims[RANK_MAX];
        int64_t numbers[RANK_MAX];
        int known = 1;
        memcpy(dims, x->dims, sizeof dims);
        for (uint32_t i = 0; i < count; i++) {
            if (dim_known(sizes[i]) && sizes[i] < 1)
                return node_error(s->node, e, "size %lld", (long long)sizes[i]);
            dims[axes[i]] = sizes[i] == DIM_UNKNOWN ? dim_fresh(s->syms) : sizes[i];
            known &= dim_known(sizes[i]) && dim_known(x->dims[axes[i]]) && x->dims[axes[i]] > 0;
            numbers[i] = sizes[i];
        }
        if (h.policy != STRETCH) {
            double f = known ? kept_scale(&h, x->dims, numbers, axes, count) : 0;
            for (uint32_t i = 0; i < count; i++)
                dims[axes[i]] = known ? (dim)floor(f * (double)x->dims[axes[i]] + 0.5) : dim_fresh(s->syms);
        }
        type_tensor(&s->out[0], x->dtype, x->rank, dims);
        return ST_OK;
    }
    const struct tensor *t = constant(s, p.scales);
    if (t || (p.scales < 0 && node_attr(s->node, "scales")))
        return from_scales(s, t, x->rank, axes, n_axes, e);
    if (!s->syms || (given(s, p.scales) == 0 && has_sizes == 0))
        return node_error(s->node, e, "neither scales nor sizes are given");
    return ST_OK;
}

/* Lists of indices and weights for one axis. */
struct taps {
    int64_t out, in;
    uint32_t width;
    int32_t *index; /* out x width */
    double *weight;
    uint8_t *outside; /* tf_crop_and_resize: the extrapolation value stands there */
};

/* Where output index i lies in the input. With scales the resized length is scale * length, which need not be whole, as ONNX defines it. */
static double source(const struct how *h, int64_t i, double scale, int64_t in, int64_t out, double roi0, double roi1)
{
    double x = (double)i, length = (double)in, target = scale * length;
    if (fabs(target - (double)out) < 1e-6)
        target = (double)out;
    switch (h->coordinates) {
    case HALF_PIXEL: return (x + 0.5) / scale - 0.5;
    case HALF_PIXEL_SYMMETRIC: {
        double adjust = (double)out / target, centre = length / 2;
        return centre * (1 - adjust) + (x + 0.5) / scale - 0.5;
    }
    case PYTORCH_HALF_PIXEL: return target > 1 && out > 1 ? (x + 0.5) / scale - 0.5 : 0;
    case ALIGN_CORNERS: return out > 1 ? x * (length - 1) / (target - 1) : 0;
    case ASYMMETRIC: return x / scale;
    case TF_HALF_PIXEL: return (x + 0.5) / scale;
    case TF_CROP: return out > 1 ? roi0 * (length - 1) + x * (roi1 - roi0) * (length - 1) / ((double)out - 1) : 0.5 * (roi0 + roi1) * (length - 1);
    }
    return x;
}

static int64_t nearest_index(const struct how *h, double x)
{
    switch (h->nearest) {
    case ROUND_FLOOR: return (int64_t)ceil(x - 0.5);
    case ROUND_CEIL: return (int64_t)floor(x + 0.5);
    case FLOOR: return (int64_t)floor(x);
    case CEIL: return (int64_t)ceil(x);
    }
    return 0;
}

static double cubic(double a, double d)
{
    d = fabs(d);
    if (d <= 1)
        return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

static uint32_t taps_width(const struct how *h, double scale)
{
    if (h->mode == NEAREST)
        return 1;
    double reach = h->mode == LINEAR ? 1 : 2;
    if (h->antialias && scale < 1)
        reach /= scale;
    return 2 * (uint32_t)ceil(reach);
}

static void fill_taps(const struct how *h, double scale, double roi0, double roi1, struct taps *t)
{
    double shrink = h->antialias && scale < 1 ? scale : 1;
    for (int64_t i = 0; i < t->out; i++) {
        double x = source(h, i, scale, t->in, t->out, roi0, roi1), sum = 0;
        int32_t *index = t->index + i * t->width;
        double *weight = t->weight + i * t->width;
        t->outside[i] = h->coordinates == TF_CROP && (x < 0 || x > (double)t->in - 1);
        if (h->mode == NEAREST) {
            int64_t k = nearest_index(h, x);
            index[0] = (int32_t)(k < 0 ? 0 : k >= t->in ? t->in - 1 : k);
            weight[0] = 1;
            continue;
        }
        int64_t first = (int64_t)floor(x) - (int64_t)t->width / 2 + 1;
        for (uint32_t j = 0; j < t->width; j++) {
            int64_t k = first + j;
            double d = (x - (double)k) * shrink, w = h->mode == LINEAR ? (fabs(d) < 1 ? 1 - fabs(d) : 0) : cubic(h->cubic_a, d);
            if (h->exclude_outside && (k < 0 || k >= t->in))
                w = 0;
            index[j] = (int32_t)(k < 0 ? 0 : k >= t->in ? t->in - 1 : k);
            weight[j] = w;
            sum += w;
        }
        if ((h->exclude_outside || shrink < 1) && sum != 0)
            for (uint32_t j = 0; j < t->width; j++)
                weight[j] /= sum;
    }
}

/* One axis of f32 data: outer x in x inner becomes outer x out x inner. */
static void along_f32(const struct taps *t, int64_t outer, int64_t inner, const float *x, float *y)
{
    for (int64_t o = 0; o < outer; o++, x += t->in * inner)
        for (int64_t i = 0; i < t->out; i++, y += inner) {
            const int32_t *index = t->index + i * t->width;
            const double *weight = t->weight + i * t->width;
            if (t->width == 1) {
                memcpy(y, x + index[0] * inner, (size_t)inner * sizeof *y);
            } else if (t->width == 2) {
                const float *a = x + index[0] * inner, *b = x + index[1] * inner;
                for (int64_t k = 0; k < inner; k++)
                    y[k] = (float)((double)a[k] * weight[0] + (double)b[k] * weight[1]);
            } else {
                for (int64_t k = 0; k < inner; k++) {
                    double sum = 0;
                    for (uint32_t j = 0; j < t->width; j++)
                        sum += (double)x[index[j] * inner + k] * weight[j];
                    y[k] = (float)sum;
                }
            }
        }
}

static void along_f64(const struct taps *t, int64_t outer, int64_t inner, const double *x, double *y)
{
    for (int64_t o = 0; o < outer; o++, x += t->in * inner)
        for (int64_t i = 0; i < t->out; i++, y += inner)
            for (int64_t k = 0; k < inner; k++) {
                double sum = 0;
                for (uint32_t j = 0; j < t->width; j++)
                    sum += x[t->index[i * t->width + j] * inner + k] * t->weight[i * t->width + j];
                y[k] = sum;
            }
}

static enum status make_taps(struct run *r, const struct how *h, double scale, double roi0, double roi1, int64_t in, int64_t out, struct taps *t,
                             struct err *e)
{
    *t = (struct taps){.out = out, .in = in, .width = taps_width(h, scale)};
    void *p;
    size_t n = (size_t)out * t->width;
    TRY(run_scratch(r, n * sizeof(double), &p, e));
    t->weight = p;
    TRY(run_scratch(r, n * sizeof(int32_t), &p, e));
    t->index = p;
    TRY(run_scratch(r, (size_t)out, &p, e));
    t->outside = p;
    fill_taps(h, scale, roi0, roi1, t);
    return ST_OK;
}

static const struct tensor *port(const struct run *r, const struct node *n, int i)
{
    const struct tensor *t = i >= 0 && (uint32_t)i < n->n_in ? run_in(r, (uint32_t)i) : NULL;
    return t && tensor_count(t) > 0 ? t : NULL;
}

/* Nearest moves elements as they are, whatever their type. */
static void move_axis(const struct taps *t, int64_t outer, int64_t inner, size_t size, const char *x, char *y)
{
    size_t row = (size_t)inner * size;
    if (row == sizeof(uint32_t)) {
        const uint32_t *from = (const void *)x;
        uint32_t *to = (void *)y;
        for (int64_t o = 0; o < outer; o++, from += t->in, to += t->out)
            for (int64_t i = 0; i < t->out; i++)
                to[i] = from[t->index[i]];
        return;
    }
    for (int64_t o = 0; o < outer; o++, x += (size_t)t->in * row)
        for (int64_t i = 0; i < t->out; i++, y += row)
            memcpy(y, x + (size_t)t->index[i] * row, row);
}

static void extrapolate(struct tensor *y, const struct taps *taps, const uint8_t *changed, double value)
{
    for (int64_t i = 0, all = tensor_count(y); i < all; i++) {
        int64_t left = i;
        for (uint32_t d = y->rank; d-- > 0; left /= y->dims[d])
            if (changed[d] && taps[d].outside[left % y->dims[d]]) {
                wide_put(y->dtype, tensor_data(y), (size_t)i, value);
                break;
            }
    }
}

static enum status resize_run(struct run *r, const struct node *n, struct err *e)
{
    struct ports p = ports_of(n);
    const struct tensor *x = run_in(r, 0), *scales = port(r, n, p.scales), *sizes = port(r, n, p.sizes), *roi = port(r, n, p.roi);
    struct tensor *y = run_out(r, 0);
    struct how h;
    uint32_t axes[RANK_MAX], n_axes, count;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    if (tensor_count(x) == 0)
        return node_error(n, e, "its input is empty");
    TRY(how_of(n, &h, e));
    TRY(axes_of(n, (int)x->rank, axes, &n_axes, e));
    if (roi && (uint32_t)tensor_count(roi) != 2 * n_axes)
        return node_error(n, e, "its region has %lld values for %u axes", (long long)tensor_count(roi), n_axes);
    struct taps taps[RANK_MAX] = {0};
    uint8_t changed[RANK_MAX] = {0};
    double kept = 0;
    if (sizes && h.policy != STRETCH) {
        const int64_t *v;
        TRY(wide_i64(r, sizes, &v, e));
        kept = kept_scale(&h, x->dims, v, axes, n_axes);
    }
    int crops = h.coordinates == TF_CROP;
    size_t largest = (size_t)tensor_count(x), now = largest;
    for (uint32_t i = n_axes; i-- > 0;) {
        uint32_t d = axes[i];
        double scale = sizes ? (kept > 0 ? kept : (double)y->dims[d] / (double)x->dims[d]) : (double)scale_value(n, scales, i, &count);
        double roi0 = roi && crops ? wide_get(roi->dtype, tensor_data(roi), i) : 0, roi1 = roi && crops ? wide_get(roi->dtype, tensor_data(roi), i + n_axes) : 1;
        if (scale == 1 && x->dims[d] == y->dims[d] && (!crops || (roi0 == 0 && roi1 == 1)))
            continue;
        TRY(make_taps(r, &h, scale, roi0, roi1, x->dims[d], y->dims[d], &taps[d], e));
        changed[d] = 1;
        now = now / (size_t)x->dims[d] * (size_t)y->dims[d];
        largest = now > largest ? now : largest;
    }
    /* linear in other types than f32 goes by double, nearest by bytes */
    size_t size = h.mode == NEAREST ? dtype_bytes(x->dtype) : x->dtype == DT_F32 ? sizeof(float) : sizeof(double);
    void *a, *b;
    const void *from = tensor_data(x);
    if (h.mode != NEAREST && x->dtype != DT_F32) {
        double *wide;
        TRY(wide_load(r, x, &wide, e));
        from = wide;
    }
    TRY(run_scratch(r, largest * size, &a, e));
    TRY(run_scratch(r, largest * size, &b, e));
    int64_t dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    for (uint32_t d = x->rank; d-- > 0;) {
        if (!changed[d])
            continue;
        int64_t outer = 1, inner = 1;
        for (uint32_t i = 0; i < x->rank; i++)
            *(i < d ? &outer : &inner) *= i == d ? 1 : dims[i];
        if (h.mode == NEAREST)
            move_axis(&taps[d], outer, inner, size, from, a);
        else if (x->dtype == DT_F32)
            along_f32(&taps[d], outer, inner, from, a);
        else
            along_f64(&taps[d], outer, inner, from, a);
        dims[d] = y->dims[d];
        from = a;
        void *swap = a;
        a = b, b = swap;
    }
    if (h.mode == NEAREST || x->dtype == DT_F32)
        memcpy(tensor_data(y), from, (size_t)tensor_count(y) * size);
    else
        wide_store(y, from);
    if (crops)
        extrapolate(y, taps, changed, h.extrapolation);
    return ST_OK;
}

static int resize_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    uint32_t axes[RANK_MAX], n_axes, count;
    (void)out;
    if (in != 0 || s->in[0].rank < 0 || axes_of(s->node, s->in[0].rank, axes, &n_axes, NULL) != ST_OK)
        return -1;
    for (uint32_t i = 0; i < n_axes; i++) {
        if (axes[i] != axis)
            continue;
        struct ports p = ports_of(s->node);
        const dim *sizes;
        if (shape_ints(s, (uint32_t)(p.sizes < 0 ? 99 : p.sizes), &sizes, &count) && i < count)
            return sizes[i] == s->in[0].dims[axis] ? (int)axis : -1;
        return scale_value(s->node, constant(s, p.scales), i, &count) == 1 ? (int)axis : -1;
    }
    return (int)axis;
}

#define RESIZE(op, from, to, least, most)                                                                                        \
    {.domain = "", .name = op, .since = from, .until = to, .min_in = least, .max_in = most, .min_out = 1, .max_out = 1,          \
     .check = resize_check, .shape = resize_shape, .run = resize_run, .follow = resize_follow}
const struct op_def ops_resize[] = {
    RESIZE("Resize", 10, 10, 2, 2),
    RESIZE("Resize", 11, OPSET_ANY, 1, 4),
    RESIZE("Upsample", 7, 8, 1, 1),
    RESIZE("Upsample", 9, OPSET_ANY, 2, 2),
    {0},
};
