/* Two things that stages share. A *queue* hands items from one stage to the next, first in, first out. A *budget* bounds what is inside the
   whole pipeline, in bytes and in records: the reader waits at its door, so that memory stays flat whatever the dataset's size, and so
   that reading never runs far ahead of computing (what has been read can no longer be cut off a lease). */
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

struct budget {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t bytes, most_bytes;     /* records and results */
    uint64_t ahead, most_ahead;     /* of that, records that are read and not yet through the model */
    uint64_t records, most_records; /* how many those are */
    uint64_t pokes;
};

/* most_ahead is a quarter of most_bytes: results wait for a commit by the second, records only to keep the lanes busy. */
void budget_init(struct budget *b, uint64_t most_bytes, uint64_t most_records);
void budget_release(struct budget *b);
/* Waits until so many bytes and one record more fit; what is larger than a bound waits until it is alone under it. 1 when taken; 0 when somebody
   poked after `pokes` was read: look around, then ask again. */
int budget_take(struct budget *b, uint64_t bytes, uint64_t pokes);
int budget_try(struct budget *b, uint64_t bytes); /* 1 when taken, without waiting */
uint64_t budget_pokes(struct budget *b);
void budget_poke(struct budget *b);
/* So many records, for which `taken` bytes were taken, are through; their results hold `kept` bytes. Never waits. */
void budget_through(struct budget *b, uint64_t records, uint64_t taken, uint64_t kept);
void budget_give(struct budget *b, uint64_t bytes); /* results are gone */
uint64_t budget_bytes(struct budget *b);
uint64_t budget_records(struct budget *b);
void budget_wait_idle(struct budget *b, uint64_t pokes); /* until no record is on its way through, or somebody pokes */

#endif
