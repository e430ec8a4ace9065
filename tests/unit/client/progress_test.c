/* Is the progress line what a person wants to read, at every width, and honest? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/progress.h"

static const struct view typical = {.job = 1, .state = "running", .fraction = 0.1249, .records_done = 612000, .errors = 3, .records_guess = 5102377,
                                    .records_per_s = 9840, .seconds_left = 456, .workers = 1, .workers_wanted = 1};

static size_t columns(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void full(void **state)
{
    (void)state;
    char line[512];
    assert_string_equal(progress_line(&typical, 0, line, sizeof line),
                        "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker");
    assert_string_equal(progress_line(&typical, 116, line, sizeof line),
                        "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker   [==>                            ]");
    assert_string_equal(progress_line(&typical, 200, line, sizeof line),
                        "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker   [==>                             ]");
}

/* What was counted is not called a guess, and wins over the daemon's. */
static void counted(void **state)
{
    (void)state;
    char line[512];
    struct view v = typical;
    v.records_total = 700000;
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "  12 %  612,000 of 700,000   9,840/s   7 min 36 s left   3 errors   1 worker");
    v.records_total = 5; /* it cannot be */
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker");
}

static void what_matters_least_goes_first(void **state)
{
    (void)state;
    char line[512];
    assert_string_equal(progress_line(&typical, 80, line, sizeof line),
                        "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors   1 worker");
    assert_string_equal(progress_line(&typical, 79, line, sizeof line), "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left   3 errors");
    assert_string_equal(progress_line(&typical, 66, line, sizeof line), "  12 %  612,000 of about 5.1 M   9,840/s   7 min 36 s left");
    assert_string_equal(progress_line(&typical, 56, line, sizeof line), "  12 %  612,000 of about 5.1 M   7 min 36 s left");
    assert_string_equal(progress_line(&typical, 36, line, sizeof line), "  12 %  612,000 of about 5.1 M");
    assert_string_equal(progress_line(&typical, 20, line, sizeof line), "  12 %");
    assert_string_equal(progress_line(&typical, 5, line, sizeof line), "  12 ");
}

static void never_wider(void **state)
{
    (void)state;
    struct view v = typical;
    char line[512];
    snprintf(v.waits_for, sizeof v.waits_for, "the model lädt …");
    for (int starting = 0; starting < 2; starting++) {
        v.records_per_s = starting ? 0 : 41000;
        for (int width = 1; width < 200; width++)
            assert_true(columns(progress_line(&v, width, line, sizeof line)) <= (size_t)width);
    }
    for (size_t size = 1; size < 120; size++) { /* and never behind the buffer's end */
        memset(line, '#', sizeof line);
        progress_line(&v, 0, line, size);
        assert_true(strlen(line) < size);
        assert_int_equal(line[size], '#');
    }
}

static void states(void **state)
{
    (void)state;
    char line[512];
    struct view v = {.state = "running", .records_guess = -1, .seconds_left = -1};
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "   0 %  0 records   starting");
    strcpy(v.waits_for, "the model is being loaded");
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "   0 %  0 records   the model is being loaded");
    v.records_done = 1;
    v.errors = 1;
    v.workers = 4;
    v.workers_wanted = 8;
    v.records_per_s = 3;
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "   0 %  1 record   3.0/s   1 error   4/8 workers");
    strcpy(v.state, "paused");
    assert_string_equal(progress_line(&v, 0, line, sizeof line), "   0 %  1 record   paused   1 error   4/8 workers");
    strcpy(v.state, "held");
    assert_int_equal(view_stands(&v), 1);
    v.passing = 1;
    assert_int_equal(view_stands(&v), 0);
    strcpy(v.reason, "not enough disk space: 3 MiB free for '/x', 512 MiB must stay; the job goes on by itself when there is more");
    assert_string_equal(progress_line(&v, 0, line, sizeof line),
                        "   0 %  1 record   waits: not enough disk space: 3 MiB free for '/x', 512 MiB must stay   1 error   4/8 workers");
    assert_string_equal(progress_line(&v, 72, line, sizeof line), "   0 %  1 record   waits: not enough disk space   1 error   4/8 workers");
    v.passing = 0;
    strcpy(v.state, "publishing");
    v.fraction = 1;
    assert_string_equal(progress_line(&v, 0, line, sizeof line), " 100 %  1 record   writing the output   1 error   4/8 workers");
}

static void guesses(void **state)
{
    (void)state;
    static const struct {
        double n;
        const char *text;
    } rows[] = {{0, "0"}, {7, "7"}, {999, "999"}, {1234, "1,230"}, {60027, "60,000"}, {999600, "1,000,000"}, {5102377, "5.1 M"}, {123456789, "123.5 M"}, {2.5e9, "2.5 G"}};
    char out[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(guess_words(out, rows[i].n), rows[i].text);
}

static void percent(void **state)
{
    (void)state;
    struct view v = {.state = "running"};
    static const struct {
        double fraction;
        int percent;
    } rows[] = {{0, 0}, {0.0099, 0}, {0.01, 1}, {0.29, 29}, {0.999999, 99}, {1, 99}, {-1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        v.fraction = rows[i].fraction;
        assert_int_equal(progress_percent(&v), rows[i].percent);
    }
    strcpy(v.state, "done"); /* 100 is for what is done alone */
    assert_int_equal(progress_percent(&v), 100);
}

static json_t *parsed(const char *text)
{
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    return j;
}

static void reading(void **state)
{
    (void)state;
    struct view v = {0};
    json_t *j = parsed("{\"job\":7,\"name\":\"n\",\"state\":\"running\",\"fraction\":0.5,\"records_done\":10,\"records_guess\":null,\"seconds_left\":null,"
                       "\"records_per_s\":2.5,\"errors\":1,\"workers\":2,\"waits_for\":\"w\",\"later_versions\":[1]}");
    view_read(&v, j);
    json_decref(j);
    assert_int_equal(v.job, 7);
    assert_string_equal(v.state, "running");
    assert_true(v.fraction == 0.5 && v.records_guess == -1 && v.seconds_left == -1 && v.records_per_s == 2.5);
    assert_int_equal(v.records_done, 10);
    j = parsed("{\"job\":7,\"state\":\"running\",\"fraction\":0.25,\"records_done\":-4}");
    view_read(&v, j); /* a percentage never goes back */
    assert_true(v.fraction == 0.5);
    assert_int_equal(v.records_done, 0);
    json_decref(j);
    j = parsed("{\"job\":8,\"state\":\"held\",\"fraction\":0.25}");
    view_read(&v, j); /* another job's has nothing to do with it */
    assert_true(v.fraction == 0.25);
    assert_true(view_stands(&v) && !view_over(&v));
    json_decref(j);
    j = parsed("{}");
    view_read(&v, j);
    json_decref(j);
    assert_true(!view_stands(&v) && !view_over(&v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(full), cmocka_unit_test(counted),  cmocka_unit_test(what_matters_least_goes_first), cmocka_unit_test(never_wider),
                                       cmocka_unit_test(states), cmocka_unit_test(percent), cmocka_unit_test(guesses),                       cmocka_unit_test(reading)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
