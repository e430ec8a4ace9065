/* What jobspec.c shares with the readers and writers of a job (jobspec_flags.c, jobspec_yaml.c, jobspec_json.c); private to them. */
#ifndef EBB_WIRE_JOBSPEC_FIELDS_H
#define EBB_WIRE_JOBSPEC_FIELDS_H

#include <stddef.h>

#include "base/status.h"
#include "wire/jobspec.h"

enum kind { KIND_TEXT, KIND_LIST, KIND_NUMBER, KIND_SIGNED, KIND_SIZE, KIND_DURATION, KIND_LIMIT, KIND_STEPS };

/* What a kind wants, for messages: "a whole number". */
extern const char *const kind_words[];

enum field {
#define X(kind, member, path, flag, arg, identity, help) FIELD_##member,
    JOBSPEC_MAP(X)
#undef X
    FIELD_COUNT
};

struct field_row {
    enum kind kind;
    size_t offset;
    const char *path, *flag, *arg;
    int identity;
    const char *help;
};

extern const struct field_row field_rows[FIELD_COUNT];

/* The field's member in `s`, of the type of its kind. */
void *field_at(struct jobspec *s, enum field f);
const void *field_at_const(const struct jobspec *s, enum field f);

/* Values. What was there is freed; a failed call changes nothing. */
MUST_USE enum status field_set_text(char **to, const char *text, struct err *e);
MUST_USE enum status texts_add(struct texts *t, const char *text, struct err *e);
void texts_release(struct texts *t);
/* A path becomes absolute, relative to `base` (NULL: the working folder); `directory`: an output that is one whatever its ending. TEXT
   replaces, LIST appends. */
MUST_USE enum status field_put_text(struct jobspec *s, enum field f, const char *text, const char *base, int directory, struct err *e);
/* A scalar as text; the kinds that are no text. 0, or -1 when it is not what the kind wants. */
MUST_USE int field_set_scalar(struct jobspec *s, enum field f, const char *text);
/* "1000", "1%", "0.25%". 0, or -1. */
MUST_USE int limit_parse(const char *text, struct limit *out);
char *limit_words(const struct limit *l, char *out, size_t size);

/* Steps (jobspec_steps.c). */
void steps_release(struct step_specs *s);
MUST_USE enum status steps_add(struct step_specs *s, struct err *e); /* an empty one at the end */
/* "model=DIR,precision=int8": a comma begins a new key only where one with its '=' follows. */
MUST_USE enum status steps_add_flag(struct step_specs *s, const char *text, struct err *e);
/* Into the last one. base: as for field_put_text; "": paths stay as they are. ST_USER: what is wrong with key or value, without a place. */
MUST_USE enum status steps_put(struct step_specs *s, const char *key, const char *text, const char *base, struct err *e);
/* What follows from the others, once all keys of the last one are there. */
MUST_USE enum status steps_complete(struct step_specs *s, const char *base, struct err *e);
MUST_USE enum status steps_check(const struct jobspec *s, struct err *e);
json_t *steps_json(const struct step_specs *s, int identity);
MUST_USE enum status steps_from_json(struct step_specs *s, json_t *v, struct err *e);

/* Names of keys. */
const char *field_last_word(const char *path);
/* Is `path` the head of others: "input"? */
int field_is_group(const char *path);
/* FIELD_COUNT when there is none. */
enum field field_find(const char *path, int with_aliases);
/* The error that says so, with what was probably meant. `where` comes before it ("job.yaml:5: "), `what` is "key" or "member". */
MUST_USE enum status field_unknown(const char *where, const char *what, const char *group, const char *key, int with_aliases, struct err *e);

#endif
