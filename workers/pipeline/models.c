#include "workers/pipeline/models.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "storage/modeldir.h"
#include "workers/pipeline/steps.h"
#include "workers/remote/remote.h"

static int same_numerics(const struct loaded *l, const struct job *j)
{
    return !*j->numerics || strcmp(j->numerics, l->info->numerics) == 0;
}

int loaded_fits(const struct loaded *l, const struct job *j)
{
    return l->key == j->model_key && same_numerics(l, j);
}

static enum status check_same(const struct job *j, const struct loaded *l, struct err *e)
{
    if (!same_numerics(l, j))
        return err_set(e, ST_USER, "this machine computes %s as '%s', and the job began with '%s': its rows would differ in their last bits; only machines like "
                                   "the first can go on with it", l->info->precision, l->info->numerics, j->numerics);
    if (memcmp(l->info->digest.bytes, j->model_digest, sizeof j->model_digest) != 0)
        return err_set(e, ST_USER, "the model in '%s' is not the one that the job was submitted with; put that one back, or submit again",
                       j->spec.model);
    return ST_OK;
}

static enum status check(const struct job *j, const struct loaded *l, struct err *e)
{
    TRY(check_same(j, l, e));
    struct jobspec settled = j->spec; /* a client that did not see the model could not say what it is for */
    settled.task = (char *)l->info->task;
    if (l->info->arrays) {
        struct feed *feed;
        TRY(loaded_feed(l, j, &feed, e));
        feed_free(feed);
        return jobspec_check_task(&settled, j->npy, e);
    }
    if (j->reading.format == FORMAT_IMAGES || j->reading.format == FORMAT_NPY)
        return err_set(e, ST_USER, "the model in '%s' takes texts, but the input is of %s", j->spec.model,
                       j->reading.format == FORMAT_IMAGES ? "images" : "arrays");
    uint32_t ids = tokenizer_vocab_size(l->tokenizer);
    if (ids > l->info->vocab)
        return err_set(e, ST_USER, "the tokenizer of '%s' knows %u tokens, its model only %u: they do not belong together", j->spec.model, ids,
                       l->info->vocab);
    uint32_t special = j->spec.pair_field ? tokenizer_pair_special_count(l->tokenizer) : tokenizer_special_count(l->tokenizer);
    if (l->info->max_tokens <= special)
        return err_set(e, ST_USER, "the model in '%s' takes %u tokens, which leaves none for text", j->spec.model, l->info->max_tokens);
    return jobspec_check_task(&settled, j->npy, e);
}

enum status loaded_feed(const struct loaded *l, const struct job *j, struct feed **out, struct err *e)
{
    uint32_t n;
    const struct port *in = model_inputs(l->model, &n);
    struct feed_opts o = {.format = j->reading.format, .field = j->spec.field, .id = j->spec.id, .keep = (const char *const *)j->spec.keep.items,
                          .keep_count = j->spec.keep.count, .images = l->images};
    return feed_new(in, n, &o, out, e);
}

/* What lies beside the model: its tokenizer, or what it says of pictures. */
static enum status open_beside(struct loaded *l, const char *path, struct err *e)
{
    char *folder;
    struct err why;
    TRY(model_folder(path, &folder, e));
    enum status st = ST_OK;
    if (!model_info(l->model)->arrays) {
        st = tokenizer_open(folder, &l->tokenizer, e);
    } else if (!(l->images = mem_zalloc(sizeof *l->images))) {
        st = err_nomem(e, "a model");
    } else {
        st = image_spec_load(folder, l->images, &why);
        if (st != ST_OK) {
            mem_free(l->images);
            l->images = NULL;
            st = st == ST_NOT_FOUND ? ST_OK : err_set(e, st, "%s", why.text);
        }
    }
    mem_free(folder);
    return st;
}

static enum status find_mask(const struct job *j, struct loaded *l, struct err *e)
{
    l->mask_id = -1;
    if (l->info->kind != TASK_FILL_MASK)
        return ST_OK;
    l->mask_id = tokenizer_id(l->tokenizer, l->info->mask_token);
    if (l->mask_id < 0)
        return err_set(e, ST_USER, "the tokenizer of '%s' has no token '%s', which fill-mask looks for; 'mask_token' in tokenizer_config.json names it",
                       j->spec.model, l->info->mask_token);
    model_set_mask(l->model, l->mask_id);
    return ST_OK;
}

static uint64_t record_bytes(const struct model *m)
{
    uint32_t n;
    uint64_t all = 0;
    const struct port *in = model_inputs(m, &n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = in[i].rank < 0 ? 0 : dtype_bytes(in[i].dtype);
        for (int k = 0; k < in[i].rank; k++)
            bytes = in[i].dims[k] > 0 && bytes < UINT64_C(1) << 40 ? bytes * (uint64_t)in[i].dims[k] : 0;
        all += bytes;
    }
    return all;
}

static int is_it(const struct job *j, const struct model *m)
{
    return memcmp(model_info(m)->digest.bytes, j->model_digest, sizeof j->model_digest) == 0;
}

/* From the host's cache, where it is put when it is not there. What was damaged on the disk is fetched once more. */
static enum status open_fetched(const struct job *j, const struct model_opts *o, struct remote *remote, struct model **out, char **path, struct err *e)
{
    for (int tries = 0;; tries++) {
        TRY(remote_model(remote, j->model_digest, path, e));
        enum status st = model_open(*path, o, out, e);
        if (st == ST_OK && is_it(j, *out))
            return ST_OK;
        if (st == ST_NOMEM || tries)
            return st == ST_OK ? ST_OK : st; /* whoever looks at the digest next says what is wrong */
        struct model_digest now;
        struct err why;
        if (st != ST_OK && modeldir_digest(*path, &now, &why) == ST_OK && memcmp(now.bytes, j->model_digest, sizeof now.bytes) == 0)
            return st; /* it is sound, and cannot be loaded */
        if (st == ST_OK)
            model_free(*out);
        *out = NULL;
        remote_model_bad(remote, j->model_digest);
        mem_free(*path);
        *path = NULL;
    }
}

/* *path: where it was found in the end. */
static enum status open_model(const struct job *j, const struct model_opts *o, struct remote *remote, struct model **out, char **path, struct err *e)
{
    if (!(*path = mem_strdup(j->spec.model)))
        return err_nomem(e, "a model");
    enum status st = model_open(*path, o, out, e);
    if (st == ST_NOMEM || !remote_far(remote) || (st == ST_OK && is_it(j, *out)))
        return st;
    struct model_digest now;
    struct err why;
    if (st != ST_OK && modeldir_digest(*path, &now, &why) == ST_OK && memcmp(now.bytes, j->model_digest, sizeof now.bytes) == 0)
        return st; /* it is here, and cannot be loaded: another copy could not either */
    log_info("job %" PRIu64 ": '%s' is %s on this machine", j->id, j->spec.model, st == ST_OK ? "another model" : "no model");
    if (st == ST_OK)
        model_free(*out);
    *out = NULL;
    mem_free(*path);
    *path = NULL;
    return open_fetched(j, o, remote, out, path, e);
}

/* A stage takes tokens: it needs no tokenizer, but to know which of them is the mask. */
static enum status check_part(const struct job *j, const struct loaded *l, struct err *e)
{
    if (l->info->arrays)
        return err_set(e, ST_USER, "the model in '%s' takes arrays: it runs on one worker, whole", j->spec.model);
    return check_same(j, l, e);
}

enum status loaded_open(const struct job *j, const struct model_opts *machine, struct remote *remote, struct loaded **out, struct err *e)
{
    if (j->step_count)
        return steps_open_models(j, machine, remote, out, e);
    struct loaded *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a model");
    l->refs = 1;
    l->key = j->model_key;
    uint64_t begun = clock_ms();
    struct model_opts o = *machine;
    char *path = NULL;
    o.precision = j->spec.precision;
    o.task = j->spec.task;
    o.top_k = (uint32_t)j->spec.top_k;
    enum status st = open_model(j, &o, remote, &l->model, &path, e);
    l->path = path;
    l->mask_id = -1;
    l->info = st == ST_OK ? model_info(l->model) : NULL;
    int stage = o.part && o.first < o.end;
    l->shell = o.part && !stage;
    if (st == ST_OK && (!stage || l->info->kind == TASK_FILL_MASK))
        st = open_beside(l, path, e);
    if (st == ST_OK) {
        l->record_bytes = l->info->arrays ? record_bytes(l->model) : 0;
        st = stage ? check_part(j, l, e) : check(j, l, e);
        if (st == ST_OK && l->tokenizer)
            st = find_mask(j, l, e);
    }
    if (st == ST_OK && stage && l->tokenizer) { /* it is only the mask that was asked for */
        tokenizer_free(l->tokenizer);
        l->tokenizer = NULL;
    }
    if (st != ST_OK) {
        loaded_unref(l);
        return st;
    }
    l->load_ms = clock_ms() - begun;
    *out = l;
    return ST_OK;
}

enum status loaded_open_part(const struct job *j, const struct model_opts *machine, struct remote *remote, uint32_t first, uint32_t end, struct loaded **out,
                             struct err *e)
{
    struct model_opts o = *machine;
    o.part = 1;
    o.first = first;
    o.end = end;
    return loaded_open(j, &o, remote, out, e);
}

struct loaded *loaded_ref(struct loaded *l)
{
    atomic_fetch_add(&l->refs, 1);
    return l;
}

void loaded_unref(struct loaded *l)
{
    if (!l || atomic_fetch_sub(&l->refs, 1) > 1)
        return;
    if (l->model)
        model_free(l->model);
    if (l->tokenizer)
        tokenizer_free(l->tokenizer);
    mem_free(l->images);
    mem_free(l->path);
    for (size_t i = 0; i < l->part_count; i++)
        loaded_unref(l->parts[i]);
    mem_free(l->parts);
    mem_free(l);
}
