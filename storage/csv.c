#include "storage/csv.h"

#include <string.h>

#include "base/mem.h"

int csv_scan(struct csv_scan *c, const char *p, size_t len, size_t *used)
{
    const char *at = p, *end = p + len;
    const char *nl = NULL; /* the first line end at or behind `at`; `end` when there is none; NULL: not looked for */
    while (at < end) {
        if (c->state == CSV_QUOTED) {
            const char *quote = memchr(at, '"', (size_t)(end - at));
            if (!quote)
                break;
            c->state = CSV_QUOTE;
            at = quote + 1;
            continue;
        }
        if (c->state == CSV_QUOTE) {
            if (*at == '"') {
                c->state = CSV_QUOTED;
                at++;
                continue;
            }
            c->state = CSV_PLAIN; /* the field is closed: a delimiter or a line end should follow */
        }
        if (!nl || nl < at) {
            nl = memchr(at, '\n', (size_t)(end - at));
            if (!nl)
                nl = end;
        }
        const char *quote = memchr(at, '"', (size_t)(nl - at));
        if (quote) {
            int opens = quote > at ? quote[-1] == c->delimiter : c->state == CSV_START;
            c->state = opens ? CSV_QUOTED : CSV_PLAIN;
            at = quote + 1;
            continue;
        }
        if (nl < end) {
            c->state = CSV_START;
            *used = (size_t)(nl - p) + 1;
            return 1;
        }
        c->state = end[-1] == c->delimiter ? CSV_START : CSV_PLAIN;
        at = end;
    }
    *used = len;
    return 0;
}

static int add_field(struct csv_row *row, const char *data, size_t len, size_t most)
{
    if (row->count++ >= most)
        return 0;
    void *items = row->fields;
    int failed = mem_grow(&items, &row->cap, row->held, sizeof *row->fields);
    row->fields = items;
    if (!failed)
        row->fields[row->held++] = (struct csv_field){data, len};
    return failed;
}

/* The quoted field that opens at p: gives where it ends (at a delimiter or `end`), its text in [*data, *data + *n). */
static const char *quoted(struct csv_row *row, const char *p, const char *end, char delimiter, const char **data, size_t *n)
{
    const char *from = ++p; /* what follows the last copied byte */
    char *out = row->text.data + row->text.len, *begin = out;
    *data = p;
    for (;;) {
        const char *quote = p < end ? memchr(p, '"', (size_t)(end - p)) : NULL;
        if (!quote) { /* never closed */
            if (!row->bad)
                row->bad = row->count + 1;
            *n = (size_t)(end - *data);
            return end;
        }
        if (quote + 1 < end && quote[1] == '"') {
            memcpy(out, from, (size_t)(quote + 1 - from));
            out += quote + 1 - from;
            from = p = quote + 2;
            continue;
        }
        if (out == begin) { /* nothing was doubled: it stands as it is */
            *n = (size_t)(quote - *data);
        } else {
            memcpy(out, from, (size_t)(quote - from));
            out += quote - from;
            *data = begin;
            *n = (size_t)(out - begin);
            row->text.len += *n;
        }
        p = quote + 1;
        if (p < end && *p != delimiter) {
            if (!row->bad)
                row->bad = row->count + 1;
            p = memchr(p, delimiter, (size_t)(end - p));
        }
        return p ? p : end;
    }
}

enum status csv_parse(struct csv_row *row, const char *p, size_t len, char delimiter, size_t most, struct err *e)
{
    const char *end = p + len;
    row->held = row->count = row->bad = 0;
    row->text.len = 0;
    /* text never moves while fields point into it: all of them together are no longer than the row */
    if (buf_reserve(&row->text, len))
        return err_nomem(e, "a row of CSV");
    for (;;) {
        const char *data = p;
        size_t n;
        if (p < end && *p == '"') {
            p = quoted(row, p, end, delimiter, &data, &n);
        } else {
            const char *stop = p < end ? memchr(p, delimiter, (size_t)(end - p)) : NULL;
            p = stop ? stop : end;
            n = (size_t)(p - data);
        }
        if (add_field(row, data, n, most))
            return err_nomem(e, "a row of CSV");
        if (p == end)
            return ST_OK;
        p++;
    }
}

void csv_release(struct csv_row *row)
{
    mem_free(row->fields);
    buf_release(&row->text);
    *row = (struct csv_row){0};
}
