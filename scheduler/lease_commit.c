/* Commits: what a lease has done becomes extents, what it gives back becomes READY; each under its number, once. */
#include "scheduler/lease.h"

#include "scheduler/blame.h"
#include "scheduler/gang.h"
#include "scheduler/job.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define MAX_PIECES 256                 /* of a lease; the protocol asks for 64 holes */
#define MAX_BACKOFF_MS 300000

static void job_measure(struct sched *s, struct job *j, uint64_t records, uint64_t bytes)
{
    uint64_t second = s->now_ms / 1000;
    size_t i = second % RATE_BUCKETS;
    if (j->rate[i].second != second) {
        j->rate[i].second = second;
        j->rate[i].records = j->rate[i].bytes = 0;
    }
    j->rate[i].records += records;
    j->rate[i].bytes += bytes;
}

/* Whether one span lies in one piece of the lease. */
static int held(const struct lease *l, const struct span *span)
{
    const struct node *n = ledger_find(&l->job->ledger, span->begin);
    return span->begin < span->end && n && n->lease == l && span->end <= n->span.end;
}

static int overlaps_done(const struct sched_event *ev, const struct span *span)
{
    size_t low = 0, high = ev->u.commit.done_count;
    while (low < high) { /* the first done span that ends behind span->begin */
        size_t mid = low + (high - low) / 2;
        if (ev->u.commit.done[mid].span.end > span->begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low < ev->u.commit.done_count && ev->u.commit.done[low].span.begin < span->end;
}

/* What a commit gives back that a cut took meanwhile (the two may pass each other) is back already. 0: nothing is left of it. */
static int clip(const struct lease *l, struct span *span)
{
    if (span->end > l->last->span.end)
        span->end = l->last->span.end;
    return span->begin < span->end;
}

/* Everything that it names is still held under this lease, once. */
static int commit_fits(const struct lease *l, const struct sched_event *ev)
{
    const struct extent *done = ev->u.commit.done;
    const struct sched_returned *back = ev->u.commit.returned;
    size_t done_count = ev->u.commit.done_count, back_count = ev->u.commit.returned_count;
    size_t holes = 0;
    for (size_t i = 0; i < done_count; i++) {
        if (!held(l, &done[i].span) || (i && done[i].span.begin < done[i - 1].span.end))
            return 0;
        holes += i == 0 || done[i].span.begin != done[i - 1].span.end;
    }
    for (size_t i = 0; i < back_count; i++) {
        struct span span = back[i].span;
        if (span.begin >= span.end)
            return 0;
        if (clip(l, &span) && (!held(l, &span) || overlaps_done(ev, &span)))
            return 0;
        if (i && back[i].span.begin >= back[i - 1].span.end)
            continue;
        for (size_t k = 0; k < i; k++) /* not in order: each with each */
            if (back[i].span.begin < back[k].span.end && back[k].span.begin < back[i].span.end)
                return 0;
    }
    return l->pieces + holes + back_count <= MAX_PIECES * 2;
}

static void take_out(struct sched *s, struct lease *l, const struct span *span)
{
    struct job *j = l->job;
    struct node *n = ledger_find(&j->ledger, span->begin);
    if (n->span.begin == span->begin && span->end < n->span.end) {
        span_advance(s, j, n, span->end);
        return;
    }
    n = lease_carve(s, l, *span);
    span_drop(s, j, n);
}

static void give_back(struct sched *s, struct lease *l, const struct sched_returned *back)
{
    struct job *j = l->job;
    struct span span = back->span;
    if (!l->pieces || !clip(l, &span))
        return;
    struct node *n = lease_carve(s, l, span);
    if (MUTANT(5)) {
        span_drop(s, j, n);
        return;
    }
    if (back->transient && n->attempts < UINT16_MAX && !MUTANT(20))
        n->attempts++;
    uint16_t attempts = n->attempts;
    n = span_ready(s, j, n);
    if (back->transient && !MUTANT(20)) {
        uint64_t delay = s->config.retry_delay_ms;
        for (unsigned i = 1; i < attempts && delay < MAX_BACKOFF_MS; i++)
            delay *= 2;
        span_back_off(s, j, n, s->now_ms + (delay < MAX_BACKOFF_MS ? delay : MAX_BACKOFF_MS) + 1);
    }
}

static void answer(struct sched *s, const struct sched_event *ev, enum ack_verdict verdict)
{
    struct sched_action *a = core_message(s, SCHED_DO_SEND_ACK, ev->job, ev->worker, ev->epoch);
    a->u.ack.seq = ev->u.commit.seq;
    a->u.ack.verdict = verdict;
}

static void refuse(struct sched *s, const struct sched_event *ev)
{
    struct job *j = core_job(s, ev->job);
    if (j && j->row.state != JOB_DONE && j->row.state != JOB_CANCELED) {
        j->row.counts.redone++;
        core_touch_job(s, j);
    }
    answer(s, ev, ACK_STALE);
}

enum status lease_commit(struct sched *s, const struct sched_event *ev, struct err *e)
{
    uint64_t seq = ev->u.commit.seq;
    struct lease *l = lease_find(s, ev->epoch, ev->worker);
    struct worker *w = map_get(&s->workers, ev->worker);
    size_t spans = ev->u.commit.done_count + ev->u.commit.returned_count;
    int breach = l && seq >= l->next_seq && !ev->u.commit.part_fault && (seq > l->next_seq || ev->job != l->job->row.id || !commit_fits(l, ev));
    if (core_room(s, ev->u.commit.done_count + 8, 4, breach ? l->pieces * 3 : spans * 7 + 2, 0))
        return err_nomem(e, "a commit");
    if (w)
        worker_heard(s, w);
    if (MUTANT(2) && !l && core_job(s, ev->job) && ev->u.commit.done_count && core_job(s, ev->job)->row.state == JOB_RUNNING) {
        core_row(s, SCHED_DO_PUT_EXTENT, ev->job)->u.extent = ev->u.commit.done[0];
        answer(s, ev, ACK_DONE);
        return ST_OK;
    }
    if (!l) {
        const struct ended *was = map_get(&s->ended_epochs, ev->epoch);
        if (was && was->worker == ev->worker && seq < was->next_seq)
            answer(s, ev, ACK_DONE);
        else
            refuse(s, ev);
        return ST_OK;
    }
    struct job *j = l->job;
    if (seq < l->next_seq) {
        if (MUTANT(1))
            for (size_t i = 0; i < ev->u.commit.done_count; i++)
                core_row(s, SCHED_DO_PUT_EXTENT, j->row.id)->u.extent = ev->u.commit.done[i];
        answer(s, ev, ACK_DONE);
        return ST_OK;
    }
    if (ev->u.commit.part_fault) {
        answer(s, ev, ACK_FAULT);
        return ST_OK;
    }
    if (breach) {
        /* against the protocol: nobody knows what this worker has done, so what it holds is done again */
        core_history(s, j, "worker %llx: commit %llu of lease %llx does not fit what it holds, the lease is taken back",
                     (unsigned long long)ev->worker, (unsigned long long)seq, (unsigned long long)ev->epoch);
        lease_release(s, l);
        refuse(s, ev);
        return ST_OK;
    }
    l->next_seq++;
    uint64_t records = 0, bytes = 0;
    for (size_t i = 0; i < ev->u.commit.done_count; i++) {
        const struct extent *done = &ev->u.commit.done[i];
        if (l->probe)
            blame_passed(s, l, &done->span);
        take_out(s, l, &done->span);
        struct sched_action *a = core_row(s, SCHED_DO_PUT_EXTENT, j->row.id);
        a->u.extent = *done;
        a->u.extent.attempt = j->row.attempt;
        a->u.extent.epoch = l->epoch;
        a->u.extent.seq = seq;
        records += done->records;
        bytes += done->bytes;
        j->row.counts.rows += done->rows;
        j->row.counts.errors += done->errors;
    }
    j->row.counts.records += records;
    j->row.counts.bytes += bytes;
    j->row.counts.extents += ev->u.commit.done_count;
    l->records_committed += records;
    l->bytes_committed += bytes;
    for (size_t i = 0; i < ev->u.commit.returned_count; i++)
        give_back(s, l, &ev->u.commit.returned[i]);
    if (ev->u.commit.done_count) {
        j->crash_run = 0;
        j->crashed = 0;
        job_measure(s, j, records, bytes);
    }
    core_touch_job(s, j);
    answer(s, ev, ACK_DONE);
    if (w) {
        w->progress_ms = s->now_ms;
        worker_measure(s, w, l);
        if (ev->u.commit.done_count)
            gang_progress(w);
        if (ev->u.commit.done_count && w->loading) {
            w->model_key = j->row.params.model_key;
            w->loading = 0;
            worker_timer(s, w);
        }
    }
    if (!l->pieces)
        lease_end(s, l);
    else if (l->first->next_seq != l->next_seq && !MUTANT(6)) /* one piece at least carries the number */
        span_touch(s, j, l->first);
    job_check_errors(s, j, 0);
    job_finish(s, j);
    if (w && w->joined)
        share_feed(s, w);
    return ST_OK;
}
