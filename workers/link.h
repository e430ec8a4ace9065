/* The worker's end of the wire: one DEALER, spoken to by one thread. docs/wire.md tells who says what, when. */
#ifndef EBB_WORKERS_LINK_H
#define EBB_WORKERS_LINK_H

#include <stdint.h>

#include "base/status.h"
#include "wire/keys.h"
#include "workers/pipeline/pipeline.h"

#define LINK_GRACE_MS 20000  /* from a signal to the end, unless told otherwise */

struct remote;

struct link_opts {
    void *context;            /* ZeroMQ's */
    const char *endpoint, *name, *program;
    const char *host;         /* what its machine is called; NULL: by its host name */
    const struct keys *keys;  /* for tcp; NULL: ipc */
    uint64_t number;          /* drawn by whoever starts the worker; its identity on the socket */
    uint32_t lanes;
    uint64_t memory_bytes;
    uint32_t provider;        /* enum provider_id: who started it */
    struct remote *remote;    /* is told what the daemon sees; NULL: nobody is */
    int wake_fd;              /* the pipeline's */
    uint64_t grace_ms;        /* from a signal to the end */
    int signal_fd;            /* SIGTERM, SIGINT and SIGUSR1 arrive here, a byte each */
};

/* Talks to the daemon until there is no more to say. Returns the program's exit code: 0 drained, 1 the daemon is gone or too old, 2 it
   refuses this worker. */
int link_run(const struct link_opts *o, struct pipeline *p);

#endif
