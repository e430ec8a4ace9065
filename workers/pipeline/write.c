/* The writer: one thread that turns finished records into parts, and alone makes commits.

   The happy path: every few seconds, or when a lease is complete, or when finished rows fill an eighth of the budget, it detaches a lease's finished
   runs, sees that their sources are still what they were, writes them as the extents of one new part, and reports a commit that names it.

   What can fail: a source changed since it was read (the lease goes back, the job is to be held); the part cannot be written (the lease goes
   back under the number that the part would have had, so that no name is used twice; the third time in a row the job is to be held);
   the lease is taken away meanwhile (the part, which no commit named, is removed). A part that a commit named is never touched here: only the
   daemon knows its fate, and its sweep removes what nobody refers to. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "storage/part.h"
#include "storage/source.h"
#include "workers/pipeline/stages.h"
#include "workers/remote/remote.h"

#define PART_FAILURES 3
#define FAILURE_PAUSE_MS 200

enum due { DUE_NOTHING, DUE_COMMIT, DUE_ALL, DUE_GIVE_UP, DUE_RETURN };

static enum due due(const struct pipeline *p, const struct held *h, uint64_t now_ms, uint64_t *next_ms)
{
    if (h->closed || h->acked < h->seq) /* one commit of a lease is under way at a time: the daemon takes them by their numbers */
        return DUE_NOTHING;
    if (h->give_up)
        return DUE_GIVE_UP;
    if (p->draining) {
        if (now_ms < p->drain_until_ms && (h->stage == HELD_READING || h->open)) {
            if (p->drain_until_ms < *next_ms)
                *next_ms = p->drain_until_ms;
        } else if (h->done) {
            return DUE_ALL;
        } else if (!held_complete(h)) {
            return DUE_RETURN;
        }
    }
    int all = pipeline_full(p);
    uint64_t every_ms = h->job->commit_every_ms;
    if (held_due(h, now_ms, every_ms, all))
        return all ? DUE_ALL : DUE_COMMIT;
    if (h->done && h->committed_ms + every_ms < *next_ms)
        *next_ms = h->committed_ms + every_ms;
    return DUE_NOTHING;
}

/* A job whose rows cannot be written, or whose sources changed: to be held, and this lease given back. With the lock held. */
static void give_up(struct pipeline *p, struct held *h, uint64_t seq, int hold, const char *why)
{
    if (hold) {
        struct report report = {.kind = REPORT_JOB_FAULT, .job = h->job->id};
        snprintf(report.text, sizeof report.text, "%s", why);
        pipeline_add_report(p, &report);
    }
    log_error("job %" PRIu64 " lease %" PRIx64 ": %s", h->job->id, h->epoch, why);
    pipeline_give_back(p, h, seq, why);
}

/* The sources of these runs are what they were when the job was submitted. What cannot be opened now was read all the same; what came through the relay was looked
   at behind each read. */
static enum status check_sources(struct remote *remote, uint64_t job, const struct run *runs, size_t n, struct err *e)
{
    const struct input *last = NULL;
    for (size_t k = 0; k < n; k++)
        for (const struct item *i = runs[k].first; i; i = i->later) {
            if (i->input == last)
                continue;
            last = i->input;
            if (last->source.via && last->source.via->open)
                continue;
            struct source_file f;
            enum status st = source_open(&last->source, 0, &f, e);
            if (st == ST_OK)
                source_close(&f);
            else if (st == ST_USER)
                return remote_far(remote) ? remote_judge(remote, job, last->index, &last->source, e) : st;
        }
    return ST_OK;
}

static enum status fill_run(struct part *part, const struct run *r, struct err *e)
{
    TRY(part_begin(part, r->first->cell.begin, e));
    for (const struct item *i = r->first; i; i = i->later) {
        if (i->state == ITEM_ROW && i->counted) {
            TRY(part_rows(part, i->row, i->row_len, i->rows, e));
        } else if (i->state == ITEM_ROW) {
            TRY(part_row(part, i->row, i->row_len, i->aux, i->aux_len, e));
        } else if (i->state == ITEM_ERROR) {
            const struct part_error error = {
                .record = i->record,
                .source = i->input->index,
                .line = run_line(r, i),
                .code = i->code ? i->code : record_error_code(i->error),
                .message = i->message,
                .id_json = i->id,
                .id_len = i->id_len,
            };
            TRY(part_error(part, &error, e));
        }
    }
    uint64_t lines, bytes;
    run_measure(r, &lines, &bytes);
    return part_end(part, r->last->cell.end, lines, bytes, e);
}

struct asked {
    struct pipeline *p;
    const struct held *h;
};

static int goes_on(void *arg)
{
    struct asked *a = arg;
    pthread_mutex_lock(&a->p->lock);
    int go = !a->h->closed && !a->p->stopping;
    pthread_mutex_unlock(&a->p->lock);
    return go;
}

/* Directly, or through the daemon. */
static enum status write_part(struct pipeline *p, struct part *part, const struct held *h, uint64_t seq, struct part_info *info, int *direct, struct err *e)
{
    const struct job *j = h->job;
    *direct = 1;
    if (p->o.remote)
        TRY(remote_output(p->o.remote, j->id, j->parts_dir, direct, e));
    if (*direct)
        return part_write(part, j->parts_dir, j->id, h->epoch, seq, info, e);
    struct asked asked = {p, h};
    struct remote_part r = {.job = j->id, .epoch = h->epoch, .seq = seq, .digest = info->digest};
    part_seal(part, h->epoch, seq, info, &r.data);
    r.size = info->size_bytes;
    return remote_part(p->o.remote, &r, goes_on, &asked, e);
}

static enum status make_part(struct pipeline *p, struct part *part, const struct held *h, uint64_t seq, const struct run *runs, size_t n, struct commit *c,
                             int *direct, struct err *e)
{
    *direct = 1;
    int errnum = fault_point("worker.part.before");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot write a part of job %" PRIu64, h->job->id);
    TRY(check_sources(p->o.remote, h->job->id, runs, n, e));
    part_clear(part);
    for (size_t k = 0; k < n; k++)
        TRY(fill_run(part, &runs[k], e));
    struct part_info info;
    TRY(write_part(p, part, h, seq, &info, direct, e));
    size_t count = part_extent_count(part);
    c->done = mem_array(count, sizeof *c->done);
    if (!c->done)
        return err_nomem(e, "a commit");
    memcpy(c->done, part_extents(part), count * sizeof *c->done);
    c->done_count = count;
    c->part_bytes = info.size_bytes;
    memcpy(c->part_digest, info.digest, sizeof c->part_digest);
    return ST_OK;
}

static void remove_part(const struct held *h, uint64_t seq)
{
    char path[4096];
    part_path(path, sizeof path, h->job->parts_dir, h->job->id, h->epoch, seq);
    if (unlink(path) && errno != ENOENT)
        log_warn("'%s' stays behind: %s", path, strerror(errno));
}

/* With the lock held, which is let go while the part is made. */
static void commit(struct pipeline *p, struct part *part, struct held *h, int all)
{
    struct run runs[HELD_MOST_RUNS];
    uint64_t now_ms = clock_ms(), before = h->done_bytes;
    size_t n = held_take(h, now_ms, h->job->commit_every_ms, all, runs);
    p->done_bytes -= before - h->done_bytes;
    h->committed_ms = now_ms;
    if (!n)
        return; /* all that is finished lies behind holes, and not for long yet */
    struct commit *c = mem_zalloc(sizeof *c);
    if (!c)
        pipeline_out_of_memory(p, "a commit");
    uint64_t seq = h->seq++;
    *c = (struct commit){.job = h->job->id, .epoch = h->epoch, .seq = seq};
    held_ref(h);
    pthread_mutex_unlock(&p->lock);

    struct err e;
    int direct;
    enum status st = make_part(p, part, h, seq, runs, n, c, &direct, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(p, "a part");
    if (st == ST_ENV)
        clock_sleep_ms(FAILURE_PAUSE_MS * (p->part_failures + 1u));

    pthread_mutex_lock(&p->lock);
    int closed = h->closed;
    if (st == ST_OK) {
        p->part_failures = 0;
        if (!closed)
            pipeline_add_commit(p, c);
    } else if (!closed) {
        int hold = st != ST_ENV || ++p->part_failures >= PART_FAILURES;
        before = h->done_bytes;
        held_untake(h, runs, n);
        p->done_bytes += h->done_bytes - before;
        give_up(p, h, seq, hold, e.text);
    }
    pthread_mutex_unlock(&p->lock);

    if (st == ST_OK && closed && direct) /* one of the daemon's is its sweep's */
        remove_part(h, seq);
    if (st != ST_OK || closed)
        commit_free(c);
    if (st == ST_OK || closed)
        for (size_t k = 0; k < n; k++)
            pipeline_throw_away(p, runs[k].first);
    held_unref(h);
    pthread_mutex_lock(&p->lock);
}

static void wait_until(struct pipeline *p, uint64_t ms)
{
    if (ms == UINT64_MAX) {
        pthread_cond_wait(&p->to_write, &p->lock);
        return;
    }
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    pthread_cond_timedwait(&p->to_write, &p->lock, &t);
}

void *write_run(void *arg)
{
    struct pipeline *p = ((struct stage *)arg)->pipeline;
    struct part *part;
    struct err e;
    if (part_new(&part, &e) != ST_OK)
        pipeline_out_of_memory(p, "the writer");
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        uint64_t now_ms = clock_ms(), next_ms = UINT64_MAX;
        enum due what = DUE_NOTHING;
        struct held *h = p->helds;
        while (h && (what = due(p, h, now_ms, &next_ms)) == DUE_NOTHING)
            h = h->next;
        switch (what) {
        case DUE_NOTHING:
            wait_until(p, next_ms);
            break;
        case DUE_COMMIT:
        case DUE_ALL:
            commit(p, part, h, what == DUE_ALL);
            break;
        case DUE_GIVE_UP:
            pipeline_give_back(p, h, h->seq++, "the job cannot go on here");
            break;
        case DUE_RETURN:
            pipeline_give_back(p, h, h->seq++, "draining");
            break;
        }
    }
    pthread_mutex_unlock(&p->lock);
    part_free(part);
    return NULL;
}
