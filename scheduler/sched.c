/* An ordinary day: START, the store's rows, RECOVERED; workers join and are given leases; beats and commits come in, more leases go
   out; when nothing is left of a job it is published. Whatever can fail for want of memory does so before anything is
   changed; what a tick or a hand-out cannot do for want of memory is left for the next tick. */
#include "scheduler/sched.h"

#include <inttypes.h>

#include "base/mem.h"
#include "scheduler/blame.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

const struct sched_config sched_config_default = {.beat_ms = 1000,
                                                  .worker_timeout_ms = 15000,
                                                  .adoption_ms = 10000,
                                                  .cut_timeout_ms = 10000,
                                                  .min_lease_ms = 500,
                                                  .retry_delay_ms = 1000,
                                                  .max_loss_before_suspect = 5,
                                                  .lone_crashes = 3,
                                                  .broken_model_crashes = 4,
                                                  .quarantine_ppm = 10000};

/* Restoring ------------------------------------------------------------------------------------------------------------------- */

static enum status on_start(struct sched *s, const struct sched_event *ev, struct err *e)
{
    if (s->phase != FRESH || !ev->u.start.generation)
        return err_set(e, ST_USER, "scheduler: started twice, or with generation 0");
    s->phase = RESTORING;
    s->generation = ev->u.start.generation;
    return ST_OK;
}

static enum status on_job_restored(struct sched *s, const struct sched_event *ev, struct err *e)
{
    const struct job_row *row = ev->u.job.row;
    if (core_job(s, row->id))
        return err_set(e, ST_CORRUPT, "job %" PRIu64 " is in the store twice", row->id);
    return job_add(s, row, ev->u.job.layout, ev->u.job.wall_ms) ? ST_OK : err_nomem(e, "a job");
}

static enum status on_span_restored(struct sched *s, const struct sched_event *ev, struct err *e)
{
    const struct span_row *row = ev->u.span;
    struct job *j = core_job(s, ev->job);
    struct node *near = j ? ledger_at_or_after(&j->ledger, row->span.begin) : NULL;
    if (!j || row->span.begin >= row->span.end || row->span.end > layout_end(&j->layout) || (near && near->span.begin < row->span.end))
        return err_set(e, ST_CORRUPT, "span %" PRIu64 "-%" PRIu64 " of job %" PRIu64 " in the store does not fit", row->span.begin,
                       row->span.end, ev->job);
    if (core_room(s, 2, 2, 2, 1))
        return err_nomem(e, "a span");
    struct lease *l = NULL;
    if (row->state == SPAN_LEASED) {
        l = map_get(&s->epochs, row->epoch);
        if (!row->epoch || !row->worker || EPOCH_GENERATION(row->epoch) >= s->generation ||
            (l && (l->worker->id != row->worker || l->job != j)))
            return err_set(e, ST_CORRUPT, "span %" PRIu64 " of job %" PRIu64 " in the store has epoch %" PRIx64
                           ", which cannot be in generation %u", row->span.begin, ev->job, row->epoch, s->generation);
        if (!l) {
            struct worker *w = map_get(&s->workers, row->worker);
            if (!w && !(w = worker_ghost(s, row->worker)))
                return err_nomem(e, "a worker");
            l = lease_open(s, j, w, row->epoch);
            l->probe = row->probe;
            l->read_to = row->span.begin;
        }
    }
    span_restore(s, j, row, l);
    return ST_OK;
}

static enum status on_recovered(struct sched *s, struct err *e)
{
    if (core_room(s, 3 * s->job_count, s->job_count + 2, 0, 0))
        return err_nomem(e, "the restart");
    s->phase = WORKING;
    s->recovered_ms = s->now_ms;
    s->adopt_until_ms = s->ghosts ? s->now_ms + s->config.adoption_ms : 0;
    s->no_expiry_before_ms = s->now_ms + s->config.worker_timeout_ms;
    s->scale_dirty = 1;
    s->work_dirty = 1;
    for (size_t i = 0; i < s->job_count; i++) {
        if (s->jobs[i]->row.state == JOB_PUBLISHING)
            core_message(s, SCHED_DO_PUBLISH, s->jobs[i]->row.id, 0, 0);
        else
            job_finish(s, s->jobs[i]);
    }
    return ST_OK;
}

/* Time ------------------------------------------------------------------------------------------------------------------------ */

static void on_tick(struct sched *s)
{
    s->wake_ms = 0; /* one that comes early is the alarm's, too: it is set anew */
    while (s->timers.count && s->timers.entries[0].key <= s->now_ms) {
        struct worker *w = s->timers.entries[0].item;
        uint64_t at = worker_deadline(s, w);
        if (at <= s->now_ms) {
            if (worker_expire(s, w))
                goto later;
            if (w->lost)
                continue;
            at = worker_deadline(s, w);
            if (at <= s->now_ms)
                at = s->now_ms + s->config.beat_ms;
        }
        heap_set(&s->timers, at, w, &w->timer);
    }
    while (s->backoffs.count && s->backoffs.entries[0].key <= s->now_ms) {
        struct node *n = s->backoffs.entries[0].item;
        struct job *j = NULL;
        for (size_t i = 0; i < s->job_count && !j; i++)
            if (s->jobs[i]->backing_off && ledger_find(&s->jobs[i]->ledger, n->span.begin) == n)
                j = s->jobs[i];
        BUG_IF(!j, "a span that backs off belongs to no job");
        span_back_off(s, j, n, 0);
        s->work_dirty = 1;
    }
    if (s->adopt_until_ms && s->now_ms >= s->adopt_until_ms) {
        while (s->ghosts && !MUTANT(8)) {
            struct worker *w = s->ghosts;
            if (blame_room(s, w, NULL, 0))
                goto later;
            while (w->leases)
                lease_release(s, w->leases);
            worker_free(s, w);
        }
        s->adopt_until_ms = 0;
    }
    return;
later:
    core_later(s);
}

/* When the clock should be looked at next, if that is earlier than what was asked for. */
static void wake(struct sched *s)
{
    uint64_t at = UINT64_MAX;
#define SOONER(t)                                                                                                                \
    do {                                                                                                                         \
        if ((t) < at)                                                                                                            \
            at = (t);                                                                                                            \
    } while (0)
    if (s->timers.count)
        SOONER(s->timers.entries[0].key);
    if (s->backoffs.count)
        SOONER(s->backoffs.entries[0].key);
    if (s->adopt_until_ms)
        SOONER(s->adopt_until_ms);
    if (s->retry_ms)
        SOONER(s->retry_ms);
    if (s->scale_dirty)
        SOONER(s->scale_ms);
    if (s->gang_ms)
        SOONER(s->gang_ms);
    if (s->alive || s->running) /* a late tick shows that the daemon itself stood still; and workers that are wanted may never come */
        SOONER(s->now_ms + 2 * s->config.beat_ms);
#undef SOONER
    if (at < s->now_ms) /* overdue: only for want of memory */
        at = s->retry_ms ? s->retry_ms : s->now_ms;
    if (s->wake_ms && s->wake_ms <= s->now_ms)
        s->wake_ms = 0;
    if (at == UINT64_MAX || (s->wake_ms && s->wake_ms <= at))
        return;
    s->wake_ms = at;
    core_message(s, SCHED_DO_WAKE, 0, 0, 0)->u.wake_ms = at;
}

static void notice_stall(struct sched *s)
{
    if (!s->wake_ms || s->now_ms <= s->wake_ms + 2 * s->config.beat_ms)
        return;
    uint64_t late = s->now_ms - s->wake_ms; /* nobody was heard in this time: it counts against nobody */
    s->no_expiry_before_ms = s->now_ms + s->config.worker_timeout_ms;
    s->no_hang_before_ms = s->now_ms + 5 * s->config.beat_ms; /* old beats come first */
    if (s->adopt_until_ms)
        s->adopt_until_ms += late;
}

/* The step -------------------------------------------------------------------------------------------------------------------- */

static enum status handle(struct sched *s, const struct sched_event *ev, struct err *e)
{
    switch (ev->kind) {
    case SCHED_START:
        return on_start(s, ev, e);
    case SCHED_JOB_RESTORED:
        return on_job_restored(s, ev, e);
    case SCHED_SPAN_RESTORED:
        return on_span_restored(s, ev, e);
    case SCHED_RECOVERED:
        return on_recovered(s, e);
    case SCHED_JOB_SUBMITTED:
        return job_submitted(s, ev, e);
    case SCHED_JOB_CONTROL:
        return job_control(s, ev, e);
    case SCHED_JOB_PUBLISHED:
        return job_published(s, ev, e);
    case SCHED_WORKER_JOINED:
        return worker_joined(s, ev, e);
    case SCHED_WORKER_BEAT:
        return lease_beat(s, ev, e);
    case SCHED_WORKER_DRAIN:
        return worker_drain(s, ev, e);
    case SCHED_WORKER_ENDED:
        return worker_ended(s, ev, e);
    case SCHED_MODEL_READY:
        return worker_model_ready(s, ev, e);
    case SCHED_MODEL_FAILED:
        return worker_model_failed(s, ev, e);
    case SCHED_COMMIT:
        return lease_commit(s, ev, e);
    case SCHED_CUT_ANSWERED:
        return lease_cut_answered(s, ev, e);
    case SCHED_WORKER_PROFILED:
        return gang_profiled(s, ev, e);
    case SCHED_STAGE_READY:
        return gang_stage_ready(s, ev, e);
    case SCHED_STAGE_FAULT:
        return gang_stage_fault(s, ev, e);
    case SCHED_PROVIDER:
        return scale_provider(s, ev, e);
    case SCHED_TICK:
        on_tick(s);
        return ST_OK;
    }
    BUG("scheduler: unknown event %d", (int)ev->kind);
}

enum status sched_step(struct sched *s, const struct sched_event *ev, struct sched_update *out, struct err *e)
{
    int restoring = ev->kind == SCHED_JOB_RESTORED || ev->kind == SCHED_SPAN_RESTORED || ev->kind == SCHED_RECOVERED;
    out->count = 0;
    s->out = out;
    if (ev->kind != SCHED_START && (s->phase == FRESH || restoring != (s->phase == RESTORING)))
        return err_set(e, ST_USER, "scheduler: event %d does not belong here, the store %s read", (int)ev->kind,
                       s->phase == WORKING ? "has been" : "is yet to be");
    if (core_room(s, 0, 2, 0, 0))
        return err_nomem(e, "a step");
    BUG_IF(ev->now_ms < s->now_ms, "scheduler: time goes back from %" PRIu64 " to %" PRIu64, s->now_ms, ev->now_ms);
    s->now_ms = ev->now_ms;
    s->step++;
    notice_stall(s);
    uint64_t retry_ms = s->retry_ms;
    if (s->now_ms >= retry_ms)
        s->retry_ms = 0;
    enum status st = handle(s, ev, e);
    if (st != ST_OK) {
        s->retry_ms = retry_ms;
        BUG_IF(s->dirty_count || s->message_count || out->count, "scheduler: event %d failed halfway", (int)ev->kind);
        return st; /* not even an alarm: nobody carries it out */
    }
    if (s->phase == WORKING) {
        if (ev->kind != SCHED_WORKER_BEAT)
            s->scale_dirty = 1;
        if (lease_sweep(s))
            core_later(s);
        gang_update(s);
        share_dispatch(s);
        scale_update(s);
        wake(s);
    }
    core_flush(s);
    return ST_OK;
}

enum status sched_new(const struct sched_config *config, struct sched **out, struct err *e)
{
    struct sched *s = mem_zalloc(sizeof *s);
    if (!s || map_room(&s->ended_epochs, ENDED_SLOTS + 1)) {
        mem_free(s);
        return err_nomem(e, "the scheduler");
    }
    s->config = config ? *config : sched_config_default;
    *out = s;
    return ST_OK;
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->workers.cap; i++) {
        struct worker *w = s->workers.entries[i].key ? s->workers.entries[i].value : NULL;
        if (!w)
            continue;
        for (struct lease *l = w->leases, *next; l; l = next) {
            next = l->worker_next;
            mem_free(l);
        }
        gang_forget(w);
        mem_free(w);
    }
    for (size_t i = 0; i < s->gang_count; i++)
        mem_free(s->gangs[i]);
    for (size_t i = 0; i < s->hosts.cap; i++)
        if (s->hosts.entries[i].key)
            mem_free(s->hosts.entries[i].value);
    for (struct lease *l = s->free_leases, *next; l; l = next) {
        next = l->worker_next;
        mem_free(l);
    }
    for (size_t i = 0; i < s->job_count; i++)
        job_free(s->jobs[i]);
    for (size_t i = 0; i < s->slab_count; i++)
        mem_free(s->slabs[i]);
    mem_free(s->slabs);
    mem_free(s->jobs);
    mem_free(s->joined);
    mem_free(s->order);
    mem_free(s->gangs);
    mem_free(s->pick);
    mem_free(s->workers.entries);
    mem_free(s->hosts.entries);
    mem_free(s->epochs.entries);
    mem_free(s->ended_epochs.entries);
    mem_free(s->timers.entries);
    mem_free(s->backoffs.entries);
    mem_free(s->messages);
    mem_free(s->dirty);
    mem_free(s);
}

void sched_update_release(struct sched_update *u)
{
    mem_free(u->actions);
    *u = (struct sched_update){0};
}
