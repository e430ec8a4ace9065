#include "workers/image/fetch.h"

#include <string.h>

#include "base/mem.h"
#include "storage/below.h"
#include "storage/source.h"
#include "storage/utf8.h"

/* Base64 --------------------------------------------------------------------------------------------------------------------------- */

static int digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1; /* the alphabet for URLs too */
}

/* 1: all of it was base64 (with or without its padding; line ends do not count). -1: memory is out. */
static int decode(const char *p, size_t len, struct buf *out)
{
    uint32_t held = 0, bits = 0;
    buf_clear(out);
    if (buf_reserve(out, len / 4 * 3 + 3))
        return -1;
    while (len && (p[len - 1] == '=' || p[len - 1] == '\n'))
        len--;
    for (const char *end = p + len; p < end; p++) {
        int d = digit((unsigned char)*p);
        if (d < 0 && (*p == '\n' || *p == '\r'))
            continue;
        if (d < 0)
            return 0;
        held = held << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out->data[out->len++] = (char)(held >> bits);
        }
    }
    return bits < 6;
}

static int begins(const char *text, size_t len, const char *with)
{
    size_t n = strlen(with);
    return len >= n && memcmp(text, with, n) == 0;
}

/* Either ----------------------------------------------------------------------------------------------------------------------------- */

enum status image_inline(const char *text, size_t len, uint64_t max_bytes, struct buf *out, struct err *e)
{
    int is_data = begins(text, len, "data:");
    if (is_data || begins(text, len, "/9j/") || begins(text, len, "iVBORw0KGgo") || begins(text, len, "UklGR")) {
        const char *comma = is_data ? memchr(text, ',', len) : NULL, *from = comma ? comma + 1 : text;
        int marked = comma && comma - text >= 12 && memcmp(comma - 7, ";base64", 7) == 0;
        if (is_data && !marked)
            return err_set(e, ST_USER, "a data URI that is not base64 (\"data:image/png;base64,...\")");
        if (len / 4 * 3 > max_bytes)
            return err_set(e, ST_USER, "the image has about %zu bytes, %llu are allowed", len / 4 * 3, (unsigned long long)max_bytes);
        int rc = decode(from, len - (size_t)(from - text), out);
        if (rc < 0)
            return err_nomem(e, "the bytes of an image");
        if (rc)
            return ST_OK;
        if (is_data)
            return err_set(e, ST_USER, "the data URI holds something that is not base64");
    }
    if (!len)
        return err_set(e, ST_USER, "an empty text where a path or an image should stand");
    if (memchr(text, 0, len) || len >= 4096)
        return err_set(e, ST_USER, "a text of %zu bytes that is neither a path nor an image in base64", len);
    return ST_END;
}

enum status image_fetch(const char *folder, const struct source *s, const char *text, size_t len, uint64_t max_bytes, struct buf *out, struct err *e)
{
    enum status st = image_inline(text, len, max_bytes, out, e);
    if (st != ST_END)
        return st;
    char *path = mem_strndup(text, len);
    if (!path)
        return err_nomem(e, "the path of an image");
    if (s && s->via)
        st = s->via->named(s->via, s, path, max_bytes, out, e);
    else
        st = below_read(folder, path, max_bytes, out, e);
    mem_free(path);
    if (st != ST_OK && e)
        utf8_tidy(e->text); /* a name may have been cut in the middle of a letter */
    return st;
}
