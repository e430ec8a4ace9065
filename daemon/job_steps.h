/* What the daemon knows of the steps of a job: which models they are, and whether it may have commands. */
#ifndef EBB_DAEMON_JOB_STEPS_H
#define EBB_DAEMON_JOB_STEPS_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct config;
struct job;

/* On a thread: may clients have these steps here? Their models lie under the roots; commands are allowed. */
MUST_USE enum status job_steps_allowed(const struct config *c, const struct job *j, struct err *e);
/* On a thread: what is left open of them (precision) is decided, and each model's digest found out. The job's own digest is that of all of them, its size theirs together. */
MUST_USE enum status job_steps_settle(struct job *j, struct err *e);
/* For the sheet: a list of digests, null for a command; NULL when memory is out. And back: ST_CORRUPT when it does not go with the job's steps. */
json_t *job_steps_json(const struct job *j);
MUST_USE enum status job_steps_read(struct job *j, const json_t *list, struct err *e);
/* The path of the step's model that has this digest; NULL: none has. */
const char *job_steps_path(const struct job *j, const uint8_t *digest);
/* What two jobs must have alike to share what a worker has loaded. */
uint64_t job_steps_key(const struct job *j);

#endif
