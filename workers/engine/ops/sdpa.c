#include "workers/engine/ops/sdpa.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "workers/engine/ops/panel.h"

enum { QUERIES = 64 };

struct room {
    float *keys, *values, *scores, *bias, *scratch;
};

static enum status floats(struct run *r, size_t n, float **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 16) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

static int64_t first_of(const struct sdpa *o, size_t b)
{
    return o->first_of ? o->first_of[b] : o->first;
}

static int masked(const struct sdpa *o)
{
    return o->bias || o->causal || o->window || o->ahead || o->keys_of;
}

static int hidden(const struct sdpa *o, size_t b, size_t i, size_t j)
{
    int64_t at = (int64_t)i + first_of(o, b);
    return (o->keys_of && (int64_t)j >= o->keys_of[b]) || (o->causal && (int64_t)j > at) || (o->window && (int64_t)j <= at - o->window) ||
           (o->ahead && (int64_t)j >= at + o->ahead) || (o->bias_keys && j >= o->bias_keys);
}

/* What is added to the scores of query i. What is hidden gets the lowest number: its weight vanishes beside any that is not. 0: all is hidden. */
static int bias_row(const struct sdpa *o, size_t b, size_t h, size_t i, float *to)
{
    const float *from = o->bias ? o->bias + b * o->bias_batch + h * o->bias_head + i * o->bias_query : NULL;
    int seen = 0;
    for (size_t j = 0; j < o->keys; j++) {
        int hide = hidden(o, b, i, j);
        float v = from && !hide ? from[j * o->bias_key] : 0;
        to[j] = hide || v < -FLT_MAX ? -FLT_MAX : v;
        seen |= to[j] > -FLT_MAX;
    }
    return seen;
}

/* The kernel serves where queries and keys are the same tokens in one layout. */
static int kernel_serves(const struct sdpa *o)
{
    return o->queries == o->keys && o->each == o->v_each && o->q.row == o->k.row && o->k.row == o->v.row && o->softcap == 0 && !o->scores;
}

static int seen_any(const struct sdpa *o, const float *bias)
{
    for (size_t j = 0; j < o->keys; j++)
        if (bias[j] > -FLT_MAX)
            return 1;
    return 0;
}

static void one_by_kernel(const struct kernels *k, const struct sdpa *o, size_t b, size_t h, size_t kv, const struct room *m)
{
    for (size_t i = 0; masked(o) && i < o->queries; i++)
        (void)bias_row(o, b, h, i, m->bias + i * o->keys);
    k->attention(&(struct attention_args){.len = (uint32_t)o->keys, .dim = (uint32_t)o->each, .q = o->q.p + b * o->q.batch + h * o->q.head,
                                          .k = o->k.p + b * o->k.batch + kv * o->k.head, .v = o->v.p + b * o->v.batch + kv * o->v.head,
                                          .ld = o->q.row, .scale = o->scale, .bias = masked(o) ? m->bias : NULL, .ldbias = (ptrdiff_t)o->keys,
                                          .out = o->out + b * o->out_batch + h * o->out_head, .ldo = o->out_row, .scratch = m->scratch});
    for (size_t i = 0; masked(o) && i < o->queries; i++)
        if (!seen_any(o, m->bias + i * o->keys))
            memset(o->out + b * o->out_batch + h * o->out_head + i * o->out_row, 0, o->v_each * sizeof(float));
}

static void score_row(const struct kernels *k, const struct sdpa *o, size_t b, size_t h, size_t i, float *x, float *bias)
{
    float *kept = o->scores ? o->scores + ((b * o->heads + h) * o->queries + i) * o->keys : NULL;
    size_t bytes = o->keys * sizeof *x;
    for (size_t j = 0; j < o->keys; j++)
        x[j] *= o->scale;
    if (kept && o->keep == SDPA_KEEP_SCALED)
        memcpy(kept, x, bytes);
    if (o->softcap > 0)
        for (size_t j = 0; j < o->keys; j++)
            x[j] = (float)((double)o->softcap * tanh((double)x[j] / (double)o->softcap));
    if (kept && o->keep == SDPA_KEEP_CAPPED)
        memcpy(kept, x, bytes);
    int seen = 1;
    if (masked(o)) {
        seen = bias_row(o, b, h, i, bias);
        for (size_t j = 0; j < o->keys; j++)
            x[j] = bias[j] > -FLT_MAX ? x[j] + bias[j] : -INFINITY;
    }
    if (kept && o->keep == SDPA_KEEP_MASKED)
        memcpy(kept, x, bytes);
    if (seen)
        k->vec.softmax(o->keys, x, x);
    else
        memset(x, 0, bytes);
    if (kept && o->keep == SDPA_KEEP_SOFTMAX)
        memcpy(kept, x, bytes);
}

static void one(const struct kernels *k, const struct sdpa *o, size_t b, size_t h, const struct room *m)
{
    for (size_t i0 = 0; i0 < o->queries; i0 += QUERIES) {
        size_t n = o->queries - i0 < QUERIES ? o->queries - i0 : QUERIES;
        panel_gemm(k, n, o->keys, o->each, o->q.p + b * o->q.batch + h * o->q.head + i0 * o->q.row, o->q.row, m->keys, m->scores, o->keys);
        for (size_t i = 0; i < n; i++)
            score_row(k, o, b, h, i0 + i, m->scores + i * o->keys, m->bias);
        panel_gemm(k, n, o->v_each, o->keys, m->scores, o->keys, m->values, o->out + b * o->out_batch + h * o->out_head + i0 * o->out_row, o->out_row);
    }
}

enum status sdpa_run(struct run *r, const struct kernels *k, const struct sdpa *o, struct err *e)
{
    struct room m = {0};
    if (o->batch == 0 || o->queries == 0 || o->heads == 0)
        return ST_OK;
    if (kernel_serves(o)) {
        TRY(floats(r, masked(o) ? o->queries * o->keys : 0, &m.bias, e));
        TRY(floats(r, attention_scratch(k, (uint32_t)o->keys, (uint32_t)o->each), &m.scratch, e));
        for (size_t b = 0; b < o->batch; b++)
            for (size_t h = 0; h < o->heads; h++)
                one_by_kernel(k, o, b, h, h / (o->heads / o->kv_heads), &m);
        return ST_OK;
    }
    TRY(floats(r, panel_floats(k, o->keys, o->each), &m.keys, e));
    TRY(floats(r, panel_floats(k, o->v_each, o->keys), &m.values, e));
    TRY(floats(r, QUERIES * o->keys, &m.scores, e));
    TRY(floats(r, o->keys, &m.bias, e));
    for (size_t b = 0; b < o->batch; b++)
        for (size_t h = 0; h < o->heads; h++) {
            size_t each = o->heads / o->kv_heads, kv = h / each;
            if (h % each == 0) {
                panel_pack(k, o->keys, o->each, o->k.p + b * o->k.batch + kv * o->k.head, o->k.row, 1, m.keys);
                panel_pack(k, o->v_each, o->keys, o->v.p + b * o->v.batch + kv * o->v.head, 1, o->v.row, m.values);
            }
            one(k, o, b, h, &m);
        }
    return ST_OK;
}

void rotate_row(size_t rotary, size_t each, int interleaved, const float *cos_row, const float *sin_row, const float *x, float *y)
{
    size_t half = rotary / 2;
    for (size_t i = 0; i < half; i++) {
        size_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        float u = x[a], v = x[b];
        y[a] = u * cos_row[i] - v * sin_row[i];
        y[b] = u * sin_row[i] + v * cos_row[i];
    }
    if (y != x)
        memcpy(y + rotary, x + rotary, (each - rotary) * sizeof *y);
}
