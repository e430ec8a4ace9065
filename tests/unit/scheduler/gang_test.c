/* Gangs: how they are formed, cut anew for the better and dissolved, and for whom. */
#include <math.h>
#include <string.h>

#include "tests/unit/scheduler/gang_rig.h"

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

static void test_a_newcomer(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 3);
    uint64_t head = view(r).head;
    rig_join(r, 4, 4);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_PROFILE).worker, 4);
    profile_of(r, 4, 9.5); /* hardly better */
    for (int i = 0; i < 40; i++) {
        for (uint64_t w = 1; w <= 4; w++)
            beat(r, w);
        rig_tick(r, 1000);
        assert_int_equal(view(r).cut, 1);
    }
    profile_of(r, 4, 2);
    assert_int_equal(view(r).cut, 2);
    assert_int_equal(view(r).head, head);
    assert_int_equal(view(r).count, 3);
    assert_true(view(r).bottleneck_ms < 36);
    assert_true(stage_of(r, 4, &a) >= 0);
    size_t left = 0;
    for (uint64_t w = 1; w <= 3; w++)
        left += stage_of(r, w, &a) == -3;
    assert_int_equal(left, 1);
    all_ready(r, 4);
}

/* Without a number: as few as hold the model; who comes later joins when nobody is left to make another pipeline with. */
static void test_as_few_as_it_takes(void **state)
{
    struct rig *r = *state;
    setup(r, 0);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    rig_join(r, 3, 3);
    profile_of(r, 1, 10);
    profile_of(r, 2, 10);
    /* each has 4 GiB, the model 6 */
    assert_int_equal(view(r).count, 2);
    profile_of(r, 3, 10);
    for (int i = 0; i < 29; i++) {
        for (uint64_t w = 1; w <= 3; w++)
            beat(r, w);
        if (i == 0)
            all_ready(r, 3);
        rig_tick(r, 1000);
        assert_int_equal(view(r).count, 2);
    }
    for (int i = 0; i < 5; i++) {
        for (uint64_t w = 1; w <= 3; w++)
            beat(r, w);
        rig_tick(r, 1000);
    }
    assert_int_equal(view(r).count, 3);
    assert_int_equal(view(r).cut, 2);
}

static void test_one_that_holds_it_alone_is_in_no_gang(void **state)
{
    struct rig *r = *state;
    setup(r, 0);
    rig_submit(r, 1, 100 * 1024 * KIB);
    r->memory = 8 * GIB;
    rig_join(r, 1, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 0);
    r->memory = 4 * GIB;
    rig_join(r, 2, 2);
    rig_join(r, 3, 3);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 2);
    profile_of(r, 2, 10);
    profile_of(r, 3, 10);
    assert_int_equal(view(r).count, 2);
    assert_true(view(r).members[0].worker != 1 && view(r).members[1].worker != 1);
}

/* No pipeline can be formed: each by itself, with a window; a newcomer makes one possible, and the one that holds leases is its head. */
static void test_a_window_until_others_come(void **state)
{
    struct rig *r = *state;
    setup(r, 0);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_LEASE), 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 6.0 GiB, the largest worker has 4.0 GiB: if no others come in a few seconds it is held by parts, "
                                                 "in turn");
    uint64_t from = r->now;
    while (!rig_count(r, SCHED_DO_SEND_LEASE)) {
        beat(r, 1);
        rig_tick(r, 500);
        assert_true(r->now - from < 10000);
    }
    assert_true(r->now - from >= 5000);
    struct sched_action lease = rig_find(r, SCHED_DO_SEND_LEASE);
    assert_int_equal(lease.worker, 1);
    rig_join(r, 2, 2);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_PROFILE).worker, 2); /* the other one has something to do */
    profile_of(r, 2, 10);
    assert_int_equal(sched_gang_count(r->s), 0);
    profile_of(r, 1, 10); /* it measured it before, or does so beside its work */
    assert_int_equal(view(r).count, 2);
    assert_int_equal(view(r).head, 1);
    assert_true(sched_leased(r->s, 1, 1, lease.epoch));
    all_ready(r, 2);
}

/* One stage: whatever the model's size, and at once. */
static void test_one_stage_takes_any_model(void **state)
{
    struct rig *r = *state;
    setup(r, 1);
    rig_submit(r, 1, 1000);
    rig_join(r, 1, 1);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_LEASE).worker, 1);
}

static void test_two_gangs(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 1024 * 1024 * KIB);
    for (uint64_t w = 1; w <= 4; w++)
        rig_join(r, w, w);
    for (uint64_t w = 1; w <= 4; w++)
        profile_of(r, w, w % 2 ? 10 : 30);
    rig_tick(r, 10);
    assert_int_equal(sched_gang_count(r->s), 2);
    struct sched_gang_view v[2];
    sched_gang_view(r->s, 0, &v[0]);
    sched_gang_view(r->s, 1, &v[1]);
    assert_true(v[0].gang < v[1].gang);
    for (int g = 0; g < 2; g++)
        for (uint32_t k = 0; k < v[g].count; k++)
            ready(r, v[g].members[k].worker, v[g].gang, 1);
    struct sched_worker_view x;
    size_t heads = 0;
    for (size_t i = 0; i < 4; i++) {
        sched_worker_view(r->s, i, &x);
        heads += x.leases > 0;
        assert_true(!x.leases || x.worker == v[0].head || x.worker == v[1].head);
    }
    assert_int_equal(heads, 2);
    assert_int_equal(rig_job(r, 1).workers, 4);
}

static void test_at_most_so_many_workers(void **state)
{
    struct rig *r = *state;
    setup(r, 3);
    r->params.max_workers = 2;
    rig_submit(r, 1, 100 * 1024 * KIB);
    for (uint64_t w = 1; w <= 4; w++)
        rig_join(r, w, w);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 3 workers that reach each other, and it may have at most 2");
    rig_control(r, 1, VERB_CANCEL);
    setup(r, 2);
    r->params.max_workers = 3;
    rig_submit(r, 2, 100 * 1024 * KIB);
    for (uint64_t w = 1; w <= 4; w++)
        profile_of(r, w, 10);
    assert_int_equal(view(r).count, 2); /* a second one would make four */
}

static void test_reach(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    r->reach = 1;
    rig_join(r, 1, 1);
    r->reach = 2;
    rig_join(r, 2, 2);
    r->reach = 0;
    rig_join(r, 3, 3);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 0);
    assert_string_equal(rig_job(r, 1).waits_for, "its model needs 2 workers that reach each other, 1 is there");
    r->reach = 2;
    rig_join(r, 4, 4);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_PROFILE), 3 - 1 + 1); /* whoever may be of use is measured */
    profile_of(r, 1, 10);
    profile_of(r, 2, 10);
    profile_of(r, 4, 10);
    struct sched_gang_view v = view(r);
    assert_true(v.members[0].worker + v.members[1].worker == 6 && v.members[0].worker != 3);
}

/* A job of higher priority waits, and pipelines hold all workers: they yield; when it is done they come back. */
static void test_priority(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 2);
    r->params.stages = 1;
    r->params.priority = 1;
    r->params.model_key = 9;
    rig_submit(r, 2, 2000 * KIB);
    uint64_t from = r->now;
    while (sched_gang_count(r->s)) {
        beat(r, 1);
        beat(r, 2);
        rig_tick(r, 500);
        assert_true(r->now - from < 6000);
    }
    assert_true(rig_count(r, SCHED_DO_SEND_REVOKE) > 0);
    assert_int_equal(rig_job(r, 1).spans_leased, 0);
    assert_int_equal(rig_job(r, 2).workers, 2);
    assert_string_equal(rig_job(r, 1).waits_for, "all 2 workers serve jobs of higher priority");
    rig_control(r, 2, VERB_CANCEL);
    assert_int_equal(view(r).job, 1);
    all_ready(r, 2);
}

static void test_pause_and_cancel(void **state)
{
    struct rig *r = *state;
    struct sched_action a;
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 2);
    struct rig_spans x = *rig_spans(r, 1);
    rig_control(r, 1, VERB_PAUSE);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_CUT), 1);
    assert_int_equal(sched_gang_count(r->s), 1); /* what is read is still done */
    struct extent done = rig_done(x.rows[0].span.begin, x.rows[0].span.end, 10);
    rig_commit_of(r, x.rows[0].worker, 1, x.rows[0].epoch, 0, &done, 1, NULL, 0, NULL);
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_STAGE), 2);
    rig_control(r, 1, VERB_RESUME);
    assert_int_equal(sched_gang_count(r->s), 1);
    all_ready(r, 2);
    rig_control(r, 1, VERB_CANCEL);
    assert_int_equal(sched_gang_count(r->s), 0);
    assert_int_equal(rig_count(r, SCHED_DO_SEND_REVOKE), 1);
    for (uint64_t w = 1; w <= 2; w++)
        assert_int_equal(stage_of(r, w, &a), -3);
    rig_control(r, 1, VERB_REMOVE);
}

static void test_the_end_of_a_job(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    rig_submit(r, 1, 100 * KIB);
    form(r, 2);
    struct rig_spans x = *rig_spans(r, 1);
    for (size_t i = 0; i < x.count; i++) {
        struct extent done = rig_done(x.rows[i].span.begin, x.rows[i].span.end, 10);
        if (x.rows[i].epoch)
            rig_commit_of(r, x.rows[i].worker, 1, x.rows[i].epoch, 0, &done, 1, NULL, 0, NULL);
    }
    while (rig_count(r, SCHED_DO_SEND_LEASE)) {
        struct sched_action l = rig_find(r, SCHED_DO_SEND_LEASE);
        rig_commit(r, &l, 0, l.u.lease.span.begin, l.u.lease.span.end, 10);
    }
    x = *rig_spans(r, 1);
    for (size_t i = 0; i < x.count; i++) {
        struct extent done = rig_done(x.rows[i].span.begin, x.rows[i].span.end, 10);
        rig_commit_of(r, x.rows[i].worker, 1, x.rows[i].epoch, 0, &done, 1, NULL, 0, NULL);
    }
    assert_int_equal(rig_job(r, 1).row->state, JOB_PUBLISHING);
    assert_int_equal(sched_gang_count(r->s), 0);
}

/* One is so much faster that every division is slower than that one alone. */
static void test_better_alone(void **state)
{
    struct rig *r = *state;
    setup(r, 2);
    r->memory = 16 * GIB;
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    profile_of(r, 1, 1);
    profile_of(r, 2, 1000);
    rig_tick(r, 10);
    assert_int_equal(sched_gang_count(r->s), 0);
    struct sched_worker_view x;
    sched_worker_view(r->s, 0, &x);
    assert_int_equal(x.leases, 1);
    sched_worker_view(r->s, 1, &x);
    assert_int_equal(x.leases, 0);
}

static void test_how_many_are_wanted(void **state)
{
    struct rig *r = *state;
    setup(r, 3);
    rig_submit(r, 1, 300 * KIB); /* five pieces of 64 KiB: whole pipelines */
    assert_int_equal(rig_find(r, SCHED_DO_WANT_WORKERS).u.want.workers, 6);
}

/* Links: 1000 bytes take 0.008 ms, or so many. */
#define FAST 1e9
#define SLOW(ms) (8e3 / (ms) * 1e3)

static void links_of(struct rig *r, uint64_t worker, double ms, const struct sched_link *links, size_t count)
{
    struct sched_segment x[12];
    rig_step(r, profile_event(worker, ms, x, links, count));
}

static int beside(const struct sched_gang_view *v, uint64_t a, uint64_t b)
{
    for (uint32_t i = 0; i + 1 < v->count; i++)
        if ((v->members[i].worker == a && v->members[i + 1].worker == b) || (v->members[i].worker == b && v->members[i + 1].worker == a))
            return 1;
    return 0;
}

/* Three equal ones, two of which are far from each other: the third is between them, whichever two and whoever of them says so. */
static void test_a_slow_link_is_avoided(void **state)
{
    static const struct {
        double by_1_of_2, by_1_of_3, by_2_of_1, by_2_of_3;
        uint64_t far[2];
    } cases[] = {
        {SLOW(800), FAST, FAST, FAST, {1, 2}}, /* both said something: the slower counts */
        {FAST, SLOW(800), FAST, FAST, {1, 3}},
        {FAST, FAST, FAST, SLOW(800), {2, 3}},
        {FAST, FAST, SLOW(800), FAST, {1, 2}},
    };
    struct rig *r = *state;
    setup(r, 3);
    for (uint64_t w = 1; w <= 3; w++)
        rig_join(r, w, w);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sched_link by_1[] = {{2, cases[i].by_1_of_2, 0}, {3, cases[i].by_1_of_3, 0}}, by_2[] = {{1, cases[i].by_2_of_1, 0}, {3, cases[i].by_2_of_3, 0}};
        links_of(r, 1, 10, by_1, 2);
        links_of(r, 2, 10, by_2, 2);
        profile_of(r, 3, 10); /* it was asked first: the others were not there yet */
        rig_submit(r, i + 1, 100 * 1024 * KIB);
        struct sched_gang_view v = view(r);
        assert_int_equal(v.count, 3);
        assert_false(beside(&v, cases[i].far[0], cases[i].far[1]));
        assert_int_equal((int)v.bottleneck_ms, 40);
        rig_control(r, i + 1, VERB_CANCEL);
        assert_int_equal(sched_gang_count(r->s), 0);
    }
    /* told anew without links: they are as they were */
    profile_of(r, 1, 10);
    profile_of(r, 2, 10);
    rig_submit(r, 9, 100 * 1024 * KIB);
    struct sched_gang_view v = view(r);
    assert_int_equal(v.count, 3);
    assert_false(beside(&v, 1, 2));
}

/* Two hold the model as well, at 60 ms a micro-batch: the third is taken in only if what crosses to it takes less. */
static void test_one_that_is_far_is_left_out(void **state)
{
    struct rig *r = *state;
    setup(r, 3);
    r->memory = 8 * GIB;
    for (uint64_t w = 1; w <= 3; w++)
        rig_join(r, w, w);
    for (uint64_t far = 1; far <= 3; far++)
        for (int better = 0; better <= 1; better++) {
            struct sched_link links[2];
            for (uint64_t w = 1, n = 0; w <= 3; w++)
                if (w != far)
                    links[n++] = (struct sched_link){w, better ? SLOW(45) : SLOW(80), 0};
            for (uint64_t w = 1; w <= 3; w++) {
                struct sched_link near[2] = {{w % 3 + 1, FAST, 0}, {(w + 1) % 3 + 1, FAST, 0}};
                links_of(r, w, 10, w == far ? links : near, 2);
            }
            uint64_t job = far * 2 + (uint64_t)better;
            rig_submit(r, job, 100 * 1024 * KIB);
            struct sched_gang_view v = view(r);
            assert_int_equal(v.count, better ? 3 : 2);
            for (uint32_t i = 0; i < v.count; i++)
                assert_true(better || v.members[i].worker != far);
            assert_int_equal((int)v.bottleneck_ms, better ? 45 : 60);
            rig_control(r, job, VERB_CANCEL);
        }
}

/* A pipeline that runs over a link that turns out to be slow is cut anew. */
static void test_a_link_that_is_measured_later(void **state)
{
    struct rig *r = *state;
    setup(r, 3);
    rig_submit(r, 1, 100 * 1024 * KIB);
    form(r, 3);
    struct sched_gang_view v = view(r);
    uint64_t a = v.members[0].worker, b = v.members[1].worker;
    struct sched_link slow = {b, FAST, 700}; /* its latency is */
    links_of(r, a, 10, &slow, 1);
    for (int i = 0; i < 40 && v.cut == 1; i++) {
        for (uint64_t w = 1; w <= 3; w++)
            beat(r, w);
        rig_tick(r, 1000);
        v = view(r);
    }
    assert_int_equal(v.cut, 2);
    assert_int_equal(v.count, 3);
    assert_false(beside(&v, a, b));
    all_ready(r, 3);
}

/* More segments than are weighed one by one with links; where memory leaves one way to cut only, that one is found. */
static void test_links_and_many_segments(void **state)
{
    struct rig *r = *state;
    struct sched_segment x[200];
    setup(r, 2);
    r->params.model_bytes = 200;
    for (uint64_t w = 1; w <= 3; w++) {
        r->memory = w == 3 ? 50 : w == 1 ? 101 : 99;
        rig_join(r, w, w);
        struct sched_link link = {1, w == 3 ? SLOW(300) : SLOW(150), 0};
        struct sched_event ev = profile_event(w, 1, x, &link, w > 1);
        for (size_t i = 0; i < 200; i++)
            x[i] = (struct sched_segment){1, 1, 1000};
        ev.u.profiled.count = 200;
        ev.u.profiled.fixed_bytes = 0;
        rig_step(r, ev);
    }
    rig_submit(r, 1, 100 * 1024 * KIB);
    struct sched_gang_view v = view(r);
    assert_int_equal(v.count, 2);
    assert_int_equal(v.members[0].end - v.members[0].first, v.members[0].worker == 1 ? 101 : 99);
    assert_int_equal((int)v.bottleneck_ms, 150);
    rig_control(r, 1, VERB_CANCEL);
    r->params.stages = 3;
    rig_submit(r, 2, 100 * 1024 * KIB);
    v = view(r);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.segments, 200);
    assert_false(beside(&v, 1, 3));
    assert_int_equal((int)v.bottleneck_ms, 150);
}

static void test_links_that_are_none(void **state)
{
    static const struct sched_link wrong[] = {
        {2, 0, 0}, {2, -1, 0}, {2, (double)NAN, 0}, {2, (double)INFINITY, 0}, {2, FAST, -1}, {2, FAST, (double)NAN}, {2, FAST, (double)INFINITY},
    };
    struct rig *r = *state;
    struct sched_segment x[12];
    struct sched_link many[65];
    setup(r, 2);
    rig_submit(r, 1, 100 * 1024 * KIB);
    rig_join(r, 1, 1);
    rig_join(r, 2, 2);
    profile_of(r, 2, 10);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sched_link two[] = {{7, FAST, 1}, wrong[i]};
        struct sched_event ev = profile_event(1, 10, x, two, 2);
        assert_int_equal(rig_try(r, &ev), ST_USER);
        assert_non_null(strstr(r->e.text, "its link to 2"));
    }
    for (size_t i = 0; i < 65; i++)
        many[i] = (struct sched_link){i, FAST, 1};
    struct sched_event ev = profile_event(1, 10, x, many, 65);
    assert_int_equal(rig_try(r, &ev), ST_USER);
    rig_tick(r, 10);
    assert_int_equal(sched_gang_count(r->s), 0); /* it is as if nothing had been said */
    links_of(r, 1, 10, many, 64);
    assert_int_equal(view(r).count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_a_gang_is_formed),
        RIG_TEST(test_a_newcomer),
        RIG_TEST(test_as_few_as_it_takes),
        RIG_TEST(test_one_that_holds_it_alone_is_in_no_gang),
        RIG_TEST(test_a_window_until_others_come),
        RIG_TEST(test_one_stage_takes_any_model),
        RIG_TEST(test_two_gangs),
        RIG_TEST(test_at_most_so_many_workers),
        RIG_TEST(test_reach),
        RIG_TEST(test_priority),
        RIG_TEST(test_pause_and_cancel),
        RIG_TEST(test_the_end_of_a_job),
        RIG_TEST(test_better_alone),
        RIG_TEST(test_how_many_are_wanted),
        RIG_TEST(test_a_slow_link_is_avoided),
        RIG_TEST(test_one_that_is_far_is_left_out),
        RIG_TEST(test_a_link_that_is_measured_later),
        RIG_TEST(test_links_and_many_segments),
        RIG_TEST(test_links_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
