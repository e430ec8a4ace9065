/* Records as text: what a model gave goes in, conditions look, fields are kept, arrays fall apart; each as a person reads the JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/pipeline/record_json.h"

static void with(const char *json, const char *result, const char *wanted)
{
    struct record_scratch s = {0};
    struct buf out = {0};
    assert_int_equal(record_with(&s, json, strlen(json), result, strlen(result), &out), 0);
    assert_string_equal(buf_cstr(&out), wanted);
    buf_release(&out);
    record_scratch_release(&s);
}

static void results_become_members(void **state)
{
    (void)state;
    with("{\"id\":1,\"text\":\"a\"}", ",\"score\":0.5", "{\"id\":1,\"text\":\"a\",\"score\":0.5}");
    with("{}", ",\"score\":0.5", "{\"score\":0.5}");
    with(" { } ", ",\"label\":\"x\",\"scores\":{\"a\":1}", "{\"label\":\"x\",\"scores\":{\"a\":1}}");
    with("{\"score\":\"old\" , \"b\": [1, 2],\"sc\\u006fre\":3}", ",\"score\":0.5", "{\"b\":[1, 2],\"score\":0.5}");
    with("{\"score\":1}", ",\"score\":0.5", "{\"score\":0.5}");
    with("{\"n\":10000000000000000000000000.0}", ",\"score\":0.5", "{\"n\":10000000000000000000000000.0,\"score\":0.5}");
}

static int passes(const char *condition, const char *json, char *why)
{
    struct record_scratch s = {0};
    struct condition c;
    struct err e;
    if (condition_parse(condition, &c, &e) != ST_OK)
        fail_msg("%s", e.text);
    int result = record_passes(&s, &c, json, strlen(json), why, 300);
    condition_release(&c);
    record_scratch_release(&s);
    return result;
}

static void conditions(void **state)
{
    (void)state;
    static const struct {
        const char *condition, *json;
        int result;
    } cases[] = {
        {"label != toxic", "{\"label\":\"good\"}", 1},
        {"label != toxic", "{\"label\":\"tox\\u0069c\"}", 0},
        {"label = toxic", "{\"label\":\"toxi\"}", 0},
        {"label > b", "{\"label\":\"c\"}", 1},
        {"label > b", "{\"label\":\"b\"}", 0},
        {"label = ''", "{\"label\":\"\"}", 1},
        {"score >= 0.5", "{\"score\":0.5}", 1},
        {"score > 0.5", "{\"score\":0.5}", 0},
        {"score < 1e9", "{\"score\":-7}", 1},
        {"n = 7", "{\"n\":7.0}", 1},
        {"n = 7", "{\"n\":\"7\"}", 1},
        {"n = '7'", "{\"n\":7}", 0},
        {"n != '7'", "{\"n\":7}", 1},
        {"scores.toxic < 0.2", "{\"scores\":{\"good\":0.9,\"toxic\":0.1}}", 1},
        {"a.b.c = x", "{\"a\":{\"b\":{\"c\":\"x\"}}}", 1},
        {"a.b = 1", "{\"a.b\":1,\"a\":{\"b\":2}}", 1},
        {"ok = true", "{\"ok\":true}", 1},
        {"ok = true", "{\"ok\":false}", 0},
        {"ok != true", "{\"ok\":\"yes\"}", 1},
        {"x = null", "{\"x\":null}", 1},
        {"x != null", "{\"x\":[]}", 1},
        {"a = 1 and b = 2", "{\"a\":1,\"b\":2}", 1},
        {"a = 1 and b = 2", "{\"a\":1,\"b\":3}", 0},
        {"a = 2 and b = 2", "{\"a\":1}", 0}, /* the first decides */
        {"x = 1", "{\"x\":2,\"x\":1}", 1},   /* the last counts */
        {"label = x", "{}", -2},
        {"a.b = x", "{\"a\":3}", -2},
        {"label > 3", "{\"label\":\"x\"}", -2},
        {"n > x", "{\"n\":3}", -2},
        {"n > 3", "{\"n\":[4]}", -2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[300] = "";
        int result = passes(cases[i].condition, cases[i].json, why);
        if (result != cases[i].result || (result == -2) != (*why != 0))
            fail_msg("%s of %s: %d %s", cases[i].condition, cases[i].json, result, why);
    }
}

static void fields_are_kept(void **state)
{
    (void)state;
    struct record_scratch s = {0};
    struct buf out = {0};
    const char *json = "{\"a\":1,\"b\\n\":{\"x\": 2}}", *whole = "{\"a\":9,\"c\":\"d\"}";
    char *names[] = {"a", "b\n", "c", "none"};
    assert_int_equal(record_keep(&s, json, strlen(json), whole, strlen(whole), names, 4, &out), 0);
    assert_string_equal(buf_cstr(&out), ",\"a\":1,\"b\\n\":{\"x\": 2},\"c\":\"d\",\"none\":null");
    buf_clear(&out);
    assert_int_equal(record_keep(&s, json, strlen(json), NULL, 0, names, 3, &out), 0);
    assert_string_equal(buf_cstr(&out), ",\"a\":1,\"b\\n\":{\"x\": 2},\"c\":null");
    buf_clear(&out);
    const char *answer = "{\"id\":3,\"child\":1,\"a\":1,\"z\":\"y\"}";
    assert_int_equal(record_rest(&s, answer, strlen(answer), names, 1, 0, &out), 0);
    assert_string_equal(buf_cstr(&out), ",\"child\":1,\"z\":\"y\"");
    buf_clear(&out);
    assert_int_equal(record_rest(&s, answer, strlen(answer), names, 0, 1, &out), 0);
    assert_string_equal(buf_cstr(&out), ",\"a\":1,\"z\":\"y\"");
    buf_release(&out);
    record_scratch_release(&s);
}

static void falls_apart(const char *json, const char *wanted)
{
    struct buf out = {0};
    const char *element;
    size_t at = 0, n;
    while (record_next(json, strlen(json), &at, &element, &n))
        assert_int_equal(buf_printf(&out, "<%.*s>", (int)n, element), 0);
    assert_string_equal(out.len ? buf_cstr(&out) : "", wanted);
    buf_release(&out);
}

static void arrays_fall_apart(void **state)
{
    (void)state;
    falls_apart("[]", "");
    falls_apart(" [ ] ", "");
    falls_apart("[{\"a\":1},{\"b\":[1,2,{}]}]", "<{\"a\":1}><{\"b\":[1,2,{}]}>");
    falls_apart("[ {\"a\":\"]},\\\"\"} , 5 ,\"x,y\", null,true,[1,[2]] ]", "<{\"a\":\"]},\\\"\"}><5><\"x,y\"><null><true><[1,[2]]>");
    falls_apart("[1e5,-3]", "<1e5><-3>");
    assert_int_equal(record_kind("  {}", 4), '{');
    assert_int_equal(record_kind("   ", 3), 0);
}

static void ids(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"{\"id\":\"r\\u0031\"}", "\"r\\u0031\""}, {"{\"id\":-17}", "-17"}, {"{\"id\":[1]}", NULL}, {"{\"id\":null}", NULL}, {"{}", NULL}, {"{\"x\":1}", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct record_scratch s = {0};
        size_t n = 0;
        const char *id = record_id(&s, cases[i][0], strlen(cases[i][0]), &n);
        assert_int_equal(id != NULL, cases[i][1] != NULL);
        if (id) {
            assert_int_equal(n, strlen(cases[i][1]));
            assert_memory_equal(id, cases[i][1], n);
        }
        record_scratch_release(&s);
    }
}

static void allocation_failures(void **state)
{
    (void)state;
    struct condition c;
    struct err e;
    assert_int_equal(condition_parse("a.b = x and d = 1", &c, &e), ST_OK);
    const char *json = "{\"a\":{\"b\":\"\\u0078\"},\"d\":1}", *result = ",\"score\":0.5";
    for (uint64_t n = 1;; n++) {
        struct record_scratch s = {0};
        struct buf out = {0};
        char why[300];
        mem_fail_nth(n);
        int ok = record_with(&s, json, strlen(json), result, strlen(result), &out) == 0 && record_passes(&s, &c, json, strlen(json), why, sizeof why) == 1;
        mem_fail_nth(0);
        buf_release(&out);
        record_scratch_release(&s);
        if (ok) {
            assert_true(n > 4);
            break;
        }
    }
    condition_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_become_members), cmocka_unit_test(conditions), cmocka_unit_test(fields_are_kept),
                                       cmocka_unit_test(arrays_fall_apart), cmocka_unit_test(ids), cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
