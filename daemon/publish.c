/* The happy path: the loop tells how far a job's head is safe; the thread appends what lies before it, syncs, asks the loop to keep how
   far it came, and frees the parts when that row is safe. When the core says PUBLISH, the thread takes the rest, makes the names and
   answers JOB_PUBLISHED.

   It may be stopped anywhere: the row says where to go on. What fails (no space, a part that is missing) holds the job with the reason;
   `resume` forgets what was under way here and begins from the row again. */
#include "daemon/publish.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/apply.h"
#include "daemon/guard.h"
#include "daemon/job.h"
#include "storage/assemble.h"

#define STEP_BYTES ((uint64_t)8 << 20) /* appended at a time: so long a reopening of the store waits */
#define SAVE_BYTES ((uint64_t)256 << 20)
#define REST_MS 1000 /* between two looks at one job's head */

struct item {
    struct item *next;
    struct job *job; /* held */
    int forgotten, failed;
    struct wanted {
        uint64_t head;
        int finish;
        struct job_row row; /* when it is to be finished */
        uint32_t dims;      /* what the loop knows of the job by now */
        char numerics[sizeof ((struct job *)0)->numerics];
    } want;
    /* The thread's: */
    struct assembly *a;
    struct output_spec out;
    uint64_t saved_head;
    uint64_t rest_until_ms; /* under the lock */
};

struct save { /* a row that the loop writes; freed by whoever lets go last */
    atomic_int refs;
    uint64_t job;
    struct buf row;
    int answered, safe; /* under the lock */
    struct publish *p;
};

struct note { /* from the thread to the loop */
    struct note *next;
    uint64_t job;
    struct save *save;
    int published, failed;
    char text[600];
};

struct publish {
    struct daemon *d;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, settled;
    struct item *items;
    int stop;
    struct note *notes, **notes_end;
    uv_async_t async;
};

/* The thread ----------------------------------------------------------------------------------------------------------------------- */

static void send_note(struct publish *p, struct note *n)
{
    pthread_mutex_lock(&p->lock);
    n->next = NULL;
    *p->notes_end = n;
    p->notes_end = &n->next;
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->async);
}

static struct note *note_new(uint64_t job)
{
    struct note *n = mem_zalloc(sizeof *n);
    BUG_IF(!n, "out of memory for a note of %zu bytes", sizeof *n);
    n->job = job;
    return n;
}

static void save_release(struct save *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    buf_release(&s->row);
    mem_free(s);
}

static int gone(struct publish *p, struct item *x)
{
    pthread_mutex_lock(&p->lock);
    int yes = p->stop || x->forgotten;
    pthread_mutex_unlock(&p->lock);
    return yes;
}

static enum status fault(const char *point, struct err *e)
{
    int errnum = fault_point(point);
    return errnum ? err_errno(e, ST_ENV, errnum, "cannot write the output") : ST_OK;
}

/* Floats a row of a .npy output, when no worker's word on it was kept: its extents tell. 0: there are no rows. */
static enum status dims_of_extents(struct store *s, uint64_t job, uint32_t *dims, struct err *e)
{
    struct extent_iter *it;
    struct extent x;
    TRY(extent_iter_open(s, job, 0, &it, e));
    enum status st;
    while ((st = extent_iter_next(it, &x, e)) == ST_OK && !x.rows)
        ;
    extent_iter_close(it);
    if (st == ST_OK)
        *dims = (uint32_t)(x.rows_bytes / x.rows / 4);
    return st == ST_END ? ST_OK : st;
}

/* ST_AGAIN: it is too early to tell what the rows look like. */
static enum status open_item(struct publish *p, struct item *x, const struct wanted *w, struct err *e)
{
    struct buf saved = {0};
    struct store *s = apply_read_begin(p->d->apply);
    if (!s)
        return err_set(e, ST_AGAIN, "the store is down");
    x->out = x->job->out;
    x->out.dims = w->dims;
    enum status st = rows_get_assembly(s, x->job->id, &saved, e);
    if (st == ST_NOT_FOUND)
        st = ST_OK;
    if (st == ST_OK && x->out.kind == OUTPUT_NPY && !x->out.dims)
        st = dims_of_extents(s, x->job->id, &x->out.dims, e);
    if (st == ST_OK && x->out.kind == OUTPUT_NPY && !x->out.dims && !w->finish)
        st = err_set(e, ST_AGAIN, "no row is known yet");
    if (st == ST_OK)
        st = assembly_open(&x->out, x->job->id, &x->job->dataset, w->row.attempt, saved.data, saved.len, &x->a, e);
    if (st == ST_OK)
        x->saved_head = assembly_head(x->a);
    apply_read_end(p->d->apply);
    buf_release(&saved);
    return st;
}

/* Keeps how far the output is; what lies before it is freed. ST_AGAIN: the row was lost. */
static enum status save_item(struct publish *p, struct item *x, struct err *e)
{
    TRY(fault("daemon.publish.save", e));
    struct save *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "the output");
    s->p = p;
    s->job = x->job->id;
    atomic_store(&s->refs, 2);
    uint64_t head = assembly_head(x->a);
    enum status st = assembly_save(x->a, &s->row, e);
    if (st != ST_OK) {
        atomic_store(&s->refs, 1);
        save_release(s);
        return st;
    }
    struct note *n = note_new(s->job);
    n->save = s;
    send_note(p, n);
    pthread_mutex_lock(&p->lock);
    while (!s->answered && !p->stop)
        pthread_cond_wait(&p->wake, &p->lock);
    int safe = s->answered && s->safe;
    pthread_mutex_unlock(&p->lock);
    save_release(s);
    if (!safe)
        return err_set(e, ST_AGAIN, "the row was lost");
    x->saved_head = head;
    TRY(fault("daemon.publish.saved", e));
    return assembly_free_parts(x->a, e);
}

static enum status finish_item(struct item *x, const struct wanted *w, struct err *e)
{
    TRY(fault("daemon.publish.finish", e));
    struct manifest_info info = {.spec_json = x->job->spec_json,
                                 .model_digest = x->job->model.hex,
                                 .numerics = w->numerics,
                                 .model_name = x->job->model_name,
                                 .counts = w->row.counts,
                                 .attempt = w->row.attempt,
                                 .submitted_ms = w->row.submitted_ms,
                                 .finished_ms = clock_wall_ms(),
                                 .version = EBBD_VERSION};
    return assembly_finish(x->a, &info, e);
}

static enum status work_on(struct publish *p, struct item *x, const struct wanted *w, struct err *e)
{
    uint64_t unsaved = 0;
    int more = 1;
    if (!x->a)
        TRY(open_item(p, x, w, e));
    while (more && !gone(p, x)) {
        TRY(fault("daemon.publish.advance", e));
        struct store *s = apply_read_begin(p->d->apply);
        if (!s)
            return err_set(e, ST_AGAIN, "the store is down");
        more = 0;
        enum status st = assembly_advance(x->a, s, w->head, STEP_BYTES, &more, e);
        apply_read_end(p->d->apply);
        TRY(st);
        unsaved += STEP_BYTES;
        if (more && unsaved >= SAVE_BYTES) {
            TRY(save_item(p, x, e));
            unsaved = 0;
        }
    }
    if (gone(p, x))
        return ST_OK;
    if (w->finish)
        return finish_item(x, w, e);
    return assembly_head(x->a) > x->saved_head ? save_item(p, x, e) : ST_OK;
}

/* The thread holds the lock on entry and exit. */
static void serve(struct publish *p, struct item *x)
{
    struct wanted w = x->want;
    struct err e = {0};
    x->want.finish = 0;
    pthread_mutex_unlock(&p->lock);
    enum status st = work_on(p, x, &w, &e);
    int forgotten = gone(p, x);
    if (w.finish || st != ST_OK) {
        assembly_close(x->a);
        x->a = NULL;
    }
    if (w.finish && st == ST_OK)
        x->saved_head = w.head; /* it is all there: nothing more is to be done until the loop has heard of it */
    int failed = st != ST_OK && st != ST_AGAIN;
    if (!forgotten && (failed || (w.finish && st == ST_OK))) {
        struct note *n = note_new(x->job->id);
        n->published = w.finish;
        n->failed = failed;
        snprintf(n->text, sizeof n->text, "%s%.560s", st == ST_CORRUPT ? JOB_DAMAGED_WORDS : "", e.text);
        fault_point("daemon.publish.done");
        send_note(p, n);
    }
    pthread_mutex_lock(&p->lock);
    if (st == ST_AGAIN && w.finish)
        x->want.finish = 1; /* not a failure of the output */
    if (failed)
        x->failed = 1;
    x->rest_until_ms = clock_ms() + REST_MS;
    pthread_cond_broadcast(&p->settled);
}

static void drop(struct publish *p, struct item *x)
{
    for (struct item **at = &p->items; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    assembly_close(x->a);
    job_release(x->job);
    mem_free(x);
}

/* Whose turn it is, or when to look again. */
static struct item *next_item(struct publish *p, uint64_t *until_ms)
{
    uint64_t now = clock_ms();
    *until_ms = UINT64_MAX;
    for (struct item *x = p->items; x; x = x->next) {
        if (x->forgotten)
            return x;
        int work = x->want.finish || (!x->failed && x->want.head > x->saved_head);
        if (work && (now >= x->rest_until_ms || (x->want.finish && !x->rest_until_ms)))
            return x;
        if (work && x->rest_until_ms < *until_ms)
            *until_ms = x->rest_until_ms;
    }
    return NULL;
}

static void *publisher(void *arg)
{
    struct publish *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        uint64_t until;
        struct item *x = next_item(p, &until);
        if (x && x->forgotten) {
            drop(p, x);
            pthread_cond_broadcast(&p->settled);
        } else if (x) {
            serve(p, x);
        } else if (until == UINT64_MAX) {
            pthread_cond_wait(&p->wake, &p->lock);
        } else {
            struct timespec t = {.tv_sec = (time_t)(until / 1000), .tv_nsec = (long)(until % 1000) * 1000000};
            pthread_cond_timedwait(&p->wake, &p->lock, &t);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* The loop -------------------------------------------------------------------------------------------------------------------------- */

/* With the lock. NULL: the job is gone. */
static struct item *item_of(struct publish *p, uint64_t job)
{
    for (struct item *x = p->items; x; x = x->next)
        if (x->job->id == job && !x->forgotten)
            return x;
    struct job *j = job_find(p->d, job);
    struct item *x = j && j->has_sources ? mem_zalloc(sizeof *x) : NULL;
    if (!x)
        return NULL;
    x->job = job_hold(j);
    struct item **end = &p->items;
    while (*end)
        end = &(*end)->next;
    *end = x;
    return x;
}

static void want(struct item *x, uint64_t head, const struct job_row *row)
{
    x->want.head = head;
    x->want.row = *row;
    x->want.dims = x->job->dims;
    snprintf(x->want.numerics, sizeof x->want.numerics, "%s", x->job->numerics);
}

void publish_head(struct publish *p, uint64_t job, uint64_t head)
{
    struct sched_job_view v;
    pthread_mutex_lock(&p->lock);
    struct item *x = head && sched_job_view(p->d->core, job, &v) ? item_of(p, job) : NULL;
    if (x && head > x->want.head) {
        want(x, head, v.row);
        pthread_cond_broadcast(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

void publish_finish(struct publish *p, uint64_t job)
{
    struct sched_job_view v;
    struct job *j = job_find(p->d, job);
    if (!j || !sched_job_view(p->d->core, job, &v) || v.row->state != JOB_PUBLISHING)
        return; /* canceled meanwhile */
    pthread_mutex_lock(&p->lock);
    struct item *x = item_of(p, job);
    BUG_IF(!x, "job %" PRIu64 " is to be published without its sources", job);
    want(x, j->dataset.end, v.row);
    x->want.finish = 1;
    x->failed = 0;
    x->rest_until_ms = 0;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void publish_forget(struct publish *p, uint64_t job)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    for (struct item *x = p->items; x; x = x->next)
        if (x->job->id == job)
            x->forgotten = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void publish_settle(struct publish *p, uint64_t job)
{
    pthread_mutex_lock(&p->lock);
    for (int again = 1; again && !p->stop;) {
        again = 0;
        for (struct item *x = p->items; x; x = x->next)
            again = again || (x->job->id == job && x->forgotten);
        if (again)
            pthread_cond_wait(&p->settled, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

void publish_restart(struct publish *p)
{
    pthread_mutex_lock(&p->lock);
    for (struct item *x = p->items; x; x = x->next)
        x->forgotten = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    struct sched_job_view v;
    for (size_t i = 0; i < sched_job_count(p->d->core); i++)
        if (sched_job_view(p->d->core, sched_job_at(p->d->core, i), &v) && v.row->state == JOB_RUNNING)
            publish_head(p, v.row->id, v.head);
}

static void saved(void *arg, int safe)
{
    struct save *s = arg;
    pthread_mutex_lock(&s->p->lock);
    s->answered = 1;
    s->safe = safe;
    pthread_cond_broadcast(&s->p->wake);
    pthread_mutex_unlock(&s->p->lock);
    save_release(s);
}

static void take_save(struct publish *p, struct save *s)
{
    struct daemon *d = p->d;
    struct sched_job_view v;
    if (!d->core || !sched_job_view(d->core, s->job, &v) || v.row->state == JOB_DONE || v.row->state == JOB_CANCELED) {
        saved(s, 0);
        return;
    }
    rows_put_assembly(apply_batch(d->apply), s->job, s->row.data, s->row.len);
    apply_call(d->apply, saved, s);
}

static void take_word(struct publish *p, const struct note *n)
{
    struct daemon *d = p->d;
    struct sched_job_view v;
    if (!d->core || !sched_job_view(d->core, n->job, &v))
        return; /* told again after the restart of the core */
    struct sched_event ev = {.job = n->job};
    if (n->published) {
        if (v.row->state != JOB_PUBLISHING)
            return;
        ev.kind = SCHED_JOB_PUBLISHED;
        ev.u.published.failure = n->failed ? n->text : NULL;
        ev.u.published.wall_ms = clock_wall_ms();
    } else {
        if (v.row->state != JOB_RUNNING && v.row->state != JOB_PAUSED)
            return;
        ev.kind = SCHED_JOB_CONTROL;
        ev.u.control.verb = VERB_HOLD;
        ev.u.control.text = n->text;
        ev.u.control.wall_ms = clock_wall_ms();
    }
    loop_tell(d, &ev);
    if (n->failed)
        guard_soon(d->guard); /* it may have been for want of space */
    if (n->published && !n->failed) {
        rows_shrink_job(apply_batch(d->apply), n->job);
        publish_forget(p, n->job);
    }
}

static void on_async(uv_async_t *h)
{
    struct publish *p = h->data;
    pthread_mutex_lock(&p->lock);
    struct note *n = p->notes;
    p->notes = NULL;
    p->notes_end = &p->notes;
    pthread_mutex_unlock(&p->lock);
    for (struct note *next; n; n = next) {
        next = n->next;
        if (n->save)
            take_save(p, n->save);
        else
            take_word(p, n);
        mem_free(n);
    }
}

enum status publish_open(struct daemon *d, struct err *e)
{
    struct publish *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "the publisher");
    p->d = d;
    p->notes_end = &p->notes;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, &attr);
    pthread_cond_init(&p->settled, NULL);
    pthread_condattr_destroy(&attr);
    uv_async_init(&d->uv, &p->async, on_async);
    p->async.data = p;
    int failed = pthread_create(&p->thread, NULL, publisher, p);
    BUG_IF(failed, "cannot start the publisher's thread: %s", strerror(failed));
    d->publish = p;
    return ST_OK;
}

static void on_closed(uv_handle_t *h)
{
    mem_free(h->data);
}

void publish_close(struct daemon *d)
{
    struct publish *p = d->publish;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_cond_broadcast(&p->settled);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    while (p->items)
        drop(p, p->items);
    for (struct note *n = p->notes, *next; n; n = next) {
        next = n->next;
        if (n->save)
            save_release(n->save);
        mem_free(n);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->settled);
    d->publish = NULL;
    uv_close((uv_handle_t *)&p->async, on_closed);
}
