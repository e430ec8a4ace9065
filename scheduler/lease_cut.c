/* Cuts: a holder is asked for the end of its lease, for an idle worker or because its job stopped; nothing changes hands before it has answered. */
#include "scheduler/lease.h"

#include "scheduler/job.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define DEFAULT_RATE 65536.0           /* bytes/s; only to compare workers of whom nothing is known */

static void ask_cut(struct sched *s, struct lease *l, uint64_t at)
{
    if (!l->cut_deadline_ms)
        s->cuts++;
    l->cut_deadline_ms = s->now_ms + s->config.cut_timeout_ms;
    core_message(s, SCHED_DO_SEND_CUT, l->job->row.id, l->worker->id, l->epoch)->u.cut_at = at;
    worker_timer(s, l->worker);
}

/* Where the lease l of v should be cut so that w and v end together; its end: nowhere. *finish_s: when v would be done alone. */
static uint64_t cut_point(const struct sched *s, const struct lease *l, const struct worker *w, double *finish_s)
{
    const struct job *j = l->job;
    const struct worker *v = l->worker;
    double rv = worker_rate(v, j), rw = worker_rate(w, j);
    if (rv <= 0)
        rv = rw > 0 ? rw : DEFAULT_RATE;
    if (rw <= 0)
        rw = rv;
    double before = 0;
    for (const struct lease *b = v->leases; b != l; b = b->worker_next)
        before += (double)lease_bytes_to_do(b);
    double unread = (double)lease_bytes_unread(l), to_do = (double)lease_bytes_to_do(l);
    if (to_do < unread)
        to_do = unread;
    double backlog = before + to_do - unread;
    *finish_s = (before + to_do) / rv;
    uint64_t end = l->last->span.end, from = lease_unread_from(l), at;
    if (*finish_s * 1000 < 2.0 * s->config.min_lease_ms)
        return end;
    double keep = (unread * rv - backlog * rw) / (rv + rw); /* (backlog + keep) / rv = (unread - keep) / rw */
    at = keep < 1 ? from : layout_advance(&j->layout, from, (uint64_t)keep, end);
    if (at >= end)
        return end;
    if (at != l->first->span.begin && !layout_enterable(&j->layout, at))
        at = j->layout.base[layout_source(&j->layout, at) + 1];
    if (at >= end)
        return end;
    uint64_t tail = layout_weight(&j->layout, at, end);
    return tail < job_record_bytes(j) || (double)tail * 1000 / rw < s->config.min_lease_ms ? end : at;
}

int lease_cut_for(struct sched *s, struct worker *w)
{
    struct lease *best = NULL;
    uint64_t best_at = 0;
    double longest = 0;
    int32_t priority = 0;
    for (struct job *j = s->running; j; j = j->next_running) {
        if (!j->lease_count || s->now_ms < j->no_cut_before_ms || !share_may_serve(s, w, j) ||
            (best && j->row.params.priority < priority))
            continue;
        int found = 0;
        for (struct lease *l = j->leases; l; l = l->job_next) {
            if (l->probe || !l->claimed || l->cut_deadline_ms || l->refused_cut || l->worker == w || !worker_usable(l->worker))
                continue;
            double finish;
            uint64_t at = cut_point(s, l, w, &finish);
            if (at >= l->last->span.end)
                continue;
            found = 1;
            if (!best || j->row.params.priority > priority || finish > longest) {
                best = l;
                best_at = at;
                longest = finish;
                priority = j->row.params.priority;
            }
        }
        if (!found) /* spares the next idle worker the search */
            j->no_cut_before_ms = s->now_ms + s->config.beat_ms / 2;
    }
    if (!best)
        return 0;
    if (core_room(s, 0, 1, 0, 0)) {
        core_later(s);
        return 0;
    }
    ask_cut(s, best, best_at);
    return 1;
}

enum status lease_cut_answered(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct lease *l = lease_find(s, ev->epoch, ev->worker);
    struct worker *w = map_get(&s->workers, ev->worker);
    if (core_room(s, 4, 2, (l ? l->pieces * 3 : 0) + 4, 0))
        return err_nomem(e, "a cut");
    if (w)
        worker_heard(s, w);
    if (!l)
        return ST_OK;
    struct job *j = l->job;
    if (l->cut_deadline_ms) {
        l->cut_deadline_ms = 0;
        s->cuts--;
    }
    uint64_t at = ev->u.cut.at;
    if (MUTANT(3) && at < l->last->span.end)
        at -= (at - l->first->span.begin) / 2;
    if (at >= l->last->span.end)
        l->refused_cut = 1;
    while (l->last && l->last->span.end > at) {
        if (l->last->span.begin < at)
            span_split(s, j, l->last, at);
        span_ready(s, j, l->last);
    }
    if (!l->pieces) {
        lease_end(s, l);
    } else if (l->first->next_seq != l->next_seq) {
        span_touch(s, j, l->first);
    }
    return ST_OK;
}

int lease_sweep(struct sched *s)
{
    while (s->sweeps) {
        struct job *j = s->sweeps;
        for (struct lease *l = j->leases; l && j->row.state != JOB_RUNNING; l = l->job_next) {
            if (l->told_to_stop || !l->claimed || l->probe)
                continue;
            if (core_room(s, 0, 1, 0, 0))
                return -1;
            l->told_to_stop = 1;
            ask_cut(s, l, lease_unread_from(l));
        }
        j->sweep = 0;
        s->sweeps = j->next_sweep;
    }
    return 0;
}
