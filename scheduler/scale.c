#include "scheduler/scale.h"

#include "scheduler/worker.h"

#define PERIOD_MS 1000
#define UNKNOWN_LEASE_BYTES (64u << 10) /* worth a worker's while, while nobody's rate is known */
#define MOST 1000000u
#define OVER_LIMIT_MS 30000      /* a limit often falls a moment before the worker is gone for which it fell */

void job_rate(const struct sched *s, const struct job *j, double *records_per_s, double *bytes_per_s)
{
    uint64_t second = s->now_ms / 1000, records = 0, bytes = 0, oldest = second;
    for (size_t i = 0; i < RATE_BUCKETS; i++) {
        if (second - j->rate[i].second >= 30 || !(j->rate[i].records || j->rate[i].bytes))
            continue;
        records += j->rate[i].records;
        bytes += j->rate[i].bytes;
        if (j->rate[i].second < oldest)
            oldest = j->rate[i].second;
    }
    double span_s = (double)(s->now_ms - oldest * 1000) / 1000;
    if (span_s < 1)
        span_s = 1;
    *records_per_s = (double)records / span_s;
    *bytes_per_s = (double)bytes / span_s;
}

uint32_t scale_useful(const struct sched *s, const struct job *j)
{
    if (!j->ledger.count)
        return 0;
    double records, bytes, lease = UNKNOWN_LEASE_BYTES;
    job_rate(s, j, &records, &bytes);
    if (bytes > 0 && j->workers) {
        lease = bytes / j->workers * s->config.min_lease_ms / 1000;
        if (lease < 1)
            lease = 1;
    }
    double useful = (double)(j->ready_bytes + j->leased_bytes) / lease;
    if (j->all_streams) { /* one worker a stream */
        uint64_t head = ledger_first(&j->ledger)->span.begin;
        double streams = (double)(j->layout.count - layout_source(&j->layout, head));
        if (useful > streams)
            useful = streams;
    }
    uint32_t n = useful < 1 ? 1 : useful > MOST ? MOST : (uint32_t)useful;
    if (n < j->row.params.min_workers)
        n = j->row.params.min_workers;
    if (j->row.params.max_workers && n > j->row.params.max_workers)
        n = j->row.params.max_workers;
    return n;
}

/* Who can take part: its word counts as long as nothing speaks against it. */
static void count_alive(struct sched *s)
{
    for (size_t i = 0; i < PROVIDERS; i++)
        s->providers[i].alive = 0;
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (worker_usable(w))
            s->providers[s->providers[w->provider].known ? w->provider : PROVIDER_NONE].alive++;
    }
}

/* Local ones first, then guaranteed ones, then those that may be taken away. */
static int rank(const struct sched *s, size_t provider)
{
    return provider == PROVIDER_LOCAL ? 0 : 1 + s->providers[provider].preemptible;
}

/* Those that joined by themselves count; the rest is shared out among providers in the order in which they are preferred. */
static void share_out(const struct sched *s, uint32_t wanted, uint32_t out[PROVIDERS])
{
    uint32_t left = wanted > s->providers[PROVIDER_NONE].alive ? wanted - s->providers[PROVIDER_NONE].alive : 0;
    for (int r = 0; r <= 2; r++)
        for (size_t i = 1; i < PROVIDERS; i++) {
            const struct provider_state *p = &s->providers[i];
            if (!p->known || rank(s, i) != r)
                continue;
            out[i] = p->limit < left ? p->limit : left;
            left -= out[i];
        }
}

/* One more message than there was room for: another time. */
static int let_go(struct sched *s, struct worker *w)
{
    if (core_room(s, 0, 1, 0, 0)) {
        core_later(s);
        return 0;
    }
    s->providers[w->provider].alive--;
    worker_let_go(s, w);
    return 1;
}

/* Idle ones of which there are more than are wanted. */
static void release_idle(struct sched *s)
{
    for (struct worker *w = s->idle_first, *next; w; w = next) {
        const struct provider_state *p = &s->providers[w->provider];
        next = w->next_idle;
        if (p->known && p->idle_ms && p->alive > p->wanted && s->now_ms - w->idle_since_ms >= p->idle_ms && !let_go(s, w))
            return;
    }
}

/* A limit that fell: the idle ones first, then those that came last. */
static void release_excess(struct sched *s)
{
    for (size_t i = 1; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        if (!p->known || p->alive <= p->limit) {
            p->over_ms = 0;
            continue;
        }
        if (!p->over_ms)
            p->over_ms = s->now_ms;
        if (s->now_ms - p->over_ms < OVER_LIMIT_MS)
            continue;
        for (int idle = 1; idle >= 0; idle--)
            for (size_t k = s->joined_count; k-- > 0 && p->alive > p->limit;) {
                struct worker *w = s->joined[k];
                if (w->provider == i && worker_usable(w) && (!idle || w->idle) && !let_go(s, w))
                    return;
            }
    }
}

enum status scale_provider(struct sched *s, const struct sched_event *ev, struct err *e)
{
    uint32_t id = ev->u.provider.id;
    if (id == PROVIDER_NONE || id >= PROVIDERS)
        return err_set(e, ST_USER, "there is no provider %u", id);
    struct provider_state *p = &s->providers[id];
    p->known = 1;
    p->limit = ev->u.provider.limit < MOST ? ev->u.provider.limit : MOST;
    p->preemptible = ev->u.provider.preemptible;
    p->idle_ms = ev->u.provider.idle_ms;
    s->scale_ms = 0;
    return ST_OK;
}

uint32_t scale_can(const struct sched *s, const struct job *j)
{
    uint64_t can = s->providers[PROVIDER_NONE].alive;
    uint32_t useful = scale_useful(s, j);
    for (size_t i = 1; i < PROVIDERS; i++)
        can += s->providers[i].known ? s->providers[i].limit : 0;
    return useful < can ? useful : (uint32_t)can;
}

void scale_update(struct sched *s)
{
    if (!s->scale_dirty || (s->now_ms < s->scale_ms && !s->running == !s->wanted))
        return;
    if (core_room(s, 0, PROVIDERS, 0, 0)) {
        core_later(s);
        return;
    }
    s->scale_dirty = 0;
    s->scale_ms = s->now_ms + PERIOD_MS;
    uint64_t sum = 0;
    for (const struct job *j = s->running; j; j = j->next_running)
        sum += scale_useful(s, j);
    s->wanted = sum > MOST ? MOST : (uint32_t)sum;
    count_alive(s);
    uint32_t want[PROVIDERS] = {0};
    share_out(s, s->wanted, want);
    for (size_t i = 1; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        if (!p->known || (p->told && p->wanted == want[i]))
            continue;
        p->told = 1;
        p->wanted = want[i];
        struct sched_action *a = core_message(s, SCHED_DO_WANT_WORKERS, 0, 0, 0);
        a->u.want.provider = (uint32_t)i;
        a->u.want.workers = want[i];
    }
    release_idle(s);
    release_excess(s);
}
