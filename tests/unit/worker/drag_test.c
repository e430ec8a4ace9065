/* Is a member that others slow down noticed, once, and its recovery too; and is noise let pass? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "workers/group/drag.h"

#define MS 1000000u

/* Micro-batches of 100 ms of processor time each, at `factor` times that, for `ms`; how often something was to be told. */
static int runs(struct drag *p, double factor, uint64_t *now_ms, uint64_t ms)
{
    int told = 0;
    for (uint64_t end = *now_ms + ms; *now_ms < end;) {
        *now_ms += (uint64_t)(100 * factor);
        told += drag_ran(p, (uint64_t)(100 * factor * MS), 100 * MS, *now_ms);
    }
    return told;
}

static void test_as_measured(void **state)
{
    (void)state;
    struct drag p = {0};
    uint64_t now = 5;
    assert_int_equal(runs(&p, 1.0, &now, 60000), 0);
    assert_int_equal(runs(&p, 1.3, &now, 60000), 0);
    assert_true(drag_factor(&p) == 1);
}

static void test_a_third_of_a_processor(void **state)
{
    (void)state;
    struct drag p = {0};
    uint64_t now = 5;
    assert_int_equal(runs(&p, 1.0, &now, 20000), 0);
    assert_int_equal(runs(&p, 3.0, &now, 5000), 0); /* a moment is no evidence */
    assert_int_equal(runs(&p, 3.0, &now, 60000), 1);
    assert_true(drag_factor(&p) > 2.9 && drag_factor(&p) < 3.1); /* nothing of the time before is in it */
    assert_int_equal(runs(&p, 3.0, &now, 60000), 0);
    assert_int_equal(runs(&p, 1.0, &now, 60000), 1);
    assert_true(drag_factor(&p) < 1.05);
}

static void test_few_say_nothing(void **state)
{
    (void)state;
    struct drag p = {0};
    uint64_t now = 5;
    for (int i = 0; i < 7; i++)
        assert_int_equal(drag_ran(&p, 9000u * (uint64_t)MS, 100 * MS, now += 9000), 0);
    for (int i = 0; i < 100; i++) /* processor time is too little to be measured well */
        assert_int_equal(drag_ran(&(struct drag){.begun_ms = 1, .runs = 100, .wall_ns = 5 * MS}, 9 * MS, MS, now += 1000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_measured),
        cmocka_unit_test(test_a_third_of_a_processor),
        cmocka_unit_test(test_few_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
