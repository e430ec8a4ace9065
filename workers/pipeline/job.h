/* A job as a worker knows it: what was asked for, in the form in which the stages use it. Read-only once made, counted. */
#ifndef EBB_WORKERS_JOB_H
#define EBB_WORKERS_JOB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "storage/record.h"
#include "wire/condition.h"
#include "wire/jobspec.h"

/* One of several. */
struct job_step {
    const struct step_spec *spec; /* the job's */
    struct job *model;       /* what it is to its model: a job of that one alone, over JSON objects; NULL: a command */
    struct condition when;
    char words[96];          /* "step 2 (toxic-classifier)", for messages */
};

struct job {
    struct job *next;        /* in the pipeline's list */
    atomic_int refs;
    uint64_t id;
    struct jobspec spec;
    char *parts_dir;
    uint64_t model_key;
    uint8_t model_digest[16];
    char numerics[64];       /* with which it began; "": it has not */
    struct reader_opts reading;
    struct decoder_opts decoding;
    int columns;             /* sources have a header row */
    int npy, base64, refuse_long;
    uint32_t micro_batch, micro_batch_tokens;
    uint64_t commit_every_ms;
    struct job_step *steps;  /* NULL: a job of one model */
    size_t step_count;
};

struct job_words { /* the wire's Job */
    uint64_t id;
    const char *spec_json, *parts_dir;
    uint64_t model_key;
    const void *model_digest;
    size_t model_digest_len;
    uint32_t format;
    const char *numerics;    /* NULL or "": not known yet */
    const void *step_digests; /* of a job of several steps: 16 bytes each */
    size_t step_digests_len;
};

MUST_USE enum status job_new(const struct job_words *w, struct job **out, struct err *e);
struct job *job_ref(struct job *j);
void job_unref(struct job *j);

#endif
