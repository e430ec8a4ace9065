/* A worker is a position that moves through its leases at its rate; where it stands is worked out when somebody asks. */
#include "tests/sim/elastic_world.h"

#include <math.h>
#include <string.h>

/* Workers ------------------------------------------------------------------------------------------------------------------------- */

/* Up to now: what it computed, and what it did with its time. */
void el_work_out(struct world *m, struct el_worker *w)
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

void el_say(struct world *m, struct el_worker *w, uint32_t slot)
{
    m->said[slot].ev.worker = w->number;
    el_at(m, m->now_ms + NET_MS, HEAR, (uint32_t)(w->number >> 32), w->serial, slot);
}

void el_say_beat(struct world *m, struct el_worker *w)
{
    uint32_t slot = el_said_new(m);
    struct parcel *p = &m->said[slot];
    p->ev.kind = SCHED_WORKER_BEAT;
    for (size_t i = 0; i < w->count; i++) {
        const struct lease *l = &w->leases[i];
        uint64_t pos = (uint64_t)l->pos, ahead = pos + (uint64_t)(w->rate * READ_AHEAD_MS / 1000);
        if (i && w->leases[i - 1].pos < (double)w->leases[i - 1].span.end)
            ahead = pos; /* not begun */
        p->progress[i] = (struct sched_progress){l->epoch, ahead < l->span.end ? ahead : l->span.end, el_records_in(m, l->span.begin, pos), pos - l->span.begin};
    }
    p->ev.u.beat.count = w->count;
    m->r->beats++;
    el_say(m, w, slot);
}

void el_say_commit(struct world *m, struct el_worker *w, struct lease *l, int give_back)
{
    uint64_t to = (uint64_t)l->pos;
    if (l->flying || (to <= l->committed && !give_back))
        return;
    uint32_t slot = el_said_new(m);
    struct parcel *p = &m->said[slot];
    p->ev.kind = SCHED_COMMIT;
    p->ev.job = 1;
    p->ev.epoch = l->epoch;
    p->ev.u.commit.seq = l->seq;
    if (to > l->committed) {
        uint64_t n = el_records_in(m, l->committed, to);
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
    el_say(m, w, slot);
}

/* When it will be through with its first unfinished lease. */
void el_plan(struct world *m, struct el_worker *w)
{
    w->turn++;
    for (size_t i = 0; i < w->count; i++) {
        struct lease *l = &w->leases[i];
        if (l->pos >= (double)l->span.end)
            continue;
        uint64_t from = w->loaded || w->loaded_ms < m->now_ms ? m->now_ms : w->loaded_ms;
        el_at(m, from + (uint64_t)ceil(((double)l->span.end - l->pos) / w->rate * 1000), DONE, (uint32_t)(w->number >> 32), w->turn, 0);
        return;
    }
}

void el_say_hello(struct world *m, struct el_worker *w)
{
    uint32_t slot = el_said_new(m);
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
    el_say(m, w, slot);
}

void el_arrives(struct world *m, uint32_t provider)
{
    const struct elastic_config *c = m->c;
    uint32_t i;
    if (m->free_count) {
        i = m->free_workers[--m->free_count];
    } else {
        el_fail(m, "more workers than providers may give", m->worker_count, 0);
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
        w->rate = c->rate * exp((el_uniform(m) * 2 - 1) * log(c->spread > 1 ? c->spread : 1));
    }
    w->joined = 1;
    w->idle_since_ms = m->now_ms;
    w->loaded = !c->load_ms;
    m->r->arrivals++;
    el_say_hello(m, w);
    uint32_t beat_ms = c->beat_ms ? c->beat_ms : 1000;
    el_at(m, m->now_ms + 1 + el_rnd(m, beat_ms), BEAT, i, serial, 0);
    el_at(m, m->now_ms + 1 + el_rnd(m, c->commit_ms), COMMIT, i, serial, 0);
    if (c->providers[provider].mean_life_s > 0)
        el_at(m, m->now_ms + 1 + (uint64_t)(-log(el_uniform(m)) * c->providers[provider].mean_life_s * 1000), DIES, i, serial, 0);
}

void el_leaves(struct world *m, struct el_worker *w, enum worker_end how)
{
    el_work_out(m, w);
    for (size_t i = 0; i < w->count; i++)
        lost(m, w, &w->leases[i]);
    w->count = 0;
    w->exists = w->joined = 0;
    struct el_provider *p = &m->providers[w->provider];
    p->alive--;
    m->r->losses += how != WORKER_DRAINED;
    uint32_t slot = el_said_new(m);
    m->said[slot].ev.kind = SCHED_WORKER_ENDED;
    m->said[slot].ev.worker = w->number;
    m->said[slot].ev.u.ended.how = how;
    el_at(m, m->now_ms + (how == WORKER_DRAINED ? NET_MS : NOTICE_MS), ENDED, (uint32_t)(w->number >> 32), w->serial, slot);
    el_provider_fill(m, w->provider);
}

static void try_to_go(struct world *m, struct el_worker *w)
{
    if (w->draining && !w->count)
        el_leaves(m, w, WORKER_DRAINED);
}

static void hand_over_and_go(struct world *m, struct el_worker *w)
{
    w->draining = 1;
    for (size_t i = 0; i < w->count; i++)
        el_say_commit(m, w, &w->leases[i], 1);
    try_to_go(m, w);
}

void el_acted_on(struct world *m, struct el_worker *w, const struct sched_action *a)
{
    el_work_out(m, w);
    size_t i = 0;
    while (i < w->count && w->leases[i].epoch != a->epoch)
        i++;
    struct lease *l = i < w->count ? &w->leases[i] : NULL;
    switch (a->kind) {
    case SCHED_DO_SEND_LEASE:
        if (l || w->draining)
            return;
        if (w->count == LEASES) {
            el_fail(m, "a worker is given more leases than it may hold", w->number, w->count);
            return;
        }
        if (!w->loaded && !w->loaded_ms) {
            w->loaded_ms = m->now_ms + m->c->load_ms;
            el_at(m, w->loaded_ms, LOADED, (uint32_t)(w->number >> 32), w->serial, 0);
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
            el_say_commit(m, w, l, 1);
        else if (l->pos >= (double)l->span.end)
            el_say_commit(m, w, l, 0);
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
        uint32_t slot = el_said_new(m);
        m->said[slot].ev.kind = SCHED_CUT_ANSWERED;
        m->said[slot].ev.job = 1;
        m->said[slot].ev.epoch = l->epoch;
        m->said[slot].ev.u.cut.at = cut;
        el_say(m, w, slot);
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
        el_plan(m, w);
    if (m->over || w->count)
        w->idle_since_ms = 0;
    else if (!w->idle_since_ms)
        w->idle_since_ms = m->now_ms;
}
