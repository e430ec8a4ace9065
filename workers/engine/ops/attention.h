/* Attention over packed sequences: each token sees its own sequence, whole, and nothing else. */
#ifndef EBB_ENGINE_OPS_ATTENTION_H
#define EBB_ENGINE_OPS_ATTENTION_H

#include "workers/engine/cpu/kernels.h"

struct attention {
    const struct kernels *kernels;
    uint32_t heads, dim; /* of one head */
    enum precision precision; /* f32 after attention_init */
    float scale;
};

void attention_init(struct attention *a, const struct kernels *kernels, uint32_t hidden, uint32_t heads);
size_t attention_bytes(const struct attention *a, uint32_t max_len); /* of scratch, 64-byte aligned */
/* qkv: rows of queries, keys and values side by side, each heads * dim wide; y: rows of heads * dim. */
void attention_run(const struct attention *a, uint32_t n_seqs, const uint32_t *lengths, const float *qkv, size_t ld, float *y,
                   size_t ldy, float *scratch);

#endif
