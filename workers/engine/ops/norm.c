#include "workers/engine/ops/norm.h"

#include "base/mem.h"

size_t norm_bytes(uint32_t n)
{
    return 2 * sizeof(float) * n;
}

enum status norm_init(struct norm *o, const struct kernels *kernels, uint32_t n, float eps, struct err *e)
{
    *o = (struct norm){.kernels = kernels, .n = n, .eps = eps};
    o->gamma = mem_aligned(sizeof(float) * n);
    o->beta = mem_aligned(sizeof(float) * n);
    if (!o->gamma || !o->beta) {
        norm_release(o);
        return err_nomem(e, "the model's weights");
    }
    return ST_OK;
}

void norm_release(struct norm *o)
{
    mem_free(o->gamma);
    mem_free(o->beta);
    *o = (struct norm){0};
}

void norm_run(const struct norm *o, uint32_t rows, const float *x, size_t ldx, float *y, size_t ldy)
{
    o->kernels->norm(rows, o->n, x, ldx, o->gamma, o->beta, o->eps, y, ldy);
}
