/* Who may take a state directory, and who may not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "daemon/owner.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    log_init("owner_test", LOG_ERROR);
    strcpy(dir, "/tmp/ebbd-owner-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) == ST_OK ? 0 : -1;
}

static int yes(const struct owner_record *r)
{
    (void)r;
    return 1;
}

static int no(const struct owner_record *r)
{
    (void)r;
    return 0;
}

static int must_not_ask(const struct owner_record *r)
{
    (void)r;
    fail_msg("a process of another host or boot was looked for here");
    return 0;
}

static void rules(void **state)
{
    (void)state;
    struct owner_record self = {.host = "here", .boot = "b1", .nonce = "n1", .pid = 10}, theirs = {.host = "here", .boot = "b1", .nonce = "n2", .pid = 11};
    assert_int_equal(owner_judge(NULL, &self, must_not_ask), OWNER_FREE);
    assert_int_equal(owner_judge(&theirs, &self, yes), OWNER_LIVE);
    assert_int_equal(owner_judge(&theirs, &self, no), OWNER_FREE);
    strcpy(theirs.boot, "b0");
    assert_int_equal(owner_judge(&theirs, &self, must_not_ask), OWNER_FREE);
    strcpy(theirs.host, "there");
    assert_int_equal(owner_judge(&theirs, &self, must_not_ask), OWNER_WATCH);
}

static void alive_by_start(void **state)
{
    (void)state;
    struct owner_record r;
    struct err e;
    assert_int_equal(owner_self("ipc:///x", &r, &e), ST_OK);
    assert_int_equal(r.pid, getpid());
    assert_int_equal(strlen(r.nonce), 32);
    assert_true(owner_alive(&r));
    r.started++; /* the same number, another process */
    assert_false(owner_alive(&r));
    pid_t child = fork();
    if (!child)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    r.pid = (uint64_t)child; /* dead, not reaped */
    assert_false(owner_alive(&r));
    waitpid(child, NULL, 0);
    assert_false(owner_alive(&r));
}

static void taken_once(void **state)
{
    (void)state;
    struct owner *a, *b;
    struct owner_record theirs;
    struct err e;
    assert_int_equal(owner_take(dir, "ipc:///a", 200, &theirs, &a, &e), ST_OK);
    assert_int_equal(owner_take(dir, "ipc:///b", 200, &theirs, &b, &e), ST_AGAIN);
    assert_string_equal(theirs.endpoint, "ipc:///a");
    assert_non_null(strstr(e.text, "ipc:///a")); /* so that a client can attach */
    assert_int_equal(owner_check(a, &e), ST_OK);
    owner_release(a);
    assert_int_equal(owner_take(dir, "ipc:///b", 200, &theirs, &b, &e), ST_OK);
    owner_release(b);
    assert_int_equal(owner_read(dir, &theirs, &e), ST_NOT_FOUND);
}

static void dead_ones(void **state)
{
    (void)state;
    struct owner *a;
    struct owner_record r, theirs;
    struct err e;
    assert_int_equal(owner_self("ipc:///old", &r, &e), ST_OK);
    r.started++;
    assert_int_equal(owner_write(dir, &r, &e), ST_OK);
    uint64_t begin = clock_ms();
    assert_int_equal(owner_take(dir, "ipc:///a", 60000, &theirs, &a, &e), ST_OK); /* at once */
    assert_true(clock_ms() - begin < 60000);
    owner_release(a);
    char path[96];
    snprintf(path, sizeof path, "%s/owner", dir);
    assert_int_equal(path_write(path, "gibberish", 9, &e), ST_OK);
    assert_int_equal(owner_take(dir, "ipc:///a", 100, &theirs, &a, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, path));
    unlink(path);
}

static atomic_int seen_alive;

static void *refresh(void *arg)
{
    struct owner_record r = *(struct owner_record *)arg;
    struct err e;
    while (!atomic_load(&seen_alive)) {
        r.beat++;
        clock_sleep_ms(50);
        if (owner_write(dir, &r, &e) != ST_OK)
            return arg;
    }
    return NULL;
}

static void other_hosts(void **state)
{
    (void)state;
    struct owner *a;
    struct owner_record r, theirs;
    struct err e;
    assert_int_equal(owner_self("ipc:///far", &r, &e), ST_OK);
    strcpy(r.host, "far-away");
    assert_int_equal(owner_write(dir, &r, &e), ST_OK);
    pthread_t t;
    pthread_create(&t, NULL, refresh, &r);
    assert_int_equal(owner_take(dir, "ipc:///a", 60000, &theirs, &a, &e), ST_AGAIN); /* it moves: it lives */
    assert_non_null(strstr(e.text, "far-away"));
    void *failed;
    atomic_store(&seen_alive, 1);
    pthread_join(t, &failed);
    assert_null(failed);
    uint64_t begin = clock_ms();
    assert_int_equal(owner_take(dir, "ipc:///a", 400, &theirs, &a, &e), ST_OK); /* silent for so long */
    assert_true(clock_ms() - begin >= 400);
    /* somebody else's nonce: it is not ours any more */
    assert_int_equal(owner_check(a, &e), ST_OK);
    assert_int_equal(owner_write(dir, &r, &e), ST_OK);
    assert_int_equal(owner_check(a, &e), ST_AGAIN);
    assert_non_null(strstr(e.text, "taken over"));
    owner_release(a);
    assert_int_equal(owner_read(dir, &theirs, &e), ST_OK); /* and it is left in peace */
    assert_string_equal(theirs.host, "far-away");
    char path[96];
    snprintf(path, sizeof path, "%s/owner", dir);
    unlink(path);
}

static void ends_when_robbed(void **state)
{
    (void)state;
    struct owner_record r;
    struct err e;
    int status, taken[2];
    assert_int_equal(pipe(taken), 0);
    pid_t child = fork();
    if (!child) {
        struct owner *a;
        struct owner_record theirs;
        log_init("owner_test", LOG_ERROR);
        freopen("/dev/null", "w", stderr);
        if (owner_take(dir, "ipc:///a", 100, &theirs, &a, &e) != ST_OK)
            _exit(9);
        close(taken[0]);
        if (write(taken[1], "t", 1) != 1)
            _exit(7);
        clock_sleep_ms(120000);
        _exit(8);
    }
    char word;
    close(taken[1]);
    assert_int_equal(read(taken[0], &word, 1), 1); /* it is the owner now */
    close(taken[0]);
    assert_int_equal(owner_self("ipc:///thief", &r, &e), ST_OK);
    assert_int_equal(owner_write(dir, &r, &e), ST_OK);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules),     cmocka_unit_test(alive_by_start), cmocka_unit_test(taken_once),
                                       cmocka_unit_test(dead_ones), cmocka_unit_test(other_hosts),    cmocka_unit_test(ends_when_robbed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
