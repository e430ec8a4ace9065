#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/layout.h"
#include "base/mem.h"

static void test_plain_sources_lie_end_to_end(void **state)
{
    (void)state;
    struct layout l;
    const uint64_t sizes[] = {10, 0, 5};
    const uint8_t kinds[] = {0, 0, 0};
    assert_int_equal(layout_init(&l, 3, sizes, kinds), 0);
    assert_int_equal(layout_end(&l), 15);
    assert_int_equal(layout_bytes(&l), 15);
    assert_int_equal(layout_source(&l, 0), 0);
    assert_int_equal(layout_source(&l, 9), 0);
    assert_int_equal(layout_source(&l, 10), 2); /* the empty one owns nothing */
    assert_int_equal(layout_source(&l, 14), 2);
    assert_int_equal(layout_source(&l, 15), 3);
    assert_int_equal(layout_is_stream(&l, 0), 0);
    assert_int_equal(layout_enterable(&l, 3), 1);
    assert_int_equal(layout_weight(&l, 3, 12), 9);
    assert_int_equal(layout_weight(&l, 12, 3), 0);
    assert_int_equal(layout_advance(&l, 0, 4, 15), 4);
    assert_int_equal(layout_advance(&l, 0, 12, 15), 12); /* over the border of sources */
    assert_int_equal(layout_advance(&l, 0, 12, 11), 11); /* the limit */
    assert_int_equal(layout_advance(&l, 0, UINT64_MAX, 15), 15);
    assert_int_equal(layout_advance(&l, 4, 0, 15), 5);   /* always beyond its begin */
    layout_release(&l);
}

static void test_streams_are_entered_at_their_beginning_only(void **state)
{
    (void)state;
    struct layout l;
    const uint64_t sizes[] = {100, 50, 20, 30};
    const uint8_t kinds[] = {0, 1, 2, 0};
    assert_int_equal(layout_init(&l, 4, sizes, kinds), 0);
    uint64_t packed = (UINT64_C(20) << LAYOUT_STREAM_SHIFT) + (1 << 20);
    assert_int_equal(layout_end(&l), 100 + 50 + packed + 30);
    assert_int_equal(layout_bytes(&l), 200);
    assert_true(layout_is_stream(&l, 1) && layout_is_stream(&l, 2) && !layout_is_stream(&l, 3));
    assert_false(layout_enterable(&l, 101));
    assert_true(layout_enterable(&l, 100) && layout_enterable(&l, 150) && layout_enterable(&l, 99));
    assert_true(layout_enterable(&l, layout_end(&l)));
    /* a lease in a stream goes to its end */
    assert_int_equal(layout_advance(&l, 100, 10, layout_end(&l)), 150);
    assert_int_equal(layout_advance(&l, 50, 60, layout_end(&l)), 150);
    assert_int_equal(layout_advance(&l, 160, 1, layout_end(&l)), 150 + packed);
    /* weights add up, whatever the guess inside the stream */
    uint64_t mid = 150 + 33;
    assert_int_equal(layout_weight(&l, 0, mid) + layout_weight(&l, mid, layout_end(&l)), 200);
    assert_int_equal(layout_weight(&l, 150, 150 + 100), 10);
    assert_int_equal(layout_weight(&l, 150, 150 + packed), 20);
    layout_release(&l);
}

static void test_an_empty_dataset(void **state)
{
    (void)state;
    struct layout l;
    assert_int_equal(layout_init(&l, 0, NULL, NULL), 0);
    assert_int_equal(layout_end(&l), 0);
    assert_int_equal(layout_bytes(&l), 0);
    layout_release(&l);
    const uint64_t size = 0;
    const uint8_t kind = 2;
    assert_int_equal(layout_init(&l, 1, &size, &kind), 0);
    assert_int_equal(layout_end(&l), 0);
    layout_release(&l);
}

static void test_too_large_is_refused(void **state)
{
    (void)state;
    struct layout l;
    const uint64_t huge[] = {UINT64_C(1) << 62, 1};
    const uint8_t plain[] = {0, 0}, packed[] = {2, 0};
    assert_int_equal(layout_init(&l, 1, huge, plain), 0);
    layout_release(&l);
    assert_int_equal(layout_init(&l, 2, huge, plain), -1);
    assert_int_equal(layout_init(&l, 1, huge, packed), -1);
}

static void test_copy_and_every_failed_allocation(void **state)
{
    (void)state;
    const uint64_t sizes[] = {100, 50};
    const uint8_t kinds[] = {2, 0};
    struct layout l, c;
    int tries = 0;
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        int failed = layout_init(&l, 2, sizes, kinds);
        mem_fail_nth(0);
        if (!failed)
            break;
        tries++;
    }
    assert_int_equal(tries, 3);
    tries = 0;
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        int failed = layout_copy(&c, &l);
        mem_fail_nth(0);
        if (!failed)
            break;
        tries++;
    }
    assert_int_equal(tries, 3);
    assert_int_equal(layout_end(&c), layout_end(&l));
    assert_true(layout_is_stream(&c, 0));
    layout_release(&l);
    layout_release(&c);
}

static void test_a_million_sources(void **state)
{
    (void)state;
    size_t n = 1000000;
    uint64_t *sizes = mem_array(n, sizeof *sizes);
    uint8_t *kinds = mem_array(n, 1);
    for (size_t i = 0; i < n; i++)
        sizes[i] = i % 7;
    struct layout l;
    assert_int_equal(layout_init(&l, n, sizes, kinds), 0);
    for (uint64_t pos = 0; pos < layout_end(&l); pos += 9973) {
        size_t i = layout_source(&l, pos);
        assert_true(l.base[i] <= pos && pos < l.base[i + 1]);
        uint64_t end = layout_advance(&l, pos, 1000, layout_end(&l));
        assert_true(end > pos && (end == layout_end(&l) || layout_weight(&l, pos, end) == 1000));
    }
    layout_release(&l);
    mem_free(sizes);
    mem_free(kinds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_sources_lie_end_to_end),
        cmocka_unit_test(test_streams_are_entered_at_their_beginning_only),
        cmocka_unit_test(test_an_empty_dataset),
        cmocka_unit_test(test_too_large_is_refused),
        cmocka_unit_test(test_copy_and_every_failed_allocation),
        cmocka_unit_test(test_a_million_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
