/* Real workers that are the stages of one pipeline, under a scripted daemon: whatever the number of stages, whoever is the head, dies, hangs or lies: what is committed is
   each record once, in the bytes of one worker alone. */
#pragma GCC diagnostic ignored "-Wunused-function" /* the daemon can do more than is asked of it here */
#include "tests/unit/worker/daemon.h"

#include <sys/socket.h>

#define JOB 3
#define LAYERS 4
#define SEGMENTS (LAYERS + 2)
#define WORKERS 4
#define RECORDS 300
#define FEW 40

struct worker {
    uint64_t number;
    pid_t pid; /* 0: there is none */
    char box[160], endpoint[200], key[48];
    int hello, bye, ready, faults, profiled;
    size_t links;
    uint64_t link_to;
    double bits_per_s, latency_ms;
    uint32_t ready_cut;
    uint64_t peer;         /* of its last fault */
    uint32_t fault_cut;
    char fault[1200];
    double ms[SEGMENTS];
    uint64_t fixed;
    struct sock_peer at;
};

struct pool {
    struct daemon *d;
    struct worker w[WORKERS];
    uint64_t gang;
    uint32_t cut;
    uint8_t pass[16];
    uint64_t epoch;
};

static char *rows_wanted;

/* NULL: one that was killed; what it said last may come behind that. */
static struct worker *whose(struct pool *p, const struct sock_peer *at)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | at->id[i];
    for (int i = 0; i < WORKERS; i++)
        if (p->w[i].number == number)
            return &p->w[i];
    return NULL;
}

static int on_other(struct daemon *d, const Ebb__Envelope *m)
{
    struct pool *p = d->arg;
    struct worker *w = whose(p, &d->peer);
    if (!w)
        return 1;
    w->at = d->peer;
    switch (m->body_case) {
    case EBB__ENVELOPE__BODY_HELLO:
        w->hello++;
        snprintf(w->endpoint, sizeof w->endpoint, "%s", m->hello->stage_endpoint);
        snprintf(w->key, sizeof w->key, "%s", m->hello->stage_key);
        return 0;
    case EBB__ENVELOPE__BODY_BYE:
        w->bye++;
        return 1;
    case EBB__ENVELOPE__BODY_MODEL_READY:
        return 0;
    case EBB__ENVELOPE__BODY_STAGE_READY:
        if (m->stage_ready->gang == p->gang) {
            w->ready++;
            w->ready_cut = m->stage_ready->cut;
        }
        return 1;
    case EBB__ENVELOPE__BODY_STAGE_FAULT:
        w->faults++;
        w->peer = m->stage_fault->peer;
        w->fault_cut = m->stage_fault->cut;
        snprintf(w->fault, sizeof w->fault, "%s", m->stage_fault->text);
        return 1;
    case EBB__ENVELOPE__BODY_PROFILED:
        w->profiled++;
        assert_int_equal(m->profiled->n_segments, SEGMENTS);
        for (int i = 0; i < SEGMENTS; i++)
            w->ms[i] = m->profiled->segments[i]->time_ms;
        w->fixed = m->profiled->fixed_bytes;
        w->links = m->profiled->n_links;
        if (w->links) {
            w->link_to = m->profiled->links[0]->worker;
            w->bits_per_s = m->profiled->links[0]->bits_per_s;
            w->latency_ms = m->profiled->links[0]->latency_ms;
        }
        assert_int_equal(m->profiled->job, JOB);
        assert_memory_equal(m->profiled->digest.data, d->digest.bytes, 16);
        return 1;
    default:
        return 0;
    }
}

static void start_worker(struct pool *p, int i, const char *const *env)
{
    struct worker *w = &p->w[i];
    struct daemon *d = p->d;
    w->number = UINT64_C(0xabcdef0000000000) + (uint64_t)i + ((uint64_t)(w->hello + 1) << 16);
    w->hello = w->bye = w->ready = w->faults = 0;
    snprintf(w->box, sizeof w->box, "%s/box%d", d->dir, i);
    unlink(w->box);
    w->pid = fork();
    assert_true(w->pid >= 0);
    if (w->pid)
        return;
    for (; env && *env; env++)
        putenv((char *)(uintptr_t)*env);
    if (!getenv("EBB_TEST_NOISE") && !freopen("/dev/null", "w", stderr))
        _exit(99);
    char number[32], name[16];
    snprintf(number, sizeof number, "%" PRIu64, w->number);
    snprintf(name, sizeof name, "t/%d", i);
    execl(worker_path(), "ebb-worker", "--connect", d->endpoint, "--name", name, "--number", number, "--blackbox", w->box, "--lanes", getenv("TEST_LANES") ? getenv("TEST_LANES") : "1",
          "--pack-cache", d->dir, "--grace", "5s", (char *)NULL);
    _exit(98);
}

static void reap(struct worker *w, int *code, int *number)
{
    int status = 0;
    for (uint64_t until = clock_ms() + WAIT_MS; waitpid(w->pid, &status, WNOHANG) != w->pid; clock_sleep_ms(5))
        if (clock_ms() > until)
            fail_msg("a worker does not end");
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    *number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    w->pid = 0;
}

static void kill_worker(struct worker *w, int number)
{
    int code, by;
    kill(w->pid, number);
    reap(w, &code, &by);
}

static void to(struct pool *p, int i)
{
    p->d->peer = p->w[i].at;
}

static void say_stage(struct pool *p, int i, const int *members, size_t n, const uint32_t *ends, int head)
{
    Ebb__StageMember list[WORKERS], *at[WORKERS];
    Ebb__Stage m = EBB__STAGE__INIT;
    for (size_t k = 0; k < n; k++) {
        const struct worker *w = &p->w[members[k]];
        list[k] = (Ebb__StageMember)EBB__STAGE_MEMBER__INIT;
        list[k].worker = w->number;
        list[k].first = k ? ends[k - 1] : 0;
        list[k].end = ends[k];
        list[k].endpoint = (char *)(uintptr_t)w->endpoint;
        list[k].key = (char *)(uintptr_t)w->key;
        at[k] = &list[k];
    }
    m.gang = p->gang;
    m.cut = p->cut;
    m.job = JOB;
    m.n_members = n;
    m.members = at;
    m.head = n ? p->w[head].number : 0;
    m.pass.data = p->pass;
    m.pass.len = sizeof p->pass;
    to(p, i);
    say(p->d, EBB__ENVELOPE__BODY_STAGE, &m);
}

static void say_go(struct pool *p, int head)
{
    Ebb__StageGo m = EBB__STAGE_GO__INIT;
    m.gang = p->gang;
    m.cut = p->cut;
    to(p, head);
    say(p->d, EBB__ENVELOPE__BODY_STAGE_GO, &m);
}

static int all_ready(struct pool *p, const int *members, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->w[members[i]].ready_cut != p->cut || !p->w[members[i]].ready)
            return 0;
    return 1;
}

/* The next cut: members with even parts, all told, all ready, the head told to go. */
static void cut_anew(struct pool *p, const int *members, size_t n, int head)
{
    uint32_t ends[WORKERS];
    p->cut++;
    for (size_t i = 0; i < n; i++)
        ends[i] = (uint32_t)((i + 1) * SEGMENTS / n);
    for (size_t i = 0; i < n; i++)
        say_stage(p, members[i], members, n, ends, head);
    HEAR_UNTIL(p->d, all_ready(p, members, n));
    say_go(p, head);
}

static void leave_gang(struct pool *p)
{
    for (int i = 0; i < WORKERS; i++)
        if (p->w[i].pid)
            say_stage(p, i, NULL, 0, NULL, 0);
}

static void new_gang(struct pool *p, const int *members, size_t n, int head)
{
    p->gang++;
    p->cut = 0;
    for (int i = 0; i < WORKERS; i++)
        p->w[i].ready = 0;
    cut_anew(p, members, n, head);
}

static struct span everything(const struct pool *p)
{
    return (struct span){0, layout_end(&p->d->data.layout)};
}

static void lease_all(struct pool *p, int head)
{
    to(p, head);
    say_lease(p->d, JOB, ++p->epoch, everything(p), 0);
}

static int all_done(struct pool *p)
{
    return covered(p->d) == everything(p).end;
}

static void check_rows(struct pool *p)
{
    struct buf errors = {0};
    char *rows = daemon_rows(p->d, everything(p), &errors);
    if (!rows_wanted)
        rows_wanted = strdup(rows);
    assert_string_equal(rows, rows_wanted);
    assert_string_equal(buf_cstr(&errors), "0:12 invalid_json\n");
    mem_free(rows);
    buf_release(&errors);
    daemon_forget(p->d);
}

/* Record 10 has a token that no other record has; behind it stands a line that is none. */
static void make_input(struct daemon *d, size_t records)
{
    static const char *const words[] = {"river", "stone", "tide", "ebb", "flow", "salt", "wind", "a", "of", "drift"};
    struct buf b = {0};
    struct err e;
    char path[200];
    for (size_t i = 0; i < records; i++) {
        if (i == 11)
            assert_int_equal(buf_str(&b, "{\"id\":\n"), 0);
        assert_int_equal(buf_printf(&b, "{\"id\":%zu,\"text\":\"%s", i, i == 10 ? "qq " : ""), 0);
        for (size_t k = 0; k < 1 + i * 7919 % 25; k++)
            assert_int_equal(buf_printf(&b, "%s ", words[(i * 31 + k * k * 17) % 10]), 0);
        assert_int_equal(buf_str(&b, "\"}\n"), 0);
    }
    snprintf(path, sizeof path, "%s/in.jsonl", d->dir);
    files_put(path, b.data, b.len);
    buf_release(&b);
    const char *inputs[] = {path};
    struct dataset_spec spec = {.inputs = inputs, .input_count = 1};
    if (dataset_open(&spec, &d->data, &e) != ST_OK)
        fail_msg("%s", e.text);
}

#define GATE_TOKEN "541" /* "qq" in the vocabulary of tests/lib/tinymodel.h: 109 + 16 x 26 + 16 */

static struct pool *make_pool(size_t records)
{
    struct pool *p = calloc(1, sizeof *p);
    struct err e;
    p->d = daemon_new();
    p->d->other = on_other;
    p->d->arg = p;
    p->gang = 0x7700;
    memset(p->pass, 0x5a, sizeof p->pass);
    assert_int_equal(path_remove_tree(p->d->model, &e), ST_OK);
    assert_int_equal(tinymodel_write(p->d->model, &(struct tinymodel){.hidden = 32, .layers = LAYERS, .vocab = 1024}), 0);
    assert_int_equal(modeldir_digest(p->d->model, &p->d->digest, &e), ST_OK);
    make_input(p->d, records);
    mem_free(rows_wanted);
    rows_wanted = NULL;
    return p;
}

/* Starts the first n, tells them of the job. */
static void start(struct pool *p, int n, const char *const *env)
{
    for (int i = 0; i < n; i++)
        start_worker(p, i, env);
    for (int i = 0; i < n; i++) {
        HEAR_UNTIL(p->d, p->w[i].hello);
        to(p, i);
        say_job(p->d, JOB);
    }
}

/* What one worker alone makes of it. */
static void run_alone(struct pool *p, int i)
{
    lease_all(p, i);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
}

static void free_pool(struct pool *p)
{
    for (int i = 0; i < WORKERS; i++)
        if (p->w[i].pid)
            kill_worker(&p->w[i], SIGKILL);
    daemon_free(p->d);
    free(p);
    free(rows_wanted);
    rows_wanted = NULL;
}

/* -------------------------------------------------------------------------------------------------------------------------------------- */

static void any_number_of_stages(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        int members[WORKERS], head;
        uint32_t batch, tokens;
    } cases[] = {
        {1, {0}, 0, 32, 1024}, {2, {0, 1}, 0, 1, 64}, {2, {1, 0}, 0, 5, 1024},       {3, {2, 0, 1}, 0, 32, 200},
        {4, {0, 1, 2, 3}, 0, 7, 1024}, {4, {3, 2, 1, 0}, 0, 64, 4096}, {3, {1, 2, 3}, 2, 16, 1024},
    };
    struct pool *p = make_pool(RECORDS);
    start(p, WORKERS, NULL);
    run_alone(p, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p->d->spec.micro_batch = cases[i].batch;
        p->d->spec.micro_batch_tokens = cases[i].tokens;
        for (int k = 0; k < WORKERS; k++) {
            to(p, k);
            say_job(p->d, JOB);
        }
        new_gang(p, cases[i].members, cases[i].n, cases[i].head);
        lease_all(p, cases[i].head);
        HEAR_UNTIL(p->d, all_done(p));
        check_rows(p);
        leave_gang(p);
    }
    run_alone(p, 0); /* the whole model again */
    for (int i = 0; i < WORKERS; i++) { /* nothing of a gang is left in them: an instrumented worker would end otherwise */
        int code, number;
        kill(p->w[i].pid, SIGTERM);
        HEAR_UNTIL(p->d, p->w[i].bye);
        reap(&p->w[i], &code, &number);
        assert_int_equal(code, 0);
        assert_int_equal(number, 0);
    }
    free_pool(p);
}

static void several_lanes(void **state)
{
    (void)state;
    setenv("TEST_LANES", "3", 1);
    struct pool *p = make_pool(RECORDS);
    start(p, 3, NULL);
    unsetenv("TEST_LANES");
    run_alone(p, 1);
    p->d->spec.micro_batch = 4;
    for (int k = 0; k < 3; k++) {
        to(p, k);
        say_job(p->d, JOB);
    }
    new_gang(p, (int[]){2, 1, 0}, 3, 1);
    lease_all(p, 1);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    for (int i = 0; i < 3; i++) { /* out of the middle of a gang */
        int code, number;
        kill(p->w[i].pid, SIGTERM);
        HEAR_UNTIL(p->d, p->w[i].bye);
        reap(&p->w[i], &code, &number);
        assert_int_equal(code, 0);
    }
    free_pool(p);
}

static const char *gate_env(struct pool *p, char *out, size_t size)
{
    snprintf(out, size, "EBB_TEST_STAGE=gate:" GATE_TOKEN ":%s/gate", p->d->dir);
    return out;
}

static void open_gate(struct pool *p)
{
    char path[200];
    snprintf(path, sizeof path, "%s/gate", p->d->dir);
    files_put(path, "", 0);
}

/* A gang of four, one of whose members waits at a record for the gate: some of the rest is done, some is on its way. */
static struct pool *halfway(int gated, int head)
{
    char text[300];
    struct pool *p = make_pool(RECORDS);
    const char *env[] = {"EBB_TEST_HOOK=1", "EBB_TEST_STAGE_TIMEOUT=600000", NULL, NULL};
    p->d->spec.micro_batch = 4;
    p->d->spec.commit_every = 100;
    start_worker(p, 0, NULL);
    HEAR_UNTIL(p->d, p->w[0].hello);
    to(p, 0);
    say_job(p->d, JOB);
    run_alone(p, 0);
    kill_worker(&p->w[0], SIGKILL);
    for (int i = 0; i < WORKERS; i++) {
        env[2] = i == gated ? gate_env(p, text, sizeof text) : NULL;
        start_worker(p, i, env);
    }
    for (int i = 0; i < WORKERS; i++) {
        HEAR_UNTIL(p->d, p->w[i].hello);
        to(p, i);
        say_job(p->d, JOB);
    }
    new_gang(p, (int[]){0, 1, 2, 3}, 4, head);
    lease_all(p, head);
    HEAR_UNTIL(p->d, p->d->got_count > 0); /* what came before the record at the gate */
    return p;
}

static void a_member_is_killed(void **state)
{
    (void)state;
    struct pool *p = halfway(2, 0);
    kill_worker(&p->w[2], SIGKILL);
    HEAR_UNTIL(p->d, p->w[1].faults); /* who sends to it sees it at once */
    assert_int_equal(p->w[1].peer, p->w[2].number);
    assert_int_equal(p->w[1].fault_cut, 1);
    cut_anew(p, (int[]){0, 3, 1}, 3, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

static void the_first_member_is_killed(void **state)
{
    (void)state;
    struct pool *p = halfway(0, 2);
    kill_worker(&p->w[0], SIGKILL);
    HEAR_UNTIL(p->d, p->w[2].faults);
    assert_int_equal(p->w[2].peer, p->w[0].number);
    cut_anew(p, (int[]){2, 3}, 2, 2);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

static void the_head_is_killed(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 1);
    kill_worker(&p->w[1], SIGKILL);
    HEAR_UNTIL(p->d, p->w[0].faults);
    open_gate(p);
    daemon_forget(p->d);
    leave_gang(p);
    new_gang(p, (int[]){0, 2, 3}, 3, 3);
    lease_all(p, 3);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

static void a_member_is_drained(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    int code, number;
    kill(p->w[1].pid, SIGTERM);
    HEAR_UNTIL(p->d, p->w[1].bye);
    reap(&p->w[1], &code, &number);
    assert_int_equal(code, 0);
    open_gate(p);
    cut_anew(p, (int[]){0, 2, 3}, 3, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

/* What an old cut still has in it comes when the new one is at work. */
static void old_cuts_are_over(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    cut_anew(p, (int[]){0, 1}, 2, 0); /* the one at the gate is not told, as if its connection were slow */
    HEAR_UNTIL(p->d, all_done(p));
    open_gate(p); /* the head hears of results of cut 1 now */
    check_rows(p);
    cut_anew(p, (int[]){0, 1, 3}, 3, 0);
    lease_all(p, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

static void a_member_hangs(void **state)
{
    (void)state;
    struct pool *p = make_pool(FEW);
    char text[300];
    const char *env[] = {"EBB_TEST_HOOK=1", "EBB_TEST_STAGE_TIMEOUT=400", NULL, NULL};
    start(p, 2, env);
    run_alone(p, 0);
    env[2] = gate_env(p, text, sizeof text);
    start_worker(p, 2, env);
    HEAR_UNTIL(p->d, p->w[2].hello);
    to(p, 2);
    say_job(p->d, JOB);
    p->d->spec.micro_batch = 4;
    new_gang(p, (int[]){0, 2, 1}, 3, 0);
    lease_all(p, 0);
    HEAR_UNTIL(p->d, p->w[0].faults);
    assert_int_equal(p->w[0].peer, p->w[2].number);
    assert_non_null(strstr(p->w[0].fault, "has not come back for"));
    cut_anew(p, (int[]){0, 1}, 2, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

/* Without a gang the head's micro-batches wait, and a drain gives them back. */
static void a_head_without_a_gang_is_drained(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    int code, number;
    leave_gang(p);
    kill(p->w[0].pid, SIGTERM);
    HEAR_UNTIL(p->d, p->w[0].bye);
    reap(&p->w[0], &code, &number);
    assert_int_equal(code, 0);
    assert_true(p->d->returned_count > 0);
    assert_true(all_done(p)); /* committed or given back */
    free_pool(p);
}

static void revoked_records_come_to_nothing(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    Ebb__Revoke m = EBB__REVOKE__INIT;
    m.epoch = p->epoch;
    to(p, 0);
    say(p->d, EBB__ENVELOPE__BODY_REVOKE, &m);
    daemon_forget(p->d);
    lease_all(p, 0);
    open_gate(p);
    HEAR_UNTIL(p->d, all_done(p));
    for (size_t i = 0; i < p->d->got_count; i++)
        assert_int_equal(p->d->got[i].x.epoch, p->epoch);
    check_rows(p);
    free_pool(p);
}

static void names_of(struct pool *p, int i, int *named)
{
    struct blackbox_record *records;
    size_t n;
    int incomplete;
    enum blackbox_cause cause;
    struct err e;
    assert_int_equal(blackbox_read(p->w[i].box, &records, &n, &incomplete, &cause, &e), ST_OK);
    *named = 0;
    for (size_t k = 0; k < n; k++)
        *named += records[k].epoch == p->epoch && records[k].job == JOB && records[k].record.end > records[k].record.begin;
    mem_free(records);
}

static void die_at_a_record(const char *what, int code_wanted, int signal_wanted)
{
    char text[64];
    struct pool *p = make_pool(FEW);
    const char *env[] = {"EBB_TEST_HOOK=1", NULL, NULL};
    start(p, 2, env);
    run_alone(p, 0);
    snprintf(text, sizeof text, "EBB_TEST_STAGE=%s:" GATE_TOKEN, what);
    env[1] = text;
    start_worker(p, 2, env);
    HEAR_UNTIL(p->d, p->w[2].hello);
    to(p, 2);
    say_job(p->d, JOB);
    p->d->spec.micro_batch = 4;
    new_gang(p, (int[]){0, 2, 1}, 3, 1);
    lease_all(p, 1);
    HEAR_UNTIL(p->d, p->w[0].faults);
    int code, number, named;
    reap(&p->w[2], &code, &number);
    assert_int_equal(code, code_wanted);
    assert_int_equal(number, signal_wanted);
    names_of(p, 2, &named);
    assert_true(named >= 1);
    cut_anew(p, (int[]){0, 1}, 2, 1);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

static void a_record_crashes_a_stage(void **state)
{
    (void)state;
    die_at_a_record("crash", -1, SIGSEGV);
}

static void a_record_takes_all_memory_of_a_stage(void **state)
{
    (void)state;
    die_at_a_record("eat", 77, 0);
}

static void a_part_that_cannot_be_loaded(void **state)
{
    (void)state;
    struct pool *p = make_pool(FEW);
    start(p, 2, NULL);
    run_alone(p, 0);
    p->gang++;
    p->cut = 1;
    say_stage(p, 0, (int[]){0, 1}, 2, (uint32_t[]){3, SEGMENTS + 5}, 0);
    say_stage(p, 1, (int[]){0, 1}, 2, (uint32_t[]){3, SEGMENTS + 5}, 0);
    HEAR_UNTIL(p->d, p->w[1].faults);
    assert_int_equal(p->w[1].peer, 0);
    cut_anew(p, (int[]){0, 1}, 2, 0); /* and goes on with another cut */
    lease_all(p, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    free_pool(p);
}

/* Strangers and old friends at the sockets of a gang --------------------------------------------------------------------------------------- */

static void *stranger(struct pool *p, int i)
{
    void *s = zmq_socket(p->d->context, ZMQ_DEALER);
    int linger = 0;
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(s, p->w[i].endpoint), 0);
    return s;
}

static void tell(void *s, Ebb__Envelope__BodyCase which, void *body, const void *payload, size_t len)
{
    struct buf bytes = {0};
    struct err e;
    assert_int_equal(wire_encode(which, body, &bytes, &e), ST_OK);
    assert_true(zmq_send(s, bytes.data, bytes.len, payload ? ZMQ_SNDMORE : 0) >= 0);
    if (payload)
        assert_true(zmq_send(s, payload, len, 0) >= 0);
    buf_release(&bytes);
}

/* Each of these is wrong in one thing. */
static void tell_wrong_batches(struct pool *p, void *s, uint32_t stage)
{
    for (int wrong = 0; wrong < 14; wrong++) {
        uint32_t lengths[] = {2, 1};
        int32_t ids[] = {2, 3, 2};
        uint8_t types[] = {0, 0, 0};
        float activations[3 * 32] = {0};
        size_t len = sizeof activations;
        Ebb__Span span = EBB__SPAN__INIT;
        Ebb__StageRecord record = EBB__STAGE_RECORD__INIT, *records[] = {&record, &record};
        span.end = 1;
        record.record = &span;
        Ebb__MicroBatch m = EBB__MICRO_BATCH__INIT;
        m.gang = p->gang + (wrong == 0);
        m.cut = p->cut - (wrong == 1);
        m.id = 1;
        m.stage = stage + (wrong == 2);
        m.pass.data = p->pass;
        m.pass.len = sizeof p->pass - (wrong == 3);
        m.lengths = lengths;
        m.n_lengths = wrong == 4 ? 0 : 2;
        lengths[0] = wrong == 5 ? 0 : wrong == 6 ? UINT32_MAX : 2;
        m.ids.data = (uint8_t *)ids;
        m.ids.len = wrong == 7 ? 11 : sizeof ids;
        ids[1] = wrong == 8 ? -1 : wrong == 9 ? 100000 : 3;
        m.types.data = types;
        m.types.len = wrong == 10 ? 2 : 3;
        types[2] = wrong == 11 ? 9 : 0;
        m.records = records;
        m.n_records = wrong == 12 ? 1 : 2;
        record.record = wrong == 13 ? NULL : &span;
        tell(s, EBB__ENVELOPE__BODY_MICRO_BATCH, &m, stage ? activations : NULL, len);
    }
}

static void tell_wrong_results(struct pool *p, void *s)
{
    for (int wrong = 0; wrong < 4; wrong++) {
        float row[32] = {0};
        Ebb__StageTensor tensor = EBB__STAGE_TENSOR__INIT, *tensors[] = {&tensor};
        Ebb__StageResult m = EBB__STAGE_RESULT__INIT;
        tensor.name = (char *)(uintptr_t)"embedding";
        tensor.width = 32;
        m.gang = p->gang + (wrong == 0);
        m.cut = p->cut - (wrong == 1);
        m.id = wrong == 2 ? UINT64_MAX : 1; /* nobody has sent that; or it is back */
        m.pass.data = (uint8_t *)(uintptr_t)(wrong == 3 ? "0123456789abcdef" : (const char *)p->pass);
        m.pass.len = sizeof p->pass;
        m.n_tensors = 1;
        m.tensors = tensors;
        tell(s, EBB__ENVELOPE__BODY_STAGE_RESULT, &m, row, sizeof row);
    }
}

static void strangers_are_not_heard(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    void *s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = stranger(p, i);
        assert_true(zmq_send(s[i], "no envelope", 11, 0) >= 0);
        assert_true(zmq_send(s[i], "", 0, ZMQ_SNDMORE) >= 0);
        assert_true(zmq_send(s[i], "x", 1, ZMQ_SNDMORE) >= 0);
        assert_true(zmq_send(s[i], "y", 1, 0) >= 0);
        tell_wrong_batches(p, s[i], (uint32_t)i);
        tell_wrong_results(p, s[i]);
    }
    open_gate(p);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    lease_all(p, 0);
    for (int i = 0; i < 4; i++) {
        tell_wrong_batches(p, s[i], (uint32_t)i);
        tell_wrong_results(p, s[i]);
    }
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(p->w[i].faults, 0);
        zmq_close(s[i]);
    }
    free_pool(p);
}

/* A member that answers with what is no result of the micro-batch: said, sent again under the next cut. */
static void a_result_that_does_not_fit(void **state)
{
    (void)state;
    struct pool *p = halfway(3, 0);
    void *s = stranger(p, 0);
    for (uint64_t id = 1; id < 100; id++) { /* those on their way are among them */
        Ebb__StageTensor tensor = EBB__STAGE_TENSOR__INIT, *tensors[] = {&tensor};
        Ebb__StageResult m = EBB__STAGE_RESULT__INIT;
        tensor.name = (char *)(uintptr_t)"embedding";
        tensor.width = 32;
        m.gang = p->gang;
        m.cut = p->cut;
        m.id = id;
        m.pass.data = p->pass;
        m.pass.len = sizeof p->pass;
        m.n_tensors = 1;
        m.tensors = tensors;
        tell(s, EBB__ENVELOPE__BODY_STAGE_RESULT, &m, "short", 5);
    }
    HEAR_UNTIL(p->d, p->w[0].faults);
    assert_string_equal(p->w[0].fault, "a result does not fit its micro-batch");
    open_gate(p);
    cut_anew(p, (int[]){0, 1, 2, 3}, 4, 0);
    HEAR_UNTIL(p->d, all_done(p));
    check_rows(p);
    zmq_close(s);
    free_pool(p);
}

/* Costs ------------------------------------------------------------------------------------------------------------------------------------- */

static void ask_profile(struct pool *p, int i)
{
    Ebb__Profile m = EBB__PROFILE__INIT;
    int before = p->w[i].profiled;
    m.job = JOB;
    to(p, i);
    say(p->d, EBB__ENVELOPE__BODY_PROFILE, &m);
    HEAR_UNTIL(p->d, p->w[i].profiled > before);
}

static char *cost_file(struct pool *p)
{
    DIR *d = opendir(p->d->dir);
    char *found = NULL;
    for (struct dirent *x; (x = readdir(d));)
        if (strstr(x->d_name, ".cost") && !found)
            found = mem_printf("%s/%s", p->d->dir, x->d_name);
    closedir(d);
    return found;
}

static void segments_are_measured_once(void **state)
{
    (void)state;
    struct pool *p = make_pool(FEW);
    double first[SEGMENTS];
    start(p, 2, NULL);
    ask_profile(p, 0);
    memcpy(first, p->w[0].ms, sizeof first);
    for (int i = 1; i < SEGMENTS; i++)
        assert_true(first[i] > 0);
    assert_true(p->w[0].fixed > 0);
    ask_profile(p, 1); /* the other reads what is kept: the very same figures */
    assert_memory_equal(first, p->w[1].ms, sizeof first);
    char *file = cost_file(p);
    assert_non_null(file);
    files_put(file, "{\"format\":\"ebb-cost/1\"", 22);
    ask_profile(p, 0);
    assert_memory_not_equal(first, p->w[0].ms, sizeof first);
    memcpy(first, p->w[0].ms, sizeof first);
    ask_profile(p, 1);
    assert_memory_equal(first, p->w[1].ms, sizeof first);
    mem_free(file);
    free_pool(p);
}

/* One that answers, one that is not there, and one whose name is too long. Strangers who ask without a payload, or for what is none, hear nothing and do no harm. */
static void ways_are_measured(void **state)
{
    (void)state;
    struct pool *p = make_pool(FEW);
    Ebb__StageMember list[3], *at[3];
    Ebb__Profile m = EBB__PROFILE__INIT;
    char gone[200], endless[600];
    start(p, 2, NULL);
    snprintf(gone, sizeof gone, "ipc://%s/nobody", p->d->dir);
    memset(endless, 'x', sizeof endless);
    memcpy(endless, "ipc://", 6);
    endless[sizeof endless - 1] = 0;
    const char *endpoints[] = {gone, p->w[1].endpoint, endless};
    for (int i = 0; i < 3; i++) {
        list[i] = (Ebb__StageMember)EBB__STAGE_MEMBER__INIT;
        list[i].worker = i == 1 ? p->w[1].number : 77;
        list[i].endpoint = (char *)(uintptr_t)endpoints[i];
        at[i] = &list[i];
    }
    void *s = stranger(p, 1);
    Ebb__LinkProbe probe = EBB__LINK_PROBE__INIT;
    tell(s, EBB__ENVELOPE__BODY_LINK_PROBE, &probe, NULL, 0);
    m.job = JOB;
    m.n_peers = 3;
    m.peers = at;
    to(p, 0);
    say(p->d, EBB__ENVELOPE__BODY_PROFILE, &m);
    HEAR_UNTIL(p->d, p->w[0].profiled);
    assert_int_equal(p->w[0].links, 1);
    assert_true(p->w[0].link_to == p->w[1].number);
    assert_true(p->w[0].bits_per_s > 1e3 && p->w[0].latency_ms > 0);
    ask_profile(p, 0); /* who is asked for no ways tells none */
    assert_int_equal(p->w[0].links, 0);
    zmq_close(s);
    new_gang(p, (int[]){0, 1}, 2, 0); /* both are what they were */
    lease_all(p, 0);
    HEAR_UNTIL(p->d, all_done(p));
    free_pool(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_stages),
        cmocka_unit_test(several_lanes),
        cmocka_unit_test(a_member_is_killed),
        cmocka_unit_test(the_first_member_is_killed),
        cmocka_unit_test(the_head_is_killed),
        cmocka_unit_test(a_member_is_drained),
        cmocka_unit_test(old_cuts_are_over),
        cmocka_unit_test(a_member_hangs),
        cmocka_unit_test(a_head_without_a_gang_is_drained),
        cmocka_unit_test(revoked_records_come_to_nothing),
        cmocka_unit_test(a_record_crashes_a_stage),
        cmocka_unit_test(a_record_takes_all_memory_of_a_stage),
        cmocka_unit_test(a_part_that_cannot_be_loaded),
        cmocka_unit_test(strangers_are_not_heard),
        cmocka_unit_test(a_result_that_does_not_fit),
        cmocka_unit_test(segments_are_measured_once),
        cmocka_unit_test(ways_are_measured),
    };
    const char *only = getenv("TEST_ONLY");
    if (only)
        cmocka_set_test_filter(only);
    return cmocka_run_group_tests_name("worker/group", tests, NULL, NULL);
}
