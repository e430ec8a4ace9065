/* The pipeline of a worker: read -> prepare -> infer (and encode) -> write, each with its own threads, as the link sees it. Everything here
   is called by one thread, the link's, and never waits for work.

   What the pipeline has to say comes as *reports*; `wake_fd` (an eventfd) is written when there is one. */
#ifndef EBB_WORKERS_PIPELINE_H
#define EBB_WORKERS_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/rows.h"
#include "base/status.h"
#include "wire/blackbox.h"
#include "workers/pipeline/held.h"
#include "workers/pipeline/job.h"

struct group;
struct keys;
struct pipeline;
struct remote;

struct pipeline_opts {
    uint32_t lanes;
    const char *isa;          /* NULL: the best there is */
    const char *pack_dir;     /* where packed weights are kept; NULL: nowhere */
    uint64_t pack_bytes;      /* most of them; 0: PACKFILE_MOST_BYTES */
    uint64_t budget_bytes;    /* records and rows inside the pipeline; 0: 64 MiB */
    struct blackbox *box;     /* with pipeline_slots(lanes) slots; kept by the caller */
    int wake_fd;
    struct remote *remote;    /* for what is not seen here; NULL: everything is. Kept by the caller */
    void *context;            /* ZeroMQ's, and what follows: for gangs (workers/group). NULL: it is in none */
    const char *endpoint;
    const struct keys *keys;
    uint64_t number;
    uint64_t memory_bytes;    /* of this process: a model that does not fit into it runs by a window of its layers; 0: no limit */
};
#define PIPELINE_OWN_BYTES (UINT64_C(32) << 20) /* what a worker takes besides records, rows and its model */

uint32_t pipeline_slots(uint32_t lanes);
MUST_USE enum status pipeline_new(const struct pipeline_opts *o, struct pipeline **out, struct err *e);
struct group *pipeline_group(struct pipeline *p); /* NULL: it can be in no gang */
void pipeline_free(struct pipeline *p); /* ends and joins the threads; only when nothing is in the lanes */
int pipeline_idle(struct pipeline *p);  /* nothing is in the lanes, the reader reads nothing */

/* A job, before its first lease; ST_USER when this worker cannot make sense of it. */
MUST_USE enum status pipeline_job(struct pipeline *p, const struct job_words *w, struct err *e);
void pipeline_forget_job(struct pipeline *p, uint64_t job);
/* Takes over the inputs, also when it fails. ST_NOT_FOUND: the job is unknown; ST_USER: the lease makes no sense. */
MUST_USE enum status pipeline_lease(struct pipeline *p, uint64_t job, uint64_t epoch, struct span span, int probe, struct input *inputs,
                                    size_t input_count, struct err *e);
void pipeline_cut(struct pipeline *p, uint64_t epoch, uint64_t at);
void pipeline_revoke(struct pipeline *p, uint64_t epoch, const char *why);
/* The daemon has (epoch, seq): 1 when that ends the lease. */
int pipeline_acked(struct pipeline *p, uint64_t epoch, uint64_t seq);
/* Reads no more, gives what is in the lanes until `until_ms` (monotonic), commits, returns the rest. pipeline_held_count then falls to 0 as
   the commits are acknowledged. */
void pipeline_drain(struct pipeline *p, uint64_t until_ms);

struct pipeline_progress {
    uint64_t job, epoch, next_seq, read_to, records_done, bytes_done;
};
size_t pipeline_held_count(struct pipeline *p);
/* Fills at most `most`; returns how many. next_seq is that of the first commit that was not acknowledged. */
size_t pipeline_held(struct pipeline *p, struct pipeline_progress *out, size_t most);
uint64_t pipeline_records_done(struct pipeline *p);
uint64_t pipeline_bytes(struct pipeline *p); /* inside now */
/* What is loaded: 0 and "" for nothing. */
void pipeline_loaded(struct pipeline *p, uint64_t *model_key, char *numerics, size_t size);

struct commit {
    struct commit *next;
    uint64_t job, epoch, seq;
    struct extent *done;
    size_t done_count;
    struct span *returned;
    size_t returned_count;
    uint64_t part_bytes;
    uint8_t part_digest[16];
};
void commit_free(struct commit *c);

enum report_kind {
    REPORT_COMMIT,
    REPORT_CUT,
    REPORT_MODEL_READY,
    REPORT_MODEL_FAILED,
    REPORT_JOB_FAULT,
    REPORT_PROFILED,
    REPORT_STAGE_READY,
    REPORT_STAGE_FAULT,
};
struct profile;
struct way;

struct report {
    struct report *next;
    enum report_kind kind;
    uint64_t job, epoch, model_key;
    int machine;              /* MODEL_FAILED: this machine is at fault, not the model */
    struct commit *commit;    /* COMMIT: the caller's from now on */
    uint64_t at;              /* CUT */
    struct profile *profile;  /* PROFILED: the caller's from now on, profile_release and mem_free; with what MODEL_READY has */
    struct way *ways;         /* PROFILED: likewise, mem_free */
    size_t way_count;
    uint64_t gang, peer;      /* STAGE_...; peer: FAULT, 0: its own */
    uint32_t cut;
    uint8_t digest[16];       /* MODEL_READY */
    char numerics[64];
    uint64_t load_ms;         /* STAGE_READY too */
    uint32_t dims;
    char text[1024];          /* MODEL_FAILED, JOB_FAULT, STAGE_FAULT */
};
/* In the order in which they were made; NULL: none. The caller frees with mem_free. */
struct report *pipeline_report(struct pipeline *p);

#endif
