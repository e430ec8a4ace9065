/* A lease as the worker that holds it sees it: its records in the order of the input, whatever order they come back in.

   The reader appends *items*; each accounts for a *cell*, a run of positions, and the cells of a lease tile it: a record's cell begins
   where the one before ended (so blank lines belong to the record behind them) and ends where the record ends, but never
   beyond the lease; what is left at the end of a source is a *gap*, an item without a record. Results come in any order. A commit
   takes *runs* of finished items, each of which becomes one extent; what is not finished yet stays as a hole for a later commit.

   No thread, no clock, no I/O: the pipeline calls this under its lock. Memory: an item belongs to whichever stage works on it, and to
   its lease from held_finish on. */
#ifndef EBB_WORKERS_HELD_H
#define EBB_WORKERS_HELD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"
#include "base/rows.h"
#include "storage/reader.h"
#include "workers/pipeline/queue.h"

struct job;
struct loaded;
struct held;
struct tok_span;
struct array;

#define HELD_MOST_RUNS 64 /* in one commit */

enum item_state {
    ITEM_OPEN,  /* on its way */
    ITEM_ROW,
    ITEM_ERROR,
    ITEM_GAP,
};

struct input { /* a source that a lease touches */
    struct source source;
    uint64_t index;          /* in the dataset */
    uint64_t end;            /* position behind its last one */
    int stream;
    int settled;             /* source.via says how it is read: under the pipeline's lock */
    struct columns columns;  /* CSV and TSV, once the reader has opened it */
    int has_columns;
    char *refused;           /* why its header cannot be read: each of its records is an error */
};

struct item {
    struct node node;        /* in a queue between stages */
    struct item *later;      /* in its lease */
    struct held *held;       /* counted */
    const struct input *input;
    struct span cell, record;
    uint64_t line;           /* line ends before the record: since the lease's begin or, if later, the source's */
    uint64_t lines_before, lines_after; /* likewise, at the cell's ends */
    uint64_t bytes;          /* at rest */
    uint64_t charge;         /* what the budget holds for it */
    uint64_t done_ms;
    enum item_state state;
    int begun;               /* a lane has it, or had it */

    char *raw;               /* read -> prepare */
    size_t raw_len;
    int32_t *ids;            /* prepare -> infer */
    uint8_t *types;          /* of each token; NULL: all 0 */
    struct tok_span *spans;  /* token-classify: of each token in the text; empty for special ones */
    uint32_t tokens;
    struct array *arrays;    /* in place of tokens: one for each input of the model, in one block of memory */
    char *hook;              /* the text, only under EBB_TEST_HOOK */
    char *id, *keep;         /* JSON, not terminated; prepare -> encode, write */
    size_t id_len, keep_len;
    char *row, *aux;         /* encode -> write */
    size_t row_len, aux_len;
    int counted;             /* of a job of several steps: `rows` of them lie in `row`, none perhaps */
    uint64_t rows;
    enum record_error error; /* anywhere -> write */
    const char *code;        /* in its place in the error row, where a command is to blame; not owned */
    char *message;
};

struct item *item_new(void);     /* NULL when memory is out */
void item_free(struct item *i);  /* its reference to the lease too */

enum held_stage { HELD_WAITING, HELD_READING, HELD_READ };

struct held {
    struct held *next;       /* in the pipeline's list, in order of arrival */
    atomic_int refs;
    uint64_t epoch;
    struct span span;        /* as granted */
    int probe;
    struct job *job;         /* counted */
    struct loaded *loaded;   /* counted; once the reader has come to it */
    struct chain *chain;     /* likewise; of a job of several steps */
    uint64_t told_bytes, told_pulse; /* of its progress, at the last beat */
    struct input *inputs;
    size_t input_count;

    enum held_stage stage;
    uint64_t limit;          /* where it ends now: the grant's end, or where it was cut */
    uint64_t read_to;        /* everything before is in items */
    int reading;             /* the reader is at a record whose end is not known yet */
    uint64_t reading_to;     /* end of the record that waits for room; 0: none does */
    int cut_pending;         /* answer when it is */
    uint64_t cut_at;
    int closed;              /* nothing more is taken or committed: revoked, returned, over */
    int give_up;             /* the writer is to give back all that is not committed */

    struct item *first, **last;
    size_t open, done;       /* items */
    uint64_t done_bytes;     /* charge of those done */
    uint64_t seq, acked;     /* of the next commit; of the first one that was not acknowledged */
    uint64_t committed_ms;   /* when it was last tried */
    uint64_t records_done, bytes_done;
};

struct run { /* a chain of items by `later`, without a gap between them */
    struct item *first, *last;
    size_t count;
};

/* Takes over inputs (count of them, with their paths) and one reference to the job. NULL when memory is out: then nothing was taken. */
struct held *held_new(struct job *job, uint64_t epoch, struct span span, int probe, struct input *inputs, size_t input_count, uint64_t now_ms);
struct held *held_ref(struct held *h);
void held_unref(struct held *h);
void inputs_free(struct input *inputs, size_t count);
/* The input that holds pos, or the first behind it; NULL: none. */
struct input *held_input(const struct held *h, uint64_t pos);

/* Appends an item that the reader has made; its cell begins at read_to. A gap is finished at once. */
void held_add(struct held *h, struct item *i, uint64_t now_ms);
/* An item has its result. 0: the lease is closed, the item stays the caller's to free. */
int held_finish(struct held *h, struct item *i, enum item_state result, uint64_t now_ms);

enum cut_answer {
    CUT_NOW,     /* *at is where the lease ends from now on: tell the daemon */
    CUT_LATER,   /* the reader is in the middle of a record: held_cut_settle will tell */
    CUT_SCAN,    /* a stream: look for a record's begin at or behind *at in held_input(*at), from read_to or the source's begin, and ask again with
                    `known` */
};
/* Gives up everything from *at on, or from the first point behind it that reading has not passed. known: *at is known to begin a record. */
enum cut_answer held_cut(struct held *h, uint64_t *at, int known);
/* The reader, after each record: 1 when a cut was waiting; *at is its answer. */
int held_cut_settle(struct held *h, uint64_t *at);

/* Everything up to the limit has its result. */
int held_complete(const struct held *h);
/* Whether a commit is worth trying: it is complete, a probe has a result, memory is wanted back (`all`), or `every` has passed. */
int held_due(const struct held *h, uint64_t now_ms, uint64_t every_ms, int all);
/* Detaches finished runs, in order: the one at the head; those behind holes when they have waited for `every` or when `all` is set. Returns
   how many, at most HELD_MOST_RUNS. The caller owns the items. */
size_t held_take(struct held *h, uint64_t now_ms, uint64_t every_ms, int all, struct run *runs);
/* Puts back what could not be committed. */
void held_untake(struct held *h, const struct run *runs, size_t n);
/* What is neither committed nor taken, as spans, the tail that was not read included. The caller frees. *count 0: nothing is left. -1: memory is
   out. */
int held_rest(const struct held *h, struct span **out, size_t *count);
/* Closes it: finished items that nobody took go to *dropped (a chain by `later`); open ones are freed by the stages that have them. */
void held_close(struct held *h, struct item **dropped);

/* What part_end is to be told of a run, and where its source begins to count lines. */
void run_measure(const struct run *r, uint64_t *lines, uint64_t *bytes);
/* The line of an error of a run, as storage/part.h counts it. */
uint64_t run_line(const struct run *r, const struct item *i);

#endif
