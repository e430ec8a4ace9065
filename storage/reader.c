/* The happy path: the window holds bytes of the source from the record being looked at on; row_end looks for its end in what has
   not been scanned, filling the window as it needs; reader_next makes a record of it and moves on.

   What can come between: a record longer than it may be is dropped as it passes (`dropping`); a plain source that was entered in the middle of
   a line loses the rest of that line first (`skipping`); a compressed one is decompressed from its start up to where it is
   entered; a stream that is truncated or damaged ends with one record that says so. Offsets are told to the caller never beyond `to`
   (`told`), so that a record that runs past the end of a span leaves the position at that end. */
#include "storage/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/csv.h"
#include "storage/fixed.h"
#include "storage/inflate.h"
#include "storage/lines.h"
#include "storage/utf8.h"

#define BLOCK (128 * 1024)       /* bytes read or decompressed at once */
#define MAX_RECORD (16 << 20)    /* by default */

struct mark {                    /* what a compressed source had taken at rest for its bytes before `offset` */
    uint64_t offset, consumed;
};

struct reader {
    char *path;
    struct source source;
    enum format format;
    uint64_t max;                /* bytes of a record */
    uint64_t from;
    struct inflate *in;
    struct fixed *fixed;         /* images and arrays: reads in the place of all that follows */

    char *data;                  /* the window: [begin, end) of it are bytes of the source from window_offset on */
    size_t cap, begin, end;
    uint64_t window_offset;
    size_t scanned;              /* bytes of the window known to hold no end of the record */
    struct csv_scan csv;

    uint64_t start;              /* offset of the record being looked at */
    uint64_t lines;              /* line ends in [from, start) */
    uint64_t lines_before;       /* the same without those of the last record */
    int arrived;                 /* the window stands at or behind `from` */
    int skipping;                /* inside a line that began before `from` */
    int header;                  /* the next row is the header */
    int dropping, dropped_open;  /* the record is too long; a quote was open when that was seen */
    uint64_t dropped_lines;      /* line ends of it that are dropped already */
    size_t bom;                  /* bytes of it before the first record */
    int fault_given;
    uint64_t told;               /* reader_position */

    struct mark *marks;          /* compressed only: those behind `passed`, in order */
    size_t mark_first, mark_count, mark_cap;
    struct mark passed;          /* the last one at or before `told` */
    uint64_t entered;            /* bytes at rest before `from` */
};

const char *record_error_code(enum record_error error)
{
    static const char *const codes[] = {
#define X(name, code, words) [RECORD_##name] = code,
        RECORD_ERROR_MAP(X)
#undef X
    };
    return codes[error];
}

static int is_csv(const struct reader *r)
{
    return r->format == FORMAT_CSV || r->format == FORMAT_TSV;
}

static uint64_t window_end(const struct reader *r)
{
    return r->window_offset + (r->end - r->begin);
}

enum status reader_open(const struct source *s, const struct reader_opts *o, uint64_t from, struct reader **out, struct err *e)
{
    BUG_IF(o->format == FORMAT_AUTO, "a reader of '%s' without a format", s->path);
    struct reader *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_nomem(e, "reading a source");
    if (fixed_format(o->format)) {
        r->source = *s;
        r->source.path = NULL; /* it has its own */
        r->from = from;
        enum status opened = fixed_open(s, o, from, &r->fixed, e);
        if (opened == ST_OK)
            *out = r;
        else
            reader_close(r);
        return opened;
    }
    r->path = mem_strdup(s->path);
    r->data = mem_alloc(2 * BLOCK);
    if (!r->path || !r->data) {
        reader_close(r);
        return err_nomem(e, "reading a source");
    }
    r->source = *s;
    r->source.path = r->path;
    r->format = o->format;
    r->max = o->max_record_bytes ? o->max_record_bytes : MAX_RECORD;
    if (r->max > SIZE_MAX / 4)
        r->max = SIZE_MAX / 4;
    r->cap = 2 * BLOCK;
    r->csv.delimiter = o->format == FORMAT_TSV ? '\t' : ',';
    r->from = r->start = r->told = from;
    r->header = is_csv(r) && from == 0;
    int compressed = s->compression != COMPRESSION_NONE;
    /* a record begins at 0 or behind '\n': the byte before `from` says whether one begins at `from` */
    r->skipping = !compressed && !is_csv(r) && from > 0;
    r->arrived = !compressed;
    r->window_offset = compressed ? 0 : from - (uint64_t)r->skipping;
    enum status status = inflate_open(&r->source, r->window_offset, &r->in, e);
    if (status != ST_OK) {
        reader_close(r);
        return status;
    }
    *out = r;
    return ST_OK;
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    fixed_close(r->fixed);
    inflate_close(r->in);
    mem_free(r->marks);
    mem_free(r->data);
    mem_free(r->path);
    mem_free(r);
}

/* Room for a block behind the window. What is moved is never more than what was consumed since the last move. */
static enum status make_room(struct reader *r, struct err *e)
{
    if (r->begin == r->end)
        r->begin = r->end = 0;
    if (r->cap - r->end >= BLOCK)
        return ST_OK;
    size_t len = r->end - r->begin;
    if (len <= r->cap / 2 && r->cap - len >= BLOCK) {
        memmove(r->data, r->data + r->begin, len);
        r->begin = 0;
        r->end = len;
        return ST_OK;
    }
    if (r->cap > SIZE_MAX / 2)
        return err_nomem(e, "a record");
    char *p = mem_resize(r->data, r->cap * 2);
    if (!p)
        return err_nomem(e, "a record");
    r->data = p;
    r->cap *= 2;
    return ST_OK;
}

static enum status add_mark(struct reader *r, struct err *e)
{
    if (r->mark_first && r->mark_first == r->mark_count)
        r->mark_first = r->mark_count = 0;
    if (r->mark_first > 64 && r->mark_first > r->mark_count / 2) {
        r->mark_count -= r->mark_first;
        memmove(r->marks, r->marks + r->mark_first, r->mark_count * sizeof *r->marks);
        r->mark_first = 0;
    }
    void *items = r->marks;
    int failed = mem_grow(&items, &r->mark_cap, r->mark_count, sizeof *r->marks);
    r->marks = items;
    if (failed)
        return err_nomem(e, "reading a compressed source");
    r->marks[r->mark_count++] = (struct mark){window_end(r), inflate_consumed(r->in)};
    return ST_OK;
}

static enum status fill(struct reader *r, struct err *e)
{
    TRY(make_room(r, e));
    if (r->source.compression != COMPRESSION_NONE)
        TRY(add_mark(r, e));
    size_t got;
    TRY(inflate_read(r->in, r->data + r->end, BLOCK, &got, e));
    r->end += got;
    return ST_OK;
}

static void drop(struct reader *r, size_t len)
{
    r->begin += len;
    r->window_offset += len;
    r->scanned = 0;
}

/* Tells the caller that everything before `offset` was given, though never a place beyond `to`. */
static void tell(struct reader *r, uint64_t offset, uint64_t to)
{
    uint64_t told = offset < to ? offset : to;
    r->told = told > r->from ? told : r->from;
    while (r->mark_first < r->mark_count && r->marks[r->mark_first].offset <= r->told)
        r->passed = r->marks[r->mark_first++];
}

/* Decompresses and throws away what lies before `from`. */
static enum status arrive(struct reader *r, struct err *e)
{
    while (window_end(r) < r->from && !inflate_ended(r->in)) {
        drop(r, r->end - r->begin);
        TRY(fill(r, e));
        while (r->mark_count - r->mark_first > 1 && r->marks[r->mark_first + 1].offset <= r->from)
            r->mark_first++;
    }
    uint64_t left = r->from > r->window_offset ? r->from - r->window_offset : 0;
    drop(r, left < r->end - r->begin ? (size_t)left : r->end - r->begin);
    /* a fault before `from` was given by whoever read up to there: its record ends one byte behind the fault */
    r->fault_given = window_end(r) < r->from;
    tell(r, r->from, r->from);
    r->entered = inflate_ended(r->in) && window_end(r) <= r->from ? r->source.size_bytes : r->passed.consumed;
    r->arrived = 1;
    return ST_OK;
}

/* Loses the rest of the line that `from` lies in. It stops at `to`: however long the line, each span reads its own bytes only. */
static enum status skip(struct reader *r, uint64_t to, struct err *e)
{
    while (r->skipping) {
        size_t used;
        int found = lines_scan(r->data + r->begin, r->end - r->begin, &used);
        drop(r, used);
        if (found) {
            r->start = r->window_offset;
            r->lines = r->start > r->from; /* the '\n' before `from` does not count */
            r->lines_before = 0;
            r->skipping = 0;
        } else if (r->window_offset + 1 >= to || inflate_ended(r->in)) {
            r->start = r->window_offset;
            if (inflate_ended(r->in)) /* the line was the last and has no end */
                r->skipping = 0;
            break;
        } else {
            TRY(fill(r, e));
        }
    }
    return ST_OK;
}

struct row {
    size_t held;    /* bytes of it in the window, with its line end */
    size_t newline; /* 1: it has one */
    int none;       /* the source ended before it began */
};

/* Where the record that begins at `start` ends. */
static enum status row_end(struct reader *r, struct row *row, struct err *e)
{
    *row = (struct row){0};
    if (r->start == 0 && r->scanned == 0 && !r->dropping) { /* a BOM is no part of the text, nor of a first field in quotes */
        while (r->end - r->begin < 3 && !inflate_ended(r->in))
            TRY(fill(r, e));
        r->bom = r->end - r->begin >= 3 && !memcmp(r->data + r->begin, "\xef\xbb\xbf", 3) ? 3 : 0;
        r->scanned = r->bom;
    }
    const size_t most = (size_t)r->max + r->bom;
    for (;;) {
        const char *p = r->data + r->begin + r->scanned;
        size_t n = r->end - r->begin - r->scanned, used;
        /* look no further than the longest record: what is too long, and where reading goes on behind it, must not depend on blocks */
        if (!r->dropping && n > most + 1 - r->scanned)
            n = most + 1 - r->scanned;
        int found = is_csv(r) && !r->dropping ? csv_scan(&r->csv, p, n, &used) : lines_scan(p, n, &used);
        r->scanned += used;
        if (found) {
            row->held = r->scanned;
            row->newline = 1;
            return ST_OK;
        }
        if (!r->dropping && r->scanned > most) {
            r->dropping = 1;
            r->dropped_open = is_csv(r) && (r->csv.state == CSV_QUOTED || r->csv.state == CSV_QUOTE);
            r->csv.state = CSV_START;
            r->scanned = most;
            r->dropped_lines = 0;
            continue;
        }
        if (r->dropping) {
            if (is_csv(r))
                r->dropped_lines += lines_count(r->data + r->begin, r->scanned);
            drop(r, r->scanned);
            if (r->begin < r->end)
                continue;
        }
        if (inflate_ended(r->in)) {
            row->held = r->end - r->begin;
            row->none = row->held == r->bom && !r->dropping;
            return ST_OK;
        }
        TRY(fill(r, e));
    }
}

static void say(struct raw *out, enum record_error error, const char *fmt, ...) PRINTF(3, 4);
static void say(struct raw *out, enum record_error error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->message, sizeof out->message, fmt, ap);
    va_end(ap);
    utf8_tidy(out->message);
    out->error = error;
    out->data = "";
    out->len = 0;
}

/* Fills `out` from the row, and moves behind it. */
static void take(struct reader *r, const struct row *row, struct raw *out)
{
    const char *words;
    enum inflate_fault fault = row->newline ? INFLATE_SOUND : inflate_fault(r->in, &words);
    uint64_t lines = row->newline;
    if (is_csv(r))
        lines = r->dropped_lines + lines_count(r->data + r->begin, row->held);
    out->offset = r->start;
    out->end = r->window_offset + row->held;
    out->line = r->lines;
    out->error = RECORD_NONE;
    out->message[0] = 0;
    out->data = r->data + r->begin + r->bom;
    out->len = row->held - row->newline;
    out->len -= out->len >= r->bom ? r->bom : out->len;
    if (fault != INFLATE_SOUND) {
        out->end++; /* a record is never empty, and nobody who enters behind it finds the fault again */
        say(out, fault == INFLATE_TRUNCATED ? RECORD_TRUNCATED : RECORD_DAMAGED, "%s", words);
        r->fault_given = 1;
    } else if (r->dropping) {
        uint64_t bytes = out->end - out->offset - row->newline;
        say(out, RECORD_TOO_LONG, "%" PRIu64 " bytes, a record may have %" PRIu64 "%s", bytes, r->max,
            r->dropped_open ? "; it holds a quote that is not closed, reading goes on at the next line" : "");
    } else if (is_csv(r) && (r->csv.state == CSV_QUOTED)) {
        say(out, RECORD_BAD_QUOTES, "a quote is opened in this row and not closed before the end of the source, %" PRIu64 " lines on",
            lines);
    } else if (out->len && out->data[out->len - 1] == '\r') {
        out->len--;
    }
    drop(r, row->held);
    r->start = out->end;
    r->lines_before = r->lines;
    r->lines += lines;
    r->csv.state = CSV_START;
    r->dropping = 0;
    r->dropped_lines = 0;
    r->bom = 0;
}

static int is_blank(const struct reader *r, const struct raw *raw)
{
    if (raw->error != RECORD_NONE)
        return 0;
    switch (r->format) {
    case FORMAT_JSONL:
        return lines_blank(raw->data, raw->len);
    case FORMAT_CSV:
    case FORMAT_TSV:
        return raw->len == 0;
    default:
        return 0;
    }
}

enum status reader_next(struct reader *r, uint64_t to, struct raw *out, struct err *e)
{
    if (r->fixed)
        return fixed_next(r->fixed, to, out, e);
    if (!r->arrived)
        TRY(arrive(r, e));
    if (r->skipping && r->from < to)
        TRY(skip(r, to, e));
    while (!r->skipping && r->start < to) {
        struct row row;
        TRY(row_end(r, &row, e));
        if (row.none && (r->fault_given || inflate_fault(r->in, NULL) == INFLATE_SOUND)) {
            r->start += row.held; /* a BOM with nothing behind it */
            drop(r, row.held);
            r->bom = 0;
            tell(r, r->start, to);
            return ST_END;
        }
        take(r, &row, out);
        tell(r, out->end, to);
        if (is_blank(r, out))
            continue;
        if (r->header && out->error == RECORD_NONE) {
            r->header = 0;
            continue;
        }
        r->header = 0;
        return ST_OK;
    }
    tell(r, r->skipping && r->start < to ? r->start + 1 : r->start, to);
    return ST_END;
}

uint64_t reader_position(const struct reader *r)
{
    return r->fixed ? fixed_position(r->fixed) : r->told;
}

uint64_t reader_lines(const struct reader *r)
{
    return r->fixed ? fixed_lines(r->fixed) : r->told < r->start ? r->lines_before : r->lines;
}

uint64_t reader_bytes(const struct reader *r)
{
    if (r->source.compression == COMPRESSION_NONE)
        return reader_position(r) - r->from;
    if (!r->arrived)
        return 0;
    return (reader_at_end(r) ? r->source.size_bytes : r->passed.consumed) - r->entered;
}

int reader_at_end(const struct reader *r)
{
    if (r->fixed)
        return fixed_at_end(r->fixed);
    if (!r->arrived || r->told < r->start)
        return 0;
    if (r->source.compression == COMPRESSION_NONE)
        return r->told >= r->source.size_bytes;
    return inflate_ended(r->in) && r->begin == r->end && (r->fault_given || inflate_fault(r->in, NULL) == INFLATE_SOUND);
}

enum status reader_boundary(const struct source *s, const struct reader_opts *o, uint64_t from, uint64_t target, uint64_t *at,
                            struct err *e)
{
    if (s->compression == COMPRESSION_NONE && o->format != FORMAT_CSV && o->format != FORMAT_TSV) {
        *at = target < s->size_bytes ? target : s->size_bytes;
        return ST_OK;
    }
    struct reader *r;
    TRY(reader_open(s, o, from, &r, e));
    struct raw raw;
    enum status status;
    do
        status = reader_next(r, UINT64_MAX, &raw, e);
    while (status == ST_OK && raw.offset < target);
    if (status == ST_OK)
        *at = raw.offset;
    else if (status == ST_END)
        *at = reader_position(r);
    reader_close(r);
    return status == ST_END ? ST_OK : status;
}

enum status reader_columns(const struct source *s, const struct reader_opts *o, struct columns *out, struct err *e)
{
    BUG_IF(o->format != FORMAT_CSV && o->format != FORMAT_TSV, "columns of a format that has none");
    struct reader *r;
    TRY(reader_open(s, o, 0, &r, e));
    r->header = 0;
    struct raw raw;
    struct csv_row row = {0};
    struct columns columns = {0};
    enum status status = reader_next(r, UINT64_MAX, &raw, e);
    if (status == ST_END) {
        *out = columns;
        status = ST_OK;
        goto done;
    }
    if (status == ST_OK && raw.error != RECORD_NONE)
        status = err_set(e, ST_USER, "'%s' has no header that can be read: %s", s->path, raw.message);
    if (status == ST_OK && utf8_prefix(raw.data, raw.len) < raw.len)
        status = err_set(e, ST_USER, "the header of '%s' is not valid UTF-8 at byte %zu: convert it with iconv first", s->path,
                         utf8_prefix(raw.data, raw.len) + 1);
    if (status == ST_OK)
        status = csv_parse(&row, raw.data, raw.len, r->csv.delimiter, SIZE_MAX, e);
    if (status != ST_OK)
        goto done;
    if (row.bad) {
        status = err_set(e, ST_USER, "the header of '%s' has text behind the closing quote of column %zu", s->path, row.bad);
        goto done;
    }
    columns.names = mem_array(row.count, sizeof *columns.names);
    if (!columns.names)
        status = err_nomem(e, "the names of columns");
    while (status == ST_OK && columns.count < row.count) {
        const struct csv_field *f = &row.fields[columns.count];
        columns.names[columns.count] = mem_strndup(f->data, f->len);
        if (!columns.names[columns.count])
            status = err_nomem(e, "the names of columns");
        else
            columns.count++;
    }
    if (status == ST_OK)
        *out = columns;
    else
        columns_release(&columns);
done:
    csv_release(&row);
    reader_close(r);
    return status;
}

void columns_release(struct columns *c)
{
    for (size_t i = 0; i < c->count; i++)
        mem_free(c->names[i]);
    mem_free(c->names);
    *c = (struct columns){0};
}
