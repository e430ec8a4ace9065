/* Who is guilty of a worker's death. CASES 32, 36. */
#include "tests/unit/scheduler/rig.h"

static struct sched_suspect suspect(const struct sched_action *l, uint64_t begin, uint64_t end)
{
    return (struct sched_suspect){l->job, l->epoch, {begin, end}};
}

static const struct span_row *row_at(struct rig *r, uint64_t job, uint64_t begin)
{
    struct rig_spans *x = rig_spans(r, job);
    for (size_t i = 0; i < x->count; i++)
        if (x->rows[i].span.begin == begin)
            return &x->rows[i];
    fail_msg("no span begins at %llu", (unsigned long long)begin);
    return NULL;
}

/* A job of 1000 bytes, records of 100; the worker that holds it. */
static struct sched_action begin(struct rig *r)
{
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    return rig_find(r, SCHED_DO_SEND_LEASE);
}

static void test_lost_preempted_and_drained_are_not_guilty(void **state)
{
    struct rig *r = *state;
    static const enum worker_end ends[] = {WORKER_PREEMPTED, WORKER_DRAINED, WORKER_LOST};
    rig_submit(r, 1, 1000);
    for (uint64_t i = 0; i < 12; i++) {
        rig_join(r, i + 1, 1);
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(l.u.lease.probe, 0);
        struct sched_suspect s = suspect(&l, 0, 100);
        rig_ended(r, i + 1, ends[i % 3], &s, 1);
        assert_int_equal(rig_spans(r, 1)->count, 1);
        assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
        assert_int_equal(rig_spans(r, 1)->rows[0].losses, (i + 1) / 3); /* only the lost ones are even counted */
    }
    assert_int_equal(rig_job(r, 1).row->counts.quarantined, 0);
}

static void test_suspects_run_alone_and_pass(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {suspect(&l, 200, 300), suspect(&l, 300, 400), suspect(&l, 600, 700)};
    rig_ended(r, 1, WORKER_CRASHED, s, 3);
    struct rig_spans *x = rig_spans(r, 1);
    static const struct span want[] = {{0, 200}, {200, 400}, {400, 600}, {600, 700}, {700, 1000}};
    assert_int_equal(x->count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(x->rows[i].span.begin, want[i].begin);
        assert_int_equal(x->rows[i].span.end, want[i].end);
        assert_int_equal(x->rows[i].state, SPAN_READY);
        assert_int_equal(x->rows[i].probe, i % 2);
        assert_int_equal(x->rows[i].crashes, 0);
    }
    rig_join(r, 2, 1);
    l = rig_find(r, SCHED_DO_SEND_LEASE); /* first something else: does the model work at all? */
    assert_int_equal(l.u.lease.span.begin, 0);
    assert_int_equal(l.u.lease.probe, 0);
    assert_int_equal(rig_commit(r, &l, 0, 0, 200, 2), ACK_DONE);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.span.begin, 200);
    assert_int_equal(l.u.lease.probe, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1); /* alone */
    rig_beat_lease(r, &l, 400, 1, 100);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_commit(r, &l, 0, 200, 300, 1), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_commit(r, &l, 1, 300, 400, 1), ACK_DONE);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.span.begin, 600);
    assert_int_equal(l.u.lease.probe, 1);
}

/* A record that crashes alone, on one host: three lone crashes. */
static void test_poison_is_named_and_set_aside(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {suspect(&l, 200, 300), suspect(&l, 300, 400)};
    rig_ended(r, 1, WORKER_CRASHED, s, 2);
    uint64_t id = 2;
    rig_join(r, id, 1);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_commit(r, &l, 0, 0, 200, 2);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.probe, 1);
    rig_commit(r, &l, 0, 200, 300, 1);
    for (unsigned crash = 1; crash <= 3; crash++) {
        struct sched_suspect one = suspect(&l, 300, 400);
        rig_ended(r, id, crash == 2 ? WORKER_OOM : WORKER_CRASHED, &one, 1);
        if (crash == 3)
            break;
        assert_int_equal(row_at(r, 1, 300)->crashes, crash);
        assert_int_equal(row_at(r, 1, 300)->crash_host, 1);
        assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
        rig_join(r, ++id, 1);
        l = rig_find(r, SCHED_DO_SEND_LEASE);
        if (!l.u.lease.probe) { /* after a crash the rest goes first */
            rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 6);
            l = rig_find(r, SCHED_DO_SEND_LEASE);
        }
        assert_int_equal(l.u.lease.span.begin, 300);
        assert_int_equal(l.u.lease.span.end, 400);
        assert_int_equal(l.u.lease.probe, 1);
    }
    struct extent x = rig_find(r, SCHED_DO_PUT_EXTENT).u.extent;
    assert_int_equal(x.span.begin, 300);
    assert_int_equal(x.span.end, 400);
    assert_int_equal(x.epoch, 0);
    assert_int_equal(x.records, 1);
    assert_int_equal(x.errors, 1);
    assert_string_equal(x.reason, "crashed|crashed the worker each of the 3 times it was run alone");
    if (!rig_count(r, SCHED_DO_PUBLISH)) { /* and all others are done */
        rig_join(r, ++id, 1);
        l = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(l.u.lease.probe, 0);
        rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 6);
    }
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    assert_int_equal(rig_job(r, 1).row->counts.quarantined, 1);
    assert_int_equal(rig_job(r, 1).row->counts.errors, 1);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
}

/* Where there are two hosts the last crash must be another's. */
static void test_a_second_host_must_confirm(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {suspect(&l, 0, 100)};
    rig_ended(r, 1, WORKER_CRASHED, s, 1);
    rig_join(r, 2, 1);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_commit(r, &l, 0, l.u.lease.span.begin, 1000, 9);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    uint64_t id = 2;
    for (int i = 0; i < 2; i++) {
        *s = suspect(&l, 0, 100);
        rig_ended(r, id, WORKER_CRASHED, s, 1);
        if (i == 0) {
            rig_join(r, ++id, 1);
            l = rig_find(r, SCHED_DO_SEND_LEASE);
        }
    }
    assert_int_equal(row_at(r, 1, 0)->crashes, 2);
    rig_join(r, 10, 2); /* of another host: it gets the third try at once */
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.worker, 10);
    *s = suspect(&l, 0, 100);
    rig_join(r, 11, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_ended(r, 10, WORKER_CRASHED, s, 1);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_EXTENT).u.extent.epoch, 0);
}

static void test_the_first_host_does_not_get_the_last_try_while_there_is_another(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {suspect(&l, 0, 100)};
    rig_ended(r, 1, WORKER_CRASHED, s, 1);
    for (uint64_t id = 2; id < 4; id++) {
        rig_join(r, id, 1);
        l = rig_find(r, SCHED_DO_SEND_LEASE);
        if (!l.u.lease.probe) {
            rig_commit(r, &l, 0, l.u.lease.span.begin, 1000, 9);
            l = rig_find(r, SCHED_DO_SEND_LEASE);
        }
        *s = suspect(&l, 0, 100);
        rig_ended(r, id, WORKER_CRASHED, s, 1);
    }
    assert_int_equal(row_at(r, 1, 0)->crashes, 2);
    r->params.priority = 5;
    rig_submit(r, 2, 1000);
    rig_join(r, 20, 2); /* of host 2, and busy with something more important */
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).job, 2);
    rig_join(r, 4, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_ended(r, 20, WORKER_DRAINED, NULL, 0); /* no other host is left: this one must do */
    for (size_t i = 0; !rig_count(r, SCHED_DO_SEND_LEASE) && i < 3; i++)
        rig_beat(r, 4, NULL, 0);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.worker, 4);
}

static void test_a_suspect_does_not_wait_for_a_worker_that_is_never_idle(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 64 * KIB * KIB);
    rig_join(r, 1, 1);
    struct sched_action l1 = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_join(r, 2, 1);
    struct sched_action l2 = rig_find(r, SCHED_DO_SEND_LEASE);
    struct sched_suspect s[] = {suspect(&l1, 0, 100)};
    rig_ended(r, 1, WORKER_CRASHED, s, 1);
    rig_commit(r, &l2, 0, l2.u.lease.span.begin, l2.u.lease.span.begin + 1000, 1); /* the model works */
    r->now += 1000;
    rig_beat_lease(r, &l2, l2.u.lease.span.end, 2, 2000); /* time for the next one, but a probe waits */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_commit(r, &l2, 1, l2.u.lease.span.begin + 1000, l2.u.lease.span.end, 1), ACK_DONE);
    struct sched_action p = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(p.u.lease.probe, 1);
    assert_int_equal(p.u.lease.span.end, 100);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
}

static void test_five_losses_at_one_place_make_it_suspect(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 256 * KIB);
    for (uint64_t i = 1; i <= 5; i++) {
        rig_join(r, i, 1);
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(l.u.lease.probe, 0);
        rig_ended(r, i, WORKER_LOST, NULL, 0);
    }
    assert_int_equal(row_at(r, 1, 0)->probe, 1);
    assert_int_equal(row_at(r, 1, 0)->span.end, 64 * KIB);
    assert_int_equal(row_at(r, 1, 64 * KIB)->probe, 0);
    /* and when it goes on like this even there, somebody must look */
    for (uint64_t i = 10; rig_job(r, 1).row->state == JOB_RUNNING && i < 100; i++) {
        rig_join(r, i, 1);
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        if (!l.u.lease.probe)
            fail();
        rig_ended(r, i, WORKER_LOST, NULL, 0);
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_int_equal(rig_job(r, 1).row->counts.quarantined, 0);
}

static void test_progress_forgets_losses(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    for (uint64_t i = 1; i <= 20; i++) {
        rig_join(r, i, 1);
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(l.u.lease.probe, 0);
        rig_commit(r, &l, 0, (i - 1) * 10, i * 10, 1);
        rig_ended(r, i, WORKER_LOST, NULL, 0);
        assert_int_equal(rig_spans(r, 1)->rows[0].losses, 1);
    }
}

/* A model that crashes whatever it is given. */
static void test_a_broken_model_holds_the_job(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    for (uint64_t i = 1; i <= 4; i++) {
        assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
        rig_join(r, i, i);
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        uint64_t at = l.u.lease.span.begin;
        struct sched_suspect s[] = {suspect(&l, at, at + 100), suspect(&l, at + 100, at + 200)};
        rig_ended(r, i, WORKER_CRASHED, s, 2);
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_non_null(strstr(rig_job(r, 1).waits_for, "held: 4 workers ended (the last: crashed) without one record done"));
    assert_int_equal(rig_job(r, 1).row->counts.quarantined, 0);
    rig_join(r, 9, 9);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_control(r, 1, VERB_RESUME); /* the model was mended */
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.worker, 9);
    struct sched_suspect s[] = {suspect(&l, l.u.lease.span.begin, l.u.lease.span.end)};
    rig_ended(r, 9, WORKER_CRASHED, s, 1);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING); /* it counts anew */
}

/* Several poison records in a row, on several workers at once: no record is done meanwhile, and yet the model works. */
static void test_poison_in_a_row_is_no_broken_model(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct sched_suspect s[4];
    for (uint64_t i = 0; i < 4; i++)
        s[i] = suspect(&l, 100 + i * 200, 200 + i * 200);
    rig_ended(r, 1, WORKER_CRASHED, s, 4);
    rig_join(r, 2, 1);
    while (l = rig_find(r, SCHED_DO_SEND_LEASE), !l.u.lease.probe)
        rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 2);
    struct sched_action probes[4] = {l};
    for (uint64_t i = 1; i < 4; i++) {
        rig_join(r, 2 + i, 1);
        probes[i] = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(probes[i].u.lease.probe, 1);
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct span at = probes[i].u.lease.span;
        s[i] = suspect(&probes[i], at.begin, at.begin + 100);
        rig_ended(r, 2 + i, WORKER_CRASHED, &s[i], 1);
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
}

static void test_crashes_without_suspects_hold_the_job(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    for (uint64_t i = 1; i <= 4; i++) {
        rig_join(r, i, 1);
        rig_ended(r, i, WORKER_OOM, NULL, 0);
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
}

static void test_too_many_quarantines_hold_the_job(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 64 * KIB * KIB);
    rig_join(r, 900, 1);
    struct sched_action good = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct sched_suspect s[12];
    for (uint64_t i = 0; i < 12; i++)
        s[i] = suspect(&l, l.u.lease.span.begin + i * 10, l.u.lease.span.begin + i * 10 + 10);
    rig_ended(r, 1, WORKER_CRASHED, s, 12);
    unsigned quarantined = 0;
    for (uint64_t id = 2; rig_job(r, 1).row->state == JOB_RUNNING && id < 100; id++) {
        rig_commit(r, &good, id - 2, good.u.lease.span.begin + id, good.u.lease.span.begin + id + 1, 1); /* others get on */
        rig_join(r, id, 1);
        l = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(l.u.lease.probe, 1);
        *s = suspect(&l, l.u.lease.span.begin, l.u.lease.span.begin + 10);
        rig_ended(r, id, WORKER_CRASHED, s, 1);
        quarantined += rig_count(r, SCHED_DO_PUT_EXTENT) != 0;
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_int_equal(quarantined, 11);
    assert_non_null(strstr(rig_job(r, 1).row->reason, "no matter of single records"));
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
}

static void test_suspects_of_old_epochs_prove_nothing(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {{1, l.epoch + 99, {0, 100}}, {2, l.epoch, {5000, 6000}}, suspect(&l, 300, 300)};
    rig_ended(r, 1, WORKER_CRASHED, s, 3);
    assert_int_equal(rig_spans(r, 1)->count, 1);
    assert_int_equal(rig_spans(r, 1)->rows[0].probe, 0);
    rig_ended(r, 77, WORKER_CRASHED, s, 3); /* of a worker that nobody knows */
    assert_int_equal(rig_count(r, SCHED_DO_PUT_SPAN), 0);
}

static void test_a_record_may_reach_beyond_its_span(void **state)
{
    struct rig *r = *state;
    struct sched_action l = begin(r);
    struct sched_suspect s[] = {suspect(&l, 950, 1200)};
    rig_ended(r, 1, WORKER_CRASHED, s, 1);
    assert_int_equal(row_at(r, 1, 950)->span.end, 1000);
    assert_int_equal(row_at(r, 1, 950)->probe, 1);
}

/* A host on which records crash that pass elsewhere. */
static void test_a_bad_host_is_benched(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 64 * KIB * KIB);
    uint64_t id = 0;
    rig_join(r, 1000, 2);
    struct sched_action good = rig_find(r, SCHED_DO_SEND_LEASE);
    for (int n = 0; n < 3; n++) {
        rig_join(r, ++id, 1);
        struct sched_action bad = rig_find(r, SCHED_DO_SEND_LEASE);
        struct sched_suspect s[] = {suspect(&bad, bad.u.lease.span.begin, bad.u.lease.span.begin + 10)};
        uint64_t at = s[0].record.begin;
        rig_ended(r, id, WORKER_CRASHED, s, 1);
        rig_commit(r, &good, 0, good.u.lease.span.begin, good.u.lease.span.begin + 10, 1); /* resets the run of crashes */
        rig_join(r, ++id, 1);
        bad = rig_find(r, SCHED_DO_SEND_LEASE);
        assert_int_equal(bad.u.lease.probe, 1);
        assert_int_equal(bad.u.lease.span.begin, at);
        s[0] = suspect(&bad, at, at + 10);
        rig_ended(r, id, WORKER_CRASHED, s, 1); /* alone */
        assert_int_equal(row_at(r, 1, at)->crashes, 1);
        /* the other host is free and runs it without trouble */
        rig_commit(r, &good, 1, good.u.lease.span.begin + 10, good.u.lease.span.end, 1);
        good = rig_lease_of(r, 1000);
        assert_int_equal(good.u.lease.probe, 1);
        rig_commit(r, &good, 0, at, at + 10, 1);
        good = rig_lease_of(r, 1000);
    }
    rig_join(r, ++id, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_join(r, ++id, 3);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_lost_preempted_and_drained_are_not_guilty),
        RIG_TEST(test_suspects_run_alone_and_pass),
        RIG_TEST(test_poison_is_named_and_set_aside),
        RIG_TEST(test_a_second_host_must_confirm),
        RIG_TEST(test_the_first_host_does_not_get_the_last_try_while_there_is_another),
        RIG_TEST(test_a_suspect_does_not_wait_for_a_worker_that_is_never_idle),
        RIG_TEST(test_five_losses_at_one_place_make_it_suspect),
        RIG_TEST(test_progress_forgets_losses),
        RIG_TEST(test_a_broken_model_holds_the_job),
        RIG_TEST(test_poison_in_a_row_is_no_broken_model),
        RIG_TEST(test_crashes_without_suspects_hold_the_job),
        RIG_TEST(test_too_many_quarantines_hold_the_job),
        RIG_TEST(test_suspects_of_old_epochs_prove_nothing),
        RIG_TEST(test_a_record_may_reach_beyond_its_span),
        RIG_TEST(test_a_bad_host_is_benched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
