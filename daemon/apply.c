/* The happy path: the loop puts rows and messages into the open group; apply_flush closes it and hands it to the thread; the thread
   writes it with one sync and wakes the loop; the loop sends the group's messages and hands over the next.

   What can fail: the write. Then nothing of the group may be assumed, and what came behind it was decided on top of it: the loop drops
   both groups and the core, and builds anew (loop_store_failed). A group without rows is never handed over: it leaves once the one
   before it has. */
#include "daemon/apply.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/metrics.h"
#include "daemon/owner.h"
#include "daemon/provider.h"
#include "daemon/publish.h"

#define OWNER_STALE_MS 15000 /* the file was not seen to be ours for so long: look before writing */
#define TRIM_EVERY 128       /* lines of history between two trims */

enum out_kind { OUT_LEASE, OUT_CUT, OUT_REVOKE, OUT_ACK, OUT_DRAIN, OUT_PROFILE, OUT_STAGE, OUT_STAGE_GO, OUT_KILL, OUT_WANT, OUT_PUBLISH, OUT_HEAD, OUT_OVER, OUT_GONE, OUT_REPLY, OUT_CALL };

struct out {
    enum out_kind kind;
    uint64_t job, worker, epoch;
    union {
        struct {
            struct span span;
            int probe;
        } lease;
        uint64_t at; /* CUT, HEAD */
        struct {
            uint64_t seq, came_ns; /* when its commit came in; 0: not known */
            enum ack_verdict verdict;
        } ack;
        char *text; /* KILL */
        struct { /* STAGE, STAGE_GO */
            uint64_t gang, head;
            uint32_t cut, count;
            struct sched_member members[GANG_MOST];
        } stage;
        struct {
            uint32_t provider, workers;
        } want;
        struct {
            struct sock_peer client;
            uint64_t id;
            enum status code;
            char *json;
            int more;
        } reply;
        struct {
            void (*fn)(void *arg, int safe);
            void *arg;
        } call;
    } u;
};

struct group {
    struct store_batch *batch;
    struct store_batch **before;
    size_t before_count, before_cap;
    struct job_row *rows; /* of jobs: the last of each, put in when the group closes */
    size_t row_count, row_cap;
    uint64_t *trims;
    size_t trim_count, trim_cap;
    struct out *outs;
    size_t out_count, out_cap;
};

struct apply {
    struct daemon *d;
    char *dir;
    struct store *store;
    pthread_rwlock_t readers;

    struct group groups[2], *open, *flying; /* flying: with the thread; NULL: it is free */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct group *work; /* for the thread, under the lock */
    int stop;
    uv_async_t done;
    int finished; /* of work, under the lock */
    struct err failure;
    enum status outcome;
    struct apply_figures figures;
};

static void no_memory(struct apply *a)
{
    struct err e;
    err_nomem(&e, "rows and messages");
    loop_fatal(a->d, &e);
}

/* The thread ----------------------------------------------------------------------------------------------------------------------- */

static enum status write_group(struct apply *a, struct group *g, struct err *e)
{
    int errnum = fault_point("daemon.persist.before");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot write to the store");
    if (owner_age_ms(a->d->owner) > OWNER_STALE_MS) {
        enum status st = owner_check(a->d->owner, e);
        if (st != ST_OK) {
            log_error("ends at once: %s", e->text);
            _exit(1);
        }
    }
    for (size_t i = 0; i < g->trim_count; i++)
        TRY(rows_trim_events(a->store, g->batch, g->trims[i], APPLY_EVENTS_KEPT, e));
    for (size_t i = 0; i < g->before_count; i++)
        TRY(store_write(a->store, g->before[i], 0, e));
    TRY(store_write(a->store, g->batch, 1, e));
    errnum = fault_point("daemon.persist.after");
    return errnum ? err_errno(e, ST_ENV, errnum, "cannot write to the store") : ST_OK;
}

static void *writer(void *arg)
{
    struct apply *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->stop && (!a->work || a->finished))
            pthread_cond_wait(&a->wake, &a->lock);
        if (a->stop)
            break;
        struct group *g = a->work;
        pthread_mutex_unlock(&a->lock);
        struct err e = {0};
        uint64_t begin = clock_ns();
        enum status st = write_group(a, g, &e);
        uint64_t took = (clock_ns() - begin) / 1000;
        pthread_mutex_lock(&a->lock);
        a->outcome = st;
        a->failure = e;
        a->finished = 1;
        a->figures.groups++;
        a->figures.rows += store_batch_count(g->batch);
        a->figures.last_sync_us = took;
        a->figures.sync_us += took;
        uv_async_send(&a->done);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Groups --------------------------------------------------------------------------------------------------------------------------- */

static struct out *out(struct apply *a, enum out_kind kind)
{
    struct group *g = a->open;
    if (mem_grow((void **)&g->outs, &g->out_cap, g->out_count, sizeof *g->outs))
        no_memory(a);
    struct out *o = &g->outs[g->out_count++];
    *o = (struct out){.kind = kind};
    return o;
}

static void put_job_later(struct apply *a, const struct job_row *row)
{
    struct group *g = a->open;
    size_t i = 0;
    while (i < g->row_count && g->rows[i].id != row->id)
        i++;
    if (i == g->row_count) {
        if (mem_grow((void **)&g->rows, &g->row_cap, g->row_count, sizeof *g->rows))
            no_memory(a);
        g->row_count++;
    }
    g->rows[i] = *row;
}

static void forget_job_row(struct group *g, uint64_t job)
{
    for (size_t i = 0; i < g->row_count; i++)
        if (g->rows[i].id == job)
            g->rows[i] = g->rows[--g->row_count];
}

static void add_event(struct apply *a, uint64_t id, const char *text)
{
    struct job *j = job_find(a->d, id);
    if (!j)
        return; /* the last word on a job that goes in this very step */
    char named[512];
    rows_add_event(a->open->batch, id, j->next_event++, clock_wall_ms(), a->d->link ? link_name_workers(a->d->link, text, named, sizeof named) : text);
    log_info("job %" PRIu64 ": %s", id, text);
    if (j->next_event % TRIM_EVERY == 0) {
        struct group *g = a->open;
        if (mem_grow((void **)&g->trims, &g->trim_cap, g->trim_count, sizeof *g->trims))
            no_memory(a);
        g->trims[g->trim_count++] = id;
    }
}

static void apply_action(struct apply *a, const struct sched_action *x)
{
    struct store_batch *b = a->open->batch;
    struct out *o;
    switch (x->kind) {
    case SCHED_DO_PUT_JOB:
        put_job_later(a, &x->u.job);
        if (x->u.job.state == JOB_DONE || x->u.job.state == JOB_CANCELED)
            out(a, OUT_OVER)->job = x->u.job.id;
        return;
    case SCHED_DO_DEL_JOB:
        forget_job_row(a->open, x->job);
        rows_del_job(b, x->job);
        out(a, OUT_GONE)->job = x->job;
        return;
    case SCHED_DO_PUT_SPAN:
        rows_put_span(b, x->job, &x->u.span);
        return;
    case SCHED_DO_DEL_SPAN:
        rows_del_span(b, x->job, x->u.span.span.begin);
        return;
    case SCHED_DO_PUT_EXTENT:
        rows_put_extent(b, x->job, &x->u.extent);
        metrics_add(METRIC_RECORDS, x->u.extent.records);
        metrics_add(METRIC_ERRORS, x->u.extent.errors);
        metrics_add(METRIC_BYTES, x->u.extent.bytes);
        return;
    case SCHED_DO_ADD_EVENT:
        add_event(a, x->job, x->u.text);
        return;
    case SCHED_DO_WAKE:
        loop_wake_at(a->d, x->u.wake_ms);
        return;
    case SCHED_DO_SEND_LEASE:
        job_leased(a->d, x->job, x->worker);
        o = out(a, OUT_LEASE);
        o->u.lease.span = x->u.lease.span;
        o->u.lease.probe = x->u.lease.probe;
        metrics_add(METRIC_LEASES, 1);
        break;
    case SCHED_DO_SEND_CUT:
        o = out(a, OUT_CUT);
        o->u.at = x->u.cut_at;
        break;
    case SCHED_DO_SEND_REVOKE:
        o = out(a, OUT_REVOKE);
        break;
    case SCHED_DO_SEND_ACK:
        o = out(a, OUT_ACK);
        o->u.ack.seq = x->u.ack.seq;
        o->u.ack.verdict = x->u.ack.verdict;
        o->u.ack.came_ns = a->d->commit_ns;
        metrics_add(x->u.ack.verdict == ACK_DONE ? METRIC_COMMITS : x->u.ack.verdict == ACK_STALE ? METRIC_COMMITS_STALE : METRIC_COMMITS_REFUSED, 1);
        break;
    case SCHED_DO_SEND_DRAIN:
        o = out(a, OUT_DRAIN);
        break;
    case SCHED_DO_SEND_PROFILE:
        o = out(a, OUT_PROFILE);
        break;
    case SCHED_DO_SEND_STAGE:
    case SCHED_DO_SEND_STAGE_GO:
        o = out(a, x->kind == SCHED_DO_SEND_STAGE ? OUT_STAGE : OUT_STAGE_GO);
        o->u.stage.gang = x->u.stage.gang;
        o->u.stage.head = x->u.stage.head;
        o->u.stage.cut = x->u.stage.cut;
        o->u.stage.count = x->u.stage.count;
        memcpy(o->u.stage.members, x->u.stage.members, x->u.stage.count * sizeof *x->u.stage.members);
        if (x->kind == SCHED_DO_SEND_STAGE && x->u.stage.count && x->u.stage.cut > 1 && x->worker == x->u.stage.members[0].worker)
            metrics_add(METRIC_RECUTS, 1);
        break;
    case SCHED_DO_KILL_WORKER:
        o = out(a, OUT_KILL);
        o->u.text = mem_strdup(x->u.text);
        if (!o->u.text)
            no_memory(a);
        break;
    case SCHED_DO_WANT_WORKERS:
        o = out(a, OUT_WANT);
        o->u.want.provider = x->u.want.provider;
        o->u.want.workers = x->u.want.workers;
        break;
    case SCHED_DO_PUBLISH:
        o = out(a, OUT_PUBLISH);
        break;
    default:
        BUG("the core asks for action %d", (int)x->kind);
    }
    o->job = x->job;
    o->worker = x->worker;
    o->epoch = x->epoch;
}

void apply_update(struct apply *a, const struct sched_update *u)
{
    for (size_t i = 0; i < u->count; i++)
        apply_action(a, &u->actions[i]);
}

struct store_batch *apply_batch(struct apply *a)
{
    return a->open->batch;
}

struct store *apply_store(struct apply *a)
{
    return a->store;
}

void apply_before(struct apply *a, struct store_batch *b)
{
    struct group *g = a->open;
    if (mem_grow((void **)&g->before, &g->before_cap, g->before_count, sizeof *g->before))
        no_memory(a);
    g->before[g->before_count++] = b;
}

void apply_reply(struct apply *a, const struct sock_peer *client, uint64_t id, enum status code, char *json, int more)
{
    struct out *o = out(a, OUT_REPLY);
    o->u.reply.client = *client;
    o->u.reply.id = id;
    o->u.reply.code = code;
    o->u.reply.json = json;
    o->u.reply.more = more;
}

void apply_call(struct apply *a, void (*fn)(void *arg, int safe), void *arg)
{
    struct out *o = out(a, OUT_CALL);
    o->u.call.fn = fn;
    o->u.call.arg = arg;
}

static int has_rows(const struct group *g)
{
    return store_batch_count(g->batch) || g->row_count || g->before_count;
}

static void group_clear(struct group *g)
{
    if (g->batch)
        store_batch_clear(g->batch);
    for (size_t i = 0; i < g->before_count; i++)
        store_batch_free(g->before[i]);
    g->before_count = g->row_count = g->trim_count = g->out_count = 0;
}

/* Sending ------------------------------------------------------------------------------------------------------------------------- */

static void send_out(struct apply *a, struct out *o)
{
    struct daemon *d = a->d;
    fault_point("daemon.send.before");
    switch (o->kind) {
    case OUT_LEASE:
        link_send_lease(d->link, o->worker, o->job, o->epoch, o->u.lease.span, o->u.lease.probe);
        break;
    case OUT_CUT:
        link_send_cut(d->link, o->worker, o->epoch, o->u.at);
        break;
    case OUT_REVOKE:
        link_send_revoke(d->link, o->worker, o->epoch);
        break;
    case OUT_ACK:
        link_send_ack(d->link, o->worker, o->epoch, o->u.ack.seq, o->u.ack.verdict);
        if (o->u.ack.came_ns)
            metrics_commit_acked(clock_ns() - o->u.ack.came_ns);
        break;
    case OUT_DRAIN:
        link_send_drain(d->link, o->worker);
        provider_leaving(d, o->worker);
        break;
    case OUT_PROFILE:
        link_send_profile(d->link, o->worker, o->job);
        break;
    case OUT_STAGE:
        link_send_stage(d->link, o->worker, o->job, o->u.stage.gang, o->u.stage.cut, o->u.stage.head, o->u.stage.members, o->u.stage.count);
        break;
    case OUT_STAGE_GO:
        link_send_stage_go(d->link, o->worker, o->u.stage.gang, o->u.stage.cut);
        break;
    case OUT_KILL:
        provider_kill(d, o->worker, o->u.text);
        mem_free(o->u.text);
        break;
    case OUT_WANT:
        provider_want(d, o->u.want.provider, o->u.want.workers);
        break;
    case OUT_PUBLISH:
        publish_finish(d->publish, o->job);
        break;
    case OUT_HEAD:
        publish_head(d->publish, o->job, o->u.at);
        break;
    case OUT_OVER:
        link_forget_job(d->link, o->job);
        break;
    case OUT_GONE:
        link_forget_job(d->link, o->job);
        job_gone(d, o->job);
        break;
    case OUT_REPLY:
        link_send_reply(d->link, &o->u.reply.client, o->u.reply.id, o->u.reply.code, o->u.reply.json, o->u.reply.more);
        mem_free(o->u.reply.json);
        break;
    case OUT_CALL:
        o->u.call.fn(o->u.call.arg, 1);
        break;
    }
    fault_point("daemon.send.after");
}

static void send_group(struct apply *a, struct group *g)
{
    /* What is sent may put something into the open group, never into this one. */
    for (size_t i = 0; i < g->out_count; i++)
        send_out(a, &g->outs[i]);
    group_clear(g);
}

/* The rows of jobs go in, once each; how far each job's output could be assembled is noted, to be told when that is safe. */
static void group_close(struct apply *a)
{
    struct group *g = a->open;
    for (size_t i = 0; i < g->row_count; i++) {
        const struct job_row *row = &g->rows[i];
        rows_put_job(g->batch, row);
        struct sched_job_view v;
        if (row->state == JOB_RUNNING && a->d->core && sched_job_view(a->d->core, row->id, &v)) {
            struct out *o = out(a, OUT_HEAD);
            o->job = row->id;
            o->u.at = v.head;
        }
    }
    g->row_count = 0;
}

void apply_flush(struct apply *a)
{
    while (!a->flying && a->d->core) {
        struct group *g = a->open;
        if (!has_rows(g) && !g->out_count)
            return;
        int rows = has_rows(g);
        if (rows)
            group_close(a);
        a->open = g == &a->groups[0] ? &a->groups[1] : &a->groups[0];
        if (!rows) {
            send_group(a, g);
            continue;
        }
        a->flying = g;
        pthread_mutex_lock(&a->lock);
        a->work = g;
        a->finished = 0;
        pthread_cond_signal(&a->wake);
        pthread_mutex_unlock(&a->lock);
    }
}

static void on_done(uv_async_t *handle)
{
    struct apply *a = handle->data;
    pthread_mutex_lock(&a->lock);
    int finished = a->finished && a->work;
    enum status st = a->outcome;
    struct err failure = a->failure;
    if (finished)
        a->work = NULL;
    pthread_mutex_unlock(&a->lock);
    if (!finished)
        return;
    struct group *g = a->flying;
    a->flying = NULL;
    if (st != ST_OK) {
        a->flying = g; /* for apply_discard */
        loop_store_failed(a->d, &failure);
        return;
    }
    send_group(a, g);
    apply_flush(a);
}

int apply_idle(const struct apply *a)
{
    return !a->flying && !has_rows(a->open) && !a->open->out_count;
}

static void discard(struct apply *a, struct group *g)
{
    char *lost = NULL;
    for (size_t i = 0; i < g->out_count; i++) {
        struct out *o = &g->outs[i];
        if (o->kind == OUT_KILL)
            mem_free(o->u.text);
        if (o->kind == OUT_CALL)
            o->u.call.fn(o->u.call.arg, 0);
        if (o->kind != OUT_REPLY)
            continue;
        mem_free(o->u.reply.json);
        lost = mem_strdup("{\"error\": \"the store could not be written and is being opened anew; what was asked may not have been done: ask again\"}");
        link_send_reply(a->d->link, &o->u.reply.client, o->u.reply.id, ST_AGAIN, lost, 0);
        mem_free(lost);
    }
    group_clear(g);
}

void apply_discard(struct apply *a)
{
    struct group *first = a->flying, *second = a->open;
    a->flying = NULL;
    if (first)
        discard(a, first);
    discard(a, second);
}

/* Opening and closing ---------------------------------------------------------------------------------------------------------------- */

static void batches_free(struct apply *a)
{
    for (int i = 0; i < 2; i++) {
        group_clear(&a->groups[i]);
        if (a->groups[i].batch)
            store_batch_free(a->groups[i].batch);
        a->groups[i].batch = NULL;
    }
}

static enum status open_store(struct apply *a, struct err *e)
{
    TRY(store_open(a->dir, &a->store, e));
    enum status st = ST_OK;
    for (int i = 0; i < 2 && st == ST_OK; i++)
        st = store_batch_new(a->store, &a->groups[i].batch, e);
    if (st != ST_OK) {
        batches_free(a);
        store_close(a->store);
        a->store = NULL;
    }
    return st;
}

enum status apply_open(struct daemon *d, struct err *e)
{
    struct apply *a = mem_zalloc(sizeof *a);
    if (!a || !(a->dir = path_join(d->config->state_dir, "store"))) {
        mem_free(a);
        return err_nomem(e, "the store");
    }
    a->d = d;
    a->open = &a->groups[0];
    enum status st = open_store(a, e);
    if (st != ST_OK) {
        mem_free(a->dir);
        mem_free(a);
        return st;
    }
    pthread_rwlock_init(&a->readers, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->wake, NULL);
    uv_async_init(&d->uv, &a->done, on_done);
    a->done.data = a;
    int failed = pthread_create(&a->thread, NULL, writer, a);
    BUG_IF(failed, "cannot start the store's thread: %s", strerror(failed));
    d->apply = a;
    return ST_OK;
}

enum status apply_reopen(struct apply *a, struct err *e)
{
    if (pthread_rwlock_trywrlock(&a->readers))
        return err_set(e, ST_AGAIN, "the store is being read");
    batches_free(a);
    if (a->store)
        store_close(a->store);
    a->store = NULL;
    enum status st = open_store(a, e);
    pthread_rwlock_unlock(&a->readers);
    return st;
}

struct store *apply_read_begin(struct apply *a)
{
    pthread_rwlock_rdlock(&a->readers);
    if (a->store)
        return a->store;
    pthread_rwlock_unlock(&a->readers);
    return NULL;
}

void apply_read_end(struct apply *a)
{
    pthread_rwlock_unlock(&a->readers);
}

static void on_closed(uv_handle_t *h)
{
    mem_free(h->data);
}

void apply_close(struct daemon *d)
{
    struct apply *a = d->apply;
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    batches_free(a);
    for (int i = 0; i < 2; i++) {
        mem_free(a->groups[i].before);
        mem_free(a->groups[i].rows);
        mem_free(a->groups[i].trims);
        mem_free(a->groups[i].outs);
    }
    if (a->store)
        store_close(a->store);
    pthread_rwlock_destroy(&a->readers);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
    mem_free(a->dir);
    d->apply = NULL;
    uv_close((uv_handle_t *)&a->done, on_closed);
}

void apply_figures(const struct apply *a, struct apply_figures *out_figures)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&a->lock;
    pthread_mutex_lock(lock);
    *out_figures = a->figures;
    pthread_mutex_unlock(lock);
}
