/* Attention of the standard domain (23 to 25). */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/sdpa.h"
#include "workers/engine/ops/wide.h"

enum { Q, K, V, MASK, PAST_K, PAST_V, KEYS_OF };
enum { OUT_Y, OUT_K, OUT_V, OUT_SCORES };

/* Heads and size of a head of an input of 3 or 4 axes. */
static enum status heads_of(const struct shaping *s, uint32_t i, dim *heads, dim *each, struct err *e)
{
    const struct type *t = &s->in[i];
    if (t->rank == 4) {
        *heads = t->dims[1], *each = t->dims[3];
        return ST_OK;
    }
    *heads = node_int(s->node, i == Q ? "q_num_heads" : "kv_num_heads", 0);
    if (*heads < 1 || *heads > 1 << 20)
        return node_error(s->node, e, "attribute '%s' is needed for inputs of 3 axes", i == Q ? "q_num_heads" : "kv_num_heads");
    if (dim_known(t->dims[2]) && t->dims[2] % *heads)
        return node_error(s->node, e, "rows of %lld do not go into %lld heads", (long long)t->dims[2], (long long)*heads);
    *each = dim_div(s->syms, t->dims[2], *heads);
    return ST_OK;
}

static dim length_of(const struct type *t)
{
    return t->dims[t->rank == 4 ? 2 : 1];
}

static enum status std_shape(struct shaping *s, struct err *e)
{
    enum dtype d = s->in[Q].dtype;
    for (uint32_t i = Q; i <= V; i++) {
        TRY(shape_float(s, i, 3, e));
        if (s->in[i].rank > 4)
            return node_error(s->node, e, "input %u has %d axes; 3 or 4 are needed", i, s->in[i].rank);
        if (s->in[i].dtype == DT_F64)
            return node_error(s->node, e, "float64 is not supported");
    }
    if (shape_has(s, PAST_K) != shape_has(s, PAST_V))
        return node_error(s->node, e, "past keys without past values, or the other way round");
    int rank = s->in[Q].rank;
    if (rank < 0 || s->in[K].rank < 0 || s->in[V].rank < 0) {
        for (uint32_t o = 0; o < s->n_out; o++)
            type_unknown(s, &s->out[o], d, o == 0 ? rank : 4);
        return ST_OK;
    }
    dim qh, kh, vh, qd, kd, vd;
    TRY(heads_of(s, Q, &qh, &qd, e));
    TRY(heads_of(s, K, &kh, &kd, e));
    TRY(heads_of(s, V, &vh, &vd, e));
    if (dim_known(qd) && dim_known(kd) && qd != kd)
        return node_error(s->node, e, "heads of queries have %lld elements, of keys %lld", (long long)qd, (long long)kd);
    if (dim_known(qh) && dim_known(kh) && (kh < 1 || qh % kh))
        return node_error(s->node, e, "%lld heads of queries cannot share %lld of keys", (long long)qh, (long long)kh);
    dim batch = s->in[Q].dims[0], len = length_of(&s->in[Q]), keys = length_of(&s->in[K]);
    if (shape_has(s, PAST_K)) {
        TRY(shape_rank(s, PAST_K, 4, e));
        keys = s->in[PAST_K].rank == 4 ? dim_add(s->syms, keys, s->in[PAST_K].dims[2]) : dim_fresh(s->syms);
    }
    if (rank == 4)
        type_tensor(&s->out[0], d, 4, (dim[]){batch, qh, len, vd});
    else
        type_tensor(&s->out[0], d, 3, (dim[]){batch, len, dim_mul(s->syms, qh, vd)});
    if (shape_wants(s, OUT_K))
        type_tensor(&s->out[OUT_K], d, 4, (dim[]){batch, kh, keys, kd});
    if (shape_wants(s, OUT_V))
        type_tensor(&s->out[OUT_V], s->in[V].dtype, 4, (dim[]){batch, kh, keys, vd});
    if (shape_wants(s, OUT_SCORES))
        type_tensor(&s->out[OUT_SCORES], d, 4, (dim[]){batch, qh, len, keys});
    return ST_OK;
}

static struct sdpa_rows rows_of(const struct tensor *t, const float *p, size_t each)
{
    if (t->rank == 4)
        return (struct sdpa_rows){p, (size_t)(t->dims[1] * t->dims[2] * t->dims[3]), (size_t)(t->dims[2] * t->dims[3]), (size_t)t->dims[3]};
    return (struct sdpa_rows){p, (size_t)(t->dims[1] * t->dims[2]), each, (size_t)t->dims[2]};
}

/* past (batch, heads, p, each) and new rows, one behind the other */
static enum status join(struct run *r, const struct tensor *past, const float *old, size_t batch, size_t heads, size_t len,
                        size_t each, float *to, struct sdpa_rows *rows, struct err *e)
{
    size_t p = past ? (size_t)past->dims[2] : 0, all = p + len;
    if (past && (past->dims[0] != (int64_t)batch || past->dims[1] != (int64_t)heads || past->dims[3] != (int64_t)each))
        return err_set(e, ST_USER, "past keys or values are of another shape than the new ones");
    if (!to) {
        void *room;
        TRY(run_scratch(r, (batch * heads * all * each + 16) * sizeof(float), &room, e));
        to = room;
    }
    const struct sdpa_rows now = *rows;
    *rows = (struct sdpa_rows){to, heads * all * each, all * each, each};
    for (size_t i = 0; i < batch * heads; i++) {
        memcpy(to + i * all * each, past ? old + i * p * each : to, p * each * sizeof *to);
        for (size_t t = 0; t < len; t++)
            memcpy(to + (i * all + p + t) * each, now.p + i / heads * now.batch + i % heads * now.head + t * now.row, each * sizeof *to);
    }
    return ST_OK;
}

/* The mask as floats, with steps along batch, heads, queries and keys. */
static enum status read_mask(struct run *r, const struct node *n, const struct tensor *m, struct sdpa *o, struct err *e)
{
    if (!m)
        return ST_OK;
    size_t want[4] = {o->batch, o->heads, o->queries, o->keys}, steps[4] = {0}, step = 1;
    if (m->rank < 1 || m->rank > 4)
        return node_error(n, e, "its mask has %u axes", m->rank);
    if (m->dtype == DT_BOOL) {
        void *p;
        size_t count = (size_t)tensor_count(m);
        TRY(run_scratch(r, (count + 16) * sizeof(float), &p, e));
        for (size_t i = 0; i < count; i++)
            ((float *)p)[i] = ((const uint8_t *)tensor_data(m))[i] ? 0 : -INFINITY;
        o->bias = p;
    } else if (dtype_is_float(m->dtype)) {
        TRY(wide_f32(r, m, &o->bias, e));
    } else {
        return node_error(n, e, "its mask is of type %s", dtype_name(m->dtype));
    }
    for (uint32_t i = m->rank; i-- > 0;) {
        uint32_t axis = i + 4 - m->rank;
        size_t have = (size_t)m->dims[i];
        if (axis == 3 && have < want[3] && (have != 1 || n->opset >= 24)) { /* keys beyond the mask are hidden */
            o->bias_keys = have;
            want[3] = have;
        }
        if (have != want[axis] && have != 1)
            return node_error(n, e, "its mask is of size %zu along axis %u; %zu is needed", have, i, want[axis]);
        steps[axis] = have == 1 ? 0 : step; /* one that is repeated */
        step *= have;
    }
    o->bias_batch = steps[0], o->bias_head = steps[1], o->bias_query = steps[2], o->bias_key = steps[3];
    return ST_OK;
}

static enum status std_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *in[7] = {0};
    const float *v[7] = {0};
    struct tensor *out[4] = {0};
    float *to[4] = {0};
    for (uint32_t i = 0; i < n->n_in && i < 7; i++) {
        in[i] = run_in(r, i);
        if (i != MASK && i != KEYS_OF)
            TRY(wide_f32(r, in[i], &v[i], e));
    }
    for (uint32_t i = 0; i < n->n_out && i < 4; i++) {
        out[i] = run_out(r, i);
        TRY(wide_f32_out(r, out[i], &to[i], e));
    }
    const struct tensor *q = in[Q], *k = in[K], *value = in[V];
    struct sdpa o = {.batch = (size_t)q->dims[0], .causal = node_int(n, "is_causal", 0) != 0, .softcap = node_float(n, "softcap", 0)};
    o.heads = (size_t)(q->rank == 4 ? q->dims[1] : node_int(n, "q_num_heads", 1));
    o.kv_heads = (size_t)(k->rank == 4 ? k->dims[1] : node_int(n, "kv_num_heads", 1));
    o.queries = (size_t)q->dims[q->rank == 4 ? 2 : 1];
    o.each = (size_t)(q->rank == 4 ? q->dims[3] : q->dims[2] / (int64_t)o.heads);
    o.v_each = (size_t)(value->rank == 4 ? value->dims[3] : value->dims[2] / (int64_t)o.kv_heads);
    size_t fresh = (size_t)k->dims[k->rank == 4 ? 2 : 1], past = in[PAST_K] ? (size_t)in[PAST_K]->dims[2] : 0;
    if ((size_t)value->dims[value->rank == 4 ? 2 : 1] != fresh || k->dims[0] != q->dims[0] || value->dims[0] != q->dims[0])
        return node_error(n, e, "keys and values are of different numbers");
    o.keys = past + fresh;
    o.first = (int64_t)past;
    o.q = rows_of(q, v[Q], o.each), o.k = rows_of(k, v[K], o.each), o.v = rows_of(value, v[V], o.v_each);
    if (past || to[OUT_K])
        TRY(join(r, in[PAST_K], v[PAST_K], o.batch, o.kv_heads, fresh, o.each, to[OUT_K], &o.k, e));
    if (past || to[OUT_V])
        TRY(join(r, in[PAST_V], v[PAST_V], o.batch, o.kv_heads, fresh, o.v_each, to[OUT_V], &o.v, e));
    o.scale = node_float(n, "scale", (float)(1 / sqrt((double)o.each)));
    int64_t left = node_int(n, "left_window_size", -1), right = node_int(n, "right_window_size", -1), most = 1 << 30;
    o.window = left < 0 ? 0 : (left < most ? left : most) + 1; /* 0: no bound */
    o.ahead = right < 0 ? 0 : (right < most ? right : most) + 1;
    TRY(read_mask(r, n, in[MASK], &o, e));
    if (in[KEYS_OF]) {
        const int64_t *count;
        void *p;
        TRY(wide_i64(r, in[KEYS_OF], &count, e));
        TRY(run_scratch(r, o.batch * sizeof(int32_t), &p, e));
        if ((size_t)tensor_count(in[KEYS_OF]) != o.batch)
            return node_error(n, e, "input 6 has %lld lengths for %zu sequences", (long long)tensor_count(in[KEYS_OF]), o.batch);
        for (size_t b = 0; b < o.batch; b++)
            ((int32_t *)p)[b] = (int32_t)(count[b] < 0 ? 0 : count[b] > (int64_t)o.keys ? (int64_t)o.keys : count[b]);
        o.keys_of = p;
        if (past)
            return node_error(n, e, "lengths of an outer cache beside past keys");
        TRY(run_scratch(r, o.batch * sizeof(int32_t), &p, e));
        for (size_t b = 0; b < o.batch; b++) /* the queries are the last of the keys that are there */
            ((int32_t *)p)[b] = o.keys_of[b] - (int32_t)o.queries;
        o.first_of = p;
    }
    if (!out[OUT_Y]) {
        void *p;
        TRY(run_scratch(r, o.batch * o.heads * o.queries * o.v_each * sizeof(float), &p, e));
        to[OUT_Y] = p;
    }
    o.out = to[OUT_Y];
    o.out_batch = o.heads * o.queries * o.v_each;
    o.out_head = q->rank == 4 ? o.queries * o.v_each : o.v_each;
    o.out_row = q->rank == 4 ? o.v_each : o.heads * o.v_each;
    static const enum sdpa_keep keeps[] = {SDPA_KEEP_SCALED, SDPA_KEEP_CAPPED, SDPA_KEEP_MASKED, SDPA_KEEP_SOFTMAX};
    int64_t mode = node_int(n, "qk_matmul_output_mode", 0);
    o.scores = to[OUT_SCORES];
    o.keep = mode >= 0 && mode < 4 ? keeps[mode] : SDPA_KEEP_SCALED;
    TRY(sdpa_run(r, n->kernels, &o, e));
    for (uint32_t i = 0; i < n->n_out && i < 4; i++)
        wide_f32_done(out[i], to[i]);
    return ST_OK;
}

static int std_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    if (axis != 0 || in == MASK)
        return in == MASK && axis == 0 && s->in[MASK].rank == 4 ? 0 : -1;
    return 0;
}

const struct op_def ops_attention_std[] = {
    {.domain = "", .name = "Attention", .since = 23, .until = OPSET_ANY, .min_in = 3, .max_in = 7, .min_out = 1, .max_out = 4, .shape = std_shape,
     .run = std_run, .follow = std_follow},
    {0},
};
