/* Verbs that read the disk: a thread does it, and the loop answers. It must not hold the loop up, nor read more than it sends. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "daemon/api.h"
#include "daemon/apply.h"
#include "daemon/auth.h"
#include "daemon/call.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/local.h"
#include "daemon/provider.h"
#include "daemon/words.h"
#include "storage/reader.h"

#define PAGE_ROWS 500 /* error rows in one reply */
#define PAGES_AHEAD 4 /* pages that wait to be sent: a slow client slows the reader, not the daemon */

struct page {
    struct page *next;
    char *json;
};

struct task {
    struct call call;
    struct job *job; /* held */
    void (*run)(struct task *t);
    void (*done)(struct task *t); /* on the loop, when run came to ST_OK */
    uv_work_t work;
    json_t *out;
    enum status st;
    struct err e;
    /* errors */
    uint64_t limit, total, sent;
    const char *code;
    json_t *rows;
    /* retry */
    struct span *spans;
    size_t span_count, quarantined, index;
    struct dataset dataset;
    /* pages from the thread to the loop */
    uv_async_t async;
    int streams;
    pthread_mutex_t lock;
    pthread_cond_t room;
    struct page *pages, **pages_end;
    size_t waiting;
    int client_gone;
};

static void task_free(struct task *t)
{
    for (struct page *p = t->pages, *next; p; p = next) {
        next = p->next;
        mem_free(p->json);
        mem_free(p);
    }
    if (t->streams) {
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->room);
    }
    if (t->job)
        job_release(t->job);
    json_decref(t->rows);
    json_decref(t->out);
    json_decref(t->call.in);
    mem_free(t->spans);
    dataset_release(&t->dataset);
    mem_free(t);
}

static void send_pages(struct task *t)
{
    pthread_mutex_lock(&t->lock);
    struct page *p = t->pages;
    t->pages = NULL;
    t->pages_end = &t->pages;
    t->waiting = 0;
    int gone = t->client_gone;
    pthread_cond_signal(&t->room);
    pthread_mutex_unlock(&t->lock);
    for (struct page *next; p; p = next) {
        next = p->next;
        if (!gone && !link_send_reply(t->call.d->link, &t->call.client, t->call.id, ST_OK, p->json, 1)) {
            gone = 1;
            pthread_mutex_lock(&t->lock);
            t->client_gone = 1;
            pthread_mutex_unlock(&t->lock);
        }
        mem_free(p->json);
        mem_free(p);
    }
}

static void on_pages(uv_async_t *h)
{
    send_pages(h->data);
}

static void on_task_closed(uv_handle_t *h)
{
    task_free(h->data);
}

static void task_run(uv_work_t *work)
{
    struct task *t = work->data;
    t->run(t);
}

static void task_done(uv_work_t *work, int status)
{
    (void)status;
    struct task *t = work->data;
    if (t->streams)
        send_pages(t);
    if (t->st == ST_OK && !t->call.d->core)
        t->st = err_set(&t->e, ST_AGAIN, "the store is being opened anew; ask again");
    if (t->st != ST_OK)
        api_refuse(t->call.d, &t->call.client, t->call.id, &t->e);
    else
        t->done(t);
    t->call.d->client_ms = clock_ms();
    if (t->streams)
        uv_close((uv_handle_t *)&t->async, on_task_closed);
    else
        task_free(t);
}

static struct task *task_new(struct call *c, struct job *j, void (*run)(struct task *t), void (*done)(struct task *t))
{
    struct task *t = mem_zalloc(sizeof *t);
    if (!t) {
        call_answer(c, NULL);
        return NULL;
    }
    t->call = *c;
    json_incref(c->in);
    t->job = j ? job_hold(j) : NULL;
    t->run = run;
    t->done = done;
    t->work.data = t;
    return t;
}

static void task_start(struct task *t)
{
    uv_queue_work(&t->call.d->uv, &t->work, task_run, task_done);
}

static void answer_out(struct task *t)
{
    json_t *o = t->out;
    t->out = NULL;
    call_answer(&t->call, o);
}

/* job ---------------------------------------------------------------------------------------------------------------------------------- */

static enum status add_file(json_t *files, const char *dir, const char *name, struct err *e)
{
    char *path = dir ? path_join(dir, name) : mem_strdup(name);
    if (!path)
        return err_nomem(e, "files");
    int failed = path_exists(path) && json_array_append_new(files, json_string(path));
    mem_free(path);
    return failed ? err_nomem(e, "files") : ST_OK;
}

/* The visible outputs: those that the manifest names; before it is there, those that are being made. */
static enum status list_files(const struct job *j, json_t *files, struct err *e)
{
    char *manifest = mem_printf("%s%s", j->output_path, j->out.is_dir ? "/manifest.json" : ".manifest.json");
    struct buf text = {0};
    struct err ignored;
    enum status st = manifest ? ST_OK : err_nomem(e, "files");
    json_t *m = st == ST_OK && path_read(manifest, (size_t)256 << 20, &text, &ignored) == ST_OK ? json_loadb(text.data, text.len, 0, NULL) : NULL;
    json_t *parts = json_object_get(json_object_get(m, "output"), "files"), *part;
    size_t i;
    if (!j->out.is_dir) {
        st = st == ST_OK ? add_file(files, NULL, j->output_path, e) : st;
    } else {
        json_array_foreach(parts, i, part)
        {
            const char *name = json_string_value(json_object_get(part, "name"));
            if (name && st == ST_OK && !strchr(name, '/'))
                st = add_file(files, j->output_path, name, e);
        }
    }
    static const char *const beside_dir[] = {"errors.jsonl", "manifest.json", "_SUCCESS"};
    static const char *const beside_file[] = {".ids.jsonl", ".errors.jsonl", ".manifest.json", ".partial"};
    for (size_t k = 0; st == ST_OK && j->out.is_dir && k < 3; k++)
        st = add_file(files, j->output_path, beside_dir[k], e);
    for (size_t k = 0; st == ST_OK && !j->out.is_dir && k < 4; k++) {
        char *path = mem_printf("%s%s", j->output_path, beside_file[k]);
        st = path ? add_file(files, NULL, path, e) : err_nomem(e, "files");
        mem_free(path);
    }
    json_decref(m);
    buf_release(&text);
    mem_free(manifest);
    return st;
}

static void run_job(struct task *t)
{
    t->out = json_array();
    t->st = t->out ? list_files(t->job, t->out, &t->e) : err_nomem(&t->e, "files");
}

static void done_job(struct task *t)
{
    json_t *o = api_job(t->call.d, t->job->id), *spec = json_loads(t->job->spec_json, 0, NULL);
    if (!o) {
        json_decref(spec);
        call_refuse(&t->call, ST_NOT_FOUND, "job %" PRIu64 " was removed meanwhile", t->job->id);
        return;
    }
    if (json_object_set_new(o, "spec", spec) || json_object_set(o, "files", t->out)) {
        json_decref(o);
        o = NULL;
    }
    call_answer(&t->call, o);
}

void verb_job(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    if (!j)
        return;
    if (!json_is_true(json_object_get(c->in, "spec"))) {
        call_answer(c, api_job(c->d, j->id));
        return;
    }
    struct task *t = task_new(c, j, run_job, done_job);
    if (t)
        task_start(t);
}

/* errors ------------------------------------------------------------------------------------------------------------------------------ */

static enum status give_page(struct task *t, struct err *e)
{
    struct page *p = mem_zalloc(sizeof *p);
    json_t *o = json_pack("{s:O}", "rows", t->rows);
    if (!p || !(p->json = call_dump(o))) {
        mem_free(p);
        return err_nomem(e, "error rows");
    }
    json_array_clear(t->rows);
    pthread_mutex_lock(&t->lock);
    while (t->waiting >= PAGES_AHEAD && !t->client_gone)
        pthread_cond_wait(&t->room, &t->lock);
    int gone = t->client_gone;
    *t->pages_end = p;
    t->pages_end = &p->next;
    t->waiting++;
    pthread_mutex_unlock(&t->lock);
    uv_async_send(&t->async);
    return gone ? err_set(e, ST_AGAIN, "the client is gone") : ST_OK;
}

static enum status on_error_row(void *arg, const char *json, size_t len, struct err *e)
{
    struct task *t = arg;
    while (len && json[len - 1] == '\n')
        len--;
    if (t->code) {
        json_t *row = json_loadb(json, len, 0, NULL);
        const char *code = json_string_value(json_object_get(row, "code"));
        int other = !code || strcmp(code, t->code);
        json_decref(row);
        if (other)
            return ST_OK;
    }
    t->total++;
    if (t->limit && t->sent >= t->limit)
        return ST_OK; /* only counted */
    t->sent++;
    if (json_array_append_new(t->rows, json_stringn(json, len)))
        return err_nomem(e, "error rows");
    return json_array_size(t->rows) >= PAGE_ROWS ? give_page(t, e) : ST_OK;
}

/* The dataset of a job that is over must be read again. */
static enum status dataset_of(struct task *t, const struct dataset **out, struct err *e)
{
    *out = &t->job->dataset;
    if (t->job->has_sources)
        return ST_OK;
    *out = &t->dataset;
    return job_dataset(t->call.d->apply, t->job, &t->dataset, e);
}

static void run_errors(struct task *t)
{
    const struct dataset *d;
    t->st = dataset_of(t, &d, &t->e);
    if (t->st != ST_OK)
        return;
    struct store *s = apply_read_begin(t->call.d->apply);
    if (!s) {
        t->st = err_set(&t->e, ST_AGAIN, "the store is being opened anew; ask again");
        return;
    }
    t->st = assembly_each_error(&t->job->out, t->job->id, d, s, on_error_row, t, &t->e);
    apply_read_end(t->call.d->apply);
}

static void done_errors(struct task *t)
{
    call_answer(&t->call, json_pack("{s:O, s:I}", "rows", t->rows, "total", (json_int_t)t->total));
}

void verb_errors(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    struct task *t = j ? task_new(c, j, run_errors, done_errors) : NULL;
    if (!t)
        return;
    json_int_t limit = json_integer_value(json_object_get(c->in, "limit"));
    t->limit = limit > 0 ? (uint64_t)limit : 0;
    t->code = json_string_value(json_object_get(t->call.in, "code"));
    t->rows = json_array();
    t->pages_end = &t->pages;
    t->streams = 1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->room, NULL);
    uv_async_init(&c->d->uv, &t->async, on_pages);
    t->async.data = t;
    task_start(t);
}

/* events ------------------------------------------------------------------------------------------------------------------------------ */

static enum status on_event(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e)
{
    (void)number;
    struct task *t = arg;
    return json_array_append_new(t->rows, json_pack("{s:I, s:o}", "at_ms", (json_int_t)wall_ms, "text", words_json(text))) ? err_nomem(e, "events") : ST_OK;
}

static void run_events(struct task *t)
{
    struct store *s = apply_read_begin(t->call.d->apply);
    t->rows = json_array();
    if (!s) {
        t->st = err_set(&t->e, ST_AGAIN, "the store is being opened anew; ask again");
        return;
    }
    t->st = t->rows ? rows_each_event(s, t->job->id, on_event, t, &t->e) : err_nomem(&t->e, "events");
    apply_read_end(t->call.d->apply);
    if (t->st == ST_OK)
        t->out = json_pack("{s:O}", "events", t->rows);
}

void verb_events(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    struct task *t = j ? task_new(c, j, run_events, answer_out) : NULL;
    if (t)
        task_start(t);
}

/* retry ------------------------------------------------------------------------------------------------------------------------------- */

struct codes {
    uint8_t *quarantined; /* one a row of errors, in order */
    size_t count, cap;
};

static enum status on_code(void *arg, const char *json, size_t len, struct err *e)
{
    struct codes *c = arg;
    json_t *row = json_loadb(json, len, 0, NULL);
    const char *code = json_string_value(json_object_get(row, "code"));
    int failed = mem_grow((void **)&c->quarantined, &c->cap, c->count, 1);
    if (!failed)
        c->quarantined[c->count++] = code && (strcmp(code, record_error_code(RECORD_CRASHED)) == 0 || strcmp(code, record_error_code(RECORD_HUNG)) == 0 ||
                                              strcmp(code, record_error_code(RECORD_OUT_OF_MEMORY)) == 0);
    json_decref(row);
    return failed ? err_nomem(e, "a retry") : ST_OK;
}

/* Those that were quarantined come first: they run alone again. */
static enum status sort_spans(struct task *t, const struct dataset *d, struct err *e)
{
    struct codes codes = {0};
    struct store *s = apply_read_begin(t->call.d->apply);
    if (!s)
        return err_set(e, ST_AGAIN, "the store is being opened anew; ask again");
    enum status st = assembly_each_error(&t->job->out, t->job->id, d, s, on_code, &codes, e);
    apply_read_end(t->call.d->apply);
    struct span *sorted = st == ST_OK ? mem_array(t->span_count, sizeof *sorted) : NULL;
    if (st == ST_OK && !sorted)
        st = err_nomem(e, "a retry");
    if (st == ST_OK && codes.count != t->span_count)
        st = err_set(e, ST_CORRUPT, "'%s' names %zu records in error and its index %zu: the files were changed", t->job->output_path, codes.count, t->span_count);
    size_t n = 0;
    for (int round = 1; st == ST_OK && round >= 0; round--) {
        for (size_t i = 0; i < t->span_count; i++)
            if (codes.quarantined[i] == round)
                sorted[n++] = t->spans[i];
        if (round)
            t->quarantined = n;
    }
    if (st == ST_OK) {
        mem_free(t->spans);
        t->spans = sorted;
    } else {
        mem_free(sorted);
    }
    mem_free(codes.quarantined);
    return st;
}

static void run_retry(struct task *t)
{
    const struct dataset *d;
    struct buf claim = {0};
    t->st = output_owner(&t->job->out, &claim, &t->e);
    json_t *owner = t->st == ST_OK ? json_loadb(claim.data, claim.len, 0, NULL) : NULL;
    if (t->st == ST_NOT_FOUND || (t->st == ST_OK && (uint64_t)json_integer_value(json_object_get(owner, "job")) != t->job->id))
        t->st = err_set(&t->e, ST_USER, "'%s' is not the output of job %" PRIu64 " any more: submit the job again instead", t->job->output_path, t->job->id);
    json_decref(owner);
    buf_release(&claim);
    if (t->st == ST_OK)
        t->st = dataset_of(t, &d, &t->e);
    if (t->st == ST_OK)
        t->st = assembly_error_spans(&t->job->out, &t->spans, &t->span_count, &t->e);
    if (t->st == ST_OK && t->span_count)
        t->st = sort_spans(t, d, &t->e);
}

static void done_retry(struct task *t)
{
    struct job *j = t->job;
    struct sched_event ev = {.job = j->id};
    if (!t->span_count) {
        json_t *o = api_job(t->call.d, j->id);
        if (o)
            json_object_set_new(o, "retried", json_integer(0));
        call_answer(&t->call, o);
        return;
    }
    ev.u.control.spans = t->spans;
    ev.u.control.span_count = t->span_count;
    ev.u.control.quarantined_count = t->quarantined;
    int had = j->has_sources;
    if (!had) {
        j->dataset = t->dataset;
        j->has_sources = 1;
        t->dataset = (struct dataset){0};
    }
    j->fraction_shown = 0;
    if (!call_control(&t->call, &ev, VERB_RETRY))
        return;
    json_t *o = api_job(t->call.d, j->id);
    if (o && json_object_set_new(o, "retried", json_integer((json_int_t)t->span_count))) {
        json_decref(o);
        o = NULL;
    }
    call_answer(&t->call, o);
}

void verb_retry(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    if (!j)
        return;
    if (v.row->state != JOB_DONE) {
        call_refuse(c, ST_USER, "job %" PRIu64 " is %s; only a job that is done can be retried%s", j->id, job_state_word(v.row->state),
               v.row->state == JOB_HELD ? ": 'ebb resume' lets it go on" : "");
        return;
    }
    struct task *t = task_new(c, j, run_retry, done_retry);
    if (t)
        task_start(t);
}

/* doctor ------------------------------------------------------------------------------------------------------------------------------ */

static int check(json_t *list, const char *name, int ok, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int check(json_t *list, const char *name, int ok, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return json_array_append_new(list, json_pack("{s:s, s:b, s:o}", "name", name, "ok", ok, "text", words_json(text)));
}

static void run_doctor(struct task *t)
{
    struct daemon *d = t->call.d;
    const struct config *c = d->config;
    json_t *list = t->rows;
    uint64_t free_bytes = 0;
    char units[UNITS_MAX], least[UNITS_MAX];
    struct err e;
    struct apply_figures figures;
    int failed = list == NULL;
    if (path_free_bytes(c->state_dir, &free_bytes, &e) == ST_OK)
        failed |= check(list, "disk", free_bytes >= c->min_free, "%s free for '%s' (work is given out above %s)", units_bytes(units, free_bytes),
                        c->state_dir, units_bytes(least, c->min_free));
    else
        failed |= check(list, "disk", 0, "%s", e.text);
    apply_figures(d->apply, &figures);
    failed |= check(list, "store", 1, "%" PRIu64 " syncs of %" PRIu64 " rows since the start, the last took %.1f ms", figures.groups, figures.rows,
                    (double)figures.last_sync_us / 1000);
    failed |= check(list, "sockets", 1, "%s, %s", d->clients_endpoint, d->workers_endpoint);
    const char *program = local_program(d->local);
    failed |= check(list, "worker program", *program || !c->workers, "%s", *program ? program : "'ebb-worker' is neither beside ebbd nor on the PATH");
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    failed |= check(list, "libraries", 1, "ZeroMQ %d.%d.%d, libuv %s, jansson %s", major, minor, patch, uv_version_string(), jansson_version_str());
    struct utsname u;
    if (uname(&u) == 0)
        failed |= check(list, "system", 1, "%s %s, %u processors for workers", u.sysname, u.release, host_processors());
    t->st = failed ? err_nomem(&t->e, "checks") : ST_OK;
    if (t->st == ST_OK)
        t->out = json_pack("{s:O}", "checks", list);
}

static void add_check(void *arg, const char *name, int ok, const char *text)
{
    json_t *o = json_pack("{s:s, s:b, s:o}", "name", name, "ok", ok, "text", words_json(text));
    if (o) /* memory is out: the others tell */
        json_array_append_new(arg, o);
}

void verb_doctor(struct call *c)
{
    struct task *t = task_new(c, NULL, run_doctor, answer_out);
    if (!t)
        return;
    t->rows = json_array();
    if (t->rows)
        provider_examine(c->d, add_check, t->rows); /* here: the thread must not look at them */
    if (t->rows)
        auth_examine(c->d, add_check, t->rows);
    task_start(t);
}
