/* How many workers are wanted, and from whom. CASES 29, 30, 32. */
#include "tests/unit/scheduler/rig.h"

#define MIB (KIB * KIB)

static struct sched_provider_view at(const struct rig *r, uint32_t provider)
{
    struct sched_provider_view v;
    sched_provider_view(r->s, provider, &v);
    return v;
}

static uint32_t wanted(const struct rig *r, uint32_t provider)
{
    return at(r, provider).wanted;
}

static void provider(struct rig *r, uint32_t id, uint32_t limit, int preemptible)
{
    rig_provider(r, id, limit, preemptible, 30000);
}

/* Time passes; those who have work say that they get on. */
static void pass(struct rig *r, uint64_t ms)
{
    for (uint64_t end = r->now + ms; r->now < end;) {
        rig_tick(r, end - r->now < 1000 ? end - r->now : 1000);
        for (size_t i = 0; i < sched_worker_count(r->s); i++) {
            struct sched_worker_view v;
            sched_worker_view(r->s, i, &v);
            rig_beat(r, v.worker, NULL, 0);
        }
    }
}

struct found {
    struct span_row rows[600];
    size_t count;
};

static void find_leases(void *arg, const struct span_row *row)
{
    struct found *x = arg;
    if (row->state == SPAN_LEASED && x->count < 600)
        x->rows[x->count++] = *row;
}

static const char *watched;
static int seen; /* lines of history with the words that are watched for */

static void watch(const struct rig *r)
{
    for (size_t i = 0; watched && i < r->u.count; i++)
        seen += r->u.actions[i].kind == SCHED_DO_ADD_EVENT && strstr(r->u.actions[i].u.text, watched) != NULL;
}

/* A second of a job: each of its workers does bytes_per_s of its first lease and commits it. */
static void work_second(struct rig *r, uint64_t job, uint64_t bytes_per_s)
{
    static struct found x;
    r->now += 1000;
    x.count = 0;
    sched_spans(r->s, job, find_leases, &x);
    for (size_t i = 0; i < x.count; i++) {
        size_t first = 0;
        while (x.rows[first].worker != x.rows[i].worker)
            first++;
        if (first != i) {
            continue;
        }
        struct span s = x.rows[i].span;
        if (s.end - s.begin > bytes_per_s)
            s.end = s.begin + bytes_per_s;
        struct extent done = rig_done(s.begin, s.end, (s.end - s.begin) / 64 + 1);
        rig_commit_of(r, x.rows[i].worker, job, x.rows[i].epoch, x.rows[i].next_seq, &done, 1, NULL, 0, NULL);
        watch(r);
    }
    rig_tick(r, 0);
    watch(r);
    for (size_t i = 0; i < sched_worker_count(r->s); i++) {
        struct sched_worker_view v;
        sched_worker_view(r->s, i, &v);
        if (!v.leases)
            rig_beat(r, v.worker, NULL, 0);
    }
}

static void work(struct rig *r, uint64_t job, uint64_t bytes_per_s, int seconds)
{
    while (seconds-- > 0 && rig_job(r, job).row->state == JOB_RUNNING)
        work_second(r, job, bytes_per_s);
}

static void join(struct rig *r, uint32_t provider, uint64_t first, size_t count)
{
    r->provider = provider;
    for (size_t i = 0; i < count; i++)
        rig_join(r, first + i, 100 + first + i);
}

static void test_free_ones_first_then_the_share_then_the_others(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 4, 0);
    provider(r, PROVIDER_SLURM, 100, 1);
    provider(r, PROVIDER_KUBERNETES, 100, 0);
    r->params.max_workers = 54;
    r->params.guaranteed_ppm = 100000;
    rig_submit(r, 1, 1024 * MIB);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 4);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 2); /* a tenth of 54 is 6, of which 4 are local */
    assert_int_equal(wanted(r, PROVIDER_SLURM), 48);
    assert_int_equal(rig_job(r, 1).workers_wanted, 54);
    join(r, PROVIDER_NONE, 1, 3); /* these came by themselves */
    pass(r, 12000);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 4);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 0);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 47);
}

static void test_guaranteed_ones_stand_in_for_those_that_cannot_be_had(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_SLURM, 10, 1);
    provider(r, PROVIDER_KUBERNETES, 100, 0);
    r->params.max_workers = 40;
    rig_submit(r, 1, 1024 * MIB);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 10);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 30);
    provider(r, PROVIDER_SLURM, 40, 1);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 40); /* at once */
    pass(r, 12000);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 0); /* slowly */
}

/* CASES 32: what never arrived is asked for again, elsewhere if need be. */
static void test_a_provider_that_does_not_give_what_it_said(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_AGENT, 100, 1);
    provider(r, PROVIDER_SLURM, 100, 1);
    r->params.max_workers = 50;
    rig_submit(r, 1, 1024 * MIB);
    join(r, PROVIDER_AGENT, 1, 16);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 50);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 0);
    pass(r, 110000);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 0); /* patience */
    pass(r, 30000);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 32);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 18); /* those that it has, and two to see whether more can be had */
    join(r, PROVIDER_AGENT, 101, 2);
    pass(r, 2000);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 50); /* it can */
    rig_ended(r, 101, WORKER_PREEMPTED, NULL, 0);
    pass(r, 1000);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 50); /* who is gone is replaced */
    pass(r, 135000);
    provider(r, PROVIDER_SLURM, 10, 1);
    pass(r, 2000);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 40); /* nobody else can give them: it is asked for them all the same */
}

/* With nobody there that could say anything, time itself must be looked at. */
static void test_nobody_comes_at_all(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_AGENT, 100, 1);
    provider(r, PROVIDER_SLURM, 100, 1);
    r->params.max_workers = 50;
    rig_submit(r, 1, 1024 * MIB);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 0);
    uint64_t began = r->now, wake = 0;
    while (r->now - began < 140000) {
        for (size_t i = 0; i < r->u.count; i++)
            if (r->u.actions[i].kind == SCHED_DO_WAKE)
                wake = r->u.actions[i].u.wake_ms;
        assert_true(wake > r->now);
        r->now = wake;
        rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    }
    assert_int_equal(wanted(r, PROVIDER_SLURM), 49);
    assert_int_equal(wanted(r, PROVIDER_AGENT), 1);
}

static void test_it_grows_at_once_and_shrinks_slowly(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 1000, 0);
    rig_submit(r, 1, 10 * 64 * KIB);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 10);
    r->now += 1000;
    rig_submit(r, 2, 90 * 64 * KIB);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 100);
    rig_control(r, 2, VERB_PAUSE);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 100);
    pass(r, 9000);
    rig_control(r, 2, VERB_RESUME); /* it was only for a moment */
    pass(r, 9000);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 100);
    rig_control(r, 2, VERB_PAUSE);
    pass(r, 13000);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 10);
    rig_control(r, 1, VERB_CANCEL);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 0); /* there is nothing to wait for */
}

/* CASES 30: idle ones go, no more of them than are too many, none that has work. */
static void test_idle_ones_are_let_go(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 10, 0);
    join(r, PROVIDER_LOCAL, 1, 10);
    r->params.max_workers = 3;
    rig_submit(r, 1, 1024 * MIB);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 3);
    for (int i = 0; i < 60; i++) {
        work(r, 1, 64 * KIB, 1);
        if (i < 29)
            assert_int_equal(at(r, PROVIDER_LOCAL).alive, 10); /* not before half a minute has passed */
    }
    assert_int_equal(at(r, PROVIDER_LOCAL).alive, 3);
    for (size_t i = 0; i < sched_worker_count(r->s); i++) {
        struct sched_worker_view v;
        sched_worker_view(r->s, i, &v);
        assert_true(v.draining == !v.leases);
    }
}

static void test_idle_ones_stay_where_that_is_said(void **state)
{
    struct rig *r = *state;
    rig_provider(r, PROVIDER_LOCAL, 4, 0, 0);
    join(r, PROVIDER_LOCAL, 1, 4);
    pass(r, 600000);
    assert_int_equal(at(r, PROVIDER_LOCAL).alive, 4);
    join(r, PROVIDER_NONE, 11, 2); /* whoever came by itself stays, too */
    provider(r, PROVIDER_LOCAL, 4, 0);
    pass(r, 60000);
    assert_int_equal(at(r, PROVIDER_LOCAL).alive, 0);
    assert_int_equal(at(r, PROVIDER_NONE).alive, 2);
}

static void test_a_limit_that_falls(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_AGENT, 6, 0);
    join(r, PROVIDER_AGENT, 1, 6);
    r->params.max_workers = 4;
    rig_submit(r, 1, 1024 * MIB);
    provider(r, PROVIDER_AGENT, 3, 0);
    pass(r, 20000);
    assert_int_equal(at(r, PROVIDER_AGENT).alive, 6); /* it fell before the worker was gone for which it did */
    for (int i = 0; i < 15; i++) {
        pass(r, 1000);
        if (at(r, PROVIDER_AGENT).alive < 6)
            break;
    }
    assert_int_equal(at(r, PROVIDER_AGENT).alive, 3);
    size_t busy = 0;
    for (size_t i = 0; i < sched_worker_count(r->s); i++) {
        struct sched_worker_view v;
        sched_worker_view(r->s, i, &v);
        busy += v.draining && v.leases;
    }
    assert_true(busy <= 1); /* the idle ones went first */
}

/* What is worth less than loading the model is no reason for a worker. */
static void test_loading_takes_time(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 1000, 0);
    r->params.model_key = 5;
    rig_submit(r, 1, 64 * MIB);
    join(r, PROVIDER_LOCAL, 1, 1);
    struct sched_event ev = {.kind = SCHED_MODEL_READY, .worker = 1};
    ev.u.model.model_key = 5;
    ev.u.model.load_ms = 20000;
    rig_step(r, ev);
    work(r, 1, 64 * KIB, 30);
    /* 62 MiB at 64 KiB/s are a thousand seconds: fifty workers for as long as they take to load it */
    assert_in_range(wanted(r, PROVIDER_LOCAL), 40, 52);
}

/* Those that cannot run the job are none the fewer that are needed: others are asked. */
static void test_workers_of_no_use(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_AGENT, 8, 1);
    provider(r, PROVIDER_SLURM, 8, 1);
    r->params.max_workers = 8;
    struct layout l;
    uint64_t size = 1024 * MIB;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct job_row row = {.id = 1, .params = r->params, .numerics = 8};
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    layout_release(&l);
    assert_string_equal(rig_job(r, 1).waits_for, "no worker has joined yet");
    pass(r, 42000);
    assert_string_equal(rig_job(r, 1).waits_for, "no worker has joined yet: 8 of agent have been wanted for 42 s");
    join(r, PROVIDER_AGENT, 1, 8); /* of other numerics */
    pass(r, 70000);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 0);
    pass(r, 30000);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 7);
    r->numerics = 8;
    join(r, PROVIDER_SLURM, 11, 7);
    assert_int_equal(rig_job(r, 1).workers, 7);
}

/* A new daemon does not know how fast its workers are before they have come back. */
static void test_a_restart_is_no_reason_for_more(void **state)
{
    struct rig *r = *state;
    struct layout l;
    uint64_t size = 4 * MIB;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    sched_free(r->s);
    rig_begin(r, 2);
    struct job_row row = {.id = 1, .params = r->params};
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    rig_step(r, ev);
    struct span_row span = {.span = {0, size}, .state = SPAN_LEASED, .worker = 1, .epoch = EPOCH(1, 1)};
    ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1};
    ev.u.span = &span;
    rig_step(r, ev);
    rig_step(r, (struct sched_event){.kind = SCHED_RECOVERED});
    provider(r, PROVIDER_LOCAL, 1000, 0);
    assert_int_equal(rig_count(r, SCHED_DO_WANT_WORKERS), 0);
    struct sched_held held = {1, EPOCH(1, 1), 0};
    r->provider = PROVIDER_LOCAL;
    rig_join_with(r, 1, 1, &held, 1);
    uint32_t most = 0;
    for (int i = 1; i < 8; i++) {
        r->now += 1000;
        struct sched_progress p = {EPOCH(1, 1), (uint64_t)i * 512 * KIB, (uint64_t)i * 100, (uint64_t)i * 512 * KIB};
        rig_beat(r, 1, &p, 1);
        rig_tick(r, 0);
        most = wanted(r, PROVIDER_LOCAL) > most ? wanted(r, PROVIDER_LOCAL) : most;
    }
    assert_in_range(most, 8, 20); /* at 512 KiB/s these are 8 s of work, and not 64 pieces of 64 KiB */
    layout_release(&l);
}

/* A job of 600 MiB, at 64 KiB/s a worker: 9,600 s of work. */
static void submit_until(struct rig *r, uint64_t job, uint64_t size, int64_t seconds)
{
    struct layout l;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct job_row row = {.id = job, .params = r->params, .submitted_ms = 5};
    row.params.deadline_ms = 1000000000 + seconds * 1000;
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = job};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    ev.u.job.wall_ms = 1000000000;
    rig_step(r, ev);
    layout_release(&l);
}

static void test_a_deadline_takes_what_it_takes(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 2, 0);
    provider(r, PROVIDER_SLURM, 500, 1);
    submit_until(r, 1, 600 * MIB, 1200);
    assert_int_equal(wanted(r, PROVIDER_SLURM), 498 + 2); /* nothing is known yet, and there is much to do */
    join(r, PROVIDER_LOCAL, 1, 2);
    work(r, 1, 64 * KIB, 40);
    /* 9,600 s in eight tenths of 1,160 s: a little more than ten */
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 2);
    assert_in_range(wanted(r, PROVIDER_SLURM), 8, 10);
    assert_string_equal(rig_job(r, 1).late, "");
    join(r, PROVIDER_SLURM, 11, wanted(r, PROVIDER_SLURM));
    work(r, 1, 64 * KIB, 600);
    assert_in_range(wanted(r, PROVIDER_SLURM), 8, 10); /* it goes as planned: nobody leaves, nobody comes */
    for (int i = 0; i < 600 && rig_job(r, 1).row->state == JOB_RUNNING; i++)
        work_second(r, 1, 64 * KIB);
    assert_int_equal(rig_job(r, 1).row->state, JOB_PUBLISHING);
    assert_true(r->now < 1000000 + 1150000);
}

static void test_a_deadline_that_cannot_be_met_is_said(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 2, 0);
    submit_until(r, 1, 600 * MIB, 1200);
    join(r, PROVIDER_LOCAL, 1, 2);
    int after_s = 0;
    seen = 0;
    watched = "cannot be done by its deadline";
    for (int i = 0; i < 60; i++) {
        work(r, 1, 64 * KIB, 1);
        after_s += !seen;
    }
    assert_int_equal(seen, 1);
    assert_in_range(after_s, 10, 15);
    assert_non_null(strstr(rig_job(r, 1).late, "with the 2 workers that can be had it takes about 1 h"));
    assert_true(rig_job(r, 1).ends_ms > 4000000 && rig_job(r, 1).ends_ms < 5000000);
    provider(r, PROVIDER_SLURM, 100, 1);
    seen = 0;
    watched = "by its deadline after all";
    work(r, 1, 64 * KIB, 30);
    assert_int_equal(seen, 1);
    assert_string_equal(rig_job(r, 1).late, "");
    r->now += 1200000;
    seen = 0;
    watched = "its deadline passed";
    rig_tick(r, 0);
    watch(r);
    watched = NULL;
    assert_int_equal(seen, 1);
    assert_int_equal(rig_job(r, 1).row->state, JOB_RUNNING); /* it goes on */
}

/* Those that are taken away all the time are worth less, and when there are not enough of them, others must come. */
static void test_losses_pull_in_guaranteed_ones(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_SLURM, 14, 1);
    provider(r, PROVIDER_KUBERNETES, 100, 0);
    submit_until(r, 1, 600 * MIB, 1200);
    join(r, PROVIDER_SLURM, 1, 14);
    work(r, 1, 64 * KIB, 40);
    assert_in_range(wanted(r, PROVIDER_SLURM), 10, 12);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 0);
    uint64_t next = 100;
    for (int i = 0; i < 240; i++) { /* each lives for about 7 s */
        struct sched_worker_view v;
        sched_worker_view(r->s, 0, &v);
        rig_ended(r, v.worker, WORKER_PREEMPTED, NULL, 0);
        join(r, PROVIDER_SLURM, next++, 1);
        if (i % 2)
            work(r, 1, 64 * KIB, 1);
    }
    assert_true(at(r, PROVIDER_SLURM).losses_per_hour > 50);
    assert_int_equal(wanted(r, PROVIDER_SLURM) + wanted(r, PROVIDER_KUBERNETES) > 14, 1);
    assert_true(wanted(r, PROVIDER_KUBERNETES) >= 1);
}

/* A limit on the number: guaranteed ones in the place of others, not beside them. */
static void test_losses_under_a_maximum(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 0, 0);
    provider(r, PROVIDER_SLURM, 100, 1);
    provider(r, PROVIDER_KUBERNETES, 100, 0);
    r->params.max_workers = 12;
    submit_until(r, 1, 600 * MIB, 1250);
    join(r, PROVIDER_SLURM, 1, 12);
    work(r, 1, 64 * KIB, 20);
    assert_int_equal(wanted(r, PROVIDER_KUBERNETES), 0);
    uint64_t next = 100;
    for (int i = 0; i < 200; i++) {
        struct sched_worker_view v;
        size_t k = 0;
        do
            sched_worker_view(r->s, k++, &v);
        while (v.provider != PROVIDER_SLURM);
        rig_ended(r, v.worker, WORKER_PREEMPTED, NULL, 0);
        if (at(r, PROVIDER_SLURM).alive <= wanted(r, PROVIDER_SLURM))
            join(r, PROVIDER_SLURM, next++, 1);
        if (at(r, PROVIDER_KUBERNETES).alive < wanted(r, PROVIDER_KUBERNETES))
            join(r, PROVIDER_KUBERNETES, next++, 1);
        work(r, 1, 64 * KIB, 1);
        assert_true(wanted(r, PROVIDER_SLURM) <= 12);
    }
    assert_true(wanted(r, PROVIDER_KUBERNETES) >= 2);
    assert_true(rig_job(r, 1).workers_wanted <= 12);
}

static void test_a_deadline_goes_before_weight(void **state)
{
    struct rig *r = *state;
    provider(r, PROVIDER_LOCAL, 4, 0);
    rig_submit(r, 1, 600 * MIB);
    submit_until(r, 2, 600 * MIB, 4000);
    join(r, PROVIDER_LOCAL, 1, 4);
    for (int i = 0; i < 60; i++) {
        work(r, 1, 64 * KIB, 1);
        r->now -= 1000; /* both in the same second */
        work(r, 2, 64 * KIB, 1);
    }
    assert_true(rig_job(r, 2).workers >= 3); /* 9,600 s in 0.8 x 4,000 s */
    assert_true(rig_job(r, 2).row->counts.bytes > rig_job(r, 1).row->counts.bytes);
}

static void test_a_worker_of_an_unknown_provider_came_by_itself(void **state)
{
    struct rig *r = *state;
    join(r, PROVIDER_KUBERNETES, 1, 1);
    rig_submit(r, 1, 2 * 64 * KIB);
    pass(r, 2000);
    assert_int_equal(at(r, PROVIDER_NONE).alive, 1);
    assert_int_equal(wanted(r, PROVIDER_LOCAL), 1);
    struct sched_event ev = {.kind = SCHED_PROVIDER, .u.provider.id = PROVIDERS};
    assert_int_equal(rig_try(r, &ev), ST_USER);
    ev.u.provider.id = PROVIDER_NONE;
    assert_int_equal(rig_try(r, &ev), ST_USER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_free_ones_first_then_the_share_then_the_others),
        RIG_TEST(test_guaranteed_ones_stand_in_for_those_that_cannot_be_had),
        RIG_TEST(test_a_provider_that_does_not_give_what_it_said),
        RIG_TEST(test_nobody_comes_at_all),
        RIG_TEST(test_it_grows_at_once_and_shrinks_slowly),
        RIG_TEST(test_idle_ones_are_let_go),
        RIG_TEST(test_idle_ones_stay_where_that_is_said),
        RIG_TEST(test_a_limit_that_falls),
        RIG_TEST(test_loading_takes_time),
        RIG_TEST(test_workers_of_no_use),
        RIG_TEST(test_a_restart_is_no_reason_for_more),
        RIG_TEST(test_a_deadline_takes_what_it_takes),
        RIG_TEST(test_a_deadline_that_cannot_be_met_is_said),
        RIG_TEST(test_losses_pull_in_guaranteed_ones),
        RIG_TEST(test_losses_under_a_maximum),
        RIG_TEST(test_a_deadline_goes_before_weight),
        RIG_TEST(test_a_worker_of_an_unknown_provider_came_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
