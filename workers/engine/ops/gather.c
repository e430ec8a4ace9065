/* Gather, GatherElements, GatherND: elements by index. Negative indices count from the end; one outside is an error of whoever sent it. */
#include <string.h>

#include "workers/engine/ops/args.h"

static int64_t product(const int64_t *dims, uint32_t first, uint32_t last)
{
    int64_t p = 1;
    for (uint32_t i = first; i < last; i++)
        p *= dims[i];
    return p;
}

/* Index k of the tensor of indices, made positive; -1 where it is outside. */
static inline int64_t index_at(const struct tensor *t, int64_t k, int64_t size)
{
    int64_t i = t->dtype == DT_I64 ? ((const int64_t *)tensor_data(t))[k] : ((const int32_t *)tensor_data(t))[k];
    if (i < 0)
        i += size;
    return i >= 0 && i < size ? i : -1;
}

static enum status outside(const struct node *n, const struct tensor *t, int64_t k, int64_t size, struct err *e)
{
    return node_error(n, e, "index %lld (element %lld of the indices) is outside an axis of size %lld", (long long)tensor_i64(t, k), (long long)k,
                      (long long)size);
}

/* Gather ---------------------------------------------------------------------------------------------------------------------------- */

static enum status gather_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    const struct type *x = &s->in[0], *i = &s->in[1];
    struct type *y = &s->out[0];
    uint32_t axis;
    type_tensor(y, x->dtype, -1, NULL);
    if (x->rank < 0 || i->rank < 0)
        return ST_OK;
    if (x->rank == 0)
        return node_error(s->node, e, "a scalar has no axis to gather along");
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    if (x->rank - 1 + i->rank > RANK_MAX)
        return node_error(s->node, e, "the result has %d axes, at most %d are supported", x->rank - 1 + i->rank, RANK_MAX);
    y->rank = x->rank - 1 + i->rank;
    int d = 0;
    for (int k = 0; k < (int)axis; k++)
        y->dims[d++] = x->dims[k];
    for (int k = 0; k < i->rank; k++)
        y->dims[d++] = i->dims[k];
    for (int k = (int)axis + 1; k < x->rank; k++)
        y->dims[d++] = x->dims[k];
    uint32_t n, c;
    const dim *v = s->syms && x->rank == 1 && i->rank <= 1 ? arg_values(s, 0, &n) : NULL;
    const dim *at = v ? arg_values(s, 1, &c) : NULL;
    dim *w = at ? values_room(s, 0, c) : NULL;
    for (uint32_t k = 0; w && k < c; k++) {
        dim a = dim_known(at[k]) && at[k] < 0 ? at[k] + n : at[k];
        if (dim_known(a) && (a < 0 || a >= n))
            return node_error(s->node, e, "index %lld is outside an axis of size %u", (long long)at[k], n);
        w[k] = dim_known(a) ? v[a] : DIM_UNKNOWN;
    }
    return ST_OK;
}

static enum status gather_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y)
        return ST_OK;
    TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
    int64_t outer = product(x->dims, 0, axis), size = x->dims[axis], count = tensor_count(t);
    size_t row = (size_t)product(x->dims, axis + 1, x->rank) * dtype_bytes(x->dtype);
    const char *from = tensor_data(x);
    char *to = tensor_data(y);
    for (int64_t k = 0; k < count; k++)
        if (index_at(t, k, size) < 0)
            return outside(n, t, k, size, e);
    for (int64_t o = 0; o < outer; o++, from += (size_t)size * row)
        for (int64_t k = 0; k < count; k++, to += row) {
            const char *f = from + (size_t)index_at(t, k, size) * row;
            if (row == 4)
                memcpy(to, f, 4);
            else if (row == 8)
                memcpy(to, f, 8);
            else
                memcpy(to, f, row);
        }
    return ST_OK;
}

static int gather_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    const struct type *x = &s->in[0], *i = &s->in[1];
    if (x->rank < 0 || i->rank < 0 || axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &a, NULL) != ST_OK)
        return -1;
    if (in == 1)
        return (int)(a + axis);
    return axis == a ? -1 : axis < a ? (int)axis : (int)axis - 1 + i->rank;
}

/* GatherElements -------------------------------------------------------------------------------------------------------------------- */

static enum status elements_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    const struct type *x = &s->in[0], *i = &s->in[1];
    uint32_t axis;
    type_tensor(&s->out[0], x->dtype, i->rank, i->dims);
    if (x->rank < 0 || i->rank < 0)
        return ST_OK;
    if (x->rank != i->rank)
        return node_error(s->node, e, "data has %d axes, indices have %d", x->rank, i->rank);
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank, &axis, e));
    for (int k = 0; k < x->rank; k++)
        if (k != (int)axis && dim_known(x->dims[k]) && dim_known(i->dims[k]) && i->dims[k] > x->dims[k])
            return node_error(s->node, e, "indices have size %lld along axis %d, data %lld", (long long)i->dims[k], k, (long long)x->dims[k]);
    return ST_OK;
}

#define PICK(T)                                                                                            \
    for (int64_t i = 0; i < row; i++)                                                                      \
        ((T *)to)[i] = ((const T *)from)[i * along + index_at(t, k + i, x->dims[axis]) * step[axis]];      \
    break

static enum status elements_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    if (!y)
        return ST_OK;
    TRY(axis_in(n, node_int(n, "axis", 0), (int)x->rank, &axis, e));
    size_t z = dtype_bytes(x->dtype);
    int64_t count = tensor_count(t), step[RANK_MAX], at[RANK_MAX] = {0}, base = 0, p = 1;
    for (uint32_t i = x->rank; i-- > 0; p *= x->dims[i])
        step[i] = p;
    for (int64_t k = 0; k < count; k++)
        if (index_at(t, k, x->dims[axis]) < 0)
            return outside(n, t, k, x->dims[axis], e);
    uint32_t last = t->rank - 1;
    int64_t row = t->dims[last], along = axis == last ? 0 : 1;
    for (int64_t k = 0; k < count; k += row) { /* base leaves out the axis itself and the last */
        const char *from = (const char *)tensor_data(x) + (size_t)base * z;
        char *to = (char *)tensor_data(y) + (size_t)k * z;
        switch (z) {
        case 4:
            PICK(uint32_t);
        case 8:
            PICK(uint64_t);
        default:
            for (int64_t i = 0; i < row; i++)
                memcpy(to + (size_t)i * z, from + (size_t)(i * along + index_at(t, k + i, x->dims[axis]) * step[axis]) * z, z);
        }
        for (uint32_t a = last; a-- > 0;) {
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
    if (s->in[0].rank < 0 || axis_in(s->node, node_int(s->node, "axis", 0), s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return axis != a && s->in[0].dims[axis] == s->in[1].dims[axis] ? (int)axis : in == 1 && axis == a ? (int)axis : -1;
}

/* GatherND -------------------------------------------------------------------------------------------------------------------------- */

static enum status nd_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPE(I64), e));
    const struct type *x = &s->in[0], *i = &s->in[1];
    struct type *y = &s->out[0];
    int64_t batch = node_int(s->node, "batch_dims", 0);
    type_tensor(y, x->dtype, -1, NULL);
    if (x->rank < 0 || i->rank < 0)
        return ST_OK;
    if (x->rank < 1 || i->rank < 1 || batch < 0 || batch >= x->rank || batch >= i->rank)
        return node_error(s->node, e, "batch_dims %lld does not suit ranks %d and %d", (long long)batch, x->rank, i->rank);
    dim width = i->dims[i->rank - 1];
    if (!dim_known(width))
        return ST_OK;
    if (width < 1 || batch + width > x->rank)
        return node_error(s->node, e, "indices of %lld numbers for %d axes behind %lld", (long long)width, x->rank, (long long)batch);
    int rank = i->rank - 1 + x->rank - (int)batch - (int)width;
    if (rank > RANK_MAX)
        return node_error(s->node, e, "the result has %d axes, at most %d are supported", rank, RANK_MAX);
    y->rank = rank;
    for (int k = 0; k < (int)batch; k++)
        if (dim_known(x->dims[k]) && dim_known(i->dims[k]) && x->dims[k] != i->dims[k])
            return node_error(s->node, e, "axis %d has size %lld in the data and %lld in the indices", k, (long long)x->dims[k],
                              (long long)i->dims[k]);
    for (int k = 0; k < i->rank - 1; k++)
        y->dims[k] = i->dims[k];
    for (int k = i->rank - 1, a = (int)(batch + width); k < rank; k++, a++)
        y->dims[k] = x->dims[a];
    return ST_OK;
}

static enum status nd_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *t = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    uint32_t batch = (uint32_t)node_int(n, "batch_dims", 0), width = (uint32_t)t->dims[t->rank - 1];
    if (!y)
        return ST_OK;
    int64_t batches = product(x->dims, 0, batch), tuples = product(t->dims, batch, t->rank - 1);
    int64_t part = product(x->dims, batch, x->rank), inner = product(x->dims, batch + width, x->rank);
    size_t z = dtype_bytes(x->dtype), row = (size_t)inner * z;
    char *to = tensor_data(y);
    for (int64_t b = 0; b < batches; b++)
        for (int64_t k = 0; k < tuples; k++, to += row) {
            int64_t at = 0;
            for (uint32_t w = 0; w < width; w++) {
                int64_t ti = (b * tuples + k) * width + w, i = index_at(t, ti, x->dims[batch + w]);
                if (i < 0)
                    return outside(n, t, ti, x->dims[batch + w], e);
                at = at * x->dims[batch + w] + i;
            }
            memcpy(to, (const char *)tensor_data(x) + (size_t)(b * part + at * inner) * z, row);
        }
    return ST_OK;
}

static int nd_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int64_t batch = node_int(s->node, "batch_dims", 0);
    const struct type *x = &s->in[0], *i = &s->in[1];
    if (x->rank < 0 || i->rank < 0)
        return -1;
    if (in == 1)
        return (int)axis < i->rank - 1 ? (int)axis : -1;
    if (axis < batch)
        return (int)axis;
    dim width = i->dims[i->rank - 1];
    return dim_known(width) && axis >= batch + width ? (int)(axis - batch - width) + i->rank - 1 : -1;
}

#define ROW(NAME, SINCE, SHAPE, RUN, FOLLOW)                                                                                          \
    {.domain = "", .name = NAME, .since = SINCE, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,           \
     .shape = SHAPE, .run = RUN, .follow = FOLLOW}

const struct op_def ops_gather[] = {
    ROW("Gather", 1, gather_shape, gather_run, gather_follow),
    ROW("GatherElements", 11, elements_shape, elements_run, elements_follow),
    ROW("GatherND", 11, nd_shape, nd_run, nd_follow),
    {0},
};
