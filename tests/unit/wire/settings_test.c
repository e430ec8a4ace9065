/* Configuration files: what is taken, and what is said of each mistake. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "wire/settings.h"

struct values {
    char *name, **folders, **words;
    uint64_t count, size, time;
    enum log_level level;
    size_t count_line;
};

static int short_word(const char *text)
{
    return strlen(text) < 6;
}

static int take_words(struct settings_value *v, void *to)
{
    return settings_list(v, to, 1, short_word);
}

static int take_odd(struct settings_value *v, void *to)
{
    uint64_t n;
    if (settings_number(v, &n))
        return EINVAL;
    if (n % 2 == 0) {
        snprintf(v->why, SETTINGS_WHY_MAX, "is even: %.20s", v->text);
        return EINVAL;
    }
    *(uint64_t *)to = n;
    return 0;
}

static enum status read_text(const char *text, struct values *v, struct err *e)
{
    char path[] = "/tmp/ebb-settings-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    *v = (struct values){.count = 7};
    const struct setting table[] = {
        {"name", "a text", settings_text, &v->name, NULL},
        {"paths.folders", "a list of folders", settings_folders, &v->folders, NULL},
        {"paths.words", "short words", take_words, &v->words, NULL},
        {"numbers.count", "an odd number", take_odd, &v->count, &v->count_line},
        {"numbers.size", "a size", settings_size, &v->size, NULL},
        {"numbers.time", "a duration", settings_duration, &v->time, NULL},
        {"level", "a level", settings_level, &v->level, NULL},
    };
    enum status st = settings_read(path, table, sizeof table / sizeof *table, "x(1)", e);
    if (st == ST_USER) { /* the name changes from run to run */
        const char *base = strrchr(path, '/') + 1;
        if (strncmp(e->text, base, strlen(base)) == 0)
            memmove(e->text, e->text + strlen(base), strlen(e->text + strlen(base)) + 1);
    }
    unlink(path);
    return st;
}

static void release(struct values *v)
{
    mem_free(v->name);
    settings_free_list(v->folders);
    settings_free_list(v->words);
}

static const char whole[] = "# all of them\nname: a b c\npaths:\n  folders: [/, /nowhere/./at/all]\n  words:\n    - one\n    - two\nnumbers: { count: 3, size: 2KiB, time: 5min }\nlevel: debug\n";

static void all_kinds(void **state)
{
    (void)state;
    struct values v;
    struct err e;
    assert_int_equal(read_text(whole, &v, &e), ST_OK);
    assert_string_equal(v.name, "a b c");
    assert_string_equal(v.folders[0], "/");
    assert_string_equal(v.folders[1], "/nowhere/at/all");
    assert_null(v.folders[2]);
    assert_string_equal(v.words[1], "two");
    assert_null(v.words[2]);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.count_line, 8);
    assert_int_equal(v.size, 2048);
    assert_int_equal(v.time, 300000);
    assert_int_equal(v.level, LOG_DEBUG);
    release(&v);
    assert_int_equal(read_text("", &v, &e), ST_OK); /* nothing is said: all stays */
    assert_int_equal(v.count, 7);
    assert_int_equal(v.count_line, 0);
    release(&v);
    assert_int_equal(read_text("paths: { words: one }\n", &v, &e), ST_OK);
    assert_string_equal(v.words[0], "one");
    release(&v);
}

static void mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"nam: x\n", ":1: unknown key 'nam' (did you mean 'name')"},
        {"\nnumbers:\n  cuont: 1\n", ":3: unknown key 'cuont' (did you mean 'count')"},
        {"zzz: x\n", ":1: unknown key 'zzz'; see x(1) for those there are"},
        {"count: 3\n", ":1: unknown key 'count'; see x(1) for those there are"},
        {"name: ''\n", ":1: 'name' wants a text"},
        {"name: [x]\n", ":1: 'name' wants a text"},
        {"name: { x: y }\n", ":1: 'name' wants a text"},
        {"name: a\nname: b\n", ":2: 'name' is there twice"},
        {"numbers: 3\n", ":1: 'numbers' wants keys below it"},
        {"numbers: { count: 4 }\n", ":1: 'numbers.count' is even: 4"},
        {"numbers: { count: -3 }\n", ":1: 'numbers.count' wants an odd number"},
        {"numbers: { count: 4294967297 }\n", ":1: 'numbers.count' wants an odd number"},
        {"numbers: { count: 99999999999999999999 }\n", ":1: 'numbers.count' wants an odd number"},
        {"paths:\n  words:\n    - one\n    - much too long\n", ":4: 'paths.words' wants short words"},
        {"paths:\n  words:\n    - one\n    - [two]\n", ":4: 'paths.words' wants short words"},
        {"paths:\n  folders:\n    - /\n    - here\n", ":4: 'paths.folders' wants a list of folders"},
        {"paths: { folders: / }\n", ":1: 'paths.folders' wants a list of folders"},
        {"level: loud\n", ":1: 'level' wants a level"},
        {"[a]: b\n", ":1: a key must be a word"},
        {"- a\n", ":1: wants lines of the form 'key: value'"},
        {"text\n", ":1: wants lines of the form 'key: value'"},
        {"numbers: &x { numbers: *x }\n", ":1: unknown key 'numbers'; see x(1) for those there are"},
        {"name: \"a\n", ":2: not YAML: found unexpected end of stream"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: 1\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        struct err e;
        assert_int_equal(read_text(cases[i].text, &v, &e), ST_USER);
        if (cases[i].says)
            assert_string_equal(e.text, cases[i].says);
        assert_int_equal(v.count, 7);
        release(&v);
    }
    struct err e;
    assert_int_equal(settings_read("/nowhere/x.yaml", NULL, 0, "x(1)", &e), ST_USER);
    assert_string_equal(e.text, "there is no configuration file '/nowhere/x.yaml'");
}

static void memory_is_out(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct values v;
        struct err e;
        mem_fail_nth(n);
        enum status st = read_text(whole, &v, &e);
        int all = mem_fail_nth(0) < n;
        release(&v);
        if (st == ST_OK && all)
            break;
        assert_int_equal(st, ST_NOMEM);
        assert_true(n < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_kinds), cmocka_unit_test(mistakes), cmocka_unit_test(memory_is_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
