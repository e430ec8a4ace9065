/* Is what is suggested what was meant, and nothing where nothing is near? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/suggest.h"

static const char *const words[] = {"run", "resume", "retry", "results", "workers", "watch", "why", "max-errors", "output", "output-format"};
#define COUNT (sizeof words / sizeof *words)

static void near_words(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"runn", "run"},         {"rnu", "run"},       {"worker", "workers"},  {"wrokers", "workers"},
                                           {"RESUME", "resume"},    {"retyr", "retry"},   {"max_errors", "max-errors"}, {"outptu", "output"},
                                           {"ru", "run"},           {"res", "resume"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *s = suggest(pairs[i][0], words, COUNT);
        assert_non_null(s);
        assert_string_equal(s, pairs[i][1]);
    }
}

static void the_beginning_of_a_word(void **state)
{
    (void)state;
    const char *s = suggest("output-f", words, COUNT);
    assert_non_null(s);
    assert_true(strncmp(s, "output", 6) == 0);
    assert_string_equal(suggest("wor", words, COUNT), "workers");
}

static void far_words(void **state)
{
    (void)state;
    static const char *const none[] = {"zebra", "x", "frobnicate", "", "a-word-of-more-than-sixty-four-letters-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(suggest(none[i], words, COUNT));
    assert_null(suggest("run", words, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_words), cmocka_unit_test(the_beginning_of_a_word), cmocka_unit_test(far_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
