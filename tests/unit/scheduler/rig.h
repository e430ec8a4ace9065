/* A core with its clock and the last update, and short words for events. */
#ifndef EBB_TESTS_SCHEDULER_RIG_H
#define EBB_TESTS_SCHEDULER_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/sched.h"

#define KIB UINT64_C(1024)

struct rig {
    struct sched *s;
    struct sched_update u;
    struct err e;
    uint64_t now;
    uint32_t generation;
    struct job_params params; /* of the next job */
    uint32_t numerics, provider; /* of the next worker */
    uint64_t model, memory, reach;
};

static inline enum status rig_try(struct rig *r, struct sched_event *ev)
{
    ev->now_ms = r->now;
    enum status st = sched_step(r->s, ev, &r->u, &r->e);
    sched_check(r->s);
    return st;
}

static inline void rig_step(struct rig *r, struct sched_event ev)
{
    enum status st = rig_try(r, &ev);
    if (st != ST_OK)
        fail_msg("step %d: %s", (int)ev.kind, r->e.text);
}

static inline void rig_begin(struct rig *r, uint32_t generation)
{
    struct err e;
    assert_int_equal(sched_new(NULL, &r->s, &e), ST_OK);
    r->generation = generation;
    rig_step(r, (struct sched_event){.kind = SCHED_START, .u.start.generation = generation});
}

static inline void rig_provider(struct rig *r, uint32_t id, uint32_t limit, int preemptible, uint64_t idle_ms)
{
    struct sched_event ev = {.kind = SCHED_PROVIDER};
    ev.u.provider.id = id;
    ev.u.provider.limit = limit;
    ev.u.provider.preemptible = preemptible;
    ev.u.provider.idle_ms = idle_ms;
    rig_step(r, ev);
}

static inline int rig_setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    r->now = 1000000;
    r->numerics = 7;
    r->params = (struct job_params){.weight = 100, .lease_target_ms = 30000, .stall_timeout_ms = 60000, .max_errors = UINT64_MAX,
                                    .max_errors_ppm = UINT32_MAX, .max_attempts = 3};
    rig_begin(r, 1);
    rig_step(r, (struct sched_event){.kind = SCHED_RECOVERED});
    rig_provider(r, PROVIDER_LOCAL, 1000000, 0, 0);
    *state = r;
    return 0;
}

static inline int rig_teardown(void **state)
{
    struct rig *r = *state;
    sched_free(r->s);
    sched_update_release(&r->u);
    free(r);
    return 0;
}

static inline void rig_submit_as(struct rig *r, uint64_t job, size_t sources, const uint64_t *sizes, const uint8_t *kinds,
                                 enum job_state state)
{
    struct layout l;
    assert_int_equal(layout_init(&l, sources, sizes, kinds), 0);
    struct job_row row = {.id = job, .params = r->params, .state = state, .submitted_ms = 5};
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = job};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    layout_release(&l);
}

static inline void rig_submit(struct rig *r, uint64_t job, uint64_t size)
{
    uint8_t plain = 0;
    rig_submit_as(r, job, 1, &size, &plain, JOB_RUNNING);
}

static inline void rig_join_with(struct rig *r, uint64_t worker, uint64_t host, const struct sched_held *held, size_t count)
{
    struct sched_event ev = {.kind = SCHED_WORKER_JOINED, .worker = worker};
    ev.u.joined.host = host;
    ev.u.joined.lanes = 1;
    ev.u.joined.provider = r->provider;
    ev.u.joined.numerics = r->numerics;
    ev.u.joined.model_key = r->model;
    ev.u.joined.memory_bytes = r->memory;
    ev.u.joined.reach = r->reach;
    ev.u.joined.held = held;
    ev.u.joined.held_count = count;
    rig_step(r, ev);
}

static inline void rig_join(struct rig *r, uint64_t worker, uint64_t host)
{
    rig_join_with(r, worker, host, NULL, 0);
}

static inline size_t rig_count(const struct rig *r, enum sched_action_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->u.count; i++)
        n += r->u.actions[i].kind == kind;
    return n;
}

/* The nth action of a kind in the last update, which must be there. */
static inline struct sched_action rig_nth(const struct rig *r, enum sched_action_kind kind, size_t nth)
{
    for (size_t i = 0; i < r->u.count; i++)
        if (r->u.actions[i].kind == kind && nth-- == 0)
            return r->u.actions[i];
    fail_msg("no action of kind %d", (int)kind);
    return (struct sched_action){0};
}

static inline struct sched_action rig_find(const struct rig *r, enum sched_action_kind kind)
{
    return rig_nth(r, kind, 0);
}

static inline struct sched_action rig_lease_of(const struct rig *r, uint64_t worker)
{
    for (size_t i = 0; i < r->u.count; i++)
        if (r->u.actions[i].kind == SCHED_DO_SEND_LEASE && r->u.actions[i].worker == worker)
            return r->u.actions[i];
    fail_msg("worker %llu got no lease", (unsigned long long)worker);
    return (struct sched_action){0};
}

static inline struct extent rig_done(uint64_t begin, uint64_t end, uint64_t records)
{
    return (struct extent){.span = {begin, end}, .records = records, .rows = records, .bytes = end - begin};
}

static inline enum ack_verdict rig_commit_of(struct rig *r, uint64_t worker, uint64_t job, uint64_t epoch, uint64_t seq,
                                             const struct extent *done, size_t done_count, const struct sched_returned *back,
                                             size_t back_count, const char *fault)
{
    struct sched_event ev = {.kind = SCHED_COMMIT, .worker = worker, .job = job, .epoch = epoch};
    ev.u.commit.seq = seq;
    ev.u.commit.done = done;
    ev.u.commit.done_count = done_count;
    ev.u.commit.returned = back;
    ev.u.commit.returned_count = back_count;
    ev.u.commit.part_fault = fault;
    rig_step(r, ev);
    struct sched_action a = rig_find(r, SCHED_DO_SEND_ACK);
    assert_int_equal(a.worker, worker);
    assert_int_equal(a.epoch, epoch);
    assert_int_equal(a.u.ack.seq, seq);
    return a.u.ack.verdict;
}

/* One done span of a lease. */
static inline enum ack_verdict rig_commit(struct rig *r, const struct sched_action *lease, uint64_t seq, uint64_t begin, uint64_t end,
                                          uint64_t records)
{
    struct extent x = rig_done(begin, end, records);
    return rig_commit_of(r, lease->worker, lease->job, lease->epoch, seq, &x, 1, NULL, 0, NULL);
}

static inline void rig_beat(struct rig *r, uint64_t worker, const struct sched_progress *p, size_t count)
{
    struct sched_event ev = {.kind = SCHED_WORKER_BEAT, .worker = worker};
    ev.u.beat.leases = p;
    ev.u.beat.count = count;
    rig_step(r, ev);
}

static inline void rig_beat_lease(struct rig *r, const struct sched_action *lease, uint64_t read_to, uint64_t records, uint64_t bytes)
{
    struct sched_progress p = {lease->epoch, read_to, records, bytes};
    rig_beat(r, lease->worker, &p, 1);
}

static inline void rig_tick(struct rig *r, uint64_t ms)
{
    r->now += ms;
    rig_step(r, (struct sched_event){.kind = SCHED_TICK});
}

/* Time passes as in a healthy daemon: ticks come when they were asked for. Stops after the first step that does `kind`. */
static inline int rig_wait(struct rig *r, uint64_t ms, enum sched_action_kind kind)
{
    for (uint64_t end = r->now + ms; r->now < end;) {
        rig_tick(r, end - r->now < 1000 ? end - r->now : 1000);
        if (rig_count(r, kind))
            return 1;
    }
    return 0;
}

static inline void rig_ended(struct rig *r, uint64_t worker, enum worker_end how, const struct sched_suspect *suspects, size_t count)
{
    struct sched_event ev = {.kind = SCHED_WORKER_ENDED, .worker = worker};
    ev.u.ended.how = how;
    ev.u.ended.suspects = suspects;
    ev.u.ended.count = count;
    rig_step(r, ev);
}

static inline struct sched_event rig_verb(uint64_t job, enum job_verb verb)
{
    struct sched_event ev = {.kind = SCHED_JOB_CONTROL, .job = job};
    ev.u.control.verb = verb;
    ev.u.control.max_errors = UINT64_MAX - 1;
    ev.u.control.max_errors_ppm = UINT32_MAX - 1;
    ev.u.control.wall_ms = 77;
    return ev;
}

static inline void rig_control(struct rig *r, uint64_t job, enum job_verb verb)
{
    rig_step(r, rig_verb(job, verb));
}

static inline struct sched_job_view rig_job(const struct rig *r, uint64_t job)
{
    struct sched_job_view v;
    assert_true(sched_job_view(r->s, job, &v));
    return v;
}

static inline void rig_published(struct rig *r, uint64_t job, const char *failure)
{
    struct sched_event ev = {.kind = SCHED_JOB_PUBLISHED, .job = job};
    ev.u.published.failure = failure;
    ev.u.published.wall_ms = 99;
    rig_step(r, ev);
}

struct rig_spans {
    struct span_row rows[4096];
    size_t count;
};

static inline void rig_spans_visit(void *arg, const struct span_row *row)
{
    struct rig_spans *x = arg;
    assert_true(x->count < 4096);
    x->rows[x->count++] = *row;
}

static inline struct rig_spans *rig_spans(const struct rig *r, uint64_t job)
{
    static struct rig_spans x;
    x.count = 0;
    sched_spans(r->s, job, rig_spans_visit, &x);
    return &x;
}

#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

#endif
