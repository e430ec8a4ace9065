/* Following a job until it is over: one line that is drawn again and again on a terminal, a line each 10 s where there is none. */
#ifndef EBB_CLIENT_FOLLOW_H
#define EBB_CLIENT_FOLLOW_H

#include "base/status.h"
#include "client/progress.h"

enum follow_end { FOLLOW_OVER, FOLLOW_STANDS, FOLLOW_SIGNAL };

struct follow {
    /* Asks for JOB. ST_AGAIN: not now, ask again soon. */
    enum status (*poll)(void *arg, json_t **job, struct err *e);
    void *arg;
    int wait_paused;  /* go on waiting while it is paused */
    int own_machine;  /* how many workers would be worth having is no news: there is one machine */
    uint64_t records_total; /* when they could be counted beforehand; else 0 */
    struct view view; /* the last seen */
    /* own */
    int drawn;
    uint64_t next_line_ms;
    char last[512];
};

MUST_USE enum status follow_job(struct follow *f, enum follow_end *end, struct err *e);
void follow_show(struct follow *f);  /* draws f->view now, if it is time */
void follow_clear(struct follow *f); /* takes the line away, so that something else can be said */
/* The figures of a job on its way, and at its end, as one object with "event": "progress", "done", "held", "interrupted". */
json_t *follow_json(const char *event, const json_t *job);

/* The summary under a finished job. shown: its output, as people write it; seconds, records: of this run alone; records < rows in all when it was resumed. Prints to stderr. */
void summary_print(const json_t *job, const char *shown, double seconds, uint64_t records_before);
/* Why it stands, and what to do, from the daemon's `why`. daemon_goes: it ends behind this, so nothing is left for it to be asked. */
struct conn;
void why_print(struct conn *c, uint64_t job, int daemon_goes);

#endif
