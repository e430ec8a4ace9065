/* Are numbers printed as people write them, and read back as they are written? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/units.h"

static void counts(void **state)
{
    (void)state;
    static const struct {
        double n;
        const char *text;
    } rows[] = {{0, "0"},         {7, "7"},           {999, "999"},         {1000, "1,000"},   {612000, "612,000"}, {5102377, "5,102,377"},
                {9999999, "9,999,999"}, {1e7, "10.0 M"}, {12345678, "12.3 M"}, {999949999, "999.9 M"}, {999950001, "1.0 G"}, {1.2e9, "1.2 G"}, {-5, "0"}};
    char out[UNITS_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(units_count(out, rows[i].n), rows[i].text);
}

static void bytes(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        const char *text;
    } rows[] = {{0, "0 B"},       {812, "812 B"},         {1023, "1023 B"},          {1024, "1.0 KiB"},         {1536, "1.5 KiB"},
                {1048575, "1.0 MiB"}, {1048576, "1.0 MiB"}, {3650722202, "3.4 GiB"}, {UINT64_C(1) << 50, "1.0 PiB"}, {UINT64_MAX, "16384.0 PiB"}};
    char out[UNITS_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(units_bytes(out, rows[i].n), rows[i].text);
}

static void durations(void **state)
{
    (void)state;
    static const struct {
        double s;
        const char *text;
    } rows[] = {{-1, "0.0 s"},        {0.8, "0.8 s"},        {9.94, "9.9 s"},      {9.95, "10 s"},       {42, "42 s"},         {59.6, "1 min 00 s"},
                {456, "7 min 36 s"},  {3599, "59 min 59 s"}, {3600, "1 h 00 min"}, {11100, "3 h 05 min"}, {86399.9, "1 d 0 h"}, {187200, "2 d 4 h"}};
    char out[UNITS_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(units_duration(out, rows[i].s), rows[i].text);
}

static void rates(void **state)
{
    (void)state;
    char out[UNITS_MAX];
    assert_string_equal(units_rate(out, 3.25), "3.2/s");
    assert_string_equal(units_rate(out, 41), "41/s");
    assert_string_equal(units_rate(out, 9840), "9,840/s");
    assert_string_equal(units_rate(out, 41000), "41 k/s");
    assert_string_equal(units_rate(out, 2.5e6), "2.5 M/s");
}

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t n;
    } rows[] = {{"0", 0},         {"4096", 4096},     {"64MB", 64000000}, {"64 MiB", 64u << 20}, {"1.5G", 1610612736},
                {"1k", 1024},     {"1kb", 1000},      {"16MiB", 16u << 20}, {"2TB", UINT64_C(2000000000000)}};
    static const char *const wrong[] = {"", "MB", "-1", "1.5X", "12 34", "0x10 B", "1e400", "inf", "nan", " 5", "9e18G"};
    uint64_t n;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(units_parse_bytes(rows[i].text, &n), 0);
        assert_int_equal(n, rows[i].n);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        n = 77;
        assert_int_equal(units_parse_bytes(wrong[i], &n), -1);
        assert_int_equal(n, 77);
    }
}

static void durations_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t ms;
    } rows[] = {{"30", 30000}, {"30s", 30000}, {"0.2s", 200}, {"500ms", 500}, {"5min", 300000}, {"2h", 7200000}, {"1d", 86400000}, {"5 m", 300000}, {"1 sec", 1000}};
    static const char *const wrong[] = {"", "s", "-3s", "5 minutes ago", "1y", "1:30"};
    uint64_t ms;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(units_parse_duration(rows[i].text, &ms), 0);
        assert_int_equal(ms, rows[i].ms);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(units_parse_duration(wrong[i], &ms), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts), cmocka_unit_test(bytes), cmocka_unit_test(durations), cmocka_unit_test(rates), cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(durations_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
