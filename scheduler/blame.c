#include "scheduler/blame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/lease.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define LOSS_BYTES (64u << 10) /* nobody named a record, but workers go lost at this place again and again: so much is suspect */
#define WRONG_LIMIT 3          /* a host on which so many records crashed that pass elsewhere gets no more work */
#define QUARANTINES_BEFORE_HOLD 10

static const char *const end_word[] = {
#define X(name, word, guilt) [WORKER_##name] = word,
    WORKER_END_MAP(X)
#undef X
};
static const int end_guilt[] = {
#define X(name, word, guilt) [WORKER_##name] = guilt,
    WORKER_END_MAP(X)
#undef X
};

int blame_benched(const struct sched *s, const struct host *h)
{
    return h && h->wrong >= WRONG_LIMIT && s->live_hosts > 1;
}

/* Whether some worker of another host could run j. Linear in the workers, but asked only when a record crashed alone before. */
static int other_host(const struct sched *s, const struct job *j, uint64_t host)
{
    if (s->live_hosts < 2)
        return 0;
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (worker_usable(w) && w->host->id != host && share_fits(s, w, j))
            return 1;
    }
    return 0;
}

struct node *blame_probe_for(const struct sched *s, const struct job *j, const struct worker *w)
{
    struct node *n = ledger_avail(&j->ledger, AVAIL_PROBE, NULL);
    if (n || !j->avail[2])
        return n;
    for (n = ledger_avail(&j->ledger, AVAIL_CRASHER, NULL); n; n = ledger_avail(&j->ledger, AVAIL_CRASHER, n))
        if (n->crashes + 1u < s->config.lone_crashes || n->crash_host != w->host->id || !other_host(s, j, n->crash_host))
            return n; /* the last crash must be another host's */
    if (w->gang || gang_needs(w, j))
        return ledger_avail(&j->ledger, AVAIL_CRASHER, NULL);
    return NULL;
}

void blame_passed(struct sched *s, const struct lease *l, const struct span *done)
{
    const struct node *n = ledger_find(&l->job->ledger, done->begin);
    if (!n || !n->crashes || !l->worker->host || n->crash_host == l->worker->host->id)
        return;
    const struct gang *g = l->worker->gang;
    for (uint32_t i = 0; g && i < g->count; i++)
        if (g->members[i].worker && g->members[i].worker->host->id == n->crash_host)
            return; /* it took part */
    struct host *h = map_get(&s->hosts, n->crash_host);
    if (h)
        h->wrong++;
}

/* The form that results are made of: "code|message". */
static void quarantine_reason(char *out, size_t size, enum worker_end how, unsigned times)
{
    const char *code = how == WORKER_OOM ? "out_of_memory" : how == WORKER_HUNG ? "hung" : "crashed";
    const char *what = how == WORKER_OOM      ? "took all memory"
                       : how == WORKER_HUNG    ? "hung the worker"
                       : how == WORKER_CRASHED ? "crashed the worker"
                                               : "took the worker, or its whole machine, along";
    snprintf(out, size, "%s|%s each of the %u times it was run alone", code, what, times);
}

static void quarantine(struct sched *s, struct job *j, struct node *n, enum worker_end how)
{
    struct sched_action *a = core_row(s, SCHED_DO_PUT_EXTENT, j->row.id);
    a->u.extent = (struct extent){.span = n->span, .attempt = j->row.attempt, .records = 1, .errors = 1, .lines = 1};
    a->u.extent.bytes = job_weight(j, &n->span);
    quarantine_reason(a->u.extent.reason, sizeof a->u.extent.reason, how, n->crashes);
    j->row.counts.records++;
    j->row.counts.errors++;
    j->row.counts.quarantined++;
    j->row.counts.extents++;
    j->row.counts.bytes += a->u.extent.bytes;
    if (MUTANT(16))
        j->row.counts.records--;
    core_history(s, j, "record at %" PRIu64 " is quarantined: it %s", n->span.begin, strchr(a->u.extent.reason, '|') + 1);
    span_drop(s, j, n);
    j->crash_run = 0; /* they are explained */
    j->crashed = 0;
    core_touch_job(s, j);
}

static void lone_crash(struct sched *s, struct job *j, struct node *n, const struct worker *w, enum worker_end how, int in_pipeline)
{
    uint64_t host = w->host ? w->host->id : 0;
    if (!n->crashes)
        n->crash_host = host;
    if (n->crashes < UINT8_MAX && !MUTANT(12))
        n->crashes++;
    n->probe = 1;
    n->losses = 0;
    /* another host cannot be had at will where each member has its own segments: twice as many crashes speak for themselves */
    if (n->crashes >= s->config.lone_crashes && (n->crash_host != host || !other_host(s, j, n->crash_host) ||
                                                 (in_pipeline && n->crashes >= 2 * s->config.lone_crashes)))
        quarantine(s, j, n, how);
}

/* Of a piece that is still leased: it is indexed, and its row written, when it is given back. */
static void suspect(struct node *n)
{
    n->probe = 1;
    n->losses = 0;
}

/* The worker went and nobody can say which record was under way: the next one in line gets a mark. Returns whether these have
   become so many that the job must stop. */
static int mark_loss(struct sched *s, struct lease *l)
{
    struct job *j = l->job;
    struct node *n = l->first;
    if (n->losses < UINT16_MAX)
        n->losses++;
    if (n->probe)
        return n->losses >= s->config.max_loss_before_suspect * s->config.lone_crashes;
    if (n->losses < s->config.max_loss_before_suspect)
        return 0;
    uint64_t end = layout_advance(&j->layout, n->span.begin, LOSS_BYTES, n->span.end);
    if (end < n->span.end)
        span_split(s, j, n, end);
    suspect(n);
    core_history(s, j, "%u workers were lost at %" PRIu64 ": what is there runs alone now", s->config.max_loss_before_suspect,
                 n->span.begin);
    return 0;
}

/* The lease that the ith suspect names, when another worker holds it and no suspect before named it: w was a member of its pipeline. */
static struct lease *foreign(const struct sched *s, const struct worker *w, const struct sched_suspect *suspects, size_t i)
{
    struct lease *l = map_get(&s->epochs, suspects[i].epoch);
    if (!l || l->worker == w || MUTANT(33))
        return NULL;
    for (size_t k = 0; k < i; k++)
        if (suspects[k].epoch == l->epoch)
            return NULL;
    return l;
}

int blame_room(struct sched *s, const struct worker *w, const struct sched_suspect *suspects, size_t count)
{
    size_t pieces = 0;
    size_t leases = w->lease_count;
    for (const struct lease *l = w->leases; l; l = l->worker_next)
        pieces += l->pieces;
    for (const struct lease *l = w->gang && w->gang->head && w->gang->head != w ? w->gang->head->leases : NULL; l; l = l->worker_next, leases++)
        pieces += l->pieces;
    for (size_t i = 0; i < count; i++) {
        const struct lease *l = foreign(s, w, suspects, i);
        if (l && !(w->gang && w->gang->head == l->worker)) {
            pieces += l->pieces;
            leases++;
        }
    }
    return core_room(s, 8 * leases + 2 * count + 4, 2 * leases + 2, pieces * 3 + count * 6 + 4, 0);
}

/* The suspects of one lease. Returns how many records were named. */
static size_t named(const struct lease *l, const struct sched_suspect *suspects, size_t count, const struct sched_suspect **only)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        const struct node *n;
        if (suspects[i].epoch != l->epoch || suspects[i].record.begin >= suspects[i].record.end ||
            !(n = ledger_find(&l->job->ledger, suspects[i].record.begin)) || n->lease != l)
            continue;
        *only = &suspects[i];
        found++;
    }
    return found;
}

static void judge(struct sched *s, struct worker *w, struct lease *l, enum worker_end how, const struct sched_suspect *suspects,
                  size_t count, int first)
{
    struct job *j = l->job;
    const struct sched_suspect *only = NULL;
    size_t found = named(l, suspects, count, &only);
    int guilty = end_guilt[how] || (MUTANT(10) && how == WORKER_LOST);
    int stop = 0;
    if (guilty) {
        if (found == 1 && l->probe) {
            lone_crash(s, j, lease_carve(s, l, only->record), w, how, gang_needs(w, j));
        } else {
            for (size_t i = 0; i < count && found; i++) {
                struct node *n = suspects[i].epoch == l->epoch ? lease_carve(s, l, suspects[i].record) : NULL;
                if (!n)
                    continue;
                if (MUTANT(11)) {
                    n->crashes = 1;
                    quarantine(s, j, n, how);
                } else if (!MUTANT(18)) {
                    suspect(n);
                }
            }
            if (!found && first)
                stop = mark_loss(s, l);
            else if (l->probe && l->first && l->first->losses++ >= s->config.max_loss_before_suspect * s->config.lone_crashes)
                stop = 1; /* it names several although they ran alone */
        }
        if (first) {
            j->crashed = 1;
            /* Suspects in a row are no evidence against a model that did other records: those are tried first, see feed_one. */
            if (!l->probe || j->row.counts.records == j->row.counts.quarantined)
                j->crash_run++;
            core_history(s, j, "worker %" PRIx64 " ended (%s), %zu records were under way", w->id, end_word[how], found);
        }
    } else if (how == WORKER_LOST && first) {
        if (found == 1 && l->probe) {
            struct node *n = lease_carve(s, l, only->record);
            if (++n->losses >= s->config.max_loss_before_suspect)
                lone_crash(s, j, n, w, how, gang_needs(w, j)); /* a record that takes the whole node along leaves no better evidence */
        } else {
            struct node *n = l->first;
            int due = !n->probe && found && n->losses + 1u >= s->config.max_loss_before_suspect;
            if (due) {
                for (size_t i = 0; i < count; i++)
                    if (suspects[i].epoch == l->epoch && (n = lease_carve(s, l, suspects[i].record)))
                        suspect(n);
            } else {
                stop = mark_loss(s, l);
            }
        }
    }
    uint64_t place = l->first ? l->first->span.begin : l->read_to;
    lease_release(s, l);
    const struct job_counts *c = &j->row.counts;
    char why[200];
    uint64_t quarantined = c->quarantined - j->quarantine_base;
    if (j->row.state != JOB_RUNNING && j->row.state != JOB_PAUSED)
        return;
    if (guilty && s->config.broken_model_crashes && j->crash_run >= s->config.broken_model_crashes) {
        snprintf(why, sizeof why, "%u workers ended (the last: %s) without one record done in between, the model seems broken",
                 j->crash_run, end_word[how]);
        job_stop(s, j, JOB_HELD, why);
    } else if (stop) {
        snprintf(why, sizeof why, "workers end each time at position %" PRIu64 " and nothing says why", place);
        job_stop(s, j, JOB_HELD, why);
    } else if (quarantined > QUARANTINES_BEFORE_HOLD &&
               (double)quarantined * 1e6 > (double)s->config.quarantine_ppm * (double)c->records) {
        snprintf(why, sizeof why, "%" PRIu64 " records of %" PRIu64 " ended their workers, this is no matter of single records",
                 c->quarantined, c->records);
        job_stop(s, j, JOB_HELD, why);
    } else {
        job_check_errors(s, j, 0);
    }
    job_finish(s, j);
}

/* What the death of a pipeline's member says of the leases of its head. Those that it names are judged as if it had held them, and taken from the head, for
   some of their records are set apart. A loss is no evidence, but for marks on what was next: a record may take whole machines along. */
static void blame_member(struct sched *s, struct worker *w, enum worker_end how, const struct sched_suspect *suspects, size_t count)
{
    struct worker *head = w->gang && w->gang->head != w ? w->gang->head : NULL;
    int judged = 0;
    for (size_t i = 0; i < count; i++) {
        struct lease *l = foreign(s, w, suspects, i);
        const struct sched_suspect *only;
        if (!l || (!end_guilt[how] && how != WORKER_LOST) || !named(l, suspects, count, &only))
            continue;
        if (!end_guilt[how] && !l->probe && l->first->losses + 1u < s->config.max_loss_before_suspect) {
            l->first->losses++;
            span_touch(s, l->job, l->first);
            judged = 1;
            continue;
        }
        core_message(s, SCHED_DO_SEND_REVOKE, l->job->row.id, l->worker->id, l->epoch);
        judge(s, w, l, how, suspects, count, !judged);
        judged = 1;
    }
    struct lease *front = head && !judged && end_guilt[how] ? head->leases : NULL;
    if (front) { /* nothing was named: as when a worker dies so that runs alone */
        core_message(s, SCHED_DO_SEND_REVOKE, front->job->row.id, head->id, front->epoch);
        judge(s, w, front, how, suspects, 0, 1);
    }
}

void blame_ended(struct sched *s, struct worker *w, enum worker_end how, const struct sched_suspect *suspects, size_t count)
{
    /* the one with suspects comes first: it is the one that was computed; else the oldest */
    struct lease *front = w->leases;
    const struct sched_suspect *only;
    for (struct lease *l = w->leases; l; l = l->worker_next)
        if (named(l, suspects, count, &only)) {
            front = l;
            break;
        }
    for (struct lease *l = w->leases, *next; l; l = next) {
        next = l->worker_next;
        judge(s, w, l, how, suspects, count, l == front);
    }
    blame_member(s, w, how, suspects, count);
    if (how == WORKER_LOST || how == WORKER_PREEMPTED)
        s->scale_dirty = 1;
}
