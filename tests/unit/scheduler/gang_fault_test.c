/* What goes wrong in gangs, and what becomes of the head's leases meanwhile. */
#include "tests/unit/scheduler/gang_rig.h"

static void test_a_member_is_lost(void **state)
{
    struct rig *r = *state;
    struct sched_action a, old;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    old = form(r, 3);
    struct rig_spans before = *rig_spans(r, 1);
    uint64_t head = old.u.stage.head, gone = head == 1 ? 2 : 1;
    rig_ended(r, gone, WORKER_LOST, NULL, 0);
    /* the others take over its segments; the head keeps its leases and gets no more before all are ready */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 2);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_REVOKE), 0);
    assert_int_equal(stage_of(r, gone, &a), -1);
    assert_true(stage_of(r, head, &a) >= 0);
    assert_int_equal(a.u.stage.gang, old.u.stage.gang);
    assert_int_equal(a.u.stage.cut, 2);
    assert_int_equal(a.u.stage.count, 2);
    assert_int_equal(a.u.stage.members[0].end, 6);
    assert_int_equal(a.u.stage.members[1].end, 12);
    assert_int_equal(a.u.stage.head, head);
    struct rig_spans *after = rig_spans(r, 1);
    assert_int_equal(after->count, before.count);
    assert_memory_equal(after->rows, before.rows, before.count * sizeof *before.rows);
    uint64_t last = 6 - head - gone;
    ready(r, head, a.u.stage.gang, 1); /* of the old cut */
    ready(r, head, a.u.stage.gang, 2);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE_GO), 0);
    ready(r, last, a.u.stage.gang, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE_GO), 0);
    ready(r, last, a.u.stage.gang, 2);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_STAGE_GO).u.stage.cut, 2);
}

static void test_the_head_is_lost(void **state)
{
    struct rig *r = *state;
    struct sched_action a, old;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    old = form(r, 2);
    rig_join(r, 3, 3);
    profile_of(r, 3, 10);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 0);
    rig_ended(r, old.u.stage.head, WORKER_PREEMPTED, NULL, 0);
    assert_int_equal(rig_job(r, 1).spans_leased, 0);
    /* the one that is left and the free one are the next gang; nobody is told to leave what it is about to need */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 2);
    assert_true(stage_of(r, 3, &a) >= 0);
    assert_true(a.u.stage.gang > old.u.stage.gang);
    assert_int_equal(a.u.stage.cut, 1);
    assert_true(stage_of(r, 3 - old.u.stage.head, &a) >= 0);
    all_ready(r, 3);
    assert_true(rig_count(r, SCHED_DO_SEND_LEASE) > 0);
    rig_ended(r, view(r).head, WORKER_PREEMPTED, NULL, 0);
    /* nobody is left to make one with: the other is told so */
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_STAGE).u.stage.count, 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 2 workers that reach each other, 1 is there");
}

/* Nobody to take its place: those that are left go on; when there are enough again, they are as many as were asked for. */
static void test_the_head_is_lost_and_not_replaced(void **state)
{
    struct rig *r = *state;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    struct sched_action old = form(r, 3);
    rig_ended(r, old.u.stage.head, WORKER_LOST, NULL, 0);
    assert_int_equal(view(r).count, 2);
    assert_true(view(r).gang > old.u.stage.gang);
    all_ready(r, 3);
    rig_join(r, 4, 4);
    profile_of(r, 4, 10);
    for (int i = 0; i < 35 && view(r).count == 2; i++) {
        for (uint64_t w = 1; w <= 4; w++)
            beat(r, w);
        rig_tick(r, 1000);
    }
    assert_int_equal(view(r).count, 3);
}

static void test_a_member_is_drained(void **state)
{
    struct rig *r = *state;
    struct sched_action a, old;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    old = form(r, 3);
    uint64_t gone = old.u.stage.head == 3 ? 2 : 3;
    rig_step(r, (struct sched_event){.kind = SCHED_WORKER_DRAIN, .worker = gone});
    assert_int_equal(rig_find(r, SCHED_DO_SEND_DRAIN).worker, gone);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 3);
    assert_int_equal(stage_of(r, gone, &a), -3);
    assert_int_equal(a.u.stage.gang, old.u.stage.gang);
    assert_true(a.u.stage.cut >= 1 && a.u.stage.cut < 2); /* a late word does not reach a worker that came back in a later cut */
    assert_int_equal(view(r).cut, 2);
    assert_int_equal(view(r).count, 2);
}

static void test_faults(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 3);
    struct sched_gang_view v = view(r);
    uint64_t head = v.head, peer = head == 1 ? 2 : 1;
    struct sched_gang_view before = v;
    fault(r, head, v.gang, 1, peer);
    /* it speaks: messages may be lost. Nothing moves */
    v = view(r);
    assert_int_equal(v.cut, 2);
    assert_memory_equal(v.members, before.members, sizeof v.members);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 3);
    fault(r, head, v.gang, 1, peer); /* again, of the old cut */
    assert_int_equal(view(r).cut, 2);
    all_ready(r, 3);
    fault(r, head, v.gang, 2, peer);
    assert_int_equal(view(r).cut, 3);
    all_ready(r, 3);
    assert_true(rig_job(r, 1).spans_leased > 0);
    fault(r, head, v.gang, 3, peer);
    /* three in a row without a commit */
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_job(r, 1).spans_leased, 0);
    assert_true(rig_count(r, SCHED_DO_SEND_REVOKE) > 0);
    for (uint64_t w = 1; w <= 3; w++)
        assert_int_equal(stage_of(r, w, &a), -3);
    assert_non_null(strstr(rig_job(r, 1).waits_for, "its pipeline broke"));
    uint64_t from = r->now;
    while (!sched_gang_count(r->s)) {
        for (uint64_t w = 1; w <= 3; w++)
            beat(r, w);
        rig_tick(r, 500);
        assert_true(r->now - from < 9000);
    }
    assert_true(r->now - from >= 5000);
    all_ready(r, 3);
    v = view(r);
    /* a fault of its own: this worker cannot hold its part. The others can */
    uint64_t weak = v.head == 3 ? 2 : 3;
    fault(r, weak, v.gang, v.cut, 0);
    assert_int_equal(view(r).count, 2);
    assert_int_equal(stage_of(r, weak, &a), -3);
    all_ready(r, 3);
    v = view(r);
    /* the other one is silent: it is gone from the pipeline, and no other can be made */
    uint64_t other = v.members[0].worker == v.head ? v.members[1].worker : v.members[0].worker;
    r->now += 2600;
    beat(r, v.head);
    fault(r, v.head, v.gang, v.cut, other);
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
}

static void test_a_silent_member_leaves(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 3);
    struct sched_gang_view v = view(r);
    uint64_t silent = v.head == 3 ? 2 : 3;
    r->now += 2600;
    for (uint64_t w = 1; w <= 3; w++)
        if (w != silent)
            beat(r, w);
    fault(r, v.head, v.gang, 1, silent);
    assert_int_equal(view(r).count, 2);
    assert_int_equal(view(r).cut, 2);
    assert_true(stage_of(r, silent, &a) == -3); /* should it hear */
    all_ready(r, 3);
    /* it is heard again: of use to others at once, and to this pipeline when that is worth it */
    beat(r, silent);
    for (int i = 0; i < 35 && view(r).count == 2; i++) {
        rig_tick(r, 1000);
        for (uint64_t w = 1; w <= 3; w++)
            beat(r, w);
    }
    assert_int_equal(view(r).count, 3);
}

static void test_nobody_can_hold_a_part(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 2);
    struct sched_gang_view v = view(r);
    fault(r, 1, v.gang, 1, 0);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
    struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = 2};
    ev.u.model.model_key = MODEL;
    ev.u.model.text = "no such file";
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_string_equal(rig_job(r, 1).row->reason, "its model cannot be loaded: no such file");
}

/* A worker that cannot measure the model is not asked again for a while; one that cannot load it anywhere holds the job. */
static void test_a_model_that_cannot_be_measured(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    for (uint64_t w = 1; w <= 2; w++) {
        struct sched_event ev = {.kind = SCHED_MODEL_FAILED, .worker = w};
        ev.u.model.model_key = MODEL;
        ev.u.model.text = "no such file";
        rig_step(r, ev);
        assert_int_equal(rig_job(r, 1).row->state, w == 1 ? JOB_RUNNING : JOB_HELD);
    }
}

/* The daemon starts anew: the head comes back with its lease, is told to leave what it is in, and is the head of the next gang. */
static void test_restart(void **state)
{
    struct rig *r = *state;
    struct layout l;
    struct sched_action a;
    uint64_t size = 64 * 1024 * KIB;
    uint8_t plain = 0;
    setup(r, 2);
    sched_free(r->s);
    rig_begin(r, 2);
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct job_row row = {.id = 1, .params = r->params};
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    layout_release(&l);
    struct span_row span = {.span = {0, size / 2}, .state = SPAN_LEASED, .worker = 2, .epoch = EPOCH(1, 7), .next_seq = 3};
    ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1};
    ev.u.span = &span;
    rig_step(r, ev);
    span = (struct span_row){.span = {size / 2, size}};
    rig_step(r, ev);
    rig_step(r, (struct sched_event){.kind = SCHED_RECOVERED});
    rig_provider(r, PROVIDER_LOCAL, 4, 0, 0);
    struct sched_held held = {1, EPOCH(1, 7), 3};
    rig_join_with(r, 2, 2, &held, 1);
    assert_int_equal(stage_of(r, 2, &a), -3);
    assert_int_equal(a.u.stage.gang, 0); /* whichever it was in */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_join(r, 1, 1);
    assert_int_equal(stage_of(r, 1, &a), -3);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 2);
    profile_of(r, 1, 10);
    profile_of(r, 2, 10);
    assert_int_equal(view(r).head, 2);
    assert_true(view(r).gang > EPOCH(2, 0));
    assert_true(sched_leased(r->s, 1, 2, EPOCH(1, 7)));
    all_ready(r, 2);
    struct extent done = rig_done(0, 1000, 1);
    assert_int_equal(rig_commit_of(r, 2, 1, EPOCH(1, 7), 3, &done, 1, NULL, 0, NULL), ACK_DONE);
}

/* No others come back: the lease does not wait for ever. */
static void test_restart_alone(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 64 * 1024 * KIB);
    struct sched_action lease;
    form(r, 2);
    struct sched_gang_view v = view(r);
    struct rig_spans x = *rig_spans(r, 1);
    lease.epoch = x.rows[0].epoch;
    uint64_t other = 3 - v.head;
    struct sched_held held = {1, lease.epoch, 0};
    rig_join_with(r, v.head, v.head, &held, 1); /* it says hello again: what was on its way may be lost */
    assert_int_equal(view(r).cut, 2);
    assert_true(sched_leased(r->s, 1, v.head, lease.epoch));
    rig_ended(r, other, WORKER_LOST, NULL, 0);
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_job(r, 1).spans_leased, 0);
}

/* A member dies of a record: the head's lease is judged as if it had died itself. */
static void test_blame(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    for (uint64_t w = 1; w <= 2; w++)
        rig_join(r, w, w);
    for (uint64_t w = 1; w <= 2; w++)
        profile_of(r, w, 10);
    uint64_t next = 3, epoch = 0;
    struct span record = {0, 1000};
    for (int crash = 0; crash < 4; crash++) {
        struct sched_gang_view v = view(r);
        for (uint32_t k = 0; k < v.count; k++)
            ready(r, v.members[k].worker, v.gang, v.cut);
        /* a lease of the head holds the record: an ordinary one at first, then a probe */
        struct rig_spans x = *rig_spans(r, 1);
        epoch = 0;
        for (int i = 0; i < 10 && !epoch; i++) { /* suspects come when other work was done, to see that the model works at all */
            x = *rig_spans(r, 1);
            for (size_t k = 0; k < x.count; k++)
                if (x.rows[k].span.begin <= record.begin && x.rows[k].span.end > record.begin)
                    epoch = x.rows[k].epoch;
            for (size_t k = 0; k < x.count && !epoch; k++)
                if (x.rows[k].epoch) {
                    struct extent done = rig_done(x.rows[k].span.begin, x.rows[k].span.end, 50);
                    rig_commit_of(r, x.rows[k].worker, 1, x.rows[k].epoch, 0, &done, 1, NULL, 0, NULL);
                    break;
                }
        }
        assert_true(epoch != 0);
        assert_int_equal(sched_leased(r->s, 1, v.head, epoch), 1);
        uint64_t victim = v.members[0].worker == v.head ? v.members[1].worker : v.members[0].worker;
        struct sched_suspect suspects = {1, epoch, record};
        rig_ended(r, victim, WORKER_CRASHED, &suspects, 1);
        assert_false(sched_leased(r->s, 1, v.head, epoch));
        int revoked = 0;
        for (size_t i = 0; i < r->u.count; i++)
            revoked |= r->u.actions[i].kind == SCHED_DO_SEND_REVOKE && r->u.actions[i].epoch == epoch && r->u.actions[i].worker == v.head;
        assert_true(revoked);
        if (crash == 3) {
            struct sched_action a = rig_find(r, SCHED_DO_PUT_EXTENT);
            assert_int_equal(a.u.extent.span.begin, record.begin);
            assert_int_equal(a.u.extent.span.end, record.end);
            assert_string_equal(a.u.extent.reason, "crashed|crashed the worker each of the 3 times it was run alone");
            break;
        }
        x = *rig_spans(r, 1);
        assert_true(x.rows[0].probe && x.rows[0].span.end == record.end);
        assert_int_equal(x.rows[0].crashes, crash);
        rig_join(r, next, next);
        profile_of(r, next, 10);
        next++;
    }
    assert_int_equal(rig_job(r, 1).row->counts.quarantined, 1);
}

/* It beats, and its part is never ready: its lane does not come out of a record. It is killed, and what it names then is looked up in the head's lease. */
static void test_a_member_that_hangs(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 2);
    struct sched_gang_view v = view(r);
    uint64_t other = 3 - v.head;
    struct rig_spans x = *rig_spans(r, 1);
    fault(r, v.head, v.gang, 1, other);
    ready(r, v.head, v.gang, 2);
    uint64_t from = r->now;
    struct sched_progress p = {x.rows[0].epoch, 0, 0, 0};
    while (!rig_count(r, SCHED_DO_KILL_WORKER)) {
        beat(r, other);
        rig_beat(r, v.head, &p, 1);
        rig_tick(r, 1000);
        assert_true(r->now - from < 70000);
    }
    assert_true(r->now - from >= 60000); /* nothing moved: a stall timeout, not four */
    assert_int_equal(rig_find(r, SCHED_DO_KILL_WORKER).worker, other);
    assert_true(sched_leased(r->s, 1, v.head, x.rows[0].epoch));
    struct sched_suspect suspects = {1, x.rows[0].epoch, {0, 1000}};
    rig_ended(r, other, WORKER_HUNG, &suspects, 1);
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_spans(r, 1)->rows[0].probe, 1);
    assert_int_equal(rig_spans(r, 1)->rows[0].span.end, 1000);
}

/* Messages that got lost are sent again. */
static void test_asked_again(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    profile_of(r, 1, 10);
    int asked = 0;
    for (int i = 0; i < 40 && !asked; i++) {
        beat(r, 1);
        beat(r, 2);
        rig_tick(r, 1000);
        asked = rig_count(r, SCHED_DO_SEND_PROFILE) == 1 && rig_find(r, SCHED_DO_SEND_PROFILE).worker == 2;
    }
    assert_true(asked);
    profile_of(r, 2, 10);
    ready(r, 1, view(r).gang, 1);
    asked = 0;
    for (int i = 0; i < 15 && !asked; i++) {
        beat(r, 1);
        beat(r, 2);
        rig_tick(r, 1000);
        asked = rig_count(r, SCHED_DO_SEND_STAGE) == 1 && stage_of(r, 2, &a) >= 0;
    }
    assert_true(asked);
    /* one that speaks of a gang that is not is told to leave it */
    ready(r, 2, 12345, 3);
    assert_int_equal(stage_of(r, 2, &a), -3);
    assert_int_equal(a.u.stage.gang, 12345);
    assert_int_equal(a.u.stage.cut, 3);
    assert_int_equal(view(r).running, 0);
}

static void test_profiles_that_make_no_sense(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_join(r, 1, 1);
    struct sched_segment x = {-1, 5, 5};
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = 1};
    ev.u.profiled.model_key = MODEL;
    ev.u.profiled.segments = &x;
    ev.u.profiled.count = 1;
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "worker 1: segment 0 has a cost that is none");
    ev.u.profiled.count = 0;
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "worker 1: a profile of 0 segments");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_member_is_lost),
        RIG_TEST(test_the_head_is_lost),
        RIG_TEST(test_the_head_is_lost_and_not_replaced),
        RIG_TEST(test_a_member_is_drained),
        RIG_TEST(test_faults),
        RIG_TEST(test_a_silent_member_leaves),
        RIG_TEST(test_nobody_can_hold_a_part),
        RIG_TEST(test_a_model_that_cannot_be_measured),
        RIG_TEST(test_restart),
        RIG_TEST(test_restart_alone),
        RIG_TEST(test_blame),
        RIG_TEST(test_a_member_that_hangs),
        RIG_TEST(test_asked_again),
        RIG_TEST(test_profiles_that_make_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
