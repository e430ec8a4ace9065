/* A world in virtual time around the real core of the scheduler: a store that loses what was not synced, a network that delays,
   loses, doubles and reorders, workers that crash, freeze and come back, operators, and records that kill. One seed is one
   run, the same each time. */
#ifndef EBB_TESTS_SIM_H
#define EBB_TESTS_SIM_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/layout.h"
#include "scheduler/sched.h"

#define MAX_JOBS 5
#define MAX_WORKERS 64

struct sim;

noreturn void sim_fail(struct sim *m, const char *fmt, ...) PRINTF(2, 3);
void sim_trace(struct sim *m, const char *fmt, ...) PRINTF(2, 3);
uint64_t rnd(struct sim *m, uint64_t n);           /* 0..n-1 */
int chance(struct sim *m, double p);

/* Records ----------------------------------------------------------------------------------------------------------------------*/
enum poison { HARMLESS, CRASHES, HANGS, EATS_MEMORY, CRASHES_BESIDE_NEXT };

struct record {
    uint64_t begin, end;
    uint8_t poison;
    uint8_t fails;    /* so many tries fail for a passing reason */
#define FAILS_ALWAYS 255
    uint8_t tried;
    uint8_t late;     /* finishes behind its neighbours: leaves a hole */
};

struct dataset {
    uint64_t job;
    struct layout layout;
    struct record *records;
    size_t count;
    struct job_params params;
    int submitted;
};
size_t dataset_at(const struct dataset *d, uint64_t pos); /* index of the first record that begins at or behind pos */

/* The store: what rows say --------------------------------------------------------------------------------------------------- */
struct bad_record {
    struct span span;
    int quarantined;
};

struct image_job {
    int exists;
    struct job_row row;
    struct span_row *spans;
    size_t span_count, span_cap;
    struct span *cover; /* DONE: maximal runs */
    size_t cover_count, cover_cap;
    struct bad_record *bad;
    size_t bad_count, bad_cap;
    uint64_t records, errors;
};

struct image {
    struct image_job jobs[MAX_JOBS];
};
void image_apply(struct sim *m, struct image *i, const struct sched_action *a);
void image_uncover(struct sim *m, struct image *i, uint64_t job, const struct span *spans, size_t count);
void image_copy(struct image *to, const struct image *from);
void image_release(struct image *i);
void image_compare(struct sim *m, const struct image *i, const struct sched *s); /* and: nothing lost, nothing twice */

/* Messages and what else happens at a time ------------------------------------------------------------------------------------ */
enum happening {
    TO_DAEMON,       /* a message of a worker: an event of the core */
    TO_WORKER,       /* an action of the core */
    REJOIN,          /* the link asks a stranger to say hello */
    SYNCED,
    TICK,
    DAEMON_STARTS,
    DAEMON_CRASHES,
    DAEMON_STALLS,
    PUBLISHED,
    WORKER_TURN,     /* computes */
    WORKER_SPAWNS,
    WORKER_KILLED,   /* from outside */
    WORKER_FREEZES,
    WORKER_NOTICED,  /* the provider tells how it went */
    WORKER_HUNG_KILLED,
    PROBE_KILLED,
    PARTITION,
    OPERATOR,
    SUBMIT,
    PROVIDERS_TURN,
    WORKER_SHUT,     /* other workers do not reach it for a while */
};

struct parcel {      /* owned copy of an event with its arrays */
    struct sched_event ev;
    uint32_t incarnation;
    struct extent *done;
    struct sched_returned *returned;
    struct sched_progress *progress;
    struct sched_held *held;
    struct sched_suspect *suspects;
    struct sched_segment *segments;
    struct sched_link *links;
};

struct item {
    uint64_t at, order;
    enum happening what;
    size_t worker;           /* index */
    uint64_t number;         /* life of the daemon, job */
    struct parcel *parcel;
    struct sched_action *action;
};
struct item *sim_at(struct sim *m, uint64_t at_ms, enum happening what);

/* Workers ---------------------------------------------------------------------------------------------------------------------*/
enum unit { TODO, FINISHED, FAULTY, LATE, GIVE_BACK, SENT, GONE };

struct held_lease {
    int in_gang;             /* given to the head of a gang: only through one it goes on */
    uint64_t job, epoch, next_seq;
    struct span span;
    int probe;
    struct dataset *data;
    size_t first, count;     /* records that begin in it; a lease without any has one empty unit */
    uint8_t *units;
    size_t next, read;
    uint64_t records_done, bytes_done;
    struct parcel *commit;   /* not acknowledged yet */
    uint64_t sent_ms, committed_ms;
    struct held_lease *after;
};

struct sim_worker {
    size_t index;
    uint64_t id, host;
    uint32_t incarnation;
    int exists, draining, hanging, let_go; /* let_go: the core has told it to drain */
    int joined;              /* what the daemon's link knows */
    int welcome;             /* what the worker knows */
    uint64_t frozen_until, cut_off_until, loading_until, beat_ms, join_ms, draining_ms;
    uint64_t model;
    uint32_t numerics;
    size_t lanes, in_lane;   /* units of the first lease, from `next` on, that are being computed */
    double speed, budget;    /* bytes/ms */
    struct held_lease *leases;
    /* as a member of a gang */
    struct sched_action stage;   /* what it was told last; gang 0: nothing */
    int stage_loaded, going;     /* its part; as the head: all are, it was told */
    uint64_t said_gang;          /* of which it has said last that it is ready */
    uint32_t said_cut;
    uint64_t stage_ready_at, waits_since, fault_ms;
    uint64_t profile_at, profile_job;
    uint64_t shut_until;         /* other workers do not reach it */
    uint64_t died_ms;
    uint64_t memory, reach;
    int solo;                    /* the core found that it does best alone */
    struct sched_suspect named[64]; /* in its lanes, of a head's lease */
    size_t named_count;
};
/* gang.c: workers of one pipeline */
#define SIM_GIB (UINT64_C(1) << 30)
int gang_needed(const struct sim_worker *w, const struct dataset *d);
void gang_receive(struct sim *m, struct sim_worker *w, const struct sched_action *a);
void gang_turn(struct sim *m, struct sim_worker *w);
/* Bytes/ms at which the lease goes on now; 0: it does not. */
double gang_pace(struct sim *m, struct sim_worker *w, const struct held_lease *l);
/* Who runs the segment at which a record does harm: w itself, or another member of its gang. */
struct sim_worker *gang_victim(struct sim *m, struct sim_worker *w, const struct held_lease *l, size_t record);
void gang_check_action(struct sim *m, const struct sched_action *a);
void gang_check_time(struct sim *m);
struct parcel *worker_message(struct sim *m, struct sim_worker *w, enum sched_event_kind kind);
void worker_spawn(struct sim *m, struct sim_worker *w, uint64_t id);
void worker_turn(struct sim *m, struct sim_worker *w);
void worker_receive(struct sim *m, struct sim_worker *w, const struct sched_action *a);
void worker_rejoin(struct sim *m, struct sim_worker *w);
void worker_dies(struct sim *m, struct sim_worker *w, enum worker_end how);
void worker_clear(struct sim_worker *w);

/* Providers ------------------------------------------------------------------------------------------------------------------- */
struct sim_provider {
    uint32_t id, limit;
    size_t first, slots;     /* of workers[] */
    int preemptible;
    uint64_t idle_ms;
    double never;            /* this part of its workers never arrives */
};
void providers_make(struct sim *m);
void providers_tell(struct sim *m);   /* a new core */
void providers_turn(struct sim *m);
void providers_note(struct sim *m);   /* what is to be done has changed */
void providers_check_drain(struct sim *m, uint64_t worker);
int providers_empty(const struct sim *m);
struct sim_provider *provider_of_slot(struct sim *m, size_t slot); /* NULL: comes by itself */

struct pending;

struct sim {
    uint64_t seed, rng, now_ms, order;
    int trace;
    jmp_buf failed;
    char failure[512];

    struct item **queue;
    size_t queue_count, queue_cap;

    int faulty;              /* faults are still injected */
    uint64_t faults_end_ms;
    double loss, doubling, slow_net, crash_at_step, crash_at_send, write_fails, publish_fails, probes_killed;

    struct dataset data[MAX_JOBS];
    size_t data_count;
    struct sim_worker workers[MAX_WORKERS];
    size_t worker_count;
    uint64_t next_worker_id;

    struct sched *sched;
    struct sched_update update;
    struct image durable, now;
    uint32_t generation;
    uint64_t life;           /* 0: the daemon is down */
    uint64_t lives, stalled_until;
    size_t alarm;            /* there is one, as in the daemon: another time takes the place of the last */
    struct pending *first, *last;
    int syncing;
    uint32_t wanted[PROVIDERS];
    int gangs;               /* some jobs need several workers at once */
    uint64_t passed_over_ms; /* since when a job of higher priority has waited while a gang of a lower one worked; 0: none has */
    uint64_t looked_ms;
    int elastic, operating;  /* workers come from providers; an operator's word is being carried out */
    struct sim_provider providers[3];
    size_t provider_count;
    uint64_t starting[MAX_WORKERS];
    uint64_t most_recent, most_before, most_ms, few_ms, few_life, away_ms; /* away: when the daemon was last seen not to run */
    struct {
        uint64_t epoch, seq, life;
    } *accepted;
    size_t accepted_count, accepted_cap;
    uint64_t *epochs;
    size_t epoch_count, epoch_cap;

    uint64_t progress_ms;    /* when a record was last done for good, or a job ended */
    uint64_t best[MAX_JOBS][3], longest_ms;
    uint64_t steps, commits, crashes, restarts, cuts, stale, probes, quarantines, kills, never, let_go, cuts_of_gangs, gang_faults;
};

void sim_to_daemon(struct sim *m, struct sim_worker *w, struct parcel *p);
/* The worker's provider tells the daemon. */
void sim_notice(struct sim *m, struct sim_worker *w, struct parcel *p);
struct parcel *parcel_new(struct sim *m, enum sched_event_kind kind);
void parcel_free(struct parcel *p);

/* The queue and the network: net.c */
struct item *sim_pop(struct sim *m);
void sim_item_free(struct item *it);
void sim_to_worker(struct sim *m, size_t index, const struct sched_action *a);
struct sim_worker *sim_worker_by_id(struct sim *m, uint64_t id);

int sim_lost(struct sim *m, const struct sim_worker *w);
uint64_t sim_delay(struct sim *m);

/* The daemon and its operators: daemon.c */
void daemon_up(struct sim *m);
void daemon_down(struct sim *m);
void daemon_crash(struct sim *m);
int daemon_step(struct sim *m, struct sched_event *ev);
void daemon_synced(struct sim *m);
void daemon_hears(struct sim *m, struct item *it);
void daemon_submit(struct sim *m, size_t k);
void daemon_operate(struct sim *m);

/* 0: every invariant held and every job came to its end. Else the failure is in m->failure. */
int sim_run(struct sim *m, uint64_t seed, int trace);
void sim_release(struct sim *m);

void *xmalloc(size_t size);
void *xgrow(void *p, size_t *cap, size_t count, size_t size);

#endif
