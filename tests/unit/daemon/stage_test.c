/* Pipelines over several workers, as the daemon speaks of them: what members are told and in which order, what people see, and that nothing that a worker
   says of itself does harm. The workers are scripted: nothing is sent between them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/rows.h"
#include "tests/unit/daemon/rig.h"

#define LINES 300
#define SEGMENTS 6

struct member { /* what a scripted worker heard, by number */
    int jobs, profiles, stages, goes, left, leases;
    int silent;      /* does not answer Profile */
    uint64_t gang, head;
    uint32_t cut, first, end, index, members;
    uint8_t pass[16];
    char endpoints[GANG_MOST][128];
    double time_ms;
};
static struct member members[4]; /* numbers 0x100001.. */

#define NUMBER(i) (0x100001u + (uint64_t)(i))

static struct member *member_of(const struct rig_worker *w)
{
    return &members[w->number - NUMBER(0)];
}

static void profiled(struct rig_worker *w, uint64_t job, size_t count, double time_ms, uint64_t weight, double out_bytes)
{
    Ebb__Profiled p = EBB__PROFILED__INIT;
    static Ebb__Segment segments[5000], *pointers[5000];
    for (size_t i = 0; i < count; i++) {
        ebb__segment__init(&segments[i]);
        segments[i].time_ms = time_ms;
        segments[i].weight_bytes = weight;
        segments[i].out_bytes = out_bytes;
        pointers[i] = &segments[i];
    }
    p.job = job;
    p.model_key = w->model_key;
    p.numerics = "test-f32";
    p.digest.data = w->digest;
    p.digest.len = sizeof w->digest;
    p.n_segments = count;
    p.segments = pointers;
    p.fixed_bytes = 1000;
    p.dims = 4;
    rig_send(w, EBB__ENVELOPE__BODY_PROFILED, &p);
}

static void ready(struct rig_worker *w, uint64_t gang, uint32_t cut)
{
    Ebb__StageReady r = EBB__STAGE_READY__INIT;
    r.gang = gang;
    r.cut = cut;
    rig_send(w, EBB__ENVELOPE__BODY_STAGE_READY, &r);
}

static void fault(struct rig_worker *w, uint64_t gang, uint32_t cut, uint64_t peer, const char *text)
{
    Ebb__StageFault f = EBB__STAGE_FAULT__INIT;
    f.gang = gang;
    f.cut = cut;
    f.peer = peer;
    f.text = (char *)(uintptr_t)text;
    rig_send(w, EBB__ENVELOPE__BODY_STAGE_FAULT, &f);
}

static void take_stage(struct rig_worker *w, const Ebb__Stage *s)
{
    struct member *m = member_of(w);
    if (!s->n_members) {
        m->left++;
        return;
    }
    assert_true(m->jobs > 0); /* the job was told before */
    assert_int_equal(s->pass.len, 16);
    memcpy(m->pass, s->pass.data, 16);
    m->stages++;
    m->gang = s->gang;
    m->cut = s->cut;
    m->head = s->head;
    m->members = (uint32_t)s->n_members;
    for (uint32_t i = 0; i < s->n_members; i++) {
        const Ebb__StageMember *x = s->members[i];
        snprintf(m->endpoints[i], sizeof m->endpoints[i], "%s", x->endpoint);
        assert_string_equal(x->key, "");
        assert_true(x->first < x->end && x->end <= SEGMENTS);
        if (x->worker != w->number)
            continue;
        m->index = i;
        m->first = x->first;
        m->end = x->end;
    }
    ready(w, s->gang, s->cut);
}

static int hears(struct rig_worker *w, const Ebb__Envelope *e)
{
    struct member *m = member_of(w);
    switch (e->body_case) {
    case EBB__ENVELOPE__BODY_JOB: /* its model is not loaded as a whole */
        m->jobs++;
        snprintf(w->parts_dir, sizeof w->parts_dir, "%s", e->job->parts_dir);
        w->model_key = e->job->model_key;
        memcpy(w->digest, e->job->model_digest.data, 16);
        return 1;
    case EBB__ENVELOPE__BODY_PROFILE:
        assert_true(m->jobs > 0);
        m->profiles++;
        if (!m->silent)
            profiled(w, e->profile->job, SEGMENTS, m->time_ms, 1000, 50);
        return 1;
    case EBB__ENVELOPE__BODY_STAGE:
        take_stage(w, e->stage);
        return 1;
    case EBB__ENVELOPE__BODY_STAGE_GO:
        assert_true(e->stage_go->gang == m->gang && e->stage_go->cut == m->cut && m->head == w->number);
        m->goes++;
        return 1;
    case EBB__ENVELOPE__BODY_LEASE:
        assert_true(m->goes > 0); /* only the head, and only once all are ready */
        m->leases++;
        return 0;
    default: return 0;
    }
}

static void begin(struct rig *r, struct rig_worker *w, size_t i, const char *endpoint, const char *key)
{
    static char names[4][24], endpoints[4][160];
    snprintf(names[i], sizeof names[i], "test-host/%zu", i + 1);
    snprintf(endpoints[i], sizeof endpoints[i], "ipc://%s/stage-%zu", r->run, i);
    members[i] = (struct member){.time_ms = (double)i + 1};
    *w = (struct rig_worker){.hears = hears, .name = names[i], .stage_endpoint = endpoint ? endpoint : endpoints[i], .stage_key = key};
    rig_worker_begin(w, r, NUMBER(i));
}

static uint64_t submit(struct rig *r, const char *output, int stages)
{
    return rig_number(rig_ask(r, "submit", rig_spec(r, output, json_pack("{s:{s:i}}", "pipeline", "stages", stages)), 0), "job");
}

static json_t *job_of(struct rig *r, uint64_t job)
{
    return rig_ask(r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
}

#define TURN_UNTIL(w, count, condition, what)                                                                                    \
    for (uint64_t until_ = clock_ms() + PATIENCE_MS; !(condition);) {                                                            \
        for (size_t t_ = 0; t_ < (count); t_++)                                                                                  \
            rig_worker_turn(&(w)[t_], 2, 0);                                                                                     \
        if (clock_ms() > until_)                                                                                                 \
            RIG_FAIL("%s: not in time", what);                                                                                   \
    }

static int is_state(struct rig *r, uint64_t job, const char *state)
{
    json_t *o = job_of(r, job);
    int yes = strcmp(json_string_value(json_object_get(o, "state")), state) == 0;
    json_decref(o);
    return yes;
}

static int why_says(struct rig *r, uint64_t job, const char *words)
{
    json_t *o = rig_ask(r, "why", json_pack("{s:I}", "job", (json_int_t)job), 0);
    int yes = strstr(json_string_value(json_object_get(o, "text")), words) != NULL;
    json_decref(o);
    return yes;
}

static void two_workers_make_a_pipeline(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 2; i++)
        begin(&r, &w[i], i, NULL, NULL);
    uint64_t job = submit(&r, output, 2);
    TURN_UNTIL(w, 2, members[0].goes + members[1].goes == 1, "a pipeline");
    size_t head = members[0].goes ? 0 : 1;
    assert_true(members[0].head == NUMBER(head) && members[1].head == NUMBER(head));
    assert_true(members[0].gang == members[1].gang && members[0].cut == 1 && members[1].cut == 1);
    assert_memory_equal(members[0].pass, members[1].pass, 16);
    assert_int_equal(members[0].index + members[1].index, 1);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(members[i].members, 2);
        assert_string_equal(members[i].endpoints[members[0].index], w[0].stage_endpoint);
        assert_string_equal(members[i].endpoints[members[1].index], w[1].stage_endpoint);
    }
    /* worker 2 takes twice as long: it has a third of the segments */
    assert_int_equal(members[0].end - members[0].first, 4);
    assert_int_equal(members[1].end - members[1].first, 2);
    TURN_UNTIL(w, 2, members[head].leases > 0, "a lease");
    assert_int_equal(members[1 - head].leases, 0);

    json_t *o = job_of(&r, job), *gang = json_array_get(json_object_get(o, "gangs"), 0), *m;
    assert_int_equal(json_integer_value(json_object_get(o, "stages")), 2);
    assert_int_equal(json_array_size(json_object_get(o, "gangs")), 1);
    assert_string_equal(json_string_value(json_object_get(gang, "state")), "running");
    assert_int_equal(json_integer_value(json_object_get(gang, "cut")), 1);
    assert_int_equal(json_integer_value(json_object_get(gang, "segments")), SEGMENTS);
    assert_true(fabs(json_number_value(json_object_get(gang, "bottleneck_ms")) - 4) < 1e-9);
    assert_true(fabs(json_number_value(json_object_get(gang, "batches_per_s")) - 250) < 1e-6);
    size_t i;
    json_array_foreach(json_object_get(gang, "members"), i, m)
    {
        size_t k = members[0].index == i ? 0 : 1;
        assert_string_equal(json_string_value(json_object_get(m, "name")), w[k].name);
        assert_int_equal(json_integer_value(json_object_get(m, "first")), members[k].first + 1);
        assert_int_equal(json_integer_value(json_object_get(m, "last")), members[k].end);
        assert_int_equal(json_is_true(json_object_get(m, "head")), k == head);
        assert_true(json_is_true(json_object_get(m, "ready")));
    }
    json_decref(o);
    assert_true(why_says(&r, job, "is running on a pipeline of 2 workers"));
    o = rig_ask(&r, "workers", NULL, 0);
    json_array_foreach(json_object_get(o, "workers"), i, m)
    {
        size_t k = strcmp(json_string_value(json_object_get(m, "name")), w[0].name) == 0 ? 0 : 1;
        assert_int_equal(json_integer_value(json_object_get(m, "stage")), members[k].index + 1);
        assert_int_equal(json_integer_value(json_object_get(m, "stages")), 2);
        assert_int_equal(json_integer_value(json_object_get(m, "job")), job);
        assert_string_equal(json_string_value(json_object_get(m, "state")), "running");
        assert_int_equal(*json_string_value(json_object_get(m, "lease")) != 0, k == head);
    }
    json_decref(o);
    /* what was told is not what people know workers by */
    o = rig_ask(&r, "events", json_pack("{s:I}", "job", (json_int_t)job), 0);
    char *text = json_dumps(o, 0);
    assert_non_null(strstr(text, "test-host/2"));
    assert_null(strstr(text, "100002"));
    free(text);
    json_decref(o);

    for (uint64_t until = clock_ms() + PATIENCE_MS; !is_state(&r, job, "done") && clock_ms() < until;)
        for (size_t t = 0; t < 2; t++)
            rig_worker_turn(&w[t], 2, 1);
    struct buf made = {0};
    struct err e;
    assert_int_equal(path_read(output, 1 << 26, &made, &e), ST_OK);
    assert_int_equal(made.len, r.text_len);
    assert_memory_equal(made.data, r.text, r.text_len);
    buf_release(&made);
    assert_int_equal(members[1 - head].leases, 0);
    TURN_UNTIL(w, 2, members[0].left && members[1].left, "the pipeline's end");
    for (size_t t = 0; t < 2; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* The same job, typed again with another number: it goes on, and its pipeline ends. */
static void the_number_may_change(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 2; i++)
        begin(&r, &w[i], i, NULL, NULL);
    uint64_t job = submit(&r, output, 2);
    TURN_UNTIL(w, 2, members[0].leases + members[1].leases, "a pipeline that has a lease");
    members[0].goes = members[1].goes = 1; /* now each may have one */
    assert_int_equal(submit(&r, output, 1), job);
    TURN_UNTIL(w, 2, members[0].left && members[1].left, "no pipeline");
    json_t *o = job_of(&r, job);
    assert_int_equal(json_integer_value(json_object_get(o, "stages")), 1);
    assert_int_equal(json_array_size(json_object_get(o, "gangs")), 0);
    json_decref(o);
    for (uint64_t until = clock_ms() + PATIENCE_MS; !is_state(&r, job, "done") && clock_ms() < until;)
        for (size_t t = 0; t < 2; t++)
            rig_worker_turn(&w[t], 2, 1);
    assert_true(is_state(&r, job, "done"));
    struct buf made = {0};
    struct err e;
    assert_int_equal(path_read(output, 1 << 26, &made, &e), ST_OK);
    assert_int_equal(made.len, r.text_len);
    assert_memory_equal(made.data, r.text, r.text_len);
    buf_release(&made);
    for (size_t t = 0; t < 2; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* A member's fault is told; with a peer the model is divided anew, alone it is as a model that cannot be loaded. */
static void faults_are_heard(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 2; i++)
        begin(&r, &w[i], i, NULL, NULL);
    uint64_t job = submit(&r, output, 2);
    TURN_UNTIL(w, 2, members[0].goes + members[1].goes == 1, "a pipeline");
    uint64_t gang = members[0].gang;
    uint8_t pass[16];
    memcpy(pass, members[0].pass, 16);
    /* of another gang, of an older cut, of nobody: nothing happens */
    fault(&w[0], gang + 1, 1, NUMBER(1), "x");
    fault(&w[0], gang, 7, NUMBER(1), "x");
    fault(&w[0], 0, 0, 0, "");
    ready(&w[0], 0, 0);
    ready(&w[1], gang ^ 12345, 1);
    fault(&w[0], gang, 1, NUMBER(1), "no answer\n\x1b[31m to what was sent");
    TURN_UNTIL(w, 2, members[0].cut == 2 && members[1].cut == 2 && members[0].goes + members[1].goes == 2, "another cut");
    assert_true(members[0].gang == gang && members[1].gang == gang);
    assert_memory_equal(members[1].pass, pass, 16);
    fault(&w[1], gang, 2, 0, "its part lies in pieces");
    TURN_UNTIL(w, 2, why_says(&r, job, "needs 2 workers that reach each other, 1 is there"), "a worker less");
    json_t *o = rig_ask(&r, "events", json_pack("{s:I}", "job", (json_int_t)job), 0);
    char *text = json_dumps(o, 0);
    assert_non_null(strstr(text, "worker test-host/2 cannot hold its part of the model: worker test-host/2: its part lies in pieces"));
    assert_non_null(strstr(text, "worker test-host/1 gets no answer from test-host/2: the pipeline is cut anew"));
    free(text);
    json_decref(o);
    TURN_UNTIL(w, 2, members[0].left > 0, "the pipeline's end");
    for (size_t t = 0; t < 2; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* What cannot be passed on makes no member. */
static void endpoints_are_looked_at(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"tcp://192.0.2.1:5571", ""},
                                         {"tcp://192.0.2.1:5571", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"},
                                         {"ipc:///tmp/../etc/x", ""},
                                         {"ipc://x", ""},
                                         {"ipc:///tmp/a b", ""},
                                         {"ipc:///tmp/a", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"},
                                         {"inproc://x", ""},
                                         {"ipc:///0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789", ""},
                                         {"", ""}};
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    rig_open(&r, 10);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    begin(&r, &w[0], 0, NULL, NULL);
    uint64_t job = submit(&r, output, 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin(&r, &w[1], 1, bad[i][0], bad[i][1]);
        TURN_UNTIL(w, 2, w[1].welcomed, "a welcome");
        json_decref(job_of(&r, job)); /* a turn of the daemon's: the hello has been taken in */
        for (int k = 0; k < 20; k++)
            rig_worker_turn(&w[k % 2], 2, 0);
        assert_int_equal(members[1].profiles + members[1].stages, 0);
        assert_true(why_says(&r, job, "needs 2 workers that reach each other, 1 is there"));
        rig_worker_close(&w[1]);
    }
    rig_worker_close(&w[0]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* A profile that makes no sense is as if none had come; one of other bytes is a model that was not submitted. */
static void profiles_are_looked_at(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 2; i++)
        begin(&r, &w[i], i, NULL, NULL);
    members[1].silent = 1;
    uint64_t job = submit(&r, output, 2);
    TURN_UNTIL(w, 2, members[0].profiles && members[1].profiles, "to be asked");
    profiled(&w[1], job, 0, 1, 1, 1);
    profiled(&w[1], job, 5000, 1, 1, 1);
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 1e300};
    for (size_t i = 0; i < 5; i++) {
        profiled(&w[1], job, SEGMENTS, odd[i], 1, 1);
        profiled(&w[1], job, SEGMENTS, 1, 1, odd[i]);
    }
    profiled(&w[1], job, SEGMENTS, 1, UINT64_MAX, 1);
    profiled(&w[1], job + 7, SEGMENTS, 1, 1, 1);
    uint64_t key = w[1].model_key;
    w[1].model_key ^= 1;
    profiled(&w[1], job, SEGMENTS, 1, 1, 1);
    w[1].model_key = key;
    for (int k = 0; k < 40; k++)
        rig_worker_turn(&w[k % 2], 2, 0);
    assert_int_equal(members[0].stages + members[1].stages, 0);
    assert_true(why_says(&r, job, "measured"));
    w[1].digest[3] ^= 1;
    profiled(&w[1], job, SEGMENTS, 1, 1, 1);
    TURN_UNTIL(w, 2, why_says(&r, job, "needs 2 workers that reach each other, 1 is there"), "a worker less");
    assert_int_equal(members[0].stages + members[1].stages, 0);
    for (size_t t = 0; t < 2; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_workers_make_a_pipeline),
        cmocka_unit_test(the_number_may_change),
        cmocka_unit_test(faults_are_heard),
        cmocka_unit_test(endpoints_are_looked_at),
        cmocka_unit_test(profiles_are_looked_at),
    };
    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
