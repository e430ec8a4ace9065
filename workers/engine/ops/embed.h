/* Tokens to vectors: the token's row, plus the first type's, plus the position's, counted from each sequence's start. */
#ifndef EBB_ENGINE_OPS_EMBED_H
#define EBB_ENGINE_OPS_EMBED_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct embed {
    const struct kernels *kernels;
    uint32_t vocab, positions, n;
    float *word, *position, *type; /* filled by the loader; all tokens are of type 0, so only its row is kept */
};

size_t embed_bytes(uint32_t vocab, uint32_t positions, uint32_t n);
MUST_USE enum status embed_init(struct embed *o, const struct kernels *kernels, uint32_t vocab, uint32_t positions, uint32_t n,
                                struct err *e);
void embed_release(struct embed *o);
/* An id outside the vocabulary, or a sequence with more tokens than positions, is a BUG. */
void embed_run(const struct embed *o, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids, float *y, size_t ldy);

#endif
