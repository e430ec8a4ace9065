#include "client/measure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/ftoa.h"
#include "base/mem.h"

int tokens_add(struct tokens *t, const int32_t *ids, uint32_t count)
{
    if (mem_grow((void **)&t->lengths, &t->count_cap, t->count, sizeof *t->lengths))
        return -1;
    if (t->total + count > t->total_cap) {
        size_t want = (t->total + count) * 2;
        int32_t *p = mem_resize(t->ids, want * sizeof *p);
        if (!p)
            return -1;
        t->ids = p;
        t->total_cap = want;
    }
    memcpy(t->ids + t->total, ids, count * sizeof *ids);
    t->lengths[t->count++] = count;
    t->total += count;
    return 0;
}

void tokens_release(struct tokens *t)
{
    mem_free(t->ids);
    mem_free(t->lengths);
    *t = (struct tokens){0};
}

struct lane {
    pthread_t thread;
    const struct model *model;
    const struct tokens *tokens;
    struct model_ctx *ctx;
    float *out;
    uint32_t micro_batch, micro_batch_tokens;
    size_t start; /* sequence that this lane begins at */
    uint64_t until_ns;
    uint64_t records, all_tokens;
    double seconds;
    double row_chars;
};

static double chars_of(const float *row, uint32_t dims)
{
    char text[FTOA_MAX];
    double n = 2;
    for (uint32_t i = 0; i < dims; i++)
        n += (double)ftoa(row[i], text) + (i > 0);
    return n;
}

/* From sequence `at` on, as many as fit into a micro-batch. */
static uint32_t fill(const struct lane *l, size_t at, size_t *tokens)
{
    uint32_t n = 0;
    *tokens = 0;
    while (n < l->micro_batch && at + n < l->tokens->count && (n == 0 || *tokens + l->tokens->lengths[at + n] <= l->micro_batch_tokens))
        *tokens += l->tokens->lengths[at + n++];
    return n;
}

static void *work(void *arg)
{
    struct lane *l = arg;
    const struct tokens *t = l->tokens;
    uint64_t began = clock_ns(), now = began;
    size_t at = 0, offset = 0;
    for (; at < l->start; at++)
        offset += t->lengths[at];
    do {
        size_t tokens;
        uint32_t n = fill(l, at, &tokens);
        model_run(l->model, l->ctx, n, t->lengths + at, t->ids + offset, l->out);
        if (l->records == 0)
            l->row_chars = chars_of(l->out, model_info(l->model)->dims);
        l->records += n;
        l->all_tokens += tokens;
        at += n;
        offset += tokens;
        if (at == t->count)
            at = offset = 0;
        now = clock_ns();
    } while (now < l->until_ns);
    l->seconds = (double)(now - began) / 1e9;
    return NULL;
}

enum status measure_speed(const struct model *m, const struct tokens *t, uint32_t lanes, uint32_t micro_batch, uint32_t micro_batch_tokens,
                          double seconds, struct speed *out, struct err *e)
{
    *out = (struct speed){0};
    if (!t->count || !lanes)
        return ST_OK;
    uint32_t longest = micro_batch_tokens;
    for (size_t i = 0; i < t->count; i++)
        if (t->lengths[i] > longest)
            longest = t->lengths[i];
    struct lane *all = mem_array(lanes, sizeof *all);
    if (!all)
        return err_nomem(e, "lanes");
    enum status st = ST_OK;
    uint32_t started = 0;
    uint64_t until = clock_ns() + (uint64_t)(seconds * 1e9);
    for (uint32_t i = 0; i < lanes && st == ST_OK; i++) {
        struct lane *l = &all[i];
        *l = (struct lane){.model = m, .tokens = t, .micro_batch = micro_batch, .micro_batch_tokens = micro_batch_tokens,
                           .start = t->count * i / lanes, .until_ns = until};
        st = model_ctx_new(m, longest, micro_batch, &l->ctx, e);
        if (st == ST_OK && !(l->out = mem_array((size_t)micro_batch * model_info(m)->dims, sizeof *l->out)))
            st = err_nomem(e, "embeddings");
    }
    for (; started < lanes && st == ST_OK; started++) {
        int failed = pthread_create(&all[started].thread, NULL, work, &all[started]);
        if (failed) {
            st = err_errno(e, ST_ENV, failed, "cannot start a thread");
            break;
        }
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        out->records_per_s += (double)all[i].records / all[i].seconds;
        out->tokens_per_s += (double)all[i].all_tokens / all[i].seconds;
        out->row_chars += all[i].row_chars / started;
    }
    for (uint32_t i = 0; i < lanes; i++) {
        model_ctx_free(all[i].ctx);
        mem_free(all[i].out);
    }
    mem_free(all);
    return st;
}
