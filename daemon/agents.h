/* The provider `agent`: nodes that offer themselves (ebb-agent), and the workers that their agents start and end. docs/agent.md. */
#ifndef EBB_DAEMON_AGENTS_H
#define EBB_DAEMON_AGENTS_H

#include <jansson.h>

#include "daemon/provider.h"

struct agents;

extern const struct provider provider_agent;

/* Is it a message of an agent's? Then it belongs to agents_said. */
int agents_says(const Ebb__Envelope *m);
/* From link.c. NULL, or what is senseless about it. */
const char *agents_said(struct daemon *d, const struct sock_peer *peer, const Ebb__Envelope *m);
/* A row of `ebb workers`: of one that is frozen the state, why, and for how long, in the place of what it held. Takes o (NULL: memory is out) and gives it
   back. */
json_t *agents_dress(const struct daemon *d, uint64_t worker, json_t *o);
/* For `ebb nodes`: an array; NULL: memory is out. */
json_t *agents_json(const struct daemon *d);
/* For metrics: the state of each node, and number and state of each of its workers. */
void agents_visit(const struct daemon *d, void (*node)(void *arg, const char *state), void (*worker)(void *arg, uint64_t number, const char *state), void *arg);

#endif
