/* GlobalAveragePool, GlobalMaxPool, GlobalLpPool: one number per channel. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/wide.h"

static enum status global_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    TRY(shape_float(s, 0, 2, e));
    if (x->rank < 0) {
        type_unknown(s, &s->out[0], x->dtype, -1);
        return ST_OK;
    }
    dim dims[RANK_MAX] = {x->dims[0], x->dims[1]};
    for (int i = 2; i < x->rank; i++)
        dims[i] = 1;
    type_tensor(&s->out[0], x->dtype, x->rank, dims);
    return ST_OK;
}

/* The sum in double, element j in lane j mod 8. */
static double sum_f32(size_t n, const float *x)
{
    double lane[8] = {0};
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += (double)x[j + (size_t)l];
    for (int l = 0; j < n; j++, l++)
        lane[l] += (double)x[j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static double plane(const struct node *n, enum dtype d, const void *x, size_t first, size_t count)
{
    if (n->op[6] == 'A' && d == DT_F32)
        return sum_f32(count, (const float *)x + first) / (double)count;
    double p = (double)node_int(n, "p", 2), y = n->op[6] == 'M' ? -INFINITY : 0;
    for (size_t i = first; i < first + count; i++) {
        double a = wide_get(d, x, i);
        if (n->op[6] == 'M')
            y = a > y ? a : y;
        else
            y += n->op[6] == 'A' ? a : pow(fabs(a), p);
    }
    return n->op[6] == 'M' ? y : n->op[6] == 'A' ? y / (double)count : pow(y, 1 / p);
}

static enum status global_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    (void)e;
    if (!y)
        return ST_OK;
    size_t planes = (size_t)tensor_count(y), count = planes ? (size_t)tensor_count(x) / planes : 0;
    for (size_t i = 0; i < planes; i++)
        wide_put(y->dtype, tensor_data(y), i, plane(n, x->dtype, tensor_data(x), i * count, count));
    return ST_OK;
}

static int global_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s, (void)in, (void)out;
    return axis < 2 ? (int)axis : -1;
}

#define GLOBAL(op)                                                                                                               \
    {.domain = "", .name = op, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,             \
     .shape = global_shape, .run = global_run, .follow = global_follow}
const struct op_def ops_global_pool[] = {GLOBAL("GlobalAveragePool"), GLOBAL("GlobalMaxPool"), GLOBAL("GlobalLpPool"), {0}};
