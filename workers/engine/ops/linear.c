#include "workers/engine/ops/linear.h"

#include <string.h>

#include "base/mem.h"

static uint32_t columns(const struct kernels *kernels, uint32_t n)
{
    return (n + kernels->nr - 1) / kernels->nr * kernels->nr;
}

size_t linear_bytes(const struct kernels *kernels, uint32_t n, uint32_t k)
{
    return sizeof(float) * columns(kernels, n) * ((size_t)k + 1);
}

enum status linear_init(struct linear *l, const struct kernels *kernels, uint32_t n, uint32_t k, struct err *e)
{
    size_t cols = columns(kernels, n);
    *l = (struct linear){.kernels = kernels, .n = n, .k = k};
    l->packed = mem_aligned(sizeof(float) * cols * k);
    l->bias = mem_aligned(sizeof(float) * cols);
    if (!l->packed || !l->bias) {
        linear_release(l);
        return err_nomem(e, "the model's weights");
    }
    memset(l->packed, 0, sizeof(float) * cols * k);
    memset(l->bias, 0, sizeof(float) * cols);
    return ST_OK;
}

void linear_release(struct linear *l)
{
    mem_free(l->packed);
    mem_free(l->bias);
    *l = (struct linear){0};
}

void linear_set(struct linear *l, uint32_t first, uint32_t count, const float *w, const float *bias)
{
    BUG_IF(first > l->n || count > l->n - first, "outputs %u+%u of a linear layer with %u", first, count, l->n);
    uint32_t nr = l->kernels->nr;
    for (uint32_t i = 0; i < count; i++, w += l->k) {
        uint32_t j = first + i;
        float *panel = l->packed + (size_t)(j / nr) * l->k * nr + j % nr;
        for (uint32_t k = 0; k < l->k; k++)
            panel[(size_t)k * nr] = w[k];
        l->bias[j] = bias[i];
    }
}

void linear_run(const struct linear *l, uint32_t rows, const float *x, size_t ldx, enum act act, const float *res, size_t ldres,
                float *y, size_t ldy)
{
    l->kernels->gemm(&(struct gemm_args){
        .m = rows,
        .n = l->n,
        .k = l->k,
        .a = x,
        .lda = ldx,
        .packed = l->packed,
        .bias = l->bias,
        .act = act,
        .res = res,
        .ldres = ldres,
        .c = y,
        .ldc = ldy,
    });
}
