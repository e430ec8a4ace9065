/* The store on RocksDB. Opened with one column family per kind of row; options are for small rows and a daemon of less than 1 GiB:
   at most 48 MiB of memtables and a block cache of 32 MiB over all families, a bounded write-ahead log and few open files.

   What can fail: another process holds the lock (said so, with its pid); the disk is full or fails: RocksDB then refuses every later
   write, so the caller closes and opens anew, which replays the log. */
#include <errno.h>
#include <fcntl.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "storage/store.h"
#include "storage/store_ops.h"

#define MIB ((size_t)1 << 20)
#define FAMILIES (STORE_CF_COUNT + 1) /* RocksDB insists on "default"; it stays empty */

struct rocks {
    struct store base;
    char *dir;
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read;
    rocksdb_writeoptions_t *write, *write_sync;
    rocksdb_column_family_handle_t *cf[FAMILIES]; /* as STORE_CF_MAP, then default */
};

struct rocks_iter {
    struct store_iter base;
    const struct rocks *r;
    enum store_cf cf;
    rocksdb_iterator_t *it;
    rocksdb_readoptions_t *read;
    char *upper;
    int started;
};

static const struct store_ops rocks_ops;

/* Takes and frees RocksDB's text. */
static enum status rocks_err(struct err *e, const char *dir, const char *doing, char *text)
{
    enum status code = ST_ENV;
    if (strstr(text, "No space left"))
        err_set(e, code, "no space left for the database in '%s': free some, then go on (%s)", dir, text);
    else if (strstr(text, "Permission denied"))
        err_set(e, code, "no permission for the database in '%s': check its owner and mode (%s)", dir, text);
    else if (strncmp(text, "Corruption", 10) == 0)
        err_set(e, code = ST_CORRUPT, "database in '%s' is damaged: %s", dir, text);
    else
        err_set(e, code, "cannot %s the database in '%s': %s", doing, dir, text);
    rocksdb_free(text);
    return code;
}

/* Who holds the lock of another process's database; 0 when that cannot be told. Never called when the lock is our own: closing the
   file would release it. */
static long lock_holder(const char *dir)
{
    char *path = path_join(dir, "LOCK");
    if (!path)
        return 0;
    long pid = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    mem_free(path);
    if (fd < 0)
        return 0;
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK)
        pid = (long)l.l_pid;
    close(fd);
    return pid;
}

static enum status open_err(struct err *e, const char *dir, char *text)
{
    int own = strstr(text, "lock hold by current process") != NULL;
    if (!own && !(strstr(text, "lock") && strstr(text, "/LOCK")))
        return rocks_err(e, dir, "open", text);
    if (own)
        err_set(e, ST_ENV, "database in '%s' is in use by this very process (lock '%s/LOCK')", dir, dir);
    else {
        long pid = lock_holder(dir);
        char who[48] = "";
        if (pid > 0)
            snprintf(who, sizeof who, ", pid %ld", pid);
        err_set(e, ST_ENV, "database in '%s' is in use by another process (lock '%s/LOCK'%s): stop it first", dir, dir, who);
    }
    rocksdb_free(text);
    return ST_ENV;
}

static void set_options(struct rocks *r)
{
    rocksdb_options_t *o = r->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_create_missing_column_families(o, 1);
    rocksdb_options_set_write_buffer_size(o, 16 * MIB);
    rocksdb_options_set_max_write_buffer_number(o, 4); /* a flush on a slow disk stops no write */
    rocksdb_options_set_db_write_buffer_size(o, 48 * MIB);
    rocksdb_options_set_max_total_wal_size(o, 64 * MIB);
    rocksdb_options_set_max_open_files(o, 256);
    rocksdb_options_set_max_background_jobs(o, 2);
    rocksdb_options_set_max_manifest_file_size(o, 4 * MIB);
    rocksdb_options_set_compression(o, rocksdb_lz4_compression);
    rocksdb_options_set_keep_log_file_num(o, 2);
    rocksdb_options_set_max_log_file_size(o, MIB);
    rocksdb_options_set_info_log_level(o, 2); /* warnings */
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
    rocksdb_options_set_wal_recovery_mode(o, rocksdb_point_in_time_recovery);
    r->cache = rocksdb_cache_create_lru(32 * MIB);
    r->table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(r->table, r->cache);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(r->table, 1);
    rocksdb_options_set_block_based_table_factory(o, r->table);
    r->read = rocksdb_readoptions_create();
    r->write = rocksdb_writeoptions_create();
    r->write_sync = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(r->write_sync, 1);
}

static void release(struct rocks *r)
{
    for (int i = 0; i < FAMILIES; i++)
        if (r->cf[i])
            rocksdb_column_family_handle_destroy(r->cf[i]);
    if (r->db)
        rocksdb_close(r->db);
    if (r->read)
        rocksdb_readoptions_destroy(r->read);
    if (r->write)
        rocksdb_writeoptions_destroy(r->write);
    if (r->write_sync)
        rocksdb_writeoptions_destroy(r->write_sync);
    if (r->options)
        rocksdb_options_destroy(r->options);
    if (r->table)
        rocksdb_block_based_options_destroy(r->table);
    if (r->cache)
        rocksdb_cache_destroy(r->cache);
    mem_free(r->dir);
    mem_free(r);
}

/* RocksDB opens for writing only with every family named. One that we do not know was made by a newer program: its format's number
   is read without touching anything else. */
static enum status refuse_newer(struct rocks *r, const char *unknown, struct err *e)
{
    const char *names[] = {"default", "meta"};
    const rocksdb_options_t *opts[] = {r->options, r->options};
    rocksdb_column_family_handle_t *cf[2] = {NULL, NULL};
    char *text = NULL;
    rocksdb_t *db = rocksdb_open_for_read_only_column_families(r->options, r->dir, 2, names, opts, cf, 0, &text);
    if (text)
        return open_err(e, r->dir, text);
    size_t len = 0;
    char *value = rocksdb_get_cf(db, r->read, cf[1], "format", 6, &len, &text);
    struct cursor c = cursor_make(value ? value : "", value ? len : 0);
    uint32_t format = cursor_be32(&c);
    if (!text && !c.bad && format > STORE_FORMAT)
        err_set(e, ST_USER, "database in '%s' has format %u and this program knows formats up to %u: use the newer ebb that wrote it",
                r->dir, format, STORE_FORMAT);
    else
        err_set(e, ST_USER, "database in '%s' has a family '%s' that this program (format %u) does not know: it is not ebb's", r->dir,
                unknown, STORE_FORMAT);
    rocksdb_free(text);
    rocksdb_free(value);
    rocksdb_column_family_handle_destroy(cf[0]);
    rocksdb_column_family_handle_destroy(cf[1]);
    rocksdb_close(db);
    return ST_USER;
}

static enum status check_families(struct rocks *r, struct err *e)
{
    char *current = path_join(r->dir, "CURRENT");
    if (!current)
        return err_nomem(e, "a database");
    int exists = path_exists(current);
    mem_free(current);
    if (!exists)
        return ST_OK;
    size_t n = 0;
    char *text = NULL;
    char **list = rocksdb_list_column_families(r->options, r->dir, &n, &text);
    enum status st = text ? open_err(e, r->dir, text) : ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        int known = strcmp(list[i], "default") == 0;
        for (int cf = 0; cf < STORE_CF_COUNT; cf++)
            known |= strcmp(list[i], store_cf_name((enum store_cf)cf)) == 0;
        if (!known)
            st = refuse_newer(r, list[i], e);
    }
    if (list) /* on failure, too */
        rocksdb_list_column_families_destroy(list, n);
    return st;
}

enum status store_open(const char *dir, struct store **out, struct err *e)
{
    TRY(path_make_dirs(dir, 0777, e));
    struct rocks *r = mem_zalloc(sizeof *r);
    if (!r || !(r->dir = mem_strdup(dir))) {
        mem_free(r);
        return err_nomem(e, "a database");
    }
    r->base.ops = &rocks_ops;
    set_options(r);
    enum status st = check_families(r, e);
    if (st != ST_OK)
        goto fail;
    const char *names[FAMILIES];
    const rocksdb_options_t *opts[FAMILIES];
    for (int i = 0; i < FAMILIES; i++) {
        names[i] = i == STORE_CF_COUNT ? "default" : store_cf_name((enum store_cf)i);
        opts[i] = r->options;
    }
    char *text = NULL;
    r->db = rocksdb_open_column_families(r->options, dir, FAMILIES, names, opts, r->cf, &text);
    if (text) {
        st = open_err(e, dir, text);
        goto fail;
    }
    st = store_upgrade(&r->base, dir, store_upgrade_steps, STORE_FORMAT, e);
    if (st != ST_OK)
        goto fail;
    *out = &r->base;
    return ST_OK;
fail:
    release(r);
    return st;
}

static void rocks_close(struct store *s)
{
    struct rocks *r = (struct rocks *)s;
    if (!s->broken) {
        char *text = NULL;
        rocksdb_flush_wal(r->db, 1, &text);
        rocksdb_free(text); /* nobody was promised more than what earlier syncs covered */
    }
    rocksdb_cancel_all_background_work(r->db, 1);
    release(r);
}

static int by_key(const void *pa, const void *pb)
{
    const struct store_change *a = pa, *b = pb;
    if (a->cf != b->cf)
        return a->cf < b->cf ? -1 : 1;
    size_t n = a->key_len < b->key_len ? a->key_len : b->key_len;
    int order = n ? memcmp(a->key, b->key, n) : 0;
    if (order == 0 && a->key_len != b->key_len)
        order = a->key_len < b->key_len ? -1 : 1;
    if (order == 0) /* what came later lies behind, in the batch's bytes as here */
        order = (const char *)a->key < (const char *)b->key ? -1 : 1;
    return order;
}

static void add_change(const struct rocks *r, rocksdb_writebatch_t *w, const struct store_change *c)
{
    if (c->op == STORE_OP_PUT)
        rocksdb_writebatch_put_cf(w, r->cf[c->cf], c->key, c->key_len, c->value, c->value_len);
    else if (c->op == STORE_OP_DEL)
        rocksdb_writebatch_delete_cf(w, r->cf[c->cf], c->key, c->key_len);
    else
        rocksdb_writebatch_delete_range_cf(w, r->cf[c->cf], c->key, c->key_len, c->value, c->value_len);
}

static int same_key(const struct store_change *a, const struct store_change *b)
{
    return a->cf == b->cf && a->key_len == b->key_len && !memcmp(a->key, b->key, a->key_len);
}

/* In the order of the keys, the last word on each: a memtable takes neighbours much faster than what lies far apart, and a span that advances
   many times within one group needs few rows. As the batch stands when a range is deleted in it. */
static enum status add_changes(const struct rocks *r, rocksdb_writebatch_t *w, const struct store_batch *b, struct err *e)
{
    size_t n = 0;
    int as_it_stands = 0;
    struct store_change *all = mem_array(store_batch_count(b), sizeof *all);
    if (!all)
        return err_nomem(e, "a batch of rows");
    for (size_t at = 0; store_batch_next(b, &at, &all[n]); n++)
        as_it_stands |= all[n].op == STORE_OP_DEL_RANGE;
    if (!as_it_stands)
        qsort(all, n, sizeof *all, by_key);
    for (size_t i = 0; i < n; i++)
        if (as_it_stands || i + 1 == n || !same_key(&all[i], &all[i + 1]))
            add_change(r, w, &all[i]);
    mem_free(all);
    return ST_OK;
}

static enum status rocks_write(struct store *s, const struct store_batch *b, int sync, struct err *e)
{
    struct rocks *r = (struct rocks *)s;
    rocksdb_writebatch_t *w = rocksdb_writebatch_create();
    char *text = NULL;
    enum status st = add_changes(r, w, b, e);
    if (st == ST_OK)
        rocksdb_write(r->db, sync ? r->write_sync : r->write, w, &text);
    rocksdb_writebatch_destroy(w);
    return text ? rocks_err(e, r->dir, "write to", text) : st;
}

static enum status rocks_get(struct store *s, enum store_cf cf, const void *key, size_t key_len, struct buf *value, struct err *e)
{
    struct rocks *r = (struct rocks *)s;
    char *text = NULL;
    rocksdb_pinnableslice_t *p = rocksdb_get_pinned_cf(r->db, r->read, r->cf[cf], key, key_len, &text);
    if (text)
        return rocks_err(e, r->dir, "read", text);
    if (!p)
        return err_set(e, ST_NOT_FOUND, "no such row in '%s'", store_cf_name(cf));
    size_t len = 0;
    const char *data = rocksdb_pinnableslice_value(p, &len);
    buf_clear(value);
    int failed = buf_add(value, data, len);
    rocksdb_pinnableslice_destroy(p);
    return failed ? err_nomem(e, "a row") : ST_OK;
}

static enum status rocks_iter_open(struct store *s, enum store_cf cf, const void *from, size_t from_len, const void *to, size_t to_len,
                                   struct store_iter **out, struct err *e)
{
    struct rocks *r = (struct rocks *)s;
    struct rocks_iter *i = mem_zalloc(sizeof *i);
    if (!i || (to_len && !(i->upper = mem_alloc(to_len)))) {
        mem_free(i);
        return err_nomem(e, "an iterator");
    }
    i->base.ops = &rocks_ops;
    i->r = r;
    i->cf = cf;
    i->read = rocksdb_readoptions_create();
    if (to_len) {
        memcpy(i->upper, to, to_len);
        rocksdb_readoptions_set_iterate_upper_bound(i->read, i->upper, to_len);
    }
    i->it = rocksdb_create_iterator_cf(r->db, i->read, r->cf[cf]);
    if (from_len)
        rocksdb_iter_seek(i->it, from, from_len);
    else
        rocksdb_iter_seek_to_first(i->it);
    *out = &i->base;
    return ST_OK;
}

static enum status rocks_iter_next(struct store_iter *base, const void **key, size_t *key_len, const void **value, size_t *value_len,
                                   struct err *e)
{
    struct rocks_iter *i = (struct rocks_iter *)base;
    if (i->started && rocksdb_iter_valid(i->it))
        rocksdb_iter_next(i->it);
    i->started = 1;
    if (!rocksdb_iter_valid(i->it)) {
        char *text = NULL;
        rocksdb_iter_get_error(i->it, &text);
        return text ? rocks_err(e, i->r->dir, "read", text) : ST_END;
    }
    *key = rocksdb_iter_key(i->it, key_len);
    *value = rocksdb_iter_value(i->it, value_len);
    return ST_OK;
}

static void rocks_iter_close(struct store_iter *base)
{
    struct rocks_iter *i = (struct rocks_iter *)base;
    rocksdb_iter_destroy(i->it);
    rocksdb_readoptions_destroy(i->read);
    mem_free(i->upper);
    mem_free(i);
}

static enum status rocks_checkpoint(struct store *s, const char *dir, struct err *e)
{
    struct rocks *r = (struct rocks *)s;
    char *text = NULL;
    rocksdb_checkpoint_t *c = rocksdb_checkpoint_object_create(r->db, &text);
    if (text)
        return rocks_err(e, r->dir, "copy", text);
    rocksdb_checkpoint_create(c, dir, 0, &text);
    rocksdb_checkpoint_object_destroy(c);
    if (!text)
        return ST_OK;
    rocks_err(e, r->dir, "copy", text);
    return err_prefix(e, "copy to '%s'", dir);
}

static const struct store_ops rocks_ops = {
    .close = rocks_close,
    .write = rocks_write,
    .get = rocks_get,
    .iter_open = rocks_iter_open,
    .iter_next = rocks_iter_next,
    .iter_close = rocks_iter_close,
    .checkpoint = rocks_checkpoint,
};
