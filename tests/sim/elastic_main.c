/* What elastic pools must reach, in virtual time: the figures do not depend on this machine. sim_elastic [NAME] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/elastic.h"
#include "tests/sim/gang_pool.h"

static int bad;

static void must(int holds, const char *what)
{
    if (!holds) {
        printf("FAILED: %s\n", what);
        bad++;
    }
}

static struct elastic_result run(const char *name, const struct elastic_config *c)
{
    struct elastic_result r;
    struct err e;
    if (elastic_run(c, &r, &e)) {
        printf("FAILED: %s: %s\n", name, e.text);
        bad++;
        return r;
    }
    printf("%-22s %7.1f s, ideal %7.1f; of %9.0f worker-seconds %.2f %% useful, %.2f %% idle, %.2f %% wasted; tail %.1f s; %" PRIu64 " commits, %" PRIu64
           " leases, %" PRIu64 " cuts, %" PRIu64 " losses\n",
           name, r.makespan_s, r.ideal_s, r.lived_s, r.useful_s * 100 / r.lived_s, r.idle_s * 100 / r.lived_s, r.wasted_s * 100 / r.lived_s, r.tail_s, r.commits,
           r.leases, r.cuts, r.losses);
    return r;
}

#define SECONDS(workers, rate, seconds) ((uint64_t)((double)(workers) * (rate) * (seconds)) / 100)

/* Speeds 1:1:1:0.5, nothing else happens: the end is within the slow one's last lease of the ideal, and nobody stands idle for long. */
static void unequal(void)
{
    static const double rates[] = {200000, 200000, 200000, 100000};
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct elastic_config c = {.seed = seed, .quiet = 1, .record_bytes = 100, .rates = rates, .rate_count = 4, .commit_ms = 3000, .lease_ms = 30000, .check_every = 1};
        c.records = SECONDS(3.5, 200000, seed % 2 ? 600 : 60);
        c.providers[PROVIDER_LOCAL] = (struct elastic_provider){.limit = 4, .start_ms_max = 200, .idle_ms = 30000};
        struct elastic_result r = run("unequal 1:1:1:0.5", &c);
        must(r.makespan_s <= r.ideal_s + r.last_lease_s, "the job takes longer than the ideal and the slow worker's last lease");
        must(r.makespan_s <= r.ideal_s * 1.01 + 2, "the job takes longer than the ideal, a hundredth of it and two seconds");
        must(r.tail_s <= 2 * 3.0, "a worker stands idle for more than two commit intervals at the end");
        must(r.wasted_s == 0, "something is computed twice");
    }
}

/* Killed at random, never all at once. */
static void churn(double life_s, double least)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct elastic_config c = {.seed = seed, .quiet = 1, .record_bytes = 100, .rate = 200000, .spread = 1.5, .load_ms = 300, .commit_ms = 3000, .lease_ms = 30000, .check_every = 101};
        c.records = SECONDS(20, 200000, 600);
        c.providers[PROVIDER_AGENT] =
            (struct elastic_provider){.limit = 20, .preemptible = 1, .start_ms_min = 500, .start_ms_max = 1500, .mean_life_s = life_s, .idle_ms = 30000};
        char name[32];
        snprintf(name, sizeof name, "mean life %.0f s", life_s);
        struct elastic_result r = run(name, &c);
        must(r.useful_s >= least * r.lived_s, "too much of the workers' time is lost");
    }
}

/* A small day: nodes come and go, a storm, a restart of the daemon; what never arrives is replaced; idle ones are released. */
static void day(void)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct elastic_config c = {.seed = seed, .quiet = 1, .record_bytes = 1000, .rate = 30000, .spread = 2, .commit_ms = 3000, .lease_ms = 30000, .load_ms = 2000, .check_every = 997};
        c.records = (uint64_t)(150 * 30000.0 * 1200 / 1000);
        c.providers[PROVIDER_LOCAL] = (struct elastic_provider){.limit = 4, .start_ms_max = 500, .idle_ms = 30000};
        c.providers[PROVIDER_AGENT] = (struct elastic_provider){.preemptible = 1, .limit = 120, .ebb = 0.2, .period_s = 900, .start_ms_min = 200, .start_ms_max = 3000, .idle_ms = 30000,
                                                                .mean_life_s = 1800};
        c.providers[PROVIDER_SLURM] = (struct elastic_provider){.preemptible = 1, .limit = 80, .start_ms_min = 2000, .start_ms_max = 20000, .never = 0.2, .give_up_ms = 60000,
                                                                .idle_ms = 30000};
        c.providers[PROVIDER_KUBERNETES] = (struct elastic_provider){.limit = 20, .start_ms_min = 1000, .start_ms_max = 8000, .idle_ms = 30000};
        c.storms[0].at_s = 400;
        c.storms[0].falls_s = 60;
        c.storms[0].lasts_s = 120;
        c.storms[0].back_s = 120;
        c.storms[0].part = 0.7;
        c.storm_count = 1;
        c.restart_at_s = 700;
        c.down_s = 3;
        struct elastic_result r = run("a small day", &c);
        must(r.makespan_s <= r.ideal_s * 1.15, "the job takes more than 1.15 times what was possible");
        must(r.useful_s >= 0.97 * r.lived_s, "too much of the workers' time is lost");
        must(r.left_at_end == 0 && r.after_end_s <= 60, "idle workers are not let go");
        must(r.restart_s < 3, "the first lease after the restart takes too long");
        must(r.overshoot_s <= 15.0 * r.most_wanted, "more workers are wanted than have something to do");
        must(r.never > 0 && r.losses > 50, "the day was too quiet to show anything");
    }
}

/* Pipelines of four workers of unlike speeds: thirty of them do nearly thirty times what one does, and all workers are at work. */
static void pipelines(void)
{
    static const uint32_t gangs[] = {1, 2, 4, 30};
    double one = 0;
    for (size_t i = 0; i <= 4; i++) {
        struct gang_pool_config c = {.seed = 7, .workers = 4 * gangs[i < 4 ? i : 3], .stages = 4, .segments = 48, .spread = 2, .bytes_per_s = 50000, .work_s = 600, .load_ms = 2000,
                                     .mean_life_s = i < 4 ? 0 : 600};
        struct gang_pool_result r;
        struct err e;
        if (gang_pool_run(&c, &r, &e)) {
            printf("FAILED: %u workers in pipelines: %s\n", c.workers, e.text);
            bad++;
            return;
        }
        double share = r.bytes_per_s / r.ideal_bytes_per_s;
        printf("%-22s %7.1f s; %u workers, %u pipelines: %.3f of the workers' speed, %.3f in the middle third, %u cuts\n", i < 4 ? "pipelines" : "pipelines, losses",
               r.makespan_s, c.workers, r.gangs, share, r.steady_bytes_per_s / r.ideal_bytes_per_s, r.cuts);
        if (!i)
            one = share;
        must(i == 4 || r.gangs == gangs[i], "not all workers are in pipelines");
        must(i == 4 || share > one * 0.95, "throughput does not grow with the number of pipelines");
        must(share > (i < 4 ? 0.85 : 0.6), "pipelines reach too little of their workers' speed");
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    if (!*only || !strcmp(only, "unequal"))
        unequal();
    if (!*only || !strcmp(only, "churn60"))
        churn(60, 0.95);
    if (!*only || !strcmp(only, "churn10"))
        churn(10, 0.8);
    if (!*only || !strcmp(only, "day"))
        day();
    if (!*only || !strcmp(only, "pipelines"))
        pipelines();
    if (!bad)
        printf("ok: elastic pools\n");
    return bad != 0;
}
