/* Where rows are kept: ordered bytes in column families, written in batches of all or nothing. Two implementations: RocksDB, and
   memory for tests (with faults). Thread use: any thread may read; one thread writes at a time. */
#ifndef EBB_STORAGE_STORE_H
#define EBB_STORAGE_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

#define STORE_CF_MAP(X)                                                                                                          \
    X(META, "meta")                                                                                                              \
    X(JOBS, "jobs")                                                                                                              \
    X(SOURCES, "sources")                                                                                                        \
    X(SPANS, "spans")                                                                                                            \
    X(EXTENTS, "extents")                                                                                                        \
    X(EVENTS, "events")
enum store_cf {
#define X(name, word) STORE_##name,
    STORE_CF_MAP(X)
#undef X
    STORE_CF_COUNT
};

struct store;
struct store_batch;
struct store_iter;

/* Opens or makes the database in `dir`. ST_USER: a newer format than this program knows (says both); upgrades older ones.
   ST_ENV: locked by another process, unreadable, no space. */
MUST_USE enum status store_open(const char *dir, struct store **out, struct err *e);
MUST_USE enum status store_mem_new(struct store **out, struct err *e);
/* Memory twin only: the nth write from now fails (1 is the next) with ST_ENV; crash drops every write since the last synced one, and
   stands for closing and opening anew: after a failed write the twin, like the other, takes no more until then. */
void store_mem_fail_write(struct store *s, uint64_t nth);
void store_mem_crash(struct store *s);
void store_close(struct store *s); /* everything written is flushed */

MUST_USE enum status store_batch_new(struct store *s, struct store_batch **out, struct err *e);
void store_batch_free(struct store_batch *b);
void store_batch_clear(struct store_batch *b);
size_t store_batch_count(const struct store_batch *b);
/* Appending can only fail for memory; the failure is kept and reported by store_write. */
void store_put(struct store_batch *b, enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len);
void store_del(struct store_batch *b, enum store_cf cf, const void *key, size_t key_len);
void store_del_range(struct store_batch *b, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len);
/* All or nothing; with sync it has reached the disk when this returns. After ST_ENV nothing of it may be assumed, and the store must
   be closed and opened anew. */
MUST_USE enum status store_write(struct store *s, struct store_batch *b, int sync, struct err *e);

MUST_USE enum status store_get(struct store *s, enum store_cf cf, const void *key, size_t key_len, struct buf *value, struct err *e); /* NOT_FOUND */
/* Visits keys in [from, to), ascending (to_len 0: to the end of the family). A snapshot: later writes do not show. */
MUST_USE enum status store_iter_open(struct store *s, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len,
                                     struct store_iter **out, struct err *e);
/* ST_OK and the next pair (owned by the iterator until the next call), or ST_END. */
MUST_USE enum status store_iter_next(struct store_iter *i, const void **key, size_t *key_len, const void **value, size_t *value_len,
                                     struct err *e);
void store_iter_close(struct store_iter *i);
/* Copies the database into a new folder while it is in use. */
MUST_USE enum status store_checkpoint(struct store *s, const char *dir, struct err *e);

#endif
