/* One table a command: the parser, --help and the manual page read the same rows. */
#ifndef EBB_BASE_OPT_H
#define EBB_BASE_OPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum opt_type {
    OPT_FLAG,      /* int *: set to 1 */
    OPT_TEXT,      /* const char **: points into argv */
    OPT_LIST,      /* struct opt_list *: may be given again; "a,b" is two when `split` is set */
    OPT_NUMBER,    /* uint64_t * */
    OPT_SIGNED,    /* int64_t * */
    OPT_SIZE,      /* uint64_t *: bytes, see base/units.h */
    OPT_DURATION,  /* uint64_t *: milliseconds */
};

struct opt_list {
    const char **items; /* mem_free by the owner; the texts point into argv, or into copies */
    size_t count, cap;
    char **copies;
    size_t copy_count, copy_cap;
};
void opt_list_release(struct opt_list *l);

struct opt {
    const char *name;        /* "output": --output X, --output=X; a flag "wait" is --wait */
    char letter;             /* 'o': -o X; 0: none */
    enum opt_type type;
    void *value;
    const char *arg;         /* what the help calls the argument: "DIR"; NULL for flags */
    const char *help;
    const char *group;       /* heading in the help; NULL: "Options" */
    int split;               /* OPT_LIST: split at commas */
};

struct opt_command {
    const char *name;        /* "ebb run" */
    const char *operands;    /* "JOB [SOURCE...]"; NULL: none are taken */
    const char *summary;     /* one line, no full stop */
    const char *details;     /* paragraphs, for --help and the manual page; or NULL */
    const char *examples;    /* lines to type; or NULL */
    const struct opt *opts;
    size_t opt_count;
    size_t operands_min, operands_max;
};

/* Parses argv[1..]; operands (any place, all behind "--") are moved to argv[1..*operand_count]. --help prints the help to stdout and gives
   ST_END; --man (hidden) prints the page in roff. Unknown options, missing arguments and bad numbers are ST_USER, with a suggestion and
   "see 'ebb run --help'". -h is --help. */
MUST_USE enum status opt_parse(const struct opt_command *c, int argc, char **argv, int *operand_count, struct err *e);
void opt_help(const struct opt_command *c, FILE *to);
void opt_man(const struct opt_command *c, FILE *to);

#endif
