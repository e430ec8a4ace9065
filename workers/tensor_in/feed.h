/* From a record to the arrays that a model's named inputs are given.

   images           the file is the picture; the model has one input, of pictures
   JSON lines       a member for each input, under the input's name, holds nested arrays. A model of pictures takes instead the member `field` (by
                    default "image"): a path or base64 (workers/image/fetch.h). With one input, `field` may name the member that holds its array.
   arrays (.npy)    a row is what the model's only input is given
   CSV, TSV         a column for each input, under its name; or, for a model with one input of numbers, all columns in their order, but for the id and
                    those that are passed through */
#ifndef EBB_TENSOR_IN_FEED_H
#define EBB_TENSOR_IN_FEED_H

#include "storage/fixed.h"
#include "storage/record.h"
#include "workers/engine/graphmodel.h"
#include "workers/image/spec.h"

struct feed_opts {
    enum format format;
    const char *field;               /* NULL: by default */
    const char *id;                  /* CSV: with `keep`, columns that are no input; NULL: "id", "custom_id" */
    const char *const *keep;
    size_t keep_count;
    const struct image_spec *images; /* the model's preprocessor_config.json; NULL: it has none */
};

struct feed;         /* read-only once made */
struct feed_scratch; /* one per thread; memory that is used again for the next record */

/* Holds on to `in` and what `o` points to. ST_USER: records of this format cannot be what these inputs want; says why and what to do. */
MUST_USE enum status feed_new(const struct port *in, uint32_t n_in, const struct feed_opts *o, struct feed **out, struct err *e);
void feed_free(struct feed *f);
uint64_t feed_bytes(const struct feed *f);    /* that the arrays of a record take; of open sizes the least */
const char *feed_words(const struct feed *f); /* "the member 'image' -> 'pixel_values' [3, 224, 224]" */

MUST_USE enum status feed_scratch_new(const struct feed *f, struct feed_scratch **out, struct err *e);
void feed_scratch_free(struct feed_scratch *s);

struct feed_record {
    const char *data;              /* as it stands in the source: the line, the row, the file; sound (raw.error is NONE) */
    size_t len;
    const struct source *source;   /* paths are relative to its folder */
    const struct columns *columns; /* CSV and TSV */
    const struct npy *npy;         /* arrays */
};

/* *arrays gets n_in arrays with their elements behind them, in one block of *bytes bytes that mem_free frees. ST_USER: this record will not do, *what
   says in which way and e in words; ST_ENV: a picture could not be read now; ST_NOMEM. */
MUST_USE enum status feed_run(const struct feed *f, struct feed_scratch *s, const struct feed_record *r, struct array **arrays, size_t *bytes,
                              enum record_error *what, struct err *e);

#endif
