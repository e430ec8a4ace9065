/* The nodes of a ledger as the core changes them: counters, index and rows follow. The functions say how much room (core_room) the
   caller must have made; they cannot fail. */
#ifndef EBB_SCHEDULER_SPAN_H
#define EBB_SCHEDULER_SPAN_H

#include "scheduler/core.h"

struct node *span_insert(struct sched *s, struct job *j, struct span span);       /* a new READY one; 1 node */
struct node *span_restore(struct sched *s, struct job *j, const struct span_row *row, struct lease *l); /* 1 node, no row */
struct node *span_split(struct sched *s, struct job *j, struct node *n, uint64_t at); /* returns the right half; 2 nodes */
void span_drop(struct sched *s, struct job *j, struct node *n);                   /* 1 node */
/* Gives a piece back, or settles a READY span whose standing changed: indexes it and joins it with equal neighbours; 3 nodes. */
struct node *span_ready(struct sched *s, struct job *j, struct node *n);
void span_account(struct job *j, struct node *n, int sign); /* before and after a change of standing */
void span_back_off(struct sched *s, struct job *j, struct node *n, uint64_t not_before_ms); /* of a READY span; 0: no longer */
struct node *span_settle(struct sched *s, struct job *j, struct node *n); /* the same for what was READY or is about to be; no new work */
/* The front is done: what was known of its first record is void; 1 node. */
void span_advance(struct sched *s, struct job *j, struct node *n, uint64_t to);
void span_link_piece(struct lease *l, struct node *after, struct node *n); /* after NULL: at the front */
void span_touch(struct sched *s, struct job *j, struct node *n);           /* its row is written at the end of the step; 1 node */

#endif
