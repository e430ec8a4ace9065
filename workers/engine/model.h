/* A model as the pipeline sees it: read-only weights shared by all lanes, and a context (the memory) for each lane.
   The way in: model_open -> model_ctx_new per lane -> model_run per micro-batch. */
#ifndef EBB_ENGINE_MODEL_H
#define EBB_ENGINE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "storage/modeldir.h"

struct model;
struct model_ctx;

struct model_opts {
    const char *isa;       /* NULL or "auto": the best this processor has; "avx512", "avx2", "generic" for tests */
    const char *precision; /* NULL, "auto" or "f32"; others are refused by this version */
    int reference;         /* 1: naive kernels only */
};

struct model_info {
    char name[256];         /* last component of the directory */
    char architecture[64];  /* "bert" */
    char precision[16];     /* resolved: "f32" */
    char isa[16];           /* resolved */
    char numerics[64];      /* numerics id: kernel-set version + numeric class, "ebb1-x86-f32" */
    char pooling[16];       /* "mean", "cls", "max", "none" */
    int normalize;          /* 1: each embedding is scaled to length 1 */
    uint64_t parameters;    /* count */
    uint64_t weight_bytes;  /* in memory, as packed */
    uint32_t layers, hidden, heads, ffn, vocab;
    uint32_t max_tokens;    /* special tokens included: what the model (or sentence_bert_config.json) allows */
    uint32_t dims;          /* floats in one embedding */
    struct model_digest digest;
};

/* Reads a Hugging Face directory: config.json, model.safetensors (f32, f16 or bf16), modules.json with its pooling and
   normalisation where there (mean pooling without normalisation where not). Missing or truncated files, unknown architectures,
   wrong shapes or types, NaN or infinite weights are refused, naming file and tensor. On failure *out is untouched. */
MUST_USE enum status model_open(const char *dir, const struct model_opts *o, struct model **out, struct err *e);
void model_free(struct model *m);
const struct model_info *model_info(const struct model *m);
/* Reads only headers and digests: for `ebb check` and `ebb model inspect` of large models, and the daemon's fingerprint. */
MUST_USE enum status model_probe(const char *dir, struct model_info *info, struct err *e);

/* Memory for micro-batches of at most max_tokens tokens in all and max_seqs sequences. One per lane, used by one thread at a
   time; model_run allocates nothing. A single sequence longer than max_tokens is the caller's fault (BUG). */
MUST_USE enum status model_ctx_new(const struct model *m, uint32_t max_tokens, uint32_t max_seqs, struct model_ctx **out,
                                   struct err *e);
void model_ctx_free(struct model_ctx *c);
size_t model_ctx_bytes(const struct model *m, uint32_t max_tokens, uint32_t max_seqs); /* what model_ctx_new would take */

/* Runs n_seqs packed sequences: ids holds them back to back, lengths[i] >= 1 tokens each, without padding.
   out gets n_seqs x dims floats, row-major. Each row has the bits that the sequence would have alone ("same bytes, always").
   Never fails: memory was planned by model_ctx_new, ids outside the vocabulary are a BUG (the tokenizer is checked at load). */
void model_run(const struct model *m, struct model_ctx *c, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
               float *out);

#endif
