/* How a worker went, as the core is told. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>

#include "daemon/local.h"

static void causes(void **state)
{
    (void)state;
    static const struct {
        struct local_death death;
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (local_cause(&cases[i].death) != cases[i].want) {
            print_error("case %zu: %d, not %d\n", i, (int)local_cause(&cases[i].death), (int)cases[i].want);
            fail();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(causes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
