/* Leases, commits, cuts. */
#include "tests/unit/scheduler/rig.h"

static void test_a_job_from_end_to_end(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    assert_string_equal(rig_job(r, 1).waits_for, "no worker has joined yet");
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.submitted_ms, 5);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_SPAN).u.span.span.end, 1000);
    rig_join(r, 0xa, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.worker, 0xa);
    assert_int_equal(l.epoch, EPOCH(1, 1));
    assert_int_equal(l.u.lease.span.begin, 0);
    assert_int_equal(l.u.lease.span.end, 1000);
    assert_int_equal(l.u.lease.probe, 0);
    struct span_row row = rig_find(r, SCHED_DO_PUT_SPAN).u.span; /* the row comes in the same update */
    assert_int_equal(row.state, SPAN_LEASED);
    assert_int_equal(row.worker, 0xa);
    assert_int_equal(row.epoch, l.epoch);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.numerics, 7);
    assert_int_equal(rig_commit(r, &l, 0, 0, 400, 4), ACK_DONE);
    struct extent x = rig_find(r, SCHED_DO_PUT_EXTENT).u.extent;
    assert_int_equal(x.epoch, l.epoch);
    assert_int_equal(x.seq, 0);
    assert_int_equal(rig_find(r, SCHED_DO_DEL_SPAN).u.span.span.begin, 0);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_SPAN).u.span.span.begin, 400);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_SPAN).u.span.next_seq, 1);
    assert_int_equal(rig_job(r, 1).head, 400);
    assert_int_equal(rig_commit(r, &l, 1, 400, 1000, 6), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_SPAN), 0);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.state, JOB_PUBLISHING);
    rig_published(r, 1, NULL);
    struct job_row done = rig_find(r, SCHED_DO_PUT_JOB).u.job;
    assert_int_equal(done.state, JOB_DONE);
    assert_int_equal(done.finished_ms, 99);
    assert_int_equal(done.counts.records, 10);
    assert_int_equal(done.counts.rows, 10);
    assert_int_equal(done.counts.bytes, 1000);
    assert_int_equal(done.counts.extents, 2);
}

static void test_rows_come_before_messages(void **state)
{
    struct rig *r = *state;
    rig_join(r, 1, 1);
    rig_submit(r, 1, 64 * KIB * KIB);
    int message = 0;
    for (size_t i = 0; i < r->u.count; i++) {
        int is = r->u.actions[i].kind > SCHED_DO_ADD_EVENT;
        assert_true(is >= message);
        message = is;
    }
    assert_true(message);
}

static void test_an_empty_dataset_is_done_at_once(void **state)
{
    struct rig *r = *state;
    rig_submit_as(r, 1, 0, NULL, NULL, JOB_RUNNING);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    assert_int_equal(rig_job(r, 1).row->state, JOB_PUBLISHING);
    uint64_t nothing[] = {0, 0};
    uint8_t kinds[] = {0, 2};
    rig_submit_as(r, 2, 2, nothing, kinds, JOB_RUNNING);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
}

static void test_the_same_commit_gets_the_same_answer(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(rig_commit(r, &l, 0, 0, 400, 4), ACK_DONE);
    assert_int_equal(rig_commit(r, &l, 0, 0, 400, 4), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT) + rig_count(r, SCHED_DO_PUT_JOB), 0);
    assert_int_equal(rig_commit(r, &l, 1, 400, 1000, 6), ACK_DONE); /* the lease is over */
    assert_int_equal(rig_commit(r, &l, 1, 400, 1000, 6), ACK_DONE);
    assert_int_equal(rig_commit(r, &l, 0, 0, 400, 4), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
    assert_int_equal(rig_job(r, 1).row->counts.redone, 0);
}

/* CASES 23, 37: a worker that was out of sight comes back with what belongs to another now. */
static void test_a_late_commit_is_refused(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_true(rig_wait(r, 20000, SCHED_DO_PUT_SPAN)); /* silent for too long */
    assert_int_equal(rig_find(r, SCHED_DO_PUT_SPAN).u.span.state, SPAN_READY);
    rig_join(r, 2, 2);
    struct sched_action l2 = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l2.u.lease.span.begin, 0);
    assert_true(l2.epoch > l.epoch);
    assert_int_equal(rig_commit(r, &l, 0, 0, 1000, 10), ACK_STALE);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    assert_int_equal(rig_job(r, 1).row->counts.redone, 1);
    /* it is heard of again, told to let go, and of use again */
    rig_beat_lease(r, &l, 500, 5, 500);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
    assert_int_equal(rig_commit(r, &l2, 0, 0, 1000, 10), ACK_DONE);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
    rig_submit(r, 2, 64 * KIB);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 2);
}

static void test_another_worker_cannot_commit_a_lease(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    l.worker = 2;
    assert_int_equal(rig_commit(r, &l, 0, 0, 1000, 10), ACK_STALE);
    assert_int_equal(rig_spans(r, 1)->rows[0].worker, 1);
}

static void test_holes(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct extent done[] = {rig_done(100, 200, 1), rig_done(300, 400, 1), rig_done(400, 500, 1)};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, done, 3, NULL, 0, NULL), ACK_DONE);
    struct rig_spans *x = rig_spans(r, 1);
    assert_int_equal(x->count, 3);
    static const struct span want[] = {{0, 100}, {200, 300}, {500, 1000}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(x->rows[i].span.begin, want[i].begin);
        assert_int_equal(x->rows[i].span.end, want[i].end);
        assert_int_equal(x->rows[i].epoch, l.epoch);
    }
    /* one commit may not span a hole */
    assert_int_equal(rig_commit(r, &l, 1, 0, 1000, 1), ACK_STALE);
}

static void test_a_commit_of_what_is_not_held_ends_the_lease(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(rig_commit(r, &l, 1, 0, 100, 1), ACK_STALE); /* number 0 never came */
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    l = rig_find(r, SCHED_DO_SEND_LEASE); /* all is done again, under a new epoch */
    assert_int_equal(l.u.lease.span.begin, 0);
    struct extent twice[] = {rig_done(0, 100, 1), rig_done(50, 150, 1)};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, twice, 2, NULL, 0, NULL), ACK_STALE);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct extent one = rig_done(0, 100, 1);
    struct sched_returned back = {{50, 150}, 0};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &one, 1, &back, 1, NULL), ACK_STALE);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(rig_commit(r, &l, 0, 900, 1100, 1), ACK_STALE);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(rig_commit(r, &l, 0, 100, 100, 0), ACK_STALE);
    assert_int_equal(rig_job(r, 1).row->counts.records, 0);
}

/* The part was looked for in the named job's folder, so that must be the lease's. */
static void test_a_commit_names_the_job_of_its_lease(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct extent x = rig_done(0, 100, 1);
    assert_int_equal(rig_commit_of(r, 1, 99, l.epoch, 0, &x, 1, NULL, 0, NULL), ACK_STALE);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    assert_int_equal(rig_job(r, 1).row->counts.records, 0);
}

static void test_a_part_that_is_not_there_is_no_commit(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct extent x = rig_done(0, 1000, 10);
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &x, 1, NULL, 0, "no such file"), ACK_FAULT);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    assert_int_equal(rig_spans(r, 1)->rows[0].epoch, l.epoch); /* the lease stays */
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &x, 1, NULL, 0, NULL), ACK_DONE);
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &x, 1, NULL, 0, "compacted since"), ACK_DONE);
}

/* CASES 2: what fails for a passing reason is tried again alone, with back-off; its neighbours are not redone. */
static void test_transient_failures_back_off(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct extent done[] = {rig_done(0, 400, 4), rig_done(500, 1000, 5)};
    struct sched_returned back = {{400, 500}, 1};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, done, 2, &back, 1, NULL), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    struct span_row row = rig_find(r, SCHED_DO_PUT_SPAN).u.span;
    assert_int_equal(row.state, SPAN_READY);
    assert_int_equal(row.attempts, 1);
    assert_non_null(strstr(rig_job(r, 1).waits_for, "passing reason"));
    uint64_t waits[3];
    for (int i = 0; i < 3; i++) {
        uint64_t from = r->now;
        for (;;) {
            rig_tick(r, 100);
            int lease = rig_count(r, SCHED_DO_SEND_LEASE) != 0;
            if (lease)
                l = rig_find(r, SCHED_DO_SEND_LEASE);
            rig_beat(r, 1, NULL, 0);
            if (lease)
                break;
        }
        waits[i] = r->now - from;
        assert_int_equal(l.u.lease.span.begin, 400);
        assert_int_equal(l.u.lease.span.end, 500);
        assert_int_equal(l.u.lease.probe, i < 2 ? 0 : 2); /* the third time is the last */
        if (i < 2)
            assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, NULL, 0, &back, 1, NULL), ACK_DONE);
    }
    assert_true(waits[0] >= 1000 && waits[0] < 1300);
    assert_true(waits[1] >= 2000 && waits[1] < 2300);
    assert_true(waits[2] >= 4000 && waits[2] < 4300);
    struct extent bad = {.span = {400, 500}, .records = 1, .errors = 1, .bytes = 100};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &bad, 1, NULL, 0, NULL), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    assert_int_equal(rig_job(r, 1).row->counts.errors, 1);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
}

static void test_spans_given_back_unbegun_go_to_the_next(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_step(r, (struct sched_event){.kind = SCHED_WORKER_DRAIN, .worker = 1});
    assert_int_equal(rig_find(r, SCHED_DO_SEND_DRAIN).worker, 1);
    struct extent x = rig_done(0, 300, 3);
    struct sched_returned back = {{300, 1000}, 0};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &x, 1, &back, 1, NULL), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0); /* it leaves */
    assert_int_equal(rig_spans(r, 1)->rows[0].attempts, 0);
    assert_string_equal(rig_job(r, 1).waits_for, "all 1 workers are leaving");
    rig_join(r, 2, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).u.lease.span.begin, 300);
}

/* A worker that drains gives back what a cut took while its commit was on the way. */
static void test_what_a_cut_took_is_not_given_back_twice(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_step(r, (struct sched_event){.kind = SCHED_CUT_ANSWERED, .worker = 1, .job = 1, .epoch = l.epoch, .u.cut.at = 500});
    struct extent x = rig_done(0, 300, 3);
    struct sched_returned back[] = {{{300, 400}, 0}, {{400, 600}, 1}, {{600, 1000}, 0}};
    assert_int_equal(rig_commit_of(r, 1, 1, l.epoch, 0, &x, 1, back, 3, NULL), ACK_DONE);
    struct rig_spans *s = rig_spans(r, 1);
    uint64_t at = 300;
    for (size_t i = 0; i < s->count; i++) {
        assert_int_equal(s->rows[i].span.begin, at);
        assert_int_equal(s->rows[i].attempts, at == 400);
        at = s->rows[i].span.end;
    }
    assert_int_equal(at, 1000);
    /* but what was done there is refused */
    rig_submit(r, 2, 1000);
    rig_join(r, 2, 1);
    for (size_t i = 0; i < rig_count(r, SCHED_DO_SEND_LEASE); i++) {
        struct sched_action l2 = rig_nth(r, SCHED_DO_SEND_LEASE, i);
        if (l2.job != 2)
            continue;
        rig_step(r, (struct sched_event){.kind = SCHED_CUT_ANSWERED, .worker = 2, .job = 2, .epoch = l2.epoch, .u.cut.at = 500});
        assert_int_equal(rig_commit(r, &l2, 0, 400, 600, 1), ACK_STALE);
    }
}

static void test_leases_grow_to_the_target_and_shrink_at_the_end(void **state)
{
    struct rig *r = *state;
    uint64_t size = 512 * KIB * KIB, rate = 2 * KIB * KIB; /* 2 MiB/s: the target of 30 s is 60 MiB */
    rig_submit(r, 1, size);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.span.end - l.u.lease.span.begin, 256 * KIB);
    uint64_t last = 0, largest = 0, records = 0, n = 0;
    struct sched_action held[3];
    size_t count = 1;
    held[0] = l;
    while (rig_job(r, 1).row->state == JOB_RUNNING) {
        l = held[0];
        uint64_t bytes = l.u.lease.span.end - l.u.lease.span.begin;
        assert_true(last == 0 || bytes <= last * 4);
        last = bytes;
        largest = bytes > largest ? bytes : largest;
        r->now += bytes * 1000 / rate + 1;
        struct sched_progress p[2] = {{l.epoch, l.u.lease.span.end, 10, bytes}};
        if (count > 1)
            p[1] = (struct sched_progress){held[1].epoch, held[1].u.lease.span.begin, 0, 0};
        rig_beat(r, 1, p, count);
        for (size_t i = 0; i < rig_count(r, SCHED_DO_SEND_LEASE); i++)
            held[count++] = rig_nth(r, SCHED_DO_SEND_LEASE, i);
        assert_true(count <= 2);
        assert_int_equal(rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 10), ACK_DONE);
        records += 10;
        for (size_t i = 0; i < rig_count(r, SCHED_DO_SEND_LEASE); i++)
            held[count++] = rig_nth(r, SCHED_DO_SEND_LEASE, i);
        memmove(held, held + 1, --count * sizeof *held);
        assert_true(++n < 200);
    }
    assert_true(largest > 40 * KIB * KIB && largest < 80 * KIB * KIB);
    assert_int_equal(rig_job(r, 1).row->counts.records, records);
}

static void test_the_second_lease_comes_before_the_first_one_ends(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 64 * KIB * KIB);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    r->now += 1000;
    rig_beat_lease(r, &l, 10 * KIB, 1, 10 * KIB); /* 10 KiB/s: 24 s are left */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    r->now += 1000;
    rig_beat_lease(r, &l, 256 * KIB, 2, 20 * KIB); /* all is read */
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).u.lease.span.begin, 256 * KIB);
    struct sched_progress both[] = {{l.epoch, 256 * KIB, 3, 30 * KIB}, {rig_find(r, SCHED_DO_SEND_LEASE).epoch, 512 * KIB * 4, 0, 0}};
    r->now += 1000;
    rig_beat(r, 1, both, 2);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0); /* never three */
}

static void test_a_lease_in_a_stream_goes_to_its_end(void **state)
{
    struct rig *r = *state;
    uint64_t sizes[] = {1 << 20, 1 << 20};
    uint8_t kinds[] = {2, 2};
    rig_submit_as(r, 1, 2, sizes, kinds, JOB_RUNNING);
    uint64_t first = (UINT64_C(1) << 36) + (1 << 20);
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 2); /* one a stream, not one a piece */
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.span.end, first);
    rig_join(r, 2, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).u.lease.span.begin, first);
    /* a third one finds nothing to cut: a stream is not entered in the middle */
    r->now += 1000;
    rig_beat_lease(r, &l, 100000, 10, 10000);
    rig_join(r, 3, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE) + rig_count(r, SCHED_DO_SEND_CUT), 0);
}

/* Two workers, one with all that is left: the idle one gets half. */
static void cut_setup(struct rig *r, struct sched_action *l, uint64_t progress)
{
    rig_wait(r, 16000, SCHED_DO_SEND_LEASE); /* nothing expires soon after a start */
    r->params.lease_target_ms = 100000;
    rig_submit(r, 1, 256 * KIB);
    rig_join(r, 1, 1);
    *l = rig_find(r, SCHED_DO_SEND_LEASE);
    r->now += 1000;
    rig_beat_lease(r, l, progress, 1, progress);
    rig_join(r, 2, 2);
}

static void test_an_idle_worker_gets_a_part_of_the_longest_lease(void **state)
{
    struct rig *r = *state;
    struct sched_action l;
    cut_setup(r, &l, 16 * KIB);
    struct sched_action cut = rig_find(r, SCHED_DO_SEND_CUT);
    assert_int_equal(cut.worker, 1);
    assert_int_equal(cut.epoch, l.epoch);
    assert_int_equal(cut.u.cut_at, (16 + 120) * KIB); /* the middle of what is unread */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_beat(r, 2, NULL, 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_CUT), 0); /* one at a time */
    struct sched_event ev = {.kind = SCHED_CUT_ANSWERED, .worker = 1, .job = 1, .epoch = l.epoch, .u.cut.at = 150 * KIB};
    rig_step(r, ev);
    struct sched_action l2 = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l2.worker, 2);
    assert_int_equal(l2.u.lease.span.begin, 150 * KIB);
    /* nothing of the tail is accepted from the first one any more */
    rig_step(r, ev); /* the answer again: no change */
    assert_int_equal(rig_count(r, SCHED_DO_PUT_SPAN), 0);
    assert_int_equal(rig_commit(r, &l, 0, 0, 150 * KIB, 9), ACK_DONE);
    assert_int_equal(rig_commit(r, &l2, 0, 150 * KIB, l2.u.lease.span.end, 9), ACK_DONE);
}

static void test_a_cut_that_yields_nothing_is_not_asked_again(void **state)
{
    struct rig *r = *state;
    struct sched_action l;
    cut_setup(r, &l, 16 * KIB);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_CUT), 1);
    rig_step(r, (struct sched_event){.kind = SCHED_CUT_ANSWERED, .worker = 1, .job = 1, .epoch = l.epoch, .u.cut.at = 256 * KIB});
    assert_int_equal(rig_count(r, SCHED_DO_PUT_SPAN), 0);
    for (int i = 0; i < 5; i++) {
        r->now += 1000;
        rig_beat(r, 2, NULL, 0);
        assert_int_equal(rig_count(r, SCHED_DO_SEND_CUT) + rig_count(r, SCHED_DO_SEND_LEASE), 0);
        rig_beat_lease(r, &l, 16 * KIB, 1, 16 * KIB);
    }
}

static void test_a_cut_that_is_not_answered_revokes_the_lease(void **state)
{
    struct rig *r = *state;
    struct sched_action l;
    cut_setup(r, &l, 16 * KIB);
    uint64_t asked = r->now;
    do {
        rig_tick(r, 500);
        if (rig_count(r, SCHED_DO_SEND_REVOKE))
            break;
        rig_beat(r, 2, NULL, 0);
    } while (r->now < asked + 12000);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
    assert_true(r->now - asked >= 10000 && r->now - asked < 11000);
    struct sched_action l2 = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l2.worker, 2); /* not the silent one */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
    assert_int_equal(rig_commit(r, &l, 0, 0, 256 * KIB, 9), ACK_STALE);
}

static void test_what_is_nearly_done_is_not_cut(void **state)
{
    struct rig *r = *state;
    struct sched_action l;
    cut_setup(r, &l, 200 * KIB); /* 200 KiB/s: 0.28 s are left */
    assert_int_equal(rig_count(r, SCHED_DO_SEND_CUT), 0);
}

static void test_a_lease_that_never_arrived_comes_back(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    int revoked = 0;
    for (int i = 0; i < 30 && !revoked; i++) {
        rig_tick(r, 1000);
        rig_beat(r, 1, NULL, 0); /* lives, and does not know of it */
        revoked = rig_count(r, SCHED_DO_SEND_REVOKE) != 0;
    }
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
    assert_true(rig_find(r, SCHED_DO_SEND_LEASE).epoch > l.epoch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_job_from_end_to_end),
        RIG_TEST(test_rows_come_before_messages),
        RIG_TEST(test_an_empty_dataset_is_done_at_once),
        RIG_TEST(test_the_same_commit_gets_the_same_answer),
        RIG_TEST(test_a_late_commit_is_refused),
        RIG_TEST(test_another_worker_cannot_commit_a_lease),
        RIG_TEST(test_holes),
        RIG_TEST(test_a_commit_of_what_is_not_held_ends_the_lease),
        RIG_TEST(test_a_commit_names_the_job_of_its_lease),
        RIG_TEST(test_a_part_that_is_not_there_is_no_commit),
        RIG_TEST(test_transient_failures_back_off),
        RIG_TEST(test_spans_given_back_unbegun_go_to_the_next),
        RIG_TEST(test_what_a_cut_took_is_not_given_back_twice),
        RIG_TEST(test_leases_grow_to_the_target_and_shrink_at_the_end),
        RIG_TEST(test_the_second_lease_comes_before_the_first_one_ends),
        RIG_TEST(test_a_lease_in_a_stream_goes_to_its_end),
        RIG_TEST(test_an_idle_worker_gets_a_part_of_the_longest_lease),
        RIG_TEST(test_a_cut_that_yields_nothing_is_not_asked_again),
        RIG_TEST(test_a_cut_that_is_not_answered_revokes_the_lease),
        RIG_TEST(test_what_is_nearly_done_is_not_cut),
        RIG_TEST(test_a_lease_that_never_arrived_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
