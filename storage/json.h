/* The members of a JSON object as they are written, checked by the whole grammar (RFC 8259) in one pass that builds nothing: a record's
   ids and kept fields pass through unchanged, numbers of any length among them, and a hostile record costs no more memory than its
   own bytes. What exactly is wrong with a record that is refused is jansson's to say. */
#ifndef EBB_STORAGE_JSON_H
#define EBB_STORAGE_JSON_H

#include "base/buf.h"

struct json_member {
    const char *key;    /* between its quotes, as it is written */
    size_t key_len;
    const char *value;  /* as it is written: a string with its quotes */
    size_t value_len;
};

struct json_members {
    struct json_member *items; /* in their order */
    size_t count, cap;
};

/* 1: [p, p + len), which is known to be UTF-8, is an object, and these are its members. 0: it is none, or nested deeper than 2048. -1: memory
   is out. */
int json_object_members(struct json_members *m, const char *p, size_t len);
void json_members_release(struct json_members *m);
/* 1: [p, p + len), which is known to be UTF-8, is one value of any kind, with space around it. 0: it is not, or is nested deeper than that. */
int json_is_value(const char *p, size_t len);
/* Appends what the inside of a string means. 0, or -1 when memory is out. */
int json_unescape(struct buf *to, const char *p, size_t len);
/* s as a JSON string, with its quotes. 0, or -1 when memory is out. */
int json_add_string(struct buf *to, const char *s, size_t len);
/* Length of the number of JSON's grammar at p; 0 when there is none. */
size_t json_number(const char *p, const char *end);

#endif
