/* One child of a command: its process, its pipes, and the records that it was given, in their order. What is to be done about anything is decided in
   command.c and fate.c; all of it by one thread. */
#ifndef EBB_WORKERS_CHILD_H
#define EBB_WORKERS_CHILD_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "workers/command/command.h"
#include "workers/command/noise.h"
#include "workers/command/spawn.h"

enum child_state {
    CHILD_UP,
    CHILD_LEAVING, /* its input was closed: it answers what it has and ends, until leave_by_ms */
    CHILD_DYING,   /* killed, without records; to be reaped */
};

struct child {
    struct child *next;
    uint32_t number;
    enum child_state state;
    pid_t pid;                         /* 0: reaped */
    int pidfd, in, out, err;           /* -1: closed */

    /* Its records: first .. are answered, and kept until it is sure that the answers are theirs; then due .. are not; of these, unsent .. are not
       wholly written. */
    struct command_record *first, *last, *due, *unsent;
    size_t sent;                       /* bytes of unsent */
    uint32_t load, kept, given;        /* records now; of these, answered; since it began */

    struct buf text;                   /* what it said and was not looked at yet: from `begun` on */
    size_t begun, searched;            /* no line end before `searched` */
    int ended;                         /* its output */
    uint64_t lines, answers;           /* good lines; of these, those that were sure to be their record's */
    int echoes;                        /* answers carry their record's id */
    int alone;                         /* it has a suspect */
    int retiring;                      /* gets no more records */
    int batch;                         /* answers at the end of its input only, after batch_size records */
    uint32_t batch_size;
    int cannot;                        /* the shell could not run it */
    int hung;                          /* its input was closed because it did not answer */
    uint64_t started_ms, due_ms;       /* the record that is due became so then */
    uint64_t quiet_due, quiet_next_ms, quiet_pause_ms; /* does it wait for more? For which due_ms that is asked, and when next */
    int quiet;                         /* times in a row that it did */
    uint64_t leave_by_ms, idle_ms, ended_ms;
    uint64_t pace_ns, answered_ns;     /* time for one record, on the average of late; of the last answer */
    struct noise noise;
};

MUST_USE enum status child_start(struct spawn *s, uint32_t number, struct child **out, struct err *e);
/* Reaps it: 1, or 0 when it has not ended yet. *status as waitpid has it. */
int child_over(struct spawn *s, struct child *ch, int *status);
void child_free(struct child *ch);     /* it is reaped, and has no records */

void child_give(struct child *ch, struct command_record *r, uint64_t now_ms);
/* Takes the first record off. */
struct command_record *child_take(struct child *ch);

/* Writes as much as the pipe takes. 0, or -1: it reads no more, and its end is closed. *moved: something went. */
int child_write(struct child *ch, int *moved);
/* Reads what is there, about `most` bytes of it at the most; 0, -1: memory is out. */
int child_read(struct child *ch, size_t most);
size_t child_unread(const struct child *ch);  /* bytes in its input's pipe */
int child_has_said(const struct child *ch); /* there is something to read */
/* The next whole line of what was read, without its end (LF or CRLF); 0: there is none. It stands until the next child_read. */
int child_line(struct child *ch, const char **line, size_t *len);
size_t child_rest(const struct child *ch); /* bytes that are read and not taken as lines */
/* What it said to its standard error, whether or not that is a whole line when `last`. */
void child_hear(struct child *ch, const char *name, struct noise_limit *l, uint64_t now_ms, int last);
void child_close_in(struct child *ch);
void child_kill(struct child *ch);     /* the whole group; it is DYING */

#endif
