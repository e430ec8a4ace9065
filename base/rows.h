/* The facts that are kept: decided by the scheduler, stored by storage/, carried by wire/. Plain values, no pointers owned
   unless said. */
#ifndef EBB_BASE_ROWS_H
#define EBB_BASE_ROWS_H

#include <stdint.h>

#include "base/layout.h"

/* An epoch names one grant of one span to one worker, for ever: generation of the daemon << 32 | counter. 0 is none. */
#define EPOCH(generation, counter) ((uint64_t)(generation) << 32 | (counter))
#define EPOCH_GENERATION(epoch) ((uint32_t)((epoch) >> 32))

/* state, word that people see, is it over */
#define JOB_STATE_MAP(X)                                                                                                         \
    X(RUNNING, "running", 0)                                                                                                     \
    X(PAUSED, "paused", 0)                                                                                                       \
    X(HELD, "held", 0)                                                                                                           \
    X(PUBLISHING, "publishing", 0) /* every record is done; names are being made */                                              \
    X(DONE, "done", 1)                                                                                                           \
    X(CANCELED, "canceled", 1)
enum job_state {
#define X(name, word, over) JOB_##name,
    JOB_STATE_MAP(X)
#undef X
};

#define GANG_MOST 8 /* workers of one pipeline */

/* What the scheduler must know of a job; the rest of its specification is opaque to it. */
struct job_params {
    uint32_t weight;            /* fair share within a priority; 1..1000, 100 by default */
    int32_t priority;           /* higher goes first */
    uint64_t model_key;         /* equal for jobs that share a loaded model */
    uint64_t model_bytes;       /* memory that the model takes on a worker; 0: unknown */
    uint32_t lease_target_ms;   /* 30,000 by default */
    uint32_t stall_timeout_ms;  /* a lease without progress for so long is a hang */
    uint32_t min_workers, max_workers; /* max 0: no limit */
    uint64_t max_errors;        /* UINT64_MAX: no limit */
    uint32_t max_errors_ppm;    /* share of records in parts per million; UINT32_MAX: no limit */
    uint32_t max_attempts;      /* of a span given back for a passing reason, before its records become errors */
    uint32_t guaranteed_ppm;    /* share of its workers that nobody may take away, where there are such; in parts per million */
    int64_t deadline_ms;        /* wall clock; 0: none */
    uint32_t stages;            /* workers that hold its model together; 1: each holds all of it, by parts in turn if it must; 0: whatever is needed */
};

/* Counters of a job; each commit changes them in the same batch as its extents. */
struct job_counts {
    uint64_t records;     /* done, bad ones included */
    uint64_t rows;        /* written */
    uint64_t errors;      /* error rows, quarantined ones included */
    uint64_t quarantined;
    uint64_t bytes;       /* of input at rest that is done */
    uint64_t extents;
    uint64_t redone;      /* commits refused because their lease was lost: work thrown away */
};

struct job_row {
    uint64_t id;
    enum job_state state;
    struct job_params params;
    struct job_counts counts;
    uint32_t attempt;      /* 0; each `retry` adds one */
    uint32_t numerics;     /* XXH32 of the numerics id that the job is pinned to; 0: none yet */
    int64_t submitted_ms, finished_ms; /* wall clock, for people */
    char reason[256];      /* why it is held, canceled or failed; "" */
};

#define SPAN_STATE_MAP(X)                                                                                                        \
    X(READY, "ready")                                                                                                            \
    X(LEASED, "leased")
enum span_state {
#define X(name, word) SPAN_##name,
    SPAN_STATE_MAP(X)
#undef X
};

/* A span that is not DONE. The spans of a job never overlap; adjacent ones of equal standing are one. */
struct span_row {
    struct span span;
    enum span_state state;
    uint64_t worker;       /* LEASED: who */
    uint64_t epoch;        /* LEASED: under which epoch */
    uint64_t next_seq;     /* LEASED: the sequence number that the next commit must carry */
    uint16_t attempts;     /* times given back for a passing reason */
    uint16_t losses;       /* workers lost (not crashed) while this span's first record was next */
    uint8_t probe;         /* 1: suspect; its records run one at a time, alone */
    uint8_t crashes;       /* lone crashes of its first record, in a probe */
    uint64_t crash_host;   /* host of the first lone crash */
};

/* DONE: what a commit made of a span. The part is the file <epoch>-<seq>; rows lie at rows_at, then the auxiliary section (ids of
   .npy outputs), then the errors. A quarantined record has no part (epoch 0): its error row is made from `reason`. */
struct extent {
    struct span span;
    uint32_t attempt;
    uint64_t epoch, seq;
    uint32_t part_extents; /* how many extents share the part */
    uint64_t rows_at, rows_bytes, aux_bytes, errors_bytes;
    uint64_t records, rows, errors;
    uint64_t lines;        /* line ends consumed in the last source that the span touches: error lines are prefix sums of these */
    uint64_t bytes;        /* of input at rest */
    char reason[192];      /* quarantine only: "code|message" */
};

#endif
