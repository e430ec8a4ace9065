/* GroupQueryAttention of com.microsoft: causal attention with a cache of keys and values, several heads of queries to each, rotary positions. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/sdpa.h"
#include "workers/engine/ops/wide.h"

enum { QUERY, KEY, VALUE, PAST_K, PAST_V, LENGTHS, TOTAL, COS, SIN, POSITIONS, BIAS, SINK, IN_MAX };

static enum status gqa_check(struct node *n, struct err *e)
{
    int64_t heads = node_int(n, "num_heads", 0), kv = node_int(n, "kv_num_heads", 0);
    if (heads < 1 || kv < 1 || heads > 1 << 20 || kv > 1 << 20 || heads % kv)
        return node_error(n, e, "%lld heads of queries cannot share %lld of keys", (long long)heads, (long long)kv);
    if (node_int(n, "smooth_softmax", 0) > 0 || node_int(n, "qk_output", 0) || node_int(n, "kv_cache_bit_width", 0))
        return node_error(n, e, "smooth softmax, scores as an output and caches of few bits are not supported");
    return ST_OK;
}

static enum status gqa_shape(struct shaping *s, struct err *e)
{
    const struct type *q = &s->in[QUERY];
    const dim *total;
    uint32_t count;
    int64_t heads = node_int(s->node, "num_heads", 1), kv = node_int(s->node, "kv_num_heads", 1);
    TRY(shape_float(s, QUERY, 3, e));
    TRY(shape_rank(s, QUERY, 3, e));
    TRY(shape_type(s, LENGTHS, DT_I32, e));
    TRY(shape_type(s, TOTAL, DT_I32, e));
    if (q->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    if (shape_has(s, SINK))
        return node_error(s->node, e, "sinks of heads are not supported");
    if (shape_has(s, KEY) != shape_has(s, VALUE) || shape_has(s, PAST_K) != shape_has(s, PAST_V))
        return node_error(s->node, e, "keys without values, or the other way round");
    if (node_int(s->node, "do_rotary", 0) && (!shape_has(s, COS) || !shape_has(s, SIN)))
        return node_error(s->node, e, "rotary positions without their tables");
    int64_t parts = shape_has(s, KEY) ? heads : heads + 2 * kv;
    if (q->rank == 3 && dim_known(q->dims[2]) && q->dims[2] % parts)
        return node_error(s->node, e, "rows of %lld do not go into %lld heads", (long long)q->dims[2], (long long)parts);
    dim batch = q->rank == 3 ? q->dims[0] : dim_fresh(s->syms), len = q->rank == 3 ? q->dims[1] : dim_fresh(s->syms),
        each = q->rank == 3 ? dim_div(s->syms, q->dims[2], parts) : dim_fresh(s->syms);
    type_tensor(&s->out[0], q->dtype, 3, (dim[]){batch, len, dim_mul(s->syms, each, heads)});
    dim keys = shape_ints(s, TOTAL, &total, &count) && count == 1 && total[0] != DIM_UNKNOWN ? total[0] : dim_fresh(s->syms);
    if (shape_has(s, PAST_K)) {
        TRY(shape_rank(s, PAST_K, 4, e));
        TRY(shape_rank(s, PAST_V, 4, e));
        keys = s->in[PAST_K].rank == 4 ? dim_max(s->syms, keys, s->in[PAST_K].dims[2]) : dim_fresh(s->syms);
    }
    for (uint32_t o = 1; o < s->n_out; o++)
        type_tensor(&s->out[o], q->dtype, 4, (dim[]){batch, kv, keys, each});
    return ST_OK;
}

static enum status floats(struct run *r, size_t n, float **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 16) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

struct rotation {
    const float *cos, *sin;
    size_t half, rows;
    int interleaved;
    const int64_t *positions; /* batch x len, or NULL */
};

/* Rows of queries or keys, turned. */
static enum status turned(struct run *r, const struct node *n, const struct rotation *t, const int32_t *past, size_t batch, size_t len, size_t heads,
                          size_t each, struct sdpa_rows *rows, struct err *e)
{
    float *to;
    TRY(floats(r, batch * len * heads * each, &to, e));
    for (size_t i = 0; i < batch * len; i++) {
        int64_t at = t->positions ? t->positions[i] : past[i / len] + (int64_t)(i % len);
        if (at < 0 || (size_t)at >= t->rows)
            return node_error(n, e, "position %lld is outside its tables of %zu", (long long)at, t->rows);
        for (size_t h = 0; h < heads; h++)
            rotate_row(2 * t->half, each, t->interleaved, t->cos + (size_t)at * t->half, t->sin + (size_t)at * t->half,
                       rows->p + i / len * rows->batch + i % len * rows->row + h * rows->head, to + (i * heads + h) * each);
    }
    *rows = (struct sdpa_rows){to, len * heads * each, each, heads * each};
    return ST_OK;
}

/* The cache with the new rows behind each sequence's past: [batch, heads, room, each] */
static void extend(const float *old, size_t old_room, const int32_t *past, size_t batch, size_t heads, size_t len, size_t each, size_t room,
                   struct sdpa_rows *rows, float *to)
{
    struct sdpa_rows now = *rows;
    *rows = (struct sdpa_rows){to, heads * room * each, room * each, each};
    for (size_t i = 0; i < batch * heads; i++) {
        size_t p = (size_t)past[i / heads], keep = old ? (p < old_room ? p : old_room) : 0;
        float *at = to + i * room * each;
        memset(at, 0, room * each * sizeof *at);
        if (keep)
            memcpy(at, old + i * old_room * each, keep * each * sizeof *at);
        for (size_t t = 0; t < len && p + t < room; t++)
            memcpy(at + (p + t) * each, now.p + i / heads * now.batch + i % heads * now.head + t * now.row, each * sizeof *at);
    }
}

static enum status gqa_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[IN_MAX] = {0};
    const float *v[IN_MAX] = {0};
    struct tensor *out[3] = {0};
    float *to[3] = {0};
    for (uint32_t i = 0; i < n->n_in && i < IN_MAX; i++) {
        in[i] = run_in(r, i);
        if (i != LENGTHS && i != TOTAL && i != POSITIONS)
            TRY(wide_f32(r, in[i], &v[i], e));
    }
    for (uint32_t i = 0; i < n->n_out && i < 3; i++) {
        out[i] = run_out(r, i);
        TRY(wide_f32_out(r, out[i], &to[i], e));
    }
    const struct tensor *q = in[QUERY];
    struct sdpa o = {.batch = (size_t)q->dims[0], .heads = (size_t)node_int(n, "num_heads", 1), .kv_heads = (size_t)node_int(n, "kv_num_heads", 1),
                     .queries = (size_t)q->dims[1], .causal = 1, .softcap = node_float(n, "softcap", 0)};
    size_t parts = in[KEY] ? o.heads : o.heads + 2 * o.kv_heads, width = (size_t)q->dims[2], len = o.queries;
    o.each = o.v_each = width / parts;
    size_t kv_width = o.kv_heads * o.each, old_room = in[PAST_K] ? (size_t)in[PAST_K]->dims[2] : 0;
    int32_t total = *(const int32_t *)tensor_data(in[TOTAL]);
    size_t room = total > 0 && (size_t)total > old_room ? (size_t)total : old_room;
    if ((size_t)tensor_count(in[LENGTHS]) != o.batch || total < 1 ||
        (in[KEY] && ((size_t)tensor_count(in[KEY]) != o.batch * len * kv_width || (size_t)tensor_count(in[VALUE]) != o.batch * len * kv_width)) ||
        (in[PAST_K] && ((size_t)tensor_count(in[PAST_K]) != o.batch * old_room * kv_width || (size_t)tensor_count(in[PAST_V]) != o.batch * old_room * kv_width)))
        return node_error(n, e, "its inputs do not go together");
    o.q = (struct sdpa_rows){v[QUERY], len * width, o.each, width};
    if (in[KEY]) {
        o.k = (struct sdpa_rows){v[KEY], len * kv_width, o.each, kv_width};
        o.v = (struct sdpa_rows){v[VALUE], len * kv_width, o.each, kv_width};
    } else {
        o.k = (struct sdpa_rows){v[QUERY] + o.heads * o.each, len * width, o.each, width};
        o.v = (struct sdpa_rows){v[QUERY] + (o.heads + o.kv_heads) * o.each, len * width, o.each, width};
    }
    const int32_t *last = tensor_data(in[LENGTHS]);
    void *p;
    TRY(run_scratch(r, 2 * o.batch * sizeof(int32_t) + 8, &p, e));
    int32_t *past = p, *keys_of = past + o.batch;
    for (size_t b = 0; b < o.batch; b++) {
        /* a first pass is padded behind: its rows begin at 0 */
        int first = (size_t)total == len;
        past[b] = first ? 0 : last[b] + 1 - (int32_t)len;
        keys_of[b] = last[b] + 1;
        if (past[b] < 0 || keys_of[b] < 0 || (size_t)keys_of[b] > room)
            return node_error(n, e, "sequence %zu is said to have %d keys", b, keys_of[b]);
    }
    if (node_int(n, "do_rotary", 0)) {
        struct rotation t = {.cos = v[COS], .sin = v[SIN], .half = (size_t)in[COS]->dims[1], .rows = (size_t)in[COS]->dims[0],
                             .interleaved = (int)node_int(n, "rotary_interleaved", 0)};
        if (in[COS]->rank != 2 || 2 * t.half > o.each || tensor_count(in[SIN]) != tensor_count(in[COS]) ||
            (in[POSITIONS] && ((size_t)tensor_count(in[POSITIONS]) != o.batch * len || in[POSITIONS]->dtype != DT_I64)))
            return node_error(n, e, "its rotary tables or positions are of the wrong shape");
        t.positions = in[POSITIONS] ? tensor_data(in[POSITIONS]) : NULL;
        TRY(turned(r, n, &t, past, o.batch, len, o.heads, o.each, &o.q, e));
        TRY(turned(r, n, &t, past, o.batch, len, o.kv_heads, o.each, &o.k, e));
    }
    for (int i = 0; i < 2; i++) {
        if (!to[1 + i])
            TRY(floats(r, o.batch * o.kv_heads * room * o.each, &to[1 + i], e));
        extend(v[PAST_K + i], old_room, past, o.batch, o.kv_heads, len, o.each, room, i ? &o.v : &o.k, to[1 + i]);
    }
    o.keys = (size_t)total < room ? (size_t)total : room;
    o.first_of = past;
    o.keys_of = NULL; /* what is causal sees no padding behind it */
    int64_t window = node_int(n, "local_window_size", -1);
    o.window = window <= 0 ? 0 : window < 1 << 30 ? window : 1 << 30;
    o.scale = node_float(n, "scale", 0);
    o.scale = o.scale == 0 ? (float)(1 / sqrt((double)o.each)) : o.scale;
    if (in[BIAS]) {
        const struct tensor *b = in[BIAS];
        if (b->rank != 4 || (size_t)b->dims[2] != len || (size_t)b->dims[3] < o.keys || (b->dims[0] != 1 && (size_t)b->dims[0] != o.batch) ||
            (b->dims[1] != 1 && (size_t)b->dims[1] != o.heads))
            return node_error(n, e, "what is added to its scores is of the wrong shape");
        size_t row = (size_t)b->dims[3];
        o.bias = v[BIAS], o.bias_key = 1, o.bias_query = row, o.bias_head = b->dims[1] == 1 ? 0 : len * row;
        o.bias_batch = b->dims[0] == 1 ? 0 : len * row * (size_t)b->dims[1];
    }
    if (!to[0])
        TRY(floats(r, o.batch * len * o.heads * o.each, &to[0], e));
    o.out = to[0], o.out_batch = len * o.heads * o.each, o.out_head = o.each, o.out_row = o.heads * o.each;
    TRY(sdpa_run(r, n->kernels, &o, e));
    for (uint32_t i = 0; i < n->n_out && i < 3; i++)
        wide_f32_done(out[i], to[i]);
    return ST_OK;
}

static int gqa_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)out;
    return axis == 0 && (in <= LENGTHS || in == POSITIONS) ? 0 : -1;
}

const struct op_def ops_attention_gqa[] = {
    {.domain = "com.microsoft", .name = "GroupQueryAttention", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 14, .min_out = 1, .max_out = 3,
     .check = gqa_check, .shape = gqa_shape, .run = gqa_run, .follow = gqa_follow},
    {0},
};
