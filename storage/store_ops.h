/* Inside the store: what an implementation gives, and what both share. Nobody outside storage/store*.c and rows.c includes this. */
#ifndef EBB_STORAGE_STORE_OPS_H
#define EBB_STORAGE_STORE_OPS_H

#include "storage/store.h"

#define STORE_FORMAT 1 /* what this program writes; see store_upgrade */

enum store_op { STORE_OP_PUT, STORE_OP_DEL, STORE_OP_DEL_RANGE };

/* One operation of a batch. DEL_RANGE: [key, value). */
struct store_change {
    enum store_op op;
    enum store_cf cf;
    const void *key, *value;
    size_t key_len, value_len;
};

/* The operations of a batch in order; *at is 0 at first. 0 when there are no more. */
int store_batch_next(const struct store_batch *b, size_t *at, struct store_change *out);
/* Memory was out while a row was made: store_write will say so. */
void store_batch_fail(struct store_batch *b);

struct store_ops {
    void (*close)(struct store *s);
    enum status (*write)(struct store *s, const struct store_batch *b, int sync, struct err *e);
    enum status (*get)(struct store *s, enum store_cf cf, const void *key, size_t key_len, struct buf *value, struct err *e);
    enum status (*iter_open)(struct store *s, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len,
                             struct store_iter **out, struct err *e);
    enum status (*iter_next)(struct store_iter *i, const void **key, size_t *key_len, const void **value, size_t *value_len, struct err *e);
    void (*iter_close)(struct store_iter *i);
    enum status (*checkpoint)(struct store *s, const char *dir, struct err *e);
};

/* First member of each implementation's own struct. */
struct store {
    const struct store_ops *ops;
    int broken; /* a write failed: what is on disk is unknown until the store is opened anew */
};
struct store_iter {
    const struct store_ops *ops;
};

const char *store_cf_name(enum store_cf cf);

/* Brings the rows from format v to v + 1, as entries of b. */
typedef enum status store_upgrade_fn(struct store *s, struct store_batch *b, struct err *e);
/* Reads the format's number from meta, writes it into a new store, refuses a newer one and upgrades older ones step by step, each
   in one synced batch with its new number. steps[v] upgrades from v; steps[0] is unused. `where` is for messages. */
MUST_USE enum status store_upgrade(struct store *s, const char *where, store_upgrade_fn *const *steps, uint32_t newest, struct err *e);
extern store_upgrade_fn *const store_upgrade_steps[STORE_FORMAT];

#endif
