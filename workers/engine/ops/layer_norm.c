/* Normalisation of rows: LayerNormalization, RMSNormalization, and those of com.microsoft that add before they normalise. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/wide.h"

struct rows {
    size_t rows, n;
    const float *x, *gamma, *beta; /* gamma and beta may be NULL */
    int rms;
    float eps;
    float *y, *mean, *inverse; /* the last two may be NULL */
};

static double sum_of(size_t n, const float *x, double mean, int squared)
{
    double lane[8] = {0};
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int l = 0; l < 8; l++) {
            double v = (double)x[j + (size_t)l] - mean;
            lane[l] += squared ? v * v : v;
        }
    for (int l = 0; j < n; j++, l++) {
        double v = (double)x[j] - mean;
        lane[l] += squared ? v * v : v;
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void normalise(const struct rows *o)
{
    for (size_t i = 0; i < o->rows; i++) {
        const float *x = o->x + i * o->n;
        float *y = o->y + i * o->n;
        double m = o->rms ? 0 : sum_of(o->n, x, 0, 0) / (double)o->n;
        float mean = (float)m, scale = (float)(1 / sqrt(sum_of(o->n, x, m, 1) / (double)o->n + (double)o->eps));
        for (size_t j = 0; j < o->n; j++) {
            float v = (x[j] - mean) * scale;
            if (o->gamma)
                v *= o->gamma[j];
            if (o->beta)
                v += o->beta[j];
            y[j] = v;
        }
        if (o->mean)
            o->mean[i] = mean;
        if (o->inverse)
            o->inverse[i] = scale;
    }
}

/* rows through the kernel where it does what is asked */
static void run_rows(const struct node *n, const struct rows *o)
{
    if (o->rms && !o->beta && !o->inverse)
        n->kernels->rms_norm((uint32_t)o->rows, (uint32_t)o->n, o->x, o->n, o->gamma, o->eps, o->y, o->n);
    else if (!o->rms && !o->mean && !o->inverse)
        n->kernels->norm((uint32_t)o->rows, (uint32_t)o->n, o->x, o->n, o->gamma, o->beta, o->eps, o->y, o->n);
    else
        normalise(o);
}

/* LayerNormalization, RMSNormalization, SimplifiedLayerNormalization: axes from `axis` on are one row ------------------------------------ */

static int is_rms(const struct node *n)
{
    return strstr(n->op, "RMS") || strstr(n->op, "Simplified");
}

/* A parameter of one row: all of its elements, or one for all. */
static enum status param_shape(struct shaping *s, uint32_t i, dim n, struct err *e)
{
    TRY(shape_float(s, i, 0, e));
    dim have = s->in[i].rank < 0 ? DIM_UNKNOWN : type_count(s, &s->in[i]);
    if (dim_known(have) && dim_known(n) && have != n && have != 1)
        return node_error(s->node, e, "input %u has %lld values for rows of %lld", i, (long long)have, (long long)n);
    return ST_OK;
}

static enum status layer_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    TRY(shape_float(s, 0, 1, e));
    enum dtype stats = x->dtype == DT_F64 ? DT_F64 : DT_F32;
    if (x->rank < 0) {
        for (uint32_t o = 0; o < s->n_out; o++)
            type_unknown(s, &s->out[o], o == 0 ? (shape_has(s, 1) ? s->in[1].dtype : x->dtype) : stats, -1);
        return ST_OK;
    }
    uint32_t axis;
    TRY(axis_in(s->node, node_int(s->node, "axis", -1), x->rank, &axis, e));
    dim n = 1;
    for (int i = (int)axis; i < x->rank; i++)
        n = dim_mul(s->syms, n, x->dims[i]);
    for (uint32_t i = 1; i < s->n_in; i++)
        if (shape_has(s, i))
            TRY(param_shape(s, i, n, e));
    dim dims[RANK_MAX];
    memcpy(dims, x->dims, sizeof dims);
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    for (int i = (int)axis; i < x->rank; i++)
        dims[i] = 1;
    for (uint32_t o = 1; o < s->n_out; o++)
        type_tensor(&s->out[o], stats, x->rank, dims);
    return ST_OK;
}

/* A parameter as n floats. */
static enum status param(struct run *r, const struct tensor *t, size_t n, const float **out, struct err *e)
{
    TRY(wide_f32(r, t, out, e));
    if (!t || (size_t)tensor_count(t) == n)
        return ST_OK;
    void *p;
    TRY(run_scratch(r, n * sizeof(float), &p, e));
    for (size_t i = 0; i < n; i++)
        ((float *)p)[i] = **out;
    *out = p;
    return ST_OK;
}

/* The naive way, in double, for f64. */
static enum status layer_f64(struct run *r, const struct node *n, size_t rows, size_t count, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *g = run_in(r, 1), *b = n->n_in > 2 ? run_in(r, 2) : NULL;
    const double *from = tensor_data(x);
    (void)e;
    for (size_t i = 0; i < rows; i++, from += count) {
        double mean = 0, squares = 0;
        for (size_t j = 0; j < count && !is_rms(n); j++)
            mean += from[j];
        mean /= (double)count;
        for (size_t j = 0; j < count; j++)
            squares += (from[j] - mean) * (from[j] - mean);
        double scale = 1 / sqrt(squares / (double)count + (double)node_float(n, "epsilon", 1e-5f));
        for (size_t j = 0; j < count && run_out(r, 0); j++) {
            double v = (from[j] - mean) * scale;
            v *= g ? wide_get(g->dtype, tensor_data(g), tensor_count(g) == 1 ? 0 : j) : 1;
            v += b ? wide_get(b->dtype, tensor_data(b), tensor_count(b) == 1 ? 0 : j) : 0;
            wide_put(DT_F64, tensor_data(run_out(r, 0)), i * count + j, v);
        }
        for (uint32_t o = 1; o < n->n_out; o++)
            if (run_out(r, o))
                wide_put(DT_F64, tensor_data(run_out(r, o)), i, o == 1 && n->n_out == 3 ? mean : scale);
    }
    return ST_OK;
}

static enum status layer_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0), *mean = n->n_out > 2 ? run_out(r, 1) : NULL, *inverse = n->n_out > 1 ? run_out(r, n->n_out - 1) : NULL;
    uint32_t axis;
    TRY(axis_in(n, node_int(n, "axis", -1), (int)x->rank, &axis, e));
    size_t count = 1;
    for (uint32_t i = axis; i < x->rank; i++)
        count *= (size_t)x->dims[i];
    if (tensor_count(x) == 0)
        return ST_OK;
    size_t rows = (size_t)tensor_count(x) / count;
    if (x->dtype == DT_F64)
        return layer_f64(r, n, rows, count, e);
    if (n->n_out == 2 && !is_rms(n)) /* the mean alone */
        mean = inverse, inverse = NULL;
    struct rows o = {.rows = rows, .n = count, .rms = is_rms(n), .eps = node_float(n, "epsilon", 1e-5f)};
    void *spare;
    TRY(wide_f32(r, x, &o.x, e));
    TRY(param(r, run_in(r, 1), count, &o.gamma, e));
    if (n->n_in > 2)
        TRY(param(r, run_in(r, 2), count, &o.beta, e));
    if (y) {
        TRY(wide_f32_out(r, y, &o.y, e));
    } else {
        TRY(run_scratch(r, rows * count * sizeof(float), &spare, e));
        o.y = spare;
    }
    o.mean = mean ? tensor_data(mean) : NULL;
    o.inverse = inverse ? tensor_data(inverse) : NULL;
    run_rows(n, &o);
    wide_f32_done(y, o.y);
    return ST_OK;
}

static int layer_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int rank = s->in[0].rank;
    int64_t first = node_int(s->node, "axis", -1);
    first = first < 0 ? first + rank : first;
    return in == 0 && rank > 0 && (int64_t)axis < first ? (int)axis : -1;
}

/* SkipLayerNormalization, SkipSimplifiedLayerNormalization: input + skip (+ bias), then normalised ---------------------------------------- */

static enum status skip_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    uint32_t params = is_rms(s->node) ? 3 : 4; /* inputs from 2 on */
    TRY(shape_float(s, 0, 2, e));
    TRY(shape_float(s, 1, 1, e));
    if (x->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    for (uint32_t i = 2; i <= params + (params == 4) && i < s->n_in; i++)
        if (shape_has(s, i))
            TRY(param_shape(s, i, x->rank < 0 ? DIM_UNKNOWN : x->dims[x->rank - 1], e));
    for (uint32_t o = 0; o < s->n_out; o++) {
        shape_as(s, o, 0);
        if (o == 1 || o == 2) {
            s->out[o].dtype = DT_F32;
            if (x->rank > 0)
                s->out[o].dims[x->rank - 1] = 1;
        }
    }
    return ST_OK;
}

static enum status skip_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *skip = run_in(r, 1);
    struct tensor *y = run_out(r, 0), *sum = n->n_out > 3 ? run_out(r, 3) : NULL;
    size_t all = (size_t)tensor_count(x), count = (size_t)x->dims[x->rank - 1], each = (size_t)tensor_count(skip);
    if (all == 0)
        return ST_OK;
    if (each == 0 || all % each || each % count)
        return node_error(n, e, "input 1, which is added, has %zu elements, input 0 %zu", each, all);
    struct rows o = {.rows = all / count, .n = count, .rms = is_rms(n), .eps = node_float(n, "epsilon", 1e-12f)};
    const float *a, *b, *bias = NULL;
    void *p;
    TRY(wide_f32(r, x, &a, e));
    TRY(wide_f32(r, skip, &b, e));
    TRY(param(r, run_in(r, 2), count, &o.gamma, e));
    if (!o.rms && n->n_in > 3)
        TRY(param(r, run_in(r, 3), count, &o.beta, e));
    if (n->n_in > (o.rms ? 3u : 4u))
        TRY(param(r, run_in(r, o.rms ? 3 : 4), count, &bias, e));
    TRY(run_scratch(r, all * sizeof(float), &p, e));
    float *t = p;
    for (size_t i = 0; i < all; i += count) {
        const float *from = b + i % each;
        for (size_t j = 0; j < count; j++)
            t[i + j] = a[i + j] + from[j];
        if (bias)
            for (size_t j = 0; j < count; j++)
                t[i + j] += bias[j];
    }
    if (sum)
        for (size_t i = 0; i < all; i++)
            wide_put(sum->dtype, tensor_data(sum), i, (double)t[i]);
    struct tensor *mean = n->n_out > 1 ? run_out(r, 1) : NULL, *inverse = n->n_out > 2 ? run_out(r, 2) : NULL;
    o.x = t;
    o.mean = mean ? tensor_data(mean) : NULL;
    o.inverse = inverse ? tensor_data(inverse) : NULL;
    o.y = t; /* row by row in place */
    if (y)
        TRY(wide_f32_out(r, y, &o.y, e));
    run_rows(n, &o);
    wide_f32_done(y, o.y);
    return ST_OK;
}

static int skip_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int rank = s->in[0].rank;
    return in <= 1 && s->in[in].rank == rank && (int)axis < rank - 1 ? (int)axis : -1;
}

/* EmbedLayerNormalization: word + position + segment, then normalised ---------------------------------------------------------------------- */

enum { EMBED_IDS, EMBED_SEGMENTS, EMBED_WORD, EMBED_POSITION, EMBED_SEGMENT, EMBED_GAMMA, EMBED_BETA, EMBED_MASK, EMBED_POSITIONS };

static enum status embed_shape(struct shaping *s, struct err *e)
{
    const struct type *ids = &s->in[EMBED_IDS], *word = &s->in[EMBED_WORD];
    TRY(shape_type(s, EMBED_IDS, DT_I32, e));
    TRY(shape_rank(s, EMBED_IDS, 2, e));
    TRY(shape_type(s, EMBED_WORD, DT_F32, e));
    TRY(shape_rank(s, EMBED_WORD, 2, e));
    dim hidden = word->rank == 2 ? word->dims[1] : dim_fresh(s->syms);
    for (uint32_t i = EMBED_POSITION; i <= EMBED_BETA; i++)
        if (i != EMBED_SEGMENT || shape_has(s, i)) {
            TRY(shape_type(s, i, DT_F32, e));
            const struct type *t = &s->in[i];
            if (t->rank > 0 && dim_known(t->dims[t->rank - 1]) && dim_known(hidden) && t->dims[t->rank - 1] != hidden)
                return node_error(s->node, e, "input %u has rows of %lld, the words of %lld", i, (long long)t->dims[t->rank - 1], (long long)hidden);
        }
    dim b = ids->rank == 2 ? ids->dims[0] : dim_fresh(s->syms), len = ids->rank == 2 ? ids->dims[1] : dim_fresh(s->syms);
    for (uint32_t o = 0; o < s->n_out; o++)
        type_tensor(&s->out[o], o == 1 ? DT_I32 : DT_F32, o == 1 ? 1 : 3, (dim[]){b, len, hidden});
    return ST_OK;
}

static enum status row_of(const struct node *n, const struct tensor *table, int64_t id, const char *what, const float **out, struct err *e)
{
    if (id < 0 || id >= table->dims[0])
        return node_error(n, e, "%s %lld is outside its table of %lld", what, (long long)id, (long long)table->dims[0]);
    *out = (const float *)tensor_data(table) + (size_t)id * (size_t)table->dims[1];
    return ST_OK;
}

static enum status embed_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[9] = {0};
    for (uint32_t i = 0; i < n->n_in && i < 9; i++)
        in[i] = run_in(r, i);
    struct tensor *y = run_out(r, 0), *index = n->n_out > 1 ? run_out(r, 1) : NULL, *sum = n->n_out > 2 ? run_out(r, 2) : NULL;
    int64_t batch = in[EMBED_IDS]->dims[0], len = in[EMBED_IDS]->dims[1];
    size_t hidden = (size_t)in[EMBED_WORD]->dims[1];
    const int32_t *ids = tensor_data(in[EMBED_IDS]), *segments = in[EMBED_SEGMENTS] ? tensor_data(in[EMBED_SEGMENTS]) : NULL;
    const int32_t *mask = in[EMBED_MASK] ? tensor_data(in[EMBED_MASK]) : NULL;
    const struct tensor *at = in[EMBED_POSITIONS];
    void *p;
    if (segments && !in[EMBED_SEGMENT])
        return node_error(n, e, "segment ids without a table of segments");
    if ((segments && tensor_count(in[EMBED_SEGMENTS]) != batch * len) || (mask && tensor_count(in[EMBED_MASK]) != batch * len) ||
        (at && (tensor_count(at) < len || at->dtype != DT_I32)))
        return node_error(n, e, "segments, mask or positions are of another shape than the ids");
    TRY(run_scratch(r, (size_t)(batch * len) * hidden * sizeof(float) + 4, &p, e));
    float *t = p;
    for (int64_t i = 0; i < batch * len; i++, t += hidden) {
        const float *w = NULL, *q = NULL, *g = NULL;
        int64_t position = at ? ((const int32_t *)tensor_data(at))[i % tensor_count(at)] : i % len;
        TRY(row_of(n, in[EMBED_WORD], ids[i], "id", &w, e));
        TRY(row_of(n, in[EMBED_POSITION], position, "position", &q, e));
        if (segments)
            TRY(row_of(n, in[EMBED_SEGMENT], segments[i], "segment", &g, e));
        for (size_t j = 0; j < hidden; j++)
            t[j] = (g ? w[j] + q[j] + g[j] : w[j] + q[j]);
    }
    if (sum)
        memcpy(tensor_data(sum), p, (size_t)tensor_count(sum) * sizeof(float));
    for (int64_t b = 0; index && b < batch; b++) {
        int32_t count = 0;
        for (int64_t i = 0; mask && i < len; i++)
            count += mask[b * len + i] != 0;
        ((int32_t *)tensor_data(index))[b] = count;
    }
    if (y && tensor_count(y))
        n->kernels->norm((uint32_t)(batch * len), (uint32_t)hidden, p, hidden, tensor_data(in[EMBED_GAMMA]), tensor_data(in[EMBED_BETA]),
                         node_float(n, "epsilon", 1e-12f), tensor_data(y), hidden);
    return ST_OK;
}

static int embed_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return (in <= EMBED_SEGMENTS || in == EMBED_MASK) && axis == 0 ? 0 : -1;
}

#define LAYER .shape = layer_shape, .run = layer_run, .follow = layer_follow
#define SKIP .shape = skip_shape, .run = skip_run, .follow = skip_follow
const struct op_def ops_layer_norm[] = {
    {.domain = "", .name = "LayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 3, LAYER},
    {.domain = "", .name = "RMSNormalization", .since = 23, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, LAYER},
    {.domain = "", .name = "SimplifiedLayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 2,
     LAYER},
    {.domain = "com.microsoft", .name = "SimplifiedLayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1,
     .max_out = 2, LAYER},
    {.domain = "com.microsoft", .name = "SkipLayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 3, .max_in = 5, .min_out = 1,
     .max_out = 4, SKIP},
    {.domain = "com.microsoft", .name = "SkipSimplifiedLayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 3, .max_in = 4,
     .min_out = 1, .max_out = 4, SKIP},
    {.domain = "com.microsoft", .name = "EmbedLayerNormalization", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 9, .min_out = 1,
     .max_out = 3, .shape = embed_shape, .run = embed_run, .follow = embed_follow},
    {0},
};
