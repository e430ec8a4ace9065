/* Det: determinants of square matrices, by elimination in double with the largest pivot of each column. */
#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_FLOAT, e));
    const struct type *x = &s->in[0];
    type_tensor(&s->out[0], x->dtype, x->rank < 0 ? -1 : x->rank - 2, x->dims);
    if (x->rank < 0)
        return ST_OK;
    if (x->rank < 2)
        return node_error(s->node, e, "a matrix is wanted, not %d axes", x->rank);
    dim a = x->dims[x->rank - 2], b = x->dims[x->rank - 1];
    if (dim_known(a) && dim_known(b) && a != b)
        return node_error(s->node, e, "a matrix of %lld x %lld is not square", (long long)a, (long long)b);
    return ST_OK;
}

static double determinant(int64_t n, double *a)
{
    double d = 1;
    for (int64_t c = 0; c < n; c++) {
        int64_t p = c;
        for (int64_t i = c + 1; i < n; i++)
            if (fabs(a[i * n + c]) > fabs(a[p * n + c]))
                p = i;
        if (p != c) {
            d = -d;
            for (int64_t j = 0; j < n; j++) {
                double t = a[c * n + j];
                a[c * n + j] = a[p * n + j];
                a[p * n + j] = t;
            }
        }
        d *= a[c * n + c];
        if (a[c * n + c] == 0)
            return d;
        for (int64_t i = c + 1; i < n; i++) {
            double f = a[i * n + c] / a[c * n + c];
            for (int64_t j = c; j < n; j++)
                a[i * n + j] -= f * a[c * n + j];
        }
    }
    return d;
}

static enum status run(struct run *r, const struct node *node, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    void *p;
    if (!y)
        return ST_OK;
    int64_t n = x->dims[x->rank - 1];
    if (n != x->dims[x->rank - 2])
        return node_error(node, e, "the matrix is not square");
    TRY(run_scratch(r, (size_t)(n * n) * sizeof(double), &p, e));
    double *a = p;
    size_t z = dtype_bytes(y->dtype);
    for (int64_t m = 0, count = tensor_count(y); m < count; m++) {
        for (int64_t i = 0; i < n * n; i++)
            a[i] = tensor_f64(x, m * n * n + i);
        element_set(y->dtype, (char *)tensor_data(y) + (size_t)m * z, determinant(n, a), 0);
    }
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    return s->in[0].rank >= 0 && (int)axis < s->in[0].rank - 2 ? (int)axis : -1;
}

const struct op_def ops_det[] = {
    {.domain = "", .name = "Det", .since = 11, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = shape,
     .run = run, .follow = follow},
    {0},
};
