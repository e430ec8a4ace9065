/* What stands on top of an encoder: from the tokens' vectors to embeddings, scores of labels, or tokens for a mask. Read-only once it is
   loaded; head_work is the memory of one thread. */
#ifndef EBB_ENGINE_HEAD_H
#define EBB_ENGINE_HEAD_H

#include "workers/engine/encoder.h"
#include "workers/engine/model.h"

struct head;

/* As encoder_load, behind it, but in f32 always: words are the vectors of the vocabulary where they are in memory already. dir: where Dense modules lie. */
MUST_USE enum status head_load(struct loading *l, const char *dir, const float *words, uint32_t top_k, struct head **out, struct err *e);
void head_free(struct head *h);

/* Where its weights lie that are in a file. */
uint32_t head_pieces(const struct head *h, struct window_piece *out, uint32_t most);

struct head_work {
    void *memory;
    uint32_t max_tokens, max_seqs;
    uint32_t *rows;
    struct model_result result;
};
/* Nothing is kept for a token but where the task is one of tokens. */
size_t head_work_bytes(const struct head *h, uint32_t max_tokens, uint32_t max_seqs);
void head_work_init(struct head_work *work, const struct head *h, uint32_t max_tokens, uint32_t max_seqs, void *memory);
/* x: the tokens' vectors, rows of ld. mask_id: the token that fill-mask looks for. */
const struct model_result *head_run(const struct head *h, struct head_work *work, uint32_t n_seqs, const uint32_t *lengths,
                                    const int32_t *ids, int32_t mask_id, const float *x, size_t ld);

#endif
