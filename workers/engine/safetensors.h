/* The tensors of a model directory: model.safetensors, or the shards that model.safetensors.index.json names. Headers are read and
   checked when it is opened; data is read when asked for. The format is the one that Hugging Face documents under this name. */
#ifndef EBB_ENGINE_SAFETENSORS_H
#define EBB_ENGINE_SAFETENSORS_H

#include <stdint.h>

#include "base/status.h"

enum { TENSOR_MAX_RANK = 8 };

struct tensor {
    const char *name, *dtype;
    uint32_t rank;
    uint64_t dim[TENSOR_MAX_RANK];
    uint64_t count;      /* of elements */
    uint32_t file;       /* for weights_file */
    uint64_t begin, end; /* bytes, from the start of the file */
};

struct weights;

/* Every offset of every tensor lies within its file, fits shape and dtype, and overlaps no other, or this fails naming file and
   tensor (ST_USER). On failure *out is untouched. */
MUST_USE enum status weights_open(const char *dir, struct weights **out, struct err *e);
void weights_free(struct weights *w);
const struct tensor *weights_find(const struct weights *w, const char *name); /* NULL when there is none */
const char *weights_file(const struct weights *w, uint32_t file);             /* path, for messages */
const char *weights_main_file(const struct weights *w);                       /* of model.safetensors or the index */
/* As f32: from F32, F16 or BF16; other types, NaN and infinities are ST_USER. out has room for t->count. */
MUST_USE enum status weights_read(const struct weights *w, const struct tensor *t, float *out, struct err *e);
/* The same of `count` elements from `first` on, row by row. */
MUST_USE enum status weights_read_some(const struct weights *w, const struct tensor *t, uint64_t first, uint64_t count, float *out, struct err *e);

#endif
