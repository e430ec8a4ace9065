/* Elements in another place: DepthToSpace, SpaceToDepth, Trilu, ReverseSequence. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

/* DepthToSpace, SpaceToDepth ------------------------------------------------------------------------------------------------------------ */

static enum status block_check(struct node *n, struct err *e)
{
    int64_t b = node_int(n, "blocksize", 0);
    const char *mode = node_string(n, "mode", "DCR");
    if (b < 1 || b > 1 << 20)
        return node_error(n, e, "blocksize is %lld", (long long)b);
    if (strcmp(mode, "DCR") != 0 && strcmp(mode, "CRD") != 0)
        return node_error(n, e, "mode is '%s'; it must be DCR or CRD", mode);
    return ST_OK;
}

static int to_space(const struct node *n)
{
    return n->op[0] == 'D';
}

static enum status block_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    int64_t b = node_int(s->node, "blocksize", 1);
    if (x->rank >= 0 && x->rank != 4)
        return node_error(s->node, e, "4 axes are wanted, not %d", x->rank);
    type_unknown(s, &s->out[0], x->dtype, 4);
    if (x->rank < 0)
        return ST_OK;
    dim *d = s->out[0].dims;
    d[0] = x->dims[0];
    if (to_space(s->node)) {
        if (dim_known(x->dims[1]) && x->dims[1] % (b * b) != 0)
            return node_error(s->node, e, "%lld channels are not a multiple of %lld", (long long)x->dims[1], (long long)(b * b));
        d[1] = dim_div(s->syms, x->dims[1], b * b);
        d[2] = dim_mul(s->syms, x->dims[2], b);
        d[3] = dim_mul(s->syms, x->dims[3], b);
    } else {
        for (int i = 2; i < 4; i++) {
            if (dim_known(x->dims[i]) && x->dims[i] % b != 0)
                return node_error(s->node, e, "axis %d of size %lld is not a multiple of %lld", i, (long long)x->dims[i], (long long)b);
            d[i] = dim_div(s->syms, x->dims[i], b);
        }
        d[1] = dim_mul(s->syms, x->dims[1], b * b);
    }
    return sizes_told(s, e);
}

static enum status block_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    int64_t b = node_int(n, "blocksize", 1);
    if (!y)
        return ST_OK;
    /* as six axes of the output: batch and for each of channel, row and column two, or three channels' and one of the others */
    int64_t in[4], step[6], out[6], dims[6];
    row_major(4, x->dims, in);
    if (to_space(n)) { /* channel, row, row in block, column, column in block */
        int64_t c = y->dims[1];
        int crd = strcmp(node_string(n, "mode", "DCR"), "CRD") == 0;
        memcpy(dims, (int64_t[]){x->dims[0], c, x->dims[2], b, x->dims[3], b}, sizeof dims);
        memcpy(step, (int64_t[]){in[0], crd ? b * b * in[1] : in[1], in[2], (crd ? b : b * c) * in[1], in[3], (crd ? 1 : c) * in[1]}, sizeof step);
    } else if (strcmp(node_string(n, "mode", "DCR"), "CRD") == 0) { /* channel, row in block, column in block, row, column */
        memcpy(dims, (int64_t[]){x->dims[0], x->dims[1], b, b, y->dims[2], y->dims[3]}, sizeof dims);
        memcpy(step, (int64_t[]){in[0], in[1], in[2], in[3], b * in[2], b * in[3]}, sizeof step);
    } else { /* row in block, column in block, channel, row, column */
        memcpy(dims, (int64_t[]){x->dims[0], b, b, x->dims[1], y->dims[2], y->dims[3]}, sizeof dims);
        memcpy(step, (int64_t[]){in[0], in[2], in[3], in[1], b * in[2], b * in[3]}, sizeof step);
    }
    row_major(6, dims, out);
    copy_steps(dtype_bytes(x->dtype), 6, dims, tensor_data(x), step, tensor_data(y), out);
    return ST_OK;
}

static int block_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)out;
    return axis == 0 ? 0 : -1;
}

/* Trilu ----------------------------------------------------------------------------------------------------------------------------------- */

static enum status trilu_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    if (arg_there(s, 1))
        TRY(arg_type(s, 1, TYPE(I64), e));
    if (s->in[0].rank >= 0 && s->in[0].rank < 2)
        return node_error(s->node, e, "a matrix is wanted, not %d axes", s->in[0].rank);
    type_tensor(&s->out[0], s->in[0].dtype, s->in[0].rank, s->in[0].dims);
    return ST_OK;
}

static enum status trilu_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *tk = node_has(n, 1) ? run_in(r, 1) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    if (tk && tensor_count(tk) != 1)
        return node_error(n, e, "k has %lld elements instead of one", (long long)tensor_count(tk));
    int upper = node_int(n, "upper", 1) != 0;
    int64_t rows = x->dims[x->rank - 2], cols = x->dims[x->rank - 1], count = tensor_count(x), k = tk ? tensor_i64(tk, 0) : 0;
    size_t z = dtype_bytes(x->dtype);
    k = k < -rows ? -rows : k > cols ? cols : k;
    const char *from = tensor_data(x);
    char *to = tensor_data(y);
    for (int64_t i = 0; count && i < count / cols; i++, from += (size_t)cols * z, to += (size_t)cols * z) {
        int64_t edge = i % rows + k + (upper ? 0 : 1); /* first column of the upper part, or first behind the lower */
        edge = edge < 0 ? 0 : edge > cols ? cols : edge;
        size_t a = (size_t)edge * z, all = (size_t)cols * z;
        memset(to + (upper ? 0 : a), 0, upper ? a : all - a);
        memcpy(to + (upper ? a : 0), from + (upper ? a : 0), upper ? all - a : a);
    }
    return ST_OK;
}

static int trilu_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return in == 0 && s->in[0].rank >= 0 && (int)axis < s->in[0].rank - 2 ? (int)axis : -1;
}

/* ReverseSequence --------------------------------------------------------------------------------------------------------------------------- */

static enum status reverse_check(struct node *n, struct err *e)
{
    int64_t b = node_int(n, "batch_axis", 1), t = node_int(n, "time_axis", 0);
    if (b == t || b < 0 || b > 1 || t < 0 || t > 1)
        return node_error(n, e, "batch_axis and time_axis must be 0 and 1, or 1 and 0");
    return ST_OK;
}

static enum status reverse_shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    TRY(arg_type(s, 1, TYPE(I64), e));
    const struct type *x = &s->in[0], *l = &s->in[1];
    type_tensor(&s->out[0], x->dtype, x->rank, x->dims);
    if (x->rank >= 0 && x->rank < 2)
        return node_error(s->node, e, "two axes are needed, not %d", x->rank);
    if (x->rank < 0 || l->rank < 0)
        return ST_OK;
    dim batch = x->dims[node_int(s->node, "batch_axis", 1)];
    if (l->rank != 1 || (dim_known(batch) && dim_known(l->dims[0]) && batch != l->dims[0]))
        return node_error(s->node, e, "one length for each sequence is needed");
    return ST_OK;
}

static enum status reverse_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *l = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    int by_time = node_int(n, "time_axis", 0) == 0;
    int64_t inner = 1;
    for (uint32_t i = 2; i < x->rank; i++)
        inner *= x->dims[i];
    size_t row = (size_t)inner * dtype_bytes(x->dtype);
    int64_t times = x->dims[by_time ? 0 : 1];
    for (int64_t i = 0; i < x->dims[0]; i++)
        for (int64_t j = 0; j < x->dims[1]; j++) {
            int64_t t = by_time ? i : j, b = by_time ? j : i, length = tensor_i64(l, b);
            if (length < 0 || length > times)
                return node_error(n, e, "length %lld of sequence %lld is outside 0..%lld", (long long)length, (long long)b, (long long)times);
            int64_t from = t < length ? length - 1 - t : t;
            int64_t source = by_time ? from * x->dims[1] + b : b * x->dims[1] + from;
            memcpy((char *)tensor_data(y) + (size_t)(i * x->dims[1] + j) * row, (const char *)tensor_data(x) + (size_t)source * row, row);
        }
    return ST_OK;
}

static int reverse_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int64_t b = node_int(s->node, "batch_axis", 1), t = node_int(s->node, "time_axis", 0);
    if (in == 1)
        return axis == 0 ? (int)b : -1;
    return axis == t ? -1 : (int)axis;
}

const struct op_def ops_layout[] = {
    {.domain = "", .name = "DepthToSpace", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .check = block_check, .shape = block_shape, .run = block_run, .follow = block_follow},
    {.domain = "", .name = "SpaceToDepth", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
     .check = block_check, .shape = block_shape, .run = block_run, .follow = block_follow},
    {.domain = "", .name = "Trilu", .since = 14, .until = OPSET_ANY, .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, .shape = trilu_shape,
     .run = trilu_run, .follow = trilu_follow},
    {.domain = "", .name = "ReverseSequence", .since = 10, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
     .check = reverse_check, .shape = reverse_shape, .run = reverse_run, .follow = reverse_follow},
    {0},
};
