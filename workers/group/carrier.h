/* What carries micro-batches between the members of a gang: a ROUTER of this worker's own, where they come in, a DEALER to each member that this one sends to, and
   the one thread that has all of these. A message is an envelope and, as a second frame, its payload, which is copied nowhere on the way. docs/pipelines.md.

   The handlers are called on that thread. They may call carrier_send. */
#ifndef EBB_WORKERS_CARRIER_H
#define EBB_WORKERS_CARRIER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/keys.h"
#include "wire/wire.h"

#define CARRIER_MOST_BYTES (UINT64_C(256) << 20) /* of a payload: who sends has not shown its pass yet when the first bytes are kept */
#define CARRIER_PEERS 2                          /* members that one member sends to */

struct carrier;
struct payload;

struct carrier_handlers {
    void *arg;
    void (*message)(void *arg, Ebb__Envelope *m, struct payload *p); /* takes over both; p NULL: there was none */
    void (*up)(void *arg, uint64_t peer);                            /* its connection stands; said again after each carrier_peers */
    void (*lost)(void *arg, uint64_t peer);                          /* it stood, and is gone; what was sent last may be too. It is tried again */
    void (*tick)(void *arg);                                         /* every CARRIER_TICK_MS while there are peers, and after carrier_poke */
};
#define CARRIER_TICK_MS 200

struct carrier_peer {
    uint64_t worker;
    const char *endpoint, *key; /* key "": ipc */
};

/* endpoint, keys: the daemon's socket for workers, and what opens it (NULL: ipc): the ROUTER is made beside it, or on the address that faces it with a key drawn
   now. context stays the caller's. */
MUST_USE enum status carrier_new(void *context, const char *endpoint, const struct keys *keys, uint64_t number, const struct carrier_handlers *h,
                                 struct carrier **out, struct err *e);
void carrier_free(struct carrier *c);
const char *carrier_endpoint(const struct carrier *c); /* for others to connect to */
const char *carrier_key(const struct carrier *c);      /* Z85; "": ipc */

/* Any thread. */
/* Whom it sends to from now on; connections that are wanted still are kept. Copies. */
MUST_USE enum status carrier_peers(struct carrier *c, const struct carrier_peer *list, size_t n, struct err *e);
/* Never waits. Takes over the payload (NULL: none), also when it fails. A message to somebody who is no peer (any more) is dropped: it is of a cut that is over.
   ST_NOMEM; ST_USER: it is too long. */
MUST_USE enum status carrier_send(struct carrier *c, uint64_t peer, Ebb__Envelope__BodyCase which, void *body, struct payload *p, struct err *e);
void carrier_poke(struct carrier *c);
struct sock;
/* A DEALER of the caller's to one peer, connected or about to be, with this worker's key: for questions beside the gang (ways.h). Whatever comes in here with a LinkProbe is
   answered at once by the same, without a payload, and goes to no handler. */
MUST_USE enum status carrier_dial(struct carrier *c, const struct carrier_peer *to, struct sock **out, struct err *e);

/* data: of mem_alloc, the payload's from now on, also on failure (NULL: memory is out). */
struct payload *payload_new(void *data, size_t len);
const void *payload_data(const struct payload *p); /* NULL has none */
size_t payload_len(const struct payload *p);
void payload_free(struct payload *p);

#endif
