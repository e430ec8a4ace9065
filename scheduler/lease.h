/* Spans change hands: grants, beats, take-backs, commits (lease_commit.c), cuts (lease_cut.c). The functions that change something say how
   much room (core_room) the caller must have made; they cannot fail. */
#ifndef EBB_SCHEDULER_LEASE_H
#define EBB_SCHEDULER_LEASE_H

#include "scheduler/core.h"
#include "scheduler/span.h"

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
/* Of its bytes: how many are not computed yet; how many of these not even read, and from where on. */
uint64_t lease_bytes_to_do(const struct lease *l);
uint64_t lease_bytes_unread(const struct lease *l);
uint64_t lease_unread_from(const struct lease *l);

enum status lease_beat(struct sched *s, const struct sched_event *ev, struct err *e);

/* lease_commit.c */
enum status lease_commit(struct sched *s, const struct sched_event *ev, struct err *e);

/* lease_cut.c */
enum status lease_cut_answered(struct sched *s, const struct sched_event *ev, struct err *e);
/* Asks the holder with the most work left, of all jobs that w may serve, to give some up for w. 1: asked. Makes its own room. */
int lease_cut_for(struct sched *s, struct worker *w);
/* Tells the holders of stopped jobs to read no further; returns -1 when memory is out. */
int lease_sweep(struct sched *s);

#endif
