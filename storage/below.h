/* Files that data name: below one folder, and nowhere else. Names come from records, and records from anywhere: "..", absolute names and links that lead out of
   the folder are refused. */
#ifndef EBB_STORAGE_BELOW_H
#define EBB_STORAGE_BELOW_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* folder: absolute. path is changed; relative, or absolute below the folder. *fd: a regular file, for reading, of *size bytes; the caller closes it.
   ST_USER: no such file, leads out, no regular file, larger than max_bytes (0: any); ST_ENV: another time it may go well. */
MUST_USE enum status below_open(const char *folder, char *path, uint64_t max_bytes, int *fd, uint64_t *size, struct err *e);
/* All of it; `out` is replaced. */
MUST_USE enum status below_read(const char *folder, char *path, uint64_t max_bytes, struct buf *out, struct err *e);
/* ST_USER: it has more bytes than are allowed. */
MUST_USE enum status below_size(const char *path, uint64_t size, uint64_t max_bytes, struct err *e);

#endif
