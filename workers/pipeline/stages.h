/* What the stages of one pipeline share. Only the stages include this.

   Locks: `lock` guards the leases, the jobs, what is loaded and the reports; queues and the budget have their own, taken inside it or alone. */
#ifndef EBB_WORKERS_STAGES_H
#define EBB_WORKERS_STAGES_H

#include <pthread.h>

#include "base/buf.h"
#include "workers/pipeline/held.h"
#include "workers/pipeline/job.h"
#include "workers/pipeline/models.h"
#include "workers/pipeline/pipeline.h"
#include "workers/pipeline/queue.h"

/* Of each thread. The thread sanitizer keeps most of a MiB of its own there. */
#if defined __SANITIZE_THREAD__
#define STACK_BYTES (4u << 20)
#else
#define STACK_BYTES (1u << 20)
#endif

struct stage {               /* one thread */
    struct pipeline *pipeline;
    pthread_t thread;
    uint32_t slot;           /* in the black box */
    int started;
    void *stack;             /* for its signal handler */
};

struct pipeline {
    struct pipeline_opts o;
    uint32_t preparers;
    struct stage reader, writer, *prepare, *lane;

    struct budget budget;
    struct queue to_prepare, to_infer;
    struct steps *steps;     /* NULL: no job of several steps has come yet */
    uint32_t steps_slot;     /* of the black box, the first of theirs */
    struct group *group;     /* NULL: it can be in no gang */

    pthread_mutex_t lock;
    pthread_cond_t to_read;  /* a lease came, a probe's record is through, all is to end */
    pthread_cond_t to_write; /* something may be due */
    struct held *helds;
    struct job *jobs;
    struct loaded *loaded;
    struct report *reports, **last_report;
    int stopping, draining, reading;
    uint64_t drain_until_ms;
    uint64_t done_bytes;     /* results that wait for their commit */
    uint64_t records_done;
    uint32_t part_failures;  /* in a row */
    uint32_t scans;          /* threads that look for a cut */
};

/* A thread with a stack for its signal handler, so that an overflow of its own is noted too. number -1: the name has none. */
MUST_USE enum status stage_start(struct pipeline *p, struct stage *stage, void *(*run)(void *), uint32_t slot, const char *name, int number, struct err *e);
void stage_join(struct stage *s); /* when it ends; one that was never started too */
/* A micro-batch is through: rows, or errors, of each of the n items. Without the lock; takes over the items. */
struct model_result;
void pipeline_finish(struct pipeline *p, const struct loaded *l, struct item *const *items, uint32_t n, const struct model_result *r, struct buf *scratch);

void *read_run(void *stage);
void *prepare_run(void *stage);
void *infer_run(void *stage);
void *write_run(void *stage);

/* Memory is out: noted in the black box, said, and the process ends with exit code 77. The records in the lanes are suspects then; nothing
   that was committed is lost. */
_Noreturn void pipeline_out_of_memory(struct pipeline *p, const char *what);

/* The rest with the lock held. */
/* So many results wait for their commit that it is made now, whatever the job's interval. Far below the whole budget: a fast model must not hold
   more the faster it is, and the next results come in while a part is being written. */
static inline int pipeline_full(const struct pipeline *p)
{
    return p->done_bytes > p->o.budget_bytes / 8;
}
struct held *pipeline_find(struct pipeline *p, uint64_t epoch);
void pipeline_add_report(struct pipeline *p, const struct report *r); /* copies it */
void pipeline_add_commit(struct pipeline *p, struct commit *c);
void pipeline_cut_answer(struct pipeline *p, uint64_t epoch, uint64_t at);
/* The writer, which alone makes commits, so that they leave in the order of their numbers: gives back all that is not committed, in commit
   `seq`. The daemon's acknowledgement ends the lease. */
void pipeline_give_back(struct pipeline *p, struct held *h, uint64_t seq, const char *why);
/* Takes it off the list; results are thrown away. */
void pipeline_drop(struct pipeline *p, struct held *h);
/* Takes it off when all is read, committed and acknowledged: 1 when it was. */
int pipeline_over(struct pipeline *p, struct held *h);

/* A lane has taken a chain by node.next from the queue as one micro-batch; full: more did not fit into it. Without the lock. */
void pipeline_begun(struct pipeline *p, struct node *chain, int full);
/* A chain of items by `later` that come to nothing. Takes the budget's lock. */
void pipeline_throw_away(struct pipeline *p, struct item *chain);
/* A stage has an item that is not to go on: its record leaves the budget, it is freed. Without the lock. */
void pipeline_discard(struct pipeline *p, struct item *i);
/* An item got its error: without the lock. code and message as they stand in errors.jsonl; message is copied. */
void pipeline_failed(struct pipeline *p, struct item *i, enum record_error error, const char *message);
/* Items have their rows (a chain by node.next): without the lock. */
void pipeline_rows(struct pipeline *p, struct item *chain);

#endif
