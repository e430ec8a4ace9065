/* MaxPool, AveragePool, LpPool. f32 has loops of its own; other types pass through double. */
#include <math.h>
#include <string.h>

#include "workers/engine/cpu/conv.h"
#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

enum kind { POOL_OF_MAX, POOL_OF_AVERAGE, POOL_OF_LP };

static enum kind kind_of(const struct node *n)
{
    return n->op[0] == 'M' ? POOL_OF_MAX : n->op[0] == 'A' ? POOL_OF_AVERAGE : POOL_OF_LP;
}

static enum status pooling_check(struct node *n, struct err *e)
{
    uint32_t count;
    TRY(space_check(n, e));
    if (!node_ints(n, "kernel_shape", &count) || count == 0)
        return node_error(n, e, "attribute 'kernel_shape' is missing");
    if (kind_of(n) == POOL_OF_LP && node_int(n, "p", 2) < 1)
        return node_error(n, e, "attribute 'p' is %lld; it must be 1 or more", (long long)node_int(n, "p", 2));
    return ST_OK;
}

static enum status pooling_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    if (x->kind != VALUE_TENSOR || x->dtype == DT_STR || x->dtype == DT_BOOL || (kind_of(s->node) != POOL_OF_MAX && !dtype_is_float(x->dtype)))
        return node_error(s->node, e, "its input is of type %s", x->kind == VALUE_TENSOR ? dtype_name(x->dtype) : "sequence");
    dim dims[RANK_MAX];
    int known = x->rank >= 0;
    if (known) {
        struct space p;
        TRY(space_read(s->node, x->rank, NULL, &p, e));
        dims[0] = x->dims[0], dims[1] = x->dims[1];
        for (int i = 0; i < SPACE_MAX; i++) {
            int64_t reach = (p.kernel[i] - 1) * p.dilation[i] + 1;
            if (p.begin[i] >= reach || p.end[i] >= reach)
                return node_error(s->node, e, "padding of %lld and %lld is not less than its window of %lld", (long long)p.begin[i],
                                  (long long)p.end[i], (long long)reach);
        }
        for (uint32_t i = 0; i < p.n; i++)
            TRY(space_out(&p, s->syms, s->node, i + SPACE_MAX - p.n, x->dims[2 + i], &dims[2 + i], e));
    }
    for (uint32_t o = 0; o < s->n_out; o++) {
        enum dtype d = o == 0 ? x->dtype : DT_I64;
        if (known)
            type_tensor(&s->out[o], d, x->rank, dims);
        else
            type_unknown(s, &s->out[o], d, -1);
    }
    return ST_OK;
}

/* One plane of the input and of the output. */
struct window {
    int64_t in[SPACE_MAX], out[SPACE_MAX];
    struct space p;
    enum kind kind;
    int count_pad, column_major;
    double p_norm;
};

/* Taps of output o along axis i that lie in the input: [*lo, *hi) */
static void taps_in(const struct window *v, int i, int64_t o, int64_t *lo, int64_t *hi)
{
    int64_t first = o * v->p.stride[i] - v->p.begin[i], d = v->p.dilation[i];
    *lo = first < 0 ? (-first + d - 1) / d : 0;
    *hi = v->in[i] > first ? (v->in[i] - first + d - 1) / d : 0;
    *hi = *hi < v->p.kernel[i] ? *hi : v->p.kernel[i];
    *lo = *lo < *hi ? *lo : *hi;
}

/* How many taps count where padding does: those that are in the padded input */
static int64_t taps_padded(const struct window *v, int i, int64_t o)
{
    int64_t room = v->in[i] + v->p.end[i] + v->p.begin[i] - o * v->p.stride[i], n = (room + v->p.dilation[i] - 1) / v->p.dilation[i];
    return n < v->p.kernel[i] ? n : v->p.kernel[i];
}

static int64_t divisor(const struct window *v, const int64_t o[3], const int64_t lo[3], const int64_t hi[3])
{
    int64_t n = 1;
    for (int i = 0; i < SPACE_MAX; i++)
        n *= v->count_pad ? taps_padded(v, i, o[i]) : hi[i] - lo[i];
    return n;
}

/* A row of outputs in f32, tap after tap over the whole row. */
static void row_f32(const struct window *v, const float *x, int64_t d, int64_t h, float *y)
{
    int64_t lo[3], hi[3], o[3] = {d, h, 0}, n = v->out[2];
    int is_max = v->kind == POOL_OF_MAX;
    for (int64_t w = 0; w < n; w++)
        y[w] = is_max ? -INFINITY : 0;
    taps_in(v, 0, d, &lo[0], &hi[0]);
    taps_in(v, 1, h, &lo[1], &hi[1]);
    int64_t s = v->p.stride[2], d2 = v->p.dilation[2]; /* taps that some output of the row has inside the input */
    int64_t low = v->p.begin[2] - (n - 1) * s, k0 = low > 0 ? (low + d2 - 1) / d2 : 0, k1 = (v->in[2] - 1 + v->p.begin[2]) / d2 + 1;
    k1 = k1 < v->p.kernel[2] ? k1 : v->p.kernel[2];
    for (int64_t kd = lo[0]; kd < hi[0]; kd++)
        for (int64_t kh = lo[1]; kh < hi[1]; kh++) {
            const float *row = x + ((d * v->p.stride[0] - v->p.begin[0] + kd * v->p.dilation[0]) * v->in[1] + h * v->p.stride[1] -
                                    v->p.begin[1] + kh * v->p.dilation[1]) * v->in[2];
            for (int64_t kw = k0; kw < k1; kw++) {
                int64_t shift = kw * v->p.dilation[2] - v->p.begin[2]; /* outputs w with 0 <= w * s + shift < in */
                int64_t first = shift < 0 ? (-shift + s - 1) / s : 0, last = v->in[2] > shift ? (v->in[2] - shift + s - 1) / s : 0;
                last = last < n ? last : n;
                const float *from = row + shift;
                if (is_max && s == 1)
                    for (int64_t w = first; w < last; w++)
                        y[w] = from[w] > y[w] ? from[w] : y[w];
                else if (is_max)
                    for (int64_t w = first; w < last; w++)
                        y[w] = from[w * s] > y[w] ? from[w * s] : y[w];
                else
                    for (int64_t w = first; w < last; w++)
                        y[w] += from[w * s];
            }
        }
    if (!is_max)
        for (o[2] = 0; o[2] < n; o[2]++) {
            taps_in(v, 2, o[2], &lo[2], &hi[2]);
            int64_t count = divisor(v, o, lo, hi);
            y[o[2]] = count ? y[o[2]] / (float)count : 0;
        }
}

/* One output element in double; *index is where the maximum was found, in the plane. */
static double element(const struct window *v, const double *x, const int64_t o[3], int64_t *index)
{
    int64_t lo[3], hi[3];
    for (int i = 0; i < SPACE_MAX; i++)
        taps_in(v, i, o[i], &lo[i], &hi[i]);
    double y = v->kind == POOL_OF_MAX ? -INFINITY : 0;
    *index = 0;
    int some = 0;
    for (int64_t kd = lo[0]; kd < hi[0]; kd++)
        for (int64_t kh = lo[1]; kh < hi[1]; kh++)
            for (int64_t kw = lo[2]; kw < hi[2]; kw++) {
                int64_t d = o[0] * v->p.stride[0] - v->p.begin[0] + kd * v->p.dilation[0];
                int64_t h = o[1] * v->p.stride[1] - v->p.begin[1] + kh * v->p.dilation[1];
                int64_t w = o[2] * v->p.stride[2] - v->p.begin[2] + kw * v->p.dilation[2];
                double a = x[(d * v->in[1] + h) * v->in[2] + w];
                if (v->kind == POOL_OF_AVERAGE) {
                    y += a;
                } else if (v->kind == POOL_OF_LP) {
                    y += v->p_norm == 1 ? fabs(a) : v->p_norm == 2 ? a * a : pow(fabs(a), v->p_norm);
                } else if (a > y || !some) {
                    y = a, some = 1;
                    *index = v->column_major ? (v->p.n == 3 ? d + h * v->in[0] + w * v->in[0] * v->in[1] : h + w * v->in[1])
                                             : (d * v->in[1] + h) * v->in[2] + w;
                }
            }
    if (v->kind == POOL_OF_AVERAGE) {
        int64_t count = divisor(v, o, lo, hi);
        return count ? y / (double)count : 0;
    }
    if (v->kind == POOL_OF_LP)
        return v->p_norm == 1 ? y : v->p_norm == 2 ? sqrt(y) : pow(y, 1 / v->p_norm);
    return y;
}

/* Largest of windows in f32, by the kernel. */
static enum status run_max(struct run *r, const struct node *n, const struct window *v, int64_t planes, const float *x, float *y, struct err *e)
{
    const struct conv_kernels *k = conv_kernels_of(n->kernels);
    struct conv_args g = {.batch = 1, .groups = (uint32_t)planes, .ic = 1, .oc = 1, .x = x, .y = y};
    for (int i = 0; i < SPACE_MAX; i++) {
        g.in[i] = (uint32_t)v->in[i], g.out[i] = (uint32_t)v->out[i];
        g.kernel[i] = (uint32_t)v->p.kernel[i], g.stride[i] = (uint32_t)v->p.stride[i], g.dilation[i] = (uint32_t)v->p.dilation[i];
        g.pad[i] = (int32_t)v->p.begin[i];
    }
    TRY(run_scratch(r, k->scratch(&g), &g.scratch, e));
    k->max_pool(&g);
    return ST_OK;
}

/* Whether a padded plane is of a size that can be copied. */
static int plane_fits(const struct window *v)
{
    double floats = 1;
    for (int i = 0; i < SPACE_MAX; i++)
        floats *= (double)(v->in[i] + v->p.begin[i] + v->p.end[i]) + (double)(v->p.kernel[i] * v->p.dilation[i]) + (double)v->p.stride[i];
    return floats < 0x1p28;
}

static enum status pooling_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0), *at = n->n_out > 1 ? run_out(r, 1) : NULL;
    struct window v = {.kind = kind_of(n), .count_pad = node_int(n, "count_include_pad", 0) != 0,
                       .column_major = node_int(n, "storage_order", 0) != 0, .p_norm = (double)node_int(n, "p", 2)};
    const struct tensor *some = y ? y : at;
    if (!some || tensor_count(some) == 0)
        return ST_OK;
    TRY(space_read(n, (int)x->rank, NULL, &v.p, e));
    space_dims(x, v.in);
    space_dims(some, v.out);
    space_pads(&v.p, v.in, v.out);
    int64_t planes = x->dims[0] * x->dims[1], in = v.in[0] * v.in[1] * v.in[2], out = v.out[0] * v.out[1] * v.out[2];
    if (x->dtype == DT_F32 && !at && v.kind != POOL_OF_LP) {
        const float *from = tensor_data(x);
        float *to = tensor_data(y);
        if (v.kind == POOL_OF_MAX && planes > 1 && planes < UINT32_MAX && plane_fits(&v))
            return run_max(r, n, &v, planes, from, to, e);
        for (int64_t i = 0; i < planes; i++, from += in)
            for (int64_t d = 0; d < v.out[0]; d++)
                for (int64_t h = 0; h < v.out[1]; h++, to += v.out[2])
                    row_f32(&v, from, d, h, to);
        return ST_OK;
    }
    double *wide;
    int64_t *indices = at ? tensor_data(at) : NULL, index;
    TRY(wide_load(r, x, &wide, e));
    for (int64_t i = 0, k = 0; i < planes; i++)
        for (int64_t j = 0; j < out; j++, k++) {
            int64_t o[3] = {j / (v.out[1] * v.out[2]), j / v.out[2] % v.out[1], j % v.out[2]};
            double a = element(&v, wide + i * in, o, &index);
            if (y)
                wide_put(y->dtype, tensor_data(y), (size_t)k, a);
            if (indices)
                indices[k] = i * in + index;
        }
    return ST_OK;
}

#define POOL(op, from, to, outs)                                                                                                 \
    {.domain = "", .name = op, .since = from, .until = to, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = outs,              \
     .check = pooling_check, .shape = pooling_shape, .run = pooling_run, .follow = follow_axis0}
const struct op_def ops_pooling[] = {
    POOL("MaxPool", 1, OPSET_ANY, 2),
    POOL("AveragePool", 1, OPSET_ANY, 1),
    POOL("LpPool", 2, OPSET_ANY, 1),
    {0},
};
