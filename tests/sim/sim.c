/* The world: its clock, what it is made of, one run of it. */
#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Records that hang are found one after the other, by deaths of a stall timeout each, and little else may be left: a quarter of an hour has been seen
   in 20,000 seeds. */
#define NO_PROGRESS_MS (60 * 60000)

void *xmalloc(size_t size)
{
    void *p = calloc(1, size ? size : 1);
    if (!p)
        abort();
    return p;
}

void *xgrow(void *p, size_t *cap, size_t count, size_t size)
{
    if (count < *cap)
        return p;
    *cap = *cap ? *cap * 2 : 8;
    p = realloc(p, *cap * size);
    if (!p)
        abort();
    return p;
}

void sim_fail(struct sim *m, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(m->failure, sizeof m->failure, "at %" PRIu64 " ms, step %" PRIu64 ": %s", m->now_ms, m->steps, text);
    longjmp(m->failed, 1);
}

void sim_trace(struct sim *m, const char *fmt, ...)
{
    if (!m->trace)
        return;
    va_list ap;
    va_start(ap, fmt);
    printf("%9" PRIu64 "  ", m->now_ms);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

uint64_t rnd(struct sim *m, uint64_t n)
{
    uint64_t x = m->rng += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return n ? (x ^ x >> 31) % n : 0;
}

int chance(struct sim *m, double p)
{
    return (double)(rnd(m, UINT64_C(1) << 40)) < p * (double)(UINT64_C(1) << 40);
}

size_t dataset_at(const struct dataset *d, uint64_t pos)
{
    size_t low = 0, high = d->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (d->records[mid].begin < pos)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}
/* A run ------------------------------------------------------------------------------------------------------------------------ */

static void happen(struct sim *m, struct item *it)
{
    struct sim_worker *w = &m->workers[it->worker < MAX_WORKERS ? it->worker : 0];
    int for_daemon = it->what == TO_DAEMON || it->what == WORKER_NOTICED || it->what == TICK || it->what == PUBLISHED ||
                     it->what == SUBMIT || it->what == OPERATOR;
    int for_worker = it->what == TO_WORKER || it->what == WORKER_TURN || it->what == REJOIN;
    uint64_t later = for_daemon && m->life && m->stalled_until > m->now_ms ? m->stalled_until
                     : for_worker && w->exists && w->frozen_until > m->now_ms ? w->frozen_until
                                                                             : 0;
    if (later) { /* the daemon stands still, or the worker does */
        struct item *again = sim_at(m, later, it->what);
        again->worker = it->worker;
        again->number = it->number;
        again->parcel = it->parcel;
        again->action = it->action;
        it->parcel = NULL;
        it->action = NULL;
        return;
    }
    struct sched_event ev = {0};
    switch (it->what) {
    case TO_DAEMON:
        daemon_hears(m, it);
        break;
    case TO_WORKER:
        if (w->exists && w->id == it->number)
            worker_receive(m, w, it->action);
        break;
    case REJOIN:
        if (w->exists && w->incarnation == it->number)
            worker_rejoin(m, w);
        break;
    case SYNCED:
        if (it->number == m->life)
            daemon_synced(m);
        break;
    case TICK:
        if (it->number == m->life && (it->worker == m->alarm || chance(m, 0.05))) { /* or one too many */
            ev.kind = SCHED_TICK;
            daemon_step(m, &ev);
        }
        break;
    case DAEMON_STARTS:
        if (!m->life)
            daemon_up(m);
        break;
    case DAEMON_CRASHES:
        if (m->faulty)
            daemon_crash(m);
        break;
    case DAEMON_STALLS:
        if (m->faulty) {
            m->stalled_until = m->now_ms + 1000 + rnd(m, 25000);
            sim_at(m, m->now_ms + 30000 + rnd(m, 120000), DAEMON_STALLS);
        }
        break;
    case PUBLISHED:
        if (it->number == m->life) {
            ev.kind = SCHED_JOB_PUBLISHED;
            ev.job = it->worker;
            ev.u.published.failure = m->faulty && chance(m, m->publish_fails) ? "the disk is full" : NULL;
            daemon_step(m, &ev);
        }
        break;
    case WORKER_TURN:
        if (w->exists && w->incarnation == it->number)
            worker_turn(m, w);
        break;
    case WORKER_SPAWNS:
        if (!w->exists)
            worker_spawn(m, w, it->number ? it->number : ++m->next_worker_id);
        break;
    case WORKER_KILLED:
        if (m->faulty) {
            if (w->exists)
                worker_dies(m, w, chance(m, 0.3) ? WORKER_PREEMPTED : WORKER_LOST);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), WORKER_KILLED)->worker = rnd(m, m->worker_count);
        }
        break;
    case WORKER_FREEZES:
        if (m->faulty) {
            w->frozen_until = m->now_ms + rnd(m, 40000);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), WORKER_FREEZES)->worker = rnd(m, m->worker_count);
        }
        break;
    case PARTITION:
        if (m->faulty) {
            w->cut_off_until = m->now_ms + rnd(m, 40000);
            sim_at(m, m->now_ms + 10000 + rnd(m, 100000), PARTITION)->worker = rnd(m, m->worker_count);
        }
        break;
    case WORKER_NOTICED:
        /* the provider knows which process it speaks of */
        if (m->life && (it->parcel->incarnation == w->incarnation || !w->joined || w->id != it->parcel->ev.worker)) {
            sim_trace(m, "worker %" PRIx64 " ended", it->parcel->ev.worker);
            daemon_step(m, &it->parcel->ev);
            if (m->faulty && chance(m, m->crash_at_step))
                daemon_crash(m);
        }
        break;
    case WORKER_HUNG_KILLED:
        if (w->exists && w->incarnation == it->number)
            worker_dies(m, w, WORKER_HUNG);
        break;
    case PROBE_KILLED:
        if (w->exists && w->incarnation == it->number)
            worker_dies(m, w, WORKER_LOST);
        break;
    case OPERATOR:
        daemon_operate(m);
        break;
    case SUBMIT:
        daemon_submit(m, (size_t)it->number);
        break;
    case PROVIDERS_TURN:
        providers_turn(m);
        break;
    case WORKER_SHUT:
        if (m->faulty) {
            w->shut_until = m->now_ms + rnd(m, 60000);
            sim_at(m, m->now_ms + 5000 + rnd(m, 60000), WORKER_SHUT)->worker = rnd(m, m->worker_count);
        }
        break;
    }
}

static void make_dataset(struct sim *m, size_t k)
{
    struct dataset *d = &m->data[k];
    size_t sources = 1 + rnd(m, chance(m, 0.3) ? 60 : 4);
    uint64_t *sizes = xmalloc(sources * sizeof *sizes);
    uint8_t *kinds = xmalloc(sources);
    int streams = chance(m, 0.3);
    uint64_t mean = 200 + rnd(m, 8000);
    size_t most = 50 + rnd(m, 1500);
    for (size_t i = 0; i < sources; i++) {
        sizes[i] = chance(m, 0.1) ? 0 : 1 + rnd(m, 2 * mean * most / sources);
        kinds[i] = streams ? (uint8_t)rnd(m, 3) : 0;
        if (kinds[i] == 2)
            sizes[i] = sizes[i] / 5 + 1;
    }
    if (layout_init(&d->layout, sources, sizes, kinds))
        abort();
    size_t cap = 0;
    for (size_t i = 0; i < sources; i++) {
        uint64_t pos = d->layout.base[i], end = d->layout.base[i + 1];
        if (kinds[i] == 2 && end > pos)
            end = pos + sizes[i] * 5; /* what it unpacks to; behind that there is nothing */
        while (pos < end) {
            uint64_t size = 1 + rnd(m, 2 * mean);
            if (size > end - pos)
                size = end - pos;
            d->records = xgrow(d->records, &cap, d->count, sizeof *d->records);
            d->records[d->count++] = (struct record){.begin = pos, .end = pos + size};
            pos += size;
        }
    }
    double flaky = chance(m, 0.3) ? 0.01 : 0, late = chance(m, 0.3) ? 0.05 : 0;
    for (size_t i = 0; i < d->count; i++) {
        d->records[i].fails = !chance(m, flaky) ? 0 : chance(m, 0.2) ? FAILS_ALWAYS : (uint8_t)(1 + rnd(m, 6));
        d->records[i].late = (uint8_t)chance(m, late);
    }
    size_t poisons = d->count > 40 ? rnd(m, 4) : 0;
    for (size_t i = 0; i < poisons; i++) {
        struct record *r = &d->records[rnd(m, d->count)];
        r->poison = (uint8_t)(1 + rnd(m, 4));
        r->fails = 0;
    }
    d->job = k + 1;
    d->params = (struct job_params){.weight = 100 + (uint32_t)rnd(m, 3) * 100,
                                    .priority = (int32_t)rnd(m, 2),
                                    .model_key = rnd(m, 3),
                                    .lease_target_ms = 1000 + (uint32_t)rnd(m, 10000),
                                    .stall_timeout_ms = 60000,
                                    .max_workers = chance(m, 0.2) ? 1 + (uint32_t)rnd(m, 4) : 0,
                                    .max_errors = chance(m, 0.1) ? rnd(m, 5) : UINT64_MAX,
                                    .max_errors_ppm = chance(m, 0.1) ? 5000 : UINT32_MAX,
                                    .max_attempts = 3};
    free(sizes);
    free(kinds);
    int contest = m->gangs && m->seed % 3 == 0 && k < 2; /* pairs have all workers when somebody comes who goes first */
    if (contest)
        d->params.priority = (int32_t)k;
    if (contest ? k == 1 : !m->gangs || chance(m, 0.3))
        return;
    /* a pipeline of so many, or of as many as it takes: two workers of three have too little memory then */
    d->params.model_key = 3 + k;
    d->params.stages = m->worker_count < 2 ? 0 : (uint32_t)rnd(m, m->worker_count < 3 ? 2 : 4);
    d->params.stages += d->params.stages == 1;
    if (contest)
        d->params.stages = 2;
    d->params.model_bytes = 12 * SIM_GIB;
    if (d->params.max_workers && d->params.max_workers < d->params.stages)
        d->params.max_workers += d->params.stages;
}

static int all_over(const struct sim *m)
{
    if (!m->life)
        return 0;
    for (size_t k = 0; k < m->data_count; k++) {
        enum job_state s = m->durable.jobs[k].row.state;
        if (!m->durable.jobs[k].exists || (s != JOB_DONE && s != JOB_CANCELED))
            return 0;
    }
    return 1;
}

/* What has been done is on disk for good: records, quarantines and ends of jobs only become more, within one attempt. */
static void note_progress(struct sim *m)
{
    int more = m->faulty;
    for (size_t k = 0; k < m->data_count; k++) {
        const struct job_row *row = &m->durable.jobs[k].row;
        uint64_t best[3] = {row->attempt, row->counts.extents, row->state == JOB_DONE || row->state == JOB_CANCELED};
        for (int i = 0; i < 3; i++)
            if (best[i] > m->best[k][i]) {
                memcpy(m->best[k], best, sizeof best);
                more = 1;
                break;
            }
    }
    if (!more)
        return;
    if (!m->faulty && m->progress_ms && m->now_ms - m->progress_ms > m->longest_ms)
        m->longest_ms = m->now_ms - m->progress_ms;
    m->progress_ms = m->now_ms;
}

static void check_end(struct sim *m)
{
    for (size_t k = 0; k < m->data_count; k++) {
        const struct image_job *j = &m->durable.jobs[k];
        const struct dataset *d = &m->data[k];
        if (j->row.state == JOB_CANCELED)
            continue;
        uint64_t end = layout_end(&d->layout);
        if (end && (j->cover_count != 1 || j->cover[0].begin != 0 || j->cover[0].end != end))
            sim_fail(m, "job %zu is done and lacks positions", k + 1);
        if (j->row.counts.records != d->count)
            sim_fail(m, "job %zu is done with %" PRIu64 " of %zu records", k + 1, j->row.counts.records, d->count);
        uint64_t quarantined = 0;
        for (size_t i = 0; i < d->count; i++) {
            int found = 0, lethal = d->records[i].poison != HARMLESS && d->records[i].poison != CRASHES_BESIDE_NEXT;
            for (size_t b = 0; b < j->bad_count && lethal; b++)
                found |= j->bad[b].quarantined && j->bad[b].span.begin == d->records[i].begin;
            if (lethal && !found)
                sim_fail(m, "job %zu: the record at %" PRIu64 " kills and is not quarantined", k + 1, d->records[i].begin);
            quarantined += (uint64_t)lethal;
        }
        if (j->row.counts.quarantined != quarantined || j->row.counts.errors != j->errors)
            sim_fail(m, "job %zu: %" PRIu64 " quarantined, the counter says %" PRIu64, k + 1, quarantined, j->row.counts.quarantined);
    }
    for (size_t i = 0; i < PROVIDERS; i++)
        if (m->wanted[i])
            sim_fail(m, "nothing is left to do and %u workers of provider %zu are wanted", m->wanted[i], i);
}

void sim_release(struct sim *m)
{
    if (m->sched)
        daemon_down(m);
    sched_update_release(&m->update);
    image_release(&m->now);
    image_release(&m->durable);
    for (size_t k = 0; k < m->data_count; k++) {
        layout_release(&m->data[k].layout);
        free(m->data[k].records);
    }
    for (size_t i = 0; i < m->worker_count; i++)
        worker_clear(&m->workers[i]);
    while (m->queue_count)
        sim_item_free(sim_pop(m));
    free(m->queue);
    free(m->accepted);
    free(m->epochs);
}

int sim_run(struct sim *m, uint64_t seed, int trace)
{
    *m = (struct sim){.seed = seed, .rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 1, .trace = trace, .faulty = 1};
    struct item *volatile it = NULL;
    if (setjmp(m->failed)) {
        if (it)
            sim_item_free(it);
        return -1;
    }
    m->now_ms = 1000000;
    int calm = chance(m, 0.15);
    if (!calm) {
        m->loss = chance(m, 0.5) ? 0.1 * (double)rnd(m, 3) / 2 : 0;
        m->doubling = chance(m, 0.5) ? 0.05 : 0;
        m->slow_net = chance(m, 0.4) ? 0.05 : 0;
        m->crash_at_step = chance(m, 0.5) ? 0.004 : 0;
        m->crash_at_send = chance(m, 0.5) ? 0.004 : 0;
        m->write_fails = chance(m, 0.3) ? 0.002 : 0;
        m->probes_killed = chance(m, 0.3) ? 0.4 : 0;
        m->publish_fails = chance(m, 0.3) ? 0.3 : 0;
    }
    m->faults_end_ms = m->now_ms + 20000 + rnd(m, 180000);
    m->gangs = m->seed % 5 == 2;
    m->data_count = 1 + rnd(m, chance(m, 0.3) ? MAX_JOBS : 2);
    size_t most_workers = 0;
    if (m->gangs)
        m->worker_count = most_workers = 1 + rnd(m, chance(m, 0.2) ? 40 : 12);
    if (m->gangs && m->seed % 3 == 0) {
        m->worker_count += m->worker_count & 1;
        m->data_count += m->data_count == 1;
    }
    for (size_t k = 0; k < m->data_count; k++) {
        make_dataset(m, k);
        sim_at(m, m->now_ms + rnd(m, k ? 60000 : 2000), SUBMIT)->number = k;
    }
    if (!most_workers)
        m->worker_count = 1 + rnd(m, chance(m, 0.1) ? 40 : 10);
    for (size_t i = 0; i < m->worker_count; i++)
        m->workers[i].index = i;
    providers_make(m);
    for (size_t i = 0; i < m->worker_count && !m->elastic; i++)
        sim_at(m, m->now_ms + rnd(m, 20000), WORKER_SPAWNS)->worker = i;
    if (!calm) {
        for (int i = 0; i < 3; i++) {
            if (chance(m, 0.5))
                sim_at(m, m->now_ms + rnd(m, 60000), WORKER_KILLED)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.4))
                sim_at(m, m->now_ms + rnd(m, 60000), WORKER_FREEZES)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.4))
                sim_at(m, m->now_ms + rnd(m, 60000), PARTITION)->worker = rnd(m, m->worker_count);
            if (chance(m, 0.3))
                sim_at(m, m->now_ms + rnd(m, 100000), DAEMON_CRASHES);
        }
        if (chance(m, 0.3))
            sim_at(m, m->now_ms + rnd(m, 60000), DAEMON_STALLS);
        if (m->gangs && chance(m, 0.4))
            sim_at(m, m->now_ms + rnd(m, 60000), WORKER_SHUT)->worker = rnd(m, m->worker_count);
    }
    sim_at(m, m->now_ms + 5000, OPERATOR);
    daemon_up(m);
    uint64_t over_since = 0;
    while (m->queue_count) {
        it = sim_pop(m);
        m->now_ms = it->at;
        if (m->faulty && m->now_ms >= m->faults_end_ms)
            m->faulty = 0;
        int stuck = !m->faulty && m->now_ms - m->progress_ms > NO_PROGRESS_MS && !all_over(m);
        if (stuck)
            for (size_t k = 0; m->sched && m->trace && k < m->data_count; k++) {
                struct sched_job_view v;
                if (!sched_job_view(m->sched, k + 1, &v))
                    continue;
                sim_trace(m, "job %zu: state %d, %" PRIu64 " spans ready, %" PRIu64 " leased, %u workers, %u stages, at most %u workers, waits for '%s'", k + 1,
                          (int)v.row->state, v.spans_ready, v.spans_leased, v.workers, v.row->params.stages, v.row->params.max_workers, v.waits_for);
                for (size_t i = 0; i < m->now.jobs[k].span_count; i++)
                    sim_trace(m, "    %" PRIu64 "-%" PRIu64 " probe %u, %u crashes on %" PRIu64 ", %u attempts", m->now.jobs[k].spans[i].span.begin,
                              m->now.jobs[k].spans[i].span.end, m->now.jobs[k].spans[i].probe, m->now.jobs[k].spans[i].crashes, m->now.jobs[k].spans[i].crash_host,
                              m->now.jobs[k].spans[i].attempts);
            }
        if (stuck)
            sim_fail(m, "no faults any more, work left, and for %d min nothing has been done", NO_PROGRESS_MS / 60000);
        happen(m, it);
        note_progress(m);
        sim_item_free(it);
        it = NULL;
        if (m->faulty || !all_over(m)) {
            over_since = 0;
        } else if (!over_since) {
            over_since = m->now_ms; /* a while longer: late messages must not do harm */
        } else if (m->now_ms - over_since > 12000 && providers_empty(m)) {
            check_end(m);
            return 0;
        } else if (m->now_ms - over_since > 180000) {
            sim_fail(m, "three minutes after the end of all work there are workers that have nothing to do");
        }
    }
    sim_fail(m, "nothing happens any more");
}
