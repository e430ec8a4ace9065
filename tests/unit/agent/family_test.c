/* A guest that runs commands is stopped, continued, counted and killed with them, though they have groups of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "workers/agent/family.h"

static char state_of(int pid)
{
    char path[64], text[512] = "", state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f) {
        char *p = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
        if (p)
            state = p[2];
        fclose(f);
    }
    return state;
}

/* A leader, and a child of it in another group that computes; its number. */
static int start(int *child)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    int leader = fork();
    if (leader == 0) {
        setsid();
        int pid = fork();
        if (pid == 0) {
            setpgid(0, 0);
            pid = getpid();
            if (write(fds[1], &pid, sizeof pid) != sizeof pid)
                _exit(1);
            for (volatile unsigned i = 0;; i++) {
            }
        }
        for (;;)
            pause();
    }
    assert_int_equal(read(fds[0], child, sizeof *child), sizeof *child);
    close(fds[0]);
    close(fds[1]);
    return leader;
}

static void all_of_them(void **state)
{
    (void)state;
    int child, leader = start(&child);
    while (family_ticks(leader) < 3) /* the leader itself takes none */
        clock_sleep_ms(10);
    family_signal(leader, SIGSTOP);
    while (state_of(leader) != 'T' || state_of(child) != 'T')
        clock_sleep_ms(5);
    uint64_t before = family_ticks(leader);
    clock_sleep_ms(50);
    assert_int_equal(family_ticks(leader), before);
    family_signal(leader, SIGCONT);
    while (state_of(leader) == 'T' || state_of(child) == 'T' || family_ticks(leader) == before)
        clock_sleep_ms(5);
    family_signal(leader, SIGKILL);
    int status;
    assert_int_equal(waitpid(leader, &status, 0), leader);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    while (state_of(child) && state_of(child) != 'Z')
        clock_sleep_ms(5);
}

static void nobody(void **state)
{
    (void)state;
    int pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(family_ticks(pid), 0);
    family_signal(pid, SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_of_them), cmocka_unit_test(nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
