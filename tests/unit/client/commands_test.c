/* Do --help, the manual page and the completion name the same options, and is a misspelt command answered with the right one? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* ours prints an error */

#include <ctype.h>

#include "capture.h"
#include "client/commands.h"

static char *printed(void (*print)(const struct opt_command *c, FILE *to), const struct opt_command *c)
{
    char *out = NULL;
    size_t len;
    FILE *f = open_memstream(&out, &len);
    assert_non_null(f);
    print(c, f);
    fclose(f);
    return out;
}

/* The options that a text names at the beginning of its rows, one a line. */
static char *options_of(const char *text, const char *row, const char *dash)
{
    char *out = NULL;
    size_t len, n = strlen(row), d = strlen(dash);
    FILE *f = open_memstream(&out, &len);
    for (const char *line = text; *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line)) {
        const char *p = line;
        if (strncmp(p, "  -", 3) == 0 && isalpha((unsigned char)p[3]) && p[4] == ',') /* "  -q, --quiet" */
            p += 0, p = strstr(p, "--") ? strstr(p, "--") - n + 2 : p;
        else if (strncmp(p, row, n) != 0)
            continue;
        for (p += n; isalnum((unsigned char)*p) || strncmp(p, dash, d) == 0; p += strncmp(p, dash, d) == 0 ? d : 1)
            fputc(strncmp(p, dash, d) == 0 ? '-' : *p, f);
        fputc('\n', f);
    }
    fclose(f);
    return out;
}

static void help_and_manual_agree(void **state)
{
    (void)state;
    struct err e;
    for (size_t i = 0; i < command_count; i++) {
        const struct opt_command *t = command_table(commands[i], &e);
        assert_non_null(t);
        char *help = printed(opt_help, t), *man = printed(opt_man, t);
        char *in_help = options_of(help, "      --", "-"), *in_man = options_of(man, "\\fB\\-\\-", "\\-");
        assert_string_equal(in_help, in_man);
        size_t lines = 0;
        for (const char *p = in_help; *p; p++)
            lines += *p == '\n';
        assert_int_equal(lines, t->opt_count);
        for (size_t j = 0; j < t->opt_count; j++)
            for (size_t k = 0; k < j; k++)
                assert_string_not_equal(t->opts[j].name, t->opts[k].name);
        free(help);
        free(man);
        free(in_help);
        free(in_man);
    }
}

static void every_command_is_explained(void **state)
{
    (void)state;
    struct err e;
    char *help = NULL, *man = NULL, name[64];
    size_t len;
    FILE *f = open_memstream(&help, &len);
    commands_help(f);
    fclose(f);
    f = open_memstream(&man, &len);
    commands_man(f);
    fclose(f);
    for (size_t i = 0; i < command_count; i++) {
        const struct opt_command *t = command_table(commands[i], &e);
        snprintf(name, sizeof name, "ebb %s", commands[i]->name);
        assert_string_equal(t->name, name); /* the table's name is what is typed */
        assert_true(strlen(t->summary) > 0 && t->summary[strlen(t->summary) - 1] != '.');
        snprintf(name, sizeof name, "  %-15s %s", commands[i]->name, commands[i]->group ? t->summary : "");
        assert_int_equal(strstr(help, name) != NULL, commands[i]->group != NULL);
        snprintf(name, sizeof name, ".B %s\n", commands[i]->name);
        assert_int_equal(strstr(man, name) != NULL, commands[i]->group != NULL);
    }
    static const char *const codes[] = {"0 all records done", "3 done, some", "4 held or failed", "130 interrupted", "2 the command", "1 the environment"};
    for (size_t i = 0; i < COUNT(codes); i++)
        assert_true(strstr(help, codes[i]) && strstr(man, codes[i]));
    free(help);
    free(man);
}

static void finding(void **state)
{
    (void)state;
    int words;
    assert_ptr_equal(command_find(1, (char *[]){(char *)"run"}, &words), &command_run);
    assert_int_equal(words, 1);
    assert_ptr_equal(command_find(3, (char *[]){(char *)"model", (char *)"inspect", (char *)"x"}, &words), &command_model_inspect);
    assert_int_equal(words, 2);
    assert_null(command_find(1, (char *[]){(char *)"model"}, &words));
    assert_null(command_find(1, (char *[]){(char *)"ru"}, &words));
    assert_null(command_find(0, NULL, &words));
}

static void unknown_says(const char *first, const char *second, const char *wanted)
{
    struct capture c;
    char *argv[] = {(char *)first, (char *)second, NULL};
    capture_begin(&c, stderr);
    int code = command_unknown(second ? 2 : 1, argv);
    char *text = capture_end(&c);
    assert_int_equal(code, EXIT_USER);
    assert_string_equal(text, wanted);
    free(text);
}

static void unknown(void **state)
{
    (void)state;
    unknown_says("rnu", NULL, "error: unknown command 'rnu' (did you mean 'run')\n   see 'ebb --help'\n");
    unknown_says("wrokers", NULL, "error: unknown command 'wrokers' (did you mean 'workers')\n   see 'ebb --help'\n");
    unknown_says("zzzz", NULL, "error: unknown command 'zzzz'\n   see 'ebb --help'\n");
    unknown_says("model", "benhc", "error: unknown command 'model benhc' (did you mean 'model bench')\n");
    unknown_says("model", NULL, "error: 'ebb model' wants one more word\n   there is 'ebb model inspect', 'ebb model bench', 'ebb model test' and 'ebb model plan'\n");
    unknown_says("completoin", NULL, "error: unknown command 'completoin'\n   see 'ebb --help'\n"); /* what is hidden is not suggested */
}

/* The files in deploy/ are those that the tables make: `make completion` renews them. */
static void completion_file(const char *shell, const char *path)
{
    struct capture c;
    capture_begin(&c, stdout);
    int code = command_completion.run(1, (char *[]){(char *)shell});
    char *now = capture_end(&c);
    assert_int_equal(code, EXIT_DONE);
    FILE *f = fopen(path, "r");
    if (!f)
        print_error("'%s' is not there: tests run from the top of the tree\n", path);
    assert_non_null(f);
    char *then = calloc(1, strlen(now) + 2);
    size_t n = fread(then, 1, strlen(now) + 1, f);
    fclose(f);
    if (n != strlen(now) || strcmp(now, then) != 0)
        print_error("'%s' is out of date: make completion\n", path);
    assert_string_equal(now, then);
    free(now);
    free(then);
}

static void completion(void **state)
{
    (void)state;
    completion_file("bash", "deploy/completion/ebb.bash");
    completion_file("zsh", "deploy/completion/_ebb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(help_and_manual_agree), cmocka_unit_test(every_command_is_explained), cmocka_unit_test(finding),
                                       cmocka_unit_test(unknown), cmocka_unit_test(completion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
