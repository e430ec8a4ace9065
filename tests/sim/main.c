/* sim [--seeds N] [--from M] | --seed N [--trace]; 500 seeds, with EBB_SOAK set 100,000 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/sim.h"

static uint64_t current;

static void on_abort(int unused)
{
    (void)unused; /* a BUG in the core: say how to see it again */
    char text[64];
    int n = snprintf(text, sizeof text, "seed %" PRIu64 " broke an invariant of the core\n", current);
    if (write(2, text, (size_t)n) < 0)
        _exit(2);
}

int main(int argc, char **argv)
{
    uint64_t from = 1, seeds = getenv("EBB_SOAK") ? 100000 : 500;
    int trace = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seeds") && i + 1 < argc) {
            seeds = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--from") && i + 1 < argc) {
            from = strtoull(argv[++i], NULL, 10);
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            from = strtoull(argv[++i], NULL, 10);
            seeds = 1;
        } else if (!strcmp(argv[i], "--trace")) {
            trace = 1;
        } else {
            fprintf(stderr, "usage: sim [--seeds N] [--from M] | --seed N [--trace]\n");
            return 2;
        }
    }

    signal(SIGABRT, on_abort);
    struct sim *m = xmalloc(sizeof *m);
    uint64_t longest_ms = 0, longest_seed = 0;
    uint64_t steps = 0, commits = 0, restarts = 0, crashes = 0, cuts = 0, stale = 0, probes = 0, quarantines = 0, kills = 0, let_go = 0, never = 0;
    for (uint64_t s = from; s < from + seeds; s++) {
        current = s;
        if (sim_run(m, s, trace)) {
            printf("FAILED: seed %" PRIu64 " fails %s\nto see it again: sim --seed %" PRIu64 " --trace\n", s, m->failure, s);
            return 1;
        }
        steps += m->steps;
        commits += m->commits;
        restarts += m->restarts;
        crashes += m->crashes;
        cuts += m->cuts;
        stale += m->stale;
        probes += m->probes;
        quarantines += m->quarantines;
        kills += m->kills;
        let_go += m->let_go;
        never += m->never;
        if (m->longest_ms > longest_ms) {
            longest_ms = m->longest_ms;
            longest_seed = s;
        }
        sim_release(m);
    }
    free(m);
    printf("ok: %" PRIu64 " seeds\n", seeds);
    printf("{\"sim\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"commits\":%" PRIu64 ",\"restarts\":%" PRIu64 ",\"crashes\":%" PRIu64
           ",\"hangs\":%" PRIu64 ",\"cuts\":%" PRIu64 ",\"stale\":%" PRIu64 ",\"probes\":%" PRIu64 ",\"quarantined\":%" PRIu64 ",\"let_go\":%" PRIu64 ",\"never_arrived\":%" PRIu64
           ",\"longest_without_progress_ms\":%" PRIu64 ",\"in_seed\":%" PRIu64 "}\n",
           seeds, steps, commits, restarts, crashes, kills, cuts, stale, probes, quarantines, let_go, never, longest_ms, longest_seed);
    return 0;
}
