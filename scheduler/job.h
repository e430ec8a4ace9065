/* Jobs as the core knows them: how they come and go, and the only moves that they make. The functions that change something say how
   much room (core_room) the caller must have made. */
#ifndef EBB_SCHEDULER_JOB_H
#define EBB_SCHEDULER_JOB_H

#include "scheduler/core.h"

/* A job with its layout, in its place; NULL when memory is out. */
/* wall_ms: now, for its deadline. */
struct job *job_add(struct sched *s, const struct job_row *row, const struct layout *layout, int64_t wall_ms);
void job_free(struct job *j);
void job_set_state(struct sched *s, struct job *j, enum job_state state);
/* No more leases; what is read already is still committed. At most: 2 rows. */
void job_stop(struct sched *s, struct job *j, enum job_state state, const char *reason);
/* Its leases are still to be told that it stopped: see lease_sweep. */
void job_sweep(struct sched *s, struct job *j);
/* When nothing is left of a running job: publishes it, or holds it for its share of errors. At most: 2 rows, 1 message. */
void job_finish(struct sched *s, struct job *j);
/* Holds the job when it has more errors than it may. */
void job_check_errors(struct sched *s, struct job *j, int at_end);
int job_too_many_errors(const struct job *j, int at_end, char *why, size_t size);
uint64_t job_weight(const struct job *j, const struct span *span); /* bytes at rest */
uint64_t job_record_bytes(const struct job *j);                    /* of the records done so far, on average; 0: none is */

/* Events; each makes its own room. */
enum status job_submitted(struct sched *s, const struct sched_event *ev, struct err *e);
enum status job_control(struct sched *s, const struct sched_event *ev, struct err *e);
enum status job_published(struct sched *s, const struct sched_event *ev, struct err *e);

#endif
