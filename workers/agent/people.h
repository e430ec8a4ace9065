/* Whether the node's owner is there: who is logged in (utmp), and when somebody last touched a terminal or an input device. Where there is no utmp,
   every terminal counts. Times are taken from the moments at which something changed, so that a clock that is set does not make an owner come or go.

   Input devices are read, where we may, only to know that something came; what came is thrown away. */
#ifndef EBB_WORKERS_AGENT_PEOPLE_H
#define EBB_WORKERS_AGENT_PEOPLE_H

#include <stddef.h>
#include <stdint.h>

#include "workers/agent/policy.h"

struct people;

/* root: NULL for the real /run/utmp and /dev; else ROOT/utmp and ROOT/dev, for tests. NULL: memory is out. */
struct people *people_open(const char *root, uint64_t now_ms);
void people_close(struct people *p);
/* Fills people_known, people, idle_ms and who. */
void people_read(struct people *p, uint64_t now_ms, struct readings *r);
/* What is watched, for people: "utmp, 2 input devices"; what cannot be is named. */
void people_words(const struct people *p, char *out, size_t size);

#endif
