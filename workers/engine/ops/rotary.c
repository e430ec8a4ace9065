/* RotaryEmbedding of the standard domain (23) and of com.microsoft: pairs of elements are turned by the angle of their position. */
#include <string.h>

#include "workers/engine/ops/sdpa.h"
#include "workers/engine/ops/wide.h"

/* Inputs: standard X, cos, sin, positions; com.microsoft X, positions, cos, sin */
static int is_ms(const struct node *n)
{
    return n->domain[0] != 0;
}

static enum status rotary_shape(struct shaping *s, struct err *e)
{
    uint32_t at = is_ms(s->node) ? 1 : 3;
    TRY(shape_float(s, 0, 3, e));
    if (s->in[0].dtype == DT_F64 || s->in[0].rank > 4)
        return node_error(s->node, e, "an input of type %s and %d axes is not supported", dtype_name(s->in[0].dtype), s->in[0].rank);
    for (uint32_t i = 1; i < 4; i++)
        if (i != at)
            TRY(shape_float(s, i, 2, e));
    if (is_ms(s->node) || shape_has(s, at))
        TRY(shape_type(s, at, DT_I64, e));
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status rotary_check(struct node *n, struct err *e)
{
    int64_t heads = node_int(n, "num_heads", 0), turned = node_int(n, "rotary_embedding_dim", 0);
    if (heads < 0 || heads > 1 << 20 || turned < 0 || turned > 1 << 24)
        return node_error(n, e, "%lld heads, of which %lld elements are turned", (long long)heads, (long long)turned);
    if (is_ms(n) && node_int(n, "is_packed_batching", 0))
        return node_error(n, e, "packed batching is not supported");
    return ST_OK;
}

static enum status rotary_run(struct run *r, const struct node *n, struct err *e)
{
    int ms = is_ms(n);
    const struct tensor *x = run_in(r, 0), *cs = run_in(r, ms ? 2 : 1), *sn = run_in(r, ms ? 3 : 2), *at = ms ? run_in(r, 1) : n->n_in > 3 ? run_in(r, 3) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int64_t heads = node_int(n, "num_heads", 0), rotary = node_int(n, "rotary_embedding_dim", 0), half = cs->dims[cs->rank - 1];
    int64_t batch = x->dims[0], len = x->dims[x->rank == 4 ? 2 : 1], each = x->dims[x->rank - 1];
    if (x->rank == 4) {
        heads = x->dims[1];
    } else {
        if (heads < 1 && ms) /* said by the cache alone */
            heads = rotary > 0 ? each / rotary : half > 0 ? each / (2 * half) : 0;
        if (heads < 1 || each % heads)
            return node_error(n, e, "rows of %lld do not go into %lld heads", (long long)each, (long long)heads);
        each /= heads;
    }
    rotary = rotary > 0 ? rotary : each;
    if (rotary > each || half * 2 != rotary || tensor_count(sn) != tensor_count(cs))
        return node_error(n, e, "%lld of %lld elements are to be turned; its tables have rows of %lld", (long long)rotary, (long long)each, (long long)half);
    int64_t rows = tensor_count(cs) / half, count = at ? tensor_count(at) : 0;
    if ((at && count != batch * len && !(ms && count == 1)) || (!at && rows != batch * len))
        return node_error(n, e, "its positions or tables do not go with %lld sequences of %lld", (long long)batch, (long long)len);
    const float *in, *c, *s;
    float *out;
    TRY(wide_f32(r, x, &in, e));
    TRY(wide_f32(r, cs, &c, e));
    TRY(wide_f32(r, sn, &s, e));
    TRY(wide_f32_out(r, y, &out, e));
    const int64_t *positions = at ? tensor_data(at) : NULL;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < len; t++) {
            int64_t p = !at ? b * len + t : count == 1 ? positions[0] + t : positions[b * len + t];
            if (p < 0 || p >= rows)
                return node_error(n, e, "position %lld is outside its tables of %lld", (long long)p, (long long)rows);
            for (int64_t h = 0; h < heads; h++) {
                size_t row = (size_t)(x->rank == 4 ? ((b * heads + h) * len + t) * each : ((b * len + t) * heads + h) * each);
                rotate_row((size_t)rotary, (size_t)each, (int)node_int(n, "interleaved", 0), c + p * half, s + p * half, in + row, out + row);
            }
        }
    wide_f32_done(y, out);
    return ST_OK;
}

static int rotary_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    uint32_t at = is_ms(s->node) ? 1 : 3;
    (void)out;
    if (axis != 0 || (in != 0 && in != at))
        return -1;
    if (in == at || !shape_has(s, at)) /* tables per sequence, or positions per sequence */
        return shape_has(s, at) && s->in[at].rank == 2 ? 0 : -1;
    return 0;
}

#define ROTARY .min_out = 1, .max_out = 1, .check = rotary_check, .shape = rotary_shape, .run = rotary_run, .follow = rotary_follow
const struct op_def ops_rotary[] = {
    {.domain = "", .name = "RotaryEmbedding", .since = 23, .until = OPSET_ANY, .min_in = 3, .max_in = 4, ROTARY},
    {.domain = "com.microsoft", .name = "RotaryEmbedding", .since = 1, .until = OPSET_ANY, .min_in = 4, .max_in = 4, ROTARY},
    {0},
};
