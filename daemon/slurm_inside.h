/* What the files of the Slurm provider share: slurm.c decides, slurm_jobs.c keeps the table of jobs, slurm_run.c runs Slurm's programs, slurm_end.c
   says how workers went. */
#ifndef EBB_DAEMON_SLURM_INSIDE_H
#define EBB_DAEMON_SLURM_INSIDE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/map.h"
#include "daemon/provider.h"
#include "daemon/slurm.h"

enum slurm_cancel { CANCEL_NOT, CANCEL_WAITING /* only as long as it has not begun */, CANCEL_END, CANCEL_KILL, CANCELS };

struct slurm_job {
    struct slurm_job *next;
    char id[SLURM_ID_MAX], node[64], reason[120];
    enum slurm_state state;
    uint32_t restarts;     /* of the incarnation that runs, or of the one that waits */
    uint64_t worker;       /* of that incarnation; 0: none has said hello, or it has said goodbye */
    uint64_t since_ms;     /* first heard of */
    uint64_t alone_ms;     /* runs without a worker since; 0: does not */
    uint64_t hung_ms;      /* its worker hangs, and the job was told to end; 0: does not */
    enum slurm_cancel cancel;
    int cancel_sent;       /* 2: by the scancel that runs */
    uint64_t cancel_ms;
    int adopted;           /* found, not submitted by this process */
    int greeted, draining;
    int requeued;          /* it ends, and Slurm will start it again */
    unsigned missed;       /* looks in a row at which it was not listed */
    int listed;
};

struct slurm_run;
struct slurm_end;

struct slurm {
    struct daemon *d;
    struct slurm_job *jobs; /* the newest first */
    size_t count;
    struct map by_worker;   /* number -> job */
    struct slurm_run *running; /* one program at a time */
    struct slurm_end *ends; /* workers that are gone and of which the core has not heard yet */
    char name[32];          /* of the jobs */
    char *lock_path;
    int lock_fd;            /* held by each sbatch, so that a later daemon does not look before it has ended */
    char *program;
    uint32_t wanted;
    int stay;
    int asked_config, known; /* KillWait was read; the queue was read since the start */
    int fresh;              /* nothing has been submitted since the last look */
    int idle_look;          /* one look is due though there are neither jobs nor work */
    uint64_t since_ms;      /* of the start */
    uint64_t kill_wait_ms, looked_ms, next_ms, back_off_ms;
    uint64_t submit_ms, submit_back_off_ms; /* no sbatch before that */
    uint32_t submitting;    /* by the sbatch that runs */
    uint64_t cancel_ms;     /* no scancel before that */
    int no_arrays;          /* this cluster takes none */
    unsigned failures;      /* jobs in a row that ended without a hello */
    char queue_trouble[400], submit_trouble[400], job_trouble[600], waits[200];
};

/* Running programs ---------------------------------------------------------------------------------------------------------------- */

struct slurm_output {
    int failed;            /* it could not be started, took too long, or said too much: `complaint` tells */
    int status;            /* as waitpid has it */
    char *out, *err;       /* ended by a zero */
    char complaint[300];   /* when it failed or its status is not 0 */
};
typedef void slurm_ran(struct slurm *s, const struct slurm_output *o);
/* args[0] is looked for on the PATH. `input` is written to it, taken over. `hold_fd` (-1: none) stays open in it. `ran` comes later, never from within. */
void slurm_run(struct slurm *s, char **args, struct buf *input, int hold_fd, slurm_ran *ran);
void slurm_run_forget(struct slurm *s); /* the program goes on, nobody waits for it any more */

/* The table of jobs ---------------------------------------------------------------------------------------------------------------- */

struct slurm_job *slurm_find(const struct slurm *s, const char *id);
struct slurm_job *slurm_add(struct slurm *s, const char *id); /* NULL: memory is out */
void slurm_remove(struct slurm *s, struct slurm_job *j);
void slurm_free_all(struct slurm *s);
/* What squeue printed becomes the table. -1: it makes no sense. */
int slurm_take(struct slurm *s, const char *text);
int slurm_alive(const struct slurm_job *j);       /* works, or will by itself */
/* Does its worker speak? */
int slurm_speaks(const struct slurm *s, const struct slurm_job *j, uint64_t now_ms);
/* How many to submit; marks jobs to be cancelled: those that wait first, then those whose worker has not arrived. */
uint32_t slurm_plan(struct slurm *s, uint32_t wanted, uint32_t limit);

/* Ends ------------------------------------------------------------------------------------------------------------------------------ */

/* The job's incarnation is over, or its worker is. */
void slurm_ended(struct slurm *s, struct slurm_job *j, enum slurm_state state, int status);
void slurm_ends(struct slurm *s);      /* tells the core of those that are known */
void slurm_ends_free(struct slurm *s);
/* A job was of no use: the next one is submitted later. */
void slurm_failure(struct slurm *s, const char *id, const char *node, const char *how, const char *words);

#endif
