/* Pools of pipelines around the real core, in virtual time: how does throughput grow with the number of workers, and what do losses cost? The speeds of the workers
   are unlike (between half and twice the mean); each pipeline has four of them. */
#include <stdio.h>

#include "tests/sim/gang_pool.h"

int main(void)
{
    static const uint32_t gangs[] = {1, 2, 4, 8, 15, 30};
    struct gang_pool_config c = {.seed = 1, .stages = 4, .segments = 48, .spread = 2, .bytes_per_s = 50000, .work_s = 600, .load_ms = 2000};
    struct gang_pool_result r, first = {.gangs = 0};
    struct err e;
    double last = 0, churn = 0;
    printf("workers  pipelines     MB/s   per worker's speed   middle third   cuts   us a step   worst us\n");
    for (size_t i = 0; i <= sizeof gangs / sizeof *gangs; i++) {
        int with_losses = i == sizeof gangs / sizeof *gangs;
        c.workers = 4 * gangs[with_losses ? i - 1 : i];
        c.mean_life_s = with_losses ? 600 : 0;
        if (gang_pool_run(&c, &r, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        if (!i)
            first = r;
        double share = r.bytes_per_s / r.ideal_bytes_per_s;
        printf("%7u %10u %8.2f %20.3f %14.3f %6u %11.2f %10.0f%s\n", c.workers, r.gangs, r.bytes_per_s / 1e6, share, r.steady_bytes_per_s / r.ideal_bytes_per_s, r.cuts,
               r.step_us, r.worst_step_us, with_losses ? "   mean life of a worker 10 min" : "");
        *(with_losses ? &churn : &last) = share;
    }
    printf("{\"bench\":\"gangs\",\"share_of_ideal_1\":%.4f,\"share_of_ideal_30\":%.4f,\"linear_30\":%.4f,\"share_with_losses\":%.4f}\n",
           first.bytes_per_s / first.ideal_bytes_per_s, last, last / (first.bytes_per_s / first.ideal_bytes_per_s), churn);
    return 0;
}
