#include "storage/errline.h"

#include <inttypes.h>
#include <string.h>

#include "storage/utf8.h"

int errline_string(struct buf *out, const char *s, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    size_t before = out->len;
    int failed = buf_char(out, '"');
    while (len && !failed) {
        size_t good = utf8_prefix(s, len);
        for (size_t i = 0; i < good && !failed; i++) {
            unsigned char c = (unsigned char)s[i];
            if (c == '"' || c == '\\')
                failed = buf_char(out, '\\') || buf_char(out, (char)c);
            else if (c < 0x20) {
                char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
                failed = c == '\n' ? buf_str(out, "\\n") : c == '\t' ? buf_str(out, "\\t") : c == '\r' ? buf_str(out, "\\r")
                                                                                                      : buf_add(out, u, sizeof u);
            } else
                failed = buf_char(out, (char)c);
        }
        s += good;
        len -= good;
        if (len && !failed) {
            failed = buf_str(out, "\xef\xbf\xbd");
            s++;
            len--;
        }
    }
    failed = failed || buf_char(out, '"');
    if (failed)
        out->len = before;
    return failed ? -1 : 0;
}

int errline_write(struct buf *out, const struct errline *x)
{
    size_t before = out->len;
    int failed = buf_printf(out, "{\"begin\":%" PRIu64 ",\"end\":%" PRIu64 ",\"source\":%" PRIu64 ",\"line\":%" PRIu64 ",\"row\":%" PRIu64
                                 ",\"code\":",
                            x->record.begin, x->record.end, x->source, x->line, x->row) ||
                 errline_string(out, x->code, x->code_len) || buf_str(out, ",\"message\":") ||
                 errline_string(out, x->message, x->message_len) ||
                 (x->id && (buf_str(out, ",\"id\":") || buf_add(out, x->id, x->id_len))) || buf_str(out, "}\n");
    for (size_t i = before; i + 1 < out->len && !failed; i++)
        if (out->data[i] == '\n') /* JSON allows line ends between its words: an id may hold one, a row of ours may not */
            out->data[i] = ' ';
    if (failed)
        out->len = before;
    return failed ? -1 : 0;
}

/* Reading: the lines are of our own making, so the order is fixed; anything else is damage. */

static int word(const char **p, const char *end, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(end - *p) < n || memcmp(*p, w, n) != 0)
        return -1;
    *p += n;
    return 0;
}

static int number(const char **p, const char *end, const char *name, uint64_t *v)
{
    if (word(p, end, name) || *p == end || **p < '0' || **p > '9')
        return -1;
    for (*v = 0; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        unsigned digit = (unsigned)(**p - '0');
        if (*v > (UINT64_MAX - digit) / 10)
            return -1;
        *v = *v * 10 + digit;
    }
    return 0;
}

static int string(const char **p, const char *end, const char *name, const char **s, size_t *len)
{
    if (word(p, end, name) || *p == end || **p != '"')
        return -1;
    *s = *p;
    for (++*p; *p < end && **p != '"'; ++*p)
        if (**p == '\\' && ++*p == end)
            return -1;
    if (*p == end)
        return -1;
    ++*p;
    *len = (size_t)(*p - *s);
    return 0;
}

int errline_read(const char **p, const char *end, struct errline *x)
{
    const char *eol = *p < end ? memchr(*p, '\n', (size_t)(end - *p)) : NULL;
    if (!eol)
        return -1;
    const char *at = *p;
    *x = (struct errline){0};
    if (number(&at, eol, "{\"begin\":", &x->record.begin) || number(&at, eol, ",\"end\":", &x->record.end) ||
        number(&at, eol, ",\"source\":", &x->source) || number(&at, eol, ",\"line\":", &x->line) ||
        number(&at, eol, ",\"row\":", &x->row) || string(&at, eol, ",\"code\":", &x->code, &x->code_len) ||
        string(&at, eol, ",\"message\":", &x->message, &x->message_len))
        return -1;
    if (word(&at, eol, ",\"id\":") == 0) {
        if (eol - at < 2)
            return -1;
        x->id = at;
        x->id_len = (size_t)(eol - at - 1);
        at = eol - 1;
    }
    if (word(&at, eol, "}") || at != eol)
        return -1;
    *p = eol + 1;
    return 0;
}

int errline_people(struct buf *out, const char *source, uint64_t line, uint64_t offset, const struct errline *x)
{
    size_t before = out->len;
    int failed = buf_str(out, "{\"source\":") || errline_string(out, source, strlen(source)) ||
                 buf_printf(out, line ? ",\"line\":%" PRIu64 : ",\"offset\":%" PRIu64, line ? line : offset) ||
                 (x->id && (buf_str(out, ",\"id\":") || buf_add(out, x->id, x->id_len))) || buf_str(out, ",\"code\":") ||
                 buf_add(out, x->code, x->code_len) || buf_str(out, ",\"message\":") || buf_add(out, x->message, x->message_len) ||
                 buf_str(out, "}\n");
    if (failed)
        out->len = before;
    return failed ? -1 : 0;
}
