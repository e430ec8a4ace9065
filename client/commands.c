/* The table of commands, and what is said about all of them at once. */
#include "client/commands.h"

#include <string.h>

#include "base/buf.h"
#include "base/suggest.h"

const struct command *const commands[] = {
#define X(name) &command_##name,
    COMMANDS(X)
#undef X
};
const size_t command_count = COUNT(commands);

const struct opt_command *command_table(const struct command *c, struct err *e)
{
    return c->table ? c->table : c->make_table(e);
}

const struct command *command_find(int argc, char **argv, int *words)
{
    for (size_t i = 0; i < command_count && argc > 0; i++) {
        const char *name = commands[i]->name, *space = strchr(name, ' ');
        *words = space ? 2 : 1;
        if (!space && strcmp(argv[0], name) == 0)
            return commands[i];
        if (space && argc > 1 && strlen(argv[0]) == (size_t)(space - name) && strncmp(argv[0], name, (size_t)(space - name)) == 0 &&
            strcmp(argv[1], space + 1) == 0)
            return commands[i];
    }
    return NULL;
}

int command_unknown(int argc, char **argv)
{
    const char *names[COUNT(commands) + 1];
    size_t n = 0, len = strlen(argv[0]);
    for (size_t i = 0; i < command_count; i++)
        if (strncmp(commands[i]->name, argv[0], len) == 0 && commands[i]->name[len] == ' ') { /* "model" with no or a wrong second word */
            const char *second = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
            for (size_t j = 0; j < command_count; j++)
                if (strncmp(commands[j]->name, argv[0], len) == 0 && commands[j]->name[len] == ' ')
                    names[n++] = commands[j]->name + len + 1;
            const char *near = *second ? suggest(second, names, n) : NULL;
            if (near)
                return fail_with(ST_USER, "unknown command '%s %s' (did you mean '%s %s')", argv[0], second, argv[0], near);
            struct buf all = {0};
            for (size_t j = 0; j < n; j++)
                if (buf_printf(&all, "%s'ebb %s %s'", j == 0 ? "" : j + 1 == n ? " and " : ", ", argv[0], names[j]) != 0)
                    break;
            int code = *second ? fail_with(ST_USER, "unknown command '%s %s'; there is %.*s", argv[0], second, (int)all.len, all.data)
                               : fail_with(ST_USER, "'ebb %s' wants one more word; there is %.*s", argv[0], (int)all.len, all.data);
            buf_release(&all);
            return code;
        }
    for (size_t i = 0; i < command_count; i++)
        if (commands[i]->group)
            names[n++] = commands[i]->name;
    names[n++] = "help";
    const char *near = suggest(argv[0], names, n);
    if (near)
        return fail_with(ST_USER, "unknown command '%s' (did you mean '%s'); see 'ebb --help'", argv[0], near);
    return fail_with(ST_USER, "unknown command '%s'; see 'ebb --help'", argv[0]);
}

static const char intro[] = "ebb runs offline batch inference on whatever machines are free, and ebbs away when their owners come back.";
static const char codes[] = "  0 all records done; 3 done, some records in errors; 4 held or failed (the reason is printed); 130 interrupted, can be resumed;\n"
                            "  2 the command, job or input is wrong and nothing was started; 1 the environment failed (disk, permission, network)";
static const char *const groups[] = {"On this machine", "Jobs of a pool", "Machines", "Keys"};

void commands_help(FILE *to)
{
    struct err e;
    fprintf(to, "usage: ebb COMMAND [OPTION...]\n%s\n", intro);
    for (size_t g = 0; g < COUNT(groups); g++) {
        fprintf(to, "\n%s\n", groups[g]);
        for (size_t i = 0; i < command_count; i++) {
            const struct opt_command *t = command_table(commands[i], &e);
            if (t && commands[i]->group && strcmp(commands[i]->group, groups[g]) == 0)
                fprintf(to, "  %-15s %s\n", commands[i]->name, t->summary);
        }
    }
    fprintf(to, "\n'ebb COMMAND --help' says more. Where a command prints facts, --json prints them for scripts.\n"
                "\nExit codes\n%s\n"
                "\nExample\n  ebb run --model all-MiniLM-L6-v2/ --input 'reviews/*.jsonl.gz' --field text --output out/\n", codes);
}

void commands_man(FILE *to)
{
    struct err e;
    fprintf(to, ".TH \"ebb\" 1\n.SH NAME\nebb \\- offline batch inference\n.SH SYNOPSIS\n.B ebb\nCOMMAND [OPTION...]\n.SH DESCRIPTION\n%s\n", intro);
    for (size_t g = 0; g < COUNT(groups); g++) {
        fprintf(to, ".SH \"%s\"\n", groups[g]);
        for (size_t i = 0; i < command_count; i++) {
            const struct opt_command *t = command_table(commands[i], &e);
            if (t && commands[i]->group && strcmp(commands[i]->group, groups[g]) == 0)
                fprintf(to, ".TP\n.B %s\n%s\n", commands[i]->name, t->summary);
        }
    }
    fputs(".SH \"EXIT CODES\"\n0 all records done; 3 done, some records in errors; 4 held or failed (the reason is printed); 130 interrupted, can be resumed;\n"
          "2 the command, job or input is wrong and nothing was started; 1 the environment failed (disk, permission, network)\n"
          ".SH ENVIRONMENT\n.TP\n.B EBB_SOCKET\nwhere a pool's daemon listens: a socket's path or an endpoint\n"
          ".TP\n.B EBB_DAEMON\nthe daemon of another machine, HOST or HOST:PORT\n.TP\n.B EBB_KEY_FILE\nthe key to speak with it\n"
          ".TP\n.B NO_COLOR\nno colours\n.TP\n.B XDG_RUNTIME_DIR\nwhere 'ebb run' keeps its sockets; else in /tmp\n", to);
}
