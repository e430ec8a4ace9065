/* Plants one bug after the other in the core and lets the simulator look for it: each must be found within SEEDS seeds, and
   without a bug nothing may be found. A planted bug often ends in an abort, so each one runs in a process of its own. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#define SEEDS 1000

extern int sched_mutant;

static const char *const bugs[] = {
    [1] = "a repeated commit is written again",
    [2] = "a commit of an old epoch is accepted",
    [3] = "a cut takes more than the worker gave up",
    [4] = "a lease is sent that is no row",
    [5] = "a span that is given back is dropped",
    [6] = "the sequence number of a lease is not kept",
    [7] = "an epoch is used twice",
    [8] = "leases whose worker never came back after a restart stay leased",
    [9] = "spans are merged over a gap",
    [10] = "a lost worker counts as a crash",
    [11] = "every suspect is quarantined at the first crash",
    [12] = "lone crashes are not counted",
    [13] = "silent workers are never lost",
    [14] = "a job is published while leases are out",
    [15] = "an unanswered cut gives the rest away but keeps the lease",
    [16] = "a quarantined record is not counted",
    [17] = "a paused job still gets leases",
    [18] = "suspects are not run alone",
    [19] = "a probe gets company",
    [20] = "a passing failure is retried at once for ever, its tries are not counted",
    [21] = "as many workers are wanted as there are",
    [22] = "idle workers are never let go",
    [23] = "workers that have something to do are let go when fewer are wanted",
    [24] = "what never arrived is not asked for again",
    [25] = "a limit that fell never rises",
    [26] = "more workers are wanted than the job may have",
    [27] = "workers are still wanted when all is done",
    [28] = "the head of a pipeline gets leases before all of its members are ready",
    [29] = "a member that leaves does not break its pipeline",
    [30] = "a pipeline is told to go when its first member is ready",
    [31] = "a part that was loaded for an older cut counts",
    [32] = "a pipeline keeps its workers whoever waits",
    [33] = "what a member of a pipeline died of is not blamed",
    [34] = "a worker is taken into two pipelines",
    [35] = "members that are not the head get leases",
};

static int run(int mutant, uint64_t *at)
{
    int ends[2];
    if (pipe(ends))
        abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        sched_mutant = mutant;
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        struct sim *m = xmalloc(sizeof *m);
        for (uint64_t s = 1; s <= SEEDS; s++) {
            if (write(ends[1], &s, sizeof s) != sizeof s)
                _exit(3);
            if (sim_run(m, s, 0))
                _exit(1);
            sim_release(m);
        }
        _exit(0);
    }
    close(ends[1]);
    uint64_t s;
    while (read(ends[0], &s, sizeof s) == sizeof s)
        *at = s;
    close(ends[0]);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return WTERMSIG(status) == SIGABRT ? 1 : 3;
}

int main(void)
{
    int bad = 0;
    uint64_t at = 0;
    if (run(0, &at) != 0) {
        printf("FAILED: without a planted bug, seed %" PRIu64 "\n", at);
        return 1;
    }
    for (int i = 1; i < (int)(sizeof bugs / sizeof bugs[0]); i++) {
        int result = run(i, &at);
        if (result == 1)
            printf("ok: bug %2d found at seed %3" PRIu64 ": %s\n", i, at, bugs[i]);
        else
            printf("FAILED: bug %2d not found: %s\n", i, bugs[i]);
        bad += result != 1;
    }
    return bad != 0;
}
