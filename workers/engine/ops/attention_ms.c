/* Attention and MultiHeadAttention of com.microsoft. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/panel.h"
#include "workers/engine/ops/sdpa.h"
#include "workers/engine/ops/wide.h"

/* Attention: input, weights, bias, mask_index, past, attention_bias, past_sequence_length
   MultiHeadAttention: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value */
enum { A_INPUT, A_WEIGHTS, A_BIAS, A_MASK, A_PAST, A_SCORES, A_MAX };
enum { M_QUERY, M_KEY, M_VALUE, M_BIAS, M_MASK, M_SCORES, M_PAST_K, M_PAST_V, M_MAX };

static enum status attn_check(struct node *n, struct err *e)
{
    if (node_int(n, "num_heads", 0) < 1 || node_int(n, "num_heads", 0) > 1 << 20)
        return node_error(n, e, "attribute 'num_heads' is missing, not positive or too large");
    if (node_int(n, "do_rotary", 0) || node_int(n, "past_present_share_buffer", 0))
        return node_error(n, e, "rotary positions and shared buffers within it are not supported");
    return ST_OK;
}

/* Columns of queries (and keys) and of values in Attention's product. */
static enum status hidden_sizes(const struct node *n, int64_t columns, int64_t *qk, int64_t *v, struct err *e)
{
    uint32_t count;
    const int64_t *sizes = node_ints(n, "qkv_hidden_sizes", &count);
    int64_t heads = node_int(n, "num_heads", 1);
    *qk = *v = columns / 3;
    if (sizes) {
        if (count != 3 || sizes[0] != sizes[1] || sizes[0] < 1 || sizes[2] < 1 || sizes[0] > 1 << 30 || sizes[2] > 1 << 30)
            return node_error(n, e, "attribute 'qkv_hidden_sizes' must hold three numbers, the first two alike");
        *qk = sizes[0], *v = sizes[2];
    }
    if (*qk < 1 || *v < 1 || 2 * *qk + *v != columns || *qk % heads || *v % heads)
        return node_error(n, e, "weights of %lld columns do not go into %lld heads of queries, keys and values", (long long)columns, (long long)heads);
    return ST_OK;
}

static enum status attn_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[A_INPUT], *w = &s->in[A_WEIGHTS], *past = &s->in[A_PAST];
    TRY(shape_float(s, A_INPUT, 3, e));
    TRY(shape_rank(s, A_INPUT, 3, e));
    TRY(shape_float(s, A_WEIGHTS, 2, e));
    TRY(shape_rank(s, A_WEIGHTS, 2, e));
    if (x->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    int64_t heads = node_int(s->node, "num_heads", 1), qk, v;
    dim batch = x->rank == 3 ? x->dims[0] : dim_fresh(s->syms), len = x->rank == 3 ? x->dims[1] : dim_fresh(s->syms);
    if (w->rank != 2 || !dim_known(w->dims[1])) {
        type_unknown(s, &s->out[0], x->dtype, 3);
        if (shape_wants(s, 1))
            type_unknown(s, &s->out[1], x->dtype, 5);
        return ST_OK;
    }
    TRY(hidden_sizes(s->node, w->dims[1], &qk, &v, e));
    if (x->rank == 3 && dim_known(x->dims[2]) && dim_known(w->dims[0]) && x->dims[2] != w->dims[0])
        return node_error(s->node, e, "its input has rows of %lld, its weights take %lld", (long long)x->dims[2], (long long)w->dims[0]);
    if (shape_has(s, A_BIAS)) {
        TRY(shape_float(s, A_BIAS, 1, e));
        if (s->in[A_BIAS].rank >= 0 && dim_known(s->in[A_BIAS].dims[0]) && s->in[A_BIAS].dims[0] != w->dims[1])
            return node_error(s->node, e, "its bias has %lld values for %lld columns", (long long)s->in[A_BIAS].dims[0], (long long)w->dims[1]);
    }
    type_tensor(&s->out[0], x->dtype, 3, (dim[]){batch, len, v});
    if (shape_wants(s, 1)) {
        if (qk != v)
            return node_error(s->node, e, "present keys and values of different sizes");
        dim keys = len;
        if (shape_has(s, A_PAST)) {
            TRY(shape_rank(s, A_PAST, 5, e));
            keys = past->rank == 5 ? dim_add(s->syms, len, past->dims[3]) : dim_fresh(s->syms);
        }
        type_tensor(&s->out[1], x->dtype, 5, (dim[]){2, batch, heads, keys, qk / heads});
    }
    return ST_OK;
}

static enum status attn_plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct tensor *w = s->constants[A_WEIGHTS];
    if (!w || w->dtype != DT_F32 || w->rank != 2)
        return ST_OK;
    size_t k = (size_t)w->dims[0], cols = (size_t)w->dims[1];
    float *packed = mem_aligned(panel_floats(n->kernels, cols, k) * sizeof *packed + 64);
    if (!packed)
        return err_nomem(e, "the model's weights");
    panel_pack(n->kernels, cols, k, tensor_data(w), 1, cols, packed);
    n->state = packed;
    return ST_OK;
}

static enum status floats(struct run *r, size_t n, float **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 16) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

/* The mask of keys in its several forms, and what is added to the scores, as one table of numbers. */
static enum status read_masks(struct run *r, const struct node *n, const struct tensor *mask, const struct tensor *scores, struct sdpa *o, struct err *e)
{
    float filter = node_float(n, "mask_filter_value", -10000), *table = NULL;
    size_t batch = o->batch, rows = 1, keys = o->keys;
    if (mask && !(mask->dtype == DT_I32 || mask->dtype == DT_BOOL || mask->dtype == DT_I64))
        return node_error(n, e, "its mask is of type %s", dtype_name(mask->dtype));
    if (mask && mask->rank == 1 && (size_t)mask->dims[0] == batch) { /* how many keys there are */
        const int64_t *v;
        TRY(wide_i64(r, mask, &v, e));
        TRY(floats(r, batch * keys, &table, e));
        for (size_t i = 0; i < batch * keys; i++)
            table[i] = (int64_t)(i % keys) < v[i / keys] ? 0 : filter;
    } else if (mask && mask->rank == 1 && (size_t)mask->dims[0] == 2 * batch) { /* ends, then beginnings */
        const int64_t *v;
        TRY(wide_i64(r, mask, &v, e));
        TRY(floats(r, batch * keys, &table, e));
        for (size_t i = 0; i < batch * keys; i++) {
            int64_t j = (int64_t)(i % keys);
            table[i] = j < v[i / keys] && j >= v[batch + i / keys] ? 0 : filter;
        }
    } else if (mask && (mask->rank == 2 || mask->rank == 3) && (size_t)mask->dims[0] == batch && (size_t)mask->dims[mask->rank - 1] == keys &&
               (mask->rank == 2 || (size_t)mask->dims[1] == o->queries)) {
        rows = mask->rank == 3 ? o->queries : 1;
        const int64_t *v = NULL;
        if (mask->dtype != DT_BOOL)
            TRY(wide_i64(r, mask, &v, e));
        TRY(floats(r, batch * rows * keys, &table, e));
        for (size_t i = 0; i < batch * rows * keys; i++)
            table[i] = (v ? v[i] > 0 : ((const uint8_t *)tensor_data(mask))[i] != 0) ? 0 : filter;
    } else if (mask) {
        return node_error(n, e, "a mask of %u axes, the first of %lld, is not supported for %zu sequences of %zu keys", mask->rank,
                          (long long)(mask->rank ? mask->dims[0] : 0), batch, keys);
    }
    if (table)
        o->bias = table, o->bias_batch = rows * keys, o->bias_query = rows > 1 ? keys : 0, o->bias_key = 1;
    if (!scores)
        return ST_OK;
    const float *add;
    TRY(wide_f32(r, scores, &add, e));
    if (scores->rank != 4 || (size_t)scores->dims[2] != o->queries || (size_t)scores->dims[3] != keys ||
        (scores->dims[0] != 1 && (size_t)scores->dims[0] != batch) || (scores->dims[1] != 1 && (size_t)scores->dims[1] != o->heads))
        return node_error(n, e, "what is added to its scores is of the wrong shape");
    size_t each = o->queries * keys, sh = scores->dims[1] == 1 ? 0 : each, sb = scores->dims[0] == 1 ? 0 : each * (size_t)scores->dims[1];
    if (table) { /* both: their sum */
        float *sum;
        TRY(floats(r, batch * o->heads * each, &sum, e));
        for (size_t b = 0; b < batch; b++)
            for (size_t h = 0; h < o->heads; h++)
                for (size_t i = 0; i < each; i++)
                    sum[(b * o->heads + h) * each + i] = add[b * sb + h * sh + i] + table[b * o->bias_batch + i / keys * o->bias_query + i % keys];
        add = sum, sb = o->heads * each, sh = each;
    }
    o->bias = add, o->bias_batch = sb, o->bias_head = sh, o->bias_query = keys, o->bias_key = 1;
    return ST_OK;
}

/* Past rows [batch, heads, p, each] and new ones behind each other, in `to`. */
static void join(const float *past, size_t p, struct sdpa_rows *rows, size_t batch, size_t heads, size_t len, size_t each, float *to)
{
    struct sdpa_rows now = *rows;
    size_t all = p + len;
    *rows = (struct sdpa_rows){to, heads * all * each, all * each, each};
    for (size_t i = 0; i < batch * heads; i++) {
        if (p)
            memcpy(to + i * all * each, past + i * p * each, p * each * sizeof *to);
        for (size_t t = 0; t < len; t++)
            memcpy(to + (i * all + p + t) * each, now.p + i / heads * now.batch + i % heads * now.head + t * now.row, each * sizeof *to);
    }
}

static enum status attn_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[A_MAX] = {0};
    const float *v[A_MAX] = {0};
    struct tensor *y = run_out(r, 0), *present = n->n_out > 1 ? run_out(r, 1) : NULL;
    for (uint32_t i = 0; i < n->n_in && i < A_MAX; i++) {
        in[i] = run_in(r, i);
        if (i != A_MASK && i != A_SCORES)
            TRY(wide_f32(r, in[i], &v[i], e));
    }
    if (n->n_in > A_MAX && run_in(r, A_MAX))
        return node_error(n, e, "a buffer of past keys that is longer than the past is not supported");
    const struct tensor *x = in[A_INPUT], *w = in[A_WEIGHTS], *past = in[A_PAST];
    int64_t qk, hv;
    TRY(hidden_sizes(n, w->dims[1], &qk, &hv, e));
    size_t cols = (size_t)w->dims[1], depth = (size_t)w->dims[0];
    struct sdpa o = {.batch = (size_t)x->dims[0], .heads = (size_t)node_int(n, "num_heads", 1), .queries = (size_t)x->dims[1],
                     .causal = node_int(n, "unidirectional", 0) != 0};
    o.kv_heads = o.heads, o.each = (size_t)qk / o.heads, o.v_each = (size_t)hv / o.heads;
    size_t p = past ? (size_t)past->dims[3] : 0, tokens = o.batch * o.queries;
    if (past && (past->dims[0] != 2 || (size_t)past->dims[1] != o.batch || (size_t)past->dims[2] != o.heads || (size_t)past->dims[4] != o.each ||
                 o.each != o.v_each))
        return node_error(n, e, "its past is of the wrong shape");
    float *qkv, *packed = n->state, *to;
    TRY(floats(r, tokens * cols, &qkv, e));
    if (!packed) {
        TRY(floats(r, panel_floats(n->kernels, cols, depth), &packed, e));
        panel_pack(n->kernels, cols, depth, v[A_WEIGHTS], 1, cols, packed);
    }
    panel_gemm(n->kernels, tokens, cols, depth, v[A_INPUT], depth, packed, qkv, cols);
    for (size_t i = 0; v[A_BIAS] && i < tokens; i++)
        for (size_t j = 0; j < cols; j++)
            qkv[i * cols + j] += v[A_BIAS][j];
    o.keys = p + o.queries;
    o.first = (int64_t)p;
    o.q = (struct sdpa_rows){qkv, o.queries * cols, o.each, cols};
    o.k = (struct sdpa_rows){qkv + qk, o.queries * cols, o.each, cols};
    o.v = (struct sdpa_rows){qkv + 2 * qk, o.queries * cols, o.v_each, cols};
    if (p || present) {
        size_t half = o.batch * o.heads * o.keys * o.each;
        float *joined;
        if (present)
            TRY(wide_f32_out(r, present, &joined, e));
        else
            TRY(floats(r, 2 * half, &joined, e));
        join(v[A_PAST], p, &o.k, o.batch, o.heads, o.queries, o.each, joined);
        join(p ? v[A_PAST] + o.batch * o.heads * p * o.each : NULL, p, &o.v, o.batch, o.heads, o.queries, o.each, joined + half);
        wide_f32_done(present, joined);
    }
    o.scale = node_float(n, "scale", (float)(1 / sqrt((double)o.each)));
    TRY(read_masks(r, n, in[A_MASK], in[A_SCORES], &o, e));
    if (!y)
        return ST_OK;
    TRY(wide_f32_out(r, y, &to, e));
    o.out = to, o.out_batch = o.queries * (size_t)hv, o.out_head = o.v_each, o.out_row = (size_t)hv;
    TRY(sdpa_run(r, n->kernels, &o, e));
    wide_f32_done(y, to);
    return ST_OK;
}

static int attn_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    if (in == A_PAST)
        return axis == 1 ? (out == 0 ? 0 : 1) : -1;
    if (axis != 0 || in == A_WEIGHTS || in == A_BIAS || (in == A_MASK && s->in[A_MASK].rank == 1 && s->in[A_MASK].dims[0] != s->in[A_INPUT].dims[0]))
        return -1;
    return out == 0 ? 0 : 1;
}

/* MultiHeadAttention ---------------------------------------------------------------------------------------------------------------------------- */

static dim head_size(struct shaping *s, const struct type *t, int64_t heads)
{
    return t->rank == 3 ? dim_div(s->syms, t->dims[2], heads) : t->rank >= 4 ? t->dims[t->rank - 1] : dim_fresh(s->syms);
}

static enum status multi_shape(struct shaping *s, struct err *e)
{
    const struct type *q = &s->in[M_QUERY], *k = &s->in[M_KEY], *v = &s->in[M_VALUE];
    int64_t heads = node_int(s->node, "num_heads", 1);
    TRY(shape_float(s, M_QUERY, 3, e));
    if (q->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    type_unknown(s, &s->out[0], q->dtype, 3);
    for (uint32_t o = 1; o < s->n_out; o++)
        type_unknown(s, &s->out[o], q->dtype, 4);
    if (q->rank < 0 || (shape_has(s, M_KEY) && k->rank < 0) || (shape_has(s, M_VALUE) && v->rank < 0))
        return ST_OK;
    if ((q->rank == 5) != !shape_has(s, M_KEY) || (shape_has(s, M_KEY) && (k->rank == 5) != !shape_has(s, M_VALUE)))
        return node_error(s->node, e, "queries, keys and values are packed in a way that is not supported");
    if (q->rank == 3 && dim_known(q->dims[2]) && q->dims[2] % heads)
        return node_error(s->node, e, "rows of %lld do not go into %lld heads", (long long)q->dims[2], (long long)heads);
    dim len = q->dims[1], keys = q->rank == 5 ? len : k->rank == 4 ? k->dims[2] : k->dims[1], each = head_size(s, q, heads),
        v_each = q->rank == 5 || k->rank == 5 ? each : head_size(s, v, heads);
    if (shape_has(s, M_PAST_K)) {
        TRY(shape_rank(s, M_PAST_K, 4, e));
        TRY(shape_rank(s, M_PAST_V, 4, e));
        keys = s->in[M_PAST_K].rank == 4 ? dim_add(s->syms, keys, s->in[M_PAST_K].dims[2]) : dim_fresh(s->syms);
    }
    type_tensor(&s->out[0], q->dtype, 3, (dim[]){q->dims[0], len, dim_mul(s->syms, v_each, heads)});
    for (uint32_t o = 1; o < s->n_out; o++)
        type_tensor(&s->out[o], q->dtype, 4, (dim[]){q->dims[0], heads, o == 3 ? len : keys, o == 3 ? keys : o == 1 ? each : v_each});
    return ST_OK;
}

/* Rows of a tensor with its part of the bias added, [batch, len, heads * each] or [batch, heads, len, each]. */
static enum status biased(struct run *r, const float *bias, size_t batch, size_t len, size_t heads, size_t each, struct sdpa_rows *rows, struct err *e)
{
    if (!bias)
        return ST_OK;
    float *to;
    TRY(floats(r, batch * len * heads * each, &to, e));
    for (size_t b = 0; b < batch; b++)
        for (size_t t = 0; t < len; t++)
            for (size_t h = 0; h < heads; h++)
                for (size_t j = 0; j < each; j++)
                    to[((b * len + t) * heads + h) * each + j] = rows->p[b * rows->batch + t * rows->row + h * rows->head + j] + bias[h * each + j];
    *rows = (struct sdpa_rows){to, len * heads * each, each, heads * each};
    return ST_OK;
}

static struct sdpa_rows plain(const float *p, size_t len, size_t heads, size_t each)
{
    return (struct sdpa_rows){p, len * heads * each, each, heads * each};
}

/* Part `which` of [batch, len, heads, parts, each] */
static struct sdpa_rows packed_rows(const float *p, size_t len, size_t heads, size_t parts, size_t each, size_t which)
{
    return (struct sdpa_rows){p + which * each, len * heads * parts * each, parts * each, heads * parts * each};
}

static enum status multi_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[M_MAX] = {0};
    const float *v[M_MAX] = {0};
    struct tensor *out[4] = {0};
    float *to[4] = {0};
    for (uint32_t i = 0; i < n->n_in && i < M_MAX; i++) {
        in[i] = run_in(r, i);
        if (i != M_MASK && i != M_SCORES)
            TRY(wide_f32(r, in[i], &v[i], e));
    }
    for (uint32_t i = M_MAX; i < n->n_in; i++)
        if (run_in(r, i))
            return node_error(n, e, "input %u is not supported", i);
    for (uint32_t i = 0; i < n->n_out && i < 4; i++) {
        out[i] = run_out(r, i);
        TRY(wide_f32_out(r, out[i], &to[i], e));
    }
    const struct tensor *q = in[M_QUERY], *k = in[M_KEY], *val = in[M_VALUE];
    struct sdpa o = {.batch = (size_t)q->dims[0], .heads = (size_t)node_int(n, "num_heads", 1), .queries = (size_t)q->dims[1],
                     .causal = node_int(n, "unidirectional", 0) != 0};
    o.kv_heads = o.heads;
    size_t len;
    if (q->rank == 5) {
        if ((size_t)q->dims[2] != o.heads || q->dims[3] != 3)
            return node_error(n, e, "its packed input is of the wrong shape");
        o.each = o.v_each = (size_t)q->dims[4];
        len = o.queries;
        o.q = packed_rows(v[M_QUERY], len, o.heads, 3, o.each, 0);
        o.k = packed_rows(v[M_QUERY], len, o.heads, 3, o.each, 1);
        o.v = packed_rows(v[M_QUERY], len, o.heads, 3, o.each, 2);
    } else {
        o.each = (size_t)q->dims[2] / o.heads;
        o.q = plain(v[M_QUERY], o.queries, o.heads, o.each);
        if (k->dims[0] != q->dims[0])
            return node_error(n, e, "%lld sequences of keys for %lld of queries", (long long)k->dims[0], (long long)q->dims[0]);
        if (k->rank == 5) {
            o.v_each = o.each, len = (size_t)k->dims[1];
            o.k = packed_rows(v[M_KEY], len, o.heads, 2, o.each, 0);
            o.v = packed_rows(v[M_KEY], len, o.heads, 2, o.each, 1);
            if ((size_t)tensor_count(k) != o.batch * len * o.heads * 2 * o.each)
                return node_error(n, e, "its packed keys are of the wrong shape");
        } else {
            len = (size_t)k->dims[k->rank == 4 ? 2 : 1];
            o.v_each = len && o.batch ? (size_t)tensor_count(val) / (o.batch * len * o.heads) : o.each;
            if ((size_t)tensor_count(k) != o.batch * len * o.heads * o.each || (size_t)tensor_count(val) != o.batch * len * o.heads * o.v_each)
                return node_error(n, e, "its keys or values are of the wrong shape");
            o.k = k->rank == 4 ? (struct sdpa_rows){v[M_KEY], o.heads * len * o.each, len * o.each, o.each} : plain(v[M_KEY], len, o.heads, o.each);
            o.v = val->rank == 4 ? (struct sdpa_rows){v[M_VALUE], o.heads * len * o.v_each, len * o.v_each, o.v_each} : plain(v[M_VALUE], len, o.heads, o.v_each);
        }
    }
    if (v[M_BIAS]) {
        size_t qk = o.heads * o.each;
        if ((size_t)tensor_count(in[M_BIAS]) != 2 * qk + o.heads * o.v_each)
            return node_error(n, e, "its bias has %lld values", (long long)tensor_count(in[M_BIAS]));
        TRY(biased(r, v[M_BIAS], o.batch, o.queries, o.heads, o.each, &o.q, e));
        if (!k || k->rank != 4)
            TRY(biased(r, v[M_BIAS] + qk, o.batch, len, o.heads, o.each, &o.k, e));
        if (!val || val->rank != 4)
            TRY(biased(r, v[M_BIAS] + 2 * qk, o.batch, len, o.heads, o.v_each, &o.v, e));
    }
    size_t p = in[M_PAST_K] ? (size_t)in[M_PAST_K]->dims[2] : 0;
    if (in[M_PAST_K] && (!in[M_PAST_V] || (size_t)tensor_count(in[M_PAST_K]) != o.batch * o.heads * p * o.each ||
                         (size_t)tensor_count(in[M_PAST_V]) != o.batch * o.heads * p * o.v_each))
        return node_error(n, e, "its past is of the wrong shape");
    o.keys = p + len;
    o.first = (int64_t)p;
    for (int i = 0; i < 2; i++) {
        float *joined = to[1 + i];
        size_t each = i ? o.v_each : o.each;
        if (!p && !joined)
            continue;
        if (!joined)
            TRY(floats(r, o.batch * o.heads * o.keys * each, &joined, e));
        join(v[M_PAST_K + i], p, i ? &o.v : &o.k, o.batch, o.heads, len, each, joined);
    }
    o.scale = node_float(n, "scale", (float)(1 / sqrt((double)o.each)));
    o.scale = o.scale == 0 ? (float)(1 / sqrt((double)o.each)) : o.scale;
    TRY(read_masks(r, n, in[M_MASK], in[M_SCORES], &o, e));
    if (!to[0])
        TRY(floats(r, o.batch * o.queries * o.heads * o.v_each, &to[0], e));
    o.out = to[0], o.out_batch = o.queries * o.heads * o.v_each, o.out_head = o.v_each, o.out_row = o.heads * o.v_each;
    o.scores = to[3], o.keep = SDPA_KEEP_SCALED;
    TRY(sdpa_run(r, n->kernels, &o, e));
    for (uint32_t i = 0; i < n->n_out && i < 4; i++)
        wide_f32_done(out[i], to[i]);
    return ST_OK;
}

static int multi_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    if (axis != 0 || in == M_BIAS || (in == M_MASK && s->in[M_MASK].rank == 1 && s->in[M_MASK].dims[0] != s->in[M_QUERY].dims[0]))
        return -1;
    return 0;
}

const struct op_def ops_attention_ms[] = {
    {.domain = "com.microsoft", .name = "Attention", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 7, .min_out = 1, .max_out = 2,
     .check = attn_check, .shape = attn_shape, .plan = attn_plan, .run = attn_run, .release = release_state, .follow = attn_follow},
    {.domain = "com.microsoft", .name = "MultiHeadAttention", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 10, .min_out = 1, .max_out = 4,
     .check = attn_check, .shape = multi_shape, .run = multi_run, .follow = multi_follow},
    {0},
};
