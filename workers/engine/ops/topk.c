/* Order along an axis: ArgMax, ArgMin, TopK, CumSum, CumProd. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "workers/engine/ops/args.h"

static void sizes(const struct tensor *x, uint32_t axis, int64_t *outer, int64_t *n, int64_t *inner)
{
    *outer = *inner = 1;
    *n = x->rank ? x->dims[axis] : 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        if (i < axis)
            *outer *= x->dims[i];
        else if (i > axis)
            *inner *= x->dims[i];
    }
}

/* Number i of a tensor, comparable: doubles hold all types but 64-bit integers exactly. */
struct number {
    double f;
    int64_t i;
};

static inline struct number number_at(const struct tensor *x, int64_t i)
{
    if (dtype_is_float(x->dtype))
        return (struct number){.f = tensor_f64(x, i)};
    int64_t v = tensor_i64(x, i);
    return (struct number){.i = x->dtype == DT_U64 ? (int64_t)((uint64_t)v ^ ((uint64_t)1 << 63)) : v};
}

static inline int compare_numbers(struct number a, struct number b)
{
    if (a.f != b.f || a.f != a.f || b.f != b.f) {
        if (a.f != a.f || b.f != b.f)
            return (a.f != a.f) - (b.f != b.f); /* NaN above all else, as in NumPy */
        return a.f > b.f ? 1 : -1;
    }
    return (a.i > b.i) - (a.i < b.i);
}

/* ArgMax, ArgMin ------------------------------------------------------------------------------------------------------------------------ */

static enum status arg_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    uint32_t axis;
    type_tensor(y, DT_I64, -1, NULL);
    if (x->rank < 0)
        return ST_OK;
    TRY(axis_in(s->node, node_int(s->node, "axis", 0), x->rank ? x->rank : 1, &axis, e));
    int keep = node_int(s->node, "keepdims", 1) != 0;
    y->rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (i != (int)axis)
            y->dims[y->rank++] = x->dims[i];
        else if (keep)
            y->dims[y->rank++] = 1;
    }
    if (x->rank && x->dims[axis] == 0)
        return node_error(s->node, e, "axis %u is empty: it has no largest element", axis);
    return ST_OK;
}

#define ARG_FAST(T)                                                                     \
    {                                                                                   \
        const T *p = (const T *)tensor_data(x) + o * n * inner + k;                     \
        T top = *p;                                                                     \
        for (int64_t i = 1; i < n; i++) {                                               \
            T v = p[i * inner];                                                         \
            if (min ? (v < top || (last && v <= top)) : (v > top || (last && v >= top))) { \
                top = v;                                                                \
                best = i;                                                               \
            }                                                                           \
        }                                                                               \
    }

static enum status arg_run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    int64_t outer, n, inner;
    if (!y)
        return ST_OK;
    TRY(axis_in(node, node_int(node, "axis", 0), x->rank ? (int)x->rank : 1, &axis, e));
    int min = strcmp(node->op, "ArgMin") == 0, last = node_int(node, "select_last_index", 0) != 0;
    sizes(x, axis, &outer, &n, &inner);
    int64_t *to = tensor_data(y);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < inner; k++) {
            int64_t best = 0;
            if (x->dtype == DT_F32) {
                ARG_FAST(float)
            } else {
                struct number top = number_at(x, o * n * inner + k);
                for (int64_t i = 1; i < n; i++) {
                    struct number v = number_at(x, (o * n + i) * inner + k);
                    int c = compare_numbers(v, top);
                    c = min ? -c : c;
                    if (c > 0 || (last && c == 0)) {
                        top = v;
                        best = i;
                    }
                }
            }
            to[o * inner + k] = best;
        }
    return ST_OK;
}

static int arg_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    uint32_t a;
    if (s->in[0].rank < 1 || axis_in(s->node, node_int(s->node, "axis", 0), s->in[0].rank, &a, NULL) != ST_OK || a == axis)
        return -1;
    return axis < a || node_int(s->node, "keepdims", 1) ? (int)axis : (int)axis - 1;
}

/* TopK ------------------------------------------------------------------------------------------------------------------------------------ */

static enum status topk_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    const struct type *x = &s->in[0];
    dim k = DIM_UNKNOWN;
    uint32_t n = 0, axis;
    if (s->node->opset < 10) {
        k = node_int(s->node, "k", -1);
    } else {
        enum arg got;
        TRY(arg_type(s, 1, TYPE(I64), e));
        TRY(arg_dims(s, 1, 1, &k, &n, &got, e));
        if (got == ARG_KNOWN && n != 1)
            return node_error(s->node, e, "k has no element");
        if (got != ARG_KNOWN)
            k = DIM_UNKNOWN;
    }
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank >= 0) {
        TRY(axis_in(s->node, node_int(s->node, "axis", -1), x->rank, &axis, e));
        if (dim_known(k) && (k < 0 || (dim_known(x->dims[axis]) && k > x->dims[axis])))
            return node_error(s->node, e, "the first %lld of %lld elements are wanted", (long long)k, (long long)x->dims[axis]);
        s->out[0].dims[axis] = k == DIM_UNKNOWN ? dim_fresh(s->syms) : k;
    }
    if (s->n_out > 1) {
        s->out[1] = s->out[0];
        s->out[1].dtype = DT_I64;
    }
    return ST_OK;
}

struct entry {
    struct number v;
    int64_t i;
};

/* Ties: the lower index first. */
static int falling(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = compare_numbers(y->v, x->v);
    return c ? c : (x->i > y->i) - (x->i < y->i);
}

static int rising(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = compare_numbers(x->v, y->v);
    return c ? c : (x->i > y->i) - (x->i < y->i);
}

/* The k first of n in order, in place: a heap of k whose root is the last of them, then sorted. */
static void select_first(struct entry *h, int64_t n, int64_t k, int (*order)(const void *, const void *))
{
    if (k >= n / 8) {
        qsort(h, (size_t)n, sizeof *h, order);
        return;
    }
    qsort(h, (size_t)k, sizeof *h, order);
    for (int64_t i = 0; i < k / 2; i++) { /* falling order is a heap with the last in front */
        struct entry t = h[i];
        h[i] = h[k - 1 - i];
        h[k - 1 - i] = t;
    }
    for (int64_t i = k; k && i < n; i++) {
        if (order(&h[i], &h[0]) >= 0)
            continue;
        struct entry t = h[i];
        int64_t at = 0;
        for (;;) {
            int64_t c = 2 * at + 1;
            if (c >= k)
                break;
            if (c + 1 < k && order(&h[c + 1], &h[c]) > 0)
                c++;
            if (order(&h[c], &t) <= 0)
                break;
            h[at] = h[c];
            at = c;
        }
        h[at] = t;
    }
    qsort(h, (size_t)k, sizeof *h, order);
}

/* A row of floats, for few of many: kept in order while the row passes. 0 when there is NaN among them. */
static int few_of_many(const float *x, int64_t step, int64_t n, int64_t k, int largest, struct entry *list)
{
    float sign = largest ? 1 : -1, least = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = sign * x[i * step];
        if (v != v)
            return 0;
        if (kept == k && v <= least)
            continue;
        int64_t at = kept < k ? kept++ : k - 1;
        for (; at > 0 && (float)list[at - 1].v.f < v; at--)
            list[at] = list[at - 1];
        list[at] = (struct entry){{.f = (double)v}, i};
        least = (float)list[kept - 1].v.f;
    }
    return 1;
}

static enum status topk_run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0), *index = node->n_out > 1 ? run_out(r, 1) : NULL;
    const struct tensor *shown = y ? y : index;
    uint32_t axis;
    int64_t outer, n, inner;
    void *p;
    if (!shown)
        return ST_OK;
    TRY(axis_in(node, node_int(node, "axis", -1), (int)x->rank, &axis, e));
    sizes(x, axis, &outer, &n, &inner);
    int64_t k = shown->dims[axis];
    int largest = node_int(node, "largest", 1) != 0;
    size_t z = dtype_bytes(x->dtype);
    TRY(run_scratch(r, (size_t)n * sizeof(struct entry), &p, e));
    struct entry *list = p;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t c = 0; c < inner; c++) {
            if (x->dtype != DT_F32 || k > 32 || k < 1 ||
                !few_of_many((const float *)tensor_data(x) + o * n * inner + c, inner, n, k, largest, list)) {
                for (int64_t i = 0; i < n; i++)
                    list[i] = (struct entry){number_at(x, (o * n + i) * inner + c), i};
                select_first(list, n, k, largest ? falling : rising);
            }
            for (int64_t i = 0; i < k; i++) {
                int64_t to = (o * k + i) * inner + c;
                if (y)
                    memcpy((char *)tensor_data(y) + (size_t)to * z,
                           (const char *)tensor_data(x) + (size_t)((o * n + list[i].i) * inner + c) * z, z);
                if (index)
                    ((int64_t *)tensor_data(index))[to] = list[i].i;
            }
        }
    return ST_OK;
}

static int off_axis(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t a;
    if (in != 0 || s->in[0].rank < 1 || axis_in(s->node, node_int(s->node, "axis", -1), s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return a != axis ? (int)axis : -1;
}

/* CumSum ------------------------------------------------------------------------------------------------------------------------------------ */

static enum status cumsum_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_NUMBER, e));
    TRY(arg_type(s, 1, TYPES_INDEX, e));
    const struct type *x = &s->in[0];
    int64_t axis;
    uint32_t n, a;
    enum arg got;
    TRY(arg_ints(s, 1, 1, &axis, &n, &got, e));
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (got == ARG_KNOWN && n != 1)
        return node_error(s->node, e, "the axis has no element");
    if (x->rank >= 0 && got == ARG_KNOWN)
        TRY(axis_in(s->node, axis, x->rank, &a, e));
    return ST_OK;
}

/* Row by row: each is the one before it, plus (times) its own elements, or with `exclusive` the ones before. */
#define CUMSUM(T)                                                                               \
    {                                                                                           \
        for (int64_t o = 0; o < outer; o++) {                                                   \
            const T *p = (const T *)tensor_data(x) + o * n * inner, *before = NULL;             \
            T *q = (T *)tensor_data(y) + o * n * inner, *last = NULL;                           \
            for (int64_t k = 0; k < n; k++) {                                                   \
                int64_t i = reverse ? n - 1 - k : k;                                            \
                const T *own = p + i * inner, *add = exclusive ? before : own;                  \
                T *to = q + i * inner;                                                          \
                for (int64_t c = 0; c < inner && !last; c++)                                    \
                    to[c] = exclusive ? (T)product : own[c];                                    \
                for (int64_t c = 0; c < inner && last && !product; c++)                         \
                    to[c] = (T)(last[c] + add[c]);                                              \
                for (int64_t c = 0; c < inner && last && product; c++)                          \
                    to[c] = (T)(last[c] * add[c]);                                              \
                before = own;                                                                   \
                last = to;                                                                      \
            }                                                                                   \
        }                                                                                       \
    } break

static enum status cumsum_run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    uint32_t axis;
    int64_t outer, n, inner;
    if (!y)
        return ST_OK;
    TRY(axis_in(node, tensor_i64(run_in(r, 1), 0), (int)x->rank, &axis, e));
    int product = strcmp(node->op, "CumProd") == 0, reverse = node_int(node, "reverse", 0) != 0, exclusive = node_int(node, "exclusive", 0) != 0;
    sizes(x, axis, &outer, &n, &inner);
    switch (x->dtype) {
    case DT_F32:
        CUMSUM(float);
    case DT_F64:
        CUMSUM(double);
    case DT_I8:
    case DT_U8:
        CUMSUM(uint8_t);
    case DT_I16:
    case DT_U16:
        CUMSUM(uint16_t);
    case DT_I32:
    case DT_U32:
        CUMSUM(uint32_t);
    case DT_I64:
    case DT_U64:
        CUMSUM(uint64_t);
    default:
        for (int64_t o = 0; o < outer; o++)
            for (int64_t c = 0; c < inner; c++) {
                float sum = (float)product, v;
                for (int64_t i = 0; i < n; i++) {
                    int64_t at = (o * n + (reverse ? n - 1 - i : i)) * inner + c;
                    half_widen(x->dtype, 1, (const uint16_t *)tensor_data(x) + at, 1, &v);
                    float next = product ? sum * v : sum + v;
                    half_narrow(x->dtype, 1, exclusive ? &sum : &next, (uint16_t *)tensor_data(y) + at);
                    sum = next;
                }
            }
    }
    return ST_OK;
}

static int cumsum_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int64_t v;
    uint32_t n, a;
    enum arg got;
    if (in != 0 || s->in[0].rank < 0 || arg_ints(s, 1, 1, &v, &n, &got, NULL) != ST_OK || got != ARG_KNOWN ||
        axis_in(s->node, v, s->in[0].rank, &a, NULL) != ST_OK)
        return -1;
    return a != axis ? (int)axis : -1;
}

#define ARG(NAME)                                                                                                                    \
    {.domain = "", .name = NAME, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,             \
     .shape = arg_shape, .run = arg_run, .follow = arg_follow}

const struct op_def ops_topk[] = {
    ARG("ArgMax"),
    ARG("ArgMin"),
    {.domain = "", .name = "TopK", .since = 1, .until = 9, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 2, .shape = topk_shape,
     .run = topk_run, .follow = off_axis},
    {.domain = "", .name = "TopK", .since = 10, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 2, .shape = topk_shape,
     .run = topk_run, .follow = off_axis},
    {.domain = "", .name = "CumSum", .since = 11, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = cumsum_shape, .run = cumsum_run, .follow = cumsum_follow},
    {.domain = "", .name = "CumProd", .since = 26, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .shape = cumsum_shape, .run = cumsum_run, .follow = cumsum_follow},
    {0},
};
