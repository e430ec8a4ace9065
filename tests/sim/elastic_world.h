/* Inside the world of elastic pools: what elastic_world.c (time, figures, the image of the store, steps of the core), elastic_worker.c (workers) and elastic.c (providers, the daemon, a
   run) share. */
#ifndef EBB_TESTS_SIM_ELASTIC_WORLD_H
#define EBB_TESTS_SIM_ELASTIC_WORLD_H

#include "scheduler/sched.h"
#include "tests/sim/elastic.h"


#define NET_MS 2          /* to hear of a message */
#define SYNC_MS 4         /* until a step's messages may leave */
#define READ_AHEAD_MS 1000
#define NOTICE_MS 200     /* until a provider knows that a worker is gone */
#define LEASES 3          /* that a worker may hold: two, and one that it has not dropped yet */
#define END_MS 3600000    /* after the job's end: all idle ones must be gone by then */
#define BUCKETS 400
#define MAX_ACTIONS 4     /* of a worker in one parcel */

enum kind { BEAT, COMMIT, DONE, LOADED, HEAR, ACT, DIES, ENDED, ARRIVES, GIVES_UP, SECOND, TICK, REJOIN, RESTART };

struct item {
    uint64_t at, order;
    uint32_t worker, serial;
    enum kind kind;
    uint32_t slot; /* of `said` or `told` */
};

struct lease {
    uint64_t epoch, seq;
    struct span span;
    uint64_t committed;  /* position */
    double pos;          /* computed up to here */
    int flying;          /* a commit is under way: */
    uint64_t sent, sent_seq; /* its end */
};

struct el_worker {
    uint64_t number;
    uint32_t serial;     /* process */
    uint32_t turn;       /* of its DONE */
    int exists, joined, draining, loaded;
    uint32_t provider;
    double rate;
    uint64_t now_ms;     /* up to when it has been worked out */
    uint64_t loaded_ms, idle_since_ms, leased_ms; /* leased: last */
    struct lease leases[LEASES];
    size_t count;
};

/* What is on its way; the slots are used again. */
struct parcel {
    struct sched_event ev;
    struct extent done;
    struct sched_returned back[LEASES];
    struct sched_progress progress[LEASES];
    struct sched_held held[LEASES];
    uint64_t life;
    uint32_t next;
};

struct told {
    struct sched_action a;
    uint64_t life;
    uint32_t next;
};

struct el_provider {
    uint32_t wanted, alive, starting, cancelled, limit_told;
    int told;
};

struct image {
    struct slot {
        uint64_t key; /* begin + 1 */
        struct span_row row;
    } *slots;
    size_t cap, count;
};

struct world {
    const struct elastic_config *c;
    struct elastic_result *r;
    struct err *e;
    int failed;
    uint64_t rng, now_ms, order, began_ms;
    struct item *heap;
    size_t heap_count, heap_cap;
    struct el_worker *workers;
    uint32_t worker_count, *free_workers, free_count;
    struct parcel *said;
    struct told *told;
    uint32_t said_count, said_cap, said_free, told_count, told_cap, told_free;
    struct el_provider providers[PROVIDERS];
    struct sched *sched;
    struct sched_update update;
    struct layout layout;
    struct job_row row;
    struct image image;
    uint64_t life, next_number, total, done_bytes, done_records, generation, wake_ms;
    uint64_t next_rate, down_until_ms;
    double ideal_bytes;
    int over, first_lease;
    uint64_t over_ms, first_idle_ms;
    uint64_t restart_ns, own_bytes, buckets[BUCKETS], window[BUCKETS]; /* window: since the last mark */
    size_t marks;
};

/* elastic_world.c: time, figures, rows, a step of the core */
void el_fail(struct world *m, const char *what, uint64_t a, uint64_t b);
uint64_t el_rnd(struct world *m, uint64_t n);
double el_uniform(struct world *m);
void el_at(struct world *m, uint64_t at_ms, enum kind kind, uint32_t worker, uint32_t serial, uint32_t slot);
struct item el_pop(struct world *m);
uint32_t el_said_new(struct world *m);
double el_percentile(const uint64_t buckets[BUCKETS], double part);
uint64_t el_core_bytes(struct world *m);
void el_mark(struct world *m);
uint64_t el_records_in(const struct world *m, uint64_t begin, uint64_t end);
void el_step(struct world *m, struct sched_event *ev);

/* elastic_worker.c */
void el_work_out(struct world *m, struct el_worker *w);
void el_say(struct world *m, struct el_worker *w, uint32_t slot);
void el_say_beat(struct world *m, struct el_worker *w);
void el_say_commit(struct world *m, struct el_worker *w, struct lease *l, int give_back);
void el_plan(struct world *m, struct el_worker *w);
void el_say_hello(struct world *m, struct el_worker *w);
void el_arrives(struct world *m, uint32_t provider);
void el_leaves(struct world *m, struct el_worker *w, enum worker_end how);
void el_acted_on(struct world *m, struct el_worker *w, const struct sched_action *a);

/* elastic.c: providers, the daemon */
void el_provider_fill(struct world *m, uint32_t id);

#endif
