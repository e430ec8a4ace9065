/* From what the model gave for a record to the bytes of its row. They depend on the record and the job alone. */
#ifndef EBB_WORKERS_ENCODE_H
#define EBB_WORKERS_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "workers/pipeline/held.h"
#include "workers/pipeline/job.h"
#include "workers/pipeline/models.h"

/* Of one record: rows of the model's first output, and of its second where there is one. */
struct outcome {
    enum task task;
    const struct loaded *loaded; /* labels, tokens; embed needs none */
    uint32_t rows, width;
    const float *f32;
    const int32_t *i32; /* fill-mask: tokens */
    const struct array *arrays; /* outputs: all of them, as model_outputs names them */
    uint32_t n_arrays;
};

/* Fills the item's row (and aux, for .npy). 1: done; 0: a number is not finite; -1: memory is out. `scratch` is the thread's own.
     JSONL  {"id":17,"stars":5,"embedding":[0.1,...]}\n, or "embedding":"<base64 of little-endian f32>"
            {"id":17,"label":"good","score":0.9,"scores":{"bad":0.1,"good":0.9}}; of a model with one label {"id":17,"score":0.9}
            {"id":17,"tokens":[{"label":"B-PER","score":0.9,"start":0,"end":4},...]}: bytes of the text; special tokens are left out
            {"id":17,"outputs":{"boxes":[[0.1,...],...],"count":3}}: nested arrays
            {"id":17,"masks":[[{"token":"paris","id":3000,"score":0.9},...],...]}
     npy    the floats, little-endian; aux: 17\n, or {"id":17,"stars":5}\n where fields are passed through
   A record without an id has "source":"...","offset":N in its place. */
int encode_item(const struct job *j, struct item *i, const struct outcome *o, struct buf *scratch);

/* The parts of that, for a job of several steps, whose records are many things before they are a row.
   What the model gave as members that stand behind others: `,"label":"good",...`. Returns as encode_item. spans: token-classify. */
int encode_result(const struct job *j, const struct tok_span *spans, const struct outcome *o, struct buf *out);
/* The member that names a record: its id, else its source and offset. */
int encode_name(const struct item *i, struct buf *out);
/* Floats as bytes, little-endian. */
void encode_floats(const float *x, uint32_t n, uint8_t *out);

#endif
