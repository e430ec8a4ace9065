/* `workers` and `drain`. */
#include <inttypes.h>

#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"

static int stay, all;

const char *lease_words(const json_t *worker, char *out, size_t size)
{
    const char *lease = text_of(worker, "lease");
    if (count_of(worker, "stages"))
        snprintf(out, size, "stage %" PRIu64 "/%" PRIu64 " of job %" PRIu64 "%s%s", count_of(worker, "stage"), count_of(worker, "stages"), count_of(worker, "job"),
                 *lease ? ": " : "", lease);
    else
        snprintf(out, size, "%s", lease);
    return out;
}

static void row(struct table *t, const json_t *w)
{
    char lease[400], job[24] = "-", rate[UNITS_MAX] = "-", since[24];
    double s = number_of(w, "since_s", 0);
    if (count_of(w, "job"))
        snprintf(job, sizeof job, "%" PRIu64, count_of(w, "job"));
    if (number_of(w, "records_per_s", 0) > 0)
        units_rate(rate, number_of(w, "records_per_s", 0));
    snprintf(since, sizeof since, "%d:%02d", (int)(s / 3600), (int)(s / 60) % 60);
    const char *name = text_of(w, "name"), *model = text_of(w, "model");
    lease_words(w, lease, sizeof lease);
    table_row(t, (const char *[]){*name ? name : text_of(w, "worker"), *text_of(w, "host") ? text_of(w, "host") : "-", text_of(w, "state"), *model ? model : "-", job, rate, since,
                                  *lease ? lease : "-"});
}

static int run_workers(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    json_t *answer = NULL, *w;
    struct err e;
    size_t i;
    if (ask("workers", NULL, &answer, &e) != ST_OK)
        return fail(&e);
    json_t *list = json_object_get(answer, "workers");
    int code = EXIT_DONE;
    if (common.json) {
        json_array_foreach(list, i, w)
            code |= print_json(json_incref(w));
    } else if (json_array_size(list) == 0) {
        say("no workers: they come when there is work");
    } else {
        struct table *t = table_new(8, (const char *[]){"WORKER", "NODE", "STATE", "MODEL", "JOB", "RATE", "SINCE", "LEASE"});
        json_array_foreach(list, i, w)
            row(t, w);
        table_print(t, stdout);
    }
    json_decref(answer);
    return code;
}

static int drain_one(const char *worker, uint64_t *drained)
{
    json_t *answer = NULL;
    struct err e;
    if (ask("drain", json_pack("{s:b, s:s*}", "stay", stay, "worker", worker), &answer, &e) != ST_OK)
        return fail(&e);
    *drained += count_of(answer, "drained");
    json_decref(answer);
    return EXIT_DONE;
}

static int run_drain(int operand_count, char **operands)
{
    struct err e;
    uint64_t n = 0;
    int code = EXIT_DONE;
    if (all == (operand_count > 0)) {
        err_set(&e, ST_USER, all ? "--all drains every worker: leave the names out, or --all" : "name the workers that are to leave, as 'ebb workers' does, or give --all");
        return fail(&e);
    }
    if (all)
        code = drain_one(NULL, &n);
    for (int i = 0; i < operand_count && code == EXIT_DONE; i++)
        code = drain_one(operands[i], &n);
    if (code != EXIT_DONE)
        return code;
    if (common.json)
        return print_json(json_pack("{s:I}", "drained", (json_int_t)n));
    printf("%" PRIu64 " worker%s what %s and leave%s%s\n", n, n == 1 ? " commits" : "s commit", n == 1 ? "it has" : "they have", n == 1 ? "s" : "",
           stay ? "; no new ones are started" : "");
    return EXIT_DONE;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {.name = "ebb workers", .summary = "list the workers of a pool, and what each does", .examples = "  ebb workers",
                                         .opts = opts, .opt_count = COUNT(opts)};
const struct command command_workers = {.name = "workers", .group = "Machines", .table = &table, .run = run_workers};

static const struct opt drain_opts[] = {
    {.name = "all", .type = OPT_FLAG, .value = &all, .help = "every worker of the pool"},
    {.name = "stay", .type = OPT_FLAG, .value = &stay, .help = "start no new ones in their place, until the daemon is started anew"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command drain_table = {.name = "ebb drain", .operands = "[WORKER...]", .summary = "tell workers to commit what they have and leave",
                                               .examples = "  ebb drain desk12/1\n  ebb drain --all --stay", .opts = drain_opts, .opt_count = COUNT(drain_opts),
                                               .operands_max = 10000};
const struct command command_drain = {.name = "drain", .group = "Machines", .table = &drain_table, .run = run_drain};
