#include "workers/engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/bert.h"
#include "workers/engine/cpuinfo.h"

/* Raised whenever a change of the kernels changes a bit of any result. */
#define NUMERICS "ebb1-x86-f32"

struct model {
    struct model_info info;
    struct model_config config;
    struct bert *bert;
};

struct model_ctx {
    const struct model *model;
    uint32_t max_tokens, max_seqs;
    void *memory;
    struct bert_work work;
};

/* The last component of dir, of what it resolves to for "." and the like. */
static enum status name_of(const char *dir, char *out, size_t cap, struct err *e)
{
    char *real = realpath(dir, NULL);
    if (!real)
        return err_set(e, ST_USER, "there is no model directory '%s'", dir);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    const char *s = dir + start;
    size_t len = n - start;
    if (len == 0 || (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.')) {
        s = strrchr(real, '/') + 1;
        len = strlen(s);
    }
    snprintf(out, cap, "%.*s", (int)len, s);
    free(real); /* libc's */
    return ST_OK;
}

static void describe(struct model_info *i, const struct model_config *c, const struct kernels *k)
{
    snprintf(i->architecture, sizeof i->architecture, "%s", c->architecture);
    snprintf(i->precision, sizeof i->precision, "f32");
    snprintf(i->isa, sizeof i->isa, "%s", k->name);
    snprintf(i->numerics, sizeof i->numerics, "%s", NUMERICS);
    snprintf(i->pooling, sizeof i->pooling, "%s", pooling_name(c->pooling));
    i->normalize = c->normalize;
    i->parameters = bert_parameters(c);
    i->weight_bytes = bert_weight_bytes(c, k);
    i->layers = c->layers;
    i->hidden = c->hidden;
    i->heads = c->heads;
    i->ffn = c->ffn;
    i->vocab = c->vocab;
    i->max_tokens = c->max_tokens;
    i->dims = c->hidden;
}

/* What open and probe share. Leaves *w to the caller to free, also on failure. */
static enum status read_headers(const char *dir, const struct kernels *k, struct model_config *c, struct model_info *i,
                                struct weights **w, struct err *e)
{
    TRY(modeldir_digest(dir, &i->digest, e));
    TRY(name_of(dir, i->name, sizeof i->name, e));
    TRY(config_read(dir, c, e));
    TRY(weights_open(dir, w, e));
    TRY(bert_check(*w, c, e));
    describe(i, c, k);
    return ST_OK;
}

enum status model_probe(const char *dir, struct model_info *info, struct err *e)
{
    const struct kernels *k;
    struct model_info i = {0};
    struct model_config c;
    struct weights *w = NULL;
    TRY(cpu_kernels(NULL, &k, e));
    enum status st = read_headers(dir, k, &c, &i, &w, e);
    weights_free(w);
    if (st == ST_OK)
        *info = i;
    return st;
}

enum status model_open(const char *dir, const struct model_opts *o, struct model **out, struct err *e)
{
    static const struct model_opts defaults;
    const struct kernels *k;
    struct weights *w = NULL;
    o = o ? o : &defaults;
    if (o->precision && strcmp(o->precision, "auto") != 0 && strcmp(o->precision, "f32") != 0)
        return err_set(e, ST_USER, "precision '%s' is not supported by this version; it is one of auto, f32", o->precision);
    TRY(cpu_kernels(o->isa, &k, e));
    if (o->reference)
        k = &kernels_reference;
    struct model *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(e, "the model");
    enum status st = read_headers(dir, k, &m->config, &m->info, &w, e);
    if (st == ST_OK)
        st = bert_load(w, &m->config, k, &m->bert, e);
    weights_free(w);
    if (st == ST_OK)
        *out = m;
    else
        model_free(m);
    return st;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    bert_free(m->bert);
    mem_free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

size_t model_ctx_bytes(const struct model *m, uint32_t max_tokens, uint32_t max_seqs)
{
    (void)max_seqs; /* a BERT needs nothing for each sequence */
    return sizeof(struct model_ctx) + bert_work_bytes(m->bert, max_tokens);
}

enum status model_ctx_new(const struct model *m, uint32_t max_tokens, uint32_t max_seqs, struct model_ctx **out, struct err *e)
{
    BUG_IF(max_tokens == 0 || max_seqs == 0, "a context for %u tokens and %u sequences", max_tokens, max_seqs);
    struct model_ctx *c = mem_zalloc(sizeof *c);
    void *memory = c ? mem_aligned(bert_work_bytes(m->bert, max_tokens)) : NULL;
    if (!memory) {
        mem_free(c);
        return err_nomem(e, "a lane's activations");
    }
    *c = (struct model_ctx){.model = m, .max_tokens = max_tokens, .max_seqs = max_seqs, .memory = memory};
    bert_work_init(&c->work, m->bert, max_tokens, memory);
    *out = c;
    return ST_OK;
}

void model_ctx_free(struct model_ctx *c)
{
    if (!c)
        return;
    mem_free(c->memory);
    mem_free(c);
}

void model_run(const struct model *m, struct model_ctx *c, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
               float *out)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        tokens += lengths[i];
    BUG_IF(c->model != m, "a context of another model");
    BUG_IF(n_seqs > c->max_seqs || tokens > c->max_tokens, "a micro-batch of %u sequences and %llu tokens; planned were %u and %u",
           n_seqs, (unsigned long long)tokens, c->max_seqs, c->max_tokens);
    unsigned saved = fp_enter();
    bert_run(m->bert, &c->work, n_seqs, lengths, ids, out);
    fp_leave(saved);
}
