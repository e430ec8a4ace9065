/* How metrics are written down; what they say of a real daemon is in tests/e2e/metrics_test.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "daemon/http.h"
#include "daemon/metrics.h"

static void labels(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"", ""}, {"plain", "plain"}, {"a \"b\"", "a \\\"b\\\""}, {"c:\\d", "c:\\\\d"}, {"two\nlines", "two\\nlines"}, {"\\n", "\\\\n"},
                                           {"\xe6\xb5\xb7", "\xe6\xb5\xb7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        assert_int_equal(metrics_label(&out, cases[i][0]), 0);
        assert_string_equal(out.len ? buf_cstr(&out) : "", cases[i][1]);
        buf_release(&out);
    }
}

static double value_of(struct buf *text, const char *series)
{
    char line[100];
    snprintf(line, sizeof line, "\n%s ", series);
    assert_non_null(buf_cstr(text));
    const char *at = strstr(text->data, line);
    double v = -1;
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(line), "%lf", &v), 1);
    return v;
}

static void process(void **state)
{
    (void)state;
    struct buf before = {0}, after = {0};
    struct err e;
    int fds[2];
    assert_int_equal(metrics_write_process(&before, &e), ST_OK);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(metrics_write_process(&after, &e), ST_OK);
    assert_true(value_of(&after, "process_open_fds") == value_of(&before, "process_open_fds") + 2);
    assert_true(value_of(&after, "process_resident_memory_bytes") > 1e5);
    assert_true(value_of(&after, "process_virtual_memory_bytes") > value_of(&after, "process_resident_memory_bytes"));
    assert_true(value_of(&after, "process_cpu_seconds_total") >= value_of(&before, "process_cpu_seconds_total"));
    assert_true(value_of(&after, "process_max_fds") >= 10);
    assert_true(value_of(&after, "process_start_time_seconds") > 1.6e9);
    close(fds[0]);
    close(fds[1]);
    buf_release(&before);
    buf_release(&after);
}

static void memory_runs_out(void **state)
{
    (void)state;
    for (uint64_t nth = 1;; nth++) {
        struct buf out = {0};
        struct err e;
        mem_fail_nth(nth);
        enum status st = metrics_write_process(&out, &e);
        int failed = metrics_label(&out, "x");
        int spared = mem_fail_nth(0) < nth;
        assert_true(st == ST_OK || st == ST_NOMEM);
        buf_release(&out);
        if (st == ST_OK && !failed && spared)
            break;
        assert_true(nth < 100);
    }
}

static void addresses(void **state)
{
    (void)state;
    static const char *const good[] = {NULL, "off", "127.0.0.1:9570", "0.0.0.0:1", "localhost:80", "[::1]:9570", "[::]:0"};
    static const char *const bad[] = {"", ":", "9570", ":9570", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:+1", "127.0.0.1: 1", "127.0.0.1:65536", "127.0.0.1:1x", "::1:9570",
                                      "[::1]", "[::1:9570", "[]:1", "[", "]:1", "host:1", "256.0.0.1:1", "127.0.0.1:99999999999999999999", "on"};
    struct err e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(http_check(good[i], &e), ST_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(http_check(bad[i], &e), ST_USER);
        assert_non_null(strstr(e.text, "wants an address and a port"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(labels), cmocka_unit_test(process), cmocka_unit_test(memory_runs_out), cmocka_unit_test(addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
