#include "storage/json.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

#define MAX_DEPTH 2048

static const char *space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    return p;
}

/* The four hexadecimal digits at p; -1 when they are not there. */
static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* Behind the string that opens at p; NULL when it is none. */
static const char *string(const char *p, const char *end)
{
    if (p == end || *p != '"')
        return NULL;
    for (p++; p < end; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"')
            return p + 1;
        if (c < 0x20)
            return NULL;
        if (c != '\\')
            continue;
        if (++p == end)
            return NULL;
        if (*p != 'u') {
            if (!*p || !strchr("\"\\/bfnrt", *p))
                return NULL;
            continue;
        }
        int unit = hex4(p + 1, end);
        if (unit < 0)
            return NULL;
        p += 4;
        if (unit >= 0xd800 && unit < 0xe000) { /* halves come in pairs, the high one first */
            if (unit >= 0xdc00 || end - p < 7 || p[1] != '\\' || p[2] != 'u')
                return NULL;
            int low = hex4(p + 3, end);
            if (low < 0xdc00 || low >= 0xe000)
                return NULL;
            p += 6;
        }
    }
    return NULL;
}

size_t json_number(const char *p, const char *end)
{
    const char *s = p;
    s += s < end && *s == '-';
    if (s == end || *s < '0' || *s > '9')
        return 0;
    if (*s == '0')
        s++;
    else
        while (s < end && *s >= '0' && *s <= '9')
            s++;
    if (end - s > 1 && *s == '.' && s[1] >= '0' && s[1] <= '9')
        for (s++; s < end && *s >= '0' && *s <= '9'; s++)
            ;
    if (s < end && (*s == 'e' || *s == 'E')) {
        const char *x = s + 1;
        x += x < end && (*x == '+' || *x == '-');
        if (x < end && *x >= '0' && *x <= '9')
            for (s = x; s < end && *s >= '0' && *s <= '9'; s++)
                ;
    }
    return (size_t)(s - p);
}

/* Behind a value that is neither object nor array; NULL when there is none. */
static const char *scalar(const char *p, const char *end)
{
    static const char *const words[] = {"true", "false", "null"};
    if (p < end && *p == '"')
        return string(p, end);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - p) >= n && !memcmp(p, words[i], n))
            return p + n;
    }
    size_t n = json_number(p, end);
    return n ? p + n : NULL;
}

/* Behind a member's name and its colon, where its value begins. */
static const char *name(const char *p, const char *end)
{
    p = string(p, end);
    if (!p)
        return NULL;
    p = space(p, end);
    return p < end && *p == ':' ? space(p + 1, end) : NULL;
}

/* Behind the value at p; NULL when there is none. No recursion: what is open stands in one bit each. */
static const char *value(const char *p, const char *end)
{
    uint8_t objects[MAX_DEPTH / 8];
    size_t depth = 0;
    for (;;) {
        if (p < end && (*p == '{' || *p == '[')) {
            int object = *p == '{';
            if (depth == MAX_DEPTH - 1)
                return NULL;
            objects[depth / 8] = (uint8_t)((objects[depth / 8] & ~(1u << depth % 8)) | (unsigned)object << depth % 8);
            depth++;
            p = space(p + 1, end);
            if (p == end)
                return NULL;
            if (*p != (object ? '}' : ']')) {
                if (object && !(p = name(p, end)))
                    return NULL;
                continue;
            }
            depth--;
            p++;
        } else if (!(p = scalar(p, end))) {
            return NULL;
        }
        for (;; p++, depth--) { /* a value is finished: what it stands in goes on, or is finished too */
            if (!depth)
                return p;
            int object = objects[(depth - 1) / 8] >> (depth - 1) % 8 & 1;
            p = space(p, end);
            if (p == end)
                return NULL;
            if (*p == ',') {
                p = space(p + 1, end);
                if (object && !(p = name(p, end)))
                    return NULL;
                break;
            }
            if (*p != (object ? '}' : ']'))
                return NULL;
        }
    }
}

int json_object_members(struct json_members *m, const char *p, size_t len)
{
    const char *end = p + len;
    m->count = 0;
    p = space(p, end);
    if (p == end || *p != '{')
        return 0;
    p = space(p + 1, end);
    if (p < end && *p == '}')
        return space(p + 1, end) == end;
    for (;;) {
        void *items = m->items;
        int failed = mem_grow(&items, &m->cap, m->count, sizeof *m->items);
        m->items = items;
        if (failed)
            return -1;
        struct json_member *member = &m->items[m->count++];
        const char *after = string(p, end);
        if (!after)
            return 0;
        member->key = p + 1;
        member->key_len = (size_t)(after - p) - 2;
        p = space(after, end);
        if (p == end || *p != ':')
            return 0;
        member->value = p = space(p + 1, end);
        p = value(p, end);
        if (!p)
            return 0;
        member->value_len = (size_t)(p - member->value);
        p = space(p, end);
        if (p == end)
            return 0;
        if (*p == '}')
            return space(p + 1, end) == end;
        if (*p != ',')
            return 0;
        p = space(p + 1, end);
    }
}

int json_is_value(const char *p, size_t len)
{
    const char *end = p + len;
    p = value(space(p, end), end);
    return p && space(p, end) == end;
}

void json_members_release(struct json_members *m)
{
    mem_free(m->items);
    *m = (struct json_members){0};
}

int json_unescape(struct buf *to, const char *p, size_t len)
{
    const char *end = p + len;
    if (buf_reserve(to, len)) /* no escape means more bytes than it has */
        return -1;
    char *out = to->data + to->len;
    while (p < end) {
        const char *back = memchr(p, '\\', (size_t)(end - p));
        size_t plain = (size_t)((back ? back : end) - p);
        memcpy(out, p, plain);
        out += plain;
        if (!back)
            break;
        p = back + 2;
        if (back[1] != 'u') {
            static const char from[] = "bfnrt", meaning[] = "\b\f\n\r\t";
            const char *which = strchr(from, back[1]);
            *out++ = which ? meaning[which - from] : back[1];
            continue;
        }
        uint32_t c = (uint32_t)hex4(p, end);
        p += 4;
        if (c >= 0xd800 && c < 0xdc00) {
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)hex4(p + 2, end) - 0xdc00);
            p += 6;
        }
        if (c < 0x80) {
            *out++ = (char)c;
        } else if (c < 0x800) {
            *out++ = (char)(0xc0 | c >> 6);
            *out++ = (char)(0x80 | (c & 63));
        } else if (c < 0x10000) {
            *out++ = (char)(0xe0 | c >> 12);
            *out++ = (char)(0x80 | (c >> 6 & 63));
            *out++ = (char)(0x80 | (c & 63));
        } else {
            *out++ = (char)(0xf0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 63));
            *out++ = (char)(0x80 | (c >> 6 & 63));
            *out++ = (char)(0x80 | (c & 63));
        }
    }
    to->len = (size_t)(out - to->data);
    return 0;
}

int json_add_string(struct buf *to, const char *s, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    if (buf_reserve(to, len + 2) || buf_char(to, '"'))
        return -1;
    size_t from = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        static const char marks[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *which = c ? strchr(marks, c) : NULL;
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        if (which)
            escape[1] = letters[which - marks];
        if (buf_add(to, s + from, i - from) || buf_add(to, escape, which ? 2 : 6))
            return -1;
        from = i + 1;
    }
    return buf_add(to, s + from, len - from) || buf_char(to, '"') ? -1 : 0;
}
