/* One request of a client under way, for the files that serve verbs. */
#ifndef EBB_DAEMON_CALL_H
#define EBB_DAEMON_CALL_H

#include <jansson.h>

#include "daemon/job.h"
#include "daemon/loop.h"
#include "wire/sock.h"

struct call {
    struct daemon *d;
    struct sock_peer client;
    uint64_t id;
    json_t *in; /* an object */
};

/* The last word of each call is one of these. */
void call_refuse(struct call *c, enum status code, const char *fmt, ...) PRINTF(3, 4);
void call_answer(struct call *c, json_t *o); /* takes the reference; NULL: memory is out */

/* The job that the request names, or NULL: refused. */
struct job *call_job(struct call *c, struct sched_job_view *v);
/* A verb of the core. 0: refused. */
int call_control(struct call *c, struct sched_event *ev, enum job_verb verb);
/* The object as text, to be freed with mem_free. Takes the reference. NULL: memory is out. */
char *call_dump(json_t *o);
const char *job_state_word(enum job_state state);

void verb_job(struct call *c);
void verb_errors(struct call *c);
void verb_events(struct call *c);
void verb_retry(struct call *c);
void verb_doctor(struct call *c);

#endif
