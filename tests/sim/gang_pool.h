/* A pool of pipelines in virtual time around the real core, for figures: nothing is lost on the way, workers have unlike speeds, a head moves on at the rate of the
   slowest stage of its cut as long as all members are there and ready. One seed is one run. */
#ifndef EBB_TESTS_SIM_GANG_POOL_H
#define EBB_TESTS_SIM_GANG_POOL_H

#include <stdint.h>

#include "base/status.h"

struct gang_pool_config {
    uint64_t seed;
    uint32_t workers, stages, segments;
    double spread;            /* speeds lie between 1 / spread and spread times the mean */
    double bytes_per_s;       /* of one worker of mean speed, if it held the whole model */
    double work_s;            /* the job takes the pool about so long */
    double mean_life_s;       /* workers are taken away at random, another one comes ten seconds later; 0: they are not */
    uint32_t load_ms;         /* of a part */
};

struct gang_pool_result {
    double makespan_s;
    double bytes_per_s;       /* with everything: measuring, loading, the end */
    double steady_bytes_per_s; /* in the middle third */
    double ideal_bytes_per_s; /* all workers at work all the time, divided without a remainder */
    uint32_t gangs, cuts;     /* most at a time; how many divisions were carried out */
    double step_us, worst_step_us; /* of the core, by the clock */
};

/* 0; or -1 with words in *e. */
int gang_pool_run(const struct gang_pool_config *c, struct gang_pool_result *r, struct err *e);

#endif
