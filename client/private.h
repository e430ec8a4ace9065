/* The daemon that an `ebb run` starts for itself, or finds at work on the same output already. */
#ifndef EBB_CLIENT_PRIVATE_H
#define EBB_CLIENT_PRIVATE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "client/connect.h"

struct private_opts {
    uint64_t workers, lanes, memory_bytes; /* 0: the daemon decides */
};

struct private {
    struct private_opts opts;
    char *state;    /* folder, absolute */
    char *log;      /* what ebbd says */
    char *runtime;  /* for its sockets */
    char *endpoint; /* once it is ready */
    struct conn *conn;
    pid_t pid;      /* of the daemon */
    int ours;       /* 1: our child, to be reaped */
    int64_t log_from; /* length of the log when it was started */
};

/* work_dir: of the output; folders are made. */
MUST_USE enum status private_init(struct private *p, const char *work_dir, const struct private_opts *o, struct err *e);
void private_release(struct private *p); /* the daemon is left alone */
/* Starts one, or attaches to the one that serves this state; waits until it answers. ST_ENV with the end of its log when it cannot. ST_AGAIN: a
   signal came, or it died as soon as it was ready. */
MUST_USE enum status private_start(struct private *p, struct err *e);
/* Is the process there? Reaps a child that is gone. */
int private_alive(struct private *p);
/* The last lines of what it said since it was started, for an error's end: "\n<line>\n<line>", or "". */
void private_last_words(struct private *p, char *out, size_t size);

/* <runtime folder>/ebb/<hash of the state's path>, for one user alone; made. The caller frees. NULL with e filled. */
char *private_runtime_dir(const char *state, struct err *e);
/* Where the daemon of the 'ebb run' that makes `output` listens; a made-up path when there is none, so that connecting says so. NULL: out of memory. */
char *private_endpoint_of_output(const char *output);

#endif
