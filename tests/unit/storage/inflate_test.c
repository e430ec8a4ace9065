/* Do gzip and zstd give back every byte, in whatever pieces they are asked for, and is every way in which they can be broken told? */
#include "tests/unit/storage/input_files.h"

#include "base/fault.h"
#include "storage/inflate.h"

static const enum compression kinds[] = {COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_ZSTD};

static void fill_random(struct random *r, struct buf *b, size_t len)
{
    assert_int_equal(buf_reserve(b, len), 0);
    for (size_t i = 0; i < len; i++)
        b->data[b->len++] = (char)('a' + rnd(r, rnd(r, 20) ? 3 : 26));
}

/* Everything that can be read of it, in random pieces. */
static void drain(const struct source *s, struct random *r, struct buf *out, enum inflate_fault *fault)
{
    struct inflate *z;
    out->len = 0;
    assert_ok(inflate_open(s, 0, &z, e));
    while (!inflate_ended(z)) {
        size_t want = 1 + (size_t)rnd(r, 5000), got;
        assert_int_equal(buf_reserve(out, want), 0);
        assert_ok(inflate_read(z, out->data + out->len, want, &got, e));
        assert_true(got == want || inflate_ended(z));
        out->len += got;
    }
    size_t got;
    char c;
    assert_ok(inflate_read(z, &c, 1, &got, e));
    assert_int_equal(got, 0);
    const char *words;
    *fault = inflate_fault(z, &words);
    if (*fault == INFLATE_SOUND)
        assert_int_equal(inflate_consumed(z), s->size_bytes);
    else
        assert_true(strlen(words) > 5);
    inflate_close(z);
}

static void members_and_frames_of_any_number(void **state)
{
    struct random r = {1};
    struct buf plain = {0}, packed = {0}, out = {0};
    for (int round = 0; round < 60; round++) {
        enum compression kind = kinds[round % 3];
        plain.len = packed.len = 0;
        for (uint64_t n = rnd(&r, 4); n-- > 0;) { /* 0: an empty file; empty members too */
            size_t from = plain.len;
            fill_random(&r, &plain, (size_t)rnd(&r, rnd(&r, 3) ? 400 : 400000));
            if (kind == COMPRESSION_ZSTD && rnd(&r, 2)) /* a skippable frame of 5 bytes */
                assert_int_equal(buf_add(&packed, "\x52\x2a\x4d\x18\5\0\0\0hello", 13), 0);
            add_compressed(&packed, kind, plain.data ? plain.data + from : "", plain.len - from);
        }
        char *path = put(*state, "x", packed.data, packed.len);
        struct source s = source_at(path, kind);
        enum inflate_fault fault;
        drain(&s, &r, &out, &fault);
        assert_int_equal(fault, INFLATE_SOUND);
        assert_int_equal(out.len, plain.len);
        if (out.len)
            assert_memory_equal(out.data, plain.data, out.len);
        mem_free(path);
    }
    buf_release(&plain);
    buf_release(&packed);
    buf_release(&out);
}

/* Cut after every byte: a prefix comes out, and TRUNCATED, except between members. */
static void cut_anywhere(void **state)
{
    struct random r = {2};
    struct buf plain = {0}, packed = {0}, out = {0};
    for (size_t k = 1; k < 3; k++) {
        plain.len = packed.len = 0;
        fill_random(&r, &plain, 3000);
        add_compressed(&packed, kinds[k], plain.data, 2000);
        size_t seam = packed.len;
        add_compressed(&packed, kinds[k], plain.data + 2000, 1000);
        for (size_t len = 0; len <= packed.len; len++) {
            char *path = put(*state, "x", packed.data, len);
            struct source s = source_at(path, kinds[k]);
            enum inflate_fault fault;
            drain(&s, &r, &out, &fault);
            int whole = len == 0 || len == seam || len == packed.len;
            assert_int_equal(fault, whole ? INFLATE_SOUND : INFLATE_TRUNCATED);
            assert_true(out.len <= plain.len);
            if (out.len)
                assert_memory_equal(out.data, plain.data, out.len);
            if (len == seam)
                assert_int_equal(out.len, 2000);
            mem_free(path);
        }
    }
    buf_release(&plain);
    buf_release(&packed);
    buf_release(&out);
}

/* One bit turned over anywhere never gives other bytes and "sound". */
static void one_bit_wrong(void **state)
{
    struct random r = {3};
    struct buf plain = {0}, packed = {0}, out = {0};
    fill_random(&r, &plain, 2000);
    unsigned found = 0;
    for (int round = 0; round < 600; round++) {
        packed.len = 0;
        add_gzip(&packed, plain.data, plain.len);
        size_t at = (size_t)rnd(&r, packed.len);
        packed.data[at] = (char)(packed.data[at] ^ 1 << rnd(&r, 8));
        char *path = put(*state, "x", packed.data, packed.len);
        struct source s = source_at(path, COMPRESSION_GZIP);
        enum inflate_fault fault;
        drain(&s, &r, &out, &fault);
        if (fault == INFLATE_SOUND) { /* bits of the header that mean nothing: time, system */
            assert_int_equal(out.len, plain.len);
            assert_memory_equal(out.data, plain.data, out.len);
        }
        found += fault != INFLATE_SOUND;
        mem_free(path);
    }
    assert_true(found > 500);
    buf_release(&plain);
    buf_release(&packed);
    buf_release(&out);
}

static void garbage(void **state)
{
    struct random r = {4};
    struct buf packed = {0}, out = {0};
    enum inflate_fault fault;
    for (size_t k = 1; k < 3; k++) {
        packed.len = 0;
        add_compressed(&packed, kinds[k], "hello\n", 6);
        assert_int_equal(buf_str(&packed, "and then some words"), 0);
        char *path = put(*state, "x", packed.data, packed.len);
        struct source s = source_at(path, kinds[k]);
        drain(&s, &r, &out, &fault);
        assert_int_equal(fault, INFLATE_DAMAGED);
        assert_int_equal(out.len, 6);
        assert_memory_equal(out.data, "hello\n", 6);
        struct inflate *z;
        assert_ok(inflate_open(&s, 0, &z, e));
        char data[64];
        size_t got;
        assert_ok(inflate_read(z, data, sizeof data, &got, e));
        const char *words;
        inflate_fault(z, &words);
        assert_non_null(strstr(words, "stand behind the compressed data"));
        inflate_close(z);
        mem_free(path);

        path = put(*state, "x", "these are words only", 20);
        s = source_at(path, kinds[k]);
        drain(&s, &r, &out, &fault);
        assert_int_equal(fault, INFLATE_DAMAGED);
        assert_int_equal(out.len, 0);
        mem_free(path);
    }
    buf_release(&packed);
    buf_release(&out);
}

/* Zeros behind a gzip are padding; more may follow. */
static void padding(void **state)
{
    struct random r = {6};
    struct buf packed = {0}, out = {0};
    enum inflate_fault fault;
    static const char zeros[100000];
    for (int more = 0; more < 3; more++) {
        packed.len = 0;
        add_compressed(&packed, COMPRESSION_GZIP, "hello\n", 6);
        assert_int_equal(buf_add(&packed, zeros, more ? 512 : sizeof zeros), 0);
        if (more == 1)
            add_compressed(&packed, COMPRESSION_GZIP, "again\n", 6);
        if (more == 2)
            assert_int_equal(buf_str(&packed, "words"), 0);
        char *path = put(*state, "x", packed.data, packed.len);
        struct source s = source_at(path, COMPRESSION_GZIP);
        drain(&s, &r, &out, &fault);
        assert_int_equal(fault, more == 2 ? INFLATE_DAMAGED : INFLATE_SOUND);
        assert_int_equal(out.len, more == 1 ? 12 : 6);
        assert_memory_equal(out.data, "hello\nagain\n", out.len);
        mem_free(path);
    }
    buf_release(&packed);
    buf_release(&out);
}

/* A failed read is told, and may be tried again without loss. */
static void eio_and_again(void **state)
{
    struct random r = {5};
    struct buf plain = {0};
    fill_random(&r, &plain, 2000000);
    for (size_t k = 0; k < 3; k++) {
        struct source s = put_source(*state, "x", kinds[k], plain.data, plain.len);
        struct buf out = {0};
        struct inflate *z;
        assert_ok(inflate_open(&s, 0, &z, e));
        unsigned failed = 0;
        for (int turn = 0; !inflate_ended(z); turn++) {
            if (turn == 0 || turn == 3)
                fault_set("source_read:0:EIO");
            size_t got;
            struct err e = {0};
            assert_int_equal(buf_reserve(&out, 100000), 0);
            enum status status = inflate_read(z, out.data + out.len, 100000, &got, &e);
            out.len += got;
            if (status == ST_OK)
                continue;
            assert_int_equal(status, ST_ENV);
            assert_non_null(strstr(e.text, s.path));
            assert_non_null(strstr(e.text, "Input/output error"));
            failed++;
            fault_set("source_read:1:EINTR"); /* a signal is nothing */
        }
        fault_set(NULL);
        assert_int_equal(failed, 2);
        assert_int_equal(out.len, plain.len);
        assert_memory_equal(out.data, plain.data, plain.len);
        inflate_close(z);
        buf_release(&out);
        mem_free(s.path);
    }
    buf_release(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_and_frames_of_any_number),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(one_bit_wrong),
        cmocka_unit_test(padding),
        cmocka_unit_test(garbage),
        cmocka_unit_test(eio_and_again),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
