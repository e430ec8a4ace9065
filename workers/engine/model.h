/* A model as the pipeline sees it: read-only weights shared by all lanes, and a context (the memory) for each lane.
   The way in: model_open -> model_ctx_new per lane -> model_infer per micro-batch. */
#ifndef EBB_ENGINE_MODEL_H
#define EBB_ENGINE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "storage/modeldir.h"
#include "workers/engine/cut.h"
#include "workers/engine/graphmodel.h"
#include "workers/engine/task.h"

struct model;
struct model_ctx;

struct model_opts {
    const char *isa;       /* NULL or "auto": the best this processor has; "avx512", "avx2", "generic" for tests */
    const char *precision; /* "f32", "bf16", "int8"; NULL or "auto": f32 */
    const char *task;      /* "embed", "classify", "token-classify", "fill-mask"; NULL or "auto": what the directory was made for */
    uint32_t top_k;        /* fill-mask: tokens for each mask; 0: 5 */
    int reference;         /* 1: naive kernels only */
    const char *pack_dir;  /* where packed weights are kept (packfile.h); NULL: nowhere */
    uint64_t pack_bytes;   /* most of them; 0: PACKFILE_MOST_BYTES */
    uint32_t lanes;        /* contexts that will run at once: they share what memory there is; 0: one for each processor */
    int part;              /* 1: only the segments [first, end) of model_probe_cut's list are opened: a stage. first == end: only what model_info says */
    uint32_t first, end;
    uint64_t memory_bytes; /* that this process may take: the layers of a model that would take more, contexts of `lanes` included, are held by turns, a window of
                              them, which needs pack_dir; 0: no limit */
    uint64_t other_bytes;  /* of these, what is not the model's */
};

struct model_info {
    char name[256];         /* last component of the directory */
    char architecture[64];  /* the family: "bert" */
    enum task kind;         /* what it gives, and the word for it, as in model_opts */
    char task[16];
    char precision[16];     /* resolved: "f32" */
    char precision_why[120];
    char isa[16];           /* resolved */
    char numerics[64];      /* numerics id: kernel-set version + numeric class, "ebb1-x86-f32", "ebb1-x86-bf16-dp" */
    char pooling[64];       /* embed: "mean", "cls+mean"; else "" */
    int normalize;          /* embed: 1: each embedding is scaled to length 1 */
    char scoring[16];       /* classify, token-classify: "softmax", "sigmoid", "raw"; else "" */
    char mask_token[32];    /* fill-mask: as the tokenizer spells it; else "" */
    uint32_t labels;        /* classify, token-classify; else 0 */
    char label_names[256];  /* the first of them: "NEGATIVE, POSITIVE" */
    char ops[160];          /* "1 embed, 24 linear, 6 attention, 13 norm, 1 pool" */
    uint64_t parameters;    /* count */
    uint64_t weight_bytes;  /* in memory, as packed; of a part: of its segments */
    uint64_t shared_bytes;  /* of these: in a file's pages, shared with other workers */
    uint32_t window;        /* layers that are in memory at once, where they are held by turns; 0: all of it is */
    uint64_t window_bytes;  /* most that they take */
    uint32_t batch_tokens, batch_records; /* what a lane's micro-batches should have then, so that computing hides reading; 0: anything */
    uint32_t layers, hidden, heads, ffn, vocab;
    uint32_t token_types;   /* 0 or 1: it does not tell the texts of a pair apart by types */
    uint32_t max_tokens;    /* special tokens included: what the model (or sentence_bert_config.json) allows */
    uint32_t dims;          /* numbers in one row of the first output: floats of an embedding, labels, or tokens for a mask */
    char inputs[256], outputs[256]; /* of a model of arrays: "pixel_values float32[3, 224, 224]" */
    int arrays;             /* 1: takes arrays (model_infer_arrays), not texts: there is no tokenizer */
    int per_token;          /* 1: an item has as many rows as tokens or masks; else one */
    struct model_digest digest;
};

/* Reads a Hugging Face directory: config.json, model.safetensors (f32, f16 or bf16), modules.json with what it names where there (mean
   pooling without normalisation where not). Missing or truncated files, unknown architectures,
   wrong shapes or types, NaN or infinite weights are refused, naming file and tensor. On failure *out is untouched. */
MUST_USE enum status model_open(const char *dir, const struct model_opts *o, struct model **out, struct err *e);
void model_free(struct model *m);
const struct model_info *model_info(const struct model *m);
/* Reads only headers and digests: for `ebb check` and `ebb model inspect` of large models, and the daemon's fingerprint. */
MUST_USE enum status model_probe(const char *dir, const struct model_opts *o, struct model_info *info, struct err *e);
/* The same, and where the model can be cut (cut.h): for one text of cut->tokens tokens, or a record whose open sizes are cut->tokens. cut_release. */
MUST_USE enum status model_probe_cut(const char *dir, const struct model_opts *o, struct model_info *info, struct cut *cut, struct err *e);
/* Floating point operations of these items: products of matrices alone, two for each multiply-add. */
double model_flops(const struct model *m, size_t n, const uint32_t *lengths);
const char *model_label(const struct model *m, uint32_t i); /* i < info->labels */
/* fill-mask: which token stands for the mask; before the first run. The tokenizer knows it. */
void model_set_mask(struct model *m, int32_t id);

/* Memory for micro-batches of at most max_tokens tokens in all and max_seqs sequences. One per lane, used by one thread at a
   time; model_run allocates nothing. A single sequence longer than max_tokens is the caller's fault (BUG). */
MUST_USE enum status model_ctx_new(const struct model *m, uint32_t max_tokens, uint32_t max_seqs, struct model_ctx **out,
                                   struct err *e);
void model_ctx_free(struct model_ctx *c);
size_t model_ctx_bytes(const struct model *m, uint32_t max_tokens, uint32_t max_seqs); /* what model_ctx_new would take */

/* Items back to back, without padding. */
struct model_batch {
    uint32_t n;              /* items */
    const uint32_t *lengths; /* of each, >= 1 */
    const int32_t *ids;
    const uint8_t *types;    /* token types; NULL: all 0 */
};

struct model_tensor {        /* one output of a micro-batch; exactly one of f32 and i32 is there */
    const char *name;
    uint32_t width;          /* numbers in a row */
    const uint32_t *rows;    /* of each item, which follow each other; NULL: one each */
    const float *f32;
    const int32_t *i32;
};

enum { MODEL_OUTPUTS_MAX = 16 };

struct model_result { /* the context's, until its next run */
    uint32_t count;
    struct model_tensor tensor[MODEL_OUTPUTS_MAX];
    char *const *errors; /* of an ONNX model, of each item: NULL, or why it does not go through; its numbers are NaN then. NULL: nothing went wrong */
};

/* embed: "embedding"; classify and token-classify: "scores", a row for each item or token; fill-mask: "scores" and "tokens", a row of the
   best ones for each mask. Each row has the bits that it would have if the item were alone ("same bytes, always"). Never fails: memory was
   planned by model_ctx_new, ids outside the vocabulary are a BUG (the tokenizer is checked at load). Of an ONNX model: NULL when memory is out, and `errors` for
   items that do not go through it. */
const struct model_result *model_infer(const struct model *m, struct model_ctx *c, const struct model_batch *b);
/* The short way where one row comes out for each item: out gets n_seqs x dims floats. */
void model_run(const struct model *m, struct model_ctx *c, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
               float *out);

/* Stages (docs/pipelines.md). One micro-batch through the segments that were opened. `in` is what crossed the cut before them, as the stage there gave it; NULL where
   they are the model's first. *out, *out_len: what crosses the cut behind them, the context's until its next run; or *result, where they are the last. What comes
   out of a row of stages has the bits of model_infer. ST_CORRUPT: `in` is not of this micro-batch. ST_NOMEM. */
MUST_USE enum status model_stage(const struct model *m, struct model_ctx *c, const struct model_batch *b, const void *in, size_t in_len, const void **out,
                                 size_t *out_len, const struct model_result **result, struct err *e);

/* Models of arrays. What a record brings, and what it gets; names are the model's. */
const struct port *model_inputs(const struct model *m, uint32_t *count);
const struct port *model_outputs(const struct model *m, uint32_t *count);
/* Of record `record`: n_out arrays, which go when this returns; or error: it does not go through the model, in words. Called once for each record, in any
   order. classify: one array of scores; embed: one of floats; outputs: all as they are. */
typedef void model_take(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error);
/* n records; in[r] has an array for each input. Results are those that each would have alone. Only ST_NOMEM fails. */
MUST_USE enum status model_infer_arrays(const struct model *m, struct model_ctx *c, uint32_t n, const struct array *const *in, model_take *take, void *arg,
                                        struct err *e);
/* Stages of models of arrays: records, what crosses and results are bytes alike. model_arrays_pack makes what the first stage takes of the arrays of n records, as
   model_infer_arrays has them; model_stage_arrays takes that, or what the stage before gave, through the segments that were opened; what the last one gives is what
   model_arrays_take hands to `take`. Any part of the model can pack and take. *out is the context's until its next call. What comes out has the bits of
   model_infer_arrays. ST_CORRUPT: `in` is not of this model, cut or number of records. ST_NOMEM. */
MUST_USE enum status model_arrays_pack(const struct model *m, struct model_ctx *c, uint32_t n, const struct array *const *in, const void **out, size_t *out_len,
                                       struct err *e);
MUST_USE enum status model_stage_arrays(const struct model *m, struct model_ctx *c, uint32_t n, const void *in, size_t in_len, const void **out, size_t *out_len,
                                        struct err *e);
MUST_USE enum status model_arrays_take(const struct model *m, struct model_ctx *c, uint32_t n, const void *in, size_t in_len, model_take *take, void *arg, struct err *e);
/* Where the tokenizer and the other files of the model at `path` lie: the directory itself, or the folder of an ONNX file. mem_free(*out). */
MUST_USE enum status model_folder(const char *path, char **out, struct err *e);

#endif
