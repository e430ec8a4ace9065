/* Who may speak over the network. ZeroMQ asks here (ZAP, RFC 27) about each key that a peer has proved to hold; a node's key opens the workers'
   port, a client's key the clients' port, an invitation either, once, for a Join. Every message over tcp carries the number of its key, so that
   one that was revoked meanwhile is refused though its connection is up; the connection is shut as well.

   All on the loop's thread, but for auth_may. There is an auth only where `listen` is configured. */
#ifndef EBB_DAEMON_AUTH_H
#define EBB_DAEMON_AUTH_H

#include "daemon/loop.h"
#include "wire/sock.h"

struct auth;
struct call;

/* Reads the daemon's keys and who is let in. d->auth stays NULL where nothing is to be listened at. ST_USER: there are no keys, or no roots. */
MUST_USE enum status auth_open(struct daemon *d, struct err *e);
/* Answers ZeroMQ's questions of this context, and binds both sockets to the configured endpoints: workers at PORT, clients at PORT + 1. */
MUST_USE enum status auth_listen(struct auth *a, void *context, struct sock *workers, struct sock *clients, struct err *e);
void auth_close(struct daemon *d); /* before the context ends and the sockets are closed */
void auth_prepare_turn(struct auth *a, int *busy); /* *busy = 1 when something waits to be read */
void auth_turn(struct auth *a);
void auth_second(struct auth *a);
/* The configuration is about to be replaced: authorized_keys is read again (it also is when it changes). ST_USER: what must be said while we listen is not
   said any more. */
MUST_USE enum status auth_reload(struct daemon *d, const struct config *next, struct err *e);
/* For `ebb doctor`. */
void auth_examine(const struct daemon *d, void (*say)(void *arg, const char *name, int ok, const char *text), void *arg);

/* The daemon's own pair, for more sockets in the same context (the relay): they listen with sock_bind or sock_router and need no more. */
const struct keys *auth_keys(const struct auth *a);
/* May this peer speak as `role`? True for a plain one (user 0). An invitation may not. From any thread. */
int auth_may(struct auth *a, const struct sock_peer *peer, enum keys_role role);
/* The name of the peer's key; "" for a plain one. Good until the next turn. */
const char *auth_name(struct auth *a, const struct sock_peer *peer);
/* A message of this peer was read. 0: it must not be heard (said in the log, and its connection is shut). `join`: it is a Join, which an invitation may
   send. */
int auth_heard(struct auth *a, const struct sock_peer *peer, enum keys_role role, int join);
/* The peer wants its own key authorised; answered by JoinAnswer on `s`. */
void auth_join(struct auth *a, struct sock *s, const struct sock_peer *peer, enum keys_role role, const Ebb__Join *m);

uint64_t auth_refused(const struct auth *a); /* connections and messages since the start; NULL: 0 */

/* Verbs of the API (docs/api.md), for clients on this machine alone. */
void verb_keys(struct call *c);
void verb_invite(struct call *c);
void verb_authorize(struct call *c);
void verb_revoke(struct call *c);

#endif
