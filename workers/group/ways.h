/* What the ways to workers of other hosts are like: a few short messages there and back, then a megabyte. The scheduler places stages by that (docs/pipelines.md). */
#ifndef EBB_WORKERS_WAYS_H
#define EBB_WORKERS_WAYS_H

#include <stddef.h>
#include <stdint.h>

#include "wire/keys.h"
#include "workers/group/carrier.h"

struct way_peer {
    uint64_t worker;
    char endpoint[256], key[KEYS_Z85 + 1];
};

struct way {
    uint64_t worker;
    double bits_per_s, latency_ms; /* one way; where less than a megabyte arrived in five seconds: as much as did, at most */
};

/* One after the other; waits at most two seconds for a peer's first answer and five for the rest, less once goes_on(arg) says 0. out has room for n; returns how many of them
   answered. Those that did not are said in the log. The calling thread must be none that others wait for. */
size_t ways_measure(struct carrier *c, const struct way_peer *peers, size_t n, int (*goes_on)(void *arg), void *arg, struct way *out);

#endif
