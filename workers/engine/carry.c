#include "workers/engine/carry.h"

#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/tensor.h"

enum { STEP = 8 };

/* Writing ------------------------------------------------------------------------------------------------------------------------------- */

static int pad(struct buf *b)
{
    static const char zeros[STEP];
    return b->len % STEP ? buf_add(b, zeros, STEP - b->len % STEP) : 0;
}

static enum status done(int r, struct err *e)
{
    return r == 0 ? ST_OK : err_nomem(e, "what crosses a cut");
}

enum status carry_begin(struct carry_out *o, uint64_t check, uint32_t records, struct err *e)
{
    buf_clear(&o->b);
    o->runs = 0;
    return done(buf_le64(&o->b, check) || buf_le32(&o->b, records) || buf_le32(&o->b, 0), e);
}

static int begin_run(struct carry_out *o, uint32_t n, const uint32_t *records, size_t error_len)
{
    int r = buf_le32(&o->b, n) || buf_le32(&o->b, (uint32_t)error_len);
    for (uint32_t i = 0; i < n && !r; i++)
        r = buf_le32(&o->b, records[i]);
    o->runs++;
    return r || pad(&o->b);
}

enum status carry_run(struct carry_out *o, uint32_t n, const uint32_t *records, struct err *e)
{
    return done(begin_run(o, n, records, 0), e);
}

enum status carry_error(struct carry_out *o, uint32_t record, const char *text, struct err *e)
{
    const char *said = *text ? text : "it does not go through the model";
    return done(begin_run(o, 1, &record, strlen(said)) || buf_str(&o->b, said) || pad(&o->b), e);
}

enum status carry_sizes(struct carry_out *o, uint32_t n, const int64_t *sizes, struct err *e)
{
    int r = 0;
    for (uint32_t i = 0; i < n && !r; i++)
        r = buf_le64(&o->b, (uint64_t)sizes[i]);
    return done(r, e);
}

static int put_strings(struct buf *b, const struct str *s, size_t count)
{
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += STEP + (s[i].len + STEP - 1) / STEP * STEP;
    int r = buf_le64(b, all);
    for (size_t i = 0; i < count && !r; i++)
        r = buf_le64(b, s[i].len) || buf_add(b, s[i].data, s[i].len) || pad(b);
    return r;
}

enum status carry_tensor(struct carry_out *o, const struct array *a, struct err *e)
{
    char head[STEP] = {(char)a->dtype, (char)a->rank};
    int r = buf_add(&o->b, head, sizeof head);
    for (uint32_t i = 0; i < a->rank && !r; i++)
        r = buf_le64(&o->b, (uint64_t)a->dims[i]);
    size_t bytes = carry_bytes(a);
    if (!r && a->dtype == DT_STR)
        r = put_strings(&o->b, a->data, bytes / sizeof(struct str));
    else if (!r && bytes)
        r = buf_add(&o->b, a->data, bytes) || pad(&o->b);
    return done(r, e);
}

void carry_end(struct carry_out *o)
{
    for (int i = 0; i < 4; i++)
        o->b.data[12 + i] = (char)(o->runs >> 8 * i);
}

/* Reading ------------------------------------------------------------------------------------------------------------------------------- */

static enum status corrupt(struct err *e, const char *what)
{
    return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: %s", what);
}

enum status carry_open(struct carry_in *in, const void *data, size_t len, uint64_t check, uint32_t records, struct err *e)
{
    *in = (struct carry_in){.c = cursor_make(data, len), .records = records};
    uint64_t its = cursor_le64(&in->c);
    uint32_t n = cursor_le32(&in->c);
    in->runs = cursor_le32(&in->c);
    if (in->c.bad)
        return corrupt(e, "it ends within its head");
    if (its != check)
        return err_set(e, ST_CORRUPT, "what came from the stage before is of another model, or of another cut of it");
    if (n != records)
        return err_set(e, ST_CORRUPT, "what came from the stage before is of %u records, not %u", n, records);
    in->seen = mem_array((size_t)records + 1, 1);
    in->list = mem_array((size_t)records + 1, sizeof *in->list);
    return in->seen && in->list ? ST_OK : err_nomem(e, "what crosses a cut");
}

void carry_close(struct carry_in *in)
{
    mem_free(in->seen);
    mem_free(in->list);
    *in = (struct carry_in){0};
}

/* Behind what takes `len` bytes. */
static void skip_pad(struct cursor *c, size_t len)
{
    if (len % STEP)
        cursor_bytes(c, STEP - len % STEP);
}

static enum status all_there(const struct carry_in *in, struct err *e)
{
    for (uint32_t r = 0; r < in->records; r++)
        if (!in->seen[r])
            return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: record %u is missing", r);
    return cursor_left(&in->c) ? corrupt(e, "there is more than its records") : ST_OK;
}

enum status carry_next(struct carry_in *in, struct carry_run *run, int *more, struct err *e)
{
    struct cursor *c = &in->c;
    *more = in->runs > 0;
    *run = (struct carry_run){.records = in->list};
    if (!*more)
        return all_there(in, e);
    in->runs--;
    run->n = cursor_le32(c);
    run->error_len = cursor_le32(c);
    if (c->bad || !run->n || run->n > in->records || (run->error_len && run->n != 1))
        return corrupt(e, "a run of no records, or of too many");
    for (uint32_t i = 0; i < run->n; i++) {
        uint32_t r = cursor_le32(c);
        if (c->bad || r >= in->records || in->seen[r]++)
            return corrupt(e, "a record that is not of this micro-batch, or is there twice");
        in->list[i] = r;
    }
    skip_pad(c, 4 * (size_t)run->n);
    if (run->error_len) {
        run->error = (const char *)cursor_bytes(c, run->error_len);
        skip_pad(c, run->error_len);
    }
    return c->bad ? corrupt(e, "it ends within a run") : ST_OK;
}

enum status carry_read_sizes(struct carry_in *in, uint32_t n, int64_t *sizes, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        sizes[i] = (int64_t)cursor_le64(&in->c);
        if (in->c.bad || sizes[i] < 0)
            return corrupt(e, "sizes that cannot be");
    }
    return ST_OK;
}

static int skip_strings(struct cursor *c, size_t count, const void **data)
{
    uint64_t all = cursor_le64(c);
    const uint8_t *p = !c->bad && all <= cursor_left(c) ? cursor_bytes(c, (size_t)all) : NULL;
    if (!p)
        return -1;
    struct cursor own = cursor_make(p, (size_t)all);
    for (size_t i = 0; i < count; i++) {
        uint64_t len = cursor_le64(&own);
        if (own.bad || len > cursor_left(&own))
            return -1;
        cursor_bytes(&own, (size_t)len);
        skip_pad(&own, (size_t)len);
        if (own.bad)
            return -1;
    }
    *data = p;
    return cursor_left(&own) ? -1 : 0;
}

enum status carry_read_tensor(struct carry_in *in, const char *name, struct array *out, struct err *e)
{
    struct cursor *c = &in->c;
    const uint8_t *head = cursor_bytes(c, STEP);
    if (!head || head[1] > ARRAY_RANK_MAX || !dtype_bytes((enum dtype)head[0]))
        return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: '%s' has no type", name);
    *out = (struct array){.dtype = (enum dtype)head[0], .rank = head[1]};
    for (uint32_t i = 0; i < out->rank; i++)
        out->dims[i] = (int64_t)cursor_le64(c);
    int64_t bytes = c->bad ? -1 : tensor_size(out->dtype, out->rank, out->dims);
    if (bytes < 0)
        return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: '%s' has sizes that cannot be", name);
    int ok;
    if (out->dtype == DT_STR) {
        ok = (uint64_t)bytes / sizeof(struct str) <= cursor_left(c) / STEP && skip_strings(c, (size_t)bytes / sizeof(struct str), &out->data) == 0;
    } else {
        out->data = (uint64_t)bytes <= cursor_left(c) ? cursor_bytes(c, (size_t)bytes) : NULL;
        ok = out->data != NULL;
        if (ok)
            skip_pad(c, (size_t)bytes);
    }
    if (!ok || c->bad)
        return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: it ends within '%s'", name);
    return ST_OK;
}

size_t carry_bytes(const struct array *a)
{
    return (size_t)tensor_size(a->dtype, a->rank, a->dims);
}

void carry_unpack(const struct array *a, void *to)
{
    size_t bytes = carry_bytes(a), at = 0;
    if (a->dtype != DT_STR) {
        if (bytes)
            memcpy(to, a->data, bytes);
        if (a->dtype == DT_BOOL) /* of nothing but 0 and 1, whoever wrote it */
            for (uint8_t *p = to; at < bytes; at++)
                p[at] = p[at] != 0;
        return;
    }
    struct str *s = to;
    for (size_t i = 0; i < bytes / sizeof *s; i++) {
        uint64_t len;
        memcpy(&len, (const char *)a->data + at, sizeof len);
        s[i] = (struct str){(const char *)a->data + at + STEP, (size_t)len};
        at += STEP + (size_t)(len + STEP - 1) / STEP * STEP;
    }
}
