/* A line that a command answered: is it one JSON value, whose is it, and does it speak of failure? */
#ifndef EBB_WORKERS_ANSWER_H
#define EBB_WORKERS_ANSWER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "storage/json.h"

enum answer_kind {
    ANSWER_VALUE,
    ANSWER_REFUSED, /* {"error": ...} */
    ANSWER_RETRY,   /* {"retry": ...} */
    ANSWER_OTHER,   /* it carries the id of another record */
    ANSWER_GARBAGE,
    ANSWER_NOMEM,
};

struct answer {      /* a zeroed struct is empty; used again and again */
    enum answer_kind kind;
    int echoes;      /* its member `id` is the record's */
    int has_after;
    uint64_t after_ms;
    char text[512];  /* REFUSED, RETRY: the command's words; OTHER, GARBAGE: what is wrong */
    struct json_members members;
    struct buf left, right;
};

/* id: the record's, as JSON; NULL, or neither string nor number: not looked at. Strings are compared by what they mean, numbers by value: a command
   may write them anew. Of a member that stands twice the last counts. */
void answer_read(struct answer *a, const char *line, size_t len, const char *id, size_t id_len);
void answer_release(struct answer *a);

#endif
