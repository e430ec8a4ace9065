/* Events in order of time: what workers say, what they are told, providers' seconds. A worker is a position that moves through its leases at its
   rate; where it stands is worked out when somebody asks. */
#include "tests/sim/elastic.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "scheduler/sched.h"

#define NET_MS 2          /* to hear of a message */
#define SYNC_MS 4         /* until a step's messages may leave */
#define READ_AHEAD_MS 1000
#define NOTICE_MS 200     /* until a provider knows that a worker is gone */
#define LEASES 3          /* that a worker may hold: two, and one that it has not dropped yet */
#define END_MS 3600000    /* after the job's end: all idle ones must be gone by then */
#define BUCKETS 400
#define MAX_ACTIONS 4     /* of a worker in one parcel */

enum kind { BEAT, COMMIT, DONE, LOADED, HEAR, ACT, DIES, ENDED, ARRIVES, GIVES_UP, SECOND, TICK, REJOIN, RESTART };

struct item {
    uint64_t at, order;
    uint32_t worker, serial;
    enum kind kind;
    uint32_t slot; /* of `said` or `told` */
};

struct lease {
    uint64_t epoch, seq;
    struct span span;
    uint64_t committed;  /* position */
    double pos;          /* computed up to here */
    int flying;          /* a commit is under way: */
    uint64_t sent, sent_seq; /* its end */
};

struct el_worker {
    uint64_t number;
    uint32_t serial;     /* process */
    uint32_t turn;       /* of its DONE */
    int exists, joined, draining, loaded;
    uint32_t provider;
    double rate;
    uint64_t now_ms;     /* up to when it has been worked out */
    uint64_t loaded_ms, idle_since_ms, leased_ms; /* leased: last */
    struct lease leases[LEASES];
    size_t count;
};

/* What is on its way; the slots are used again. */
struct parcel {
    struct sched_event ev;
    struct extent done;
    struct sched_returned back[LEASES];
    struct sched_progress progress[LEASES];
    struct sched_held held[LEASES];
    uint64_t life;
    uint32_t next;
};

struct told {
    struct sched_action a;
    uint64_t life;
    uint32_t next;
};

struct el_provider {
    uint32_t wanted, alive, starting, cancelled, limit_told;
    int told;
};

struct image {
    struct slot {
        uint64_t key; /* begin + 1 */
        struct span_row row;
    } *slots;
    size_t cap, count;
};

struct world {
    const struct elastic_config *c;
    struct elastic_result *r;
    struct err *e;
    int failed;
    uint64_t rng, now_ms, order, began_ms;
    struct item *heap;
    size_t heap_count, heap_cap;
    struct el_worker *workers;
    uint32_t worker_count, *free_workers, free_count;
    struct parcel *said;
    struct told *told;
    uint32_t said_count, said_cap, said_free, told_count, told_cap, told_free;
    struct el_provider providers[PROVIDERS];
    struct sched *sched;
    struct sched_update update;
    struct layout layout;
    struct job_row row;
    struct image image;
    uint64_t life, next_number, total, done_bytes, done_records, generation, wake_ms;
    uint64_t next_rate, down_until_ms;
    double ideal_bytes;
    int over, first_lease;
    uint64_t over_ms, first_idle_ms;
    uint64_t restart_ns, own_bytes, buckets[BUCKETS], window[BUCKETS]; /* window: since the last mark */
    size_t marks;
};

static void fail(struct world *m, const char *what, uint64_t a, uint64_t b)
{
    if (!m->failed)
        m->failed = (int)err_set(m->e, ST_CORRUPT, "seed %" PRIu64 ", at %" PRIu64 " ms: %s (%" PRIu64 ", %" PRIu64 ")", m->c->seed, m->now_ms - m->began_ms, what, a, b);
}

static uint64_t rnd(struct world *m, uint64_t n)
{
    uint64_t x = m->rng += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return n ? (x ^ x >> 31) % n : 0;
}

static double uniform(struct world *m) /* 0..1, neither of them */
{
    return ((double)rnd(m, UINT64_C(1) << 40) + 0.5) / (double)(UINT64_C(1) << 40);
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

static void at(struct world *m, uint64_t at_ms, enum kind kind, uint32_t worker, uint32_t serial, uint32_t slot)
{
    m->heap = more(m, m->heap, &m->heap_cap, m->heap_count, sizeof *m->heap);
    struct item it = {at_ms, m->order++, worker, serial, kind, slot};
    size_t i = m->heap_count++;
    for (; i && before(&it, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = it;
}

static struct item pop(struct world *m)
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

static uint32_t said_new(struct world *m)
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

static double percentile(const uint64_t buckets[BUCKETS], double part)
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

static uint64_t core_bytes(struct world *m)
{
    struct mallinfo2 i = mallinfo2();
    uint64_t all = i.uordblks + i.hblkhd, core = all > m->own_bytes ? all - m->own_bytes : 0;
    if (core > m->r->core_bytes)
        m->r->core_bytes = core;
    return core;
}

/* After 1,000, 10,000... leases: what a commit costs since the last mark, and what the core takes. */
static void mark(struct world *m)
{
    if (m->marks == ELASTIC_MARKS)
        return;
    m->r->marks[m->marks].leases = m->r->leases;
    m->r->marks[m->marks].commit_us = percentile(m->window, 0.5);
    m->r->marks[m->marks++].core_bytes = core_bytes(m);
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
        fail(m, "a row is deleted that is not there", begin, 0);
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

static uint64_t records_in(const struct world *m, uint64_t begin, uint64_t end) /* that begin there */
{
    uint64_t r = m->c->record_bytes;
    return (end + r - 1) / r - (begin + r - 1) / r;
}

/* Steps --------------------------------------------------------------------------------------------------------------------------- */

static int is_for_worker(enum sched_action_kind kind)
{
    return kind == SCHED_DO_SEND_LEASE || kind == SCHED_DO_SEND_CUT || kind == SCHED_DO_SEND_REVOKE || kind == SCHED_DO_SEND_ACK || kind == SCHED_DO_SEND_DRAIN;
}

static void provider_fill(struct world *m, uint32_t id);

static void carry_out(struct world *m, const struct sched_action *a)
{
    if (is_for_worker(a->kind)) {
        uint32_t i = told_new(m);
        m->told[i].a = *a;
        m->told[i].life = m->life;
        at(m, m->now_ms + SYNC_MS + NET_MS, ACT, (uint32_t)(a->worker >> 32), (uint32_t)a->worker, i);
        if (a->kind == SCHED_DO_SEND_LEASE) {
            m->r->leases++;
            if (m->marks < ELASTIC_MARKS && (double)m->r->leases >= 1000 * pow(10, (double)m->marks))
                mark(m);
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
        provider_fill(m, a->u.want.provider);
        break;
    case SCHED_DO_WAKE:
        if (!m->wake_ms || a->u.wake_ms < m->wake_ms) {
            m->wake_ms = a->u.wake_ms > m->now_ms ? a->u.wake_ms : m->now_ms;
            at(m, m->wake_ms, TICK, 0, (uint32_t)m->life, 0);
        }
        break;
    case SCHED_DO_PUBLISH:
        m->over = 1;
        m->over_ms = m->now_ms;
        break;
    case SCHED_DO_KILL_WORKER:
        fail(m, "a worker that works is to be killed", a->worker, 0);
        break;
    default:
        break;
    }
}

static void step(struct world *m, struct sched_event *ev)
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

/* Workers ------------------------------------------------------------------------------------------------------------------------- */

/* Up to now: what it computed, and what it did with its time. */
static void work_out(struct world *m, struct el_worker *w)
{
    uint64_t from = w->now_ms;
    w->now_ms = m->now_ms;
    if (!w->exists || !w->joined || m->now_ms <= from || m->over)
        return;
    double ms = (double)(m->now_ms - from);
    m->r->lived_s += ms / 1000;
    if (w->count && !w->loaded) {
        double loads = w->loaded_ms > from ? (double)((w->loaded_ms < m->now_ms ? w->loaded_ms : m->now_ms) - from) : 0;
        m->r->loading_s += loads / 1000;
        ms -= loads;
        if (m->now_ms >= w->loaded_ms)
            w->loaded = 1;
    }
    for (size_t i = 0; i < w->count && ms > 0; i++) {
        struct lease *l = &w->leases[i];
        double left = ((double)l->span.end - l->pos) / w->rate * 1000, part = ms < left ? ms : left;
        if (part <= 0)
            continue;
        l->pos = part == left ? (double)l->span.end : l->pos + part * w->rate / 1000;
        ms -= part;
        m->r->useful_s += part / 1000; /* taken back when it is lost */
    }
    m->r->idle_s += ms / 1000;
}

static void lost(struct world *m, struct el_worker *w, const struct lease *l)
{
    double s = (l->pos - (double)l->committed) / w->rate;
    m->r->useful_s -= s;
    m->r->wasted_s += s;
}

static void drop(struct el_worker *w, size_t i)
{
    memmove(&w->leases[i], &w->leases[i + 1], (--w->count - i) * sizeof *w->leases);
}

static void say(struct world *m, struct el_worker *w, uint32_t slot)
{
    m->said[slot].ev.worker = w->number;
    at(m, m->now_ms + NET_MS, HEAR, (uint32_t)(w->number >> 32), w->serial, slot);
}

static void say_beat(struct world *m, struct el_worker *w)
{
    uint32_t slot = said_new(m);
    struct parcel *p = &m->said[slot];
    p->ev.kind = SCHED_WORKER_BEAT;
    for (size_t i = 0; i < w->count; i++) {
        const struct lease *l = &w->leases[i];
        uint64_t pos = (uint64_t)l->pos, ahead = pos + (uint64_t)(w->rate * READ_AHEAD_MS / 1000);
        if (i && w->leases[i - 1].pos < (double)w->leases[i - 1].span.end)
            ahead = pos; /* not begun */
        p->progress[i] = (struct sched_progress){l->epoch, ahead < l->span.end ? ahead : l->span.end, records_in(m, l->span.begin, pos), pos - l->span.begin};
    }
    p->ev.u.beat.count = w->count;
    m->r->beats++;
    say(m, w, slot);
}

static void say_commit(struct world *m, struct el_worker *w, struct lease *l, int give_back)
{
    uint64_t to = (uint64_t)l->pos;
    if (l->flying || (to <= l->committed && !give_back))
        return;
    uint32_t slot = said_new(m);
    struct parcel *p = &m->said[slot];
    p->ev.kind = SCHED_COMMIT;
    p->ev.job = 1;
    p->ev.epoch = l->epoch;
    p->ev.u.commit.seq = l->seq;
    if (to > l->committed) {
        uint64_t n = records_in(m, l->committed, to);
        p->done = (struct extent){.span = {l->committed, to}, .records = n, .rows = n, .bytes = to - l->committed};
        p->ev.u.commit.done_count = 1;
    }
    if (give_back && to < l->span.end) {
        p->back[0] = (struct sched_returned){{to, l->span.end}, 0};
        p->ev.u.commit.returned_count = 1;
        l->span.end = to;
        l->pos = (double)to;
    }
    l->flying = 1;
    l->sent = to;
    l->sent_seq = l->seq;
    say(m, w, slot);
}

/* When it will be through with its first unfinished lease. */
static void plan(struct world *m, struct el_worker *w)
{
    w->turn++;
    for (size_t i = 0; i < w->count; i++) {
        struct lease *l = &w->leases[i];
        if (l->pos >= (double)l->span.end)
            continue;
        uint64_t from = w->loaded || w->loaded_ms < m->now_ms ? m->now_ms : w->loaded_ms;
        at(m, from + (uint64_t)ceil(((double)l->span.end - l->pos) / w->rate * 1000), DONE, (uint32_t)(w->number >> 32), w->turn, 0);
        return;
    }
}

static void say_hello(struct world *m, struct el_worker *w)
{
    uint32_t slot = said_new(m);
    struct parcel *p = &m->said[slot];
    p->ev.kind = SCHED_WORKER_JOINED;
    p->ev.u.joined.host = (w->number >> 32) + 1;
    p->ev.u.joined.lanes = 1;
    p->ev.u.joined.numerics = 7;
    p->ev.u.joined.provider = w->provider;
    p->ev.u.joined.model_key = w->loaded ? 1 : 0;
    for (size_t i = 0; i < w->count; i++)
        p->held[i] = (struct sched_held){1, w->leases[i].epoch, w->leases[i].seq};
    p->ev.u.joined.held_count = w->count;
    say(m, w, slot);
}

static void arrives(struct world *m, uint32_t provider)
{
    const struct elastic_config *c = m->c;
    uint32_t i;
    if (m->free_count) {
        i = m->free_workers[--m->free_count];
    } else {
        fail(m, "more workers than providers may give", m->worker_count, 0);
        return;
    }
    struct el_worker *w = &m->workers[i];
    uint32_t serial = w->serial + 1, turn = w->turn;
    *w = (struct el_worker){.serial = serial, .turn = turn, .exists = 1, .provider = provider, .now_ms = m->now_ms};
    w->number = (uint64_t)i << 32 | serial;
    if (c->rates) {
        w->rate = c->rates[m->next_rate < c->rate_count ? m->next_rate : c->rate_count - 1];
        m->next_rate++;
    } else {
        w->rate = c->rate * exp((uniform(m) * 2 - 1) * log(c->spread > 1 ? c->spread : 1));
    }
    w->joined = 1;
    w->idle_since_ms = m->now_ms;
    w->loaded = !c->load_ms;
    m->r->arrivals++;
    say_hello(m, w);
    uint32_t beat_ms = c->beat_ms ? c->beat_ms : 1000;
    at(m, m->now_ms + 1 + rnd(m, beat_ms), BEAT, i, serial, 0);
    at(m, m->now_ms + 1 + rnd(m, c->commit_ms), COMMIT, i, serial, 0);
    if (c->providers[provider].mean_life_s > 0)
        at(m, m->now_ms + 1 + (uint64_t)(-log(uniform(m)) * c->providers[provider].mean_life_s * 1000), DIES, i, serial, 0);
}

static void leaves(struct world *m, struct el_worker *w, enum worker_end how)
{
    work_out(m, w);
    for (size_t i = 0; i < w->count; i++)
        lost(m, w, &w->leases[i]);
    w->count = 0;
    w->exists = w->joined = 0;
    struct el_provider *p = &m->providers[w->provider];
    p->alive--;
    m->r->losses += how != WORKER_DRAINED;
    uint32_t slot = said_new(m);
    m->said[slot].ev.kind = SCHED_WORKER_ENDED;
    m->said[slot].ev.worker = w->number;
    m->said[slot].ev.u.ended.how = how;
    at(m, m->now_ms + (how == WORKER_DRAINED ? NET_MS : NOTICE_MS), ENDED, (uint32_t)(w->number >> 32), w->serial, slot);
    provider_fill(m, w->provider);
}

static void try_to_go(struct world *m, struct el_worker *w)
{
    if (w->draining && !w->count)
        leaves(m, w, WORKER_DRAINED);
}

static void hand_over_and_go(struct world *m, struct el_worker *w)
{
    w->draining = 1;
    for (size_t i = 0; i < w->count; i++)
        say_commit(m, w, &w->leases[i], 1);
    try_to_go(m, w);
}

static void acted_on(struct world *m, struct el_worker *w, const struct sched_action *a)
{
    work_out(m, w);
    size_t i = 0;
    while (i < w->count && w->leases[i].epoch != a->epoch)
        i++;
    struct lease *l = i < w->count ? &w->leases[i] : NULL;
    switch (a->kind) {
    case SCHED_DO_SEND_LEASE:
        if (l || w->draining)
            return;
        if (w->count == LEASES) {
            fail(m, "a worker is given more leases than it may hold", w->number, w->count);
            return;
        }
        if (!w->loaded && !w->loaded_ms) {
            w->loaded_ms = m->now_ms + m->c->load_ms;
            at(m, w->loaded_ms, LOADED, (uint32_t)(w->number >> 32), w->serial, 0);
        }
        w->leased_ms = m->now_ms;
        w->leases[w->count++] = (struct lease){.epoch = a->epoch, .span = a->u.lease.span, .committed = a->u.lease.span.begin, .pos = (double)a->u.lease.span.begin};
        break;
    case SCHED_DO_SEND_REVOKE:
        if (!l)
            return;
        lost(m, w, l);
        drop(w, i);
        break;
    case SCHED_DO_SEND_ACK:
        if (!l || !l->flying || l->sent_seq != a->u.ack.seq)
            return;
        if (a->u.ack.verdict != ACK_DONE) {
            lost(m, w, l);
            drop(w, i);
            break;
        }
        l->committed = l->sent;
        l->flying = 0;
        l->seq++;
        if (l->committed >= l->span.end)
            drop(w, i);
        else if (w->draining)
            say_commit(m, w, l, 1);
        else if (l->pos >= (double)l->span.end)
            say_commit(m, w, l, 0);
        break;
    case SCHED_DO_SEND_CUT: {
        if (!l)
            return;
        int begun = !i || w->leases[i - 1].pos >= (double)w->leases[i - 1].span.end;
        uint64_t from = (uint64_t)l->pos + (begun ? (uint64_t)(w->rate * READ_AHEAD_MS / 1000) : 0), cut = a->u.cut_at > from ? a->u.cut_at : from;
        if (cut < l->span.end)
            l->span.end = cut;
        else
            cut = l->span.end;
        uint32_t slot = said_new(m);
        m->said[slot].ev.kind = SCHED_CUT_ANSWERED;
        m->said[slot].ev.job = 1;
        m->said[slot].ev.epoch = l->epoch;
        m->said[slot].ev.u.cut.at = cut;
        say(m, w, slot);
        if (l->committed >= l->span.end && !l->flying)
            drop(w, i);
        break;
    }
    case SCHED_DO_SEND_DRAIN:
        hand_over_and_go(m, w);
        return;
    default:
        return;
    }
    if (w->draining)
        try_to_go(m, w);
    else
        plan(m, w);
    if (m->over || w->count)
        w->idle_since_ms = 0;
    else if (!w->idle_since_ms)
        w->idle_since_ms = m->now_ms;
}

/* Providers ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t limit_now(const struct world *m, uint32_t id)
{
    const struct elastic_provider *p = &m->c->providers[id];
    double s = (double)(m->now_ms - m->began_ms) / 1000, part = 1;
    if (p->period_s > 0)
        part = 1 - (1 - p->ebb) * (0.5 - 0.5 * cos(s / p->period_s * 2 * M_PI));
    for (size_t i = 0; i < m->c->storm_count && p->preemptible; i++) {
        double after = s - m->c->storms[i].at_s, gone = m->c->storms[i].part;
        double falls = m->c->storms[i].falls_s, lasts = m->c->storms[i].lasts_s, back = m->c->storms[i].back_s;
        if (after <= 0 || after > falls + lasts + back)
            continue;
        part *= 1 - gone * (after < falls ? after / falls : after < falls + lasts ? 1 : 1 - (after - falls - lasts) / back);
    }
    return (uint32_t)(p->limit * part);
}

static void provider_fill(struct world *m, uint32_t id)
{
    struct el_provider *p = &m->providers[id];
    const struct elastic_provider *c = &m->c->providers[id];
    uint32_t limit = limit_now(m, id), to = p->wanted < limit ? p->wanted : limit;
    if (p->alive + p->starting > to && p->starting) { /* called back */
        uint32_t too_many = p->alive + p->starting - to, n = too_many < p->starting ? too_many : p->starting;
        p->starting -= n;
        p->cancelled += n;
    }
    while (p->alive + p->starting < to) {
        p->starting++;
        if (c->never > 0 && uniform(m) < c->never)
            at(m, m->now_ms + c->give_up_ms, GIVES_UP, id, 0, 0);
        else
            at(m, m->now_ms + c->start_ms_min + rnd(m, c->start_ms_max - c->start_ms_min + 1), ARRIVES, id, 0, 0);
    }
}

static void provider_tell(struct world *m, uint32_t id)
{
    struct el_provider *p = &m->providers[id];
    uint32_t limit = limit_now(m, id);
    if (!m->c->providers[id].limit || (p->told && p->limit_told == limit) || !m->sched)
        return;
    p->told = 1;
    p->limit_told = limit;
    struct sched_event ev = {.kind = SCHED_PROVIDER};
    ev.u.provider.id = id;
    ev.u.provider.limit = limit;
    ev.u.provider.preemptible = m->c->providers[id].preemptible;
    ev.u.provider.idle_ms = m->c->providers[id].idle_ms;
    step(m, &ev);
}

/* Owners come back: whoever is too many is taken away. */
static void evict(struct world *m, uint32_t id)
{
    struct el_provider *p = &m->providers[id];
    uint32_t limit = limit_now(m, id);
    uint64_t start = rnd(m, m->worker_count);
    for (uint32_t k = 0; k < m->worker_count && p->alive > limit; k++) {
        struct el_worker *w = &m->workers[(start + k) % m->worker_count];
        if (w->exists && w->provider == id && !w->draining)
            leaves(m, w, WORKER_PREEMPTED);
    }
}

static double mean_rate(const struct world *m)
{
    double spread = m->c->spread > 1 ? m->c->spread : 1, l = log(spread);
    if (!m->c->rates)
        return l > 0 ? m->c->rate * (spread - 1 / spread) / (2 * l) : m->c->rate;
    double sum = 0;
    for (size_t i = 0; i < m->c->rate_count; i++)
        sum += m->c->rates[i];
    return sum / (double)m->c->rate_count;
}

static void second(struct world *m)
{
    uint32_t could = 0, alive = 0, wanted = 0;
    for (uint32_t i = 0; i < PROVIDERS; i++) {
        if (!m->c->providers[i].limit)
            continue;
        could += limit_now(m, i);
        evict(m, i);
        if ((m->now_ms - m->began_ms) % 5000 == 0)
            provider_tell(m, i);
        provider_fill(m, i);
        alive += m->providers[i].alive;
        wanted += m->providers[i].wanted;
    }
    if (m->r->ideal_s <= 0) {
        double add = could * mean_rate(m);
        m->ideal_bytes += add;
        if (m->ideal_bytes >= (double)m->total)
            m->r->ideal_s = (double)(m->now_ms - m->began_ms) / 1000 + 1 - (m->ideal_bytes - (double)m->total) / add;
    }
    m->r->most_alive = alive > m->r->most_alive ? alive : m->r->most_alive;
    m->r->most_wanted = wanted > m->r->most_wanted ? wanted : m->r->most_wanted;
    double useful = ((double)m->total - (double)m->done_bytes) / (mean_rate(m) * 0.5) + 1;
    if (wanted > useful && !m->over)
        m->r->overshoot_s += wanted - useful;
    if (m->over)
        m->r->left_at_end = alive;
    if ((m->now_ms - m->began_ms) % 60000 == 0) {
        core_bytes(m);
        if (!m->c->quiet)
            printf("  %6.0f s  %5u workers, %5u wanted, %5u can be had   %5.1f %%\n", (double)(m->now_ms - m->began_ms) / 1000, alive, wanted, could,
                   (double)m->done_bytes * 100 / (double)m->total);
    }
    at(m, m->now_ms + 1000, SECOND, 0, 0, 0);
}

/* The daemon ----------------------------------------------------------------------------------------------------------------------- */

static int64_t wall_ms(const struct world *m)
{
    return 1700000000000 + (int64_t)m->now_ms;
}

static void daemon_begins(struct world *m)
{
    struct err e;
    m->life++;
    m->wake_ms = 0;
    if (sched_new(NULL, &m->sched, &e) != ST_OK)
        abort();
    struct sched_event ev = {.kind = SCHED_START};
    ev.u.start.generation = (uint32_t)++m->generation;
    step(m, &ev);
    int again = m->row.id != 0;
    if (again) {
        ev = (struct sched_event){.kind = SCHED_JOB_RESTORED, .job = 1};
        struct job_row row = m->row;
        ev.u.job.row = &row;
        ev.u.job.layout = &m->layout;
        ev.u.job.wall_ms = wall_ms(m);
        step(m, &ev);
        for (size_t i = 0; i < m->image.cap; i++)
            if (m->image.slots[i].key) {
                struct span_row span = m->image.slots[i].row;
                ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1};
                ev.u.span = &span;
                step(m, &ev);
            }
    }
    ev = (struct sched_event){.kind = SCHED_RECOVERED};
    step(m, &ev);
    for (uint32_t i = 0; i < PROVIDERS; i++) {
        m->providers[i].told = 0;
        if (i)
            provider_tell(m, i);
    }
    for (uint32_t i = 0; again && i < m->worker_count; i++)
        if (m->workers[i].exists)
            at(m, m->now_ms + 20 + rnd(m, 1000), REJOIN, i, m->workers[i].serial, 0);
}

static void submit(struct world *m)
{
    struct job_row row = {.id = 1,
                          .params = {.weight = 100,
                                     .model_key = m->c->load_ms ? 1 : 0,
                                     .lease_target_ms = m->c->lease_ms,
                                     .stall_timeout_ms = 120000,
                                     .max_errors = UINT64_MAX,
                                     .max_errors_ppm = UINT32_MAX,
                                     .max_attempts = 3}};
    if (m->c->deadline_s > 0)
        row.params.deadline_ms = wall_ms(m) + (int64_t)(m->c->deadline_s * 1000);
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &m->layout;
    ev.u.job.wall_ms = wall_ms(m);
    step(m, &ev);
}

/* What it lost on the way is said again: the worker answers the new daemon's welcome by a hello, and repeats its commits. */
static void rejoins(struct world *m, struct el_worker *w)
{
    work_out(m, w);
    say_hello(m, w);
    for (size_t i = 0; i < w->count; i++)
        if (w->leases[i].flying) {
            struct lease *l = &w->leases[i];
            uint64_t to = l->sent;
            uint32_t slot = said_new(m);
            struct parcel *p = &m->said[slot];
            p->ev.kind = SCHED_COMMIT;
            p->ev.job = 1;
            p->ev.epoch = l->epoch;
            p->ev.u.commit.seq = l->sent_seq;
            uint64_t n = records_in(m, l->committed, to);
            p->done = (struct extent){.span = {l->committed, to}, .records = n, .rows = n, .bytes = to - l->committed};
            p->ev.u.commit.done_count = to > l->committed;
            say(m, w, slot);
        }
}

static void heard(struct world *m, const struct item *it)
{
    struct parcel *p = &m->said[it->slot];
    if (m->sched && p->life == m->life) {
        struct sched_event ev = p->ev;
        ev.u = p->ev.u;
        if (ev.kind == SCHED_WORKER_BEAT)
            ev.u.beat.leases = p->progress;
        if (ev.kind == SCHED_WORKER_JOINED)
            ev.u.joined.held = p->held;
        if (ev.kind == SCHED_COMMIT) {
            ev.u.commit.done = &p->done;
            ev.u.commit.returned = p->back;
        }
        step(m, &ev);
    }
    m->said[it->slot].next = m->said_free;
    m->said_free = it->slot;
}

static void happens(struct world *m, const struct item *it)
{
    struct el_worker *w = it->worker < m->worker_count ? &m->workers[it->worker] : NULL;
    int same = w && w->exists && w->serial == it->serial;
    uint32_t beat_ms = m->c->beat_ms ? m->c->beat_ms : 1000;
    switch (it->kind) {
    case BEAT:
        if (!same)
            return;
        work_out(m, w);
        say_beat(m, w);
        at(m, m->now_ms + beat_ms, BEAT, it->worker, it->serial, 0);
        return;
    case COMMIT:
        if (!same)
            return;
        work_out(m, w);
        for (size_t i = 0; i < w->count; i++)
            say_commit(m, w, &w->leases[i], 0);
        at(m, m->now_ms + m->c->commit_ms, COMMIT, it->worker, it->serial, 0);
        return;
    case DONE: /* serial: of the plan */
        if (!w->exists || w->turn != it->serial)
            return;
        work_out(m, w);
        for (size_t i = 0; i < w->count; i++)
            if (w->leases[i].pos >= (double)w->leases[i].span.end)
                say_commit(m, w, &w->leases[i], 0);
        plan(m, w);
        if (w->count && w->leases[w->count - 1].pos >= (double)w->leases[w->count - 1].span.end)
            say_beat(m, w);
        return;
    case LOADED:
        if (same) {
            work_out(m, w);
            uint32_t slot = said_new(m);
            m->said[slot].ev.kind = SCHED_MODEL_READY;
            m->said[slot].ev.u.model.model_key = 1;
            m->said[slot].ev.u.model.load_ms = m->c->load_ms;
            say(m, w, slot);
        }
        return;
    case HEAR:
        heard(m, it);
        return;
    case ENDED: {
        heard(m, it);
        m->free_workers[m->free_count++] = it->worker;
        return;
    }
    case ACT: {
        struct sched_action a = m->told[it->slot].a;
        uint64_t life = m->told[it->slot].life;
        m->told[it->slot].next = m->told_free;
        m->told_free = it->slot;
        if (same && life == m->life)
            acted_on(m, w, &a);
        return;
    }
    case DIES:
        if (same && !w->draining)
            leaves(m, w, WORKER_LOST);
        return;
    case ARRIVES:
    case GIVES_UP: {
        struct el_provider *p = &m->providers[it->worker];
        if (p->cancelled) {
            p->cancelled--;
            return;
        }
        p->starting--;
        if (it->kind == ARRIVES) {
            p->alive++;
            arrives(m, it->worker);
        } else {
            m->r->never++;
            provider_fill(m, it->worker);
        }
        return;
    }
    case SECOND:
        second(m);
        return;
    case TICK:
        if (it->serial == (uint32_t)m->life && m->sched) {
            struct sched_event ev = {.kind = SCHED_TICK};
            if (m->wake_ms && m->wake_ms <= m->now_ms)
                m->wake_ms = 0;
            step(m, &ev);
        }
        return;
    case REJOIN:
        if (same)
            rejoins(m, w);
        return;
    case RESTART:
        if (m->sched) {
            sched_free(m->sched);
            m->sched = NULL;
            m->life++; /* what is on its way is lost */
            at(m, m->now_ms + (uint64_t)(m->c->down_s * 1000), RESTART, 0, 0, 0);
            return;
        }
        m->restart_ns = clock_ns();
        daemon_begins(m);
        return;
    }
}

/* A run ---------------------------------------------------------------------------------------------------------------------------- */

/* Who had nothing to do first, of those that had nothing to do at the end; and what the slowest was given last. */
static void look_at_the_end(struct world *m)
{
    double slowest = INFINITY;
    uint64_t first = m->over_ms;
    for (uint32_t i = 0; i < m->worker_count; i++) {
        const struct el_worker *w = &m->workers[i];
        if (!w->exists)
            continue;
        if (w->idle_since_ms && w->idle_since_ms < first)
            first = w->idle_since_ms;
        if (w->rate < slowest) {
            slowest = w->rate;
            m->r->last_lease_s = (double)(m->over_ms - w->leased_ms) / 1000;
        }
    }
    m->r->tail_s = (double)(m->over_ms - first) / 1000;
}

int elastic_run(const struct elastic_config *c, struct elastic_result *r, struct err *e)
{
    struct world *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    *r = (struct elastic_result){0};
    *e = (struct err){0};
    struct mallinfo2 info = mallinfo2();
    m->own_bytes = info.uordblks + info.hblkhd;
    m->c = c;
    m->r = r;
    m->e = e;
    m->rng = c->seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    m->now_ms = m->began_ms = 1000000;
    m->total = c->records * c->record_bytes;
    uint8_t plain = 0;
    if (layout_init(&m->layout, 1, &m->total, &plain))
        abort();
    for (size_t i = 0; i < PROVIDERS; i++)
        m->worker_count += c->providers[i].limit + c->providers[i].limit / 4 + (c->providers[i].limit > 0 ? 8 : 0);
    m->workers = calloc(m->worker_count, sizeof *m->workers);
    m->free_workers = calloc(m->worker_count, sizeof *m->free_workers);
    if (!m->workers || !m->free_workers)
        abort();
    m->own_bytes += m->worker_count * (sizeof *m->workers + sizeof *m->free_workers);
    for (uint32_t i = m->worker_count; i-- > 0;)
        m->free_workers[m->free_count++] = i;
    daemon_begins(m);
    at(m, m->now_ms + 1000, SECOND, 0, 0, 0);
    if (c->restart_at_s > 0)
        at(m, m->now_ms + (uint64_t)(c->restart_at_s * 1000), RESTART, 0, 0, 0);
    submit(m);
    int looked = 0;
    while (m->heap_count && !m->failed) {
        struct item it = pop(m);
        m->now_ms = it.at;
        happens(m, &it);
        if (m->over && !looked) {
            looked = 1;
            look_at_the_end(m);
            r->makespan_s = (double)(m->over_ms - m->began_ms) / 1000;
            for (uint32_t i = 0; i < m->worker_count; i++) {
                m->over = 0;
                work_out(m, &m->workers[i]);
                m->over = 1;
            }
            mark(m);
            if (m->done_bytes != m->total || m->done_records != c->records)
                fail(m, "the job is done with another number of bytes or records than it has", m->done_bytes, m->done_records);
        }
        if (looked) {
            uint32_t alive = 0, tied = 0;
            for (size_t i = 0; i < PROVIDERS; i++) {
                alive += c->providers[i].idle_ms ? m->providers[i].alive + m->providers[i].starting : 0;
                tied += c->providers[i].idle_ms ? m->providers[i].wanted : 0;
            }
            r->after_end_s = (double)(m->now_ms - m->over_ms) / 1000;
            r->left_at_end = alive;
            if ((!alive && !tied) || m->now_ms - m->over_ms > END_MS)
                break;
        } else if (m->now_ms - m->began_ms > UINT64_C(1000000000)) {
            fail(m, "no end in sight", m->done_bytes, m->total);
        }
    }
    r->commit_us_median = percentile(m->buckets, 0.5);
    r->commit_us_p99 = percentile(m->buckets, 0.99);
    if (m->sched) {
        sched_check(m->sched);
        sched_free(m->sched);
    }
    sched_update_release(&m->update);
    layout_release(&m->layout);
    free(m->heap);
    free(m->workers);
    free(m->free_workers);
    free(m->said);
    free(m->told);
    free(m->image.slots);
    int failed = m->failed != 0;
    free(m);
    return failed ? -1 : 0;
}
