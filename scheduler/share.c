#include "scheduler/share.h"

#include "scheduler/blame.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/lease.h"
#include "scheduler/worker.h"

#define GRANTS_PER_STEP 64

int share_fits(const struct sched *s, const struct worker *w, const struct job *j)
{
    const struct job_params *p = &j->row.params;
    return (!j->row.numerics || j->row.numerics == NUMERICS_ANY || j->row.numerics == w->numerics) &&
           (!p->model_key || w->failed_model != p->model_key) && !blame_benched(s, w->host);
}

static int serves(const struct worker *w, const struct job *j)
{
    for (const struct lease *l = w->leases; l; l = l->worker_next)
        if (l->job == j)
            return 1;
    return 0;
}

int share_may_serve(const struct sched *s, const struct worker *w, const struct job *j)
{
    uint32_t most = j->row.params.max_workers;
    return gang_can_hold(w, j) && share_fits(s, w, j) && (!most || w->gang || j->workers + gang_silent_members(j) < most || serves(w, j));
}

static int has_work(const struct sched *s, const struct worker *w, const struct job *j)
{
    if (j->row.state != JOB_RUNNING && !(MUTANT(17) && j->row.state == JOB_PAUSED))
        return 0;
    if (j->avail[0])
        return 1;
    return !w->leases && (j->avail[1] || j->avail[2]) && blame_probe_for(s, j, w);
}

static uint32_t weight(const struct job *j)
{
    return j->row.params.weight ? j->row.params.weight : 100;
}

struct job *share_pick(const struct sched *s, const struct worker *w)
{
    struct job *best = NULL;
    int best_sticks = 0, best_below = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        const struct job_params *p = &j->row.params;
        if ((best && p->priority < best->row.params.priority) || !has_work(s, w, j) || !(share_may_serve(s, w, j) || gang_gathers(s, w, j)))
            continue;
        int sticks = p->model_key && p->model_key == w->model_key && s->now_ms < w->model_until_ms;
        uint32_t least = j->need > p->min_workers ? j->need : p->min_workers;
        int below = j->workers + gang_silent_members(j) - (uint32_t)serves(w, j) < least;
        int better;
        if (!best || p->priority > best->row.params.priority)
            better = 1;
        else if (sticks != best_sticks)
            better = sticks;
        else if (below != best_below)
            better = below;
        else if (j->vtime != best->vtime)
            better = j->vtime < best->vtime;
        else /* a worker that has the model saves a load */
            better = p->model_key == w->model_key && best->row.params.model_key != w->model_key;
        if (!better)
            continue;
        best = j;
        best_sticks = sticks;
        best_below = below;
    }
    return best;
}

static void charge(struct sched *s, const struct worker *w, struct job *j, uint64_t bytes)
{
    double rate = worker_rate(w, j);
    double ms = (rate > 0 ? (double)bytes * 1000 / rate : 1000) * gang_count_of(w);
    if (ms < 1)
        ms = 1;
    if (j->vtime > s->vnow)
        s->vnow = j->vtime;
    j->vtime += (uint64_t)(ms * 1000 / weight(j)) + 1;
}

/* A suspect runs on a worker that holds nothing else, so some must first run dry: as many as there are probes. */
static int wants_probe(struct sched *s, struct worker *w)
{
    int suits = 0;
    s->probes_waiting = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        uint64_t probes = j->avail[1] + j->avail[2];
        s->probes_waiting += probes;
        suits = suits || (probes && share_may_serve(s, w, j) && blame_probe_for(s, j, w));
    }
    if (!suits)
        return 0;
    if (!w->reserved) {
        if (s->reserved >= s->probes_waiting)
            return 0;
        w->reserved = 1;
        s->reserved++;
    }
    return 1;
}

/* One lease, or none: 1 or 0. */
static int feed_one(struct sched *s, struct worker *w)
{
    if (!worker_usable(w) || w->mute || w->lease_count >= 2 || (!w->leases && !worker_unoccupied(w)) || (w->gang && w->gang->state != GANG_RUNNING && !MUTANT(28)))
        return 0;
    struct lease *held = w->leases;
    if (held && ((held->probe && !MUTANT(19)) || held->told_to_stop || w->loading || !lease_near_end(s, w, held)))
        return 0;
    if (held && s->probes_waiting && wants_probe(s, w))
        return 0;
    struct job *j = share_pick(s, w);
    if (!j) {
        if (!held && s->cuts < s->idle_count)
            lease_cut_for(s, w);
        return 0;
    }
    if ((held && held->job->row.params.model_key != j->row.params.model_key) || !share_may_serve(s, w, j))
        return 0; /* a job of pipelines: it waits for others */
    if (core_room(s, 2, 1, 4, 1)) {
        core_later(s);
        return 0;
    }
    struct node *n = NULL;
    if (!held && (!j->crashed || !j->avail[0])) /* after a crash first some other work, to see whether the model works at all */
        n = blame_probe_for(s, j, w);
    if (!n)
        n = ledger_avail(&j->ledger, AVAIL_PLAIN, NULL);
    if (!n)
        return 0;
    if (!j->row.numerics && w->numerics) {
        j->row.numerics = w->numerics;
        core_touch_job(s, j);
    }
    uint64_t bytes = lease_bytes(s, w, j);
    struct lease *l = lease_grant(s, w, j, n, bytes);
    charge(s, w, j, l->bytes_left);
    if (w->reserved) {
        w->reserved = 0;
        s->reserved--;
    }
    return 1;
}

int share_feed(struct sched *s, struct worker *w)
{
    int given = 0;
    while (feed_one(s, w))
        given++;
    return given;
}

void share_dispatch(struct sched *s)
{
    if (!s->work_dirty)
        return;
    s->work_dirty = 0;
    s->probes_waiting = 0;
    int ready = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        ready |= j->avail[0] || j->avail[1] || j->avail[2] || j->lease_count;
        s->probes_waiting += j->avail[1] + j->avail[2];
    }
    int given = 0;
    for (struct worker *w = s->idle_first, *next; w && ready; w = next) {
        next = w->next_idle;
        given += share_feed(s, w);
        if (given >= GRANTS_PER_STEP && next) {
            s->work_dirty = 1;
            s->retry_ms = s->now_ms; /* the rest in the next step */
            break;
        }
        if (s->work_dirty) /* memory is out */
            break;
    }
}
