/* Both implementations go through the same questions; what only one has comes behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/rows.h"
#include "storage/store.h"
#include "storage/store_ops.h"

static struct err err;
static char dir[64];
static struct store *s;

static void ok(enum status st)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), err.text);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, P_tmpdir "/ebb-store-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    store_close(s);
    s = NULL;
    return path_remove_tree(dir, &err) == ST_OK ? 0 : -1;
}

static int open_rocks(void **state)
{
    return make_dir(state) || store_open(dir, &s, &err) != ST_OK ? -1 : 0;
}

static int open_mem(void **state)
{
    return make_dir(state) || store_mem_new(&s, &err) != ST_OK ? -1 : 0;
}

static struct store_batch *batch(void)
{
    struct store_batch *b = NULL;
    ok(store_batch_new(s, &b, &err));
    return b;
}

static void put(struct store_batch *b, enum store_cf cf, const char *key, const char *value)
{
    store_put(b, cf, key, strlen(key), value, strlen(value));
}

static void put_now(enum store_cf cf, const char *key, const char *value, int sync)
{
    struct store_batch *b = batch();
    put(b, cf, key, value);
    ok(store_write(s, b, sync, &err));
    store_batch_free(b);
}

static void expect(struct store *from, enum store_cf cf, const char *key, const char *value)
{
    struct buf v = {0};
    enum status st = store_get(from, cf, key, strlen(key), &v, &err);
    if (!value)
        assert_int_equal(st, ST_NOT_FOUND);
    else {
        ok(st);
        assert_int_equal(v.len, strlen(value));
        assert_memory_equal(v.data, value, v.len);
    }
    buf_release(&v);
}

/* All pairs of [from, to) as "k=v k=v ". */
static void expect_scan(enum store_cf cf, const char *from, const char *to, const char *want)
{
    struct store_iter *i = NULL;
    struct buf b = {0};
    const void *k, *v;
    size_t kl, vl;
    enum status st;
    ok(store_iter_open(s, cf, from, strlen(from), to, strlen(to), &i, &err));
    while ((st = store_iter_next(i, &k, &kl, &v, &vl, &err)) == ST_OK)
        assert_int_equal(buf_printf(&b, "%.*s=%.*s ", (int)kl, (const char *)k, (int)vl, (const char *)v), 0);
    assert_int_equal(st, ST_END);
    assert_int_equal(store_iter_next(i, &k, &kl, &v, &vl, &err), ST_END); /* and stays there */
    store_iter_close(i);
    assert_string_equal(buf_cstr(&b), want);
    buf_release(&b);
}

static void puts_and_deletions(void **state)
{
    (void)state;
    struct store_batch *b = batch();
    assert_int_equal(store_batch_count(b), 0);
    put(b, STORE_JOBS, "b", "2");
    put(b, STORE_JOBS, "a", "1");
    put(b, STORE_JOBS, "ab", "3");
    put(b, STORE_JOBS, "c", "");
    put(b, STORE_SPANS, "a", "other family");
    assert_int_equal(store_batch_count(b), 5);
    ok(store_write(s, b, 1, &err));
    expect_scan(STORE_JOBS, "", "", "a=1 ab=3 b=2 c= ");
    expect_scan(STORE_JOBS, "ab", "c", "ab=3 b=2 ");
    expect_scan(STORE_JOBS, "aa", "", "ab=3 b=2 c= ");
    expect_scan(STORE_JOBS, "x", "", "");
    expect(s, STORE_SPANS, "a", "other family");
    expect(s, STORE_EXTENTS, "a", NULL);
    assert_string_equal(err.text, "no such row in 'extents'");

    store_batch_clear(b);
    put(b, STORE_JOBS, "b", "new");
    store_del(b, STORE_JOBS, "a", 1);
    store_del(b, STORE_JOBS, "nothing", 7);
    ok(store_write(s, b, 0, &err));
    expect_scan(STORE_JOBS, "", "", "ab=3 b=new c= ");

    store_batch_clear(b); /* within a batch the later one wins */
    put(b, STORE_JOBS, "bb", "gone");
    store_del_range(b, STORE_JOBS, "ab", 2, "c", 1);
    put(b, STORE_JOBS, "b", "again");
    ok(store_write(s, b, 1, &err));
    expect_scan(STORE_JOBS, "", "", "b=again c= ");
    store_batch_free(b);
}

/* One batch that says many things of few keys, in any order: the last word on each stands. */
static void the_last_word_on_a_key_stands(void **state)
{
    (void)state;
    struct store_batch *b = batch();
    put(b, STORE_SPANS, "0", "before");
    put(b, STORE_SPANS, "5", "before");
    ok(store_write(s, b, 1, &err));
    store_batch_clear(b);
    for (int i = 0; i < 300; i++) { /* spans that advance: each step deletes one key and puts the next, of three in turn */
        char key[16], value[16];
        snprintf(key, sizeof key, "%c%d", 'z' - i % 3, i / 3);
        store_del(b, STORE_SPANS, key, strlen(key));
        snprintf(key, sizeof key, "%c%d", 'z' - i % 3, i / 3 + 1);
        snprintf(value, sizeof value, "%d", i);
        put(b, STORE_SPANS, key, value);
        put(b, STORE_JOBS, "same", value);
    }
    store_del(b, STORE_SPANS, "0", 1);
    put(b, STORE_SPANS, "5", "gone soon");
    store_del(b, STORE_SPANS, "5", 1);
    put(b, STORE_SPANS, "5", "back");
    put(b, STORE_SPANS, "50", "longer");
    ok(store_write(s, b, 1, &err));
    expect_scan(STORE_SPANS, "", "", "5=back 50=longer x100=299 y100=298 z100=297 ");
    expect(s, STORE_JOBS, "same", "299");
    store_batch_clear(b);
    put(b, STORE_SPANS, "6", "1"); /* what is put behind the deletion of a range stays */
    store_del_range(b, STORE_SPANS, "5", 1, "z", 1);
    put(b, STORE_SPANS, "50", "new");
    ok(store_write(s, b, 1, &err));
    expect_scan(STORE_SPANS, "", "", "50=new z100=297 ");
    store_batch_free(b);
}

static void iterators_are_snapshots(void **state)
{
    (void)state;
    put_now(STORE_SPANS, "a", "1", 0);
    put_now(STORE_SPANS, "b", "2", 0);
    struct store_iter *i = NULL;
    const void *k, *v;
    size_t kl, vl;
    ok(store_iter_open(s, STORE_SPANS, "", 0, NULL, 0, &i, &err));
    put_now(STORE_SPANS, "b", "changed", 1);
    put_now(STORE_SPANS, "c", "3", 1);
    struct store_batch *b = batch();
    store_del(b, STORE_SPANS, "a", 1);
    ok(store_write(s, b, 1, &err));
    store_batch_free(b);
    ok(store_iter_next(i, &k, &kl, &v, &vl, &err));
    assert_memory_equal(v, "1", 1);
    ok(store_iter_next(i, &k, &kl, &v, &vl, &err));
    assert_int_equal(vl, 1);
    assert_memory_equal(v, "2", 1);
    assert_int_equal(store_iter_next(i, &k, &kl, &v, &vl, &err), ST_END);
    store_iter_close(i);
    expect_scan(STORE_SPANS, "", "", "b=changed c=3 ");
}

static void checkpoints_are_databases(void **state)
{
    (void)state;
    char copy[96];
    put_now(STORE_META, "x", "1", 1);
    put_now(STORE_EVENTS, "y", "2", 1);
    snprintf(copy, sizeof copy, "%s/copy", dir);
    ok(store_checkpoint(s, copy, &err));
    put_now(STORE_META, "x", "later", 1);
    struct store *c = NULL;
    ok(store_open(copy, &c, &err));
    expect(c, STORE_META, "x", "1");
    expect(c, STORE_EVENTS, "y", "2");
    store_close(c);
}

static void a_failed_write_ends_it(void **state)
{
    (void)state;
    put_now(STORE_JOBS, "a", "1", 1);
    struct store_batch *b = batch();
    put(b, STORE_JOBS, "b", "2");
    fault_set("store.write:1:ENOSPC");
    assert_int_equal(store_write(s, b, 1, &err), ST_ENV);
    assert_string_equal(err.text, "cannot write to the database: No space left on device");
    assert_int_equal(store_write(s, b, 1, &err), ST_ENV); /* also when there is space again */
    assert_string_equal(err.text, "the database failed before: it must be closed and opened anew");
    fault_set(NULL);
    store_batch_free(b);
    expect(s, STORE_JOBS, "a", "1");
}

static void memory_out_in_a_batch_is_reported(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct store_batch *b = NULL;
        mem_fail_nth(n);
        enum status st = store_batch_new(s, &b, &err);
        if (st == ST_OK) {
            for (int i = 0; i < 40; i++) {
                char key[8];
                snprintf(key, sizeof key, "k%02d", i);
                put(b, STORE_JOBS, key, "a value that makes the batch grow over its first size");
            }
            store_del_range(b, STORE_JOBS, "k10", 3, "k20", 3);
            st = store_write(s, b, 1, &err);
        }
        uint64_t made = mem_fail_nth(0);
        store_batch_free(b);
        if (made < n) {
            ok(st);
            break;
        }
        assert_int_equal(st, ST_NOMEM);
        expect_scan(STORE_JOBS, "", "", ""); /* nothing of it is there */
    }
    expect(s, STORE_JOBS, "k09", "a value that makes the batch grow over its first size");
    expect(s, STORE_JOBS, "k10", NULL);
}

/* RocksDB ----------------------------------------------------------------------------------------------------------------------- */

static void it_is_there_after_a_restart(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        put_now(STORE_EXTENTS, key, "v", i & 1);
        store_close(s);
        s = NULL;
        ok(store_open(dir, &s, &err));
        expect(s, STORE_EXTENTS, key, "v");
    }
}

/* A process of its own writes and is killed: what was synced is there. No database may be open here meanwhile. */
static void synced_rows_survive_a_kill(void **state)
{
    (void)state;
    store_close(s);
    s = NULL;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    char self[512] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char fd[16];
        snprintf(fd, sizeof fd, "%d", pipes[1]);
        execl(self, self, "--write-for-ever", dir, fd, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    uint32_t last = 0, n;
    while (read(pipes[0], &n, sizeof n) == (ssize_t)sizeof n) {
        last = n;
        if (n == 200)
            kill(pid, SIGKILL);
    }
    close(pipes[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && last >= 200);
    ok(store_open(dir, &s, &err));
    uint32_t generation = 0;
    ok(rows_get_generation(s, &generation, &err));
    assert_true(generation >= last);
}

static void write_for_ever(const char *where, int fd)
{
    struct store *w = NULL;
    struct store_batch *b = NULL;
    if (store_open(where, &w, &err) != ST_OK || store_batch_new(w, &b, &err) != ST_OK)
        _exit(1);
    for (uint32_t n = 1;; n++) {
        store_batch_clear(b);
        rows_put_generation(b, n);
        if (store_write(w, b, 1, &err) != ST_OK || write(fd, &n, sizeof n) != (ssize_t)sizeof n)
            _exit(1);
    }
}

static void a_second_process_is_refused(void **state)
{
    (void)state;
    struct store *second = NULL;
    char want[400];
    assert_int_equal(store_open(dir, &second, &err), ST_ENV);
    snprintf(want, sizeof want, "database in '%s' is in use by this very process (lock '%s/LOCK')", dir, dir);
    assert_string_equal(err.text, want);
    /* and from another process: it says by whom */
    char self[512] = "", line[1200] = "", command[700];
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "'%s' --try-open '%s'", self, dir);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_non_null(fgets(line, sizeof line, p));
    pclose(p);
    snprintf(want, sizeof want, "database in '%s' is in use by another process (lock '%s/LOCK', pid %d): stop it first", dir, dir, (int)getpid());
    assert_string_equal(line, want);
    put_now(STORE_JOBS, "still", "mine", 1);
}

static void try_open(const char *where)
{
    struct store *second = NULL;
    fputs(store_open(where, &second, &err) == ST_OK ? "opened" : err.text, stdout);
}

static void a_newer_format_is_refused(void **state)
{
    (void)state;
    struct store_batch *b = batch();
    store_put(b, STORE_META, "format", 6, "\0\0\0\x09", 4);
    ok(store_write(s, b, 1, &err));
    store_batch_free(b);
    store_close(s);
    s = NULL;
    char want[400];
    assert_int_equal(store_open(dir, &s, &err), ST_USER);
    snprintf(want, sizeof want, "database in '%s' has format 9 and this program knows formats up to 1: use the newer ebb that wrote it", dir);
    assert_string_equal(err.text, want);
    assert_null(s);
}

/* A family that nobody here knows: only a newer program can have made it. */
static void a_newer_family_is_refused(void **state)
{
    (void)state;
    store_close(s);
    s = NULL;
    const char *names[STORE_CF_COUNT + 2] = {"default", "names"};
    rocksdb_options_t *o = rocksdb_options_create();
    const rocksdb_options_t *opts[STORE_CF_COUNT + 2] = {o, o};
    rocksdb_column_family_handle_t *cf[STORE_CF_COUNT + 2];
    for (int i = 0; i < STORE_CF_COUNT; i++) {
        names[i + 2] = store_cf_name((enum store_cf)i);
        opts[i + 2] = o;
    }
    rocksdb_options_set_create_missing_column_families(o, 1);
    for (int newer = 0; newer < 2; newer++) {
        char *text = NULL, want[400];
        rocksdb_t *db = rocksdb_open_column_families(o, dir, STORE_CF_COUNT + 2, names, opts, cf, &text);
        assert_null(text);
        if (newer) {
            rocksdb_writeoptions_t *w = rocksdb_writeoptions_create();
            rocksdb_put_cf(db, w, cf[2 + STORE_META], "format", 6, "\0\0\0\3", 4, &text);
            assert_null(text);
            rocksdb_writeoptions_destroy(w);
        }
        for (int i = 0; i < STORE_CF_COUNT + 2; i++)
            rocksdb_column_family_handle_destroy(cf[i]);
        rocksdb_close(db);
        assert_int_equal(store_open(dir, &s, &err), ST_USER);
        snprintf(want, sizeof want, newer ? "database in '%s' has format 3 and this program knows formats up to 1: use the newer ebb that wrote it"
                                          : "database in '%s' has a family 'names' that this program (format 1) does not know: it is not ebb's",
                 dir);
        assert_string_equal(err.text, want);
    }
    rocksdb_options_destroy(o);
}

/* A disk that takes no more, as the kernel tells it: files of this process may not grow any more. The store says so, takes nothing
   more, and is whole when it is opened anew with space. */
static void fill_the_disk(const char *where)
{
    struct rlimit r = {256 * 1024, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    struct store_batch *b = NULL;
    char value[4000];
    memset(value, 'v', sizeof value);
    if (store_open(where, &s, &err) != ST_OK || store_batch_new(s, &b, &err) != ST_OK || setrlimit(RLIMIT_FSIZE, &r))
        _exit(1);
    for (uint32_t n = 1;; n++) {
        store_batch_clear(b);
        rows_put_generation(b, n);
        store_put(b, STORE_JOBS, &n, sizeof n, value, sizeof value);
        if (store_write(s, b, 1, &err) == ST_OK)
            continue;
        printf("%u %s\n", n, err.text);
        r.rlim_cur = RLIM_INFINITY;
        setrlimit(RLIMIT_FSIZE, &r);
        printf("%s\n", store_write(s, b, 1, &err) == ST_ENV ? err.text : "taken");
        store_close(s);
        exit(0);
    }
}

static void a_full_disk_is_said(void **state)
{
    (void)state;
    store_close(s);
    s = NULL;
    char self[512] = "", line[1200] = "", command[700], want[300];
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "'%s' --fill-the-disk '%s'", self, dir);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    unsigned failed_at = 0;
    assert_int_equal(fscanf(p, "%u ", &failed_at), 1);
    assert_true(failed_at > 10);
    assert_non_null(fgets(line, sizeof line, p));
    snprintf(want, sizeof want, "cannot write to the database in '%s': ", dir);
    assert_memory_equal(line, want, strlen(want));
    assert_non_null(strstr(line, "File too large"));
    assert_non_null(fgets(line, sizeof line, p));
    assert_string_equal(line, "the database failed before: it must be closed and opened anew\n");
    assert_int_equal(pclose(p), 0);
    ok(store_open(dir, &s, &err));
    uint32_t generation = 0;
    ok(rows_get_generation(s, &generation, &err));
    assert_true(generation + 1 >= failed_at); /* all that were acknowledged */
}

static void places_that_cannot_be(void **state)
{
    (void)state;
    struct store *none = NULL;
    char path[96];
    snprintf(path, sizeof path, "%s/a-file", dir);
    ok(path_write(path, "x", 1, &err));
    assert_int_equal(store_open(path, &none, &err), ST_USER);
    assert_non_null(strstr(err.text, path));
    store_close(s);
    s = NULL;
    snprintf(path, sizeof path, "%s/CURRENT", dir); /* damage */
    ok(path_write(path, "MANIFEST-999999\n", 16, &err));
    assert_int_not_equal(store_open(dir, &none, &err), ST_OK);
    assert_non_null(strstr(err.text, dir));
    assert_null(none);
}

/* The memory twin --------------------------------------------------------------------------------------------------------------- */

static void a_crash_drops_what_was_not_synced(void **state)
{
    (void)state;
    put_now(STORE_JOBS, "a", "1", 0);
    put_now(STORE_JOBS, "b", "2", 1); /* covers a, too */
    put_now(STORE_JOBS, "a", "changed", 0);
    put_now(STORE_JOBS, "c", "3", 0);
    struct store_batch *b = batch();
    store_del_range(b, STORE_JOBS, "a", 1, "z", 1);
    put(b, STORE_JOBS, "d", "4");
    ok(store_write(s, b, 0, &err));
    store_batch_free(b);
    expect_scan(STORE_JOBS, "", "", "d=4 ");
    store_mem_crash(s);
    expect_scan(STORE_JOBS, "", "", "a=1 b=2 ");
}

static void a_chosen_write_fails(void **state)
{
    (void)state;
    store_mem_fail_write(s, 2);
    put_now(STORE_JOBS, "a", "1", 1);
    struct store_batch *b = batch();
    put(b, STORE_JOBS, "b", "2");
    assert_int_equal(store_write(s, b, 1, &err), ST_ENV);
    assert_int_equal(store_write(s, b, 1, &err), ST_ENV);
    store_mem_crash(s);
    ok(store_write(s, b, 1, &err));
    store_batch_free(b);
    expect_scan(STORE_JOBS, "", "", "a=1 b=2 ");
}

static enum status from_1(struct store *st, struct store_batch *b, struct err *e)
{
    (void)st;
    (void)e;
    put(b, STORE_JOBS, "from 1", "yes");
    return ST_OK;
}

static enum status from_2(struct store *st, struct store_batch *b, struct err *e)
{
    struct buf v = {0};
    TRY(store_get(st, STORE_JOBS, "from 1", 6, &v, e)); /* sees what the step before made */
    buf_release(&v);
    put(b, STORE_JOBS, "from 2", "yes");
    return ST_OK;
}

static enum status step_fails(struct store *st, struct store_batch *b, struct err *e)
{
    (void)st;
    put(b, STORE_JOBS, "half", "done");
    return err_set(e, ST_CORRUPT, "a row does not read");
}

static void older_formats_are_upgraded_step_by_step(void **state)
{
    (void)state;
    store_upgrade_fn *const failing[] = {NULL, from_1, step_fails};
    assert_int_equal(store_upgrade(s, "x", failing, 3, &err), ST_CORRUPT);
    assert_string_equal(err.text, "cannot bring the database in 'x' from format 2 to 3: a row does not read");
    expect_scan(STORE_JOBS, "", "", "from 1=yes "); /* the first step stands, the second left nothing */
    struct buf v = {0};
    ok(store_get(s, STORE_META, "format", 6, &v, &err));
    assert_int_equal(v.len, 4);
    assert_memory_equal(v.data, "\0\0\0\2", 4);
    buf_release(&v);
}

static void upgrades_go_on_where_they_stopped(void **state)
{
    (void)state;
    store_upgrade_fn *const failing[] = {NULL, from_1, step_fails}, *const good[] = {NULL, step_fails, from_2};
    assert_int_equal(store_upgrade(s, "x", failing, 3, &err), ST_CORRUPT);
    ok(store_upgrade(s, "x", good, 3, &err)); /* does not take the first step again */
    expect_scan(STORE_JOBS, "", "", "from 1=yes from 2=yes ");
    ok(store_upgrade(s, "x", good, 3, &err));
    assert_int_equal(store_upgrade(s, "x", good, 2, &err), ST_USER);
}

static void rows_without_a_format_are_refused(void **state)
{
    (void)state;
    struct store_batch *b = batch();
    store_del(b, STORE_META, "format", 6);
    put(b, STORE_SPANS, "x", "y");
    ok(store_write(s, b, 1, &err));
    assert_int_equal(store_upgrade(s, "x", store_upgrade_steps, STORE_FORMAT, &err), ST_CORRUPT);
    assert_string_equal(err.text, "database in 'x' has rows in 'spans' but no format number: it is not ebb's, or damaged");
    store_batch_clear(b);
    store_put(b, STORE_META, "format", 6, "\0\0", 2);
    ok(store_write(s, b, 1, &err));
    assert_int_equal(store_upgrade(s, "x", store_upgrade_steps, STORE_FORMAT, &err), ST_CORRUPT);
    store_batch_free(b);
}

#define BOTH(f) {#f " (rocksdb)", f, open_rocks, drop_dir, NULL}, {#f " (memory)", f, open_mem, drop_dir, NULL}
#define ROCKS(f) {#f, f, open_rocks, drop_dir, NULL}
#define MEM(f) {#f, f, open_mem, drop_dir, NULL}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--write-for-ever") == 0)
        write_for_ever(argv[2], atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "--fill-the-disk") == 0)
        fill_the_disk(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--try-open") == 0) {
        try_open(argv[2]);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        BOTH(puts_and_deletions),
        BOTH(the_last_word_on_a_key_stands),
        BOTH(iterators_are_snapshots),
        BOTH(checkpoints_are_databases),
        BOTH(a_failed_write_ends_it),
        BOTH(memory_out_in_a_batch_is_reported),
        ROCKS(it_is_there_after_a_restart),
        ROCKS(synced_rows_survive_a_kill),
        ROCKS(a_second_process_is_refused),
        ROCKS(a_newer_format_is_refused),
        ROCKS(a_newer_family_is_refused),
        ROCKS(a_full_disk_is_said),
        ROCKS(places_that_cannot_be),
        MEM(a_crash_drops_what_was_not_synced),
        MEM(a_chosen_write_fails),
        MEM(older_formats_are_upgraded_step_by_step),
        MEM(upgrades_go_on_where_they_stopped),
        MEM(rows_without_a_format_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
