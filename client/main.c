/* `ebb`: finds the command, parses what follows by its table, runs it. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "client/commands.h"

static int run(const struct command *c, int argc, char **argv)
{
    struct err e;
    int operands = 0;
    const struct opt_command *t = command_table(c, &e);
    if (!t)
        return fail(&e);
    enum status st = opt_parse(t, argc, argv, &operands, &e);
    if (st == ST_END) /* help was printed */
        return EXIT_DONE;
    if (st != ST_OK)
        return fail(&e);
    return c->run(operands, argv + 1);
}

/* help [COMMAND] */
static int help(int argc, char **argv)
{
    int words;
    struct err e;
    if (argc == 0) {
        commands_help(stdout);
        return EXIT_DONE;
    }
    const struct command *c = command_find(argc, argv, &words);
    const struct opt_command *t = c ? command_table(c, &e) : NULL;
    if (!c)
        return command_unknown(argc, argv);
    if (!t)
        return fail(&e);
    opt_help(t, stdout);
    return EXIT_DONE;
}

/* `ebb --daemon pool jobs` is `ebb jobs --daemon pool`. How many words were taken; -1: one has no argument. */
static int take_where(int argc, char **argv)
{
    const struct {
        const char *name;
        const char **to;
    } places[] = {{"--daemon", &common.daemon}, {"--key-file", &common.key_file}, {"--socket", &common.socket}};
    int taken = 0;
    for (int found = 1; found && taken + 1 < argc;) {
        const char *word = argv[taken + 1];
        found = 0;
        for (size_t i = 0; i < COUNT(places) && !found; i++) {
            size_t n = strlen(places[i].name);
            if (strncmp(word, places[i].name, n) != 0 || (word[n] && word[n] != '='))
                continue;
            if (!word[n] && taken + 2 >= argc)
                return -1;
            *places[i].to = word[n] ? word + n + 1 : argv[taken + 2];
            taken += word[n] ? 1 : 2;
            found = 1;
        }
    }
    return taken;
}

static int dispatch(int argc, char **argv)
{
    int words = 0, taken = take_where(argc, argv);
    if (taken < 0)
        return fail_with(ST_USER, "'%s' needs an argument", argv[argc - 1]);
    argc -= taken;
    argv += taken;
    if (argc < 2) {
        commands_help(stderr);
        return EXIT_USER;
    }
    if (strcmp(argv[1], "help") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help(0, NULL);
    if (strcmp(argv[1], "--man") == 0) {
        commands_man(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("ebb " EBB_VERSION);
        return EXIT_DONE;
    }
    const struct command *c = command_find(argc - 1, argv + 1, &words);
    if (!c)
        return command_unknown(argc - 1, argv + 1);
    return run(c, argc - words, argv + words);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    errno = 0;
    if ((fflush(stdout) || ferror(stdout)) && code == EXIT_DONE) {
        int errnum = errno; /* 0: it went wrong earlier */
        struct pollfd p = {.fd = STDOUT_FILENO};
        if (errnum != EPIPE && !(poll(&p, 1, 0) > 0 && p.revents & POLLERR)) /* whoever reads has had enough: no failure */
            return fail_with(ST_ENV, "cannot write to standard output%s%s", errnum ? ": " : "", errnum ? strerror(errnum) : "");
    }
    return code;
}
