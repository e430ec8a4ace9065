/* What is to happen at which time, and the network, through which most of it comes: late, doubled, or not at all. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The queue -------------------------------------------------------------------------------------------------------------------- */

static int before(const struct item *a, const struct item *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(struct sim *m, struct item *it)
{
    m->queue = xgrow(m->queue, &m->queue_cap, m->queue_count, sizeof *m->queue);
    size_t i = m->queue_count++;
    while (i && before(it, m->queue[(i - 1) / 2])) {
        m->queue[i] = m->queue[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->queue[i] = it;
}

struct item *sim_pop(struct sim *m)
{
    struct item *top = m->queue[0], *last = m->queue[--m->queue_count];
    size_t i = 0;
    for (size_t c; (c = i * 2 + 1) < m->queue_count; i = c) {
        if (c + 1 < m->queue_count && before(m->queue[c + 1], m->queue[c]))
            c++;
        if (!before(m->queue[c], last))
            break;
        m->queue[i] = m->queue[c];
    }
    if (m->queue_count)
        m->queue[i] = last;
    return top;
}

struct item *sim_at(struct sim *m, uint64_t at_ms, enum happening what)
{
    struct item *it = xmalloc(sizeof *it);
    it->at = at_ms;
    it->order = m->order++;
    it->what = what;
    push(m, it);
    return it;
}

struct parcel *parcel_new(struct sim *m, enum sched_event_kind kind)
{
    (void)m;
    struct parcel *p = xmalloc(sizeof *p);
    p->ev.kind = kind;
    return p;
}

void parcel_free(struct parcel *p)
{
    if (!p)
        return;
    free(p->done);
    free(p->returned);
    free(p->progress);
    free(p->held);
    free(p->suspects);
    free(p->segments);
    free(p->links);
    free(p);
}

static struct parcel *parcel_copy(struct sim *m, const struct parcel *from)
{
    struct parcel *p = parcel_new(m, from->ev.kind);
    p->ev = from->ev;
    p->incarnation = from->incarnation;
#define COPY(field, view, n)                                                                                                     \
    if (from->field) {                                                                                                           \
        p->field = xmalloc(((n) + 1) * sizeof *p->field);                                                                        \
        memcpy(p->field, from->field, (n) * sizeof *p->field);                                                                   \
        p->ev.u.view = p->field;                                                                                                 \
    }
    COPY(done, commit.done, from->ev.u.commit.done_count)
    COPY(returned, commit.returned, from->ev.u.commit.returned_count)
    COPY(progress, beat.leases, from->ev.u.beat.count)
    COPY(held, joined.held, from->ev.u.joined.held_count)
    COPY(suspects, ended.suspects, from->ev.u.ended.count)
    COPY(segments, profiled.segments, from->ev.u.profiled.count)
    COPY(links, profiled.links, from->ev.u.profiled.link_count)
#undef COPY
    return p;
}

void sim_item_free(struct item *it)
{
    parcel_free(it->parcel);
    free(it->action);
    free(it);
}

/* The network ------------------------------------------------------------------------------------------------------------------ */

int sim_lost(struct sim *m, const struct sim_worker *w)
{
    return w->cut_off_until > m->now_ms || (m->faulty && chance(m, m->loss));
}

uint64_t sim_delay(struct sim *m)
{
    uint64_t d = 1 + rnd(m, 20);
    if (m->faulty && chance(m, m->slow_net))
        d += rnd(m, 6000);
    return d;
}

void sim_to_daemon(struct sim *m, struct sim_worker *w, struct parcel *p)
{
    int copies = 1 + (m->faulty && chance(m, m->doubling));
    while (copies--) {
        if (sim_lost(m, w))
            continue;
        struct item *it = sim_at(m, m->now_ms + sim_delay(m), TO_DAEMON);
        it->worker = w->index;
        it->parcel = parcel_copy(m, p);
    }
    parcel_free(p);
}

void sim_notice(struct sim *m, struct sim_worker *w, struct parcel *p)
{
    /* a death outside of anybody's sight shows by silence only */
    if (m->faulty && p->ev.u.ended.how == WORKER_LOST && chance(m, 0.3)) {
        parcel_free(p);
        return;
    }
    struct item *it = sim_at(m, m->now_ms + 5 + rnd(m, 500), WORKER_NOTICED);
    it->worker = w->index;
    it->parcel = p;
}

void sim_to_worker(struct sim *m, size_t index, const struct sched_action *a)
{
    struct sim_worker *w = &m->workers[index];
    int copies = 1 + (m->faulty && chance(m, m->doubling));
    while (copies--) {
        if (sim_lost(m, w))
            continue;
        struct item *it = sim_at(m, m->now_ms + sim_delay(m), TO_WORKER);
        it->worker = index;
        it->number = w->id;
        it->action = xmalloc(sizeof *a);
        *it->action = *a;
    }
}

struct sim_worker *sim_worker_by_id(struct sim *m, uint64_t id)
{
    for (size_t i = 0; i < m->worker_count; i++)
        if (m->workers[i].id == id && m->workers[i].exists)
            return &m->workers[i];
    return NULL;
}
