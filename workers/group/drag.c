#include "workers/group/drag.h"

#define LOOK_MS 4000      /* two looks, one behind the other, must find it: a build beside is noise, and in the first one a part of what was before may be */
#define LOOK_RUNS 8
#define LOOK_CPU_NS 200000000u
#define CHANGE 1.4

double drag_factor(const struct drag *p)
{
    return p->told > 1 ? p->told : 1;
}

int drag_ran(struct drag *p, uint64_t wall_ns, uint64_t cpu_ns, uint64_t now_ms)
{
    if (!p->runs)
        p->begun_ms = now_ms;
    p->wall_ns += wall_ns;
    p->cpu_ns += cpu_ns;
    p->runs++;
    if (now_ms - p->begun_ms < LOOK_MS || p->runs < LOOK_RUNS || p->cpu_ns < LOOK_CPU_NS)
        return 0;
    double now = (double)p->wall_ns / (double)p->cpu_ns, then = drag_factor(p);
    p->runs = 0;
    p->wall_ns = p->cpu_ns = 0;
    if (now < 1)
        now = 1;
    int way = now >= then * CHANGE ? 1 : now <= then / CHANGE ? -1 : 0, again = way && way == p->way;
    p->way = way;
    if (!again)
        return 0;
    p->told = now;
    p->way = 0;
    return 1;
}
