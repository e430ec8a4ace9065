/* The table of jobs: what squeue says, and what follows from it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/slurm_inside.h"

#define MISSED_LOOKS 2    /* at which a job is not listed any more: it is gone */
#define SETTLE_MS 15000   /* after a start nothing that was found is called back: workers come again first, and the core learns what it wants */
#define ARRIVES_MS 5000   /* from a job's beginning to its worker's hello, or from one hello to the next over a broken connection */

struct slurm_job *slurm_find(const struct slurm *s, const char *id)
{
    struct slurm_job *j = s->jobs;
    while (j && strcmp(j->id, id) != 0)
        j = j->next;
    return j;
}

struct slurm_job *slurm_add(struct slurm *s, const char *id)
{
    struct slurm_job *j = mem_zalloc(sizeof *j);
    if (!j)
        return NULL;
    snprintf(j->id, sizeof j->id, "%s", id);
    j->state = SLURM_PENDING;
    j->since_ms = clock_ms();
    j->next = s->jobs;
    s->jobs = j;
    s->count++;
    return j;
}

void slurm_remove(struct slurm *s, struct slurm_job *j)
{
    if (j->worker)
        map_remove(&s->by_worker, j->worker);
    for (struct slurm_job **at = &s->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            s->count--;
            break;
        }
    mem_free(j);
}

void slurm_free_all(struct slurm *s)
{
    while (s->jobs)
        slurm_remove(s, s->jobs);
    map_release(&s->by_worker);
}

int slurm_alive(const struct slurm_job *j)
{
    enum slurm_meaning m = slurm_meaning(j->state);
    return !j->cancel && !j->draining && (m == SLURM_WAITS || m == SLURM_RUNS || (m == SLURM_GOES && j->requeued));
}

int slurm_speaks(const struct slurm *s, const struct slurm_job *j, uint64_t now_ms)
{
    const struct worker *w = j->worker ? link_worker(s->d->link, j->worker) : NULL;
    return w && now_ms - w->seen_ms < s->d->config->worker_timeout;
}

/* A new incarnation waits or runs: the one before is over for sure. */
static void begins_again(struct slurm *s, struct slurm_job *j, uint32_t restarts)
{
    log_info("slurm job %s: requeued, start %" PRIu32 " is to come", j->id, restarts + 1);
    slurm_ended(s, j, SLURM_REQUEUED, 0);
    j->restarts = restarts;
    j->greeted = j->draining = j->requeued = 0;
    j->alone_ms = 0;
}

/* A job that is news to us may have a worker already: it said hello before, or Slurm had forgotten the job for a while. */
static void attach(struct slurm *s, struct slurm_job *j)
{
    char id[SLURM_ID_MAX];
    uint32_t restarts;
    size_t i = 0;
    for (const struct worker *w; s->d->link && (w = link_next(s->d->link, &i));)
        if (w->provider == PROVIDER_SLURM && !w->ended && slurm_name_parse(w->name, id, &restarts) == 0 && restarts == j->restarts && strcmp(id, j->id) == 0 &&
            map_add(&s->by_worker, w->number, j) == 0) {
            j->worker = w->number;
            j->greeted = 1;
            return;
        }
}

static void take_row(struct slurm *s, const struct slurm_row *row, uint64_t now_ms)
{
    enum slurm_meaning m = slurm_meaning(row->state);
    struct slurm_job *j = slurm_find(s, row->id);
    if (!j) {
        if (m == SLURM_OVER) /* an old one, or one of a daemon before us: nothing is known of its worker */
            return;
        j = slurm_add(s, row->id);
        if (!j)
            return; /* it is listed again */
        j->restarts = row->restarts;
        j->adopted = 1;
        attach(s, j);
        log_info("slurm job %s: adopted, %s", j->id, slurm_state_word(row->state));
    }
    j->listed = 1;
    j->missed = 0;
    if (row->restarts > j->restarts) {
        if (m == SLURM_GOES)
            j->requeued = 1; /* its worker has its grace still */
        else
            begins_again(s, j, row->restarts);
    }
    if (j->state != row->state)
        log_info("slurm job %s: %s%s%s", j->id, slurm_state_word(row->state), *row->node ? " on " : "", row->node);
    j->state = row->state;
    snprintf(j->node, sizeof j->node, "%s", row->node);
    snprintf(j->reason, sizeof j->reason, "%s", row->reason);
    if (m == SLURM_WAITS && strstr(row->reason, "launch failed") && !j->cancel) { /* and it is held: it would wait for ever */
        slurm_failure(s, j->id, j->node, row->reason, "");
        j->cancel = CANCEL_END;
    }
    if (m == SLURM_RUNS && !slurm_speaks(s, j, now_ms)) {
        if (!j->alone_ms)
            j->alone_ms = now_ms;
    } else {
        j->alone_ms = 0;
    }
    if (j->cancel == CANCEL_WAITING && m == SLURM_RUNS) { /* it was faster: whether it is of use the core decides */
        j->cancel = CANCEL_NOT;
        j->cancel_sent = 0;
    }
    if (m == SLURM_OVER) {
        slurm_ended(s, j, row->state, row->status);
        slurm_remove(s, j);
    }
}

int slurm_take(struct slurm *s, const char *text)
{
    uint64_t now_ms = clock_ms();
    size_t good = 0, bad = 0, waiting = 0, running = 0;
    for (struct slurm_job *j = s->jobs; j; j = j->next)
        j->listed = 0;
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        struct slurm_row row;
        if (len && slurm_row_parse(line, len, &row) == 0) {
            good++;
            take_row(s, &row, now_ms);
        } else if (len) {
            bad++;
        }
        line += len + (line[len] == '\n');
    }
    if (bad && !good)
        return -1;
    s->waits[0] = 0;
    for (struct slurm_job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (!j->listed && ++j->missed >= MISSED_LOOKS) {
            if (!j->cancel) /* waiting ones of an array that were cancelled leave no trace */
                log_warn("slurm job %s: Slurm does not know it any more", j->id);
            if (slurm_speaks(s, j, now_ms)) /* it works on, and the core will let it go */
                slurm_remove(s, j);
            else {
                slurm_ended(s, j, SLURM_UNKNOWN, 0);
                slurm_remove(s, j);
            }
            continue;
        }
        running += slurm_meaning(j->state) == SLURM_RUNS;
        if (slurm_meaning(j->state) == SLURM_WAITS || slurm_meaning(j->state) == SLURM_STANDS) {
            waiting++;
            if (strcmp(j->reason, "None") != 0) /* not looked at yet */
                snprintf(s->waits, sizeof s->waits, "%s", j->reason);
        }
    }
    if (waiting && !running) {
        char reason[120];
        snprintf(reason, sizeof reason, "%.118s", s->waits);
        snprintf(s->waits, sizeof s->waits, "%zu job%s wait%s in its queue%s%s%s", waiting, waiting == 1 ? "" : "s", waiting == 1 ? "s" : "",
                 *reason ? " (" : "", reason, *reason ? ")" : "");
    } else {
        s->waits[0] = 0;
    }
    return 0;
}

uint32_t slurm_plan(struct slurm *s, uint32_t wanted, uint32_t limit)
{
    uint64_t now_ms = clock_ms();
    size_t alive = 0;
    for (const struct slurm_job *j = s->jobs; j; j = j->next)
        alive += slurm_alive(j) != 0;
    int settled = now_ms - s->since_ms >= SETTLE_MS;
    /* one that was called back and waits still is wanted again */
    for (struct slurm_job *j = s->jobs; j && alive < wanted; j = j->next)
        if (j->cancel == CANCEL_WAITING && !j->cancel_sent) {
            j->cancel = CANCEL_NOT;
            alive += slurm_alive(j) != 0;
        }
    for (struct slurm_job *j = s->jobs; j && alive > wanted; j = j->next)
        if (slurm_alive(j) && (settled || !j->adopted) && slurm_meaning(j->state) == SLURM_WAITS) {
            j->cancel = CANCEL_WAITING;
            alive--;
        }
    for (struct slurm_job *j = s->jobs; j && alive > wanted; j = j->next)
        if (slurm_alive(j) && (settled || !j->adopted) && j->alone_ms && now_ms - j->alone_ms >= ARRIVES_MS) { /* it runs, but nobody has arrived from there, or is heard of any more */
            j->cancel = CANCEL_END;
            alive--;
        }
    if (alive >= wanted || s->count >= limit)
        return 0;
    size_t need = wanted - alive, room = limit - s->count;
    return (uint32_t)(need < room ? need : room);
}
