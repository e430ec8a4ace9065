/* The worker's side of a gang, the workers of one pipeline (docs/pipelines.md): which part of which model this worker holds, with whom, and its micro-batches on their
   way. A worker is in one gang or in none.

   On the head, lanes hand their micro-batches in here in the place of running the model; results come back on the carrier's thread, and a finisher makes rows of them. On
   each member (the head may be one of those too) micro-batches come in through the carrier, a runner takes them through the part, and they go on to the next member, or as
   a result to the head.

   All of this is under the pipeline's lock, but the queues between threads, which have their own inside it. */
#ifndef EBB_WORKERS_GROUP_H
#define EBB_WORKERS_GROUP_H

#include <stdint.h>

#include "base/status.h"
#include "wire/keys.h"
#include "wire/wire.h"
#include "workers/engine/model.h"

#define GROUP_MOST 8 /* members: GANG_MOST of scheduler/sched.h */
#define GROUP_WAYS 32 /* peers whose ways are measured at a time */

struct blackbox_record;
struct group;
struct item;
struct loaded;
struct pipeline;

struct group_opts {
    void *context;           /* ZeroMQ's; NULL: this worker can be in no gang */
    const char *endpoint;    /* of the daemon's workers */
    const struct keys *keys; /* NULL: ipc */
    uint64_t number;         /* the worker's */
    uint64_t memory_bytes;   /* that it may take; 0: no limit */
};

/* Slots of the black box that its threads have, from first_slot on. */
uint32_t group_slots(uint32_t lanes);
/* Part of pipeline_new, whose pipeline it belongs to. A worker whose socket cannot be made says so, and is in no gang: *out NULL. */
MUST_USE enum status group_new(struct pipeline *p, const struct group_opts *o, uint32_t first_slot, struct group **out, struct err *e);
/* Lanes wait no longer in group_send; then, when they have ended: its threads end. g may be NULL in all that follows. */
void group_stop(struct group *g);
void group_free(struct group *g);

/* The link's thread. None of these waits. */
const char *group_endpoint(const struct group *g); /* "": it can be in no gang */
const char *group_key(const struct group *g);
void group_profile(struct group *g, const Ebb__Profile *m);
void group_stage(struct group *g, const Ebb__Stage *m);
void group_go(struct group *g, uint64_t gang, uint32_t cut);
int group_busy(struct group *g); /* a thread of its own is at work, perhaps for long */

/* With the pipeline's lock held. */
int group_heads(const struct group *g, uint64_t job); /* this worker is the head of a gang that runs this job */
void group_closed(struct group *g);                   /* leases were closed: their records on the way are wanted no more */

/* A lane: n items, laid out in b, go through the gang. Takes over the items; waits while enough are on their way. Without the lock. */
void group_send(struct group *g, struct loaded *l, const struct model_batch *b, struct item *const *items, const struct blackbox_record *named);

#endif
