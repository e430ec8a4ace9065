#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "storage/assemble.h"
#include "storage/output.h"

static struct err err;
static char dir[64];

static void ok(enum status st)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), err.text);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, P_tmpdir "/ebb-output-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return path_remove_tree(dir, &err) == ST_OK ? 0 : -1;
}

static const char *at(const char *name)
{
    static char path[512][256]; /* each stays as it is for the length of a test */
    static int n;
    char *p = path[n++ % 512];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void touch(const char *name)
{
    ok(path_write(at(name), "x", 1, &err));
}

static void kinds_follow_from_the_path(void **state)
{
    (void)state;
    struct output_spec o;
    static const struct {
        const char *path, *word;
        int is_dir;
        enum output_kind kind;
    } good[] = {{"/n/out/", NULL, 1, OUTPUT_JSONL},     {"/n/out", NULL, 1, OUTPUT_JSONL},       {"/n/out", "npy", 1, OUTPUT_NPY},
                {"/n/o.jsonl", NULL, 0, OUTPUT_JSONL}, {"/n/o.npy", NULL, 0, OUTPUT_NPY},        {"/n/o.npy", "npy", 0, OUTPUT_NPY},
                {"/n/o.npy/", "jsonl", 1, OUTPUT_JSONL}, {"/n/run.v2", NULL, 1, OUTPUT_JSONL},   {"/n/.npy", NULL, 1, OUTPUT_JSONL},
                {"/n/a.jsonl.d", NULL, 1, OUTPUT_JSONL}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ok(output_resolve(good[i].path, good[i].word, &o, &err));
        assert_int_equal(o.is_dir, good[i].is_dir);
        assert_int_equal(o.kind, good[i].kind);
        assert_string_equal(o.path, good[i].path);
        assert_true(o.dims == 0 && o.part_bytes == 0);
    }
    static const struct {
        const char *path, *word, *says;
    } bad[] = {{"/n/o.npy", "jsonl", "'/n/o.npy' ends in .npy and the output format is jsonl: change one of them"},
               {"/n/o", "nyp", "unknown output format 'nyp' (did you mean 'npy'): known are jsonl and npy"},
               {"/n/o", "parquet", "unknown output format 'parquet': known are jsonl and npy"},
               {"/n/o.csv", NULL, "'/n/o.csv': ebb writes files that end in .jsonl or .npy, and folders: add a '/' if a folder is meant"},
               {"/n/o.npy/", NULL, "'/n/o.npy/' is a folder, and is called like an array: for one .npy file leave the '/' out, for a folder add --output-format npy or jsonl"},
               {"", NULL, "the output's path is empty: name a folder, or a file that ends in .jsonl or .npy"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(output_resolve(bad[i].path, bad[i].word, &o, &err), ST_USER);
        assert_string_equal(err.text, bad[i].says);
    }
    ok(path_make_dirs(at("a.npy"), 0777, &err)); /* what stands there counts more than its name, and is asked about */
    assert_int_equal(output_resolve(at("a.npy"), NULL, &o, &err), ST_USER);
    assert_non_null(strstr(err.text, "is a folder, and is called like an array: for one .npy file take another name"));
    ok(output_resolve(at("a.npy"), "npy", &o, &err));
    assert_int_equal(o.is_dir, 1);
    assert_int_equal(o.kind, OUTPUT_NPY);
    touch("plain");
    assert_int_equal(output_resolve(at("plain"), NULL, &o, &err), ST_USER);
    assert_non_null(strstr(err.text, "is a file, and its ending is none that ebb writes"));
    touch("old.jsonl");
    ok(output_resolve(at("old.jsonl"), NULL, &o, &err));
    assert_int_equal(o.is_dir, 0);
}

static void check_name(char *name, const char *want)
{
    assert_non_null(name);
    assert_string_equal(name, want);
    mem_free(name);
}

static void names(void **state)
{
    (void)state;
    struct output_spec d = {.path = "/n/out//", .is_dir = 1, .kind = OUTPUT_NPY}, f = {.path = "/n/o.npy", .kind = OUTPUT_NPY}, top = {.path = "/o.jsonl"};
    check_name(output_work_dir(&d), "/n/out/.ebb");
    check_name(output_parts_dir(&d), "/n/out/.ebb/parts");
    check_name(output_folder(&d), "/n/out");
    check_name(output_name(&d, OUTPUT_ROWS, 7, 1), "/n/out/part-00007.npy.partial");
    check_name(output_name(&d, OUTPUT_IDS, 123456, 0), "/n/out/part-123456.ids.jsonl");
    check_name(output_name(&d, OUTPUT_SUCCESS, 0, 0), "/n/out/_SUCCESS");
    check_name(output_work_dir(&f), "/n/o.npy.ebb");
    check_name(output_parts_dir(&f), "/n/o.npy.ebb/parts");
    check_name(output_folder(&f), "/n");
    check_name(output_name(&f, OUTPUT_ROWS, 0, 1), "/n/o.npy.partial");
    check_name(output_name(&f, OUTPUT_IDS, 0, 0), "/n/o.npy.ids.jsonl");
    check_name(output_name(&f, OUTPUT_ERRORS, 0, 0), "/n/o.npy.errors.jsonl");
    check_name(output_name(&f, OUTPUT_MANIFEST, 0, 0), "/n/o.npy.manifest.json");
    check_name(output_work_file(&f, "errors", 2), "/n/o.npy.ebb/errors-2");
    check_name(output_folder(&top), "/");
}

static void whose_is_it(void **state)
{
    (void)state;
    struct buf b = {0};
    char want[300];
    struct output_spec d = {.path = at("out"), .is_dir = 1}, f = {.path = at("o.jsonl")};
    assert_int_equal(output_owner(&d, &b, &err), ST_NOT_FOUND); /* not there */
    ok(path_make_dirs(at("out/.ebb"), 0777, &err));
    assert_int_equal(output_owner(&d, &b, &err), ST_NOT_FOUND); /* an empty one, or one that was being made */
    touch("out/thesis.tex");
    touch("out/a.txt");
    assert_int_equal(output_owner(&d, &b, &err), ST_USER);
    snprintf(want, sizeof want, "'%s' is not empty: it holds 'a.txt', which ebb did not make; choose another --output or --force", d.path);
    assert_string_equal(err.text, want);
    touch("out/manifest.json");
    assert_int_equal(output_owner(&d, &b, &err), ST_USER);
    snprintf(want, sizeof want, "'%s' holds a finished output, but what belonged to it in '%s/.ebb' is gone, ", d.path, d.path);
    assert_memory_equal(err.text, want, strlen(want));
    ok(output_claim(&d, "{\"job\":1}", 9, &err));
    ok(output_owner(&d, &b, &err));
    assert_int_equal(b.len, 9);
    assert_memory_equal(b.data, "{\"job\":1}", 9);
    assert_true(path_exists(at("out/.ebb/parts")) && path_exists(at("out/thesis.tex"))); /* what is not ours stays */

    assert_int_equal(output_owner(&f, &b, &err), ST_NOT_FOUND);
    touch("o.jsonl.errors.jsonl");
    assert_int_equal(output_owner(&f, &b, &err), ST_USER);
    snprintf(want, sizeof want,
             "'%s' cannot be written: 'o.jsonl.errors.jsonl' stands there, which ebb did not make; choose another --output or --force", f.path);
    assert_string_equal(err.text, want);
    ok(output_claim(&f, "{}", 2, &err));
    ok(output_owner(&f, &b, &err));
    assert_int_equal(b.len, 2);
    touch("file");
    struct output_spec odd = {.path = at("file"), .is_dir = 1};
    assert_int_equal(output_owner(&odd, &b, &err), ST_ENV); /* the working folder below it cannot be looked for */
    buf_release(&b);
}

static void claiming_again_keeps_what_is_there(void **state)
{
    (void)state;
    struct output_spec d = {.path = at("out"), .is_dir = 1};
    ok(output_claim(&d, "{1}", 3, &err));
    touch("out/part-00000.jsonl");
    touch("out/.ebb/output");
    ok(path_make_dirs(at("out/.ebb/parts/7"), 0777, &err));
    touch("out/.ebb/parts/7/1-1");
    ok(output_claim(&d, "{1}", 3, &err));
    assert_true(path_exists(at("out/part-00000.jsonl")) && path_exists(at("out/.ebb/output")) && path_exists(at("out/.ebb/parts/7/1-1")));
}

/* Another job with --force: nothing of the old one is left to be taken for the new one's, and nothing else is touched. */
static void claiming_for_another_job_clears_our_names_only(void **state)
{
    (void)state;
    static const char *const ours[] = {"_SUCCESS", "manifest.json", "errors.jsonl", "errors.jsonl.partial", "part-00000.jsonl", "part-00001.npy",
                                       "part-00001.ids.jsonl.partial", "part-123456.jsonl.partial", ".ebb/output", ".ebb/files-0", ".ebb/errors-2",
                                       ".ebb/parts/7/1-1"};
    static const char *const others[] = {"part-1.jsonl", "part-00000.jsonl.bak", "part-00000.txt", "notes", "xpart-00000.jsonl", ".ebb/state",
                                         ".ebb/log"};
    struct output_spec d = {.path = at("out"), .is_dir = 1};
    ok(output_claim(&d, "{1}", 3, &err));
    ok(path_make_dirs(at("out/.ebb/parts/7"), 0777, &err));
    char name[100];
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        snprintf(name, sizeof name, "out/%s", ours[i]), touch(name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        snprintf(name, sizeof name, "out/%s", others[i]), touch(name);
    ok(output_claim(&d, "{2}", 3, &err));
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(name, sizeof name, "out/%s", ours[i]);
        if (path_exists(at(name)))
            fail_msg("'%s' is still there", name);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(name, sizeof name, "out/%s", others[i]);
        if (!path_exists(at(name)))
            fail_msg("'%s' is gone", name);
    }
    assert_true(path_exists(at("out/.ebb/parts")));

    struct output_spec f = {.path = at("o.npy"), .kind = OUTPUT_NPY};
    static const char *const files[] = {"o.npy", "o.npy.partial", "o.npy.ids.jsonl", "o.npy.errors.jsonl", "o.npy.manifest.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        touch(files[i]);
    touch("o.npy.bak");
    ok(output_claim(&f, "{}", 2, &err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_false(path_exists(at(files[i])));
    assert_true(path_exists(at("o.npy.bak")));
}

static void seals_and_indexes_are_checked(void **state)
{
    (void)state;
    struct output_spec d = {.path = at("out"), .is_dir = 1};
    struct seal s = {.job = 3, .attempt = 1, .rows = UINT64_MAX, .files = 2, .errors = 1, .errors_digest = {7}}, got = {0};
    struct buf b = {0};
    ok(output_claim(&d, "{}", 2, &err));
    assert_int_equal(seal_read(&d, &got, &err), ST_NOT_FOUND);
    ok(seal_write(&d, &s, &err));
    ok(seal_read(&d, &got, &err));
    assert_memory_equal(&got, &s, sizeof s);
    ok(path_read(at("out/.ebb/output"), 4096, &b, &err));
    for (size_t i = 0; i < b.len; i++) { /* every byte counts */
        b.data[i] ^= 4;
        ok(path_write(at("out/.ebb/output"), b.data, b.len, &err));
        enum status st = seal_read(&d, &got, &err);
        assert_true(st == ST_CORRUPT || (i == 7 && st == ST_USER));
        assert_non_null(strstr(err.text, "/out/.ebb/output'"));
        b.data[i] ^= 4;
    }
    for (size_t n = 0; n < b.len; n++) {
        ok(path_write(at("out/.ebb/output"), b.data, n, &err));
        assert_int_equal(seal_read(&d, &got, &err), ST_CORRUPT);
    }
    struct file_record *files = NULL;
    struct error_record e1 = {.record = {1, 2}, .row = 3, .source = 4, .line = 5}, *errors = NULL;
    assert_int_equal(output_read_files(&d, 1, 2, &files, &err), ST_CORRUPT);
    buf_clear(&b);
    assert_int_equal(error_record_put(&b, &e1), 0);
    assert_int_equal(b.len, ERROR_RECORD_BYTES);
    ok(path_write(at("out/.ebb/errors-1"), b.data, b.len, &err));
    ok(output_read_errors(&d, 1, 1, &errors, &err));
    assert_memory_equal(errors, &e1, sizeof e1);
    mem_free(errors);
    assert_int_equal(output_read_errors(&d, 1, 2, &errors, &err), ST_CORRUPT);
    assert_non_null(strstr(err.text, "is too short"));
    buf_release(&b);
}

static void memory_out_touches_nothing(void **state)
{
    (void)state;
    struct output_spec d = {.path = at("out"), .is_dir = 1};
    struct buf b = {0};
    ok(output_claim(&d, "{1}", 3, &err));
    touch("out/part-00000.jsonl");
    for (uint64_t n = 1;; n++) {
        mem_fail_nth(n);
        enum status st = output_claim(&d, "{1}", 3, &err);
        if (st == ST_OK)
            st = output_owner(&d, &b, &err);
        uint64_t made = mem_fail_nth(0);
        buf_release(&b);
        assert_true(path_exists(at("out/part-00000.jsonl")));
        if (made < n) {
            ok(st);
            return;
        }
        assert_int_equal(st, ST_NOMEM);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(kinds_follow_from_the_path),
        T(names),
        T(whose_is_it),
        T(claiming_again_keeps_what_is_there),
        T(claiming_for_another_job_clears_our_names_only),
        T(seals_and_indexes_are_checked),
        T(memory_out_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
