/* `ebb run`: the way in is spec_read -> local checks -> a private daemon -> submit -> follow -> summary -> stop.
   The daemon may die at any time, from a kill or of its own: it is started again, and the same submission finds the same job. It may also be
   another's, who typed the same command before. What was committed is safe from all of this; the client holds nothing but the screen. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "client/client.h"
#include "client/follow.h"
#include "client/local.h"
#include "client/private.h"
#include "client/spec.h"

#define DEATHS_MAX 5      /* of the daemon, in a row, without a record done in between */
#define SUBMIT_MS 600000  /* a dataset of ten million files takes its time to list */
#define WORKERS_MAX 4096  /* as ebbd has it */
#define POLL_ANSWER_MS 1000 /* then we look whether it lives */
#define LEAVING_MS 60000  /* a daemon that is about to end is given so long; workers may need 20 s for their last commits */

static struct private_opts started_with;
static int retry;

struct run {
    struct jobspec spec;
    struct local local;
    struct private daemon;
    struct follow follow;
    uint64_t job, records_before, deaths, records_at_death, began_ms;
    int submitted;   /* once: from then on the output is ours */
    int made_work, made_output; /* folders that were not there when we came */
    int resumed, at_once; /* at_once: it was done before we came */
    char shown[4096]; /* the output as a person writes it: out/, out.npy */
};

static int ends_in_slash(const char *path)
{
    size_t n = strlen(path);
    return n && path[n - 1] == '/';
}

static enum status submit(struct run *r, json_t **job, struct err *e)
{
    json_t *spec = jobspec_to_json(&r->spec);
    json_t *in = spec ? json_pack("{s:o, s:b, s:b}", "spec", spec, "force", common.force && !r->submitted, "wait_sources", 1) : NULL;
    if (!in)
        return err_nomem(e, "a job");
    TRY(conn_call(r->daemon.conn, "submit", in, SUBMIT_MS, job, e));
    r->job = count_of(*job, "job");
    return ST_OK;
}

/* A daemon that answers and knows the job. *job is what it says. ST_AGAIN: a signal came. */
static enum status connect_and_submit(struct run *r, json_t **job, struct err *e)
{
    uint64_t until = clock_ms() + LEAVING_MS;
    for (;;) {
        enum status st = private_start(&r->daemon, e);
        if (st == ST_OK)
            st = submit(r, job, e);
        if (st == ST_OK) {
            r->submitted = 1;
            return ST_OK;
        }
        if (conn_refused_for_now(r->daemon.conn) && !signals_count() && clock_ms() < until) { /* the one before us is on its way out */
            clock_sleep_ms(200);
            continue;
        }
        if (st != ST_AGAIN || signals_count() || private_alive(&r->daemon))
            return st == ST_AGAIN && !signals_count() ? err_set(e, ST_ENV, "the daemon does not answer; see its log '%s'", r->daemon.log) : st;
        char words[700];
        if (++r->deaths > DEATHS_MAX) {
            private_last_words(&r->daemon, words, sizeof words);
            return err_set(e, ST_ENV, "the daemon died %d times before it took the job; the end of its log '%s':%s", DEATHS_MAX, r->daemon.log, words);
        }
        clock_sleep_ms(200 * r->deaths);
    }
}

static enum status poll_job(void *arg, json_t **job, struct err *e)
{
    struct run *r = arg;
    enum status st = conn_call(r->daemon.conn, "job", json_pack("{s:I}", "job", (json_int_t)r->job), POLL_ANSWER_MS, job, e);
    if (st == ST_OK) {
        if (count_of(*job, "records_done") > r->records_at_death)
            r->deaths = 0;
        return ST_OK;
    }
    if (signals_count())
        return ST_AGAIN;
    if (st == ST_AGAIN && private_alive(&r->daemon))
        return ST_AGAIN; /* slow, but there */
    if (st != ST_AGAIN && st != ST_ENV)
        return st;
    char words[700];
    private_last_words(&r->daemon, words, sizeof words);
    if (++r->deaths > DEATHS_MAX)
        return err_set(e, ST_ENV, "the daemon died %d times in a row without getting on; the end of its log '%s':%s", DEATHS_MAX, r->daemon.log, words);
    follow_clear(&r->follow);
    if (r->daemon.ours)
        say("the daemon has gone; starting it again (what is committed is safe)");
    r->records_at_death = r->follow.view.records_done;
    clock_sleep_ms(r->deaths > 1 ? 200 * r->deaths : 0);
    st = connect_and_submit(r, job, e);
    if (st == ST_OK)
        json_object_del(*job, "resumed"); /* an answer to `job` has none */
    return st;
}

static void introduce(struct run *r)
{
    const struct model_info *m = &r->local.model;
    char a[UNITS_MAX], words[512], gives[128];
    struct sample sample;
    struct err e;
    if (common.quiet || common.json)
        return;
    for (size_t i = 0; i < r->spec.steps.count; i++)
        say("step %zu  %s", i + 1, local_step_words(&r->spec, r->local.steps, i, words, sizeof words));
    if (!r->spec.steps.count)
        say("model   %s (%s, %s parameters, %s), %s", m->name, m->architecture, units_count(a, (double)m->parameters),
        local_gives(m, gives, sizeof gives), m->precision);
    if (local_sample(&r->local, &r->spec, 200, 4u << 20, 150, NULL, NULL, &sample, &e) == ST_OK) {
        say("input   %s", local_count_words(&r->local, local_guess(&r->local, &r->spec, &sample), sample.whole, words, sizeof words));
        r->follow.records_total = sample.whole ? sample.records : 0;
        for (size_t i = 0; local_absent(&r->spec, &sample, i, words, sizeof words); i++)
            say("note    %s", words);
    }
    uint64_t workers = started_with.workers ? started_with.workers : 1;
    uint32_t cores = host_processors();
    say("workers %" PRIu64 " on this machine, %u core%s", workers, cores, cores == 1 ? "" : "s");
}

/* Asks the daemon to end, and waits until it has. Gives the last of the job's figures that could be had. */
static void stop(struct run *r, int drain, int signals, int show)
{
    struct err e;
    json_t *job;
    enum status st = conn_call(r->daemon.conn, "stop", json_pack("{s:b}", "drain", drain), 3000, NULL, &e);
    int asked = st == ST_OK;
    while (private_alive(&r->daemon)) {
        if (signals_count() > signals)
            break;
        job = NULL;
        if (conn_call(r->daemon.conn, "job", json_pack("{s:I}", "job", (json_int_t)r->job), 200, &job, &e) == ST_OK) {
            view_read(&r->follow.view, job);
            r->follow.view.workers_wanted = 0;
            r->follow.view.records_total = r->follow.records_total;
            r->follow.view.seconds_left = -1; /* of the job: it will not come to that */
            json_decref(job);
            if (show)
                follow_show(&r->follow);
            if (!asked)
                asked = conn_call(r->daemon.conn, "stop", json_pack("{s:b}", "drain", drain), 3000, NULL, &e) == ST_OK;
        }
        clock_sleep_ms(50);
    }
    follow_clear(&r->follow);
}

static int interrupted(struct run *r)
{
    char n[UNITS_MAX];
    int signals = signals_count();
    struct view *v = &r->follow.view;
    follow_clear(&r->follow);
    if (!r->daemon.conn) {
        say("stopped before anything was done. Go on with the same command");
        return EXIT_INTERRUPTED;
    }
    uint64_t workers = v->workers ? v->workers : 1;
    say("draining: %" PRIu64 " worker%s what %s (press Ctrl-C again to leave at once)", workers, workers == 1 ? " commits" : "s commit",
        workers == 1 ? "it has" : "they have");
    if (signals < 2) /* an impatient person may have pressed twice already */
        stop(r, 1, signals, 1);
    if (private_alive(&r->daemon)) {
        struct err e;
        (void)!conn_call(r->daemon.conn, "stop", json_pack("{s:b}", "drain", 0), 1000, NULL, &e);
        say("left at once; what was committed is safe. Go on with the same command");
    } else {
        say("stopped at %d %%, %s record%s %s done and safe. Go on with the same command", progress_percent(v), units_count(n, (double)v->records_done),
            v->records_done == 1 ? "" : "s", v->records_done == 1 ? "is" : "are");
    }
    if (common.json)
        print_json(json_pack("{s:s, s:I, s:I, s:f}", "event", "interrupted", "job", (json_int_t)r->job, "records_done", (json_int_t)v->records_done,
                             "fraction", v->fraction));
    return EXIT_INTERRUPTED;
}

static int finished(struct run *r)
{
    json_t *job = NULL;
    struct err e;
    int code = EXIT_HELD;
    follow_clear(&r->follow);
    if (conn_call(r->daemon.conn, "job", json_pack("{s:I, s:b}", "job", (json_int_t)r->job, "spec", 1), 30000, &job, &e) != ST_OK)
        return fail_with(ST_ENV, "cannot ask how the job ended: %s; type the same command again", e.text);
    if (strcmp(text_of(job, "state"), "canceled") == 0) {
        print_error_line("the job was canceled\nto begin anew, remove its output or give --force");
    } else {
        code = count_of(job, "errors") ? EXIT_ERRORS : EXIT_DONE;
        double seconds = (double)(clock_ms() - r->began_ms) / 1000;
        if (r->at_once)
            say("%s is done already", r->shown);
        summary_print(job, r->shown, r->at_once ? (number_of(job, "finished_ms", 0) - number_of(job, "submitted_ms", 0)) / 1000 : seconds, r->at_once ? 0 : r->records_before);
    }
    if (common.json) {
        json_object_del(job, "spec");
        print_json(follow_json(code == EXIT_HELD ? "canceled" : "done", job));
    }
    json_decref(job);
    return code;
}

static int stands(struct run *r)
{
    follow_clear(&r->follow);
    why_print(r->daemon.conn, r->job, 1);
    if (common.json)
        print_json(json_pack("{s:s, s:I, s:s}", "event", r->follow.view.state, "job", (json_int_t)r->job, "reason", r->follow.view.reason));
    return EXIT_HELD;
}

/* The same command again is a wish to go on. */
static enum status wake(struct run *r, json_t **job, struct err *e)
{
    view_read(&r->follow.view, *job);
    if (!view_stands(&r->follow.view))
        return ST_OK;
    say("it was %s%s%s; going on", r->follow.view.state, *r->follow.view.reason ? ": " : "", r->follow.view.reason);
    json_t *in = json_pack("{s:I}", "job", (json_int_t)r->job), *spec = jobspec_to_json(&r->spec), *limit = json_object_get(spec, "max_errors");
    if (in && limit && !json_is_null(limit))
        json_object_set(in, "max_errors", limit);
    json_decref(spec);
    json_decref(*job);
    *job = NULL;
    return conn_call(r->daemon.conn, "resume", in, 30000, job, e);
}

/* A finished job whose failed records shall run again. */
static enum status run_again(struct run *r, json_t **job, struct err *e)
{
    char n[UNITS_MAX];
    json_decref(*job);
    *job = NULL;
    TRY(conn_call(r->daemon.conn, "retry", json_pack("{s:I}", "job", (json_int_t)r->job), 60000, job, e));
    uint64_t records = count_of(*job, "retried");
    r->records_before -= records < r->records_before ? records : r->records_before;
    say("%s record%s that failed run%s again", units_count(n, (double)records), records == 1 ? "" : "s", records == 1 ? "s" : "");
    return ST_OK;
}

/* From the answer to `submit` to the end. */
static enum status carry_on(struct run *r, json_t **job, enum follow_end *end, struct err *e)
{
    char n[UNITS_MAX];
    r->resumed = json_is_true(json_object_get(*job, "resumed"));
    if (*text_of(*job, "note"))
        say("%s", text_of(*job, "note"));
    r->records_before = r->resumed ? count_of(*job, "records_done") : 0;
    if (strcmp(text_of(*job, "state"), "done") == 0) {
        r->at_once = !(retry && count_of(*job, "errors"));
        *end = FOLLOW_OVER;
        if (r->at_once)
            return ST_OK;
        TRY(run_again(r, job, e));
    } else if (r->records_before) {
        say("resuming %s: %s record%s done", r->shown, units_count(n, (double)r->records_before), r->records_before == 1 ? " is" : "s are");
    }
    TRY(wake(r, job, e));
    return follow_job(&r->follow, end, e);
}

/* Whether the daemon serves somebody else's job: ours was refused, theirs goes on. */
static int serves_another(struct run *r)
{
    struct err e;
    json_t *out = NULL, *job;
    size_t i;
    int busy = 0;
    if (r->submitted || conn_call(r->daemon.conn, "jobs", json_object(), 3000, &out, &e) != ST_OK)
        return 0;
    json_array_foreach(json_object_get(out, "jobs"), i, job)
    {
        const char *state = text_of(job, "state");
        busy |= strcmp(state, "running") == 0 || strcmp(state, "publishing") == 0;
    }
    json_decref(out);
    return busy;
}

/* The job was refused and its daemon has ended: what it kept beside the output goes, if nothing was there when we came. The folder is renamed first: whoever types
   the command again meanwhile finds the old one or none, never half of it. */
static void leave_nothing(struct run *r)
{
    struct err e;
    if (!r->made_work || r->submitted || !r->daemon.conn || private_alive(&r->daemon))
        return;
    char *gone = mem_printf("%s.refused-%ld", r->local.work_dir, (long)getpid());
    if (gone && rename(r->local.work_dir, gone) == 0 && path_remove_tree(gone, &e) != ST_OK)
        say("'%s' stays behind: %s", gone, e.text);
    mem_free(gone);
    if (r->made_output)
        rmdir(r->spec.output); /* unless somebody has put something there */
}

static int run_job(struct run *r, struct err *e)
{
    json_t *job = NULL;
    enum follow_end end = FOLLOW_SIGNAL;
    enum status st = connect_and_submit(r, &job, e);
    if (st == ST_OK)
        st = carry_on(r, &job, &end, e);
    json_decref(job);
    follow_clear(&r->follow);
    if (signals_count() && (st == ST_AGAIN || (st == ST_OK && end == FOLLOW_SIGNAL)))
        return interrupted(r);
    int held = st == ST_USER && strstr(e->text, "cannot go on"); /* our job, as it was left: not a wrong command */
    int code = st != ST_OK ? (fail(e), held ? EXIT_HELD : status_exit_code(st)) : end == FOLLOW_OVER ? finished(r) : stands(r);
    if (r->daemon.conn && private_alive(&r->daemon) && !serves_another(r))
        stop(r, 1, signals_count(), 0);
    if (st == ST_USER)
        leave_nothing(r);
    return code;
}

/* A pipeline needs its workers; alone, a worker holds all of the model, by parts in turn if it must. */
static enum status settle_stages(struct jobspec *s, struct err *e)
{
    if (s->stages > 1 && !started_with.workers)
        started_with.workers = s->stages;
    if (s->stages > 1 && started_with.workers < s->stages)
        return err_set(e, ST_USER, "--stages %" PRIu64 " is a pipeline of %" PRIu64 " workers, and --workers %" PRIu64 " starts fewer; leave --workers out, or give as many", s->stages,
                       s->stages, started_with.workers);
    if (!s->stages && started_with.workers <= 1)
        s->stages = 1;
    return ST_OK;
}

static int run_run(int operand_count, char **operands)
{
    struct run r = {.began_ms = clock_ms()};
    struct err e;
    int code;
    r.follow.poll = poll_job;
    r.follow.arg = &r;
    r.follow.own_machine = 1;
    if (started_with.workers > WORKERS_MAX)
        return fail_with(ST_USER, "--workers takes at most %d, not %" PRIu64, WORKERS_MAX, started_with.workers);
    if (started_with.memory_bytes && started_with.memory_bytes < HOST_LEAST_WORKER_MEMORY)
        return fail_with(ST_USER, "--memory %" PRIu64 " bytes is too small for any model: give at least 64MiB, or leave it out", started_with.memory_bytes);
    if (spec_read(&r.spec, operand_count, operands, &e) != ST_OK)
        return fail(&e);
    struct sample sample;
    enum status st = settle_stages(&r.spec, &e);
    if (st == ST_OK)
        st = local_spool(&r.spec, &e);
    if (st == ST_OK)
        st = local_open(&r.local, &r.spec, &e);
    if (st == ST_OK)
        st = local_sample(&r.local, &r.spec, 20, 1u << 20, 50, NULL, NULL, &sample, &e); /* a misspelt field is told now */
    if (st == ST_OK) {
        snprintf(r.shown, sizeof r.shown, "%s%s", short_path(r.spec.output), r.local.out.is_dir && !ends_in_slash(r.spec.output) ? "/" : "");
        signals_take();
        introduce(&r);
        r.made_work = !path_exists(r.local.work_dir);
        r.made_output = r.local.out.is_dir && !path_exists(r.spec.output);
        st = private_init(&r.daemon, r.local.work_dir, &started_with, &e);
    }
    code = st == ST_OK ? run_job(&r, &e) : fail(&e);
    private_release(&r.daemon);
    local_release(&r.local);
    jobspec_release(&r.spec);
    return code;
}

static const struct opt own[] = {
    {.name = "workers", .type = OPT_NUMBER, .value = &started_with.workers, .arg = "N", .group = "This machine", .help = "worker processes (default: 1, or as many as --stages)"},
    {.name = "lanes", .type = OPT_NUMBER, .value = &started_with.lanes, .arg = "N", .group = "This machine", .help = "cores that each worker uses (default: all, divided among them)"},
    {.name = "memory", .type = OPT_SIZE, .value = &started_with.memory_bytes, .arg = "SIZE", .group = "This machine", .help = "memory that each worker may take; a larger model is held by turns, some layers at a time (default: no limit)"},
    {.name = "retry", .type = OPT_FLAG, .value = &retry, .group = "This command", .help = "when the job is done: run the records that failed once more"},
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .group = "This command", .help = "take over an output that belongs to another job, or holds other files"},
    {.name = "quiet", .letter = 'q', .type = OPT_FLAG, .value = &common.quiet, .group = "This command", .help = "say nothing but errors"},
    {.name = "json", .type = OPT_FLAG, .value = &common.json, .group = "This command", .help = "print progress and the end as JSON, one object a line"},
};

static const struct opt_command like = {
    .name = "ebb run",
    .operands = "[JOB.yaml]",
    .summary = "run every record through the model on this machine, show progress, leave when done",
    .details = "Reads a job from flags, from a job file (see 'ebb submit --help'), or both; flags win. Results, complete and in the order of the input, come to\n"
               "--output, records that cannot be done to errors.jsonl beside them.\n"
               "\n"
               "Ctrl-C commits what is done and leaves. Whatever stops it, typing the same command again goes on where it was; when all is done, it says so.\n"
               "The same command twice at once is one job. A job that differs is refused, and told what differs.\n"
               "\n"
               "Exit codes: 0 all records done; 3 done, some records in errors; 4 held or failed (the reason is printed); 130 interrupted, can be resumed;\n"
               "2 the command, job or input is wrong and nothing was started; 1 the environment failed (disk, permission, network).",
    .examples = "  ebb run --model all-MiniLM-L6-v2/ --input 'reviews/*.jsonl.gz' --field text --output out/\n"
                "  ebb run --model minilm/ --input titles.txt --output titles.npy\n"
                "  zcat logs.gz | ebb run --model minilm/ --input - --format lines --output logs.npy\n"
                "  ebb run job.yaml --limit 1000",
    .operands_max = 64, /* more than one is told apart later, with better words */
};

static const struct opt_command *make_table(struct err *e)
{
    return spec_table(&like, own, COUNT(own), e);
}

const struct command command_run = {.name = "run", .group = "On this machine", .make_table = make_table, .run = run_run};
