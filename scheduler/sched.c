/* An ordinary day: START, the store's rows, RECOVERED; workers join and are given leases; beats and commits come in, more leases go
   out; when nothing is left of a job it is published. Whatever can fail for want of memory does so before anything is
   changed; what a tick or a hand-out cannot do for want of memory is left for the next tick. */
#include "scheduler/sched.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/blame.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"

#define KEEP_LOST 1024    /* workers that may come back */
#define LOADING_STALLS 4  /* loading a model may take so many stall timeouts */

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

static const char *const state_word[] = {
#define X(name, word, over) [JOB_##name] = word,
    JOB_STATE_MAP(X)
#undef X
};

/* from -> to: the only moves that a job makes */
#define TO(state) (1u << JOB_##state)
static const unsigned state_moves[] = {
    [JOB_RUNNING] = TO(PAUSED) | TO(HELD) | TO(PUBLISHING) | TO(CANCELED),
    [JOB_PAUSED] = TO(RUNNING) | TO(HELD) | TO(CANCELED),
    [JOB_HELD] = TO(RUNNING) | TO(CANCELED),
    [JOB_PUBLISHING] = TO(DONE) | TO(HELD) | TO(CANCELED),
    [JOB_DONE] = TO(RUNNING),
    [JOB_CANCELED] = 0,
};

/* Jobs ------------------------------------------------------------------------------------------------------------------------ */

static size_t job_slot(const struct sched *s, uint64_t id)
{
    size_t low = 0, high = s->job_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->jobs[mid]->row.id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct job *core_job(const struct sched *s, uint64_t id)
{
    size_t i = job_slot(s, id);
    return i < s->job_count && s->jobs[i]->row.id == id ? s->jobs[i] : NULL;
}

static void running_link(struct sched *s, struct job *j)
{
    struct job **at = &s->running, *before = NULL;
    while (*at && (*at)->row.id < j->row.id) { /* by id: the order must not depend on history */
        before = *at;
        at = &(*at)->next_running;
    }
    j->next_running = *at;
    j->prev_running = before;
    if (*at)
        (*at)->prev_running = j;
    *at = j;
}

static void running_unlink(struct sched *s, struct job *j)
{
    if (j->prev_running)
        j->prev_running->next_running = j->next_running;
    else
        s->running = j->next_running;
    if (j->next_running)
        j->next_running->prev_running = j->prev_running;
    j->prev_running = j->next_running = NULL;
}

void job_set_state(struct sched *s, struct job *j, enum job_state state)
{
    BUG_IF(!(state_moves[j->row.state] >> state & 1), "job %" PRIu64 ": from %s to %s", j->row.id, state_word[j->row.state],
           state_word[state]);
    if (j->row.state == JOB_RUNNING && !(MUTANT(17) && state == JOB_PAUSED))
        running_unlink(s, j);
    j->row.state = state;
    if (state == JOB_RUNNING) {
        running_link(s, j);
        if (j->vtime < s->vnow)
            j->vtime = s->vnow; /* what it did not use while it stood still is gone */
        s->work_dirty = 1;
    }
    s->scale_dirty = 1;
    s->scale_ms = 0;
    core_touch_job(s, j);
}

static void job_sweep(struct sched *s, struct job *j)
{
    if (j->sweep)
        return;
    j->sweep = 1;
    j->next_sweep = s->sweeps;
    s->sweeps = j;
}

void job_stop(struct sched *s, struct job *j, enum job_state state, const char *reason)
{
    job_set_state(s, j, state);
    snprintf(j->row.reason, sizeof j->row.reason, "%s", reason ? reason : "");
    core_history(s, j, "%s%s%s", state_word[state], j->row.reason[0] ? ": " : "", j->row.reason);
    job_sweep(s, j);
}

int job_too_many_errors(const struct job *j, int at_end, char *why, size_t size)
{
    const struct job_params *p = &j->row.params;
    uint64_t errors = j->row.counts.errors, records = j->row.counts.records;
    if (p->max_errors != UINT64_MAX && errors > p->max_errors) {
        snprintf(why, size, "%" PRIu64 " record%s errors, %" PRIu64 " %s allowed", errors, errors == 1 ? " has" : "s have", p->max_errors,
                 p->max_errors == 1 ? "is" : "are");
        return 1;
    }
    if (p->max_errors_ppm != UINT32_MAX && records && (records >= 100 || at_end) &&
        (double)errors * 1e6 > (double)p->max_errors_ppm * (double)records) {
        snprintf(why, size, "%.4g %% of records have errors (%" PRIu64 " of %" PRIu64 "), %.4g %% are allowed",
                 (double)errors * 100 / (double)records, errors, records, (double)p->max_errors_ppm / 1e4);
        return 1;
    }
    return 0;
}

void job_check_errors(struct sched *s, struct job *j, int at_end)
{
    char why[200];
    if ((j->row.state == JOB_RUNNING || j->row.state == JOB_PAUSED) && job_too_many_errors(j, at_end, why, sizeof why))
        job_stop(s, j, JOB_HELD, why);
}

void job_finish(struct sched *s, struct job *j)
{
    if (j->row.state != JOB_RUNNING || (j->ledger.count && !(MUTANT(14) && !j->ready_nodes)))
        return;
    job_check_errors(s, j, 1);
    if (j->row.state != JOB_RUNNING)
        return;
    job_set_state(s, j, JOB_PUBLISHING);
    core_history(s, j, "all %" PRIu64 " records are done, names are being made", j->row.counts.records);
    core_message(s, SCHED_DO_PUBLISH, j->row.id, 0, 0);
}

static void job_free(struct job *j)
{
    layout_release(&j->layout);
    mem_free(j);
}

/* A job with its layout, in its place; NULL when memory is out. */
static struct job *job_add(struct sched *s, const struct job_row *row, const struct layout *layout)
{
    if (s->job_count == s->job_cap && mem_grow((void **)&s->jobs, &s->job_cap, s->job_count, sizeof *s->jobs))
        return NULL;
    struct job *j = mem_zalloc(sizeof *j);
    if (!j)
        return NULL;
    if (layout_copy(&j->layout, layout)) {
        mem_free(j);
        return NULL;
    }
    j->row = *row;
    j->row.reason[sizeof j->row.reason - 1] = 0;
    j->bytes_total = layout_bytes(layout);
    j->all_streams = layout->stream != NULL && layout->count > 0;
    for (size_t i = 0; i < layout->count && j->all_streams; i++)
        j->all_streams = layout_is_stream(layout, i);
    j->ledger.salt = row->id;
    j->vtime = s->vnow;
    size_t at = job_slot(s, row->id);
    memmove(s->jobs + at + 1, s->jobs + at, (s->job_count - at) * sizeof(struct job *));
    s->jobs[at] = j;
    s->job_count++;
    if (row->state == JOB_RUNNING)
        running_link(s, j);
    return j;
}

/* Workers --------------------------------------------------------------------------------------------------------------------- */

int worker_usable(const struct worker *w)
{
    return w->joined && !w->lost && !w->draining && !w->killed && !w->banned;
}

void worker_refresh(struct sched *s, struct worker *w)
{
    int idle = worker_usable(w) && !w->lease_count;
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
    host_count(s, w->host, alive ? 1 : -1);
    if (w->reserved && !alive) {
        w->reserved = 0;
        s->reserved--;
    }
}

static uint64_t hangs_at(const struct sched *s, const struct worker *w)
{
    uint64_t at = UINT64_MAX;
    for (const struct lease *l = w->leases; l; l = l->worker_next) {
        uint64_t stall = (uint64_t)l->job->row.params.stall_timeout_ms * (w->loading ? LOADING_STALLS : 1);
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

static uint64_t deadline(const struct sched *s, const struct worker *w)
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
    uint64_t at = deadline(s, w);
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

static void worker_free(struct sched *s, struct worker *w)
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
    mem_free(w);
}

static struct worker *ghost_new(struct sched *s, uint64_t id)
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
    return job_add(s, row, ev->u.job.layout) ? ST_OK : err_nomem(e, "a job");
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
            if (!w && !(w = ghost_new(s, row->worker)))
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

/* Jobs, as people speak of them ----------------------------------------------------------------------------------------------- */

static enum status on_submitted(struct sched *s, const struct sched_event *ev, struct err *e)
{
    const struct job_row *row = ev->u.job.row;
    if (!row->id || core_job(s, row->id))
        return err_set(e, ST_USER, "job %" PRIu64 " exists already", row->id);
    if (core_room(s, 6, 3, 3, 0))
        return err_nomem(e, "a job");
    struct job_row fresh = {.id = row->id,
                            .state = row->state == JOB_PAUSED ? JOB_PAUSED : JOB_RUNNING,
                            .params = row->params,
                            .attempt = row->attempt,
                            .numerics = row->numerics,
                            .submitted_ms = row->submitted_ms};
    struct job *j = job_add(s, &fresh, ev->u.job.layout);
    if (!j)
        return err_nomem(e, "a job");
    core_touch_job(s, j);
    core_history(s, j, "submitted");
    if (layout_end(&j->layout))
        span_insert(s, j, (struct span){0, layout_end(&j->layout)});
    job_finish(s, j);
    s->work_dirty = s->scale_dirty = 1;
    s->scale_ms = 0;
    return ST_OK;
}

static int compare_spans(const void *a, const void *b)
{
    uint64_t x = ((const struct span *)a)->begin, y = ((const struct span *)b)->begin;
    return x < y ? -1 : x > y;
}

static enum status retry(struct sched *s, struct job *j, const struct sched_event *ev, struct err *e)
{
    const struct span *spans = ev->u.control.spans;
    size_t count = ev->u.control.span_count;
    if (!count)
        return err_set(e, ST_USER, "job %" PRIu64 " has no records to run again", j->row.id);
    struct span *sorted = mem_array(count, sizeof *sorted);
    if (!sorted)
        return err_nomem(e, "a retry");
    memcpy(sorted, spans, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_spans);
    int fits = 1;
    for (size_t i = 0; i < count; i++)
        fits = fits && sorted[i].begin < sorted[i].end && sorted[i].end <= layout_end(&j->layout) &&
               (!i || sorted[i - 1].end <= sorted[i].begin);
    mem_free(sorted);
    if (!fits)
        return err_set(e, ST_USER, "job %" PRIu64 ": the records to run again overlap or lie outside of its dataset", j->row.id);
    if (core_room(s, 6, 2, count * 3, 0))
        return err_nomem(e, "a retry");
    struct job_counts *c = &j->row.counts;
    for (size_t i = 0; i < count; i++) {
        struct node *n = span_insert(s, j, spans[i]);
        if (i < ev->u.control.quarantined_count)
            n->probe = 1;
        uint64_t weight = job_weight(j, &spans[i]);
        c->bytes -= weight < c->bytes ? weight : c->bytes;
        span_account(j, n, -1);
        span_account(j, n, 1);
        span_ready(s, j, n);
    }
    size_t quarantined = ev->u.control.quarantined_count < count ? ev->u.control.quarantined_count : count;
    c->records -= count < c->records ? count : c->records;
    c->errors -= count < c->errors ? count : c->errors;
    c->quarantined -= quarantined < c->quarantined ? quarantined : c->quarantined;
    j->quarantine_base = c->quarantined;
    j->crash_run = 0;
    j->crashed = 0;
    j->row.attempt++;
    j->row.finished_ms = 0;
    j->row.reason[0] = 0;
    job_set_state(s, j, JOB_RUNNING);
    core_history(s, j, "%zu records run again, attempt %u", count, j->row.attempt);
    return ST_OK;
}

static enum status resume(struct sched *s, struct job *j, const struct sched_event *ev, struct err *e)
{
    struct job_params before = j->row.params;
    if (ev->u.control.max_errors != UINT64_MAX - 1)
        j->row.params.max_errors = ev->u.control.max_errors;
    if (ev->u.control.max_errors_ppm != UINT32_MAX - 1)
        j->row.params.max_errors_ppm = ev->u.control.max_errors_ppm;
    char why[200];
    if (job_too_many_errors(j, !j->ledger.count, why, sizeof why)) {
        j->row.params = before;
        return err_set(e, ST_USER, "job %" PRIu64 " cannot go on: %s; give a higher limit, such as --max-errors 5%%", j->row.id, why);
    }
    if (core_room(s, 8, 3, 0, 0)) {
        j->row.params = before;
        return err_nomem(e, "a job");
    }
    j->row.reason[0] = 0;
    j->crash_run = j->model_fails = 0;
    j->crashed = 0;
    j->quarantine_base = j->row.counts.quarantined;
    j->no_cut_before_ms = 0;
    for (size_t i = 0; i < s->joined_count; i++)
        if (s->joined[i]->failed_model == j->row.params.model_key)
            s->joined[i]->failed_model = 0;
    job_set_state(s, j, JOB_RUNNING);
    core_history(s, j, "resumed");
    job_finish(s, j);
    return ST_OK;
}

static enum status on_control(struct sched *s, const struct sched_event *ev, struct err *e)
{
    static const struct {
        const char *word;
        unsigned from;
    } verbs[] = {
        [VERB_PAUSE] = {"paused", TO(RUNNING)},
        [VERB_RESUME] = {"resumed", TO(PAUSED) | TO(HELD)},
        [VERB_CANCEL] = {"canceled", TO(RUNNING) | TO(PAUSED) | TO(HELD) | TO(PUBLISHING)},
        [VERB_RETRY] = {"run again", TO(DONE)},
        [VERB_REMOVE] = {"removed", TO(DONE) | TO(CANCELED)},
        [VERB_HOLD] = {"held", TO(RUNNING) | TO(PAUSED)},
    };
    struct job *j = core_job(s, ev->job);
    enum job_verb verb = ev->u.control.verb;
    if (!j)
        return err_set(e, ST_USER, "there is no job %" PRIu64, ev->job);
    if (!(verbs[verb].from >> j->row.state & 1))
        return err_set(e, ST_USER, "job %" PRIu64 " is %s, it cannot be %s", j->row.id, state_word[j->row.state], verbs[verb].word);
    switch (verb) {
    case VERB_RETRY:
        return retry(s, j, ev, e);
    case VERB_RESUME:
        return resume(s, j, ev, e);
    case VERB_PAUSE:
    case VERB_HOLD:
        if (core_room(s, 4, 2, 0, 0))
            return err_nomem(e, "a job");
        if (verb == VERB_PAUSE)
            job_stop(s, j, JOB_PAUSED, "");
        else
            job_stop(s, j, JOB_HELD, ev->u.control.text ? ev->u.control.text : "by its owner");
        return ST_OK;
    case VERB_CANCEL:
        if (core_room(s, 4, j->lease_count + 2, (size_t)j->leased_nodes * 3, 0))
            return err_nomem(e, "a job");
        while (j->leases) {
            core_message(s, SCHED_DO_SEND_REVOKE, j->row.id, j->leases->worker->id, j->leases->epoch);
            lease_release(s, j->leases);
        }
        job_set_state(s, j, JOB_CANCELED);
        j->row.finished_ms = ev->u.control.wall_ms;
        core_history(s, j, "canceled");
        return ST_OK;
    case VERB_REMOVE:
        break;
    }
    if (core_room(s, 2, 2, 0, 0))
        return err_nomem(e, "a job");
    core_row(s, SCHED_DO_DEL_JOB, j->row.id);
    for (struct node *n; (n = j->ledger.root);) { /* the store deletes their rows with the job */
        heap_take(&s->backoffs, &n->backoff_place);
        ledger_remove(&j->ledger, n);
        n->next = s->free_nodes;
        s->free_nodes = n;
        s->free_node_count++;
    }
    for (struct job **at = &s->sweeps; *at; at = &(*at)->next_sweep)
        if (*at == j) {
            *at = j->next_sweep;
            break;
        }
    size_t slot = job_slot(s, j->row.id);
    memmove(s->jobs + slot, s->jobs + slot + 1, (--s->job_count - slot) * sizeof(struct job *));
    job_free(j);
    return ST_OK;
}

static enum status on_published(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct job *j = core_job(s, ev->job);
    if (!j || j->row.state != JOB_PUBLISHING)
        return ST_OK; /* canceled meanwhile */
    if (core_room(s, 4, 2, 0, 0))
        return err_nomem(e, "a job");
    if (ev->u.published.failure) {
        job_stop(s, j, JOB_HELD, ev->u.published.failure);
        return ST_OK;
    }
    job_set_state(s, j, JOB_DONE);
    j->row.finished_ms = ev->u.published.wall_ms;
    core_history(s, j, "done: %" PRIu64 " records, %" PRIu64 " errors", j->row.counts.records, j->row.counts.errors);
    return ST_OK;
}

/* Workers, as they speak ------------------------------------------------------------------------------------------------------ */

static enum status on_joined(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    const struct sched_held *held = ev->u.joined.held;
    size_t count = ev->u.joined.held_count, pieces = 0;
    if (!ev->worker || !ev->u.joined.host)
        return err_set(e, ST_USER, "a worker without an id or a host cannot join");
    for (struct lease *l = w ? w->leases : NULL; l; l = l->worker_next)
        pieces += l->pieces;
    /* each worker that ever joined may want its alarm again: a lost one comes back with a beat */
    if (core_room(s, 2, count + (w ? w->lease_count : 0) + 3, pieces * 3, 0) ||
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
    if (!w && !(w = ghost_new(s, ev->worker)))
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
    }
    w->host = h;
    w->memory_bytes = ev->u.joined.memory_bytes;
    w->lanes = ev->u.joined.lanes;
    w->numerics = ev->u.joined.numerics;
    w->model_key = ev->u.joined.model_key;
    w->killed = w->banned = w->mute = w->loading = 0;
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
    worker_refresh(s, w);
    worker_timer(s, w);
    s->work_dirty = 1;
    return ST_OK;
}

static enum status on_drain(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return err_set(e, ST_USER, "there is no worker %" PRIx64, ev->worker);
    if (core_room(s, 0, 1, 0, 0))
        return err_nomem(e, "a worker");
    w->draining = 1;
    w->drain_sent_ms = s->now_ms;
    worker_refresh(s, w);
    core_message(s, SCHED_DO_SEND_DRAIN, 0, w->id, 0);
    return ST_OK;
}

static enum status on_ended(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w)
        return ST_OK;
    if (blame_room(s, w, ev->u.ended.count))
        return err_nomem(e, "the end of a worker");
    blame_ended(s, w, ev->u.ended.how, ev->u.ended.suspects, ev->u.ended.count);
    worker_free(s, w);
    return ST_OK;
}

static enum status on_model_ready(struct sched *s, const struct sched_event *ev, struct err *e)
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
    for (struct lease *l = w->leases; l; l = l->worker_next) {
        l->job->model_fails = 0;
        if (l->job->row.params.model_key && l->job->row.params.model_key != w->model_key)
            w->loading = 1;
    }
    worker_timer(s, w); /* it has less time now */
    return ST_OK;
}

static enum status on_model_failed(struct sched *s, const struct sched_event *ev, struct err *e)
{
    struct worker *w = map_get(&s->workers, ev->worker);
    if (!w || !w->joined)
        return ST_OK;
    if (blame_room(s, w, 0))
        return err_nomem(e, "a worker");
    worker_heard(s, w);
    w->failed_model = ev->u.model.model_key;
    w->loading = 0;
    if (w->model_key == w->failed_model)
        w->model_key = 0;
    for (struct lease *l = w->leases, *next; l; l = next) {
        struct job *j = l->job;
        next = l->worker_next;
        if (j->row.params.model_key != w->failed_model)
            continue;
        core_message(s, SCHED_DO_SEND_REVOKE, j->row.id, w->id, l->epoch);
        lease_release(s, l);
        j->model_fails++;
        int left = 0; /* does any other worker run this model? One bad node must not hold a job */
        for (size_t i = 0; i < s->joined_count && !left; i++)
            left = worker_usable(s->joined[i]) && share_fits(s, s->joined[i], j);
        if (!left && j->row.state == JOB_RUNNING) {
            char why[240];
            snprintf(why, sizeof why, "its model cannot be loaded: %s", ev->u.model.text ? ev->u.model.text : "no reason was given");
            job_stop(s, j, JOB_HELD, why);
        }
    }
    s->work_dirty = 1;
    return ST_OK;
}

/* Time ------------------------------------------------------------------------------------------------------------------------ */

/* Each of these is a whole of its own; -1: memory was out, the next tick goes on. */
static int expire(struct sched *s, struct worker *w)
{
    if (blame_room(s, w, 0))
        return -1;
    if (w->killed && s->now_ms >= not_before(s, w->killed_ms + s->config.worker_timeout_ms)) {
        blame_ended(s, w, WORKER_HUNG, NULL, 0); /* its provider never said that it is gone: no more work for it */
        w->killed = 0;
        w->banned = 1;
        w->beat_ms = s->now_ms;
        worker_refresh(s, w);
    } else if (s->now_ms >= not_before(s, w->beat_ms + s->config.worker_timeout_ms) && !MUTANT(13)) {
        blame_ended(s, w, WORKER_LOST, NULL, 0);
        worker_lose(s, w);
        if (s->lost_count > KEEP_LOST)
            worker_free(s, s->lost_first);
        return 0;
    }
    for (struct lease *l = w->leases, *next; l; l = next) {
        next = l->worker_next;
        if (!l->cut_deadline_ms || s->now_ms < not_before(s, l->cut_deadline_ms))
            continue;
        core_message(s, SCHED_DO_SEND_REVOKE, l->job->row.id, w->id, l->epoch);
        if (MUTANT(15)) {
            while (l->pieces > 1)
                span_ready(s, l->job, l->last);
            l->cut_deadline_ms = 0;
            s->cuts--;
            continue;
        }
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

static void on_tick(struct sched *s)
{
    while (s->timers.count && s->timers.entries[0].key <= s->now_ms) {
        struct worker *w = s->timers.entries[0].item;
        uint64_t at = deadline(s, w);
        if (at <= s->now_ms) {
            if (expire(s, w))
                goto later;
            if (w->lost)
                continue;
            at = deadline(s, w);
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
            if (blame_room(s, w, 0))
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
    if (s->alive) /* a late tick shows that the daemon itself stood still */
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
        return on_submitted(s, ev, e);
    case SCHED_JOB_CONTROL:
        return on_control(s, ev, e);
    case SCHED_JOB_PUBLISHED:
        return on_published(s, ev, e);
    case SCHED_WORKER_JOINED:
        return on_joined(s, ev, e);
    case SCHED_WORKER_BEAT:
        return lease_beat(s, ev, e);
    case SCHED_WORKER_DRAIN:
        return on_drain(s, ev, e);
    case SCHED_WORKER_ENDED:
        return on_ended(s, ev, e);
    case SCHED_MODEL_READY:
        return on_model_ready(s, ev, e);
    case SCHED_MODEL_FAILED:
        return on_model_failed(s, ev, e);
    case SCHED_COMMIT:
        return lease_commit(s, ev, e);
    case SCHED_CUT_ANSWERED:
        return lease_cut_answered(s, ev, e);
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
        mem_free(w);
    }
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
