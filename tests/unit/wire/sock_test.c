/* Messages over real ZeroMQ sockets: whole, in order, and foreign bytes are refused. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/mem.h"
#include "wire/sock.h"

struct fixture {
    void *context;
    char endpoint[64];
    struct sock *router, *dealer;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct err e;
    f->context = zmq_ctx_new();
    snprintf(f->endpoint, sizeof f->endpoint, "ipc:///tmp/ebb-sock-%d", (int)getpid());
    if (sock_router(f->context, f->endpoint, NULL, &f->router, &e) || sock_dealer(f->context, f->endpoint, NULL, "worker-1", 8, &f->dealer, &e))
        return -1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    sock_close(f->dealer);
    sock_close(f->router);
    zmq_ctx_term(f->context);
    unlink(f->endpoint + 6);
    free(f);
    return 0;
}

static void there_and_back(void **state)
{
    struct fixture *f = *state;
    struct err e;
    Ebb__Hello hello = EBB__HELLO__INIT;
    hello.worker = 42;
    hello.host = (char *)"h";
    assert_int_equal(sock_send(f->dealer, NULL, EBB__ENVELOPE__BODY_HELLO, &hello, &e), ST_OK);
    assert_int_equal(sock_wait(f->router, 60000), 1);
    struct sock_peer peer;
    Ebb__Envelope *m;
    assert_int_equal(sock_receive(f->router, &peer, &m, &e), ST_OK);
    assert_int_equal(peer.len, 8);
    assert_memory_equal(peer.id, "worker-1", 8);
    assert_int_equal(m->body_case, EBB__ENVELOPE__BODY_HELLO);
    assert_int_equal(m->hello->worker, 42);
    assert_string_equal(m->hello->host, "h");
    wire_free(m);
    assert_int_equal(sock_receive(f->router, &peer, &m, &e), ST_AGAIN);

    for (uint64_t i = 0; i < 1000; i++) { /* in order */
        Ebb__Ack ack = EBB__ACK__INIT;
        ack.epoch = 7;
        ack.seq = i;
        assert_int_equal(sock_send(f->router, &peer, EBB__ENVELOPE__BODY_ACK, &ack, &e), ST_OK);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(sock_wait(f->dealer, 60000), 1);
        assert_int_equal(sock_receive(f->dealer, NULL, &m, &e), ST_OK);
        assert_int_equal(m->ack->seq, i);
        wire_free(m);
    }
}

static void a_peer_that_is_gone_is_said(void **state)
{
    struct fixture *f = *state;
    struct err e;
    struct sock_peer nobody = {.id = "nobody", .len = 6};
    Ebb__Ack ack = EBB__ACK__INIT;
    assert_int_equal(sock_send(f->router, &nobody, EBB__ENVELOPE__BODY_ACK, &ack, &e), ST_NOT_FOUND);
}

static void foreign_bytes_are_dropped(void **state)
{
    struct fixture *f = *state;
    struct err e;
    struct sock_peer peer;
    Ebb__Envelope *m;
    void *raw = sock_zmq(f->dealer);
    srand(1);
    int refused = 0;
    for (int i = 0; i < 300; i++) {
        char junk[200];
        size_t n = (size_t)rand() % sizeof junk;
        for (size_t k = 0; k < n; k++)
            junk[k] = (char)rand();
        if (i % 3 == 0)
            zmq_send(raw, junk, n, ZMQ_SNDMORE); /* too many frames */
        zmq_send(raw, junk, n, 0);
        assert_int_equal(sock_wait(f->router, 60000), 1);
        enum status st = sock_receive(f->router, &peer, &m, &e);
        if (st == ST_OK)
            wire_free(m); /* junk may be a valid message; it must only be safe */
        else
            refused += st == ST_CORRUPT;
    }
    assert_true(refused > 250);
    Ebb__Bye bye = EBB__BYE__INIT; /* and the socket still works */
    assert_int_equal(sock_send(f->dealer, NULL, EBB__ENVELOPE__BODY_BYE, &bye, &e), ST_OK);
    assert_int_equal(sock_wait(f->router, 60000), 1);
    assert_int_equal(sock_receive(f->router, &peer, &m, &e), ST_OK);
    assert_int_equal(m->body_case, EBB__ENVELOPE__BODY_BYE);
    wire_free(m);
}

static void encoding_and_decoding_survive_every_failed_allocation(void **state)
{
    (void)state;
    struct err e;
    Ebb__Span span = EBB__SPAN__INIT;
    span.end = 9;
    Ebb__Extent extent = EBB__EXTENT__INIT, *extents[2] = {&extent, &extent};
    extent.span = &span;
    Ebb__Commit commit = EBB__COMMIT__INIT;
    commit.n_done = 2;
    commit.done = extents;
    for (uint64_t n = 1;; n++) {
        struct buf b = {0};
        Ebb__Envelope *m = NULL;
        mem_fail_nth(n);
        enum status st = wire_encode(EBB__ENVELOPE__BODY_COMMIT, &commit, &b, &e);
        if (st == ST_OK)
            st = wire_decode(b.data, b.len, &m, &e);
        uint64_t made = mem_fail_nth(0);
        wire_free(m);
        buf_release(&b);
        if (made < n) {
            assert_int_equal(st, ST_OK);
            break;
        }
        assert_int_not_equal(st, ST_OK);
    }
}

/* CURVE ---------------------------------------------------------------------------------------------------------------------------- */

struct gate { /* a ZAP handler that lets one key in */
    void *context;
    char key[KEYS_Z85 + 1];
    char domain[32];
    atomic_int stop, asked;
};

static void *stand_at_gate(void *arg)
{
    struct gate *g = arg;
    void *zap;
    int wait = 20;
    struct err e;
    if (sock_gate_open(g->context, &zap, &e) != ST_OK)
        return NULL;
    zmq_setsockopt(zap, ZMQ_RCVTIMEO, &wait, sizeof wait);
    g->stop = 0;
    while (g->stop != 1) {
        char frames[8][256] = {0};
        int n = 0, more = 1;
        size_t size = sizeof more;
        for (; more && n < 8; n++) {
            if (zmq_recv(zap, frames[n], 255, 0) < 0)
                break;
            zmq_getsockopt(zap, ZMQ_RCVMORE, &more, &size);
        }
        if (n < 7)
            continue;
        char z85[KEYS_Z85 + 1] = "";
        zmq_z85_encode(z85, (uint8_t *)frames[6], 32);
        snprintf(g->domain, sizeof g->domain, "%.31s", frames[2]);
        g->asked++;
        int good = strcmp(z85, g->key) == 0;
        zmq_send(zap, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(zap, frames[1], strlen(frames[1]), ZMQ_SNDMORE);
        zmq_send(zap, good ? "200" : "400", 3, ZMQ_SNDMORE);
        zmq_send(zap, "", 0, ZMQ_SNDMORE);
        zmq_send(zap, good ? "4711" : "", good ? 4 : 0, ZMQ_SNDMORE);
        zmq_send(zap, "", 0, 0);
    }
    sock_gate_close(g->context, zap);
    return NULL;
}

static int bind_anywhere(void *context, const struct keys *keys, struct sock **out, char endpoint[64])
{
    struct err e;
    for (int i = 0; i < 50; i++) {
        snprintf(endpoint, 64, "tcp://127.0.0.1:%d", 20000 + (int)((unsigned)(getpid() * 31 + i * 977) % 12000));
        if (sock_router(context, endpoint, keys, out, &e) == ST_OK)
            return 0;
    }
    return -1;
}

static void nothing_is_said_over_tcp_without_keys(void **state)
{
    (void)state;
    void *context = zmq_ctx_new();
    struct sock *s = NULL;
    struct err e;
    assert_int_equal(sock_router(context, "tcp://127.0.0.1:29999", NULL, &s, &e), ST_USER);
    assert_int_equal(sock_dealer(context, "tcp://127.0.0.1:29999", NULL, NULL, 0, &s, &e), ST_USER);
    assert_non_null(strstr(e.text, "needs keys"));
    zmq_ctx_term(context);
}

static void a_key_is_proved_and_numbered(void **state)
{
    (void)state;
    struct err e;
    struct keys server, good, bad, lost;
    struct gate g = {.context = zmq_ctx_new(), .stop = -1};
    void *other = zmq_ctx_new();
    assert_int_equal(keys_generate(&server, &e), ST_OK);
    assert_int_equal(keys_generate(&good, &e), ST_OK);
    assert_int_equal(keys_generate(&bad, &e), ST_OK);
    lost = good;
    strcpy(good.server_key, server.public_key);
    strcpy(bad.server_key, server.public_key);
    strcpy(lost.server_key, bad.public_key); /* another daemon's */
    strcpy(g.key, good.public_key);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stand_at_gate, &g), 0);
    while (g.stop == -1)
        usleep(1000);
    struct sock *router, *dealer;
    char endpoint[64];
    assert_int_equal(bind_anywhere(g.context, &server, &router, endpoint), 0);
    assert_int_equal(sock_meet(other, endpoint, &good, 20000, &dealer, &e), ST_OK);
    assert_string_equal(g.domain, SOCK_NODES);
    Ebb__Bye bye = EBB__BYE__INIT;
    assert_int_equal(sock_send(dealer, NULL, EBB__ENVELOPE__BODY_BYE, &bye, &e), ST_OK);
    struct sock_peer peer;
    Ebb__Envelope *m;
    assert_int_equal(sock_wait(router, 20000), 1);
    assert_int_equal(sock_receive(router, &peer, &m, &e), ST_OK);
    assert_int_equal(peer.user, 4711);
    assert_true(peer.fd >= 0);
    wire_free(m);
    struct buf big = {0}; /* longer than a daemon takes over tcp */
    assert_int_equal(buf_reserve(&big, SOCK_MAX_TCP + 1), 0);
    memset(big.data, 'x', SOCK_MAX_TCP);
    big.data[SOCK_MAX_TCP] = 0;
    Ebb__Request request = EBB__REQUEST__INIT;
    request.json = big.data;
    assert_int_equal(sock_send(dealer, NULL, EBB__ENVELOPE__BODY_REQUEST, &request, &e), ST_USER);
    assert_non_null(strstr(e.text, "allowed over tcp"));
    buf_release(&big);
    sock_close(dealer);
    assert_int_equal(sock_meet(other, endpoint, &bad, 20000, &dealer, &e), ST_USER);
    assert_non_null(strstr(e.text, "does not let the key"));
    assert_int_equal(sock_meet(other, endpoint, &lost, 20000, &dealer, &e), ST_ENV);
    assert_non_null(strstr(e.text, "is not the daemon whose public key is"));
    g.stop = 1;
    pthread_join(thread, NULL);
    sock_close(router);
    zmq_ctx_term(g.context); /* returns when the port is closed: ZeroMQ closes in a thread of its own */
    assert_int_equal(sock_meet(other, endpoint, &good, 20000, &dealer, &e), ST_ENV);
    assert_non_null(strstr(e.text, "no daemon can be reached"));
    assert_int_equal(sock_meet(other, "tcp://no-such-host.invalid:5570", &good, 2000, &dealer, &e), ST_ENV);
    assert_non_null(strstr(e.text, "no-such-host.invalid"));
    zmq_ctx_term(other);
}

static void where_nobody_is_asked_nobody_gets_in(void **state)
{
    (void)state;
    struct err e;
    struct keys server;
    void *context = zmq_ctx_new(), *zap;
    struct sock *router;
    char endpoint[64];
    assert_int_equal(keys_generate(&server, &e), ST_OK);
    assert_int_equal(sock_router(context, "tcp://127.0.0.1:29998", &server, &router, &e), ST_ENV);
    assert_non_null(strstr(e.text, "nobody is there to say which keys may come in"));
    assert_int_equal(sock_gate_open(context, &zap, &e), ST_OK);
    assert_int_equal(bind_anywhere(context, &server, &router, endpoint), 0);
    sock_close(router);
    sock_gate_close(context, zap);
    assert_int_equal(sock_router(context, endpoint, &server, &router, &e), ST_ENV);
    zmq_ctx_term(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(there_and_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_is_gone_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(foreign_bytes_are_dropped, setup, teardown),
        cmocka_unit_test(encoding_and_decoding_survive_every_failed_allocation),
        cmocka_unit_test(nothing_is_said_over_tcp_without_keys),
        cmocka_unit_test(a_key_is_proved_and_numbered),
        cmocka_unit_test(where_nobody_is_asked_nobody_gets_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
