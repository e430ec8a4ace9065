/* The real ebbd with scripted agents over real sockets: who gets which wish, what an ending says, and what no agent may say. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/ending.h"
#include "rig.h"

struct agent {
    struct rig *r;
    struct sock *s;
    uint64_t number;
    const char *host, *state, *reason;
    uint32_t room, wanted;
    uint64_t guests[8], kills, gently, noted, welcomes, killed, last_noted;
    size_t guest_count;
};

static void say(struct agent *a, Ebb__Envelope__BodyCase which, void *body)
{
    struct err e;
    if (sock_send(a->s, NULL, which, body, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
}

static void say_hello(struct agent *a)
{
    Ebb__AgentHello m = EBB__AGENT_HELLO__INIT;
    m.version_min = m.version_max = WIRE_VERSION;
    m.program = (char *)"scripted agent";
    m.agent = a->number;
    m.host = (char *)(uintptr_t)a->host;
    m.pid = 1;
    m.cores = 4;
    m.memory_bytes = 1 << 30;
    say(a, EBB__ENVELOPE__BODY_AGENT_HELLO, &m);
}

static void say_state(struct agent *a)
{
    Ebb__AgentState m = EBB__AGENT_STATE__INIT;
    Ebb__AgentGuest guest[8], *at[8];
    for (size_t i = 0; i < a->guest_count; i++) {
        guest[i] = (Ebb__AgentGuest)EBB__AGENT_GUEST__INIT;
        guest[i].worker = a->guests[i];
        guest[i].state = (char *)(uintptr_t)(strcmp(a->state, "frozen") ? "running" : "frozen");
        guest[i].name = (char *)"test-host/1";
        at[i] = &guest[i];
    }
    m.state = (char *)(uintptr_t)a->state;
    m.reason = (char *)(uintptr_t)a->reason;
    m.room = a->room;
    m.n_guests = a->guest_count;
    m.guests = at;
    say(a, EBB__ENVELOPE__BODY_AGENT_STATE, &m);
}

static void say_ended(struct agent *a, uint64_t worker, uint32_t how)
{
    Ebb__AgentEnded m = EBB__AGENT_ENDED__INIT;
    m.worker = worker;
    m.how = how;
    m.text = (char *)"scripted";
    say(a, EBB__ENVELOPE__BODY_AGENT_ENDED, &m);
}

static void agent_connect(struct agent *a, uint64_t identity)
{
    struct err e;
    if (sock_dealer(a->r->zmq, a->r->workers, NULL, &identity, sizeof identity, &a->s, &e) != ST_OK)
        RIG_FAIL("%s", e.text);
    say_hello(a);
    say_state(a);
}

static void agent_open(struct agent *a, struct rig *r, uint64_t number, const char *host)
{
    *a = (struct agent){.r = r, .number = number, .host = host, .state = "free", .reason = "", .room = 1, .wanted = UINT32_MAX};
    agent_connect(a, number);
}

static void agent_turn(struct agent *a, int ms)
{
    struct err e;
    Ebb__Envelope *m;
    if (sock_wait(a->s, ms) <= 0)
        return;
    while (sock_receive(a->s, NULL, &m, &e) == ST_OK) {
        switch (m->body_case) {
        case EBB__ENVELOPE__BODY_WELCOME:
            a->welcomes++;
            break;
        case EBB__ENVELOPE__BODY_AGENT_WANT:
            a->wanted = m->agent_want->workers;
            break;
        case EBB__ENVELOPE__BODY_AGENT_KILL:
            a->killed = m->agent_kill->worker;
            a->kills += !m->agent_kill->gently;
            a->gently += m->agent_kill->gently != 0;
            break;
        case EBB__ENVELOPE__BODY_AGENT_NOTED:
            a->noted++;
            a->last_noted = m->agent_noted->worker;
            break;
        default:
            RIG_FAIL("an agent got a message of kind %d", (int)m->body_case);
        }
        wire_free(m);
    }
}

/* Turns all of them until it is so. */
#define UNTIL(condition, ...)                                                                                                    \
    do {                                                                                                                         \
        struct agent *all_[] = {__VA_ARGS__};                                                                                    \
        for (uint64_t until_ = clock_ms() + PATIENCE_MS; !(condition);) {                                                        \
            if (clock_ms() > until_)                                                                                             \
                RIG_FAIL("line %d: never: %s", __LINE__, #condition);                                                            \
            for (size_t i_ = 0; i_ < sizeof all_ / sizeof *all_; i_++)                                                           \
                agent_turn(all_[i_], 5);                                                                                         \
        }                                                                                                                        \
    } while (0)

static size_t known_nodes(struct rig *r, const char *state)
{
    json_t *o = rig_ask(r, "nodes", NULL, 0), *n;
    size_t i, count = 0;
    json_array_foreach(json_object_get(o, "nodes"), i, n)
        count += !state || strcmp(json_string_value(json_object_get(n, "state")), state) == 0;
    json_decref(o);
    return count;
}

static uint64_t submit(struct rig *r, int workers)
{
    char output[128];
    snprintf(output, sizeof output, "%s/out", r->dir);
    json_t *more = workers ? json_pack("{s:{s:i, s:i}}", "workers", "min", workers, "max", workers) : NULL;
    return rig_number(rig_ask(r, "submit", rig_spec(r, output, more), 0), "job");
}

/* One to each in turn, to those that are free alone; what one gives up another gets. */
static void wishes_are_spread(void **state)
{
    (void)state;
    struct rig r;
    struct agent a, b, c;
    rig_open(&r, 2000);
    rig_start(&r, NULL, NULL);
    agent_open(&a, &r, 11, "desk1");
    agent_open(&b, &r, 12, "desk2");
    agent_open(&c, &r, 13, "desk3");
    c.state = "away";
    c.reason = "owner at the keyboard";
    c.room = 0;
    say_state(&c);
    UNTIL(a.welcomes && b.welcomes && c.welcomes && known_nodes(&r, "free") == 2 && known_nodes(&r, "away") == 1, &a, &b, &c);
    a.room = b.room = 2;
    say_state(&a);
    say_state(&b);
    submit(&r, 3);
    UNTIL(a.wanted + b.wanted == 3 && c.wanted == 0, &a, &b, &c);
    assert_true(a.wanted == 1 || b.wanted == 1);
    struct agent *two = a.wanted == 2 ? &a : &b, *one = a.wanted == 2 ? &b : &a;
    two->state = "away"; /* its owner comes: the other takes what it can */
    two->room = 0;
    say_state(two);
    UNTIL(two->wanted == 0 && one->wanted == 2 && c.wanted == 0, &a, &b, &c);
    c.state = "free";
    c.room = 5;
    say_state(&c);
    UNTIL(c.wanted == 1 && one->wanted == 2, &a, &b, &c);
    sock_close(a.s);
    sock_close(b.s);
    sock_close(c.s);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* A worker that has not arrived is called back when it is not needed any more; its ending is noted, each time that it is told. */
static void what_has_not_arrived_is_called_back(void **state)
{
    (void)state;
    struct rig r;
    struct agent a;
    rig_open(&r, 2000);
    rig_start(&r, NULL, NULL);
    agent_open(&a, &r, 11, "desk1");
    uint64_t job = submit(&r, 0);
    UNTIL(a.wanted == 1, &a);
    a.guests[a.guest_count++] = 101;
    say_state(&a);
    UNTIL(known_nodes(&r, "free") == 1, &a);
    json_decref(rig_ask(&r, "cancel", json_pack("{s:I}", "job", (json_int_t)job), 0));
    UNTIL(a.gently == 1 && a.killed == 101 && a.wanted == 0, &a);
    assert_int_equal(a.kills, 0);
    a.guest_count = 0;
    say_state(&a);
    say_ended(&a, 101, WORKER_DRAINED);
    say_ended(&a, 101, WORKER_DRAINED);
    UNTIL(a.noted == 1 && a.last_noted == 101, &a);
    say_ended(&a, 101, WORKER_DRAINED); /* the note was lost */
    UNTIL(a.noted == 2, &a);
    sock_close(a.s);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* An evicted worker's lease goes to the next one at once, and nobody is blamed; a daemon that is new asks for a hello. */
static void an_eviction_gives_the_lease_back(void **state)
{
    (void)state;
    struct rig r;
    struct agent a;
    struct rig_worker w;
    rig_open(&r, 2000);
    rig_start(&r, NULL, NULL);
    agent_open(&a, &r, 11, "test-host");
    uint64_t job = submit(&r, 0);
    UNTIL(a.wanted == 1, &a);
    a.guests[a.guest_count++] = 101;
    say_state(&a);
    rig_worker_open(&w, &r, 101);
    for (uint64_t until = clock_ms() + PATIENCE_MS; !w.leases && clock_ms() < until;)
        rig_worker_turn(&w, 5, 0);
    assert_true(w.leases > 0);
    struct agent liar; /* an agent of another node neither has this worker nor ends it */
    agent_open(&liar, &r, 66, "other-host");
    liar.guests[liar.guest_count++] = 101;
    say_state(&liar);
    say_ended(&liar, 101, WORKER_CRASHED);
    UNTIL(liar.noted == 1, &liar, &a);
    json_t *still = rig_ask(&r, "workers", NULL, 0);
    assert_int_equal(json_array_size(json_object_get(still, "workers")), 1);
    json_decref(still);
    liar.state = "away";
    liar.room = 0;
    liar.guest_count = 0;
    say_state(&liar);
    a.state = "frozen";
    a.reason = "owner at the keyboard (anna, tty2)";
    a.room = 0;
    say_state(&a);
    int frozen = 0;
    for (uint64_t until = clock_ms() + PATIENCE_MS; !frozen && clock_ms() < until;) {
        json_t *o = rig_ask(&r, "workers", NULL, 0), *x = json_array_get(json_object_get(o, "workers"), 0);
        frozen = x && strcmp(json_string_value(json_object_get(x, "state")), "frozen") == 0 &&
                 strcmp(json_string_value(json_object_get(x, "lease")), a.reason) == 0;
        json_decref(o);
        agent_turn(&a, 5);
    }
    assert_true(frozen);
    a.state = "away";
    a.guest_count = 0;
    say_state(&a);
    say_ended(&a, 101, WORKER_PREEMPTED);
    rig_worker_close(&w);
    UNTIL(a.noted == 1, &a);
    sock_close(liar.s);
    json_t *o = rig_ask(&r, "workers", NULL, 0);
    assert_int_equal(json_array_size(json_object_get(o, "workers")), 0);
    json_decref(o);
    rig_end(&r, SIGKILL);
    rig_start(&r, NULL, NULL);
    uint64_t welcomes = a.welcomes;
    for (uint64_t until = clock_ms() + PATIENCE_MS; a.welcomes == welcomes && clock_ms() < until;) { /* a state that nobody asked it for */
        say_state(&a);
        agent_turn(&a, 100);
    }
    assert_true(a.welcomes > welcomes);
    say_hello(&a);
    a.state = "free";
    a.room = 1;
    say_state(&a);
    UNTIL(a.wanted == 1, &a);
    struct rig_worker next;
    a.guests[a.guest_count++] = 102;
    say_state(&a);
    rig_worker_open(&next, &r, 102);
    for (uint64_t until = clock_ms() + PATIENCE_MS; clock_ms() < until;) {
        rig_worker_turn(&next, 5, 1);
        agent_turn(&a, 1);
        o = rig_ask(&r, "job", json_pack("{s:I}", "job", (json_int_t)job), 0);
        int done = strcmp(json_string_value(json_object_get(o, "state")), "done") == 0;
        assert_int_equal(json_integer_value(json_object_get(o, "quarantined")), 0);
        json_decref(o);
        if (done)
            break;
    }
    rig_worker_close(&next);
    sock_close(a.s);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* By its number, not by the connection's name: one that comes anew, while the old connection may not be gone yet, is the same node. */
static void a_new_connection_is_the_same_node(void **state)
{
    (void)state;
    struct rig r;
    struct agent a;
    rig_open(&r, 2000);
    rig_start(&r, NULL, NULL);
    agent_open(&a, &r, 11, "desk1");
    submit(&r, 0);
    UNTIL(a.wanted == 1, &a);
    for (uint64_t identity = 1000; identity < 1010; identity++) {
        struct sock *old = a.s;
        a.wanted = UINT32_MAX;
        agent_connect(&a, identity);
        UNTIL(a.wanted == 1, &a);
        assert_int_equal(known_nodes(&r, NULL), 1);
        sock_close(old);
    }
    sock_close(a.s);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

/* What no agent says is dropped, and costs nobody else anything. */
static void nonsense_is_dropped(void **state)
{
    (void)state;
    struct rig r;
    struct agent a, b;
    rig_open(&r, 100);
    rig_start(&r, NULL, NULL);
    agent_open(&a, &r, 11, "desk1");
    agent_open(&b, &r, 12, "desk2");
    submit(&r, 0);
    UNTIL(known_nodes(&r, "free") == 2, &a, &b);
    a.guests[a.guest_count++] = 101;
    say_state(&a);

    Ebb__AgentHello h = EBB__AGENT_HELLO__INIT; /* empty */
    say(&b, EBB__ENVELOPE__BODY_AGENT_HELLO, &h);
    h.version_min = h.version_max = WIRE_VERSION + 7;
    h.agent = 12;
    h.host = (char *)"desk2";
    h.cores = 1;
    Ebb__AgentState s = EBB__AGENT_STATE__INIT;
    s.room = UINT32_MAX;
    say(&b, EBB__ENVELOPE__BODY_AGENT_STATE, &s);
    Ebb__AgentGuest guest = EBB__AGENT_GUEST__INIT, *many[2000];
    for (size_t i = 0; i < 2000; i++)
        many[i] = &guest;
    s.room = 1;
    s.guests = many;
    s.n_guests = 2000;
    say(&b, EBB__ENVELOPE__BODY_AGENT_STATE, &s);
    s.n_guests = 1; /* number 0 */
    say(&b, EBB__ENVELOPE__BODY_AGENT_STATE, &s);
    guest.worker = 5; /* words that are no words */
    guest.state = (char *)"\xff\xfe\n\x1b[31m a very long state indeed, longer than any";
    guest.name = guest.state;
    s.state = s.reason = guest.state;
    say(&b, EBB__ENVELOPE__BODY_AGENT_STATE, &s);
    say_ended(&b, 0, WORKER_LOST);
    say_ended(&b, 5, 99);
    say_ended(&b, 101, WORKER_CRASHED); /* another one's */
    Ebb__AgentEnded x = EBB__AGENT_ENDED__INIT;
    Ebb__AgentSuspect no_record = EBB__AGENT_SUSPECT__INIT, backwards = EBB__AGENT_SUSPECT__INIT, *two[] = {&no_record, &backwards};
    Ebb__Span span = EBB__SPAN__INIT;
    span.begin = 9;
    span.end = 3;
    backwards.record = &span;
    x.worker = 5;
    x.how = WORKER_CRASHED;
    x.n_suspects = 2;
    x.suspects = two;
    say(&b, EBB__ENVELOPE__BODY_AGENT_ENDED, &x);
    UNTIL(b.noted == 2, &a, &b); /* of 101, which is ignored, and of its own */
    Ebb__AgentWant wrong_way = EBB__AGENT_WANT__INIT; /* what only daemons say */
    say(&b, EBB__ENVELOPE__BODY_AGENT_WANT, &wrong_way);

    json_t *o = rig_ask(&r, "nodes", NULL, 0), *n; /* answers, in JSON, and desk1 has its worker still */
    size_t i, whole = 0;
    json_array_foreach(json_object_get(o, "nodes"), i, n)
        whole += strcmp(json_string_value(json_object_get(n, "host")), "desk1") == 0 && json_integer_value(json_object_get(n, "workers")) == 1;
    assert_int_equal(whole, 1);
    json_decref(o);
    sock_close(a.s);
    sock_close(b.s);
    assert_int_equal(rig_end(&r, SIGTERM), 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wishes_are_spread),
        cmocka_unit_test(what_has_not_arrived_is_called_back),
        cmocka_unit_test(an_eviction_gives_the_lease_back),
        cmocka_unit_test(a_new_connection_is_the_same_node),
        cmocka_unit_test(nonsense_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
