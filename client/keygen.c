/* `ebb keygen`: the daemon's own key pair. `ebb keys`, `ebb keys add`, `ebb keys revoke`: who may speak with it over the network. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "client/client.h"
#include "client/connect.h"
#include "wire/keys.h"

static const char *state, *name, *file;
static int node, client;

/* As ebbd finds it when it is not told. */
static char *default_state(void)
{
    const char *s = getenv("STATE_DIRECTORY"), *home = getenv("HOME");
    if (s && *s)
        return mem_strndup(s, strcspn(s, ":"));
    if (geteuid() == 0)
        return mem_strdup("/var/lib/ebb");
    if ((s = getenv("XDG_STATE_HOME")) && *s == '/')
        return path_join(s, "ebb");
    return path_join(home && *home == '/' ? home : "/", ".local/state/ebb");
}

static enum status make_keys(const char *dir, const char *keys_dir, const char *path, struct keys_file *k, struct err *e)
{
    enum status st = keys_read_file(path, k, e);
    if (st == ST_OK && !common.force)
        return err_set(e, ST_USER, "'%s' is there already, with the public key %s; with --force it is replaced, and every worker and client must be invited anew",
                       path, k->keys.public_key);
    if (st != ST_OK && st != ST_NOT_FOUND && !common.force)
        return st;
    *k = (struct keys_file){.role = KEYS_DAEMON};
    TRY(path_make_dirs(keys_dir, 0700, e));
    TRY(keys_give(keys_dir, dir, e));
    TRY(keys_generate(&k->keys, e));
    TRY(keys_write(path, k, e));
    return keys_give(path, dir, e);
}

static int run_keygen(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    struct err e;
    struct keys_file k = {0};
    char *dir = state ? path_absolute(state) : default_state(), *keys_dir = dir ? path_join(dir, KEYS_DIR) : NULL, *path = dir ? path_join(dir, KEYS_DAEMON_FILE) : NULL;
    int code = keys_dir && path ? EXIT_DONE : fail_with(ST_NOMEM, "out of memory for a path");
    if (code == EXIT_DONE && make_keys(dir, keys_dir, path, &k, &e) != ST_OK)
        code = fail(&e);
    if (code == EXIT_DONE && common.json)
        code = print_json(json_pack("{s:s, s:s}", "file", path, "key", k.keys.public_key));
    else if (code == EXIT_DONE) {
        say("the daemon's keys are in '%s'; this is the public one:", path);
        puts(k.keys.public_key);
    }
    keys_wipe(&k.keys);
    mem_free(dir);
    mem_free(keys_dir);
    mem_free(path);
    return code;
}

static const struct opt keygen_opts[] = {
    {.name = "state", .letter = 's', .type = OPT_TEXT, .value = &state, .arg = "DIR", .help = "the daemon's state directory (default: as ebbd's)"},
    {.name = "force", .type = OPT_FLAG, .value = &common.force, .help = "replace the keys that are there: whoever has pinned them must be invited anew"},
    ROW_JSON,
};
static const struct opt_command keygen_table = {
    .name = "ebb keygen",
    .summary = "make the keys that a daemon needs before it listens to other machines",
    .details = "Writes keys/daemon.key into the state directory, for its owner alone, and prints the public key. Then 'listen: tcp://0.0.0.0:5570' and 'roots' "
               "in ebbd.yaml open the ports, and 'ebb invite' lets machines and people in.",
    .examples = "  sudo ebb keygen\n  ebb keygen --state ~/pool",
    .opts = keygen_opts,
    .opt_count = COUNT(keygen_opts)};
const struct command command_keygen = {.name = "keygen", .group = "Keys", .table = &keygen_table, .run = run_keygen};

/* keys ------------------------------------------------------------------------------------------------------------------------------ */

static void row(struct table *t, const json_t *k)
{
    char until[32] = "-", connections[16];
    time_t s = (time_t)(count_of(k, "until_ms") / 1000);
    struct tm tm;
    int invitation = json_is_true(json_object_get(k, "invitation"));
    if (s && localtime_r(&s, &tm))
        strftime(until, sizeof until, "%Y-%m-%d %H:%M", &tm);
    snprintf(connections, sizeof connections, "%" PRIu64, count_of(k, "connections"));
    char role[32];
    snprintf(role, sizeof role, "%s%s", text_of(k, "role"), invitation ? " (invited)" : "");
    table_row(t, (const char *[]){text_of(k, "name"), role, invitation ? "-" : connections, until, text_of(k, "key")});
}

static int run_list(int operand_count, char **operands)
{
    (void)operand_count;
    (void)operands;
    json_t *answer = NULL, *k;
    struct err e;
    size_t i;
    int code = EXIT_DONE;
    if (ask("keys", NULL, &answer, &e) != ST_OK)
        return fail(&e);
    json_t *list = json_object_get(answer, "keys");
    if (common.json) {
        json_array_foreach(list, i, k)
            code |= print_json(json_incref(k));
    } else if (json_array_size(list) == 0) {
        say("nobody may speak over the network yet; 'ebb invite' lets them");
    } else {
        struct table *t = table_new(5, (const char *[]){"NAME", "ROLE", "CONNECTED", "UNTIL", "KEY"});
        json_array_foreach(list, i, k)
            row(t, k);
        table_print(t, stdout);
    }
    if (!common.json && count_of(answer, "refused"))
        say("%" PRIu64 " tries by others were refused since the daemon was started; its log names them", count_of(answer, "refused"));
    json_decref(answer);
    return code;
}

static enum status add(struct err *e)
{
    struct keys_file k = {.role = node ? KEYS_NODE : KEYS_CLIENT};
    json_t *answer = NULL, *known = NULL;
    if (path_exists(file))
        return err_set(e, ST_USER, "there is a file '%s' already", file);
    TRY(ask("keys", NULL, &known, e));
    snprintf(k.keys.server_key, sizeof k.keys.server_key, "%s", text_of(known, "daemon"));
    json_decref(known);
    struct keys drawn;
    TRY(keys_generate(&drawn, e));
    snprintf(k.keys.public_key, sizeof k.keys.public_key, "%s", drawn.public_key);
    snprintf(k.keys.secret_key, sizeof k.keys.secret_key, "%s", drawn.secret_key);
    keys_wipe(&drawn);
    if (name)
        snprintf(k.name, sizeof k.name, "%.60s", name);
    enum status st = keys_write(file, &k, e); /* before it opens anything */
    if (st == ST_OK)
        st = ask("authorize", json_pack("{s:s, s:s*, s:s}", "role", keys_role_word(k.role), "name", name, "key", k.keys.public_key), &answer, e);
    if (st == ST_OK && common.json)
        print_json(json_incref(answer));
    else if (st == ST_OK)
        printf("'%s' is the key of %s '%s'\n", file, keys_role_word(k.role), text_of(answer, "name"));
    else
        unlink(file);
    json_decref(answer);
    keys_wipe(&k.keys);
    return st;
}

static int run_add(int operand_count, char **operands)
{
    (void)operand_count;
    struct err e;
    file = operands[0];
    if (node == client)
        return fail_with(ST_USER, "say for whom the key is: --node or --client");
    return add(&e) == ST_OK ? EXIT_DONE : fail(&e);
}

static int run_revoke(int operand_count, char **operands)
{
    int code = EXIT_DONE;
    for (int i = 0; i < operand_count && code == EXIT_DONE; i++) {
        json_t *answer = NULL;
        struct err e;
        if (ask("revoke", json_pack("{s:s}", "name", operands[i]), &answer, &e) != ST_OK)
            return fail(&e);
        if (common.json)
            code = print_json(json_incref(answer));
        else
            printf("the key of %s '%s' opens nothing any more\n", text_of(answer, "role"), text_of(answer, "name"));
        json_decref(answer);
    }
    return code;
}

static const struct opt list_opts[] = {ROW_JSON, ROW_SOCKET};
static const struct opt_command list_table = {.name = "ebb keys list", .summary = "list who may speak with a pool over the network, and the open invitations",
                                              .details = "On the daemon's own machine, as root or the daemon's user. The same stands in keys/authorized_keys of the state directory.",
                                              .examples = "  ebb keys list", .opts = list_opts, .opt_count = COUNT(list_opts)};
const struct command command_keys_list = {.name = "keys list", .group = "Keys", .table = &list_table, .run = run_list};

static const struct opt add_opts[] = {
    {.name = "node", .type = OPT_FLAG, .value = &node, .help = "the key is for workers and agents"},
    {.name = "client", .type = OPT_FLAG, .value = &client, .help = "the key is for a client"},
    {.name = "name", .type = OPT_TEXT, .value = &name, .arg = "NAME", .help = "what people call it (default: node or client)"},
    ROW_JSON,
    ROW_SOCKET,
};
static const struct opt_command add_table = {
    .name = "ebb keys add", .operands = "FILE", .summary = "make a key, let it in, and write its key file",
    .details = "For where 'ebb invite' does not fit: one key of many workers in a shared folder of a cluster, or in a secret of Kubernetes. Whoever reads FILE can "
               "speak with the pool.",
    .examples = "  ebb keys add --node --name slurm /home/ebb/worker.key", .opts = add_opts, .opt_count = COUNT(add_opts), .operands_min = 1, .operands_max = 1};
const struct command command_keys_add = {.name = "keys add", .group = "Keys", .table = &add_table, .run = run_add};

static const struct opt_command revoke_table = {.name = "ebb keys revoke", .operands = "NAME...", .summary = "let a key or an invitation in no more",
                                                .details = "Whoever is connected with it is dropped at once; its leases go to other workers.",
                                                .examples = "  ebb keys revoke gpu-box", .opts = list_opts, .opt_count = COUNT(list_opts), .operands_min = 1,
                                                .operands_max = 1000};
const struct command command_keys_revoke = {.name = "keys revoke", .group = "Keys", .table = &revoke_table, .run = run_revoke};
