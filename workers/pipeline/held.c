#include "workers/pipeline/held.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/status.h"
#include "workers/pipeline/job.h"
#include "workers/pipeline/models.h"
#include "workers/pipeline/steps.h"

struct item *item_new(void)
{
    return mem_zalloc(sizeof(struct item));
}

void item_free(struct item *i)
{
    if (!i)
        return;
    mem_free(i->raw);
    mem_free(i->ids);
    mem_free(i->types);
    mem_free(i->spans);
    mem_free(i->arrays);
    mem_free(i->hook);
    mem_free(i->id);
    mem_free(i->keep);
    mem_free(i->row);
    mem_free(i->aux);
    mem_free(i->message);
    if (i->held)
        held_unref(i->held);
    mem_free(i);
}

struct held *held_new(struct job *job, uint64_t epoch, struct span span, int probe, struct input *inputs, size_t input_count, uint64_t now_ms)
{
    struct held *h = mem_zalloc(sizeof *h);
    if (!h)
        return NULL;
    h->refs = 1;
    h->epoch = epoch;
    h->span = span;
    h->probe = probe;
    h->job = job;
    h->inputs = inputs;
    h->input_count = input_count;
    h->limit = span.end;
    h->read_to = span.begin;
    h->last = &h->first;
    h->committed_ms = now_ms;
    return h;
}

void inputs_free(struct input *inputs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        mem_free(inputs[i].source.path);
        mem_free(inputs[i].refused);
        if (inputs[i].has_columns)
            columns_release(&inputs[i].columns);
    }
    mem_free(inputs);
}

struct held *held_ref(struct held *h)
{
    atomic_fetch_add(&h->refs, 1);
    return h;
}

void held_unref(struct held *h)
{
    if (!h || atomic_fetch_sub(&h->refs, 1) > 1)
        return;
    BUG_IF(h->first, "a lease goes with items in it");
    inputs_free(h->inputs, h->input_count);
    if (h->job)
        job_unref(h->job);
    if (h->loaded)
        loaded_unref(h->loaded);
    chain_unref(h->chain);
    mem_free(h);
}

struct input *held_input(const struct held *h, uint64_t pos)
{
    size_t low = 0, high = h->input_count;
    while (low < high) { /* the first that ends behind pos */
        size_t mid = low + (high - low) / 2;
        if (h->inputs[mid].end > pos)
            high = mid;
        else
            low = mid + 1;
    }
    return low < h->input_count ? &h->inputs[low] : NULL;
}

void held_add(struct held *h, struct item *i, uint64_t now_ms)
{
    BUG_IF(i->cell.begin != h->read_to || i->cell.end <= i->cell.begin || i->cell.end > h->limit,
           "a cell [%" PRIu64 ", %" PRIu64 ") behind %" PRIu64 " in a lease that ends at %" PRIu64, i->cell.begin, i->cell.end, h->read_to,
           h->limit);
    i->later = NULL;
    *h->last = i;
    h->last = &i->later;
    h->read_to = i->cell.end;
    if (i->state == ITEM_OPEN) {
        h->open++;
        return;
    }
    i->done_ms = now_ms;
    h->done++;
    h->bytes_done += i->bytes;
    h->done_bytes += i->charge;
}

int held_finish(struct held *h, struct item *i, enum item_state result, uint64_t now_ms)
{
    BUG_IF(result == ITEM_OPEN || i->state != ITEM_OPEN, "an item is finished without a result, or twice");
    if (h->closed)
        return 0;
    i->state = result;
    i->done_ms = now_ms;
    h->open--;
    h->done++;
    h->records_done++;
    h->bytes_done += i->bytes;
    h->done_bytes += i->charge;
    return 1;
}

/* The record that the reader waits with is taken too. */
static uint64_t taken_to(const struct held *h)
{
    return h->reading_to > h->read_to ? h->reading_to : h->read_to;
}

/* A lease may end anywhere in a plain source, but in a stream only where a record is known to begin. */
static int may_end(const struct held *h, uint64_t at)
{
    const struct input *in = held_input(h, at);
    return at >= h->limit || at == taken_to(h) || !in || !in->stream || at == in->source.base;
}

static void end_at(struct held *h, uint64_t *at)
{
    if (*at < taken_to(h))
        *at = taken_to(h);
    if (*at > h->limit)
        *at = h->limit;
    h->limit = *at;
}

enum cut_answer held_cut(struct held *h, uint64_t *at, int known)
{
    if (*at < taken_to(h))
        *at = taken_to(h);
    if (*at >= h->limit) {
        *at = h->limit;
        return CUT_NOW;
    }
    if (!known && !may_end(h, *at))
        return CUT_SCAN;
    if (h->reading && !h->reading_to) {
        if (!h->cut_pending || *at < h->cut_at)
            h->cut_at = *at;
        h->cut_pending = 1;
        return CUT_LATER;
    }
    end_at(h, at);
    return CUT_NOW;
}

int held_cut_settle(struct held *h, uint64_t *at)
{
    if (!h->cut_pending)
        return 0;
    h->cut_pending = 0;
    *at = h->cut_at;
    end_at(h, at);
    return 1;
}

int held_complete(const struct held *h)
{
    return h->read_to == h->limit && !h->reading && h->open == 0;
}

int held_due(const struct held *h, uint64_t now_ms, uint64_t every_ms, int all)
{
    if (h->closed || !h->done)
        return 0;
    return all || h->probe || held_complete(h) || now_ms >= h->committed_ms + every_ms;
}

size_t held_take(struct held *h, uint64_t now_ms, uint64_t every_ms, int all, struct run *runs)
{
    size_t n = 0;
    struct item **at = &h->first;
    int whole = all || held_complete(h);
    while (*at && n < HELD_MOST_RUNS) {
        struct run r = {.first = *at, .last = *at};
        if (r.first->state == ITEM_OPEN) {
            at = &r.first->later;
            continue;
        }
        for (r.count = 1; r.last->later; r.count++) {
            struct item *next = r.last->later;
            if (next->state == ITEM_OPEN || next->cell.begin != r.last->cell.end)
                break;
            r.last = next;
        }
        struct item *rest = r.last->later;
        if (!whole && at != &h->first && now_ms < r.first->done_ms + every_ms) {
            at = &r.last->later;
            continue;
        }
        r.last->later = NULL;
        *at = rest;
        if (!rest)
            h->last = at;
        for (struct item *i = r.first; i; i = i->later)
            h->done_bytes -= i->charge;
        h->done -= r.count;
        runs[n++] = r;
    }
    return n;
}

void held_untake(struct held *h, const struct run *runs, size_t n)
{
    struct item **at = &h->first;
    for (size_t i = 0; i < n; i++) {
        while (*at && (*at)->cell.begin < runs[i].first->cell.begin)
            at = &(*at)->later;
        runs[i].last->later = *at;
        if (!*at)
            h->last = &runs[i].last->later;
        *at = runs[i].first;
        for (const struct item *x = runs[i].first;; x = x->later) {
            h->done_bytes += x->charge;
            if (x == runs[i].last)
                break;
        }
        h->done += runs[i].count;
        at = &runs[i].last->later;
    }
}

int held_rest(const struct held *h, struct span **out, size_t *count)
{
    struct span *spans = NULL;
    size_t n = 0, cap = 0;
    const struct item *i = h->first;
    for (;;) {
        struct span s = i ? i->cell : (struct span){h->read_to, h->limit};
        if (s.begin < s.end) {
            if (n && spans[n - 1].end == s.begin) {
                spans[n - 1].end = s.end;
            } else {
                void *grown = spans;
                if (mem_grow(&grown, &cap, n, sizeof *spans)) {
                    mem_free(spans);
                    return -1;
                }
                spans = grown;
                spans[n++] = s;
            }
        }
        if (!i)
            break;
        i = i->later;
    }
    *out = spans;
    *count = n;
    return 0;
}

void held_close(struct held *h, struct item **dropped)
{
    struct item **to = dropped;
    *to = NULL;
    for (struct item *i = h->first, *later; i; i = later) {
        later = i->later;
        i->later = NULL;
        if (i->state == ITEM_OPEN)
            continue; /* whoever works on it finds the lease closed */
        *to = i;
        to = &i->later;
    }
    h->first = NULL;
    h->last = &h->first;
    h->open = h->done = 0;
    h->done_bytes = 0;
    h->closed = 1;
}

void run_measure(const struct run *r, uint64_t *lines, uint64_t *bytes)
{
    const struct item *last = r->last;
    *lines = last->lines_after;
    *bytes = 0;
    if (last->input->source.base < r->first->cell.begin) /* the source began before the extent: count from there */
        *lines -= r->first->lines_before;
    for (const struct item *i = r->first; i; i = i->later)
        *bytes += i->bytes;
}

uint64_t run_line(const struct run *r, const struct item *i)
{
    return i->input->source.base < r->first->cell.begin ? i->line - r->first->lines_before : i->line;
}
