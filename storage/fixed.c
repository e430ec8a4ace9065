/* An empty file is a record too, of one position and no bytes (storage/dataset.c gives it that position), so that it comes out as an error and not as
   nothing. An array whose header cannot be read is one record, with an error, from the source's begin to its end. */
#include "storage/fixed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/source.h"
#include "storage/utf8.h"

#define MAX_RECORD (16 << 20) /* by default, as of other formats */

struct fixed {
    char *path;
    struct source_file in;
    uint64_t max;
    uint64_t first, size; /* of the first record; of each record, in the source's bytes */
    uint64_t end;         /* of the last record */
    uint64_t from, told, next; /* next: the record to give next */
    int empty;
    char *data;
    size_t cap;
    enum record_error error; /* of the only record */
    char message[160];
};

int fixed_format(enum format f)
{
    return f == FORMAT_IMAGES || f == FORMAT_NPY;
}

static enum status read_head(const struct source *s, struct npy *n, struct err *e)
{
    struct source_file in;
    size_t got, want = s->size_bytes < NPY_HEAD_MAX ? (size_t)s->size_bytes : NPY_HEAD_MAX;
    TRY(source_open(s, 0, &in, e));
    char *head = mem_alloc(want + 1);
    enum status st = head ? source_read(&in, head, want, &got, e) : err_nomem(e, "the header of an array");
    source_close(&in);
    if (st == ST_OK) {
        st = npy_parse(head, got, n, e);
        if (st == ST_OK)
            st = npy_check_size(n, s->size_bytes, e);
        if (st == ST_OK && !n->rank)
            st = err_set(e, ST_CORRUPT, "an array without axes has no rows");
        if (st != ST_OK)
            st = e->code = ST_CORRUPT;
    }
    mem_free(head);
    return st;
}

enum status fixed_npy(const struct source *s, struct npy *out, struct err *e)
{
    return read_head(s, out, e);
}

static enum status measure(struct fixed *f, const struct source *s, enum format format, struct err *e)
{
    struct npy n;
    f->empty = !s->size_bytes;
    f->size = f->end = s->size_bytes + (uint64_t)f->empty;
    if (format == FORMAT_IMAGES)
        return ST_OK;
    enum status st = read_head(s, &n, e);
    if (st == ST_CORRUPT) {
        f->error = RECORD_DAMAGED;
        snprintf(f->message, sizeof f->message, "%.*s", (int)sizeof f->message - 1, e->text);
        utf8_tidy(f->message);
        return ST_OK;
    }
    if (st != ST_OK)
        return st;
    f->first = n.data_at;
    f->size = n.row_bytes;
    if (!n.count) /* no rows, or rows of nothing */
        f->first = f->size = f->end;
    return ST_OK;
}

enum status fixed_open(const struct source *s, const struct reader_opts *o, uint64_t from, struct fixed **out, struct err *e)
{
    struct fixed *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_nomem(e, "reading a source");
    f->in.fd = -1;
    f->path = mem_strdup(s->path);
    if (!f->path) {
        fixed_close(f);
        return err_nomem(e, "reading a source");
    }
    f->max = o->max_record_bytes ? o->max_record_bytes : MAX_RECORD;
    enum status st = measure(f, s, o->format, e);
    if (st == ST_OK) {
        struct source named = *s;
        named.path = f->path;
        f->from = f->told = from;
        uint64_t behind = from > f->first ? from - f->first : 0;
        f->next = f->first + (f->size ? (behind + f->size - 1) / f->size * f->size : 0);
        st = source_open(&named, f->next < s->size_bytes ? f->next : s->size_bytes, &f->in, e);
    }
    if (st != ST_OK) {
        fixed_close(f);
        return st;
    }
    *out = f;
    return ST_OK;
}

void fixed_close(struct fixed *f)
{
    if (!f)
        return;
    source_close(&f->in);
    mem_free(f->data);
    mem_free(f->path);
    mem_free(f);
}

static uint64_t rows_before(const struct fixed *f, uint64_t offset)
{
    return f->size && offset > f->first ? (offset - f->first) / f->size : 0;
}

static void tell(struct fixed *f, uint64_t offset, uint64_t to)
{
    uint64_t told = offset < to ? offset : to;
    f->told = told > f->from ? told : f->from;
}

enum status fixed_next(struct fixed *f, uint64_t to, struct raw *out, struct err *e)
{
    if (f->next >= f->end || f->next >= to) {
        tell(f, f->next >= f->end ? f->end : to, to);
        return ST_END;
    }
    *out = (struct raw){.offset = f->next, .end = f->next + f->size, .data = "", .error = f->error};
    out->line = f->first ? rows_before(f, f->next) - rows_before(f, f->from) : 0;
    snprintf(out->message, sizeof out->message, "%s", f->message);
    if (f->size > f->max && !f->error) {
        snprintf(out->message, sizeof out->message, "%" PRIu64 " bytes, a record may have %" PRIu64, f->size, f->max);
        out->error = RECORD_TOO_LONG;
    }
    size_t want = out->error || f->empty ? 0 : (size_t)f->size, got;
    if (want > f->cap) {
        mem_free(f->data);
        f->data = mem_alloc(want);
        f->cap = f->data ? want : 0;
        if (!f->data)
            return err_nomem(e, "a record");
    }
    for (size_t have = 0; have < want; have += got) {
        enum status st = source_read(&f->in, f->data + have, want - have, &got, e);
        if (st != ST_OK) /* whoever reads on opens the source anew */
            return st;
    }
    if (want) {
        out->data = f->data;
        out->len = want;
    }
    f->next = out->end;
    tell(f, f->next, to);
    return ST_OK;
}

uint64_t fixed_position(const struct fixed *f)
{
    return f->told;
}

uint64_t fixed_lines(const struct fixed *f)
{
    return f->first ? rows_before(f, f->told) - rows_before(f, f->from) : 0;
}

int fixed_at_end(const struct fixed *f)
{
    return f->told >= f->end;
}
