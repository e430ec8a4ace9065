/* Rows under their keys. What they hold is rowcodec.c's business. */
#include "storage/rows.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/key.h"
#include "storage/rowcodec.h"
#include "storage/store_ops.h"

/* Visits [from, to): reading keys is left to the caller. */
struct scan {
    struct store_iter *it;
    const void *key, *value;
    size_t key_len, value_len;
};

static enum status scan_open(struct scan *s, struct store *store, enum store_cf cf, const struct key *from, const struct key *to,
                             struct err *e)
{
    return store_iter_open(store, cf, from->bytes, from->len, to->bytes, to->len, &s->it, e);
}

static enum status scan_job(struct scan *s, struct store *store, enum store_cf cf, uint64_t job, struct err *e)
{
    struct key from = key_job_prefix(job), to = key_job_prefix(job + 1);
    return scan_open(s, store, cf, &from, &to, e);
}

static enum status scan_next(struct scan *s, struct err *e)
{
    return store_iter_next(s->it, &s->key, &s->key_len, &s->value, &s->value_len, e);
}

static void del_range(struct store_batch *b, enum store_cf cf, uint64_t job)
{
    struct key from = key_job_prefix(job), to = key_job_prefix(job + 1);
    store_del_range(b, cf, from.bytes, from.len, to.bytes, to.len);
}

/* meta ---------------------------------------------------------------------------------------------------------------------- */

static enum status get_number(struct store *s, const char *name, uint64_t most, uint64_t *out, struct err *e)
{
    struct buf v = {0};
    struct err mine = {0};
    enum status st = store_get(s, STORE_META, name, strlen(name), &v, &mine);
    *out = 0;
    if (st == ST_NOT_FOUND)
        st = ST_OK;
    else if (st != ST_OK && e)
        *e = mine;
    else if (st == ST_OK) {
        st = rowcodec_get(STORE_META, name, strlen(name), v.data, v.len, rowcodec_number, out, e);
        if (st == ST_OK && *out > most)
            st = rowcodec_corrupt(e, STORE_META, name, strlen(name), "a value out of range");
    }
    buf_release(&v);
    return st;
}

static void put_number(struct store_batch *b, const char *name, uint64_t v)
{
    struct key k = {.len = strlen(name)};
    memcpy(k.bytes, name, k.len);
    rowcodec_put(b, STORE_META, &k, rowcodec_number, &v, sizeof v);
}

enum status rows_get_generation(struct store *s, uint32_t *generation, struct err *e)
{
    uint64_t v = 0;
    enum status st = get_number(s, "generation", UINT32_MAX, &v, e);
    if (st == ST_OK)
        *generation = (uint32_t)v;
    return st;
}

void rows_put_generation(struct store_batch *b, uint32_t generation)
{
    put_number(b, "generation", generation);
}

enum status rows_next_job_id(struct store *s, uint64_t *id, struct err *e)
{
    uint64_t v = 0;
    enum status st = get_number(s, "last_job", UINT64_MAX - 2, &v, e);
    if (st == ST_OK)
        *id = v + 1;
    return st;
}

void rows_put_last_job_id(struct store_batch *b, uint64_t id)
{
    put_number(b, "last_job", id);
}

/* jobs ---------------------------------------------------------------------------------------------------------------------- */

void rows_put_job(struct store_batch *b, const struct job_row *row)
{
    struct key k = key_job(row->id, KEY_JOB_ROW);
    rowcodec_put(b, STORE_JOBS, &k, rowcodec_job, row, sizeof *row);
}

static void put_bytes(struct store_batch *b, const struct key *k, const void *data, size_t len)
{
    struct buf v = {0};
    if (buf_char(&v, ROW_VERSION) || buf_add(&v, data, len))
        store_batch_fail(b);
    else
        store_put(b, STORE_JOBS, k->bytes, k->len, v.data, v.len);
    buf_release(&v);
}

static enum status get_bytes(struct store *s, const struct key *k, struct buf *out, struct err *e)
{
    struct cursor in;
    TRY(store_get(s, STORE_JOBS, k->bytes, k->len, out, e));
    TRY(rowcodec_open(&in, STORE_JOBS, k->bytes, k->len, out->data, out->len, e));
    memmove(out->data, out->data + 1, --out->len);
    return ST_OK;
}

void rows_put_spec(struct store_batch *b, uint64_t job, const void *json, size_t len)
{
    struct key k = key_job(job, KEY_JOB_SPEC);
    put_bytes(b, &k, json, len);
}

enum status rows_get_spec(struct store *s, uint64_t job, struct buf *json, struct err *e)
{
    struct key k = key_job(job, KEY_JOB_SPEC);
    enum status st = get_bytes(s, &k, json, e);
    return st == ST_NOT_FOUND ? err_set(e, st, "no job %llu", (unsigned long long)job) : st;
}

void rows_put_assembly(struct store_batch *b, uint64_t job, const void *data, size_t len)
{
    struct key k = key_job(job, KEY_JOB_ASSEMBLY);
    put_bytes(b, &k, data, len);
}

enum status rows_get_assembly(struct store *s, uint64_t job, struct buf *out, struct err *e)
{
    struct key k = key_job(job, KEY_JOB_ASSEMBLY);
    enum status st = get_bytes(s, &k, out, e);
    return st == ST_NOT_FOUND ? err_set(e, st, "nothing of job %llu has been assembled", (unsigned long long)job) : st;
}

void rows_del_job(struct store_batch *b, uint64_t job)
{
    static const enum store_cf all[] = {STORE_JOBS, STORE_SOURCES, STORE_SPANS, STORE_EXTENTS, STORE_EVENTS};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        del_range(b, all[i], job);
}

void rows_shrink_job(struct store_batch *b, uint64_t job)
{
    struct key k = key_job(job, KEY_JOB_ASSEMBLY);
    store_del(b, STORE_JOBS, k.bytes, k.len);
    del_range(b, STORE_SPANS, job);
    del_range(b, STORE_EXTENTS, job);
}

enum status rows_each_job(struct store *s, enum status (*visit)(void *arg, const struct job_row *row, struct err *e), void *arg,
                          struct err *e)
{
    struct scan scan;
    enum status st;
    TRY(store_iter_open(s, STORE_JOBS, "", 0, NULL, 0, &scan.it, e));
    while ((st = scan_next(&scan, e)) == ST_OK) {
        struct cursor k = cursor_make(scan.key, scan.key_len);
        struct job_row row = {.id = cursor_be64(&k)};
        uint8_t kind = cursor_u8(&k);
        if (k.bad || cursor_left(&k) || kind > KEY_JOB_ASSEMBLY) {
            st = rowcodec_corrupt(e, STORE_JOBS, scan.key, scan.key_len, "no such key");
            break;
        }
        if (kind != KEY_JOB_ROW)
            continue;
        st = rowcodec_get(STORE_JOBS, scan.key, scan.key_len, scan.value, scan.value_len, rowcodec_job, &row, e);
        if (st != ST_OK || (st = visit(arg, &row, e)) != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    return st == ST_END ? ST_OK : st;
}

/* sources ------------------------------------------------------------------------------------------------------------------- */

enum status rows_put_dataset(struct store_batch *b, uint64_t job, const struct dataset *d, struct err *e)
{
    struct buf chunk = {0};
    enum status st = ST_OK;
    int more = 1;
    del_range(b, STORE_SOURCES, job);
    for (uint32_t i = 0; more && st == ST_OK; i++) {
        buf_clear(&chunk);
        st = buf_char(&chunk, ROW_VERSION) ? err_nomem(e, "sources") : dataset_encode_chunk(d, i, &chunk, &more, e);
        struct key k = key_source_chunk(job, i);
        if (st == ST_OK)
            store_put(b, STORE_SOURCES, k.bytes, k.len, chunk.data, chunk.len);
    }
    buf_release(&chunk);
    return st;
}

enum status rows_get_dataset(struct store *s, uint64_t job, struct dataset *out, struct err *e)
{
    struct scan scan;
    struct dataset d = {0};
    enum status st;
    TRY(scan_job(&scan, s, STORE_SOURCES, job, e));
    uint32_t n = 0;
    for (; (st = scan_next(&scan, e)) == ST_OK; n++) {
        struct cursor k = cursor_make(scan.key, scan.key_len), in;
        cursor_be64(&k);
        if (cursor_be32(&k) != n || k.bad || cursor_left(&k)) {
            st = rowcodec_corrupt(e, STORE_SOURCES, scan.key, scan.key_len, "a chunk is missing before it");
            break;
        }
        st = rowcodec_open(&in, STORE_SOURCES, scan.key, scan.key_len, scan.value, scan.value_len, e);
        if (st != ST_OK)
            break;
        st = dataset_decode_chunk(&d, in.p, cursor_left(&in), e);
        if (st == ST_CORRUPT) {
            struct err why = e ? *e : (struct err){0};
            st = rowcodec_corrupt(e, STORE_SOURCES, scan.key, scan.key_len, why.text);
        }
        if (st != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    if (st == ST_END)
        st = n ? dataset_finish(&d, e) : err_set(e, ST_NOT_FOUND, "job %llu has no sources", (unsigned long long)job);
    if (st == ST_CORRUPT && n && e && strncmp(e->text, "damaged row", 11)) { /* its last chunk is good, and others should follow */
        struct err why = *e;
        struct key last = key_source_chunk(job, n - 1);
        st = rowcodec_corrupt(e, STORE_SOURCES, last.bytes, last.len, why.text);
    }
    if (st == ST_OK)
        *out = d;
    else
        dataset_release(&d);
    return st;
}

/* spans --------------------------------------------------------------------------------------------------------------------- */

void rows_put_span(struct store_batch *b, uint64_t job, const struct span_row *row)
{
    struct key k = key_span(job, row->span.begin);
    rowcodec_put(b, STORE_SPANS, &k, rowcodec_span, row, sizeof *row);
}

void rows_del_span(struct store_batch *b, uint64_t job, uint64_t begin)
{
    struct key k = key_span(job, begin);
    store_del(b, STORE_SPANS, k.bytes, k.len);
}

enum status rows_each_span(struct store *s, uint64_t job, enum status (*visit)(void *arg, const struct span_row *row, struct err *e),
                           void *arg, struct err *e)
{
    struct scan scan;
    enum status st;
    TRY(scan_job(&scan, s, STORE_SPANS, job, e));
    while ((st = scan_next(&scan, e)) == ST_OK) {
        struct cursor k = cursor_make(scan.key, scan.key_len);
        cursor_be64(&k);
        struct span_row row = {.span.begin = cursor_be64(&k)};
        row.span.end = row.span.begin;
        if (k.bad || cursor_left(&k)) {
            st = rowcodec_corrupt(e, STORE_SPANS, scan.key, scan.key_len, "no such key");
            break;
        }
        st = rowcodec_get(STORE_SPANS, scan.key, scan.key_len, scan.value, scan.value_len, rowcodec_span, &row, e);
        if (st != ST_OK || (st = visit(arg, &row, e)) != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    return st == ST_END ? ST_OK : st;
}

/* extents ------------------------------------------------------------------------------------------------------------------- */

struct extent_iter {
    struct scan scan;
};

void rows_put_extent(struct store_batch *b, uint64_t job, const struct extent *x)
{
    struct key k = key_extent(job, x->span.begin, x->attempt);
    rowcodec_put(b, STORE_EXTENTS, &k, rowcodec_extent, x, sizeof *x);
}

enum status extent_iter_open(struct store *s, uint64_t job, uint64_t from, struct extent_iter **out, struct err *e)
{
    struct extent_iter *i = mem_zalloc(sizeof *i);
    if (!i)
        return err_nomem(e, "an iterator");
    struct key k = key_extent(job, from, 0), to = key_job_prefix(job + 1);
    enum status st = scan_open(&i->scan, s, STORE_EXTENTS, &k, &to, e);
    if (st == ST_OK)
        *out = i;
    else
        mem_free(i);
    return st;
}

enum status extent_iter_next(struct extent_iter *i, struct extent *out, struct err *e)
{
    struct scan *s = &i->scan;
    TRY(scan_next(s, e));
    struct cursor k = cursor_make(s->key, s->key_len);
    cursor_be64(&k);
    struct extent x = {.span.begin = cursor_be64(&k)};
    x.attempt = cursor_be32(&k);
    x.span.end = x.span.begin;
    if (k.bad || cursor_left(&k))
        return rowcodec_corrupt(e, STORE_EXTENTS, s->key, s->key_len, "no such key");
    TRY(rowcodec_get(STORE_EXTENTS, s->key, s->key_len, s->value, s->value_len, rowcodec_extent, &x, e));
    *out = x;
    return ST_OK;
}

void extent_iter_close(struct extent_iter *i)
{
    if (!i)
        return;
    store_iter_close(i->scan.it);
    mem_free(i);
}

/* events -------------------------------------------------------------------------------------------------------------------- */

void rows_add_event(struct store_batch *b, uint64_t job, uint64_t number, int64_t wall_ms, const char *text)
{
    struct key k = key_event(job, number);
    struct event_row row = {.wall_ms = wall_ms};
    snprintf(row.text, sizeof row.text, "%s", text);
    rowcodec_put(b, STORE_EVENTS, &k, rowcodec_event, &row, sizeof row);
}

enum status rows_trim_events(struct store *s, struct store_batch *b, uint64_t job, uint32_t cap, struct err *e)
{
    struct scan scan;
    enum status st;
    uint64_t count = 0;
    TRY(scan_job(&scan, s, STORE_EVENTS, job, e));
    while ((st = scan_next(&scan, e)) == ST_OK)
        count++;
    store_iter_close(scan.it);
    if (st != ST_END || count <= cap)
        return st == ST_END ? ST_OK : st;
    uint64_t drop = count - cap;
    TRY(scan_job(&scan, s, STORE_EVENTS, job, e));
    while (drop-- && (st = scan_next(&scan, e)) == ST_OK)
        store_del(b, STORE_EVENTS, scan.key, scan.key_len);
    store_iter_close(scan.it);
    return st == ST_END ? ST_OK : st;
}

enum status rows_each_event(struct store *s, uint64_t job,
                            enum status (*visit)(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e), void *arg,
                            struct err *e)
{
    struct scan scan;
    enum status st;
    TRY(scan_job(&scan, s, STORE_EVENTS, job, e));
    while ((st = scan_next(&scan, e)) == ST_OK) {
        struct cursor k = cursor_make(scan.key, scan.key_len);
        cursor_be64(&k);
        uint64_t number = cursor_be64(&k);
        struct event_row row = {0};
        if (k.bad || cursor_left(&k)) {
            st = rowcodec_corrupt(e, STORE_EVENTS, scan.key, scan.key_len, "no such key");
            break;
        }
        st = rowcodec_get(STORE_EVENTS, scan.key, scan.key_len, scan.value, scan.value_len, rowcodec_event, &row, e);
        if (st != ST_OK || (st = visit(arg, number, row.wall_ms, row.text, e)) != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    return st == ST_END ? ST_OK : st;
}
