/* Reductions over axes. Floats: element i of the reduced ones, in the order of their indices, goes to lane i mod 16 of sixteen; the lanes meet in
   one fixed tree (8, 4, 2, 1). So a result depends on the reduced elements alone, not on what lies beside them or on how many share the call.
   Integers are added in 64 bits and wrap around. f16 and bf16 are widened. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

enum { LANES = 16, COLUMNS = 64 };
enum fold { FOLD_SUM, FOLD_PROD, FOLD_MAX, FOLD_MIN, FOLD_ABS, FOLD_SQUARE };
enum kind { R_SUM, R_MEAN, R_MAX, R_MIN, R_PROD, R_L1, R_L2, R_LOG_SUM, R_LOG_SUM_EXP, R_SUM_SQUARE, R_KINDS };

static const struct {
    const char *name;
    enum fold fold;
} kinds[R_KINDS] = {
    [R_SUM] = {"ReduceSum", FOLD_SUM},        [R_MEAN] = {"ReduceMean", FOLD_SUM},          [R_MAX] = {"ReduceMax", FOLD_MAX},
    [R_MIN] = {"ReduceMin", FOLD_MIN},        [R_PROD] = {"ReduceProd", FOLD_PROD},         [R_L1] = {"ReduceL1", FOLD_ABS},
    [R_L2] = {"ReduceL2", FOLD_SQUARE},       [R_LOG_SUM] = {"ReduceLogSum", FOLD_SUM},     [R_LOG_SUM_EXP] = {"ReduceLogSumExp", FOLD_SUM},
    [R_SUM_SQUARE] = {"ReduceSumSquare", FOLD_SQUARE},
};

static enum kind kind_of(const struct node *n)
{
    for (int k = 0; k < R_KINDS; k++)
        if (strcmp(n->op, kinds[k].name) == 0)
            return (enum kind)k;
    BUG("'%s' is not a reduction", n->op);
}

#define FOLDS(T, ABS)                                                                                                            \
    static inline __attribute__((always_inline)) T first_##T(enum fold f)                                                        \
    {                                                                                                                            \
        return f == FOLD_PROD ? (T)1 : f == FOLD_MAX ? -(T)INFINITY : f == FOLD_MIN ? (T)INFINITY : (T)0;                        \
    }                                                                                                                            \
    static inline __attribute__((always_inline)) T join_##T(enum fold f, T a, T x)                                               \
    {                                                                                                                            \
        if (f == FOLD_PROD)                                                                                                      \
            return a * x;                                                                                                        \
        if (f == FOLD_MAX)                                                                                                       \
            return x > a || x != x ? x : a;                                                                                      \
        if (f == FOLD_MIN)                                                                                                       \
            return x < a || x != x ? x : a;                                                                                      \
        return a + x;                                                                                                            \
    }                                                                                                                            \
    static inline __attribute__((always_inline)) T step_##T(enum fold f, T a, T x)                                               \
    {                                                                                                                            \
        return join_##T(f, a, f == FOLD_ABS ? ABS(x) : f == FOLD_SQUARE ? x * x : x);                                            \
    }                                                                                                                            \
    /* one row */                                                                                                                \
    static inline __attribute__((always_inline)) T row_##T(enum fold f, int64_t n, const T *x)                                   \
    {                                                                                                                            \
        T lane[LANES];                                                                                                           \
        for (int k = 0; k < LANES; k++)                                                                                          \
            lane[k] = first_##T(f);                                                                                              \
        int64_t i = 0;                                                                                                           \
        for (; i + LANES <= n; i += LANES)                                                                                       \
            for (int k = 0; k < LANES; k++)                                                                                      \
                lane[k] = step_##T(f, lane[k], x[i + k]);                                                                        \
        for (; i < n; i++)                                                                                                       \
            lane[i % LANES] = step_##T(f, lane[i % LANES], x[i]);                                                                \
        for (int half = LANES / 2; half; half /= 2)                                                                              \
            for (int k = 0; k < half; k++)                                                                                       \
                lane[k] = join_##T(f, lane[k], lane[k + half]);                                                                  \
        return lane[0];                                                                                                          \
    }                                                                                                                            \
    /* n rows of `inner` columns, each column folded, a block of them at a time */                                               \
    static inline __attribute__((always_inline)) void columns_##T(enum fold f, int64_t n, int64_t inner, const T *x, T *y)       \
    {                                                                                                                            \
        T lane[LANES][COLUMNS];                                                                                                  \
        for (int64_t c0 = 0; c0 < inner; c0 += COLUMNS) {                                                                        \
            int64_t c = inner - c0 < COLUMNS ? inner - c0 : COLUMNS;                                                             \
            for (int k = 0; k < LANES; k++)                                                                                      \
                for (int j = 0; j < COLUMNS; j++)                                                                                \
                    lane[k][j] = first_##T(f);                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                                                    \
                const T *p = x + i * inner + c0;                                                                                 \
                T *l = lane[i % LANES];                                                                                          \
                for (int64_t j = 0; j < c; j++)                                                                                  \
                    l[j] = step_##T(f, l[j], p[j]);                                                                              \
            }                                                                                                                    \
            for (int half = LANES / 2; half; half /= 2)                                                                          \
                for (int k = 0; k < half; k++)                                                                                   \
                    for (int64_t j = 0; j < c; j++)                                                                              \
                        lane[k][j] = join_##T(f, lane[k][j], lane[k + half][j]);                                                 \
            memcpy(y + c0, lane[0], (size_t)c * sizeof(T));                                                                      \
        }                                                                                                                        \
    }                                                                                                                            \
    static inline __attribute__((always_inline)) void all_##T(enum fold f, int64_t outer, int64_t n, int64_t inner, const T *x, T *y) \
    {                                                                                                                            \
        for (int64_t o = 0; o < outer; o++, x += n * inner, y += inner) {                                                        \
            if (inner == 1)                                                                                                      \
                *y = row_##T(f, n, x);                                                                                           \
            else                                                                                                                 \
                columns_##T(f, n, inner, x, y);                                                                                  \
        }                                                                                                                        \
    }                                                                                                                            \
    static void fold_##T(enum fold f, int64_t outer, int64_t n, int64_t inner, const T *x, T *y)                                 \
    {                                                                                                                            \
        switch (f) {                                                                                                             \
        case FOLD_SUM:                                                                                                           \
            all_##T(FOLD_SUM, outer, n, inner, x, y);                                                                            \
            break;                                                                                                               \
        case FOLD_PROD:                                                                                                          \
            all_##T(FOLD_PROD, outer, n, inner, x, y);                                                                           \
            break;                                                                                                               \
        case FOLD_MAX:                                                                                                           \
            all_##T(FOLD_MAX, outer, n, inner, x, y);                                                                            \
            break;                                                                                                               \
        case FOLD_MIN:                                                                                                           \
            all_##T(FOLD_MIN, outer, n, inner, x, y);                                                                            \
            break;                                                                                                               \
        case FOLD_ABS:                                                                                                           \
            all_##T(FOLD_ABS, outer, n, inner, x, y);                                                                            \
            break;                                                                                                               \
        case FOLD_SQUARE:                                                                                                        \
            all_##T(FOLD_SQUARE, outer, n, inner, x, y);                                                                         \
            break;                                                                                                               \
        }                                                                                                                        \
    }
FOLDS(float, fabsf)
FOLDS(double, fabs)

/* inner is 1 */
static void log_sum_exp_float(const struct vec *v, int64_t outer, int64_t n, const float *x, float *scratch, float *y)
{
    for (int64_t o = 0; o < outer; o++, x += n) {
        float max = row_float(FOLD_MAX, n, x), base = isinf(max) ? 0 : max, sum;
        for (int64_t i = 0; i < n; i++)
            scratch[i] = x[i] - base;
        v->map(ACT_EXP, 0, 0, (size_t)n, scratch, scratch);
        sum = row_float(FOLD_SUM, n, scratch);
        v->map(ACT_LOG, 0, 0, 1, &sum, &sum);
        y[o] = sum + base;
    }
}

static void log_sum_exp_double(int64_t outer, int64_t n, const double *x, double *scratch, double *y)
{
    for (int64_t o = 0; o < outer; o++, x += n) {
        double max = row_double(FOLD_MAX, n, x), base = isinf(max) ? 0 : max;
        for (int64_t i = 0; i < n; i++)
            scratch[i] = exp(x[i] - base);
        y[o] = log(row_double(FOLD_SUM, n, scratch)) + base;
    }
}

static void finish_float(const struct vec *v, enum kind k, int64_t count, int64_t n, float *y)
{
    for (int64_t i = 0; k == R_MEAN && i < count; i++)
        y[i] = y[i] / (float)n;
    for (int64_t i = 0; k == R_L2 && i < count; i++)
        y[i] = sqrtf(y[i]);
    if (k == R_LOG_SUM)
        v->map(ACT_LOG, 0, 0, (size_t)count, y, y);
}

static void finish_double(enum kind k, int64_t count, int64_t n, double *y)
{
    for (int64_t i = 0; k == R_MEAN && i < count; i++)
        y[i] = y[i] / (double)n;
    for (int64_t i = 0; k == R_L2 && i < count; i++)
        y[i] = sqrt(y[i]);
    for (int64_t i = 0; k == R_LOG_SUM && i < count; i++)
        y[i] = log(y[i]);
}

/* Integers and bools, one element after the other. */
static void fold_int(enum kind k, int64_t outer, int64_t n, int64_t inner, const struct tensor *x, const void *data, struct tensor *y)
{
    struct buffer b = {.base = (void *)data};
    struct tensor t = {.dtype = x->dtype, .buffer = &b};
    enum fold f = kinds[k].fold;
    int large = x->dtype == DT_U64;
    size_t z = dtype_bytes(y->dtype);
    for (int64_t o = 0; o < outer * inner; o++) {
        int64_t at = o / inner * n * inner + o % inner;
        uint64_t a = f == FOLD_PROD;
        double sum_exp = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t v = tensor_i64(&t, at + i * inner);
            int64_t old = (int64_t)a;
            if (k == R_LOG_SUM_EXP)
                sum_exp += exp((double)v);
            else if (f == FOLD_PROD)
                a *= (uint64_t)v;
            else if (f == FOLD_SQUARE)
                a += (uint64_t)v * (uint64_t)v;
            else if (f == FOLD_ABS)
                a += v < 0 && !large ? 0 - (uint64_t)v : (uint64_t)v;
            else if (f == FOLD_SUM)
                a += (uint64_t)v;
            else if (i == 0 || (f == FOLD_MAX ? (large ? (uint64_t)v > a : v > old) : (large ? (uint64_t)v < a : v < old)))
                a = (uint64_t)v;
        }
        int64_t v = (int64_t)a;
        if (k == R_MEAN)
            v = n ? (large ? (int64_t)(a / (uint64_t)n) : v / n) : 0;
        else if (k == R_L2)
            v = (int64_t)sqrt((double)v);
        else if (k == R_LOG_SUM)
            v = v > 0 ? (int64_t)log((double)v) : 0;
        else if (k == R_LOG_SUM_EXP)
            v = (int64_t)log(sum_exp);
        element_set(y->dtype, (char *)tensor_data(y) + (size_t)o * z, (double)v, v);
    }
}

/* Which axes ---------------------------------------------------------------------------------------------------------------------------- */

static void all_if_none(const struct node *n, uint32_t rank, uint32_t *axes, uint32_t *count)
{
    if (*count == 0 && !node_int(n, "noop_with_empty_axes", 0))
        for (uint32_t i = 0; i < rank; i++)
            axes[(*count)++] = i;
}

static uint32_t mask_of(const uint32_t *axes, uint32_t count)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < count; i++)
        m |= 1u << axes[i];
    return m;
}

static void reduce_values(struct shaping *s, uint32_t mask)
{
    enum kind k = kind_of(s->node);
    uint32_t n;
    const dim *v = s->syms && s->in[0].rank == 1 && mask == 1 && !dtype_is_float(s->in[0].dtype) ? arg_values(s, 0, &n) : NULL;
    if (!v || (k != R_PROD && k != R_SUM && k != R_MAX && k != R_MIN) || (n == 0 && k != R_PROD && k != R_SUM))
        return;
    dim a = k == R_PROD ? 1 : k == R_SUM ? 0 : v[0];
    for (uint32_t i = 0; i < n; i++)
        a = k == R_PROD ? dim_mul(s->syms, a, v[i]) : k == R_SUM ? dim_add(s->syms, a, v[i]) : k == R_MAX ? dim_max(s->syms, a, v[i])
                                                                                                          : dim_min(s->syms, a, v[i]);
    dim *w = values_room(s, 0, 1);
    if (w)
        *w = a;
}

static enum status shape(struct shaping *s, struct err *e)
{
    enum kind k = kind_of(s->node);
    TRY(arg_type(s, 0, k == R_MAX || k == R_MIN ? TYPES_NUMBER | TYPE(BOOL) : TYPES_NUMBER, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    int keep = node_int(s->node, "keepdims", 1) != 0;
    uint32_t axes[RANK_MAX], n;
    enum arg got;
    type_tensor(y, x->dtype, -1, NULL);
    if (x->rank < 0)
        return ST_OK;
    TRY(arg_axes(s, 1, x->rank, axes, &n, &got, e));
    if (got == ARG_UNKNOWN) {
        dim c = s->in[1].rank == 1 ? s->in[1].dims[0] : DIM_UNKNOWN;
        type_unknown(s, y, x->dtype, keep ? x->rank : dim_known(c) && c > 0 && c <= x->rank ? x->rank - (int)c : -1);
        return ST_OK;
    }
    all_if_none(s->node, (uint32_t)x->rank, axes, &n);
    uint32_t mask = mask_of(axes, n);
    y->rank = 0;
    for (int i = 0; i < x->rank; i++) {
        if (!(mask >> i & 1))
            y->dims[y->rank++] = x->dims[i];
        else if (keep)
            y->dims[y->rank++] = 1;
    }
    reduce_values(s, mask);
    return ST_OK;
}

static enum status run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    enum kind k = kind_of(node);
    uint32_t axes[RANK_MAX], count;
    enum arg got;
    TRY(run_axes(r, node, 1, x->rank, axes, &count, &got, e));
    all_if_none(node, x->rank, axes, &count);
    uint32_t mask = mask_of(axes, count), changes = 0;
    int64_t outer = 1, n = 1, inner = 1;
    /* outer, reduced, inner: fits where the reduced axes lie beside each other, sizes of one aside */
    int last = -1;
    for (uint32_t i = 0; i < x->rank; i++) {
        int reduced = mask >> i & 1;
        if (x->dims[i] != 1) {
            changes += last >= 0 && reduced != last;
            last = reduced;
        }
        if (reduced)
            n *= x->dims[i];
    }
    int first_reduced = 0, seen = 0;
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->dims[i] != 1 && !seen) {
            seen = 1;
            first_reduced = mask >> i & 1;
        }
    int64_t total = tensor_count(y);
    const void *data = tensor_data(x);
    size_t z = dtype_bytes(x->dtype);
    int fits = changes <= 1 || (changes == 2 && !first_reduced);
    if (fits && n) {
        int after = 0;
        for (uint32_t i = 0; i < x->rank; i++) {
            if (mask >> i & 1)
                after |= x->dims[i] != 1;
            else if (after)
                inner *= x->dims[i];
        }
        outer = inner ? total / inner : 0;
    } else {
        outer = total;
    }
    if (n && total && (!fits || (inner > 1 && k == R_LOG_SUM_EXP))) { /* the reduced axes to the end */
        int64_t in[RANK_MAX], dims[RANK_MAX], from[RANK_MAX], to[RANK_MAX];
        uint32_t a = 0;
        row_major(x->rank, x->dims, in);
        for (int reduced = 0; reduced < 2; reduced++)
            for (uint32_t i = 0; i < x->rank; i++)
                if ((int)(mask >> i & 1) == reduced) {
                    dims[a] = x->dims[i];
                    from[a++] = in[i];
                }
        row_major(x->rank, dims, to);
        void *p;
        TRY(run_scratch(r, (size_t)tensor_count(x) * z, &p, e));
        copy_steps(z, x->rank, dims, data, from, p, to);
        data = p;
        outer = total;
        inner = 1;
    }
    if (!dtype_is_float(x->dtype)) {
        fold_int(k, outer, n, inner, x, data, y);
        return ST_OK;
    }
    if (x->dtype == DT_F64) {
        void *p;
        TRY(run_scratch(r, (size_t)n * sizeof(double), &p, e));
        if (k == R_LOG_SUM_EXP)
            log_sum_exp_double(outer, n, data, p, tensor_data(y));
        else
            fold_double(kinds[k].fold, outer, n, inner, data, tensor_data(y));
        finish_double(k, total, n, tensor_data(y));
        return ST_OK;
    }
    float *to = tensor_data(y);
    const float *from = data;
    void *p;
    if (dtype_is_half(x->dtype)) {
        TRY(run_scratch(r, (size_t)tensor_count(x) * sizeof *from, &p, e));
        half_widen(x->dtype, tensor_count(x), data, 1, p);
        from = p;
        TRY(run_scratch(r, (size_t)total * sizeof *to, &p, e));
        to = p;
    }
    if (k == R_LOG_SUM_EXP) {
        TRY(run_scratch(r, (size_t)n * sizeof *to, &p, e));
        log_sum_exp_float(&node->kernels->vec, outer, n, from, p, to);
    } else if (kinds[k].fold == FOLD_SUM && inner == 1) {
        for (int64_t o = 0; o < outer; o++)
            to[o] = node->kernels->vec.sum((size_t)n, from + o * n);
    } else {
        fold_float(kinds[k].fold, outer, n, inner, from, to);
    }
    finish_float(&node->kernels->vec, k, total, n, to);
    if (dtype_is_half(x->dtype))
        half_narrow(x->dtype, total, to, tensor_data(y));
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    uint32_t axes[RANK_MAX], n;
    enum arg got;
    if (in != 0 || s->in[0].rank < 0 || arg_axes(s, 1, s->in[0].rank, axes, &n, &got, NULL) != ST_OK || got == ARG_UNKNOWN)
        return -1;
    all_if_none(s->node, (uint32_t)s->in[0].rank, axes, &n);
    uint32_t mask = mask_of(axes, n);
    if (mask >> axis & 1)
        return -1;
    return node_int(s->node, "keepdims", 1) ? (int)axis : (int)axis - __builtin_popcount(mask & ((1u << axis) - 1));
}

/* Axes are an attribute until `input`, an input from then on. */
#define ROWS(NAME, INPUT)                                                                                                                    \
    {.domain = "", .name = NAME, .since = 1, .until = (INPUT)-1, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = shape,       \
     .run = run, .follow = follow},                                                                                                          \
    {.domain = "", .name = NAME, .since = INPUT, .until = OPSET_ANY, .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, .shape = shape,   \
     .run = run, .follow = follow}

const struct op_def ops_reduce[] = {
    ROWS("ReduceSum", 13),  ROWS("ReduceMean", 18), ROWS("ReduceMax", 18),    ROWS("ReduceMin", 18),       ROWS("ReduceProd", 18),
    ROWS("ReduceL1", 18),   ROWS("ReduceL2", 18),   ROWS("ReduceLogSum", 18), ROWS("ReduceLogSumExp", 18), ROWS("ReduceSumSquare", 18),
    {0},
};
