/* The scheduler's core: one step function, an event in, an update out. No clock, no randomness, no I/O, no thread.

   What happened comes as an event with its time; what is to be done comes back as an ordered list: all rows first (they are one
   synced batch of the store), then messages and wishes, none of which may leave before the batch is safe. After a failed write the
   core is dropped and built anew from the store: START, then JOB_RESTORED and SPAN_RESTORED for every row, then RECOVERED. That is
   also how the daemon starts on an ordinary day.

   A step never fails halfway: memory is reserved before state changes; ST_NOMEM leaves the core as it was. */
#ifndef EBB_SCHEDULER_SCHED_H
#define EBB_SCHEDULER_SCHED_H

#include <stddef.h>
#include <stdint.h>

#include "base/ending.h"
#include "base/layout.h"
#include "base/provider_id.h"
#include "base/rows.h"
#include "base/status.h"

struct sched;

#define NUMERICS_ANY UINT32_MAX /* in a submitted job's row: never pinned */

struct sched_config {
    uint32_t beat_ms;            /* workers' heartbeat period; 1,000 */
    uint32_t worker_timeout_ms;  /* no word from a worker for so long: it is lost, its leases go back; 15,000 */
    uint32_t adoption_ms;        /* after a start: how long leased spans wait for their worker to come back; 10,000 */
    uint32_t cut_timeout_ms;     /* a cut that is not answered for so long revokes the lease; 10,000 */
    uint32_t min_lease_ms;       /* no lease is cut below this; 500 */
    uint32_t retry_delay_ms;     /* first back-off of a span given back for a passing reason, doubled each time up to 5 min */
    uint32_t max_loss_before_suspect; /* 5 */
    uint32_t lone_crashes;       /* that quarantine a record; 3 */
    uint32_t broken_model_crashes; /* crashes of a job's workers without a single commit in between hold the job; 4 */
    uint32_t quarantine_ppm;     /* quarantines beyond this share of records done (and beyond 10) hold the job; 10,000 */
};
extern const struct sched_config sched_config_default;

struct sched_held {     /* a lease that a joining worker says it holds */
    uint64_t job, epoch;
    uint64_t next_seq;  /* of the first commit that was not acknowledged yet */
};

struct sched_suspect {  /* a record that was in a lane when its worker died */
    uint64_t job, epoch;
    struct span record;
};

struct sched_progress { /* one lease of a heartbeat */
    uint64_t epoch;
    uint64_t read_to;      /* position that reading has reached: nothing below can be cut off */
    uint64_t records_done; /* since the lease began, committed or not: a change is progress */
    uint64_t bytes_done;   /* of input at rest, likewise */
};

struct sched_segment {  /* of a model, on one worker, for a micro-batch of the nominal size */
    double time_ms;
    uint64_t weight_bytes;
    double out_bytes;      /* what crosses the cut behind it */
};

struct sched_link {     /* between two workers, either way */
    uint64_t worker;       /* at its other end */
    double bits_per_s, latency_ms;
};

struct sched_member {   /* of a gang: who holds which segments, [first, end) */
    uint64_t worker;
    uint32_t first, end;
};

struct sched_returned {
    struct span span;
    uint32_t transient;    /* 1: failed for a passing reason, try again later; 0: simply not begun */
};

/* event, its members */
#define SCHED_EVENT_MAP(X)                                                                                                       \
    X(START)          /* first of all */                                                                                         \
    X(JOB_RESTORED)                                                                                                              \
    X(SPAN_RESTORED)                                                                                                             \
    X(RECOVERED)      /* the store has been read; adoption begins */                                                             \
    X(JOB_SUBMITTED)                                                                                                             \
    X(JOB_CONTROL)                                                                                                               \
    X(JOB_PUBLISHED)  /* its names are in place (or, with a text, could not be made: hold) */                                    \
    X(WORKER_JOINED)                                                                                                             \
    X(WORKER_BEAT)                                                                                                               \
    X(WORKER_DRAIN)   /* an operator's, agent's or provider's word: let it finish and go */                                      \
    X(WORKER_ENDED)                                                                                                              \
    X(MODEL_READY)                                                                                                               \
    X(MODEL_FAILED)                                                                                                              \
    X(WORKER_PROFILED) /* what the segments of a job's model cost there */                                                       \
    X(STAGE_READY)    /* a member of a gang has loaded its part */                                                               \
    X(STAGE_FAULT)    /* it cannot load it, or another member does not answer it */                                              \
    X(COMMIT)                                                                                                                    \
    X(CUT_ANSWERED)                                                                                                              \
    X(PROVIDER)       /* what a provider of workers can give, now; before its first one it gives none */                         \
    X(TICK)
enum sched_event_kind {
#define X(name) SCHED_##name,
    SCHED_EVENT_MAP(X)
#undef X
};

enum job_verb { VERB_PAUSE, VERB_RESUME, VERB_CANCEL, VERB_RETRY, VERB_REMOVE, VERB_HOLD, VERB_STAGES };

struct sched_event {
    enum sched_event_kind kind;
    uint64_t now_ms;               /* monotonic; never earlier than the last event's */
    uint64_t job, worker, epoch;   /* whichever the event concerns */
    union {
        struct {
            uint32_t generation;
        } start;
        struct {                   /* JOB_RESTORED, JOB_SUBMITTED */
            const struct job_row *row;       /* SUBMITTED: id, params, submitted_ms, attempt are read; state PAUSED is honoured */
            const struct layout *layout;     /* copied */
            int64_t wall_ms;                 /* what a deadline is measured against, once */
        } job;
        const struct span_row *span;         /* SPAN_RESTORED */
        struct {
            enum job_verb verb;
            const char *text;                /* HOLD: why. Else NULL */
            uint64_t max_errors;             /* RESUME: new limits; as they were: UINT64_MAX - 1, UINT32_MAX - 1 */
            uint32_t max_errors_ppm;
            uint32_t stages;                 /* STAGES: how many workers are to hold its model together from now on */
            const struct span *spans;        /* RETRY: the records to run again, one span each */
            size_t span_count;
            size_t quarantined_count;        /* the first so many of them were quarantined: they come as probes */
            int64_t wall_ms;
        } control;
        struct {
            const char *failure;             /* NULL: published */
            int64_t wall_ms;
        } published;
        struct {
            uint64_t host;                   /* equal for workers of one machine */
            uint64_t memory_bytes;
            uint32_t lanes;
            uint32_t numerics;               /* XXH32 of its numerics id */
            uint64_t model_key;              /* model that it has loaded; 0: none */
            uint32_t provider;               /* enum provider_id */
            uint64_t reach;                  /* equal for workers that can send each other micro-batches; 0: it can be in no gang */
            const struct sched_held *held;
            size_t held_count;
        } joined;
        struct {
            const struct sched_progress *leases;
            size_t count;
        } beat;
        struct {
            enum worker_end how;
            const struct sched_suspect *suspects;
            size_t count;
        } ended;
        struct {                             /* MODEL_READY, MODEL_FAILED */
            uint64_t model_key;
            uint64_t load_ms;
            const char *text;                /* FAILED: for people */
            int machine;                     /* FAILED: the fault is the machine's: the job waits for another worker, or for this one to try again */
        } model;
        struct {                             /* WORKER_PROFILED */
            uint64_t model_key;
            const struct sched_segment *segments;
            size_t count;
            uint64_t fixed_bytes;            /* memory that a stage takes beside its weights */
            const struct sched_link *links;  /* to workers of other hosts; those that nobody measured cost nothing */
            size_t link_count;
        } profiled;
        struct {                             /* STAGE_READY, STAGE_FAULT */
            uint64_t gang;
            uint32_t cut;
            uint64_t load_ms;
            uint64_t peer;                   /* FAULT: who does not answer; 0: the fault is its own */
            const char *text;                /* FAULT: for people */
        } stage;
        struct {
            uint64_t seq;
            const struct extent *done;       /* ascending, inside the lease; epoch and seq are filled in by the core */
            size_t done_count;
            const struct sched_returned *returned;
            size_t returned_count;
            const char *part_fault;          /* not NULL: the daemon could not find the part as described: refuse */
            int64_t wall_ms;
        } commit;
        struct {
            uint64_t at;                     /* everything from here on is given up; the span's end: nothing is */
        } cut;
        struct {
            uint32_t id;                     /* enum provider_id */
            uint32_t limit;                  /* most workers that it can give; it counts those that it cannot take back */
            int preemptible;
            uint64_t idle_ms;                /* a worker without work, of more than are wanted, leaves after so long; 0: never */
        } provider;
    } u;
};

enum ack_verdict { ACK_DONE, ACK_STALE, ACK_FAULT }; /* STALE: the lease is not yours any more, forget it; the part stays, the sweep knows its fate */

/* action, its members. The first five are rows. */
#define SCHED_ACTION_MAP(X)                                                                                                      \
    X(PUT_JOB)                                                                                                                   \
    X(DEL_JOB)                                                                                                                   \
    X(PUT_SPAN)                                                                                                                  \
    X(DEL_SPAN)                                                                                                                  \
    X(PUT_EXTENT)                                                                                                                \
    X(ADD_EVENT)       /* a line of the job's history */                                                                         \
    X(SEND_LEASE)                                                                                                                \
    X(SEND_CUT)                                                                                                                  \
    X(SEND_REVOKE)                                                                                                               \
    X(SEND_ACK)                                                                                                                  \
    X(SEND_DRAIN)                                                                                                                \
    X(SEND_PROFILE)    /* answered by WORKER_PROFILED, or MODEL_FAILED */                                                        \
    X(SEND_STAGE)      /* answered by STAGE_READY or STAGE_FAULT; no members: it leaves the gang, unanswered */                  \
    X(SEND_STAGE_GO)   /* to the head: all members are ready */                                                                  \
    X(KILL_WORKER)     /* hung: its provider kills it and answers WORKER_ENDED */                                                \
    X(WANT_WORKERS)    /* how many of this provider would be useful now, over all jobs */                                        \
    X(PUBLISH)         /* make the job's names; answered by JOB_PUBLISHED */                                                     \
    X(WAKE)            /* TICK is wanted at this time at the latest */
enum sched_action_kind {
#define X(name) SCHED_DO_##name,
    SCHED_ACTION_MAP(X)
#undef X
};

struct sched_action {
    enum sched_action_kind kind;
    uint64_t job, worker, epoch;
    union {
        struct job_row job;
        struct span_row span;          /* DEL_SPAN: span.span.begin */
        struct extent extent;
        char text[256];                /* ADD_EVENT, KILL_WORKER */
        struct {
            struct span span;
            int probe;                 /* bits. 1: suspects, run the records one at a time and commit each. 2: the last try of a
                                          span that was given back max_attempts times: what fails now becomes an error row */
            uint32_t attempt;          /* of the job, for the extents */
        } lease;
        uint64_t cut_at;               /* SEND_CUT: give up from here on, or from the first point behind it that you can */
        struct {
            uint64_t seq;
            enum ack_verdict verdict;
        } ack;
        struct {
            uint32_t provider, workers;
        } want;
        struct {                       /* SEND_STAGE, SEND_STAGE_GO */
            uint64_t gang, head;
            uint32_t cut, count;
            struct sched_member members[GANG_MOST]; /* in the order of the pipeline */
        } stage;
        uint64_t wake_ms;
    } u;
};

struct sched_update {                  /* zeroed before its first use; sched_step empties and fills it */
    struct sched_action *actions;
    size_t count, cap;
};
void sched_update_release(struct sched_update *u);

MUST_USE enum status sched_new(const struct sched_config *config, struct sched **out, struct err *e);
void sched_free(struct sched *s);
/* ST_USER: the event asks for what cannot be (unknown job, a verb that its state forbids); e says so, nothing changed.
   ST_NOMEM: nothing changed. Events that merely came too late (a stale commit, a beat of a lost worker) are not errors. */
MUST_USE enum status sched_step(struct sched *s, const struct sched_event *ev, struct sched_update *out, struct err *e);

/* What people ask. Pointers are valid until the next step. */
struct sched_job_view {
    const struct job_row *row;
    const struct layout *layout;
    uint64_t bytes_total;              /* at rest */
    uint64_t spans_ready, spans_leased;
    uint32_t workers;                  /* that hold a lease of it */
    uint32_t workers_wanted;           /* that would be useful to it and that providers can give */
    double records_per_s, bytes_per_s; /* over the last half minute; 0: not known yet */
    uint64_t head;                     /* everything before this position is DONE */
    char waits_for[256];               /* `ebb why`: "" when it runs */
    char late[200];                    /* why it misses its deadline; "" when there is none, or it does not as far as one can see */
    double ends_ms;                    /* until it will be done with the workers that can be had; below 0: not known */
};
struct sched_provider_view {
    int known, preemptible;
    uint32_t limit, wanted, alive;     /* alive: joined and not about to leave; of PROVIDER_NONE, those that came by themselves */
    double losses_per_hour;            /* of one worker */
    uint64_t short_ms;                 /* for so long fewer have been alive than were wanted */
};
struct sched_worker_view {
    uint64_t worker, host, model_key, job;
    uint32_t lanes, leases, provider;
    int draining, lost_since_beat, probe;
    uint64_t joined_ms, beat_ms;
    struct span lease;                 /* first of those it holds */
    uint64_t read_to;
    double records_per_s, bytes_per_s;
    uint64_t gang, gang_job;           /* 0: in none */
    uint32_t stage, stages;            /* of it: 0-based, and how many there are */
    int gang_runs;                     /* its members have loaded their parts */
};
struct sched_gang_view {
    uint64_t gang, job, head;
    uint32_t cut, segments;            /* of the model */
    int running;                       /* 0: its members load their parts */
    uint64_t since_ms;                 /* of this cut */
    uint32_t count;
    struct sched_member members[GANG_MOST]; /* in the order of the pipeline */
    double load_ms[GANG_MOST];         /* predicted of each, transfers included */
    int ready[GANG_MOST];              /* its part is loaded */
    double bottleneck_ms;              /* predicted for a micro-batch of the nominal size */
    double gap;                        /* a better division may save at most this share */
    double records_per_s;              /* measured, of the head; 0: not known yet */
};
size_t sched_job_count(const struct sched *s);
/* ids in ascending order; i < sched_job_count */
uint64_t sched_job_at(const struct sched *s, size_t i);
int sched_job_view(const struct sched *s, uint64_t job, struct sched_job_view *out); /* 0: there is no such job */
/* A few of its figures, without walking over workers: for those who ask for all jobs each second. i < sched_job_count */
struct sched_job_figures {
    const struct job_row *row;
    uint64_t spans_ready, spans_leased;
};
void sched_job_figures(const struct sched *s, size_t i, struct sched_job_figures *out);
void sched_provider_view(const struct sched *s, uint32_t provider, struct sched_provider_view *out); /* provider < PROVIDERS */
size_t sched_worker_count(const struct sched *s);
void sched_worker_view(const struct sched *s, size_t i, struct sched_worker_view *out);
/* Pipelines, by gang ascending. */
size_t sched_gang_count(const struct sched *s);
void sched_gang_view(const struct sched *s, size_t i, struct sched_gang_view *out);

/* Does this worker hold this lease now? */
int sched_leased(const struct sched *s, uint64_t job, uint64_t worker, uint64_t epoch);

/* Checks every invariant of the core (ledgers are well formed, no two leases overlap, counters agree, index and map agree); BUGs on
   a breach. For tests and the simulator; linear in the spans held. */
void sched_check(const struct sched *s);
/* Visits the spans of a job that are not DONE, in order. */
void sched_spans(const struct sched *s, uint64_t job, void (*visit)(void *arg, const struct span_row *row), void *arg);

#endif
