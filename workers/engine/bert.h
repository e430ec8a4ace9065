/* A BERT encoder as a run of ops over packed tokens. Read-only once it is loaded; bert_work is the memory of one thread. */
#ifndef EBB_ENGINE_BERT_H
#define EBB_ENGINE_BERT_H

#include "base/status.h"
#include "workers/engine/config.h"
#include "workers/engine/cpu/kernels.h"
#include "workers/engine/safetensors.h"

struct bert;

/* Every tensor that the model needs is there with the shape that c asks for, or ST_USER naming file and tensor. Reads no data. */
MUST_USE enum status bert_check(const struct weights *w, const struct model_config *c, struct err *e);
uint64_t bert_parameters(const struct model_config *c);
uint64_t bert_weight_bytes(const struct model_config *c, const struct kernels *k);

/* Checks, reads and packs. On failure *out is untouched. */
MUST_USE enum status bert_load(const struct weights *w, const struct model_config *c, const struct kernels *k, struct bert **out,
                               struct err *e);
void bert_free(struct bert *b);

struct bert_work { /* parts of one allocation */
    float *x, *t, *wide, *scratch;
    size_t ld, ld_wide; /* floats between rows of x and t, of wide */
};
size_t bert_work_bytes(const struct bert *b, uint32_t max_tokens);
/* memory is 64-byte aligned and has bert_work_bytes. */
void bert_work_init(struct bert_work *work, const struct bert *b, uint32_t max_tokens, void *memory);
void bert_run(const struct bert *b, const struct bert_work *work, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
              float *out);

#endif
