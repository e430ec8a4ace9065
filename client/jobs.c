#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/progress.h"

static int all;

static void row(struct table *t, const json_t *job)
{
    struct view v = {0};
    char id[24], done[16], rate[UNITS_MAX] = "-", left[UNITS_MAX] = "-", workers[48], errors[UNITS_MAX];
    view_read(&v, job);
    snprintf(id, sizeof id, "%3" PRIu64, v.job);
    snprintf(done, sizeof done, "%d %%", progress_percent(&v));
    if (strcmp(v.state, "running") == 0 && v.records_per_s > 0)
        units_rate(rate, v.records_per_s);
    if (strcmp(v.state, "running") == 0 && v.seconds_left >= 0)
        units_duration(left, v.seconds_left);
    if (v.workers_wanted > v.workers)
        snprintf(workers, sizeof workers, "%" PRIu64 "/%" PRIu64, v.workers, v.workers_wanted);
    else
        snprintf(workers, sizeof workers, "%" PRIu64, v.workers);
    table_row(t, (const char *[]){id, v.name, v.state, done, rate, left, workers, units_count(errors, (double)v.errors)});
}

static int run_jobs(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    json_t *answer = NULL, *job;
    struct err e;
    size_t i;
    if (ask("jobs", json_pack("{s:b}", "all", all), &answer, &e) != ST_OK)
        return fail(&e);
    json_t *list = json_object_get(answer, "jobs");
    int code = EXIT_DONE;
    if (common.json) {
        json_array_foreach(list, i, job)
            code |= print_json(json_incref(job));
    } else if (json_array_size(list) == 0) {
        say(all ? "no jobs" : "no jobs under way; 'ebb jobs --all' lists finished ones too");
    } else {
        struct table *t = table_new(8, (const char *[]){"JOB", "NAME", "STATE", "DONE", "RATE", "LEFT", "WORKERS", "ERRORS"});
        json_array_foreach(list, i, job)
            row(t, job);
        table_print(t, stdout);
    }
    json_decref(answer);
    return code;
}

static const struct opt opts[] = {
    {.name = "all", .letter = 'a', .type = OPT_FLAG, .value = &all, .help = "finished and canceled ones too"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command table = {
    .name = "ebb jobs", .summary = "list the jobs of a pool", .examples = "  ebb jobs\n  ebb jobs --all --json", .opts = opts, .opt_count = COUNT(opts)};

const struct command command_jobs = {.name = "jobs", .group = "Jobs of a pool", .table = &table, .run = run_jobs};
