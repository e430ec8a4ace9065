/* A part goes when it has no row and its epoch is of an earlier generation and not held. Those of this generation stay: their commit may be
   on its way. The epochs that are held are noted by the loop before the thread reads the rows, so that a commit that lands in between
   is seen by one of the two. */
#include "daemon/sweep.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/apply.h"
#include "daemon/job.h"
#include "storage/part.h"

struct name {
    uint64_t epoch, seq;
};

struct folder {
    struct job *job; /* held */
    uint64_t *held;
    size_t held_count, held_cap;
    struct name *named; /* in order */
    size_t named_count, named_cap;
    int failed;
};

struct sweep {
    struct daemon *d;
    uint64_t when_ms;
    uint32_t generation;
    int busy, done;
    struct folder *folders;
    size_t count;
    uv_work_t work;
};

static void note_held(void *arg, const struct span_row *row)
{
    struct folder *f = arg;
    if (row->state != SPAN_LEASED || f->failed)
        return;
    f->failed = mem_grow((void **)&f->held, &f->held_cap, f->held_count, sizeof *f->held);
    if (!f->failed)
        f->held[f->held_count++] = row->epoch;
}

static int by_name(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    if (x->epoch != y->epoch)
        return x->epoch < y->epoch ? -1 : 1;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

static enum status read_names(struct sweep *s, struct folder *f, struct err *e)
{
    struct store *store = apply_read_begin(s->d->apply);
    struct extent_iter *it = NULL;
    struct extent x;
    if (!store)
        return err_set(e, ST_AGAIN, "the store is down");
    enum status st = extent_iter_open(store, f->job->id, 0, &it, e);
    while (st == ST_OK && (st = extent_iter_next(it, &x, e)) == ST_OK) {
        if (EPOCH_GENERATION(x.epoch) >= s->generation)
            continue;
        if (mem_grow((void **)&f->named, &f->named_cap, f->named_count, sizeof *f->named))
            st = err_nomem(e, "a sweep");
        else
            f->named[f->named_count++] = (struct name){x.epoch, x.seq};
    }
    if (it)
        extent_iter_close(it);
    apply_read_end(s->d->apply);
    if (st == ST_END && f->named_count)
        qsort(f->named, f->named_count, sizeof *f->named, by_name);
    return st == ST_END ? ST_OK : st;
}

struct asked {
    const struct sweep *s;
    const struct folder *f;
};

static int keep(void *arg, uint64_t epoch, uint64_t seq)
{
    const struct asked *a = arg;
    struct name n = {epoch, seq};
    if (EPOCH_GENERATION(epoch) >= a->s->generation)
        return 1;
    for (size_t i = 0; i < a->f->held_count; i++)
        if (a->f->held[i] == epoch)
            return 1;
    return a->f->named_count && bsearch(&n, a->f->named, a->f->named_count, sizeof n, by_name) != NULL;
}

static void run(uv_work_t *work)
{
    struct sweep *s = work->data;
    for (size_t i = 0; i < s->count; i++) {
        struct folder *f = &s->folders[i];
        struct asked a = {s, f};
        uint64_t removed = 0;
        struct err e;
        enum status st = f->failed ? err_nomem(&e, "a sweep") : read_names(s, f, &e);
        if (st == ST_OK)
            st = part_sweep(f->job->parts_dir, f->job->id, keep, &a, &removed, &e);
        if (st != ST_OK)
            log_warn("job %" PRIu64 ": parts that nobody names could not be swept: %s", f->job->id, e.text);
        else if (removed)
            log_info("job %" PRIu64 ": %" PRIu64 " parts that nobody names are removed", f->job->id, removed);
    }
}

static void folders_free(struct sweep *s)
{
    for (size_t i = 0; i < s->count; i++) {
        job_release(s->folders[i].job);
        mem_free(s->folders[i].held);
        mem_free(s->folders[i].named);
    }
    mem_free(s->folders);
    s->folders = NULL;
    s->count = 0;
}

static void finished(uv_work_t *work, int status)
{
    (void)status;
    struct sweep *s = work->data;
    folders_free(s);
    s->busy = 0;
}

void sweep_second(struct sweep *s)
{
    struct daemon *d = s->d;
    if (s->done || s->busy || !d->core || clock_ms() < s->when_ms)
        return;
    s->done = 1;
    s->generation = d->generation;
    s->folders = mem_array(d->jobs->by_id.count, sizeof *s->folders);
    size_t at = 0;
    for (struct job *j; s->folders && (j = map_next(&d->jobs->by_id, &at));) {
        struct sched_job_view v;
        if (!sched_job_view(d->core, j->id, &v) || v.row->state == JOB_DONE || v.row->state == JOB_CANCELED)
            continue;
        struct folder *f = &s->folders[s->count++];
        f->job = job_hold(j);
        sched_spans(d->core, j->id, note_held, f);
    }
    s->busy = 1;
    uv_queue_work(&d->uv, &s->work, run, finished);
}

enum status sweep_open(struct daemon *d, uint64_t after_ms, struct err *e)
{
    struct sweep *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "the sweep");
    s->d = d;
    s->when_ms = clock_ms() + after_ms;
    s->work.data = s;
    d->sweep = s;
    return ST_OK;
}

void sweep_close(struct daemon *d)
{
    if (d->sweep)
        folders_free(d->sweep);
    mem_free(d->sweep);
    d->sweep = NULL;
}
