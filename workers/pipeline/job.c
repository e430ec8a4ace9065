#include "workers/pipeline/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/assemble.h"

static enum status set(char **to, const char *text, struct err *e)
{
    char *copy = text ? mem_strdup(text) : NULL;
    if (text && !copy)
        return err_nomem(e, "a job");
    mem_free(*to);
    *to = copy;
    return ST_OK;
}

/* A job of one model that reads the records of step `at` of this one. */
static enum status make_model(const struct job *j, size_t at, const uint8_t *digest, struct job **out, struct err *e)
{
    const struct jobspec *all = &j->spec;
    const struct step_spec *step = &all->steps.items[at];
    int last = at + 1 == all->steps.count;
    struct job *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(e, "a job");
    m->refs = 1;
    *out = m;
    TRY(jobspec_init(&m->spec, e));
    struct jobspec *s = &m->spec;
    TRY(set(&s->model, step->model, e));
    TRY(set(&s->precision, step->precision ? step->precision : all->precision, e));
    TRY(set(&s->task, step->task ? step->task : "auto", e));
    TRY(set(&s->field, step->field ? step->field : all->field, e));
    TRY(set(&s->on_long, all->on_long, e));
    TRY(set(&s->floats, last ? all->floats : "array", e));
    s->top_k = step->top_k ? step->top_k : all->top_k;
    uint64_t batch = step->batch ? step->batch : all->micro_batch;
    m->id = j->id;
    m->micro_batch = batch > 4096 ? 4096 : (uint32_t)batch;
    m->micro_batch_tokens = j->micro_batch_tokens;
    m->reading = (struct reader_opts){.format = FORMAT_JSONL, .max_record_bytes = all->max_record_bytes};
    m->decoding = (struct decoder_opts){.format = FORMAT_JSONL, .field = s->field};
    m->npy = last && j->npy;
    m->base64 = last && j->base64;
    m->refuse_long = j->refuse_long;
    memcpy(m->model_digest, digest, sizeof m->model_digest);
    return ST_OK;
}

static enum status make_steps(struct job *j, const struct job_words *w, struct err *e)
{
    size_t n = j->spec.steps.count;
    char name[64];
    if (w->step_digests_len != n * sizeof j->model_digest)
        return err_set(e, ST_CORRUPT, "job %" PRIu64 " has %zu steps and comes with %zu bytes of their digests", w->id, n, w->step_digests_len);
    if (!(j->steps = mem_array(n, sizeof *j->steps)))
        return err_nomem(e, "a job");
    for (; j->step_count < n; j->step_count++) {
        size_t at = j->step_count;
        struct job_step *step = &j->steps[at];
        step->spec = &j->spec.steps.items[at];
        snprintf(step->words, sizeof step->words, "step %zu (%s)", at + 1, jobspec_step_name(step->spec, name, sizeof name));
        if (step->spec->when)
            TRY(condition_parse(step->spec->when, &step->when, e));
        if (!step->spec->model)
            continue;
        enum status st = make_model(j, at, (const uint8_t *)w->step_digests + at * sizeof j->model_digest, &step->model, e);
        if (st != ST_OK) {
            j->step_count++; /* what there is of it goes with the job */
            return st;
        }
    }
    return ST_OK;
}

static enum status fill(struct job *j, const struct job_words *w, struct err *e)
{
    TRY(jobspec_from_json(&j->spec, w->spec_json, strlen(w->spec_json), e));
    if (w->model_digest_len != sizeof j->model_digest)
        return err_set(e, ST_CORRUPT, "job %" PRIu64 " comes with a model digest of %zu bytes", w->id, w->model_digest_len);
    memcpy(j->model_digest, w->model_digest, sizeof j->model_digest);
    snprintf(j->numerics, sizeof j->numerics, "%s", w->numerics ? w->numerics : "");
    if (w->format == FORMAT_AUTO || w->format > FORMAT_NPY)
        return err_set(e, ST_USER, "job %" PRIu64 " is of an input format (%u) that this worker does not know", w->id, w->format);
    struct output_spec output;
    TRY(output_resolve(j->spec.output, j->spec.output_format, &output, e));
    j->parts_dir = mem_strdup(w->parts_dir);
    if (!j->parts_dir)
        return err_nomem(e, "a job");
    const struct jobspec *s = &j->spec;
    enum format format = (enum format)w->format;
    j->model_key = w->model_key;
    j->reading = (struct reader_opts){.format = format, .max_record_bytes = s->max_record_bytes};
    j->decoding = (struct decoder_opts){
        .format = format,
        .field = s->field,
        .pair = s->pair_field,
        .id = s->id,
        .keep = (const char *const *)s->keep.items,
        .keep_count = s->keep.count,
    };
    j->columns = format == FORMAT_CSV || format == FORMAT_TSV;
    j->npy = output.kind == OUTPUT_NPY;
    j->base64 = strcmp(s->floats, "base64") == 0;
    j->refuse_long = strcmp(s->on_long, "error") == 0;
    j->micro_batch = s->micro_batch > 4096 ? 4096 : s->micro_batch ? (uint32_t)s->micro_batch : 1;
    j->micro_batch_tokens = s->micro_batch_tokens > 1u << 20 ? 1u << 20 : s->micro_batch_tokens ? (uint32_t)s->micro_batch_tokens : 1;
    j->commit_every_ms = s->commit_every;
    return s->steps.count ? make_steps(j, w, e) : ST_OK;
}

enum status job_new(const struct job_words *w, struct job **out, struct err *e)
{
    struct job *j = mem_zalloc(sizeof *j);
    if (!j)
        return err_nomem(e, "a job");
    enum status st = jobspec_init(&j->spec, e);
    if (st != ST_OK) {
        mem_free(j);
        return st;
    }
    j->refs = 1;
    j->id = w->id;
    st = fill(j, w, e);
    if (st != ST_OK)
        job_unref(j);
    else
        *out = j;
    return st;
}

struct job *job_ref(struct job *j)
{
    atomic_fetch_add(&j->refs, 1);
    return j;
}

void job_unref(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->refs, 1) > 1)
        return;
    for (size_t i = 0; i < j->step_count; i++) {
        condition_release(&j->steps[i].when);
        job_unref(j->steps[i].model);
    }
    mem_free(j->steps);
    jobspec_release(&j->spec);
    mem_free(j->parts_dir);
    mem_free(j);
}
