/* Two things that stages share. A *queue* hands items from one stage to the next, first in, first out. A *budget* bounds what is inside the
   whole pipeline: the reader waits at its door. In bytes, so that memory stays flat whatever the dataset's size; and records that are read and wait
   for the model in time, so that reading never runs far ahead of computing: what has been read can no longer be cut off a lease, and a slow worker that
   holds hundreds of records keeps everybody waiting at the end. */
#ifndef EBB_WORKERS_QUEUE_H
#define EBB_WORKERS_QUEUE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* First member of whatever is queued. */
struct node {
    struct node *next;
};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct node *head, **tail;
    size_t count;
    uint32_t waiting; /* consumers */
    int closed;
};

void queue_init(struct queue *q);
void queue_release(struct queue *q); /* it is empty */
/* Appends a chain of n nodes (the last one's next is NULL). Never blocks: the budget is the bound. */
void queue_push(struct queue *q, struct node *chain, size_t n);
/* Takes from the front: the first node, then each further one that `fits` allows (NULL: all), at most `most`. Waits while the queue is empty;
   NULL when it is empty and closed. *n tells how many. */
struct node *queue_take(struct queue *q, size_t most, int (*fits)(void *arg, const struct node *first, const struct node *next), void *arg,
                        size_t *n);
size_t queue_count(struct queue *q);
void queue_close(struct queue *q); /* consumers empty it and end */

struct pace {                /* what happened in half a second, which begins with the first thing that happens */
    uint64_t ends_ms, through, largest;
};

struct budget {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t bytes, most_bytes;     /* records and results */
    uint64_t ahead, most_ahead;     /* of that, records that are read and not yet through the model */
    uint64_t records;               /* how many those are */
    uint64_t waiting, most_waiting; /* of those, the ones that no lane has begun */
    uint32_t lanes;
    struct pace now, before;        /* this half second, the one before */
    uint64_t batch;                 /* records in a full micro-batch, the largest of late */
    uint64_t pokes;
};

#define BUDGET_PACE_MS 500
#define BUDGET_FIRST_BATCH 16 /* until a micro-batch has been seen */

/* most_ahead is a quarter of most_bytes: results wait for a commit by the second, records only to keep the lanes busy. As many records may wait as went
   through the model in the last half to whole second, and at least one full micro-batch a lane, so that each finds its next one; never more than
   most_waiting. The beginning is small: BUDGET_FIRST_BATCH records a lane. */
void budget_init(struct budget *b, uint64_t most_bytes, uint32_t lanes, uint64_t most_waiting);
void budget_release(struct budget *b);
/* Waits until so many bytes and one record more fit; what is larger than a bound waits until it is alone under it. 1 when taken; 0 when somebody
   poked after `pokes` was read: look around, then ask again. */
int budget_take(struct budget *b, uint64_t bytes, uint64_t pokes);
int budget_try(struct budget *b, uint64_t bytes); /* 1 when taken, without waiting */
uint64_t budget_pokes(struct budget *b);
void budget_poke(struct budget *b);
/* A lane has begun with so many records as one micro-batch. full: more did not fit into it; else a full one holds more than these, nobody knows how
   many, and room is made for twice as many. `waited` of them were not begun before. */
void budget_begun(struct budget *b, uint64_t records, uint64_t waited, int full, uint64_t now_ms);
/* So many records, for which `taken` bytes were taken, are through; no lane had begun with `unbegun` of them. Their results hold `kept` bytes. Never waits. */
void budget_through(struct budget *b, uint64_t records, uint64_t unbegun, uint64_t taken, uint64_t kept, uint64_t now_ms);
void budget_give(struct budget *b, uint64_t bytes); /* results are gone */
uint64_t budget_bytes(struct budget *b);
uint64_t budget_records(struct budget *b);
uint64_t budget_may_wait(struct budget *b); /* records: the bound as it is now */
void budget_wait_idle(struct budget *b, uint64_t pokes); /* until no record is on its way through, or somebody pokes */

#endif
