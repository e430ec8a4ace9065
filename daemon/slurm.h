/* The Slurm provider: each worker is one batch job. Jobs are submitted, looked at and cancelled by Slurm's own programs (sbatch, squeue, scancel), run
   beside the loop, one at a time. The provider itself is provider_slurm of daemon/provider.h; here is what tests look at. */
#ifndef EBB_DAEMON_SLURM_H
#define EBB_DAEMON_SLURM_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "daemon/config.h"
#include "scheduler/sched.h"
#include "wire/blackbox.h"

struct slurm;

/* What squeue calls a state, and what it means for us. */
#define SLURM_STATE_MAP(X)                                                                                                       \
    X(PENDING, "PENDING", WAITS)                                                                                                 \
    X(CONFIGURING, "CONFIGURING", WAITS)                                                                                         \
    X(REQUEUED, "REQUEUED", WAITS)                                                                                               \
    X(REQUEUE_FED, "REQUEUE_FED", WAITS)                                                                                         \
    X(RUNNING, "RUNNING", RUNS)                                                                                                  \
    X(SIGNALING, "SIGNALING", RUNS)                                                                                              \
    X(RESIZING, "RESIZING", RUNS)                                                                                                \
    X(COMPLETING, "COMPLETING", GOES)                                                                                            \
    X(STAGE_OUT, "STAGE_OUT", GOES)                                                                                              \
    X(SUSPENDED, "SUSPENDED", STANDS)  /* takes a place and does nothing */                                                      \
    X(STOPPED, "STOPPED", STANDS)                                                                                                \
    X(REQUEUE_HOLD, "REQUEUE_HOLD", STANDS)                                                                                      \
    X(SPECIAL_EXIT, "SPECIAL_EXIT", STANDS)                                                                                      \
    X(RESV_DEL_HOLD, "RESV_DEL_HOLD", STANDS)                                                                                    \
    X(COMPLETED, "COMPLETED", OVER)                                                                                              \
    X(CANCELLED, "CANCELLED", OVER)                                                                                              \
    X(FAILED, "FAILED", OVER)                                                                                                    \
    X(TIMEOUT, "TIMEOUT", OVER)                                                                                                  \
    X(DEADLINE, "DEADLINE", OVER)                                                                                                \
    X(PREEMPTED, "PREEMPTED", OVER)                                                                                              \
    X(NODE_FAIL, "NODE_FAIL", OVER)                                                                                              \
    X(BOOT_FAIL, "BOOT_FAIL", OVER)                                                                                              \
    X(OUT_OF_MEMORY, "OUT_OF_MEMORY", OVER)                                                                                      \
    X(REVOKED, "REVOKED", OVER)                                                                                                  \
    X(UNKNOWN, "UNKNOWN", STANDS)      /* a word that this program does not know: it is left alone */
enum slurm_state {
#define X(name, word, meaning) SLURM_##name,
    SLURM_STATE_MAP(X)
#undef X
};
enum slurm_meaning { SLURM_WAITS, SLURM_RUNS, SLURM_GOES, SLURM_STANDS, SLURM_OVER };
const char *slurm_state_word(enum slurm_state state);
enum slurm_meaning slurm_meaning(enum slurm_state state);

#define SLURM_ID_MAX 32
/* "8812" or "8812_3", one of an array. 0, or -1 when it is no such thing. */
int slurm_id_parse(const char *text, size_t len, char out[SLURM_ID_MAX]);

/* A line of squeue. */
struct slurm_row {
    char id[SLURM_ID_MAX];
    enum slurm_state state;
    uint32_t restarts;
    int status;        /* as waitpid has it */
    char node[64], reason[120];
};
/* What squeue is to print, and one line of that; 0, or -1 for a line that is none. */
#define SLURM_FORMAT "JobArrayID:|,State:|,RestartCnt:|,exit_code:|,NodeList:|,Reason:"
int slurm_row_parse(const char *line, size_t len, struct slurm_row *out);
/* The job's number from what `sbatch --parsable` printed (a site may print more around it). 0, or -1. */
int slurm_submitted_parse(const char *out, char id[SLURM_ID_MAX]);
/* "slurm-8812", "slurm-8812_3.2": what the script calls its worker. 0, or -1: that is no such name. */
int slurm_name_parse(const char *name, char id[SLURM_ID_MAX], uint32_t *restarts);
/* KillWait in `scontrol show config`; 0: not found. */
uint64_t slurm_kill_wait_ms(const char *config);
/* What a program of Slurm's complained of, in one line of at most size - 1 bytes: its last two lines without its own name. */
void slurm_complaint(const char *program, const char *text, char *out, size_t size);

/* How a worker went, from how its job went: one that was preempted, cancelled, requeued or lost with its node is no evidence against a record. */
enum worker_end slurm_cause(enum slurm_state state, int status, enum blackbox_cause box, int hung);

struct slurm_terms { /* of one submission */
    const struct config *config;
    const char *name;      /* of the jobs: tells this daemon's from all others */
    const char *connect, *program;
    uint64_t grace_ms;
    uint32_t count;        /* more than 1: an array */
};
/* The script of a job. 0, or -1 when memory is out. */
int slurm_script(const struct slurm_terms *t, struct buf *out);
/* The words of sbatch, NULL at their end; the caller frees with slurm_args_free. NULL: memory is out. */
char **slurm_args(const struct slurm_terms *t);
void slurm_args_free(char **args);

#endif
