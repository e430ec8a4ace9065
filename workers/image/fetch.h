/* From what a record says of its picture to the picture's bytes: a path, or the bytes themselves in base64.

   A text that begins as the base64 of a JPEG, PNG or WebP begins ("/9j/", "iVBORw0KGgo", "UklGR") and holds nothing else, or a data URI
   ("data:image/png;base64,..."), is base64. Everything else is a path, relative to the folder of the file that the record stands in. It must not
   lead out of that folder, by "..", by an absolute name or by a link: data from elsewhere name no files of this machine. */
#ifndef EBB_IMAGE_FETCH_H
#define EBB_IMAGE_FETCH_H

#include "base/buf.h"

#include "base/status.h"

struct source;

/* folder: absolute. s: the source that the record stands in, whose `via` says how files are read; NULL: as files of this machine. `out` is replaced.
   ST_USER: of this record (no such file, leads out, larger than max_bytes, no base64 behind a data URI); ST_ENV: reading failed, another time it may not;
   ST_NOMEM. */
MUST_USE enum status image_fetch(const char *folder, const struct source *s, const char *text, size_t len, uint64_t max_bytes, struct buf *out, struct err *e);
/* Only what needs no file: ST_END when the text is a path. */
MUST_USE enum status image_inline(const char *text, size_t len, uint64_t max_bytes, struct buf *out, struct err *e);

#endif
