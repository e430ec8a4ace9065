/* Does one table parse, explain itself, and make its manual page? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"

static int wait_flag;
static const char *text;
static struct opt_list list, split;
static uint64_t number, size_bytes, time_ms;
static int64_t sign;

static const struct opt opts[] = {
    {.name = "wait", .letter = 'w', .type = OPT_FLAG, .value = &wait_flag, .help = "wait for it"},
    {.name = "output", .letter = 'o', .type = OPT_TEXT, .value = &text, .arg = "PATH", .help = "where it goes", .group = "Output"},
    {.name = "input", .type = OPT_LIST, .value = &list, .arg = "PATH", .help = "what is read"},
    {.name = "keep", .type = OPT_LIST, .value = &split, .arg = "NAME,...", .help = "what is kept", .split = 1},
    {.name = "limit", .type = OPT_NUMBER, .value = &number, .arg = "N", .help = "how many"},
    {.name = "priority", .type = OPT_SIGNED, .value = &sign, .arg = "N", .help = "how soon"},
    {.name = "size", .type = OPT_SIZE, .value = &size_bytes, .arg = "SIZE", .help = "how large"},
    {.name = "time", .type = OPT_DURATION, .value = &time_ms, .arg = "TIME", .help = "how long", .group = "Output"},
};
static const struct opt_command command = {.name = "ebb try", .operands = "JOB [MORE]", .summary = "try it", .details = "First.\n\nSecond, 50% -done.",
                                           .examples = "  ebb try 1", .opts = opts, .opt_count = sizeof opts / sizeof *opts, .operands_min = 1,
                                           .operands_max = 2};

static struct err e;
static int operands;
static char *args[16];

static enum status parse(const char *first, ...)
{
    int n = 0;
    va_list ap;
    opt_list_release(&list);
    opt_list_release(&split);
    wait_flag = 0;
    text = NULL;
    number = size_bytes = time_ms = 0;
    sign = 0;
    args[n++] = (char *)"ebb try";
    va_start(ap, first);
    for (const char *word = first; word; word = va_arg(ap, const char *))
        args[n++] = (char *)word;
    va_end(ap);
    args[n] = NULL;
    e = (struct err){0};
    return opt_parse(&command, n, args, &operands, &e);
}

static void every_type(void **state)
{
    (void)state;
    assert_int_equal(parse("-w", "job", "--output=out", "--input", "a,b", "--input=c", "--keep", "x,y", "--limit", "10", NULL), ST_OK);
    assert_int_equal(operands, 1);
    assert_string_equal(args[1], "job");
    assert_int_equal(wait_flag, 1);
    assert_string_equal(text, "out");
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[0], "a,b");
    assert_int_equal(split.count, 2);
    assert_string_equal(split.items[1], "y");
    assert_int_equal(number, 10);
    assert_int_equal(parse("j", "--priority", "-5", "--size", "64MB", "--time=0.2s", "-oq", NULL), ST_OK);
    assert_int_equal(sign, -5);
    assert_int_equal(size_bytes, 64000000);
    assert_int_equal(time_ms, 200);
    assert_string_equal(text, "q");
    assert_int_equal(parse("--output", "", "-", "--", "--wait", NULL), ST_OK); /* a lone dash is an operand; so is all behind -- */
    assert_string_equal(text, "");
    assert_int_equal(operands, 2);
    assert_string_equal(args[1], "-");
    assert_string_equal(args[2], "--wait");
    assert_int_equal(wait_flag, 0);
}

static void mistake(const char *wanted, enum status st)
{
    assert_int_equal(st, ST_USER);
    assert_string_equal(e.text, wanted);
}

static void mistakes(void **state)
{
    (void)state;
    mistake("unknown option '--outptu' (did you mean '--output'); see 'ebb try --help'", parse("j", "--outptu", "x", NULL));
    mistake("unknown option '--outptu' (did you mean '--output'); see 'ebb try --help'", parse("j", "--outptu=x", NULL));
    mistake("unknown option '--zzzz'; see 'ebb try --help'", parse("j", "--zzzz", NULL));
    mistake("unknown option '-z'; see 'ebb try --help'", parse("j", "-z", NULL));
    mistake("--limit takes a whole number, not '1.5'", parse("j", "--limit", "1.5", NULL));
    mistake("--limit takes a whole number from 0 on, not '-1'", parse("j", "--limit", "-1", NULL));
    mistake("--limit takes a smaller number, not '99999999999999999999'", parse("j", "--limit", "99999999999999999999", NULL));
    mistake("--priority takes a whole number, not ''", parse("j", "--priority", "", NULL));
    mistake("--size takes a size such as 64MB or 1.5GiB, not 'big'", parse("j", "--size", "big", NULL));
    mistake("--time takes a duration such as 30s or 5min, not 'soon'", parse("j", "--time", "soon", NULL));
    mistake("--output wants PATH behind it", parse("j", "--output", NULL));
    mistake("--wait takes no argument", parse("j", "--wait=1", NULL));
    mistake("ebb try wants JOB [MORE]; see 'ebb try --help'", parse(NULL));
    mistake("'c' is more than ebb try takes; see 'ebb try --help'", parse("a", "b", "c", NULL));
}

static char *printed(void (*print)(const struct opt_command *c, FILE *to))
{
    char *out = NULL;
    size_t len;
    FILE *f = open_memstream(&out, &len);
    assert_non_null(f);
    print(&command, f);
    fclose(f);
    return out;
}

static void help(void **state)
{
    (void)state;
    char *h = printed(opt_help);
    static const char *const lines[] = {"usage: ebb try [OPTION...] JOB [MORE]\n", "\ntry it\n",        "\nOptions\n",        "\nOutput\n", "  -w, --wait",
                                        "  -o, --output PATH",                     "      --keep NAME,...", "  ebb try 1\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_non_null(strstr(h, lines[i]));
    assert_true(strstr(h, "--size") < strstr(h, "\nOutput\n")); /* rows stand under their own heading */
    assert_true(strstr(h, "--time") > strstr(h, "\nOutput\n"));
    for (size_t i = 0; i < command.opt_count; i++)
        assert_non_null(strstr(h, opts[i].help));
    free(h);
}

static void manual(void **state)
{
    (void)state;
    char *m = printed(opt_man);
    assert_true(strncmp(m, ".TH \"ebb-try\" 1\n.SH NAME\nebb-try \\- try it\n", 41) == 0);
    assert_non_null(strstr(m, ".SH OPTIONS\n"));
    assert_non_null(strstr(m, ".SH OUTPUT\n"));
    assert_non_null(strstr(m, "First.\n.PP\nSecond, 50% \\-done."));
    for (size_t i = 0; i < command.opt_count; i++) {
        char row[64];
        snprintf(row, sizeof row, "\\fB\\-\\-%s\\fR", opts[i].name);
        assert_non_null(strstr(m, row));
    }
    free(m);
}

static void allocation_failures(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        enum status st = parse("j", "--input", "a", "--keep", "x,y,z", NULL);
        mem_fail_nth(0);
        if (st == ST_OK) {
            assert_int_equal(n, 5); /* list, copy, copies, items; then none fails */
            break;
        }
        assert_int_equal(st, ST_NOMEM);
    }
    opt_list_release(&list);
    opt_list_release(&split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_type), cmocka_unit_test(mistakes), cmocka_unit_test(help), cmocka_unit_test(manual),
                                       cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
