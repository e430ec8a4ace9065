/* What steps.c, steps_model.c and steps_command.c share; private to them.

   Locks: `lock` guards queues, units' places, roots and figures. The pipeline's lock is taken inside it, never around it. */
#ifndef EBB_WORKERS_STEPS_INSIDE_H
#define EBB_WORKERS_STEPS_INSIDE_H

#include <stdatomic.h>

#include "workers/command/command.h"
#include "workers/pipeline/record_json.h"
#include "workers/pipeline/stages.h"
#include "workers/pipeline/steps.h"

/* Most bytes of the units inside; from there on a step that is not the last does only what nobody else can do. */
#define STEPS_BYTES (64u << 20)
/* Most bytes of what one record becomes, its units on the way and its rows counted one by one. */
#define STEPS_RECORD_BYTES (64u << 20)
#define STEPS_IDLE_MS 10   /* an idle lane takes less than a full micro-batch when its first unit has waited so long */
#define STEPS_LONG_MS 1000 /* and a busy one, too */

enum fate { UNIT_OPEN, UNIT_GOES_ON, UNIT_ROW, UNIT_ERROR, UNIT_DROPPED };

struct unit {
    struct node node;             /* in a queue, or what a micro-batch came to */
    struct unit *before, *behind; /* of its root, in order */
    struct root *root;
    uint32_t step;                /* whose queue it is in, or that has it */
    enum fate fate;
    int taken;                    /* counted in steps.busy */
    int of_many;                  /* it was in an array that a command answered with */
    uint64_t since_ms;            /* in the queue */
    uint64_t bytes;               /* counted in steps.bytes */
    char *json;                   /* the record before the step */
    size_t len;
    int32_t *ids;                 /* for a model, as in struct item */
    uint8_t *types;
    struct tok_span *spans;
    uint32_t tokens;
    struct array *arrays;
    char *hook;
    struct command_record record; /* for a command */
    struct unit *named, *named_before; /* in the step's list of those that its children have */
    char *row, *aux;              /* ROW: what stands behind the record's name in a row; npy: floats and the ids' line */
    size_t row_len, aux_len;
    enum record_error error;      /* ERROR */
    const char *code;
    char *message;
};

struct root {
    struct root *next;       /* among those that are through, or lost */
    struct item *item;
    struct chain *chain;     /* counted */
    struct unit *first, *last;
    size_t open, rows;
    uint64_t bytes;          /* of all that it became so far */
    int many, lost;
    atomic_int too_large;    /* looked at without the lock too */
    char *whole;             /* as it came, where fields may have to be kept from that */
    size_t whole_len;
};

struct line {                /* units, first in, first out */
    struct node *head, **tail;
    size_t count;
    uint64_t tokens;
};

struct step_state {
    struct chain *chain;
    uint32_t at, slot;
    const struct job_step *is;
    const struct loaded *loaded;  /* the chain's; NULL: a command */
    struct line raw, ready;       /* a command's are raw */
    struct command *command;
    uint64_t inside;              /* a command's */
    struct unit *named;
    uint64_t named_ms;
    uint64_t pace_ms, pace_now, pace_before; /* answers in this half second, and in the one before */
    uint32_t children;            /* most */
};

struct chain {
    struct chain *next, *dead_next; /* in steps.chains; among the dead */
    atomic_int refs;
    struct steps *steps;
    struct job *job;              /* counted */
    struct loaded *loaded;        /* counted */
    struct step_state *step;
    size_t count;
    int faulted, commands;
    atomic_uint_fast64_t pulse, inside; /* inside: of all its commands */
    struct root *lost;            /* not done, and their leases are not closed yet */
};

struct steps {
    struct pipeline *p;
    struct stage *lane;
    uint32_t lanes, first_slot;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct chain *chains, *current; /* current: counted; the last one that was used */
    uint64_t bytes, busy;           /* busy: units that a lane or a command has */
    int stopping;
    uint64_t deaths;
    pthread_mutex_t dead_lock;      /* inside all others */
    struct chain *dead;
};

struct bench {                    /* a lane's memory for one step */
    struct loaded *loaded;        /* counted */
    const struct chain *chain;    /* compared, never followed: a chain that ends takes all benches with it */
    struct model_ctx *ctx;
    uint32_t most_tokens, most_records;
    struct tok_scratch *tok;
    struct decoder *decoder;
    struct feed *feed;
    struct feed_scratch *feed_scratch;
};

struct step_lane {
    struct pipeline *p;
    struct steps *steps;
    uint32_t slot;
    uint64_t deaths;
    struct bench bench[JOBSPEC_MOST_STEPS];
    struct unit **units;          /* of the micro-batch */
    struct blackbox_record *named;
    uint32_t *lengths;
    char **hooks;
    const struct array **arrays;
    int32_t *ids;
    uint8_t *types;
    uint32_t room, token_room;
    struct record_scratch scratch;
    struct buf result, object;
};

/* Units ------------------------------------------------------------------------------------------------------------------------------ */

struct unit *unit_new(struct pipeline *p, struct root *r, uint32_t step, const char *json, size_t len);
void unit_free(struct unit *u);
void line_init(struct line *l);
void line_push(struct line *l, struct unit *u);
struct unit *line_pop(struct line *l);

/* Without the lock. What became of a unit at its step, on a thread with this scratch. */
void unit_failed(struct pipeline *p, struct unit *u, enum record_error error, const char *code, const char *message);
/* The record as the step left it: `object` (NULL: as it was) with `result` (NULL: none, a command's) behind it. Decides whether it goes on, is a row, or is dropped. */
void unit_passed(struct pipeline *p, struct record_scratch *s, struct buf *space, struct unit *u, const char *result, size_t result_len);

/* With the lock: a chain by node.next of units whose fate is known takes effect. Roots that are through are put before *through. */
void steps_settle(struct steps *s, struct node *units, struct root **through);
/* Without it: their rows and errors go on. */
void steps_through(struct steps *s, struct record_scratch *scratch, struct root *through);
/* With it: roots that were lost and whose leases have been closed meanwhile. */
struct root *steps_found_again(struct steps *s);
/* 1: its lease was taken away, or the record is an error in any case. With the steps' lock held or not. */
int steps_is_void(struct steps *s, const struct root *r);

/* Models ----------------------------------------------------------------------------------------------------------------------------- */

void lane_tokenise(struct step_lane *l, struct step_state *st, struct node *units);
void lane_infer(struct step_lane *l, struct step_state *st, struct node *units, int full);
void lane_empty(struct step_lane *l);

/* Commands --------------------------------------------------------------------------------------------------------------------------- */

MUST_USE enum status step_command_new(struct step_state *st, struct err *e);
uint64_t step_command_most(struct step_state *st, uint64_t now_ms); /* records that may be inside */
/* With the lock: as many as may go. only_one: whatever holds the others up. 1 when some went. */
int step_command_feed(struct step_state *st, int only_one, uint64_t now_ms, struct root **through);
int step_has_room(const struct chain *c, size_t at, uint64_t now_ms);

#endif
