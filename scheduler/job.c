/* Jobs: how they come and go, the only moves that they make, and what people say of them. Every ending of a job's work goes through
   job_stop or job_finish. */
#include "scheduler/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/gang.h"
#include "scheduler/lease.h"

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
    s->gang_dirty |= j->gangs != NULL;
    s->membership++; /* some are free now, perhaps */
    core_touch_job(s, j);
}

void job_sweep(struct sched *s, struct job *j)
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

void job_free(struct job *j)
{
    layout_release(&j->layout);
    mem_free(j);
}

struct job *job_add(struct sched *s, const struct job_row *row, const struct layout *layout, int64_t wall_ms)
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
    j->ends_ms = -1;
    if (row->params.deadline_ms) {
        int64_t left = row->params.deadline_ms > wall_ms ? row->params.deadline_ms - wall_ms : 0;
        j->deadline_at_ms = s->now_ms + (uint64_t)left + (s->now_ms + (uint64_t)left == 0);
        j->overdue_ms = row->params.deadline_ms < wall_ms ? (uint64_t)(wall_ms - row->params.deadline_ms) : 0;
    }
    j->row.reason[sizeof j->row.reason - 1] = 0;
    j->bytes_total = layout_bytes(layout);
    j->all_streams = layout->stream != NULL && layout->count > 0;
    for (size_t i = 0; i < layout->count && j->all_streams; i++)
        j->all_streams = layout_is_stream(layout, i);
    j->ledger.salt = row->id;
    j->vtime = s->vnow;
    size_t at = core_job_slot(s, row->id);
    memmove(s->jobs + at + 1, s->jobs + at, (s->job_count - at) * sizeof(struct job *));
    s->jobs[at] = j;
    s->job_count++;
    if (row->state == JOB_RUNNING)
        running_link(s, j);
    return j;
}

uint64_t job_weight(const struct job *j, const struct span *span)
{
    return layout_weight(&j->layout, span->begin, span->end);
}

uint64_t job_record_bytes(const struct job *j)
{
    return j->row.counts.records ? j->row.counts.bytes / j->row.counts.records : 0;
}

/* What people say of them ----------------------------------------------------------------------------------------------------- */

enum status job_submitted(struct sched *s, const struct sched_event *ev, struct err *e)
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
    struct job *j = job_add(s, &fresh, ev->u.job.layout, ev->u.job.wall_ms);
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

/* It was asked for again, with another number of workers to hold its model together: pipelines of the old number end. */
static enum status restage(struct sched *s, struct job *j, uint32_t stages, struct err *e)
{
    if (stages == j->row.params.stages)
        return ST_OK;
    if (stages > GANG_MOST)
        return err_set(e, ST_USER, "job %" PRIu64 ": a pipeline of %u workers; at most %d are", j->row.id, stages, GANG_MOST);
    if (core_room(s, 4, j->lease_count + 2, (size_t)j->leased_nodes * 3, 0))
        return err_nomem(e, "a job");
    j->row.params.stages = stages;
    while (j->gangs) {
        struct worker *head = j->gangs->head;
        while (head && head->leases) {
            core_message(s, SCHED_DO_SEND_REVOKE, head->leases->job->row.id, head->id, head->leases->epoch);
            lease_release(s, head->leases);
        }
        gang_end(s, j->gangs);
    }
    j->by_window = 0;
    j->gang_least = j->gang_supply = 0;
    j->gang_none_ms = j->gang_after_ms = j->gang_better_ms = j->gang_tried = 0;
    if (stages > 1)
        core_history(s, j, "from now on its model is cut among %u workers", stages);
    else
        core_history(s, j, "from now on %s its model", stages ? "each worker holds all of" : "as many workers as it takes hold");
    core_touch_job(s, j);
    s->work_dirty = s->scale_dirty = s->gang_dirty = 1;
    return ST_OK;
}

enum status job_control(struct sched *s, const struct sched_event *ev, struct err *e)
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
        [VERB_STAGES] = {"cut in another way", TO(RUNNING) | TO(PAUSED) | TO(HELD)},
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
    case VERB_STAGES:
        return restage(s, j, ev->u.control.stages, e);
    case VERB_REMOVE:
        break;
    }
    if (core_room(s, 2, 2, 0, 0))
        return err_nomem(e, "a job");
    while (j->gangs) /* memory was out until now */
        gang_end(s, j->gangs);
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
    size_t slot = core_job_slot(s, j->row.id);
    memmove(s->jobs + slot, s->jobs + slot + 1, (--s->job_count - slot) * sizeof(struct job *));
    job_free(j);
    return ST_OK;
}

enum status job_published(struct sched *s, const struct sched_event *ev, struct err *e)
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
