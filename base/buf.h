/* A growing run of bytes. Appending returns 0, or -1 when memory is out (the bytes held so far stand).
   buf_release frees; a zeroed struct is an empty buffer. */
#ifndef EBB_BASE_BUF_H
#define EBB_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* not terminated, except after buf_cstr */
    size_t len;
    size_t cap;
};

int buf_reserve(struct buf *b, size_t more) __attribute__((warn_unused_result));
int buf_add(struct buf *b, const void *data, size_t len) __attribute__((warn_unused_result));
int buf_str(struct buf *b, const char *s) __attribute__((warn_unused_result));
int buf_char(struct buf *b, char c) __attribute__((warn_unused_result));
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3), warn_unused_result));
const char *buf_cstr(struct buf *b); /* terminated view; NULL when memory is out */
void buf_clear(struct buf *b);       /* keeps the memory */
void buf_release(struct buf *b);

/* A bounds-checked reader over bytes that others own. Once a read runs past the end, `bad` is set, every later read gives
   zero or NULL, and the caller checks once at the end. Integers are as named: little- or big-endian. */
struct cursor {
    const uint8_t *p, *end;
    int bad;
};

struct cursor cursor_make(const void *data, size_t len);
size_t cursor_left(const struct cursor *c);
uint8_t cursor_u8(struct cursor *c);
uint32_t cursor_le32(struct cursor *c);
uint64_t cursor_le64(struct cursor *c);
uint32_t cursor_be32(struct cursor *c);
uint64_t cursor_be64(struct cursor *c);
uint64_t cursor_varint(struct cursor *c);                  /* LEB128, at most 10 bytes */
const uint8_t *cursor_bytes(struct cursor *c, size_t len); /* NULL when fewer are left */

int buf_le32(struct buf *b, uint32_t v) __attribute__((warn_unused_result));
int buf_le64(struct buf *b, uint64_t v) __attribute__((warn_unused_result));
int buf_be32(struct buf *b, uint32_t v) __attribute__((warn_unused_result));
int buf_be64(struct buf *b, uint64_t v) __attribute__((warn_unused_result));
int buf_varint(struct buf *b, uint64_t v) __attribute__((warn_unused_result));

#endif
