/* Asking a daemon. One request at a time. */
#ifndef EBB_CLIENT_CONNECT_H
#define EBB_CLIENT_CONNECT_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/keys.h"

struct conn;

/* "ipc:///run/ebb/clients" or "tcp://..."; finds out at once whether anybody listens there (ST_ENV, with advice), and over tcp whether our key is let in
   (ST_USER). */
MUST_USE enum status conn_open(const char *endpoint, struct conn **out, struct err *e);
/* The daemon of --daemon or --socket, of $EBB_SOCKET or $EBB_DAEMON, of this machine, or that of our key file. */
MUST_USE enum status conn_pool(struct conn **out, struct err *e);
/* Where our key lies: --key-file, $EBB_KEY_FILE, or ROLE.key in the user's configuration. The caller frees *out with mem_free. */
MUST_USE enum status conn_key_file(enum keys_role role, char **out, struct err *e);
void conn_close(struct conn *c);
/* From now on an answer is waited for only as long as alive(arg) is true; else ST_AGAIN. */
void conn_watch(struct conn *c, int (*alive)(void *arg), void *arg);

/* Sends `in` (taken over; NULL: an empty object) and waits. *out is the answer (json_decref), NULL when nobody wants it.
   ST_AGAIN: no answer in time, or a signal came; everything else is the daemon's word. Each reply of several goes through `visit`, the last too. */
MUST_USE enum status conn_call(struct conn *c, const char *verb, json_t *in, uint64_t timeout_ms, json_t **out, struct err *e);
MUST_USE enum status conn_each(struct conn *c, const char *verb, json_t *in, uint64_t timeout_ms,
                               enum status (*visit)(void *arg, json_t *reply, struct err *e), void *arg, struct err *e);
/* The last answer was a refusal that passes: the daemon is about to end, or opens its store anew. */
int conn_refused_for_now(const struct conn *c);
/* For commands that ask once: conn_pool, conn_call, conn_close. A daemon that does not answer is ST_ENV, with advice. */
MUST_USE enum status ask(const char *verb, json_t *in, json_t **out, struct err *e);

#endif
