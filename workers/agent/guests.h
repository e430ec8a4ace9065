/* The workers of an agent, which is their parent: started humbly, frozen, asked to leave, killed, and accounted for when they are gone.

   Guests do not outlive their agent (PR_SET_PDEATHSIG): when it dies there is nobody to look out for the owner. What one was doing stands in its black
   box, which the next agent reads by the note beside it. */
#ifndef EBB_WORKERS_AGENT_GUESTS_H
#define EBB_WORKERS_AGENT_GUESTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/ending.h"
#include "base/status.h"
#include "wire/blackbox.h"
#include "workers/agent/policy.h"

struct guests;

struct guests_opts {           /* copied, not the texts: they live as long as the guests */
    const char *host, *dir, *endpoint, *key_file, *pack_cache; /* NULL: none */
    uint64_t pack_bytes;
    enum policy_priority priority;
};

struct guest_ending {
    struct guest_ending *next;
    uint64_t number;
    enum worker_end how;
    struct blackbox_record *records;
    size_t count;
    char text[300];
    uint64_t told_ms;          /* when the daemon was told last; 0: not yet */
};

struct guest_view {
    uint64_t number, started_ms;
    const char *name;
    int pid, leaving;
};

/* Kills what an agent before us left behind, and takes its endings. */
MUST_USE enum status guests_open(const struct guests_opts *o, struct guests **out, struct err *e);
/* Kills those that live, waits for them. Endings that were not noted are found again by the next agent. */
void guests_close(struct guests *g);

/* One more. grace_ms: what it takes to commit and go when it is asked to. 0, or -1: not now (guests_trouble says why). */
int guests_start(struct guests *g, uint32_t lanes, uint64_t memory_bytes, uint64_t grace_ms, uint64_t now_ms);
void guests_freeze(struct guests *g);   /* all; those that are frozen stay so */
void guests_thaw(struct guests *g);
void guests_drain(struct guests *g, size_t most, const char *why); /* the youngest `most` of those that were not asked yet: SIGTERM */
void guests_evict(struct guests *g, const char *why);              /* all: SIGKILL */
/* The daemon's word about one: gently, or because it hangs. 0, or -1: there is no such guest. */
int guests_end_one(struct guests *g, uint64_t number, int gently, const char *why);
/* Collects those that have died. 1 when there were some. */
int guests_reap(struct guests *g, uint64_t now_ms);

struct guest_ending *guests_endings(struct guests *g);
void guests_noted(struct guests *g, uint64_t number);

size_t guests_count(const struct guests *g);   /* that live */
size_t guests_staying(const struct guests *g); /* of those, that were not asked to leave */
int guests_frozen(const struct guests *g);
int guests_view(const struct guests *g, size_t i, struct guest_view *out); /* 0: there is no i-th */
uint64_t guests_cpu_ns(struct guests *g);      /* that all so far took; UINT64_MAX: not known */
uint64_t guests_ticks_of(int pid);             /* processor time of a guest and all that it has started, in clock ticks; 0: there is none */
uint64_t guests_bytes_of(int pid);
uint64_t guests_bytes(const struct guests *g); /* resident */
const char *guests_trouble(const struct guests *g);   /* why none can be started; "" */
uint64_t guests_not_before(const struct guests *g);   /* none is started before */
const char *guests_means(const struct guests *g);     /* how they are held: "cgroup v2 freeze, ..." */

#endif
