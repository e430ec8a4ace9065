#include "client/measure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/ftoa.h"
#include "base/mem.h"
#include "workers/engine/peak.h"

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
    uint32_t micro_batch, micro_batch_tokens;
    size_t start; /* sequence that this lane begins at */
    uint64_t until_ns;
    uint64_t records, all_tokens;
    double seconds;
    double row_chars;
};

/* Of all rows of the first micro-batch, for each record. */
static double chars_of(const struct model_tensor *t, uint32_t records)
{
    char text[FTOA_MAX];
    size_t rows = 0;
    double n = 0;
    for (uint32_t i = 0; i < records; i++)
        rows += t->rows ? t->rows[i] : 1;
    for (size_t i = 0; i < rows * t->width; i++)
        n += (double)ftoa(t->f32[i], text) + 1;
    return n / records + 1;
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
        const struct model_result *r = model_infer(l->model, l->ctx, &(struct model_batch){.n = n, .lengths = t->lengths + at, .ids = t->ids + offset});
        BUG_IF(!r, "a micro-batch: out of memory");
        if (l->records == 0)
            l->row_chars = chars_of(&r->tensor[0], n);
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
    }
    mem_free(all);
    return st;
}

struct burner {
    pthread_t thread;
    const char *isa;
    double seconds, rate;
};

static void *burn(void *arg)
{
    struct burner *b = arg;
    double done = 0;
    uint64_t began = clock_ns(), now = began;
    peak_burn(b->isa, 1000);
    while ((double)(now - began) < b->seconds * 1e9) {
        done += peak_burn(b->isa, 100000);
        now = clock_ns();
    }
    b->rate = done / ((double)(now - began) / 1e9);
    return NULL;
}

double measure_peak(const char *isa, uint32_t lanes, double seconds)
{
    struct burner *all = mem_array(lanes, sizeof *all);
    double rate = 0;
    uint32_t started = 0;
    for (; all && started < lanes; started++) {
        all[started] = (struct burner){.isa = isa, .seconds = seconds};
        if (pthread_create(&all[started].thread, NULL, burn, &all[started]))
            break;
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        rate += all[i].rate;
    }
    int whole = all && started == lanes;
    mem_free(all);
    return whole ? rate : 0;
}
