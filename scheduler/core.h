/* What the files of the scheduler share: the state of the core. Nobody outside this folder includes it.

   job --- ledger of nodes (spans that are not DONE), leases
   lease --- its pieces (nodes of one epoch), its worker
   worker --- its leases (at most two, oldest first), its host

   Memory is taken from `core_room` before a change begins; the changes themselves cannot fail. */
#ifndef EBB_SCHEDULER_CORE_H
#define EBB_SCHEDULER_CORE_H

#include "scheduler/ledger.h"
#include "scheduler/sched.h"

/* Test builds plant bugs, one at a time, to see that the simulator finds them. */
#ifdef SCHED_MUTANTS
extern int sched_mutant;
#define MUTANT(n) (__builtin_expect(sched_mutant == (n), 0))
#else
#define MUTANT(n) 0
#endif

/* u64 -> pointer, open addressing. Key 0 is not allowed. */
struct map {
    struct map_entry {
        uint64_t key;
        void *value;
    } *entries;
    size_t cap, count; /* cap: a power of two */
};
int map_room(struct map *m, size_t more); /* 0 or -1 */
void *map_get(const struct map *m, uint64_t key);
void map_put(struct map *m, uint64_t key, void *value);
void map_del(struct map *m, uint64_t key);

/* Earliest first. Each item keeps its place (1-based; 0: not in) so that it can be moved or taken out. */
struct heap {
    struct heap_entry {
        uint64_t key;
        void *item;
        uint32_t *place;
    } *entries;
    size_t cap, count;
};
int heap_room(struct heap *h, size_t more);
void heap_set(struct heap *h, uint64_t key, void *item, uint32_t *place); /* puts in, or moves */
void heap_take(struct heap *h, uint32_t *place);                           /* nothing when it is not in */

struct host {
    uint64_t id;
    uint32_t workers;    /* joined, not lost */
    uint32_t wrong;      /* records that crashed here alone and passed elsewhere */
};

#define RATE_BUCKETS 32 /* of a second each */
#define SCALE_MOST 1000000u

struct job {
    struct job_row row;
    struct layout layout;
    uint64_t bytes_total;
    int all_streams;
    struct ledger ledger;
    uint64_t ready_nodes, leased_nodes, ready_bytes, leased_bytes;
    uint64_t backing_off;
    uint64_t avail[3];              /* nodes by kind, see AVAIL_ in ledger.h */
    struct lease *leases;           /* doubly linked */
    uint32_t lease_count, workers;
    uint64_t vtime;                 /* fair share: worker time given, over weight */
    uint32_t crash_run;             /* crashes since the last commit that speak against the model */
    int crashed;                    /* any at all since the last commit */
    uint32_t model_fails;
    char trouble[200];              /* of the last machine that could not load its model; "": none, or one did since */
    uint64_t quarantine_base;       /* quarantined at the last `resume` */
    uint64_t no_cut_before_ms;
    int dirty;                      /* its row is to be written at the end of this step */
    int sweep;                      /* it stopped: leases are still to be told */
    struct job *next_dirty, *next_sweep;
    struct job *prev_running, *next_running;
    struct {
        uint64_t second, records, bytes;
    } rate[RATE_BUCKETS];
    double worker_rate;             /* bytes/s of one worker, as measured last; 0: never */
    double rate_sum;
    uint32_t rate_count;
    uint64_t load_ms;               /* of its model, as measured last */
    uint64_t deadline_at_ms;        /* 0: none */
    uint64_t overdue_ms;            /* it had passed so long ago when the job came, or the daemon was started anew */
    double held_need;               /* workers of full worth that the deadline took last */
    uint32_t need, given;           /* workers: that the deadline takes, before others get some; that it is to have and that can be had */
    double ends_ms;                 /* until it is done with these; below 0: not known */
    int late;                       /* it is known to miss its deadline */
    uint64_t late_ms;               /* since when `late` should be otherwise; 0: it should not */
    struct gang *gangs;             /* doubly linked */
    uint32_t gang_count, gang_workers; /* members of all of them */
    uint32_t gang_least;            /* workers that a pipeline takes, as found last; 0: not known */
    uint32_t gang_fewer;            /* a pipeline lost its head: what is left may go on with so many; 0: the number that was asked for */
    uint32_t gang_supply;           /* workers that reach each other and could be members, as seen last */
    int by_window;                  /* no pipeline can be formed: workers hold its model by parts in turn */
    uint64_t gang_none_ms;          /* since when there has been no pipeline although workers were free; 0: there was, or none was */
    uint64_t gang_after_ms;         /* none before: the last one broke again and again */
    uint64_t gang_gather_ms, gang_rest_ms; /* since when free workers wait for each other; until when they do not */
    uint64_t gang_tried;            /* workers among which no pipeline was found */
    uint64_t gang_better_ms;        /* no look for a better division before */
    uint64_t gang_seen, gang_seen_ms; /* state of `membership` when the supply was seen; when that was */
    uint64_t gang_claim_ms;         /* until then free workers wait for more: gangs of other jobs are dissolved for it */
    uint64_t gang_want_ms;          /* since when it waits for workers that gangs hold; 0: it does not */
    uint32_t gang_breaks;           /* pipelines that were given up in a row, without a commit between */
    uint64_t gang_apart[2];         /* workers that do not seem to reach each other, until gang_apart_ms */
    uint64_t gang_apart_ms;
};

struct lease {
    uint64_t epoch;
    struct job *job;
    struct worker *worker;
    struct node *first, *last;      /* pieces, ascending */
    uint32_t pieces;
    uint64_t bytes_left;            /* weight of the pieces */
    uint64_t next_seq;
    uint64_t read_to, records_done, bytes_done; /* as beats say */
    uint64_t records_committed, bytes_committed;
    uint64_t records_counted, bytes_counted;    /* already part of the worker's rate */
    uint64_t seen_ms;               /* the worker named it, or it was granted */
    uint64_t step;                  /* of the core, in which it was granted */
    uint64_t cut_deadline_ms;       /* 0: no cut is outstanding */
    int probe, claimed, refused_cut, told_to_stop;
    struct lease *job_prev, *job_next, *worker_next;
};

#define PAST_RATES 4

struct worker {
    uint64_t id;
    struct host *host;              /* NULL until it joined */
    uint64_t memory_bytes;
    uint32_t lanes, numerics, provider;
    uint64_t model_key, model_until_ms, failed_model, failed_ms;
    int joined, lost, draining, killed, banned;
    int mute;                       /* it did not answer: nothing for it before its next beat */
    int reserved;                   /* takes no second lease: a probe waits for it */
    int loading;
    uint64_t reach;                 /* equal for those that can be in one gang; 0: in none */
    struct gang *gang;              /* NULL: in none */
    uint32_t stage;                 /* its place in it */
    struct profile *profiles;       /* the latest first */
    uint64_t profiling, profile_ms, profile_sent_ms; /* model that it measures; since when; asked last */
    uint64_t solo_model;            /* no division of this model is faster than this worker alone */
    uint64_t left_gang;             /* it is still to be told that it has left; 0: it is not */
    uint32_t left_cut;
    uint64_t stranded_ms;           /* since when it holds leases that only a pipeline can run, and is in none; 0: it does not */
    struct lease *leases;
    uint32_t lease_count;
    uint64_t joined_ms, beat_ms, progress_ms, killed_ms, drain_sent_ms, idle_since_ms;
    uint64_t rate_job, rate_ms, last_size;
    double bytes_per_s, records_per_s;
    struct past_rate {              /* of jobs served before, the latest first: it may come back to them */
        uint64_t job, last_size;
        double bytes_per_s, records_per_s;
    } past[PAST_RATES];
    uint64_t acc_bytes, acc_records;
    size_t index;                   /* in core's array, when joined */
    uint32_t timer;                 /* place in the heap */
    int idle;
    struct worker *prev_idle, *next_idle;
    struct worker *prev_lost, *next_lost; /* lost ones, or those that never came back since the restart */
};

#define ENDED_SLOTS 4096

struct sched {
    struct sched_config config;
    enum { FRESH, RESTORING, WORKING } phase;
    uint64_t now_ms, step;
    uint32_t generation, counter;

    struct job **jobs;              /* by id */
    size_t job_count, job_cap;
    struct job *running, *dirty_jobs, *sweeps;
    struct map workers, epochs, hosts;
    struct worker **joined;
    size_t joined_count, joined_cap;
    struct worker *idle_first, *idle_last, *lost_first, *lost_last, *ghosts;
    size_t idle_count, lost_count, alive;
    uint32_t live_hosts;
    uint32_t reserved, cuts;        /* workers kept for probes; cuts outstanding */
    uint64_t probes_waiting;
    uint64_t vnow;
    struct ended {
        uint64_t epoch, worker, next_seq;
    } ended[ENDED_SLOTS];           /* the last leases that ended: a repeated commit gets the same answer */
    size_t ended_at;                /* the oldest of them */
    struct map ended_epochs;

    struct heap timers;             /* workers */
    struct heap backoffs;           /* nodes */
    uint64_t recovered_ms;          /* when the store had been read */
    uint64_t adopt_until_ms;        /* 0: over */
    uint64_t no_expiry_before_ms, no_hang_before_ms;
    uint64_t wake_ms;               /* asked for; 0: none */
    uint64_t retry_ms;              /* memory was out: go on then; 0: nothing waits */
    uint64_t scale_ms, scaled_ms;   /* not before; last */
    int wanted, scale_dirty;        /* wanted: some were, last */
    uint32_t held_sum, shrink_to;   /* of all providers; shrink_ms: since when it should be less, at most shrink_to; 0: it should not */
    uint64_t shrink_ms;
    struct job **order;
    size_t order_cap;
    struct provider_state {
        int known, preemptible, told;
        uint32_t limit, wanted, alive; /* told: it was asked for `wanted` */
        uint32_t heard, fit;           /* of those alive: lately (others may be gone, and nobody has noticed yet); that can run some job */
        uint64_t idle_ms, over_ms;     /* since when more live than its limit; 0: they do not */
        uint64_t short_ms;             /* since when fewer live than are wanted; 0: they do not */
        double lived_ms, losses;       /* of its workers, the last hour or so: what is older fades */
    } providers[PROVIDERS];
    int work_dirty;                 /* work or workers appeared: look at the idle ones */
    struct gang **gangs;            /* ascending */
    size_t gang_count, gang_cap;
    int gang_dirty;                 /* one is broken, or its job has changed */
    uint64_t gang_ms;               /* gangs are looked at anew; 0: nothing waits */
    size_t profiling;               /* workers that measure */
    int leavers;                    /* some are still to be told that they have left */
    int gang_jobs;                  /* a running job may want gangs */
    uint64_t membership;            /* changes whenever workers come, go or become of use */
    uint64_t profile_versions;
    struct worker **pick;           /* gang_form.c, for a moment */
    size_t pick_cap;

    struct node *free_nodes;
    size_t free_node_count;
    void **slabs;
    size_t slab_count, slab_cap;
    struct lease *free_leases;
    size_t free_lease_count;

    struct sched_update *out;       /* of this step: rows go in here */
    struct sched_action *messages;
    size_t message_count, message_cap;
    struct dirty_node {
        struct job *job;
        struct node *node;
    } *dirty;
    size_t dirty_count, dirty_cap, dirty_job_count;
};

/* Room for so many more rows, messages, nodes (new or touched) and leases: 0 or -1, and then nothing has changed. */
int core_room(struct sched *s, size_t rows, size_t messages, size_t nodes, size_t leases);
struct sched_action *core_row(struct sched *s, enum sched_action_kind kind, uint64_t job);
struct sched_action *core_message(struct sched *s, enum sched_action_kind kind, uint64_t job, uint64_t worker, uint64_t epoch);
void core_history(struct sched *s, struct job *j, const char *fmt, ...) PRINTF(3, 4);
void core_touch_job(struct sched *s, struct job *j); /* its row is written at the end of the step */
struct node *core_node(struct sched *s);
void core_flush(struct sched *s);
void core_later(struct sched *s); /* memory is out: what is still to be handed out waits for a tick soon */

struct job *core_job(const struct sched *s, uint64_t id);
size_t core_job_slot(const struct sched *s, uint64_t id); /* its place in `jobs`, or where it would be */

#endif
