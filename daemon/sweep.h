/* Parts that nobody will ever name: written by workers that were killed, or whose lease was given to somebody else. */
#ifndef EBB_DAEMON_SWEEP_H
#define EBB_DAEMON_SWEEP_H

#include "daemon/loop.h"

#define SWEEP_AFTER_MS 30000 /* behind the start: whoever comes back has come back */

struct sweep;

/* Once a second: when the time has come, a thread goes through the folders of parts of the jobs that are not over, once. */
MUST_USE enum status sweep_open(struct daemon *d, uint64_t after_ms, struct err *e);
void sweep_second(struct sweep *s);
void sweep_close(struct daemon *d);

#endif
