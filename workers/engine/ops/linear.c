#include "workers/engine/ops/linear.h"

#include <string.h>

#include "base/mem.h"

static size_t bias_bytes(uint32_t n)
{
    return (sizeof(float) * n + 63) / 64 * 64;
}

size_t linear_packed_bytes(const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k)
{
    return kernels->product[precision].packed_bytes(n, k) + bias_bytes(n);
}

static void lay_out(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, void *block)
{
    *l = (struct linear){.kernels = kernels, .precision = precision, .n = n, .k = k, .packed = block};
    l->bias = block ? (float *)((char *)block + kernels->product[precision].packed_bytes(n, k)) : NULL;
}

enum status linear_init(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                        struct err *e)
{
    *l = (struct linear){0};
    size_t size = linear_packed_bytes(kernels, precision, n, k);
    void *block = mem_aligned(size);
    if (!block)
        return err_nomem(e, "the model's weights");
    memset(block, 0, size);
    lay_out(l, kernels, precision, n, k, block);
    return ST_OK;
}

void linear_bind(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, const void *block)
{
    lay_out(l, kernels, precision, n, k, (void *)(uintptr_t)block);
    l->bound = l->filled = 1;
}

void linear_lend(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, void *block)
{
    lay_out(l, kernels, precision, n, k, block);
    l->bound = 1;
}

uint32_t linear_piece(const struct linear *l, const void **at, size_t *bytes)
{
    if (!l->packed || !l->bound)
        return 0;
    *at = l->packed;
    *bytes = linear_packed_bytes(l->kernels, l->precision, l->n, l->k);
    return 1;
}

void linear_release(struct linear *l)
{
    if (!l->bound)
        mem_free(l->packed);
    *l = (struct linear){0};
}

void linear_set_strided(struct linear *l, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, const float *bias)
{
    BUG_IF(first > l->n || count > l->n - first, "outputs %u+%u of a linear layer with %u", first, count, l->n);
    BUG_IF(l->filled, "a linear layer over a block that is only read");
    l->kernels->product[l->precision].pack(l->n, l->k, first, count, w, row, column, l->packed);
    if (bias)
        memcpy(l->bias + first, bias, sizeof *bias * count);
    else
        memset(l->bias + first, 0, sizeof *l->bias * count);
}

void linear_set(struct linear *l, uint32_t first, uint32_t count, const float *w, const float *bias)
{
    linear_set_strided(l, first, count, w, l->k, 1, bias);
}

void linear_apply(const struct linear *l, uint32_t rows, const float *x, size_t ldx, const struct epilogue *e, float *y, size_t ldy)
{
    struct gemm_args g = {.m = rows, .n = l->n, .k = l->k, .a = x, .lda = ldx, .packed = l->packed, .e = *e, .c = y, .ldc = ldy};
    g.e.bias = l->bias;
    l->kernels->product[l->precision].run(&g);
}

void linear_run(const struct linear *l, uint32_t rows, const float *x, size_t ldx, enum act act, const float *res, size_t ldres,
                float *y, size_t ldy)
{
    linear_apply(l, rows, x, ldx, &(struct epilogue){.act = act, .res = res, .ldres = ldres}, y, ldy);
}
