/* Files for the tests of the reading half: a folder that goes away, plain and compressed files, random numbers with a seed. Everything is
   static inline: each test takes what it uses. */
#ifndef EBB_TESTS_INPUT_FILES_H
#define EBB_TESTS_INPUT_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/reader.h"
#include "tests/lib/files.h"

#define assert_ok(call)                                                                                                          \
    do {                                                                                                                         \
        struct err err_ = {0};                                                                                                   \
        struct err *e = &err_;                                                                                                   \
        if ((call) != ST_OK)                                                                                                     \
            fail_msg("%s: %s", #call, err_.text);                                                                                \
    } while (0)

struct random {
    uint64_t state;
};

static inline uint64_t rnd(struct random *r, uint64_t below)
{
    r->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = r->state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static inline int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = mem_printf("%s/ebb-reading-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!dir || !mkdtemp(dir))
        return -1;
    *state = dir;
    return 0;
}

static inline int remove_dir(void **state)
{
    struct err e = {0};
    enum status status = path_remove_tree(*state, &e);
    if (status != ST_OK)
        print_error("%s\n", e.text);
    mem_free(*state);
    return status != ST_OK;
}

static inline char *put(const char *dir, const char *name, const void *data, size_t len)
{
    char *path = path_join(dir, name);
    assert_non_null(path);
    files_put(path, data, len);
    return path;
}

static inline void add_gzip(struct buf *to, const void *data, size_t len)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t room = deflateBound(&z, len) + 64;
    assert_int_equal(buf_reserve(to, room), 0);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)len;
    z.next_out = (Bytef *)to->data + to->len;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    to->len += z.total_out;
    deflateEnd(&z);
}

static inline void add_zstd(struct buf *to, const void *data, size_t len)
{
    size_t room = ZSTD_compressBound(len);
    assert_int_equal(buf_reserve(to, room), 0);
    size_t n = ZSTD_compress(to->data + to->len, room, data, len, 3);
    assert_false(ZSTD_isError(n));
    to->len += n;
}

static inline void add_compressed(struct buf *to, enum compression kind, const void *data, size_t len)
{
    if (kind == COMPRESSION_GZIP)
        add_gzip(to, data, len);
    else if (kind == COMPRESSION_ZSTD)
        add_zstd(to, data, len);
    else
        assert_int_equal(buf_add(to, data, len), 0);
}

static inline struct source source_at(char *path, enum compression compression)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (struct source){.path = path,
                           .size_bytes = (uint64_t)st.st_size,
                           .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                           .compression = compression};
}

static inline struct source put_source(const char *dir, const char *name, enum compression compression, const void *data, size_t len)
{
    struct buf b = {0};
    add_compressed(&b, compression, data, len);
    char *path = put(dir, name, b.data, b.len);
    buf_release(&b);
    return source_at(path, compression);
}

#endif
