/* Providers of the sim's workers: a limit, a delay, workers that never arrive, owners who come back; and what must hold of the figures that the core
   asks for. In three of four seeds there are none: workers come by themselves, and come again. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>

#define HOLD_MS 26000       /* the core may hold on to a figure for twenty seconds, looks once a second, and its word waits for a sync */
#define FASTEST 55.0        /* bytes/ms: no worker of the sim is faster */
#define SLOWEST_LOAD_MS 2300
#define SLOW_TO_ASK_MS 25000

void providers_make(struct sim *m)
{
    static const uint32_t ids[] = {PROVIDER_LOCAL, PROVIDER_SLURM, PROVIDER_KUBERNETES};
    m->elastic = m->seed % 4 == 3;
    if (!m->elastic)
        return;
    size_t first = 0;
    m->provider_count = 1 + rnd(m, 3);
    for (size_t i = 0; i < m->provider_count; i++) {
        struct sim_provider *p = &m->providers[i];
        size_t left = m->worker_count - first, rest = m->provider_count - i - 1;
        *p = (struct sim_provider){.id = ids[i], .first = first, .preemptible = i == 1, .idle_ms = 5000 + rnd(m, 15000), .never = chance(m, 0.5) ? 0.4 : 0};
        p->slots = rest && left > 1 ? 1 + rnd(m, left - 1) : left;
        p->limit = (uint32_t)p->slots;
        first += p->slots;
    }
    sim_at(m, m->now_ms + 1000, PROVIDERS_TURN);
}

struct sim_provider *provider_of_slot(struct sim *m, size_t slot)
{
    for (size_t i = 0; i < m->provider_count; i++)
        if (slot >= m->providers[i].first && slot < m->providers[i].first + m->providers[i].slots)
            return &m->providers[i];
    return NULL;
}

static void tell(struct sim *m, const struct sim_provider *p)
{
    struct sched_event ev = {.kind = SCHED_PROVIDER};
    ev.u.provider.id = p->id;
    ev.u.provider.limit = p->limit;
    ev.u.provider.preemptible = p->preemptible;
    ev.u.provider.idle_ms = p->idle_ms;
    daemon_step(m, &ev);
}

void providers_tell(struct sim *m)
{
    for (size_t i = 0; i < m->provider_count; i++)
        tell(m, &m->providers[i]);
}

static size_t alive(const struct sim *m, const struct sim_provider *p, size_t *starting)
{
    size_t n = 0;
    *starting = 0;
    for (size_t i = p->first; i < p->first + p->slots; i++) {
        n += m->workers[i].exists && !m->workers[i].draining;
        *starting += !m->workers[i].exists && m->starting[i] > m->now_ms;
    }
    return n;
}

static void turn(struct sim *m, struct sim_provider *p)
{
    uint32_t limit = p->limit;
    if (!m->faulty)
        p->limit = (uint32_t)p->slots;
    else if (m->life && chance(m, 0.01))
        p->limit = (uint32_t)rnd(m, p->slots + 1);
    if (limit != p->limit && m->life)
        tell(m, p);
    size_t starting, n = alive(m, p, &starting);
    for (size_t i = p->first; i < p->first + p->slots && n > p->limit && chance(m, 0.7); i++)
        if (m->workers[i].exists && !m->workers[i].draining) {
            worker_dies(m, &m->workers[i], WORKER_PREEMPTED);
            n--;
        }
    uint32_t want = m->wanted[p->id] < p->limit ? m->wanted[p->id] : p->limit;
    for (size_t i = p->first; i < p->first + p->slots && n + starting < want; i++) {
        if (m->workers[i].exists || m->starting[i] > m->now_ms)
            continue;
        starting++;
        if (m->faulty && chance(m, p->never)) {
            m->starting[i] = m->now_ms + 20000; /* until then nobody notices */
            m->never++;
            continue;
        }
        uint64_t at = m->now_ms + 100 + rnd(m, 8000);
        m->starting[i] = at + 1;
        sim_at(m, at, WORKER_SPAWNS)->worker = i;
    }
}

/* What is left of a job, as the rows have it. */
struct left {
    uint64_t records, bytes;
    int streams, backs_off;
};

static struct left left_of(const struct sim *m, size_t k)
{
    struct left x = {0};
    const struct image_job *j = &m->now.jobs[k];
    const struct dataset *d = &m->data[k];
    for (size_t i = 0; i < j->span_count; i++) {
        const struct span_row *s = &j->spans[i];
        x.records += dataset_at(d, s->span.end) - dataset_at(d, s->span.begin);
        x.bytes += layout_weight(&d->layout, s->span.begin, s->span.end);
        x.backs_off |= s->attempts > 0 || s->probe;
    }
    for (size_t i = 0; i < d->layout.count; i++)
        x.streams |= layout_is_stream(&d->layout, i);
    return x;
}

/* How many could have something to do, and how many certainly would. */
static void worth_now(const struct sim *m, uint64_t *could_all, uint64_t *would_all)
{
    uint64_t most = 0, least = 0;
    for (size_t k = 0; k < m->data_count; k++) {
        const struct image_job *j = &m->now.jobs[k];
        if (!j->exists || j->row.state != JOB_RUNNING || !j->span_count)
            continue;
        const struct dataset *d = &m->data[k];
        struct left x = left_of(m, k);
        uint64_t could = (4 * x.records + 4) * (d->params.stages > 1 ? d->params.stages : m->gangs ? GANG_MOST : 1), would = (uint64_t)((double)x.bytes / (FASTEST * SLOWEST_LOAD_MS)), max = j->row.params.max_workers;
        if (would > x.records / 4)
            would = x.records / 4;
        if (x.streams || x.backs_off || m->gangs) /* one a stream; others wait; pipelines are slower to come */
            would = 1;
        if (max && could > max)
            could = max;
        if (max && would > max)
            would = max;
        most += could;
        least += would;
    }
    *could_all = most;
    *would_all = least;
}

/* A job has come, goes on, or stands still: between two turns, perhaps. */
void providers_note(struct sim *m)
{
    uint64_t most, least;
    worth_now(m, &most, &least);
    if (most > m->most_recent)
        m->most_recent = most;
}

/* Never more than there is work for, nor more than a job may have; and not fewer than would obviously help. */
static void check_wanted(struct sim *m)
{
    uint64_t sum = 0, most = 0, least = 0, limits = 0;
    for (size_t i = 0; i < m->provider_count; i++) {
        sum += m->wanted[m->providers[i].id];
        limits += m->providers[i].limit;
    }
    worth_now(m, &most, &least);
    if (most > m->most_recent)
        m->most_recent = most;
    if (m->now_ms - m->most_ms > HOLD_MS) { /* the largest of the last one or two times HOLD_MS */
        m->most_before = m->most_recent;
        m->most_recent = most;
        m->most_ms = m->now_ms;
    }
    sim_trace(m, "%" PRIu64 " workers are wanted, of %" PRIu64 " to %" PRIu64 " that have something to do", sum, least, most);
    uint64_t allowed = m->most_before > m->most_recent ? m->most_before : m->most_recent;
    if (sum > allowed && m->now_ms - m->away_ms > HOLD_MS)
        sim_fail(m, "%" PRIu64 " workers are wanted, and there has been work for at most %" PRIu64, sum, allowed);
    if (least > limits)
        least = limits;
    if (m->faulty || m->now_ms - m->away_ms < HOLD_MS || m->lives != m->few_life || sum * 2 >= least) {
        m->few_life = m->lives;
        m->few_ms = m->now_ms;
    }
    if (m->now_ms - m->few_ms > SLOW_TO_ASK_MS)
        sim_fail(m, "for %d s only %" PRIu64 " workers have been wanted, and %" PRIu64 " would have something to do", SLOW_TO_ASK_MS / 1000, sum, least);
}

void providers_turn(struct sim *m)
{
    for (size_t i = 0; i < m->provider_count; i++)
        turn(m, &m->providers[i]);
    if (!m->life || m->stalled_until > m->now_ms)
        m->away_ms = m->now_ms;
    if (m->life)
        check_wanted(m);
    sim_at(m, m->now_ms + 1000, PROVIDERS_TURN);
}

/* The core lets a worker go: not one that has work, unless its provider may not have it any more. */
void providers_check_drain(struct sim *m, uint64_t worker)
{
    struct sim_worker *w = sim_worker_by_id(m, worker);
    struct sim_provider *p = w ? provider_of_slot(m, w->index) : NULL;
    if (!w || w->let_go || m->operating) {
        if (w)
            w->let_go = 1;
        return;
    }
    w->let_go = 1;
    if (!p)
        sim_fail(m, "worker %" PRIx64 " came by itself and is let go", worker);
    struct sched_provider_view v; /* after a restart the core may count one that is about to leave: too many are too many */
    sched_provider_view(m->sched, p->id, &v);
    for (size_t k = 0; k < m->data_count; k++)
        for (size_t i = 0; i < m->now.jobs[k].span_count; i++)
            if (m->now.jobs[k].spans[i].state == SPAN_LEASED && m->now.jobs[k].spans[i].worker == worker && v.alive < p->limit)
                sim_fail(m, "worker %" PRIx64 " has work and is let go", worker);
}

/* After the end: 1 when all are gone. */
int providers_empty(const struct sim *m)
{
    for (size_t i = 0; i < m->provider_count; i++) {
        size_t starting;
        if (alive(m, &m->providers[i], &starting))
            return 0;
    }
    return 1;
}
