/* The store's twin in memory, for tests: one sorted array per family. Writes that no synced one has covered yet can be lost on
   purpose (store_mem_crash), and a chosen write can fail. A batch is all or nothing here too: each change notes how to undo it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "storage/store.h"
#include "storage/store_ops.h"

struct entry { /* immutable; shared by the family, iterators and the undo notes */
    size_t refs;
    size_t key_len, value_len;
    unsigned char bytes[]; /* key, value */
};

struct family {
    struct entry **items;
    size_t count, cap;
};

struct undo {
    enum store_cf cf;
    struct entry *was; /* put back; NULL: there was none */
    struct entry *now; /* NULL: it was removed */
};

struct mem_store {
    struct store base;
    pthread_mutex_t lock;
    struct family cf[STORE_CF_COUNT];
    struct undo *undo; /* of writes since the last synced one */
    size_t undo_count, undo_cap;
    uint64_t fail_in; /* writes until one fails; 0: none will */
};

struct mem_iter {
    struct store_iter base;
    struct mem_store *s;
    struct entry **items;
    size_t count, at;
};

static const struct store_ops mem_ops;

static void entry_drop(struct entry *x)
{
    if (x && --x->refs == 0)
        mem_free(x);
}

static int compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
    size_t n = a_len < b_len ? a_len : b_len;
    int c = n ? memcmp(a, b, n) : 0;
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

/* The first entry at or behind the key. */
static size_t find(const struct family *f, const void *key, size_t len)
{
    size_t low = 0, high = f->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare(f->items[mid]->bytes, f->items[mid]->key_len, key, len) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int is_at(const struct family *f, size_t i, const void *key, size_t len)
{
    return i < f->count && compare(f->items[i]->bytes, f->items[i]->key_len, key, len) == 0;
}

static int note(struct mem_store *s, enum store_cf cf, struct entry *was, struct entry *now)
{
    if (mem_grow((void **)&s->undo, &s->undo_cap, s->undo_count, sizeof *s->undo))
        return -1;
    s->undo[s->undo_count++] = (struct undo){cf, was, now};
    return 0;
}

/* Undoing needs no memory: the arrays never shrink. */
static void undo_to(struct mem_store *s, size_t mark)
{
    while (s->undo_count > mark) {
        struct undo *u = &s->undo[--s->undo_count];
        struct family *f = &s->cf[u->cf];
        struct entry *key = u->now ? u->now : u->was;
        size_t i = find(f, key->bytes, key->key_len);
        if (u->now && u->was)
            f->items[i] = u->was;
        else if (u->now)
            memmove(&f->items[i], &f->items[i + 1], (--f->count - i) * sizeof *f->items);
        else {
            memmove(&f->items[i + 1], &f->items[i], (f->count++ - i) * sizeof *f->items);
            f->items[i] = u->was;
        }
        entry_drop(u->now);
    }
}

static void forget_undo(struct mem_store *s)
{
    for (size_t i = 0; i < s->undo_count; i++)
        entry_drop(s->undo[i].was);
    s->undo_count = 0;
}

static int put(struct mem_store *s, const struct store_change *c)
{
    struct family *f = &s->cf[c->cf];
    struct entry *x = mem_alloc(sizeof *x + c->key_len + c->value_len);
    if (!x || mem_grow((void **)&f->items, &f->cap, f->count, sizeof *f->items)) {
        mem_free(x);
        return -1;
    }
    x->refs = 1;
    x->key_len = c->key_len;
    x->value_len = c->value_len;
    if (c->key_len)
        memcpy(x->bytes, c->key, c->key_len);
    if (c->value_len)
        memcpy(x->bytes + c->key_len, c->value, c->value_len);
    size_t i = find(f, c->key, c->key_len);
    int there = is_at(f, i, c->key, c->key_len);
    if (note(s, c->cf, there ? f->items[i] : NULL, x)) {
        mem_free(x);
        return -1;
    }
    if (!there)
        memmove(&f->items[i + 1], &f->items[i], (f->count++ - i) * sizeof *f->items);
    f->items[i] = x;
    return 0;
}

static int del(struct mem_store *s, enum store_cf cf, size_t from, size_t to)
{
    struct family *f = &s->cf[cf];
    for (size_t i = from; i < to; i++) { /* one note and one removal at a time: an undo may come in between */
        if (note(s, cf, f->items[from], NULL))
            return -1;
        memmove(&f->items[from], &f->items[from + 1], (--f->count - from) * sizeof *f->items);
    }
    return 0;
}

static enum status mem_write(struct store *base, const struct store_batch *b, int sync, struct err *e)
{
    struct mem_store *s = (struct mem_store *)base;
    pthread_mutex_lock(&s->lock);
    enum status st = ST_OK;
    if (s->fail_in && --s->fail_in == 0) {
        st = err_set(e, ST_ENV, "cannot write to the database in memory: failed on purpose");
        goto out;
    }
    size_t mark = s->undo_count;
    struct store_change c;
    for (size_t at = 0; store_batch_next(b, &at, &c);) {
        struct family *f = &s->cf[c.cf];
        int failed = 0;
        if (c.op == STORE_OP_PUT)
            failed = put(s, &c);
        else {
            size_t from = find(f, c.key, c.key_len);
            size_t to = c.op == STORE_OP_DEL ? from + (size_t)is_at(f, from, c.key, c.key_len) : find(f, c.value, c.value_len);
            failed = from < to && del(s, c.cf, from, to);
        }
        if (failed) {
            undo_to(s, mark);
            st = err_nomem(e, "rows");
            goto out;
        }
    }
    if (sync)
        forget_undo(s);
out:
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum status mem_get(struct store *base, enum store_cf cf, const void *key, size_t key_len, struct buf *value, struct err *e)
{
    struct mem_store *s = (struct mem_store *)base;
    pthread_mutex_lock(&s->lock);
    const struct family *f = &s->cf[cf];
    size_t i = find(f, key, key_len);
    enum status st = ST_OK;
    if (!is_at(f, i, key, key_len))
        st = err_set(e, ST_NOT_FOUND, "no such row in '%s'", store_cf_name(cf));
    else {
        buf_clear(value);
        if (buf_add(value, f->items[i]->bytes + f->items[i]->key_len, f->items[i]->value_len))
            st = err_nomem(e, "a row");
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum status mem_iter_open(struct store *base, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len,
                                 struct store_iter **out, struct err *e)
{
    struct mem_store *s = (struct mem_store *)base;
    struct mem_iter *it = mem_zalloc(sizeof *it);
    if (!it)
        return err_nomem(e, "an iterator");
    it->base.ops = &mem_ops;
    it->s = s;
    pthread_mutex_lock(&s->lock);
    const struct family *f = &s->cf[cf];
    size_t a = find(f, from, from_len), z = to_len ? find(f, to, to_len) : f->count;
    it->count = z > a ? z - a : 0;
    it->items = mem_array(it->count, sizeof *it->items);
    if (!it->items) {
        pthread_mutex_unlock(&s->lock);
        mem_free(it);
        return err_nomem(e, "an iterator");
    }
    for (size_t i = 0; i < it->count; i++) {
        it->items[i] = f->items[a + i];
        it->items[i]->refs++;
    }
    pthread_mutex_unlock(&s->lock);
    *out = &it->base;
    return ST_OK;
}

static enum status mem_iter_next(struct store_iter *base, const void **key, size_t *key_len, const void **value, size_t *value_len,
                                 struct err *e)
{
    (void)e;
    struct mem_iter *it = (struct mem_iter *)base;
    if (it->at == it->count)
        return ST_END;
    const struct entry *x = it->items[it->at++];
    *key = x->bytes;
    *key_len = x->key_len;
    *value = x->bytes + x->key_len;
    *value_len = x->value_len;
    return ST_OK;
}

static void mem_iter_close(struct store_iter *base)
{
    struct mem_iter *it = (struct mem_iter *)base;
    pthread_mutex_lock(&it->s->lock);
    for (size_t i = 0; i < it->count; i++)
        entry_drop(it->items[i]);
    pthread_mutex_unlock(&it->s->lock);
    mem_free(it->items);
    mem_free(it);
}

/* The copy is a database on disk, as the other implementation's. */
static enum status mem_checkpoint(struct store *base, const char *dir, struct err *e)
{
    struct mem_store *s = (struct mem_store *)base;
    struct store *to = NULL;
    struct store_batch *b = NULL;
    TRY(store_open(dir, &to, e));
    enum status st = store_batch_new(to, &b, e);
    if (st == ST_OK) {
        pthread_mutex_lock(&s->lock);
        for (int cf = 0; cf < STORE_CF_COUNT; cf++)
            for (size_t i = 0; i < s->cf[cf].count; i++) {
                const struct entry *x = s->cf[cf].items[i];
                store_put(b, (enum store_cf)cf, x->bytes, x->key_len, x->bytes + x->key_len, x->value_len);
            }
        pthread_mutex_unlock(&s->lock);
        st = store_write(to, b, 1, e);
    }
    store_batch_free(b);
    store_close(to);
    return st;
}

static void mem_close(struct store *base)
{
    struct mem_store *s = (struct mem_store *)base;
    forget_undo(s);
    for (int cf = 0; cf < STORE_CF_COUNT; cf++) {
        for (size_t i = 0; i < s->cf[cf].count; i++)
            entry_drop(s->cf[cf].items[i]);
        mem_free(s->cf[cf].items);
    }
    mem_free(s->undo);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

enum status store_mem_new(struct store **out, struct err *e)
{
    struct mem_store *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "a database in memory");
    s->base.ops = &mem_ops;
    pthread_mutex_init(&s->lock, NULL);
    enum status st = store_upgrade(&s->base, "memory", store_upgrade_steps, STORE_FORMAT, e);
    if (st != ST_OK) {
        mem_close(&s->base);
        return st;
    }
    *out = &s->base;
    return ST_OK;
}

static struct mem_store *twin(struct store *s)
{
    BUG_IF(s->ops != &mem_ops, "a fault is wanted of a store that is not the memory twin");
    return (struct mem_store *)s;
}

void store_mem_fail_write(struct store *s, uint64_t nth)
{
    twin(s)->fail_in = nth;
}

void store_mem_crash(struct store *base)
{
    struct mem_store *s = twin(base);
    pthread_mutex_lock(&s->lock);
    undo_to(s, 0);
    s->base.broken = 0;
    pthread_mutex_unlock(&s->lock);
}

static const struct store_ops mem_ops = {
    .close = mem_close,
    .write = mem_write,
    .get = mem_get,
    .iter_open = mem_iter_open,
    .iter_next = mem_iter_next,
    .iter_close = mem_iter_close,
    .checkpoint = mem_checkpoint,
};
