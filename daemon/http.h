/* What monitoring asks of ebbd over HTTP: /metrics, /healthz, /readyz. Facts only, nothing can be changed. One thread of its own answers out of what
   the loop published last; it never touches the core, and the loop never waits for it. */
#ifndef EBB_DAEMON_HTTP_H
#define EBB_DAEMON_HTTP_H

#include "daemon/loop.h"

#define HTTP_CONNECTIONS 64      /* at once; beyond three quarters of them the oldest goes */
#define HTTP_REQUEST_MS 5000     /* from connecting to the answer's end: no one may hang on for longer */
#define HTTP_MEMORY_BYTES 8192   /* of a connection: request line and headers must fit */
#define HTTP_LOOP_STILL_MS 10000 /* the loop has not come round for so long: it is not healthy */

struct http;

/* "127.0.0.1:9570", "[::1]:9570", "off". ST_USER: neither. */
MUST_USE enum status http_check(const char *where, struct err *e);
/* Listens where the configuration says; without a word there d->http stays NULL, and all that follows does nothing. From here on it answers that the
   daemon is starting. ST_USER: the address cannot be had. */
MUST_USE enum status http_open(struct daemon *d, struct err *e);
void http_close(struct daemon *d);
/* Publishes how things stand. Once a second, and when the daemon has started or is about to end. */
void http_second(struct daemon *d);
/* The configuration has changed: listens elsewhere, or not any more. What cannot be had is logged, and all stays as it was. */
void http_reload(struct daemon *d);

#endif
