/* Providers, the daemon, and a run: events in order of time, what workers say, what they are told, providers' seconds. */
#include "tests/sim/elastic_world.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"

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

void el_provider_fill(struct world *m, uint32_t id)
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
        if (c->never > 0 && el_uniform(m) < c->never)
            el_at(m, m->now_ms + c->give_up_ms, GIVES_UP, id, 0, 0);
        else
            el_at(m, m->now_ms + c->start_ms_min + el_rnd(m, c->start_ms_max - c->start_ms_min + 1), ARRIVES, id, 0, 0);
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
    el_step(m, &ev);
}

/* Owners come back: whoever is too many is taken away. */
static void evict(struct world *m, uint32_t id)
{
    struct el_provider *p = &m->providers[id];
    uint32_t limit = limit_now(m, id);
    uint64_t start = el_rnd(m, m->worker_count);
    for (uint32_t k = 0; k < m->worker_count && p->alive > limit; k++) {
        struct el_worker *w = &m->workers[(start + k) % m->worker_count];
        if (w->exists && w->provider == id && !w->draining)
            el_leaves(m, w, WORKER_PREEMPTED);
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
        el_provider_fill(m, i);
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
        el_core_bytes(m);
        if (!m->c->quiet)
            printf("  %6.0f s  %5u workers, %5u wanted, %5u can be had   %5.1f %%\n", (double)(m->now_ms - m->began_ms) / 1000, alive, wanted, could,
                   (double)m->done_bytes * 100 / (double)m->total);
    }
    el_at(m, m->now_ms + 1000, SECOND, 0, 0, 0);
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
    el_step(m, &ev);
    int again = m->row.id != 0;
    if (again) {
        ev = (struct sched_event){.kind = SCHED_JOB_RESTORED, .job = 1};
        struct job_row row = m->row;
        ev.u.job.row = &row;
        ev.u.job.layout = &m->layout;
        ev.u.job.wall_ms = wall_ms(m);
        el_step(m, &ev);
        for (size_t i = 0; i < m->image.cap; i++)
            if (m->image.slots[i].key) {
                struct span_row span = m->image.slots[i].row;
                ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1};
                ev.u.span = &span;
                el_step(m, &ev);
            }
    }
    ev = (struct sched_event){.kind = SCHED_RECOVERED};
    el_step(m, &ev);
    for (uint32_t i = 0; i < PROVIDERS; i++) {
        m->providers[i].told = 0;
        if (i)
            provider_tell(m, i);
    }
    for (uint32_t i = 0; again && i < m->worker_count; i++)
        if (m->workers[i].exists)
            el_at(m, m->now_ms + 20 + el_rnd(m, 1000), REJOIN, i, m->workers[i].serial, 0);
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
    el_step(m, &ev);
}

/* What it lost on the way is said again: the worker answers the new daemon's welcome by a hello, and repeats its commits. */
static void rejoins(struct world *m, struct el_worker *w)
{
    el_work_out(m, w);
    el_say_hello(m, w);
    for (size_t i = 0; i < w->count; i++)
        if (w->leases[i].flying) {
            struct lease *l = &w->leases[i];
            uint64_t to = l->sent;
            uint32_t slot = el_said_new(m);
            struct parcel *p = &m->said[slot];
            p->ev.kind = SCHED_COMMIT;
            p->ev.job = 1;
            p->ev.epoch = l->epoch;
            p->ev.u.commit.seq = l->sent_seq;
            uint64_t n = el_records_in(m, l->committed, to);
            p->done = (struct extent){.span = {l->committed, to}, .records = n, .rows = n, .bytes = to - l->committed};
            p->ev.u.commit.done_count = to > l->committed;
            el_say(m, w, slot);
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
        el_step(m, &ev);
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
        el_work_out(m, w);
        el_say_beat(m, w);
        el_at(m, m->now_ms + beat_ms, BEAT, it->worker, it->serial, 0);
        return;
    case COMMIT:
        if (!same)
            return;
        el_work_out(m, w);
        for (size_t i = 0; i < w->count; i++)
            el_say_commit(m, w, &w->leases[i], 0);
        el_at(m, m->now_ms + m->c->commit_ms, COMMIT, it->worker, it->serial, 0);
        return;
    case DONE: /* serial: of the plan */
        if (!w->exists || w->turn != it->serial)
            return;
        el_work_out(m, w);
        for (size_t i = 0; i < w->count; i++)
            if (w->leases[i].pos >= (double)w->leases[i].span.end)
                el_say_commit(m, w, &w->leases[i], 0);
        el_plan(m, w);
        if (w->count && w->leases[w->count - 1].pos >= (double)w->leases[w->count - 1].span.end)
            el_say_beat(m, w);
        return;
    case LOADED:
        if (same) {
            el_work_out(m, w);
            uint32_t slot = el_said_new(m);
            m->said[slot].ev.kind = SCHED_MODEL_READY;
            m->said[slot].ev.u.model.model_key = 1;
            m->said[slot].ev.u.model.load_ms = m->c->load_ms;
            el_say(m, w, slot);
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
            el_acted_on(m, w, &a);
        return;
    }
    case DIES:
        if (same && !w->draining)
            el_leaves(m, w, WORKER_LOST);
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
            el_arrives(m, it->worker);
        } else {
            m->r->never++;
            el_provider_fill(m, it->worker);
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
            el_step(m, &ev);
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
            el_at(m, m->now_ms + (uint64_t)(m->c->down_s * 1000), RESTART, 0, 0, 0);
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
    el_at(m, m->now_ms + 1000, SECOND, 0, 0, 0);
    if (c->restart_at_s > 0)
        el_at(m, m->now_ms + (uint64_t)(c->restart_at_s * 1000), RESTART, 0, 0, 0);
    submit(m);
    int looked = 0;
    while (m->heap_count && !m->failed) {
        struct item it = el_pop(m);
        m->now_ms = it.at;
        happens(m, &it);
        if (m->over && !looked) {
            looked = 1;
            look_at_the_end(m);
            r->makespan_s = (double)(m->over_ms - m->began_ms) / 1000;
            for (uint32_t i = 0; i < m->worker_count; i++) {
                m->over = 0;
                el_work_out(m, &m->workers[i]);
                m->over = 1;
            }
            el_mark(m);
            if (m->done_bytes != m->total || m->done_records != c->records)
                el_fail(m, "the job is done with another number of bytes or records than it has", m->done_bytes, m->done_records);
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
            el_fail(m, "no end in sight", m->done_bytes, m->total);
        }
    }
    r->commit_us_median = el_percentile(m->buckets, 0.5);
    r->commit_us_p99 = el_percentile(m->buckets, 0.99);
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
