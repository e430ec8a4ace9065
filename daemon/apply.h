/* Persist, then send. The loop fills the open group: rows of many steps, and behind them what may leave only when they are safe. One
   thread writes a group with one sync; meanwhile the next one fills. Groups leave in order, and within one all in the order in which
   it was put in. */
#ifndef EBB_DAEMON_APPLY_H
#define EBB_DAEMON_APPLY_H

#include "daemon/loop.h"
#include "storage/rows.h"
#include "wire/sock.h"

#define APPLY_EVENTS_KEPT 1000 /* lines of a job's history */

struct apply;

/* Opens the store and starts the thread. */
MUST_USE enum status apply_open(struct daemon *d, struct err *e);
void apply_close(struct daemon *d); /* everything in the groups must have left: see apply_idle */
/* Closes and opens the store after a failed write. ST_AGAIN: somebody reads it just now. */
MUST_USE enum status apply_reopen(struct apply *a, struct err *e);
struct store *apply_store(struct apply *a);

/* The batch of the open group. */
struct store_batch *apply_batch(struct apply *a);
/* The rows and messages of one step. */
void apply_update(struct apply *a, const struct sched_update *u);
/* A batch that another thread has filled, written before this group's own; freed by the group. A crash may leave it without the group. */
void apply_before(struct apply *a, struct store_batch *b);
/* Behind the rows put in so far: an answer to a client. json is taken (mem_free), NULL: "{}". */
void apply_reply(struct apply *a, const struct sock_peer *client, uint64_t id, enum status code, char *json, int more);
/* Behind the rows put in so far: fn(arg, 1) when they are safe, fn(arg, 0) when they are lost. */
void apply_call(struct apply *a, void (*fn)(void *arg, int safe), void *arg);
/* Hands the open group to the thread when that is free; sends at once what waits for nothing. Called once a turn of the loop. */
void apply_flush(struct apply *a);
int apply_idle(const struct apply *a);
/* After a failed write: forgets both groups, telling those who wait. */
void apply_discard(struct apply *a);

struct apply_figures {
    uint64_t groups, rows; /* written since the start */
    uint64_t last_sync_us, sync_us;
};
void apply_figures(const struct apply *a, struct apply_figures *out);

/* Other threads read the store between these. NULL: it is down just now. */
struct store *apply_read_begin(struct apply *a);
void apply_read_end(struct apply *a);

#endif
