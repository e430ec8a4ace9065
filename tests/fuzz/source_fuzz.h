/* What the fuzz targets of readers share: bytes become a source (a file in memory), and everything that a worker does with one is done. A
   broken promise aborts. */
#ifndef EBB_TESTS_SOURCE_FUZZ_H
#define EBB_TESTS_SOURCE_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "storage/record.h"
#include "storage/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(what)                                                                                                               \
    do {                                                                                                                         \
        if (!(what)) {                                                                                                           \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #what);                                                   \
            abort();                                                                                                             \
        }                                                                                                                        \
    } while (0)

struct fuzz_source {
    int fd;
    char path[64];
    struct source source;
};

static inline void fuzz_source_open(struct fuzz_source *f, const uint8_t *data, size_t size, enum compression compression)
{
    struct stat st;
    f->fd = memfd_create("fuzz", MFD_CLOEXEC);
    MUST(f->fd >= 0 && write(f->fd, data, size) == (ssize_t)size && !fstat(f->fd, &st));
    snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
    f->source = (struct source){.path = f->path,
                                .size_bytes = size,
                                .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                                .compression = compression};
}

static inline void fuzz_source_close(struct fuzz_source *f)
{
    close(f->fd);
}

/* Reads the records from `from` up to `to`, decodes each where there is a decoder, and gives their number, the offset of the last, and a
   sum over what was read. */
struct fuzz_read {
    size_t records;
    uint64_t last, end, sum;
};

static inline struct fuzz_read fuzz_read(const struct fuzz_source *f, const struct reader_opts *o, uint64_t from, uint64_t to,
                                         struct decoder *d)
{
    struct fuzz_read result = {.last = from};
    struct reader *r;
    struct raw raw;
    struct err e;
    enum status status;
    uint64_t least = from;
    MUST(reader_open(&f->source, o, from, &r, &e) == ST_OK);
    while ((status = reader_next(r, to, &raw, &e)) == ST_OK) {
        MUST(raw.offset >= least && raw.offset < to && raw.end > raw.offset && raw.len <= raw.end - raw.offset);
        MUST(raw.len <= o->max_record_bytes || raw.error != RECORD_NONE);
        MUST((raw.error == RECORD_NONE) == (raw.message[0] == 0));
        least = raw.end;
        result.last = raw.offset;
        result.records++;
        result.sum = result.sum * 31 + raw.offset + raw.end * 7 + raw.len * 3 + (uint64_t)raw.error;
        for (size_t i = 0; i < raw.len; i++)
            result.sum = result.sum * 31 + (unsigned char)raw.data[i];
        struct record out;
        if (!d)
            continue;
        MUST(decoder_run(d, &raw, &out, &e) == ST_OK);
        MUST((out.text != NULL) == (out.error == RECORD_NONE) && (out.error == RECORD_NONE) == (out.message[0] == 0));
        MUST(!out.text || utf8_prefix(out.text, out.text_len) == out.text_len);
        MUST(utf8_prefix(out.message, strlen(out.message)) == strlen(out.message));
    }
    MUST(status == ST_END && reader_bytes(r) <= f->source.size_bytes);
    result.end = reader_position(r);
    reader_close(r);
    return result;
}

#endif
