/* What both implementations share: batches, the format's number, and the rule that a store whose write failed takes no more. */
#include "storage/store.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "storage/store_ops.h"

struct store_batch {
    struct buf ops; /* op, family, lengths of key and value as varints, key, value */
    size_t count;
    int failed;
};

const char *store_cf_name(enum store_cf cf)
{
    static const char *const names[] = {
#define X(name, word) [STORE_##name] = word,
        STORE_CF_MAP(X)
#undef X
    };
    return names[cf];
}

enum status store_batch_new(struct store *s, struct store_batch **out, struct err *e)
{
    (void)s;
    struct store_batch *b = mem_zalloc(sizeof *b);
    if (!b)
        return err_nomem(e, "a batch of rows");
    *out = b;
    return ST_OK;
}

void store_batch_free(struct store_batch *b)
{
    if (!b)
        return;
    buf_release(&b->ops);
    mem_free(b);
}

void store_batch_clear(struct store_batch *b)
{
    buf_clear(&b->ops);
    b->count = 0;
    b->failed = 0;
}

size_t store_batch_count(const struct store_batch *b)
{
    return b->count;
}

void store_batch_fail(struct store_batch *b)
{
    b->failed = 1;
}

static void add(struct store_batch *b, enum store_op op, enum store_cf cf, const void *key, size_t key_len, const void *value,
                size_t value_len)
{
    size_t before = b->ops.len;
    if (buf_char(&b->ops, (char)op) || buf_char(&b->ops, (char)cf) || buf_varint(&b->ops, key_len) || buf_varint(&b->ops, value_len) ||
        buf_add(&b->ops, key, key_len) || buf_add(&b->ops, value, value_len)) {
        b->ops.len = before;
        b->failed = 1;
        return;
    }
    b->count++;
}

void store_put(struct store_batch *b, enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len)
{
    add(b, STORE_OP_PUT, cf, key, key_len, value, value_len);
}

void store_del(struct store_batch *b, enum store_cf cf, const void *key, size_t key_len)
{
    add(b, STORE_OP_DEL, cf, key, key_len, NULL, 0);
}

void store_del_range(struct store_batch *b, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len)
{
    add(b, STORE_OP_DEL_RANGE, cf, from, from_len, to, to_len);
}

int store_batch_next(const struct store_batch *b, size_t *at, struct store_change *out)
{
    if (*at == b->ops.len)
        return 0;
    struct cursor c = cursor_make(b->ops.data + *at, b->ops.len - *at);
    out->op = (enum store_op)cursor_u8(&c);
    out->cf = (enum store_cf)cursor_u8(&c);
    out->key_len = (size_t)cursor_varint(&c);
    out->value_len = (size_t)cursor_varint(&c);
    out->key = cursor_bytes(&c, out->key_len);
    out->value = cursor_bytes(&c, out->value_len);
    BUG_IF(c.bad, "a batch that does not read back");
    *at = b->ops.len - cursor_left(&c);
    return 1;
}

enum status store_write(struct store *s, struct store_batch *b, int sync, struct err *e)
{
    if (b->failed)
        return err_nomem(e, "a batch of rows");
    if (s->broken)
        return err_set(e, ST_ENV, "the database failed before: it must be closed and opened anew");
    int errnum = fault_point("store.write");
    enum status st = errnum ? err_errno(e, ST_ENV, errnum, "cannot write to the database") : s->ops->write(s, b, sync, e);
    if (st != ST_OK && st != ST_NOMEM)
        s->broken = 1;
    return st;
}

enum status store_get(struct store *s, enum store_cf cf, const void *key, size_t key_len, struct buf *value, struct err *e)
{
    return s->ops->get(s, cf, key, key_len, value, e);
}

enum status store_iter_open(struct store *s, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len,
                            struct store_iter **out, struct err *e)
{
    return s->ops->iter_open(s, cf, from, from_len, to, to_len, out, e);
}

enum status store_iter_next(struct store_iter *i, const void **key, size_t *key_len, const void **value, size_t *value_len,
                            struct err *e)
{
    return i->ops->iter_next(i, key, key_len, value, value_len, e);
}

void store_iter_close(struct store_iter *i)
{
    if (i)
        i->ops->iter_close(i);
}

enum status store_checkpoint(struct store *s, const char *dir, struct err *e)
{
    return s->ops->checkpoint(s, dir, e);
}

void store_close(struct store *s)
{
    if (s)
        s->ops->close(s);
}

/* The format's number ------------------------------------------------------------------------------------------------------- */

store_upgrade_fn *const store_upgrade_steps[STORE_FORMAT] = {NULL}; /* version 1 is the first */

static const char format_key[] = "format";

static enum status write_format(struct store *s, struct store_batch *b, uint32_t format, struct err *e)
{
    struct buf v = {0};
    if (buf_be32(&v, format))
        return err_nomem(e, "the database's format");
    store_put(b, STORE_META, format_key, sizeof format_key - 1, v.data, v.len);
    buf_release(&v);
    return store_write(s, b, 1, e);
}

/* ST_OK: no family holds anything. ST_CORRUPT: one does. */
static enum status check_empty(struct store *s, const char *where, struct err *e)
{
    for (int cf = 0; cf < STORE_CF_COUNT; cf++) {
        struct store_iter *i = NULL;
        TRY(store_iter_open(s, (enum store_cf)cf, "", 0, NULL, 0, &i, e));
        const void *k, *v;
        size_t kl, vl;
        enum status st = store_iter_next(i, &k, &kl, &v, &vl, e);
        store_iter_close(i);
        if (st == ST_OK)
            return err_set(e, ST_CORRUPT, "database in '%s' has rows in '%s' but no format number: it is not ebb's, or damaged", where,
                           store_cf_name((enum store_cf)cf));
        if (st != ST_END)
            return st;
    }
    return ST_OK;
}

enum status store_upgrade(struct store *s, const char *where, store_upgrade_fn *const *steps, uint32_t newest, struct err *e)
{
    struct store_batch *b = NULL;
    struct buf value = {0};
    TRY(store_batch_new(s, &b, e));
    enum status st = store_get(s, STORE_META, format_key, sizeof format_key - 1, &value, e);
    if (st == ST_NOT_FOUND) {
        st = check_empty(s, where, e);
        if (st == ST_OK)
            st = write_format(s, b, newest, e);
        goto out;
    }
    if (st != ST_OK)
        goto out;
    struct cursor c = cursor_make(value.data, value.len);
    uint32_t format = cursor_be32(&c);
    if (c.bad || cursor_left(&c) || format == 0) {
        st = err_set(e, ST_CORRUPT, "database in '%s': the format number in 'meta' (key \"format\") is damaged", where);
        goto out;
    }
    if (format > newest) {
        st = err_set(e, ST_USER, "database in '%s' has format %u and this program knows formats up to %u: use the newer ebb that wrote it",
                     where, format, newest);
        goto out;
    }
    for (; format < newest && st == ST_OK; format++) {
        store_batch_clear(b);
        st = steps[format](s, b, e);
        if (st == ST_OK)
            st = write_format(s, b, format + 1, e);
        if (st != ST_OK)
            err_prefix(e, "cannot bring the database in '%s' from format %u to %u", where, format, format + 1);
    }
out:
    buf_release(&value);
    store_batch_free(b);
    return st;
}
