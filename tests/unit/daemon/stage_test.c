/* Pipelines over several workers, as the daemon speaks of them: what members are told and in which order, what people see, and that nothing that a worker
   says of itself does harm. The workers are scripted: nothing is sent between them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/rows.h"
#include "tests/unit/daemon/rig.h"

#define LINES 300
#define SEGMENTS 6
#define PEERS_MOST 40
#define STAGE_KEY "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"

struct told_peer { /* of a Profile */
    uint64_t worker;
    char endpoint[128];
};

struct member { /* what a scripted worker heard, by number */
    int jobs, profiles, stages, goes, left, leases;
    int silent;      /* does not answer Profile */
    uint64_t gang, head;
    uint32_t cut, first, end, index, members;
    uint8_t pass[16];
    char endpoints[GANG_MOST][128];
    double time_ms;
    const char *stage_key; /* that members are to be told; NULL: none */
    size_t peer_count;
    struct told_peer peers[PEERS_MOST];
    size_t link_count;     /* that it tells with its profile */
    const Ebb__Link *links;
};
#define MEMBERS 40
static struct member members[MEMBERS]; /* numbers 0x100001.. */

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
    const struct member *m = member_of(w);
    Ebb__Link *links[100];
    assert_true(m->link_count <= 100);
    for (size_t i = 0; i < m->link_count; i++)
        links[i] = (Ebb__Link *)(uintptr_t)&m->links[i];
    p.n_links = m->link_count;
    p.links = links;
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
        assert_string_equal(x->key, m->stage_key ? m->stage_key : "");
        assert_true(x->first < x->end && x->end <= SEGMENTS);
        if (x->worker != w->number)
            continue;
        m->index = i;
        m->first = x->first;
        m->end = x->end;
    }
    ready(w, s->gang, s->cut);
}

static void take_profile(struct rig_worker *w, const Ebb__Profile *p)
{
    struct member *m = member_of(w);
    assert_true(m->jobs > 0);
    m->profiles++;
    assert_true(p->n_peers <= PEERS_MOST);
    m->peer_count = p->n_peers;
    for (size_t i = 0; i < p->n_peers; i++) {
        m->peers[i].worker = p->peers[i]->worker;
        snprintf(m->peers[i].endpoint, sizeof m->peers[i].endpoint, "%s", p->peers[i]->endpoint);
        assert_string_equal(p->peers[i]->key, m->stage_key);
        assert_int_equal(p->peers[i]->first + p->peers[i]->end, 0);
    }
    if (!m->silent)
        profiled(w, p->job, SEGMENTS, m->time_ms, 1000, 50);
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
        take_profile(w, e->profile);
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
    static char names[8][24], endpoints[8][160];
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
        /* as soon as the first one has been heard again, which a busy machine may keep from turning for long */
        TURN_UNTIL(w, 2, why_says(&r, job, "needs 2 workers that reach each other, 1 is there"), "why it waits");
        assert_int_equal(members[1].profiles + members[1].stages, 0);
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

/* Over the network ---------------------------------------------------------------------------------------------------------------- */

struct net { /* how workers of other hosts come in */
    char config[128], at[64];
    struct keys keys;
};

/* The first of three ports in a row at which nobody listens, below those that the system gives away by itself. */
static int free_ports(void)
{
    for (;;) {
        uint16_t drawn;
        assert_int_equal(getrandom(&drawn, sizeof drawn, 0), sizeof drawn);
        int first = 20000 + drawn % 12000, fds[3], free_ones = 0;
        for (int i = 0; i < 3; i++) {
            struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(first + i)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            fds[i] = socket(AF_INET, SOCK_STREAM, 0);
            assert_true(fds[i] >= 0);
            free_ones += bind(fds[i], (const struct sockaddr *)&a, sizeof a) == 0;
        }
        for (int i = 0; i < 3; i++)
            close(fds[i]);
        if (free_ones == 3)
            return first;
    }
}

static void net_open(struct net *n, struct rig *r)
{
    struct keys_file daemon = {.role = KEYS_DAEMON};
    struct err e;
    char file[128];
    struct buf text = {0};
    assert_int_equal(keys_generate(&daemon.keys, &e), ST_OK);
    assert_int_equal(keys_generate(&n->keys, &e), ST_OK);
    memcpy(n->keys.server_key, daemon.keys.public_key, sizeof n->keys.server_key);
    assert_int_equal(mkdir(r->state, 0700), 0);
    snprintf(file, sizeof file, "%s/" KEYS_DIR, r->state);
    assert_int_equal(mkdir(file, 0700), 0);
    snprintf(file, sizeof file, "%s/" KEYS_DAEMON_FILE, r->state);
    assert_int_equal(keys_write(file, &daemon, &e), ST_OK);
    snprintf(file, sizeof file, "%s/" KEYS_AUTHORIZED_FILE, r->state);
    assert_int_equal(buf_printf(&text, "node %s others\n", n->keys.public_key), 0);
    files_put(file, text.data, text.len);
    text.len = 0;
    snprintf(n->at, sizeof n->at, "tcp://127.0.0.1:%d", free_ports());
    snprintf(n->config, sizeof n->config, "%s/ebbd.yaml", r->dir);
    assert_int_equal(buf_printf(&text, "listen: %s\nroots: [%s]\n", n->at, r->dir), 0);
    files_put(n->config, text.data, text.len);
    buf_release(&text);
    rig_start(r, NULL, (const char *const[]){"--config", n->config, NULL});
    for (uint64_t until = clock_ms() + PATIENCE_MS; access(r->run, F_OK) && clock_ms() < until;)
        sock_wait(r->client, 5);
}

static void net_begin(struct rig *r, const struct net *n, struct rig_worker *w, size_t i, const char *host, const char *endpoint)
{
    static char names[MEMBERS][64];
    snprintf(names[i], sizeof names[i], "%s/%zu", host, i + 1);
    members[i] = (struct member){.time_ms = 1, .stage_key = STAGE_KEY};
    *w = (struct rig_worker){.hears = hears, .name = names[i], .host = host, .stage_endpoint = endpoint, .stage_key = STAGE_KEY, .at = n->at, .keys = &n->keys};
    rig_worker_begin(w, r, NUMBER(i));
    TURN_UNTIL(w, 1, w->welcomed, "a welcome");
}

static int logged(struct rig *r, const char *words)
{
    char file[128];
    struct buf text = {0};
    struct err e;
    snprintf(file, sizeof file, "%s/ebbd.log", r->dir);
    assert_int_equal(path_read(file, 1 << 26, &text, &e), ST_OK);
    int has = text.len && memmem(text.data, text.len, words, strlen(words)) != NULL;
    buf_release(&text);
    return has;
}

/* Each is told the workers of other hosts that it reaches, and no others: not those beside it, over the network or not, and not those that cannot be members. */
static void ways_to_other_hosts_are_measured(void **state)
{
    (void)state;
    static const char *const endpoints[] = {"tcp://192.0.2.1:5001", "tcp://192.0.2.1:5002", "tcp://192.0.2.2:5001"};
    static const Ebb__Link link = {.base = PROTOBUF_C_MESSAGE_INIT(&ebb__link__descriptor), .worker = NUMBER(0), .bits_per_s = 940e6, .latency_ms = 0.21};
    struct rig r;
    struct net n = {.keys = {{0}, {0}, {0}}};
    struct rig_worker w[6];
    char output[128];
    rig_open(&r, LINES);
    net_open(&n, &r);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    net_begin(&r, &n, &w[0], 0, "near", endpoints[0]);
    net_begin(&r, &n, &w[1], 1, "near", endpoints[1]);
    net_begin(&r, &n, &w[2], 2, "far", endpoints[2]);
    net_begin(&r, &n, &w[3], 3, "elsewhere", "tcp://127.0.0.1:5003"); /* within its host alone */
    net_begin(&r, &n, &w[4], 4, "elsewhere", "nonsense");
    begin(&r, &w[5], 5, NULL, NULL); /* beside the daemon */
    TURN_UNTIL(w, 6, w[5].welcomed, "a welcome");
    members[2].links = &link;
    members[2].link_count = 1;
    uint64_t job = submit(&r, output, 3);
    TURN_UNTIL(w, 6, members[0].goes + members[1].goes + members[2].goes == 1, "a pipeline");
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(members[i].peer_count, 1);
        assert_true(members[i].peers[0].worker == NUMBER(2));
        assert_string_equal(members[i].peers[0].endpoint, endpoints[2]);
    }
    assert_int_equal(members[2].peer_count, 2);
    for (size_t i = 0; i < 2; i++) {
        size_t k = members[2].peers[i].worker == NUMBER(1);
        assert_true(members[2].peers[i].worker == NUMBER(k));
        assert_string_equal(members[2].peers[i].endpoint, endpoints[k]);
    }
    assert_true(members[2].peers[0].worker != members[2].peers[1].worker);
    for (size_t i = 3; i < 6; i++)
        assert_int_equal(members[i].peer_count, 0);
    assert_int_equal(members[0].members, 3);
    assert_true(logged(&r, "worker far/3: to worker near/1 940 Mbit/s, 0.21 ms"));
    for (uint64_t until = clock_ms() + PATIENCE_MS; !is_state(&r, job, "done") && clock_ms() < until;)
        for (size_t t = 0; t < 6; t++)
            rig_worker_turn(&w[t], 2, 1);
    assert_true(is_state(&r, job, "done"));
    for (size_t t = 0; t < 6; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* Of many those that joined last. */
static void ways_to_measure_are_bounded(void **state)
{
    (void)state;
    static struct rig_worker w[36];
    char endpoints[36][64], output[128];
    struct rig r;
    struct net n = {.keys = {{0}, {0}, {0}}};
    rig_open(&r, 10);
    net_open(&n, &r);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 36; i++) {
        snprintf(endpoints[i], sizeof endpoints[i], "tcp://192.0.2.%zu:5001", i + 1);
        net_begin(&r, &n, &w[i], i, i ? "far" : "near", endpoints[i]);
        members[i].silent = 1;
        for (uint64_t now = clock_ms(); clock_ms() == now;) /* no two join at once */
            ;
        for (size_t k = 0; k < i; k++) /* they go on beating */
            rig_worker_turn(&w[k], 0, 0);
    }
    submit(&r, output, 2);
    TURN_UNTIL(w, 36, members[0].profiles && members[1].profiles, "to be asked");
    assert_int_equal(members[0].peer_count, 32);
    for (size_t i = 0; i < 32; i++)
        assert_true(members[0].peers[i].worker == NUMBER(35 - i));
    assert_int_equal(members[1].peer_count, 1); /* all others are beside it */
    assert_true(members[1].peers[0].worker == NUMBER(0));
    for (size_t t = 0; t < 36; t++)
        rig_worker_close(&w[t]);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* Links that make no sense are left out, and the profile counts all the same; so do links to somebody who has gone. */
static void links_are_looked_at(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 1e300};
    static Ebb__Link links[2][100];
    size_t count = 0;
    struct rig r;
    struct rig_worker w[2];
    char output[128];
    for (size_t i = 0; i < 200; i++) {
        ebb__link__init(&links[i / 100][i % 100]);
        links[i / 100][i % 100].worker = NUMBER(1 - i / 100);
        links[i / 100][i % 100].bits_per_s = 2.5e9;
        links[i / 100][i % 100].latency_ms = 0.02;
    }
    for (size_t i = 0; i < 5; i++) {
        links[0][count++].bits_per_s = odd[i];
        links[0][count++].latency_ms = odd[i];
    }
    links[0][count++].bits_per_s = 0;
    links[0][count++].bits_per_s = 5e-324;
    links[0][count++].latency_ms = 60000;
    links[0][count++].worker = 0;
    links[0][count++].worker = NUMBER(0); /* itself */
    links[0][count].worker = 0xdeadbeef;
    links[0][count].bits_per_s = 1;
    links[0][count].latency_ms = 59999;
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    for (size_t i = 0; i < 2; i++) {
        begin(&r, &w[i], i, NULL, NULL);
        members[i].links = links[i];
    }
    members[0].link_count = count + 2;
    members[1].link_count = 100;
    uint64_t job = submit(&r, output, 2);
    TURN_UNTIL(w, 2, members[0].goes + members[1].goes == 1, "a pipeline");
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(members[i].peer_count, 0); /* all of one host */
    assert_true(logged(&r, "worker test-host/1: 15 of the 17 links that it says to have measured are left out: its rate is impossible"));
    assert_true(logged(&r, "worker test-host/1: to worker test-host/2 2500 Mbit/s, 0.02 ms"));
    assert_true(logged(&r, "worker test-host/2: 36 of the 100 links that it says to have measured are left out: there are too many"));
    assert_false(logged(&r, "nan M"));
    assert_false(logged(&r, "inf M"));
    assert_false(logged(&r, "deadbeef"));
    for (uint64_t until = clock_ms() + PATIENCE_MS; !is_state(&r, job, "done") && clock_ms() < until;)
        for (size_t t = 0; t < 2; t++)
            rig_worker_turn(&w[t], 2, 1);
    assert_true(is_state(&r, job, "done"));
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
        cmocka_unit_test(ways_to_other_hosts_are_measured),
        cmocka_unit_test(ways_to_measure_are_bounded),
        cmocka_unit_test(links_are_looked_at),
    };
    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
