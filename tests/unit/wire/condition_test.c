/* Is what people write behind `when` read as they mean it, and is what makes no sense refused with the words for it? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "wire/condition.h"

static void reads(const char *text, const char *field, enum condition_op op, enum condition_kind kind, const char *value)
{
    struct condition c;
    struct err e = {0};
    if (condition_parse(text, &c, &e) != ST_OK)
        fail_msg("%s: %s", text, e.text);
    assert_int_equal(c.count, 1);
    assert_string_equal(c.items[0].field, field);
    assert_int_equal(c.items[0].op, op);
    assert_int_equal(c.items[0].kind, kind);
    assert_string_equal(c.items[0].text, value);
    condition_release(&c);
}

static void what_people_write(void **state)
{
    (void)state;
    reads("label != toxic", "label", CONDITION_NE, CONDITION_TEXT, "toxic");
    reads("  label!=toxic ", "label", CONDITION_NE, CONDITION_TEXT, "toxic");
    reads("label == very good", "label", CONDITION_IS, CONDITION_TEXT, "very good");
    reads("score >= 0.5", "score", CONDITION_GE, CONDITION_NUMBER, "0.5");
    reads("score<-1e3", "score", CONDITION_LT, CONDITION_NUMBER, "-1e3");
    reads("scores.toxic <= .5", "scores.toxic", CONDITION_LE, CONDITION_NUMBER, ".5");
    reads("n > 7", "n", CONDITION_GT, CONDITION_NUMBER, "7");
    reads("n = '7'", "n", CONDITION_IS, CONDITION_TEXT, "7");
    reads("\"a field\" = \"it's \\\"so\\\"\"", "a field", CONDITION_IS, CONDITION_TEXT, "it's \"so\"");
    reads("empty != ''", "empty", CONDITION_NE, CONDITION_TEXT, "");
    reads("ok = true", "ok", CONDITION_IS, CONDITION_TRUE, "true");
    reads("gone != null", "gone", CONDITION_NE, CONDITION_NULL, "null");
    reads("band = sandy land", "band", CONDITION_IS, CONDITION_TEXT, "sandy land"); /* 'and' within words */
    reads("x = nan", "x", CONDITION_IS, CONDITION_TEXT, "nan");
    reads("x = 0x10 y", "x", CONDITION_IS, CONDITION_TEXT, "0x10 y");
}

static void several(void **state)
{
    (void)state;
    struct condition c;
    struct err e;
    assert_int_equal(condition_parse("a = x and b > 2 and 'c d' != \"y and z\"", &c, &e), ST_OK);
    assert_int_equal(c.count, 3);
    assert_string_equal(c.items[0].text, "x");
    assert_true(c.items[1].number == 2);
    assert_string_equal(c.items[2].field, "c d");
    assert_string_equal(c.items[2].text, "y and z");
    condition_release(&c);
}

static void refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "names no field"},       {"   ", "names no field"},      {"= 3", "names no field"},        {"label", "no comparison"},
        {"label toxic", "no comparison"}, {"label !", "no comparison"}, {"label =", "compares with nothing"}, {"a = 'x", "not closed"},
        {"a = 'x' or b = 'y'", "without 'and'"}, {"a = x and", "names no field"}, {"a < true", "larger of true"}, {"a = 'x' and = 2", "names no field"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct condition c;
        struct err e = {0};
        if (condition_parse(cases[i][0], &c, &e) != ST_USER || !strstr(e.text, cases[i][1]) || !strstr(e.text, "FIELD OP VALUE"))
            fail_msg("'%s': %s", cases[i][0], e.text);
        assert_null(c.items);
        assert_int_equal(c.count, 0);
    }
}

static void allocation_failures(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct condition c;
        struct err e;
        mem_fail_nth(n);
        enum status st = condition_parse("a = x and 'b' > 2 and c = 'y'", &c, &e);
        mem_fail_nth(0);
        if (st == ST_OK) {
            condition_release(&c);
            assert_true(n > 6);
            return;
        }
        assert_int_equal(st, ST_NOMEM);
        assert_null(c.items);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_people_write), cmocka_unit_test(several), cmocka_unit_test(refused), cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
