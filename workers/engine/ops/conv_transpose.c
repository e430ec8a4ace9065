/* ConvTranspose as convolutions of stride 1: outputs whose index plus padding leaves the same remainder when divided by the stride see the
   same taps, so there is one convolution for each remainder, over the taps that it sees in reverse order, and its results are spread over
   the output. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpu/conv.h"
#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

/* Along one axis, for one remainder: taps first, first + step, ... (count of them) */
struct taps {
    uint32_t first, step, count, dilation;
};

struct transpose {
    const struct conv_kernels *kernels;
    uint32_t parts;
    float **packed; /* of each remainder (depth, height, width); NULL: the weights come with each run */
};

static enum status transpose_check(struct node *n, struct err *e)
{
    TRY(space_check(n, e));
    if (node_int(n, "group", 1) < 1)
        return node_error(n, e, "attribute 'group' is %lld; it must be 1 or more", (long long)node_int(n, "group", 1));
    struct transpose *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_nomem(e, "the model's graph");
    c->kernels = conv_kernels_of(n->kernels);
    n->state = c;
    return ST_OK;
}

static int64_t extra(const struct node *n, const char *name, uint32_t axis, uint32_t axes, int64_t otherwise)
{
    uint32_t count;
    const int64_t *v = node_ints(n, name, &count);
    if (!v || count < axes || axis < SPACE_MAX - axes)
        return otherwise;
    return v[count - axes + axis - (SPACE_MAX - axes)]; /* output_shape may hold batch and channels in front */
}

/* Output size along an axis of an input of `in`, and padding where output_shape or auto_pad decide. */
static enum status out_size(const struct node *n, struct syms *syms, struct space *p, uint32_t i, dim in, dim *out, struct err *e)
{
    int64_t more = extra(n, "output_padding", i, p->n, 0), given = extra(n, "output_shape", i, p->n, -1);
    if (more < 0 || more > 1 << 24 || given > 1 << 30 || given < -1)
        return node_error(n, e, "output_padding of %lld or output_shape of %lld is out of range", (long long)more, (long long)given);
    dim reach = dim_add(syms, dim_mul(syms, dim_sub(syms, p->kernel[i], 1), p->dilation[i]), 1);
    dim whole = dim_add(syms, dim_add(syms, dim_mul(syms, dim_sub(syms, in, 1), p->stride[i]), reach), more);
    if (given < 0 && p->how != SPACE_SAME_UPPER && p->how != SPACE_SAME_LOWER) {
        int64_t cut = p->begin[i] + p->end[i];
        if (dim_known(whole) && whole < cut)
            return node_error(n, e, "padding of %lld leaves nothing of %lld", (long long)cut, (long long)whole);
        *out = dim_sub(syms, whole, cut);
        return !syms && !dim_known(*out) ? node_error(n, e, "its output is too large") : ST_OK;
    }
    *out = given >= 0 ? given : dim_mul(syms, in, p->stride[i]);
    if (dim_known(whole) && dim_known(*out)) {
        int64_t cut = whole - *out; /* negative: zeros are added */
        p->begin[i] = p->how == SPACE_SAME_UPPER ? cut / 2 : cut - cut / 2;
        if (cut < 0)
            p->begin[i] = 0;
        p->end[i] = cut - p->begin[i];
    }
    return ST_OK;
}

static enum status transpose_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *w = &s->in[1];
    TRY(shape_float(s, 0, 3, e));
    TRY(shape_type(s, 1, x->dtype, e));
    if (shape_has(s, 2))
        TRY(shape_type(s, 2, x->dtype, e));
    int rank = x->rank >= 0 ? x->rank : w->rank;
    type_unknown(s, &s->out[0], x->dtype, rank);
    if (x->rank < 0 || w->rank < 0)
        return ST_OK;
    TRY(shape_rank(s, 1, rank, e));
    struct space p;
    TRY(space_read(s->node, rank, w->dims + 2, &p, e));
    int64_t groups = node_int(s->node, "group", 1);
    if (dim_known(w->dims[0]) && dim_known(x->dims[1]) && x->dims[1] != w->dims[0])
        return node_error(s->node, e, "its input has %lld channels; its weights are for %lld", (long long)x->dims[1], (long long)w->dims[0]);
    if (dim_known(w->dims[0]) && w->dims[0] % groups)
        return node_error(s->node, e, "%lld channels do not go into %lld groups", (long long)w->dims[0], (long long)groups);
    dim dims[RANK_MAX] = {x->dims[0], dim_mul(s->syms, w->dims[1], groups)};
    if (shape_has(s, 2) && s->in[2].rank >= 0) {
        TRY(shape_rank(s, 2, 1, e));
        if (dim_known(s->in[2].dims[0]) && dim_known(dims[1]) && s->in[2].dims[0] != dims[1])
            return node_error(s->node, e, "its bias has %lld values for %lld output channels", (long long)s->in[2].dims[0], (long long)dims[1]);
    }
    for (uint32_t i = 0; i < p.n; i++)
        TRY(out_size(s->node, s->syms, &p, i + SPACE_MAX - p.n, x->dims[2 + i], &dims[2 + i], e));
    type_tensor(&s->out[0], x->dtype, rank, dims);
    return ST_OK;
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t t = a % b;
        a = b, b = t;
    }
    return a;
}

/* Taps k with k * dilation = remainder (mod stride): an arithmetic progression. From one to the next the input index moves by `dilation`. */
static struct taps taps_of(uint32_t kernel, uint32_t stride, uint32_t dilation, uint32_t remainder)
{
    uint32_t d = gcd(stride, dilation);
    struct taps t = {.step = stride / d, .dilation = dilation / d};
    for (t.first = 0; t.first < t.step && t.first * dilation % stride != remainder; t.first++)
        ;
    if (t.first < t.step && t.first < kernel)
        t.count = (kernel - 1 - t.first) / t.step + 1;
    return t;
}

/* w is [groups * ic][oc][kernel]; to is [groups * oc][ic][taps in reverse] */
static void gather_weights(const struct conv_args *g, const uint32_t kernel[3], const struct taps t[3], const float *w, float *to)
{
    for (uint32_t o = 0; o < g->groups * g->oc; o++)
        for (uint32_t c = 0; c < g->ic; c++) {
            const float *from = w + (((size_t)(o / g->oc) * g->ic + c) * g->oc + o % g->oc) * kernel[0] * kernel[1] * kernel[2];
            for (uint32_t a = t[0].count; a-- > 0;)
                for (uint32_t b = t[1].count; b-- > 0;)
                    for (uint32_t d = t[2].count; d-- > 0;)
                        *to++ = from[((size_t)(t[0].first + a * t[0].step) * kernel[1] + t[1].first + b * t[1].step) * kernel[2] + t[2].first +
                                     d * t[2].step];
        }
}

struct sizes {
    uint32_t kernel[3], stride[3], dilation[3];
    uint32_t groups, ic, oc, parts;
};

static struct sizes sizes_of(const struct node *n, const struct space *p, const int64_t *w)
{
    struct sizes z = {.groups = (uint32_t)node_int(n, "group", 1), .parts = 1};
    z.ic = (uint32_t)w[0] / z.groups;
    z.oc = (uint32_t)w[1];
    for (int i = 0; i < SPACE_MAX; i++) {
        z.kernel[i] = (uint32_t)p->kernel[i], z.stride[i] = (uint32_t)p->stride[i], z.dilation[i] = (uint32_t)p->dilation[i];
        z.parts *= z.stride[i];
    }
    return z;
}

/* The convolution of part i: which remainders, which taps. 0: none falls there. */
static int part_of(const struct sizes *z, uint32_t i, uint32_t remainder[3], struct taps t[3], struct conv_args *g)
{
    remainder[0] = i / (z->stride[1] * z->stride[2]), remainder[1] = i / z->stride[2] % z->stride[1], remainder[2] = i % z->stride[2];
    int some = 1;
    g->groups = z->groups, g->ic = z->ic, g->oc = z->oc;
    for (int a = 0; a < SPACE_MAX; a++) {
        t[a] = taps_of(z->kernel[a], z->stride[a], z->dilation[a], remainder[a]);
        g->kernel[a] = t[a].count, g->stride[a] = 1, g->dilation[a] = t[a].dilation;
        some &= t[a].count > 0;
    }
    return some;
}

static enum status transpose_plan(struct node *n, const struct shaping *s, struct err *e)
{
    struct transpose *c = n->state;
    const struct tensor *w = s->constants[1];
    if (!w || w->dtype != DT_F32 || w->rank < 3 || w->rank > 2 + SPACE_MAX || tensor_count(w) == 0 || tensor_count(w) > INT32_MAX)
        return ST_OK;
    struct space p;
    TRY(space_read(n, (int)w->rank, w->dims + 2, &p, e));
    struct sizes z = sizes_of(n, &p, w->dims);
    if (z.parts > 4096)
        return node_error(n, e, "strides of more than 4096 in all are not supported");
    float *some = mem_array((size_t)tensor_count(w), sizeof *some);
    c->packed = mem_array(z.parts, sizeof *c->packed);
    c->parts = z.parts;
    int ok = some && c->packed;
    for (uint32_t i = 0; ok && i < z.parts; i++) {
        uint32_t remainder[3];
        struct taps t[3];
        struct conv_args g = {0};
        if (!part_of(&z, i, remainder, t, &g))
            continue;
        gather_weights(&g, z.kernel, t, tensor_data(w), some);
        c->packed[i] = mem_aligned(c->kernels->packed(&g) * sizeof(float));
        ok = c->packed[i] != NULL;
        if (ok)
            c->kernels->pack(&g, some, c->packed[i]);
    }
    mem_free(some);
    return ok ? ST_OK : err_nomem(e, "the model's weights");
}

/* What one part computes goes to every stride-th place of the output. */
static void spread(const struct sizes *z, const struct conv_args *g, const uint32_t at[3], const uint32_t out[3], const float *from, float *y)
{
    for (size_t c = 0; c < (size_t)g->batch * g->groups * g->oc; c++, y += (size_t)out[0] * out[1] * out[2])
        for (uint32_t d = 0; d < g->out[0]; d++)
            for (uint32_t h = 0; h < g->out[1]; h++) {
                float *row = y + ((size_t)(at[0] + d * z->stride[0]) * out[1] + at[1] + h * z->stride[1]) * out[2] + at[2];
                for (uint32_t w = 0; w < g->out[2]; w++)
                    row[(size_t)w * z->stride[2]] = *from++;
            }
}

static enum status run_part(struct run *r, const struct node *n, const struct sizes *z, uint32_t i, const struct space *p, struct conv_args g,
                            const uint32_t out[3], const float *w, float *some, float *packed, float *y, struct err *e)
{
    const struct transpose *c = n->state;
    uint32_t remainder[3], at[3];
    struct taps t[3];
    int taps = part_of(z, i, remainder, t, &g);
    for (int a = 0; a < SPACE_MAX; a++) {
        int64_t s = z->stride[a], first = ((int64_t)remainder[a] - p->begin[a]) % s;
        first = first < 0 ? first + s : first; /* the least output o >= 0 with o + begin = remainder (mod stride) */
        if (first >= out[a])
            return ST_OK;
        at[a] = (uint32_t)first;
        g.out[a] = (uint32_t)((out[a] - 1 - first) / s) + 1;
        /* input index for the last tap in the row of taps (the first of the kernel) is (o + begin - first tap's reach) / stride */
        int64_t top = (first + p->begin[a] - (int64_t)t[a].first * z->dilation[a]) / s;
        g.pad[a] = (int32_t)((int64_t)(t[a].count ? t[a].count - 1 : 0) * t[a].dilation - top);
    }
    size_t count = (size_t)g.batch * g.groups * g.oc * g.out[0] * g.out[1] * g.out[2];
    float *to = some;
    int whole = z->parts == 1;
    if (!taps) {
        for (size_t o = 0, each = (size_t)g.out[0] * g.out[1] * g.out[2]; o < count; o++)
            to[o] = g.bias ? g.bias[o / each % (g.groups * g.oc)] : 0;
    } else {
        g.packed = c->packed ? c->packed[i] : packed;
        if (!c->packed) {
            gather_weights(&g, z->kernel, t, w, packed + c->kernels->packed(&g));
            c->kernels->pack(&g, packed + c->kernels->packed(&g), packed);
        }
        g.y = whole ? y : to;
        TRY(run_scratch(r, c->kernels->scratch(&g), &g.scratch, e));
        c->kernels->run(&g);
        if (whole)
            return ST_OK;
    }
    spread(z, &g, at, out, to, y);
    return ST_OK;
}

static enum status transpose_run(struct run *r, const struct node *n, struct err *e)
{
    const struct transpose *c = n->state;
    const struct tensor *x = run_in(r, 0), *w = run_in(r, 1), *b = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    struct space p;
    TRY(space_read(n, (int)x->rank, w->dims + 2, &p, e));
    int64_t in[SPACE_MAX], out[SPACE_MAX];
    uint32_t sizes[SPACE_MAX];
    space_dims(x, in);
    struct conv_args g = {.batch = (uint32_t)x->dims[0]};
    double floats = (double)w->dims[0];
    for (uint32_t i = 0; i < SPACE_MAX; i++) {
        TRY(out_size(n, NULL, &p, i, in[i], &out[i], e));
        g.in[i] = (uint32_t)in[i];
        sizes[i] = (uint32_t)out[i];
        floats *= (double)(in[i] + out[i]) + (double)(p.kernel[i] * p.dilation[i]);
    }
    if (floats > (double)INT32_MAX || tensor_count(w) > INT32_MAX)
        return node_error(n, e, "an image of %.0f numbers is too large", floats);
    struct sizes z = sizes_of(n, &p, w->dims);
    if (z.parts > 4096)
        return node_error(n, e, "strides of more than 4096 in all are not supported");
    const float *weights;
    float *to;
    void *some = NULL, *packed = NULL;
    TRY(wide_f32(r, x, &g.x, e));
    TRY(wide_f32(r, b, &g.bias, e));
    TRY(wide_f32(r, w, &weights, e));
    TRY(wide_f32_out(r, y, &to, e));
    if (z.parts > 1)
        TRY(run_scratch(r, (size_t)tensor_count(y) * sizeof(float), &some, e));
    if (!c->packed) /* packed weights are padded to whole tiles of at most 32 channels */
        TRY(run_scratch(r, ((size_t)(z.oc + 32) * z.groups * z.ic * z.kernel[0] * z.kernel[1] * z.kernel[2] + (size_t)tensor_count(w)) * sizeof(float),
                        &packed, e));
    if (tensor_count(x) == 0 || z.ic == 0)
        return node_error(n, e, "its input is empty");
    for (uint32_t i = 0; i < z.parts; i++)
        TRY(run_part(r, n, &z, i, &p, g, sizes, weights, some, packed, to, e));
    wide_f32_done(y, to);
    return ST_OK;
}

static void transpose_release(struct node *n)
{
    struct transpose *c = n->state;
    for (uint32_t i = 0; c && c->packed && i < c->parts; i++)
        mem_free(c->packed[i]);
    if (c)
        mem_free(c->packed);
    release_state(n);
}

const struct op_def ops_conv_transpose[] = {
    {.domain = "", .name = "ConvTranspose", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
     .check = transpose_check, .shape = transpose_shape, .plan = transpose_plan, .run = transpose_run, .release = transpose_release,
     .follow = follow_axis0},
    {0},
};
