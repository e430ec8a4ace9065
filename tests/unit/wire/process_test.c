/* How a worker went, and the note by which a later parent knows it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/process.h"

static void causes(void **state)
{
    (void)state;
    static const struct {
        struct process_death death;
        enum worker_end want;
    } cases[] = {
        {{.exit_status = 0, .bye = 1}, WORKER_DRAINED},
        {{.exit_status = 0}, WORKER_LOST},
        {{.exit_status = 1}, WORKER_LOST},
        {{.exit_status = 1, .bye = 1}, WORKER_LOST},
        {{.signal = SIGSEGV}, WORKER_CRASHED},
        {{.signal = SIGABRT}, WORKER_CRASHED},
        {{.signal = SIGBUS}, WORKER_CRASHED},
        {{.signal = SIGFPE}, WORKER_CRASHED},
        {{.signal = SIGILL}, WORKER_CRASHED},
        {{.signal = SIGSEGV, .bye = 1}, WORKER_CRASHED},
        {{.signal = SIGKILL}, WORKER_LOST},
        {{.signal = SIGKILL, .oom_risen = 1}, WORKER_OOM},
        {{.signal = SIGTERM, .oom_risen = 1}, WORKER_LOST},
        {{.signal = SIGTERM}, WORKER_LOST},
        {{.signal = SIGHUP}, WORKER_LOST},
        {{.exit_status = 1, .cause = BLACKBOX_OUT_OF_MEMORY}, WORKER_OOM},
        {{.signal = SIGABRT, .cause = BLACKBOX_OUT_OF_MEMORY}, WORKER_OOM},
        {{.exit_status = 1, .cause = BLACKBOX_CRASHED}, WORKER_CRASHED},
        {{.signal = SIGKILL, .killed_hung = 1}, WORKER_HUNG},
        {{.signal = SIGKILL, .killed_hung = 1, .oom_risen = 1}, WORKER_HUNG},
        {{.unknown = 1}, WORKER_LOST},
        {{.unknown = 1, .oom_risen = 1}, WORKER_LOST},
        {{.unknown = 1, .bye = 1}, WORKER_DRAINED},
        {{.unknown = 1, .cause = BLACKBOX_CRASHED}, WORKER_CRASHED},
        {{.unknown = 1, .killed_hung = 1}, WORKER_HUNG},
        /* evicted: no record is to blame, unless it had crashed by itself before */
        {{.signal = SIGKILL, .evicted = 1}, WORKER_PREEMPTED},
        {{.signal = SIGKILL, .evicted = 1, .oom_risen = 1}, WORKER_PREEMPTED},
        {{.signal = SIGTERM, .evicted = 1}, WORKER_PREEMPTED},
        {{.exit_status = 0, .evicted = 1, .bye = 1}, WORKER_DRAINED},
        {{.exit_status = 1, .evicted = 1}, WORKER_PREEMPTED},
        {{.unknown = 1, .evicted = 1}, WORKER_PREEMPTED},
        {{.signal = SIGSEGV, .evicted = 1}, WORKER_CRASHED},
        {{.signal = SIGKILL, .evicted = 1, .cause = BLACKBOX_CRASHED}, WORKER_CRASHED},
        {{.signal = SIGKILL, .evicted = 1, .cause = BLACKBOX_OUT_OF_MEMORY}, WORKER_OOM},
        {{.signal = SIGKILL, .evicted = 1, .killed_hung = 1}, WORKER_HUNG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (process_cause(&cases[i].death) != cases[i].want) {
            print_error("case %zu: %d, not %d\n", i, (int)process_cause(&cases[i].death), (int)cases[i].want);
            fail();
        }
}

static void notes(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-note-XXXXXX";
    struct process_note n;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    process_note_read(path, &n); /* empty */
    assert_int_equal(n.pid, 0);
    assert_false(process_note_lives(&n));
    pid_t child = fork();
    if (!child) {
        pause();
        _exit(0);
    }
    assert_int_equal(process_note_write(path, child, 7), 0);
    process_note_read(path, &n);
    assert_int_equal(n.pid, child);
    assert_int_equal(n.place, 7);
    assert_true(process_note_lives(&n));
    n.started++; /* another process by the same number */
    assert_false(process_note_lives(&n));
    n.started--;
    kill(child, SIGKILL);
    siginfo_t dead;
    waitid(P_PID, (id_t)child, &dead, WEXITED | WNOWAIT);
    assert_false(process_note_lives(&n)); /* dead, and not reaped */
    waitpid(child, NULL, 0);
    assert_false(process_note_lives(&n));
    static const char *const bad[] = {"x", "12", "-5 3 1\n", "99999999999999999999 1 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, bad[i], strlen(bad[i]), 0), strlen(bad[i]));
        process_note_read(path, &n);
        assert_false(process_note_lives(&n));
    }
    close(fd);
    unlink(path);
    process_note_read(path, &n);
    assert_int_equal(n.pid, 0);
    assert_int_equal(process_note_write("/nowhere/at/all", 1, 1), -1);
}

static void last_words(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-log-XXXXXX", words[200];
    int fd = mkstemp(path);
    static const struct {
        const char *text, *want;
    } cases[] = {{"", ""}, {"one\n", "one"}, {"a\nb\nc\nd\n\n", "b|c|d"}, {"same\nsame\nother", "same|other"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, cases[i].text, strlen(cases[i].text), 0), strlen(cases[i].text));
        process_last_words(path, words, sizeof words);
        assert_string_equal(words, cases[i].want);
    }
    close(fd);
    unlink(path);
    process_last_words(path, words, sizeof words);
    assert_string_equal(words, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(causes), cmocka_unit_test(notes), cmocka_unit_test(last_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
