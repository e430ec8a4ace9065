/* GridSample and AffineGrid. In double; two or three spatial axes. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

enum mode { NEAREST, LINEAR, CUBIC };
enum padding { ZEROS, BORDER, REFLECTION };
struct sampling {
    enum mode mode;
    enum padding padding;
    int align;
    uint32_t axes;
    int64_t size[SPACE_MAX]; /* of the image: axes of them */
    int64_t step[SPACE_MAX];
};

static enum status sampling_of(const struct node *n, struct sampling *out, struct err *e)
{
    const char *mode = node_string(n, "mode", "linear"), *padding = node_string(n, "padding_mode", "zeros");
    *out = (struct sampling){.align = node_int(n, "align_corners", 0) != 0};
    if (!strcmp(mode, "bilinear") || !strcmp(mode, "linear"))
        out->mode = LINEAR;
    else if (!strcmp(mode, "bicubic") || !strcmp(mode, "cubic"))
        out->mode = CUBIC;
    else if (!strcmp(mode, "nearest"))
        out->mode = NEAREST;
    else
        return node_error(n, e, "attribute 'mode' is '%s'", mode);
    if (!strcmp(padding, "zeros"))
        out->padding = ZEROS;
    else if (!strcmp(padding, "border"))
        out->padding = BORDER;
    else if (!strcmp(padding, "reflection"))
        out->padding = REFLECTION;
    else
        return node_error(n, e, "attribute 'padding_mode' is '%s'", padding);
    return ST_OK;
}

static enum status sample_check(struct node *n, struct err *e)
{
    struct sampling s;
    return sampling_of(n, &s, e);
}

static enum status sample_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0], *g = &s->in[1];
    TRY(shape_float(s, 0, 4, e));
    TRY(shape_float(s, 1, 4, e));
    int rank = x->rank >= 0 ? x->rank : g->rank;
    type_unknown(s, &s->out[0], x->dtype, rank);
    if (x->rank < 0 || g->rank < 0)
        return ST_OK;
    TRY(shape_rank(s, 1, rank, e));
    if (rank > 2 + SPACE_MAX || (dim_known(g->dims[rank - 1]) && g->dims[rank - 1] != rank - 2))
        return node_error(s->node, e, "a grid of %lld coordinates for an image of %d axes is not supported", (long long)g->dims[rank - 1], rank - 2);
    dim dims[RANK_MAX] = {x->dims[0], x->dims[1]};
    for (int i = 0; i < rank - 2; i++)
        dims[2 + i] = g->dims[1 + i];
    type_tensor(&s->out[0], x->dtype, rank, dims);
    return ST_OK;
}

static double reflect(double x, double lo, double hi)
{
    double range = hi - lo;
    if (!(range > 0))
        return lo;
    if (x < lo) {
        double d = lo - x, n = floor(d / range), r = d - n * range;
        return fmod(n, 2) == 0 ? lo + r : hi - r;
    }
    if (x > hi) {
        double d = x - hi, n = floor(d / range), r = d - n * range;
        return fmod(n, 2) == 0 ? hi - r : lo + r;
    }
    return x;
}

/* Index i along an axis, as the padding has it; -1: a zero stands there. */
static int64_t index_at(const struct sampling *s, uint32_t axis, double i)
{
    int64_t n = s->size[axis];
    if (i >= 0 && i <= (double)(n - 1))
        return (int64_t)i;
    if (s->padding == ZEROS || !(i == i))
        return -1;
    if (s->padding == BORDER)
        return i < 0 ? 0 : n - 1;
    double r = s->align ? reflect(i, 0, (double)(n - 1)) : reflect(i, -0.5, (double)n - 0.5);
    return r < 0 ? 0 : r > (double)(n - 1) ? n - 1 : (int64_t)r;
}

struct taps {
    int64_t at[SPACE_MAX][4];
    double weight[SPACE_MAX][4];
    int count;
};

static void taps_of(const struct sampling *s, const double *grid, struct taps *t)
{
    t->count = s->mode == NEAREST ? 1 : s->mode == LINEAR ? 2 : 4;
    for (uint32_t a = 0; a < s->axes; a++) {
        double g = grid[s->axes - 1 - a], n = (double)s->size[a], x = s->align ? (g + 1) / 2 * (n - 1) : ((g + 1) * n - 1) / 2;
        if (s->mode == CUBIC) /* each of its points is brought inside by itself */
            ;
        else if (s->padding == BORDER)
            x = x < 0 ? 0 : x > n - 1 ? n - 1 : x;
        else if (s->padding == REFLECTION)
            x = s->align ? reflect(x, 0, n - 1) : reflect(x, -0.5, n - 0.5);
        double first = s->mode == NEAREST ? nearbyint(x) : floor(x) - (s->mode == CUBIC), d = x - floor(x);
        for (int i = 0; i < t->count; i++) {
            t->at[a][i] = index_at(s, a, first + i);
            double u = fabs(d + 1 - i), c = -0.75;
            t->weight[a][i] = s->mode == NEAREST ? 1
                              : s->mode == LINEAR ? (i ? d : 1 - d)
                              : u <= 1            ? ((c + 2) * u - (c + 3)) * u * u + 1
                                                  : ((c * u - 5 * c) * u + 8 * c) * u - 4 * c;
        }
    }
}

static double value_at(const struct sampling *s, const struct taps *t, const double *x)
{
    int64_t all = 1;
    double sum = 0;
    for (uint32_t a = 0; a < s->axes; a++)
        all *= t->count;
    for (int64_t i = 0; i < all; i++) {
        int64_t left = i, at = 0;
        double w = 1;
        int there = 1;
        for (uint32_t a = s->axes; a-- > 0; left /= t->count) {
            int k = (int)(left % t->count);
            there &= t->at[a][k] >= 0;
            at += t->at[a][k] * s->step[a];
            w *= t->weight[a][k];
        }
        if (there)
            sum += w * x[at];
    }
    return sum;
}

static enum status sample_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *g = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    struct sampling s;
    TRY(sampling_of(n, &s, e));
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    if (g->dims[0] != x->dims[0])
        return node_error(n, e, "%lld grids for %lld images", (long long)g->dims[0], (long long)x->dims[0]);
    s.axes = x->rank - 2;
    int64_t volume = 1, points = 1;
    for (uint32_t a = s.axes; a-- > 0;) {
        s.size[a] = x->dims[2 + a], s.step[a] = volume;
        volume *= x->dims[2 + a];
        points *= y->dims[2 + a];
    }
    if (volume == 0)
        return node_error(n, e, "its input is empty");
    double *in, *grid;
    TRY(wide_load(r, x, &in, e));
    TRY(wide_load(r, g, &grid, e));
    for (int64_t b = 0; b < x->dims[0]; b++)
        for (int64_t p = 0; p < points; p++) {
            struct taps t;
            taps_of(&s, grid + (b * points + p) * s.axes, &t);
            for (int64_t c = 0; c < x->dims[1]; c++) {
                int64_t plane = b * x->dims[1] + c;
                wide_put(y->dtype, tensor_data(y), (size_t)(plane * points + p), value_at(&s, &t, in + plane * volume));
            }
        }
    return ST_OK;
}

static int sample_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)out;
    return axis == 0 ? 0 : -1;
}

/* AffineGrid: theta [N, 2, 3] or [N, 3, 4], size [N, C, (D,) H, W] ---------------------------------------------------------------------------- */

static enum status affine_shape(struct shaping *s, struct err *e)
{
    const dim *size;
    uint32_t count;
    TRY(shape_float(s, 0, 3, e));
    TRY(shape_rank(s, 0, 3, e));
    TRY(shape_type(s, 1, DT_I64, e));
    if (!shape_ints(s, 1, &size, &count)) {
        type_unknown(s, &s->out[0], s->in[0].dtype, s->in[1].rank == 1 && dim_known(s->in[1].dims[0]) ? (int)s->in[1].dims[0] : -1);
        return ST_OK;
    }
    if (count != 4 && count != 5)
        return node_error(s->node, e, "a size of %u numbers; 4 or 5 are needed", count);
    dim dims[RANK_MAX] = {size[0]};
    for (uint32_t i = 2; i < count; i++)
        dims[i - 1] = size[i];
    for (uint32_t i = 0; i < count - 1; i++)
        if (dims[i] == DIM_UNKNOWN)
            dims[i] = dim_fresh(s->syms);
        else if (dim_known(dims[i]) && dims[i] < 0)
            return node_error(s->node, e, "size %lld", (long long)dims[i]);
    dims[count - 1] = count - 2;
    type_tensor(&s->out[0], s->in[0].dtype, (int)count, dims);
    return ST_OK;
}

static enum status affine_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *theta = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    uint32_t axes = y->rank - 2;
    if (theta->dims[0] != y->dims[0] || theta->dims[1] != axes || theta->dims[2] != axes + 1)
        return node_error(n, e, "its matrices do not go with its size");
    int align = node_int(n, "align_corners", 0) != 0;
    double *t;
    TRY(wide_load(r, theta, &t, e));
    for (int64_t i = 0, all = tensor_count(y) / axes; i < all; i++) {
        double at[SPACE_MAX + 1];
        int64_t left = i;
        for (uint32_t a = axes; a-- > 0; left /= y->dims[1 + a]) { /* x first */
            double size = (double)y->dims[1 + a], k = (double)(left % y->dims[1 + a]);
            at[axes - 1 - a] = align ? (size > 1 ? 2 * k / (size - 1) - 1 : -1) : (2 * k + 1) / size - 1;
        }
        at[axes] = 1;
        const double *m = t + left * axes * (axes + 1);
        for (uint32_t a = 0; a < axes; a++) {
            double sum = 0;
            for (uint32_t k = 0; k <= axes; k++)
                sum += m[a * (axes + 1) + k] * at[k];
            wide_put(y->dtype, tensor_data(y), (size_t)i * axes + a, sum);
        }
    }
    return ST_OK;
}

const struct op_def ops_grid_sample[] = {
    {.domain = "", .name = "GridSample", .since = 16, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .check = sample_check, .shape = sample_shape, .run = sample_run, .follow = sample_follow},
    {.domain = "", .name = "AffineGrid", .since = 20, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = affine_shape, .run = affine_run},
    {0},
};
