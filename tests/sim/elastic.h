/* A pool of thousands of workers in virtual time around the real core, with providers that have limits, delays and bad days. Unlike sim.h nothing is lost,
   doubled or reordered on the way and no record is looked at: this world is for figures. How long does a job take against what would have been
   possible; how much of the workers' time is idle or wasted; what does a decision cost. One seed is one run, the same each time. */
#ifndef EBB_TESTS_SIM_ELASTIC_H
#define EBB_TESTS_SIM_ELASTIC_H

#include <stddef.h>
#include <stdint.h>

#include "base/provider_id.h"
#include "base/status.h"

#define ELASTIC_MARKS 6

struct elastic_provider {
    int preemptible;
    uint32_t limit;                   /* most that it ever gives */
    double ebb, period_s;             /* its limit falls to this part of it and comes back, once a period; 0: it does not */
    uint32_t start_ms_min, start_ms_max; /* from being wanted to the hello */
    double never;                     /* this part of them never arrives */
    uint32_t give_up_ms;              /* after which the provider notices that, and starts another */
    double mean_life_s;               /* each is taken away at random; 0: it is not */
    uint64_t idle_ms;
};

struct elastic_config {
    uint64_t seed;
    uint64_t records, record_bytes;
    double rate, spread;              /* bytes/s of a worker; each is between rate / spread and rate * spread */
    const double *rates;              /* instead: of the first, the second...; the last one is that of all others */
    size_t rate_count;
    uint32_t load_ms;                 /* of the model */
    uint32_t commit_ms, lease_ms;
    uint32_t beat_ms;                 /* 0: 1,000 */
    struct elastic_provider providers[PROVIDERS];
    struct {
        double at_s, falls_s, lasts_s, back_s, part; /* in falls_s this part of all preemptible ones is gone, for lasts_s; in back_s they may come back */
    } storms[8];
    size_t storm_count;
    double restart_at_s, down_s;      /* of the daemon; 0: none */
    double deadline_s;                /* 0: none */
    uint64_t check_every;             /* steps between two examinations of the core; 0: none */
    int quiet;
};

struct elastic_result {
    double makespan_s, ideal_s;       /* ideal: all that providers could give at any time had worked all the time, at the mean rate */
    double lived_s, useful_s, idle_s, wasted_s, loading_s; /* worker-seconds; wasted: computed and lost */
    double tail_s;                    /* from when the first worker had no more work for good to the end */
    double last_lease_s;              /* of the slowest worker: the last lease that it was given */
    uint64_t steps, commits, leases, cuts, beats, losses, arrivals, never;
    uint32_t most_alive, most_wanted;
    double step_s;                    /* in sched_step, by the clock */
    double commit_us_median, commit_us_p99;
    uint64_t core_bytes;              /* most memory that the core held */
    struct {
        uint64_t leases, core_bytes;
        double commit_us;             /* median since the mark before */
    } marks[ELASTIC_MARKS];           /* after 1,000, 10,000... leases, the last one at the end */
    double restart_s;                 /* by the clock: from the first restored row to the first lease */
    double overshoot_s;               /* worker-seconds wanted beyond what was useful */
    double after_end_s;               /* until the last idle worker was let go after the end */
    uint32_t left_at_end;             /* those that were not */
};

/* 0; or -1 with words in *e when an invariant broke or the job did not come to its end. */
int elastic_run(const struct elastic_config *c, struct elastic_result *r, struct err *e);

#endif
