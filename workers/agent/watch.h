/* What is read about the node: load, memory, pressure, people, the time of the week. */
#ifndef EBB_WORKERS_AGENT_WATCH_H
#define EBB_WORKERS_AGENT_WATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/agent/policy.h"

struct watch;

/* root: NULL for the real /proc, /run/utmp and /dev. Else a folder that mimics them, for tests: ROOT/stat, ROOT/meminfo, ROOT/pressure/..., ROOT/utmp,
   ROOT/dev; its stat counts others only. */
MUST_USE enum status watch_open(const char *root, uint64_t now_ms, struct watch **out, struct err *e);
void watch_close(struct watch *w);
/* Everything but guests, running, guests_bytes and leave. guests_cpu_ns: processor time that the guests took so far; UINT64_MAX: not known (then nothing
   is known of the load of others while there are any). */
void watch_read(struct watch *w, uint64_t now_ms, uint64_t guests_cpu_ns, struct readings *r);
/* What is watched, and what cannot be and why, in lines that end in \n. */
void watch_words(const struct watch *w, char *out, size_t size);
/* The minute of the week, local time. */
int watch_minute(void);

#endif
