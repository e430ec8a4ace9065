/* What the parts of a command's runner share: command.c (its thread), deal.c (who gets what), fate.c (what an answer, a death or a silence
   means for a record). Only these include it. All of it belongs to the command's thread, except what stands under `lock`. */
#ifndef EBB_WORKERS_COMMAND_INSIDE_H
#define EBB_WORKERS_COMMAND_INSIDE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "workers/command/answer.h"
#include "workers/command/child.h"

#define DISTINCT 3           /* records at which children fail, one after the other and without an answer, before the command is suspected itself */
#define DOWN_RETRIES 8       /* {"retry"} in a row, and nothing else: what the command depends on is down */

struct list {
    struct command_record *first, **last;
    size_t count;
};

struct command {
    struct command_opts o;
    char *name;
    struct spawn spawn;
    pthread_t thread;
    int wake;                /* an eventfd */

    pthread_mutex_t lock;
    struct list submitted;
    int stopping, ending;

    struct list waiting, suspects, later; /* later: by not_before_ms */
    struct child *children;
    uint32_t count;          /* the dying ones too */
    struct pollfd *polled;
    struct answer answer;
    struct noise_limit noise, notes;

    int over;                /* stopping, as the thread has seen it */
    int proven;              /* it has answered once */
    int buffers;             /* it answers at the end of its input only */
    uint32_t batch;          /* then: records that a child gets */
    uint32_t no_starts;      /* in a row: there was no process to be had */
    uint32_t streak;         /* children in a row that ended without an answer */
    uint32_t distinct;       /* at so many records */
    const struct command_record *at[DISTINCT];
    struct command_record control; /* a copy of one that was answered: is the command still able to? */
    enum { CONTROL_AT_REST, CONTROL_WANTED, CONTROL_RUNS } control_state;
    uint32_t down;           /* {"retry"} in a row */
    uint64_t down_until_ms;
    uint64_t start_after_ms;
    uint64_t first_ms;       /* longest time to a first answer; 0: not known */
    uint64_t full_ms;        /* since when all are busy and records wait; 0: they are not */
    uint64_t oom_kills;

    atomic_uint now_children, most_children;
    atomic_ullong inside, starts, answers, errors, retried, redone;
};

void list_init(struct list *l);
void list_add(struct list *l, struct command_record *r);
void list_add_front(struct list *l, struct command_record *r);
struct command_record *list_take(struct list *l);

/* deal.c */
#define FULL_MS 50               /* so long must all be busy before one more is started */
/* Gives what waits to those that have room, and starts children where that helps. */
void deal(struct command *c, uint64_t now_ms);
uint32_t deal_serving(const struct command *c); /* children that take records */
/* Its input ends; it has so long to end itself. */
void deal_let_go(struct child *ch, uint64_t now_ms, uint64_t ms);

/* fate.c */
void fate_line(struct command *c, struct child *ch, const char *line, size_t len, uint64_t now_ms);
/* All is read that came: are there answers that were kept and are sure now, or bytes that nobody asked for? */
void fate_quiet(struct command *c, struct child *ch, uint64_t now_ms);
/* It has ended by itself and is reaped. Its records are gone hereafter. */
void fate_ended(struct command *c, struct child *ch, int status, uint64_t now_ms);
void fate_hung(struct command *c, struct child *ch, uint64_t now_ms);
void fate_failed(struct command *c, struct child *ch, enum command_error error, const char *why, uint64_t now_ms);
/* Not the records' fault: memory is out here, or somebody killed it. */
void fate_lost(struct command *c, struct child *ch, const char *why, uint64_t now_ms);
/* No child could be started for r. */
void fate_no_start(struct command *c, struct command_record *r, const struct err *e, uint64_t now_ms);
/* All of its records go back, undone. */
void fate_not_done(struct command *c, struct child *ch);
void fate_give_back(struct command *c, struct command_record *r);
/* r, which is with no child any more, runs again: in front of the others. */
void fate_again(struct command *c, struct command_record *r);

#endif
