/* What Slurm's programs are told and what they say: words only, nothing is done here. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "daemon/slurm.h"
#include "daemon/words.h"

#define MEMORY_EXIT 77 /* of ebb-worker, when memory was out */
#define MOST_ARGS 32   /* besides those of the configuration */

static const struct {
    const char *word;
    enum slurm_meaning meaning;
} states[] = {
#define X(name, word, meaning) [SLURM_##name] = {word, SLURM_##meaning},
    SLURM_STATE_MAP(X)
#undef X
};

const char *slurm_state_word(enum slurm_state state)
{
    return states[state].word;
}

enum slurm_meaning slurm_meaning(enum slurm_state state)
{
    return states[state].meaning;
}

/* Reading ------------------------------------------------------------------------------------------------------------------------- */

static size_t digits(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && isdigit((unsigned char)text[n]))
        n++;
    return n;
}

int slurm_id_parse(const char *text, size_t len, char out[SLURM_ID_MAX])
{
    size_t job = digits(text, len), task = job < len && text[job] == '_' ? digits(text + job + 1, len - job - 1) : 0;
    if (!job || job > 12 || task > 12 || len != job + (task ? task + 1 : 0))
        return -1;
    memcpy(out, text, len);
    out[len] = 0;
    return 0;
}

static int number(const char *text, size_t len, uint32_t *out)
{
    uint64_t n = 0;
    if (!len || len > 10 || digits(text, len) != len)
        return -1;
    for (size_t i = 0; i < len; i++)
        n = n * 10 + (uint64_t)(text[i] - '0');
    *out = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    return 0;
}

/* "768", as waitpid has it; "3:0", exit status and signal, as accounting has it. */
static int status_of(const char *text, size_t len, int *out)
{
    const char *colon = memchr(text, ':', len);
    uint32_t n, sig = 0;
    size_t before = colon ? (size_t)(colon - text) : len;
    if (number(text, before, &n) || (colon && number(colon + 1, len - before - 1, &sig)))
        return -1;
    *out = colon ? (int)((n & 0xff) << 8 | (sig & 0x7f)) : (int)(n & 0xffff);
    return 0;
}

static void copy(char *to, size_t size, const char *from, size_t len)
{
    snprintf(to, size, "%.*s", len < size ? (int)len : (int)size - 1, from);
    words_tidy(to);
}

int slurm_row_parse(const char *line, size_t len, struct slurm_row *out)
{
    enum { ID, STATE, RESTARTS, STATUS, NODE, REASON, FIELDS };
    const char *field[FIELDS];
    size_t size[FIELDS];
    for (int i = 0; i < FIELDS; i++) {
        const char *bar = i < REASON ? memchr(line, '|', len) : line + len;
        if (!bar)
            return -1;
        field[i] = line;
        size[i] = (size_t)(bar - line);
        while (size[i] && field[i][0] == ' ') {
            field[i]++;
            size[i]--;
        }
        while (size[i] && field[i][size[i] - 1] == ' ')
            size[i]--;
        len -= i < REASON ? (size_t)(bar + 1 - line) : 0;
        line = bar + 1;
    }
    *out = (struct slurm_row){.state = SLURM_UNKNOWN};
    if (slurm_id_parse(field[ID], size[ID], out->id) || !size[STATE] || number(field[RESTARTS], size[RESTARTS], &out->restarts) ||
        status_of(field[STATUS], size[STATUS], &out->status))
        return -1;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strlen(states[i].word) == size[STATE] && memcmp(states[i].word, field[STATE], size[STATE]) == 0)
            out->state = (enum slurm_state)i;
    copy(out->node, sizeof out->node, field[NODE], size[NODE]);
    copy(out->reason, sizeof out->reason, field[REASON], size[REASON]);
    return 0;
}

int slurm_submitted_parse(const char *out, char id[SLURM_ID_MAX])
{
    int found = -1;
    for (const char *line = out; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t n = digits(line, strlen(line));
        if (n && (line[n] == '\n' || line[n] == ';' || !line[n]) && slurm_id_parse(line, n, id) == 0)
            found = 0; /* the last one counts */
    }
    return found;
}

int slurm_name_parse(const char *name, char id[SLURM_ID_MAX], uint32_t *restarts)
{
    static const char prefix[] = "slurm-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    name += sizeof prefix - 1;
    size_t len = strcspn(name, ".");
    *restarts = 0;
    if (name[len] && number(name + len + 1, strlen(name + len + 1), restarts))
        return -1;
    return slurm_id_parse(name, len, id);
}

uint64_t slurm_kill_wait_ms(const char *config)
{
    for (const char *line = config; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, "KillWait", 8) != 0 || !strchr(" =", line[8]))
            continue;
        const char *value = line + 8 + strspn(line + 8, " =");
        unsigned long seconds = strtoul(value, NULL, 10);
        return seconds > 3600 ? 3600000 : (uint64_t)seconds * 1000;
    }
    return 0;
}

void slurm_complaint(const char *program, const char *text, char *out, size_t size)
{
    const char *lines[2] = {NULL, NULL};
    size_t own = strlen(program);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strcspn(line, "\n")) {
            lines[0] = lines[1];
            lines[1] = line;
        }
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < 2; i++) {
        const char *line = lines[i];
        if (!line)
            continue;
        if (strncmp(line, program, own) == 0 && line[own] == ':')
            line += own + 1 + strspn(line + own + 1, " ");
        static const char *const heads[] = {"error: ", "fatal: ", "slurm_load_jobs error: "};
        for (size_t k = 0; k < sizeof heads / sizeof *heads; k++)
            if (strncmp(line, heads[k], strlen(heads[k])) == 0)
                line += strlen(heads[k]);
        int n = snprintf(out + at, size - at, "%s%.*s", at ? "; " : "", (int)strcspn(line, "\n"), line);
        at = n < 0 || (size_t)n >= size - at ? size - 1 : at + (size_t)n;
    }
    words_tidy(out);
}

/* How it went ------------------------------------------------------------------------------------------------------------------------ */

static int is_crash(int sig)
{
    return sig == SIGSEGV || sig == SIGABRT || sig == SIGBUS || sig == SIGFPE || sig == SIGILL;
}

enum worker_end slurm_cause(enum slurm_state state, int status, enum blackbox_cause box, int hung)
{
    if (hung)
        return WORKER_HUNG;
    if (box == BLACKBOX_OUT_OF_MEMORY)
        return WORKER_OOM;
    if (box == BLACKBOX_CRASHED)
        return WORKER_CRASHED;
    switch (state) {
    case SLURM_OUT_OF_MEMORY:
        return WORKER_OOM;
    case SLURM_FAILED:
        if (WIFSIGNALED(status))
            return is_crash(WTERMSIG(status)) ? WORKER_CRASHED : WORKER_LOST;
        if (WEXITSTATUS(status) == MEMORY_EXIT)
            return WORKER_OOM;
        return WEXITSTATUS(status) > 128 && is_crash(WEXITSTATUS(status) - 128) ? WORKER_CRASHED : WORKER_LOST; /* a shell around it says so */
    case SLURM_COMPLETED:
        return WORKER_DRAINED;
    case SLURM_NODE_FAIL:
    case SLURM_BOOT_FAIL:
    case SLURM_UNKNOWN:
        return WORKER_LOST;
    default:
        return WORKER_PREEMPTED; /* cancelled, preempted, requeued, out of its time */
    }
}

/* Submitting ------------------------------------------------------------------------------------------------------------------------- */

/* As one word of a shell's. */
static int quote(struct buf *out, const char *text)
{
    int failed = buf_char(out, '\'');
    for (; *text; text++)
        failed |= *text == '\'' ? buf_str(out, "'\\''") : buf_char(out, *text);
    return failed | buf_char(out, '\'');
}

static int option(struct buf *out, const char *name, const char *value)
{
    return buf_printf(out, " \\\n    %s ", name) | quote(out, value);
}

static int option_number(struct buf *out, const char *name, uint64_t value)
{
    return buf_printf(out, " \\\n    %s %" PRIu64, name, value);
}

/* The shell becomes the worker: Slurm's signals reach it, and its end is the job's. */
int slurm_script(const struct slurm_terms *t, struct buf *out)
{
    const struct config *c = t->config;
    int failed = buf_str(out, "#!/bin/sh\n"
                              "# A worker of ebb, submitted by ebbd. It may be stopped at any time: others do again what it has not committed.\n"
                              "id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}\n"
                              "id=${id:-$SLURM_JOB_ID}\n"
                              "dir=") |
                 quote(out, c->slurm_dir) | buf_str(out, "\nprogram=") | quote(out, t->program) |
                 buf_str(out, "\n"
                              "box=${TMPDIR:-/tmp}\n"
                              "if [ -d \"$dir\" ] && [ -w \"$dir\" ]; then\n"
                              "    box=$dir\n"
                              "    exec >>\"$dir/slurm-$id.log\" 2>&1\n"
                              "fi\n"
                              "if [ ! -x \"$program\" ]; then\n"
                              "    there=$program\n"
                              "    program=$(command -v ebb-worker) || {\n"
                              "        echo \"$(uname -n): ebb-worker is neither at '$there' nor on the PATH; set slurm.program in ebbd.yaml\" >&2\n"
                              "        exit 127\n"
                              "    }\n"
                              "fi\n"
                              "number=$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')\n"
                              "name=slurm-$id\n"
                              "[ \"${SLURM_RESTART_COUNT:-0}\" = 0 ] || name=$name.$SLURM_RESTART_COUNT\n"
                              "exec \"$program\" --provider slurm --host \"${SLURMD_NODENAME:-$(uname -n)}\" --number \"$number\" --name \"$name\" --blackbox \"$box/$number.box\"") |
                 option(out, "--connect", t->connect) | option_number(out, "--lanes", c->slurm_cpus) |
                 buf_printf(out, " \\\n    --grace %" PRIu64 "ms", t->grace_ms);
    if (c->slurm_memory) /* its own limit comes first: then it says what it died of */
        failed |= option_number(out, "--memory", c->slurm_memory - c->slurm_memory / 16);
    if (c->slurm_key_file)
        failed |= option(out, "--key-file", c->slurm_key_file);
    if (c->slurm_pack_cache)
        failed |= option(out, "--pack-cache", c->slurm_pack_cache);
    return failed | buf_char(out, '\n') ? -1 : 0;
}

static void add(char **args, size_t *n, int *failed, const char *name, const char *value)
{
    if (value && !(args[(*n)++] = mem_printf("%s%s", name, value)))
        *failed = 1;
}

static void add_number(char **args, size_t *n, int *failed, const char *name, uint64_t value, const char *unit)
{
    if (value && !(args[(*n)++] = mem_printf("%s%" PRIu64 "%s", name, value, unit)))
        *failed = 1;
}

char **slurm_args(const struct slurm_terms *t)
{
    const struct config *c = t->config;
    size_t n = 0, more = 0;
    int failed = 0;
    while (c->slurm_options && c->slurm_options[more])
        more++;
    char **args = mem_array(MOST_ARGS + more, sizeof *args);
    if (!args)
        return NULL;
    static const char *const always[] = {"sbatch", "--parsable", "--requeue", "--open-mode=append", "--signal=B:USR1@30", "--output=/dev/null",
                                         "--chdir=/", "--export=ALL", "--nodes=1", "--ntasks=1"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        add(args, &n, &failed, "", always[i]);
    add(args, &n, &failed, "--job-name=", t->name);
    add_number(args, &n, &failed, "--cpus-per-task=", c->slurm_cpus, "");
    add(args, &n, &failed, "--partition=", c->slurm_partition);
    add(args, &n, &failed, "--account=", c->slurm_account);
    add(args, &n, &failed, "--qos=", c->slurm_qos);
    add(args, &n, &failed, "--constraint=", c->slurm_constraint);
    add_number(args, &n, &failed, "--time=", (c->slurm_time + 59999) / 60000, "");
    add_number(args, &n, &failed, "--mem=", (c->slurm_memory + (1 << 20) - 1) >> 20, "M");
    if (t->count > 1)
        add_number(args, &n, &failed, "--array=0-", t->count - 1, "");
    for (size_t i = 0; i < more; i++)
        add(args, &n, &failed, "", c->slurm_options[i]);
    if (failed) {
        for (size_t i = 0; i < n; i++)
            mem_free(args[i]);
        mem_free(args);
        return NULL;
    }
    return args;
}

void slurm_args_free(char **args)
{
    for (char **p = args; p && *p; p++)
        mem_free(*p);
    mem_free(args);
}
