/* What people say to jobs. */
#include "tests/unit/scheduler/rig.h"

static void test_pause_lets_what_is_read_be_committed(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    r->now += 1000;
    rig_beat_lease(r, &l, 600, 3, 300);
    rig_control(r, 1, VERB_PAUSE);
    struct sched_action cut = rig_find(r, SCHED_DO_SEND_CUT);
    assert_int_equal(cut.epoch, l.epoch);
    assert_int_equal(cut.u.cut_at, 600);
    assert_string_equal(rig_job(r, 1).waits_for, "paused by its owner");
    rig_step(r, (struct sched_event){.kind = SCHED_CUT_ANSWERED, .worker = 1, .job = 1, .epoch = l.epoch, .u.cut.at = 650});
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_commit(r, &l, 0, 0, 650, 6), ACK_DONE);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_spans(r, 1)->rows[0].state, SPAN_READY);
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).u.lease.span.begin, 650);
}

static void test_a_job_may_be_submitted_paused(void **state)
{
    struct rig *r = *state;
    uint64_t size = 1000;
    uint8_t plain = 0;
    rig_join(r, 1, 1);
    rig_submit_as(r, 1, 1, &size, &plain, JOB_PAUSED);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 1);
}

static void test_cancel_and_remove(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    struct sched_event ev = rig_verb(1, VERB_REMOVE);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "job 1 is running, it cannot be removed");
    rig_control(r, 1, VERB_CANCEL);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_REVOKE).epoch, l.epoch);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.state, JOB_CANCELED);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_JOB).u.job.finished_ms, 77);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 0);
    assert_int_equal(rig_commit(r, &l, 0, 0, 1000, 10), ACK_STALE);
    assert_int_equal(rig_count(r, SCHED_DO_PUT_JOB) + rig_count(r, SCHED_DO_PUT_EXTENT), 0);
    rig_control(r, 1, VERB_REMOVE);
    assert_int_equal(rig_find(r, SCHED_DO_DEL_JOB).job, 1);
    struct sched_job_view v;
    assert_false(sched_job_view(r->s, 1, &v));
    assert_int_equal(rig_commit(r, &l, 0, 0, 1000, 10), ACK_STALE);
    ev = rig_verb(1, VERB_PAUSE);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "there is no job 1");
}

static void test_verbs_that_a_state_forbids_change_nothing(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    static const enum job_verb never[] = {VERB_RESUME, VERB_RETRY, VERB_REMOVE};
    for (size_t i = 0; i < 3; i++) {
        struct sched_event ev = rig_verb(1, never[i]);
        assert_int_equal(rig_try(r, &ev), ST_USER);
        assert_int_equal(rig_count(r, SCHED_DO_PUT_JOB), 0);
        assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
    }
    rig_control(r, 1, VERB_PAUSE);
    struct sched_event ev = rig_verb(1, VERB_PAUSE);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    rig_control(r, 1, VERB_CANCEL);
    ev = rig_verb(1, VERB_RESUME);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "job 1 is canceled, it cannot be resumed");
}

static void commit_bad(struct rig *r, struct sched_action *l, uint64_t seq, uint64_t begin, uint64_t end, uint64_t records, uint64_t errors)
{
    struct extent x = rig_done(begin, end, records);
    x.errors = errors;
    x.rows = records - errors;
    assert_int_equal(rig_commit_of(r, l->worker, l->job, l->epoch, seq, &x, 1, NULL, 0, NULL), ACK_DONE);
}

/* CASES 3: errors counted; limits as a number or a share. */
static void test_max_errors_as_a_number(void **state)
{
    struct rig *r = *state;
    r->params.max_errors = 2;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    commit_bad(r, &l, 0, 0, 100, 10, 2);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
    commit_bad(r, &l, 1, 100, 200, 10, 1);
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_string_equal(rig_job(r, 1).waits_for, "held: 3 records have errors, 2 are allowed");
    struct sched_event ev = rig_verb(1, VERB_RESUME);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_non_null(strstr(r->e.text, "give a higher limit"));
    ev.u.control.max_errors = 3;
    rig_step(r, ev);
    assert_int_equal(rig_job(r, 1).row->params.max_errors, 3);
    commit_bad(r, &l, 2, 200, 1000, 80, 0);
    assert_int_equal(rig_job(r, 1).row->state, JOB_PUBLISHING);
}

static void test_max_errors_as_a_share_counts_after_a_hundred_records_or_at_the_end(void **state)
{
    struct rig *r = *state;
    r->params.max_errors_ppm = 10000;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    commit_bad(r, &l, 0, 0, 10, 1, 1); /* the first one of many */
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING);
    commit_bad(r, &l, 1, 10, 500, 98, 0);
    commit_bad(r, &l, 2, 500, 600, 1, 0);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING); /* 1 of 100 */
    commit_bad(r, &l, 3, 600, 700, 10, 1);
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_string_equal(rig_job(r, 1).row->reason, "1.818 % of records have errors (2 of 110), 1 % are allowed");
    rig_submit(r, 2, 100); /* a small one: at its end */
    rig_join(r, 2, 1);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    commit_bad(r, &l, 0, 0, 100, 10, 1);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 0);
    assert_int_equal(rig_job(r, 2).row->state, JOB_HELD);
    struct sched_event ev = rig_verb(2, VERB_RESUME);
    ev.u.control.max_errors_ppm = 100000;
    rig_step(r, ev);
    assert_int_equal(rig_find(r, SCHED_DO_PUBLISH).job, 2);
}

static void finish(struct rig *r, uint64_t job)
{
    rig_submit(r, job, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    commit_bad(r, &l, 0, 0, 1000, 10, 2);
    rig_published(r, job, NULL);
}

static void test_retry(void **state)
{
    struct rig *r = *state;
    finish(r, 1);
    struct sched_event ev = rig_verb(1, VERB_RETRY);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    struct span spans[] = {{700, 800}, {200, 300}};
    ev.u.control.spans = spans;
    ev.u.control.span_count = 2;
    spans[1].end = 701;
    assert_int_equal(rig_try(r, &ev), ST_USER); /* they overlap */
    spans[1].end = 1001;
    spans[1].begin = 1000;
    assert_int_equal(rig_try(r, &ev), ST_USER);
    spans[1] = (struct span){200, 300};
    rig_step(r, ev);
    struct job_row row = rig_find(r, SCHED_DO_PUT_JOB).u.job;
    assert_int_equal(row.state, JOB_RUNNING);
    assert_int_equal(row.attempt, 1);
    assert_int_equal(row.counts.records, 8);
    assert_int_equal(row.counts.errors, 0);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.attempt, 1);
    assert_int_equal(l.u.lease.span.begin, 200);
    assert_int_equal(l.u.lease.span.end, 300);
    rig_commit(r, &l, 0, 200, 300, 1);
    assert_int_equal(rig_find(r, SCHED_DO_PUT_EXTENT).u.extent.attempt, 1);
    l = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(l.u.lease.span.begin, 700);
    rig_commit(r, &l, 0, 700, 800, 1);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    assert_int_equal(rig_job(r, 1).row->counts.records, 10);
}

static void test_retry_of_quarantined_records_is_a_probe(void **state)
{
    struct rig *r = *state;
    finish(r, 1);
    struct span spans[] = {{700, 800}, {200, 300}};
    struct sched_event ev = rig_verb(1, VERB_RETRY);
    ev.u.control.spans = spans;
    ev.u.control.span_count = 2;
    ev.u.control.quarantined_count = 1;
    rig_step(r, ev);
    struct rig_spans *x = rig_spans(r, 1);
    assert_int_equal(x->rows[0].probe, 0);
    assert_int_equal(x->rows[1].probe, 1);
}

static void test_names_that_cannot_be_made(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_commit(r, &l, 0, 0, 1000, 10);
    rig_published(r, 1, "cannot rename out/a.jsonl: disk full");
    assert_int_equal(rig_job(r, 1).row->state, JOB_HELD);
    assert_string_equal(rig_job(r, 1).waits_for, "held: cannot rename out/a.jsonl: disk full");
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
    rig_published(r, 1, NULL);
    assert_int_equal(rig_job(r, 1).row->state, JOB_DONE);
    assert_string_equal(rig_job(r, 1).row->reason, "");
    rig_published(r, 1, "too late"); /* no harm */
    assert_int_equal(rig_job(r, 1).row->state, JOB_DONE);
}

static void test_a_paused_job_that_is_done_waits_for_its_owner(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
    rig_control(r, 1, VERB_PAUSE);
    rig_commit(r, &l, 0, 0, 1000, 10);
    assert_int_equal(rig_job(r, 1).row->state, JOB_PAUSED);
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(rig_count(r, SCHED_DO_PUBLISH), 1);
}

static void test_hold_says_why(void **state)
{
    struct rig *r = *state;
    rig_submit(r, 1, 1000);
    struct sched_event ev = rig_verb(1, VERB_HOLD);
    ev.u.control.text = "'a.csv' changed since the job began";
    rig_step(r, ev);
    assert_string_equal(rig_job(r, 1).waits_for, "held: 'a.csv' changed since the job began");
    assert_string_equal(rig_find(r, SCHED_DO_ADD_EVENT).u.text, "held: 'a.csv' changed since the job began");
}

static void test_events_out_of_place(void **state)
{
    struct rig *r = *state;
    struct sched_event ev = {.kind = SCHED_RECOVERED};
    assert_int_equal(rig_try(r, &ev), ST_USER);
    ev = (struct sched_event){.kind = SCHED_WORKER_DRAIN, .worker = 9};
    assert_int_equal(rig_try(r, &ev), ST_USER);
    assert_string_equal(r->e.text, "there is no worker 9");
    sched_free(r->s);
    assert_int_equal(sched_new(NULL, &r->s, &r->e), ST_OK);
    ev = (struct sched_event){.kind = SCHED_TICK};
    assert_int_equal(rig_try(r, &ev), ST_USER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_pause_lets_what_is_read_be_committed),
        RIG_TEST(test_a_job_may_be_submitted_paused),
        RIG_TEST(test_cancel_and_remove),
        RIG_TEST(test_verbs_that_a_state_forbids_change_nothing),
        RIG_TEST(test_max_errors_as_a_number),
        RIG_TEST(test_max_errors_as_a_share_counts_after_a_hundred_records_or_at_the_end),
        RIG_TEST(test_retry),
        RIG_TEST(test_retry_of_quarantined_records_is_a_probe),
        RIG_TEST(test_names_that_cannot_be_made),
        RIG_TEST(test_a_paused_job_that_is_done_waits_for_its_owner),
        RIG_TEST(test_hold_says_why),
        RIG_TEST(test_events_out_of_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
