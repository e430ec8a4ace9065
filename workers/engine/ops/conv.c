/* Conv, and FusedConv of com.microsoft, which adds a residual and an activation. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpu/conv.h"
#include "workers/engine/ops/acts.h"
#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

struct conv {
    const struct conv_kernels *kernels;
    float *packed;        /* NULL: the weights come with each run */
    int winograd;
    enum conv_act act;    /* within the kernel */
    float a, b;
    struct acts late;     /* activations that follow it */
};

static int is_fused(const struct node *n)
{
    return n->domain[0] != 0;
}

static enum status conv_check(struct node *n, struct err *e)
{
    static const struct {
        enum acts_kind from;
        enum conv_act to;
    } within[] = {{ACTS_NONE, CONV_ACT_NONE}, {ACTS_RELU, CONV_ACT_RELU}, {ACTS_CLIP, CONV_ACT_CLIP}, {ACTS_LEAKY, CONV_ACT_LEAKY},
                  {ACTS_HARD_SIGMOID, CONV_ACT_HARD_SIGMOID}, {ACTS_HARD_SWISH, CONV_ACT_HARD_SWISH}};
    TRY(space_check(n, e));
    if (node_int(n, "group", 1) < 1)
        return node_error(n, e, "attribute 'group' is %lld; it must be 1 or more", (long long)node_int(n, "group", 1));
    struct acts f = {0};
    const char *name = is_fused(n) ? node_string(n, "activation", "") : "";
    if (name[0])
        TRY(acts_find(n, name, &f, e));
    uint32_t count;
    const float *params = node_floats(n, "activation_params", &count);
    if (params && name[0]) {
        if ((int)count > acts_params(&f))
            return node_error(n, e, "activation '%s' takes %d parameters; it has %u", name, acts_params(&f), count);
        f.a = count > 0 ? params[0] : f.a;
        f.b = count > 1 ? params[1] : f.b;
    }
    struct conv *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_nomem(e, "the model's graph");
    c->late = f;
    for (size_t i = 0; i < sizeof within / sizeof *within; i++)
        if (within[i].from == f.kind) {
            c->act = within[i].to, c->a = f.a, c->b = f.b;
            c->late.kind = ACTS_NONE;
        }
    c->kernels = conv_kernels_of(n->kernels);
    n->state = c;
    return ST_OK;
}

static enum status conv_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *w = &s->in[1];
    TRY(shape_float(s, 0, 3, e));
    for (uint32_t i = 1; i < s->n_in; i++)
        if (i == 1 || shape_has(s, i))
            TRY(shape_type(s, i, x->dtype, e));
    int rank = x->rank >= 0 ? x->rank : w->rank;
    if (rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, -1);
        return ST_OK;
    }
    type_unknown(s, &s->out[0], x->dtype, rank);
    if (w->rank >= 0)
        TRY(shape_rank(s, 1, rank, e));
    if (x->rank < 0 || w->rank < 0)
        return ST_OK;
    struct space p;
    TRY(space_read(s->node, rank, w->dims + 2, &p, e));
    int64_t groups = node_int(s->node, "group", 1);
    dim channels = dim_mul(s->syms, w->dims[1], groups);
    if (dim_known(channels) && dim_known(x->dims[1]) && channels != x->dims[1])
        return node_error(s->node, e, "its input has %lld channels; its weights are for %lld", (long long)x->dims[1], (long long)channels);
    if (dim_known(w->dims[1]) && w->dims[1] < 1)
        return node_error(s->node, e, "its weights are for no input channels");
    if (dim_known(w->dims[0]) && w->dims[0] % groups)
        return node_error(s->node, e, "%lld output channels do not go into %lld groups", (long long)w->dims[0], (long long)groups);
    if (shape_has(s, 2)) {
        TRY(shape_rank(s, 2, 1, e));
        if (s->in[2].rank == 1 && dim_known(s->in[2].dims[0]) && dim_known(w->dims[0]) && s->in[2].dims[0] != w->dims[0])
            return node_error(s->node, e, "its bias has %lld values for %lld output channels", (long long)s->in[2].dims[0], (long long)w->dims[0]);
    }
    dim dims[RANK_MAX] = {x->dims[0], w->dims[0]};
    for (uint32_t i = 0; i < p.n; i++)
        TRY(space_out(&p, s->syms, s->node, i + SPACE_MAX - p.n, x->dims[2 + i], &dims[2 + i], e));
    type_tensor(&s->out[0], x->dtype, rank, dims);
    if (shape_has(s, 3)) {
        const struct type *z = &s->in[3];
        if (z->rank >= 0 && z->rank != rank)
            return node_error(s->node, e, "input 3, which is added, has %d axes, the output %d", z->rank, rank);
        for (int i = 0; i < z->rank; i++)
            if (dim_known(z->dims[i]) && dim_known(dims[i]) && z->dims[i] != dims[i])
                return node_error(s->node, e, "input 3, which is added, is of another shape than the output");
    }
    return ST_OK;
}

/* Sizes of the weights: all that packing depends on. */
static void weight_sizes(const struct node *n, const int64_t *w, uint32_t rank, struct conv_args *g)
{
    g->groups = (uint32_t)node_int(n, "group", 1);
    g->oc = (uint32_t)w[0] / g->groups;
    g->ic = (uint32_t)w[1];
    for (uint32_t i = 0; i < SPACE_MAX; i++)
        g->kernel[i] = i < SPACE_MAX - (rank - 2) ? 1 : (uint32_t)w[2 + i - (SPACE_MAX - (rank - 2))];
}

/* Winograd's way where it wins: enough channels on both sides for what it does beside its products, and weights (16 numbers for 9) that do not come from memory
   each time. Told by weights and attributes, so that it is the same for every record. */
enum { WINOGRAD_LEAST = 32, WINOGRAD_MOST = 256 * 256 };

static int wants_winograd(const struct node *n, struct conv_args *g)
{
    uint32_t strides, dilations;
    const int64_t *s = node_ints(n, "strides", &strides), *d = node_ints(n, "dilations", &dilations);
    for (int i = 0; i < 3; i++)
        g->stride[i] = g->dilation[i] = 1;
    for (uint32_t i = 0; i < strides; i++)
        if (s[i] != 1)
            return 0;
    for (uint32_t i = 0; i < dilations; i++)
        if (d[i] != 1)
            return 0;
    return conv_can_winograd(g) && g->ic >= WINOGRAD_LEAST && g->oc >= WINOGRAD_LEAST && (uint64_t)g->ic * g->oc <= WINOGRAD_MOST;
}

static enum status conv_plan(struct node *n, const struct shaping *s, struct err *e)
{
    struct conv *c = n->state;
    const struct tensor *w = s->constants[1];
    if (!w || w->dtype == DT_F64 || w->rank < 3 || w->rank > 2 + SPACE_MAX || tensor_count(w) == 0 || tensor_count(w) > INT32_MAX)
        return ST_OK;
    struct conv_args g = {0};
    weight_sizes(n, w->dims, w->rank, &g);
    g.winograd = c->winograd = wants_winograd(n, &g);
    size_t count = (size_t)tensor_count(w);
    float *wide = NULL;
    const float *from = tensor_data(w);
    if (w->dtype != DT_F32) {
        from = wide = mem_array(count, sizeof *wide);
        for (size_t i = 0; wide && i < count; i++)
            wide[i] = (float)wide_get(w->dtype, tensor_data(w), i);
    }
    c->packed = from ? mem_aligned(c->kernels->packed(&g) * sizeof *c->packed) : NULL;
    if (c->packed)
        c->kernels->pack(&g, from, c->packed);
    mem_free(wide);
    return c->packed ? ST_OK : err_nomem(e, "the model's weights");
}

/* The naive way, in double. */
static void conv_f64(const struct conv_args *g, const double *x, const double *w, const double *bias, double *y)
{
    size_t volume = (size_t)g->in[0] * g->in[1] * g->in[2], taps = (size_t)g->kernel[0] * g->kernel[1] * g->kernel[2];
    for (uint32_t b = 0; b < g->batch; b++)
        for (uint32_t o = 0; o < g->groups * g->oc; o++)
            for (uint32_t od = 0; od < g->out[0]; od++)
                for (uint32_t oh = 0; oh < g->out[1]; oh++)
                    for (uint32_t ow = 0; ow < g->out[2]; ow++) {
                        const double *plane = x + ((size_t)b * g->groups + o / g->oc) * g->ic * volume, *v = w + o * g->ic * taps;
                        double sum = 0;
                        for (uint32_t c = 0; c < g->ic; c++, plane += volume)
                            for (uint32_t kd = 0; kd < g->kernel[0]; kd++)
                                for (uint32_t kh = 0; kh < g->kernel[1]; kh++)
                                    for (uint32_t kw = 0; kw < g->kernel[2]; kw++, v++) {
                                        int64_t d = (int64_t)od * g->stride[0] + (int64_t)kd * g->dilation[0] - g->pad[0];
                                        int64_t h = (int64_t)oh * g->stride[1] + (int64_t)kh * g->dilation[1] - g->pad[1];
                                        int64_t l = (int64_t)ow * g->stride[2] + (int64_t)kw * g->dilation[2] - g->pad[2];
                                        if (d >= 0 && h >= 0 && l >= 0 && d < g->in[0] && h < g->in[1] && l < g->in[2])
                                            sum += *v * plane[((size_t)d * g->in[1] + (size_t)h) * g->in[2] + (size_t)l];
                                    }
                        *y++ = bias ? sum + bias[o] : sum;
                    }
}

static enum status conv_args_of(const struct node *n, const struct tensor *x, const struct tensor *w, const struct tensor *y,
                                struct conv_args *g, struct err *e)
{
    struct space p;
    TRY(space_read(n, (int)x->rank, w->dims + 2, &p, e));
    int64_t in[SPACE_MAX], out[SPACE_MAX];
    space_dims(x, in);
    space_dims(y, out);
    space_pads(&p, in, out);
    weight_sizes(n, w->dims, w->rank, g);
    g->batch = (uint32_t)x->dims[0];
    double floats = (double)g->ic;
    for (uint32_t i = 0; i < SPACE_MAX; i++) {
        g->in[i] = (uint32_t)in[i], g->out[i] = (uint32_t)out[i];
        g->stride[i] = (uint32_t)p.stride[i], g->dilation[i] = (uint32_t)p.dilation[i];
        g->pad[i] = (int32_t)p.begin[i];
        floats *= (double)(in[i] + p.begin[i] + p.end[i]) + (double)p.stride[i];
    }
    if (floats > (double)INT32_MAX || tensor_count(w) > INT32_MAX)
        return node_error(n, e, "an image of %.0f numbers with its padding is too large", floats);
    return ST_OK;
}

static enum status conv_run(struct run *r, const struct node *n, struct err *e)
{
    const struct conv *c = n->state;
    const struct tensor *x = run_in(r, 0), *w = run_in(r, 1), *b = run_in(r, 2), *z = n->n_in > 3 ? run_in(r, 3) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    struct conv_args g = {.act = c->act, .a = c->a, .b = c->b};
    TRY(conv_args_of(n, x, w, y, &g, e));
    if (z && tensor_count(z) != tensor_count(y))
        return node_error(n, e, "input 3, which is added, has %lld elements, the output %lld", (long long)tensor_count(z),
                          (long long)tensor_count(y));
    if (x->dtype == DT_F64) {
        if (is_fused(n))
            return node_error(n, e, "float64 is not supported here");
        conv_f64(&g, tensor_data(x), tensor_data(w), b ? tensor_data(b) : NULL, tensor_data(y));
        return ST_OK;
    }
    TRY(wide_f32(r, x, &g.x, e));
    TRY(wide_f32(r, b, &g.bias, e));
    TRY(wide_f32(r, z, &g.res, e));
    TRY(wide_f32_out(r, y, &g.y, e));
    g.packed = c->packed;
    g.winograd = c->winograd;
    if (!c->packed) {
        const float *plain;
        void *to;
        TRY(wide_f32(r, w, &plain, e));
        TRY(run_scratch(r, c->kernels->packed(&g) * sizeof(float), &to, e));
        c->kernels->pack(&g, plain, to);
        g.packed = to;
    }
    TRY(run_scratch(r, c->kernels->scratch(&g), &g.scratch, e));
    c->kernels->run(&g);
    acts_run(&c->late, n->kernels, (size_t)tensor_count(y), g.y);
    wide_f32_done(y, g.y);
    return ST_OK;
}

static void conv_release(struct node *n)
{
    struct conv *c = n->state;
    if (c)
        mem_free(c->packed);
    release_state(n);
}

static int conv_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return (in == 0 || in == 3) && axis == 0 ? 0 : -1;
}

#define CONV .check = conv_check, .shape = conv_shape, .plan = conv_plan, .run = conv_run, .release = conv_release, .follow = conv_follow
const struct op_def ops_conv[] = {
    {.domain = "", .name = "Conv", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1, CONV},
    {.domain = "com.microsoft", .name = "FusedConv", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1, CONV},
    {0},
};
