/* Errors, tables and answers as people and scripts read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail /* ours prints an error */

#include <unistd.h>

#include "base/mem.h"
#include "capture.h"
#include "client/client.h"

static void error_is(const char *text, const char *wanted)
{
    struct capture c;
    capture_begin(&c, stderr);
    print_error_line(text);
    char *got = capture_end(&c);
    assert_string_equal(got, wanted);
    free(got);
}

static void errors(void **state)
{
    (void)state;
    error_is("a", "error: a\n");
    error_is("'x' is not empty; choose another --output", "error: 'x' is not empty\n   choose another --output\n");
    error_is("a\nb\n", "error: a\n   b\n");
    error_is("a; b; c", "error: a\n   b\n   c\n");
    error_is("no column (columns: a, b; did you mean b); see x", "error: no column (columns: a, b; did you mean b)\n   see x\n");
    error_is("an open ( bracket\nb; c", "error: an open ( bracket\n   b\n   c\n");
    error_is("", "error: ");
    struct capture c;
    struct err e;
    err_set(&e, ST_ENV, "disk");
    capture_begin(&c, stderr);
    assert_int_equal(fail(&e), 1);
    assert_int_equal(fail_with(ST_USER, "%d", 5), 2);
    assert_int_equal(fail_with(ST_NOT_FOUND, "no job"), 2);
    char *got = capture_end(&c);
    assert_string_equal(got, "error: disk\nerror: 5\nerror: no job\n");
    free(got);
}

static void paths_in_errors(void **state)
{
    (void)state;
    char here[4096], text[30000], other[30000];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(text, sizeof text, "input '%s/a*.jsonl' and '%s' and '%s/' and '%s-b/c' and %s/d; see '%s/e'", here, here, here, here, here, here);
    snprintf(other, sizeof other, "error: input 'a*.jsonl' and '%s' and '%s/' and '%s-b/c' and %s/d\n   see 'e'\n", here, here, here, here);
    error_is(text, other);
    error_is("don't; '", "error: don't\n   '\n");
}

static void tables(void **state)
{
    (void)state;
    struct capture c;
    capture_begin(&c, stdout);
    struct table *t = table_new(3, (const char *[]){"JOB", "NAME", "X"});
    table_row(t, (const char *[]){" 41", "größe", "1"});
    table_row(t, (const char *[]){"100", "a", ""});
    table_print(t, stdout);
    char *got = capture_end(&c);
    assert_string_equal(got, " JOB  NAME   X\n  41  größe  1\n 100  a      \n");
    free(got);
    for (uint64_t n = 1; n < 8; n++) { /* out of memory is said, not half a table */
        mem_fail_nth(n);
        t = table_new(3, (const char *[]){"JOB", "NAME", "X"});
        mem_fail_nth(0);
        struct capture out, err;
        capture_begin(&out, stdout);
        capture_begin(&err, stderr);
        table_print(t, stdout);
        char *words = capture_end(&err), *text = capture_end(&out);
        assert_int_equal(*text == 0, *words != 0);
        free(words);
        free(text);
    }
}

static void answers(void **state)
{
    (void)state;
    json_t *o = json_loads("{\"a\":1,\"b\":-1,\"c\":2.5,\"d\":\"x\",\"e\":null}", 0, NULL);
    assert_int_equal(count_of(o, "a"), 1);
    assert_int_equal(count_of(o, "b"), 0);
    assert_int_equal(count_of(o, "c"), 0);
    assert_true(number_of(o, "c", -1) == 2.5 && number_of(o, "a", -1) == 1 && number_of(o, "e", -1) == -1 && number_of(o, "none", 7) == 7);
    assert_string_equal(text_of(o, "d"), "x");
    assert_string_equal(text_of(o, "a"), "");
    assert_string_equal(text_of(NULL, "a"), "");
    struct capture c;
    capture_begin(&c, stdout);
    assert_int_equal(print_json(o), 0);
    char *got = capture_end(&c);
    assert_string_equal(got, "{\"a\":1,\"b\":-1,\"c\":2.5,\"d\":\"x\",\"e\":null}\n");
    free(got);
}

static void jobs(void **state)
{
    (void)state;
    uint64_t job;
    struct err e;
    static const char *const wrong[] = {"", "0", "-1", "4x", "x", "99999999999999999999", " 1", "+1"};
    assert_int_equal(parse_job("41", &job, &e), ST_OK);
    assert_int_equal(job, 41);
    for (size_t i = 0; i < COUNT(wrong); i++)
        assert_int_equal(parse_job(wrong[i], &job, &e), ST_USER);
    assert_string_equal(e.text, "'+1' is no job's number; 'ebb jobs --all' lists them");
}

static void short_paths(void **state)
{
    (void)state;
    char here[1024], path[1100];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/a/b", here);
    assert_string_equal(short_path(path), "a/b");
    snprintf(path, sizeof path, "%sx/a", here);
    assert_string_equal(short_path(path), path);
    assert_string_equal(short_path(here), here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors), cmocka_unit_test(paths_in_errors), cmocka_unit_test(tables), cmocka_unit_test(answers), cmocka_unit_test(jobs),
                                       cmocka_unit_test(short_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
