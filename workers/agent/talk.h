/* The agent's end of the wire: one DEALER on the workers' socket of a daemon. docs/agent.md tells who says what, when. */
#ifndef EBB_WORKERS_AGENT_TALK_H
#define EBB_WORKERS_AGENT_TALK_H

#include <stdint.h>
#include <zmq.h>

#include "base/status.h"
#include "wire/keys.h"
#include "workers/agent/guests.h"
#include "workers/agent/policy.h"

struct talk;

struct talk_opts {        /* texts and keys live as long as the talk */
    uint64_t number;      /* the agent's, the same after a restart */
    const char *endpoint, *host;
    const struct keys *keys; /* NULL: ipc */
    uint32_t cores;
    uint64_t memory_bytes;
};

MUST_USE enum status talk_open(const struct talk_opts *o, struct talk **out, struct err *e);
void talk_close(struct talk *t);
/* What to wait for: two items. */
void talk_poll_items(struct talk *t, zmq_pollitem_t items[2]);
/* Reads all that has come; kills and notes go to the guests. 1 when it wants another number of workers than before. */
int talk_turn(struct talk *t, struct guests *g, uint64_t now_ms);
/* Says how the node is, when that is news or a second old, and how guests ended, until that is noted. */
void talk_state(struct talk *t, const struct decision *d, const struct readings *r, struct guests *g, uint64_t now_ms);
uint32_t talk_wanted(const struct talk *t);     /* workers; 0 when the daemon has been away for long */
int talk_welcome(const struct talk *t);         /* connected, and the daemon knows us */
const char *talk_trouble(const struct talk *t); /* why not; "" */

#endif
