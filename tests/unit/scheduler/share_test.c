/* Which job a worker serves, and how many workers are wanted. CASES 29, 30. */
#include "tests/unit/scheduler/rig.h"

struct hand {
    struct sched_action held[4];
    size_t count;
    int got[2];
    uint64_t served_ms;
};

static void take(struct rig *r, struct hand *h, uint64_t worker)
{
    for (size_t i = 0; i < rig_count(r, SCHED_DO_SEND_LEASE); i++) {
        struct sched_action a = rig_nth(r, SCHED_DO_SEND_LEASE, i);
        if (a.worker == worker)
            h->held[h->count++] = a;
    }
}

/* One worker runs n leases, oldest first, at 1 MiB/s. Counts seconds by job. */
static void serve(struct rig *r, struct hand *h, uint64_t worker, int n)
{
    memset(h->got, 0, sizeof h->got);
    for (int i = 0; i < n; i++) {
        assert_true(h->count > 0 && h->count <= 2);
        struct sched_action l = h->held[0];
        memmove(h->held, h->held + 1, --h->count * sizeof *h->held);
        uint64_t ms = (l.u.lease.span.end - l.u.lease.span.begin) / 1048 + 1;
        h->got[l.job - 1] += (int)ms;
        r->now += ms;
        assert_int_equal(rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 1), ACK_DONE);
        take(r, h, worker);
    }
}

static void test_jobs_share_by_weight(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, UINT64_C(1) << 50);
    r->params.weight = 300;
    rig_submit(r, 2, UINT64_C(1) << 50);
    rig_join(r, 1, 1);
    struct hand h = {0};
    take(r, &h, 1);
    serve(r, &h, 1, 400);
    double share = (double)h.got[0] / (h.got[0] + h.got[1]);
    assert_true(share > 0.2 && share < 0.3);
}

static void test_priority_goes_first(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, UINT64_C(1) << 40);
    r->params.priority = 1;
    rig_submit(r, 2, UINT64_C(1) << 40);
    rig_join(r, 1, 1);
    struct hand h = {0};
    take(r, &h, 1);
    serve(r, &h, 1, 20);
    assert_int_equal(h.got[0], 0);
    assert_string_equal(rig_job(r, 1).waits_for, "the 1 worker serves a job of higher priority");
    assert_string_equal(rig_job(r, 2).waits_for, "");
}

static void test_a_late_job_does_not_take_everything(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, UINT64_C(1) << 50);
    rig_join(r, 1, 1);
    struct hand h = {0};
    take(r, &h, 1);
    serve(r, &h, 1, 100);
    rig_submit(r, 2, UINT64_C(1) << 50);
    serve(r, &h, 1, 100); /* nor does it wait until the first one is done */
    double share = (double)h.got[0] / (h.got[0] + h.got[1]);
    assert_true(share > 0.4 && share < 0.6);
}

static void model_ready(struct rig *r, uint64_t worker, uint64_t model, uint64_t load_ms)
{
    struct sched_event ev = {.kind = SCHED_MODEL_READY, .worker = worker};
    ev.u.model.model_key = model;
    ev.u.model.load_ms = load_ms;
    rig_step(r, ev);
}

static void test_a_loaded_model_is_kept_for_ten_loads(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 11;
    rig_submit(r, 1, UINT64_C(1) << 50);
    rig_join(r, 1, 1);
    struct hand h = {0};
    take(r, &h, 1);
    assert_string_equal(rig_job(r, 1).waits_for, "the model is being loaded");
    r->now += 20000;
    model_ready(r, 1, 11, 20000);
    take(r, &h, 1);
    uint64_t until = r->now + 200000;
    assert_string_equal(rig_job(r, 1).waits_for, "");
    r->params.model_key = 22;
    rig_submit(r, 2, UINT64_C(1) << 50);
    take(r, &h, 1);
    while (r->now < until) {
        assert_int_equal(h.held[0].job, 1);
        serve(r, &h, 1, 1);
    }
    int switched = 0;
    for (int i = 0; i < 4 && !switched; i++) { /* what it holds is committed, then the other job has its turn */
        serve(r, &h, 1, 1);
        switched = h.count == 1 && h.held[0].job == 2;
    }
    assert_true(switched);
}

static void test_a_higher_priority_breaks_the_habit(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 11;
    rig_submit(r, 1, UINT64_C(1) << 50);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    model_ready(r, 1, 11, 500000);
    r->params.model_key = 22;
    r->params.priority = 1;
    rig_submit(r, 2, UINT64_C(1) << 50);
    r->now += 1000;
    rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).job, 2);
}

static void test_numerics_are_pinned_at_the_first_lease(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 64 * KIB * KIB);
    rig_join(r, 1, 1);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.numerics, 7);
    r->numerics = 8;
    rig_join(r, 2, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_ended(r, 1, WORKER_DRAINED, NULL, 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_non_null(strstr(rig_job(r, 1).waits_for, "none of the 1 workers computes with the numerics"));
    r->numerics = 7;
    rig_join(r, 3, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 3);
}

static void test_any_numerics(void **state)
{
    struct rig *r = *state;
    struct layout l;
    uint64_t size = 64 * KIB * KIB;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct job_row row = {.id = 1, .params = r->params, .numerics = NUMERICS_ANY};
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    layout_release(&l);
    rig_join(r, 1, 1);
    r->numerics = 8;
    rig_join(r, 2, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2);
}

static void test_a_model_that_does_not_fit(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 5;
    r->params.model_bytes = UINT64_C(3) << 30;
    rig_submit(r, 1, 1000);
    r->memory = UINT64_C(2) << 30;
    rig_join(r, 1, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 3.0 GiB, the largest worker has 2.0 GiB: if no others come in a few seconds it is held "
                                                 "by parts, in turn");
    r->memory = UINT64_C(4) << 30;
    rig_join(r, 2, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2);
}

static void test_a_model_that_cannot_be_loaded(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 5;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = 1};
    ev.u.model.model_key = 5;
    ev.u.model.text = "model.safetensors: no such file";
    rig_step(r, ev);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2); /* one bad node holds nothing up */
    ev.worker = 2;
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_string_equal(rig_job(r, 1).row->reason, "its model cannot be loaded: model.safetensors: no such file");
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
}

static void test_a_machine_that_cannot_load_a_model(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 5;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = 1};
    ev.u.model.model_key = 5;
    ev.u.model.text = "worker a: no room";
    ev.u.model.machine = 1;
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING); /* it waits */
    assert_string_equal(rig_job(r, 1).waits_for, "worker a: no room; it waits for another worker, or until this is tried again within a minute");
    r->now += 30000;
    rig_beat(r, 1, NULL, 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    r->now += 30000;
    rig_beat(r, 1, NULL, 0);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 1); /* again */
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
    rig_join(r, 2, 2);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2); /* another */
    ev.worker = 2;
    ev.u.model.machine = 0;
    ev.u.model.text = "it is in pieces";
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD); /* that is the model's own fault */
    assert_string_equal(rig_job(r, 1).row->reason, "its model cannot be loaded: it is in pieces");
}

static void test_max_workers(void **state)
{
    struct rig *r = *state;
    r->params.max_workers = 2;
    rig_submit(r, 1, UINT64_C(1) << 30);
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 2);
    for (uint64_t i = 1; i <= 3; i++) {
        rig_join(r, i, 1);
        assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), i <= 2);
    }
    assert_int_equal(rig_job(r, 1).workers, 2);
    rig_ended(r, 1, WORKER_LOST, NULL, 0); /* its place is free */
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 3);
}

/* CASES 29: demand counts, not what exists. 30: nothing is wanted when nothing is left. */
static void test_as_many_workers_are_wanted_as_are_useful(void **state)
{
    struct rig *r = *state;
    r->now += 2000;
    rig_submit(r, 1, 64 * KIB * KIB);
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 1024); /* none exists yet */
    r->provider = PROVIDER_LOCAL;
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    uint32_t wanted = 1024;
    uint64_t records = 0, began = r->now;
    for (int i = 0; rig_job(r, 1).row->state == JOB_RUNNING && i < 1000; i++) {
        uint64_t bytes = l.u.lease.span.end - l.u.lease.span.begin;
        r->now += bytes / 256 + 1; /* 256 KiB/s: half a second is 128 KiB */
        rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, bytes / 1024);
        records += bytes / 1024;
        if (rig_count(r, SCHED_DO_WANT_WORKERS))
            wanted = rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers;
        if (r->now - began > 1000 && r->now - began < 10000)
            assert_int_equal(wanted, 1024); /* it shrinks slowly */
        if (r->now - began > 24000 && r->now - began < 60000)
            assert_in_range(wanted, 200, 510);
        if (rig_count(r, SCHED_DO_SEND_LEASE))
            l = rig_find(r, SCHED_DO_SEND_LEASE);
        else if (rig_job(r, 1).row->state == JOB_RUNNING) {
            struct rig_spans *x = rig_spans(r, 1);
            assert_int_equal(x->rows[0].state, SPAN_LEASED);
            l.epoch = x->rows[0].epoch;
            l.u.lease.span = x->rows[0].span;
        }
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_PUBLISHING);
    assert_int_equal(wanted, 0); /* at once, not at the next second */
    assert_int_equal(rig_job(r, 1).row->counts.records, records);
    rig_submit(r, 2, 10);
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 1);
    rig_control(r, 2, VERB_CANCEL);
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 0);
}

static void test_work_is_shared_at_the_end(void **state)
{
    struct rig *r = *state;
    for (uint64_t i = 1; i <= 4; i++)
        rig_join(r, i, 1);
    rig_submit(r, 1, 160 * KIB);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 4);
    for (size_t i = 0; i < 4; i++) {
        struct span s = rig_nth(r, SCHED_DO_SEND_LEASE, i).u.lease.span;
        assert_true(s.end - s.begin <= 20 * KIB);
    }
}

static void test_a_thousand_workers_are_fed_over_some_steps(void **state)
{
    struct rig *r = *state;
    for (uint64_t i = 1; i <= 1000; i++)
        rig_join(r, i, i % 10 + 1);
    rig_submit(r, 1, UINT64_C(1) << 34);
    size_t fed = rig_count(r, SCHED_DO_SEND_LEASE), steps = 1;
    for (; fed < 1000 && steps < 100; steps++) {
        assert_int_equal(rig_find(r, SCHED_DO_WAKE).u.wake_ms, r->now); /* go on at once */
        rig_tick(r, 0);
        fed += rig_count(r, SCHED_DO_SEND_LEASE);
    }
    assert_int_equal(fed, 1000);
    assert_true(steps < 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_jobs_share_by_weight),
        RIG_TEST(test_priority_goes_first),
        RIG_TEST(test_a_late_job_does_not_take_everything),
        RIG_TEST(test_a_loaded_model_is_kept_for_ten_loads),
        RIG_TEST(test_a_higher_priority_breaks_the_habit),
        RIG_TEST(test_numerics_are_pinned_at_the_first_lease),
        RIG_TEST(test_any_numerics),
        RIG_TEST(test_a_model_that_does_not_fit),
        RIG_TEST(test_a_model_that_cannot_be_loaded),
        RIG_TEST(test_a_machine_that_cannot_load_a_model),
        RIG_TEST(test_max_workers),
        RIG_TEST(test_as_many_workers_are_wanted_as_are_useful),
        RIG_TEST(test_work_is_shared_at_the_end),
        RIG_TEST(test_a_thousand_workers_are_fed_over_some_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
