/* What a client may ask: docs/api.md. */
#ifndef EBB_DAEMON_API_H
#define EBB_DAEMON_API_H

#include <jansson.h>

#include "daemon/loop.h"
#include "wire/sock.h"

void api_request(struct daemon *d, const struct sock_peer *client, uint64_t id, const char *verb, const char *text);
/* The object JOB as JSON; NULL when there is no such job. */
json_t *api_job(struct daemon *d, uint64_t job);
/* Behind all that was put into the open group before. Takes the reference. */
void api_answer(struct daemon *d, const struct sock_peer *client, uint64_t id, json_t *object);
struct job;
/* What people call a worker's state (docs/api.md); j: its job, or NULL. */
const char *api_worker_state(const struct sched_worker_view *v, const struct job *j);
void api_refuse(struct daemon *d, const struct sock_peer *client, uint64_t id, const struct err *e);

#endif
