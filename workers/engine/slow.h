/* A slower processor than there is, for tests and measurements of pipelines over unlike workers on one machine: with EBB_TEST_SLOW=FACTOR in the environment whoever
   computes sleeps (FACTOR - 1) times the processor time that it took. Without it nothing is measured. */
#ifndef EBB_ENGINE_SLOW_H
#define EBB_ENGINE_SLOW_H

#include <stdint.h>

struct slow {
    uint64_t cpu_ns; /* of the thread, when it began */
};

double slow_factor(void); /* 1: as fast as it is */
struct slow slow_begin(void);
void slow_end(const struct slow *s); /* the same thread */
uint64_t slow_cpu_ns(void);          /* processor time of this thread */

#endif
