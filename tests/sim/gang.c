/* Workers of one pipeline in the sim: they measure, load their parts, and the head's work goes on only while all members of its cut are there, ready and
   reach each other. The records that do harm do it on any of the members. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define STUCK_MS 3000            /* a micro-batch does not come back: the head says so, again and again */
#define PASSED_OVER_MS 20000    /* a job of higher priority may wait so long at most */
#define GONE_MS 90000            /* silence, and a daemon that stood still */

int gang_needed(const struct sim_worker *w, const struct dataset *d)
{
    const struct job_params *p = &d->params;
    return p->stages > 1 || (!p->stages && p->model_bytes > w->memory);
}

static struct sim_worker *member(struct sim *m, const struct sim_worker *w, uint32_t i)
{
    return sim_worker_by_id(m, w->stage.u.stage.members[i].worker);
}

/* Does this member do its part for the head, now? */
static int does_its_part(const struct sim *m, const struct sim_worker *head, const struct sim_worker *x)
{
    if (!x || x->hanging || x->frozen_until > m->now_ms || !x->stage_loaded || x->stage.u.stage.gang != head->stage.u.stage.gang ||
        x->stage.u.stage.cut != head->stage.u.stage.cut)
        return 0;
    return head->stage.u.stage.count < 2 || (x->shut_until <= m->now_ms && head->shut_until <= m->now_ms);
}

double gang_pace(struct sim *m, struct sim_worker *w, const struct held_lease *l)
{
    const struct dataset *d = l->data;
    if (!gang_needed(w, d))
        return w->speed;
    if (!w->stage.u.stage.gang)
        return l->in_gang ? 0 : d->params.stages ? w->speed : w->speed / 4; /* alone because it does best so, or by a window */
    if (w->stage.job != l->job || w->stage.u.stage.head != w->id || !w->going)
        return 0;
    double slowest = w->speed;
    for (uint32_t i = 0; i < w->stage.u.stage.count; i++) {
        struct sim_worker *x = member(m, w, i);
        if (!does_its_part(m, w, x))
            return 0;
        if (x->speed < slowest)
            slowest = x->speed;
    }
    return slowest * w->stage.u.stage.count;
}

struct sim_worker *gang_victim(struct sim *m, struct sim_worker *w, const struct held_lease *l, size_t record)
{
    if (!w->stage.u.stage.gang || w->stage.job != l->job || !gang_needed(w, l->data))
        return w;
    struct sim_worker *x = member(m, w, (uint32_t)(record % w->stage.u.stage.count));
    return x && !x->named_count ? x : w;
}

static void leave(struct sim_worker *w)
{
    w->stage = (struct sched_action){0};
    w->stage_loaded = w->going = 0;
    w->stage_ready_at = w->waits_since = 0;
}

static void say_ready(struct sim *m, struct sim_worker *w)
{
    struct parcel *p = worker_message(m, w, SCHED_STAGE_READY);
    p->ev.job = w->stage.job;
    p->ev.u.stage.gang = w->stage.u.stage.gang;
    p->ev.u.stage.cut = w->stage.u.stage.cut;
    p->ev.u.stage.load_ms = 500;
    w->said_gang = w->stage.u.stage.gang;
    w->said_cut = w->stage.u.stage.cut;
    sim_to_daemon(m, w, p);
}

static void say_fault(struct sim *m, struct sim_worker *w, uint64_t peer, const char *text)
{
    struct parcel *p = worker_message(m, w, SCHED_STAGE_FAULT);
    p->ev.job = w->stage.job;
    p->ev.u.stage.gang = w->stage.u.stage.gang;
    p->ev.u.stage.cut = w->stage.u.stage.cut;
    p->ev.u.stage.peer = peer;
    p->ev.u.stage.text = text;
    m->gang_faults++;
    sim_to_daemon(m, w, p);
}

void gang_receive(struct sim *m, struct sim_worker *w, const struct sched_action *a)
{
    uint64_t gang = w->stage.u.stage.gang;
    uint32_t cut = w->stage.u.stage.cut;
    int newer = a->u.stage.gang > gang || (a->u.stage.gang == gang && a->u.stage.cut > cut), same = a->u.stage.gang == gang && a->u.stage.cut == cut;
    switch (a->kind) {
    case SCHED_DO_SEND_PROFILE:
        if (!w->profile_at)
            w->profile_at = m->now_ms + 200 + rnd(m, 3000);
        w->profile_job = a->job;
        break;
    case SCHED_DO_SEND_STAGE:
        if (!a->u.stage.count) {
            if (gang && (!a->u.stage.gang || newer || same))
                leave(w);
        } else if (newer) {
            leave(w);
            w->stage = *a;
            w->stage_ready_at = m->now_ms + 300 + rnd(m, 2000);
            w->model = 0;
        } else if (same && w->stage_loaded) {
            say_ready(m, w);
        }
        break;
    case SCHED_DO_SEND_STAGE_GO:
        if (same && a->u.stage.head == w->id) {
            w->going = 1;
            w->waits_since = 0;
        }
        break;
    default:
        break;
    }
}

static void profile(struct sim *m, struct sim_worker *w)
{
    const struct dataset *d = &m->data[w->profile_job - 1];
    w->profile_at = 0;
    if (m->faulty && chance(m, 0.02)) {
        struct parcel *p = worker_message(m, w, SCHED_MODEL_FAILED);
        p->ev.job = d->job;
        p->ev.u.model.model_key = d->params.model_key;
        p->ev.u.model.text = "no such file";
        sim_to_daemon(m, w, p);
        return;
    }
    size_t n = 6 + d->params.model_key;
    struct parcel *p = worker_message(m, w, SCHED_WORKER_PROFILED);
    p->segments = xmalloc(n * sizeof *p->segments);
    for (size_t i = 0; i < n; i++)
        p->segments[i] = (struct sched_segment){100 / w->speed * (1 + (double)(i % 3)), d->params.model_bytes / n, 1000};
    p->ev.job = d->job;
    p->ev.u.profiled.model_key = d->params.model_key;
    p->ev.u.profiled.segments = p->segments;
    p->ev.u.profiled.count = n;
    if (w->id % 3 == 0) { /* some measure a link to whoever came before, or is long gone; nothing random, so that what else happens in a seed stays as it is */
        p->links = xmalloc(sizeof *p->links);
        p->links[0] = (struct sched_link){w->id - 1, 1e3 * (double)(1 + w->id * 7919 % 1000), (double)(w->id % 50)};
        p->ev.u.profiled.links = p->links;
        p->ev.u.profiled.link_count = 1;
    }
    sim_to_daemon(m, w, p);
}

void gang_turn(struct sim *m, struct sim_worker *w)
{
    if (w->profile_at && m->now_ms >= w->profile_at && !w->hanging)
        profile(m, w);
    if (!w->stage.u.stage.gang || w->hanging)
        return;
    if (w->stage_ready_at && m->now_ms >= w->stage_ready_at) {
        w->stage_ready_at = 0;
        if (m->faulty && chance(m, 0.01)) {
            say_fault(m, w, 0, "no memory");
            leave(w);
            return;
        }
        w->stage_loaded = 1;
        say_ready(m, w);
    }
    if (!w->going || !w->leases || w->draining)
        return;
    if (gang_pace(m, w, w->leases) > 0) {
        w->waits_since = 0;
        return;
    }
    if (!w->waits_since)
        w->waits_since = m->now_ms;
    if (m->now_ms - w->waits_since < STUCK_MS || m->now_ms - w->fault_ms < STUCK_MS)
        return;
    uint64_t peer = 0;
    for (uint32_t i = 0; i < w->stage.u.stage.count && !peer; i++)
        if (w->stage.u.stage.members[i].worker != w->id && !does_its_part(m, w, member(m, w, i)) && chance(m, 0.8)) /* or it guesses */
            peer = w->stage.u.stage.members[i].worker;
    for (uint32_t i = 0; i < w->stage.u.stage.count && !peer; i++)
        if (w->stage.u.stage.members[i].worker != w->id)
            peer = w->stage.u.stage.members[i].worker;
    w->fault_ms = m->now_ms;
    say_fault(m, w, peer, "no answer");
}

/* What must hold --------------------------------------------------------------------------------------------------------------------- */

static int find(const struct sim *m, uint64_t head, struct sched_gang_view *v)
{
    for (size_t i = 0; i < sched_gang_count(m->sched); i++) {
        sched_gang_view(m->sched, i, v);
        if (v->head == head)
            return 1;
    }
    return 0;
}

static void check_lease(struct sim *m, const struct sched_action *a)
{
    const struct dataset *d = &m->data[a->job - 1];
    struct sim_worker *w = sim_worker_by_id(m, a->worker);
    struct sched_gang_view v;
    if (!sched_leased(m->sched, a->job, a->worker, a->epoch)) /* and taken back at once, for another job */
        return;
    int head = find(m, a->worker, &v);
    if (head && ((!v.running && v.since_ms != m->now_ms) || v.job != a->job)) /* it may have been cut anew in the same step */
        sim_fail(m, "worker %" PRIx64 " gets a lease of job %" PRIu64 ", and its pipeline does not run it", a->worker, a->job);
    if (!head && w && d->params.stages > 1 && !w->solo)
        sim_fail(m, "worker %" PRIx64 " gets a lease of job %" PRIu64 " and is not the head of a pipeline", a->worker, a->job);
    for (uint32_t i = 0; head && i < v.count; i++) {
        const struct sim_worker *x = NULL;
        for (size_t k = 0; k < m->worker_count; k++)
            if (m->workers[k].id == v.members[i].worker)
                x = &m->workers[k];
        if (x && !x->exists && m->now_ms - x->died_ms > GONE_MS)
            sim_fail(m, "worker %" PRIx64 " gets a lease, and %" PRIx64 " of its pipeline has been gone for %" PRIu64 " s", a->worker, v.members[i].worker,
                     (m->now_ms - x->died_ms) / 1000);
    }
}

static void check_go(struct sim *m, const struct sched_action *a)
{
    for (uint32_t i = 0; i < a->u.stage.count; i++) {
        const struct sim_worker *x = sim_worker_by_id(m, a->u.stage.members[i].worker);
        if (x && x->stage.u.stage.gang == a->u.stage.gang && x->stage.u.stage.cut == a->u.stage.cut && !x->stage_loaded &&
            (x->said_gang != a->u.stage.gang || x->said_cut != a->u.stage.cut))
            sim_fail(m, "gang %" PRIx64 " is told to go, and worker %" PRIx64 " has not loaded its part", a->u.stage.gang, x->id);
        if (x && x->stage.u.stage.gang == a->u.stage.gang && x->stage.u.stage.cut < a->u.stage.cut)
            sim_fail(m, "gang %" PRIx64 " is told to go with cut %u, and worker %" PRIx64 " is at %u", a->u.stage.gang, a->u.stage.cut, x->id,
                     x->stage.u.stage.cut);
    }
}

void gang_check_action(struct sim *m, const struct sched_action *a)
{
    const char *solo;
    if (!m->gangs)
        return;
    if (a->kind == SCHED_DO_SEND_LEASE)
        check_lease(m, a);
    if (a->kind == SCHED_DO_SEND_STAGE_GO)
        check_go(m, a);
    if (a->kind == SCHED_DO_ADD_EVENT)
        sim_trace(m, "job %" PRIu64 ": %s", a->job, a->u.text);
    if (a->kind == SCHED_DO_ADD_EVENT && (solo = strstr(a->u.text, "runs the whole model")) && strncmp(a->u.text, "worker ", 7) == 0) {
        struct sim_worker *w = sim_worker_by_id(m, strtoull(a->u.text + 7, NULL, 16));
        if (w)
            w->solo = 1;
    }
    m->cuts_of_gangs += a->kind == SCHED_DO_SEND_STAGE && a->u.stage.count && a->worker == a->u.stage.head;
}

/* A job of higher priority with work that anybody can do has no lease for long, while a pipeline of a lower one works. */
void gang_check_time(struct sim *m)
{
    int passed_over = 0;
    if (m->now_ms - m->looked_ms > 5000) /* the daemon stood still, or was not there */
        m->passed_over_ms = 0;
    m->looked_ms = m->now_ms;
    size_t gangs = m->gangs ? sched_gang_count(m->sched) : 0;
    for (size_t k = 0; k < m->data_count && gangs && !passed_over; k++) {
        const struct image_job *j = &m->now.jobs[k];
        struct sched_job_view v;
        if (!j->exists || j->row.state != JOB_RUNNING || m->data[k].params.stages > 1 || !sched_job_view(m->sched, k + 1, &v) || v.spans_leased || !v.spans_ready ||
            v.workers || strstr(v.waits_for, "its pipeline broke")) /* it is not set up again at once */
            continue;
        int plain = 0;
        for (size_t i = 0; i < j->span_count; i++)
            plain |= !j->spans[i].attempts && !j->spans[i].probe;
        for (size_t i = 0; i < gangs && plain; i++) {
            struct sched_gang_view g;
            sched_gang_view(m->sched, i, &g);
            passed_over |= m->data[g.job - 1].params.priority < m->data[k].params.priority;
        }
    }
    if (!passed_over)
        m->passed_over_ms = 0;
    else if (!m->passed_over_ms)
        m->passed_over_ms = m->now_ms;
    else if (m->now_ms - m->passed_over_ms > PASSED_OVER_MS)
        sim_fail(m, "a job of higher priority has waited for %d s, and pipelines of a lower one keep their workers", PASSED_OVER_MS / 1000);
}
