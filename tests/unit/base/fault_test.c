/* Do faults come when they are due, and never else? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"

static void without_a_rule(void **state)
{
    (void)state;
    fault_set(NULL);
    assert_int_equal(fault_point("store.write"), 0);
}

static void the_nth_time(void **state)
{
    (void)state;
    fault_set("store.write:3:EIO,part.sync:0:ENOSPC");
    assert_int_equal(fault_point("store.write"), 0);
    assert_int_equal(fault_point("store.writes"), 0); /* another name */
    assert_int_equal(fault_point("store.write"), 0);
    assert_int_equal(fault_point("store.write"), EIO);
    assert_int_equal(fault_point("store.write"), 0); /* once */
    assert_int_equal(fault_point("part.sync"), ENOSPC);
    assert_int_equal(fault_point("part.sync"), ENOSPC); /* every time */
    fault_set("store.write:1:EINTR"); /* counters begin anew */
    assert_int_equal(fault_point("store.write"), EINTR);
    assert_int_equal(fault_point("part.sync"), 0);
}

static void names_with_a_star(void **state)
{
    (void)state;
    fault_set("link.*:2:EACCES");
    assert_int_equal(fault_point("link.send"), 0);
    assert_int_equal(fault_point("lin"), 0);
    assert_int_equal(fault_point("link.receive"), EACCES); /* the second of any of them */
    assert_int_equal(fault_point("link.send"), 0);
}

static void sleeping(void **state)
{
    (void)state;
    fault_set("x:1:sleep=50");
    uint64_t before = clock_ms();
    assert_int_equal(fault_point("x"), 0);
    assert_true(clock_ms() - before >= 49);
}

static void *pass(void *arg)
{
    fault_point("x");
    atomic_store((atomic_int *)arg, 1);
    return NULL;
}

static void waiting(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-fault-XXXXXX", spec[64];
    assert_non_null(mkdtemp(path));
    snprintf(spec, sizeof spec, "x:1:wait=%s/gate", path);
    fault_set(spec);
    atomic_int through = 0;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, pass, &through), 0);
    clock_sleep_ms(30);
    assert_int_equal(atomic_load(&through), 0);
    assert_int_equal(mkdir(spec + strlen("x:1:wait="), 0700), 0);
    pthread_join(t, NULL);
    assert_int_equal(atomic_load(&through), 1);
    rmdir(spec + strlen("x:1:wait="));
    rmdir(path);
}

/* In a child: what it does to the process. */
static int child_status(const char *spec, int from_environment)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (from_environment) {
            setenv("EBB_FAULT", spec, 1);
            execl("/proc/self/exe", "fault_test", "--pass", NULL);
            _exit(99);
        }
        fault_set(spec);
        fault_point("x");
        _exit(7);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        int stopped = status;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return stopped;
    }
    return status;
}

static void signals(void **state)
{
    (void)state;
    int status = child_status("x:1:kill", 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = child_status("x:2:kill", 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7); /* only once passed */
    status = child_status("x:1:stop", 0);
    assert_true(WIFSTOPPED(status));
}

static void the_environment_is_read(void **state)
{
    (void)state;
    int status = child_status("x:1:EIO", 1);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EIO);
    status = child_status("y:1:EIO", 1);
    assert_int_equal(WEXITSTATUS(status), 0);
    status = child_status("nonsense", 1); /* a BUG: it aborts */
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) /* the child above */
        return fault_point("x");
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_a_rule), cmocka_unit_test(the_nth_time), cmocka_unit_test(names_with_a_star),
                                       cmocka_unit_test(sleeping),       cmocka_unit_test(signals),      cmocka_unit_test(the_environment_is_read),
                                       cmocka_unit_test(waiting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
