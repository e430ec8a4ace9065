/* How many workers would be useful now. Demand counts, not what exists: the figure is not zero while there is work, and never
   more than there are pieces of work worth a lease. */
#ifndef EBB_SCHEDULER_SCALE_H
#define EBB_SCHEDULER_SCALE_H

#include "scheduler/core.h"

uint32_t scale_useful(const struct sched *s, const struct job *j);
/* Of these, how many providers can give. */
uint32_t scale_can(const struct sched *s, const struct job *j);
enum status scale_provider(struct sched *s, const struct sched_event *ev, struct err *e);
/* Says what is wanted when it changed, and lets idle ones go; at most once a second, but at once when it becomes or ceases to be zero. Makes its
   own room. */
void scale_update(struct sched *s);
/* Over the last half minute; 0 when nothing was committed in it. */
void job_rate(const struct sched *s, const struct job *j, double *records_per_s, double *bytes_per_s);

#endif
