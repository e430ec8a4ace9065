/* Do the scanners written by hand find what PCRE2 finds, and do patterns mean here what they mean to Oniguruma? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "workers/text/pattern.h"
#include "workers/text/scan.h"
#include "workers/text/unicode.h"

#define CL100K                                                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN                                                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static struct pattern *open_regex(const char *text)
{
    struct pattern *p = NULL;
    struct err e = {0};
    if (pattern_open(text, strlen(text), 1, &p, &e) != ST_OK)
        fail_msg("%s", e.text);
    return p;
}

static uint64_t state_ = 0x9E3779B97F4A7C15u;

static uint32_t any(uint32_t below)
{
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (uint32_t)((state_ >> 33) % below);
}

static uint32_t random_char(void)
{
    static const char likely[] = " \n\r\t''''sStTrReEvVmMlLdDaZ059.,-  ";
    static const uint32_t odd[] = {0x17F, 0x85, 0xA0, 0x180E, 0x200B, 0x2028, 0x3000, 0xB2, 0xBD, 0x661, 0x301, 0x4E2D, 0x1F600, 0x10FFFF,
                                   0x1E030, 0x2FFF, 0x1C89, 0x11DE6, 0x212A, 0xFB05};
    switch (any(4)) {
    case 0:
        return odd[any(sizeof odd / sizeof odd[0])];
    case 1: {
        uint32_t c = any(0x20000);
        return c >= 0xD800 && c < 0xE000 ? 'x' : c;
    }
    default:
        return (uint8_t)likely[any(sizeof likely - 1)];
    }
}

static size_t scanned(enum pattern_known known, const uint8_t *p, const uint8_t *end)
{
    return known == PATTERN_GPT2 ? scan_gpt2(p, end) : scan_cl100k(p, end, known == PATTERN_QWEN ? 1 : 3);
}

static void test_scanners(void **state)
{
    (void)state;
    static const struct {
        const char *regex;
        enum pattern_known known;
    } list[] = {{PATTERN_GPT2_REGEX, PATTERN_GPT2}, {CL100K, PATTERN_CL100K}, {QWEN, PATTERN_QWEN}};
    struct pattern_room *room = NULL;
    struct err e;
    scan_init();
    for (size_t k = 0; k < 3; k++) {
        struct pattern *p = open_regex(list[k].regex);
        assert_int_equal(pattern_known(p), list[k].known);
        int matches = 0;
        for (int round = 0; round < 30000; round++) {
            uint8_t text[128];
            size_t len = 0;
            for (uint32_t n = 1 + any(24); n; n--)
                len += uni_encode(random_char(), text + len);
            for (size_t at = 0; at < len; matches++) {
                size_t start = 0, end = 0;
                assert_int_equal(pattern_find(p, &room, text, len, at, &start, &end, &e), ST_OK);
                size_t n = scanned(list[k].known, text + at, text + len);
                if (start != at || end != at + n) {
                    print_error("pattern %zu at %zu of:", k, at);
                    for (size_t i = 0; i < len; i++)
                        print_error(" %02x", text[i]);
                    fail_msg("PCRE2 finds %zu to %zu, the scanner up to %zu", start, end, at + n);
                }
                at = end;
            }
        }
        assert_true(matches > 100000);
        pattern_free(p);
    }
    pattern_room_free(room);
}

/* Every character by itself, for what the scanners ask of characters. */
static void test_classes(void **state)
{
    (void)state;
    static const struct {
        const char *regex;
        unsigned flag;
    } list[] = {{"\\p{L}", UNI_LETTER}, {"\\p{N}", UNI_NUMBER}, {"\\s", UNI_WHITE}, {"\\p{M}", UNI_MARK}};
    struct pattern_room *room = NULL;
    struct err e;
    uni_init();
    for (size_t k = 0; k < 3; k++) {
        struct pattern *p = open_regex(list[k].regex);
        for (uint32_t c = 0; c < 0x110000; c++) {
            uint8_t utf8[4];
            size_t start, end;
            if (c >= 0xD800 && c < 0xE000)
                continue;
            enum status rc = pattern_find(p, &room, utf8, uni_encode(c, utf8), 0, &start, &end, &e);
            if ((rc == ST_OK) != ((uni_flags(c) & list[k].flag) != 0))
                fail_msg("U+%04X: '%s' %s it", (unsigned)c, list[k].regex, rc == ST_OK ? "matches" : "does not match");
        }
        pattern_free(p);
    }
    pattern_room_free(room);
}

/* What is written after the colon is what is matched, as "start-end" or "-". */
static void test_syntax(void **state)
{
    (void)state;
    static const struct {
        const char *regex, *text;
        int start, end;
    } list[] = {
        {"\\p{N}{1,2}+", "a12345b", 1, 6}, /* a repeated repetition, not a possessive one */
        {"(?:ab){2}+c", "ababababc", 0, 9},
        {"[0-9]{2,}+0", "1230", 0, 4},
        {"\\h+", "xyzBEEFq", 3, 7}, /* hexadecimal */
        {"^b", "a\nb", 2, 3},       /* lines */
        {"a$", "a\nb", 0, 1},
        {"(?m:a.b)", "a\nb", 0, 3}, /* Ruby's m */
        {"a.b", "a\nb", -1, 0},
        {"\\s", "\u180e", -1, 0},
        {"\\w+", "!e\u0301\u00b2!", 1, 6},
        {"[\\w]+", "!e\u0301\u00b2!", 1, 4},
        {"\\u0041+", "bAAb", 1, 3},
        {"a{", "a{", 0, 2},
        {"a{,b", "a{,b", 0, 4},
        {"[\\p{^L}]", "ab1", 2, 3},
        {"\\P{L}", "ab1", 2, 3},
        {"(?i:STRASSE)", "strasse", 0, 7},
        {"(?<=a)b", "bab", 2, 3},
        {"a++b", "aaab", 0, 4},
        {"[[:alpha:]]+", "1ab2", 1, 3},
        {"\\S+", " \u00e9a ", 1, 4},
        {"x*", "ab", 0, 0},
    };
    struct pattern_room *room = NULL;
    struct err e;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct pattern *p = open_regex(list[i].regex);
        size_t start = 0, end = 0;
        enum status rc = pattern_find(p, &room, (const uint8_t *)list[i].text, strlen(list[i].text), 0, &start, &end, &e);
        if (rc != (list[i].start < 0 ? ST_END : ST_OK) || (rc == ST_OK && ((int)start != list[i].start || (int)end != list[i].end)))
            fail_msg("'%s' in '%s': %d, %zu to %zu", list[i].regex, list[i].text, (int)rc, start, end);
        pattern_free(p);
    }
    pattern_room_free(room);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *regex, *words;
    } list[] = {
        {"a(", "cannot be compiled: missing closing parenthesis"},
        {"[a", "is not supported by this version: a bracket without its end"},
        {"[a[b]]", "is not supported by this version: brackets inside of brackets, or &&"},
        {"\\bword", "is not supported by this version: \\b and \\B"},
        {"(?~abc)", "is not supported by this version: a group that the two kinds of regular expressions read differently"},
        {"\\p{Nosuch}", "cannot be compiled: unknown property after \\P or \\p"},
        {"a\\", "is not supported by this version: it ends with a backslash"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct pattern *p = NULL;
        struct err e = {0};
        char want[256];
        assert_int_equal(pattern_open(list[i].regex, strlen(list[i].regex), 1, &p, &e), ST_USER);
        snprintf(want, sizeof want, "the regular expression '%s' %s", list[i].regex, list[i].words);
        if (strncmp(e.text, want, strlen(want)) != 0)
            fail_msg("got:  %s\nwant: %s", e.text, want);
    }
}

/* An expression that tries for ever is given up. */
static void test_limit(void **state)
{
    (void)state;
    struct pattern *p = open_regex("(a+a+)+[bc]");
    struct pattern_room *room = NULL;
    struct err e = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    size_t start, end;
    assert_int_equal(pattern_find(p, &room, (const uint8_t *)text, sizeof text, 0, &start, &end, &e), ST_USER);
    assert_non_null(strstr(e.text, "cannot be matched against this text: match limit exceeded"));
    assert_int_equal(pattern_find(p, &room, (const uint8_t *)"aaab", 4, 0, &start, &end, &e), ST_OK); /* others are none the worse */
    pattern_free(p);
    pattern_room_free(room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scanners), cmocka_unit_test(test_classes), cmocka_unit_test(test_syntax),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
