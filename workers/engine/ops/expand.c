/* Expand and Tile: elements repeated. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

/* Expand ----------------------------------------------------------------------------------------------------------------------------- */

static enum status expand_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPE(I64), e));
    struct type want;
    dim dims[RANK_MAX];
    uint32_t n;
    enum arg got;
    const struct type *x = &s->in[0];
    TRY(arg_dims(s, 1, RANK_MAX, dims, &n, &got, e));
    if (got != ARG_KNOWN) {
        dim rank = s->in[1].rank == 1 ? s->in[1].dims[0] : DIM_UNKNOWN;
        int known = x->rank >= 0 && dim_known(rank) && rank <= RANK_MAX;
        type_unknown(s, &s->out[0], x->dtype, !known ? -1 : x->rank > rank ? x->rank : (int)rank);
        return ST_OK;
    }
    type_tensor(&want, x->dtype, (int)n, dims);
    for (uint32_t i = 0; i < n; i++) {
        if (dim_known(dims[i]) && dims[i] < 0)
            return node_error(s->node, e, "size %u is %lld", i, (long long)dims[i]);
        int at = x->rank - (int)n + (int)i; /* a size not known beside one that is known and not 1 must be that */
        if (dims[i] == DIM_UNKNOWN)
            want.dims[i] = at >= 0 && dim_known(x->dims[at]) && x->dims[at] != 1 ? x->dims[at] : dim_fresh(s->syms);
    }
    TRY(type_broadcast(s, x, &want, &s->out[0], e));
    s->out[0].dtype = x->dtype;
    uint32_t c;
    const dim *v = s->syms && s->out[0].rank == 1 && dim_known(s->out[0].dims[0]) ? arg_values(s, 0, &c) : NULL;
    dim *w = v && s->out[0].dims[0] <= VALUES_MAX ? values_room(s, 0, (uint32_t)s->out[0].dims[0]) : NULL;
    for (uint32_t i = 0; w && i < (uint32_t)s->out[0].dims[0]; i++)
        w[i] = v[c == 1 ? 0 : i];
    return sizes_told(s, e);
}

static enum status expand_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n, (void)e;
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    int64_t from[RANK_MAX] = {0}, to[RANK_MAX], p = 1;
    for (uint32_t i = x->rank; i-- > 0; p *= x->dims[i])
        from[y->rank - x->rank + i] = x->dims[i] == 1 ? 0 : p;
    row_major(y->rank, y->dims, to);
    copy_steps(dtype_bytes(x->dtype), y->rank, y->dims, tensor_data(x), from, tensor_data(y), to);
    return ST_OK;
}

static int expand_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    return in == 0 ? follow_elementwise(s, in, axis, out) : -1;
}

/* Tile -------------------------------------------------------------------------------------------------------------------------------- */

static enum status tile_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    dim times[RANK_MAX];
    uint32_t n;
    enum arg got;
    TRY(arg_type(s, 1, TYPE(I64), e));
    TRY(arg_dims(s, 1, RANK_MAX, times, &n, &got, e));
    type_unknown(s, &s->out[0], x->dtype, x->rank);
    if (x->rank < 0 || got != ARG_KNOWN)
        return ST_OK;
    if ((int)n != x->rank)
        return node_error(s->node, e, "%u repeats for %d axes", n, x->rank);
    for (uint32_t i = 0; i < n; i++) {
        if (dim_known(times[i]) && times[i] < 0)
            return node_error(s->node, e, "repeat %u is %lld", i, (long long)times[i]);
        dim d = dim_mul(s->syms, x->dims[i], times[i]);
        if (d != DIM_UNKNOWN)
            s->out[0].dims[i] = d;
    }
    return sizes_told(s, e);
}

/* As a copy with each axis in two: the repeats, which do not move in the input, and its own size. */
static enum status tile_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    if (!y || !tensor_count(y))
        return ST_OK;
    int64_t dims[RANK_MAX], from[RANK_MAX], to[RANK_MAX], in[RANK_MAX], out[RANK_MAX];
    uint32_t rank = 0;
    row_major(x->rank, x->dims, in);
    row_major(y->rank, y->dims, out);
    for (uint32_t i = 0; i < x->rank; i++) {
        int64_t times = tensor_i64(t, i);
        uint32_t more = (uint32_t)(times != 1) + (uint32_t)(x->dims[i] != 1);
        if (rank + more > RANK_MAX)
            return node_error(n, e, "more than %d axes are repeated", RANK_MAX / 2);
        if (times != 1) {
            dims[rank] = times;
            from[rank] = 0;
            to[rank++] = out[i] * x->dims[i];
        }
        if (x->dims[i] != 1) {
            dims[rank] = x->dims[i];
            from[rank] = in[i];
            to[rank++] = out[i];
        }
    }
    copy_steps(dtype_bytes(x->dtype), rank, dims, tensor_data(x), from, tensor_data(y), to);
    return ST_OK;
}

static int tile_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t n;
    const dim *v = arg_values(s, 1, &n);
    return in == 0 && v && axis < n && v[axis] == 1 ? (int)axis : -1;
}

const struct op_def ops_expand[] = {
    {.domain = "", .name = "Expand", .since = 8, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .shape = expand_shape,
     .run = expand_run, .follow = expand_follow},
    {.domain = "", .name = "Tile", .since = 6, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .shape = tile_shape,
     .run = tile_run, .follow = tile_follow},
    {0},
};
