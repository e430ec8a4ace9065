#include "workers/pipeline/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/assemble.h"

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
    return ST_OK;
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
    jobspec_release(&j->spec);
    mem_free(j->parts_dir);
    mem_free(j);
}
