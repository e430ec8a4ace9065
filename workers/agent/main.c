/* ebb-agent: lends a node to ebbd while its owner does not need it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"
#include "base/mem.h"
#include "base/suggest.h"
#include "wire/join.h"
#include "workers/agent/agent.h"
#include "workers/agent/config.h"

static struct agent_words words;
static const char *invitation, *node_name;
static int version, json, force;

#define ROW_CONFIG                                                                                                               \
    {.name = "config", .letter = 'c', .type = OPT_TEXT, .value = &words.file, .arg = "FILE", .help = "read FILE instead of " AGENT_FILE}
#define ROW_HOST {.name = "host", .type = OPT_TEXT, .value = &words.host, .arg = "NAME", .help = "what the node is called (default: its host name)"}
#define ROW_DIR                                                                                                                  \
    {.name = "dir", .type = OPT_TEXT, .value = &words.dir, .arg = "DIR",                                                          \
     .help = "where notes, black boxes and logs of the workers lie (default: $STATE_DIRECTORY, /var/lib/ebb-agent, or below ~/.local/state)"}
#define ROW_PROC                                                                                                                 \
    {.name = "proc", .type = OPT_TEXT, .value = &words.proc, .arg = "DIR",                                                        \
     .help = "for tests: read DIR/stat, meminfo, pressure/, utmp and dev/ in place of /proc, /run/utmp and /dev; its stat counts others only"}

static const struct opt run_opts[] = {
    ROW_CONFIG,
    {.name = "connect", .type = OPT_TEXT, .value = &words.daemon, .arg = "ENDPOINT", .help = "the daemon's socket for workers: tcp://HOST:5570 with a key, or ipc:///run/ebb/workers"},
    {.name = "key-file", .type = OPT_TEXT, .value = &words.key_file, .arg = "FILE", .help = "the node's key, with the daemon's pinned in it"},
    ROW_HOST,
    ROW_DIR,
    {.name = "log", .type = OPT_TEXT, .value = &words.level, .arg = "LEVEL", .help = "error, warning, info or debug"},
    ROW_PROC,
    {.name = "version", .type = OPT_FLAG, .value = &version, .help = "print the version"},
};
static const struct opt status_opts[] = {
    {.name = "json", .type = OPT_FLAG, .value = &json, .help = "one JSON object"},
    ROW_CONFIG,
    ROW_HOST,
    ROW_DIR,
    ROW_PROC,
};
#define COUNT(x) (sizeof(x) / sizeof *(x))

static const struct opt_command run_table = {
    .name = "ebb-agent",
    .operands = "[run | status | join]",
    .summary = "lend this node to an ebbd while its owner does not need it",
    .details = "Watches who is logged in and at the keyboard, the load that is not its workers', memory, pressure and the hours, and starts, freezes and ends workers "
               "for the daemon, so that the owner does not notice. Workers run when nothing else wants the processor or the disk, and are the first to be "
               "killed when memory is short. They end with their agent.\n\n"
               "`ebb-agent status` says what it sees, what it would do and why. `ebb-agent join` stores a key. What it does is said in " AGENT_FILE ", which shows every "
               "key with its default; SIGHUP reads it again. SIGTERM: workers commit what they have and go, then the agent; a second one ends them at once.\n\n"
               "Exit codes: 0 ended as told; 1 the environment failed; 2 the command or the configuration is wrong.",
    .examples = "  ebb-agent --connect ipc:///run/ebb/workers\n  ebb-agent status",
    .opts = run_opts,
    .opt_count = COUNT(run_opts),
};
static const struct opt_command status_table = {
    .name = "ebb-agent status",
    .summary = "say what the agent sees on this node, and what it would do and why",
    .details = "Looks for a second; starts and stops nothing.",
    .examples = "  ebb-agent status\n  ebb-agent status --json | jq .reason",
    .opts = status_opts,
    .opt_count = COUNT(status_opts),
};

static const struct opt join_opts[] = {
    {.name = "key", .type = OPT_TEXT, .value = &invitation, .arg = "ebb1...", .help = "the invitation"},
    {.name = "name", .type = OPT_TEXT, .value = &node_name, .arg = "NAME", .help = "what people call the key (default: the invitation's, else the node's name)"},
    {.name = "key-file", .type = OPT_TEXT, .value = &words.key_file, .arg = "FILE", .help = "where the key goes (default: 'key_file' of the configuration, else node.key in the agent's folder)"},
    {.name = "force", .type = OPT_FLAG, .value = &force, .help = "over a key file that is there"},
    ROW_CONFIG,
    ROW_HOST,
    ROW_DIR,
};
static const struct opt_command join_table = {
    .name = "ebb-agent join",
    .operands = "tcp://HOST:PORT",
    .summary = "get a key for a pool, by invitation",
    .details = "`ebb invite --node` on the daemon's machine prints the whole line. The key is drawn here and never leaves this node; the file also says where "
               "the daemon is, so that the agent needs to be told nothing more. Workers that are started by hand take the same file: "
               "ebb-worker --connect tcp://HOST:PORT --key-file FILE.",
    .examples = "  ebb-agent join tcp://pool.example:5570 --key ebb1q9...",
    .opts = join_opts,
    .opt_count = COUNT(join_opts),
    .operands_min = 1,
    .operands_max = 1,
};

static int complain(const struct err *e)
{
    fprintf(stderr, "ebb-agent: %s\n", e->text);
    return status_exit_code(e->code);
}

static int run(int argc, char **argv)
{
    struct err e;
    int operands = 0;
    enum status st = opt_parse(&run_table, argc, argv, &operands, &e);
    if (st == ST_END)
        return 0;
    if (st == ST_OK && version) {
        puts("ebb-agent " AGENT_VERSION);
        return 0;
    }
    return st == ST_OK ? agent_run(&words) : complain(&e);
}

static int status(int argc, char **argv)
{
    struct err e;
    int operands = 0;
    enum status st = opt_parse(&status_table, argc, argv, &operands, &e);
    if (st == ST_END)
        return 0;
    return st == ST_OK ? agent_status(&words, json) : complain(&e);
}

static int join(int argc, char **argv)
{
    struct err e;
    int operands = 0;
    struct agent_config c;
    struct keys_file k;
    enum status st = opt_parse(&join_table, argc, argv, &operands, &e);
    if (st == ST_END)
        return 0;
    if (st == ST_OK && !invitation)
        st = err_set(&e, ST_USER, "the invitation is missing: paste the whole line that 'ebb invite --node' printed");
    if (st != ST_OK || (st = agent_config_read(&c, &words, &e)) != ST_OK)
        return complain(&e);
    if (!c.key_file && !(c.key_file = agent_config_joined_key(&c)))
        st = err_nomem(&e, "a path");
    struct join_opts o = {.role = KEYS_NODE, .daemon = argv[1], .invitation = invitation, .key_file = c.key_file, .name = node_name,
                          .program = "ebb-agent " AGENT_VERSION, .force = force, .timeout_ms = 60000};
    if (st == ST_OK)
        st = join_pool(&o, &k, &e);
    if (st == ST_OK) {
        printf("this node may join the pool at '%s' as '%s'; the key is in '%s'\n", k.daemon, k.name, c.key_file);
        keys_wipe(&k.keys);
    }
    agent_config_release(&c);
    return st == ST_OK ? 0 : complain(&e);
}

static const struct {
    const char *word;
    int (*run)(int argc, char **argv);
} commands[] = {{"run", run}, {"status", status}, {"join", join}};

int main(int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-')
        return run(argc, argv);
    const char *names[COUNT(commands)];
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].word) == 0)
            return commands[i].run(argc - 1, argv + 1);
        names[i] = commands[i].word;
    }
    struct err e;
    const char *near = suggest(argv[1], names, COUNT(names));
    err_set(&e, ST_USER, "there is no command '%.40s'%s%s%s; see 'ebb-agent --help'", argv[1], near ? " (did you mean '" : "", near ? near : "",
            near ? "')" : "");
    return complain(&e);
}
