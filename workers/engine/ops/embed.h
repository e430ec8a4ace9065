/* Tokens to vectors: the token's row, plus its type's, plus its position's, counted from each sequence's start. */
#ifndef EBB_ENGINE_OPS_EMBED_H
#define EBB_ENGINE_OPS_EMBED_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct embed {
    const struct kernels *kernels;
    uint32_t vocab, positions, types, n; /* at least one type; positions 0: tokens have none, and may be any number */
    const float *word, *position, *type; /* of the loader */
    float *own[3];                       /* what of these is freed with it */
    int after_padding; /* 1: positions begin behind padding_id's; a token that is padding has that one and is not counted */
    int32_t padding_id;
};

size_t embed_bytes(uint32_t vocab, uint32_t positions, uint32_t types, uint32_t n);
void embed_release(struct embed *o); /* with what is its own */
/* token_types NULL: all are of type 0. An id outside the vocabulary, a type beyond the last, or a sequence with more tokens than
   positions is a BUG. */
void embed_run(const struct embed *o, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids, const uint8_t *token_types, float *y,
               size_t ldy);

#endif
