#include "scheduler/scale.h"

#include <stdlib.h>

#include "base/mem.h"
#include "scheduler/gang.h"
#include "scheduler/share.h"
#include "scheduler/worker.h"

#define PERIOD_MS 1000
#define MEMORY_MS 3600000.0      /* for losses */
#define PATIENCE_MS 120000       /* with a provider that does not give what it said */
#define SHRINK_MS 10000
#define SETTLE_MS 3000           /* after a restart: for workers to come back and show how fast they are */
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

static uint32_t is_heard(const struct sched *s, const struct worker *w)
{
    return s->now_ms - w->beat_ms <= 5 * s->config.beat_ms;
}

/* Can it run any of the jobs? One with too little memory, or other numerics, is none the fewer that are needed. */
static int can_help(const struct sched *s, const struct worker *w)
{
    for (const struct job *j = s->running; j; j = j->next_running)
        if (share_fits(s, w, j))
            return 1;
    return !s->running;
}

/* Who can take part: its word counts as long as nothing speaks against it. And how fast each job's workers are; what was measured last stays when
   there is none any more. */
static void look_around(struct sched *s)
{
    uint64_t passed = s->scaled_ms ? s->now_ms - s->scaled_ms : 0;
    s->scaled_ms = s->now_ms;
    for (size_t i = 0; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        double keep = passed < MEMORY_MS ? 1 - (double)passed / MEMORY_MS : 0;
        p->lived_ms = p->lived_ms * keep + (double)passed * p->alive;
        p->losses *= keep;
        p->alive = p->heard = p->fit = 0;
    }
    for (struct job *j = s->running; j; j = j->next_running) {
        j->rate_sum = 0;
        j->rate_count = 0;
    }
    for (size_t i = 0; i < s->joined_count; i++) {
        const struct worker *w = s->joined[i];
        if (!worker_usable(w))
            continue;
        struct provider_state *p = &s->providers[s->providers[w->provider].known ? w->provider : PROVIDER_NONE];
        p->alive++;
        p->heard += is_heard(s, w);
        p->fit += w->leases || w->gang || can_help(s, w);
        for (const struct lease *l = w->leases; l && w->bytes_per_s > 0; l = l->worker_next)
            if (l->job->row.id == w->rate_job) {
                l->job->rate_sum += w->bytes_per_s;
                l->job->rate_count += gang_count_of(w); /* the rate of each, so to say */
                break;
            }
    }
    for (struct job *j = s->running; j; j = j->next_running)
        if (j->rate_count)
            j->worker_rate = j->rate_sum / j->rate_count;
}

void scale_loss(struct sched *s, const struct worker *w)
{
    s->providers[w->provider].losses++;
    s->scale_dirty = 1;
}

/* What a provider says that it can give counts for so long as it gives what it is asked for. One that has not for PATIENCE_MS counts with what has
   come and a little more; the rest of its limit is asked for when nobody else can give it. */
static void look_into_providers(struct sched *s, struct scale_room *room)
{
    *room = (struct scale_room){.sure[PROVIDER_NONE] = s->providers[PROVIDER_NONE].fit};
    for (size_t i = 1; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        if (!p->known)
            continue;
        if (p->fit >= p->wanted)
            p->short_ms = 0;
        else if (!p->short_ms)
            p->short_ms = s->now_ms;
        if (MUTANT(24) && p->short_ms && s->now_ms - p->short_ms >= 5000)
            p->limit = p->alive;
        uint32_t sure = p->limit;
        if (p->short_ms && s->now_ms - p->short_ms >= PATIENCE_MS) {
            sure = p->fit + (p->fit < 8 ? 1 : p->fit / 8);
            sure = sure < p->limit ? sure : p->limit;
        }
        room->sure[i] = sure;
        room->orders[i] = p->limit - sure;
    }
}

/* The sum grows at once, and shrinks, each SHRINK_MS, to the largest of what it was in that time: those who would lose keep the difference. */
static void settle(struct sched *s, uint32_t want[PROVIDERS])
{
    uint32_t sum = 0, held;
    for (size_t i = 1; i < PROVIDERS; i++)
        sum += want[i];
    held = s->held_sum;
    if (!s->running || sum >= held) {
        s->held_sum = sum;
        s->shrink_ms = 0;
        return;
    }
    if (!s->shrink_ms) {
        s->shrink_ms = s->now_ms;
        s->shrink_to = 0;
    }
    if (sum > s->shrink_to)
        s->shrink_to = sum;
    if (s->now_ms - s->shrink_ms >= SHRINK_MS) {
        held = s->held_sum = s->shrink_to;
        s->shrink_ms = s->now_ms;
        s->shrink_to = sum;
    }
    uint32_t more = held - sum;
    for (size_t i = 1; i < PROVIDERS; i++) {
        const struct provider_state *p = &s->providers[i];
        uint32_t had = p->wanted < p->limit ? p->wanted : p->limit, keeps = had > want[i] ? had - want[i] : 0;
        keeps = keeps < more ? keeps : more;
        want[i] += keeps;
        more -= keeps;
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
    s->providers[w->provider].heard -= is_heard(s, w);
    s->providers[w->provider].fit -= w->leases || w->gang || can_help(s, w);
    worker_let_go(s, w);
    return 1;
}

/* Idle ones of which there are more than are wanted. */
static void release_idle(struct sched *s)
{
    for (struct worker *w = MUTANT(22) ? NULL : s->idle_first, *next; w; w = next) {
        const struct provider_state *p = &s->providers[w->provider];
        next = w->next_idle;
        if (p->known && p->idle_ms && p->heard > p->wanted && s->now_ms - w->idle_since_ms >= p->idle_ms && !let_go(s, w))
            return;
    }
}

/* A limit that fell: the idle ones first, then those that came last. */
static void release_excess(struct sched *s)
{
    for (size_t i = 1; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        uint32_t limit = MUTANT(23) && p->wanted < p->limit ? p->wanted : p->limit;
        if (!p->known || p->heard <= limit) {
            p->over_ms = 0;
            continue;
        }
        if (!p->over_ms)
            p->over_ms = s->now_ms;
        if (s->now_ms - p->over_ms < OVER_LIMIT_MS && !MUTANT(23))
            continue;
        for (int idle = 1; idle >= 0; idle--)
            for (size_t k = s->joined_count; k-- > 0 && p->heard > limit;) {
                struct worker *w = s->joined[k];
                if (w->provider == i && worker_usable(w) && is_heard(s, w) && (!idle || w->idle) && !let_go(s, w))
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
    if (MUTANT(25) && p->known && ev->u.provider.limit > p->limit)
        return ST_OK;
    p->known = 1;
    p->limit = ev->u.provider.limit < SCALE_MOST ? ev->u.provider.limit : SCALE_MOST;
    p->preemptible = ev->u.provider.preemptible;
    p->idle_ms = ev->u.provider.idle_ms;
    s->scale_ms = 0;
    return ST_OK;
}

/* Priority first; within one, deadlines in their order; then the older one. */
static int compare_jobs(const void *a, const void *b)
{
    const struct job *x = *(const struct job *const *)a, *y = *(const struct job *const *)b;
    if (x->row.params.priority != y->row.params.priority)
        return x->row.params.priority > y->row.params.priority ? -1 : 1;
    uint64_t dx = x->deadline_at_ms ? x->deadline_at_ms : UINT64_MAX, dy = y->deadline_at_ms ? y->deadline_at_ms : UINT64_MAX;
    if (dx != dy)
        return dx < dy ? -1 : 1;
    return x->row.id < y->row.id ? -1 : x->row.id > y->row.id;
}

void scale_update(struct sched *s)
{
    if (!s->scale_dirty || (MUTANT(27) && !s->running) || (s->now_ms < s->scale_ms && !s->running == !s->wanted))
        return;
    uint64_t settled_ms = s->recovered_ms + SETTLE_MS;
    if (s->adopt_until_ms && s->now_ms < settled_ms && !s->wanted) {
        s->scale_ms = settled_ms;
        return;
    }
    size_t running = 0;
    for (const struct job *j = s->running; j; j = j->next_running)
        running++;
    while (running > s->order_cap)
        if (mem_grow((void **)&s->order, &s->order_cap, s->order_cap, sizeof *s->order)) {
            core_later(s);
            return;
        }
    if (core_room(s, running, PROVIDERS, 0, 0)) {
        core_later(s);
        return;
    }
    s->scale_dirty = 0;
    s->scale_ms = s->now_ms + PERIOD_MS;
    look_around(s);
    uint32_t want[PROVIDERS] = {0};
    struct scale_room room;
    look_into_providers(s, &room);
    size_t n = 0;
    for (struct job *j = s->running; j; j = j->next_running)
        s->order[n++] = j;
    if (n > 1)
        qsort(s->order, n, sizeof *s->order, compare_jobs);
    for (size_t i = 0; i < n; i++) {
        scale_job(s, s->order[i], &room, want);
        if (s->order[i]->deadline_at_ms)
            scale_deadline(s, s->order[i]);
    }
    s->wanted = running ? 1 : 0;
    settle(s, want);
    for (size_t i = 1; i < PROVIDERS; i++) {
        struct provider_state *p = &s->providers[i];
        uint32_t to = want[i];
        if (!p->known || (p->told && p->wanted == to))
            continue;
        p->told = 1;
        p->wanted = to;
        if (!p->short_ms && p->fit < to)
            p->short_ms = s->now_ms;
        struct sched_action *a = core_message(s, SCHED_DO_WANT_WORKERS, 0, 0, 0);
        a->u.want.provider = (uint32_t)i;
        a->u.want.workers = to;
    }
    release_idle(s);
    release_excess(s);
}
