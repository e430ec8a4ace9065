/* The relay: serves workers that do not see a job's files. A ROUTER and threads of its own, so that bulk never waits in the loop nor makes it wait. docs/relay.md
   tells what is asked and answered.

   Names from the wire never become paths: a worker names (job, source), (job, epoch, seq) or (model, file), and the loop, which alone knows the jobs, says what that
   is. What is kept in memory for a peer, and for all of them, is bounded. */
#ifndef EBB_DAEMON_RELAY_H
#define EBB_DAEMON_RELAY_H

#include "daemon/loop.h"

#define RELAY_NAME "relay" /* of its socket, beside the workers' */
#define RELAY_PORT 2       /* over tcp, so far behind the workers' */

/* Behind link_open. */
MUST_USE enum status relay_open(struct daemon *d, struct err *e);
/* Before link_close, which ends ZeroMQ; behind it, relay_release of what d->relay was: ZeroMQ's threads give memory back until then. */
void relay_close(struct daemon *d);
void relay_release(struct relay *r);

/* A worker has left, died, or may no more: whoever asks for a model is not sent to it. On the loop; NULL: there is no relay. */
void relay_worker_ended(struct relay *r, uint64_t number);

struct relay_figures {
    uint64_t peers;
    uint64_t read_bytes, written_bytes, model_bytes; /* of sources and named files; of parts; of models, since the start */
    uint64_t parts;        /* completed */
    uint64_t refused;      /* questions that were answered with an error of the asker's */
    uint64_t waiting_bytes; /* answers that peers have not taken yet */
    uint64_t model_fetches; /* hosts that were let read a model from here */
};
void relay_figures(const struct daemon *d, struct relay_figures *out);

#endif
