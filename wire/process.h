/* A worker's process as whoever started it sees it, be it ebbd or ebb-agent: its program, its log, the note that lets a later parent know it, and
   what it ended of. */
#ifndef EBB_WIRE_PROCESS_H
#define EBB_WIRE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#include "base/ending.h"
#include "wire/blackbox.h"

/* When a process began, in clock ticks since the boot. 0, or -1 when there is no such process (or it is only not reaped). */
int process_start(uint64_t pid, uint64_t *started);

/* A note: which process, and which place among its like. Written by the parent as NUMBER.pid beside NUMBER.box. */
struct process_note {
    int pid;
    uint64_t started;
    unsigned place;
};
/* 0, or -1 when it cannot be written. The start is looked up. */
int process_note_write(const char *path, int pid, unsigned place);
/* What can be read of it; zeros for the rest. */
void process_note_read(const char *path, struct process_note *out);
/* The process of the note lives, and is no other under its number. */
int process_note_lives(const struct process_note *n);

/* A number that no other worker has: random, not 0. */
uint64_t process_draw_number(void);
/* ebb-worker: beside our own program, else on the PATH; "" when there is none. NULL: memory is out. The caller frees. */
char *process_find_worker(void);
/* For its standard error: appends, begins anew when it has become long. -1: cannot be opened. */
int process_open_log(const char *path);
/* Its last three lines in one, each once; "" when there are none. Bytes are as they came. */
void process_last_words(const char *log, char *out, size_t size);

/* Kills for want of memory so far, of the machine and of our own control group, in whichever version. */
uint64_t process_oom_kills(void);

struct process_death {
    int exit_status, signal;    /* as waitpid has it; signal 0: it exited */
    int unknown;                /* not our child: neither is known */
    int bye;                    /* it said goodbye */
    int killed_hung;            /* by us, as hung */
    int evicted;                /* by us, because the node is wanted */
    int oom_risen;              /* the kernel killed something for memory meanwhile */
    enum blackbox_cause cause;  /* as the worker noted it */
};
enum worker_end process_cause(const struct process_death *death);
const char *process_end_word(enum worker_end how);

#endif
