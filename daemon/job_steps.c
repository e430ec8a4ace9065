#include "daemon/job_steps.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "daemon/config.h"
#include "daemon/job.h"

enum status job_steps_allowed(const struct config *c, const struct job *j, struct err *e)
{
    const struct step_specs *steps = &j->spec.steps;
    for (size_t i = 0; i < steps->count; i++) {
        const struct step_spec *s = &steps->items[i];
        if (s->model)
            TRY(config_allows(c, s->model, e));
        else if (!c->is_private && !c->commands)
            return err_set(e, ST_USER, "step %zu is a command, and this pool runs none: whoever may submit a job could run any program as the pool's user, on all of its machines; "
                                       "'commands: true' in its ebbd.yaml allows it, and 'ebb run' without --pool needs no leave", i + 1);
        else
            TRY(config_allows(c, s->dir, e));
    }
    return ST_OK;
}

/* The precision of a step that says nothing is the job's, and that one's is settled already. */
static enum status settle_precision(const struct jobspec *job, struct step_spec *s, struct err *e)
{
    if (s->precision && strcmp(s->precision, "auto") != 0)
        return ST_OK;
    char *word = mem_strdup(job->precision);
    if (!word)
        return err_nomem(e, "a job");
    mem_free(s->precision);
    s->precision = word;
    return ST_OK;
}

static void digest_of_all(struct job *j)
{
    XXH128_canonical_t all;
    XXH128_canonicalFromHash(&all, XXH3_128bits(j->step_digests, j->spec.steps.count * sizeof *j->step_digests));
    memcpy(j->model.bytes, all.digest, sizeof j->model.bytes);
    for (int i = 0; i < 16; i++)
        snprintf(j->model.hex + 2 * i, 3, "%02x", j->model.bytes[i]);
}

static enum status make_room(struct job *j, struct err *e)
{
    j->step_digests = mem_array(j->spec.steps.count, sizeof *j->step_digests);
    return j->step_digests ? ST_OK : err_nomem(e, "a job");
}

enum status job_steps_settle(struct job *j, struct err *e)
{
    TRY(make_room(j, e));
    for (size_t i = 0; i < j->spec.steps.count; i++) {
        struct step_spec *s = &j->spec.steps.items[i];
        if (!s->model)
            continue;
        struct model_digest d;
        TRY(settle_precision(&j->spec, s, e));
        if (modeldir_digest(s->model, &d, e) != ST_OK)
            return err_prefix(e, "step %zu", i + 1);
        memcpy(j->step_digests[i], d.bytes, sizeof d.bytes);
        j->model.size_bytes += d.size_bytes;
        j->model.files += d.files;
    }
    digest_of_all(j);
    return ST_OK;
}

json_t *job_steps_json(const struct job *j)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < j->spec.steps.count; i++) {
        char hex[33];
        for (int k = 0; k < 16; k++)
            snprintf(hex + 2 * k, 3, "%02x", j->step_digests[i][k]);
        if (json_array_append_new(list, j->spec.steps.items[i].model ? json_string(hex) : json_null())) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

enum status job_steps_read(struct job *j, const json_t *list, struct err *e)
{
    if (json_array_size(list) != j->spec.steps.count)
        return err_set(e, ST_CORRUPT, "job %llu in the store has %zu steps and the digests of %zu", (unsigned long long)j->id, j->spec.steps.count, json_array_size(list));
    if (!j->spec.steps.count)
        return ST_OK;
    TRY(make_room(j, e));
    for (size_t i = 0; i < j->spec.steps.count; i++) {
        const char *hex = json_string_value(json_array_get(list, i));
        if (!hex && !j->spec.steps.items[i].model)
            continue;
        for (int k = 0; k < 16; k++)
            if (!hex || strlen(hex) != 32 || sscanf(hex + 2 * k, "%2hhx", &j->step_digests[i][k]) != 1)
                return err_set(e, ST_CORRUPT, "job %llu in the store has no digest of the model of step %zu", (unsigned long long)j->id, i + 1);
    }
    return ST_OK;
}

const char *job_steps_path(const struct job *j, const uint8_t *digest)
{
    for (size_t i = 0; i < j->spec.steps.count; i++)
        if (j->spec.steps.items[i].model && memcmp(j->step_digests[i], digest, sizeof j->step_digests[i]) == 0)
            return j->spec.steps.items[i].model;
    return NULL;
}

uint64_t job_steps_key(const struct job *j)
{
    XXH64_hash_t key = j->spec.steps.count;
    for (size_t i = 0; i < j->spec.steps.count; i++) {
        const struct step_spec *s = &j->spec.steps.items[i];
        uint64_t top_k = s->top_k ? s->top_k : j->spec.top_k;
        const char *words[] = {s->model ? "model" : "command", s->precision, s->task};
        for (size_t k = 0; k < 3; k++)
            key = XXH64(words[k] ? words[k] : "auto", words[k] ? strlen(words[k]) : 4, key);
        key = XXH64(j->step_digests[i], sizeof j->step_digests[i], XXH64(&top_k, sizeof top_k, key));
    }
    return key;
}
