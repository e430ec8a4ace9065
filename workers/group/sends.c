/* The head's micro-batches. The happy path: group_send -> waiting -> pump: flying -> its result: landed -> the finisher makes rows of it.

   What can fail: a new cut, or none (all that flies waits again, in order, and leaves behind the next StageGo); one does not come back (said once, and again after a while: a
   new cut follows); a result that does not fit its micro-batch (as if it had not come, and said); its leases were closed (it is dropped, or its rows are
   thrown away). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "workers/group/inside.h"
#include "workers/pipeline/testhook.h"

#define TIMEOUT_MS 15000  /* at least */
#define SLOWEST_TIMES 20  /* of the slowest that came back */
#define FAULT_AGAIN_MS 15000

static void append(struct flights *to, struct flight *f)
{
    struct flight **at = &to->first;
    while (*at)
        at = &(*at)->next;
    f->next = NULL;
    *at = f;
    to->count++;
}

static void insert(struct flights *to, struct flight *f)
{
    struct flight **at = &to->first;
    while (*at && (*at)->id < f->id)
        at = &(*at)->next;
    f->next = *at;
    *at = f;
    to->count++;
}

static void unlink_at(struct flights *from, struct flight **at)
{
    *at = (*at)->next;
    from->count--;
}

static void flight_free(struct flight *f)
{
    wire_free(f->m);
    payload_free(f->payload);
    loaded_unref(f->loaded);
    mem_free(f);
}

static void discard(struct group *g, struct flight *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        pipeline_discard(g->p, f->items[i]);
    flight_free(f);
}

static struct flight *flight_new(struct group *g, struct loaded *l, const struct model_batch *b, struct item *const *items, const struct blackbox_record *named)
{
    uint32_t tokens = 0;
    int typed = 0;
    for (uint32_t i = 0; i < b->n; i++)
        tokens += b->lengths[i];
    for (uint32_t i = 0; b->types && i < tokens; i++)
        typed |= b->types[i];
    size_t n = b->n, head = sizeof(struct flight) + n * (sizeof *items + sizeof *named);
    struct flight *f = mem_alloc(head + n * sizeof *b->lengths + tokens * (sizeof *b->ids + 1));
    if (!f)
        pipeline_out_of_memory(g->p, "a micro-batch");
    *f = (struct flight){.loaded = loaded_ref(l), .n = b->n, .tokens = tokens};
    f->items = (struct item **)(void *)(f + 1);
    f->named = (struct blackbox_record *)(void *)(f->items + n);
    f->lengths = (uint32_t *)(void *)(f->named + n);
    f->ids = (int32_t *)(void *)(f->lengths + n);
    memcpy(f->items, items, n * sizeof *items);
    memcpy(f->named, named, n * sizeof *named);
    memcpy(f->lengths, b->lengths, n * sizeof *b->lengths);
    memcpy(f->ids, b->ids, tokens * sizeof *b->ids);
    if (typed) {
        f->types = (uint8_t *)(f->ids + tokens);
        memcpy(f->types, b->types, tokens);
    }
    return f;
}

/* Enough to keep each member busy while results and the next ones are under way. */
static uint32_t credits(const struct group *g)
{
    return 2 * g->count + g->p->o.lanes;
}

void group_send(struct group *g, struct loaded *l, const struct model_batch *b, struct item *const *items, const struct blackbox_record *named)
{
    struct pipeline *p = g->p;
    struct flight *f = flight_new(g, l, b, items, named);
    pthread_mutex_lock(&p->lock);
    while (g->waiting.count + g->flying.count >= credits(g) + 1 && !g->stopping)
        pthread_cond_wait(&g->room, &p->lock);
    f->id = ++g->next_id;
    append(&g->waiting, f);
    if (g->stopping)
        sends_drop(g);
    else
        sends_pump(g);
    pthread_mutex_unlock(&p->lock);
}

/* With the lock held, as what follows ------------------------------------------------------------------------------------------------- */

static void send_one(struct group *g, struct flight *f)
{
    size_t n = f->n;
    Ebb__MicroBatch m = EBB__MICRO_BATCH__INIT;
    Ebb__StageRecord *records = mem_array(n, sizeof *records), **at = mem_array(n, sizeof(void *));
    Ebb__Span *spans = mem_array(n, sizeof *spans);
    if (!records || !at || !spans)
        pipeline_out_of_memory(g->p, "a micro-batch");
    for (size_t i = 0; i < n; i++) {
        spans[i] = (Ebb__Span)EBB__SPAN__INIT;
        spans[i].begin = f->named[i].record.begin;
        spans[i].end = f->named[i].record.end;
        records[i] = (Ebb__StageRecord)EBB__STAGE_RECORD__INIT;
        records[i].epoch = f->named[i].epoch;
        records[i].record = &spans[i];
        at[i] = &records[i];
    }
    m.gang = g->gang;
    m.cut = g->cut;
    m.id = f->id;
    m.pass.data = g->pass;
    m.pass.len = g->pass_len;
    m.n_lengths = n;
    m.lengths = f->lengths;
    m.ids.data = (uint8_t *)f->ids;
    m.ids.len = f->tokens * sizeof *f->ids;
    m.types.data = f->types;
    m.types.len = f->types ? f->tokens : 0;
    m.n_records = n;
    m.records = at;
    group_pass(g, 0, EBB__ENVELOPE__BODY_MICRO_BATCH, &m, NULL);
    mem_free(records);
    mem_free(at);
    mem_free(spans);
}

static int wanted(const struct flight *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (!f->items[i]->held->closed)
            return 1;
    return 0;
}

static void drop_unwanted(struct group *g, struct flights *list)
{
    for (struct flight **at = &list->first, *f; (f = *at);) {
        if (wanted(f)) {
            at = &f->next;
            continue;
        }
        unlink_at(list, at);
        discard(g, f);
    }
}

void sends_pump(struct group *g)
{
    for (struct flight **at = &g->waiting.first, *f; g->go && (f = *at) && g->flying.count < credits(g);) {
        if (f->items[0]->held->job->id != g->job->id) {
            at = &f->next; /* of a job whose gang is over: its leases are to be closed */
            continue;
        }
        unlink_at(&g->waiting, at);
        if (!wanted(f)) {
            discard(g, f);
            continue;
        }
        f->sent_ms = clock_ms();
        append(&g->flying, f);
        send_one(g, f);
    }
    pthread_cond_broadcast(&g->room);
}

void sends_again(struct group *g)
{
    for (struct flight *f; (f = g->flying.first);) {
        unlink_at(&g->flying, &g->flying.first);
        insert(&g->waiting, f);
    }
    pthread_cond_broadcast(&g->room);
}

void group_landed(struct group *g, Ebb__Envelope *m, struct payload *p)
{
    struct flight **at = &g->flying.first, *f;
    while (*at && (*at)->id != m->stage_result->id)
        at = &(*at)->next;
    if (!(f = *at)) { /* it was dropped meanwhile */
        wire_free(m);
        payload_free(p);
        return;
    }
    unlink_at(&g->flying, at);
    uint64_t took = clock_ms() - f->sent_ms;
    if (took > g->slowest_ms)
        g->slowest_ms = took;
    f->m = m;
    f->payload = p;
    append(&g->landed, f);
    pthread_cond_signal(&g->land);
    sends_pump(g);
}

/* Who may be to blame for what does not come back: who cannot be reached; else nobody is known, and the next one is named. */
static uint64_t suspect(const struct group *g)
{
    for (uint32_t i = 0; i < g->peer_count; i++)
        if (!g->peers[i].up)
            return g->peers[i].worker;
    return g->members[(g->head + 1) % g->count].worker;
}

void sends_look(struct group *g)
{
    if (g->closed) {
        g->closed = 0;
        drop_unwanted(g, &g->waiting);
        drop_unwanted(g, &g->flying);
        sends_pump(g);
    }
    if (!g->go || !g->flying.first)
        return;
    uint64_t now_ms = clock_ms(), least = testhook_stage_timeout_ms(), most = SLOWEST_TIMES * g->slowest_ms;
    least = least ? least : TIMEOUT_MS;
    most = most > least ? most : least;
    if (now_ms < g->flying.first->sent_ms + most || (g->fault_ms && now_ms < g->fault_ms + FAULT_AGAIN_MS))
        return;
    char text[160];
    g->fault_ms = now_ms;
    snprintf(text, sizeof text, "a micro-batch has not come back for %" PRIu64 " ms", now_ms - g->flying.first->sent_ms);
    group_fault(g, suspect(g), text);
}

void sends_drop(struct group *g)
{
    struct flights *lists[] = {&g->waiting, &g->flying, &g->landed};
    for (int i = 0; i < 3; i++)
        for (struct flight *f; (f = lists[i]->first);) {
            unlink_at(lists[i], &lists[i]->first);
            discard(g, f);
        }
}

/* Rows --------------------------------------------------------------------------------------------------------------------------------- */

/* Without the lock. 0: the result is none. */
static int finish(struct group *g, struct flight *f, struct buf *scratch)
{
    const Ebb__StageResult *m = f->m->stage_result;
    struct model_result r;
    struct err e;
    void *copy = NULL;
    const void *data = payload_data(f->payload);
    size_t len = payload_len(f->payload);
    if (*m->fault) {
        log_warn("gang %" PRIx64 ": micro-batch %" PRIu64 ": %s", m->gang, f->id, m->fault);
        return 0;
    }
    if ((uintptr_t)data % sizeof(float)) {
        if (!(copy = mem_aligned(len ? len : 1)))
            pipeline_out_of_memory(g->p, "a result");
        memcpy(copy, data, len);
    }
    enum status st = message_result(m, copy ? copy : data, len, f->loaded->info, f->n, f->lengths, &r, &e);
    if (st == ST_NOMEM)
        pipeline_out_of_memory(g->p, "a result");
    if (st == ST_OK) {
        pipeline_finish(g->p, f->loaded, f->items, f->n, &r, scratch);
        mem_free((void *)(uintptr_t)r.errors);
    } else {
        log_warn("gang %" PRIx64 ": micro-batch %" PRIu64 ": %s", m->gang, f->id, e.text);
    }
    mem_free(copy);
    return st == ST_OK;
}

void *finisher_run(void *arg)
{
    struct stage *stage = arg;
    struct pipeline *p = stage->pipeline;
    struct group *g = p->group;
    struct buf scratch = {0};
    pthread_mutex_lock(&p->lock);
    while (!g->stopping) {
        struct flight *f = g->landed.first;
        if (!f) {
            pthread_cond_wait(&g->land, &p->lock);
            continue;
        }
        unlink_at(&g->landed, &g->landed.first);
        g->finishing = 1;
        pthread_mutex_unlock(&p->lock);
        int good = finish(g, f, &scratch);
        if (good)
            flight_free(f);
        pthread_mutex_lock(&p->lock);
        g->finishing = 0;
        if (good)
            continue;
        int ours = g->gang && f->m->stage_result->gang == g->gang && f->m->stage_result->cut == g->cut;
        wire_free(f->m);
        payload_free(f->payload);
        f->m = NULL;
        f->payload = NULL;
        insert(&g->waiting, f);
        if (ours && g->go) { /* nothing more leaves under this cut: what comes back of it is no result */
            g->go = 0;
            group_fault(g, g->members[g->count - 1].worker, "a result does not fit its micro-batch");
        }
    }
    pthread_mutex_unlock(&p->lock);
    buf_release(&scratch);
    return NULL;
}
