/* Do bytes go in and come out as they were, and does a cursor never read past its end? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

static void appending(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(buf_add(&b, NULL, 0), 0);
    assert_int_equal(buf_str(&b, "abc"), 0);
    assert_int_equal(buf_char(&b, '-'), 0);
    assert_int_equal(buf_printf(&b, "%d/%s", 42, "x"), 0);
    assert_int_equal(b.len, 8);
    assert_string_equal(buf_cstr(&b), "abc-42/x");
    assert_int_equal(b.len, 8); /* the NUL is not counted */
    char *kept = b.data;
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_ptr_equal(b.data, kept);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(buf_char(&b, (char)('a' + i % 26)), 0);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), -1); /* no wrapping around */
    buf_release(&b);
    assert_null(b.data);
}

static void what_is_held_stands_when_memory_is_out(void **state)
{
    (void)state;
    struct buf b = {0};
    char big[200];
    memset(big, 'z', sizeof big);
    assert_int_equal(buf_str(&b, "abc"), 0);
    mem_fail_nth(1);
    assert_int_equal(buf_add(&b, big, sizeof big), -1);
    mem_fail_nth(0);
    assert_string_equal(buf_cstr(&b), "abc");
    buf_release(&b);
    mem_fail_nth(1);
    assert_null(buf_cstr(&b));
    mem_fail_nth(0);
}

static void integers(void **state)
{
    (void)state;
    struct buf b = {0};
    static const uint64_t varints[] = {0, 1, 127, 128, 300, UINT32_MAX, UINT64_MAX};
    assert_int_equal(buf_le32(&b, 0x01020304), 0);
    assert_int_equal(buf_be32(&b, 0x01020304), 0);
    assert_int_equal(buf_le64(&b, UINT64_C(0x0102030405060708)), 0);
    assert_int_equal(buf_be64(&b, UINT64_C(0x0102030405060708)), 0);
    assert_memory_equal(b.data, "\x04\x03\x02\x01\x01\x02\x03\x04\x08\x07\x06\x05\x04\x03\x02\x01\x01\x02\x03\x04\x05\x06\x07\x08", 24);
    for (size_t i = 0; i < sizeof varints / sizeof *varints; i++)
        assert_int_equal(buf_varint(&b, varints[i]), 0);
    struct cursor c = cursor_make(b.data, b.len);
    assert_int_equal(cursor_le32(&c), 0x01020304);
    assert_int_equal(cursor_be32(&c), 0x01020304);
    assert_true(cursor_le64(&c) == UINT64_C(0x0102030405060708));
    assert_true(cursor_be64(&c) == UINT64_C(0x0102030405060708));
    for (size_t i = 0; i < sizeof varints / sizeof *varints; i++)
        assert_true(cursor_varint(&c) == varints[i]);
    assert_int_equal(c.bad, 0);
    assert_int_equal(cursor_left(&c), 0);
    buf_release(&b);
}

static void a_cursor_ends(void **state)
{
    (void)state;
    static const uint8_t data[] = {1, 2, 3};
    struct cursor c = cursor_make(data, sizeof data);
    assert_int_equal(cursor_u8(&c), 1);
    assert_int_equal(cursor_le32(&c), 0); /* two are left */
    assert_int_equal(c.bad, 1);
    assert_int_equal(cursor_u8(&c), 0); /* bad for good, though a byte is there */
    assert_null(cursor_bytes(&c, 0));
    c = cursor_make(data, sizeof data);
    assert_null(cursor_bytes(&c, SIZE_MAX));
    assert_int_equal(c.bad, 1);
    static const uint8_t endless[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01};
    c = cursor_make(endless, sizeof endless);
    assert_true(cursor_varint(&c) == 0);
    assert_int_equal(c.bad, 1);
    static const uint8_t cut[] = {0x80};
    c = cursor_make(cut, sizeof cut);
    (void)cursor_varint(&c);
    assert_int_equal(c.bad, 1);
    c = cursor_make(NULL, 0);
    assert_int_equal(cursor_left(&c), 0);
    assert_int_equal(cursor_u8(&c), 0);
    assert_int_equal(c.bad, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(appending), cmocka_unit_test(what_is_held_stands_when_memory_is_out), cmocka_unit_test(integers),
                                       cmocka_unit_test(a_cursor_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
