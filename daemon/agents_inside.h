/* Inside the provider `agent`: what agents.c (wishes, terms) and agents_said.c (what agents say) share. */
#ifndef EBB_DAEMON_AGENTS_INSIDE_H
#define EBB_DAEMON_AGENTS_INSIDE_H

#include "base/ending.h"
#include "base/log.h"
#include "daemon/agents.h"

struct guest { /* a worker of an agent's */
    uint64_t number;
    char name[128], state[12];
    uint32_t pid;
    uint64_t since_ms;         /* of the state */
    uint64_t seen_ms;          /* when its agent named it first */
    int leaving;               /* it, its agent or the core says so: it counts no more */
    int called_back;
    uint64_t kill_ms;          /* told to kill it; 0: was not */
    int named;                 /* in the message that is being read */
};

struct agent {
    uint64_t number, seen_ms, state_since_ms, joined_ms;
    struct sock_peer peer;
    char host[128], program[64], state[12], reason[240];
    uint32_t cores, pid, room, told, wants; /* workers: that it was told, that it is to have */
    uint64_t memory_bytes, available_bytes, told_ms;
    double load_of_others;
    uint64_t short_ms;         /* since when it has fewer workers than it was told; 0: it has not */
    int free, silent, stated;
    struct guest *guests;
    size_t count, cap;
};

struct ending {
    struct ending *next;
    uint64_t worker, due_ms;
    struct sock_peer peer;
    enum worker_end how;
    struct sched_suspect *suspects;
    size_t count;
    char text[240];
};

struct agents {
    struct daemon *d;
    struct map by_peer;
    uint32_t wanted;
    int stay;
    uint64_t second_ms;
    struct ending *endings;
    size_t ending_count;
    uv_timer_t timer;          /* runs while there are endings */
    char trouble[400];
};

#define AGENTS_SILENT_MS 6000 /* an agent speaks every second */

/* agents.c */
struct agent *agents_of(const struct agents *a, const struct sock_peer *peer);
struct guest *agents_guest(const struct agent *x, uint64_t worker);
/* Over all agents; whose it is. */
struct guest *agents_find(const struct daemon *d, uint64_t worker, struct agent **whose);
void agents_free(struct agents *a, struct agent *x);
void agents_news(struct agents *a); /* what there could be has changed */
void agents_tell_want(struct agents *a, struct agent *x, uint64_t now_ms);

/* agents_said.c */
void agents_endings_free(struct agents *a);

#endif
