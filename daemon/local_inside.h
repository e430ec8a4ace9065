/* What the files of local share: local.c starts workers and tells them to go, local_ended.c says how they went. */
#ifndef EBB_DAEMON_LOCAL_INSIDE_H
#define EBB_DAEMON_LOCAL_INSIDE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/local.h"

#define BACK_OFF_MS 500       /* after the first worker that died at once; doubled each time */
#define DEATHS_THAT_HOLD 5    /* in a row */

struct child {
    struct child *next;
    struct local *l;
    uint64_t number;
    char name[160];
    unsigned place;      /* 1..: host/1 */
    int pid;
    char *blackbox, *note, *log;
    uint64_t started_ms;
    int greeted, bye, hung, draining, killed;
    int adopted;
    uv_process_t process;
    uv_poll_t poll;      /* of the pidfd of an adopted one */
    int pidfd;
    int fallen;          /* an adopted one that was dead when we came */
    int dead, exit_status, signal; /* to be reaped when its last words have been read */
    uint64_t dead_ms;
};

struct local {
    struct daemon *d;
    struct child *children;
    size_t count;
    char *dir, *program;
    int stay;
    uint32_t wanted;     /* alive and starting, as the core said last */
    uint64_t not_before_ms, back_off_ms;
    unsigned deaths;     /* at once, in a row */
    uint64_t oom_kills;  /* as counted last */
    char trouble[400];
    int idle_fd;         /* never readable: for handles that have nothing to watch */
    uv_timer_t reaper;   /* runs while there are dead ones */
};

struct child *local_find(const struct local *l, uint64_t number);
/* Starts what is missing. */
void local_fill(struct local *l);
/* No worker can be started at all: jobs wait for it with the reason. */
void local_hold_all(struct local *l, const char *why);
/* The process is gone: it is reaped when its last words have been read. */
void local_died(struct child *c, int exit_status, int signal);
void local_child_free(struct child *c);
void local_child_closed(uv_handle_t *h);

#endif
