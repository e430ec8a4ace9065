/* Do tokenizers of all families give exactly the ids and spans that Hugging Face's give? tests/golden/tokenizers_golden.py wrote what is
   compared with. Those of real models are looked for in build/tokenizers (tests/golden/fetch_tokenizers.py fetches them) or in
   $EBB_TEST_TOKENIZERS; small ones of the same make stand in tests/golden/small. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/mem.h"
#include "workers/text/tokenizer.h"

static json_t *texts;
static struct tok_scratch *scratch;
static FILE *golden;

static uint64_t mix(uint64_t h, uint32_t n)
{
    return (h ^ n) * 0x100000001B3u;
}

#define START 0xCBF29CE484222325u

static int same(uint64_t h, const json_t *want)
{
    char hex[20];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
    return !strcmp(hex, json_string_value(want));
}

static struct tok_result encode(const struct tokenizer *t, struct tok_input in)
{
    struct tok_result r;
    struct err e = {0};
    if (tokenizer_encode_input(t, scratch, &in, &r, &e) != ST_OK)
        fail_msg("%s", e.text);
    return r;
}

static void show(const struct tokenizer *t, const char *name, size_t i, const struct tok_result *r, const json_t *want)
{
    print_error("%s, text %zu: %.200s\n", name, i, json_string_value(json_array_get(texts, i)));
    for (uint32_t k = 0; k < r->count; k++)
        if (!want || r->ids[k] != json_integer_value(json_array_get(want, k))) {
            print_error("  id %u is %d '%s', not %d\n", k, (int)r->ids[k], tokenizer_token(t, r->ids[k]),
                        (int)json_integer_value(json_array_get(want, k)));
            break;
        }
}

/* Returns how many texts differ. */
static int compare(const struct tokenizer *t, const char *name, const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids"), *whole = json_object_get(row, "whole"), *spans = json_object_get(row, "spans"),
                 *cut = json_object_get(row, "cut"), *pair = json_object_get(row, "pair");
    size_t count = json_array_size(texts);
    int wrong = 0;
    assert_int_equal(json_array_size(whole), count);
    assert_int_equal(json_array_size(pair), count - 1);
    for (size_t i = 0; i < count; i++) {
        const json_t *text = json_array_get(texts, i), *next = json_array_get(texts, i + 1);
        struct tok_input in = {.text = json_string_value(text), .len = json_string_length(text)};
        struct tok_result r = encode(t, in);
        uint64_t h = START;
        for (uint32_t k = 0; k < r.count; k++)
            h = mix(h, (uint32_t)r.ids[k]);
        int bad = !same(h, json_array_get(whole, i));
        if (bad && wrong < 5)
            show(t, name, i, &r, json_array_get(ids, i));

        in.spans = 1; /* the way that keeps track of where things come from gives the same */
        r = encode(t, in);
        uint64_t hs = START;
        h = START;
        for (uint32_t k = 0; k < r.count; k++) {
            h = mix(h, (uint32_t)r.ids[k]);
            hs = mix(mix(hs, r.spans[k].start), r.spans[k].end);
        }
        if (!bad && (!same(h, json_array_get(whole, i)) || !same(hs, json_array_get(spans, i)))) {
            print_error("%s, text %zu: the spans differ\n", name, i);
            bad = 1;
        }

        in.spans = 0;
        in.max_tokens = 16;
        r = encode(t, in);
        h = START;
        for (uint32_t k = 0; k < r.count; k++)
            h = mix(h, (uint32_t)r.ids[k]);
        if (!bad && !same(h, json_array_get(cut, i))) {
            print_error("%s, text %zu: cut to 16 it differs\n", name, i);
            bad = 1;
        }

        in.max_tokens = 32;
        in.pair = json_string_value(next);
        in.pair_len = json_string_length(next);
        if (next && *json_string_value(json_array_get(pair, i))) {
            r = encode(t, in);
            h = START;
            for (uint32_t k = 0; k < r.count; k++)
                h = mix(h, (uint32_t)r.ids[k]);
            for (uint32_t k = 0; k < r.count; k++)
                h = mix(h, r.types[k]);
            if (!bad && !same(h, json_array_get(pair, i))) {
                print_error("%s, texts %zu and %zu: the pair differs\n", name, i, i + 1);
                bad = 1;
            }
        }
        wrong += bad;
    }
    return wrong;
}

/* All texts as one, four times over: the same, though it goes through in other pieces. */
static void compare_long(const struct tokenizer *t, const json_t *row)
{
    size_t len = 0, at = 0;
    for (size_t i = 0; i < json_array_size(texts); i++)
        len += json_string_length(json_array_get(texts, i));
    char *many = malloc(4 * len);
    assert_non_null(many);
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            memcpy(many + at, json_string_value(text), json_string_length(text));
            at += json_string_length(text);
        }
    struct tok_result r = encode(t, (struct tok_input){.text = many, .len = at});
    uint64_t h = START;
    for (uint32_t k = 0; k < r.count; k++)
        h = mix(h, (uint32_t)r.ids[k]);
    assert_true(same(h, json_object_get(row, "long")));
    free(many);
}

static json_t *next_row(void)
{
    static char *line;
    static size_t cap;
    ssize_t n = getline(&line, &cap, golden);
    if (n <= 0) {
        free(line);
        line = NULL;
        cap = 0;
        return NULL;
    }
    json_t *row = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
    assert_non_null(row);
    return row;
}

static void run(int small)
{
    const char *root = getenv("EBB_TEST_TOKENIZERS");
    int met = 0, missing = 0, wrong = 0;
    golden = fopen("tests/golden/tokenizers.jsonl", "r");
    assert_non_null(golden);
    json_decref(next_row());
    for (json_t *row; (row = next_row()); json_decref(row)) {
        const char *name = json_string_value(json_object_get(row, "name"));
        char dir[4096], path[4200];
        snprintf(dir, sizeof dir, "tests/golden/small/%s", name);
        snprintf(path, sizeof path, "%s/tokenizer.json", dir);
        if ((access(path, R_OK) == 0) != small)
            continue;
        if (!small) {
            snprintf(dir, sizeof dir, "%s/%s", root ? root : "build/tokenizers", name);
            snprintf(path, sizeof path, "%s/tokenizer.json", dir);
            if (access(path, R_OK) != 0) {
                missing++;
                continue;
            }
        }
        struct tokenizer *t = NULL;
        struct err e = {0};
        if (tokenizer_open(dir, &t, &e) != ST_OK)
            fail_msg("%s", e.text);
        wrong += compare(t, name, row);
        compare_long(t, row);
        tokenizer_free(t);
        met++;
    }
    fclose(golden);
    print_message("%d tokenizers, %zu texts each; %d are not there\n", met, json_array_size(texts), missing);
    assert_int_equal(wrong, 0);
    if (!met && !small) {
        print_message("skipped: 'python3 tests/golden/fetch_tokenizers.py' fetches them\n");
        skip();
    }
    assert_true(met > 0);
}

static void test_small(void **state)
{
    (void)state;
    run(1);
}

static void test_real(void **state)
{
    (void)state;
    run(0);
}

static int setup(void **state)
{
    (void)state;
    struct err e;
    golden = fopen("tests/golden/tokenizers.jsonl", "r");
    if (!golden || tok_scratch_new(&scratch, &e) != ST_OK)
        return -1;
    json_t *row = next_row();
    texts = json_incref(json_object_get(row, "texts"));
    json_decref(row);
    fclose(golden);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(texts);
    tok_scratch_free(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
