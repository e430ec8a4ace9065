/* ZeroMQ sockets as ebb uses them. A DEALER talks to one daemon; ebbd's two ROUTERs (workers, clients) see the peer's identity as the
   first frame. ROUTER_MANDATORY: a message to a peer that is gone is an error, never dropped in silence. */
#ifndef EBB_WIRE_SOCK_H
#define EBB_WIRE_SOCK_H

#include <stdint.h>

#include "wire/wire.h"

#define SOCK_PEER_MAX 32

struct sock_peer {
    uint8_t id[SOCK_PEER_MAX];
    uint8_t len;
};

struct sock;

/* endpoint "ipc:///run/ebb/workers" or "tcp://127.0.0.1:5570"; context from zmq_ctx_new. */
MUST_USE enum status sock_router(void *context, const char *endpoint, struct sock **out, struct err *e);
/* identity: how the ROUTER knows us, 1..32 bytes (a worker: its 8-byte number); NULL: ZeroMQ draws one. Reconnects by itself for ever. */
MUST_USE enum status sock_dealer(void *context, const char *endpoint, const void *identity, size_t identity_len, struct sock **out, struct err *e);
void sock_close(struct sock *s); /* waits at most a second for what was sent */
void *sock_zmq(struct sock *s);  /* for zmq_poll */
int sock_fd(struct sock *s);     /* ZMQ_FD: edge-triggered, wakes only; then ask sock_readable */
int sock_readable(struct sock *s);

/* peer: whom (ROUTER) or NULL (DEALER). ST_NOT_FOUND: the peer is gone. ST_AGAIN: its queue is full. */
MUST_USE enum status sock_send(struct sock *s, const struct sock_peer *peer, Ebb__Envelope__BodyCase which, void *body, struct err *e);
/* Never blocks: ST_AGAIN when there is nothing. ST_CORRUPT: a message that is not ours was read and dropped (peer is filled). */
MUST_USE enum status sock_receive(struct sock *s, struct sock_peer *peer, Ebb__Envelope **out, struct err *e);
/* Waits up to timeout_ms (-1: for ever) for something to read: 1, 0 when there is nothing, -1 on EINTR. */
int sock_wait(struct sock *s, int timeout_ms);

#endif
