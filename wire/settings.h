/* A configuration file: YAML of keys and values, read into a table that says what each key wants. Every complaint names file and line:
   "ebbd.yaml:5: unknown key 'worker' (did you mean 'workers')". */
#ifndef EBB_WIRE_SETTINGS_H
#define EBB_WIRE_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct settings_value {
    const char *text;         /* a scalar; NULL: it is a list */
    const char *const *items; /* of a list of scalars */
    size_t count;
    char *why;                /* on EINVAL: words of its own in place of those of the row, WHY_MAX bytes; or leave it empty */
    size_t at;                /* on EINVAL: the item of the list that is wrong, for the line */
};
#define SETTINGS_WHY_MAX 256

/* 0, EINVAL or ENOMEM. On failure *to stands as it was. */
typedef int settings_take(struct settings_value *v, void *to);

struct setting {
    const char *path;         /* "workers.count": below the key `workers` */
    const char *wants;        /* "a whole number", for complaints */
    settings_take *take;
    void *to;
    size_t *line;             /* where it stands in the file, for complaints about what does not fit together; NULL: nobody asks */
};

/* Ready-made ones. Texts and lists that were there before are freed. */
int settings_text(struct settings_value *v, void *to);     /* char **: not empty */
int settings_folders(struct settings_value *v, void *to);  /* char ***: absolute paths, links followed, NULL at the end */
/* A list of texts that all fit, into *to (char **, NULL at its end). one: a single text is a list of one. */
int settings_list(struct settings_value *v, char ***to, int one, int (*fits)(const char *text));
int settings_number(struct settings_value *v, void *to);   /* uint64_t *: at most 2^32-1 */
int settings_size(struct settings_value *v, void *to);     /* uint64_t *: bytes */
int settings_duration(struct settings_value *v, void *to); /* uint64_t *: ms */
int settings_level(struct settings_value *v, void *to);    /* enum log_level * */
int settings_parse_level(const char *word, void *to);      /* the same, of a word (NULL is none): 0 or EINVAL */
void settings_free_list(char **list);                      /* NULL at its end; may be NULL */

/* Reads the file into the table. ST_USER with file and line; on failure some rows may have been taken. page: the manual page that lists the keys. */
MUST_USE enum status settings_read(const char *file, const struct setting *table, size_t count, const char *page, struct err *e);

#endif
