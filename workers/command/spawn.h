/* How a child of a command begins, and how it is made sure that none outlives us.

   Each child leads a process group of its own, in our session: it is stopped, continued and killed as one with whatever it starts. When we die, by
   whatever hand, three things end it: its pipes are closed; the kernel kills it (PR_SET_PDEATHSIG); and the *keeper*, a shell that knows the
   groups and waits for our end of its pipe to close, kills the whole group, for a shell's own children would live on. */
#ifndef EBB_WORKERS_SPAWN_H
#define EBB_WORKERS_SPAWN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

struct spawn {
    char *shell, *dir;
    char **env, number[32];  /* "EBB_CHILD=..." */
    char *own;               /* what env points into: the strings that are not the worker's own */
    pid_t keeper;            /* 0: none yet */
    int keeper_fd;
};

struct spawned {
    pid_t pid;
    int pidfd;               /* -1: this kernel has none */
    int in, out, err;        /* our ends, which do not block */
};

/* Copies all. more: NAME=VALUE, NULL at the end, may be NULL. */
MUST_USE enum status spawn_init(struct spawn *s, const char *shell, const char *dir, const char *const *more, struct err *e);
/* Every child is reaped. Ends the keeper. */
void spawn_release(struct spawn *s);
/* Starts one. All signals should be blocked in this thread; when it ends, its children die. ST_ENV: no more processes, no more files. What fails in the
   child, a folder that is not there among it, the child says on its standard error before it ends with 126. */
MUST_USE enum status spawn_run(struct spawn *s, uint32_t number, struct spawned *out, struct err *e);
/* Kills what is left of its group, and reaps it. It has ended, or is killed hereby. *status as waitpid has it. 1 when it is gone, 0: not yet. */
int spawn_reap(struct spawn *s, pid_t pid, int *status);
void spawn_kill(pid_t pid);  /* the whole group */

#endif
