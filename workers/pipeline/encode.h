/* From an embedding to the bytes of its row. They depend on the record and the job alone. */
#ifndef EBB_WORKERS_ENCODE_H
#define EBB_WORKERS_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "workers/pipeline/held.h"
#include "workers/pipeline/job.h"

/* Fills the item's row (and aux, for .npy). 1: done; 0: the embedding holds a number that is not finite; -1: memory is out. `scratch` is the
   thread's own.
     JSONL  {"id":17,"stars":5,"embedding":[0.1,...]}\n, or "embedding":"<base64 of little-endian f32>"
     npy    the floats, little-endian; aux: 17\n, or {"id":17,"stars":5}\n where fields are passed through
   A record without an id has "source":"...","offset":N in its place. */
int encode_item(const struct job *j, struct item *i, const float *embedding, uint32_t dims, struct buf *scratch);

#endif
