/* Does the one-pass reader of objects accept what jansson accepts, refuse what it refuses, and cut where it should? */
#include "tests/unit/storage/input_files.h"

#include <jansson.h>

#include "storage/json.h"
#include "storage/utf8.h"

static const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;

/* 1 when both agree; *object: what they agree on. Differences that are meant: numbers beyond int64 and double, NUL in names, and a NUL byte
   between values, which jansson may pass over. */
static void agree(struct json_members *m, const char *data, size_t len, int *object)
{
    json_error_t error;
    json_t *root = json_loadb(data, len, flags, &error);
    int ours = utf8_prefix(data, len) == len ? json_object_members(m, data, len) : 0;
    *object = ours;
    if (memchr(data, 0, len)) {
        assert_int_equal(ours, 0);
        json_decref(root);
        return;
    }
    if (!root && (json_error_code(&error) == json_error_numeric_overflow || json_error_code(&error) == json_error_null_byte_in_key))
        return;
    if (ours != json_is_object(root))
        fail_msg("jansson says %s of %.*s", root ? "fine" : error.text, (int)len, data);
    struct buf key = {0};
    for (size_t i = 0; ours && i < m->count; i++) {
        const struct json_member *x = &m->items[i];
        int last = 1;
        key.len = 0;
        assert_int_equal(json_unescape(&key, x->key, x->key_len), 0);
        assert_non_null(buf_cstr(&key));
        for (size_t k = i + 1; k < m->count; k++) {
            struct buf other = {0};
            assert_int_equal(json_unescape(&other, m->items[k].key, m->items[k].key_len), 0);
            last &= other.len != key.len || memcmp(other.data, key.data, key.len);
            buf_release(&other);
        }
        json_t *want = json_object_get(root, key.data), *got = json_loadb(x->value, x->value_len, flags, NULL);
        assert_non_null(got);
        if (last)
            assert_true(json_equal(want, got));
        if (json_is_string(got)) {
            key.len = 0;
            assert_int_equal(json_unescape(&key, x->value + 1, x->value_len - 2), 0);
            assert_int_equal(key.len, json_string_length(got));
            assert_memory_equal(key.data, json_string_value(got), key.len);
        }
        json_decref(got);
    }
    buf_release(&key);
    json_decref(root);
}

static void bent_documents(void **state)
{
    (void)state;
    struct random r = {31};
    const char *const seeds[] = {
        "{\"id\":-0,\"text\":\"\\u00e9\\\\\\\"\\/\\b\\f\\n\\r\\t\",\"s\":[1e3,{\"a\":\"}\"},[],{}],\"l\":-0.5E-7}",
        " { \"a\" : [ true , false , null , [ [ ] , { } ] ] , \"b\" : { \"c\" : { \"d\" : \"\\ud83d\\ude00\" } } } ",
        "{\"a\":1,\"a\":2,\"\\u0061\":3,\"\":[\"\",\"\xf0\x9f\x98\x80\xe2\x82\xac\",\"\\u20ac\\u0000\"]}",
        "[{\"a\":1},2]", "{}", "\"a\"", "12.50",
    };
    struct json_members m = {0};
    unsigned objects = 0, refused = 0;
    for (int round = 0; round < 60000; round++) {
        const char *seed = seeds[rnd(&r, 8) % 7];
        char line[128];
        size_t len = strlen(seed);
        memcpy(line, seed, len);
        for (uint64_t n = rnd(&r, 4); n-- > 0 && len;) {
            size_t at = (size_t)rnd(&r, len);
            char c = "{}[]\":,\\0e-+.1uDdC8tn\xff\x80\x01 \t"[rnd(&r, 27)];
            switch (rnd(&r, 4)) {
            case 0: /* one less */
                memmove(line + at, line + at + 1, len - at - 1);
                len--;
                break;
            case 1: /* one more */
                memmove(line + at + 1, line + at, len - at);
                line[at] = c;
                len++;
                break;
            case 2: line[at] = c; break;
            default: line[at] = line[rnd(&r, len)]; break;
            }
        }
        if (rnd(&r, 6) == 0)
            len = (size_t)rnd(&r, len + 1);
        char *exact = mem_alloc(len); /* reading behind it would be seen by the sanitizers */
        memcpy(exact, line, len);
        int object;
        agree(&m, exact, len, &object);
        objects += object == 1;
        refused += object == 0;
        mem_free(exact);
    }
    assert_true(objects > 10000 && refused > 10000);
    json_members_release(&m);
}

static void depth(void **state)
{
    (void)state;
    struct json_members m = {0};
    struct buf b = {0};
    for (int deep = 2040; deep < 2055; deep++)
        for (int kind = 0; kind < 2; kind++) {
            b.len = 0;
            for (int i = 0; i < deep; i++)
                assert_int_equal(buf_str(&b, i == 0 || kind ? "{\"a\":" : "["), 0);
            assert_int_equal(buf_char(&b, '1'), 0);
            for (int i = deep; i-- > 0;)
                assert_int_equal(buf_char(&b, i == 0 || kind ? '}' : ']'), 0);
            assert_int_equal(json_object_members(&m, b.data, b.len), deep <= 2048);
        }
    json_members_release(&m);
    buf_release(&b);
}

static void numbers(void **state)
{
    (void)state;
    const struct {
        const char *text;
        size_t len;
    } cases[] = {{"0", 1}, {"-0", 2}, {"01", 1}, {"-", 0}, {"1.", 1}, {".5", 0}, {"1.50e+10x", 8}, {"1e", 1}, {"1e-", 1}, {"+1", 0}, {"9e9", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(json_number(cases[i].text, cases[i].text + strlen(cases[i].text)), cases[i].len);
    assert_int_equal(json_number("", ""), 0);
}

static void strings_go_and_come(void **state)
{
    (void)state;
    struct random r = {32};
    struct buf b = {0}, back = {0};
    for (int round = 0; round < 20000; round++) {
        char s[24];
        size_t len = (size_t)rnd(&r, sizeof s);
        for (size_t i = 0; i < len; i++)
            s[i] = (char)rnd(&r, rnd(&r, 2) ? 128 : 36);
        b.len = back.len = 0;
        assert_int_equal(json_add_string(&b, s, len), 0);
        json_t *v = json_loadb(b.data, b.len, flags, NULL);
        assert_int_equal(json_string_length(v), len);
        assert_memory_equal(json_string_value(v), s, len);
        assert_int_equal(json_unescape(&back, b.data + 1, b.len - 2), 0);
        assert_int_equal(back.len, len);
        assert_memory_equal(back.data, s, len);
        json_decref(v);
    }
    buf_release(&b);
    buf_release(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bent_documents),
        cmocka_unit_test(depth),
        cmocka_unit_test(numbers),
        cmocka_unit_test(strings_go_and_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
