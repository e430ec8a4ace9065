/* One function a verb. What the loop knows is answered at once, behind what the open group holds; verbs that need the disk are in reads.c. */
#include "daemon/api.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"
#include "daemon/agents.h"
#include "daemon/apply.h"
#include "daemon/auth.h"
#include "daemon/call.h"
#include "daemon/gangs.h"
#include "daemon/job.h"
#include "daemon/link.h"
#include "daemon/provider.h"
#include "daemon/publish.h"
#include "daemon/words.h"

/* Answers ------------------------------------------------------------------------------------------------------------------------- */

char *call_dump(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    char *copy = text ? mem_strdup(text) : NULL; /* jansson has its own allocator */
    free(text);
    json_decref(o);
    return copy;
}

static void answer_with(struct daemon *d, const struct sock_peer *client, uint64_t id, enum status code, json_t *o, int more)
{
    char *text = call_dump(o);
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

void call_refuse(struct call *c, enum status code, const char *fmt, ...)
{
    struct err e = {.code = code};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.text, sizeof e.text, fmt, ap);
    va_end(ap);
    api_refuse(c->d, &c->client, c->id, &e);
}

void call_answer(struct call *c, json_t *o)
{
    api_answer(c->d, &c->client, c->id, o);
}

/* JOB ------------------------------------------------------------------------------------------------------------------------------ */

static const char *const state_words[] = {
#define X(name, word, over) [JOB_##name] = word,
    JOB_STATE_MAP(X)
#undef X
};

const char *job_state_word(enum job_state state)
{
    return state_words[state];
}

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
    link_name_workers(d->link, v.waits_for, waits, sizeof waits);
    if (running && !v.workers && *provider_trouble(d))
        snprintf(waits, sizeof waits, "%s", provider_trouble(d));
    json_t *o = json_pack("{s:I, s:s, s:s, s:o, s:o, s:I, s:o, s:s, s:I, s:I, s:f, s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:I, s:I}", "job",
                          (json_int_t)id, "name", j->name, "state", job_state_word(r->state), "reason", words_json(r->reason), "waits_for", words_json(waits), "attempt",
                          (json_int_t)r->attempt, "model", words_json(j->model_name), "output", j->output_path, "bytes_total", (json_int_t)v.bytes_total,
                          "bytes_done", (json_int_t)c->bytes, "fraction", f, "records_done", (json_int_t)c->records, "records_guess",
                          number_or_null(guess, floor(total + 0.5)), "rows", (json_int_t)c->rows, "errors", (json_int_t)c->errors, "quarantined",
                          (json_int_t)c->quarantined, "redone", (json_int_t)c->redone, "records_per_s", v.records_per_s, "bytes_per_s", v.bytes_per_s,
                          "seconds_left", number_or_null(worth, left > 0 ? left : 0), "workers", (json_int_t)v.workers, "workers_wanted",
                          (json_int_t)v.workers_wanted);
    json_t *more = json_pack("{s:b, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:o}", "passing", job_waits_for_space(r), "submitted_ms", (json_int_t)r->submitted_ms, "finished_ms",
                             (json_int_t)r->finished_ms, "sources", (json_int_t)j->source_count, "format", format_name(j->format), "precision",
                             j->spec.precision, "numerics", j->numerics, "dims", (json_int_t)j->dims, "deadline_ms", (json_int_t)r->params.deadline_ms,
                             "late", words_json(v.late));
    json_t *gangs = gangs_json(d, id);
    if (!o || !more || !gangs || json_object_update(o, more) || json_object_set_new(o, "stages", json_integer((json_int_t)r->params.stages)) || json_object_set(o, "gangs", gangs)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(gangs);
    json_decref(more);
    return o;
}

/* The job that the request names, or a refusal. */
struct job *call_job(struct call *c, struct sched_job_view *v)
{
    json_t *n = json_object_get(c->in, "job");
    if (!json_is_integer(n)) {
        call_refuse(c, ST_USER, "the request names no job");
        return NULL;
    }
    uint64_t id = (uint64_t)json_integer_value(n);
    struct job *j = job_find(c->d, id);
    if (!j || !sched_job_view(c->d->core, id, v)) {
        call_refuse(c, ST_NOT_FOUND, "there is no job %" PRIu64 "; 'ebb jobs --all' lists those there are", id);
        return NULL;
    }
    return j;
}

/* Verbs that the loop answers ------------------------------------------------------------------------------------------------------- */

static void verb_hello(struct call *c)
{
    struct daemon *d = c->d;
    call_answer(c, json_pack("{s:s, s:i, s:I, s:i, s:b, s:s, s:s}", "program", "ebbd " EBBD_VERSION, "version", WIRE_VERSION, "generation",
                        (json_int_t)d->generation, "pid", (int)getpid(), "private", d->config->is_private, "state_dir", d->config->state_dir, "host",
                        d->host));
}

static void verb_submit(struct call *c)
{
    if (c->d->phase != LOOP_RUNNING) {
        call_refuse(c, ST_AGAIN, "the daemon is about to end and takes no new jobs");
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
    call_answer(c, list ? json_pack("{s:o}", "jobs", list) : NULL);
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
    struct job *j = call_job(c, &v);
    if (!j)
        return;
    const struct job_row *r = v.row;
    json_t *advice = json_array();
    char text[800], waits[400], pipeline[64];
    int failed = advice == NULL;
    switch (r->state) {
    case JOB_RUNNING:
        if (!v.workers && *provider_trouble(c->d))
            snprintf(text, sizeof text, "job %" PRIu64 " waits: %s", r->id, provider_trouble(c->d));
        else if (*v.waits_for)
            snprintf(text, sizeof text, "job %" PRIu64 " waits: %s", r->id, link_name_workers(c->d->link, v.waits_for, waits, sizeof waits));
        else if (*gangs_words(c->d, r->id, pipeline, sizeof pipeline))
            snprintf(text, sizeof text, "job %" PRIu64 " is running on %s", r->id, pipeline);
        else
            snprintf(text, sizeof text, "job %" PRIu64 " is running on %u worker%s", r->id, v.workers, v.workers == 1 ? "" : "s");
        if (*v.late) {
            size_t n = strlen(text);
            snprintf(text + n, sizeof text - n, "; %s", v.late);
        }
        failed = failed || advise(advice, "ebb status %" PRIu64, r->id);
        break;
    case JOB_HELD:
        snprintf(text, sizeof text, "job %" PRIu64 " is held: %s", r->id, r->reason);
        if (r->counts.errors)
            failed = failed || advise(advice, "ebb errors %" PRIu64, r->id);
        if (job_waits_for_space(r))
            break; /* it goes on by itself */
        if (strstr(r->reason, "allowed"))
            failed = failed || advise(advice, "ebb resume %" PRIu64 " --max-errors 5%%", r->id);
        else /* with the limit as it is it would be refused */
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
    call_answer(c, advice ? json_pack("{s:I, s:s, s:o, s:o}", "job", (json_int_t)r->id, "state", job_state_word(r->state), "text", words_json(text), "advice", advice) : NULL);
}

/* A verb of the core, then JOB. 0 when it was refused (the client knows). */
int call_control(struct call *c, struct sched_event *ev, enum job_verb verb)
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
    struct job *j = call_job(c, &v);
    struct sched_event ev = {.job = j ? j->id : 0};
    if (j && call_control(c, &ev, VERB_PAUSE))
        call_answer(c, api_job(c->d, j->id));
}

static void verb_cancel(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    struct sched_event ev = {.job = j ? j->id : 0};
    if (!j || !call_control(c, &ev, VERB_CANCEL))
        return;
    publish_forget(c->d->publish, j->id);
    call_answer(c, api_job(c->d, j->id));
}

static void verb_rm(struct call *c)
{
    struct sched_job_view v;
    struct job *j = call_job(c, &v);
    if (!j)
        return;
    struct sched_event ev = {.job = j->id};
    j->files_go = 1; /* what lies in its working folder; finished results are the user's */
    if (!call_control(c, &ev, VERB_REMOVE)) {
        j->files_go = 0;
        return;
    }
    publish_forget(c->d->publish, j->id);
    call_answer(c, json_object());
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
    struct job *j = call_job(c, &v);
    if (!j)
        return;
    struct sched_event ev = {.job = j->id};
    ev.u.control.max_errors = UINT64_MAX - 1;
    ev.u.control.max_errors_ppm = UINT32_MAX - 1;
    json_t *limit = json_object_get(c->in, "max_errors");
    if (limit && !json_is_null(limit) && read_limit(limit, &ev.u.control.max_errors, &ev.u.control.max_errors_ppm)) {
        call_refuse(c, ST_USER, "max_errors wants a number or a share such as 1%%");
        return;
    }
    publish_forget(c->d->publish, j->id); /* what failed there is tried again */
    if (!call_control(c, &ev, VERB_RESUME))
        return;
    call_answer(c, api_job(c->d, j->id));
}

const char *api_worker_state(const struct sched_worker_view *v, const struct job *j)
{
    if (v->lost_since_beat)
        return "lost";
    if (v->draining)
        return "draining";
    if (v->gang && !v->gang_runs)
        return "loading";
    if (v->gang)
        return v->probe ? "probing" : "running";
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
    uint64_t id = v->job ? v->job : v->gang_job;
    struct job *j = id ? job_find(d, id) : NULL;
    char number[24], lease[200];
    uint64_t now = clock_ms();
    snprintf(number, sizeof number, "%016" PRIx64, v->worker);
    lease_words(v->leases ? j : NULL, &v->lease, lease, sizeof lease);
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:f, s:f, s:o, s:I, s:I, s:f, s:s, s:I, s:I}", "worker", number, "name", w ? w->name : number, "host",
                     w ? w->host : "", "pid", w ? (int)w->pid : 0, "state", api_worker_state(v, j), "model", j ? j->model_name : "", "job",
                     (json_int_t)id, "records_per_s", v->records_per_s, "since_s", (double)(now - v->joined_ms) / 1000, "lease", words_json(lease), "lanes",
                     (json_int_t)v->lanes, "rss_bytes", (json_int_t)(w ? w->rss_bytes : 0), "beat_s", (double)(now - v->beat_ms) / 1000, "provider",
                     provider_id_word(v->provider), "stage", (json_int_t)(v->gang ? v->stage + 1 : 0), "stages", (json_int_t)v->stages);
}

static void add_starting(void *arg, uint64_t number, const char *name, uint64_t pid, uint64_t since_ms)
{
    json_t *list = arg;
    char digits[24];
    const char *slash = strrchr(name, '/');
    snprintf(digits, sizeof digits, "%016" PRIx64, number);
    json_t *o = json_pack("{s:s, s:s, s:s%, s:I, s:s, s:s, s:I, s:f, s:f, s:s, s:I, s:I, s:f}", "worker", digits, "name", name, "host", name,
                          slash ? (size_t)(slash - name) : 0, "pid", (json_int_t)pid, "state", "starting", "model", "", "job",
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
        if (json_array_append_new(list, agents_dress(c->d, v.worker, worker_json(c->d, &v)))) {
            json_decref(list);
            list = NULL;
        }
    }
    if (list)
        provider_starting(c->d, add_starting, list);
    call_answer(c, list ? json_pack("{s:o}", "workers", list) : NULL);
}

static void verb_nodes(struct call *c)
{
    json_t *list = agents_json(c->d);
    call_answer(c, list ? json_pack("{s:o}", "nodes", list) : NULL);
}

static void verb_drain(struct call *c)
{
    struct daemon *d = c->d;
    const char *name = json_string_value(json_object_get(c->in, "worker"));
    size_t count = sched_worker_count(d->core), n = 0, told = 0;
    uint64_t *numbers = mem_array(count, sizeof *numbers);
    if (!numbers) {
        call_answer(c, NULL);
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
        call_refuse(c, ST_NOT_FOUND, "there is no worker '%s'; 'ebb workers' lists those there are", name);
        return;
    }
    json_t *stay = json_object_get(c->in, "stay");
    if (stay)
        provider_stay(d, json_is_true(stay));
    for (size_t i = 0; i < n; i++) {
        struct sched_event ev = {.kind = SCHED_WORKER_DRAIN, .worker = numbers[i]};
        struct err e;
        told += loop_step(d, &ev, &e) == ST_OK;
    }
    mem_free(numbers);
    call_answer(c, json_pack("{s:I}", "drained", (json_int_t)told));
}

static void verb_stop(struct call *c)
{
    struct daemon *d = c->d;
    if (c->client.user) {
        call_refuse(c, ST_USER, "the daemon is stopped on its own machine alone");
        return;
    }
    link_send_reply(d->link, &c->client, c->id, ST_OK, "{}", 0);
    log_info("a client asks to stop");
    loop_stop(d, json_is_false(json_object_get(c->in, "drain")));
}

/* The table ---------------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    void (*run)(struct call *c);
} verbs[] = {{"hello", verb_hello},   {"submit", verb_submit}, {"jobs", verb_jobs},     {"job", verb_job},         {"why", verb_why},     {"errors", verb_errors},
             {"events", verb_events}, {"pause", verb_pause},   {"cancel", verb_cancel}, {"rm", verb_rm},           {"resume", verb_resume}, {"retry", verb_retry},
             {"workers", verb_workers}, {"nodes", verb_nodes}, {"drain", verb_drain}, {"doctor", verb_doctor}, {"stop", verb_stop},   {"keys", verb_keys},         {"invite", verb_invite}, {"authorize", verb_authorize},
             {"revoke", verb_revoke}};
#define VERBS (sizeof verbs / sizeof *verbs)

void api_request(struct daemon *d, const struct sock_peer *client, uint64_t id, const char *verb, const char *text)
{
    struct call c = {.d = d, .client = *client, .id = id};
    json_error_t at;
    c.in = *text ? json_loads(text, 0, &at) : json_object();
    if (!json_is_object(c.in)) {
        call_refuse(&c, ST_USER, "the request is no JSON object: %s", *text ? at.text : "it is empty");
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
        call_refuse(&c, ST_USER, "ebbd does not know the verb '%.40s'%s%s%s", verb, near ? " (did you mean '" : "", near ? near : "", near ? "')" : "");
    }
    json_decref(c.in);
}
