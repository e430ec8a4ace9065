#include "tests/sim/gang_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scheduler/sched.h"

#define MODEL 3
#define TURN_MS 50
#define RECORD 1000.0          /* bytes */
#define MEASURE_MS 1500
#define MOST_MS 36000000

struct held {
    uint64_t epoch, begin, end, committed, seq;
    double at;
};

struct node {
    uint64_t id, profile_at, ready_at, beat_ms, commit_ms, dies_at, comes_at;
    double speed;              /* of the mean */
    int alive;
    struct sched_action stage; /* gang 0: none */
    int loaded, going;
    struct held held[2];
    size_t held_count;
};

struct pool {
    const struct gang_pool_config *c;
    struct gang_pool_result *r;
    struct sched *s;
    struct sched_update u;
    struct err *e;
    struct node *nodes;
    uint64_t rng, now, wake_ms, next_id, done, steps;
    double spent_s;
    int over, failed;
};

static double rnd(struct pool *p)
{
    uint64_t x = p->rng += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ x >> 31) >> 11) / (double)(UINT64_C(1) << 53);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct node *by_id(struct pool *p, uint64_t id)
{
    for (uint32_t i = 0; i < p->c->workers; i++)
        if (p->nodes[i].id == id && p->nodes[i].alive)
            return &p->nodes[i];
    return NULL;
}

static struct held *lease_of(struct node *n, uint64_t epoch)
{
    for (size_t i = 0; i < n->held_count; i++)
        if (n->held[i].epoch == epoch)
            return &n->held[i];
    return NULL;
}

static void drop(struct node *n, struct held *h)
{
    memmove(h, h + 1, (size_t)(n->held + n->held_count - (h + 1)) * sizeof *h);
    n->held_count--;
}

static void step(struct pool *p, struct sched_event ev);

static void carry_out(struct pool *p, const struct sched_action *a)
{
    struct node *n = by_id(p, a->worker);
    struct held *h = n ? lease_of(n, a->epoch) : NULL;
    struct sched_event ev = {.job = 1, .worker = a->worker, .epoch = a->epoch};
    switch (a->kind) {
    case SCHED_DO_WAKE:
        p->wake_ms = a->u.wake_ms;
        break;
    case SCHED_DO_PUBLISH:
        p->over = 1;
        break;
    case SCHED_DO_SEND_PROFILE:
        if (n && !n->profile_at)
            n->profile_at = p->now + MEASURE_MS;
        break;
    case SCHED_DO_SEND_STAGE:
        if (!n)
            break;
        n->stage = *a;
        n->loaded = n->going = 0;
        n->ready_at = a->u.stage.count ? p->now + p->c->load_ms : 0;
        if (!a->u.stage.count)
            n->stage.u.stage.gang = 0;
        else if (a->worker == a->u.stage.head)
            p->r->cuts++;
        break;
    case SCHED_DO_SEND_STAGE_GO:
        if (n)
            n->going = n->stage.u.stage.gang == a->u.stage.gang && n->stage.u.stage.cut == a->u.stage.cut;
        break;
    case SCHED_DO_SEND_LEASE:
        if (n && n->held_count < 2)
            n->held[n->held_count++] = (struct held){a->epoch, a->u.lease.span.begin, a->u.lease.span.end, a->u.lease.span.begin, 0, (double)a->u.lease.span.begin};
        break;
    case SCHED_DO_SEND_REVOKE:
        if (h)
            drop(n, h);
        break;
    case SCHED_DO_SEND_CUT:
        if (!h)
            break;
        ev.kind = SCHED_CUT_ANSWERED;
        ev.u.cut.at = a->u.cut_at > (uint64_t)h->at + 5000 ? a->u.cut_at / 1000 * 1000 : h->end;
        if (ev.u.cut.at > h->end)
            ev.u.cut.at = h->end;
        h->end = ev.u.cut.at;
        step(p, ev);
        break;
    default:
        break;
    }
}

static void step(struct pool *p, struct sched_event ev)
{
    if (p->failed)
        return;
    ev.now_ms = p->now;
    double t = seconds();
    if (sched_step(p->s, &ev, &p->u, p->e) != ST_OK) {
        p->failed = 1;
        return;
    }
    t = seconds() - t;
    p->spent_s += t;
    p->steps++;
    if (t * 1e6 > p->r->worst_step_us)
        p->r->worst_step_us = t * 1e6;
    size_t count = p->u.count;
    struct sched_action *copy = malloc((count + 1) * sizeof *copy); /* what is carried out may step again */
    if (!copy)
        abort();
    if (count)
        memcpy(copy, p->u.actions, count * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        carry_out(p, &copy[i]);
    free(copy);
}

static void join(struct pool *p, struct node *n)
{
    double spread = p->c->spread > 1 ? log(p->c->spread) : 0;
    *n = (struct node){.id = ++p->next_id, .alive = 1, .beat_ms = p->now + (uint64_t)(rnd(p) * 1000)};
    n->speed = exp(spread * (2 * rnd(p) - 1));
    if (p->c->mean_life_s > 0)
        n->dies_at = p->now + 1 + (uint64_t)(-log(1 - rnd(p)) * p->c->mean_life_s * 1000);
    struct sched_event ev = {.kind = SCHED_WORKER_JOINED, .worker = n->id};
    ev.u.joined.host = 1 + (uint64_t)(n - p->nodes);
    ev.u.joined.lanes = 1;
    ev.u.joined.numerics = 7;
    ev.u.joined.reach = 1;
    step(p, ev);
}

/* Nominal: a micro-batch is 64 KB of input, and a worker of mean speed takes so long for all segments. */
static double batch_ms(const struct pool *p)
{
    return 64000 * 1000 / p->c->bytes_per_s;
}

static void measured(struct pool *p, struct node *n)
{
    struct sched_segment x[256];
    for (uint32_t i = 0; i < p->c->segments; i++)
        x[i] = (struct sched_segment){batch_ms(p) / p->c->segments / n->speed, 1000000, 1000};
    n->profile_at = 0;
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = n->id, .job = 1};
    ev.u.profiled.model_key = MODEL;
    ev.u.profiled.segments = x;
    ev.u.profiled.count = p->c->segments;
    step(p, ev);
}

/* Bytes a millisecond; 0: it stands still. */
static double pace(struct pool *p, const struct node *head)
{
    const struct sched_action *a = &head->stage;
    double slowest = 0;
    if (!a->u.stage.gang || !head->going)
        return 0;
    for (uint32_t i = 0; i < a->u.stage.count; i++) {
        const struct sched_member *m = &a->u.stage.members[i];
        const struct node *n = by_id(p, m->worker);
        if (!n || !n->loaded || n->stage.u.stage.gang != a->u.stage.gang || n->stage.u.stage.cut != a->u.stage.cut)
            return 0;
        slowest = fmax(slowest, batch_ms(p) / p->c->segments * (m->end - m->first) / n->speed);
    }
    return 64000 / slowest;
}

static void commit(struct pool *p, struct node *n, struct held *h)
{
    uint64_t to = h->at >= (double)h->end ? h->end : (uint64_t)(h->at / RECORD) * (uint64_t)RECORD;
    n->commit_ms = p->now;
    if (to <= h->committed)
        return;
    struct extent x = {.span = {h->committed, to}, .records = (to - h->committed) / (uint64_t)RECORD + 1, .rows = 1, .bytes = to - h->committed};
    struct sched_event ev = {.kind = SCHED_COMMIT, .worker = n->id, .job = 1, .epoch = h->epoch};
    ev.u.commit.seq = h->seq++;
    ev.u.commit.done = &x;
    ev.u.commit.done_count = 1;
    p->done += to - h->committed;
    h->committed = to;
    if (to == h->end)
        drop(n, h);
    step(p, ev);
}

static void turn(struct pool *p, struct node *n)
{
    if (!n->alive) {
        if (p->now >= n->comes_at)
            join(p, n);
        return;
    }
    if (n->dies_at && p->now >= n->dies_at) {
        struct sched_event ev = {.kind = SCHED_WORKER_ENDED, .worker = n->id};
        ev.u.ended.how = WORKER_PREEMPTED;
        n->alive = 0;
        n->comes_at = p->now + 10000;
        step(p, ev);
        return;
    }
    if (n->profile_at && p->now >= n->profile_at)
        measured(p, n);
    if (n->ready_at && p->now >= n->ready_at) {
        struct sched_event ev = {.kind = SCHED_STAGE_READY, .worker = n->id, .job = 1};
        ev.u.stage.gang = n->stage.u.stage.gang;
        ev.u.stage.cut = n->stage.u.stage.cut;
        ev.u.stage.load_ms = p->c->load_ms;
        n->ready_at = 0;
        n->loaded = 1;
        step(p, ev);
    }
    double left = n->held_count ? pace(p, n) * TURN_MS : 0;
    while (n->held_count && left > 0) {
        struct held *h = &n->held[0];
        double room = (double)h->end - h->at, go = left < room ? left : room;
        h->at += go;
        left -= go;
        if (h->at < (double)h->end && p->now - n->commit_ms < 2000)
            break;
        commit(p, n, h);
        if (left <= 0)
            break;
    }
    if (p->now - n->beat_ms >= 1000) {
        struct sched_progress x[2];
        for (size_t i = 0; i < n->held_count; i++)
            x[i] = (struct sched_progress){n->held[i].epoch, (uint64_t)n->held[i].at, ((uint64_t)n->held[i].at - n->held[i].begin) / 1000,
                                           (uint64_t)n->held[i].at - n->held[i].begin};
        struct sched_event ev = {.kind = SCHED_WORKER_BEAT, .worker = n->id};
        ev.u.beat.leases = x;
        ev.u.beat.count = n->held_count;
        n->beat_ms = p->now;
        step(p, ev);
    }
}

static int start(struct pool *p, uint64_t bytes)
{
    struct layout l;
    uint8_t plain = 0;
    if (sched_new(NULL, &p->s, p->e) != ST_OK)
        return -1;
    struct sched_event ev = {.kind = SCHED_START, .u.start.generation = 1};
    step(p, ev);
    step(p, (struct sched_event){.kind = SCHED_RECOVERED});
    if (layout_init(&l, 1, &bytes, &plain))
        return -1;
    struct job_row row = {.id = 1, .params = {.weight = 100, .model_key = MODEL, .lease_target_ms = 30000, .stall_timeout_ms = 60000, .max_errors = UINT64_MAX,
                                              .max_errors_ppm = UINT32_MAX, .max_attempts = 3, .stages = p->c->stages}};
    ev = (struct sched_event){.kind = SCHED_JOB_SUBMITTED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    step(p, ev);
    layout_release(&l);
    return 0;
}

int gang_pool_run(const struct gang_pool_config *c, struct gang_pool_result *r, struct err *e)
{
    struct pool p = {.c = c, .r = r, .e = e, .rng = c->seed * 77 + 5, .now = 1000000, .nodes = calloc(c->workers, sizeof *p.nodes)};
    *r = (struct gang_pool_result){.makespan_s = 0};
    uint64_t began = p.now, bytes = (uint64_t)(c->work_s * c->bytes_per_s * c->workers) / 1000 * 1000, third = 0, third_ms = 0, two = 0, two_ms = 0;
    if (!p.nodes || start(&p, bytes)) {
        free(p.nodes);
        return err_set(e, ST_NOMEM, "out of memory") == ST_OK;
    }
    for (uint32_t i = 0; i < c->workers; i++) {
        join(&p, &p.nodes[i]);
        r->ideal_bytes_per_s += p.nodes[i].speed * c->bytes_per_s;
    }
    while (!p.over && !p.failed && p.now - began < MOST_MS) {
        p.now += TURN_MS;
        if (p.wake_ms && p.now >= p.wake_ms) {
            p.wake_ms = 0;
            step(&p, (struct sched_event){.kind = SCHED_TICK});
        }
        for (uint32_t i = 0; i < c->workers && !p.over; i++)
            turn(&p, &p.nodes[i]);
        if (sched_gang_count(p.s) > r->gangs)
            r->gangs = (uint32_t)sched_gang_count(p.s);
        if (!third && p.done * 3 >= bytes) {
            third = p.done;
            third_ms = p.now;
        }
        if (!two && p.done * 3 >= bytes * 2) {
            two = p.done;
            two_ms = p.now;
        }
    }
    if (!p.failed && !p.over) {
        p.failed = 1;
        err_set(e, ST_USER, "the job did not come to its end");
    }
    if (!p.failed && p.done != bytes) {
        p.failed = 1;
        err_set(e, ST_USER, "%llu of %llu bytes are done", (unsigned long long)p.done, (unsigned long long)bytes);
    }
    sched_check(p.s);
    r->makespan_s = (double)(p.now - began) / 1000;
    r->bytes_per_s = (double)bytes / r->makespan_s;
    r->steady_bytes_per_s = two_ms > third_ms ? (double)(two - third) * 1000 / (double)(two_ms - third_ms) : 0;
    r->step_us = p.spent_s * 1e6 / (double)p.steps;
    sched_free(p.s);
    sched_update_release(&p.u);
    free(p.nodes);
    return p.failed ? -1 : 0;
}
