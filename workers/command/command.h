/* A step that is a command: children of this worker that read records as JSON lines on their standard input and answer one line each on their
   standard output, in the same order. docs/steps.md, "Commands", says what a command may expect and must do.

   One `command` is one step of one job. It has one thread, which starts, feeds, hears, restarts and kills the children; every callback comes
   from that thread, with no lock held, so a callback may submit. Every record that was submitted comes back exactly once, through `answered`:

   COMMAND_ANSWER    line, len: one JSON value (RFC 8259, UTF-8), without its line end. What it means is the caller's matter.
   COMMAND_ERROR     error, text: this record's own fault, for good.
   COMMAND_NOT_DONE  nothing is known about it: the command was stopped, or had a fault. To be done again elsewhere.

   Order of answers: none between records (children run side by side).

   Whose fault. Children answer in order, so when one dies, hangs or answers nonsense, the record whose answer was due is the suspect. It runs again
   alone, first in a fresh child; only what fails there counts against it (COMMAND_ERROR_MAP says how often). What else was under way runs again
   without blame. A command that fails with one record after the other, and never answers any, or no longer one that it answered before, is at fault
   itself: `faulted` is called once, with words for whoever submitted the job, and all records come back NOT_DONE, those that are submitted later too.

   Ahead. While a child works, the next records wait in its pipe, so that it need not wait for us: but only once its answers carry their record's `id`
   (command_record.id). Then each answer is checked, and an answer too many or too few is found at once, with the record that it belongs to. A child
   whose answers do not carry it gets the next record when it has answered the last.

   Answers that speak of failure, whatever the step does with others:
     {"error": "words"}                this record's error, command_error
     {"retry": "words", "after": 2.5}  not now: it is tried again, after so many seconds where that is given, else 1 s, 2 s, 4 s ... (30 s at most);
                                       after opts.retries of these in a row it is an error, command_retry
   A member that is null counts as not there. */
#ifndef EBB_WORKERS_COMMAND_H
#define EBB_WORKERS_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* name, word in errors.jsonl, times that it must fail alone, meaning */
#define COMMAND_ERROR_MAP(X)                                                                                                     \
    X(CRASHED, "command_crashed", 3, "the command died of it")                                                                   \
    X(HUNG, "command_hung", 1, "the command did not answer it in time")                                                          \
    X(GARBAGE, "command_garbage", 2, "what came was no answer: no JSON, not UTF-8, too long, another record's, or more than one") \
    X(MISSING, "command_no_answer", 2, "the command ended in good order without an answer to it")                                \
    X(REFUSED, "command_error", 1, "the command answered with an error")                                                         \
    X(RETRY, "command_retry", 1, "the command asked for another try each time")
enum command_error {
#define X(name, word, times, meaning) COMMAND_##name,
    COMMAND_ERROR_MAP(X)
#undef X
        COMMAND_ERRORS
};
const char *command_error_word(enum command_error error);

enum command_end { COMMAND_ANSWER, COMMAND_ERROR, COMMAND_NOT_DONE };

/* The caller's, and untouched by it from command_submit until `answered`: a record may be part of whatever the caller has for it. */
struct command_record {
    const char *line;  /* JSON without a line end in it */
    size_t len;
    const char *id;    /* the value of its member `id` as it stands in the line; NULL: answers are not checked, and none is asked for ahead */
    size_t id_len;
    void *owner;       /* the caller's */
    /* the rest is the command's; zeroed by command_submit */
    struct command_record *next;
    char *kept;        /* its answer, until it is sure that it is its own */
    size_t kept_len;
    uint64_t not_before_ms;
    uint8_t failed[COMMAND_ERRORS]; /* alone, in a fresh child */
    uint8_t suspect, lost, retries;
};

struct command_answer {
    enum command_end end;
    const char *line;  /* ANSWER; ours, and gone after the callback */
    size_t len;
    enum command_error error; /* ERROR */
    const char *text;  /* ERROR: words without a line end, with the exit code or signal and the last line of standard error; gone after the callback */
};

struct command_opts {
    const char *shell;       /* a command line for /bin/sh -c */
    const char *dir;         /* where it runs; NULL: where the worker does. One that is not there is a fault of the command */
    const char *const *env;  /* NAME=VALUE, NULL at the end, on top of the worker's own (less NOTIFY_SOCKET and the like): EBB_JOB, EBB_STEP, EBB_WORKER
                                are the caller's to give. Ours: EBB_CHILD (0, 1, ...), and PYTHONUNBUFFERED=1 where it is not set */
    const char *name;        /* for the log: "job 7 step 2" */
    uint32_t children;       /* most of them; 0: as many as there are processors */
    uint32_t ahead;          /* most records under way in one child; 0: 64. How many there are follows its pace: about 20 ms worth */
    uint64_t timeout_ms;     /* for one record; 0: 60 s */
    uint64_t start_ms;       /* what a child may take on top of that for its first answer; 0: 5 min. Once seen, twice what it took is enough */
    uint64_t answer_bytes;   /* longest line of an answer; 0: 16 MiB */
    uint32_t retries;        /* {"retry": ...} in a row; 0: 5 */
    uint64_t idle_ms;        /* a child with nothing to do for so long ends, except the last; 0: 30 s */
    void (*answered)(void *arg, struct command_record *r, const struct command_answer *a);
    void (*faulted)(void *arg, const char *text); /* the command as such cannot do its work */
    void *arg;
};

struct command;

/* Everything in o is copied, except what arg points to. No child is started before there is a record. */
MUST_USE enum status command_new(const struct command_opts *o, struct command **out, struct err *e);
/* Never waits. The caller bounds how many are inside. Any thread. */
void command_submit(struct command *c, struct command_record *r);
/* Never waits, any thread: kills the children; each record that is inside, and each that is submitted later, comes back NOT_DONE. */
void command_stop(struct command *c);
/* Stops, where that was not done, and waits until the last record is back. Children without a record get the end of their input and two seconds
   to end by themselves, then all of their process group is killed. Not from a callback. */
void command_free(struct command *c);

struct command_stats {
    uint32_t children;       /* now */
    uint32_t most_children;
    uint64_t inside;         /* records */
    uint64_t starts, answers, errors, retried, redone; /* redone: run again without blame */
};
void command_stats(struct command *c, struct command_stats *out); /* any thread */

#endif
