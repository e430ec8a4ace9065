/* Rows as bytes. Each kind has one function that tells its fields in order; run one way it writes, run the other way it reads, so
   that the two cannot drift apart. A value that does not read is ST_CORRUPT naming family and key, never a guess. */
#include "storage/rows.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/key.h"
#include "storage/store_ops.h"

#define ROW_VERSION 1

/* One direction at a time: in is NULL when writing. */
struct codec {
    struct buf out;
    struct cursor *in;
    int failed; /* reading: a value out of range; writing: memory is out */
};

static void field_u64(struct codec *c, uint64_t *v)
{
    if (c->in)
        *v = cursor_varint(c->in);
    else if (buf_varint(&c->out, *v))
        c->failed = 1;
}

static uint64_t field_upto(struct codec *c, uint64_t v, uint64_t most)
{
    field_u64(c, &v);
    if (v > most) {
        c->failed = 1;
        return 0;
    }
    return v;
}

static void field_u32(struct codec *c, uint32_t *v)
{
    *v = (uint32_t)field_upto(c, *v, UINT32_MAX);
}

static void field_u16(struct codec *c, uint16_t *v)
{
    *v = (uint16_t)field_upto(c, *v, UINT16_MAX);
}

static void field_u8(struct codec *c, uint8_t *v)
{
    *v = (uint8_t)field_upto(c, *v, UINT8_MAX);
}

static void field_i64(struct codec *c, int64_t *v) /* zigzag */
{
    uint64_t z = (uint64_t)*v << 1 ^ (*v < 0 ? UINT64_MAX : 0);
    field_u64(c, &z);
    *v = (int64_t)(z >> 1 ^ (0 - (z & 1)));
}

static void field_i32(struct codec *c, int32_t *v)
{
    int64_t wide = *v;
    field_i64(c, &wide);
    if (wide < INT32_MIN || wide > INT32_MAX)
        c->failed = 1;
    else
        *v = (int32_t)wide;
}

/* The end of a span whose begin stands in the key. */
static void field_end(struct codec *c, struct span *s)
{
    uint64_t len = s->end - s->begin;
    field_u64(c, &len);
    if (len > UINT64_MAX - s->begin)
        c->failed = 1;
    else
        s->end = s->begin + len;
}

static void field_text(struct codec *c, char *text, size_t size)
{
    uint64_t len = c->in ? 0 : strnlen(text, size - 1);
    len = field_upto(c, len, size - 1);
    if (c->in) {
        const uint8_t *p = cursor_bytes(c->in, (size_t)len);
        if (!p)
            len = 0;
        else if (len)
            memcpy(text, p, (size_t)len);
        text[len] = 0;
    } else if (buf_add(&c->out, text, (size_t)len))
        c->failed = 1;
}

static void fields_job(struct codec *c, void *row)
{
    struct job_row *r = row;
    r->state = (enum job_state)field_upto(c, r->state, JOB_CANCELED);
    struct job_params *p = &r->params;
    field_u32(c, &p->weight);
    field_i32(c, &p->priority);
    field_u64(c, &p->model_key);
    field_u64(c, &p->model_bytes);
    field_u32(c, &p->lease_target_ms);
    field_u32(c, &p->stall_timeout_ms);
    field_u32(c, &p->min_workers);
    field_u32(c, &p->max_workers);
    field_u64(c, &p->max_errors);
    field_u32(c, &p->max_errors_ppm);
    field_u32(c, &p->max_attempts);
    struct job_counts *n = &r->counts;
    field_u64(c, &n->records);
    field_u64(c, &n->rows);
    field_u64(c, &n->errors);
    field_u64(c, &n->quarantined);
    field_u64(c, &n->bytes);
    field_u64(c, &n->extents);
    field_u64(c, &n->redone);
    field_u32(c, &r->attempt);
    field_u32(c, &r->numerics);
    field_i64(c, &r->submitted_ms);
    field_i64(c, &r->finished_ms);
    field_text(c, r->reason, sizeof r->reason);
}

static void fields_span(struct codec *c, void *row)
{
    struct span_row *r = row;
    field_end(c, &r->span);
    r->state = (enum span_state)field_upto(c, r->state, SPAN_LEASED);
    field_u64(c, &r->worker);
    field_u64(c, &r->epoch);
    field_u64(c, &r->next_seq);
    field_u16(c, &r->attempts);
    field_u16(c, &r->losses);
    field_u8(c, &r->probe);
    field_u8(c, &r->crashes);
    field_u64(c, &r->crash_host);
}

static void fields_extent(struct codec *c, void *row)
{
    struct extent *x = row;
    field_end(c, &x->span);
    field_u64(c, &x->epoch);
    field_u64(c, &x->seq);
    field_u32(c, &x->part_extents);
    field_u64(c, &x->rows_at);
    field_u64(c, &x->rows_bytes);
    field_u64(c, &x->aux_bytes);
    field_u64(c, &x->errors_bytes);
    field_u64(c, &x->records);
    field_u64(c, &x->rows);
    field_u64(c, &x->errors);
    field_u64(c, &x->lines);
    field_u64(c, &x->bytes);
    field_text(c, x->reason, sizeof x->reason);
}

struct event_row {
    int64_t wall_ms;
    char text[512];
};

static void fields_event(struct codec *c, void *row)
{
    struct event_row *r = row;
    field_i64(c, &r->wall_ms);
    field_text(c, r->text, sizeof r->text);
}

static void fields_u64(struct codec *c, void *row)
{
    field_u64(c, row);
}

typedef void fields_fn(struct codec *c, void *row);

static void put_row(struct store_batch *b, enum store_cf cf, const struct key *k, fields_fn *fields, const void *row, size_t size)
{
    union { /* fields may write what they read back: a copy, since the caller's row is const */
        struct job_row job;
        struct span_row span;
        struct extent extent;
        struct event_row event;
        uint64_t number;
    } copy;
    BUG_IF(size > sizeof copy, "a row of %zu bytes", size);
    memcpy(&copy, row, size);
    struct codec c = {.failed = 0};
    if (buf_char(&c.out, ROW_VERSION))
        c.failed = 1;
    fields(&c, &copy);
    if (c.failed)
        store_batch_fail(b);
    else
        store_put(b, cf, k->bytes, k->len, c.out.data, c.out.len);
    buf_release(&c.out);
}

static enum status corrupt(struct err *e, enum store_cf cf, const void *key, size_t key_len, const char *what)
{
    char hex[2 * 24 + 1] = "";
    for (size_t i = 0; i < key_len && i < 24; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((const uint8_t *)key)[i]);
    return err_set(e, ST_CORRUPT, "damaged row in '%s', key %s: %s", store_cf_name(cf), hex, what);
}

/* Reads the version; the payload is what *in has left. */
static enum status open_value(struct cursor *in, enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len,
                              struct err *e)
{
    *in = cursor_make(value, value_len);
    uint8_t version = cursor_u8(in);
    if (in->bad)
        return corrupt(e, cf, key, key_len, "empty");
    if (version != ROW_VERSION) {
        char what[80];
        snprintf(what, sizeof what, "version %u, and this program knows version %d", version, ROW_VERSION);
        return corrupt(e, cf, key, key_len, what);
    }
    return ST_OK;
}

static enum status get_row(enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len, fields_fn *fields,
                           void *row, struct err *e)
{
    struct cursor in;
    TRY(open_value(&in, cf, key, key_len, value, value_len, e));
    struct codec c = {.in = &in};
    fields(&c, row);
    if (in.bad)
        return corrupt(e, cf, key, key_len, "it ends too early");
    if (c.failed)
        return corrupt(e, cf, key, key_len, "a value out of range");
    if (cursor_left(&in))
        return corrupt(e, cf, key, key_len, "bytes behind its end");
    return ST_OK;
}

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
        st = get_row(STORE_META, name, strlen(name), v.data, v.len, fields_u64, out, e);
        if (st == ST_OK && *out > most)
            st = corrupt(e, STORE_META, name, strlen(name), "a value out of range");
    }
    buf_release(&v);
    return st;
}

static void put_number(struct store_batch *b, const char *name, uint64_t v)
{
    struct key k = {.len = strlen(name)};
    memcpy(k.bytes, name, k.len);
    put_row(b, STORE_META, &k, fields_u64, &v, sizeof v);
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
    put_row(b, STORE_JOBS, &k, fields_job, row, sizeof *row);
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
    TRY(open_value(&in, STORE_JOBS, k->bytes, k->len, out->data, out->len, e));
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
            st = corrupt(e, STORE_JOBS, scan.key, scan.key_len, "no such key");
            break;
        }
        if (kind != KEY_JOB_ROW)
            continue;
        st = get_row(STORE_JOBS, scan.key, scan.key_len, scan.value, scan.value_len, fields_job, &row, e);
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
            st = corrupt(e, STORE_SOURCES, scan.key, scan.key_len, "a chunk is missing before it");
            break;
        }
        st = open_value(&in, STORE_SOURCES, scan.key, scan.key_len, scan.value, scan.value_len, e);
        if (st != ST_OK)
            break;
        st = dataset_decode_chunk(&d, in.p, cursor_left(&in), e);
        if (st == ST_CORRUPT) {
            struct err why = e ? *e : (struct err){0};
            st = corrupt(e, STORE_SOURCES, scan.key, scan.key_len, why.text);
        }
        if (st != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    if (st == ST_END)
        st = n ? dataset_finish(&d, e) : err_set(e, ST_NOT_FOUND, "job %llu has no sources", (unsigned long long)job);
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
    put_row(b, STORE_SPANS, &k, fields_span, row, sizeof *row);
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
            st = corrupt(e, STORE_SPANS, scan.key, scan.key_len, "no such key");
            break;
        }
        st = get_row(STORE_SPANS, scan.key, scan.key_len, scan.value, scan.value_len, fields_span, &row, e);
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
    put_row(b, STORE_EXTENTS, &k, fields_extent, x, sizeof *x);
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
        return corrupt(e, STORE_EXTENTS, s->key, s->key_len, "no such key");
    TRY(get_row(STORE_EXTENTS, s->key, s->key_len, s->value, s->value_len, fields_extent, &x, e));
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
    put_row(b, STORE_EVENTS, &k, fields_event, &row, sizeof row);
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
            st = corrupt(e, STORE_EVENTS, scan.key, scan.key_len, "no such key");
            break;
        }
        st = get_row(STORE_EVENTS, scan.key, scan.key_len, scan.value, scan.value_len, fields_event, &row, e);
        if (st != ST_OK || (st = visit(arg, number, row.wall_ms, row.text, e)) != ST_OK)
            break;
    }
    store_iter_close(scan.it);
    return st == ST_END ? ST_OK : st;
}
