/* Workers as the core knows them: joined, idle, lost, or known from the store only (ghosts, until they come back). */
#ifndef EBB_SCHEDULER_WORKER_H
#define EBB_SCHEDULER_WORKER_H

#include "scheduler/core.h"

struct worker *worker_ghost(struct sched *s, uint64_t id); /* NULL when memory is out */
void worker_free(struct sched *s, struct worker *w);       /* it has no leases any more */
/* In and out of the list of idle workers as its state says. */
void worker_refresh(struct sched *s, struct worker *w);
int worker_usable(const struct worker *w);
int worker_unoccupied(const struct worker *w); /* usable, and can be given work */
/* It cannot load j's model. When nobody else can, the job is held. Room: 2 rows */
void worker_no_model(struct sched *s, struct worker *w, struct job *j, const char *text, int machine);
void worker_let_go(struct sched *s, struct worker *w); /* it is told to drain. Room: 1 message */
void worker_heard(struct sched *s, struct worker *w);

/* When it is silent for too long, makes no progress, or owes an answer. */
uint64_t worker_deadline(const struct sched *s, const struct worker *w);
void worker_timer(struct sched *s, struct worker *w);
/* Its deadline has come. A whole of its own; -1: memory was out, the next tick goes on. */
int worker_expire(struct sched *s, struct worker *w);

double worker_rate(const struct worker *w, const struct job *j);        /* bytes/s; 0: not known */
uint64_t worker_last_size(const struct worker *w, const struct job *j); /* of its last lease of that job; 0: none */
void worker_switch_rate(struct worker *w, uint64_t job);                /* it serves another job from now on */
void worker_measure(struct sched *s, struct worker *w, struct lease *l);

/* Events; each makes its own room. */
enum status worker_joined(struct sched *s, const struct sched_event *ev, struct err *e);
enum status worker_drain(struct sched *s, const struct sched_event *ev, struct err *e);
enum status worker_ended(struct sched *s, const struct sched_event *ev, struct err *e);
enum status worker_model_ready(struct sched *s, const struct sched_event *ev, struct err *e);
enum status worker_model_failed(struct sched *s, const struct sched_event *ev, struct err *e);

#endif
