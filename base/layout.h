/* The line on which all sources of a dataset lie end to end, so that a place in the dataset is one number, a *position*.

   Source i owns the positions [base[i], base[i+1]); the place `offset` of source i is base[i] + offset. A plain source owns as
   many positions as it has bytes. A *stream* (gzip, zstd, CSV with quoted newlines) cannot be entered anywhere: its offsets
   count its bytes after decompression, of which nobody knows the number beforehand, so a compressed one owns size_bytes <<
   LAYOUT_STREAM_SHIFT positions (+ some) and the part behind its end holds nothing. A span may begin inside a stream only where
   a record is known to begin: at its first byte, or where a commit or a cut ended. */
#ifndef EBB_BASE_LAYOUT_H
#define EBB_BASE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

struct span {
    uint64_t begin, end; /* positions, half open */
};

#define LAYOUT_STREAM_SHIFT 16

struct layout {
    size_t count;          /* sources */
    uint64_t *base;        /* count + 1 entries */
    uint64_t *physical;    /* count + 1 entries: bytes at rest before source i; NULL: the same as base */
    uint8_t *stream;       /* one bit a source; NULL: none is a stream */
};

/* Takes sizes in bytes at rest; kind[i]: 0 plain, 1 stream of known length (CSV), 2 compressed stream. 0, or -1 when memory is out
   or the dataset is larger than 2^62 positions. */
int layout_init(struct layout *l, size_t count, const uint64_t *sizes, const uint8_t *kinds);
void layout_release(struct layout *l);
int layout_copy(struct layout *to, const struct layout *from); /* 0 or -1 */

uint64_t layout_end(const struct layout *l);   /* one past the last position */
uint64_t layout_bytes(const struct layout *l); /* bytes at rest of the whole dataset */
/* The source that owns pos (sources of no bytes own nothing); count when pos is the end. */
size_t layout_source(const struct layout *l, uint64_t pos);
int layout_is_stream(const struct layout *l, size_t source);
/* Bytes at rest in [begin, end), a guess inside compressed streams (linear in the position up to a tenfold expansion). */
uint64_t layout_weight(const struct layout *l, uint64_t begin, uint64_t end);
/* Where a span that begins at `begin` and should weigh about `bytes` may end: anywhere in plain sources, at the end of the source
   in streams; never beyond `limit`, always beyond `begin`. */
uint64_t layout_advance(const struct layout *l, uint64_t begin, uint64_t bytes, uint64_t limit);
/* Whether a span may begin at pos without anybody having read up to there. */
int layout_enterable(const struct layout *l, uint64_t pos);

#endif
