/* The daemon's one loop, and the core behind it. loop.c is the only caller of sched_step.

   Each step's rows go into the open group of apply.c, its messages behind them. Whatever fails in writing ends in recover() of loop.c, which is
   also how the daemon starts: reopen the store, raise the generation, replay every row into a new core, ask the workers to say hello. */
#ifndef EBB_DAEMON_LOOP_H
#define EBB_DAEMON_LOOP_H

#include <stdint.h>
#include <uv.h>

#include "base/provider_id.h"
#include "daemon/config.h"
#include "scheduler/sched.h"

#define LOOP_GRACE_MS 20000        /* for workers to commit what they have, at the end */
#define LOOP_PRIVATE_SILENCE_MS 10000

struct provider_terms { /* of workers, see daemon/provider.h */
    uint32_t limit;     /* most workers that it can give. It counts those that it has and cannot take back: while more live than this for half a
                           minute, the core lets busy ones go, too */
    int preemptible;    /* its workers may be taken away at any time */
    uint64_t idle_ms;   /* a worker without work, of more than are wanted, leaves after so long; 0: never */
};

struct daemon {
    struct config *_Atomic config; /* threads read it, while a reload puts another there */
    int argc;
    char **argv; /* for SIGHUP */
    uv_loop_t uv;

    struct sched *core; /* NULL while the store is being reopened: sockets are not read then */
    struct sched_update update;
    uint64_t now_ms;    /* of the last step: time never goes back */
    uint32_t generation;
    uint64_t next_job;
    uint32_t wanted[PROVIDERS]; /* workers of each provider, as the core said last */
    struct provider_terms provider_terms[PROVIDERS]; /* as the core was told last */
    uint8_t provider_told[PROVIDERS];

    char host[256];
    uint64_t host_id;
    char store_id[33];  /* drawn when the store was made: tells it from another at the same path */
    char *clients_endpoint, *workers_endpoint;
    int runtime_lock;
    uint64_t client_ms; /* when a client spoke last */

    struct apply *apply;
    struct link *link;
    struct auth *auth;  /* NULL: nobody comes in over the network */
    struct jobs *jobs;
    struct publish *publish;
    struct local *local;
    struct agents *agents;
    struct slurm *slurm;
    struct kubernetes *kubernetes;
    struct owner *owner;
    struct guard *guard;
    struct sweep *sweep;
    struct http *http;  /* NULL: off */
    uint64_t commit_ns; /* of the commit that is being handled: when it came in; 0: none */
    struct relay *relay;

    enum { LOOP_RUNNING, LOOP_DRAINING, LOOP_ENDING } phase;
    int ended; /* the last turn: nobody is heard any more */
    uint64_t drain_deadline_ms;
    int exit_code;

    uv_prepare_t prepare;
    uv_timer_t tick, second, retry;
    uv_signal_t sigterm, sigint, sighup;
    char trouble[512]; /* why the store is down; "" */
};

/* Takes the state directory, opens store and sockets, serves until told to end. Releases what *config holds. The program's exit code. */
int loop_run(struct config *config, int argc, char **argv);

/* One step: the event's time is filled in, the update is applied. ST_USER: refused, nothing changed. ST_AGAIN: there is no core just now. */
MUST_USE enum status loop_step(struct daemon *d, struct sched_event *ev, struct err *e);
/* The same for what cannot be refused: a refusal is logged. */
void loop_tell(struct daemon *d, struct sched_event *ev);
/* From apply.c, after a failed write: the group and all behind it are lost. */
void loop_store_failed(struct daemon *d, const struct err *e);
/* From apply.c: TICK is wanted at this time (clock_ms). */
void loop_wake_at(struct daemon *d, uint64_t when_ms);
/* Drain, commit, end; again, or with `now`: at once. */
void loop_stop(struct daemon *d, int now);
/* Memory is out, or worse: ends the program; what was acknowledged is safe. */
noreturn void loop_fatal(struct daemon *d, const struct err *e);

#endif
