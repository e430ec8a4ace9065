/* Where a job's results are; or the results themselves, row after row in the order of the input. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "client/client.h"
#include "client/connect.h"

static int cat;

static int ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

static int is_rows(const char *path)
{
    const char *base = path_base(path);
    return ends(base, ".jsonl") && strcmp(base, "errors.jsonl") != 0 && !ends(base, ".errors.jsonl") && !ends(base, ".ids.jsonl");
}

static enum status stream(const char *path, uint64_t *lines, struct err *e)
{
    char bytes[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", path);
    enum status st = ST_OK;
    for (;;) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
        for (ssize_t k = 0; k < n; k++)
            *lines += bytes[k] == '\n';
        if (n > 0 && fwrite(bytes, 1, (size_t)n, stdout) != (size_t)n)
            st = err_errno(e, ST_ENV, errno, "cannot write to standard output");
        if (n <= 0 || st != ST_OK)
            break;
    }
    close(fd);
    return st;
}

static int run_results(int operand_count, char **operands)
{
    (void)operand_count;
    json_t *job = NULL, *file;
    struct err e;
    uint64_t id, lines = 0;
    size_t i, rows = 0, arrays = 0;
    if (parse_job(operands[0], &id, &e) != ST_OK || ask("job", json_pack("{s:I, s:b}", "job", (json_int_t)id, "spec", 1), &job, &e) != ST_OK)
        return fail(&e);
    enum status st = ST_OK;
    json_t *files = json_object_get(job, "files");
    json_array_foreach(files, i, file)
    {
        const char *path = json_string_value(file) ? json_string_value(file) : "";
        rows += (size_t)is_rows(path);
        arrays += (size_t)ends(path, ".npy");
        if (!cat && common.json)
            print_json(json_pack("{s:s}", "path", path));
        else if (!cat)
            puts(path);
        else if (is_rows(path) && (st = stream(path, &lines, &e)) != ST_OK)
            break;
    }
    if (st == ST_OK && cat && rows && strcmp(text_of(job, "state"), "done") == 0 && lines != count_of(job, "rows"))
        st = err_set(&e, ST_ENV, "these are %" PRIu64 " rows of %" PRIu64 ": files of the results of job %s were moved, removed or changed; to make them anew, submit the job again "
                                 "with --force", lines, count_of(job, "rows"), operands[0]);
    if (st == ST_OK && cat && !rows && arrays)
        st = err_set(&e, ST_USER, "the results of job %s are .npy files, which are no rows of text; 'ebb results %s' prints their paths", operands[0], operands[0]);
    else if (st == ST_OK && !rows && !arrays && strcmp(text_of(job, "state"), "done") == 0)
        st = err_set(&e, ST_ENV, "the results of job %s are not in '%s' any more: they were moved or removed; to make them anew, submit the job again", operands[0],
                     short_path(text_of(job, "output")));
    else if (st == ST_OK && !rows && !arrays)
        say("no results yet: the job is %s; 'ebb watch %s' shows how far it is", text_of(job, "state"), operands[0]);
    json_decref(job);
    return st == ST_OK ? EXIT_DONE : fail(&e);
}

static const struct opt opts[] = {
    {.name = "cat", .type = OPT_FLAG, .value = &cat, .help = "print the rows themselves, in the order of the input"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command table = {.name = "ebb results", .operands = "JOB", .summary = "print where a job's results are, or the results",
                                         .examples = "  ebb results 41\n  ebb results 41 --cat | head -1", .opts = opts, .opt_count = COUNT(opts),
                                         .operands_min = 1, .operands_max = 1};

const struct command command_results = {.name = "results", .group = "Jobs of a pool", .table = &table, .run = run_results};
