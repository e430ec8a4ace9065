/* Which job a free worker serves next: priority first, then jobs below their least number of workers, then weighted fair
   queueing, in which each lease is charged beforehand with the time that it should take. A worker that has loaded a model stays
   with the jobs of that model for ten load times, unless it would be idle or a higher priority waits. */
#ifndef EBB_SCHEDULER_SHARE_H
#define EBB_SCHEDULER_SHARE_H

#include "scheduler/core.h"

int share_fits(const struct sched *s, const struct worker *w, const struct job *j); /* by its nature: numerics, model, host; alone or with others */
int share_may_serve(const struct sched *s, const struct worker *w, const struct job *j); /* it can be given its leases now, within the job's limits */
/* Whose turn it is. It may be a job of which w may not be given leases (share_may_serve): one that gathers workers for a pipeline. */
struct job *share_pick(const struct sched *s, const struct worker *w);
/* Gives w what it can take now; asks for cuts when nothing is ready. Makes its own room; when there is none, the tick goes on.
   Returns the number of leases given. */
int share_feed(struct sched *s, struct worker *w);
/* After work or workers appeared: feeds the idle ones. */
void share_dispatch(struct sched *s);

#endif
