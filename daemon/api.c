/* One function a verb. What the loop knows is answered at once, behind what the open group holds; what needs the disk is done by a
   thread: it must not hold the loop up, nor read more than it sends. */
#include "daemon/api.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "base/units.h"
#include "daemon/apply.h"
#include "daemon/guard.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/local.h"
#include "daemon/publish.h"
#include "daemon/words.h"
#include "storage/reader.h"

#define PAGE_ROWS 500 /* error rows in one reply */
#define PAGES_AHEAD 4 /* pages that wait to be sent: a slow client slows the reader, not the daemon */

struct call {
    struct daemon *d;
    struct sock_peer client;
    uint64_t id;
    json_t *in;
};

/* Answers ------------------------------------------------------------------------------------------------------------------------- */

static char *dump(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    char *copy = text ? mem_strdup(text) : NULL; /* jansson has its own allocator */
    free(text);
    json_decref(o);
    return copy;
}

static void answer_with(struct daemon *d, const struct sock_peer *client, uint64_t id, enum status code, json_t *o, int more)
{
    char *text = dump(o);
    if (!text) {
        struct err e;
        err_nomem(&e, "an answer");
        loop_fatal(d, &e);
        return;
    }
    if (d->core)
        apply_reply(d->apply, client, id, code, text, more);
    else {
        link_send_reply(d->link, client, id, code, text, more);
        mem_free(text);
    }
}

void api_answer(struct daemon *d, const struct sock_peer *client, uint64_t id, json_t *object)
{
    answer_with(d, client, id, ST_OK, object, 0);
}

void api_refuse(struct daemon *d, const struct sock_peer *client, uint64_t id, const struct err *e)
{
    answer_with(d, client, id, e->code, json_pack("{s:o}", "error", words_json(e->text)), 0);
}

static void refuse(struct call *c, enum status code, const char *fmt, ...) PRINTF(3, 4);
static void refuse(struct call *c, enum status code, const char *fmt, ...)
{
    struct err e = {.code = code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    api_refuse(c->d, &c->client, c->id, &e);
}

static void answer(struct call *c, json_t *o)
{
    api_answer(c->d, &c->client, c->id, o);
}

/* JOB ------------------------------------------------------------------------------------------------------------------------------ */

static const char *const state_words[] = {
#define X(name, word, over) [JOB_##name] = word,
    JOB_STATE_MAP(X)
#undef X
};

static json_t *number_or_null(int known, double v)
{
    return known && isfinite(v) ? json_real(v) : json_null();
}

/* A percentage never goes back, though a retry takes records back and guesses of compressed sources improve. */
static double fraction(struct job *j, const struct sched_job_view *v)
{
    double f = v->bytes_total ? (double)v->row->counts.bytes / (double)v->bytes_total : 1;
    if (v->row->state == JOB_DONE)
        f = 1;
    else if (f > 0.9999 && v->spans_ready + v->spans_leased)
        f = 0.9999;
    if (f > 1)
        f = 1;
    if (f > j->fraction_shown)
        j->fraction_shown = f;
    return j->fraction_shown;
}

json_t *api_job(struct daemon *d, uint64_t id)
{
    struct sched_job_view v;
    struct job *j = job_find(d, id);
    if (!j || !d->core || !sched_job_view(d->core, id, &v))
        return NULL;
    const struct job_row *r = v.row;
    const struct job_counts *c = &r->counts;
    double f = fraction(j, &v), left = v.bytes_per_s > 0 ? ((double)v.bytes_total - (double)c->bytes) / v.bytes_per_s : 0;
    int running = r->state == JOB_RUNNING, worth = running && v.bytes_per_s > 0 && (f > 0.005 || c->extents > 3);
    int guess = f > 0.001 && c->records > 100;
    double total = r->state == JOB_DONE ? (double)c->records : f > 0 ? (double)c->records / f : 0;
    char waits[400];
    snprintf(waits, sizeof waits, "%s", v.waits_for);
    if (running && !v.workers && *local_trouble(d->local))
        snprintf(waits, sizeof waits, "%s", local_trouble(d->local));
    uint32_t most = r->params.max_workers, wanted = running ? d->wanted : 0;
    if (most && wanted > most)
        wanted = most;
    json_t *o = json_pack("{s:I, s:s, s:s, s:o, s:o, s:I, s:o, s:s, s:I, s:I, s:f, s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:I, s:I}", "job",
                          (json_int_t)id, "name", j->name, "state", state_words[r->state], "reason", words_json(r->reason), "waits_for", words_json(waits), "attempt",
                          (json_int_t)r->attempt, "model", words_json(path_base(j->spec.model)), "output", j->output_path, "bytes_total", (json_int_t)v.bytes_total,
                          "bytes_done", (json_int_t)c->bytes, "fraction", f, "records_done", (json_int_t)c->records, "records_guess",
                          number_or_null(guess, floor(total + 0.5)), "rows", (json_int_t)c->rows, "errors", (json_int_t)c->errors, "quarantined",
                          (json_int_t)c->quarantined, "redone", (json_int_t)c->redone, "records_per_s", v.records_per_s, "bytes_per_s", v.bytes_per_s,
                          "seconds_left", number_or_null(worth, left > 0 ? left : 0), "workers", (json_int_t)v.workers, "workers_wanted",
                          (json_int_t)wanted);
    json_t *more = json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:I}", "submitted_ms", (json_int_t)r->submitted_ms, "finished_ms",
                             (json_int_t)r->finished_ms, "sources", (json_int_t)j->source_count, "format", format_name(j->format), "precision",
                             j->spec.precision, "numerics", j->numerics, "dims", (json_int_t)j->dims);
    if (!o || !more || json_object_update(o, more)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    return o;
}

/* The job that the request names, or a refusal. */
static struct job *named_job(struct call *c, struct sched_job_view *v)
{
    json_t *n = json_object_get(c->in, "job");
    if (!json_is_integer(n)) {
        refuse(c, ST_USER, "the request names no job");
        return NULL;
    }
    uint64_t id = (uint64_t)json_integer_value(n);
    struct job *j = job_find(c->d, id);
    if (!j || !sched_job_view(c->d->core, id, v)) {
        refuse(c, ST_NOT_FOUND, "there is no job %" PRIu64 "; 'ebb jobs --all' lists those there are", id);
        return NULL;
    }
    return j;
}

/* Verbs that the loop answers ------------------------------------------------------------------------------------------------------- */

static void verb_hello(struct call *c)
{
    struct daemon *d = c->d;
    answer(c, json_pack("{s:s, s:i, s:I, s:i, s:b, s:s, s:s}", "program", "ebbd " EBBD_VERSION, "version", WIRE_VERSION, "generation",
                        (json_int_t)d->generation, "pid", (int)getpid(), "private", d->config->is_private, "state_dir", d->config->state_dir, "host",
                        d->host));
}

static void verb_submit(struct call *c)
{
    if (c->d->phase != LOOP_RUNNING) {
        refuse(c, ST_AGAIN, "the daemon is about to end and takes no new jobs");
        return;
    }
    job_submit(c->d, &c->client, c->id, c->in);
}

static void verb_jobs(struct call *c)
{
    int all = json_is_true(json_object_get(c->in, "all"));
    json_t *list = json_array();
    for (size_t i = 0; list && i < sched_job_count(c->d->core); i++) {
        struct sched_job_view v;
        uint64_t id = sched_job_at(c->d->core, i);
        if (!sched_job_view(c->d->core, id, &v) || (!all && (v.row->state == JOB_DONE || v.row->state == JOB_CANCELED)))
            continue;
        if (json_array_append_new(list, api_job(c->d, id))) {
            json_decref(list);
            list = NULL;
        }
    }
    answer(c, list ? json_pack("{s:o}", "jobs", list) : NULL);
}

static int advise(json_t *list, const char *fmt, uint64_t id)
{
    char text[160];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, id);
#pragma GCC diagnostic pop
    return json_array_append_new(list, json_string(text));
}

static void verb_why(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    if (!j)
        return;
    const struct job_row *r = v.row;
    json_t *advice = json_array();
    char text[800];
    int failed = advice == NULL;
    switch (r->state) {
    case JOB_RUNNING:
        if (!v.workers && *local_trouble(c->d->local))
            snprintf(text, sizeof text, "job %" PRIu64 " waits: %s", r->id, local_trouble(c->d->local));
        else if (*v.waits_for)
            snprintf(text, sizeof text, "job %" PRIu64 " waits: %s", r->id, v.waits_for);
        else
            snprintf(text, sizeof text, "job %" PRIu64 " is running on %u worker%s", r->id, v.workers, v.workers == 1 ? "" : "s");
        failed = failed || advise(advice, "ebb status %" PRIu64, r->id);
        break;
    case JOB_HELD:
        snprintf(text, sizeof text, "job %" PRIu64 " is held: %s", r->id, r->reason);
        if (r->counts.errors)
            failed = failed || advise(advice, "ebb errors %" PRIu64, r->id);
        if (j->guarded)
            break; /* it goes on by itself */
        if (r->counts.errors && (r->params.max_errors != UINT64_MAX || r->params.max_errors_ppm != UINT32_MAX))
            failed = failed || advise(advice, "ebb resume %" PRIu64 " --max-errors 5%%", r->id);
        failed = failed || advise(advice, "ebb resume %" PRIu64, r->id);
        break;
    case JOB_PAUSED:
        snprintf(text, sizeof text, "job %" PRIu64 " was paused", r->id);
        failed = failed || advise(advice, "ebb resume %" PRIu64, r->id);
        break;
    case JOB_PUBLISHING:
        snprintf(text, sizeof text, "job %" PRIu64 " has done all its records; its output is being put together in '%s'", r->id, j->output_path);
        break;
    case JOB_DONE:
        snprintf(text, sizeof text, "job %" PRIu64 " is done: %" PRIu64 " records, %" PRIu64 " with errors", r->id, r->counts.records, r->counts.errors);
        failed = failed || advise(advice, "ebb results %" PRIu64, r->id);
        if (r->counts.errors)
            failed = failed || advise(advice, "ebb errors %" PRIu64, r->id) || advise(advice, "ebb retry %" PRIu64, r->id);
        break;
    case JOB_CANCELED:
        snprintf(text, sizeof text, "job %" PRIu64 " was canceled", r->id);
        failed = failed || advise(advice, "ebb rm %" PRIu64, r->id);
        break;
    }
    if (failed) {
        json_decref(advice);
        advice = NULL;
    }
    answer(c, advice ? json_pack("{s:I, s:s, s:o, s:o}", "job", (json_int_t)r->id, "state", state_words[r->state], "text", words_json(text), "advice", advice) : NULL);
}

/* A verb of the core, then JOB. 0 when it was refused (the client knows). */
static int control(struct call *c, struct sched_event *ev, enum job_verb verb)
{
    struct err e;
    ev->kind = SCHED_JOB_CONTROL;
    ev->u.control.verb = verb;
    ev->u.control.wall_ms = clock_wall_ms();
    if (loop_step(c->d, ev, &e) == ST_OK)
        return 1;
    api_refuse(c->d, &c->client, c->id, &e);
    return 0;
}

static void verb_pause(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    struct sched_event ev = {.job = j ? j->id : 0};
    if (j && control(c, &ev, VERB_PAUSE))
        answer(c, api_job(c->d, j->id));
}

static void verb_cancel(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    struct sched_event ev = {.job = j ? j->id : 0};
    if (!j || !control(c, &ev, VERB_CANCEL))
        return;
    publish_forget(c->d->publish, j->id);
    answer(c, api_job(c->d, j->id));
}

static void verb_rm(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    if (!j)
        return;
    struct sched_event ev = {.job = j->id};
    j->files_go = 1; /* what lies in its working folder; finished results are the user's */
    if (!control(c, &ev, VERB_REMOVE)) {
        j->files_go = 0;
        return;
    }
    publish_forget(c->d->publish, j->id);
    answer(c, json_object());
}

/* "1000", 1000, "1%", {"count","ppm"}-free: as in a job file. 0 or -1. */
static int read_limit(json_t *in, uint64_t *count, uint32_t *ppm)
{
    const char *text = json_string_value(in);
    char *end;
    if (json_is_integer(in) && json_integer_value(in) >= 0) {
        *count = (uint64_t)json_integer_value(in);
        *ppm = UINT32_MAX;
        return 0;
    }
    if (!text || *text < '0' || *text > '9')
        return -1;
    double v = strtod(text, &end);
    if (*end == '%' && !end[1] && v <= 100) {
        *count = UINT64_MAX;
        *ppm = (uint32_t)(v * 10000 + 0.5);
        return 0;
    }
    if (*end || v > 1e18)
        return -1;
    *count = (uint64_t)v;
    *ppm = UINT32_MAX;
    return 0;
}

static void verb_resume(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    if (!j)
        return;
    struct sched_event ev = {.job = j->id};
    ev.u.control.max_errors = UINT64_MAX - 1;
    ev.u.control.max_errors_ppm = UINT32_MAX - 1;
    json_t *limit = json_object_get(c->in, "max_errors");
    if (limit && !json_is_null(limit) && read_limit(limit, &ev.u.control.max_errors, &ev.u.control.max_errors_ppm)) {
        refuse(c, ST_USER, "max_errors wants a number or a share such as 1%%");
        return;
    }
    publish_forget(c->d->publish, j->id); /* what failed there is tried again */
    if (!control(c, &ev, VERB_RESUME))
        return;
    j->guarded = 0;
    answer(c, api_job(c->d, j->id));
}

static const char *worker_state(const struct daemon *d, const struct sched_worker_view *v, const struct job *j)
{
    (void)d;
    if (v->lost_since_beat)
        return "lost";
    if (v->draining)
        return "draining";
    if (!v->leases)
        return "idle";
    if (j && j->model_key != v->model_key)
        return "loading";
    return v->probe ? "probing" : "running";
}

/* "part-017 62-128 MB" */
static void lease_words(const struct job *j, const struct span *span, char *out, size_t size)
{
    out[0] = 0;
    if (!j || !j->has_sources || span->begin >= span->end)
        return;
    const struct layout *l = &j->dataset.layout;
    size_t first = layout_source(l, span->begin), last = layout_source(l, span->end - 1);
    if (first >= j->dataset.count || last >= j->dataset.count)
        return;
    const char *name = path_base(j->dataset.sources[first].path);
    int stem = (int)strcspn(name, ".");
    if (!stem)
        stem = (int)strlen(name);
    if (last > first)
        snprintf(out, size, "%.*s and %zu more", stem, name, last - first);
    else if (layout_is_stream(l, first))
        snprintf(out, size, "%.*s", stem, name);
    else
        snprintf(out, size, "%.*s %.3g-%.3g MB", stem, name, (double)(span->begin - l->base[first]) / 1e6, (double)(span->end - l->base[first]) / 1e6);
}

static json_t *worker_json(struct daemon *d, const struct sched_worker_view *v)
{
    struct worker *w = link_worker(d->link, v->worker);
    struct job *j = v->job ? job_find(d, v->job) : NULL;
    char number[24], lease[200];
    uint64_t now = clock_ms();
    snprintf(number, sizeof number, "%016" PRIx64, v->worker);
    lease_words(j, &v->lease, lease, sizeof lease);
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:f, s:f, s:o, s:I, s:I, s:f}", "worker", number, "name", w ? w->name : number, "host",
                     w ? w->host : "", "pid", w ? (int)w->pid : 0, "state", worker_state(d, v, j), "model", j ? path_base(j->spec.model) : "", "job",
                     (json_int_t)v->job, "records_per_s", v->records_per_s, "since_s", (double)(now - v->joined_ms) / 1000, "lease", words_json(lease), "lanes",
                     (json_int_t)v->lanes, "rss_bytes", (json_int_t)(w ? w->rss_bytes : 0), "beat_s", (double)(now - v->beat_ms) / 1000);
}

static void add_starting(void *arg, uint64_t number, const char *name, uint64_t pid, uint64_t since_ms)
{
    json_t *list = arg;
    char digits[24];
    const char *slash = strrchr(name, '/');
    snprintf(digits, sizeof digits, "%016" PRIx64, number);
    json_t *o = json_pack("{s:s, s:s, s:s%, s:I, s:s, s:s, s:I, s:f, s:f, s:s, s:I, s:I, s:f}", "worker", digits, "name", name, "host", name,
                          slash ? (size_t)(slash - name) : strlen(name), "pid", (json_int_t)pid, "state", "starting", "model", "", "job",
                          (json_int_t)0, "records_per_s", 0.0, "since_s", (double)(clock_ms() - since_ms) / 1000, "lease", "", "lanes", (json_int_t)0,
                          "rss_bytes", (json_int_t)0, "beat_s", 0.0);
    if (o)
        json_array_append_new(list, o);
}

static void verb_workers(struct call *c)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < sched_worker_count(c->d->core); i++) {
        struct sched_worker_view v;
        sched_worker_view(c->d->core, i, &v);
        if (json_array_append_new(list, worker_json(c->d, &v))) {
            json_decref(list);
            list = NULL;
        }
    }
    if (list)
        local_starting(c->d->local, add_starting, list);
    answer(c, list ? json_pack("{s:o}", "workers", list) : NULL);
}

static void verb_drain(struct call *c)
{
    struct daemon *d = c->d;
    const char *name = json_string_value(json_object_get(c->in, "worker"));
    size_t count = sched_worker_count(d->core), n = 0, told = 0;
    uint64_t *numbers = mem_array(count, sizeof *numbers);
    if (!numbers) {
        answer(c, NULL);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct sched_worker_view v;
        sched_worker_view(d->core, i, &v);
        struct worker *w = link_worker(d->link, v.worker);
        char number[24];
        snprintf(number, sizeof number, "%016" PRIx64, v.worker);
        if (!name || strcmp(number, name) == 0 || (w && strcmp(w->name, name) == 0))
            numbers[n++] = v.worker;
    }
    if (name && !n) {
        mem_free(numbers);
        refuse(c, ST_NOT_FOUND, "there is no worker '%s'; 'ebb workers' lists those there are", name);
        return;
    }
    json_t *stay = json_object_get(c->in, "stay");
    if (stay)
        local_stay(d->local, json_is_true(stay));
    for (size_t i = 0; i < n; i++) {
        struct sched_event ev = {.kind = SCHED_WORKER_DRAIN, .worker = numbers[i]};
        struct err e;
        told += loop_step(d, &ev, &e) == ST_OK;
    }
    mem_free(numbers);
    answer(c, json_pack("{s:I}", "drained", (json_int_t)told));
}

static void verb_stop(struct call *c)
{
    struct daemon *d = c->d;
    link_send_reply(d->link, &c->client, c->id, ST_OK, "{}", 0);
    log_info("a client asks to stop");
    loop_stop(d, json_is_false(json_object_get(c->in, "drain")));
}

/* Verbs that read the disk: a thread's ----------------------------------------------------------------------------------------------- */

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
        answer(c, NULL);
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
    answer(&t->call, o);
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
        refuse(&t->call, ST_NOT_FOUND, "job %" PRIu64 " was removed meanwhile", t->job->id);
        return;
    }
    if (json_object_set_new(o, "spec", spec) || json_object_set(o, "files", t->out)) {
        json_decref(o);
        o = NULL;
    }
    answer(&t->call, o);
}

static void verb_job(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    if (!j)
        return;
    if (!json_is_true(json_object_get(c->in, "spec"))) {
        answer(c, api_job(c->d, j->id));
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
    if (!p || !(p->json = dump(o))) {
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
    answer(&t->call, json_pack("{s:O, s:I}", "rows", t->rows, "total", (json_int_t)t->total));
}

static void verb_errors(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
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

static void verb_events(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
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
        answer(&t->call, o);
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
    if (!control(&t->call, &ev, VERB_RETRY))
        return;
    json_t *o = api_job(t->call.d, j->id);
    if (o && json_object_set_new(o, "retried", json_integer((json_int_t)t->span_count))) {
        json_decref(o);
        o = NULL;
    }
    answer(&t->call, o);
}

static void verb_retry(struct call *c)
{
    struct sched_job_view v;
    struct job *j = named_job(c, &v);
    if (!j)
        return;
    if (v.row->state != JOB_DONE) {
        refuse(c, ST_USER, "job %" PRIu64 " is %s; only a job that is done can be retried%s", j->id, state_words[v.row->state],
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
    json_t *list = t->rows = json_array();
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
        failed |= check(list, "system", 1, "%s %s, %u processors for workers", u.sysname, u.release, config_processors());
    t->st = failed ? err_nomem(&t->e, "checks") : ST_OK;
    if (t->st == ST_OK)
        t->out = json_pack("{s:O}", "checks", list);
}

static void verb_doctor(struct call *c)
{
    struct task *t = task_new(c, NULL, run_doctor, answer_out);
    if (t)
        task_start(t);
}

/* The table ---------------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    void (*run)(struct call *c);
} verbs[] = {{"hello", verb_hello},   {"submit", verb_submit}, {"jobs", verb_jobs},     {"job", verb_job},         {"why", verb_why},     {"errors", verb_errors},
             {"events", verb_events}, {"pause", verb_pause},   {"cancel", verb_cancel}, {"rm", verb_rm},           {"resume", verb_resume}, {"retry", verb_retry},
             {"workers", verb_workers}, {"drain", verb_drain}, {"doctor", verb_doctor}, {"stop", verb_stop}};
#define VERBS (sizeof verbs / sizeof *verbs)

void api_request(struct daemon *d, const struct sock_peer *client, uint64_t id, const char *verb, const char *text)
{
    struct call c = {.d = d, .client = *client, .id = id};
    json_error_t at;
    c.in = *text ? json_loads(text, 0, &at) : json_object();
    if (!json_is_object(c.in)) {
        refuse(&c, ST_USER, "the request is no JSON object: %s", *text ? at.text : "it is empty");
        json_decref(c.in);
        return;
    }
    size_t i = 0;
    while (i < VERBS && strcmp(verbs[i].word, verb))
        i++;
    if (i < VERBS) {
        verbs[i].run(&c);
    } else {
        const char *words[VERBS];
        for (i = 0; i < VERBS; i++)
            words[i] = verbs[i].word;
        const char *near = strlen(verb) < 40 ? suggest(verb, words, VERBS) : NULL;
        refuse(&c, ST_USER, "ebbd does not know the verb '%.40s'%s%s%s", verb, near ? " (did you mean '" : "", near ? near : "", near ? "')" : "");
    }
    json_decref(c.in);
}
