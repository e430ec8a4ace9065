#include "workers/engine/ops/pool.h"

#include <string.h>

/* The mean with the weights 1, 2, 3 .. */
static void weighted(uint32_t len, uint32_t n, const float *x, size_t ldx, float *y)
{
    float sum = 0;
    memset(y, 0, n * sizeof *y);
    for (uint32_t i = 0; i < len; i++, x += ldx) {
        float w = (float)(i + 1);
        sum += w;
        for (uint32_t j = 0; j < n; j++)
            y[j] += x[j] * w;
    }
    for (uint32_t j = 0; j < n; j++)
        y[j] /= sum;
}

void pool_run(const struct pool *o, uint32_t n_seqs, const uint32_t *lengths, const float *x, size_t ldx, float *y, size_t ldy)
{
    for (uint32_t s = 0; s < n_seqs; x += lengths[s] * ldx, y += ldy, s++) {
        if (o->how == POOL_LAST)
            memcpy(y, x + (lengths[s] - 1) * ldx, o->n * sizeof *y);
        else if (o->how == POOL_WEIGHTED)
            weighted(lengths[s], o->n, x, ldx, y);
        else
            o->kernels->pool(o->how, lengths[s], o->n, x, ldx, y);
    }
}
