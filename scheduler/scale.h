/* How many workers would be useful now, and from whom. Demand counts, not what exists: the figure is not zero while there is work, and never
   more than there are pieces of work worth a worker's while. docs/scheduler.md has the formulas. */
#ifndef EBB_SCHEDULER_SCALE_H
#define EBB_SCHEDULER_SCALE_H

#include "scheduler/core.h"

enum status scale_provider(struct sched *s, const struct sched_event *ev, struct err *e);
/* Says what is wanted when it changed, and lets idle ones go; at most once a second, but at once when it becomes or ceases to be zero. Makes its
   own room. */
void scale_update(struct sched *s);
/* A worker went without a word, or was taken away: its provider is worth less. */
void scale_loss(struct sched *s, const struct worker *w);
/* Over the last half minute; 0 when nothing was committed in it. */
void job_rate(const struct sched *s, const struct job *j, double *records_per_s, double *bytes_per_s);

/* scale_job.c: one job's part ------------------------------------------------------------------------------------------------------- */

struct scale_room { /* what providers can still give, while jobs are served one after the other */
    uint32_t sure[PROVIDERS];   /* that come, as far as one can know */
    uint32_t orders[PROVIDERS]; /* beyond that: asked for in case they come after all */
};
/* How many workers have work that is worth their while, within its limits. */
uint32_t scale_useful(const struct sched *s, const struct job *j);
/* Adds to want[] what the job is to have, and takes it out of the room. Sets j->given, j->need and when it will be done. */
void scale_job(struct sched *s, struct job *j, struct scale_room *room, uint32_t want[PROVIDERS]);
/* Whether the deadline will be met, and a line of history when that changes. Room: 1 row. */
void scale_deadline(struct sched *s, struct job *j);
/* Why the deadline is missed; "" when there is none, or it will be met as far as one can see. */
void scale_late_words(const struct sched *s, const struct job *j, char *out, size_t size);

#endif
