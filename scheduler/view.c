/* What people ask of the core, and its own examination. */
#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
#include "scheduler/blame.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/lease.h"
#include "scheduler/scale.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

size_t sched_job_count(const struct sched *s)
{
    return s->job_count;
}

uint64_t sched_job_at(const struct sched *s, size_t i)
{
    return s->jobs[i]->row.id;
}

int sched_leased(const struct sched *s, uint64_t job, uint64_t worker, uint64_t epoch)
{
    const struct lease *l = map_get(&s->epochs, epoch);
    return l && l->job->row.id == job && l->worker && l->worker->id == worker;
}

#define SAY(...) snprintf(out, size, __VA_ARGS__)

static void nobody_came(const struct sched *s, char *out, size_t size)
{
    char since[UNITS_MAX];
    const char *sep = ":";
    int n = SAY("no worker has joined yet");
    for (size_t i = 1; i < PROVIDERS && n > 0 && (size_t)n < size; i++) {
        const struct provider_state *p = &s->providers[i];
        if (!p->known || !p->wanted || !p->short_ms || s->now_ms - p->short_ms < 5000)
            continue;
        n += snprintf(out + n, size - (size_t)n, "%s %u of %s have been wanted for %s", sep, p->wanted, provider_id_word((uint32_t)i),
                      units_duration(since, (double)(s->now_ms - p->short_ms) / 1000));
        sep = ",";
    }
}

/* Why a running job has no lease. */
static void why_no_lease(const struct sched *s, const struct job *j, char *out, size_t size)
{
    size_t here = 0, numerics = 0, model = 0, benched = 0, draining = 0, higher = 0, fit = 0;
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (w->lost || w->killed || w->banned)
            continue;
        here++;
        if (w->draining)
            draining++;
        else if (blame_benched(s, w->host))
            benched++;
        else if (j->row.numerics && j->row.numerics != NUMERICS_ANY && j->row.numerics != w->numerics)
            numerics++;
        else if (!share_fits(s, w, j))
            model++;
        else {
            fit++;
            const struct job *serves = w->leases ? w->leases->job : w->gang ? w->gang->job : NULL;
            higher += serves && serves->row.params.priority > j->row.params.priority;
        }
    }
    if (!here && s->ghosts)
        SAY("its workers have not come back yet after the restart");
    else if (!here)
        nobody_came(s, out, size);
    else if (fit && j->backing_off && j->backing_off == j->ready_nodes)
        SAY("what is left failed for a passing reason and is tried again in %" PRIu64 " s",
            (s->backoffs.entries[0].key - s->now_ms) / 1000 + 1);
    else if (fit && higher == fit)
        SAY(fit == 1 ? "the %zu worker serves a job of higher priority" : "all %zu workers serve jobs of higher priority", fit);
    else if (fit && gang_why(s, j, out, size))
        return;
    else if (fit)
        SAY("its turn: %zu worker%s other jobs", fit, fit == 1 ? " serves" : "s serve");
    else if (draining == here)
        SAY("all %zu workers are leaving", here);
    else if (numerics && numerics + draining == here)
        SAY("none of the %zu workers computes with the numerics with which the job began", here);
    else if (model && j->trouble[0] && model + draining == here)
        SAY("%.170s; it waits for another worker, or until this is tried again within a minute", j->trouble);
    else
        SAY("none of %zu workers can run it: %zu compute with other numerics, %zu could not load its model, %zu are on hosts that crash, "
            "%zu are leaving", here, numerics, model, benched, draining);
}

static void why(const struct sched *s, const struct job *j, char *out, size_t size)
{
    out[0] = 0;
    switch (j->row.state) {
    case JOB_PAUSED:
        SAY("paused by its owner");
        return;
    case JOB_HELD:
        SAY("held: %.240s", j->row.reason);
        return;
    case JOB_PUBLISHING:
        SAY("every record is done, names are being made");
        return;
    case JOB_DONE:
    case JOB_CANCELED:
        return;
    case JOB_RUNNING:
        break;
    }
    if (!j->lease_count) {
        why_no_lease(s, j, out, size);
        return;
    }
    for (const struct lease *l = j->leases; l; l = l->job_next)
        if (l->claimed && !l->worker->loading && !gang_waits(l->worker))
            return;
    if (gang_why(s, j, out, size))
        return;
    for (const struct lease *l = j->leases; l; l = l->job_next)
        if (l->claimed) {
            SAY("the model is being loaded");
            return;
        }
    SAY("its workers have not come back yet after the restart");
}

int sched_job_view(const struct sched *s, uint64_t job, struct sched_job_view *out)
{
    const struct job *j = core_job(s, job);
    if (!j)
        return 0;
    const struct node *first = ledger_first(&j->ledger);
    *out = (struct sched_job_view){.row = &j->row,
                                   .layout = &j->layout,
                                   .bytes_total = j->bytes_total,
                                   .spans_ready = j->ready_nodes,
                                   .spans_leased = j->leased_nodes,
                                   .workers = j->workers + gang_silent_members(j),
                                   .workers_wanted = j->row.state == JOB_RUNNING ? j->given : 0,
                                   .head = first ? first->span.begin : layout_end(&j->layout)};
    job_rate(s, j, &out->records_per_s, &out->bytes_per_s);
    why(s, j, out->waits_for, sizeof out->waits_for);
    out->ends_ms = j->row.state == JOB_RUNNING ? j->ends_ms : -1;
    if (j->row.state == JOB_RUNNING)
        scale_late_words(s, j, out->late, sizeof out->late);
    return 1;
}

void sched_provider_view(const struct sched *s, uint32_t provider, struct sched_provider_view *out)
{
    const struct provider_state *p = &s->providers[provider];
    *out = (struct sched_provider_view){.known = p->known,
                                        .preemptible = p->preemptible,
                                        .limit = p->limit,
                                        .wanted = p->wanted,
                                        .alive = p->alive,
                                        .losses_per_hour = p->lived_ms > 0 ? p->losses * 3600000 / p->lived_ms : 0,
                                        .short_ms = p->short_ms ? s->now_ms - p->short_ms : 0};
}

void sched_job_figures(const struct sched *s, size_t i, struct sched_job_figures *out)
{
    const struct job *j = s->jobs[i];
    *out = (struct sched_job_figures){.row = &j->row, .spans_ready = j->ready_nodes, .spans_leased = j->leased_nodes};
}

size_t sched_worker_count(const struct sched *s)
{
    return s->joined_count;
}

void sched_worker_view(const struct sched *s, size_t i, struct sched_worker_view *out)
{
    const struct worker *w = s->joined[i];
    *out = (struct sched_worker_view){.worker = w->id,
                                      .host = w->host->id,
                                      .model_key = w->model_key,
                                      .lanes = w->lanes,
                                      .leases = w->lease_count,
                                      .provider = w->provider,
                                      .draining = w->draining,
                                      .lost_since_beat = w->lost,
                                      .joined_ms = w->joined_ms,
                                      .beat_ms = w->beat_ms,
                                      .records_per_s = w->leases ? w->records_per_s : 0,
                                      .bytes_per_s = w->leases ? w->bytes_per_s : 0};
    if (w->gang) {
        out->gang = w->gang->id;
        out->job = out->gang_job = w->gang->job->row.id;
        out->gang_runs = w->gang->state == GANG_RUNNING;
        out->stage = w->stage;
        out->stages = w->gang->count;
    }
    const struct lease *l = w->leases;
    if (!l)
        return;
    out->job = l->job->row.id;
    out->probe = l->probe;
    out->lease = (struct span){l->first->span.begin, l->last->span.end};
    out->read_to = l->read_to;
}

/* Examination ----------------------------------------------------------------------------------------------------------------- */

static void check_job(const struct sched *s, const struct job *j)
{
    ledger_check(&j->ledger);
    uint64_t ready = 0, leased = 0, ready_bytes = 0, leased_bytes = 0, backing = 0, avail[3] = {0}, pieces = 0;
    const struct node *before = NULL;
    for (const struct node *n = ledger_first(&j->ledger); n; n = ledger_next(n)) {
        uint64_t weight = job_weight(j, &n->span);
        BUG_IF(n->span.end > layout_end(&j->layout), "job %" PRIu64 ": span beyond the end", j->row.id);
        BUG_IF(n->dead || n->dirty || !n->stored || n->stored_begin != n->span.begin, "job %" PRIu64 ": span %" PRIu64 " is not stored",
               j->row.id, n->span.begin);
        BUG_IF(!n->not_before_ms != !n->backoff_place, "job %" PRIu64 ": back-off of %" PRIu64, j->row.id, n->span.begin);
        if (n->lease) {
            leased++;
            leased_bytes += weight;
            BUG_IF(map_get(&s->epochs, n->lease->epoch) != n->lease, "job %" PRIu64 ": span of a dead lease", j->row.id);
            BUG_IF(n->avail || n->not_before_ms, "job %" PRIu64 ": leased span is offered", j->row.id);
        } else {
            ready++;
            ready_bytes += weight;
            backing += n->not_before_ms != 0;
            unsigned kind = n->not_before_ms ? 0 : !n->probe ? AVAIL_PLAIN : n->crashes ? AVAIL_CRASHER : AVAIL_PROBE;
            BUG_IF(n->avail != kind, "job %" PRIu64 ": span %" PRIu64 " is offered as %u", j->row.id, n->span.begin, n->avail);
            for (int k = 0; k < 3; k++)
                avail[k] += kind == 1u << k;
            int plain = !n->attempts && !n->losses && !n->crashes && !n->not_before_ms;
            BUG_IF(before && !before->lease && before->span.end == n->span.begin && plain && before->probe == n->probe &&
                   !before->attempts && !before->losses && !before->crashes && !before->not_before_ms,
                   "job %" PRIu64 ": equal neighbours at %" PRIu64, j->row.id, n->span.begin);
        }
        before = n;
    }
    BUG_IF(ready != j->ready_nodes || leased != j->leased_nodes || ready_bytes != j->ready_bytes || leased_bytes != j->leased_bytes ||
           backing != j->backing_off || avail[0] != j->avail[0] || avail[1] != j->avail[1] || avail[2] != j->avail[2],
           "job %" PRIu64 ": counters", j->row.id);
    uint32_t leases = 0, workers = 0;
    for (const struct lease *l = j->leases; l; l = l->job_next, leases++) {
        uint32_t own = 0;
        uint64_t bytes = 0;
        int carried = 0;
        const struct node *last = NULL;
        for (const struct node *n = l->first; n; last = n, n = n->next, own++) {
            BUG_IF(n->lease != l || n->prev != last || (last && last->span.end > n->span.begin), "lease %" PRIx64 ": pieces", l->epoch);
            bytes += job_weight(j, &n->span);
            carried |= n->next_seq == l->next_seq;
        }
        BUG_IF(!own || own != l->pieces || last != l->last || bytes != l->bytes_left, "lease %" PRIx64 ": counters", l->epoch);
        BUG_IF(!carried, "lease %" PRIx64 ": its sequence number is not stored", l->epoch);
        BUG_IF(l->probe && l->worker->lease_count != 1, "lease %" PRIx64 ": a probe is not alone", l->epoch);
        BUG_IF(l->job != j || map_get(&s->workers, l->worker->id) != l->worker, "lease %" PRIx64 ": owners", l->epoch);
        BUG_IF(EPOCH_GENERATION(l->epoch) > s->generation, "lease %" PRIx64 ": epoch of the future", l->epoch);
        const struct lease *w = l->worker->leases;
        while (w != l && w->job != j)
            w = w->worker_next;
        workers += w == l;
        pieces += own;
    }
    BUG_IF(leases != j->lease_count || workers != j->workers || pieces != leased, "job %" PRIu64 ": leases", j->row.id);
    BUG_IF((j->row.state == JOB_PUBLISHING || j->row.state == JOB_DONE) && j->ledger.count, "job %" PRIu64 " is over with spans left",
           j->row.id);
}

void sched_check(const struct sched *s)
{
    gang_check(s);
    size_t running = 0, leases = 0, cuts = 0, idle = 0, alive = 0, reserved = 0, backing = 0;
    for (size_t i = 0; i < s->job_count; i++) {
        BUG_IF(i && s->jobs[i - 1]->row.id >= s->jobs[i]->row.id, "jobs are out of order");
        check_job(s, s->jobs[i]);
        running += s->jobs[i]->row.state == JOB_RUNNING;
        leases += s->jobs[i]->lease_count;
        backing += s->jobs[i]->backing_off;
    }
    for (const struct job *j = s->running; j; j = j->next_running)
        running--;
    BUG_IF(running, "list of running jobs");
    BUG_IF(leases != s->epochs.count, "%zu leases, %zu epochs", leases, s->epochs.count);
    BUG_IF(backing != s->backoffs.count, "list of spans that back off");
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        BUG_IF(w->index != i || !w->joined || map_get(&s->workers, w->id) != w, "worker %" PRIx64 ": place", w->id);
        BUG_IF(w->lease_count > 2, "worker %" PRIx64 " has %u leases", w->id, w->lease_count);
        BUG_IF(w->lost && w->leases, "worker %" PRIx64 " is lost with leases", w->id);
        BUG_IF(!w->lost && !w->timer, "worker %" PRIx64 " is not watched", w->id);
        uint32_t own = 0;
        for (const struct lease *l = w->leases; l; l = l->worker_next, own++) {
            BUG_IF(map_get(&s->epochs, l->epoch) != l, "worker %" PRIx64 ": leases", w->id);
            cuts += l->cut_deadline_ms != 0;
        }
        BUG_IF(own != w->lease_count, "worker %" PRIx64 ": leases", w->id);
        BUG_IF(w->idle != worker_unoccupied(w), "worker %" PRIx64 ": idle", w->id);
        idle += (size_t)w->idle;
        alive += !w->lost;
        reserved += (size_t)w->reserved;
    }
    for (const struct worker *w = s->idle_first; w; w = w->next_idle)
        idle--;
    BUG_IF(idle, "list of idle workers");
    BUG_IF(cuts != s->cuts || alive != s->alive || reserved != s->reserved, "counters of workers");
}
