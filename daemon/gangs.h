/* What people see of pipelines over several workers: the core's gangs, with the workers' names. */
#ifndef EBB_DAEMON_GANGS_H
#define EBB_DAEMON_GANGS_H

#include <jansson.h>

#include "base/buf.h"
#include "daemon/loop.h"

/* GANG of docs/api.md for each pipeline of the job; an empty list: none. NULL when memory is out. */
json_t *gangs_json(struct daemon *d, uint64_t job);
/* "a pipeline of 3 workers", "2 pipelines of 6 workers"; "": none of the job's runs. Returns out. */
char *gangs_words(struct daemon *d, uint64_t job, char *out, size_t size);
/* For daemon/metrics.c. 0, or -1 when memory is out. */
MUST_USE int gangs_write_metrics(const struct daemon *d, struct buf *out);

#endif
