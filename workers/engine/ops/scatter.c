/* Scatter, ScatterElements, ScatterND: a copy of the data in which some elements are replaced or combined, in the order of the indices. */
#include <string.h>

#include "workers/engine/ops/args.h"

enum how { SCATTER_PUT, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN, SCATTER_BAD };

static enum how reduction(const struct node *n)
{
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    const char *s = node_string(n, "reduction", "none");
    for (int i = 0; i < SCATTER_BAD; i++)
        if (strcmp(s, names[i]) == 0)
            return (enum how)i;
    return SCATTER_BAD;
}

static enum status check(struct node *n, struct err *e)
{
    if (reduction(n) == SCATTER_BAD)
        return node_error(n, e, "reduction '%s' is not supported", node_string(n, "reduction", ""));
    return ST_OK;
}

static enum status types(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, reduction(s->node) == SCATTER_PUT ? TYPES_ALL : TYPES_NUMBER | TYPE(BOOL), e));
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    TRY(arg_same(s, 2, e));
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

#define COMBINE(T, U)                                                                                        \
    {                                                                                                        \
        const T *u = (const T *)update;                                                                      \
        T *x = (T *)to;                                                                                      \
        for (int64_t i = 0; i < count; i++)                                                                  \
            x[i] = (T)(how == SCATTER_ADD   ? (U)x[i] + (U)u[i]                                              \
                       : how == SCATTER_MUL ? (U)x[i] * (U)u[i]                                              \
                       : how == SCATTER_MAX ? (U)(u[i] > x[i] || u[i] != u[i] ? u[i] : x[i])                 \
                                            : (U)(u[i] < x[i] || u[i] != u[i] ? u[i] : x[i]));               \
    } break

#define COMBINE_INT(T, U)                                                                                    \
    {                                                                                                        \
        const T *u = (const T *)update;                                                                      \
        T *x = (T *)to;                                                                                      \
        for (int64_t i = 0; i < count; i++)                                                                  \
            x[i] = (T)(how == SCATTER_ADD   ? (U)x[i] + (U)u[i]                                              \
                       : how == SCATTER_MUL ? (U)x[i] * (U)u[i]                                              \
                       : how == SCATTER_MAX ? (U)(u[i] > x[i] ? u[i] : x[i])                                 \
                                            : (U)(u[i] < x[i] ? u[i] : x[i]));                               \
    } break

static void put(enum how how, enum dtype d, int64_t count, const char *update, char *to)
{
    if (how == SCATTER_PUT) {
        memcpy(to, update, (size_t)count * dtype_bytes(d));
        return;
    }
    switch (d) {
    case DT_F32:
        COMBINE(float, float);
    case DT_F64:
        COMBINE(double, double);
    case DT_I8:
        COMBINE_INT(int8_t, uint32_t);
    case DT_I16:
        COMBINE_INT(int16_t, uint32_t);
    case DT_I32:
        COMBINE_INT(int32_t, uint32_t);
    case DT_I64:
        COMBINE_INT(int64_t, uint64_t);
    case DT_U8:
        COMBINE_INT(uint8_t, uint32_t);
    case DT_U16:
        COMBINE_INT(uint16_t, uint32_t);
    case DT_U32:
        COMBINE_INT(uint32_t, uint32_t);
    case DT_U64:
        COMBINE_INT(uint64_t, uint64_t);
    case DT_BOOL:
        for (int64_t i = 0; i < count; i++)
            to[i] = how == SCATTER_ADD || how == SCATTER_MAX ? to[i] | update[i] : to[i] & update[i];
        break;
    case DT_F16:
    case DT_BF16:
        for (int64_t i = 0; i < count; i++) {
            float x, u;
            half_widen(d, 1, to + 2 * i, 1, &x);
            half_widen(d, 1, update + 2 * i, 1, &u);
            put(how, DT_F32, 1, (const char *)&u, (char *)&x);
            half_narrow(d, 1, &x, to + 2 * i);
        }
        break;
    case DT_NONE:
    case DT_STR:
    case DT_END:
        BUG("combining elements of type %d", d);
    }
}

static enum status outside(const struct node *n, const struct tensor *t, int64_t k, int64_t size, struct err *e)
{
    return node_error(n, e, "index %lld (element %lld of the indices) is outside an axis of size %lld", (long long)tensor_i64(t, k), (long long)k,
                      (long long)size);
}

static void copy_data(const struct tensor *x, struct tensor *y)
{
    size_t bytes = (size_t)tensor_count(x) * dtype_bytes(x->dtype);
    if (bytes && tensor_data(y) != tensor_data(x))
        memcpy(tensor_data(y), tensor_data(x), bytes);
}

/* ScatterElements -------------------------------------------------------------------------------------------------------------------- */

static enum status elements_shape(struct shaping *s, struct err *e)
{
    TRY(types(s, e));
    const struct type *x = &s->in[0], *i = &s->in[1], *u = &s->in[2];
    if (x->rank < 0 || i->rank < 0 || u->rank < 0)
        return ST_OK;
    uint32_t axis;
    if (x->rank == 0 || i->rank != x->rank || u->rank != x->rank)
        return node_error(s->node, e, "data, indices and updates have %d, %d and %d axes", x->rank, i->rank, u->rank);
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    for (int k = 0; k < x->rank; k++) {
        if (dim_known(i->dims[k]) && dim_known(u->dims[k]) && i->dims[k] != u->dims[k])
            return node_error(s->node, e, "indices have size %lld along axis %d, updates %lld", (long long)i->dims[k], k, (long long)u->dims[k]);
        if (k != (int)axis && dim_known(i->dims[k]) && dim_known(x->dims[k]) && i->dims[k] > x->dims[k])
            return node_error(s->node, e, "indices have size %lld along axis %d, data %lld", (long long)i->dims[k], k, (long long)x->dims[k]);
    }
    return ST_OK;
}

static enum status elements_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1), *u = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y)
        return ST_OK;
    TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
    copy_data(x, y);
    enum how how = reduction(n);
    size_t z = dtype_bytes(x->dtype);
    int64_t count = tensor_count(t), step[RANK_MAX], at[RANK_MAX] = {0}, base = 0, p = 1;
    for (uint32_t i = x->rank; i-- > 0; p *= x->dims[i])
        step[i] = p;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = tensor_i64(t, k), size = x->dims[axis];
        i += i < 0 ? size : 0;
        if (i < 0 || i >= size)
            return outside(n, t, k, size, e);
        put(how, x->dtype, 1, (const char *)tensor_data(u) + (size_t)k * z, (char *)tensor_data(y) + (size_t)(base + i * step[axis]) * z);
        for (uint32_t a = t->rank; a-- > 0;) {
            at[a]++;
            base += a == axis ? 0 : step[a];
            if (at[a] < t->dims[a])
                break;
            base -= a == axis ? 0 : step[a] * at[a];
            at[a] = 0;
        }
    }
    return ST_OK;
}

static int elements_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    uint32_t a;
    if (s->in[0].rank < 0 || s->in[1].rank != s->in[0].rank || s->in[2].rank != s->in[0].rank ||
        axis_in(s->node, node_int(s->node, "axis", 0), s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return axis != a && s->in[1].dims[axis] == s->in[0].dims[axis] && s->in[2].dims[axis] == s->in[0].dims[axis] ? (int)axis : -1;
}

/* ScatterND --------------------------------------------------------------------------------------------------------------------------- */

static enum status nd_shape(struct shaping *s, struct err *e)
{
    TRY(types(s, e));
    TRY(arg_type(s, 1, TYPE(I64), e));
    const struct type *x = &s->in[0], *i = &s->in[1], *u = &s->in[2];
    if (x->rank < 0 || i->rank < 0 || u->rank < 0)
        return ST_OK;
    if (x->rank < 1 || i->rank < 1)
        return node_error(s->node, e, "data and indices need an axis");
    dim width = i->dims[i->rank - 1];
    if (!dim_known(width))
        return ST_OK;
    if (width < 1 || width > x->rank)
        return node_error(s->node, e, "indices of %lld numbers for %d axes", (long long)width, x->rank);
    int rank = i->rank - 1 + x->rank - (int)width;
    if (u->rank != rank)
        return node_error(s->node, e, "updates have %d axes where %d are expected", u->rank, rank);
    for (int k = 0; k < rank; k++) {
        dim want = k < i->rank - 1 ? i->dims[k] : x->dims[k - (i->rank - 1) + width];
        if (dim_known(want) && dim_known(u->dims[k]) && want != u->dims[k])
            return node_error(s->node, e, "updates have size %lld along axis %d where %lld is expected", (long long)u->dims[k], k, (long long)want);
    }
    return ST_OK;
}

static enum status nd_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1), *u = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    copy_data(x, y);
    uint32_t width = (uint32_t)t->dims[t->rank - 1];
    int64_t tuples = width ? tensor_count(t) / width : 0, inner = 1;
    for (uint32_t i = width; i < x->rank; i++)
        inner *= x->dims[i];
    size_t z = dtype_bytes(x->dtype);
    for (int64_t k = 0; k < tuples; k++) {
        int64_t at = 0;
        for (uint32_t w = 0; w < width; w++) {
            int64_t i = tensor_i64(t, k * width + w), size = x->dims[w];
            i += i < 0 ? size : 0;
            if (i < 0 || i >= size)
                return outside(n, t, k * width + w, size, e);
            at = at * size + i;
        }
        put(reduction(n), x->dtype, inner, (const char *)tensor_data(u) + (size_t)(k * inner) * z,
            (char *)tensor_data(y) + (size_t)(at * inner) * z);
    }
    return ST_OK;
}

/* Data's axes behind the indexed ones, together with the updates'. */
static int nd_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    const struct type *x = &s->in[0], *i = &s->in[1];
    if (x->rank < 0 || i->rank < 0 || in == 1 || !dim_known(i->dims[i->rank - 1]))
        return -1;
    int width = (int)i->dims[i->rank - 1];
    int at = in == 0 ? (int)axis : (int)axis - (i->rank - 1) + width;
    return at >= width ? at : -1;
}

#define ROW(NAME, SINCE, UNTIL, SHAPE, RUN, FOLLOW)                                                                                   \
    {.domain = "", .name = NAME, .since = SINCE, .until = UNTIL, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .check = check, \
     .shape = SHAPE, .run = RUN, .follow = FOLLOW}

const struct op_def ops_scatter[] = {
    ROW("Scatter", 9, OPSET_ANY, elements_shape, elements_run, elements_follow),
    ROW("ScatterElements", 11, OPSET_ANY, elements_shape, elements_run, elements_follow),
    ROW("ScatterND", 11, OPSET_ANY, nd_shape, nd_run, nd_follow),
    {0},
};
