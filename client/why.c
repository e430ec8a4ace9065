#include "client/client.h"
#include "client/connect.h"

static int run_why(int operand_count, char **operands)
{
    (void)operand_count;
    json_t *answer = NULL, *line;
    struct err e;
    uint64_t job;
    size_t i;
    if (parse_job(operands[0], &job, &e) != ST_OK || ask("why", json_pack("{s:I}", "job", (json_int_t)job), &answer, &e) != ST_OK)
        return fail(&e);
    if (common.json)
        return print_json(answer);
    puts(text_of(answer, "text"));
    json_array_foreach(json_object_get(answer, "advice"), i, line)
        printf("  %s\n", json_string_value(line) ? json_string_value(line) : "");
    json_decref(answer);
    return EXIT_DONE;
}

static const struct opt opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command table = {.name = "ebb why", .operands = "JOB", .summary = "say what a job waits for, or why it is held, and what to do",
                                         .examples = "  ebb why 40", .opts = opts, .opt_count = COUNT(opts), .operands_min = 1, .operands_max = 1};

const struct command command_why = {.name = "why", .group = "Jobs of a pool", .table = &table, .run = run_why};
