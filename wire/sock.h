/* ZeroMQ sockets as ebb uses them. A DEALER talks to one daemon; ebbd's two ROUTERs (workers, clients) see the peer's identity as the
   first frame. ROUTER_MANDATORY: a message to a peer that is gone is an error, never dropped in silence.

   Without keys a socket is plain, which is for ipc, where the file's mode says who may. With keys it is CURVE: a DEALER shows its own pair and
   speaks only with the daemon whose key it has pinned; a ROUTER asks the context's ZAP handler (daemon/auth.h) about everyone, in the domain of
   the endpoint, and does not listen where there is no handler. */
#ifndef EBB_WIRE_SOCK_H
#define EBB_WIRE_SOCK_H

#include <stddef.h>
#include <stdint.h>

#include "wire/keys.h"
#include "wire/wire.h"

#define SOCK_PEER_MAX 32

/* The longest message that a ROUTER takes over tcp: who sends has not shown a key yet when its first bytes are kept. */
#define SOCK_MAX_TCP (8u << 20)

struct sock_peer {
    uint8_t id[SOCK_PEER_MAX];
    uint8_t len;
    uint32_t user; /* of whom the message came: what the ZAP handler called the key; 0: over a plain socket */
    int fd;        /* of the connection that the message came over; it may be another's by now */
};

struct sock;

/* The context's ZAP handler (RFC 27), a REP socket: it must be answered for as long as sockets with keys are bound; close it behind them or when
   nothing is read any more. */
MUST_USE enum status sock_gate_open(void *context, void **zap, struct err *e);
void sock_gate_close(void *context, void *zap);

/* ZAP domains: a node's key opens the one, a client's key the other. */
#define SOCK_NODES "nodes"
#define SOCK_CLIENTS "clients"

/* endpoint "ipc:///run/ebb/workers" or "tcp://127.0.0.1:5570"; context from zmq_ctx_new. keys: the daemon's own (of SOCK_NODES), NULL for a plain
   socket. ST_USER: tcp without keys, here and below. */
MUST_USE enum status sock_router(void *context, const char *endpoint, const struct keys *keys, struct sock **out, struct err *e);
/* One that listens nowhere yet, for large messages: of each peer no more than `few` wait to be read, the rest stays with the peer; none is longer than
   `longest`. */
MUST_USE enum status sock_router_few(void *context, int few, size_t longest, struct sock **out, struct err *e);
/* Listens at one more endpoint. domain "": whoever knows the public key gets in (a socket of its own, in a context without a handler). */
MUST_USE enum status sock_bind(struct sock *s, const char *endpoint, const struct keys *keys, const char *domain, struct err *e);
/* identity: how the ROUTER knows us, 1..32 bytes (a worker: its 8-byte number); NULL: ZeroMQ draws one. Reconnects by itself for ever, except
   after its key was refused: then never again. */
MUST_USE enum status sock_dealer(void *context, const char *endpoint, const struct keys *keys, const void *identity, size_t identity_len,
                                 struct sock **out, struct err *e);
/* One that is not connected yet, without an identity: whoever has its monitor ready calls zmq_connect. */
MUST_USE enum status sock_dealer_apart(void *context, const char *endpoint, const struct keys *keys, struct sock **out, struct err *e);
/* A DEALER over tcp whose handshake is done; it waits for that up to timeout_ms. ST_USER: this key is not let in. ST_ENV: nobody listens there, it is not
   the daemon whose key is pinned, it does not answer: says which. */
MUST_USE enum status sock_meet(void *context, const char *endpoint, const struct keys *keys, uint64_t timeout_ms, struct sock **out, struct err *e);
/* The address of ours that faces whoever listens at `endpoint`, as it stands in endpoints: others of the pool reach us there. Over ipc everybody is on this machine:
   127.0.0.1. */
MUST_USE enum status sock_own_address(const char *endpoint, char *out, size_t size, struct err *e);
#define SOCK_STAGES "stage-" /* begins the names of workers' own sockets, beside the daemon's */
/* Removes the socket files of `folder` whose names begin with prefix and at which nobody listens (their processes were killed), if they are older than age_s seconds:
   one that is about to listen is young. */
void sock_sweep(const char *folder, const char *prefix, int age_s);
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

/* The next event of a socket's monitor (zmq_socket_monitor; `monitor` is the PAIR that listens to it): ZMQ_EVENT_..., without the address. 0: there is
   none now. */
int sock_event(void *monitor);

#endif
