/* Error rows as bytes: the form in which they stand in parts, and the form that people read. See storage/part.h and
   docs/disk-format.md. */
#ifndef EBB_STORAGE_ERRLINE_H
#define EBB_STORAGE_ERRLINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/layout.h"

/* One error row of a part. Texts are JSON as they stand there: strings with their quotes. */
struct errline {
    struct span record;
    uint64_t source, line, row;
    const char *code, *message, *id; /* id: NULL when there is none */
    size_t code_len, message_len, id_len;
};

/* A JSON string; bytes that are not UTF-8 become U+FFFD. 0, or -1 when memory is out. */
int errline_string(struct buf *out, const char *s, size_t len);
/* Part's form, with its line end. code_len and so on count raw bytes here: code and message are quoted on the way, id is JSON. */
int errline_write(struct buf *out, const struct errline *x);
/* Reads the line at *p (which must end with '\n' before end) and moves behind it. 0, or -1 when it is not such a line. */
int errline_read(const char **p, const char *end, struct errline *x);
/* People's form, with its line end. line: counted from 1; 0: not known, then the offset in the source stands in its place. */
int errline_people(struct buf *out, const char *source, uint64_t line, uint64_t offset, const struct errline *x);

#endif
