/* Messages over real ZeroMQ sockets: whole, in order, and foreign bytes are refused. */
#include <setjmp.h>
#include <stdarg.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(there_and_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_is_gone_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(foreign_bytes_are_dropped, setup, teardown),
        cmocka_unit_test(encoding_and_decoding_survive_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
