#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

int buf_reserve(struct buf *b, size_t more)
{
    if (more > SIZE_MAX - b->len)
        return -1;
    if (b->cap - b->len >= more && b->data)
        return 0;
    size_t want = b->cap ? b->cap : 64;
    while (want < b->len + more)
        want = want > SIZE_MAX / 2 ? b->len + more : want * 2;
    char *p = mem_resize(b->data, want);
    if (!p)
        return -1;
    b->data = p;
    b->cap = want;
    return 0;
}

int buf_add(struct buf *b, const void *data, size_t len)
{
    if (buf_reserve(b, len))
        return -1;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    return 0;
}

int buf_str(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

int buf_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || buf_reserve(b, (size_t)n + 1))
        return -1;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

const char *buf_cstr(struct buf *b)
{
    if (buf_reserve(b, 1))
        return NULL;
    b->data[b->len] = 0;
    return b->data;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
}

void buf_release(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){0};
}

struct cursor cursor_make(const void *data, size_t len)
{
    const uint8_t *p = data;
    return (struct cursor){.p = p, .end = p + len};
}

size_t cursor_left(const struct cursor *c)
{
    return (size_t)(c->end - c->p);
}

const uint8_t *cursor_bytes(struct cursor *c, size_t len)
{
    if (c->bad || cursor_left(c) < len) {
        c->bad = 1;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += len;
    return p;
}

uint8_t cursor_u8(struct cursor *c)
{
    const uint8_t *p = cursor_bytes(c, 1);
    return p ? *p : 0;
}

static uint64_t fixed(struct cursor *c, size_t n, int big)
{
    const uint8_t *p = cursor_bytes(c, n);
    uint64_t v = 0;
    for (size_t i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << 8 * (big ? n - 1 - i : i);
    return v;
}

uint32_t cursor_le32(struct cursor *c)
{
    return (uint32_t)fixed(c, 4, 0);
}

uint64_t cursor_le64(struct cursor *c)
{
    return fixed(c, 8, 0);
}

uint32_t cursor_be32(struct cursor *c)
{
    return (uint32_t)fixed(c, 4, 1);
}

uint64_t cursor_be64(struct cursor *c)
{
    return fixed(c, 8, 1);
}

uint64_t cursor_varint(struct cursor *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = cursor_u8(c);
        v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return v;
    }
    c->bad = 1;
    return 0;
}

static int put(struct buf *b, uint64_t v, size_t n, int big)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(v >> 8 * (big ? n - 1 - i : i));
    return buf_add(b, bytes, n);
}

int buf_le32(struct buf *b, uint32_t v)
{
    return put(b, v, 4, 0);
}

int buf_le64(struct buf *b, uint64_t v)
{
    return put(b, v, 8, 0);
}

int buf_be32(struct buf *b, uint32_t v)
{
    return put(b, v, 4, 1);
}

int buf_be64(struct buf *b, uint64_t v)
{
    return put(b, v, 8, 1);
}

int buf_varint(struct buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; v >= 128; v >>= 7)
        bytes[n++] = (uint8_t)(v | 128);
    bytes[n++] = (uint8_t)v;
    return buf_add(b, bytes, n);
}
