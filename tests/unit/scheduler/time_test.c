/* Silence, hangs, restarts, stalls of the daemon. */
#include "tests/unit/scheduler/rig.h"

/* Takes what is stored through a restart. */
static void restart(struct rig *r, uint64_t job, uint64_t size)
{
    struct rig_spans spans = *rig_spans(r, job);
    struct job_row row = *rig_job(r, job).row;
    sched_free(r->s);
    rig_begin(r, r->generation + 1);
    struct layout l;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = job};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    layout_release(&l);
    for (size_t i = 0; i < spans.count; i++)
        rig_step(r, (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = job, .u.span = &spans.rows[i]});
    rig_step(r, (struct sched_event){.kind = SCHED_RECOVERED});
}

static void test_a_worker_that_comes_back_keeps_its_lease(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(rig_commit(r, &l, 0, 0, 300, 3), ACK_DONE);
    restart(r, 1, 1000);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_find(r, SCHED_DO_WAKE).u.wake_ms, r->now + 2000); /* there is something to do */
    assert_string_equal(rig_job(r, 1).waits_for, "its workers have not come back yet after the restart");
    struct sched_held held = {1, l.epoch, 1};
    r->now += 3000;
    rig_join_with(r, 1, 1, &held, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_REVOKE) + rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_commit(r, &l, 0, 0, 300, 3), ACK_DONE); /* the answer was lost: the same one again */
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    assert_int_equal(rig_commit(r, &l, 1, 300, 1000, 7), ACK_DONE);
    assert_int_equal(rig_job(r, 1).row->counts.redone, 0);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
}

static void test_one_that_does_not_come_back_loses_it(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    restart(r, 1, 1000);
    r->now += 100;
    rig_join(r, 2, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    uint64_t from = r->now;
    while (!rig_count(r, SCHED_DO_SEND_LEASE) && r->now < from + 20000) {
        rig_beat(r, 2, NULL, 0);
        rig_tick(r, 500);
    }
    assert_true(r->now - from > 9000 && r->now - from < 11000);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2);
    assert_int_equal(EPOCH_GENERATION(rig_find(r, SCHED_DO_SEND_LEASE).epoch), 2);
    assert_int_equal(rig_commit(r, &l, 0, 0, 1000, 10), ACK_STALE);
    /* and when it comes, it is told to let go */
    struct sched_held held = {1, l.epoch, 0};
    rig_join_with(r, 1, 1, &held, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
}

static void test_a_lease_that_the_worker_does_not_list_goes_back(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    restart(r, 1, 1000);
    rig_join(r, 1, 1); /* the same id, a new process */
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).u.lease.span.begin, 0);
}

static void test_a_worker_that_knows_of_lost_commits_is_not_believed(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    restart(r, 1, 1000);
    struct sched_held held = {1, l.epoch, 3};
    rig_join_with(r, 1, 1, &held, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
}

static void test_rows_that_cannot_be_are_refused(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct span_row row = rig_spans(r, 1)->rows[0];
    struct job_row job = *rig_job(r, 1).row;
    sched_free(r->s);
    rig_begin(r, 1); /* the same generation again */
    struct layout l;
    uint8_t plain = 0;
    uint64_t size = 1000;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = 1};
    ev.u.job.row = &job;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    assert_int_equal(rig_try(r, &ev), ST_CORRUPT);
    layout_release(&l);
    ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1, .u.span = &row};
    assert_int_equal(rig_try(r, &ev), ST_CORRUPT);
    assert_non_null(strstr(r->e.text, "cannot be in generation 1"));
    row.state = SPAN_READY;
    row.span.end = 1001;
    assert_int_equal(rig_try(r, &ev), ST_CORRUPT);
    row.span.end = 600;
    rig_step(r, ev);
    row.span.begin = 599;
    row.span.end = 1000;
    assert_int_equal(rig_try(r, &ev), ST_CORRUPT); /* two at one place */
    ev.job = 2;
    assert_int_equal(rig_try(r, &ev), ST_CORRUPT);
}

static void test_publishing_goes_on_after_a_restart(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_commit(r, &l, 0, 0, 1000, 10);
    restart(r, 1, 1000);
    assert_int_equal(rig_find(r, SCHED_DO_PUBLISH).job, 1);
}

static void test_silence_is_loss_but_not_soon_after_a_start(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    uint64_t from = r->now;
    assert_true(rig_wait(r, 30000, SCHED_DO_PUT_SPAN));
    assert_true(r->now - from >= 15000 && r->now - from <= 18000);
    struct sched_worker_view w;
    sched_worker_view(r->s, 0, &w);
    assert_true(w.lost_since_beat && w.leases == 0);
    assert_int_equal(rig_spans(r, 1)->rows[0].losses, 1);
    restart(r, 1, 1000);
    rig_join(r, 1, 1);
    r->now += 14000;
    rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    assert_int_equal(rig_spans(r, 1)->rows[0].state, SPAN_LEASED);
}

static void test_a_daemon_that_stood_still_expires_nobody(void **state)
{
    struct rig *r = *state;
    rig_wait(r, 20000, SCHED_DO_SEND_LEASE);
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_tick(r, 60000); /* a tick was wanted long before */
    assert_int_equal(rig_count(r, SCHED_DO_PUT_SPAN), 0);
    assert_int_equal(rig_spans(r, 1)->rows[0].state, SPAN_LEASED);
    rig_beat_lease(r, &l, 0, 0, 0); /* it was in the socket all the time */
    /* but one that really is silent goes in the end */
    assert_true(rig_wait(r, 40000, SCHED_DO_PUT_SPAN));
}

static void test_a_hang_is_killed_and_blamed(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    uint64_t from = r->now;
    int killed = 0;
    while (!killed && r->now < from + 80000) {
        rig_tick(r, 1000);
        killed = rig_count(r, SCHED_DO_KILL_WORKER) != 0;
        if (killed)
            break;
        rig_beat_lease(r, &l, 500, 3, 300); /* alive, and it does nothing */
    }
    assert_true(killed && r->now - from >= 60000 && r->now - from < 65000);
    assert_int_equal(rig_find(r, SCHED_DO_KILL_WORKER).worker, 1);
    struct sched_suspect s = {1, l.epoch, {300, 350}};
    rig_ended(r, 1, WORKER_HUNG, &s, 1);
    struct rig_spans *x = rig_spans(r, 1);
    assert_int_equal(x->count, 3);
    assert_int_equal(x->rows[1].span.begin, 300);
    assert_int_equal(x->rows[1].probe, 1);
}

/* Also soon after a start, and with the patience that loading a model needs only while it loads. */
static void test_a_hang_is_found_in_its_time(void **state)
{
    struct rig *r = *state;
    r->params.model_key = 5;
    r->params.stall_timeout_ms = 3000;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    for (int i = 0; i < 10; i++) {
        rig_tick(r, 1000);
        assert_int_equal(rig_count(r, SCHED_DO_KILL_WORKER), 0);
        rig_beat_lease(r, &l, 0, 0, 0); /* it loads */
    }
    struct sched_event ev = {.kind = SCHED_MODEL_READY, .worker = 1};
    ev.u.model.model_key = 5;
    ev.u.model.load_ms = 10000;
    rig_step(r, ev);
    uint64_t from = r->now;
    do {
        rig_tick(r, 500);
        if (rig_count(r, SCHED_DO_KILL_WORKER))
            break;
        rig_beat_lease(r, &l, 0, 0, 0);
    } while (r->now < from + 20000);
    assert_true(r->now - from >= 3000 && r->now - from <= 4500);
}

/* Its beats lie in the socket while the daemon stands still: that is no hang. */
static void test_a_stall_of_the_daemon_is_no_hang_of_a_worker(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_tick(r, 1000);
    rig_beat_lease(r, &l, 0, 1, 1);
    rig_tick(r, 100000);
    assert_int_equal(rig_count(r, SCHED_DO_KILL_WORKER), 0);
    rig_beat_lease(r, &l, 0, 1, 1); /* of long ago */
    rig_tick(r, 0);
    assert_int_equal(rig_count(r, SCHED_DO_KILL_WORKER), 0);
    rig_beat_lease(r, &l, 500, 2, 200);
    rig_tick(r, 1000);
    assert_int_equal(rig_count(r, SCHED_DO_KILL_WORKER) + rig_count(r, SCHED_DO_PUT_SPAN), 0);
}

static void test_a_hang_whose_kill_is_never_reported(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    for (int i = 0; i < 90; i++) {
        rig_tick(r, 1000);
        rig_beat_lease(r, &l, 500, 3, 300);
    }
    assert_int_equal(rig_spans(r, 1)->rows[0].state, SPAN_READY);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch); /* it still beats: no more work for it */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_join(r, 2, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 2);
}

static void test_many_that_were_out_of_sight_come_back_at_once(void **state)
{
    struct rig *r = *state;
    for (uint64_t i = 1; i <= 100; i++)
        rig_join(r, i, 1);
    for (int i = 0; i < 40; i++)
        rig_tick(r, 1000);
    for (uint64_t i = 101; i <= 228; i++)
        rig_join(r, i, 1);
    for (uint64_t i = 1; i <= 100; i++)
        rig_beat(r, i, NULL, 0);
    for (size_t i = 0; i < sched_worker_count(r->s); i++) {
        struct sched_worker_view w;
        sched_worker_view(r->s, i, &w);
        assert_false(w.lost_since_beat);
    }
}

/* The clock is asked for by the core, and never in vain: a pool without workers sleeps. */
static void test_no_worker_no_alarm(void **state)
{
    struct rig *r = *state;
    r->now += 5000;
    rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    assert_int_equal(rig_count(r, SCHED_DO_WAKE), 0);
}

/* A tick that comes before its time was the alarm all the same: another one is asked for, or nobody would ever look at the clock again. */
static void test_an_early_tick_is_not_the_last(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 10000 * KIB);
    uint64_t at = rig_find(r, SCHED_DO_WAKE).u.wake_ms;
    assert_true(at > r->now + 60);
    r->now = at - 60;
    rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    uint64_t next = rig_find(r, SCHED_DO_WAKE).u.wake_ms;
    assert_true(next > r->now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_worker_that_comes_back_keeps_its_lease),
        RIG_TEST(test_one_that_does_not_come_back_loses_it),
        RIG_TEST(test_a_lease_that_the_worker_does_not_list_goes_back),
        RIG_TEST(test_a_worker_that_knows_of_lost_commits_is_not_believed),
        RIG_TEST(test_rows_that_cannot_be_are_refused),
        RIG_TEST(test_publishing_goes_on_after_a_restart),
        RIG_TEST(test_silence_is_loss_but_not_soon_after_a_start),
        RIG_TEST(test_a_daemon_that_stood_still_expires_nobody),
        RIG_TEST(test_a_hang_is_killed_and_blamed),
        RIG_TEST(test_a_hang_is_found_in_its_time),
        RIG_TEST(test_a_stall_of_the_daemon_is_no_hang_of_a_worker),
        RIG_TEST(test_a_hang_whose_kill_is_never_reported),
        RIG_TEST(test_many_that_were_out_of_sight_come_back_at_once),
        RIG_TEST(test_no_worker_no_alarm),
        RIG_TEST(test_an_early_tick_is_not_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
