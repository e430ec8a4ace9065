/* What ebbd counts, and how all that it knows is written for Prometheus (text format 0.0.4; docs/metrics.md names every series). */
#ifndef EBB_DAEMON_METRICS_H
#define EBB_DAEMON_METRICS_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "scheduler/sched.h"

struct daemon;

#define METRICS_JOBS_SHOWN 100 /* jobs that get series of their own; the totals count all of them */
#define METRICS_JOB_KEPT_MS 300000 /* a job that is over keeps its series for so long, so that its last figures are seen */

/* Since the start of the daemon. name, series, what it says */
#define METRIC_COUNTER_MAP(X)                                                                                                    \
    X(RECORDS, "ebb_records_done_total", "Records committed, bad ones included.")                                                \
    X(ERRORS, "ebb_record_errors_total", "Records that became an error row.")                                                    \
    X(BYTES, "ebb_input_bytes_done_total", "Bytes of input at rest that were committed.")                                         \
    X(LEASES, "ebb_leases_total", "Leases given to workers.")                                                                    \
    X(COMMITS, "ebb_commits_total", "Commits acknowledged as done.")                                                             \
    X(COMMITS_STALE, "ebb_commits_stale_total", "Commits whose lease was somebody else's by then.")                               \
    X(COMMITS_REFUSED, "ebb_commits_refused_total", "Commits whose part was not as described.")     \
    X(RECUTS, "ebb_pipeline_recuts_total", "Times that a model was divided anew among the workers of a pipeline.")               \
    X(STAGE_FAULTS, "ebb_pipeline_faults_total", "Times that a worker of a pipeline said that it cannot go on.")
enum metric_counter {
#define X(name, series, help) METRIC_##name,
    METRIC_COUNTER_MAP(X)
#undef X
        METRIC_COUNTERS
};

/* Any thread. */
void metrics_add(enum metric_counter c, uint64_t n);
void metrics_worker_ended(enum worker_end how);
/* From a commit's arrival to its acknowledgement's leaving. */
void metrics_commit_acked(uint64_t took_ns);

/* Everything that is counted or that the loop knows, appended. On the loop; linear in jobs and workers. ST_NOMEM: what was appended is of no use. */
MUST_USE enum status metrics_write(struct daemon *d, struct buf *out, struct err *e);
/* What the system knows of this process. Any thread. ST_ENV: there is no /proc. */
MUST_USE enum status metrics_write_process(struct buf *out, struct err *e);
/* A label's value: backslash, quote and line end are escaped. 0, or -1 when memory is out. */
MUST_USE int metrics_label(struct buf *out, const char *value);

#endif
