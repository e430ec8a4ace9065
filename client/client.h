/* What every command of `ebb` shares: its row in the table of commands, the options that many have, and the way to speak. */
#ifndef EBB_CLIENT_CLIENT_H
#define EBB_CLIENT_CLIENT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "base/opt.h"
#include "base/status.h"

#define EBB_VERSION "0.1.0"

enum { EXIT_DONE = 0, EXIT_ENV = 1, EXIT_USER = 2, EXIT_ERRORS = 3, EXIT_HELD = 4, EXIT_INTERRUPTED = 130 };

struct command {
    const char *name;  /* "run", "model inspect" */
    const char *group; /* heading in `ebb --help`; NULL: not listed */
    const struct opt_command *table;                          /* or */
    const struct opt_command *(*make_table)(struct err *e);   /* for those that take the fields of a job; NULL: out of memory */
    int (*run)(int operand_count, char **operands);           /* parsed; gives the exit code */
};

#define COMMANDS(X)                                                                                                              \
    X(run) X(check) X(submit) X(jobs) X(status) X(why) X(watch) X(errors) X(results) X(pause) X(resume) X(cancel) X(retry) X(rm)  \
    X(workers) X(nodes) X(drain) X(top) X(model_inspect) X(model_bench) X(model_test) X(model_plan) X(doctor) X(keygen) X(invite) X(join) X(keys_list) X(keys_add) X(keys_revoke) \
    X(completion)
#define X(name) extern const struct command command_##name;
COMMANDS(X)
#undef X
extern const struct command *const commands[];
extern const size_t command_count;
/* The table that command_run's options stand in, whichever way it is made. NULL: out of memory. */
const struct opt_command *command_table(const struct command *c, struct err *e);

/* Options of several commands */
struct common {
    const char *socket, *daemon, *key_file;
    int json, quiet, force;
};
extern struct common common;
#define ROW_JSON {.name = "json", .type = OPT_FLAG, .value = &common.json, .help = "print facts as JSON, one object a line"}
#define ROW_SOCKET                                                                                                               \
    {.name = "socket", .type = OPT_TEXT, .value = &common.socket, .arg = "WHERE",                                                \
     .help = "the daemon: a socket's path, an endpoint, or the output of an 'ebb run' (default: $EBB_SOCKET, else /run/ebb/clients)"}, ROW_DAEMON()
#define ROW_DAEMON(...)                                                                                                          \
    {.name = "daemon", .type = OPT_TEXT, .value = &common.daemon, .arg = "HOST[:PORT]", __VA_ARGS__                              \
     .help = "the daemon of another machine (default: $EBB_DAEMON, else where 'ebb join' went)"},                                \
    {.name = "key-file", .type = OPT_TEXT, .value = &common.key_file, .arg = "FILE", __VA_ARGS__                                 \
     .help = "your key, as 'ebb join' made it (default: $EBB_KEY_FILE, else ~/.config/ebb/client.key)"}
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Words: chatter goes to stderr, facts to stdout. */
void say(const char *fmt, ...) PRINTF(1, 2);                /* a line, unless --quiet */
void advise(const char *fmt, ...) PRINTF(1, 2);             /* "   <words>" under an error */
int fail(const struct err *e);                              /* prints "error: ..."; what stands behind "; " or a line end goes on lines of its own; gives the exit code. 'PATH' is
                                                               shortened as short_path does */
int fail_with(enum status code, const char *fmt, ...) PRINTF(2, 3);
void print_error_line(const char *text);                    /* the same, of words */
int print_json(json_t *j);                                  /* one line on stdout; takes the reference; gives EXIT_DONE, or an error's exit code */
void print_field(const char *name, const char *fmt, ...) PRINTF(2, 3); /* "model   ..." on stdout */

/* A table with a heading, columns aligned. Cells are copied. */
struct table;
struct table *table_new(size_t columns, const char *const *headings);
void table_row(struct table *t, const char *const *cells);
void table_print(struct table *t, FILE *to); /* frees it */

/* The path as a person would write it here: without the working folder in front. Points into path. */
const char *short_path(const char *path);
/* JOB as a number, or ST_USER. */
MUST_USE enum status parse_job(const char *word, uint64_t *job, struct err *e);
/* Fields of an answer; a missing one or one of another type is 0, "" or the default. */
const char *text_of(const json_t *o, const char *key);
double number_of(const json_t *o, const char *key, double otherwise);
uint64_t count_of(const json_t *o, const char *key);

/* What a worker has, for people: its lease; of a member of a pipeline "stage 2/3 of job 7" before it. Returns out. */
const char *lease_words(const json_t *worker, char *out, size_t size);

/* Signals: after this SIGINT, SIGTERM and SIGHUP only count. */
void signals_take(void);
int signals_count(void);

#endif
