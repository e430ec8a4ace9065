/* Gangs: how they are formed, cut anew and dissolved, and what becomes of the head's leases meanwhile. */
#include "tests/unit/scheduler/rig.h"

#define GIB (UINT64_C(1) << 30)
#define MODEL 5

static void setup(struct rig *r, uint32_t stages)
{
    r->reach = 1;
    r->memory = 4 * GIB;
    r->params.model_key = MODEL;
    r->params.model_bytes = 6 * GIB;
    r->params.stages = stages;
}

/* Twelve segments of `ms` each, half a GiB each. */
static void profile_of(struct rig *r, uint64_t worker, double ms)
{
    struct sched_segment x[12];
    for (int i = 0; i < 12; i++)
        x[i] = (struct sched_segment){ms, GIB / 2, 1000};
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = worker};
    ev.u.profiled.model_key = MODEL;
    ev.u.profiled.segments = x;
    ev.u.profiled.count = 12;
    ev.u.profiled.fixed_bytes = GIB / 4;
    rig_step(r, ev);
}

static void ready(struct rig *r, uint64_t worker, uint64_t gang, uint32_t cut)
{
    struct sched_event ev = {.kind = SCHED_STAGE_READY, .worker = worker};
    ev.u.stage.gang = gang;
    ev.u.stage.cut = cut;
    ev.u.stage.load_ms = 100;
    rig_step(r, ev);
}

static void fault(struct rig *r, uint64_t worker, uint64_t gang, uint32_t cut, uint64_t peer)
{
    struct sched_event ev = {.kind = SCHED_STAGE_FAULT, .worker = worker};
    ev.u.stage.gang = gang;
    ev.u.stage.cut = cut;
    ev.u.stage.peer = peer;
    ev.u.stage.text = "it broke";
    rig_step(r, ev);
}

/* The part that worker is told to hold by the last update; -1: none. */
static int stage_of(struct rig *r, uint64_t worker, struct sched_action *out)
{
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
static struct sched_action form(struct rig *r, uint64_t n)
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

static void beat(struct rig *r, uint64_t worker)
{
    rig_beat(r, worker, NULL, 0);
}

static void test_a_gang_is_formed(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 3 workers that reach each other, 1 is there");
    rig_join(r, 2, 2);
    rig_join(r, 3, 3);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 3);
    assert_string_equal(rig_job(r, 1).waits_for, "its model is being measured on 3 workers");
    profile_of(r, 1, 10);
    profile_of(r, 2, 20);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 0);
    profile_of(r, 3, 10);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 3);
    for (uint64_t w = 1; w <= 3; w++) {
        int k = stage_of(r, w, &a);
        assert_true(k >= 0);
        assert_int_equal(a.u.stage.count, 3);
        assert_int_equal(a.u.stage.cut, 1);
        assert_int_equal(a.job, 1);
        /* 5, 5 and 2 of twelve: 50 ms each but for the slow one's 40 */
        assert_int_equal(a.u.stage.members[k].end - a.u.stage.members[k].first, w == 2 ? 2 : 5);
    }
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    ready(r, 2, a.u.stage.gang, 1);
    ready(r, 2, a.u.stage.gang, 1); /* said twice */
    assert_string_equal(rig_job(r, 1).waits_for, "its pipeline is being set up: 1 of 3 stages is loaded");
    ready(r, 1, a.u.stage.gang, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE_GO), 0);
    struct sched_gang_view v;
    assert_int_equal(sched_gang_count(r->s), 1);
    sched_gang_view(r->s, 0, &v);
    assert_int_equal(v.running, 0);
    ready(r, 3, a.u.stage.gang, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_STAGE_GO).worker, a.u.stage.head);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, a.u.stage.head);
    assert_string_equal(rig_job(r, 1).waits_for, "");
    assert_int_equal(rig_job(r, 1).workers, 3);
    sched_gang_view(r->s, 0, &v);
    assert_int_equal(v.running, 1);
    assert_int_equal(v.gang, a.u.stage.gang);
    assert_int_equal(v.segments, 12);
    assert_int_equal((int)v.bottleneck_ms, 50);
    struct sched_worker_view w;
    sched_worker_view(r->s, 1, &w);
    assert_int_equal(w.gang, a.u.stage.gang);
    assert_int_equal(w.stages, 3);
    assert_int_equal(w.job, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_gang_is_formed),
    };
    (void)form;
    (void)fault;
    (void)beat;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
