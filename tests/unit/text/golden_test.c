/* Does the tokenizer give exactly the ids that Hugging Face's gives, for the tokenizer of a real model? tests/golden/tokens.py
   wrote what is compared with. Only tokenizer.json of all-MiniLM-L6-v2 is needed: in $EBB_TEST_MODEL or build/demo. */
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

static const char *model_dir(void)
{
    static const char *const usual = "build/demo/all-MiniLM-L6-v2";
    const char *dir = getenv("EBB_TEST_MODEL");
    if (!dir)
        dir = usual;
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (access(path, R_OK) != 0) {
        print_message("skipped: '%s' is not there; 'make demo' fetches the model, or EBB_TEST_MODEL names its folder\n", path);
        return NULL;
    }
    return dir;
}

static struct tokenizer *tok;
static struct tok_scratch *scratch;

static int setup(void **state)
{
    (void)state;
    struct err e = {0};
    const char *dir = model_dir();
    if (!dir)
        return 0;
    if (tokenizer_open(dir, &tok, &e) != ST_OK || tok_scratch_new(&scratch, &e) != ST_OK) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tok_scratch_free(scratch);
    tokenizer_free(tok);
    return 0;
}

static void test_ids(void **state)
{
    (void)state;
    if (!tok)
        skip();
    FILE *f = fopen("tests/golden/tokens_bert.jsonl", "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int lines = 0, wrong = 0, cut = 0;
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *row = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        json_int_t max = json_integer_value(json_object_get(row, "max_tokens"));
        struct tok_result got;
        struct err e;
        lines++;
        assert_int_equal(tokenizer_encode(tok, scratch, json_string_value(text), json_string_length(text), (uint32_t)max, &got, &e),
                         ST_OK);
        int same = got.count == json_array_size(ids);
        for (uint32_t i = 0; same && i < got.count; i++)
            same = got.ids[i] == json_integer_value(json_array_get(ids, i));
        if (!same && wrong++ < 10) {
            print_error("line %d: %.300s\n  got:", lines, line);
            for (uint32_t i = 0; i < got.count && i < 60; i++)
                print_error(" %d", (int)got.ids[i]);
            print_error("\n");
        }
        if (max) { /* truncated says whether there was more */
            struct tok_result whole;
            uint32_t count = got.count;
            int truncated = got.truncated;
            assert_int_equal(
                tokenizer_encode(tok, scratch, json_string_value(text), json_string_length(text), 0, &whole, &e), ST_OK);
            assert_int_equal(truncated, whole.count > max);
            assert_false(whole.truncated);
            assert_int_equal(count, whole.count < max ? whole.count : (uint32_t)max);
            cut += truncated;
        }
        json_decref(row);
    }
    free(line);
    fclose(f);
    print_message("%d texts, %d of them cut\n", lines, cut);
    assert_int_equal(wrong, 0);
    assert_true(lines > 1000 && cut > 100);
}

/* The same text in one piece and in longer texts, where the places to cut fall elsewhere, gives the same ids. */
static void test_stretches(void **state)
{
    (void)state;
    if (!tok)
        skip();
    FILE *f = fopen("tests/golden/tokens_bert.jsonl", "r");
    assert_non_null(f);
    char *line = NULL, *text = NULL;
    size_t cap = 0, len = 0, room = 0;
    int32_t *want = NULL;
    size_t count = 0, want_cap = 0;
    ssize_t n;
    struct err e;
    struct tok_result got;
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *row = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        const json_t *s = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        if (!json_object_get(row, "max_tokens")) {
            size_t more = json_string_length(s);
            while (len + more + 1 > room)
                text = realloc(text, room = room * 2 + 4096);
            memcpy(text + len, json_string_value(s), more);
            len += more;
            text[len++] = ' ';
            for (size_t i = 1; i + 1 < json_array_size(ids); i++) {
                if (count == want_cap)
                    want = realloc(want, (want_cap = want_cap * 2 + 4096) * sizeof *want);
                want[count++] = (int32_t)json_integer_value(json_array_get(ids, i));
            }
        }
        json_decref(row);
    }
    assert_true(count > 20000);
    for (size_t skip_bytes = 0; skip_bytes < 3; skip_bytes++) { /* an offset moves all cuts */
        char *copy = malloc(len + skip_bytes);
        memset(copy, ' ', skip_bytes);
        memcpy(copy + skip_bytes, text, len);
        assert_int_equal(tokenizer_encode(tok, scratch, copy, len + skip_bytes, 0, &got, &e), ST_OK);
        assert_int_equal(got.count, count + 2);
        assert_memory_equal(got.ids + 1, want, count * sizeof *want);
        free(copy);
    }
    for (uint32_t max = 2; max < 2000; max += 37) {
        assert_int_equal(tokenizer_encode(tok, scratch, text, len, max, &got, &e), ST_OK);
        assert_int_equal(got.count, max);
        assert_true(got.truncated);
        assert_memory_equal(got.ids + 1, want, (max - 2) * sizeof *want);
        assert_int_equal(got.ids[max - 1], 102);
    }
    fclose(f);
    free(line);
    free(text);
    free(want);
}

static void test_counts(void **state)
{
    (void)state;
    if (!tok)
        skip();
    assert_int_equal(tokenizer_vocab_size(tok), 30522);
    assert_int_equal(tokenizer_special_count(tok), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_stretches),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
