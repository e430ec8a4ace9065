/* The whole autoscaler and core on a night that nobody would wish for, in virtual time: 5,000 workers of four providers, a thousand million records,
   nodes that come and go with their owners' days, two storms in which 70 % of all preemptible workers vanish in a minute, workers that never arrive, a
   restart of the daemon in the middle. Against it stands the best that any schedule could do: all workers that could have been had at any time at
   work all the time. And: what a decision costs, and whether that, and memory, grow with what has been done. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/elastic.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    /* bench/elastic [RECORDS [WORKERS]] */
    uint64_t records = argc > 1 ? strtoull(argv[1], NULL, 10) : UINT64_C(1000000000);
    uint32_t workers = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 5000;
    if (!records || workers < 100) {
        fprintf(stderr, "usage: elastic [RECORDS [WORKERS]], at least 100 workers\n");
        return 2;
    }
    /* a lease of 30 s holds 1,000 records */
    struct elastic_config c = {.seed = 1, .records = records, .record_bytes = 1000, .rate = 1000000.0 / 30, .spread = 2, .load_ms = 3000, .commit_ms = 3000, .lease_ms = 30000};
    double length_s = (double)records * 0.03 / (0.6 * workers); /* about */
    c.providers[PROVIDER_LOCAL] = (struct elastic_provider){.limit = 16, .start_ms_max = 500, .idle_ms = 30000};
    c.providers[PROVIDER_AGENT] = (struct elastic_provider){
        .preemptible = 1, .limit = workers * 54 / 100, .ebb = 0.2, .period_s = length_s / 2.5, .start_ms_min = 300, .start_ms_max = 3000, .mean_life_s = 7200, .idle_ms = 30000};
    c.providers[PROVIDER_SLURM] = (struct elastic_provider){
        .preemptible = 1, .limit = workers * 36 / 100, .start_ms_min = 2000, .start_ms_max = 60000, .never = 0.05, .give_up_ms = 120000, .mean_life_s = 14400, .idle_ms = 30000};
    c.providers[PROVIDER_KUBERNETES] = (struct elastic_provider){.limit = workers / 10 - 16, .start_ms_min = 5000, .start_ms_max = 40000, .idle_ms = 30000};
    for (int i = 0; i < 2; i++) {
        c.storms[i].at_s = length_s * (i ? 0.6 : 0.2);
        c.storms[i].falls_s = 60;
        c.storms[i].lasts_s = 300;
        c.storms[i].back_s = 300;
        c.storms[i].part = 0.7;
    }
    c.storm_count = 2;
    c.restart_at_s = length_s / 2;
    c.down_s = 5;
    c.quiet = getenv("EBB_QUIET") != NULL;
    struct elastic_result r;
    struct err e;
    double cpu = seconds();
    if (elastic_run(&c, &r, &e)) {
        fprintf(stderr, "elastic: %s\n", e.text);
        return 1;
    }
    cpu = seconds() - cpu;
    printf("makespan %.0f s, the best possible %.0f s: %.3f; %" PRIu64 " leases, %" PRIu64 " commits, %" PRIu64 " arrivals, %" PRIu64 " losses, %" PRIu64 " never came\n", r.makespan_s,
           r.ideal_s, r.makespan_s / r.ideal_s, r.leases, r.commits, r.arrivals, r.losses, r.never);
    printf("worker-seconds %.0f: useful %.2f %%, idle %.2f %%, loading %.2f %%, wasted %.2f %%; tail %.1f s; all idle ones gone %.0f s after the end\n", r.lived_s,
           r.useful_s * 100 / r.lived_s, r.idle_s * 100 / r.lived_s, r.loading_s * 100 / r.lived_s, r.wasted_s * 100 / r.lived_s, r.tail_s, r.after_end_s);
    printf("decisions %.0f/s (%" PRIu64 " in %.1f s; the whole run took %.1f s of one core); a commit %.2f us in the median, %.1f us p99; restart to first lease %.3f s\n",
           (double)r.steps / r.step_s, r.steps, r.step_s, cpu, r.commit_us_median, r.commit_us_p99, r.restart_s);
    double first_us = 0, last_us = 0;
    uint64_t first_bytes = 0, last_bytes = 0;
    for (size_t i = 0; i < ELASTIC_MARKS && r.marks[i].leases; i++) {
        printf("  after %9" PRIu64 " ranges: a commit %.2f us, the core %.1f MiB\n", r.marks[i].leases, r.marks[i].commit_us, (double)r.marks[i].core_bytes / (1 << 20));
        if (i == 1) {
            first_us = r.marks[i].commit_us;
            first_bytes = r.marks[i].core_bytes;
        }
        last_us = r.marks[i].commit_us;
        last_bytes = r.marks[i].core_bytes;
    }
    printf("{\"bench\":\"elastic\",\"records\":%" PRIu64 ",\"ranges\":%" PRIu64 ",\"workers\":%u,\"makespan_s\":%.1f,\"ideal_s\":%.1f,\"against_ideal\":%.4f,"
           "\"useful\":%.4f,\"idle_worker_s\":%.0f,\"wasted_worker_s\":%.0f,\"loading_worker_s\":%.0f,\"lived_worker_s\":%.0f,\"decisions_per_s\":%.0f,\"commit_us_median\":%.2f,"
           "\"commit_us_p99\":%.2f,\"commit_us_after_10k_ranges\":%.2f,\"commit_us_last\":%.2f,\"core_mib\":%.1f,\"core_mib_after_10k_ranges\":%.1f,\"core_mib_last\":%.1f,"
           "\"restart_to_first_lease_s\":%.3f,\"released_after_s\":%.0f,\"losses\":%" PRIu64 ",\"never_arrived\":%" PRIu64 "}\n",
           records, r.leases, r.most_alive, r.makespan_s, r.ideal_s, r.makespan_s / r.ideal_s, r.useful_s / r.lived_s, r.idle_s, r.wasted_s, r.loading_s, r.lived_s,
           (double)r.steps / r.step_s, r.commit_us_median, r.commit_us_p99, first_us, last_us, (double)r.core_bytes / (1 << 20), (double)first_bytes / (1 << 20),
           (double)last_bytes / (1 << 20), r.restart_s, r.after_end_s, r.losses, r.never);
    return 0;
}
