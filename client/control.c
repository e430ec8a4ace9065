/* Verbs that change a job: pause, resume, cancel, retry, rm. Each takes several jobs; the first failure ends it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"

static const char *max_errors;

typedef enum status change_fn(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e);

static json_t *of_job(uint64_t job)
{
    return json_pack("{s:I}", "job", (json_int_t)job);
}

static int change_all(int operand_count, char **operands, change_fn *change)
{
    struct conn *c;
    struct err e;
    if (conn_pool(&c, &e) != ST_OK)
        return fail(&e);
    int code = EXIT_DONE;
    for (int i = 0; i < operand_count && code == EXIT_DONE; i++) {
        json_t *answer = NULL;
        uint64_t job;
        char words[256];
        enum status st = parse_job(operands[i], &job, &e);
        if (st == ST_OK)
            st = change(c, job, &answer, words, sizeof words, &e);
        if (st == ST_AGAIN)
            st = err_set(&e, ST_ENV, "the daemon ended before it answered, or is too busy to; ask 'ebb status %" PRIu64 "' whether it was done", job);
        if (st != ST_OK)
            code = fail(&e);
        else if (common.json)
            code = print_json(json_incref(answer));
        else
            puts(words);
        json_decref(answer);
    }
    conn_close(c);
    return code;
}

static enum status plain(const char *verb, json_t *in, struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    TRY(conn_call(c, verb, in, 60000, answer, e));
    snprintf(words, size, "job %" PRIu64 " is %s", job, *text_of(*answer, "state") ? text_of(*answer, "state") : "gone");
    return ST_OK;
}

static enum status do_pause(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    return plain("pause", of_job(job), c, job, answer, words, size, e);
}

static enum status do_cancel(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    return plain("cancel", of_job(job), c, job, answer, words, size, e);
}

static enum status do_resume(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    json_t *in = of_job(job);
    if (in && max_errors) {
        const char *p = max_errors + strspn(max_errors, "0123456789");
        json_object_set_new(in, "max_errors", *max_errors && !*p && strlen(max_errors) < 18 ? json_integer(strtoll(max_errors, NULL, 10)) : json_string(max_errors));
    }
    return plain("resume", in, c, job, answer, words, size, e);
}

static enum status do_retry(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    char n[UNITS_MAX];
    TRY(conn_call(c, "retry", of_job(job), 60000, answer, e));
    uint64_t retried = count_of(*answer, "retried");
    if (retried)
        snprintf(words, size, "job %" PRIu64 " runs %s record%s again; see 'ebb watch %" PRIu64 "'", job, units_count(n, (double)retried), retried == 1 ? "" : "s", job);
    else
        snprintf(words, size, "job %" PRIu64 " has no records in error: nothing is run again", job);
    return ST_OK;
}

static enum status do_rm(struct conn *c, uint64_t job, json_t **answer, char *words, size_t size, struct err *e)
{
    json_t *before = NULL;
    TRY(conn_call(c, "job", of_job(job), 60000, &before, e));
    char state[16];
    snprintf(state, sizeof state, "%s", text_of(before, "state"));
    json_decref(before);
    if (strcmp(state, "done") != 0 && strcmp(state, "canceled") != 0) {
        if (!common.force)
            return err_set(e, ST_USER, "job %" PRIu64 " is %s, and what it has done would be lost; cancel it first, or give --force", job, state);
        TRY(conn_call(c, "cancel", of_job(job), 60000, NULL, e));
    }
    TRY(conn_call(c, "rm", of_job(job), 60000, answer, e));
    snprintf(words, size, "job %" PRIu64 " is removed", job);
    return ST_OK;
}

#define VERB(verb, text, long_text, example, ...)                                                                                \
    static int run_##verb(int operand_count, char **operands)                                                                    \
    {                                                                                                                            \
        return change_all(operand_count, operands, do_##verb);                                                                   \
    }                                                                                                                            \
    static const struct opt opts_##verb[] = {__VA_ARGS__ ROW_JSON, ROW_SOCKET};                                                  \
    static const struct opt_command table_##verb = {.name = "ebb " #verb, .operands = "JOB...", .summary = text, .details = long_text,             \
                                                    .examples = example, .opts = opts_##verb, .opt_count = COUNT(opts_##verb),   \
                                                    .operands_min = 1, .operands_max = 10000};                                   \
    const struct command command_##verb = {.name = #verb, .group = "Jobs of a pool", .table = &table_##verb, .run = run_##verb};

#define ROW_MAX_ERRORS                                                                                                           \
    {.name = "max-errors", .type = OPT_TEXT, .value = &max_errors, .arg = "N|SHARE", .help = "a new limit of failing records, e.g. 1000 or 5%"},
#define ROW_FORCE                                                                                                                \
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .help = "a job under way too: it is canceled, and what it has done is lost"},

VERB(pause, "give a job no more work until it is resumed", "What its workers have is committed; nothing is lost.", "  ebb pause 41", )
VERB(resume, "let a paused or held job go on", NULL, "  ebb resume 41\n  ebb resume 40 --max-errors 5%", ROW_MAX_ERRORS)
VERB(cancel, "end a job before it is done", "What is committed so far stays in its working folder until 'ebb rm'. It cannot be resumed.", "  ebb cancel 41", )
VERB(retry, "run the records of a finished job that failed once more", "Results of those that pass take their places in the output; the rest stays as it is.",
     "  ebb retry 41", )
VERB(rm, "forget a job", "Takes the job off the list, with its working folder. A finished output stays where it is.", "  ebb rm 41", ROW_FORCE)
