/* What the daemon knows of a job beside the core's row: specification, dataset, output, identity; and how one comes to be.

   The sheet is the JSON kept by rows_put_spec: {"spec":{...},"fingerprint":{...},"model":{"digest","bytes"},"format","dims","numerics"}, and "steps":[DIGEST, ...] of a job
   that has some. */
#ifndef EBB_DAEMON_JOB_H
#define EBB_DAEMON_JOB_H

#include <jansson.h>
#include <stdatomic.h>

#include "daemon/loop.h"
#include "daemon/map.h"
#include "storage/assemble.h"
#include "storage/dataset.h"
#include "storage/modeldir.h"
#include "wire/jobspec.h"
#include "wire/sock.h"

/* What the guard says of a job that waits for space. */
#define JOB_GUARD_WORDS "not enough disk space: "
/* What the publisher says when results are lost, so that only a new start helps: the same job with --force gets one. */
#define JOB_DAMAGED_WORDS "the output is damaged: "

struct job {
    uint64_t id;
    atomic_int refs; /* of threads that work on it, and of the table */

    /* Fixed from the beginning. */
    struct jobspec spec;
    char *spec_json;
    json_t *fingerprint;
    struct model_digest model; /* of a job of several steps: of all their models together */
    uint8_t (*step_digests)[16]; /* of the model of each step, zeroes for a command; NULL: a job of one model */
    char *model_name;      /* for people */
    uint64_t model_key;
    enum format format;
    struct output_spec out; /* its path is output_path */
    char *output_path, *parts_dir, *work_dir, *name;
    struct dataset dataset; /* without its sources once the job is over: see job_dataset */
    int has_sources;
    size_t source_count;

    /* The loop's. */
    uint32_t dims;
    char numerics[64];
    uint64_t next_event;
    uint64_t space_ms, space_wait_ms; /* the guard does not let it go on before, and waits so long the next time */
    int files_go;         /* `rm` takes the working folder along */
    double fraction_shown;
};

struct jobs {
    struct map by_id;
    struct submit *first, *last; /* waiting for their turn at the output folders; first is under way */
};

MUST_USE enum status jobs_open(struct daemon *d, struct err *e);
void jobs_close(struct daemon *d);
struct job *job_find(struct daemon *d, uint64_t id); /* NULL */
/* Held because a disk is full, by the guard or by a write that failed: it goes on by itself. */
int job_waits_for_space(const struct job_row *row);
struct job *job_hold(struct job *j);
void job_release(struct job *j); /* any thread */

/* `submit` of a client: answers it when all is said. json as docs/api.md has it. */
void job_submit(struct daemon *d, const struct sock_peer *client, uint64_t request, json_t *json);
struct apply;
/* Replays every job of the store into a new core and a new table. */
MUST_USE enum status jobs_restore(struct daemon *d, struct store *s, struct err *e);
/* The layout that the core is given: it ends where the job does (--limit). The caller releases. */
MUST_USE enum status job_layout(const struct dataset *d, struct layout *out, struct err *e);
/* The sources of a job that is over, read again from the store. Any thread. The caller releases. */
MUST_USE enum status job_dataset(struct apply *a, const struct job *j, struct dataset *out, struct err *e);

/* A lease of the job goes to the worker: the job's numerics word is its, if there is none yet and it has the model. */
void job_leased(struct daemon *d, uint64_t job, uint64_t worker);
/* A job that is not over, of this model, and began with numbers of another class; NULL: none. */
const struct job *job_of_other_numerics(struct daemon *d, uint64_t model_key, const char *numerics);
/* A worker has proved the model: dims and numerics become known. */
void job_model_ready(struct daemon *d, uint64_t model_key, uint32_t dims, const char *numerics);
/* Its rows are gone, durably: files follow. */
void job_gone(struct daemon *d, uint64_t id);
void job_put_sheet(struct daemon *d, const struct job *j);
/* What follows from spec, model and output: name, key of the model, folders. */
MUST_USE enum status job_derive(struct job *j, struct err *e);

#endif
