#include "workers/engine/ops/attention.h"

void attention_init(struct attention *a, const struct kernels *kernels, uint32_t hidden, uint32_t heads)
{
    uint32_t dim = hidden / heads;
    *a = (struct attention){.kernels = kernels, .heads = heads, .dim = dim, .scale = 1 / __builtin_sqrtf((float)dim)};
}

size_t attention_bytes(const struct attention *a, uint32_t max_len)
{
    return sizeof(float) * attention_scratch(a->kernels, max_len, a->dim);
}

void attention_run(const struct attention *a, uint32_t n_seqs, const uint32_t *lengths, const float *qkv, size_t ld, float *y,
                   size_t ldy, float *scratch)
{
    size_t hidden = (size_t)a->heads * a->dim;
    for (uint32_t s = 0; s < n_seqs; qkv += lengths[s] * ld, y += lengths[s] * ldy, s++)
        for (uint32_t h = 0; h < a->heads; h++) {
            const float *q = qkv + (size_t)h * a->dim;
            a->kernels->attention(&(struct attention_args){
                .len = lengths[s],
                .dim = a->dim,
                .q = q,
                .k = q + hidden,
                .v = q + 2 * hidden,
                .ld = ld,
                .scale = a->scale,
                .precision = a->precision,
                .out = y + (size_t)h * a->dim,
                .ldo = ldy,
                .scratch = scratch,
            });
        }
}
