/* Events in order of time; what the store would hold; one step of the real core and what it asks for. */
#include "tests/sim/elastic_world.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

void el_fail(struct world *m, const char *what, uint64_t a, uint64_t b)
{
    if (!m->failed)
        m->failed = (int)err_set(m->e, ST_CORRUPT, "seed %" PRIu64 ", at %" PRIu64 " ms: %s (%" PRIu64 ", %" PRIu64 ")", m->c->seed, m->now_ms - m->began_ms, what, a, b);
}

uint64_t el_rnd(struct world *m, uint64_t n)
{
    uint64_t x = m->rng += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return n ? (x ^ x >> 31) % n : 0;
}

double el_uniform(struct world *m) /* 0..1, neither of them */
{
    return ((double)el_rnd(m, UINT64_C(1) << 40) + 0.5) / (double)(UINT64_C(1) << 40);
}

static void *more(struct world *m, void *p, size_t *cap, size_t count, size_t size)
{
    if (count < *cap)
        return p;
    size_t to = *cap ? *cap * 2 : 1024;
    p = realloc(p, to * size);
    if (!p)
        abort();
    memset((char *)p + *cap * size, 0, (to - *cap) * size);
    m->own_bytes += (to - *cap) * size;
    *cap = to;
    return p;
}

/* Time ---------------------------------------------------------------------------------------------------------------------------- */

static int before(const struct item *a, const struct item *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

void el_at(struct world *m, uint64_t at_ms, enum kind kind, uint32_t worker, uint32_t serial, uint32_t slot)
{
    m->heap = more(m, m->heap, &m->heap_cap, m->heap_count, sizeof *m->heap);
    struct item it = {at_ms, m->order++, worker, serial, kind, slot};
    size_t i = m->heap_count++;
    for (; i && before(&it, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = it;
}

struct item el_pop(struct world *m)
{
    struct item first = m->heap[0], it = m->heap[--m->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= m->heap_count)
            break;
        if (child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!before(&m->heap[child], &it))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = it;
    return first;
}

uint32_t el_said_new(struct world *m)
{
    uint32_t i = m->said_free;
    if (i) {
        m->said_free = m->said[i].next;
    } else {
        size_t cap = m->said_cap;
        if (!m->said_count)
            m->said_count = 1;
        m->said = more(m, m->said, &cap, m->said_count, sizeof *m->said);
        m->said_cap = (uint32_t)cap;
        i = m->said_count++;
    }
    m->said[i] = (struct parcel){.life = m->life};
    return i;
}

static uint32_t told_new(struct world *m)
{
    uint32_t i = m->told_free;
    if (i) {
        m->told_free = m->told[i].next;
    } else {
        size_t cap = m->told_cap;
        if (!m->told_count)
            m->told_count = 1;
        m->told = more(m, m->told, &cap, m->told_count, sizeof *m->told);
        m->told_cap = (uint32_t)cap;
        i = m->told_count++;
    }
    return i;
}

double el_percentile(const uint64_t buckets[BUCKETS], double part)
{
    uint64_t all = 0, sum = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        all += buckets[i];
    for (size_t i = 0; i < BUCKETS; i++) {
        sum += buckets[i];
        if (all && (double)sum >= part * (double)all)
            return 0.1 * exp2((double)(i + 1) / 16);
    }
    return 0;
}

uint64_t el_core_bytes(struct world *m)
{
    struct mallinfo2 i = mallinfo2();
    uint64_t all = i.uordblks + i.hblkhd, core = all > m->own_bytes ? all - m->own_bytes : 0;
    if (core > m->r->core_bytes)
        m->r->core_bytes = core;
    return core;
}

/* After 1,000, 10,000... leases: what a commit costs since the last mark, and what the core takes. */
void el_mark(struct world *m)
{
    if (m->marks == ELASTIC_MARKS)
        return;
    m->r->marks[m->marks].leases = m->r->leases;
    m->r->marks[m->marks].commit_us = el_percentile(m->window, 0.5);
    m->r->marks[m->marks++].core_bytes = el_core_bytes(m);
    memset(m->window, 0, sizeof m->window);
}

/* Rows ---------------------------------------------------------------------------------------------------------------------------- */

static size_t home(const struct image *x, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h ^ h >> 29) & (x->cap - 1);
}

static struct slot *find(const struct image *x, uint64_t key)
{
    size_t i = home(x, key);
    while (x->slots[i].key && x->slots[i].key != key)
        i = (i + 1) & (x->cap - 1);
    return &x->slots[i];
}

static void image_put(struct world *m, const struct span_row *row)
{
    struct image *x = &m->image;
    if (!x->cap || x->count * 2 >= x->cap) {
        struct image bigger = {.cap = x->cap ? x->cap * 2 : 4096};
        bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
        if (!bigger.slots)
            abort();
        for (size_t i = 0; i < x->cap; i++)
            if (x->slots[i].key)
                *find(&bigger, x->slots[i].key) = x->slots[i];
        bigger.count = x->count;
        m->own_bytes += (bigger.cap - x->cap) * sizeof *x->slots;
        free(x->slots);
        *x = bigger;
    }
    struct slot *s = find(x, row->span.begin + 1);
    x->count += !s->key;
    s->key = row->span.begin + 1;
    s->row = *row;
}

static void image_del(struct world *m, uint64_t begin)
{
    struct image *x = &m->image;
    struct slot *s = x->cap ? find(x, begin + 1) : NULL;
    if (!s || !s->key) {
        el_fail(m, "a row is deleted that is not there", begin, 0);
        return;
    }
    x->count--;
    size_t i = (size_t)(s - x->slots), mask = x->cap - 1;
    for (size_t j = i;;) {
        x->slots[i].key = 0;
        for (;;) {
            j = (j + 1) & mask;
            if (!x->slots[j].key)
                return;
            size_t k = home(x, x->slots[j].key);
            if (i <= j ? k <= i || k > j : k <= i && k > j)
                break;
        }
        x->slots[i] = x->slots[j];
        i = j;
    }
}

uint64_t el_records_in(const struct world *m, uint64_t begin, uint64_t end) /* that begin there */
{
    uint64_t r = m->c->record_bytes;
    return (end + r - 1) / r - (begin + r - 1) / r;
}

/* Steps --------------------------------------------------------------------------------------------------------------------------- */

static int is_for_worker(enum sched_action_kind kind)
{
    return kind == SCHED_DO_SEND_LEASE || kind == SCHED_DO_SEND_CUT || kind == SCHED_DO_SEND_REVOKE || kind == SCHED_DO_SEND_ACK || kind == SCHED_DO_SEND_DRAIN;
}

static void carry_out(struct world *m, const struct sched_action *a)
{
    if (is_for_worker(a->kind)) {
        uint32_t i = told_new(m);
        m->told[i].a = *a;
        m->told[i].life = m->life;
        el_at(m, m->now_ms + SYNC_MS + NET_MS, ACT, (uint32_t)(a->worker >> 32), (uint32_t)a->worker, i);
        if (a->kind == SCHED_DO_SEND_LEASE) {
            m->r->leases++;
            if (m->marks < ELASTIC_MARKS && (double)m->r->leases >= 1000 * pow(10, (double)m->marks))
                el_mark(m);
            if (!m->first_lease && m->restart_ns) {
                m->first_lease = 1;
                m->r->restart_s = (double)(clock_ns() - m->restart_ns) / 1e9;
            }
        }
        m->r->cuts += a->kind == SCHED_DO_SEND_CUT;
        return;
    }
    switch (a->kind) {
    case SCHED_DO_PUT_JOB:
        m->row = a->u.job;
        break;
    case SCHED_DO_PUT_SPAN:
        image_put(m, &a->u.span);
        break;
    case SCHED_DO_DEL_SPAN:
        image_del(m, a->u.span.span.begin);
        break;
    case SCHED_DO_PUT_EXTENT:
        m->done_bytes += a->u.extent.span.end - a->u.extent.span.begin;
        m->done_records += a->u.extent.records;
        break;
    case SCHED_DO_WANT_WORKERS:
        m->providers[a->u.want.provider].wanted = a->u.want.workers;
        el_provider_fill(m, a->u.want.provider);
        break;
    case SCHED_DO_WAKE:
        if (!m->wake_ms || a->u.wake_ms < m->wake_ms) {
            m->wake_ms = a->u.wake_ms > m->now_ms ? a->u.wake_ms : m->now_ms;
            el_at(m, m->wake_ms, TICK, 0, (uint32_t)m->life, 0);
        }
        break;
    case SCHED_DO_PUBLISH:
        m->over = 1;
        m->over_ms = m->now_ms;
        break;
    case SCHED_DO_KILL_WORKER:
        el_fail(m, "a worker that works is to be killed", a->worker, 0);
        break;
    default:
        break;
    }
}

void el_step(struct world *m, struct sched_event *ev)
{
    struct err e;
    ev->now_ms = m->now_ms;
    uint64_t begin = clock_ns();
    enum status st = sched_step(m->sched, ev, &m->update, &e);
    uint64_t ns = clock_ns() - begin;
    m->r->steps++;
    m->r->step_s += (double)ns / 1e9;
    if (ev->kind == SCHED_COMMIT) {
        size_t b = ns < 100 ? 0 : (size_t)(log2((double)ns / 100) * 16);
        m->buckets[b < BUCKETS ? b : BUCKETS - 1]++;
        m->window[b < BUCKETS ? b : BUCKETS - 1]++;
        m->r->commits++;
    }
    if (st != ST_OK) {
        if (!m->failed)
            m->failed = (int)err_set(m->e, st, "seed %" PRIu64 ": event %d: %s", m->c->seed, (int)ev->kind, e.text);
        return;
    }
    if (m->c->check_every && m->r->steps % m->c->check_every == 0)
        sched_check(m->sched);
    for (size_t i = 0; i < m->update.count && !m->failed; i++)
        carry_out(m, &m->update.actions[i]);
}
