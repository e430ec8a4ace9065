/* Does ftoa print every float so that it reads back to the same bits, in the fewest digits, as a JSON number? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/ftoa.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)? to the end */
static int is_json_number(const char *s)
{
    if (*s == '-')
        s++;
    if (*s == '0')
        s++;
    else if (*s >= '1' && *s <= '9')
        s += strspn(s, "0123456789");
    else
        return 0;
    if (*s == '.') {
        size_t n = strspn(s + 1, "0123456789");
        if (!n)
            return 0;
        s += 1 + n;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+')
            s++;
        size_t n = strspn(s, "0123456789");
        if (!n)
            return 0;
        s += n;
    }
    return *s == 0;
}

/* The significant digits, without zeros at either end. */
static int significant(const char *s, char *digits)
{
    int n = 0;
    for (; *s && *s != 'e'; s++)
        if (*s >= '0' && *s <= '9' && (n || *s != '0'))
            digits[n++] = *s;
    while (n && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return n;
}

static void check(uint32_t bits)
{
    float x = from_bits(bits);
    char text[FTOA_MAX + 1];
    memset(text, '#', sizeof text);
    size_t len = ftoa(x, text);
    assert_in_range(len, 3, FTOA_MAX);
    text[len] = 0;

    char *end;
    float back = strtof(text, &end);
    if (*end || to_bits(back) != bits || !is_json_number(text))
        fail_msg("%08x (%.9g) is printed as '%s'", bits, (double)x, text);
    if (x == 0)
        return;

    char digits[32], shorter[400], same[32];
    int count = significant(text, digits);
    assert_in_range(count, 1, 9);
    if (count > 1) {
        snprintf(shorter, sizeof shorter, "%.*g", count - 1, (double)x);
        if (to_bits(strtof(shorter, NULL)) == bits)
            fail_msg("%08x is printed as '%s', but '%s' would do", bits, text, shorter);
    }
    /* of equally short ones the closest */
    snprintf(shorter, sizeof shorter, "%.*e", count - 1, (double)x);
    if (to_bits(strtof(shorter, NULL)) == bits) {
        significant(shorter, same);
        assert_string_equal(digits, same);
    }
}

static void prints(float x, const char *want)
{
    char text[FTOA_MAX + 1];
    text[ftoa(x, text)] = 0;
    assert_string_equal(text, want);
}

static void test_examples(void **state)
{
    (void)state;
    prints(0.0f, "0.0");
    prints(-0.0f, "-0.0");
    prints(0.1f, "0.1");
    prints(-1.5e-9f, "-1.5e-9");
    prints(FLT_MAX, "3.4028235e38");
    prints(-FLT_MAX, "-3.4028235e38");
    prints(FLT_MIN, "1.1754944e-38");
    prints(from_bits(1), "1e-45");
    prints(from_bits(0x007FFFFF), "1.1754942e-38");
    prints(1.0f, "1.0");
    prints(-1.0f, "-1.0");
    prints(10.0f, "10.0");
    prints(12.5f, "12.5");
    prints(0.0001f, "0.0001");
    prints(0.00012345678f, "0.00012345678");
    prints(0.00001f, "1e-5");
    prints(16777216.0f, "16777216.0");
    prints(33554432.0f, "33554432.0");
    prints(123456789.0f, "123456790.0");
    prints(1e9f, "1e9");
    prints(9e9f, "9e9");
    prints(1e10f, "1e10");
    prints(3.1415927f, "3.1415927");
    prints(0.33333334f, "0.33333334");
    prints(8.5899346e9f, "8.589935e9");
}

static void around(uint32_t bits)
{
    for (int64_t i = -40; i <= 40; i++) {
        int64_t near = (int64_t)bits + i;
        if (near >= 0 && near < 0x7F800000) {
            check((uint32_t)near);
            check((uint32_t)near | 0x80000000u);
        }
    }
}

static void test_edges(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < 255; e++)
        around(e << 23);
    for (int e = -45; e <= 38; e++) {
        char text[16];
        for (int d = 1; d < 10; d++) {
            snprintf(text, sizeof text, "%de%d", d, e);
            float x = strtof(text, NULL);
            if (x <= FLT_MAX)
                around(to_bits(x));
        }
    }
    around(to_bits(FLT_MAX));
    for (uint32_t bits = 1; bits < 20000; bits++) /* subnormals */
        check(bits);
    for (uint32_t n = 1; n < 20000; n++) /* whole numbers */
        check(to_bits((float)n));
    for (uint32_t n = 0; n < 100000; n += 7) /* short decimals */
        check(to_bits((float)n / 10000.0f));
}

static void test_stride(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 1733)
        if ((bits & 0x7F800000) != 0x7F800000)
            check((uint32_t)bits);
}

/* Not a limit that a slow machine could miss: it is printed for those who look. */
static void test_speed(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float x[N];
    uint32_t r = 1;
    for (int i = 0; i < N; i++) {
        r = r * 1664525 + 1013904223;
        x[i] = ((float)(r >> 8) / 16777216.0f - 0.5f) * 0.3f; /* as in an embedding */
    }
    char text[FTOA_MAX];
    size_t sum = 0;
    double best = 1e9;
    for (int round = 0; round < 16; round++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < N; i++)
            sum += ftoa(x[i], text);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
        if (ns / N < best)
            best = ns / N;
    }
    print_message("ftoa: %.1f ns per float, %.2f bytes\n", best, (double)sum / (16.0 * N));
    assert_true(sum > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
