#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/part.h"

static struct err err;
static char dir[64], parts[80];
static struct part *p;

static void ok(enum status st)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), err.text);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, P_tmpdir "/ebb-part-XXXXXX");
    if (!mkdtemp(dir) || part_new(&p, &err) != ST_OK)
        return -1;
    snprintf(parts, sizeof parts, "%s/out/.ebb/parts", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    part_free(p);
    return path_remove_tree(dir, &err) == ST_OK ? 0 : -1;
}

static void row(const char *r, const char *aux)
{
    ok(part_row(p, r, strlen(r), aux, strlen(aux), &err));
}

static void error(uint64_t begin, uint64_t line, const char *id)
{
    struct part_error x = {.record = {begin, begin + 9}, .source = 2, .line = line, .code = "invalid_json", .message = "near \"x\"\n\xff", .id_json = id,
                           .id_len = id ? strlen(id) : 0};
    ok(part_error(p, &x, &err));
}

/* Two extents with everything in them. */
static void fill(void)
{
    ok(part_begin(p, 100, &err));
    row("r1\n", "i1\n");
    error(110, 3, "\"a\"");
    row("row2\n", "i2\n");
    error(130, 5, NULL);
    ok(part_end(p, 140, 6, 40, &err));
    ok(part_begin(p, 200, &err));
    row("r3\n", "");
    ok(part_end(p, 210, 1, 10, &err));
}

static const char whole[] =
    "r1\nrow2\ni1\ni2\n"
    "{\"begin\":110,\"end\":119,\"source\":2,\"line\":3,\"row\":1,\"code\":\"invalid_json\",\"message\":\"near \\\"x\\\"\\n\xef\xbf\xbd\",\"id\":\"a\"}\n"
    "{\"begin\":130,\"end\":139,\"source\":2,\"line\":5,\"row\":2,\"code\":\"invalid_json\",\"message\":\"near \\\"x\\\"\\n\xef\xbf\xbd\"}\n"
    "r3\n";

static void read_part(uint64_t epoch, uint64_t seq, struct buf *b)
{
    char path[200];
    part_path(path, sizeof path, parts, 41, epoch, seq);
    buf_clear(b);
    ok(path_read(path, 1 << 20, b, &err));
}

static void sections_lie_one_behind_another(void **state)
{
    (void)state;
    struct part_info info;
    struct buf b = {0};
    fill();
    assert_int_equal(part_extent_count(p), 2);
    assert_int_equal(part_bytes(p), sizeof whole - 1);
    ok(part_write(p, parts, 41, EPOCH(3, 9), 2, &info, &err));
    read_part(EPOCH(3, 9), 2, &b);
    assert_int_equal(b.len, sizeof whole - 1);
    assert_memory_equal(b.data, whole, b.len);
    assert_int_equal(info.size_bytes, b.len);
    XXH128_canonical_t d;
    XXH128_canonicalFromHash(&d, XXH3_128bits(whole, sizeof whole - 1));
    assert_memory_equal(info.digest, d.digest, 16);
    const struct extent *x = part_extents(p);
    assert_true(x[0].span.begin == 100 && x[0].span.end == 140 && x[0].rows_at == 0 && x[0].rows_bytes == 8 && x[0].aux_bytes == 6);
    assert_true(x[0].records == 4 && x[0].rows == 2 && x[0].errors == 2 && x[0].lines == 6 && x[0].bytes == 40);
    assert_true(x[1].rows_at == x[0].rows_at + x[0].rows_bytes + x[0].aux_bytes + x[0].errors_bytes && x[1].rows_bytes == 3);
    for (int i = 0; i < 2; i++)
        assert_true(x[i].part_extents == 2 && x[i].epoch == EPOCH(3, 9) && x[i].seq == 2);
    part_clear(p); /* the next commit starts from nothing */
    assert_true(part_bytes(p) == 0 && part_extent_count(p) == 0);
    ok(part_begin(p, 210, &err));
    ok(part_end(p, 220, 1, 10, &err)); /* nothing but blank lines */
    ok(part_write(p, parts, 41, EPOCH(3, 9), 3, &info, &err));
    assert_int_equal(info.size_bytes, 0);
    ok(part_verify(parts, 41, EPOCH(3, 9), 3, 0, 0, &err));
    buf_release(&b);
}

/* Of a job of several steps: three rows, none, an error behind them, one. */
static void a_record_may_be_many_rows_or_none(void **state)
{
    (void)state;
    struct buf b = {0};
    struct part_info info;
    ok(part_begin(p, 100, &err));
    ok(part_rows(p, "a0\na1\na2\n", 9, 3, &err));
    ok(part_rows(p, NULL, 0, 0, &err));
    error(120, 3, NULL);
    ok(part_rows(p, "d0\n", 3, 1, &err));
    ok(part_end(p, 140, 4, 40, &err));
    const struct extent *x = part_extents(p);
    assert_int_equal(x->records, 4);
    assert_int_equal(x->rows, 4);
    assert_int_equal(x->errors, 1);
    assert_int_equal(x->rows_bytes, 12);
    ok(part_write(p, parts, 41, 1, 0, &info, &err));
    read_part(1, 0, &b);
    assert_memory_equal(b.data, "a0\na1\na2\nd0\n", 12);
    assert_non_null(strstr(buf_cstr(&b), "\"row\":3")); /* before the error stand three */
    buf_release(&b);
}

static void a_taken_name_is_not_touched(void **state)
{
    (void)state;
    struct part_info info;
    struct buf b = {0};
    char path[200];
    part_path(path, sizeof path, parts, 41, 5, 1);
    fill();
    ok(part_write(p, parts, 41, 5, 1, &info, &err));
    part_clear(p);
    ok(part_begin(p, 1, &err));
    row("other\n", "");
    ok(part_end(p, 2, 1, 1, &err));
    assert_int_equal(part_write(p, parts, 41, 5, 1, &info, &err), ST_ENV);
    char want[300];
    snprintf(want, sizeof want, "cannot make part '%s': File exists", path);
    assert_string_equal(err.text, want);
    read_part(5, 1, &b);
    assert_memory_equal(b.data, whole, b.len);
    buf_release(&b);
}

/* Whatever fails, the file is gone, the part stands, and the next name takes it. */
static void a_failed_file_is_condemned(void **state)
{
    (void)state;
    static const struct {
        const char *rule, *says;
    } faults[] = {{"part.open:1:EACCES", "cannot make part '"},
                  {"part.write:1:ENOSPC", "free some space, then go on"},
                  {"part.write:1:EIO", "cannot write part '"},
                  {"part.fsync:1:EIO", "cannot sync part '"},
                  {"part.dirsync:1:EIO", "cannot sync folder '"}};
    struct part_info info;
    struct buf b = {0};
    char path[200];
    fill();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fault_set(faults[i].rule);
        assert_int_equal(part_write(p, parts, 41, 7, 2 * i, &info, &err), ST_ENV);
        fault_set(NULL);
        assert_non_null(strstr(err.text, faults[i].says));
        part_path(path, sizeof path, parts, 41, 7, 2 * i);
        assert_false(path_exists(path));
        ok(part_write(p, parts, 41, 7, 2 * i + 1, &info, &err));
        read_part(7, 2 * i + 1, &b);
        assert_memory_equal(b.data, whole, sizeof whole - 1);
    }
    fault_set("part.write:1:EINTR"); /* is no failure */
    ok(part_write(p, parts, 41, 7, 100, &info, &err));
    fault_set(NULL);
    buf_release(&b);
}

static void a_folder_that_went_is_made_again(void **state)
{
    (void)state;
    struct part_info info;
    fill();
    ok(part_write(p, parts, 41, 8, 1, &info, &err));
    ok(path_remove_tree(parts, &err));
    assert_int_equal(part_write(p, parts, 41, 8, 2, &info, &err), ST_ENV); /* says so once */
    ok(part_write(p, parts, 41, 8, 3, &info, &err));
    ok(part_verify(parts, 41, 8, 3, info.size_bytes, 0, &err));
}

static void *late(void *arg)
{
    struct part_info info;
    struct err e;
    clock_sleep_ms(60);
    return part_write(p, parts, 41, 9, *(uint64_t *)arg, &info, &e) == ST_OK ? NULL : arg;
}

static void verification(void **state)
{
    (void)state;
    struct part_info info;
    char want[300], path[200];
    fill();
    part_path(path, sizeof path, parts, 41, 9, 1);
    assert_int_equal(part_verify(parts, 41, 9, 1, 5, 0, &err), ST_NOT_FOUND);
    snprintf(want, sizeof want, "part '%s' cannot be seen: No such file or directory", path);
    assert_string_equal(err.text, want);
    ok(part_write(p, parts, 41, 9, 1, &info, &err));
    ok(part_verify(parts, 41, 9, 1, info.size_bytes, 0, &err));
    assert_int_equal(part_verify(parts, 41, 9, 1, 5, 0, &err), ST_CORRUPT);
    snprintf(want, sizeof want, "part '%s' has %zu bytes instead of 5", path, sizeof whole - 1);
    assert_string_equal(err.text, want);
    pthread_t t;
    void *failed = NULL;
    uint64_t seq = 2; /* it shows up while we wait */
    assert_int_equal(pthread_create(&t, NULL, late, &seq), 0);
    ok(part_verify(parts, 41, 9, 2, info.size_bytes, 60000, &err));
    pthread_join(t, &failed);
    assert_null(failed);
    part_path(path, sizeof path, parts, 41, 9, 3);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(part_verify(parts, 41, 9, 3, 5, 0, &err), ST_CORRUPT);
    snprintf(want, sizeof want, "part '%s' is no regular file", path);
    assert_string_equal(err.text, want);
}

static int keep_odd(void *arg, uint64_t epoch, uint64_t seq)
{
    *(uint64_t *)arg += epoch;
    return seq % 2 == 1;
}

static void sweeping_touches_only_parts_of_the_job(void **state)
{
    (void)state;
    static const char *const names[] = {"7-1", "7-2", "8-4", "8-5", "18446744073709551615-6", "07-2", "7-", "-2", "7-2.tmp", "x", "7-2-2",
                                        "99999999999999999999-2", "7 -2"};
    uint64_t removed = 99, epochs = 0;
    char path[300];
    ok(part_sweep(parts, 41, keep_odd, &epochs, &removed, &err)); /* there is no folder yet */
    assert_int_equal(removed, 0);
    for (int job = 41; job <= 42; job++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(path, sizeof path, "%s/%d", parts, job);
            ok(path_make_dirs(path, 0777, &err));
            snprintf(path, sizeof path, "%s/%d/%s", parts, job, names[i]);
            ok(path_write(path, "x", 1, &err));
        }
    ok(part_sweep(parts, 41, keep_odd, &epochs, &removed, &err));
    assert_int_equal(removed, 3);
    for (int job = 41; job <= 42; job++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            int gone = job == 41 && (i == 1 || i == 2 || i == 4);
            snprintf(path, sizeof path, "%s/%d/%s", parts, job, names[i]);
            assert_int_equal(path_exists(path), !gone);
        }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct part *q = NULL;
        struct part_info info;
        mem_fail_nth(n);
        enum status st = part_new(&q, &err);
        if (st == ST_OK)
            st = part_begin(q, 1, &err);
        for (int i = 0; i < 40 && st == ST_OK; i++) {
            struct part_error x = {.record = {5, 6}, .code = "c", .message = "m"};
            size_t rows = part_bytes(q);
            st = part_row(q, "a row\n", 6, "an id\n", 6, &err);
            if (st != ST_OK)
                assert_int_equal(part_bytes(q), rows); /* all or nothing */
            if (st == ST_OK)
                st = part_error(q, &x, &err);
        }
        if (st == ST_OK)
            st = part_end(q, 9, 1, 8, &err);
        if (st == ST_OK)
            st = part_write(q, parts, 41, 11, n, &info, &err);
        uint64_t made = mem_fail_nth(0);
        part_free(q);
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
        T(sections_lie_one_behind_another),
        T(a_record_may_be_many_rows_or_none),
        T(a_taken_name_is_not_touched),
        T(a_failed_file_is_condemned),
        T(a_folder_that_went_is_made_again),
        T(verification),
        T(sweeping_touches_only_parts_of_the_job),
        T(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
