/* The same elements under other sizes: Reshape, Flatten, Squeeze, Unsqueeze, and Dropout, which does nothing when a model is only run. */
#include <string.h>

#include "workers/engine/ops/args.h"

/* An integer tensor's elements stay what they are. */
static void keep_values(struct shaping *s)
{
    if (s->syms)
        s->out[0].values = s->in[0].values;
}

static enum status view_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n, (void)e;
    const struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    int64_t dims[RANK_MAX];
    uint32_t rank = y->rank;
    memcpy(dims, y->dims, rank * sizeof *dims);
    run_view(r, 0, 0, 0, rank, dims);
    return ST_OK;
}

/* An axis becomes the output's axis with as many elements in front of it, where that is sure. */
static int view_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    const struct type *x = &s->in[0], *y = &s->out[0];
    if (in != 0 || out != 0 || x->rank < 0 || y->rank < 0)
        return -1;
    dim before = dims_product(s->syms, x->dims, 0, (int)axis);
    for (int b = 0; b < y->rank; b++)
        if (y->dims[b] == x->dims[axis] && before != DIM_UNKNOWN && dims_product(s->syms, y->dims, 0, b) == before)
            return b;
    return -1;
}

/* Reshape -------------------------------------------------------------------------------------------------------------------------- */

static enum status target(struct shaping *s, dim *want, uint32_t *rank, enum arg *got, struct err *e)
{
    if (s->node->opset < 5) {
        const int64_t *a = node_ints(s->node, "shape", rank);
        if (!a)
            return node_error(s->node, e, "the attribute 'shape' is missing");
        if (*rank > RANK_MAX)
            return node_error(s->node, e, "%u axes, at most %d are supported", *rank, RANK_MAX);
        for (uint32_t i = 0; i < *rank; i++)
            want[i] = a[i];
        *got = ARG_KNOWN;
        return ST_OK;
    }
    TRY(arg_type(s, 1, TYPE(I64), e));
    return arg_dims(s, 1, RANK_MAX, want, rank, got, e);
}

static enum status reshape_shape(struct shaping *s, struct err *e)
{
    dim want[RANK_MAX];
    uint32_t rank;
    enum arg got;
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(target(s, want, &rank, &got, e));
    struct type *y = &s->out[0];
    const struct type *x = &s->in[0];
    if (got != ARG_KNOWN) {
        dim n = s->in[1].rank == 1 ? s->in[1].dims[0] : s->in[1].rank == 0 ? 1 : DIM_UNKNOWN;
        type_unknown(s, y, x->dtype, dim_known(n) && n <= RANK_MAX ? (int)n : -1);
        keep_values(s);
        return ST_OK;
    }
    int allowzero = node_int(s->node, "allowzero", 0) != 0;
    int open = -1, n_open = 0, wild = 0;
    dim rest = 1;
    type_tensor(y, x->dtype, (int)rank, want);
    for (uint32_t i = 0; i < rank; i++) {
        dim d = want[i];
        if (d == 0 && !allowzero) {
            if (x->rank >= 0 && (int)i >= x->rank)
                return node_error(s->node, e, "size %u is 0 (keep), but the input has %d axes", i, x->rank);
            d = x->rank < 0 ? dim_fresh(s->syms) : x->dims[i];
        } else if (dim_known(d) && d < -1) {
            return node_error(s->node, e, "size %u is %lld", i, (long long)d);
        }
        y->dims[i] = d;
        if (d == -1 || d == DIM_UNKNOWN) {
            open = (int)i;
            n_open++;
            wild += d == -1;
        } else {
            rest = dim_mul(s->syms, rest, d);
        }
    }
    if (wild > 1)
        return node_error(s->node, e, "more than one size is -1");
    dim count = type_count(s, x);
    if (n_open == 1) { /* a size that is not known must be what the others leave, as -1 is */
        y->dims[open] = count == DIM_UNKNOWN || rest == DIM_UNKNOWN || rest == 0 ? DIM_UNKNOWN : dim_div(s->syms, count, rest);
        if (wild && dim_known(count) && dim_known(rest) && (rest == 0 ? count != 0 : count % rest != 0))
            return node_error(s->node, e, "%lld elements cannot be laid out in rows of %lld", (long long)count, (long long)rest);
        if (wild && dim_known(rest) && rest == 0 && dim_known(count))
            y->dims[open] = 0;
    } else if (!n_open && dim_known(count) && dim_known(rest) && count != rest) {
        return node_error(s->node, e, "%lld elements do not fit %lld", (long long)count, (long long)rest);
    }
    for (uint32_t i = 0; i < rank; i++)
        if (y->dims[i] == DIM_UNKNOWN || y->dims[i] == -1)
            y->dims[i] = dim_fresh(s->syms);
    keep_values(s);
    return sizes_told(s, e);
}

static enum status flatten_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    type_unknown(s, &s->out[0], x->dtype, 2);
    if (x->rank < 0)
        return ST_OK;
    int64_t axis = node_int(s->node, "axis", 1);
    if (axis < -x->rank || axis > x->rank)
        return node_error(s->node, e, "axis %lld is outside a tensor of rank %d", (long long)axis, x->rank);
    int a = (int)(axis < 0 ? axis + x->rank : axis);
    s->out[0].dims[0] = dims_product(s->syms, x->dims, 0, a);
    s->out[0].dims[1] = dims_product(s->syms, x->dims, a, x->rank);
    for (int i = 0; i < 2; i++)
        if (s->out[0].dims[i] == DIM_UNKNOWN)
            s->out[0].dims[i] = dim_fresh(s->syms);
    keep_values(s);
    return sizes_told(s, e);
}

/* Squeeze, Unsqueeze ---------------------------------------------------------------------------------------------------------------- */

static enum status squeeze_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    uint32_t axes[RANK_MAX], n = 0;
    enum arg got = ARG_UNKNOWN;
    int all = s->node->n_in < 2 && !node_attr(s->node, "axes");
    if (x->rank >= 0)
        TRY(arg_axes(s, 1, x->rank, axes, &n, &got, e));
    if (x->rank >= 0 && got == ARG_NONE) { /* all sizes of one */
        for (int i = 0; i < x->rank; i++) {
            if (!dim_known(x->dims[i]))
                got = ARG_UNKNOWN;
            if (x->dims[i] == 1)
                axes[n++] = (uint32_t)i;
        }
    }
    if (x->rank < 0 || got == ARG_UNKNOWN) {
        dim c = x->rank >= 0 && !all && s->in[1].rank == 1 ? s->in[1].dims[0] : DIM_UNKNOWN;
        type_unknown(s, y, x->dtype, dim_known(c) && c <= x->rank ? x->rank - (int)c : -1);
        keep_values(s);
        return ST_OK;
    }
    type_tensor(y, x->dtype, 0, NULL);
    for (int i = 0, k = 0; i < x->rank; i++) {
        if (k < (int)n && axes[k] == (uint32_t)i) {
            k++;
            if (dim_known(x->dims[i]) && x->dims[i] != 1)
                return node_error(s->node, e, "axis %d has %lld elements and cannot be left out", i, (long long)x->dims[i]);
        } else {
            y->dims[y->rank++] = x->dims[i];
        }
    }
    keep_values(s);
    return sizes_told(s, e);
}

static enum status unsqueeze_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    struct type *y = &s->out[0];
    uint32_t axes[RANK_MAX], n = 0;
    int64_t raw[RANK_MAX];
    enum arg got;
    if (s->node->opset >= 13) {
        TRY(arg_ints(s, 1, RANK_MAX, raw, &n, &got, e));
    } else {
        const int64_t *a = node_ints(s->node, "axes", &n);
        got = ARG_KNOWN;
        if (!a || n > RANK_MAX)
            return node_error(s->node, e, a ? "too many axes" : "the attribute 'axes' is missing");
    }
    if (x->rank < 0 || got != ARG_KNOWN) {
        dim c = got != ARG_KNOWN && s->node->n_in > 1 && s->in[1].rank == 1 ? s->in[1].dims[0] : DIM_UNKNOWN;
        type_unknown(s, y, x->dtype, x->rank >= 0 && dim_known(c) && x->rank + c <= RANK_MAX ? x->rank + (int)c : -1);
        keep_values(s);
        return ST_OK;
    }
    if (x->rank + (int)n > RANK_MAX)
        return node_error(s->node, e, "the result has %d axes, at most %d are supported", x->rank + (int)n, RANK_MAX);
    TRY(arg_axes(s, 1, x->rank + (int)n, axes, &n, &got, e));
    type_tensor(y, x->dtype, x->rank + (int)n, NULL);
    for (int i = 0, k = 0, from = 0; i < y->rank; i++) {
        if (k < (int)n && axes[k] == (uint32_t)i) {
            y->dims[i] = 1;
            k++;
        } else {
            y->dims[i] = x->dims[from++];
        }
    }
    keep_values(s);
    return sizes_told(s, e);
}

/* BitCast: the same bytes as another type of the same size. */
static enum status bitcast_shape(struct shaping *s, struct err *e)
{
    int64_t to = node_int(s->node, "to", 0);
    TRY(arg_type(s, 0, TYPES_NUMBER | TYPE(BOOL), e));
    if (to <= 0 || to >= DT_END || !((TYPES_NUMBER | TYPE(BOOL)) >> to & 1) || dtype_bytes((enum dtype)to) != dtype_bytes(s->in[0].dtype))
        return node_error(s->node, e, "the bytes of %s cannot be read as %s", dtype_name(s->in[0].dtype),
                          dtype_name(to > 0 && to < 64 ? (enum dtype)to : DT_NONE));
    type_tensor(&s->out[0], (enum dtype)to, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

static enum status bitcast_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n, (void)e;
    const struct tensor *x = run_in(r, 0);
    if (run_out(r, 0) && tensor_count(x))
        memcpy(tensor_data(run_out(r, 0)), tensor_data(x), (size_t)tensor_count(x) * dtype_bytes(x->dtype));
    return ST_OK;
}

/* Dropout --------------------------------------------------------------------------------------------------------------------------- */

static enum status dropout_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_FLOAT, e));
    if (arg_there(s, 2)) {
        const struct tensor *t = s->constants ? s->constants[2] : NULL;
        if (t && t->buffer && tensor_count(t) == 1 && tensor_i64(t, 0))
            return node_error(s->node, e, "training_mode is set: this engine runs models, it does not train them");
    }
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    if (s->n_out > 1) /* before opset 10 the mask was of the input's type */
        type_tensor(&s->out[1], s->node->opset < 10 ? s->in[0].dtype : DT_BOOL, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

static enum status dropout_run(struct run *r, const struct node *n, struct err *e)
{
    if (node_has(n, 2) && run_in(r, 2) && tensor_count(run_in(r, 2)) == 1 && tensor_i64(run_in(r, 2), 0))
        return node_error(n, e, "training_mode is set: this engine runs models, it does not train them");
    if (run_out(r, 0))
        run_view(r, 0, 0, 0, run_in(r, 0)->rank, run_in(r, 0)->dims);
    struct tensor *mask = n->n_out > 1 ? run_out(r, 1) : NULL;
    if (mask) {
        TRY(run_make(r, 1, n->opset < 10 ? run_in(r, 0)->dtype : DT_BOOL, run_in(r, 0)->rank, run_in(r, 0)->dims, e));
        char one[8];
        size_t z = dtype_bytes(mask->dtype);
        element_set(mask->dtype, one, 1, 1);
        for (int64_t i = 0, c = tensor_count(mask); i < c; i++)
            memcpy((char *)tensor_data(mask) + (size_t)i * z, one, z);
    }
    return ST_OK;
}

#define ROW(NAME, SINCE, UNTIL, MIN_IN, MAX_IN, SHAPE)                                                                                   \
    {.domain = "", .name = NAME, .since = SINCE, .until = UNTIL, .min_in = MIN_IN, .max_in = MAX_IN, .min_out = 1, .max_out = 1,        \
     .flags = OP_VIEW, .shape = SHAPE, .run = view_run, .follow = view_follow}

const struct op_def ops_reshape[] = {
    ROW("Reshape", 1, 4, 1, 1, reshape_shape),
    ROW("Reshape", 5, OPSET_ANY, 2, 2, reshape_shape),
    ROW("Flatten", 1, OPSET_ANY, 1, 1, flatten_shape),
    ROW("Squeeze", 1, 12, 1, 1, squeeze_shape),
    ROW("Squeeze", 13, OPSET_ANY, 1, 2, squeeze_shape),
    ROW("Unsqueeze", 1, 12, 1, 1, unsqueeze_shape),
    ROW("Unsqueeze", 13, OPSET_ANY, 2, 2, unsqueeze_shape),
    {.domain = "", .name = "BitCast", .since = 26, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .shape = bitcast_shape, .run = bitcast_run, .follow = follow_elementwise},
    {.domain = "", .name = "Dropout", .since = 6, .until = 11, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 2, .flags = OP_VIEW,
     .shape = dropout_shape, .run = dropout_run, .follow = follow_elementwise},
    {.domain = "", .name = "Dropout", .since = 12, .until = OPSET_ANY, .min_in = 1, .max_in = 3, .min_out = 1, .max_out = 2, .flags = OP_VIEW,
     .shape = dropout_shape, .run = dropout_run, .follow = follow_elementwise},
    {0},
};
