/* DFT, STFT, MelWeightMatrix, and the Hann, Hamming and Blackman windows. In double: a fast transform where the length is a power of two, the sum
   of its definition elsewhere. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/wide.h"

#define PI 3.14159265358979323846

/* One transform of n points: re and im in, out into to (interleaved). roots: n pairs, cos and sin of -2 pi k / n (+ for the inverse). */
static void roots_fill(size_t n, int inverse, double *roots)
{
    for (size_t k = 0; k < n; k++) {
        double angle = 2 * PI * (double)k / (double)n;
        roots[2 * k] = cos(angle);
        roots[2 * k + 1] = inverse ? sin(angle) : -sin(angle);
    }
}

static void transform_sum(size_t n, const double *x, const double *roots, double *to)
{
    for (size_t k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (size_t j = 0, at = 0; j < n; j++, at = at + k >= n ? at + k - n : at + k) {
            re += x[2 * j] * roots[2 * at] - x[2 * j + 1] * roots[2 * at + 1];
            im += x[2 * j] * roots[2 * at + 1] + x[2 * j + 1] * roots[2 * at];
        }
        to[2 * k] = re, to[2 * k + 1] = im;
    }
}

static void transform_fast(size_t n, const double *x, const double *roots, double *to)
{
    for (size_t i = 0, j = 0; i < n; i++) { /* bits reversed */
        to[2 * j] = x[2 * i], to[2 * j + 1] = x[2 * i + 1];
        size_t bit = n >> 1;
        for (; bit && (j & bit); bit >>= 1)
            j ^= bit;
        j |= bit;
    }
    for (size_t len = 2; len <= n; len <<= 1)
        for (size_t i = 0; i < n; i += len)
            for (size_t k = 0; k < len / 2; k++) {
                const double *w = roots + 2 * (k * (n / len));
                double *a = to + 2 * (i + k), *b = a + len, re = b[0] * w[0] - b[1] * w[1], im = b[0] * w[1] + b[1] * w[0];
                b[0] = a[0] - re, b[1] = a[1] - im;
                a[0] += re, a[1] += im;
            }
}

static void transform(size_t n, const double *x, const double *roots, double *to)
{
    if ((n & (n - 1)) == 0)
        transform_fast(n, x, roots, to);
    else
        transform_sum(n, x, roots, to);
}

static enum status doubles(struct run *r, size_t n, double **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 8) * sizeof(double), &p, e));
    *out = p;
    return ST_OK;
}

/* An input of one integer: *known is 0 where it is there but its value is not. */
static enum status one_int(const struct shaping *s, uint32_t i, int64_t otherwise, dim *out, int *known, struct err *e)
{
    const dim *v;
    uint32_t count;
    *known = 1;
    *out = otherwise;
    if (!shape_has(s, i))
        return ST_OK;
    if (s->in[i].dtype != DT_I64 && s->in[i].dtype != DT_I32)
        return node_error(s->node, e, "input %u is of type %s; int32 or int64 is needed", i, dtype_name(s->in[i].dtype));
    if (!shape_ints(s, i, &v, &count) || count != 1 || v[0] == DIM_UNKNOWN) {
        *known = 0;
        return ST_OK;
    }
    *out = v[0];
    return ST_OK;
}

/* DFT ---------------------------------------------------------------------------------------------------------------------------------------- */

static enum status dft_axis(const struct node *n, const dim *value, int known, int rank, uint32_t *out, struct err *e)
{
    int64_t axis = n->opset < 20 ? node_int(n, "axis", 1) : known ? *value : -2;
    TRY(axis_in(n, axis, rank, out, e));
    if ((int)*out == rank - 1)
        return node_error(n, e, "its axis is the last, which holds real and imaginary parts");
    return ST_OK;
}

/* An inverse transform of one side: bins 0 to n / 2 of a real signal of n are given, the others are their mirror image. */
static int from_half(const struct node *n)
{
    return node_int(n, "inverse", 0) && node_int(n, "onesided", 0);
}

static enum status dft_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    dim length, axis_value;
    int length_known, axis_known;
    uint32_t axis;
    TRY(shape_float(s, 0, 2, e));
    TRY(one_int(s, 1, -1, &length, &length_known, e));
    TRY(one_int(s, 2, -2, &axis_value, &axis_known, e));
    type_unknown(s, &s->out[0], x->dtype, x->rank);
    if (x->rank < 0 || (s->node->opset >= 20 && !axis_known))
        return ST_OK;
    TRY(dft_axis(s->node, &axis_value, axis_known, x->rank, &axis, e));
    dim last = x->dims[x->rank - 1], dims[RANK_MAX];
    if (dim_known(last) && last != 1 && last != 2)
        return node_error(s->node, e, "its last axis has %lld elements; 1 (real) or 2 (complex) are needed", (long long)last);
    memcpy(dims, x->dims, sizeof dims);
    dim all = from_half(s->node) ? dim_mul(s->syms, dim_sub(s->syms, x->dims[axis], 1), 2) : x->dims[axis];
    dims[axis] = !length_known ? dim_fresh(s->syms) : shape_has(s, 1) ? length : all;
    if (length_known && dim_known(dims[axis]) && (dims[axis] < 1 || dims[axis] > 1 << 26))
        return node_error(s->node, e, "a length of %lld", (long long)dims[axis]);
    if (node_int(s->node, "onesided", 0) && !from_half(s->node))
        dims[axis] = dim_add(s->syms, dim_div(s->syms, dims[axis], 2), 1);
    dims[x->rank - 1] = from_half(s->node) ? 1 : 2;
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    return ST_OK;
}

static enum status dft_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *length = n->n_in > 1 ? run_in(r, 1) : NULL, *at = n->n_in > 2 ? run_in(r, 2) : NULL;
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    dim value = at ? (dim)wide_get(at->dtype, tensor_data(at), 0) : -2;
    TRY(dft_axis(n, &value, 1, (int)x->rank, &axis, e));
    int half = from_half(n);
    int64_t len = length ? (int64_t)wide_get(length->dtype, tensor_data(length), 0) : half ? y->dims[axis] : x->dims[axis], have = x->dims[axis], parts = x->dims[x->rank - 1],
            out = y->dims[axis], inner = 1, outer = 1;
    for (uint32_t i = 0; i + 1 < x->rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : x->dims[i];
    int inverse = node_int(n, "inverse", 0) != 0;
    double *in, *roots, *from, *to;
    TRY(wide_load(r, x, &in, e));
    TRY(doubles(r, 2 * (size_t)len, &roots, e));
    TRY(doubles(r, 2 * (size_t)len, &from, e));
    TRY(doubles(r, 2 * (size_t)len, &to, e));
    roots_fill((size_t)len, inverse, roots);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            for (int64_t k = 0; k < len; k++) {
                const double *v = in + ((o * have + k) * inner + i) * parts;
                from[2 * k] = k < have ? v[0] : 0;
                from[2 * k + 1] = k < have && parts == 2 ? v[1] : 0;
            }
            for (int64_t k = len / 2 + 1; half && k < len; k++)
                from[2 * k] = from[2 * (len - k)], from[2 * k + 1] = -from[2 * (len - k) + 1];
            transform((size_t)len, from, roots, to);
            for (int64_t k = 0, last = half ? 1 : 2; k < out; k++)
                for (int64_t c = 0; c < last; c++)
                    wide_put(y->dtype, tensor_data(y), (size_t)(((o * out + k) * inner + i) * last + c), inverse ? to[2 * k + c] / (double)len : to[2 * k + c]);
        }
    return ST_OK;
}

static int dft_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    dim value;
    int known;
    uint32_t own;
    (void)out;
    if (in != 0 || s->in[0].rank < 2 || one_int(s, 2, -2, &value, &known, NULL) != ST_OK || (s->node->opset >= 20 && !known) ||
        dft_axis(s->node, &value, known, s->in[0].rank, &own, NULL) != ST_OK)
        return -1;
    return axis != own && (int)axis != s->in[0].rank - 1 ? (int)axis : -1;
}

/* STFT: signal [batch, length, 1 or 2], step, window, frame length ----------------------------------------------------------------------------- */

static enum status stft_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *w = &s->in[2];
    dim step, frame;
    int step_known, frame_known;
    TRY(shape_float(s, 0, 2, e));
    TRY(one_int(s, 1, -1, &step, &step_known, e));
    TRY(one_int(s, 3, -1, &frame, &frame_known, e));
    if (shape_has(s, 2)) {
        TRY(shape_type(s, 2, x->dtype, e));
        TRY(shape_rank(s, 2, 1, e));
    }
    if (!shape_has(s, 3)) {
        if (!shape_has(s, 2))
            return node_error(s->node, e, "neither a window nor a frame length is given");
        frame = w->rank == 1 ? w->dims[0] : DIM_UNKNOWN;
        frame_known = w->rank == 1;
    }
    if ((step_known && dim_known(step) && step < 1) || (frame_known && dim_known(frame) && (frame < 1 || frame > 1 << 26)))
        return node_error(s->node, e, "its step and its frame length must be positive");
    type_unknown(s, &s->out[0], x->dtype, 4);
    s->out[0].dims[3] = 2;
    if (x->rank < 0)
        return ST_OK;
    if (x->rank > 3)
        return node_error(s->node, e, "its signal has %d axes; 3 are needed", x->rank);
    s->out[0].dims[0] = x->dims[0];
    if (!step_known || !frame_known)
        return ST_OK;
    if (dim_known(x->dims[1]) && dim_known(frame) && x->dims[1] < frame)
        return node_error(s->node, e, "its signal of %lld is shorter than a frame of %lld", (long long)x->dims[1], (long long)frame);
    s->out[0].dims[1] = dim_add(s->syms, dim_div(s->syms, dim_sub(s->syms, x->dims[1], frame), step), 1);
    s->out[0].dims[2] = node_int(s->node, "onesided", 1) ? dim_add(s->syms, dim_div(s->syms, frame, 2), 1) : frame;
    return ST_OK;
}

static enum status stft_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *step = run_in(r, 1), *w = n->n_in > 2 ? run_in(r, 2) : NULL, *f = n->n_in > 3 ? run_in(r, 3) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int64_t hop = (int64_t)wide_get(step->dtype, tensor_data(step), 0), len = f ? (int64_t)wide_get(f->dtype, tensor_data(f), 0) : w->dims[0],
            parts = x->rank == 3 ? x->dims[2] : 1, frames = y->dims[1], bins = y->dims[2];
    if ((w && tensor_count(w) != len) || parts < 1 || parts > 2)
        return node_error(n, e, "its window has %lld elements for frames of %lld, or its signal %lld parts", (long long)(w ? tensor_count(w) : 0),
                          (long long)len, (long long)parts);
    double *in, *window = NULL, *roots, *from, *to;
    TRY(wide_load(r, x, &in, e));
    if (w)
        TRY(wide_load(r, w, &window, e));
    TRY(doubles(r, 2 * (size_t)len, &roots, e));
    TRY(doubles(r, 2 * (size_t)len, &from, e));
    TRY(doubles(r, 2 * (size_t)len, &to, e));
    roots_fill((size_t)len, 0, roots);
    for (int64_t i = 0; i < y->dims[0] * frames; i++) {
        const double *v = in + (i / frames * x->dims[1] + i % frames * hop) * parts;
        for (int64_t k = 0; k < len; k++)
            for (int c = 0; c < 2; c++)
                from[2 * k + c] = c < parts ? v[k * parts + c] * (window ? window[k] : 1) : 0;
        transform((size_t)len, from, roots, to);
        for (int64_t k = 0; k < 2 * bins; k++)
            wide_put(y->dtype, tensor_data(y), (size_t)(i * bins * 2 + k), to[k]);
    }
    return ST_OK;
}

/* Windows and mel weights: functions of numbers alone --------------------------------------------------------------------------------------------- */

static enum dtype made_type(const struct node *n)
{
    return (enum dtype)node_int(n, "output_datatype", DT_F32);
}

static enum status made_check(struct node *n, struct err *e)
{
    enum dtype d = made_type(n);
    return dtype_is_float(d) || dtype_is_int(d) ? ST_OK : node_error(n, e, "attribute 'output_datatype' is %s", dtype_name(d));
}

static enum status window_shape(struct shaping *s, struct err *e)
{
    dim size;
    int known;
    TRY(one_int(s, 0, -1, &size, &known, e));
    if (known && dim_known(size) && (size < 0 || size > 1 << 28))
        return node_error(s->node, e, "a window of %lld", (long long)size);
    size = known ? size : dim_fresh(s->syms);
    type_tensor(&s->out[0], made_type(s->node), 1, &size);
    return ST_OK;
}

static enum status window_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y)
        return ST_OK;
    double size = (double)y->dims[0], over = node_int(n, "periodic", 1) ? size : size - 1;
    for (int64_t i = 0; i < y->dims[0]; i++) {
        double a = 2 * PI * (double)i / over, v;
        if (n->op[0] == 'B')
            v = 0.42 - 0.5 * cos(a) + 0.08 * cos(2 * a);
        else if (n->op[2] == 'n')
            v = 0.5 - 0.5 * cos(a);
        else
            v = 25.0 / 46 - 21.0 / 46 * cos(a);
        wide_put(y->dtype, tensor_data(y), (size_t)i, y->dims[0] == 1 && !node_int(n, "periodic", 1) ? 1 : v);
    }
    return ST_OK;
}

/* num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz */
static enum status mel_shape(struct shaping *s, struct err *e)
{
    dim bins, len;
    int bins_known, len_known;
    TRY(one_int(s, 0, -1, &bins, &bins_known, e));
    TRY(one_int(s, 1, -1, &len, &len_known, e));
    TRY(shape_float(s, 3, 0, e));
    TRY(shape_float(s, 4, 0, e));
    if ((bins_known && dim_known(bins) && (bins < 0 || bins > 1 << 20)) || (len_known && dim_known(len) && (len < 0 || len > 1 << 26)))
        return node_error(s->node, e, "%lld bins for a length of %lld", (long long)bins, (long long)len);
    dim rows = len_known ? dim_add(s->syms, dim_div(s->syms, len, 2), 1) : dim_fresh(s->syms);
    type_tensor(&s->out[0], made_type(s->node), 2, (dim[]){rows, bins_known ? bins : dim_fresh(s->syms)});
    return ST_OK;
}

static enum status mel_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    double v[5];
    (void)n;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    for (uint32_t i = 0; i < 5; i++)
        v[i] = wide_get(run_in(r, i)->dtype, tensor_data(run_in(r, i)), 0);
    int64_t rows = y->dims[0], bins = y->dims[1];
    double low = 2595 * log10(1 + v[3] / 700), high = 2595 * log10(1 + v[4] / 700), step = (high - low) / (double)(bins + 2), *edge;
    if (!(v[2] > 0) || !(v[3] >= 0))
        return node_error(n, e, "a sample rate of %g, a lower edge of %g", v[2], v[3]);
    TRY(doubles(r, (size_t)bins + 2, &edge, e));
    for (int64_t i = 0; i < bins + 2; i++) {
        double hertz = 700 * (pow(10, ((double)i * step + low) / 2595) - 1);
        edge[i] = floor((v[1] + 1) * hertz / v[2]);
    }
    for (int64_t i = 0; i < rows * bins; i++) {
        double k = (double)(i / bins), a = edge[i % bins], b = edge[i % bins + 1], c = edge[i % bins + 2], w = 0;
        if (b == a && k == b)
            w = 1;
        else if (k >= a && k <= b && b > a)
            w = (k - a) / (b - a);
        if (k >= b && k < c)
            w = (c - k) / (c - b);
        wide_put(y->dtype, tensor_data(y), (size_t)i, w);
    }
    return ST_OK;
}

#define OUT1 .min_out = 1, .max_out = 1
#define WINDOW(op) {.domain = "", .name = op, .since = 17, .until = OPSET_ANY, .min_in = 1, .max_in = 1, OUT1, .check = made_check, .shape = window_shape, .run = window_run}
const struct op_def ops_signal[] = {
    {.domain = "", .name = "DFT", .since = 17, .until = 19, .min_in = 1, .max_in = 2, OUT1, .shape = dft_shape, .run = dft_run,
     .follow = dft_follow},
    {.domain = "", .name = "DFT", .since = 20, .until = OPSET_ANY, .min_in = 1, .max_in = 3, OUT1, .shape = dft_shape,
     .run = dft_run, .follow = dft_follow},
    {.domain = "", .name = "STFT", .since = 17, .until = OPSET_ANY, .min_in = 2, .max_in = 4, OUT1, .shape = stft_shape, .run = stft_run,
     .follow = follow_axis0},
    WINDOW("HannWindow"),
    WINDOW("HammingWindow"),
    WINDOW("BlackmanWindow"),
    {.domain = "", .name = "MelWeightMatrix", .since = 17, .until = OPSET_ANY, .min_in = 5, .max_in = 5, OUT1, .check = made_check, .shape = mel_shape,
     .run = mel_run},
    {0},
};
