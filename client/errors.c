/* The records of a job that failed, as lines for people or as the lines of errors.jsonl. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"
#include "storage/reader.h"

static uint64_t limit = 20;
static const char *code_wanted;

struct printing {
    uint64_t printed, total;
    int failed;
};

static void print_line(const char *line)
{
    json_t *o = json_loads(line, 0, NULL);
    if (!o) {
        puts(line);
        return;
    }
    char *id = NULL;
    if (json_object_get(o, "id"))
        id = json_dumps(json_object_get(o, "id"), JSON_ENCODE_ANY | JSON_COMPACT);
    char line_words[40] = "line not known yet"; /* something before it is still to be read */
    if (count_of(o, "line"))
        snprintf(line_words, sizeof line_words, "%" PRIu64, count_of(o, "line"));
    printf("%s:%s%s: %s: %s%s%s\n", short_path(text_of(o, "source")), count_of(o, "line") ? "" : " ", line_words, text_of(o, "code"), text_of(o, "message"), id ? "  id " : "",
           id ? id : "");
    free(id);
    json_decref(o);
}

static enum status visit(void *arg, json_t *reply, struct err *e)
{
    (void)e;
    struct printing *p = arg;
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(reply, "rows"), i, row)
    {
        const char *line = json_string_value(row);
        if (!line)
            continue;
        if (common.json)
            printf("%.*s\n", (int)strcspn(line, "\n"), line);
        else
            print_line(line);
        p->printed++;
    }
    if (json_object_get(reply, "total"))
        p->total = count_of(reply, "total");
    return ST_OK;
}

/* A word that no error can have is a slip, not an empty list. */
static enum status check_code(struct err *e)
{
    static const char *const known[] = {
#define X(name, code, words) code,
        RECORD_ERROR_MAP(X)
#undef X
    };
    if (!code_wanted)
        return ST_OK;
    char all[400] = "";
    for (size_t i = 1; i < COUNT(known); i++) { /* the first is that of a good record */
        if (strcmp(known[i], code_wanted) == 0)
            return ST_OK;
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", known[i]);
    }
    const char *near = suggest(code_wanted, known + 1, COUNT(known) - 1);
    return err_set(e, ST_USER, "no error has the code '%.60s'%s%s%s; known are %s", code_wanted, near ? " (did you mean '" : "", near ? near : "", near ? "')" : "", all);
}

static int run_errors(int operand_count, char **operands)
{
    (void)operand_count;
    struct conn *c;
    struct err e;
    if (check_code(&e) != ST_OK)
        return fail(&e);
    struct printing p = {0};
    uint64_t job;
    char n[UNITS_MAX];
    if (parse_job(operands[0], &job, &e) != ST_OK || conn_pool(&c, &e) != ST_OK)
        return fail(&e);
    json_t *in = json_pack("{s:I, s:I, s:s*}", "job", (json_int_t)job, "limit", (json_int_t)limit, "code", code_wanted);
    enum status st = conn_each(c, "errors", in, 60000, visit, &p, &e);
    conn_close(c);
    if (st != ST_OK)
        return fail(&e);
    if (!p.printed && !code_wanted) { /* a finished job's are in a file, and people move files */
        json_t *o = NULL;
        uint64_t known = ask("job", json_pack("{s:I}", "job", (json_int_t)job), &o, &e) == ST_OK && strcmp(text_of(o, "state"), "done") == 0 ? count_of(o, "errors") : 0;
        if (known)
            err_set(&e, ST_ENV, "job %" PRIu64 " has %s record%s in error, but its list is not in '%s' any more: it was moved or removed", job, units_count(n, (double)known),
                    known == 1 ? "" : "s", short_path(text_of(o, "output")));
        json_decref(o);
        if (known)
            return fail(&e);
    }
    if (!p.printed)
        say("no errors");
    else if (p.total > p.printed)
        say("%s in all; 'ebb errors %" PRIu64 " --limit 0' prints every one", units_count(n, (double)p.total), job);
    return EXIT_DONE;
}

static const struct opt opts[] = {
    {.name = "limit", .type = OPT_NUMBER, .value = &limit, .arg = "N", .help = "not more than N (default: 20; 0: all)"},
    {.name = "code", .type = OPT_TEXT, .value = &code_wanted, .arg = "WORD", .help = "only errors of this code, e.g. invalid_json"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command table = {.name = "ebb errors", .operands = "JOB", .summary = "print the records of a job that failed, with source and line",
                                         .examples = "  ebb errors 41\n  ebb errors 41 --code missing_field --limit 0 --json", .opts = opts,
                                         .opt_count = COUNT(opts), .operands_min = 1, .operands_max = 1};

const struct command command_errors = {.name = "errors", .group = "Jobs of a pool", .table = &table, .run = run_errors};
