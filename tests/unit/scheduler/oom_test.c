/* The Nth allocation of a step fails, for each N: the step says so and the core is as it was; or it did what the event says and
   leaves what it hands out beside that to the next tick. */
#include "tests/unit/scheduler/rig.h"

struct dump {
    struct job_row jobs[4];
    struct span_row spans[4][400];
    size_t span_count[4], job_count, workers, gangs;
    struct sched_worker_view worker[40];
    struct sched_gang_view gang[4];
};

static uint64_t alarm_ms; /* set */
static size_t visit_job;
static struct dump *visit_to;

static void visit(void *arg, const struct span_row *row)
{
    (void)arg;
    visit_to->spans[visit_job][visit_to->span_count[visit_job]++] = *row;
}

static void dump(struct rig *r, struct dump *d)
{
    memset(d, 0, sizeof *d);
    d->job_count = sched_job_count(r->s);
    for (size_t i = 0; i < d->job_count; i++) {
        uint64_t id = sched_job_at(r->s, i);
        d->jobs[i] = *rig_job(r, id).row;
        visit_job = i;
        visit_to = d;
        sched_spans(r->s, id, visit, NULL);
    }
    d->workers = sched_worker_count(r->s);
    for (size_t i = 0; i < d->workers; i++)
        sched_worker_view(r->s, i, &d->worker[i]);
    d->gangs = sched_gang_count(r->s);
    for (size_t i = 0; i < d->gangs; i++)
        sched_gang_view(r->s, i, &d->gang[i]);
}

/* Lets each allocation of the step fail until it succeeds. The core must not change before. */
static unsigned sweep(struct rig *r, struct sched_event ev)
{
    static struct dump before, after;
    for (unsigned n = 1;; n++) {
        assert_true(n < 200);
        dump(r, &before);
        /* the buffers that the caller keeps are given up, so that they are allocated anew */
        sched_update_release(&r->u);
        ev.now_ms = r->now;
        mem_fail_nth(n);
        enum status st = sched_step(r->s, &ev, &r->u, &r->e);
        uint64_t made = mem_fail_nth(0);
        sched_check(r->s);
        if (st == ST_NOMEM) {
            dump(r, &after);
            assert_memory_equal(&before, &after, sizeof before);
            assert_non_null(strstr(r->e.text, "out of memory"));
            assert_int_equal(r->u.count, 0);
            continue;
        }
        assert_int_equal(st, ST_OK);
        if (rig_count(r, SCHED_DO_WAKE))
            alarm_ms = rig_find(r, SCHED_DO_WAKE).u.wake_ms;
        if (made >= n) /* one failed, and the step did without: it comes back to it soon */
            assert_true(alarm_ms >= r->now && alarm_ms <= r->now + 100);
        return n;
    }
}

static void submit(struct rig *r, uint64_t job, uint64_t size)
{
    struct layout l;
    uint8_t kind = 0;
    assert_int_equal(layout_init(&l, 1, &size, &kind), 0);
    struct job_row row = {.id = job, .params = r->params};
    struct sched_event ev = {.kind = SCHED_JOB_SUBMITTED, .job = job};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    assert_true(sweep(r, ev) > 1);
    layout_release(&l);
}

static void join(struct rig *r, uint64_t worker)
{
    struct sched_event ev = {.kind = SCHED_WORKER_JOINED, .worker = worker};
    ev.u.joined.host = worker;
    ev.u.joined.numerics = 7;
    ev.u.joined.reach = r->reach;
    sweep(r, ev);
}

static void test_every_allocation_of_every_step(void **state)
{
    struct rig *r = *state;
    submit(r, 1, 64 * KIB * KIB);
    for (uint64_t w = 1; w <= 20; w++)
        join(r, w);
    for (int i = 0; i < 20; i++) { /* what was left over for want of memory */
        r->now += 200;
        rig_step(r, (struct sched_event){.kind = SCHED_TICK});
        if (rig_count(r, SCHED_DO_WAKE))
            alarm_ms = rig_find(r, SCHED_DO_WAKE).u.wake_ms;
    }
    assert_int_equal(rig_job(r, 1).workers, 20);
    struct rig_spans x = *rig_spans(r, 1);
    /* a commit with sixty holes and as many given back */
    struct extent done[60];
    struct sched_returned back[60];
    struct span s = x.rows[0].span;
    for (uint64_t i = 0; i < 60; i++) {
        done[i] = rig_done(s.begin + 10 + i * 40, s.begin + 20 + i * 40, 1);
        back[i] = (struct sched_returned){{s.begin + 30 + i * 40, s.begin + 40 + i * 40}, i % 2};
    }
    struct sched_event ev = {.kind = SCHED_COMMIT, .job = 1, .worker = x.rows[0].worker, .epoch = x.rows[0].epoch};
    ev.u.commit.done = done;
    ev.u.commit.done_count = 60;
    ev.u.commit.returned = back;
    ev.u.commit.returned_count = 60;
    assert_true(sweep(r, ev) > 1);
    assert_int_equal(rig_job(r, 1).row->counts.records, 60);
    assert_int_equal(rig_find(r, SCHED_DO_SEND_ACK).u.ack.verdict, ACK_DONE);
    /* a crash with suspects */
    struct sched_suspect suspects[30];
    for (uint64_t i = 0; i < 30; i++)
        suspects[i] = (struct sched_suspect){1, x.rows[1].epoch, {x.rows[1].span.begin + i * 20, x.rows[1].span.begin + i * 20 + 10}};
    ev = (struct sched_event){.kind = SCHED_WORKER_ENDED, .worker = x.rows[1].worker};
    ev.u.ended.how = WORKER_CRASHED;
    ev.u.ended.suspects = suspects;
    ev.u.ended.count = 30;
    sweep(r, ev);
    struct sched_progress p = {x.rows[2].epoch, x.rows[2].span.end, 1, 100};
    ev = (struct sched_event){.kind = SCHED_WORKER_BEAT, .worker = x.rows[2].worker};
    ev.u.beat.leases = &p;
    ev.u.beat.count = 1;
    sweep(r, ev);
    ev = (struct sched_event){.kind = SCHED_CUT_ANSWERED, .job = 1, .worker = x.rows[3].worker, .epoch = x.rows[3].epoch};
    ev.u.cut.at = (x.rows[3].span.begin + x.rows[3].span.end) / 2;
    sweep(r, ev);
    submit(r, 2, 1000);
    ev = rig_verb(2, VERB_PAUSE);
    sweep(r, ev);
    ev = rig_verb(2, VERB_RESUME);
    sweep(r, ev);
    r->now += 60000;
    sweep(r, (struct sched_event){.kind = SCHED_TICK});
    for (int i = 0; i < 40; i++) { /* all are lost, their work is back */
        r->now += 1000;
        sweep(r, (struct sched_event){.kind = SCHED_TICK});
        if (i % 2) /* now and then there is memory */
            rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    }
    assert_int_equal(rig_job(r, 1).spans_leased, 0);
    sweep(r, rig_verb(1, VERB_CANCEL));
    sweep(r, rig_verb(1, VERB_REMOVE));
    sweep(r, rig_verb(2, VERB_CANCEL));
}

static void test_starting_and_restoring(void **state)
{
    struct rig *r = *state;
    sched_free(r->s);
    for (unsigned n = 1;; n++) {
        mem_fail_nth(n);
        enum status st = sched_new(NULL, &r->s, &r->e);
        uint64_t made = mem_fail_nth(0);
        if (st == ST_OK && made < n)
            break;
        assert_int_equal(st, ST_NOMEM);
    }
    rig_step(r, (struct sched_event){.kind = SCHED_START, .u.start.generation = 9});
    struct layout l;
    uint64_t size = 1000;
    uint8_t plain = 0;
    assert_int_equal(layout_init(&l, 1, &size, &plain), 0);
    struct job_row row = {.id = 1, .state = JOB_RUNNING, .params = r->params};
    struct sched_event ev = {.kind = SCHED_JOB_RESTORED, .job = 1};
    ev.u.job.row = &row;
    ev.u.job.layout = &l;
    assert_true(sweep(r, ev) > 1);
    layout_release(&l);
    struct span_row span = {.span = {0, 500}, .state = SPAN_LEASED, .worker = 3, .epoch = EPOCH(1, 1), .next_seq = 4};
    ev = (struct sched_event){.kind = SCHED_SPAN_RESTORED, .job = 1};
    ev.u.span = &span;
    unsigned n = 1; /* a worker without spans may be left behind by a try: dump does not see it, the next try finds it */
    for (;; n++) {
        assert_true(n < 50);
        sched_update_release(&r->u);
        ev.now_ms = r->now;
        mem_fail_nth(n);
        enum status st = sched_step(r->s, &ev, &r->u, &r->e);
        mem_fail_nth(0);
        sched_check(r->s);
        if (st == ST_OK)
            break;
        assert_int_equal(st, ST_NOMEM);
        assert_int_equal(rig_spans(r, 1)->count, 0);
    }
    span = (struct span_row){.span = {500, 1000}};
    rig_step(r, ev);
    sweep(r, (struct sched_event){.kind = SCHED_RECOVERED});
    assert_int_equal(rig_spans(r, 1)->count, 2);
    assert_int_equal(rig_spans(r, 1)->rows[0].next_seq, 4);
}

/* What memory did not allow is done by the next tick. */
static void tick(struct rig *r)
{
    r->now += 100;
    rig_step(r, (struct sched_event){.kind = SCHED_TICK});
    if (rig_count(r, SCHED_DO_WAKE))
        alarm_ms = rig_find(r, SCHED_DO_WAKE).u.wake_ms;
}

static void profile(struct rig *r, uint64_t worker)
{
    struct sched_segment x[8];
    for (int i = 0; i < 8; i++)
        x[i] = (struct sched_segment){10 + (double)worker, 1000, 1000};
    struct sched_event ev = {.kind = SCHED_WORKER_PROFILED, .worker = worker};
    ev.u.profiled.model_key = 5;
    ev.u.profiled.segments = x;
    ev.u.profiled.count = 8;
    const struct sched_link links[] = {{1, 1e9, 0.1}, {3, 1e6, 1}};
    ev.u.profiled.links = worker % 2 ? NULL : links;
    ev.u.profiled.link_count = worker % 2 ? 0 : 2;
    sweep(r, ev);
    tick(r);
}

static struct sched_gang_view the_gang(struct rig *r)
{
    struct sched_gang_view v;
    assert_int_equal(sched_gang_count(r->s), 1);
    sched_gang_view(r->s, 0, &v);
    return v;
}

static void say(struct rig *r, enum sched_event_kind kind, uint64_t worker, uint64_t peer)
{
    struct sched_gang_view v = the_gang(r);
    struct sched_event ev = {.kind = kind, .worker = worker};
    ev.u.stage.gang = v.gang;
    ev.u.stage.cut = v.cut;
    ev.u.stage.peer = peer;
    sweep(r, ev);
    tick(r);
}

static void all_say(struct rig *r)
{
    struct sched_gang_view v = the_gang(r);
    for (uint32_t i = 0; i < v.count; i++)
        say(r, SCHED_STAGE_READY, v.members[i].worker, 0);
    assert_true(the_gang(r).running);
}

static void test_gangs(void **state)
{
    struct rig *r = *state;
    r->reach = 1;
    r->params.model_key = 5;
    r->params.stages = 3;
    submit(r, 1, 64 * KIB * KIB);
    for (uint64_t w = 1; w <= 4; w++)
        join(r, w);
    tick(r);
    for (uint64_t w = 1; w <= 4; w++)
        profile(r, w);
    all_say(r);
    struct sched_gang_view v = the_gang(r);
    assert_int_equal(v.count, 3);
    assert_int_equal(rig_job(r, 1).spans_leased > 0, 1);
    say(r, SCHED_STAGE_FAULT, v.head, v.members[0].worker == v.head ? v.members[1].worker : v.members[0].worker);
    assert_int_equal(the_gang(r).cut, 2);
    all_say(r);
    /* a member dies of a record */
    v = the_gang(r);
    struct rig_spans x = *rig_spans(r, 1);
    uint64_t victim = v.members[0].worker == v.head ? v.members[1].worker : v.members[0].worker;
    struct sched_suspect suspect = {1, x.rows[0].epoch, {x.rows[0].span.begin + 10, x.rows[0].span.begin + 20}};
    struct sched_event ev = {.kind = SCHED_WORKER_ENDED, .worker = victim};
    ev.u.ended.how = WORKER_CRASHED;
    ev.u.ended.suspects = &suspect;
    ev.u.ended.count = 1;
    sweep(r, ev);
    tick(r);
    assert_int_equal(rig_spans(r, 1)->rows[1].probe, 1);
    assert_true(the_gang(r).cut >= 3);
    all_say(r);
    /* the head says hello anew, then a member is drained, and there are too few */
    struct sched_held held = {1, EPOCH(7, 7), 0};
    ev = (struct sched_event){.kind = SCHED_WORKER_JOINED, .worker = the_gang(r).head};
    ev.u.joined.host = the_gang(r).head;
    ev.u.joined.numerics = 7;
    ev.u.joined.reach = 1;
    ev.u.joined.held = &held;
    ev.u.joined.held_count = 1;
    sweep(r, ev);
    tick(r);
    all_say(r);
    sweep(r, (struct sched_event){.kind = SCHED_WORKER_DRAIN, .worker = the_gang(r).members[0].worker});
    tick(r);
    if (sched_gang_count(r->s))
        sweep(r, (struct sched_event){.kind = SCHED_WORKER_DRAIN, .worker = the_gang(r).members[0].worker});
    tick(r);
    assert_int_equal(sched_gang_count(r->s), 0);
    for (uint64_t w = 5; w <= 7; w++) {
        join(r, w);
        tick(r);
        profile(r, w);
    }
    all_say(r);
    sweep(r, rig_verb(1, VERB_CANCEL));
    tick(r);
    assert_int_equal(sched_gang_count(r->s), 0);
    sweep(r, rig_verb(1, VERB_REMOVE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_every_allocation_of_every_step),
        RIG_TEST(test_starting_and_restoring),
        RIG_TEST(test_gangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
