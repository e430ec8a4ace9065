/* Rows as bytes. Each kind has one function that tells its fields in order; run one way it writes, run the other way it reads, so
   that the two cannot drift apart. A value that does not read is ST_CORRUPT naming family and key, never a guess. */
#include "storage/rowcodec.h"

#include <stdio.h>
#include <string.h>

#include "storage/store_ops.h"

/* One direction at a time: in is NULL when writing. */
struct codec {
    struct buf out;
    struct cursor *in;
    int failed; /* reading: a value out of range; writing: memory is out */
    uint8_t version;
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

void rowcodec_job(struct codec *c, void *row)
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
    if (c->version < 2) {
        p->guaranteed_ppm = 0;
        p->deadline_ms = 0;
    } else {
        field_u32(c, &p->guaranteed_ppm);
        field_i64(c, &p->deadline_ms);
    }
    if (c->version < 3)
        p->stages = 0;
    else
        field_u32(c, &p->stages);
}

void rowcodec_span(struct codec *c, void *row)
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

void rowcodec_extent(struct codec *c, void *row)
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

void rowcodec_event(struct codec *c, void *row)
{
    struct event_row *r = row;
    field_i64(c, &r->wall_ms);
    field_text(c, r->text, sizeof r->text);
}

void rowcodec_number(struct codec *c, void *row)
{
    field_u64(c, row);
}

static uint8_t newest(rowcodec_fn *fields)
{
    return fields == rowcodec_job ? ROW_VERSION_JOB : ROW_VERSION;
}

void rowcodec_put(struct store_batch *b, enum store_cf cf, const struct key *k, rowcodec_fn *fields, const void *row, size_t size)
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
    struct codec c = {.version = newest(fields)};
    if (buf_char(&c.out, (char)c.version))
        c.failed = 1;
    fields(&c, &copy);
    if (c.failed)
        store_batch_fail(b);
    else
        store_put(b, cf, k->bytes, k->len, c.out.data, c.out.len);
    buf_release(&c.out);
}

enum status rowcodec_corrupt(struct err *e, enum store_cf cf, const void *key, size_t key_len, const char *what)
{
    char hex[2 * 24 + 1] = "";
    for (size_t i = 0; i < key_len && i < 24; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((const uint8_t *)key)[i]);
    return err_set(e, ST_CORRUPT, "damaged row in '%s', key %s: %s", store_cf_name(cf), hex, what);
}

/* Reads the version, at most `most`; the payload is what *in has left. */
static enum status open_up_to(uint8_t most, uint8_t *out, struct cursor *in, enum store_cf cf, const void *key, size_t key_len, const void *value,
                              size_t value_len, struct err *e)
{
    *in = cursor_make(value, value_len);
    uint8_t version = cursor_u8(in);
    if (in->bad)
        return rowcodec_corrupt(e, cf, key, key_len, "empty");
    if (!version || version > most) {
        char what[80];
        snprintf(what, sizeof what, "version %u, and this program knows version %u", version, most);
        return rowcodec_corrupt(e, cf, key, key_len, what);
    }
    *out = version;
    return ST_OK;
}

enum status rowcodec_open(struct cursor *in, enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len,
                              struct err *e)
{
    uint8_t version;
    return open_up_to(ROW_VERSION, &version, in, cf, key, key_len, value, value_len, e);
}

enum status rowcodec_get(enum store_cf cf, const void *key, size_t key_len, const void *value, size_t value_len, rowcodec_fn *fields,
                           void *row, struct err *e)
{
    struct cursor in;
    struct codec c = {.in = &in};
    TRY(open_up_to(newest(fields), &c.version, &in, cf, key, key_len, value, value_len, e));
    fields(&c, row);
    if (in.bad)
        return rowcodec_corrupt(e, cf, key, key_len, "it ends too early");
    if (c.failed)
        return rowcodec_corrupt(e, cf, key, key_len, "a value out of range");
    if (cursor_left(&in))
        return rowcodec_corrupt(e, cf, key, key_len, "bytes behind its end");
    return ST_OK;
}
