#include "client/spec.h"

#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"

static struct jobspec_flags *flags;
static struct opt *opts;
static struct opt_command table;

const struct opt_command *spec_table(const struct opt_command *like, const struct opt *own, size_t own_count, struct err *e)
{
    size_t count;
    jobspec_flags_free(flags);
    mem_free(opts);
    flags = NULL;
    opts = NULL;
    if (jobspec_flags_new(&flags, e) != ST_OK)
        return NULL;
    const struct opt *fields = jobspec_flags_opts(flags, &count);
    opts = mem_array(count + own_count, sizeof *opts);
    if (!opts) {
        err_nomem(e, "options");
        return NULL;
    }
    memcpy(opts, fields, count * sizeof *opts);
    if (own_count)
        memcpy(opts + count, own, own_count * sizeof *opts);
    table = *like;
    table.opts = opts;
    table.opt_count = count + own_count;
    return &table;
}

/* `--input *.jsonl` without quotes: the shell gave the first name to the flag, and the rest stands about. */
static int shell_glob(const struct jobspec *s, const char *operand)
{
    return s->inputs.count && path_exists(operand) && strcmp(operand, "-") != 0;
}

/* A file or folder of data where a job file is expected. */
static int is_data(const char *operand)
{
    static const char *const endings[] = {".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".gz", ".zst"};
    struct stat s;
    size_t n = strlen(operand);
    int found = stat(operand, &s) == 0 && S_ISDIR(s.st_mode);
    for (size_t i = 0; i < COUNT(endings) && !found; i++)
        found = n > strlen(endings[i]) && strcmp(operand + n - strlen(endings[i]), endings[i]) == 0;
    return found;
}

enum status spec_read(struct jobspec *s, int operand_count, char **operands, struct err *e)
{
    TRY(jobspec_init(s, e));
    enum status st = ST_OK;
    struct jobspec given;
    st = jobspec_init(&given, e);
    if (st == ST_OK)
        st = jobspec_from_flags(&given, flags, e);
    const char *dot = operand_count ? strrchr(operands[0], '.') : NULL;
    int job_file = dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0 || strcmp(dot, ".json") == 0);
    if (st == ST_OK && (operand_count > 1 || (operand_count && !job_file)) && shell_glob(&given, operands[operand_count > 1 && job_file]))
        st = err_set(e, ST_USER, "'%s' stands alone behind the options: has the shell taken a pattern apart?\nput patterns in quotes (--input '*.jsonl'), or give "
                                 "--input before each name", operands[operand_count > 1 && job_file]);
    else if (st == ST_OK && operand_count > 1)
        st = err_set(e, ST_USER, "'%s' is one job file too many; give one", operands[1]);
    if (st == ST_OK && operand_count && is_data(operands[0]))
        st = err_set(e, ST_USER, "'%s' is no job file; is it the input? then write --input %s", operands[0], operands[0]);
    if (st == ST_OK && operand_count)
        st = jobspec_from_yaml(s, operands[0], e);
    if (st == ST_OK)
        st = jobspec_from_flags(s, flags, e);
    if (st == ST_OK)
        st = jobspec_check(s, e);
    jobspec_release(&given);
    if (st != ST_OK)
        jobspec_release(s);
    return st;
}
