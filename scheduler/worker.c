/* Workers: which are there, which are idle, which are out of sight; how fast each is; what they and their providers say of them; and
   what becomes of one that is silent or makes no progress. */
#include "scheduler/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/blame.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"

#define KEEP_LOST 1024    /* workers that may come back */
#define LOADING_STALLS 4  /* loading a model may take so many stall timeouts */

int worker_usable(const struct worker *w)
{
    return w->joined && !w->lost && !w->draining && !w->killed && !w->banned;
}

int worker_unoccupied(const struct worker *w)
{
    return worker_usable(w) && !w->lease_count && !w->profiling && (!w->gang || MUTANT(35) || (w->gang->head == w && (w->gang->state == GANG_RUNNING || MUTANT(28))));
}

void worker_refresh(struct sched *s, struct worker *w)
{
    if (!worker_usable(w)) {
        if (w->profiling) {
            w->profiling = 0;
            s->profiling--;
        }
        gang_leave(s, w);
    }
    int idle = worker_unoccupied(w);
    if (idle == w->idle)
        return;
    w->idle = idle;
    if (idle) {
        w->prev_idle = s->idle_last;
        w->next_idle = NULL;
        if (s->idle_last)
            s->idle_last->next_idle = w;
        else
            s->idle_first = w;
        s->idle_last = w;
        s->idle_count++;
        return;
    }
    if (w->prev_idle)
        w->prev_idle->next_idle = w->next_idle;
    else
        s->idle_first = w->next_idle;
    if (w->next_idle)
        w->next_idle->prev_idle = w->prev_idle;
    else
        s->idle_last = w->prev_idle;
    s->idle_count--;
}

/* Lost ones in the order in which they were lost; those that are only known from the store in a list of their own. */
static void parked_link(struct sched *s, struct worker *w)
{
    struct worker **first = w->joined ? &s->lost_first : &s->ghosts;
    w->next_lost = NULL;
    w->prev_lost = NULL;
    if (!w->joined) {
        w->next_lost = *first;
        if (*first)
            (*first)->prev_lost = w;
        *first = w;
        return;
    }
    w->prev_lost = s->lost_last;
    if (s->lost_last)
        s->lost_last->next_lost = w;
    else
        s->lost_first = w;
    s->lost_last = w;
    s->lost_count++;
}

static void parked_unlink(struct sched *s, struct worker *w)
{
    if (w->prev_lost)
        w->prev_lost->next_lost = w->next_lost;
    else if (w->joined)
        s->lost_first = w->next_lost;
    else
        s->ghosts = w->next_lost;
    if (w->next_lost)
        w->next_lost->prev_lost = w->prev_lost;
    else if (w->joined)
        s->lost_last = w->prev_lost;
    if (w->joined)
        s->lost_count--;
    w->prev_lost = w->next_lost = NULL;
}

static void host_count(struct sched *s, struct host *h, int sign)
{
    if (sign > 0 && h->workers++ == 0)
        s->live_hosts++;
    if (sign < 0 && --h->workers == 0)
        s->live_hosts--;
}

static void alive_set(struct sched *s, struct worker *w, int alive)
{
    s->alive += alive ? 1 : (size_t)-1;
    s->membership++;
    host_count(s, w->host, alive ? 1 : -1);
    if (w->reserved && !alive) {
        w->reserved = 0;
        s->reserved--;
    }
}

static uint64_t hangs_at(const struct sched *s, const struct worker *w)
{
    uint64_t at = UINT64_MAX;
    if (w->gang && w->gang->state != GANG_RUNNING)
        return at; /* its members are looked after each by itself */
    for (const struct lease *l = w->leases; l; l = l->worker_next) {
        uint64_t stall = (uint64_t)l->job->row.params.stall_timeout_ms * (w->loading || w->stranded_ms ? LOADING_STALLS : 1);
        if (stall && w->progress_ms + stall < at)
            at = w->progress_ms + stall;
    }
    if (at < s->no_hang_before_ms)
        at = s->no_hang_before_ms;
    return at;
}

static uint64_t not_before(const struct sched *s, uint64_t at)
{
    return at < s->no_expiry_before_ms ? s->no_expiry_before_ms : at;
}

uint64_t worker_deadline(const struct sched *s, const struct worker *w)
{
    if (w->killed)
        return not_before(s, w->killed_ms + s->config.worker_timeout_ms);
    uint64_t at = not_before(s, w->beat_ms + s->config.worker_timeout_ms), hangs = hangs_at(s, w);
    for (const struct lease *l = w->leases; l; l = l->worker_next)
        if (l->cut_deadline_ms && not_before(s, l->cut_deadline_ms) < at)
            at = not_before(s, l->cut_deadline_ms);
    return hangs < at ? hangs : at;
}

/* The heap may be early, never late: whoever comes up is looked at anew. */
void worker_timer(struct sched *s, struct worker *w)
{
    if (!w->joined || w->lost)
        return;
    uint64_t at = worker_deadline(s, w);
    if (!w->timer || at < s->timers.entries[w->timer - 1].key)
        heap_set(&s->timers, at, w, &w->timer);
}

void worker_heard(struct sched *s, struct worker *w)
{
    w->beat_ms = s->now_ms;
    if (!w->joined || !w->lost)
        return;
    parked_unlink(s, w); /* it was only out of sight */
    w->lost = 0;
    w->progress_ms = s->now_ms;
    alive_set(s, w, 1);
    worker_refresh(s, w);
    worker_timer(s, w);
    s->leavers |= w->left_gang != 0;
    s->work_dirty = 1;
}

static void worker_lose(struct sched *s, struct worker *w)
{
    w->lost = 1;
    alive_set(s, w, 0);
    heap_take(&s->timers, &w->timer);
    parked_link(s, w);
    worker_refresh(s, w);
}

void worker_free(struct sched *s, struct worker *w)
{
    BUG_IF(w->leases, "worker %" PRIx64 " goes with leases", w->id);
    if (w->joined && !w->lost)
        alive_set(s, w, 0);
    if (w->lost || !w->joined)
        parked_unlink(s, w);
    if (w->joined) {
        struct worker *last = s->joined[--s->joined_count];
        s->joined[w->index] = last;
        last->index = w->index;
    }
    heap_take(&s->timers, &w->timer);
    w->joined = 0;
    worker_refresh(s, w);
    map_del(&s->workers, w->id);
    gang_forget(w);
    mem_free(w);
}

struct worker *worker_ghost(struct sched *s, uint64_t id)
{
    if (map_room(&s->workers, 1))
        return NULL;
    struct worker *w = mem_zalloc(sizeof *w);
    if (!w)
        return NULL;
    w->id = id;
    map_put(&s->workers, id, w);
    parked_link(s, w);
    return w;
}

/* Rates ----------------------------------------------------------------------------------------------------------------------- */

void worker_switch_rate(struct worker *w, uint64_t job)
{
    struct past_rate now = {w->rate_job, w->last_size, w->bytes_per_s, w->records_per_s}, then = {.job = job};
    size_t i = 0;
    while (i < PAST_RATES - 1 && w->past[i].job != job)
        i++;
    if (w->past[i].job == job)
        then = w->past[i];
    memmove(w->past + 1, w->past, i * sizeof *w->past);
    w->past[0] = now;
    w->rate_job = job;
    w->last_size = then.last_size;
    w->bytes_per_s = then.bytes_per_s;
    w->records_per_s = then.records_per_s;
}

uint64_t worker_last_size(const struct worker *w, const struct job *j)
{
    if (w->rate_job == j->row.id)
        return w->last_size;
    for (size_t i = 0; i < PAST_RATES; i++)
        if (w->past[i].job == j->row.id)
            return w->past[i].last_size;
    return 0;
}

double worker_rate(const struct worker *w, const struct job *j)
{
    if (w->rate_job == j->row.id)
        return w->bytes_per_s;
    for (size_t i = 0; i < PAST_RATES; i++)
        if (w->past[i].job == j->row.id)
            return w->past[i].bytes_per_s;
    return 0;
}

/* Adds what the lease says to have done since it was last asked, and renews the rates when enough time has gone by. */
void worker_measure(struct sched *s, struct worker *w, struct lease *l)
{
    uint64_t bytes = l->bytes_done > l->bytes_committed ? l->bytes_done : l->bytes_committed;
    uint64_t records = l->records_done > l->records_committed ? l->records_done : l->records_committed;
    if (w->rate_job == l->job->row.id) {
        w->acc_bytes += bytes - l->bytes_counted;
        w->acc_records += records - l->records_counted;
    }
    l->bytes_counted = bytes;
    l->records_counted = records;
    uint64_t ms = s->now_ms - w->rate_ms;
    if (ms < s->config.beat_ms / 2 || !ms || (w->bytes_per_s <= 0 && !w->acc_bytes))
        return;
    double b = (double)w->acc_bytes * 1000 / (double)ms, r = (double)w->acc_records * 1000 / (double)ms;
    double keep = w->bytes_per_s > 0 ? 0.7 : 0;
    w->bytes_per_s = w->bytes_per_s * keep + b * (1 - keep);
    w->records_per_s = w->records_per_s * keep + r * (1 - keep);
    w->acc_bytes = w->acc_records = 0;
    w->rate_ms = s->now_ms;
}

/* What they say --------------------------------------------------------------------------------------------------------------- */

enum status worker_joined(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    const struct sched_held *held = ev->u.joined.held;
    size_t count = ev->u.joined.held_count, pieces = 0;
    if (!ev->worker || !ev->u.joined.host)
        return err_set(e, ST_USER, "a worker without an id or a host cannot join");
    for (struct lease *l = w ? w->leases : NULL; l; l = l->worker_next)
        pieces += l->pieces;
    /* each worker that ever joined may want its alarm again: a lost one comes back with a beat */
    if (core_room(s, 2, count + (w ? w->lease_count : 0) + 4, pieces * 3, 0) ||
        heap_room(&s->timers, s->joined_count + 1 - s->timers.count) || map_room(&s->hosts, 1) ||
        (s->joined_count == s->joined_cap && mem_grow((void **)&s->joined, &s->joined_cap, s->joined_count, sizeof *s->joined)))
        return err_nomem(e, "a worker");
    struct host *h = map_get(&s->hosts, ev->u.joined.host);
    if (!h) {
        if (!(h = mem_zalloc(sizeof *h)))
            return err_nomem(e, "a host");
        h->id = ev->u.joined.host;
        map_put(&s->hosts, h->id, h);
    }
    if (!w && !(w = worker_ghost(s, ev->worker)))
        return err_nomem(e, "a worker"); /* an empty host stays: it does no harm */
    int again = w->joined;
    if (again && !w->lost) {
        alive_set(s, w, 0);
    } else {
        parked_unlink(s, w);
        w->lost = 0;
    }
    if (!again) {
        w->joined = 1;
        w->index = s->joined_count;
        s->joined[s->joined_count++] = w;
    }
    if (!again || !count) { /* a new process */
        w->joined_ms = s->now_ms;
        w->draining = 0;
        w->rate_job = w->last_size = 0;
        memset(w->past, 0, sizeof w->past);
        w->bytes_per_s = w->records_per_s = 0;
        w->failed_model = 0;
        w->model_until_ms = 0;
        w->solo_model = 0;
    }
    w->host = h;
    w->memory_bytes = ev->u.joined.memory_bytes;
    w->lanes = ev->u.joined.lanes;
    w->numerics = ev->u.joined.numerics;
    w->model_key = ev->u.joined.model_key;
    w->provider = ev->u.joined.provider < PROVIDERS ? ev->u.joined.provider : PROVIDER_NONE;
    w->reach = ev->u.joined.reach;
    w->killed = w->banned = w->mute = w->loading = 0;
    w->stranded_ms = 0;
    if (w->profiling) { /* asked again */
        w->profiling = 0;
        s->profiling--;
    }
    w->beat_ms = w->progress_ms = w->rate_ms = w->idle_since_ms = s->now_ms;
    w->acc_bytes = w->acc_records = 0;
    alive_set(s, w, 1);
    for (struct lease *l = w->leases, *next; l; l = next) {
        next = l->worker_next;
        size_t i = 0;
        while (i < count && held[i].epoch != l->epoch)
            i++;
        if (i < count && held[i].next_seq <= l->next_seq) {
            l->claimed = 1;
            l->seen_ms = s->now_ms;
            w->rate_job = l->job->row.id;
            w->loading = l->job->row.params.model_key && l->job->row.params.model_key != w->model_key;
            if (l->job->row.state != JOB_RUNNING)
                job_sweep(s, l->job);
            continue;
        }
        core_message(s, SCHED_DO_SEND_REVOKE, l->job->row.id, w->id, l->epoch);
        lease_release(s, l);
    }
    for (size_t i = 0; i < count; i++)
        if (!lease_find(s, held[i].epoch, w->id))
            core_message(s, SCHED_DO_SEND_REVOKE, held[i].job, w->id, held[i].epoch);
    if (w->draining)
        core_message(s, SCHED_DO_SEND_DRAIN, 0, w->id, 0);
    if (w->gang) {
        gang_again(s, w);
    } else if (w->reach) { /* whatever gang it thinks that it is in: this core does not know it */
        struct sched_action *a = core_message(s, SCHED_DO_SEND_STAGE, 0, w->id, 0);
        a->u.stage.gang = 0;
        w->left_gang = 0;
    }
    for (struct lease *l = w->leases; l && !w->gang; l = l->worker_next)
        if (!gang_can_keep(w, l->job))
            w->stranded_ms = s->now_ms;
    worker_refresh(s, w);
    worker_timer(s, w);
    s->work_dirty = s->gang_dirty = 1;
    return ST_OK;
}

enum status worker_drain(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return err_set(e, ST_USER, "there is no worker %" PRIx64, ev->worker);
    if (core_room(s, 0, 1, 0, 0))
        return err_nomem(e, "a worker");
    worker_let_go(s, w);
    return ST_OK;
}

void worker_let_go(struct sched *s, struct worker *w)
{
    w->draining = 1;
    w->drain_sent_ms = s->now_ms;
    worker_refresh(s, w);
    core_message(s, SCHED_DO_SEND_DRAIN, 0, w->id, 0);
}

enum status worker_ended(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w)
        return ST_OK;
    if (blame_room(s, w, ev->u.ended.suspects, ev->u.ended.count))
        return err_nomem(e, "the end of a worker");
    if (w->joined && !w->lost && (ev->u.ended.how == WORKER_LOST || ev->u.ended.how == WORKER_PREEMPTED))
        scale_loss(s, w);
    blame_ended(s, w, ev->u.ended.how, ev->u.ended.suspects, ev->u.ended.count);
    worker_free(s, w);
    s->gang_dirty |= s->gang_count != 0;
    return ST_OK;
}

enum status worker_model_ready(struct sched *s, const struct sched_event *ev, struct err *e)
{
    (void)e;
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK;
    worker_heard(s, w);
    w->model_key = ev->u.model.model_key;
    w->model_until_ms = s->now_ms + 10 * ev->u.model.load_ms;
    w->loading = 0;
    w->progress_ms = w->rate_ms = s->now_ms;
    w->acc_bytes = w->acc_records = 0;
    for (struct job *j = s->running; j; j = j->next_running)
        if (j->row.params.model_key == w->model_key)
            j->load_ms = j->load_ms ? (j->load_ms * 3 + ev->u.model.load_ms) / 4 : ev->u.model.load_ms;
    for (struct lease *l = w->leases; l; l = l->worker_next) {
        l->job->model_fails = 0;
        l->job->trouble[0] = 0;
        if (l->job->row.params.model_key && l->job->row.params.model_key != w->model_key)
            w->loading = 1;
    }
    worker_timer(s, w); /* it has less time now */
    return ST_OK;
}

void worker_no_model(struct sched *s, struct worker *w, struct job *j, const char *text, int machine)
{
    w->failed_model = j->row.params.model_key;
    w->failed_ms = s->now_ms;
    s->membership++;
    j->model_fails++;
    int left = 0; /* does any other worker run this model? One bad node must not hold a job */
    for (size_t i = 0; i < s->joined_count && !left; i++)
        left = worker_usable(s->joined[i]) && share_fits(s, s->joined[i], j);
    if (machine)
        snprintf(j->trouble, sizeof j->trouble, "%s", text ? text : "no reason was given");
    else if (!left && j->row.state == JOB_RUNNING) {
        char why[240];
        snprintf(why, sizeof why, "its model cannot be loaded: %s", text ? text : "no reason was given");
        job_stop(s, j, JOB_HELD, why);
    }
}

enum status worker_model_failed(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK;
    if (blame_room(s, w, NULL, 0))
        return err_nomem(e, "a worker");
    worker_heard(s, w);
    int measured = w->profiling && w->profiling == ev->u.model.model_key;
    w->failed_model = ev->u.model.model_key;
    w->failed_ms = s->now_ms;
    w->loading = 0;
    s->membership++;
    if (w->model_key == w->failed_model)
        w->model_key = 0;
    for (struct lease *l = w->leases, *next; l; l = next) {
        struct job *j = l->job;
        next = l->worker_next;
        if (j->row.params.model_key != w->failed_model)
            continue;
        core_message(s, SCHED_DO_SEND_REVOKE, j->row.id, w->id, l->epoch);
        lease_release(s, l);
        worker_no_model(s, w, j, ev->u.model.text, ev->u.model.machine);
    }
    if (w->gang && w->gang->job->row.params.model_key == w->failed_model)
        gang_leave(s, w);
    if (measured) {
        w->profiling = 0;
        s->profiling--;
        worker_refresh(s, w);
    }
    struct job *j = s->running; /* it may be measured, or a part of it loaded, without a lease */
    while (j && j->row.params.model_key != w->failed_model)
        j = j->next_running;
    if (j)
        worker_no_model(s, w, j, ev->u.model.text, ev->u.model.machine);
    s->work_dirty = 1;
    return ST_OK;
}

/* When time is up ------------------------------------------------------------------------------------------------------------- */

/* Each of these is a whole of its own; -1: memory was out, the next tick goes on. */
int worker_expire(struct sched *s, struct worker *w)
{
    if (blame_room(s, w, NULL, 0))
        return -1;
    if (w->killed && s->now_ms >= not_before(s, w->killed_ms + s->config.worker_timeout_ms)) {
        blame_ended(s, w, WORKER_HUNG, NULL, 0); /* its provider never said that it is gone: no more work for it */
        w->killed = 0;
        w->banned = 1;
        w->beat_ms = s->now_ms;
        worker_refresh(s, w);
    } else if (s->now_ms >= not_before(s, w->beat_ms + s->config.worker_timeout_ms) && !MUTANT(13)) {
        blame_ended(s, w, WORKER_LOST, NULL, 0);
        scale_loss(s, w);
        worker_lose(s, w);
        if (s->lost_count > KEEP_LOST)
            worker_free(s, s->lost_first);
        return 0;
    }
    for (struct lease *l = w->leases, *next; l; l = next) {
        next = l->worker_next;
        if (!l->cut_deadline_ms || s->now_ms < not_before(s, l->cut_deadline_ms))
            continue;
        if (MUTANT(15)) {
            uint64_t from = lease_unread_from(l), end = l->last->span.end;
            if (from > l->last->span.begin && from + 1 < end) {
                span_split(s, l->job, l->last, from + (end - from) / 2);
                span_ready(s, l->job, l->last);
            }
            l->cut_deadline_ms = 0;
            s->cuts--;
            continue;
        }
        core_message(s, SCHED_DO_SEND_REVOKE, l->job->row.id, w->id, l->epoch);
        lease_release(s, l);
        w->mute = 1;
    }
    /* a hang speaks: it was heard of after it should have got on. So no silence, and no stall of ours, looks like one */
    uint64_t hangs = hangs_at(s, w);
    if (w->leases && !w->killed && s->now_ms >= hangs && w->beat_ms >= hangs && !MUTANT(13)) {
        struct sched_action *a = core_message(s, SCHED_DO_KILL_WORKER, w->leases->job->row.id, w->id, w->leases->epoch);
        snprintf(a->u.text, sizeof a->u.text, "no progress for %" PRIu64 " s", (s->now_ms - w->progress_ms) / 1000);
        w->killed = 1;
        w->killed_ms = s->now_ms;
        worker_refresh(s, w);
    }
    return 0;
}
