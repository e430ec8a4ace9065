/* Tensors that a record brings itself: numbers in nested JSON arrays, or the bytes of a .npy array, become elements of the type that a model's
   input has. Anybody's bytes may be given; what is wrong is an error of the record, in words that say where.

   Numbers become floats by rounding to nearest (a JSON number to double first, as Python does). An integer input takes whole numbers within its
   range only; a boolean takes true and false, or 0 and 1. Nothing is cut off silently: a float that is too large for its type, a fraction
   for an integer, are errors. */
#ifndef EBB_TENSOR_IN_H
#define EBB_TENSOR_IN_H

#include "base/status.h"
#include "storage/npy.h"
#include "workers/engine/graph/tensor.h"

struct tensor_want {
    const char *name;    /* of the model's input, for messages */
    enum dtype dtype;    /* not STR */
    uint32_t rank;
    const int64_t *dims; /* -1: any size */
};

/* Reused from record to record: a zeroed struct is an empty one. */
struct tensor_in {
    enum dtype dtype;
    uint32_t rank;
    int64_t dims[RANK_MAX];
    uint64_t count;
    void *data;          /* row-major */
    size_t cap;
};
void tensor_in_release(struct tensor_in *t);

/* json: one value, an array nested `rank` deep (a number when rank is 0), all rows of one length. ST_USER, ST_NOMEM; on failure *out holds no
   tensor. */
MUST_USE enum status tensor_in_json(const struct tensor_want *w, const char *json, size_t len, struct tensor_in *out, struct err *e);
/* data: elements as they lie behind the header `n` (all of them, or, with `row`, one index of its first axis: the shape then lacks that axis). */
MUST_USE enum status tensor_in_npy(const struct tensor_want *w, const struct npy *n, int row, const void *data, size_t len,
                                   struct tensor_in *out, struct err *e);

#endif
