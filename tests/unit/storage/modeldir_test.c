#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "storage/modeldir.h"
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"

static char dir[] = "/tmp/ebb-modeldir-test-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(dir, &e) != ST_OK;
}

static const char *path_of(const char *name)
{
    static char p[4096];
    snprintf(p, sizeof p, "%s/%s", dir, name);
    return p;
}

static void put(const char *name, const char *text)
{
    files_put(path_of(name), text, strlen(text));
}

static struct model_digest digest(void)
{
    struct model_digest d;
    struct err e;
    if (modeldir_digest(dir, &d, &e) != ST_OK)
        fail_msg("%s", e.text);
    return d;
}

/* Held as a golden figure: a digest that changes by itself would make every job refuse to resume. */
static void digest_is_stable(void **state)
{
    (void)state;
    put("config.json", "{\"a\": 1}");
    put("model.safetensors", "weights");
    put("README.md", "not read by the loader");
    struct model_digest d = digest();
    assert_int_equal(d.files, 2);
    assert_int_equal(d.size_bytes, 15);
    assert_string_equal(d.hex, "332796d63545516dfc69ee624fcd1da2");
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", d.bytes[i]);
    assert_string_equal(d.hex, hex);
}

static void what_the_loader_reads_counts(void **state)
{
    (void)state;
    static const char *const counted[] = {"config.json",
                                          "model.safetensors",
                                          "model-00001-of-00002.safetensors",
                                          "model.safetensors.index.json",
                                          "tokenizer.json",
                                          "vocab.txt",
                                          "tokenizer_config.json",
                                          "special_tokens_map.json",
                                          "sentence_bert_config.json",
                                          "preprocessor_config.json",
                                          "1_Pooling/config.json",
                                          "2_Dense/model.safetensors"};
    static const char *const ignored[] = {"README.md", "pytorch_model.bin", "config.json.orig", "2_Other/config.json",
                                          "data_config.json", "xvocab.txt"};
    mkdir(path_of("1_Pooling"), 0777);
    mkdir(path_of("2_Other"), 0777);
    mkdir(path_of("2_Dense"), 0777);
    put("modules.json", "[{\"path\": \"\"}, {\"path\": \"1_Pooling\"}, {\"path\": \"2_Dense\"}, {\"path\": \"3_Normalize\"}]");
    put("config.json", "{}");
    struct model_digest last = digest(), now;
    assert_int_equal(last.files, 2);
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        for (int round = 0; round < 2; round++) { /* there or not, and what it says */
            put(counted[i], round ? "{\"b\": 2}" : "{\"b\": 1}");
            now = digest();
            assert_string_not_equal(now.hex, last.hex);
            last = now;
        }
    assert_int_equal(last.files, 13);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        put(ignored[i], "{}");
        assert_string_equal(digest().hex, last.hex);
    }
    /* bytes that move from one file to the next */
    put("tokenizer.json", "ab");
    put("tokenizer_config.json", "c");
    last = digest();
    put("tokenizer.json", "a");
    put("tokenizer_config.json", "bc");
    assert_string_not_equal(digest().hex, last.hex);
}

static void refusals(void **state)
{
    (void)state;
    struct model_digest d;
    struct err e;
    char want[512];
    assert_int_equal(modeldir_digest(dir, &d, &e), ST_USER);
    snprintf(want, sizeof want, "'%s' is not a model directory: it has no config.json", dir);
    assert_string_equal(e.text, want);
    put("config.json", "{}");
    put("modules.json", "{}");
    assert_int_equal(modeldir_digest(dir, &d, &e), ST_USER);
    snprintf(want, sizeof want, "'%s/modules.json' is not a list of modules", dir);
    assert_string_equal(e.text, want);
    static const char *const outside[] = {"..", "../x", "/etc", "a/../../b"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        char text[128];
        snprintf(text, sizeof text, "[{\"path\": \"%s\"}]", outside[i]);
        put("modules.json", text);
        assert_int_equal(modeldir_digest(dir, &d, &e), ST_USER);
        snprintf(want, sizeof want, "'%s/modules.json': module 0 has the path '%s', which leads out of the directory", dir,
                 outside[i]);
        assert_string_equal(e.text, want);
    }
    put("modules.json", "[{\"path\": \"..a//b\"}]"); /* an odd name, but inside */
    assert_int_equal(modeldir_digest(dir, &d, &e), ST_OK);
    unlink(path_of("modules.json"));
    assert_int_equal(mkfifo(path_of("model.safetensors"), 0600), 0);
    assert_int_equal(modeldir_digest(dir, &d, &e), ST_USER);
    snprintf(want, sizeof want, "'%s/model.safetensors' is not a plain file", dir);
    assert_string_equal(e.text, want);
    assert_int_equal(modeldir_digest(path_of("config.json"), &d, &e), ST_USER);
    assert_non_null(strstr(e.text, "is not a directory: a model is a directory with config.json and model.safetensors"));
}

static void json_files(void **state)
{
    (void)state;
    json_t *j = NULL;
    struct err e;
    char want[512];
    assert_int_equal(modeldir_json(dir, "x.json", &j, &e), ST_NOT_FOUND);
    snprintf(want, sizeof want, "'%s' has no file 'x.json'", dir);
    assert_string_equal(e.text, want);
    put("x.json", "{\"a\": [1,\n 2,]}");
    assert_int_equal(modeldir_json(dir, "x.json", &j, &e), ST_USER);
    snprintf(want, sizeof want, "'%s/x.json' is not valid JSON: line 2, column 4: unexpected token near ']'", dir);
    assert_string_equal(e.text, want);
    assert_null(j);
    put("x.json", "{\"a\": [1, 2]}");
    assert_int_equal(modeldir_json(dir, "x.json", &j, &e), ST_OK);
    assert_int_equal(json_array_size(json_object_get(j, "a")), 2);
    json_decref(j);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct model_digest d;
    struct err e;
    assert_int_equal(tinymodel_write(dir, &(struct tinymodel){.layers = 1, .shards = 2}), 0);
    uint64_t n = 1;
    for (;; n++) {
        mem_fail_nth(n);
        enum status st = modeldir_digest(dir, &d, &e);
        mem_fail_nth(0);
        if (st == ST_OK)
            break;
        assert_int_equal(st, ST_NOMEM);
    }
    assert_true(n > 10);
}

/* How many allocations it makes tells whether the files are read. */
static uint64_t digest_known(struct model_digest *d)
{
    struct err e;
    mem_fail_nth(UINT64_MAX); /* counts */
    if (modeldir_digest_known(dir, d, &e) != ST_OK)
        fail_msg("%s", e.text);
    return mem_fail_nth(0);
}

/* A file changed in place that has its old size and time of change again is seen; so is one of another name. */
static void what_is_known_is_not_read_again(void **state)
{
    (void)state;
    struct model_digest d, first = {0};
    struct stat s;
    assert_int_equal(tinymodel_write(dir, &(struct tinymodel){.layers = 1}), 0);
    digest_known(&d);
    uint64_t reads = digest_known(&d), again;
    assert_string_equal(d.hex, digest().hex);
    do { /* as long as its files are too young, they are read each time */
        usleep(100000);
        again = digest_known(&first);
        assert_memory_equal(&first, &d, sizeof d);
    } while (again == reads && time(NULL) - (stat(path_of("config.json"), &s), s.st_ctime) < 30);
    again = digest_known(&first);
    assert_true(again < reads);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(digest_known(&first), again);
        assert_memory_equal(&first, &d, sizeof d);
    }
    assert_int_equal(stat(path_of("model.safetensors"), &s), 0);
    FILE *f = fopen(path_of("model.safetensors"), "r+");
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    int last = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    fputc(last ^ 1, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path_of("model.safetensors"), (struct timespec[]){s.st_atim, s.st_mtim}, 0), 0);
    assert_int_equal(digest_known(&first), reads);
    assert_string_not_equal(first.hex, d.hex);
    assert_string_equal(first.hex, digest().hex);
    put("vocab.txt", "another");
    digest_known(&d);
    assert_string_equal(d.hex, digest().hex);
    assert_string_not_equal(first.hex, d.hex);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(digest_is_stable), TEST(what_the_loader_reads_counts), TEST(refusals),
        TEST(json_files),       TEST(every_allocation_may_fail), TEST(what_is_known_is_not_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
