/* The local provider: workers as child processes of this daemon, and those that an earlier daemon left behind. */
#ifndef EBB_DAEMON_LOCAL_H
#define EBB_DAEMON_LOCAL_H

#include "daemon/loop.h"
#include "wire/blackbox.h"

struct local;
struct worker;

MUST_USE enum status local_open(struct daemon *d, struct err *e);
void local_close(struct daemon *d);
/* d->wanted or the configuration has changed: starts what is missing. */
void local_want(struct local *l);
/* Hung: killed; its end is told to the core. */
void local_kill(struct local *l, uint64_t worker, const char *why);
/* Core and sockets are there: those that died while there was no daemon are told. */
void local_recovered(struct local *l);
/* A worker said hello. */
void local_hello(struct local *l, const struct worker *w);
/* It said goodbye. 1 when its process is ours to reap. */
int local_bye(struct local *l, uint64_t worker);
void local_second(struct local *l);        /* once a second: idle ones leave, missing ones come */
void local_stay(struct local *l, int stay); /* 1: no new ones are started */
void local_drain_all(struct local *l);
void local_kill_all(struct local *l);
size_t local_count(const struct local *l); /* processes that live */
/* Processes that have not said hello yet: for `workers`. */
size_t local_starting(const struct local *l, void (*visit)(void *arg, uint64_t number, const char *name, uint64_t pid, uint64_t since_ms), void *arg);
/* Why no worker can be started; "" when they can. */
const char *local_trouble(const struct local *l);
/* Path of the worker program; "" when it is not found. */
const char *local_program(const struct local *l);

/* How a process ended, in the words of the core. */
struct local_death {
    int exit_status, signal;    /* as waitpid has it; signal 0: it exited */
    int unknown;                /* not our child: neither is known */
    int bye;                    /* it said goodbye */
    int killed_hung;            /* by us, as hung */
    int oom_risen;              /* the kernel killed something for memory meanwhile */
    enum blackbox_cause cause;  /* as the worker noted it */
};
enum worker_end local_cause(const struct local_death *death);

#endif
