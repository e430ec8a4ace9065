#include "workers/engine/ops/product.h"

#include <string.h>

#include "workers/engine/ops/args.h"

enum status product_fits(const struct node *n, size_t m, size_t cols, size_t depth, struct err *e)
{
    if (m > INT32_MAX || cols > INT32_MAX || depth > INT32_MAX)
        return node_error(n, e, "matrices of %zu x %zu and %zu x %zu are too large", m, depth, depth, cols);
    return ST_OK;
}

static struct matmul_args args_of(const struct matrices *p, float *scratch)
{
    return (struct matmul_args){
        .batches = (uint32_t)p->batches,
        .m = (uint32_t)p->m,
        .n = (uint32_t)p->n,
        .k = (uint32_t)p->k,
        .a = p->a,
        .b = p->b,
        .a_batch = p->a_batch,
        .a_row = p->a_row,
        .a_col = p->a_col,
        .b_batch = p->b_batch,
        .b_row = p->b_row,
        .b_col = p->b_col,
        .c = p->c,
        .c_batch = p->m * p->n,
        .ldc = p->n,
        .scratch = scratch,
    };
}

size_t product_floats(const struct kernels *k, enum dtype d, const struct matrices *p)
{
    struct matmul_args g = args_of(p, NULL);
    return d == DT_F32 ? k->matmul_scratch(&g) : 0;
}

/* Row by row of c, along k. */
#define PRODUCT(T)                                                                                     \
    {                                                                                                  \
        T *c = p->c;                                                                                   \
        for (size_t g = 0; g < p->batches; g++)                                                        \
            for (size_t i = 0; i < p->m; i++, c += p->n) {                                             \
                const T *a = (const T *)p->a + g * p->a_batch + i * p->a_row;                          \
                const T *b = (const T *)p->b + g * p->b_batch;                                         \
                for (size_t j = 0; j < p->n; j++)                                                      \
                    c[j] = 0;                                                                          \
                for (size_t k = 0; k < p->k; k++)                                                      \
                    for (size_t j = 0; j < p->n; j++)                                                  \
                        c[j] += a[k * p->a_col] * b[k * p->b_row + j * p->b_col];                      \
            }                                                                                          \
    } break

void product_run(const struct kernels *kernels, enum dtype d, const struct matrices *p, float *scratch)
{
    switch (d) {
    case DT_F64:
        PRODUCT(double);
    case DT_I32:
    case DT_U32:
        PRODUCT(uint32_t);
    case DT_I64:
    case DT_U64:
        PRODUCT(uint64_t);
    case DT_F32: {
        struct matmul_args g = args_of(p, scratch);
        kernels->matmul(&g);
        break;
    }
    default:
        BUG("a product of type %d", d);
    }
}

enum status product_widen(struct run *r, const struct tensor *t, const void **out, struct err *e)
{
    if (!dtype_is_half(t->dtype)) {
        *out = tensor_data(t);
        return ST_OK;
    }
    void *p;
    TRY(run_scratch(r, (size_t)tensor_count(t) * sizeof(float), &p, e));
    half_widen(t->dtype, tensor_count(t), tensor_data(t), 1, p);
    *out = p;
    return ST_OK;
}
