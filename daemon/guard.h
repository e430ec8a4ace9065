/* The free-space guard: before a disk is full, work stops with a reason; when there is room again it goes on by itself. */
#ifndef EBB_DAEMON_GUARD_H
#define EBB_DAEMON_GUARD_H

#include "daemon/loop.h"

MUST_USE enum status guard_open(struct daemon *d, struct err *e);
void guard_second(struct guard *g); /* once a second */
void guard_soon(struct guard *g);   /* a job came: look within a second */
void guard_close(struct daemon *d);

#endif
