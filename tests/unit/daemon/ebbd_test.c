/* The real ebbd over real sockets, with a scripted worker and a client: what is acknowledged survives, whatever is killed when. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "rig.h"

#define LINES 2000

/* Lets the worker work until the job is over; an ebbd that has died is started anew, without faults. Its deaths. */
static int finish_job(struct rig *r, struct rig_worker *w, uint64_t job, const char *want)
{
    int deaths = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS, asked = 0; clock_ms() < until;) {
        rig_worker_turn(w, 5, 1);
        if (rig_dead(r)) {
            deaths++;
            rig_start(r, NULL, NULL);
        }
        if (clock_ms() - asked < 100)
            continue;
        asked = clock_ms();
        uint32_t code;
        json_t *o = rig_ask_for(r, "job", json_pack("{s:I}", "job", (json_int_t)job), &code, 200);
        if (!o)
            continue;
        int over = code == 0 && strcmp(json_string_value(json_object_get(o, "state")), want) == 0;
        json_decref(o);
        if (over)
            return deaths;
    }
    RIG_FAIL("job %" PRIu64 " is not %s in time; its folder is %s", job, want, r->dir);
    return -1;
}

static void same_bytes(struct rig *r, const char *output)
{
    struct buf made = {0};
    struct err e;
    if (path_read(output, 1 << 26, &made, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
    assert_int_equal(made.len, r->text_len);
    assert_memory_equal(made.data, r->text, r->text_len);
    buf_release(&made);
}

static uint64_t submit(struct rig *r, const char *output)
{
    return rig_number(rig_ask(r, "submit", rig_spec(r, output, NULL), 0), "job");
}

static void submit_to_done(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w;
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_worker_open(&w, &r, 0x1234);
    uint64_t job = submit(&r, output);
    assert_int_equal(job, 1);
    assert_int_equal(finish_job(&r, &w, job, "done"), 0);
    same_bytes(&r, output);

    json_t *o = rig_ask(&r, "job", json_pack("{s:I, s:b}", "job", (json_int_t)job, "spec", 1), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "records_done")), LINES);
    assert_int_equal(json_integer_value(json_object_get(o, "redone")), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "dims")), 4);
    assert_string_equal(json_string_value(json_object_get(o, "numerics")), "test-f32");
    assert_true(json_real_value(json_object_get(o, "fraction")) == 1.0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "files"), 0)), output);
    json_decref(o);

    /* the same again: as it is; another one: refused, saying what differs; by force: anew */
    o = rig_ask(&r, "submit", rig_spec(&r, output, NULL), 0);
    assert_true(json_is_true(json_object_get(o, "resumed")));
    assert_int_equal(rig_number(o, "job"), job);
    o = rig_ask(&r, "submit", rig_spec(&r, output, json_pack("{s:{s:s}}", "input", "field", "title")), ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "input.field"));
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "job 1"));
    json_decref(o);
    json_t *spec = rig_spec(&r, output, json_pack("{s:{s:s}}", "input", "field", "title"));
    json_object_set_new(spec, "force", json_true());
    o = rig_ask(&r, "submit", spec, 0);
    assert_false(json_is_true(json_object_get(o, "resumed")));
    uint64_t second = rig_number(o, "job");
    assert_int_equal(second, 2);
    json_decref(rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), ST_NOT_FOUND));
    finish_job(&r, &w, second, "done");
    same_bytes(&r, output);

    /* the finished output was removed: anew */
    assert_int_equal(unlink(output), 0);
    o = rig_ask(&r, "submit", rig_spec(&r, output, json_pack("{s:{s:s}}", "input", "field", "title")), 0);
    assert_false(json_is_true(json_object_get(o, "resumed")));
    assert_non_null(json_object_get(o, "note"));
    uint64_t third = rig_number(o, "job");
    finish_job(&r, &w, third, "done");
    same_bytes(&r, output);

    json_decref(rig_ask(&r, "events", json_pack("{s:I}", "job", (json_int_t)third), 0));
    json_decref(rig_ask(&r, "doctor", NULL, 0));
    o = rig_ask(&r, "errors", json_pack("{s:I}", "job", (json_int_t)third), 0);
    assert_int_equal(rig_number(o, "total"), 0);
    json_decref(rig_ask(&r, "rm", json_pack("{s:I}", "job", (json_int_t)third), 0));
    json_decref(rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)third), ST_NOT_FOUND));
    assert_true(path_exists(output)); /* results are the user's */
    rig_worker_close(&w);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

static void refusals(void **state)
{
    (void)state;
    struct rig r;
    char output[128];
    rig_open(&r, 10);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    json_t *o = rig_ask(&r, "hello", NULL, 0);
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), r.ebbd);
    assert_int_equal(rig_number(o, "generation"), 1);
    o = rig_ask(&r, "sumbit", NULL, ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "did you mean 'submit'"));
    json_decref(o);
    json_decref(rig_ask(&r, "pause", json_pack("{s:i}", "job", 17), ST_NOT_FOUND));
    json_decref(rig_ask(&r, "pause", NULL, ST_USER));
    o = rig_ask(&r, "submit", rig_spec(&r, output, json_pack("{s:s}", "model", "/nowhere")), ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "/nowhere"));
    json_decref(o);
    o = rig_ask(&r, "submit", rig_spec(&r, output, json_pack("{s:{s:[s]}}", "input", "glob", "/nowhere/*.jsonl")), ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "/nowhere"));
    json_decref(o);
    /* foreign files */
    FILE *f = fopen(output, "w");
    fputs("precious\n", f);
    fclose(f);
    o = rig_ask(&r, "submit", rig_spec(&r, output, NULL), ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), "did not make"));
    json_decref(o);
    unlink(output);
    /* another ebb's output */
    uint64_t job = submit(&r, output);
    struct rig other = r;
    rig_end(&r, SIGTERM);
    snprintf(other.state, sizeof other.state, "%s/other", r.dir);
    rig_start(&other, NULL, NULL);
    o = rig_ask(&other, "submit", rig_spec(&other, output, NULL), ST_USER);
    assert_non_null(strstr(json_string_value(json_object_get(o, "error")), r.state));
    json_decref(o);
    rig_end(&other, SIGTERM);
    r.next_id = other.next_id;
    /* and still there for the first one */
    rig_start(&r, NULL, NULL);
    o = rig_ask(&r, "submit", rig_spec(&r, output, NULL), 0);
    assert_true(json_is_true(json_object_get(o, "resumed")));
    assert_int_equal(rig_number(o, "job"), job);
    json_decref(rig_ask(&r, "pause", json_pack("{s:I}", "job", (json_int_t)job), 0));
    json_decref(rig_ask(&r, "pause", json_pack("{s:I}", "job", (json_int_t)job), ST_USER));
    json_decref(rig_ask(&r, "why", json_pack("{s:I}", "job", (json_int_t)job), 0));
    json_decref(rig_ask(&r, "resume", json_pack("{s:I}", "job", (json_int_t)job), 0));
    json_decref(rig_ask(&r, "rm", json_pack("{s:I}", "job", (json_int_t)job), ST_USER)); /* it runs */
    json_decref(rig_ask(&r, "cancel", json_pack("{s:I}", "job", (json_int_t)job), 0));
    json_decref(rig_ask(&r, "rm", json_pack("{s:I}", "job", (json_int_t)job), 0));
    o = rig_ask(&r, "jobs", json_pack("{s:b}", "all", 1), 0);
    assert_int_equal(json_array_size(json_object_get(o, "jobs")), 0);
    json_decref(o);
    rig_close(&r);
}

static void one_daemon_a_state(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 10);
    rig_start(&r, NULL, NULL);
    json_decref(rig_ask(&r, "hello", NULL, 0));
    pid_t first = r.ebbd;
    struct rig second = r;
    snprintf(second.run, sizeof second.run, "%s/run2", r.dir);
    rig_start(&second, NULL, NULL);
    assert_int_equal(rig_end(&second, 0), 3);
    struct rig third = r; /* another state, but the first one's sockets */
    snprintf(third.state, sizeof third.state, "%s/state3", r.dir);
    rig_start(&third, NULL, NULL);
    assert_int_equal(rig_end(&third, 0), 2);
    json_t *o = rig_ask(&r, "hello", NULL, 0);
    assert_int_equal(rig_number(o, "pid"), first);
    assert_int_equal(rig_end(&r, SIGKILL), -SIGKILL);
    rig_start(&r, NULL, NULL); /* the dead one's file is no obstacle */
    o = rig_ask(&r, "hello", NULL, 0);
    assert_int_equal(rig_number(o, "generation"), 2);
    json_decref(rig_ask(&r, "stop", NULL, 0));
    assert_int_equal(rig_end(&r, 0), 0);
    rig_close(&r);
}

static void adoption(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w;
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out/", r.dir);
    rig_worker_open(&w, &r, 77);
    uint64_t job = submit(&r, output);
    w.chunk_bytes = 500;
    uint64_t epoch = 0, hellos = w.hellos; /* in the midst of a lease */
    for (uint64_t until = clock_ms() + PATIENCE_MS; !epoch && clock_ms() < until;) {
        rig_worker_turn(&w, 5, 1);
        for (size_t i = 0; i < 8; i++)
            if (w.hands[i].open && w.hands[i].seq >= 2 && w.hands[i].span.end > w.hands[i].chunk.end + 4 * w.chunk_bytes)
                epoch = w.hands[i].epoch;
    }
    assert_true(epoch != 0);
    assert_int_equal(rig_end(&r, SIGKILL), -SIGKILL);
    for (int i = 0; i < 20; i++)
        rig_worker_turn(&w, 5, 1); /* commits into the void */
    rig_start(&r, NULL, NULL);
    for (uint64_t until = clock_ms() + PATIENCE_MS; w.hellos == hellos && clock_ms() < until;)
        rig_worker_turn(&w, 5, 1);
    assert_int_equal(w.hellos, hellos + 1); /* asked once, answered once */
    assert_int_equal(w.generation, 2);
    finish_job(&r, &w, job, "done");
    assert_int_equal(w.stale, 0); /* the same epoch went on */
    assert_true(w.leases >= 1);
    json_t *o = rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
    assert_int_equal(json_integer_value(json_object_get(o, "records_done")), LINES);
    assert_int_equal(rig_number(o, "redone"), 0);
    snprintf(output, sizeof output, "%s/out/part-00000.jsonl", r.dir);
    same_bytes(&r, output);
    rig_worker_close(&w);
    rig_close(&r);
}

/* A lease of long ago, and one that never was: refused by their epochs; the output is whole. */
static void stale_epochs(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker a, b;
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_worker_open(&a, &r, 1);
    uint64_t job = submit(&r, output);
    struct hand held = {0};
    for (uint64_t until = clock_ms() + PATIENCE_MS; !held.open && clock_ms() < until;) {
        rig_worker_turn(&a, 5, 1);
        for (size_t i = 0; i < 8 && a.acks >= 3; i++)
            if (a.hands[i].open)
                held = a.hands[i];
    }
    assert_true(held.open);
    /* the worker says goodbye, yet its ghost holds on to the lease */
    Ebb__Bye bye = EBB__BYE__INIT;
    bye.reason = "test";
    rig_send(&a, EBB__ENVELOPE__BODY_BYE, &bye);
    memset(a.hands, 0, sizeof a.hands);
    rig_worker_open(&b, &r, 2);
    for (uint64_t until = clock_ms() + PATIENCE_MS; b.acks < 2 && clock_ms() < until;)
        rig_worker_turn(&b, 5, 1);
    rig_hello(&a);
    a.hands[0] = held;
    a.hands[0].sent = 0;
    a.hands[1] = held;
    a.hands[1].epoch = held.epoch + 1000; /* never granted */
    a.hands[1].sent = a.hands[1].made = 0;
    /* a heartbeat that names them is answered by a revocation, which may come before the answer to the commit */
    for (uint64_t until = clock_ms() + PATIENCE_MS; (a.hands[0].open || a.hands[1].open || !a.stale) && clock_ms() < until;)
        rig_worker_turn(&a, 5, 1);
    assert_true(a.stale >= 1);
    assert_false(a.hands[0].open);
    assert_false(a.hands[1].open);
    memset(a.hands, 0, sizeof a.hands);
    rig_send(&a, EBB__ENVELOPE__BODY_BYE, &bye);
    rig_worker_close(&a);
    finish_job(&r, &b, job, "done");
    same_bytes(&r, output);
    json_t *o = rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
    assert_int_equal(rig_number(o, "records_done"), LINES);
    rig_worker_close(&b);
    rig_close(&r);
}

/* A worker whose numbers are of another kind than those with which the job began: its lease is taken back before it has done anything, and
   the job waits for one of the first kind. */
static void other_numerics(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker a, b;
    char output[128];
    rig_open(&r, LINES);
    rig_start(&r, NULL, NULL);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_worker_open(&a, &r, 1);
    uint64_t job = submit(&r, output);
    for (uint64_t until = clock_ms() + PATIENCE_MS; a.acks < 1 && clock_ms() < until;)
        rig_worker_turn(&a, 5, 1);
    assert_true(a.acks >= 1);
    Ebb__Bye bye = EBB__BYE__INIT;
    bye.reason = "test";
    rig_send(&a, EBB__ENVELOPE__BODY_BYE, &bye);
    rig_worker_close(&a);
    rig_worker_open(&b, &r, 2);
    b.numerics = "test-f33";
    for (uint64_t until = clock_ms() + PATIENCE_MS; !(b.leases && !b.hands[0].open) && clock_ms() < until;)
        rig_worker_turn(&b, 5, 0);
    assert_true(b.leases >= 1);
    assert_false(b.hands[0].open); /* revoked */
    assert_int_equal(b.acks, 0);
    /* no fault of the job's: it waits for another worker, and says why */
    int said = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS; !said && clock_ms() < until;) {
        rig_worker_turn(&b, 5, 0);
        json_t *o = rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
        said = strstr(json_string_value(json_object_get(o, "waits_for")), "computes it as 'test-f33'") != NULL;
        assert_string_equal(json_string_value(json_object_get(o, "state")), "running");
        json_decref(o);
    }
    assert_true(said);
    rig_worker_open(&a, &r, 3);
    assert_int_equal(finish_job(&r, &a, job, "done"), 0);
    same_bytes(&r, output);
    rig_worker_close(&a);
    rig_worker_close(&b);
    rig_close(&r);
}

/* Killed at each point, early and later: nothing acknowledged is lost, nothing is there twice. */
static void killed_at(const char *point, unsigned nth, const char *what)
{
    struct rig r;
    struct rig_worker w;
    char output[128], fault[96];
    rig_open(&r, LINES);
    snprintf(fault, sizeof fault, "%s:%u:%s", point, nth, what);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_start(&r, fault, NULL);
    rig_worker_open(&w, &r, 9);
    uint64_t job = 0;
    int deaths = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS; !job && clock_ms() < until;) { /* it may be killed before it can answer */
        uint32_t code;
        json_t *o = rig_ask_for(&r, "submit", rig_spec(&r, output, NULL), &code, 500);
        if (o && code == 0)
            job = (uint64_t)json_integer_value(json_object_get(o, "job"));
        json_decref(o);
        rig_worker_turn(&w, 5, 1);
        if (rig_dead(&r)) {
            deaths++;
            rig_start(&r, NULL, NULL);
        }
    }
    assert_true(job != 0);
    deaths += finish_job(&r, &w, job, "done");
    same_bytes(&r, output);
    if (strcmp(what, "kill") == 0 && !deaths) /* at the very end it may die behind the last answer */
        for (uint64_t until = clock_ms() + PATIENCE_MS; !deaths && clock_ms() < until; clock_sleep_ms(10))
            deaths += rig_dead(&r);
    if (strcmp(what, "kill") == 0 && !deaths)
        RIG_FAIL("%s was never reached", fault);
    if (r.ebbd < 0)
        rig_start(&r, NULL, NULL);
    json_t *o = rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
    assert_int_equal(rig_number(o, "records_done"), LINES);
    rig_worker_close(&w);
    rig_close(&r);
}

static void killed_while_stepping(void **state)
{
    (void)state;
    killed_at("daemon.step", 4, "kill");
    killed_at("daemon.step", 15, "kill");
}

static void killed_while_persisting(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 13; n += 4)
        killed_at("daemon.persist.before", n, "kill");
    for (unsigned n = 1; n <= 13; n += 4)
        killed_at("daemon.persist.after", n, "kill");
}

static void killed_while_sending(void **state)
{
    (void)state;
    for (unsigned n = 3; n <= 24; n += 7)
        killed_at("daemon.send.before", n, "kill");
    for (unsigned n = 3; n <= 24; n += 7)
        killed_at("daemon.send.after", n, "kill");
}

static void killed_while_publishing(void **state)
{
    (void)state;
    static const char *const points[] = {"daemon.publish.advance", "daemon.publish.finish", "daemon.publish.done"};
    for (size_t i = 0; i < 3; i++)
        killed_at(points[i], 1, "kill");
}

/* A write that fails: the core is built anew in the same process, the worker keeps its connection. */
static void failed_writes(void **state)
{
    (void)state;
    killed_at("daemon.persist.before", 2, "EIO");
    killed_at("daemon.persist.before", 6, "ENOSPC");
    killed_at("daemon.persist.after", 6, "EIO"); /* written, and yet reported as failed */
}

static void failed_publishing(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w;
    char output[128];
    rig_open(&r, LINES);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_start(&r, "daemon.publish.finish:1:EIO", NULL);
    rig_worker_open(&w, &r, 9);
    uint64_t job = submit(&r, output);
    finish_job(&r, &w, job, "held");
    json_t *o = rig_ask(&r, "why", json_pack("{s:I}", "job", (json_int_t)job), 0);
    assert_non_null(strstr(json_string_value(json_object_get(o, "text")), "Input/output error"));
    json_decref(o);
    json_decref(rig_ask(&r, "resume", json_pack("{s:I}", "job", (json_int_t)job), 0));
    finish_job(&r, &w, job, "done");
    same_bytes(&r, output);
    rig_worker_close(&w);
    rig_close(&r);
}

static void write_config(struct rig *r, const char *min_free)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ebbd.yaml", r->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "min_free: %s\nworkers:\n  count: 0\n", min_free);
    fclose(f);
}

/* Too little space: held with the reason, on by itself when there is enough; the limit is changed by a reload here, not the disk. */
static void free_space(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w;
    char output[128], config[128];
    rig_open(&r, LINES);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    snprintf(config, sizeof config, "%s/ebbd.yaml", r.dir);
    write_config(&r, "900TiB");
    const char *more[] = {"--config", config, NULL};
    rig_start(&r, NULL, more);
    uint64_t job = submit(&r, output);
    int held = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS; !held && clock_ms() < until; clock_sleep_ms(100)) {
        json_t *o = rig_ask(&r, "why", json_pack("{s:I}", "job", (json_int_t)job), 0);
        held = strstr(json_string_value(json_object_get(o, "text")), "held: not enough disk space") != NULL;
        json_decref(o);
    }
    assert_true(held);
    rig_worker_open(&w, &r, 3);
    write_config(&r, "1 lot"); /* a mistake changes nothing */
    kill(r.ebbd, SIGHUP);
    json_decref(rig_ask(&r, "hello", NULL, 0));
    write_config(&r, "1MiB");
    kill(r.ebbd, SIGHUP);
    finish_job(&r, &w, job, "done");
    same_bytes(&r, output);
    rig_worker_close(&w);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

static void hostile_wire(void **state)
{
    (void)state;
    struct rig r;
    struct rig_worker w;
    char output[128];
    rig_open(&r, 100);
    snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
    rig_start(&r, NULL, NULL);
    rig_worker_open(&w, &r, 5);
    uint64_t job = submit(&r, output);
    /* bytes that are nothing, to both sockets, in one frame and in several, under a name that is too long */
    const char *endpoints[] = {r.clients, r.workers};
    for (int i = 0; i < 2; i++) {
        void *s = zmq_socket(r.zmq, ZMQ_DEALER);
        char name[64];
        memset(name, 'x', sizeof name);
        if (i)
            zmq_setsockopt(s, ZMQ_ROUTING_ID, name, sizeof name);
        assert_int_equal(zmq_connect(s, endpoints[i]), 0);
        for (int k = 0; k < 100; k++) {
            zmq_send(s, "\xff\xff\xff garbage", 12, k % 3 ? 0 : ZMQ_SNDMORE);
            if (k % 3 == 0)
                zmq_send(s, "", 0, 0);
        }
        int linger = 100;
        zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(s);
    }
    /* a worker of the future, and one that has seen a later generation */
    struct err e;
    for (int i = 0; i < 2; i++) {
        struct rig_worker x = {.r = &r, .number = 100 + (uint64_t)i};
        assert_int_equal(sock_dealer(r.zmq, r.workers, NULL, &x.number, sizeof x.number, &x.s, &e), ST_OK);
        Ebb__Hello h = EBB__HELLO__INIT;
        h.version_min = i ? 1 : 7;
        h.version_max = i ? 1 : 9;
        h.worker = x.number;
        h.host = "h";
        h.lanes = 1;
        h.generation = i ? 1000 : 0;
        rig_send(&x, EBB__ENVELOPE__BODY_HELLO, &h);
        for (uint64_t until = clock_ms() + PATIENCE_MS; !x.refused && clock_ms() < until;) {
            Ebb__Envelope *m;
            if (sock_wait(x.s, 50) > 0 && sock_receive(x.s, NULL, &m, &e) == ST_OK) {
                rig_take(&x, m);
                wire_free(m);
            }
        }
        assert_true(x.refused);
        rig_worker_close(&x);
    }
    /* a commit whose extent leaves its part */
    for (uint64_t until = clock_ms() + PATIENCE_MS; !w.leases && clock_ms() < until;)
        rig_worker_turn(&w, 5, 0);
    struct hand *hand = &w.hands[0];
    assert_true(hand->open);
    rig_make_part(&w, hand);
    struct hand bad = *hand;
    bad.extent.rows_bytes += 1000000;
    rig_commit(&w, &bad);
    Ebb__Envelope *m = NULL;
    int fault = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS; !fault && clock_ms() < until;)
        if (sock_wait(w.s, 50) > 0 && sock_receive(w.s, NULL, &m, &e) == ST_OK) {
            fault = m->body_case == EBB__ENVELOPE__BODY_ACK && m->ack->verdict == 2;
            wire_free(m);
        }
    assert_true(fault);
    finish_job(&r, &w, job, "done");
    same_bytes(&r, output);
    rig_worker_close(&w);
    rig_close(&r);
}

/* Asked while it ends: whoever still is answered gets a whole answer, and what comes too late leaves nothing behind (leaks are looked for when it is
   instrumented). */
static void asked_while_it_ends(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct rig r;
        char output[128];
        struct err e;
        rig_open(&r, 50);
        snprintf(output, sizeof output, "%s/out.jsonl", r.dir);
        rig_start(&r, NULL, NULL);
        uint64_t job = submit(&r, output), answers = 0;
        char text[64];
        snprintf(text, sizeof text, "{\"job\":%" PRIu64 "}", job);
        for (int i = 0; i < 2000; i++) {
            Ebb__Request q = EBB__REQUEST__INIT;
            q.id = ++r.next_id;
            q.verb = "job";
            q.json = text;
            q.version = WIRE_VERSION;
            if (sock_send(r.client, NULL, EBB__ENVELOPE__BODY_REQUEST, &q, &e) != ST_OK)
                break; /* it has gone */
            if (i != 200 * round)
                continue;
            assert_true(sock_wait(r.client, PATIENCE_MS) > 0); /* it is at it */
            kill(r.ebbd, SIGTERM);
        }
        assert_int_equal(rig_end(&r, 0), 0);
        Ebb__Envelope *m;
        while (sock_receive(r.client, NULL, &m, &e) == ST_OK) {
            assert_int_equal(m->body_case, EBB__ENVELOPE__BODY_REPLY);
            json_t *o = json_loads(m->reply->json, 0, NULL);
            assert_int_equal(rig_number(o, "job"), job);
            answers++;
            wire_free(m);
        }
        assert_true(answers > 0);
        rig_close(&r);
    }
}

static void private_daemon(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 10);
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    int kept = dup(1);
    dup2(out[1], 1);
    const char *more[] = {"--private", NULL};
    rig_start(&r, NULL, more);
    dup2(kept, 1);
    close(kept);
    close(out[1]);
    char line[256] = "";
    FILE *f = fdopen(out[0], "r");
    assert_non_null(fgets(line, sizeof line, f));
    char want[256];
    snprintf(want, sizeof want, "ready %s\n", r.clients);
    assert_string_equal(line, want);
    assert_null(fgets(line, sizeof line, f)); /* nothing more, and closed */
    fclose(f);
    uint64_t begin = clock_ms();
    json_decref(rig_ask(&r, "hello", NULL, 0));
    assert_int_equal(rig_end(&r, 0), 0); /* nobody speaks any more */
    assert_in_range(clock_ms() - begin, 10000, PATIENCE_MS);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submit_to_done),        cmocka_unit_test(refusals),
        cmocka_unit_test(one_daemon_a_state),    cmocka_unit_test(adoption),
        cmocka_unit_test(stale_epochs),          cmocka_unit_test(other_numerics), cmocka_unit_test(killed_while_stepping),
        cmocka_unit_test(killed_while_persisting), cmocka_unit_test(killed_while_sending),
        cmocka_unit_test(killed_while_publishing), cmocka_unit_test(failed_writes),
        cmocka_unit_test(failed_publishing),     cmocka_unit_test(free_space),            cmocka_unit_test(hostile_wire),
        cmocka_unit_test(private_daemon),        cmocka_unit_test(asked_while_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
