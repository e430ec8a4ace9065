/* One job in detail; without a number, the daemon. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/progress.h"

static char *when(double ms, char *out, size_t size)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    if (ms <= 0 || !localtime_r(&t, &tm) || !strftime(out, size, "%Y-%m-%d %H:%M:%S", &tm))
        snprintf(out, size, "-");
    return out;
}

static void print_events(const json_t *answer, size_t most)
{
    const json_t *list = json_object_get(answer, "events");
    size_t n = json_array_size(list);
    char at[32];
    for (size_t i = n > most ? n - most : 0; i < n; i++) {
        const json_t *event = json_array_get(list, i);
        printf("        %s  %s\n", when(number_of(event, "at_ms", 0), at, sizeof at), text_of(event, "text"));
    }
}

static void print_gang(const json_t *g)
{
    size_t i;
    json_t *m;
    char rate[UNITS_MAX], predicted[UNITS_MAX], since[UNITS_MAX], measured[64] = "not measured yet";
    const json_t *members = json_object_get(g, "members");
    if (number_of(g, "records_per_s", 0) > 0)
        snprintf(measured, sizeof measured, "%s of records measured", units_rate(rate, number_of(g, "records_per_s", 0)));
    print_field("pipeline", "%zu workers, %s for %s, cut %" PRIu64 "; %.3g ms a micro-batch predicted (%s), %s", json_array_size(members), text_of(g, "state"),
                units_duration(since, number_of(g, "since_s", 0)), count_of(g, "cut"), number_of(g, "bottleneck_ms", 0),
                units_rate(predicted, number_of(g, "batches_per_s", 0)), measured);
    struct table *t = table_new(6, (const char *[]){"STAGE", "WORKER", "SEGMENTS", "SHARE", "PREDICTED", "STATE"});
    json_array_foreach(members, i, m)
    {
        char stage[24], segments[64], share[24], load[32];
        int head = json_is_true(json_object_get(m, "head")), ready = json_is_true(json_object_get(m, "ready"));
        snprintf(stage, sizeof stage, "%zu", i + 1);
        snprintf(segments, sizeof segments, "%" PRIu64 "-%" PRIu64 " of %" PRIu64, count_of(m, "first"), count_of(m, "last"), count_of(g, "segments"));
        snprintf(share, sizeof share, "%.0f %%", 100 * number_of(m, "share", 0));
        snprintf(load, sizeof load, "%.3f ms", number_of(m, "load_ms", 0));
        table_row(t, (const char *[]){stage, text_of(m, "name"), segments, share, load, !ready ? "loading" : head ? "ready, head" : "ready"});
    }
    table_print(t, stdout);
}

static int print_job(struct conn *c, uint64_t id)
{
    json_t *job = NULL, *events = NULL;
    struct err e;
    struct view v = {0};
    size_t i;
    json_t *gang;
    char line[512], a[UNITS_MAX], b[UNITS_MAX], at[32];
    if (conn_call(c, "job", json_pack("{s:I, s:b}", "job", (json_int_t)id, "spec", 1), 30000, &job, &e) != ST_OK)
        return fail(&e);
    if (common.json)
        return print_json(job);
    view_read(&v, job);
    printf("job %" PRIu64 "  %s  %s\n", id, v.name, v.state);
    if (*v.reason)
        print_field("reason", "%s", v.reason);
    if (*v.waits_for && !view_over(&v) && !strstr(v.waits_for, *v.reason ? v.reason : "\n")) /* held: said already */
        print_field("waits", "%s", v.waits_for);
    print_field("done", "%s", progress_line(&v, 0, line, sizeof line) + strspn(line, " "));
    print_field("model", "%s%s%s", text_of(job, "model"), *text_of(job, "numerics") ? ", " : "", text_of(job, "numerics"));
    print_field("input", "%s source%s, %s, %s", units_count(a, number_of(job, "sources", 0)), count_of(job, "sources") == 1 ? "" : "s",
                units_bytes(b, v.bytes_total), text_of(job, "format"));
    print_field("output", "%s", text_of(job, "output"));
    print_field("rows", "%s written, %s in errors (%s set aside)", units_count(line, (double)v.rows), units_count(a, (double)v.errors),
                units_count(b, (double)v.quarantined));
    print_field("redone", "%s commit%s refused because a lease was lost", units_count(a, number_of(job, "redone", 0)), count_of(job, "redone") == 1 ? "" : "s");
    print_field("since", "%s", when(number_of(job, "submitted_ms", 0), at, sizeof at));
    if (number_of(job, "deadline_ms", 0) > 0)
        print_field("wanted", "by %s%s%s", when(number_of(job, "deadline_ms", 0), at, sizeof at), *text_of(job, "late") ? ": " : "", text_of(job, "late"));
    if (number_of(job, "finished_ms", 0) > 0)
        print_field("until", "%s", when(number_of(job, "finished_ms", 0), at, sizeof at));
    json_array_foreach(json_object_get(job, "gangs"), i, gang)
        print_gang(gang);
    json_decref(job);
    if (conn_call(c, "events", json_pack("{s:I}", "job", (json_int_t)id), 30000, &events, &e) == ST_OK && json_array_size(json_object_get(events, "events"))) {
        puts("lately");
        print_events(events, 10);
    }
    json_decref(events);
    return EXIT_DONE;
}

static int print_daemon(struct conn *c)
{
    json_t *hello = NULL, *jobs = NULL, *workers = NULL;
    struct err e;
    enum status st = conn_call(c, "hello", NULL, 30000, &hello, &e);
    if (st == ST_OK)
        st = conn_call(c, "jobs", NULL, 30000, &jobs, &e);
    if (st == ST_OK)
        st = conn_call(c, "workers", NULL, 30000, &workers, &e);
    int code = EXIT_DONE;
    if (st != ST_OK) {
        code = fail(&e);
    } else {
        size_t job_count = json_array_size(json_object_get(jobs, "jobs")), worker_count = json_array_size(json_object_get(workers, "workers"));
        if (common.json) {
            json_object_set_new(hello, "jobs", json_integer((json_int_t)job_count));
            json_object_set_new(hello, "workers", json_integer((json_int_t)worker_count));
            code = print_json(json_incref(hello));
        } else {
            print_field("daemon", "%s on %s, process %" PRIu64 "%s", text_of(hello, "program"), text_of(hello, "host"),
                        count_of(hello, "pid"), json_is_true(json_object_get(hello, "private")) ? ", of an 'ebb run'" : "");
            print_field("state", "%s, generation %" PRIu64, text_of(hello, "state_dir"), count_of(hello, "generation"));
            print_field("jobs", "%zu under way; 'ebb jobs' lists them", job_count);
            print_field("workers", "%zu; 'ebb workers' lists them", worker_count);
        }
    }
    json_decref(hello);
    json_decref(jobs);
    json_decref(workers);
    return code;
}

static int run_status(int operand_count, char **operands)
{
    struct conn *c;
    struct err e;
    uint64_t job = 0;
    if ((operand_count && parse_job(operands[0], &job, &e) != ST_OK) || conn_pool(&c, &e) != ST_OK)
        return fail(&e);
    int code = operand_count ? print_job(c, job) : print_daemon(c);
    conn_close(c);
    return code;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {.name = "ebb status", .operands = "[JOB]", .summary = "show one job in detail; without a number, the daemon",
                                         .examples = "  ebb status 41\n  ebb status", .opts = opts, .opt_count = COUNT(opts), .operands_max = 1};

const struct command command_status = {.name = "status", .group = "Jobs of a pool", .table = &table, .run = run_status};
