#include "workers/engine/ops/pool.h"

void pool_run(const struct pool *o, uint32_t n_seqs, const uint32_t *lengths, const float *x, size_t ldx, float *y)
{
    for (uint32_t s = 0; s < n_seqs; x += lengths[s] * ldx, y += o->n, s++) {
        o->kernels->pool(o->how, lengths[s], o->n, x, ldx, y);
        if (o->normalize)
            o->kernels->unit(o->n, y);
    }
}
