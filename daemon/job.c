#include "daemon/job.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/path.h"
#include "daemon/apply.h"
#include "daemon/job_steps.h"
#include "daemon/link.h"
#include "daemon/publish.h"

/* The table ------------------------------------------------------------------------------------------------------------------------ */

struct job *job_find(struct daemon *d, uint64_t id)
{
    return d->jobs ? map_find(&d->jobs->by_id, id) : NULL;
}

int job_waits_for_space(const struct job_row *row)
{
    return row->state == JOB_HELD && (strncmp(row->reason, JOB_GUARD_WORDS, strlen(JOB_GUARD_WORDS)) == 0 || strstr(row->reason, strerror(ENOSPC)));
}

struct job *job_hold(struct job *j)
{
    atomic_fetch_add(&j->refs, 1);
    return j;
}

void job_release(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->refs, 1) != 1)
        return;
    jobspec_release(&j->spec);
    free(j->spec_json); /* jansson's own allocator */
    json_decref(j->fingerprint);
    mem_free(j->output_path);
    mem_free(j->parts_dir);
    mem_free(j->work_dir);
    mem_free(j->name);
    mem_free(j->step_digests);
    mem_free(j->model_name);
    dataset_release(&j->dataset);
    mem_free(j);
}

enum status job_layout(const struct dataset *d, struct layout *out, struct err *e)
{
    if (layout_copy(out, &d->layout))
        return err_nomem(e, "a layout");
    if (d->end >= layout_end(&d->layout))
        return ST_OK;
    /* --limit: the source in which the job ends is shorter, those behind it are none of its business. */
    size_t last = d->end ? layout_source(&d->layout, d->end - 1) : 0;
    uint64_t weight = d->end ? layout_weight(&d->layout, d->layout.base[last], d->end) : 0;
    out->count = d->end ? last + 1 : 0;
    out->base[out->count] = d->end;
    if (out->physical)
        out->physical[out->count] = d->end ? out->physical[last] + weight : 0;
    return ST_OK;
}

enum status job_dataset(struct apply *a, const struct job *j, struct dataset *out, struct err *e)
{
    struct store *s = apply_read_begin(a);
    if (!s)
        return err_set(e, ST_AGAIN, "the store is being opened anew; ask again");
    enum status st = rows_get_dataset(s, j->id, out, e);
    apply_read_end(a);
    return st;
}

/* The sheet ------------------------------------------------------------------------------------------------------------------------ */

void job_put_sheet(struct daemon *d, const struct job *j)
{
    json_error_t at;
    json_t *spec = json_loads(j->spec_json, 0, &at);
    json_t *sheet = json_pack("{s:o, s:O, s:{s:s, s:I, s:I}, s:{s:s, s:i, s:i}, s:s, s:I, s:s}", "spec", spec, "fingerprint", j->fingerprint, "model",
                              "digest", j->model.hex, "bytes", (json_int_t)j->model.size_bytes, "files", (json_int_t)j->model.files, "output", "path",
                              j->output_path, "is_dir", j->out.is_dir, "kind", (int)j->out.kind, "format", format_name(j->format), "dims",
                              (json_int_t)j->dims, "numerics", j->numerics);
    if (sheet && j->spec.steps.count && json_object_set_new(sheet, "steps", job_steps_json(j))) {
        json_decref(sheet);
        sheet = NULL;
    }
    char *text = sheet ? json_dumps(sheet, JSON_COMPACT) : NULL;
    json_decref(sheet);
    if (!text) {
        struct err e;
        err_nomem(&e, "a job");
        loop_fatal(d, &e);
        return;
    }
    rows_put_spec(apply_batch(d->apply), j->id, text, strlen(text));
    free(text);
}

static enum status bad_sheet(uint64_t id, struct err *e)
{
    return err_set(e, ST_CORRUPT, "job %" PRIu64 " in the store has no specification that can be read", id);
}

static int hex_bytes(const char *hex, uint8_t out[16])
{
    for (int i = 0; i < 16; i++)
        if (sscanf(hex + 2 * i, "%2hhx", &out[i]) != 1)
            return -1;
    return strlen(hex) == 32 ? 0 : -1;
}

static enum status read_sheet(struct store *s, struct job *j, struct err *e)
{
    struct buf text = {0};
    json_t *sheet = NULL, *spec = NULL, *fingerprint = NULL;
    const char *hex, *path, *format, *numerics;
    json_int_t bytes, files, dims;
    int is_dir, kind;
    enum status st = rows_get_spec(s, j->id, &text, e);
    if (st == ST_NOT_FOUND)
        st = bad_sheet(j->id, e);
    if (st != ST_OK)
        goto out;
    sheet = json_loadb(text.data, text.len, 0, NULL);
    if (json_unpack(sheet, "{s:o, s:o, s:{s:s, s:I, s:I}, s:{s:s, s:i, s:i}, s:s, s:I, s:s}", "spec", &spec, "fingerprint", &fingerprint, "model",
                    "digest", &hex, "bytes", &bytes, "files", &files, "output", "path", &path, "is_dir", &is_dir, "kind", &kind, "format", &format,
                    "dims", &dims, "numerics", &numerics) ||
        hex_bytes(hex, j->model.bytes) || !format_parse(format, &j->format)) {
        st = bad_sheet(j->id, e);
        goto out;
    }
    snprintf(j->model.hex, sizeof j->model.hex, "%s", hex);
    j->model.size_bytes = (uint64_t)bytes;
    j->model.files = (uint32_t)files;
    j->dims = (uint32_t)dims;
    snprintf(j->numerics, sizeof j->numerics, "%s", numerics);
    j->fingerprint = json_incref(fingerprint);
    j->spec_json = json_dumps(spec, JSON_COMPACT);
    j->output_path = mem_strdup(path);
    j->out = (struct output_spec){.path = j->output_path, .is_dir = is_dir, .kind = (enum output_kind)kind};
    if (!j->spec_json || !j->output_path) {
        st = err_nomem(e, "a job");
        goto out;
    }
    st = jobspec_init(&j->spec, e);
    if (st == ST_OK)
        st = jobspec_from_json(&j->spec, j->spec_json, strlen(j->spec_json), e);
    if (st == ST_OK)
        st = job_steps_read(j, json_object_get(sheet, "steps"), e);
    if (st == ST_OK) {
        j->out.part_bytes = j->spec.part_bytes;
        st = job_derive(j, e);
    }
out:
    json_decref(sheet);
    buf_release(&text);
    return st;
}

/* Coming back ---------------------------------------------------------------------------------------------------------------------- */

struct restore {
    struct daemon *d;
    struct store *s;
    struct job_row *rows;
    size_t count, cap;
    uint64_t job, last_event;
};

static enum status each_job(void *arg, const struct job_row *row, struct err *e)
{
    struct restore *r = arg;
    if (mem_grow((void **)&r->rows, &r->cap, r->count, sizeof *r->rows))
        return err_nomem(e, "the jobs");
    r->rows[r->count++] = *row;
    return ST_OK;
}

static enum status each_span(void *arg, const struct span_row *row, struct err *e)
{
    struct restore *r = arg;
    struct sched_event ev = {.kind = SCHED_SPAN_RESTORED, .job = r->job};
    ev.u.span = row;
    return loop_step(r->d, &ev, e);
}

static enum status each_event(void *arg, uint64_t number, int64_t wall_ms, const char *text, struct err *e)
{
    (void)wall_ms;
    (void)text;
    (void)e;
    ((struct restore *)arg)->last_event = number + 1;
    return ST_OK;
}

static int is_over(enum job_state state)
{
    return state == JOB_DONE || state == JOB_CANCELED;
}

static enum status restore_job(struct restore *r, const struct job_row *row, struct err *e)
{
    struct daemon *d = r->d;
    struct dataset sources = {0};
    struct layout layout = {0};
    struct job *j = job_find(d, row->id);
    int fresh = j == NULL;
    enum status st = ST_OK;
    if (fresh) {
        if (!(j = mem_zalloc(sizeof *j)))
            return err_nomem(e, "a job");
        j->id = row->id;
        atomic_store(&j->refs, 1);
        st = read_sheet(r->s, j, e);
    }
    if (st == ST_OK && !j->has_sources)
        st = rows_get_dataset(r->s, j->id, &sources, e);
    const struct dataset *known = j->has_sources ? &j->dataset : &sources;
    if (st == ST_OK)
        st = job_layout(known, &layout, e);
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = j->id};
    ev.u.job.row = row;
    ev.u.job.layout = &layout;
    ev.u.job.wall_ms = clock_wall_ms();
    if (st == ST_OK)
        st = loop_step(d, &ev, e);
    r->job = row->id;
    r->last_event = 0;
    if (st == ST_OK)
        st = rows_each_span(r->s, row->id, each_span, r, e);
    if (st == ST_OK)
        st = rows_each_event(r->s, row->id, each_event, r, e);
    layout_release(&layout);
    if (st != ST_OK) {
        dataset_release(&sources);
        if (fresh)
            job_release(j);
        return err_prefix(e, "job %" PRIu64, row->id);
    }
    j->next_event = r->last_event;
    j->source_count = known->count;
    if (!j->has_sources && !is_over(row->state)) {
        j->dataset = sources;
        j->has_sources = 1;
    } else {
        dataset_release(&sources);
    }
    if (fresh && map_add(&d->jobs->by_id, j->id, j)) {
        job_release(j);
        return err_nomem(e, "a job");
    }
    return ST_OK;
}

enum status jobs_restore(struct daemon *d, struct store *s, struct err *e)
{
    struct restore r = {.d = d, .s = s};
    enum status st = rows_each_job(s, each_job, &r, e);
    for (size_t i = 0; i < r.count && st == ST_OK; i++)
        st = restore_job(&r, &r.rows[i], e);
    for (int again = st == ST_OK; again;) { /* what never became durable */
        again = 0;
        size_t at = 0;
        for (struct job *j; !again && (j = map_next(&d->jobs->by_id, &at));) {
            size_t i = 0;
            while (i < r.count && r.rows[i].id != j->id)
                i++;
            if (i < r.count)
                continue;
            map_remove(&d->jobs->by_id, j->id);
            job_release(j);
            again = 1;
        }
    }
    mem_free(r.rows);
    return st;
}

enum status jobs_open(struct daemon *d, struct err *e)
{
    d->jobs = mem_zalloc(sizeof *d->jobs);
    return d->jobs ? ST_OK : err_nomem(e, "the jobs");
}

void jobs_close(struct daemon *d)
{
    size_t i = 0;
    if (!d->jobs)
        return;
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));)
        job_release(j);
    map_release(&d->jobs->by_id);
    mem_free(d->jobs);
    d->jobs = NULL;
}

/* What becomes known on the way ------------------------------------------------------------------------------------------------------- */

void job_leased(struct daemon *d, uint64_t job, uint64_t worker)
{
    struct job *j = job_find(d, job);
    struct worker *w = link_worker(d->link, worker);
    if (!j || !w || *j->numerics || !*w->numerics || (w->model_key != j->model_key && w->profiled_key != j->model_key)) /* not loaded: it will say */
        return;
    snprintf(j->numerics, sizeof j->numerics, "%s", w->numerics);
    job_put_sheet(d, j);
}

void job_model_ready(struct daemon *d, uint64_t model_key, uint32_t dims, const char *numerics)
{
    size_t i = 0;
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));) {
        struct sched_job_view v;
        if (j->model_key != model_key || (j->dims && *j->numerics) || !d->core || !sched_job_view(d->core, j->id, &v) || is_over(v.row->state))
            continue;
        if (!j->dims)
            j->dims = dims;
        if (!*j->numerics)
            snprintf(j->numerics, sizeof j->numerics, "%s", numerics);
        job_put_sheet(d, j);
    }
}

const struct job *job_of_other_numerics(struct daemon *d, uint64_t model_key, const char *numerics)
{
    size_t i = 0;
    for (struct job *j; (j = map_next(&d->jobs->by_id, &i));) {
        struct sched_job_view v;
        if (j->model_key == model_key && *j->numerics && strcmp(j->numerics, numerics) != 0 && d->core && sched_job_view(d->core, j->id, &v) &&
            !is_over(v.row->state))
            return j;
    }
    return NULL;
}

/* Files of a job that is gone; a thread's work. */
struct leaving {
    uv_work_t work;
    struct job *job;
};

static void remove_files(uv_work_t *work)
{
    struct leaving *x = work->data;
    struct err e;
    struct buf claim = {0};
    /* Another job may have taken the output over meanwhile: its claim names it. */
    enum status st = output_owner(&x->job->out, &claim, &e);
    json_t *j = st == ST_OK ? json_loadb(claim.data, claim.len, 0, NULL) : NULL;
    int ours = j && (uint64_t)json_integer_value(json_object_get(j, "job")) == x->job->id;
    json_decref(j);
    buf_release(&claim);
    if (!ours)
        return;
    if (path_remove_tree(x->job->parts_dir, &e) != ST_OK)
        log_warn("job %" PRIu64 ": its parts stay: %s", x->job->id, e.text);
    /* Only what belongs to the job: a private daemon has its state in the same folder. */
    DIR *dir = opendir(x->job->work_dir);
    for (const struct dirent *f; dir && (f = readdir(dir));)
        if (strcmp(f->d_name, "job") == 0 || strcmp(f->d_name, "output") == 0 || strncmp(f->d_name, "files-", 6) == 0 ||
            strncmp(f->d_name, "errors-", 7) == 0)
            unlinkat(dirfd(dir), f->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(x->job->work_dir);
}

static void files_removed(uv_work_t *work, int status)
{
    (void)status;
    struct leaving *x = work->data;
    job_release(x->job);
    mem_free(x);
}

void job_gone(struct daemon *d, uint64_t id)
{
    struct job *j = map_remove(&d->jobs->by_id, id);
    if (!j)
        return;
    publish_forget(d->publish, id);
    struct leaving *x = j->files_go ? mem_zalloc(sizeof *x) : NULL;
    if (x) {
        x->work.data = x;
        x->job = job_hold(j);
        uv_queue_work(&d->uv, &x->work, remove_files, files_removed);
    }
    job_release(j);
}
