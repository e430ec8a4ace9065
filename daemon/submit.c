/* How a job comes to be: a thread reads specification, sources and model; then, one submission at a time, the output's owner is asked,
   and the loop decides: attach to the job that has the same identity, refuse, or claim the output for a new one. The claim is on disk
   before the job's rows are; a claim of a job that the store does not know is nobody's. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/when.h"
#include "daemon/api.h"
#include "daemon/apply.h"
#include "daemon/guard.h"
#include "daemon/job.h"
#include "daemon/job_steps.h"
#include "daemon/publish.h"
#include "storage/overlap.h"

#define MAX_ATTEMPTS 5 /* of a span that is given back for a passing reason */

struct submit {
    struct submit *next;
    struct daemon *d;
    struct sock_peer client;
    uint64_t request;
    int force;
    double wait_s; /* for sources that another machine has just written */
    char *text;    /* the specification */
    struct job *job;
    struct store_batch *dataset;
    struct buf claim; /* of whoever owns the output */
    enum status owner;
    int finished;     /* the output stands under its names */
    uint64_t replaces; /* a job that is gone for good, whose output this one takes */
    const char *note;  /* for the answer */
    char note_words[700];
    uv_work_t work;
    enum status st;
    struct err e;
};

static void submit_free(struct submit *x)
{
    job_release(x->job);
    store_batch_free(x->dataset);
    buf_release(&x->claim);
    free(x->text); /* jansson's own allocator */
    mem_free(x);
}

/* On a thread: what is asked for ------------------------------------------------------------------------------------------------------ */

enum status job_derive(struct job *j, struct err *e)
{
    size_t n = strlen(j->output_path);
    while (n > 1 && j->output_path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin && j->output_path[begin - 1] != '/')
        begin--;
    j->name = j->spec.name && *j->spec.name ? mem_strdup(j->spec.name) : mem_strndup(j->output_path + begin, n - begin);
    j->parts_dir = output_parts_dir(&j->out);
    j->work_dir = output_work_dir(&j->out);
    char model[256];
    j->model_name = mem_strdup(jobspec_model_name(&j->spec, model, sizeof model));
    if (!j->name || !j->parts_dir || !j->work_dir || !j->model_name)
        return err_nomem(e, "a job");
    if (j->spec.steps.count) {
        j->model_key = job_steps_key(j);
        j->model_key += !j->model_key;
        return ST_OK;
    }
    XXH64_hash_t key = XXH64(j->spec.precision, strlen(j->spec.precision), j->spec.top_k);
    key = XXH64(j->model.bytes, sizeof j->model.bytes, XXH64(j->spec.task, strlen(j->spec.task), key));
    j->model_key = key ? key : 1;
    return ST_OK;
}

static enum status allowed(struct submit *x, struct err *e)
{
    const struct config *c = x->d->config;
    struct job *j = x->job;
    if (j->spec.model)
        TRY(config_allows(c, j->spec.model, e));
    TRY(job_steps_allowed(c, j, e));
    TRY(config_allows(c, j->spec.output, e));
    if (c->roots && *c->roots)
        for (size_t i = 0; i < j->dataset.count; i++)
            TRY(config_allows(c, j->dataset.sources[i].path, e));
    return ST_OK;
}

static enum status open_dataset(struct submit *x, struct err *e)
{
    struct job *j = x->job;
    struct dataset_spec ds = {.inputs = (const char *const *)j->spec.inputs.items,
                              .input_count = j->spec.inputs.count,
                              .limit = j->spec.limit,
                              .max_record_bytes = j->spec.max_record_bytes};
    if (j->spec.format && !format_parse(j->spec.format, &ds.format))
        return err_set(e, ST_USER, "unknown format '%s': known are jsonl, csv, tsv and lines", j->spec.format);
    uint64_t until = clock_ms() + (uint64_t)(x->wait_s * 1000);
    enum status st;
    while ((st = dataset_open(&ds, &j->dataset, e)) == ST_USER && clock_ms() < until)
        clock_sleep_ms(200);
    TRY(st);
    j->has_sources = 1;
    j->source_count = j->dataset.count;
    j->format = j->dataset.format;
    return ST_OK;
}

static enum status prepare(struct submit *x, struct err *e)
{
    struct job *j = mem_zalloc(sizeof *j);
    if (!j)
        return err_nomem(e, "a job");
    atomic_store(&j->refs, 1);
    x->job = j;
    TRY(jobspec_init(&j->spec, e));
    TRY(jobspec_from_json(&j->spec, x->text, strlen(x->text), e));
    TRY(jobspec_check(&j->spec, e));
    if (strcmp(j->spec.precision, "auto") == 0) { /* decided once, when the job is submitted */
        mem_free(j->spec.precision);
        if (!(j->spec.precision = mem_strdup("f32")))
            return err_nomem(e, "a job");
    }
    for (size_t i = 0; i < j->spec.inputs.count; i++)
        if (j->spec.inputs.items[i][0] != '/')
            return err_set(e, ST_USER, "the input '%s' is no absolute path", j->spec.inputs.items[i]);
    if (j->spec.output[0] != '/' || (j->spec.model && j->spec.model[0] != '/'))
        return err_set(e, ST_USER, "the %s is no absolute path", j->spec.output[0] != '/' ? "output" : "model");
    TRY(config_allows(x->d->config, j->spec.output, e));
    if (!(j->output_path = mem_strdup(j->spec.output)))
        return err_nomem(e, "a job");
    TRY(output_resolve(j->output_path, j->spec.output_format, &j->out, e));
    TRY(jobspec_check_task(&j->spec, j->out.kind == OUTPUT_NPY, e));
    j->out.part_bytes = j->spec.part_bytes;
    TRY(overlap_inputs(&j->out, (const char *const *)j->spec.inputs.items, j->spec.inputs.count, e));
    TRY(open_dataset(x, e));
    TRY(overlap_sources(&j->out, &j->dataset, e));
    TRY(allowed(x, e));
    if (j->spec.steps.count) {
        TRY(jobspec_check_steps(&j->spec, j->format == FORMAT_IMAGES || j->format == FORMAT_NPY ? format_name(j->format) : NULL, j->out.kind == OUTPUT_NPY, e));
        TRY(job_steps_settle(j, e));
    } else {
        TRY(modeldir_digest(j->spec.model, &j->model, e));
    }
    TRY(job_derive(j, e));
    uint8_t digest[16];
    char hex[33];
    dataset_digest(&j->dataset, digest);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    j->fingerprint = jobspec_fingerprint(&j->spec, format_name(j->format), j->model.hex, hex);
    json_t *spec = jobspec_to_json(&j->spec);
    j->spec_json = spec ? json_dumps(spec, JSON_COMPACT) : NULL;
    json_decref(spec);
    return j->fingerprint && j->spec_json ? ST_OK : err_nomem(e, "a job");
}

static void run_prepare(uv_work_t *work)
{
    struct submit *x = work->data;
    x->st = prepare(x, &x->e);
}

/* On a thread, in turn: whose the output is, then the claim ------------------------------------------------------------------------------ */

static void run_owner(uv_work_t *work)
{
    struct submit *x = work->data;
    const struct job *j = x->job;
    x->owner = output_owner(&j->out, &x->claim, &x->e);
    char *mark = mem_printf("%s%s", j->output_path, j->out.is_dir ? "/_SUCCESS" : "");
    char *manifest = mem_printf("%s%s", j->output_path, j->out.is_dir ? "/manifest.json" : ".manifest.json");
    x->finished = mark && manifest && path_exists(mark) && path_exists(manifest);
    if (!mark || !manifest)
        x->owner = err_nomem(&x->e, "a path");
    mem_free(mark);
    mem_free(manifest);
}

static void run_claim(uv_work_t *work)
{
    struct submit *x = work->data;
    struct job *j = x->job;
    if (x->replaces)
        publish_settle(x->d->publish, x->replaces);
    json_t *claim = json_pack("{s:I, s:s, s:s, s:O}", "job", (json_int_t)j->id, "store", x->d->store_id, "state", x->d->config->state_dir, "fingerprint",
                              j->fingerprint);
    char *text = claim ? json_dumps(claim, JSON_COMPACT) : NULL;
    json_decref(claim);
    x->st = text ? output_claim(&j->out, text, strlen(text), &x->e) : err_nomem(&x->e, "a job");
    free(text);
    if (x->st == ST_OK)
        x->st = store_batch_new(NULL, &x->dataset, &x->e);
    if (x->st == ST_OK)
        x->st = rows_put_dataset(x->dataset, j->id, &j->dataset, &x->e);
}

/* On the loop ------------------------------------------------------------------------------------------------------------------------ */

static void start_owner(struct submit *x);

static void finish(struct submit *x)
{
    struct jobs *js = x->d->jobs;
    BUG_IF(js->first != x, "a submission ends out of its turn");
    js->first = x->next;
    if (!js->first)
        js->last = NULL;
    submit_free(x);
    if (js->first)
        start_owner(js->first);
}

static void refuse(struct submit *x)
{
    api_refuse(x->d, &x->client, x->request, &x->e);
    finish(x);
}

static void answer(struct submit *x, uint64_t job, int resumed)
{
    json_t *o = api_job(x->d, job);
    if (o && (json_object_set_new(o, "resumed", json_boolean(resumed)) ||
              (x->note && json_object_set_new(o, "note", json_string(x->note))))) {
        json_decref(o);
        o = NULL;
    }
    api_answer(x->d, &x->client, x->request, o);
    finish(x);
}

/* Workers that hold the model together. Of several models each worker holds all. */
static uint32_t stages_of(const struct jobspec *s)
{
    return s->steps.count ? 1 : (uint32_t)s->stages;
}

static void claim_done(uv_work_t *work, int status)
{
    (void)status;
    struct submit *x = work->data;
    struct daemon *d = x->d;
    struct job *j = x->job;
    struct layout layout = {0};
    if (x->st == ST_OK && !d->core)
        x->st = err_set(&x->e, ST_AGAIN, "the store is being opened anew; submit again");
    if (x->st == ST_OK)
        x->st = job_layout(&j->dataset, &layout, &x->e);
    if (x->st == ST_OK && map_add(&d->jobs->by_id, j->id, job_hold(j)))
        x->st = err_nomem(&x->e, "a job");
    if (x->st != ST_OK) {
        layout_release(&layout);
        refuse(x);
        return;
    }
    const struct jobspec *s = &j->spec;
    struct job_row row = {.id = j->id, .state = JOB_RUNNING, .submitted_ms = clock_wall_ms()};
    row.params = (struct job_params){.weight = (uint32_t)s->weight,
                                     .priority = (int32_t)s->priority,
                                     .model_key = j->model_key,
                                     .model_bytes = j->model.size_bytes,
                                     .lease_target_ms = (uint32_t)s->lease_target,
                                     .stall_timeout_ms = (uint32_t)s->stall_timeout,
                                     .min_workers = (uint32_t)s->workers_min,
                                     .max_workers = (uint32_t)s->workers_max,
                                     .max_errors = s->max_errors.count,
                                     .max_errors_ppm = s->max_errors.ppm,
                                     .max_attempts = MAX_ATTEMPTS,
                                     .guaranteed_ppm = s->workers_preemptible.ppm == UINT32_MAX ? 0 : 1000000 - s->workers_preemptible.ppm,
                                     .stages = stages_of(s)};
    if (s->deadline && when_parse(s->deadline, row.submitted_ms, &row.params.deadline_ms))
        row.params.deadline_ms = 0; /* checked before */
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = j->id};
    ev.u.job.row = &row;
    ev.u.job.layout = &layout;
    ev.u.job.wall_ms = row.submitted_ms;
    x->st = loop_step(d, &ev, &x->e);
    layout_release(&layout);
    if (x->st != ST_OK) {
        map_remove(&d->jobs->by_id, j->id);
        job_release(j);
        refuse(x);
        return;
    }
    apply_before(d->apply, x->dataset);
    x->dataset = NULL;
    rows_put_last_job_id(apply_batch(d->apply), j->id);
    job_put_sheet(d, j);
    log_info("job %" PRIu64 ": '%s' over %zu sources into '%s', model %s", j->id, j->name, j->source_count, j->output_path, j->model.hex);
    guard_soon(d->guard);
    answer(x, j->id, 0);
}

static void start_claim(struct submit *x)
{
    x->job->id = x->d->next_job++;
    uv_queue_work(&x->d->uv, &x->work, run_claim, claim_done);
}

/* The old job is gone for good: its output can be taken. */
static void removed(void *arg, int safe)
{
    struct submit *x = arg;
    if (safe) {
        start_claim(x);
        return;
    }
    x->st = err_set(&x->e, ST_AGAIN, "the store is being opened anew; submit again");
    refuse(x);
}

static enum status remove_job(struct daemon *d, uint64_t id, struct err *e)
{
    struct sched_job_view v;
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = id};
    ev.u.control.wall_ms = clock_wall_ms();
    if (!sched_job_view(d->core, id, &v))
        return ST_OK;
    if (v.row->state != JOB_DONE && v.row->state != JOB_CANCELED) {
        ev.u.control.verb = VERB_CANCEL;
        TRY(loop_step(d, &ev, e));
    }
    publish_forget(d->publish, id);
    ev.u.control.verb = VERB_REMOVE;
    return loop_step(d, &ev, e);
}

static void replace(struct submit *x, uint64_t old, const char *note)
{
    x->note = note;
    x->replaces = old;
    x->st = remove_job(x->d, old, &x->e);
    if (x->st != ST_OK)
        refuse(x);
    else
        apply_call(x->d->apply, removed, x);
}

/* A job that writes to this output and is not over, whatever the claim says. */
static struct job *writes_to(struct daemon *d, const char *output)
{
    size_t i = 0;
    struct sched_job_view v;
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));)
        if (strcmp(j->output_path, output) == 0 && sched_job_view(d->core, j->id, &v) && v.row->state != JOB_DONE && v.row->state != JOB_CANCELED)
            return j;
    return NULL;
}

/* What the job was submitted with stays, but for what is taken over; people are told so rather than left to believe otherwise. */
static void note_rest(struct submit *x, const struct job *j, enum job_state state)
{
    char words[600];
    int resumed = state == JOB_HELD || state == JOB_PAUSED; /* with the limit of errors that comes now */
    if (state == JOB_DONE || jobspec_rest_differs(&j->spec, &x->job->spec, !resumed, words, sizeof words) <= 0)
        return;
    snprintf(x->note_words, sizeof x->note_words, "it goes on as it was first submitted: %s", words);
    x->note = x->note_words;
}

static void attach(struct submit *x, struct job *j)
{
    struct daemon *d = x->d;
    struct sched_job_view v;
    if (!sched_job_view(d->core, j->id, &v))
        BUG("job %" PRIu64 " is in one table and not in the other", j->id);
    if (v.row->state == JOB_CANCELED) {
        replace(x, j->id, "the job was canceled before: it starts anew");
        return;
    }
    if (v.row->state == JOB_DONE && !x->finished) {
        replace(x, j->id, "the finished output was removed: the job starts anew");
        return;
    }
    if (x->force && v.row->state == JOB_HELD && strncmp(v.row->reason, JOB_DAMAGED_WORDS, strlen(JOB_DAMAGED_WORDS)) == 0) {
        replace(x, j->id, "its output was damaged: the job starts anew");
        return;
    }
    uint32_t stages = stages_of(&x->job->spec);
    if (v.row->state != JOB_DONE && v.row->state != JOB_PUBLISHING && stages != v.row->params.stages) { /* no part of what makes a job the same */
        struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = j->id};
        ev.u.control.verb = VERB_STAGES;
        ev.u.control.stages = stages;
        x->st = loop_step(d, &ev, &x->e);
        if (x->st != ST_OK) {
            refuse(x);
            return;
        }
    }
    note_rest(x, j, v.row->state);
    if (v.row->state == JOB_HELD || v.row->state == JOB_PAUSED) {
        struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = j->id};
        ev.u.control.verb = VERB_RESUME;
        ev.u.control.max_errors = x->job->spec.max_errors.count;
        ev.u.control.max_errors_ppm = x->job->spec.max_errors.ppm;
        ev.u.control.wall_ms = clock_wall_ms();
        x->st = loop_step(d, &ev, &x->e);
        if (x->st != ST_OK) {
            refuse(x);
            return;
        }
    }
    log_info("job %" PRIu64 ": submitted again, goes on", j->id);
    answer(x, j->id, 1);
}

static void decide(struct submit *x, json_t *claim)
{
    struct daemon *d = x->d;
    const char *path = x->job->output_path;
    struct job *other = writes_to(d, path);
    const char *store = json_string_value(json_object_get(claim, "store")), *state = json_string_value(json_object_get(claim, "state"));
    uint64_t owner = (uint64_t)json_integer_value(json_object_get(claim, "job"));
    int here = store && strcmp(store, d->store_id) == 0;
    struct job *j = here ? job_find(d, owner) : NULL;
    char words[600];
    if (j && strcmp(j->output_path, path)) /* the number was given away again: that claim's job never came to be */
        j = NULL;
    if (j && !jobspec_fingerprint_differs(j->fingerprint, x->job->fingerprint, words, sizeof words)) {
        attach(x, j);
        return;
    }
    if (j && !x->force) {
        x->st = err_set(&x->e, ST_USER, "'%s' is the output of job %" PRIu64 ", and this is another job: %s; choose another --output, or start anew with --force", path,
                        j->id, words);
        refuse(x);
        return;
    }
    if (!j && other && !x->force) {
        x->st = err_set(&x->e, ST_USER, "job %" PRIu64 " still writes to '%s', but its files there were removed; cancel it ('ebb cancel %" PRIu64 "'), or start anew with --force",
                        other->id, path, other->id);
        refuse(x);
        return;
    }
    if (claim && !here && !x->force) {
        x->st = err_set(&x->e, ST_USER, "'%s' is the output of job %" PRIu64 " of another ebb, whose state is '%s'; choose another --output, or take it over with --force",
                        path, owner, state ? state : "?");
        refuse(x);
        return;
    }
    if (j || other)
        replace(x, (j ? j : other)->id, "the job that wrote here before was removed");
    else
        start_claim(x);
}

static void owner_done(uv_work_t *work, int status)
{
    (void)status;
    struct submit *x = work->data;
    if (!x->d->core) {
        x->st = err_set(&x->e, ST_AGAIN, "the store is being opened anew; submit again");
        refuse(x);
        return;
    }
    if (x->owner != ST_OK && x->owner != ST_NOT_FOUND && !(x->owner == ST_USER && x->force)) {
        x->st = x->owner;
        refuse(x);
        return;
    }
    json_t *claim = x->owner == ST_OK ? json_loadb(x->claim.data, x->claim.len, 0, NULL) : NULL;
    if (x->owner == ST_OK && !claim && !x->force) {
        x->st = err_set(&x->e, ST_USER, "'%s/job' cannot be read: choose another --output, or take this one over with --force", x->job->work_dir);
        refuse(x);
        return;
    }
    decide(x, claim);
    json_decref(claim);
}

static void start_owner(struct submit *x)
{
    uv_queue_work(&x->d->uv, &x->work, run_owner, owner_done);
}

static void prepared(uv_work_t *work, int status)
{
    (void)status;
    struct submit *x = work->data;
    struct jobs *js = x->d->jobs;
    if (x->st != ST_OK) {
        api_refuse(x->d, &x->client, x->request, &x->e);
        submit_free(x);
        return;
    }
    if (js->last)
        js->last->next = x;
    else
        js->first = x;
    js->last = x;
    if (js->first == x)
        start_owner(x);
}

void job_submit(struct daemon *d, const struct sock_peer *client, uint64_t request, json_t *json)
{
    struct err e;
    json_t *spec = json_object_get(json, "spec"), *wait = json_object_get(json, "wait_sources");
    struct submit *x = mem_zalloc(sizeof *x);
    if (!json_is_object(spec)) {
        err_set(&e, ST_USER, "a submission wants a specification");
    } else if (!x || !(x->text = json_dumps(spec, JSON_COMPACT))) {
        err_nomem(&e, "a job");
    } else {
        x->d = d;
        x->client = *client;
        x->request = request;
        x->force = json_is_true(json_object_get(json, "force"));
        x->wait_s = json_is_true(wait) ? 10 : json_number_value(wait);
        x->wait_s = x->wait_s > 0 && x->wait_s < 300 ? x->wait_s : 0;
        x->work.data = x;
        uv_queue_work(&d->uv, &x->work, run_prepare, prepared);
        return;
    }
    api_refuse(d, client, request, &e);
    if (x)
        submit_free(x);
}
