/* Points in time: what people write for a deadline. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <time.h>

#include "base/when.h"

#define MS INT64_C(1000)

static void is(const char *text, const char *zone, const char *now, const char *wanted)
{
    int64_t now_ms, at;
    char out[WHEN_MAX];
    setenv("TZ", zone, 1);
    tzset();
    assert_int_equal(when_parse(now, 0, &now_ms), 0);
    if (!wanted) {
        if (when_parse(text, now_ms, &at) == 0)
            fail_msg("'%s' is taken for %s", text, when_text(out, at));
        return;
    }
    if (when_parse(text, now_ms, &at))
        fail_msg("'%s' is not understood", text);
    assert_string_equal(when_text(out, at), wanted);
}

static void clocks_say_when_they_show_it_next(void **state)
{
    (void)state;
    is("07:00", "UTC", "2026-11-30T20:00:00Z", "2026-12-01T07:00:00Z");
    is("20:00", "UTC", "2026-11-30T20:00:00Z", "2026-12-01T20:00:00Z"); /* not now */
    is("20:01", "UTC", "2026-11-30T20:00:00Z", "2026-11-30T20:01:00Z");
    is("00:00", "UTC", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z");
    is("07:00:30", "UTC", "2026-11-30T06:00:00Z", "2026-11-30T07:00:30Z");
    is("07:00", "CET-1CEST,M3.5.0,M10.5.0/3", "2026-07-01T04:00:00Z", "2026-07-01T05:00:00Z");
    is("07:00", "CET-1CEST,M3.5.0,M10.5.0/3", "2026-12-01T04:00:00Z", "2026-12-01T06:00:00Z");
    is("07:00", "CET-1CEST,M3.5.0,M10.5.0/3", "2026-10-24T22:00:00Z", "2026-10-25T06:00:00Z"); /* the night has 25 hours */
}

static void dates_and_durations(void **state)
{
    (void)state;
    is("2030-01-31 07:00", "UTC", "2026-11-30T20:00:00Z", "2030-01-31T07:00:00Z");
    is("2030-01-31T07:00:05", "CET-1", "2026-11-30T20:00:00Z", "2030-01-31T06:00:05Z");
    is("2030-01-31T07:00Z", "CET-1", "2026-11-30T20:00:00Z", "2030-01-31T07:00:00Z");
    is("2030-01-31T07:00-05:30", "CET-1", "2026-11-30T20:00:00Z", "2030-01-31T12:30:00Z");
    is("2020-02-29 00:00", "UTC", "2026-11-30T20:00:00Z", "2020-02-29T00:00:00Z"); /* it has passed: the caller's business */
    is("+90min", "UTC", "2026-11-30T20:00:00Z", "2026-11-30T21:30:00Z");
    is("+3h", "CET-1", "2026-11-30T20:00:00Z", "2026-11-30T23:00:00Z");
}

static void anything_else_is_no_time(void **state)
{
    (void)state;
    static const char *const texts[] = {"",       "7:00",  "07",     "07:60",  "24:00",           "07:00x",          "seven",           "07:00:61",         "+",
                                        "+0s",    "+soon", "-3h",    "07:00Z", "2026-13-01 07:00", "2026-02-30 07:00", "2026-02-30T07:00Z", "2026-2-3 07:00",  "2026-12-01",
                                        "2026-12-01 07:00 CET", "2026-12-01T07:00+1", "2026-12-01T07:00+15:00", "07", "0", "+99999999999999999999d", "9999999"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        is(texts[i], "UTC", "2026-11-30T20:00:00Z", NULL);
}

static void its_own_text_is_read_back(void **state)
{
    (void)state;
    char out[WHEN_MAX];
    for (int64_t s = 0, back; s < INT64_C(4102444800); s += 86413 * 7) {
        assert_int_equal(when_parse(when_text(out, s * MS), 5, &back), 0);
        assert_int_equal(back, s * MS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_say_when_they_show_it_next),
        cmocka_unit_test(dates_and_durations),
        cmocka_unit_test(anything_else_is_no_time),
        cmocka_unit_test(its_own_text_is_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
