/* The bytes of a source after decompression, as they come: plain, gzip (any number of members) or zstd (any number of frames,
   skippable ones too). Memory is bounded by the format's window, whatever the source's size. */
#ifndef EBB_STORAGE_INFLATE_H
#define EBB_STORAGE_INFLATE_H

#include "storage/source.h"

enum inflate_fault { INFLATE_SOUND, INFLATE_TRUNCATED, INFLATE_DAMAGED };

struct inflate;

/* `from` counts bytes at rest and is 0 for compressed sources. `s` stays the caller's and outlives this. */
MUST_USE enum status inflate_open(const struct source *s, uint64_t from, struct inflate **out, struct err *e);
void inflate_close(struct inflate *z);
/* *got is less than `want` at the end, before a fault in the stream, and before a failed read, which the next call tells; everything that
   could be decompressed before comes first.
   After ST_ENV the call can be made again: nothing is lost. After ST_NOMEM only closing helps. */
MUST_USE enum status inflate_read(struct inflate *z, void *data, size_t want, size_t *got, struct err *e);
int inflate_ended(const struct inflate *z);
enum inflate_fault inflate_fault(const struct inflate *z, const char **words); /* words: what is wrong, where */
uint64_t inflate_consumed(const struct inflate *z);                            /* bytes at rest */

#endif
