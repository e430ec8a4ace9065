/* A worker: reads ahead, computes in lanes, commits what is done with holes, answers cuts, dies of poison. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define TURN_MS 200
#define READ_AHEAD 24

static uint64_t unit_begin(const struct held_lease *l, size_t i)
{
    return i == 0 ? l->span.begin : l->data->records[l->first + i].begin;
}

static uint64_t unit_end(const struct held_lease *l, size_t i)
{
    return i + 1 >= l->count ? l->span.end : l->data->records[l->first + i + 1].begin;
}

static size_t units(const struct held_lease *l)
{
    return l->count ? l->count : 1;
}

static void lease_drop(struct sim_worker *w, struct held_lease *l)
{
    struct held_lease **at = &w->leases;
    while (*at != l)
        at = &(*at)->after;
    if (at == &w->leases)
        w->in_lane = 0;
    *at = l->after;
    if (l->commit)
        parcel_free(l->commit);
    free(l->units);
    free(l);
}

void worker_clear(struct sim_worker *w)
{
    while (w->leases)
        lease_drop(w, w->leases);
}

struct parcel *worker_message(struct sim *m, struct sim_worker *w, enum sched_event_kind kind)
{
    struct parcel *p = parcel_new(m, kind);
    p->ev.worker = w->id;
    p->incarnation = w->incarnation;
    return p;
}

void worker_rejoin(struct sim *m, struct sim_worker *w)
{
    if (!w->exists)
        return;
    struct parcel *p = worker_message(m, w, SCHED_WORKER_JOINED);
    size_t n = 0;
    for (struct held_lease *l = w->leases; l; l = l->after)
        n++;
    p->held = xmalloc((n + 1) * sizeof *p->held);
    n = 0;
    for (struct held_lease *l = w->leases; l; l = l->after)
        p->held[n++] = (struct sched_held){l->job, l->epoch, l->commit ? l->commit->ev.u.commit.seq : l->next_seq};
    p->ev.u.joined.host = w->host;
    p->ev.u.joined.memory_bytes = w->memory;
    p->ev.u.joined.reach = w->reach;
    p->ev.u.joined.lanes = (uint32_t)w->lanes;
    p->ev.u.joined.numerics = w->numerics;
    p->ev.u.joined.model_key = w->loading_until > m->now_ms ? 0 : w->model;
    p->ev.u.joined.held = p->held;
    p->ev.u.joined.held_count = n;
    const struct sim_provider *provider = provider_of_slot(m, w->index);
    p->ev.u.joined.provider = provider ? provider->id : PROVIDER_NONE;
    w->join_ms = m->now_ms;
    sim_to_daemon(m, w, p);
}

static void turn_at(struct sim *m, struct sim_worker *w, uint64_t at_ms)
{
    struct item *it = sim_at(m, at_ms, WORKER_TURN);
    it->worker = w->index;
    it->number = w->incarnation;
}

void worker_spawn(struct sim *m, struct sim_worker *w, uint64_t id)
{
    size_t index = w->index;
    uint32_t incarnation = w->incarnation + 1;
    m->starting[index] = 0;
    worker_clear(w);
    *w = (struct sim_worker){.index = index, .id = id, .incarnation = incarnation, .exists = 1};
    w->host = 1 + index % (1 + m->seed % 3);
    w->numerics = 7;
    w->lanes = 1 + rnd(m, 8);
    w->speed = 5 + (double)rnd(m, 50);
    if (chance(m, 0.1))
        w->speed /= 10;
    w->memory = (m->gangs && index % 3 == 2 ? 16 : 8) * SIM_GIB;
    w->reach = m->gangs ? 1 : 0;
    worker_rejoin(m, w);
    turn_at(m, w, m->now_ms + rnd(m, TURN_MS) + 1);
}

/* Names what is in the lanes, as the black box would. */
void worker_dies(struct sim *m, struct sim_worker *w, enum worker_end how)
{
    sim_trace(m, "worker %" PRIx64 " dies: %d", w->id, (int)how);
    struct parcel *p = worker_message(m, w, SCHED_WORKER_ENDED);
    p->ev.u.ended.how = how;
    struct held_lease *l = w->named_count ? NULL : w->leases;
    size_t n = !l || !l->count ? 0 : w->in_lane ? w->in_lane : (l->probe & 1) != 0;
    p->suspects = xmalloc((n + w->named_count + 1) * sizeof *p->suspects);
    size_t k = 0;
    for (; k < w->named_count; k++)
        p->suspects[k] = w->named[k];
    for (size_t i = l ? l->next : 0; k < n && i < l->count; i++)
        if (l->units[i] == TODO) {
            const struct record *r = &l->data->records[l->first + i];
            p->suspects[k++] = (struct sched_suspect){l->job, l->epoch, {r->begin, r->end}};
        }
    p->ev.u.ended.suspects = p->suspects;
    p->ev.u.ended.count = k;
    w->exists = 0;
    w->died_ms = m->now_ms;
    worker_clear(w);
    sim_notice(m, w, p);
    if (provider_of_slot(m, w->index))
        return;
    struct item *i = sim_at(m, m->now_ms + 300 + rnd(m, 4000), WORKER_SPAWNS);
    i->worker = w->index;
    i->number = chance(m, 0.5) ? w->id : 0;
}

/* Commits ---------------------------------------------------------------------------------------------------------------------*/

static void resend(struct sim *m, struct sim_worker *w, struct held_lease *l)
{
    struct parcel *old = l->commit, *p = worker_message(m, w, SCHED_COMMIT);
    p->ev = old->ev;
    size_t d = old->ev.u.commit.done_count, r = old->ev.u.commit.returned_count;
    p->done = memcpy(xmalloc((d + 1) * sizeof *p->done), old->done, d * sizeof *p->done);
    p->returned = memcpy(xmalloc((r + 1) * sizeof *p->returned), old->returned, r * sizeof *p->returned);
    p->ev.u.commit.done = p->done;
    p->ev.u.commit.returned = p->returned;
    l->sent_ms = m->now_ms;
    sim_to_daemon(m, w, p);
}

static void commit(struct sim *m, struct sim_worker *w, struct held_lease *l, int give_up_rest)
{
    size_t n = units(l), done = 0, back = 0;
    struct parcel *p = worker_message(m, w, SCHED_COMMIT);
    p->done = xmalloc(n * sizeof *p->done);
    p->returned = xmalloc(n * sizeof *p->returned);
    int open = 0; /* the last unit was FINISHED and its extent can grow */
    for (size_t i = 0; i < n && done + back < 60; i++) {
        uint8_t u = l->units[i];
        struct span span = {unit_begin(l, i), unit_end(l, i)};
        if (u == FINISHED || u == FAULTY) {
            if (!open || u == FAULTY) {
                p->done[done++] = (struct extent){.span = span};
            }
            struct extent *x = &p->done[done - 1];
            x->span.end = span.end;
            x->records += l->count > 0;
            x->errors += u == FAULTY;
            x->rows += u == FINISHED && l->count;
            x->bytes += layout_weight(&l->data->layout, span.begin, span.end);
            l->units[i] = SENT;
            open = u == FINISHED;
            continue;
        }
        open = 0;
        if (u == GIVE_BACK || (give_up_rest && (u == TODO || u == LATE))) {
            p->returned[back++] = (struct sched_returned){span, u == GIVE_BACK};
            l->units[i] = SENT;
        }
    }
    if (!done && !back) {
        parcel_free(p);
        return;
    }
    p->ev.job = l->job;
    p->ev.epoch = l->epoch;
    p->ev.u.commit.seq = l->next_seq;
    p->ev.u.commit.done = p->done;
    p->ev.u.commit.done_count = done;
    p->ev.u.commit.returned = p->returned;
    p->ev.u.commit.returned_count = back;
    l->commit = p;
    l->committed_ms = m->now_ms;
    resend(m, w, l);
}

static void acknowledged(struct sim *m, struct sim_worker *w, struct held_lease *l, const struct sched_action *a)
{
    if (a->u.ack.verdict == ACK_STALE) {
        lease_drop(w, l);
        return;
    }
    if (!l->commit || l->commit->ev.u.commit.seq != a->u.ack.seq)
        return; /* an old answer, again */
    if (a->u.ack.verdict == ACK_FAULT) {
        resend(m, w, l);
        return;
    }
    l->next_seq++;
    parcel_free(l->commit);
    l->commit = NULL;
    size_t open = 0;
    for (size_t i = 0; i < units(l); i++) {
        if (l->units[i] == SENT)
            l->units[i] = GONE;
        open += l->units[i] != GONE;
    }
    if (!open)
        lease_drop(w, l);
}

/* Messages of the daemon ------------------------------------------------------------------------------------------------------- */

static void accept_lease(struct sim *m, struct sim_worker *w, const struct sched_action *a)
{
    struct held_lease *l = xmalloc(sizeof *l);
    *l = (struct held_lease){.job = a->job, .epoch = a->epoch, .span = a->u.lease.span, .probe = a->u.lease.probe};
    l->data = &m->data[a->job - 1];
    l->in_gang = w->stage.u.stage.gang && w->stage.job == a->job && w->stage.u.stage.head == w->id;
    l->first = dataset_at(l->data, l->span.begin);
    l->count = dataset_at(l->data, l->span.end) - l->first;
    l->units = xmalloc(units(l));
    memset(l->units, TODO, units(l));
    l->committed_ms = m->now_ms;
    struct held_lease **at = &w->leases;
    while (*at)
        at = &(*at)->after;
    *at = l;
}

static uint64_t read_to(const struct held_lease *l)
{
    return l->read == 0 ? l->span.begin : unit_end(l, l->read - 1);
}

static void cut(struct sim *m, struct sim_worker *w, struct held_lease *l, uint64_t at)
{
    uint64_t from = read_to(l);
    const struct layout *layout = &l->data->layout;
    if (at < from)
        at = from;
    if (at != from && !layout_enterable(layout, at))
        at = layout->base[layout_source(layout, at) + 1];
    if (at >= l->span.end)
        at = l->span.end;
    if (at < l->span.end) {
        size_t n = dataset_at(l->data, at) - l->first;
        if (at <= l->span.begin) {
            n = 0;
        }
        l->span.end = at;
        l->count = n;
    }
    struct parcel *p = worker_message(m, w, SCHED_CUT_ANSWERED);
    p->ev.job = l->job;
    p->ev.epoch = l->epoch;
    p->ev.u.cut.at = at;
    sim_to_daemon(m, w, p);
    if (l->span.begin == l->span.end) {
        lease_drop(w, l);
        return;
    }
    size_t open = l->commit != NULL;
    for (size_t i = 0; i < units(l); i++)
        open += l->units[i] != GONE;
    if (!open)
        lease_drop(w, l);
}

void worker_receive(struct sim *m, struct sim_worker *w, const struct sched_action *a)
{
    struct held_lease *l = w->leases;
    while (l && l->epoch != a->epoch)
        l = l->after;
    w->welcome = 1;
    switch (a->kind) {
    case SCHED_DO_SEND_LEASE:
        if (!l && !w->draining)
            accept_lease(m, w, a);
        if ((a->u.lease.probe & 1) && m->faulty && chance(m, m->probes_killed)) { /* lost is not guilty, not even here */
            struct item *it = sim_at(m, m->now_ms + rnd(m, 600), PROBE_KILLED);
            it->worker = w->index;
            it->number = w->incarnation;
        }
        break;
    case SCHED_DO_SEND_REVOKE:
        if (l)
            lease_drop(w, l);
        break;
    case SCHED_DO_SEND_CUT:
        if (l)
            cut(m, w, l, a->u.cut_at);
        break;
    case SCHED_DO_SEND_ACK:
        if (l)
            acknowledged(m, w, l, a);
        break;
    case SCHED_DO_SEND_DRAIN:
        if (!w->draining)
            w->draining_ms = m->now_ms;
        w->draining = 1;
        break;
    default:
        gang_receive(m, w, a);
        break;
    }
}

/* Work ------------------------------------------------------------------------------------------------------------------------- */

/* What the records in the lanes do together. 1: the worker is gone. */
static int poisoned(struct sim *m, struct sim_worker *w, struct held_lease *l, const size_t *lane, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const struct record *r = &l->data->records[l->first + lane[k]];
        enum poison p = r->poison;
        if (p == CRASHES_BESIDE_NEXT)
            p = k + 1 < n && lane[k + 1] == lane[k] + 1 ? CRASHES : HARMLESS;
        if (p == HARMLESS)
            continue;
        w->in_lane = n;
        struct sim_worker *victim = gang_victim(m, w, l, l->first + lane[k]);
        for (size_t i = 0; i < n && victim != w; i++) {
            const struct record *x = &l->data->records[l->first + lane[i]];
            victim->named[victim->named_count++] = (struct sched_suspect){l->job, l->epoch, {x->begin, x->end}};
        }
        if (p == HANGS) {
            victim->hanging = 1;
            return 1;
        }
        m->crashes++;
        worker_dies(m, victim, p == EATS_MEMORY ? WORKER_OOM : WORKER_CRASHED);
        return 1;
    }
    return 0;
}

static void finish(struct sim *m, struct held_lease *l, size_t i)
{
    struct record *r = &l->data->records[l->first + i];
    l->records_done++;
    l->bytes_done += r->end - r->begin;
    if (r->tried < r->fails) {
        if (r->fails != FAILS_ALWAYS)
            r->tried++;
        l->units[i] = l->probe & 2 ? FAULTY : GIVE_BACK;
        return;
    }
    l->units[i] = FINISHED;
    (void)m;
}

/* Computes for a turn; returns 0 when the worker went away. */
static int compute(struct sim *m, struct sim_worker *w)
{
    double pace = w->leases ? gang_pace(m, w, w->leases) : w->speed;
    w->budget = pace > 0 ? w->budget + pace * TURN_MS : 0;
    for (struct held_lease *l = w->leases; l; l = l->after) {
        if (l->count == 0) {
            if (l->units[0] == TODO)
                l->units[0] = FINISHED;
            l->read = l->next = 1;
            continue;
        }
        uint64_t model = l->data->params.model_key;
        if (pace <= 0)
            return 1;
        if (model && w->model != model && !w->stage.u.stage.gang) {
            if (l != w->leases)
                return 1;
            if (m->faulty && chance(m, 0.01)) {
                struct parcel *p = worker_message(m, w, SCHED_MODEL_FAILED);
                p->ev.u.model.model_key = model;
                p->ev.u.model.text = "no such file";
                sim_to_daemon(m, w, p);
                lease_drop(w, l);
                return 1;
            }
            w->model = model;
            w->loading_until = m->now_ms + 300 + rnd(m, 2000);
            return 1;
        }
        while (l->next < l->count) {
            if (l->units[l->next] != TODO) {
                l->next++;
                continue;
            }
            size_t lane[64], n = 0, most = (l->probe & 1) ? 1 : w->lanes;
            double cost = 0;
            for (size_t i = l->next; i < l->count && n < most; i++)
                if (l->units[i] == TODO) {
                    lane[n++] = i;
                    cost += (double)(l->data->records[l->first + i].end - l->data->records[l->first + i].begin);
                }
            l->read = l->next + READ_AHEAD > l->count ? l->count : l->next + READ_AHEAD;
            if (l->read <= lane[n - 1])
                l->read = lane[n - 1] + 1;
            w->in_lane = l == w->leases ? n : 0;
            if (l != w->leases)
                return 1;
            if (w->budget < cost)
                return 1;
            w->budget -= cost;
            if (poisoned(m, w, l, lane, n))
                return 0;
            w->in_lane = 0;
            for (size_t k = 0; k < n; k++) {
                if (l->data->records[l->first + lane[k]].late && !(l->probe & 1))
                    l->units[lane[k]] = LATE;
                else
                    finish(m, l, lane[k]);
            }
        }
        for (size_t i = 0; i < l->count; i++)
            if (l->units[i] == LATE && chance(m, 0.2))
                finish(m, l, i);
        int more = 0;
        for (size_t i = 0; i < l->count; i++)
            more |= l->units[i] == LATE;
        if (more || l->next < l->count)
            break;
    }
    if (w->budget > pace * TURN_MS)
        w->budget = pace * TURN_MS;
    return 1;
}

static void beat(struct sim *m, struct sim_worker *w)
{
    struct parcel *p = worker_message(m, w, SCHED_WORKER_BEAT);
    size_t n = 0;
    for (struct held_lease *l = w->leases; l; l = l->after)
        n++;
    p->progress = xmalloc((n + 1) * sizeof *p->progress);
    n = 0;
    for (struct held_lease *l = w->leases; l; l = l->after)
        p->progress[n++] = (struct sched_progress){l->epoch, read_to(l), l->records_done, l->bytes_done};
    p->ev.u.beat.leases = p->progress;
    p->ev.u.beat.count = n;
    w->beat_ms = m->now_ms;
    sim_to_daemon(m, w, p);
}

void worker_turn(struct sim *m, struct sim_worker *w)
{
    if (w->loading_until && m->now_ms >= w->loading_until) {
        struct parcel *p = worker_message(m, w, SCHED_MODEL_READY);
        p->ev.u.model.model_key = w->model;
        p->ev.u.model.load_ms = 500;
        sim_to_daemon(m, w, p);
        w->loading_until = 0;
    }
    gang_turn(m, w);
    if (!w->hanging && !w->loading_until && !w->draining && !compute(m, w) && !w->exists)
        return;
    for (struct held_lease *l = w->leases, *next; l; l = next) {
        next = l->after;
        int whole = l->next >= l->count || (l->probe & 1);
        if (l->commit) {
            if (m->now_ms - l->sent_ms > 3000)
                resend(m, w, l);
        } else if (w->draining) {
            commit(m, w, l, 1);
        } else if (whole || m->now_ms - l->committed_ms > 1500) {
            commit(m, w, l, 0);
        }
    }
    if (w->draining && (!w->leases || m->now_ms - w->draining_ms > 20000)) {
        worker_dies(m, w, WORKER_DRAINED);
        return;
    }
    if (m->now_ms - w->beat_ms >= 1000) {
        if (!w->welcome && m->now_ms - w->join_ms > 3000)
            worker_rejoin(m, w);
        else
            beat(m, w);
    }
    turn_at(m, w, m->now_ms + TURN_MS);
}
