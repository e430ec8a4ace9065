/* Softmax, LogSoftmax, Hardmax: along one axis; before opset 13 along all axes from `axis` on, taken as one. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

enum { LANES = 16 };
enum kind { SOFTMAX, LOG_SOFTMAX, HARDMAX };

static enum kind kind_of(const struct node *n)
{
    return n->op[0] == 'S' ? SOFTMAX : n->op[0] == 'L' ? LOG_SOFTMAX : HARDMAX;
}

static int64_t axis_of(const struct node *n)
{
    return node_int(n, "axis", n->opset < 13 ? 1 : -1);
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_FLOAT, e));
    const struct type *x = &s->in[0];
    uint32_t axis;
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank > 0 && !(s->node->opset < 13 && axis_of(s->node) == x->rank))
        TRY(axis_in(s->node, axis_of(s->node), x->rank, &axis, e));
    return ST_OK;
}

/* Element i of a row belongs to lane i mod 16; see reduce.c. */
#define ROWS(T, EXP)                                                                                     \
    static T tree_##T(T *lane, int max)                                                                  \
    {                                                                                                    \
        for (int half = LANES / 2; half; half /= 2)                                                      \
            for (int k = 0; k < half; k++)                                                               \
                lane[k] = max ? (lane[k + half] > lane[k] ? lane[k + half] : lane[k]) : lane[k] + lane[k + half]; \
        return lane[0];                                                                                  \
    }                                                                                                    \
    static void row_##T(enum kind kind, int64_t n, const T *x, T *y)                                     \
    {                                                                                                    \
        T lane[LANES], max, sum;                                                                         \
        for (int k = 0; k < LANES; k++)                                                                  \
            lane[k] = -(T)INFINITY;                                                                      \
        for (int64_t i = 0; i < n; i++)                                                                  \
            lane[i % LANES] = x[i] > lane[i % LANES] ? x[i] : lane[i % LANES];                           \
        max = tree_##T(lane, 1);                                                                         \
        if (kind == HARDMAX) { /* the first of the largest */                                            \
            int64_t at = 0;                                                                              \
            while (at + 1 < n && !(x[at] >= max))                                                        \
                at++;                                                                                    \
            memset(y, 0, (size_t)n * sizeof(T));                                                         \
            y[at] = 1;                                                                                   \
            return;                                                                                      \
        }                                                                                                \
        for (int k = 0; k < LANES; k++)                                                                  \
            lane[k] = 0;                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                \
            T d = x[i] - max, v = (T)EXP((double)d);                                                     \
            lane[i % LANES] += v;                                                                        \
            y[i] = kind == SOFTMAX ? v : d;                                                              \
        }                                                                                                \
        sum = tree_##T(lane, 0);                                                                         \
        if (kind == LOG_SOFTMAX) {                                                                       \
            sum = (T)log((double)sum);                                                                   \
            for (int64_t i = 0; i < n; i++)                                                              \
                y[i] -= sum;                                                                             \
        } else {                                                                                         \
            T scale = 1 / sum;                                                                           \
            for (int64_t i = 0; i < n; i++)                                                              \
                y[i] *= scale;                                                                           \
        }                                                                                                \
    }
ROWS(float, exp)
ROWS(double, exp)

/* outer x n x inner */
static void sizes(const struct node *n, const struct tensor *x, int64_t *outer, int64_t *count, int64_t *inner)
{
    int64_t a = axis_of(n);
    a += a < 0 ? x->rank : 0;
    *outer = *count = *inner = 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        if (i < a)
            *outer *= x->dims[i];
        else if (i == a || n->opset < 13)
            *count *= x->dims[i];
        else
            *inner *= x->dims[i];
    }
}

static enum status run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y || !tensor_count(y))
        return ST_OK;
    int64_t outer, n, inner;
    sizes(node, x, &outer, &n, &inner);
    enum kind kind = kind_of(node);
    size_t z = dtype_bytes(x->dtype), wide = x->dtype == DT_F64 ? sizeof(double) : sizeof(float);
    int half = dtype_is_half(x->dtype);
    void *p, *q;
    TRY(run_scratch(r, (size_t)(n * inner) * wide, &p, e));
    TRY(run_scratch(r, (size_t)(n * inner) * wide, &q, e));
    int64_t dims[2] = {inner, n}, across[2] = {1, inner}, along[2] = {n, 1};
    for (int64_t o = 0; o < outer; o++) {
        const char *from = (const char *)tensor_data(x) + (size_t)(o * n * inner) * z;
        char *to = (char *)tensor_data(y) + (size_t)(o * n * inner) * z;
        const void *in = from;
        void *out = half ? q : (void *)to;
        if (half) {
            half_widen(x->dtype, n * inner, from, 1, q);
            in = q;
        }
        if (inner > 1) {
            copy_steps(wide, 2, dims, in, across, p, along);
            in = p;
        }
        for (int64_t i = 0; i < inner; i++) {
            void *row = inner > 1 ? (char *)p + (size_t)(i * n) * wide : out;
            if (wide == sizeof(float) && kind == SOFTMAX)
                node->kernels->vec.softmax((size_t)n, (const float *)in + i * n, row);
            else if (wide == sizeof(float) && kind == LOG_SOFTMAX)
                node->kernels->vec.log_softmax((size_t)n, (const float *)in + i * n, row);
            else if (x->dtype == DT_F64)
                row_double(kind, n, (const double *)in + i * n, row);
            else
                row_float(kind, n, (const float *)in + i * n, row);
        }
        if (inner > 1)
            copy_steps(wide, 2, dims, p, along, out, across);
        if (half)
            half_narrow(x->dtype, n * inner, q, to);
    }
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    int64_t a = axis_of(s->node);
    if (s->in[0].rank < 0)
        return -1;
    a += a < 0 ? s->in[0].rank : 0;
    return axis < a || (axis > a && s->node->opset >= 13) ? (int)axis : -1;
}

/* Each row is read before it is written, but not element by element: in place is fine, as each row is the output's own row. */
#define ROW(NAME)                                                                                                             \
    {.domain = "", .name = NAME, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,      \
     .flags = OP_IN_PLACE, .shape = shape, .run = run, .follow = follow}

const struct op_def ops_softmax[] = {ROW("Softmax"), ROW("LogSoftmax"), ROW("Hardmax"), {0}};
