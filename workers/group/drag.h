/* How much longer a member's work takes than its processor time: more than 1 where others use its processors, where a limit holds it back, or where it is stopped now
   and then. Segments are measured in processor time (cost.h), so this is what the scheduler must be told when it changes. No clock, no thread. */
#ifndef EBB_WORKERS_DRAG_H
#define EBB_WORKERS_DRAG_H

#include <stdint.h>

struct drag { /* zeroed at first */
    uint64_t begun_ms, wall_ns, cpu_ns; /* of what is being looked at */
    uint32_t runs;
    int way;                            /* what the last look found: 1 slower than told, -1 faster */
    double told;                        /* what is known of it; 0: nothing, which is 1 */
};

/* A micro-batch took so long, and so much processor time, that which it would take if tests did not slow it down included. 1: twice, for four
   seconds or more each, it was otherwise than told by more than two fifths; told is what it was the second time. */
int drag_ran(struct drag *p, uint64_t wall_ns, uint64_t cpu_ns, uint64_t now_ms);
double drag_factor(const struct drag *p);

#endif
