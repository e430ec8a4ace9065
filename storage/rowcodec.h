/* The bytes of rows: docs/disk-format.md. Only rows.c includes this. */
#ifndef EBB_STORAGE_ROWCODEC_H
#define EBB_STORAGE_ROWCODEC_H

#include "base/buf.h"
#include "storage/key.h"
#include "storage/rows.h"
#include "storage/store.h"

#define ROW_VERSION 1     /* of most rows */
#define ROW_VERSION_JOB 3 /* 2: guaranteed share and deadline; 3: stages */

struct event_row {
    int64_t wall_ms;
    char text[512];
};

/* Tells the fields of one kind of row, in order, to be written or to be read. */
struct codec;
typedef void rowcodec_fn(struct codec *c, void *row);
rowcodec_fn rowcodec_job, rowcodec_span, rowcodec_extent, rowcodec_event, rowcodec_number;

/* Never fails by itself: memory that is out is told by store_write. */
void rowcodec_put(struct store_batch *b, enum store_cf cf, const struct key *k, rowcodec_fn *fields, const void *row, size_t size);
MUST_USE enum status rowcodec_get(enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len, rowcodec_fn *fields, void *row,
                                  struct err *e);
/* Of a value that is no row of fields: reads the version; the payload is what *in has left. */
MUST_USE enum status rowcodec_open(struct cursor *in, enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len,
                                   struct err *e);
enum status rowcodec_corrupt(struct err *e, enum store_cf cf, const void *key, size_t key_len, const char *what);

#endif
