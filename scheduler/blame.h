/* Who is guilty of a worker's death. Preempted, drained and lost workers are no evidence against a record. A worker that crashed,
   ate all memory or hung leaves a list of the records that were in its lanes: the suspects. Each is run again alone, in a
   probe; one that kills `lone_crashes` workers alone, on two hosts where there are two, is quarantined. */
#ifndef EBB_SCHEDULER_BLAME_H
#define EBB_SCHEDULER_BLAME_H

#include "scheduler/core.h"

/* Takes everything from a worker that went, and draws the conclusions; for a member of a pipeline on the leases of its head, too. Room: blame_room. */
int blame_room(struct sched *s, const struct worker *w, const struct sched_suspect *suspects, size_t count);
void blame_ended(struct sched *s, struct worker *w, enum worker_end how, const struct sched_suspect *suspects, size_t count);
/* A probe's records were done without a crash: where they crashed before, the host may be at fault. */
void blame_passed(struct sched *s, const struct lease *l, const struct span *done);
/* The probe that w should run next for j; NULL: none for it. */
struct node *blame_probe_for(const struct sched *s, const struct job *j, const struct worker *w);
int blame_benched(const struct sched *s, const struct host *h);

#endif
