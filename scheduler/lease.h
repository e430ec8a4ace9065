/* Spans change hands: grants, commits, cuts, take-backs. The functions that change something say how much room (core_room) the
   caller must have made; they cannot fail. */
#ifndef EBB_SCHEDULER_LEASE_H
#define EBB_SCHEDULER_LEASE_H

#include "scheduler/core.h"

/* Nodes: */
struct node *span_insert(struct sched *s, struct job *j, struct span span);       /* a new READY one; 1 node */
struct node *span_restore(struct sched *s, struct job *j, const struct span_row *row, struct lease *l); /* 1 node, no row */
struct node *span_split(struct sched *s, struct job *j, struct node *n, uint64_t at); /* returns the right half; 2 nodes */
void span_drop(struct sched *s, struct job *j, struct node *n);                   /* 1 node */
/* Gives a piece back, or settles a READY span whose standing changed: indexes it and joins it with equal neighbours; 3 nodes. */
struct node *span_ready(struct sched *s, struct job *j, struct node *n);
void span_account(struct job *j, struct node *n, int sign); /* before and after a change of standing */
void span_back_off(struct sched *s, struct job *j, struct node *n, uint64_t not_before_ms); /* of a READY span; 0: no longer */

/* Leases: */
struct lease *lease_open(struct sched *s, struct job *j, struct worker *w, uint64_t epoch); /* 1 lease; no pieces yet */
void lease_add_piece(struct job *j, struct lease *l, struct node *n);
struct lease *lease_grant(struct sched *s, struct worker *w, struct job *j, struct node *n, uint64_t bytes); /* 4 nodes, 1 lease, 1 message */
void lease_end(struct sched *s, struct lease *l);      /* its pieces are gone */
void lease_release(struct sched *s, struct lease *l);  /* pieces back to READY; 3 nodes a piece */
struct lease *lease_find(const struct sched *s, uint64_t epoch, uint64_t worker);
/* A name that is exactly [span] of a leased piece: cut out, still leased. NULL: the lease does not hold its beginning. 3 nodes */
struct node *lease_carve(struct sched *s, struct lease *l, struct span span);
uint64_t lease_bytes(const struct sched *s, const struct worker *w, const struct job *j); /* how much the next one should weigh */
int lease_near_end(const struct sched *s, const struct worker *w, const struct lease *l);
double worker_rate(const struct worker *w, const struct job *j);
void worker_measure(struct sched *s, struct worker *w, struct lease *l);

enum status lease_commit(struct sched *s, const struct sched_event *ev, struct err *e);
enum status lease_cut_answered(struct sched *s, const struct sched_event *ev, struct err *e);
enum status lease_beat(struct sched *s, const struct sched_event *ev, struct err *e);
/* Asks the holder with the most work left, of all jobs that w may serve, to give some up for w. 1: asked. Makes its own room. */
int lease_cut_for(struct sched *s, struct worker *w);
/* Tells the holders of stopped jobs to read no further; returns -1 when memory is out. */
int lease_sweep(struct sched *s);

#endif
