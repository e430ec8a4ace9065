/* The thread that makes files out of extents: it follows the finished head of each running job, and makes the names at its end. */
#ifndef EBB_DAEMON_PUBLISH_H
#define EBB_DAEMON_PUBLISH_H

#include "daemon/loop.h"

struct publish;

MUST_USE enum status publish_open(struct daemon *d, struct err *e);
void publish_close(struct daemon *d); /* waits for the step under way */
/* Everything of the job before `head` is DONE, durably. */
void publish_head(struct publish *p, uint64_t job, uint64_t head);
/* The job is PUBLISHING: finish. Answered by JOB_PUBLISHED. */
void publish_finish(struct publish *p, uint64_t job);
/* The job was canceled, removed or is run again: forget what was under way. */
void publish_forget(struct publish *p, uint64_t job);
/* Waits until nothing of what publish_forget named is under way. Any thread but the loop's. */
void publish_settle(struct publish *p, uint64_t job);
/* The store was reopened: whatever was not saved is begun again. */
void publish_restart(struct publish *p);

#endif
