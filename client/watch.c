/* Progress of a pool's job, as `ebb run` shows it. The daemon may go and come back meanwhile. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/follow.h"

#define PATIENCE_MS 60000 /* a daemon that is started anew is waited for so long */

struct watch {
    struct conn *c;
    uint64_t job, answered_ms;
};

static enum status poll_job(void *arg, json_t **job, struct err *e)
{
    struct watch *w = arg;
    enum status st = conn_call(w->c, "job", json_pack("{s:I}", "job", (json_int_t)w->job), 5000, job, e);
    if (st == ST_OK)
        w->answered_ms = clock_ms();
    if (st == ST_AGAIN && !signals_count() && clock_ms() - w->answered_ms > PATIENCE_MS)
        return err_set(e, ST_ENV, "the daemon has not answered for %d s; see 'systemctl status ebbd'", PATIENCE_MS / 1000);
    return st;
}

static int over(struct watch *w)
{
    json_t *job = NULL;
    struct err e;
    if (conn_call(w->c, "job", json_pack("{s:I, s:b}", "job", (json_int_t)w->job, "spec", 1), 30000, &job, &e) != ST_OK)
        return fail(&e);
    int canceled = strcmp(text_of(job, "state"), "canceled") == 0, code = canceled ? EXIT_HELD : count_of(job, "errors") ? EXIT_ERRORS : EXIT_DONE;
    if (canceled)
        say("job %" PRIu64 " was canceled", w->job);
    else
        summary_print(job, text_of(job, "output"), (number_of(job, "finished_ms", 0) - number_of(job, "submitted_ms", 0)) / 1000, 0);
    if (common.json) {
        json_object_del(job, "spec");
        print_json(follow_json(canceled ? "canceled" : "done", job));
    }
    json_decref(job);
    return code;
}

static int run_watch(int operand_count, char **operands)
{
    (void)operand_count;
    struct watch w = {.answered_ms = clock_ms()};
    struct follow f = {.poll = poll_job, .arg = &w, .wait_paused = 1};
    enum follow_end end;
    struct err e;
    int code;
    if (parse_job(operands[0], &w.job, &e) != ST_OK || conn_pool(&w.c, &e) != ST_OK)
        return fail(&e);
    signals_take();
    enum status st = follow_job(&f, &end, &e);
    follow_clear(&f);
    if (st != ST_OK) {
        code = fail(&e);
    } else if (end == FOLLOW_SIGNAL) {
        say("job %" PRIu64 " goes on without you; 'ebb watch %" PRIu64 "' shows it again", w.job, w.job);
        code = EXIT_INTERRUPTED;
    } else if (end == FOLLOW_STANDS) {
        why_print(w.c, w.job, 0);
        if (common.json)
            print_json(json_pack("{s:s, s:I, s:s}", "event", f.view.state, "job", (json_int_t)w.job, "reason", f.view.reason));
        code = EXIT_HELD;
    } else {
        code = over(&w);
    }
    conn_close(w.c);
    return code;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {
    .name = "ebb watch",
    .operands = "JOB",
    .summary = "show a job's progress until it is over",
    .details = "Ctrl-C ends the watching, not the job.\n\nExit codes: 0 all records done; 3 done, some records in errors; 4 held or canceled; 130 interrupted.",
    .examples = "  ebb watch 41",
    .opts = opts,
    .opt_count = COUNT(opts),
    .operands_min = 1,
    .operands_max = 1};

const struct command command_watch = {.name = "watch", .group = "Jobs of a pool", .table = &table, .run = run_watch};
