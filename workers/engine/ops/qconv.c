/* ConvInteger and QLinearConv: the windows of a block of output pixels become rows of a product in int16, with exact sums. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/quant.h"
#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

enum { PIXELS = 64 };

struct ports {
    uint32_t x, w, x_zero, w_zero;
};

static int is_linear(const struct node *n)
{
    return n->op[0] == 'Q';
}

static struct ports ports_of(const struct node *n)
{
    return is_linear(n) ? (struct ports){0, 3, 2, 5} : (struct ports){0, 1, 2, 3};
}

static enum status qconv_check(struct node *n, struct err *e)
{
    if (node_int(n, "group", 1) < 1)
        return node_error(n, e, "attribute 'group' is not positive");
    if (node_int(n, "channels_last", 0))
        return node_error(n, e, "channels last is not supported");
    return space_check(n, e);
}

static enum status byte_type(const struct shaping *s, uint32_t i, struct err *e)
{
    if (!shape_has(s, i) || (s->in[i].dtype != DT_U8 && s->in[i].dtype != DT_I8))
        return node_error(s->node, e, "input %u is of type %s; int8 or uint8 is needed", i, shape_has(s, i) ? dtype_name(s->in[i].dtype) : "none");
    return ST_OK;
}

static enum status qconv_shape(struct shaping *s, struct err *e)
{
    struct ports p = ports_of(s->node);
    const struct type *x = &s->in[p.x], *w = &s->in[p.w];
    enum dtype d = DT_I32;
    TRY(byte_type(s, p.x, e));
    TRY(byte_type(s, p.w, e));
    if (shape_has(s, p.x_zero))
        TRY(shape_type(s, p.x_zero, x->dtype, e));
    if (shape_has(s, p.w_zero))
        TRY(shape_type(s, p.w_zero, w->dtype, e));
    if (is_linear(s->node)) {
        TRY(byte_type(s, 7, e));
        d = s->in[7].dtype;
        TRY(shape_type(s, 1, DT_F32, e));
        TRY(shape_type(s, 4, DT_F32, e));
        TRY(shape_type(s, 6, DT_F32, e));
        if (shape_has(s, 8))
            TRY(shape_type(s, 8, DT_I32, e));
    }
    if (x->rank < 0 || w->rank < 0) {
        type_unknown(s, &s->out[0], d, x->rank >= 0 ? x->rank : w->rank);
        return ST_OK;
    }
    TRY(shape_rank(s, p.w, x->rank, e));
    struct space v;
    TRY(space_read(s->node, x->rank, w->dims + 2, &v, e));
    int64_t groups = node_int(s->node, "group", 1);
    dim channels = dim_mul(s->syms, w->dims[1], groups);
    if (dim_known(channels) && dim_known(x->dims[1]) && channels != x->dims[1])
        return node_error(s->node, e, "its input has %lld channels; its weights are for %lld", (long long)x->dims[1], (long long)channels);
    if (dim_known(w->dims[1]) && w->dims[1] < 1)
        return node_error(s->node, e, "its weights are for no input channels");
    if (dim_known(w->dims[0]) && w->dims[0] % groups)
        return node_error(s->node, e, "%lld output channels do not go into %lld groups", (long long)w->dims[0], (long long)groups);
    dim dims[RANK_MAX] = {x->dims[0], w->dims[0]};
    for (uint32_t i = 0; i < v.n; i++)
        TRY(space_out(&v, s->syms, s->node, i + SPACE_MAX - v.n, x->dims[2 + i], &dims[2 + i], e));
    type_tensor(&s->out[0], d, x->rank, dims);
    return ST_OK;
}

static enum status pack_weights(const struct node *n, const struct tensor *w, const struct tensor *zero, int16_t *to, struct err *e)
{
    size_t groups = (size_t)node_int(n, "group", 1), oc = (size_t)w->dims[0] / groups, k = (size_t)(tensor_count(w) / w->dims[0]);
    size_t zeros = zero ? (size_t)tensor_count(zero) : 1;
    if (zeros != 1 && zeros != (size_t)w->dims[0])
        return node_error(n, e, "%zu zero points for %lld output channels", zeros, (long long)w->dims[0]);
    for (size_t g = 0; g < groups; g++)
        quant_pack(w->dtype, k, oc, (const uint8_t *)tensor_data(w) + g * oc * k, 1, k,
                   zero ? (const uint8_t *)tensor_data(zero) + (zeros != 1 ? g * oc : 0) : NULL, zeros != 1, to + g * quant_packed(k, oc));
    return ST_OK;
}

static size_t packed_size(const struct node *n, const struct tensor *w)
{
    size_t groups = (size_t)node_int(n, "group", 1);
    return groups * quant_packed((size_t)(tensor_count(w) / w->dims[0]), (size_t)w->dims[0] / groups) * sizeof(int16_t);
}

static enum status qconv_plan(struct node *n, const struct shaping *s, struct err *e)
{
    struct ports p = ports_of(n);
    const struct tensor *w = s->constants[p.w], *zero = shape_has(s, p.w_zero) ? s->constants[p.w_zero] : NULL;
    if (!w || tensor_count(w) == 0 || (shape_has(s, p.w_zero) && !zero))
        return ST_OK;
    n->state = mem_aligned(packed_size(n, w));
    return n->state ? pack_weights(n, w, zero, n->state, e) : err_nomem(e, "the model's weights");
}

struct image {
    int64_t in[3], out[3];
    struct space v;
    int64_t ic, taps;
    enum dtype d;
    int16_t zero; /* padding is the zero point: 0 once that is taken off */
};

/* A window as a row, less the zero point. */
static void window(const struct image *m, const uint8_t *x, int64_t pixel, int16_t *row)
{
    int64_t od = pixel / (m->out[1] * m->out[2]), oh = pixel / m->out[2] % m->out[1], ow = pixel % m->out[2];
    int64_t d0 = od * m->v.stride[0] - m->v.begin[0], h0 = oh * m->v.stride[1] - m->v.begin[1], w0 = ow * m->v.stride[2] - m->v.begin[2];
    int64_t plane = m->in[0] * m->in[1] * m->in[2];
    for (int64_t c = 0; c < m->ic; c++, x += plane)
        for (int64_t kd = 0; kd < m->v.kernel[0]; kd++)
            for (int64_t kh = 0; kh < m->v.kernel[1]; kh++) {
                int64_t d = d0 + kd * m->v.dilation[0], h = h0 + kh * m->v.dilation[1];
                int inside = d >= 0 && h >= 0 && d < m->in[0] && h < m->in[1];
                const uint8_t *from = inside ? x + (d * m->in[1] + h) * m->in[2] : x;
                for (int64_t kw = 0; kw < m->v.kernel[2]; kw++) {
                    int64_t w = w0 + kw * m->v.dilation[2];
                    int16_t v = m->zero;
                    if (inside && w >= 0 && w < m->in[2])
                        v = m->d == DT_I8 ? (int16_t)(int8_t)from[w] : (int16_t)from[w];
                    *row++ = (int16_t)(v - m->zero);
                }
            }
}

/* What becomes of the sums of one block: transposed into the planes of the output. */
struct after {
    int linear;
    const float *w_scale;
    int w_scales;
    float x_scale, y_scale;
    const int32_t *bias;
    int32_t zero, lo, hi;
};

static void finish(const struct after *o, size_t pixels, size_t oc, size_t first, const int32_t *sums, size_t plane, void *y)
{
    for (size_t j = 0; j < oc; j++) {
        float scale = o->linear ? o->x_scale * o->w_scale[o->w_scales ? first + j : 0] / o->y_scale : 0;
        for (size_t i = 0; i < pixels; i++) {
            int32_t v = sums[i * oc + j];
            if (!o->linear) {
                ((int32_t *)y)[j * plane + i] = v;
                continue;
            }
            if (o->bias)
                v += o->bias[first + j];
            float q = quant_round((float)v * scale) + (float)o->zero;
            int32_t w = q >= (float)o->hi ? o->hi : q > (float)o->lo ? (int32_t)q : o->lo;
            ((uint8_t *)y)[j * plane + i] = (uint8_t)w;
        }
    }
}

static enum status qconv_run(struct run *r, const struct node *n, struct err *e)
{
    struct ports p = ports_of(n);
    const struct tensor *x = run_in(r, p.x), *w = run_in(r, p.w), *xz = p.x_zero < n->n_in ? run_in(r, p.x_zero) : NULL,
                        *wz = p.w_zero < n->n_in ? run_in(r, p.w_zero) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    struct image m = {.d = x->dtype, .ic = w->dims[1]};
    struct after o = {.linear = is_linear(n)};
    TRY(space_read(n, (int)x->rank, w->dims + 2, &m.v, e));
    space_dims(x, m.in);
    space_dims(y, m.out);
    space_pads(&m.v, m.in, m.out);
    if (xz) {
        if (tensor_count(xz) != 1)
            return node_error(n, e, "its input has %lld zero points; one is supported", (long long)tensor_count(xz));
        m.zero = (int16_t)wide_get(xz->dtype, tensor_data(xz), 0);
    }
    if (o.linear) {
        const struct tensor *ws = run_in(r, 4), *b = n->n_in > 8 ? run_in(r, 8) : NULL;
        o.x_scale = *(const float *)tensor_data(run_in(r, 1));
        o.y_scale = *(const float *)tensor_data(run_in(r, 6));
        o.w_scale = tensor_data(ws);
        o.w_scales = tensor_count(ws) != 1;
        if ((o.w_scales && tensor_count(ws) != w->dims[0]) || (b && tensor_count(b) != w->dims[0]))
            return node_error(n, e, "its scales or bias do not go with %lld output channels", (long long)w->dims[0]);
        o.bias = b ? tensor_data(b) : NULL;
        o.zero = (int32_t)wide_get(y->dtype, tensor_data(run_in(r, 7)), 0);
        quant_range(y->dtype, &o.lo, &o.hi);
    }
    size_t groups = (size_t)node_int(n, "group", 1), oc = (size_t)w->dims[0] / groups, k = (size_t)(tensor_count(w) / w->dims[0]),
           even = (k + 1) / 2 * 2, plane = (size_t)(m.out[0] * m.out[1] * m.out[2]), in = (size_t)(m.in[0] * m.in[1] * m.in[2]);
    void *packed = n->state, *rows, *sums;
    if (!packed) {
        TRY(run_scratch(r, packed_size(n, w), &packed, e));
        TRY(pack_weights(n, w, wz, packed, e));
    }
    TRY(run_scratch(r, PIXELS * even * sizeof(int16_t), &rows, e));
    TRY(run_scratch(r, PIXELS * oc * sizeof(int32_t), &sums, e));
    memset(rows, 0, PIXELS * even * sizeof(int16_t));
    for (size_t b = 0; b < (size_t)x->dims[0]; b++)
        for (size_t g = 0; g < groups; g++) {
            const uint8_t *from = (const uint8_t *)tensor_data(x) + (b * groups + g) * (size_t)m.ic * in;
            for (size_t i = 0; i < plane; i += PIXELS) {
                size_t count = plane - i < PIXELS ? plane - i : PIXELS;
                for (size_t q = 0; q < count; q++)
                    window(&m, from, (int64_t)(i + q), (int16_t *)rows + q * even);
                quant_gemm(n->kernels, count, oc, k, rows, (const int16_t *)packed + g * quant_packed(k, oc), sums, oc);
                finish(&o, count, oc, g * oc, sums, plane,
                       (uint8_t *)tensor_data(y) + (((b * groups + g) * oc) * plane + i) * dtype_bytes(y->dtype));
            }
        }
    return ST_OK;
}

#define QCONV .check = qconv_check, .shape = qconv_shape, .plan = qconv_plan, .run = qconv_run, .release = release_state, .follow = follow_axis0
const struct op_def ops_qconv[] = {
    {.domain = "", .name = "ConvInteger", .since = 10, .until = OPSET_ANY, .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1, QCONV},
    {.domain = "", .name = "QLinearConv", .since = 10, .until = OPSET_ANY, .min_in = 8, .max_in = 9, .min_out = 1, .max_out = 1, QCONV},
    {.domain = "com.microsoft", .name = "QLinearConv", .since = 1, .until = OPSET_ANY, .min_in = 8, .max_in = 9, .min_out = 1, .max_out = 1, QCONV},
    {0},
};
