/* `ebb invite` prints the line that lets another machine in; `ebb join` is that line for clients. */
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/units.h"
#include "client/client.h"
#include "client/connect.h"
#include "wire/join.h"

#define VALID_MS (24 * 3600 * (uint64_t)1000)
#define JOIN_MS 60000

static int node, client;
static const char *name, *key, *address;
static uint64_t valid_ms = VALID_MS;

static int run_invite(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    struct err e;
    json_t *answer = NULL;
    if (node == client)
        return fail_with(ST_USER, "say who is invited: --node (a machine with workers) or --client (somebody who runs jobs)");
    if (ask("invite", json_pack("{s:s, s:s*, s:I}", "role", node ? "node" : "client", "name", name, "valid_ms", (json_int_t)valid_ms), &answer, &e) != ST_OK)
        return fail(&e);
    if (common.json) {
        int code = print_json(json_incref(answer));
        json_decref(answer);
        return code;
    }
    const char *connect = text_of(answer, "connect"), *port = strrchr(connect, ':');
    char until[40] = "";
    time_t s = (time_t)(count_of(answer, "until_ms") / 1000);
    struct tm tm;
    if (localtime_r(&s, &tm))
        strftime(until, sizeof until, "%Y-%m-%d %H:%M", &tm);
    say("on the other machine, once, until %s:", until);
    if (address)
        printf("%s join tcp://%s%s --key %s\n", node ? "ebb-agent" : "ebb", address, strchr(address, ':') || !port ? "" : port, text_of(answer, "invitation"));
    else
        printf("%s join %s --key %s\n", node ? "ebb-agent" : "ebb", connect, text_of(answer, "invitation"));
    if (!address && json_is_true(json_object_get(answer, "guessed_host")))
        say("should others know this machine by another name, put it there, or give --address");
    json_decref(answer);
    return EXIT_DONE;
}

static const struct opt invite_opts[] = {
    {.name = "node", .type = OPT_FLAG, .value = &node, .help = "a machine whose workers or agent join the pool"},
    {.name = "client", .type = OPT_FLAG, .value = &client, .help = "somebody who runs jobs on the pool"},
    {.name = "name", .type = OPT_TEXT, .value = &name, .arg = "NAME", .help = "what people call the key (default: the host that joins)"},
    {.name = "valid", .type = OPT_DURATION, .value = &valid_ms, .arg = "TIME", .help = "how long the invitation is good, e.g. 2h (default: 24h)"},
    {.name = "address", .type = OPT_TEXT, .value = &address, .arg = "HOST[:PORT]", .help = "this machine, as the other one knows it"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command invite_table = {
    .name = "ebb invite",
    .summary = "print a line that lets one more machine or person into the pool, once",
    .details = "On the daemon's own machine, as root or the daemon's user. The line holds the daemon's public key and a secret that opens once; the machine that "
               "joins draws a key of its own, which never leaves it. 'ebb keys list' shows open invitations, 'ebb keys revoke' takes one back.",
    .examples = "  ebb invite --node --name gpu-box\n  ebb invite --client --name anna --valid 2h",
    .opts = invite_opts,
    .opt_count = COUNT(invite_opts)};
const struct command command_invite = {.name = "invite", .group = "Keys", .table = &invite_table, .run = run_invite};

static int run_join(int operand_count, char **operands)
{
    (void)operand_count;
    struct err e;
    char *file = NULL;
    struct keys_file k;
    if (!key)
        return fail_with(ST_USER, "the invitation is missing: paste the whole line that 'ebb invite --client' printed");
    enum status st = conn_key_file(KEYS_CLIENT, &file, &e);
    struct join_opts o = {.role = KEYS_CLIENT, .daemon = operands[0], .invitation = key, .key_file = file, .name = name, .program = "ebb " EBB_VERSION,
                          .force = common.force, .timeout_ms = JOIN_MS};
    if (st == ST_OK)
        st = join_pool(&o, &k, &e);
    if (st == ST_OK && common.json)
        print_json(json_pack("{s:s, s:s, s:s}", "file", file, "name", k.name, "daemon", k.daemon));
    else if (st == ST_OK)
        printf("you may speak with the pool at '%s' as '%s'; the key is in '%s'\n", k.daemon, k.name, file);
    if (st == ST_OK)
        keys_wipe(&k.keys);
    mem_free(file);
    return st == ST_OK ? EXIT_DONE : fail(&e);
}

static const struct opt join_opts[] = {
    {.name = "key", .type = OPT_TEXT, .value = &key, .arg = "ebb1...", .help = "the invitation"},
    {.name = "name", .type = OPT_TEXT, .value = &name, .arg = "NAME", .help = "what people call your key (default: the invitation's, else this host)"},
    {.name = "key-file", .type = OPT_TEXT, .value = &common.key_file, .arg = "FILE", .help = "where the key goes (default: $EBB_KEY_FILE, else ~/.config/ebb/client.key)"},
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .help = "over a key file that is there"},
    ROW_JSON,
};
static const struct opt_command join_table = {.name = "ebb join", .operands = "tcp://HOST:PORT", .summary = "get a key for the pool of another machine, by invitation",
                                              .details = "Writes the key file that later commands use; they find the pool by it, too.",
                                              .examples = "  ebb join tcp://pool.example:5571 --key ebb1q9...", .opts = join_opts, .opt_count = COUNT(join_opts),
                                              .operands_min = 1, .operands_max = 1};
const struct command command_join = {.name = "join", .group = "Keys", .table = &join_table, .run = run_join};
