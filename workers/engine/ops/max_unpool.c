/* MaxUnpool: what MaxPool took goes back where it was, zeros elsewhere. */
#include <string.h>

#include "workers/engine/ops/space.h"
#include "workers/engine/ops/wide.h"

static enum status unpool_check(struct node *n, struct err *e)
{
    uint32_t count;
    return node_ints(n, "kernel_shape", &count) && count ? ST_OK : node_error(n, e, "attribute 'kernel_shape' is missing");
}

/* The output as kernel, strides and pads alone make it: what the indices mean. */
static enum status plain_dims(const struct node *n, struct syms *syms, int rank, const dim *in, dim *out, struct err *e)
{
    struct space p;
    TRY(space_read(n, rank, NULL, &p, e));
    out[0] = in[0], out[1] = in[1];
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t a = i + SPACE_MAX - p.n;
        dim whole = dim_add(syms, dim_mul(syms, dim_sub(syms, in[2 + i], 1), p.stride[a]), p.kernel[a]);
        out[2 + i] = dim_sub(syms, whole, p.begin[a] + p.end[a]);
    }
    return ST_OK;
}

static enum status unpool_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    const dim *given;
    uint32_t count;
    dim dims[RANK_MAX];
    TRY(shape_float(s, 0, 3, e));
    TRY(shape_type(s, 1, DT_I64, e));
    if (shape_has(s, 2)) {
        if (shape_ints(s, 2, &given, &count)) {
            if (count < 3 || count > RANK_MAX)
                return node_error(s->node, e, "its output shape has %u axes", count);
            for (uint32_t i = 0; i < count; i++) {
                if (dim_known(given[i]) && given[i] < 0)
                    return node_error(s->node, e, "its output shape holds %lld", (long long)given[i]);
                dims[i] = given[i];
            }
            type_tensor(&s->out[0], x->dtype, (int)count, dims);
            for (uint32_t i = 0; i < count; i++)
                if (dims[i] == DIM_UNKNOWN)
                    s->out[0].dims[i] = dim_fresh(s->syms);
        } else {
            type_unknown(s, &s->out[0], x->dtype, x->rank);
        }
        return ST_OK;
    }
    if (x->rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, -1);
        return ST_OK;
    }
    TRY(plain_dims(s->node, s->syms, x->rank, x->dims, dims, e));
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    return ST_OK;
}

static enum status unpool_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *at = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    dim plain[RANK_MAX];
    TRY(plain_dims(n, NULL, (int)x->rank, x->dims, plain, e));
    if (tensor_count(at) != tensor_count(x) || y->rank != x->rank)
        return node_error(n, e, "its indices or its output shape do not go with its input");
    int64_t all = 1;
    for (uint32_t i = 0; i < x->rank; i++)
        all *= plain[i];
    size_t size = dtype_bytes(x->dtype);
    const int64_t *index = tensor_data(at);
    memset(tensor_data(y), 0, (size_t)tensor_count(y) * size);
    for (int64_t i = 0; i < tensor_count(x); i++) {
        if (index[i] < 0 || index[i] >= all)
            return node_error(n, e, "index %lld is outside its output of %lld elements", (long long)index[i], (long long)all);
        int64_t left = index[i], to = 0, step = 1;
        for (uint32_t a = x->rank; a-- > 0; left /= plain[a], step *= y->dims[a]) {
            if (left % plain[a] >= y->dims[a])
                return node_error(n, e, "index %lld is outside its output shape", (long long)index[i]);
            to += left % plain[a] * step;
        }
        memcpy((char *)tensor_data(y) + (size_t)to * size, (const char *)tensor_data(x) + (size_t)i * size, size);
    }
    return ST_OK;
}

const struct op_def ops_max_unpool[] = {
    {.domain = "", .name = "MaxUnpool", .since = 9, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
     .check = unpool_check, .shape = unpool_shape, .run = unpool_run},
    {0},
};
