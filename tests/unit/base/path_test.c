/* Are paths made as the header says, and files written whole or not at all? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"

static char folder[] = "/tmp/ebb-path-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return !mkdtemp(folder) || chdir(folder);
}

static int drop_folder(void **state)
{
    (void)state;
    struct err e;
    return path_remove_tree(folder, &e) != ST_OK;
}

static void absolute_is(const char *path, const char *wanted)
{
    char *p = path_absolute(path);
    assert_non_null(p);
    assert_string_equal(p, wanted);
    mem_free(p);
}

static void names(void **state)
{
    (void)state;
    char here[512], *p;
    absolute_is("/a/./b//c/", "/a/b/c");
    absolute_is("/a/../../b", "/b");
    absolute_is("/", "/");
    absolute_is("/..", "/");
    absolute_is("/a/b/..", "/a");
    snprintf(here, sizeof here, "%s/x*.jsonl", folder);
    absolute_is("x*.jsonl", here);
    absolute_is("./q/../x*.jsonl", here);
    p = path_join("/a", "b");
    assert_string_equal(p, "/a/b");
    mem_free(p);
    p = path_join("/", "b");
    assert_string_equal(p, "/b");
    mem_free(p);
    assert_string_equal(path_base("/a/b"), "b");
    assert_string_equal(path_base("b"), "b");
    for (uint64_t n = 1;; n++) { /* out of memory is NULL */
        mem_fail_nth(n);
        p = path_absolute("/a/long/path/of/more/than/sixty-four/bytes/so/that/the/buffer/grows/once/more");
        mem_fail_nth(0);
        if (p) {
            assert_true(n > 2);
            mem_free(p);
            break;
        }
    }
}

static void folders(void **state)
{
    (void)state;
    struct err e;
    struct stat s;
    assert_int_equal(path_make_dirs("a/b/c", 0755, &e), ST_OK);
    assert_int_equal(stat("a/b/c", &s), 0);
    assert_true(S_ISDIR(s.st_mode));
    assert_int_equal(path_make_dirs("a/b/c", 0755, &e), ST_OK); /* again is fine */
    assert_int_equal(path_write("a/file", "x", 1, &e), ST_OK);
    assert_int_equal(path_make_dirs("a/file", 0755, &e), ST_USER);
    assert_string_equal(e.text, "'a/file' stands where a folder is wanted");
    assert_int_equal(path_make_dirs("a/file/d", 0755, &e), ST_ENV);
    assert_int_equal(symlink("a/file", "link"), 0);
    assert_int_equal(path_exists("link"), 1);
    assert_int_equal(path_exists("nolink"), 0);
    assert_int_equal(symlink("../file", "a/b/out"), 0);
    assert_int_equal(path_remove_tree("a/b", &e), ST_OK);
    assert_int_equal(path_exists("a/b"), 0);
    assert_int_equal(path_exists("a/file"), 1); /* links are not followed */
    assert_int_equal(path_remove_tree("a/b", &e), ST_OK);
}

static size_t files_in(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void files(void **state)
{
    (void)state;
    struct err e;
    struct buf b = {0};
    assert_int_equal(path_make_dirs("f", 0755, &e), ST_OK);
    assert_int_equal(path_write("f/one", "first", 5, &e), ST_OK);
    assert_int_equal(path_write("f/one", "second", 6, &e), ST_OK);
    assert_int_equal(path_read("f/one", 100, &b, &e), ST_OK);
    assert_string_equal(b.data, "second");
    assert_int_equal(files_in("f"), 1); /* nothing temporary stays */
    buf_clear(&b);
    assert_int_equal(path_read("f/one", 5, &b, &e), ST_USER);
    assert_string_equal(e.text, "'f/one' is larger than 5 bytes");
    buf_clear(&b);
    assert_int_equal(path_read("f/none", 5, &b, &e), ST_NOT_FOUND);
    assert_string_equal(e.text, "cannot open 'f/none': No such file or directory");
    assert_int_equal(path_write("f/none/x", "", 0, &e), ST_ENV);
    /* a target that cannot be replaced leaves nothing behind */
    assert_int_equal(path_make_dirs("f/dir/full", 0755, &e), ST_OK);
    assert_int_equal(path_write("f/dir", "x", 1, &e), ST_ENV);
    assert_int_equal(files_in("f"), 2);
    buf_release(&b);
}

static void space(void **state)
{
    (void)state;
    struct err e;
    uint64_t here = 0, below = 0;
    assert_int_equal(path_free_bytes(".", &here, &e), ST_OK);
    assert_true(here > 0);
    assert_int_equal(path_free_bytes("not/yet/there", &below, &e), ST_OK);
    assert_true(below > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(folders), cmocka_unit_test(files), cmocka_unit_test(space)};
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
