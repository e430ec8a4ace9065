/* Pad: elements before and behind each axis (constant, edge, reflect, wrap); negative pads cut. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

enum mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_WRAP, PAD_BAD };

static enum mode mode_of(const struct node *n)
{
    static const char *const names[] = {"constant", "edge", "reflect", "wrap"};
    const char *s = node_string(n, "mode", "constant");
    for (int i = 0; i < PAD_BAD; i++)
        if (strcmp(s, names[i]) == 0)
            return (enum mode)i;
    return PAD_BAD;
}

static enum status check(struct node *n, struct err *e)
{
    if (mode_of(n) == PAD_BAD)
        return node_error(n, e, "mode '%s' is not supported", node_string(n, "mode", ""));
    return ST_OK;
}

/* before[] and behind[] of each axis from a list of pads for some axes */
static enum status spread(const struct node *n, uint32_t rank, const dim *pads, uint32_t n_pads, const int64_t *axes, uint32_t n_axes, dim *before,
                          dim *behind, struct err *e)
{
    for (uint32_t i = 0; i < rank; i++)
        before[i] = behind[i] = 0;
    uint32_t count = axes ? n_axes : rank;
    if (n_pads != 2 * count)
        return node_error(n, e, "%u pads for %u axes", n_pads, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t a;
        TRY(axis_in(n, axes ? axes[i] : (int64_t)i, (int)rank, &a, e));
        before[a] = pads[i];
        behind[a] = pads[count + i];
    }
    return ST_OK;
}

static const int64_t *attr_pads(const struct node *n, uint32_t *count)
{
    return node_ints(n, n->opset < 2 ? "paddings" : "pads", count);
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    dim pads[2 * RANK_MAX], before[RANK_MAX], behind[RANK_MAX];
    int64_t axes[RANK_MAX];
    uint32_t n = 0, n_axes = 0;
    enum arg got = ARG_KNOWN, ga = ARG_NONE;
    if (s->node->opset < 11) {
        const int64_t *p = attr_pads(s->node, &n);
        if (!p || n > 2 * RANK_MAX)
            return node_error(s->node, e, p ? "too many pads" : "the attribute 'pads' is missing");
        memcpy(pads, p, n * sizeof *p);
    } else {
        TRY(arg_type(s, 1, TYPE(I64), e));
        TRY(arg_dims(s, 1, 2 * RANK_MAX, pads, &n, &got, e));
        TRY(arg_ints(s, 3, RANK_MAX, axes, &n_axes, &ga, e));
        if (arg_there(s, 2))
            TRY(arg_same(s, 2, e));
    }
    type_unknown(s, &s->out[0], x->dtype, x->rank);
    if (x->rank < 0 || got != ARG_KNOWN || ga == ARG_UNKNOWN)
        return ST_OK;
    TRY(spread(s->node, (uint32_t)x->rank, pads, n, ga == ARG_KNOWN ? axes : NULL, n_axes, before, behind, e));
    for (int i = 0; i < x->rank; i++) {
        dim d = dim_add(s->syms, dim_add(s->syms, x->dims[i], before[i]), behind[i]);
        if (dim_known(d) && d < 0)
            return node_error(s->node, e, "axis %d of size %lld is cut by more than it has", i, (long long)x->dims[i]);
        if (dim_known(before[i]) && before[i] < -((int64_t)1 << 40))
            return node_error(s->node, e, "a pad is %lld", (long long)before[i]);
        if (dim_known(behind[i]) && behind[i] < -((int64_t)1 << 40))
            return node_error(s->node, e, "a pad is %lld", (long long)behind[i]);
        if (d != DIM_UNKNOWN)
            s->out[0].dims[i] = d;
    }
    return sizes_told(s, e);
}

/* Index of the input for index i (outside 0..size-1) of the axis. */
static int64_t source(enum mode m, int64_t i, int64_t size)
{
    if (i >= 0 && i < size)
        return i;
    if (m == PAD_EDGE)
        return i < 0 ? 0 : size - 1;
    if (m == PAD_WRAP)
        return ((i % size) + size) % size;
    int64_t period = size == 1 ? 1 : 2 * (size - 1);
    i = ((i % period) + period) % period;
    return i < size ? i : period - i;
}

/* Not constant: rows of the output from rows of the input, axis by axis through a table of indices. */
static void by_index(const struct tensor *x, struct tensor *y, int64_t *const *table)
{
    size_t z = dtype_bytes(x->dtype);
    uint32_t rank = y->rank;
    int64_t step[RANK_MAX], at[RANK_MAX] = {0}, count = tensor_count(y);
    row_major(x->rank, x->dims, step);
    int64_t inner = rank ? y->dims[rank - 1] : 1;
    char *to = tensor_data(y);
    for (int64_t k = 0; k < count; k += inner) {
        int64_t base = 0;
        for (uint32_t a = 0; a + 1 < rank; a++)
            base += table[a][at[a]] * step[a];
        for (int64_t i = 0; i < inner; i++, to += z)
            memcpy(to, (const char *)tensor_data(x) + (size_t)(base + (rank ? table[rank - 1][i] : 0)) * z, z);
        for (uint32_t a = rank ? rank - 1 : 0; a-- > 0;) {
            if (++at[a] < y->dims[a])
                break;
            at[a] = 0;
        }
    }
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    dim pads[2 * RANK_MAX], before[RANK_MAX], behind[RANK_MAX];
    int64_t axes[RANK_MAX];
    uint32_t n_pads = 0, n_axes = 0;
    const struct tensor *tv = NULL, *ta = NULL;
    if (!y)
        return ST_OK;
    struct str none = {"", 0};
    _Alignas(8) char value[16] = {0};
    if (y->dtype == DT_STR)
        memcpy(value, &none, sizeof none);
    if (n->opset < 11) {
        const int64_t *p = attr_pads(n, &n_pads);
        memcpy(pads, p, n_pads * sizeof *p);
        if (y->dtype != DT_STR)
            element_set(y->dtype, value, (double)node_float(n, "value", 0), (int64_t)node_float(n, "value", 0));
    } else {
        const struct tensor *tp = run_in(r, 1);
        n_pads = (uint32_t)tensor_count(tp);
        for (uint32_t i = 0; i < n_pads; i++)
            pads[i] = tensor_i64(tp, i);
        tv = node_has(n, 2) ? run_in(r, 2) : NULL;
        ta = node_has(n, 3) ? run_in(r, 3) : NULL;
        n_axes = ta ? (uint32_t)tensor_count(ta) : 0;
        for (uint32_t i = 0; i < n_axes; i++)
            axes[i] = tensor_i64(ta, i);
        if (tv && tensor_count(tv) != 1)
            return node_error(n, e, "the constant has %lld elements instead of one", (long long)tensor_count(tv));
        if (tv)
            memcpy(value, tensor_data(tv), dtype_bytes(y->dtype));
    }
    TRY(spread(n, x->rank, pads, n_pads, ta ? axes : NULL, n_axes, before, behind, e));
    enum mode m = mode_of(n);
    size_t z = dtype_bytes(x->dtype);
    if (!tensor_count(y))
        return ST_OK;
    if (m == PAD_CONSTANT) {
        int64_t dims[RANK_MAX], from[RANK_MAX], to[RANK_MAX], f = 0, t = 0;
        row_major(x->rank, x->dims, from);
        row_major(y->rank, y->dims, to);
        int changed = 0;
        for (uint32_t i = 0; i < x->rank; i++) {
            int64_t cut = (before[i] < 0 ? -before[i] : 0) + (behind[i] < 0 ? -behind[i] : 0);
            dims[i] = x->dims[i] > cut ? x->dims[i] - cut : 0;
            if (before[i] < 0)
                f += -before[i] * from[i];
            else
                t += before[i] * to[i];
            changed |= dims[i] != y->dims[i];
        }
        if (changed)
            fill_elements(z, value, tensor_count(y), tensor_data(y));
        copy_steps(z, x->rank, dims, (const char *)tensor_data(x) + f * (int64_t)z, from, (char *)tensor_data(y) + t * (int64_t)z, to);
        return ST_OK;
    }
    int64_t *table[RANK_MAX];
    for (uint32_t a = 0; a < y->rank; a++) {
        void *p;
        if (x->dims[a] == 0)
            return node_error(n, e, "axis %u is empty: there is nothing to pad it with", a);
        TRY(run_scratch(r, (size_t)y->dims[a] * sizeof **table, &p, e));
        table[a] = p;
        /* pads that cut come first: what is padded is what is left */
        int64_t first = before[a] < 0 ? -before[a] : 0, size = x->dims[a] - first - (behind[a] < 0 ? -behind[a] : 0);
        if (size <= 0)
            return node_error(n, e, "nothing of axis %u is left to pad with", a);
        for (int64_t i = 0; i < y->dims[a]; i++)
            table[a][i] = first + source(m, i - (before[a] > 0 ? before[a] : 0), size);
    }
    by_index(x, y, table);
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    const struct type *x = &s->in[0], *y = &s->out[0];
    /* the same size before and after: nothing is added, unless what one side adds the other cuts, which exporters do not write but may */
    if (in != 0 || x->rank < 0 || y->rank != x->rank || x->dims[axis] != y->dims[axis])
        return -1;
    dim pads[2 * RANK_MAX], before[RANK_MAX], behind[RANK_MAX];
    int64_t axes[RANK_MAX];
    uint32_t n = 0, n_axes = 0;
    enum arg got = ARG_KNOWN, ga = ARG_NONE;
    if (s->node->opset < 11) {
        const int64_t *p = attr_pads(s->node, &n);
        if (!p || n > 2 * RANK_MAX)
            return -1;
        memcpy(pads, p, n * sizeof *p);
    } else if (arg_dims(s, 1, 2 * RANK_MAX, pads, &n, &got, NULL) != ST_OK || arg_ints(s, 3, RANK_MAX, axes, &n_axes, &ga, NULL) != ST_OK) {
        return -1;
    }
    if (got != ARG_KNOWN || ga == ARG_UNKNOWN ||
        spread(s->node, (uint32_t)x->rank, pads, n, ga == ARG_KNOWN ? axes : NULL, n_axes, before, behind, NULL) != ST_OK)
        return -1;
    return before[axis] == 0 && behind[axis] == 0 ? (int)axis : -1;
}

const struct op_def ops_pad[] = {
    {.domain = "", .name = "Pad", .since = 1, .until = 10, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .check = check, .shape = shape,
     .run = run, .follow = follow},
    {.domain = "", .name = "Pad", .since = 11, .until = OPSET_ANY, .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1, .check = check,
     .shape = shape, .run = run, .follow = follow},
    {0},
};
