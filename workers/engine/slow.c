#include "workers/engine/slow.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

double slow_factor(void)
{
    static _Atomic double known;
    double f = known;
    if (f == 0) {
        const char *text = getenv("EBB_TEST_SLOW");
        f = text ? strtod(text, NULL) : 1;
        f = f >= 1 && f <= 1e6 ? f : 1;
        known = f;
    }
    return f;
}

uint64_t slow_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct slow slow_begin(void)
{
    return (struct slow){.cpu_ns = slow_factor() > 1 ? slow_cpu_ns() : 0};
}

void slow_end(const struct slow *s)
{
    double f = slow_factor();
    if (f <= 1)
        return;
    uint64_t ns = (uint64_t)((f - 1) * (double)(slow_cpu_ns() - s->cpu_ns));
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) && errno == EINTR)
        ;
}
