/* What a worker has said and was not answered yet: its commits, in order, until their acknowledgements come. */
#ifndef EBB_WORKERS_OUTBOX_H
#define EBB_WORKERS_OUTBOX_H

#include <stdint.h>

#include "wire/sock.h"
#include "wire/wire.h"
#include "workers/pipeline/pipeline.h"

struct sent;
struct outbox {
    struct sent *first, **last;
};

void outbox_init(struct outbox *o);
void outbox_release(struct outbox *o); /* what was not acknowledged is done again by somebody */
/* Takes the commit; it goes out now when there is somebody `to` send it. */
void outbox_add(struct outbox *o, struct sock *to, struct commit *c, uint64_t now_ms);
/* Those that were sent so long ago go out once more. */
void outbox_again(struct outbox *o, struct sock *to, uint64_t now_ms, uint64_t older_than_ms);
/* Forgets commit `seq` of the epoch, or all of the epoch (UINT64_MAX). */
void outbox_forget(struct outbox *o, uint64_t epoch, uint64_t seq);

/* What cannot go out now is not lost: everything that matters is said again after the next Welcome. */
void outbox_say(struct sock *to, Ebb__Envelope__BodyCase which, void *body);
_Noreturn void outbox_no_memory(void);

#endif
