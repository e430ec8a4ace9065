#include "workers/engine/ops/product.h"

#include <string.h>

#include "workers/engine/ops/args.h"

size_t product_floats(const struct kernels *k, size_t n, size_t depth)
{
    return (n + k->nr - 1) / k->nr * k->nr * depth;
}

enum status product_fits(const struct node *n, size_t m, size_t cols, size_t depth, struct err *e)
{
    if (m > INT32_MAX || cols > INT32_MAX || depth > INT32_MAX)
        return node_error(n, e, "matrices of %zu x %zu and %zu x %zu are too large", m, depth, depth, cols);
    return ST_OK;
}

/* Panels of nr columns: a row of a panel lies together. Zeros beyond the last column. */
static void pack(uint32_t nr, const struct product *p, float *to)
{
    const float *b = p->b;
    for (size_t j = 0; j < p->n; j += nr, to += nr * p->k) {
        size_t cols = p->n - j < nr ? p->n - j : nr;
        for (size_t k = 0; k < p->k; k++) {
            float *row = to + k * nr;
            if (p->turned)
                for (size_t c = 0; c < cols; c++)
                    row[c] = b[(j + c) * p->k + k];
            else
                memcpy(row, b + k * p->n + j, cols * sizeof *row);
            for (size_t c = cols; c < nr; c++)
                row[c] = 0;
        }
    }
}

/* Row by row of c, along k: each element is one chain. */
#define PRODUCT(T)                                                                                     \
    {                                                                                                  \
        const T *a = p->a, *b = p->b;                                                                  \
        T *c = p->c;                                                                                   \
        for (size_t i = 0; i < p->m; i++, a += p->k, c += p->n) {                                      \
            for (size_t j = 0; j < p->n; j++)                                                          \
                c[j] = 0;                                                                              \
            for (size_t k = 0; k < p->k; k++) {                                                        \
                T v = a[k];                                                                            \
                size_t start = p->turned ? k : k * p->n, step = p->turned ? p->k : 1;                  \
                for (size_t j = 0; j < p->n; j++)                                                      \
                    c[j] += v * b[start + j * step];                                                   \
            }                                                                                          \
        }                                                                                              \
    } break

void product_run(const struct kernels *kernels, enum dtype d, const struct product *p, float *panels)
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
    case DT_F32:
        if (p->k == 0) {
            memset(p->c, 0, p->m * p->n * sizeof(float));
            break;
        }
        pack(kernels->nr, p, panels);
        kernels->product[PREC_F32].run(&(struct gemm_args){
            .m = (uint32_t)p->m,
            .n = (uint32_t)p->n,
            .k = (uint32_t)p->k,
            .a = p->a,
            .lda = p->k,
            .packed = panels,
            .c = p->c,
            .ldc = p->n,
        });
        break;
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
