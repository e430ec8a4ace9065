/* Does every record come exactly once, with the right place and line, however a source is cut into spans, wherever it is entered, and
   whatever is wrong with it? */
#include "tests/unit/storage/input_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fault.h"

struct seen {
    uint64_t offset, end, line;
    size_t len;
    uint64_t hash;
    enum record_error error;
};

struct list {
    struct seen *items;
    size_t count, cap;
};

static uint64_t hash_of(const char *p, size_t len)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h;
}

static void add(struct list *l, const struct raw *raw, uint64_t line_base)
{
    void *items = l->items;
    assert_int_equal(mem_grow(&items, &l->cap, l->count, sizeof *l->items), 0);
    l->items = items;
    assert_true(raw->error != RECORD_NONE ? raw->len == 0 && raw->message[0] : !raw->message[0]);
    assert_true(raw->end > raw->offset);
    l->items[l->count++] = (struct seen){raw->offset, raw->end, raw->line + line_base, raw->len, hash_of(raw->data, raw->len), raw->error};
}

static void assert_same(const struct list *a, size_t from, const struct list *b)
{
    assert_int_equal(a->count - from, b->count);
    for (size_t i = 0; i < b->count; i++) {
        const struct seen *x = &a->items[from + i], *y = &b->items[i];
        if (x->offset != y->offset || x->end != y->end || x->line != y->line || x->len != y->len || x->hash != y->hash ||
            x->error != y->error)
            fail_msg("record %zu: at %lu-%lu line %lu %zu bytes error %d, and at %lu-%lu line %lu %zu bytes error %d", from + i, x->offset,
                     x->end, x->line, x->len, x->error, y->offset, y->end, y->line, y->len, y->error);
    }
}

/* All records from `from` on in one go. */
static void read_all(const struct source *s, const struct reader_opts *o, uint64_t from, uint64_t line_base, struct list *l)
{
    struct reader *r;
    struct raw raw;
    enum status status;
    l->count = 0;
    assert_ok(reader_open(s, o, from, &r, e));
    assert_int_equal(reader_position(r), from);
    struct err err = {0};
    while ((status = reader_next(r, UINT64_MAX, &raw, &err)) == ST_OK) {
        add(l, &raw, line_base);
        assert_int_equal(reader_position(r), raw.end);
    }
    assert_int_equal(status, ST_END);
    assert_true(reader_at_end(r));
    reader_close(r);
}

static void random_text(struct random *r, struct buf *b, size_t len, const char *alphabet)
{
    b->len = 0;
    assert_int_equal(buf_reserve(b, len + 1), 0);
    if (rnd(r, 4) == 0)
        assert_int_equal(buf_str(b, "\xef\xbb\xbf"), 0);
    while (b->len < len)
        assert_int_equal(buf_char(b, alphabet[rnd(r, strlen(alphabet))]), 0);
}

/* The slow way to read lines. */
static void split_lines(const struct buf *b, enum format format, uint64_t max, struct list *l)
{
    l->count = 0;
    for (size_t at = 0, line = 0; at < b->len; line++) {
        size_t end = at;
        while (end < b->len && b->data[end] != '\n')
            end++;
        struct raw raw = {.offset = at, .end = end + (end < b->len), .line = line, .data = b->data + at, .len = end - at};
        int bom = at == 0 && raw.len >= 3 && !memcmp(raw.data, "\xef\xbb\xbf", 3);
        if (raw.len - (bom ? 3 : 0) > max) {
            raw.error = RECORD_TOO_LONG;
            raw.len = 0;
            raw.message[0] = 'x';
        } else {
            if (bom) {
                raw.data += 3;
                raw.len -= 3;
                if (raw.len == 0 && end == b->len)
                    return;
            }
            if (raw.len && raw.data[raw.len - 1] == '\r')
                raw.len--;
        }
        size_t blank = 0;
        while (blank < raw.len && strchr(" \t\r", raw.data[blank]))
            blank++;
        if (format == FORMAT_LINES || raw.error != RECORD_NONE || blank < raw.len)
            add(l, &raw, 0);
        at = raw.end;
    }
}

static void random_spans_give_each_record_once(void **state)
{
    struct random r = {11};
    struct buf text = {0};
    struct list want = {0}, whole = {0}, parts = {0};
    for (int round = 0; round < 400; round++) {
        struct reader_opts o = {.format = rnd(&r, 2) ? FORMAT_JSONL : FORMAT_LINES, .max_record_bytes = 1 + rnd(&r, 20)};
        random_text(&r, &text, (size_t)rnd(&r, 200), rnd(&r, 2) ? "ab\n\r" : "abcdefgh \n");
        struct source s = put_source(*state, "x", COMPRESSION_NONE, text.data, text.len);
        split_lines(&text, o.format, o.max_record_bytes, &want);
        read_all(&s, &o, 0, 0, &whole);
        assert_same(&whole, 0, &want);
        for (int cut = 0; cut < 5; cut++) {
            parts.count = 0;
            uint64_t lines = 0, bytes = 0;
            for (uint64_t at = 0; at < s.size_bytes;) {
                uint64_t to = at + 1 + rnd(&r, rnd(&r, 2) ? 5 : s.size_bytes - at);
                struct reader *reader;
                struct raw raw;
                struct err err = {0};
                enum status status;
                if (to > s.size_bytes)
                    to = s.size_bytes;
                assert_ok(reader_open(&s, &o, at, &reader, e));
                while ((status = reader_next(reader, to, &raw, &err)) == ST_OK) {
                    assert_in_range(raw.offset, at, to - 1);
                    add(&parts, &raw, lines);
                    uint64_t p = reader_position(reader);
                    assert_int_equal(p, raw.end < to ? raw.end : to);
                    uint64_t count = 0;
                    for (uint64_t i = at; i < p; i++)
                        count += text.data[i] == '\n';
                    assert_int_equal(reader_lines(reader), count);
                }
                assert_int_equal(status, ST_END);
                assert_int_equal(reader_position(reader), to);
                assert_int_equal(reader_at_end(reader), to == s.size_bytes && reader_position(reader) == s.size_bytes);
                lines += reader_lines(reader);
                bytes += reader_bytes(reader);
                reader_close(reader);
                at = to;
            }
            assert_same(&parts, 0, &want);
            assert_int_equal(bytes, s.size_bytes);
        }
        mem_free(s.path);
    }
    mem_free(want.items);
    mem_free(whole.items);
    mem_free(parts.items);
    buf_release(&text);
}

/* One reader whose end is moved on again and again gives the same as one with the end at the end. */
static void a_moving_end(void **state)
{
    struct random r = {12};
    struct buf text = {0};
    struct list whole = {0}, parts = {0};
    for (int round = 0; round < 300; round++) {
        struct reader_opts o = {.format = FORMAT_LINES, .max_record_bytes = 1 + rnd(&r, 30)};
        random_text(&r, &text, 1 + (size_t)rnd(&r, 200), "abcdefg\n");
        struct source s = put_source(*state, "x", COMPRESSION_NONE, text.data, text.len);
        uint64_t from = rnd(&r, s.size_bytes);
        read_all(&s, &o, from, 0, &whole);
        struct reader *reader;
        struct raw raw;
        struct err err = {0};
        parts.count = 0;
        assert_ok(reader_open(&s, &o, from, &reader, e));
        for (uint64_t to = from; to <= s.size_bytes; to += 1 + rnd(&r, 9))
            while (reader_next(reader, to, &raw, &err) == ST_OK)
                add(&parts, &raw, 0);
        while (reader_next(reader, s.size_bytes, &raw, &err) == ST_OK)
            add(&parts, &raw, 0);
        assert_same(&whole, 0, &parts);
        reader_close(reader);
        mem_free(s.path);
    }
    mem_free(whole.items);
    mem_free(parts.items);
    buf_release(&text);
}

static uint64_t newlines(const struct buf *b, uint64_t from, uint64_t to)
{
    uint64_t n = 0;
    for (uint64_t i = from; i < to && i < b->len; i++)
        n += b->data[i] == '\n';
    return n;
}

/* Streams: entering at each record's start gives the rest; reader_boundary gives record starts; bytes at rest add up. */
static void streams_are_entered_at_records(void **state)
{
    struct random r = {13};
    struct buf text = {0};
    struct list whole = {0}, rest = {0};
    for (int round = 0; round < 300; round++) {
        enum format format = (enum format)(FORMAT_JSONL + rnd(&r, 4));
        enum compression kind = (enum compression)rnd(&r, 3);
        if (kind == COMPRESSION_NONE && (format == FORMAT_JSONL || format == FORMAT_LINES))
            kind = COMPRESSION_GZIP;
        struct reader_opts o = {.format = format, .max_record_bytes = rnd(&r, 3) ? 1000 : 1 + rnd(&r, 20)};
        random_text(&r, &text, (size_t)rnd(&r, 300), rnd(&r, 2) ? "ab\n\"," : "abcdefgh \n,\t\"\"");
        struct source s = put_source(*state, "x", kind, text.data, text.len);
        read_all(&s, &o, 0, 0, &whole);
        for (size_t i = 0; i < whole.count; i++) {
            const struct seen *x = &whole.items[i];
            assert_int_equal(x->line, newlines(&text, 0, x->offset));
            if (format == FORMAT_CSV && kind == COMPRESSION_NONE)
                assert_true(x->end == text.len || text.data[x->end - 1] == '\n');
            if (i == 0)
                continue;
            read_all(&s, &o, x->offset, x->line, &rest);
            assert_same(&whole, i, &rest);
            uint64_t target = x->offset + rnd(&r, text.len - x->offset), at, expect = text.len;
            assert_ok(reader_boundary(&s, &o, x->offset, target, &at, e));
            for (size_t k = whole.count; k-- > i;)
                if (whole.items[k].offset >= target)
                    expect = whole.items[k].offset;
            assert_int_equal(at, expect);
        }
        /* random cuts at records */
        uint64_t bytes = 0, lines = 0;
        for (size_t i = 0; i < whole.count || i == 0;) {
            size_t next = i + 1 + (size_t)rnd(&r, 5);
            uint64_t from = i ? whole.items[i].offset : 0, to = next < whole.count ? whole.items[next].offset : UINT64_MAX;
            struct reader *reader;
            struct raw raw;
            struct err err = {0};
            enum status status;
            size_t got = i;
            assert_ok(reader_open(&s, &o, from, &reader, e));
            while ((status = reader_next(reader, to, &raw, &err)) == ST_OK) {
                assert_int_equal(raw.offset, whole.items[got].offset);
                assert_int_equal(raw.line + lines, whole.items[got++].line);
            }
            assert_int_equal(status, ST_END);
            assert_int_equal(got, next < whole.count ? next : whole.count);
            assert_int_equal(reader_position(reader), to == UINT64_MAX ? text.len : to);
            assert_int_equal(reader_lines(reader), newlines(&text, from, to));
            lines += reader_lines(reader);
            bytes += reader_bytes(reader);
            reader_close(reader);
            i = next;
        }
        assert_int_equal(bytes, s.size_bytes);
        mem_free(s.path);
    }
    mem_free(whole.items);
    mem_free(rest.items);
    buf_release(&text);
}

/* Records around and far above the size of a block, compressed and not; what is held is what was written. */
static void large_records(void **state)
{
    struct random r = {14};
    struct buf text = {0};
    struct list want = {0}, got = {0};
    for (int round = 0; round < 6; round++) {
        text.len = 0;
        for (int i = 0; i < 40; i++) {
            size_t len = rnd(&r, 3) ? (size_t)rnd(&r, 300000) : 128 * 1024 - 3 + (size_t)rnd(&r, 6);
            assert_int_equal(buf_reserve(&text, len + 1), 0);
            uint64_t seed = rnd(&r, 1000000);
            for (size_t k = 0; k < len; k++)
                text.data[text.len++] = (char)('a' + (seed + k * k / 7) % 23);
            text.data[text.len++] = '\n';
        }
        struct reader_opts o = {.format = FORMAT_LINES, .max_record_bytes = rnd(&r, 2) ? 250000 : 0};
        struct source s = put_source(*state, "x", (enum compression)(round % 3), text.data, text.len);
        split_lines(&text, FORMAT_LINES, o.max_record_bytes ? o.max_record_bytes : 16 << 20, &want);
        read_all(&s, &o, 0, 0, &got);
        assert_same(&got, 0, &want);
        size_t middle = want.count / 2;
        read_all(&s, &o, want.items[middle].offset, want.items[middle].line, &got);
        assert_same(&want, middle, &got);
        mem_free(s.path);
    }
    mem_free(want.items);
    mem_free(got.items);
    buf_release(&text);
}

static void expect_raw(struct reader *r, const char *text, uint64_t line, enum record_error error)
{
    struct raw raw;
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.error, error);
    assert_int_equal(raw.len, strlen(text));
    assert_memory_equal(raw.data, text, raw.len);
    assert_int_equal(raw.line, line);
}

static void expect_end(struct reader *r)
{
    struct raw raw;
    struct err e = {0};
    assert_int_equal(reader_next(r, UINT64_MAX, &raw, &e), ST_END);
    assert_int_equal(reader_next(r, UINT64_MAX, &raw, &e), ST_END);
    assert_true(reader_at_end(r));
}

static struct reader *open_text(void **state, enum format format, uint64_t max, const char *text, size_t len)
{
    struct source s = put_source(*state, "x", COMPRESSION_NONE, text, len);
    struct reader *r;
    struct reader_opts o = {.format = format, .max_record_bytes = max};
    assert_ok(reader_open(&s, &o, 0, &r, e));
    mem_free(s.path);
    return r;
}
#define OPEN(format, max, text) open_text(state, format, max, text, sizeof(text) - 1)

static void line_ends_and_bom(void **state)
{
    struct reader *r = OPEN(FORMAT_LINES, 0, "\xef\xbb\xbfone\r\n\r\n\ntwo\rthree\nfour");
    expect_raw(r, "one", 0, RECORD_NONE);
    expect_raw(r, "", 1, RECORD_NONE);
    expect_raw(r, "", 2, RECORD_NONE);
    expect_raw(r, "two\rthree", 3, RECORD_NONE);
    expect_raw(r, "four", 4, RECORD_NONE);
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_LINES, 0, "");
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_LINES, 0, "\xef\xbb\xbf");
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_LINES, 0, "\n");
    expect_raw(r, "", 0, RECORD_NONE);
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_JSONL, 0, "\n \t\r\n{}\n\n  ");
    expect_raw(r, "{}", 2, RECORD_NONE);
    expect_end(r);
    reader_close(r);
}

static void csv_rows(void **state)
{
    struct reader *r = OPEN(FORMAT_CSV, 0, "\xef\xbb\xbf\"i\nd\",text\r\n1,\"a\nb\"\r\n\r\n2,\"say \"\"hi\"\"\"\n3,5\" pipe\n4,last");
    expect_raw(r, "1,\"a\nb\"", 2, RECORD_NONE);
    expect_raw(r, "2,\"say \"\"hi\"\"\"", 5, RECORD_NONE);
    expect_raw(r, "3,5\" pipe", 6, RECORD_NONE);
    expect_raw(r, "4,last", 7, RECORD_NONE);
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_CSV, 0, "id,text\n");
    expect_end(r);
    reader_close(r);
    r = OPEN(FORMAT_CSV, 0, "id,text\n1,a\n2,\"never closed\n3,b\n4,c\n");
    expect_raw(r, "1,a", 1, RECORD_NONE);
    struct raw raw;
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.error, RECORD_BAD_QUOTES);
    assert_int_equal(raw.line, 2);
    assert_non_null(strstr(raw.message, "not closed before the end of the source, 3 lines on"));
    expect_end(r);
    reader_close(r);
}

/* A stray quote takes max_record_bytes with it and no more. */
static void a_stray_quote(void **state)
{
    struct reader *r = OPEN(FORMAT_CSV, 20, "id,text\n1,a\n2,\"aaaa\n3,bbbbb\n4,ccccc\n5,d\n6,\"e\nf\"\n");
    struct raw raw;
    expect_raw(r, "1,a", 1, RECORD_NONE);
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.error, RECORD_TOO_LONG);
    assert_int_equal(raw.offset, 12);
    assert_int_equal(raw.line, 2);
    assert_non_null(strstr(raw.message, "a record may have 20; it holds a quote that is not closed"));
    expect_raw(r, "5,d", 5, RECORD_NONE);
    expect_raw(r, "6,\"e\nf\"", 6, RECORD_NONE);
    expect_end(r);
    assert_int_equal(reader_lines(r), 8);
    reader_close(r);
}

static void too_long_to_the_byte(void **state)
{
    struct reader *r = OPEN(FORMAT_LINES, 4, "abcd\nabcde\nabc\r\nabcd\r\nabcd");
    struct raw raw;
    expect_raw(r, "abcd", 0, RECORD_NONE);
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.error, RECORD_TOO_LONG);
    assert_string_equal(raw.message, "5 bytes, a record may have 4");
    expect_raw(r, "abc", 2, RECORD_NONE);
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.error, RECORD_TOO_LONG);
    expect_raw(r, "abcd", 4, RECORD_NONE);
    expect_end(r);
    reader_close(r);
}

static long peak_kib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* A line of 300 MB (a hole in the file, so that no disk is filled), then a good one: one error, flat memory; and spans inside it are empty. */
static void a_huge_line(void **state)
{
    const off_t size = 300 << 20;
    char *path = put(*state, "huge", "first\n", 6);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    assert_int_equal(pwrite(fd, "\nlast\n", 6, size), 6);
    close(fd);
    struct source s = source_at(path, COMPRESSION_NONE);
    for (int csv = 0; csv < 2; csv++) {
        struct reader_opts o = {.format = csv ? FORMAT_CSV : FORMAT_LINES, .max_record_bytes = 1 << 20};
        struct reader *r;
        struct raw raw;
        long before = peak_kib();
        assert_ok(reader_open(&s, &o, 0, &r, e));
        if (!csv)
            expect_raw(r, "first", 0, RECORD_NONE);
        assert_ok(reader_next(r, UINT64_MAX, &raw, e));
        assert_int_equal(raw.error, RECORD_TOO_LONG);
        assert_int_equal(raw.end, size + 1);
        expect_raw(r, "last", 2, RECORD_NONE);
        expect_end(r);
        reader_close(r);
        assert_true(peak_kib() - before < 8 << 10);
        if (csv)
            continue;
        assert_ok(reader_open(&s, &o, 100 << 20, &r, e));
        struct err err = {0};
        assert_int_equal(reader_next(r, (100 << 20) + 1000, &raw, &err), ST_END);
        assert_int_equal(reader_position(r), (100 << 20) + 1000);
        expect_raw(r, "last", 1, RECORD_NONE);
        reader_close(r);
    }
    unlink(path);
    mem_free(path);
}

/* Cut after every byte: records before the fault, one with the error, and nobody who enters anywhere finds the error twice. */
static void broken_streams(void **state)
{
    struct random r = {15};
    struct buf text = {0}, packed = {0};
    struct list whole = {0}, got = {0}, rest = {0};
    for (int i = 0; i < 60; i++)
        assert_int_equal(buf_printf(&text, "%d,%lu\n", i, (unsigned long)rnd(&r, 1000000)), 0);
    split_lines(&text, FORMAT_LINES, 1000, &whole);
    for (int kind = 1; kind < 3; kind++)
        for (int damaged = 0; damaged < 2; damaged++) {
            packed.len = 0;
            add_compressed(&packed, (enum compression)kind, text.data, text.len);
            size_t full = packed.len;
            for (size_t len = 1; len < full; len++) {
                char *path = put(*state, "x", packed.data, len);
                if (damaged) {
                    packed.len = len;
                    memset(packed.data + len, 0xee, full - len);
                    mem_free(path);
                    path = put(*state, "x", packed.data, full);
                    packed.len = 0;
                    add_compressed(&packed, (enum compression)kind, text.data, text.len);
                }
                struct source s = source_at(path, (enum compression)kind);
                struct reader_opts o = {.format = FORMAT_LINES};
                read_all(&s, &o, 0, 0, &got);
                assert_true(got.count > 0 && got.count <= whole.count + 1);
                struct seen last = got.items[got.count - 1];
                if (damaged)
                    assert_true(last.error == RECORD_DAMAGED || last.error == RECORD_TRUNCATED);
                else
                    assert_int_equal(last.error, RECORD_TRUNCATED);
                got.count--;
                if (!damaged) { /* foreign bytes may decompress to something before they are found out */
                    rest.count = 0;
                    for (size_t i = 0; i < got.count; i++)
                        add(&rest, &(struct raw){.offset = whole.items[i].offset, .end = whole.items[i].end, .line = i, .data = "x"}, 0);
                    for (size_t i = 0; i < got.count; i++)
                        assert_true(got.items[i].offset == whole.items[i].offset && got.items[i].hash == whole.items[i].hash);
                }
                assert_int_equal(last.offset, got.count ? got.items[got.count - 1].end : 0);
                got.count++;
                if (len % 7 == 0) {
                    size_t enter = (size_t)rnd(&r, got.count);
                    read_all(&s, &o, got.items[enter].offset, got.items[enter].line, &rest);
                    assert_same(&got, enter, &rest);
                    read_all(&s, &o, last.end, 0, &rest);
                    assert_int_equal(rest.count, 0);
                    uint64_t at;
                    assert_ok(reader_boundary(&s, &o, 0, UINT64_MAX, &at, e));
                    assert_int_equal(at, last.end);
                }
                mem_free(path);
            }
        }
    mem_free(whole.items);
    mem_free(got.items);
    mem_free(rest.items);
    buf_release(&text);
    buf_release(&packed);
}

static void expect_changed(const struct source *s, const char *words)
{
    struct reader_opts o = {.format = FORMAT_LINES};
    struct reader *r;
    struct err e = {0};
    assert_int_equal(reader_open(s, &o, 0, &r, &e), ST_USER);
    assert_non_null(strstr(e.text, s->path));
    assert_non_null(strstr(e.text, "changed since the job was submitted"));
    if (!strstr(e.text, words))
        fail_msg("'%s' is not in '%s'", words, e.text);
}

static void sources_that_change(void **state)
{
    struct source s = put_source(*state, "x", COMPRESSION_NONE, "one\ntwo\n", 8);
    struct reader_opts o = {.format = FORMAT_LINES};
    struct reader *r;
    struct err err = {0};
    struct source smaller = s, older = s, grown = s;
    smaller.size_bytes = 100;
    expect_changed(&smaller, "it had 100 bytes and has 8");
    older.mtime_ns -= 2500000000;
    expect_changed(&older, "it was written again, +2.500 s later");
    grown.size_bytes = 4; /* what came later is not read, and its time does not count */
    grown.mtime_ns -= 1;
    assert_ok(reader_open(&grown, &o, 0, &r, e));
    expect_raw(r, "one", 0, RECORD_NONE);
    expect_end(r);
    reader_close(r);
    /* shorter while it is read */
    assert_ok(reader_open(&s, &o, 0, &r, e));
    assert_int_equal(truncate(s.path, 4), 0);
    struct raw raw;
    enum status status;
    while ((status = reader_next(r, UINT64_MAX, &raw, &err)) == ST_OK)
        ;
    assert_int_equal(status, ST_USER);
    assert_non_null(strstr(err.text, "it had 8 bytes and ends after 4"));
    reader_close(r);
    unlink(s.path);
    assert_int_equal(reader_open(&s, &o, 0, &r, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.text, "cannot open"));
    assert_int_equal(mkfifo(s.path, 0600), 0);
    expect_changed(&s, "no regular file");
    unlink(s.path);
    mem_free(s.path);
}

static void a_failing_disk(void **state)
{
    struct buf text = {0};
    struct list whole = {0}, got = {0};
    for (int i = 0; i < 60000; i++)
        assert_int_equal(buf_printf(&text, "line %d\n", i), 0);
    for (int kind = 0; kind < 3; kind++) {
        struct source s = put_source(*state, "x", (enum compression)kind, text.data, text.len);
        struct reader_opts o = {.format = FORMAT_LINES};
        read_all(&s, &o, 0, 0, &whole);
        struct reader *r;
        struct raw raw;
        unsigned failed = 0;
        got.count = 0;
        assert_ok(reader_open(&s, &o, 0, &r, e));
        fault_set("source_read:1:EIO");
        for (;;) {
            struct err err = {0};
            enum status status = reader_next(r, UINT64_MAX, &raw, &err);
            if (status == ST_OK) {
                add(&got, &raw, 0);
                continue;
            }
            if (status == ST_END)
                break;
            assert_int_equal(status, ST_ENV);
            assert_non_null(strstr(err.text, "cannot read"));
            fault_set(failed++ ? "source_read:1:EINTR" : "source_read:1:EIO"); /* twice EIO, then a signal, which is nothing */
        }
        fault_set(NULL);
        assert_int_equal(failed, 2);
        assert_same(&whole, 0, &got);
        reader_close(r);
        mem_free(s.path);
    }
    mem_free(whole.items);
    mem_free(got.items);
    buf_release(&text);
}

static void column_names(void **state)
{
    const struct {
        const char *text;
        enum format format;
        size_t count;
        const char *names[3];
        const char *error;
    } cases[] = {
        {"\xef\xbb\xbf\"id\",\"the, text\"\r\n1,a\n", FORMAT_CSV, 2, {"id", "the, text"}, NULL},
        {"\r\n\nid\ttext, long\tstars\n", FORMAT_TSV, 3, {"id", "text, long", "stars"}, NULL},
        {"", FORMAT_CSV, 0, {NULL}, NULL},
        {"text", FORMAT_CSV, 1, {"text"}, NULL},
        {"a,\"b\n1,2\n", FORMAT_CSV, 0, {NULL}, "no header that can be read: a quote is opened"},
        {"a,\"b\"c\n1,2\n", FORMAT_CSV, 0, {NULL}, "text behind the closing quote of column 2"},
        {"a,\xff\n1,2\n", FORMAT_CSV, 0, {NULL}, "not valid UTF-8 at byte 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct source s = put_source(*state, "x", COMPRESSION_NONE, cases[i].text, strlen(cases[i].text));
        struct reader_opts o = {.format = cases[i].format};
        struct columns c;
        struct err err = {0};
        if (cases[i].error) {
            assert_int_equal(reader_columns(&s, &o, &c, &err), ST_USER);
            assert_non_null(strstr(err.text, cases[i].error));
            assert_non_null(strstr(err.text, s.path));
        } else {
            assert_ok(reader_columns(&s, &o, &c, e));
            assert_int_equal(c.count, cases[i].count);
            for (size_t k = 0; k < c.count; k++)
                assert_string_equal(c.names[k], cases[i].names[k]);
            columns_release(&c);
        }
        mem_free(s.path);
    }
}

/* Each allocation fails in turn: ST_NOMEM with words, nothing leaks (the sanitizer's run tells), and at last all is well. */
static void memory_runs_out(void **state)
{
    struct buf text = {0};
    assert_int_equal(buf_str(&text, "id,text\n1,\""), 0);
    while (text.len < 600000)
        assert_int_equal(buf_str(&text, "some words, "), 0);
    assert_int_equal(buf_str(&text, "\"\n2,b\n"), 0);
    for (int kind = 0; kind < 3; kind++) {
        struct source s = put_source(*state, "x", (enum compression)kind, text.data, text.len);
        struct reader_opts o = {.format = FORMAT_CSV};
        unsigned failures = 0;
        for (uint64_t nth = 1;; nth++) {
            struct reader *r = NULL;
            struct columns c = {0};
            struct err e = {0};
            struct raw raw;
            uint64_t at;
            size_t records = 0;
            mem_fail_nth(nth);
            enum status status = reader_columns(&s, &o, &c, &e);
            if (status == ST_OK)
                status = reader_boundary(&s, &o, 0, text.len - 3, &at, &e);
            if (status == ST_OK)
                status = reader_open(&s, &o, 0, &r, &e);
            while (status == ST_OK && (status = reader_next(r, UINT64_MAX, &raw, &e)) == ST_OK)
                records++;
            mem_fail_nth(0);
            if (r)
                reader_close(r);
            columns_release(&c);
            if (status == ST_END) {
                assert_int_equal(records, 2);
                break;
            }
            assert_int_equal(status, ST_NOMEM);
            assert_non_null(strstr(e.text, "memory"));
            failures++;
        }
        assert_true(failures > 10);
        mem_free(s.path);
    }
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_spans_give_each_record_once),
        cmocka_unit_test(a_moving_end),
        cmocka_unit_test(streams_are_entered_at_records),
        cmocka_unit_test(large_records),
        cmocka_unit_test(line_ends_and_bom),
        cmocka_unit_test(csv_rows),
        cmocka_unit_test(a_stray_quote),
        cmocka_unit_test(too_long_to_the_byte),
        cmocka_unit_test(a_huge_line),
        cmocka_unit_test(broken_streams),
        cmocka_unit_test(sources_that_change),
        cmocka_unit_test(a_failing_disk),
        cmocka_unit_test(column_names),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
