/* `ebb submit`: a job for a pool's daemon. */
#include <inttypes.h>

#include "base/path.h"
#include "client/client.h"
#include "client/connect.h"
#include "client/local.h"
#include "client/spec.h"

#define SUBMIT_MS 600000 /* a dataset of ten million files takes its time to list */

static int run_submit(int operand_count, char **operands)
{
    struct jobspec s;
    struct err e;
    struct conn *c = NULL;
    json_t *job = NULL;
    if (spec_read(&s, operand_count, operands, &e) != ST_OK)
        return fail(&e);
    struct model_info model;
    if (s.model && path_exists(s.model) && local_model(&s, &model, &e) != ST_OK) { /* told now, not when its turn comes; a pool may see more folders than we */
        jobspec_release(&s);
        return fail(&e);
    }
    struct model_info steps[JOBSPEC_MOST_STEPS];
    if (s.steps.count && local_steps(&s, steps, 1, &e) != ST_OK) {
        jobspec_release(&s);
        return fail(&e);
    }
    json_t *spec = jobspec_to_json(&s);
    int stdin_wanted = s.inputs.count == 1 && s.inputs.items[0][0] == '-' && s.inputs.items[0][1] == 0;
    jobspec_release(&s);
    json_t *in = spec ? json_pack("{s:o, s:b, s:b}", "spec", spec, "force", common.force, "wait_sources", 1) : NULL;
    if (!in)
        return fail_with(ST_NOMEM, "out of memory for a job");
    enum status st = ST_OK;
    if (stdin_wanted)
        st = err_set(&e, ST_USER, "a daemon cannot read your standard input; save it to a file that the pool sees, or use 'ebb run'");
    if (st == ST_OK)
        st = conn_pool(&c, &e);
    if (st == ST_OK)
        st = conn_call(c, "submit", in, SUBMIT_MS, &job, &e);
    else
        json_decref(in);
    conn_close(c);
    if (st == ST_AGAIN)
        st = err_set(&e, ST_ENV, "the daemon ended before it answered, or is too busy to\nsee 'ebb jobs' for whether it took the job, and its log");
    if (st != ST_OK)
        return fail(&e);
    if (common.json)
        return print_json(job);
    printf("job %" PRIu64 "\n", count_of(job, "job"));
    if (json_is_true(json_object_get(job, "resumed")))
        say("it was submitted before and is %s; see 'ebb status %" PRIu64 "'", text_of(job, "state"), count_of(job, "job"));
    if (*text_of(job, "note"))
        say("%s", text_of(job, "note"));
    json_decref(job);
    return EXIT_DONE;
}

static const struct opt own[] = {
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .group = "This command", .help = "take over an output that belongs to another job, or holds other files"},
    {.name = "socket", .type = OPT_TEXT, .value = &common.socket, .arg = "WHERE", .group = "This command",
     .help = "the daemon: a socket's path, an endpoint, or the output of an 'ebb run' (default: $EBB_SOCKET, else /run/ebb/clients)"},
    ROW_DAEMON(.group = "This command", ),
    {.name = "json", .type = OPT_FLAG, .value = &common.json, .group = "This command", .help = "print the job as JSON"},
};

static const struct opt_command like = {
    .name = "ebb submit",
    .operands = "[JOB.yaml]",
    .summary = "give a job to the daemon of a pool and print its number",
    .details = "A job file says what the flags say; flags win over it. Relative paths are those of the job file's folder. Keys are the flags' own names, grouped:\n"
               "\n"
               "  name: reviews-minilm\n"
               "  model: models/all-MiniLM-L6-v2\n"
               "  input: { glob: reviews/*.jsonl.gz, field: text, id: review_id, keep: [stars] }\n"
               "  output: { dir: out, format: jsonl }\n"
               "  workers: { min: 0, max: 40, preemptible: 90% }\n"
               "  deadline: 07:00\n"
               "  max_errors: 1%\n"
               "\n"
               "In the place of 'model' a list of steps, models and commands (docs/steps.md):\n"
               "\n"
               "  steps:\n"
               "    - command: python3 clean.py\n"
               "    - model: models/toxic-classifier\n"
               "      when: label != toxic\n"
               "    - model: models/all-MiniLM-L6-v2\n"
               "\n"
               "Submitting the same job again is no new job; one that differs but has the same output is refused, and told what differs.",
    .examples = "  ebb submit job.yaml\n  ebb submit job.yaml --priority 5 --max-workers 8",
    .operands_max = 64,
};

static const struct opt_command *make_table(struct err *e)
{
    return spec_table(&like, own, COUNT(own), e);
}

const struct command command_submit = {.name = "submit", .group = "Jobs of a pool", .make_table = make_table, .run = run_submit};
