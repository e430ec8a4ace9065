/* An owner's program, for bench/owner.py: `hog cpu THREADS SECONDS` counts, `hog memory BYTES SECONDS` fills memory and walks through it. The last line is what
   it got done: "count PER_SECOND" or "walk PER_SECOND". "begun" comes first, when it is under way. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define STEP 100000

static _Atomic uint64_t done;
static _Atomic int stop;

static void *count(void *arg)
{
    uint64_t x = (uint64_t)(uintptr_t)arg + 88172645463325252u;
    while (!stop) {
        for (int i = 0; i < STEP; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        done += STEP + (x == 0); /* it is looked at, so that it is computed */
    }
    return NULL;
}

static void begun(void)
{
    puts("begun");
    fflush(stdout);
}

static int cpu(int threads, double seconds)
{
    pthread_t t[1024];
    if (threads < 1 || threads > 1024)
        return 2;
    begun();
    uint64_t at = clock_ns();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&t[i], NULL, count, (void *)(uintptr_t)i))
            return 1;
    clock_sleep_ms((uint64_t)(seconds * 1000));
    stop = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("count %.0f\n", (double)done / ((double)(clock_ns() - at) / 1e9));
    return 0;
}

static int memory(size_t bytes, double seconds)
{
    char *p = malloc(bytes);
    if (!p)
        return 1;
    begun();
    uint64_t at = clock_ns(), walked = 0;
    while ((double)(clock_ns() - at) / 1e9 < seconds)
        for (size_t i = 0; i < bytes && (i % (64 << 20) || (double)(clock_ns() - at) / 1e9 < seconds); i += 4096) {
            p[i]++;
            walked++;
        }
    printf("walk %.0f\n", (double)walked / ((double)(clock_ns() - at) / 1e9));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "cpu") == 0)
        return cpu(atoi(argv[2]), atof(argv[3]));
    if (argc == 4 && strcmp(argv[1], "memory") == 0)
        return memory((size_t)strtoull(argv[2], NULL, 10), atof(argv[3]));
    fputs("usage: hog cpu THREADS SECONDS | hog memory BYTES SECONDS\n", stderr);
    return 2;
}
