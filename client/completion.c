/* Completion for shells, made from the same tables as --help. Hidden: packages and `make` call it. */
#include <string.h>

#include "client/client.h"

/* Options that take a file's or folder's name. */
static int takes_path(const struct opt *o)
{
    return o->arg && (strcmp(o->arg, "PATH") == 0 || strcmp(o->arg, "FILE") == 0 || strcmp(o->arg, "DIR") == 0 || strcmp(o->arg, "WHERE") == 0);
}

/* Is this the first command of a family, "model inspect", "model bench", ... ? */
static int begins_family(size_t i)
{
    size_t len = strcspn(commands[i]->name, " ");
    return commands[i]->group && commands[i]->name[len] && (!i || strncmp(commands[i - 1]->name, commands[i]->name, len + 1) != 0);
}

static void each_second_word(size_t first)
{
    size_t len = strcspn(commands[first]->name, " ") + 1;
    for (size_t i = first; i < command_count && strncmp(commands[i]->name, commands[first]->name, len) == 0; i++)
        printf("%s%s", i == first ? "" : " ", commands[i]->name + len);
}

static const char *family_summary(const char *name)
{
    return strncmp(name, "model", 5) == 0 ? "look into a model" : "who may speak with a pool";
}

static void each_first_word(void (*print)(const char *word, size_t len, const char *summary))
{
    struct err e;
    for (size_t i = 0; i < command_count; i++) {
        const struct command *c = commands[i];
        size_t len = strcspn(c->name, " ");
        const struct opt_command *t = command_table(c, &e);
        if (!c->group || !t || (i && strncmp(commands[i - 1]->name, c->name, len) == 0 && c->name[len] == ' '))
            continue;
        print(c->name, len, c->name[len] ? family_summary(c->name) : t->summary);
    }
}

static void bash_word(const char *word, size_t len, const char *summary)
{
    (void)summary;
    printf("%.*s ", (int)len, word);
}

/* What stands behind a command's options. */
static const char *operand_kind(const struct opt_command *t)
{
    const char *o = t->operands ? t->operands : "";
    return strstr(o, "JOB.yaml") || strstr(o, "DIR") ? "file" : strstr(o, "JOB") ? "job" : "none";
}

static int bash(void)
{
    struct err e;
    fputs("# bash completion for ebb, made by 'ebb completion bash'\n"
          "_ebb()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options= operand=\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"help --help --version ",
          stdout);
    each_first_word(bash_word);
    fputs("\" -- \"$cur\"))\n        return\n    fi\n",
          stdout);
    for (size_t i = 0; i < command_count; i++) {
        if (!begins_family(i))
            continue;
        int len = (int)strcspn(commands[i]->name, " ");
        printf("    [ \"$command\" = %.*s ] && command=\"%.*s ${COMP_WORDS[2]}\"\n"
               "    if [ \"${COMP_WORDS[1]}\" = %.*s ] && [ \"$COMP_CWORD\" -eq 2 ]; then\n"
               "        COMPREPLY=($(compgen -W \"", len, commands[i]->name, len, commands[i]->name, len, commands[i]->name);
        each_second_word(i);
        fputs("\" -- \"$cur\"))\n        return\n    fi\n", stdout);
    }
    fputs("    case $prev in\n"
          "    --model|--input|--output|--socket|--key-file) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;\n",
          stdout);
    /* options whose argument is a word of a few */
    fputs("    --precision) COMPREPLY=($(compgen -W \"auto f32 bf16 int8\" -- \"$cur\")); return ;;\n"
          "    --task) COMPREPLY=($(compgen -W \"auto embed classify token-classify fill-mask outputs\" -- \"$cur\")); return ;;\n"
          "    --format) COMPREPLY=($(compgen -W \"jsonl csv tsv lines images npy\" -- \"$cur\")); return ;;\n"
          "    --output-format) COMPREPLY=($(compgen -W \"jsonl npy\" -- \"$cur\")); return ;;\n"
          "    --floats) COMPREPLY=($(compgen -W \"array base64\" -- \"$cur\")); return ;;\n"
          "    --on-long) COMPREPLY=($(compgen -W \"truncate error\" -- \"$cur\")); return ;;\n"
          "    esac\n    case $command in\n",
          stdout);
    for (size_t i = 0; i < command_count; i++) {
        const struct opt_command *t = command_table(commands[i], &e);
        if (!commands[i]->group || !t)
            continue;
        printf("    \"%s\") options=\"--help", commands[i]->name);
        for (size_t j = 0; j < t->opt_count; j++)
            printf(" --%s", t->opts[j].name);
        printf("\" operand=%s ;;\n", operand_kind(t));
    }
    fputs("    completion) operand=shell ;;\n    help) operand=command ;;\n    esac\n"
          "    case $cur in\n"
          "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")); return ;;\n"
          "    esac\n"
          "    case $operand in\n"
          "    file) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
          "    job) COMPREPLY=($(compgen -W \"$(ebb jobs --all --json 2>/dev/null | sed -n 's/^{\"job\":\\([0-9]*\\),.*/\\1/p')\" -- \"$cur\")) ;;\n"
          "    shell) COMPREPLY=($(compgen -W \"bash zsh\" -- \"$cur\")) ;;\n"
          "    command) COMPREPLY=($(compgen -W \"",
          stdout);
    each_first_word(bash_word);
    fputs("\" -- \"$cur\")) ;;\n"
          "    esac\n}\n"
          "complete -o filenames -F _ebb ebb\n",
          stdout);
    return EXIT_DONE;
}

/* Inside '...' of a _arguments spec: brackets and colons part its fields, quotes end it. */
static void zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void zsh_word(const char *word, size_t len, const char *summary)
{
    printf("        '%.*s:", (int)len, word);
    zsh_text(summary);
    puts("'");
}

static int zsh(void)
{
    struct err e;
    fputs("#compdef ebb\n# zsh completion for ebb, made by 'ebb completion zsh'\n"
          "_ebb() {\n    local -a words_known\n    words_known=(\n        'help:what a command does'\n",
          stdout);
    each_first_word(zsh_word);
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command words_known\n        return\n    fi\n"
          "    local command=$words[2]\n",
          stdout);
    for (size_t i = 0; i < command_count; i++) {
        if (!begins_family(i))
            continue;
        int len = (int)strcspn(commands[i]->name, " ");
        printf("    if [[ $command == %.*s ]]; then\n"
               "        if (( CURRENT == 3 )); then\n            _values 'command' ", len, commands[i]->name);
        each_second_word(i);
        printf("\n            return\n        fi\n"
               "        command=\"%.*s $words[3]\"\n        shift words\n        (( CURRENT-- ))\n    fi\n", len, commands[i]->name);
    }
    fputs("    shift words\n    (( CURRENT-- ))\n    case $command in\n",
          stdout);
    for (size_t i = 0; i < command_count; i++) {
        const struct opt_command *t = command_table(commands[i], &e);
        if (!commands[i]->group || !t)
            continue;
        printf("    '%s')\n        _arguments '--help[say what it does]'", commands[i]->name);
        for (size_t j = 0; j < t->opt_count; j++) {
            const struct opt *o = &t->opts[j];
            printf(" \\\n            '%s--%s[", o->type == OPT_LIST ? "*" : "", o->name);
            zsh_text(o->help);
            putchar(']');
            if (o->arg) {
                fputs(":", stdout);
                zsh_text(o->arg);
                fputs(takes_path(o) ? ":_files" : ":", stdout);
            }
            putchar('\'');
        }
        if (strcmp(operand_kind(t), "file") == 0)
            fputs(" \\\n            '*:file:_files'", stdout);
        puts(" ;;");
    }
    fputs("    esac\n}\n_ebb \"$@\"\n", stdout);
    return EXIT_DONE;
}

static int run_completion(int operand_count, char **operands)
{
    (void)operand_count;
    if (strcmp(operands[0], "bash") == 0)
        return bash();
    if (strcmp(operands[0], "zsh") == 0)
        return zsh();
    if (strcmp(operands[0], "commands") == 0) { /* for `make man` */
        for (size_t i = 0; i < command_count; i++)
            if (commands[i]->group)
                puts(commands[i]->name);
        return EXIT_DONE;
    }
    return fail_with(ST_USER, "no completion for '%s'; there is bash and zsh", operands[0]);
}

static const struct opt_command table = {.name = "ebb completion", .operands = "bash|zsh", .summary = "print a completion script for a shell",
                                         .details = "  source <(ebb completion bash)", .operands_min = 1, .operands_max = 1};

const struct command command_completion = {.name = "completion", .table = &table, .run = run_completion};
