#include "workers/engine/profile.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/host.h"
#include "base/mem.h"

#define RUNS_LEAST 3
#define RUNS_MOST 12
#define ENOUGH_MS 40             /* of runs of one segment, beyond the least number */
#define BATCH_TOKENS 1024        /* of a lane's context: micro-batches are at most so large unless a job says otherwise (wire/jobspec.h) */
#define BATCH_TEXTS 64
#define WORKER_BYTES (32u << 20) /* of a worker beside all that: the program, queues, tokenizer */

struct walk {
    const char *dir;
    struct model_opts o;
    struct profile *p;
    double slower;
    struct model_batch batch;
    uint32_t lengths[PROFILE_TEXTS];
    int32_t *ids;
    void *in; /* what crossed the cut before the segment, our copy */
    size_t in_len;
};

/* Processor time: a machine that others use just now would pass for a slow one. */
static double thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The shortest of some runs; the first one, which finds caches and pages cold, counts only if it was shorter. */
static enum status run_segment(struct walk *w, const struct model *m, struct model_ctx *c, struct profile_segment *s, struct err *e)
{
    const void *out = NULL;
    size_t out_len = 0;
    const struct model_result *result = NULL;
    double best = 0, sum = 0;
    for (int i = 0; i < RUNS_MOST && (i < RUNS_LEAST || sum < ENOUGH_MS); i++) {
        double before = thread_ms();
        TRY(model_stage(m, c, &w->batch, w->in, w->in_len, &out, &out_len, &result, e));
        double took = thread_ms() - before;
        sum += took;
        best = i == 0 || took < best ? took : best;
    }
    s->time_ms = best * w->slower / w->o.lanes;
    s->out_bytes = (double)out_len;
    for (uint32_t i = 0; result && i < result->count; i++) {
        const struct model_tensor *t = &result->tensor[i];
        double rows = t->rows ? 0 : w->batch.n;
        for (uint32_t k = 0; t->rows && k < w->batch.n; k++)
            rows += t->rows[k];
        s->out_bytes += 4.0 * rows * t->width;
    }
    void *copy = out_len ? mem_alloc(out_len) : NULL;
    if (out_len && !copy)
        return err_nomem(e, "a profile");
    if (out_len)
        memcpy(copy, out, out_len);
    mem_free(w->in);
    w->in = copy;
    w->in_len = out_len;
    return ST_OK;
}

static enum status measure_segment(struct walk *w, uint32_t i, struct err *e)
{
    struct profile_segment *s = &w->p->list[i];
    struct model *m = NULL;
    struct model_ctx *c = NULL;
    w->o.part = 1;
    w->o.first = i;
    w->o.end = i + 1;
    TRY(model_open(w->dir, &w->o, &m, e));
    uint32_t most = w->p->info.max_tokens > BATCH_TOKENS ? w->p->info.max_tokens : BATCH_TOKENS;
    uint64_t fixed = WORKER_BYTES + (uint64_t)w->o.lanes * model_ctx_bytes(m, most, BATCH_TEXTS);
    w->p->fixed_bytes = fixed > w->p->fixed_bytes ? fixed : w->p->fixed_bytes;
    s->weight_bytes = model_info(m)->weight_bytes;
    model_set_mask(m, w->ids[0]); /* each text has one, should that matter */
    enum status st = model_ctx_new(m, PROFILE_TEXTS * w->p->tokens, PROFILE_TEXTS, &c, e);
    if (st == ST_OK)
        st = run_segment(w, m, c, s, e);
    model_ctx_free(c);
    model_free(m);
    return st;
}

static enum status prepare(struct walk *w, struct err *e)
{
    struct profile *p = w->p;
    const struct model_info *m = &p->info;
    uint32_t vocab = m->vocab < INT32_MAX ? m->vocab : 1000; /* some ONNX models do not say */
    p->texts = PROFILE_TEXTS;
    p->tokens = m->max_tokens && m->max_tokens < PROFILE_TOKENS ? m->max_tokens : PROFILE_TOKENS;
    if (!(w->ids = mem_array((size_t)p->texts * p->tokens, sizeof *w->ids)))
        return err_nomem(e, "a profile");
    for (uint32_t t = 0, n = 0; t < p->texts; t++) {
        w->lengths[t] = p->tokens;
        for (uint32_t k = 0; k < p->tokens; k++, n++)
            w->ids[n] = k ? (int32_t)((1 + n * 7919u) % vocab) : (int32_t)(vocab - 1);
    }
    w->batch = (struct model_batch){.n = p->texts, .lengths = w->lengths, .ids = w->ids};
    return ST_OK;
}

enum status profile_measure(const char *dir, const struct model_opts *o, double slower, struct profile *out, struct err *e)
{
    struct cut cut = {.tokens = PROFILE_TOKENS};
    *out = (struct profile){.count = 0};
    struct walk w = {.dir = dir, .o = *o, .p = out, .slower = slower};
    if (!w.o.lanes)
        w.o.lanes = host_processors();
    w.o.part = 0;
    w.o.pack_dir = NULL; /* one segment would be a pack of its own */
    TRY(model_probe_cut(dir, &w.o, &out->info, &cut, e));
    enum status st = ST_OK;
    if (out->info.arrays)
        st = err_set(e, ST_USER, "'%s' takes arrays, not texts: such a model runs on one worker, whole", dir);
    else if (cut.count < 2)
        st = err_set(e, ST_USER, "'%s' is one segment: it cannot be cut", dir);
    else if (!(out->list = mem_array(cut.count, sizeof *out->list)))
        st = err_nomem(e, "a profile");
    if (st == ST_OK)
        st = prepare(&w, e);
    out->count = cut.count;
    for (uint32_t i = 0; st == ST_OK && i < out->count; i++) {
        snprintf(out->list[i].first, sizeof out->list[i].first, "%s", cut.list[i].first);
        st = measure_segment(&w, i, e);
    }
    cut_release(&cut);
    mem_free(w.ids);
    mem_free(w.in);
    if (st != ST_OK)
        profile_release(out);
    return st;
}

void profile_release(struct profile *p)
{
    mem_free(p->list);
    *p = (struct profile){.count = 0};
}
