/* Are inputs listed as a person expects, in one order, and is everything that cannot be read named at once? */
#include "tests/unit/storage/input_files.h"

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include "storage/dataset.h"

static char *folder(void **state, const char *name)
{
    char *path = path_join(*state, name);
    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static void touch(const char *dir, const char *name, const char *text)
{
    mem_free(put(dir, name, text, strlen(text)));
}

/* NULL-terminated inputs relative to dir. */
static enum status try_open(const char *dir, const char *const *inputs, enum format format, uint64_t limit, struct dataset *d,
                            struct err *e)
{
    char *paths[8];
    size_t count = 0;
    for (; inputs[count]; count++)
        paths[count] = path_join(dir, inputs[count]);
    struct dataset_spec spec = {.inputs = (const char *const *)paths, .input_count = count, .format = format, .limit = limit};
    enum status status = dataset_open(&spec, d, e);
    while (count)
        mem_free(paths[--count]);
    return status;
}
#define INPUTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_sources(const char *dir, const char *const *inputs, enum format format, const char *const *want)
{
    struct dataset d;
    assert_ok(try_open(dir, inputs, format, 0, &d, e));
    for (size_t i = 0; i < d.count || want[i]; i++) {
        if (i == d.count || !want[i])
            fail_msg("%s: source %zu is %s, not %s", inputs[0], i, i < d.count ? d.sources[i].path : "not there", want[i] ? want[i] : "none");
        assert_string_equal(d.sources[i].path + strlen(dir) + 1, want[i]);
        assert_int_equal(d.sources[i].base, d.layout.base[i]);
    }
    assert_int_equal(d.end, layout_end(&d.layout));
    dataset_release(&d);
}

static void expect_refusal(const char *dir, const char *const *inputs, enum format format, const char *words)
{
    struct dataset d;
    struct err e = {0};
    assert_int_equal(try_open(dir, inputs, format, 0, &d, &e), ST_USER);
    if (!strstr(e.text, words))
        fail_msg("%s", e.text);
}

/* a tree:  a.jsonl  b.jsonl.gz  B.jsonl  .hidden.jsonl  [x].jsonl  sub/{10,2}.jsonl  sub/deep/c.jsonl  sub/.git/d.jsonl
   link.jsonl -> a.jsonl  loop -> .  */
static char *tree(void **state, const char *name)
{
    char *dir = folder(state, name);
    char *sub = path_join(dir, "sub"), *deep = path_join(sub, "deep"), *git = path_join(sub, ".git");
    mkdir(sub, 0755);
    mkdir(deep, 0755);
    mkdir(git, 0755);
    touch(dir, "a.jsonl", "{}\n");
    struct source s = put_source(dir, "b.jsonl.gz", COMPRESSION_GZIP, "{}\n", 3);
    mem_free(s.path);
    touch(dir, "B.jsonl", "");
    touch(dir, ".hidden.jsonl", "{}\n");
    touch(dir, "[x].jsonl", "{}\n");
    touch(sub, "10.jsonl", "{}\n");
    touch(sub, "2.jsonl", "{}\n");
    touch(deep, "c.jsonl", "{}\n");
    touch(git, "d.jsonl", "{}\n");
    char *link = path_join(dir, "link.jsonl"), *loop = path_join(dir, "loop");
    assert_int_equal(symlink("a.jsonl", link), 0);
    assert_int_equal(symlink(".", loop), 0);
    mem_free(link);
    mem_free(loop);
    mem_free(sub);
    mem_free(deep);
    mem_free(git);
    return dir;
}

static void folders_and_patterns(void **state)
{
    char *dir = tree(state, "tree");
    expect_sources(dir, INPUTS("a.jsonl"), FORMAT_AUTO, INPUTS("a.jsonl"));
    expect_sources(dir, INPUTS("sub"), FORMAT_AUTO, INPUTS("sub/10.jsonl", "sub/2.jsonl", "sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("."), FORMAT_AUTO,
                   INPUTS("B.jsonl", "[x].jsonl", "a.jsonl", "b.jsonl.gz", "link.jsonl", "sub/10.jsonl", "sub/2.jsonl", "sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("*.jsonl"), FORMAT_AUTO, INPUTS("B.jsonl", "[x].jsonl", "a.jsonl", "link.jsonl"));
    expect_sources(dir, INPUTS("[a-b].*"), FORMAT_AUTO, INPUTS("a.jsonl", "b.jsonl.gz"));
    expect_sources(dir, INPUTS("[x].jsonl"), FORMAT_AUTO, INPUTS("[x].jsonl"));
    expect_sources(dir, INPUTS("?.jsonl"), FORMAT_AUTO, INPUTS("B.jsonl", "a.jsonl"));
    expect_sources(dir, INPUTS(".hid*"), FORMAT_AUTO, INPUTS(".hidden.jsonl"));
    expect_sources(dir, INPUTS("**/*.jsonl"), FORMAT_AUTO,
                   INPUTS("B.jsonl", "[x].jsonl", "a.jsonl", "link.jsonl", "sub/10.jsonl", "sub/2.jsonl", "sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("**/**/c.jsonl"), FORMAT_AUTO, INPUTS("sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("s*/**"), FORMAT_AUTO, INPUTS("sub/10.jsonl", "sub/2.jsonl", "sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("l*/?.jsonl"), FORMAT_AUTO, INPUTS("loop/B.jsonl", "loop/a.jsonl"));
    expect_sources(dir, INPUTS("sub/**/*"), FORMAT_AUTO, INPUTS("sub/10.jsonl", "sub/2.jsonl", "sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("*/deep"), FORMAT_AUTO, INPUTS("sub/deep/c.jsonl"));
    expect_sources(dir, INPUTS("sub/*/c.jsonl", "a.jsonl", "sub/*.jsonl"), FORMAT_AUTO,
                   INPUTS("sub/deep/c.jsonl", "a.jsonl", "sub/10.jsonl", "sub/2.jsonl"));
    expect_refusal(dir, INPUTS("a.jsonl", "./sub/../a.jsonl"), FORMAT_AUTO, "/a.jsonl' is given twice, by two of the inputs");
    expect_refusal(dir, INPUTS("sub", "**/c.jsonl"), FORMAT_AUTO, "/sub/deep/c.jsonl' is given twice");
    expect_refusal(dir, INPUTS("*.csv"), FORMAT_AUTO, "/tree/*.csv' matches no file");
    expect_refusal(dir, INPUTS("no.jsonl"), FORMAT_AUTO, "/tree/no.jsonl' does not exist");
    mem_free(dir);
}

static void formats_by_name(void **state)
{
    char *dir = folder(state, "formats");
    touch(dir, "a.JSONL", "{}\n");
    touch(dir, "b.ndjson", "{}\n");
    touch(dir, "c.json", "{}\n");
    touch(dir, "d.csv", "text\n");
    touch(dir, "e.tsv", "text\n");
    touch(dir, "f.txt", "text\n");
    touch(dir, "g.dat", "text\n");
    touch(dir, "h", "text\n");
    struct source s = put_source(dir, "i.csv.zst", COMPRESSION_ZSTD, "text\n", 5);
    struct dataset d;
    assert_ok(try_open(dir, INPUTS("[abc]*"), FORMAT_AUTO, 0, &d, e));
    assert_int_equal(d.format, FORMAT_JSONL);
    assert_int_equal(d.count, 3);
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("d.csv", "i.csv.zst"), FORMAT_AUTO, 0, &d, e));
    assert_int_equal(d.format, FORMAT_CSV);
    assert_int_equal(d.sources[0].compression, COMPRESSION_NONE);
    assert_int_equal(d.sources[1].compression, COMPRESSION_ZSTD);
    assert_true(layout_is_stream(&d.layout, 0) && layout_is_stream(&d.layout, 1));
    assert_int_equal(d.sources[1].base, 5);
    assert_int_equal(d.sources[1].size_bytes, s.size_bytes);
    assert_int_equal(d.sources[1].mtime_ns, s.mtime_ns);
    assert_int_equal(layout_end(&d.layout), 5 + (s.size_bytes << LAYOUT_STREAM_SHIFT) + (1 << 20));
    assert_int_equal(layout_bytes(&d.layout), 5 + s.size_bytes);
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("e.tsv"), FORMAT_AUTO, 0, &d, e));
    assert_int_equal(d.format, FORMAT_TSV);
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("f.txt"), FORMAT_AUTO, 0, &d, e));
    assert_int_equal(d.format, FORMAT_LINES);
    assert_false(layout_is_stream(&d.layout, 0));
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("d.csv", "g.dat", "h"), FORMAT_LINES, 0, &d, e));
    assert_int_equal(d.format, FORMAT_LINES);
    dataset_release(&d);
    expect_refusal(dir, INPUTS("d.csv", "f.txt"), FORMAT_AUTO, "/d.csv' is csv by its name and '");
    expect_refusal(dir, INPUTS("g.dat"), FORMAT_AUTO, "/g.dat' does not say its format: give --format");
    enum format f;
    assert_true(format_parse("tsv", &f) && f == FORMAT_TSV && !strcmp(format_name(f), "tsv"));
    assert_false(format_parse("excel", &f));
    mem_free(s.path);
    mem_free(dir);
}

static void refused_at_once(void **state)
{
    char *dir = folder(state, "refused");
    touch(dir, "wide.txt", "");
    mem_free(put(dir, "wide16.txt", "\xff\xfe" "a\0b\0", 6));
    mem_free(put(dir, "wide32.txt", "\xff\xfe\0\0" "a\0\0\0", 8));
    mem_free(put(dir, "big16.txt", "\xfe\xff\0a", 4));
    mem_free(put_source(dir, "wide.txt.gz", COMPRESSION_GZIP, "\xff\xfe" "a\0b\0", 6).path);
    mem_free(put_source(dir, "packed.txt", COMPRESSION_GZIP, "words\n", 6).path);
    mem_free(put_source(dir, "packed.csv", COMPRESSION_ZSTD, "words\n", 6).path);
    touch(dir, "array.json", " \n [{\"text\":\"a\"}]\n");
    touch(dir, "array.jsonl", "[1]\n");
    expect_refusal(dir, INPUTS("wide.txt", "wide16.txt"), FORMAT_AUTO, "/wide16.txt' is UTF-16 and ebb reads UTF-8: convert it with iconv -f UTF-16");
    expect_refusal(dir, INPUTS("wide32.txt"), FORMAT_AUTO, "is UTF-32");
    expect_refusal(dir, INPUTS("big16.txt"), FORMAT_AUTO, "is UTF-16");
    expect_refusal(dir, INPUTS("wide.txt.gz"), FORMAT_AUTO, "is UTF-16");
    expect_refusal(dir, INPUTS("packed.txt"), FORMAT_AUTO, "/packed.txt' is compressed, but its name does not end in .gz");
    expect_refusal(dir, INPUTS("packed.csv"), FORMAT_AUTO, "/packed.csv' is compressed, but its name does not end in .zst");
    expect_refusal(dir, INPUTS("array.json"), FORMAT_AUTO, "/array.json' begins with '[': ebb reads JSON Lines");
    struct dataset d;
    assert_ok(try_open(dir, INPUTS("array.json"), FORMAT_JSONL, 0, &d, e));
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("array.jsonl"), FORMAT_AUTO, 0, &d, e));
    dataset_release(&d);
    char *empty = path_join(dir, "empty");
    assert_int_equal(mkdir(empty, 0755), 0);
    expect_refusal(dir, INPUTS("empty"), FORMAT_AUTO, "/empty' holds no files");
    char *pipe = path_join(dir, "pipe.txt"), *dangling = path_join(empty, "gone.txt");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    expect_refusal(dir, INPUTS("pipe.txt"), FORMAT_AUTO, "/pipe.txt' is no regular file");
    assert_int_equal(symlink("nowhere", dangling), 0);
    expect_refusal(dir, INPUTS("empty"), FORMAT_AUTO, "cannot read '");
    expect_refusal(dir, INPUTS("empty"), FORMAT_AUTO, "/gone.txt': No such file");
    if (geteuid() != 0) { /* root reads everything */
        char *secret = put(dir, "secret.txt", "x\n", 2), *closed = path_join(dir, "closed");
        assert_int_equal(chmod(secret, 0), 0);
        assert_int_equal(mkdir(closed, 0), 0);
        expect_refusal(dir, INPUTS("secret.txt"), FORMAT_AUTO, "/secret.txt': Permission denied");
        expect_refusal(dir, INPUTS("closed"), FORMAT_AUTO, "cannot read the folder '");
        chmod(closed, 0700);
        mem_free(secret);
        mem_free(closed);
    } else {
        print_message("not tried: files that cannot be read; root reads them all\n");
    }
    struct dataset_spec none = {0};
    struct err err = {0};
    assert_int_equal(dataset_open(&none, &d, &err), ST_USER);
    mem_free(pipe);
    mem_free(dangling);
    mem_free(empty);
    mem_free(dir);
}

static void limits(void **state)
{
    char *dir = folder(state, "limits");
    touch(dir, "a.jsonl", "{}\n\nnot json\n{}"); /* 3 records, one bad, ends at 15 */
    touch(dir, "b.jsonl", "");
    touch(dir, "c.jsonl", "{}\n{}\n");
    const uint64_t ends[] = {0, 3, 13, 15, 18, 21, 21, 21};
    for (uint64_t limit = 1; limit < 8; limit++) {
        struct dataset d;
        assert_ok(try_open(dir, INPUTS("*.jsonl"), FORMAT_AUTO, limit, &d, e));
        assert_int_equal(d.end, ends[limit]);
        dataset_release(&d);
    }
    touch(dir, "d.csv", "text\n\"a\nb\"\nc\n");
    struct dataset d;
    assert_ok(try_open(dir, INPUTS("d.csv"), FORMAT_AUTO, 1, &d, e));
    assert_int_equal(d.end, 11);
    dataset_release(&d);
    struct source s = put_source(dir, "e.csv.gz", COMPRESSION_GZIP, "text\n\"a\nb\"\nc\n", 13);
    assert_ok(try_open(dir, INPUTS("e.csv.gz"), FORMAT_AUTO, 1, &d, e));
    assert_int_equal(d.end, 11);
    dataset_release(&d);
    assert_ok(try_open(dir, INPUTS("e.csv.gz"), FORMAT_AUTO, 3, &d, e));
    assert_int_equal(d.end, layout_end(&d.layout));
    dataset_release(&d);
    mem_free(s.path);
    mem_free(dir);
}

static void identity(void **state)
{
    char *dir = folder(state, "identity");
    touch(dir, "a.txt", "one\ntwo\n");
    touch(dir, "b.txt", "three\n");
    struct dataset then, now;
    uint8_t first[16], second[16];
    char words[256];
    assert_ok(try_open(dir, INPUTS("*.txt"), FORMAT_AUTO, 0, &then, e));
    assert_ok(try_open(dir, INPUTS("*.txt"), FORMAT_AUTO, 0, &now, e));
    dataset_digest(&then, first);
    dataset_digest(&now, second);
    assert_memory_equal(first, second, 16);
    assert_false(dataset_differs(&then, &now, words, sizeof words));
    dataset_release(&now);
    const struct {
        const char *name, *text, *words;
        uint64_t limit;
        enum format format;
    } changes[] = {
        {NULL, NULL, "the limit of records is another", 1, FORMAT_AUTO},
        {NULL, NULL, "the format was lines and is csv", 0, FORMAT_CSV},
        {"b.txt", "three and more\n", "/b.txt' had 6 bytes and has 15", 0, FORMAT_AUTO},
        {"c.txt", "four\n", "/c.txt' is new (there were 2 sources and are 3)", 0, FORMAT_AUTO},
        {"aa.txt", "four\n", "source 2 was '", 0, FORMAT_AUTO},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (changes[i].name)
            touch(dir, changes[i].name, changes[i].text);
        assert_ok(try_open(dir, INPUTS("*.txt"), changes[i].format, changes[i].limit, &now, e));
        dataset_digest(&now, second);
        assert_memory_not_equal(first, second, 16);
        assert_true(dataset_differs(&then, &now, words, sizeof words));
        if (!strstr(words, changes[i].words))
            fail_msg("%s", words);
        dataset_release(&now);
        if (changes[i].name && changes[i].name[0] != 'a') { /* as it was, time and all */
            if (changes[i].name[0] == 'c') {
                char *gone = path_join(dir, "c.txt");
                unlink(gone);
                mem_free(gone);
            } else {
                touch(dir, "b.txt", "three\n");
                struct timespec times[2] = {{0, UTIME_OMIT},
                                            {then.sources[1].mtime_ns / 1000000000, then.sources[1].mtime_ns % 1000000000}};
                assert_int_equal(utimensat(AT_FDCWD, then.sources[1].path, times, 0), 0);
            }
            assert_ok(try_open(dir, INPUTS("*.txt"), FORMAT_AUTO, 0, &now, e));
            assert_false(dataset_differs(&then, &now, words, sizeof words));
            dataset_release(&now);
        }
    }
    struct timespec later[2] = {{0, UTIME_OMIT}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, then.sources[0].path, later, 0), 0);
    assert_ok(try_open(dir, INPUTS("*.txt"), FORMAT_AUTO, 0, &now, e));
    assert_true(dataset_differs(&then, &now, words, sizeof words));
    assert_non_null(strstr(words, "/a.txt' was written again"));
    dataset_release(&now);
    dataset_release(&then);
    mem_free(dir);
}

static struct dataset made_up(size_t count, struct random *r)
{
    struct dataset d = {.format = FORMAT_JSONL, .count = count, .sources = mem_array(count, sizeof *d.sources)};
    for (size_t i = 0; i < count; i++)
        d.sources[i] = (struct source){.path = mem_printf("/data/%lu/part-%zu.jsonl%s", (unsigned long)rnd(r, 9), i, i % 3 ? ".gz" : ""),
                                       .size_bytes = rnd(r, 1000000),
                                       .mtime_ns = (int64_t)rnd(r, UINT64_MAX),
                                       .compression = i % 3 ? COMPRESSION_GZIP : COMPRESSION_NONE};
    return d;
}

static enum status decode_all(const struct dataset *d, struct dataset *back, struct err *e)
{
    struct buf b = {0};
    int more = 1;
    enum status status = ST_OK;
    *back = (struct dataset){0};
    for (size_t chunk = 0; more && status == ST_OK; chunk++) {
        b.len = 0;
        status = dataset_encode_chunk(d, chunk, &b, &more, e);
        if (status == ST_OK)
            status = dataset_decode_chunk(back, b.data, b.len, e);
    }
    if (status == ST_OK)
        status = dataset_finish(back, e);
    if (status != ST_OK)
        dataset_release(back);
    buf_release(&b);
    return status;
}

static void chunks(void **state)
{
    (void)state;
    struct random r = {21};
    for (size_t count = 1; count < 20000; count = count * 3 + (count == 1 ? 0 : 4096 % count)) {
        struct dataset d = made_up(count, &r), back;
        d.end = 12;
        assert_ok(decode_all(&d, &back, e));
        uint8_t a[16], b[16];
        dataset_digest(&d, a);
        dataset_digest(&back, b);
        assert_memory_equal(a, b, 16);
        assert_int_equal(back.count, count);
        assert_int_equal(back.layout.count, count);
        assert_int_equal(back.sources[count - 1].base, back.layout.base[count - 1]);
        assert_int_equal(back.sources[count - 1].compression, d.sources[count - 1].compression);
        dataset_release(&back);
        dataset_release(&d);
    }
    struct dataset exact = made_up(4096, &r), back;
    exact.end = 1;
    assert_ok(decode_all(&exact, &back, e));
    assert_int_equal(back.count, 4096);
    dataset_release(&back);
    exact.end = UINT64_MAX;
    struct err err = {0};
    assert_int_equal(decode_all(&exact, &back, &err), ST_CORRUPT);
    dataset_release(&exact);
}

static void bent_chunks(void **state)
{
    (void)state;
    struct random r = {22};
    struct dataset d = made_up(30, &r);
    struct buf b = {0};
    int more;
    unsigned refused = 0;
    for (int round = 0; round < 5000; round++) {
        struct dataset back = {0};
        struct err err = {0};
        b.len = 0;
        assert_ok(dataset_encode_chunk(&d, 0, &b, &more, e));
        size_t len = rnd(&r, 2) ? b.len : (size_t)rnd(&r, b.len);
        if (len == b.len)
            b.data[rnd(&r, rnd(&r, 2) ? 12 : b.len)] = (char)rnd(&r, 256);
        char *exact = mem_alloc(len);
        memcpy(exact, b.data, len);
        enum status status = dataset_decode_chunk(&back, exact, len, &err);
        if (status == ST_OK)
            status = dataset_finish(&back, &err);
        assert_true(status == ST_OK || status == ST_CORRUPT || status == ST_USER);
        refused += status != ST_OK;
        assert_true(status == ST_OK || err.text[0]);
        dataset_release(&back);
        mem_free(exact);
    }
    assert_true(refused > 2000);
    dataset_release(&d);
    buf_release(&b);
}

static void spooled(void **state)
{
    char *path = path_join(*state, "spool");
    int ends[2];
    uint64_t bytes;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(write(ends[1], "one\ntwo\n", 8), 8);
    close(ends[1]);
    assert_ok(dataset_spool(ends[0], path, &bytes, e));
    close(ends[0]);
    assert_int_equal(bytes, 8);
    struct buf b = {0};
    assert_ok(path_read(path, 100, &b, e));
    assert_int_equal(b.len, 8);
    assert_memory_equal(b.data, "one\ntwo\n", 8);
    buf_release(&b);
    mem_free(path);
    /* a failure leaves nothing behind */
    char *dir = folder(state, "spooldir");
    path = path_join(dir, "x");
    struct err err = {0};
    assert_int_equal(dataset_spool(-1, path, &bytes, &err), ST_ENV);
    assert_non_null(strstr(err.text, "cannot read standard input"));
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(dataset_spool(-1, path, &bytes, &err), ST_ENV);
    assert_non_null(strstr(err.text, "cannot make"));
    mem_free(path);
    mem_free(dir);
}

/* Each allocation fails in turn, in listing, limit and chunks. */
static void memory_runs_out(void **state)
{
    char *dir = tree(state, "memory");
    char *pattern = path_join(dir, "[a-l]*"), *sub = path_join(dir, "**/deep");
    const char *inputs[] = {pattern, sub};
    unsigned failures = 0;
    for (uint64_t nth = 1;; nth++) {
        struct dataset_spec spec = {.inputs = inputs, .input_count = 2, .format = FORMAT_JSONL, .limit = 3};
        struct dataset d = {0}, back = {0};
        struct err e = {0};
        mem_fail_nth(nth);
        enum status status = dataset_open(&spec, &d, &e);
        if (status == ST_OK)
            status = decode_all(&d, &back, &e);
        mem_fail_nth(0);
        dataset_release(&d);
        dataset_release(&back);
        if (status == ST_OK)
            break;
        if (status != ST_NOMEM)
            fail_msg("allocation %lu: %s: %s", (unsigned long)nth, status_name(status), e.text);
        failures++;
    }
    assert_true(failures > 30);
    mem_free(pattern);
    mem_free(sub);
    mem_free(dir);
}

/* Ten thousand sources: listing is no worse than n log n. */
static void many_files(void **state)
{
    char *dir = folder(state, "many");
    for (int i = 0; i < 10000; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.txt", i);
        touch(dir, name, "x\n");
    }
    struct dataset d;
    assert_ok(try_open(dir, INPUTS("."), FORMAT_AUTO, 9999, &d, e));
    assert_int_equal(d.count, 10000);
    for (size_t i = 1; i < d.count; i++)
        assert_true(strcmp(d.sources[i - 1].path, d.sources[i].path) < 0);
    assert_int_equal(d.end, 2 * 9999);
    dataset_release(&d);
    mem_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_and_patterns), cmocka_unit_test(formats_by_name), cmocka_unit_test(refused_at_once),
        cmocka_unit_test(limits),               cmocka_unit_test(identity),        cmocka_unit_test(chunks),
        cmocka_unit_test(bent_chunks),          cmocka_unit_test(spooled),         cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(many_files),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
