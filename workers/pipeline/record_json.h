/* Records of a job of several steps: JSON objects as text. Everything here is of the bytes alone; -1 means that memory is out. */
#ifndef EBB_WORKERS_RECORD_JSON_H
#define EBB_WORKERS_RECORD_JSON_H

#include <stddef.h>

#include "base/buf.h"
#include "storage/json.h"
#include "wire/condition.h"

struct record_scratch { /* a thread's own; zeroed is ready */
    struct json_members members, inner;
    struct buf key, object;
};
void record_scratch_release(struct record_scratch *s);

/* The object [json, json + len) with what a model gave (`,"label":"good",...`, as encode_result writes it), which takes the place of members of the same names. Appends. 0, or -1. */
int record_with(struct record_scratch *s, const char *json, size_t len, const char *result, size_t result_len, struct buf *out);

/* 1: the record passes; 0: it does not; -1; -2: it cannot be said, why: a field is not there, or of a kind that cannot be compared. */
int record_passes(struct record_scratch *s, const struct condition *c, const char *json, size_t len, char *why, size_t size);

/* `,"stars":5,"lang":"de"` for each of the names: of `json`, else of `whole` (NULL: there is none), else null. 0, or -1. */
int record_keep(struct record_scratch *s, const char *json, size_t len, const char *whole, size_t whole_len, char *const *names, size_t count, struct buf *out);

/* `,"a":1,...`: the members of the object but those of these names. 0, or -1. */
int record_rest(struct record_scratch *s, const char *json, size_t len, char *const *but, size_t count, int but_child, struct buf *out);

/* The value of the member `id`, a string or a number, as it stands there; NULL: none. */
const char *record_id(struct record_scratch *s, const char *json, size_t len, size_t *id_len);

/* What a valid JSON value begins with, behind space: '{', '[', '"', 'n', 't', 'f' or part of a number; 0 of nothing. */
char record_kind(const char *json, size_t len);
const char *record_kind_words(char kind); /* "an object" */
/* The next element of the array, which is valid JSON and begins at *at = 0: 1 and its text; 0 behind the last. */
int record_next(const char *json, size_t len, size_t *at, const char **element, size_t *element_len);

#endif
