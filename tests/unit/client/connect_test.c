/* Against a daemon that is a thread of this test: answers, errors, late answers, several of them, silence, and nobody there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* ours prints an error */

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/path.h"
#include "client/client.h"
#include "client/connect.h"
#include "wire/sock.h"

static char folder[] = "/tmp/ebb-connect-XXXXXX";
static char endpoint[128];
static void *context;
static struct sock *router;
static pthread_t thread;
static atomic_int ending;

static void reply(const struct sock_peer *peer, uint64_t id, uint32_t code, const char *json, int more)
{
    struct err e;
    Ebb__Reply r = EBB__REPLY__INIT;
    r.id = id;
    r.code = code;
    r.json = (char *)json;
    r.more = more;
    if (sock_send(router, peer, EBB__ENVELOPE__BODY_REPLY, &r, &e) != ST_OK)
        abort();
}

static void *serve(void *arg)
{
    uint64_t late = 0;
    (void)arg;
    while (!atomic_load(&ending)) {
        struct sock_peer peer;
        Ebb__Envelope *m;
        struct err e;
        sock_wait(router, 50);
        if (sock_receive(router, &peer, &m, &e) != ST_OK)
            continue;
        Ebb__Request *q = m->request;
        if (late) /* the answer comes when the next one has asked */
            reply(&peer, late, ST_OK, "{\"late\":true}", 0);
        late = 0;
        if (strcmp(q->verb, "echo") == 0) {
            reply(&peer, q->id, ST_OK, q->json, 0);
        } else if (strcmp(q->verb, "refuse") == 0) {
            reply(&peer, q->id, ST_USER, "{\"error\":\"no; do that\"}", 0);
        } else if (strcmp(q->verb, "again") == 0) { /* a code that means something else to the caller */
            reply(&peer, q->id, ST_AGAIN, "{\"error\":\"busy\"}", 0);
        } else if (strcmp(q->verb, "garbage") == 0) {
            reply(&peer, q->id, ST_OK, "[1", 0);
        } else if (strcmp(q->verb, "wordless") == 0) {
            reply(&peer, q->id, ST_ENV, "{}", 0);
        } else if (strcmp(q->verb, "several") == 0) {
            reply(&peer, q->id, ST_OK, "{\"n\":1}", 1);
            reply(&peer, q->id + 100, ST_OK, "{\"n\":50}", 0); /* an answer to something else */
            reply(&peer, q->id, ST_OK, "{\"n\":2}", 1);
            reply(&peer, q->id, ST_OK, "{\"n\":3}", 0);
        } else if (strcmp(q->verb, "late") == 0) {
            late = q->id;
        } /* "silence": nothing */
        wire_free(m);
    }
    return NULL;
}

static int start(void **state)
{
    (void)state;
    struct err e;
    if (!mkdtemp(folder))
        return -1;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/clients", folder);
    context = zmq_ctx_new();
    return sock_router(context, endpoint, NULL, &router, &e) != ST_OK || pthread_create(&thread, NULL, serve, NULL);
}

static int end(void **state)
{
    (void)state;
    struct err e;
    atomic_store(&ending, 1);
    pthread_join(thread, NULL);
    sock_close(router);
    zmq_ctx_term(context);
    return path_remove_tree(folder, &e) != ST_OK;
}

static struct conn *opened(void)
{
    struct conn *c;
    struct err e;
    assert_int_equal(conn_open(endpoint, &c, &e), ST_OK);
    return c;
}

static void answers(void **state)
{
    (void)state;
    struct conn *c = opened();
    struct err e;
    json_t *out = NULL;
    assert_int_equal(conn_call(c, "echo", json_pack("{s:i}", "a", 5), 60000, &out, &e), ST_OK);
    assert_int_equal(count_of(out, "a"), 5);
    json_decref(out);
    assert_int_equal(conn_call(c, "echo", NULL, 60000, &out, &e), ST_OK);
    assert_int_equal(json_object_size(out), 0);
    json_decref(out);
    assert_int_equal(conn_call(c, "echo", NULL, 60000, NULL, &e), ST_OK);
    conn_close(c);
}

static void refusals(void **state)
{
    (void)state;
    struct conn *c = opened();
    struct err e;
    json_t *out = NULL;
    assert_int_equal(conn_call(c, "refuse", NULL, 60000, &out, &e), ST_USER);
    assert_string_equal(e.text, "no; do that");
    assert_int_equal(conn_call(c, "again", NULL, 60000, &out, &e), ST_ENV);
    assert_int_equal(e.code, ST_ENV);
    assert_string_equal(e.text, "busy");
    assert_int_equal(conn_call(c, "garbage", NULL, 60000, &out, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "the daemon's answer cannot be read"));
    assert_int_equal(conn_call(c, "wordless", NULL, 60000, &out, &e), ST_ENV);
    assert_string_equal(e.text, "the daemon failed and does not say why; see its log");
    assert_null(out);
    conn_close(c);
}

static enum status sum(void *arg, json_t *r, struct err *e)
{
    (void)e;
    uint64_t *n = arg;
    *n = *n * 10 + count_of(r, "n");
    return ST_OK;
}

static void several(void **state)
{
    (void)state;
    struct conn *c = opened();
    struct err e;
    uint64_t n = 0;
    assert_int_equal(conn_each(c, "several", NULL, 60000, sum, &n, &e), ST_OK);
    assert_int_equal(n, 123); /* in order; the stranger is dropped */
    json_t *out = NULL;
    assert_int_equal(conn_call(c, "several", NULL, 60000, &out, &e), ST_OK);
    assert_int_equal(count_of(out, "n"), 3); /* the last */
    json_decref(out);
    conn_close(c);
}

static void late_answers_are_dropped(void **state)
{
    (void)state;
    struct conn *c = opened();
    struct err e;
    json_t *out = NULL;
    assert_int_equal(conn_call(c, "late", NULL, 20, &out, &e), ST_AGAIN);
    assert_null(out);
    assert_int_equal(conn_call(c, "echo", json_pack("{s:i}", "a", 6), 60000, &out, &e), ST_OK); /* not the late one */
    assert_int_equal(count_of(out, "a"), 6);
    json_decref(out);
    uint64_t before = clock_ms();
    assert_int_equal(conn_call(c, "silence", NULL, 100, NULL, &e), ST_AGAIN);
    assert_true(clock_ms() - before >= 100);
    conn_close(c);
}

static void nobody_there(void **state)
{
    (void)state;
    struct conn *c;
    struct err e;
    char path[160];
    uint64_t before = clock_ms();
    snprintf(path, sizeof path, "ipc://%s/none", folder);
    assert_int_equal(conn_open(path, &c, &e), ST_ENV);
    assert_non_null(strstr(e.text, "there is no such socket"));
    /* a socket that a dead daemon left */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/left", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    snprintf(path, sizeof path, "ipc://%s", a.sun_path);
    assert_int_equal(conn_open(path, &c, &e), ST_ENV);
    assert_non_null(strstr(e.text, "listens at"));
    assert_non_null(strstr(e.text, "any more"));
    char longer[400] = "ipc://";
    memset(longer + 6, 'x', 300);
    assert_int_equal(conn_open(longer, &c, &e), ST_USER);
    assert_true(clock_ms() - before < 3000); /* nothing is waited for */
}

/* A daemon that takes a request with it is not waited for; its successor at the same place is asked. */
static void who_dies_is_not_waited_for(void **state)
{
    (void)state;
    char path[160];
    struct conn *c = NULL;
    struct err e;
    json_t *out = NULL;
    snprintf(path, sizeof path, "ipc://%s/mortal", folder);
    signal(SIGCHLD, SIG_IGN); /* reaped at once */
    for (int life = 0; life < 2; life++) {
        int ready[2];
        char word;
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (!child) {
            struct sock_peer peer;
            Ebb__Envelope *m;
            void *own = zmq_ctx_new();
            if (sock_router(own, path, NULL, &router, &e) != ST_OK || write(ready[1], "r", 1) != 1)
                _exit(1);
            for (;;) {
                sock_wait(router, 60000);
                if (sock_receive(router, &peer, &m, &e) != ST_OK)
                    continue;
                if (strcmp(m->request->verb, "die") == 0)
                    _exit(0);
                reply(&peer, m->request->id, ST_OK, "{\"lives\":true}", 0);
                sock_wait(router, 1); /* lets it go out */
            }
        }
        close(ready[1]);
        assert_int_equal(read(ready[0], &word, 1), 1);
        close(ready[0]);
        if (!c)
            assert_int_equal(conn_open(path, &c, &e), ST_OK);
        assert_int_equal(conn_call(c, "echo", NULL, 60000, &out, &e), ST_OK);
        json_decref(out);
        out = NULL;
        uint64_t before = clock_ms();
        assert_int_equal(conn_call(c, "die", NULL, 600000, &out, &e), ST_AGAIN);
        assert_string_equal(e.text, "the daemon has gone");
        assert_true(clock_ms() - before < 300000);
        assert_int_equal(conn_call(c, "echo", NULL, 600000, &out, &e), ST_AGAIN); /* nobody is there */
    }
    conn_close(c);
    signal(SIGCHLD, SIG_DFL);
}

static void the_pools_address(void **state)
{
    (void)state;
    struct err e;
    json_t *out = NULL;
    char path[160];
    snprintf(path, sizeof path, "%s/clients", folder);
    setenv("EBB_SOCKET", path, 1);
    assert_int_equal(ask("echo", json_pack("{s:i}", "a", 7), &out, &e), ST_OK);
    assert_int_equal(count_of(out, "a"), 7);
    json_decref(out);
    setenv("EBB_SOCKET", "/nowhere", 1);
    assert_int_equal(ask("echo", NULL, NULL, &e), ST_ENV);
    common.socket = endpoint; /* --socket wins, as an endpoint too */
    assert_int_equal(ask("echo", NULL, NULL, &e), ST_OK);
    common.socket = NULL;
    unsetenv("EBB_SOCKET");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(refusals), cmocka_unit_test(several),
                                       cmocka_unit_test(late_answers_are_dropped), cmocka_unit_test(nobody_there),
                                       cmocka_unit_test(who_dies_is_not_waited_for), cmocka_unit_test(the_pools_address)};
    return cmocka_run_group_tests(tests, start, end);
}
