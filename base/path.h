/* Paths, and small files written so that a crash leaves the old one or the new one. */
#ifndef EBB_BASE_PATH_H
#define EBB_BASE_PATH_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* The caller frees with mem_free; NULL when memory is out. */
char *path_join(const char *dir, const char *name);
/* Absolute, without "." and doubled slashes, ".." resolved by words; links are left alone; the path need not exist. A trailing '/' is dropped. */
char *path_absolute(const char *path);
const char *path_base(const char *path);   /* behind the last '/' */
MUST_USE enum status path_make_dirs(const char *path, unsigned mode, struct err *e); /* durable: each new folder's parent is synced */
MUST_USE enum status path_sync_dir(const char *dir, struct err *e);
MUST_USE enum status path_sync_parent(const char *path, struct err *e);
MUST_USE enum status path_read(const char *path, size_t limit, struct buf *out, struct err *e); /* NOT_FOUND; larger than limit: USER */
/* Temporary name, data synced, renamed, folder synced. */
MUST_USE enum status path_write(const char *path, const void *data, size_t len, struct err *e);
MUST_USE enum status path_write_private(const char *path, const void *data, size_t len, struct err *e); /* the same with mode 0600 */
int path_exists(const char *path);
MUST_USE enum status path_remove_tree(const char *path, struct err *e);              /* fine when there is none; follows no links */
MUST_USE enum status path_free_bytes(const char *path, uint64_t *bytes, struct err *e); /* of the file system that holds it (or its nearest
                                                                                          folder that exists) */

#endif
