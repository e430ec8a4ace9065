/* Short words for the workers of one pipeline. */
#ifndef EBB_TESTS_SCHEDULER_GANG_RIG_H
#define EBB_TESTS_SCHEDULER_GANG_RIG_H

#include "tests/unit/scheduler/rig.h"

#define GIB (UINT64_C(1) << 30)
#define MODEL 5

static inline void setup(struct rig *r, uint32_t stages)
{
    r->reach = 1;
    r->memory = 4 * GIB;
    r->params.model_key = MODEL;
    r->params.model_bytes = 6 * GIB;
    r->params.stages = stages;
}

/* Twelve segments of `ms` each, half a GiB each; 1000 bytes cross a cut. The event points into `x`, which the caller keeps. */
static inline struct sched_event profile_event(uint64_t worker, double ms, struct sched_segment x[12], const struct sched_link *links, size_t count)
{
    for (int i = 0; i < 12; i++)
        x[i] = (struct sched_segment){ms, GIB / 2, 1000};
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = worker};
    ev.u.profiled.model_key = MODEL;
    ev.u.profiled.segments = x;
    ev.u.profiled.count = 12;
    ev.u.profiled.fixed_bytes = GIB / 4;
    ev.u.profiled.links = links;
    ev.u.profiled.link_count = count;
    return ev;
}

static inline void profile_of(struct rig *r, uint64_t worker, double ms)
{
    struct sched_segment x[12];
    rig_step(r, profile_event(worker, ms, x, NULL, 0));
}

static inline void ready(struct rig *r, uint64_t worker, uint64_t gang, uint32_t cut)
{
    struct sched_event ev = {.kind = SCHED_STAGE_READY, .worker = worker};
    ev.u.stage.gang = gang;
    ev.u.stage.cut = cut;
    ev.u.stage.load_ms = 100;
    rig_step(r, ev);
}

static inline void fault(struct rig *r, uint64_t worker, uint64_t gang, uint32_t cut, uint64_t peer)
{
    struct sched_event ev = {.kind = SCHED_STAGE_FAULT, .worker = worker};
    ev.u.stage.gang = gang;
    ev.u.stage.cut = cut;
    ev.u.stage.peer = peer;
    ev.u.stage.text = "it broke";
    rig_step(r, ev);
}

/* The part that worker is told to hold by the last update; -1: none. */
static inline int stage_of(struct rig *r, uint64_t worker, struct sched_action *out)
{
    *out = (struct sched_action){.kind = SCHED_DO_SEND_STAGE};
    for (size_t i = 0; i < r->u.count; i++)
        if (r->u.actions[i].kind == SCHED_DO_SEND_STAGE && r->u.actions[i].worker == worker) {
            *out = r->u.actions[i];
            for (uint32_t k = 0; k < out->u.stage.count; k++)
                if (out->u.stage.members[k].worker == worker)
                    return (int)k;
            return out->u.stage.count ? -2 : -3; /* -3: it is told to leave */
        }
    return -1;
}

/* Workers 1..n join, are asked for their profiles, and become a gang, which is told to go. Returns the last SEND_STAGE. */
static inline struct sched_action form(struct rig *r, uint64_t n)
{
    struct sched_action a, go;
    for (uint64_t w = 1; w <= n; w++)
        rig_join(r, w, w);
    for (uint64_t w = 1; w <= n; w++)
        profile_of(r, w, 10);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    for (uint64_t w = 1; w <= n; w++)
        assert_true(stage_of(r, w, &a) >= 0);
    for (uint64_t w = 1; w <= n; w++) {
        ready(r, w, a.u.stage.gang, a.u.stage.cut);
        assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE_GO), w == n);
        assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE) > 0, w == n);
    }
    go = rig_find(r, SCHED_DO_SEND_STAGE_GO);
    assert_int_equal(go.worker, a.u.stage.head);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, go.worker);
    return a;
}

static inline void beat(struct rig *r, uint64_t worker)
{
    rig_beat(r, worker, NULL, 0);
}

static inline struct sched_gang_view view(struct rig *r)
{
    struct sched_gang_view v;
    assert_int_equal(sched_gang_count(r->s), 1);
    sched_gang_view(r->s, 0, &v);
    return v;
}

/* Workers 1..n say that their part of this cut is loaded. */
static inline void all_ready(struct rig *r, uint64_t n)
{
    struct sched_gang_view v = view(r);
    for (uint64_t w = 1; w <= n; w++)
        for (uint32_t k = 0; k < v.count; k++)
            if (v.members[k].worker == w)
                ready(r, w, v.gang, v.cut);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_STAGE_GO).worker, v.head);
    assert_true(view(r).running);
}

#endif
