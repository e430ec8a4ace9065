/* `nodes`: the machines that lend themselves through ebb-agent. */
#include <inttypes.h>

#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"

static void row(struct table *t, const json_t *n)
{
    char workers[48], cores[24], memory[UNITS_MAX], since[24], load[24];
    double s = number_of(n, "since_s", 0);
    snprintf(workers, sizeof workers, "%" PRIu64 "/%" PRIu64, count_of(n, "workers"), count_of(n, "room"));
    snprintf(cores, sizeof cores, "%" PRIu64, count_of(n, "cores"));
    snprintf(load, sizeof load, "%.1f", number_of(n, "load_of_others", 0));
    snprintf(since, sizeof since, "%d:%02d", (int)(s / 3600), (int)(s / 60) % 60);
    const char *reason = text_of(n, "reason");
    table_row(t, (const char *[]){text_of(n, "host"), text_of(n, "state"), workers, cores, load, units_bytes(memory, count_of(n, "memory_available_bytes")), since,
                                  *reason ? reason : "-"});
}

static int run_nodes(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    json_t *answer = NULL, *n;
    struct err e;
    size_t i;
    if (ask("nodes", NULL, &answer, &e) != ST_OK)
        return fail(&e);
    json_t *list = json_object_get(answer, "nodes");
    int code = EXIT_DONE;
    if (common.json) {
        json_array_foreach(list, i, n)
            code |= print_json(json_incref(n));
    } else if (json_array_size(list) == 0) {
        say("no node offers itself: run ebb-agent on one (docs/agent.md)");
    } else {
        struct table *t = table_new(8, (const char *[]){"NODE", "STATE", "WORKERS", "CORES", "LOAD", "MEMORY", "SINCE", "WHY"});
        json_array_foreach(list, i, n)
            row(t, n);
        table_print(t, stdout);
    }
    json_decref(answer);
    return code;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {
    .name = "ebb nodes",
    .summary = "list the nodes that lend themselves to a pool, and how each is",
    .details = "A node is lent by an ebb-agent on it. `free`: workers may run there, so many of as many as there is room for; `frozen`: they stand still; `leaving`: they commit what "
               "they have and go; `away`: none may run; `silent`: its agent says nothing; after two minutes the node is forgotten. LOAD is that of others, in cores; MEMORY is what is available.",
    .examples = "  ebb nodes",
    .opts = opts,
    .opt_count = COUNT(opts)};
const struct command command_nodes = {.name = "nodes", .group = "Machines", .table = &table, .run = run_nodes};
