#include "storage/inflate.h"

#include <inttypes.h>
#include <stdio.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/mem.h"

#define IN_BYTES (128 * 1024)
#define WINDOW_LOG 27 /* zstd: 128 MiB, what `zstd --ultra -22` and `--long` need */

struct inflate {
    enum compression kind;
    struct source_file file;
    unsigned char *in;
    size_t in_at, in_len; /* bytes of `in` not decompressed yet: [in_at, in_len) */
    int ended;
    int inside;           /* a member or frame has begun and is not finished */
    uint64_t finished;    /* members or frames */
    enum inflate_fault fault;
    char words[112];
    z_stream gzip;
    int gzip_ready;
    ZSTD_DCtx *zstd;
};

static void *zlib_alloc(void *arg, uInt items, uInt size)
{
    (void)arg;
    return mem_array(items, size);
}

static void zlib_free(void *arg, void *p)
{
    (void)arg;
    mem_free(p);
}

enum status inflate_open(const struct source *s, uint64_t from, struct inflate **out, struct err *e)
{
    struct inflate *z = mem_zalloc(sizeof *z);
    if (!z)
        return err_nomem(e, "reading a source");
    z->kind = s->compression;
    z->file.fd = -1;
    enum status status = source_open(s, from, &z->file, e);
    if (status == ST_OK && z->kind != COMPRESSION_NONE) {
        z->in = mem_alloc(IN_BYTES);
        if (z->kind == COMPRESSION_GZIP) {
            z->gzip.zalloc = zlib_alloc;
            z->gzip.zfree = zlib_free;
            z->gzip_ready = inflateInit2(&z->gzip, 16 + MAX_WBITS) == Z_OK; /* 16: gzip and nothing else */
        } else {
            z->zstd = ZSTD_createDCtx();
            if (z->zstd && ZSTD_isError(ZSTD_DCtx_setParameter(z->zstd, ZSTD_d_windowLogMax, WINDOW_LOG)))
                BUG("zstd does not take a window of 2^%d", WINDOW_LOG);
        }
        if (!z->in || (!z->gzip_ready && !z->zstd))
            status = err_nomem(e, "decompressing a source");
    }
    if (status != ST_OK) {
        inflate_close(z);
        return status;
    }
    *out = z;
    return ST_OK;
}

void inflate_close(struct inflate *z)
{
    if (!z)
        return;
    source_close(&z->file);
    if (z->gzip_ready)
        inflateEnd(&z->gzip);
    ZSTD_freeDCtx(z->zstd);
    mem_free(z->in);
    mem_free(z);
}

static void stop(struct inflate *z, enum inflate_fault fault, const char *what)
{
    z->fault = fault;
    z->ended = 1;
    snprintf(z->words, sizeof z->words, "%s (at byte %" PRIu64 " of %" PRIu64 ")", what, inflate_consumed(z), z->file.size);
}

/* Decompresses from `in` into [data, data + want); 0 bytes are no sign of anything. */
static enum status gunzip(struct inflate *z, void *data, size_t want, size_t *got, struct err *e)
{
    if (!z->inside) {
        while (z->finished && z->in_at < z->in_len && ((const char *)z->in)[z->in_at] == 0) /* padding, as tapes have it; gunzip passes over it too */
            z->in_at++;
        if (z->in_at == z->in_len) {
            *got = 0;
            return ST_OK;
        }
        if (z->finished && inflateReset(&z->gzip) != Z_OK)
            BUG("a finished gzip member cannot be followed by another");
        z->inside = 1;
    }
    z->gzip.next_in = z->in + z->in_at;
    z->gzip.avail_in = (uInt)(z->in_len - z->in_at);
    z->gzip.next_out = data;
    z->gzip.avail_out = want > (1u << 30) ? 1u << 30 : (uInt)want;
    uInt room = z->gzip.avail_out;
    int result = inflate(&z->gzip, Z_NO_FLUSH);
    z->in_at = z->in_len - z->gzip.avail_in;
    *got = room - z->gzip.avail_out;
    switch (result) {
    case Z_STREAM_END:
        z->inside = 0;
        z->finished++;
        return ST_OK;
    case Z_OK:
    case Z_BUF_ERROR:
        return ST_OK;
    case Z_MEM_ERROR:
        return err_nomem(e, "decompressing gzip");
    default:
        if (z->gzip.total_out == 0 && z->finished)
            stop(z, INFLATE_DAMAGED, "bytes that are no gzip stand behind the compressed data");
        else if (z->gzip.total_out == 0)
            stop(z, INFLATE_DAMAGED, "this is no gzip");
        else
            stop(z, INFLATE_DAMAGED, z->gzip.msg ? z->gzip.msg : "the gzip data is damaged");
        return ST_OK;
    }
}

static enum status unzstd(struct inflate *z, void *data, size_t want, size_t *got, struct err *e)
{
    ZSTD_inBuffer in = {.src = z->in, .size = z->in_len, .pos = z->in_at};
    ZSTD_outBuffer out = {.dst = data, .size = want};
    z->inside = 1;
    size_t result = ZSTD_decompressStream(z->zstd, &out, &in);
    z->in_at = in.pos;
    *got = out.pos;
    if (result == 0) {
        z->inside = 0;
        z->finished++;
    } else if (ZSTD_isError(result)) {
        const char *name = ZSTD_getErrorName(result);
        ZSTD_DCtx_reset(z->zstd, ZSTD_reset_session_only);
        if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation)
            return err_nomem(e, "decompressing zstd");
        if (ZSTD_getErrorCode(result) == ZSTD_error_prefix_unknown)
            stop(z, INFLATE_DAMAGED,
                 z->finished ? "bytes that are no zstd stand behind the compressed data" : "this is no zstd");
        else if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge)
            stop(z, INFLATE_DAMAGED, "the zstd window is above 128 MiB: compress again with --long=27 or without --long");
        else
            stop(z, INFLATE_DAMAGED, name);
    }
    return ST_OK;
}

enum status inflate_read(struct inflate *z, void *data, size_t want, size_t *got, struct err *e)
{
    *got = 0;
    if (z->kind == COMPRESSION_NONE) {
        TRY(source_read(&z->file, data, want, got, e));
        z->ended = z->file.at == z->file.size;
        return ST_OK;
    }
    while (*got < want && !z->ended) {
        int drained = 0; /* the decompressor may hold output back after it took all input */
        if (z->in_at == z->in_len) {
            size_t n;
            enum status status = source_read(&z->file, z->in, IN_BYTES, &n, e);
            if (status != ST_OK) {
                if (*got) /* what came so far stands; the next call meets the failure again */
                    return ST_OK;
                return status;
            }
            z->in_at = 0;
            z->in_len = n;
            drained = n == 0;
            if (drained && !z->inside) {
                z->ended = 1;
                break;
            }
        }
        size_t n = 0;
        char *to = (char *)data + *got;
        enum status status =
            z->kind == COMPRESSION_GZIP ? gunzip(z, to, want - *got, &n, e) : unzstd(z, to, want - *got, &n, e);
        *got += n;
        if (status != ST_OK)
            return status;
        if (drained && n == 0 && z->inside && !z->ended)
            stop(z, INFLATE_TRUNCATED, "the compressed data ends too early");
    }
    return ST_OK;
}

int inflate_ended(const struct inflate *z)
{
    return z->ended;
}

enum inflate_fault inflate_fault(const struct inflate *z, const char **words)
{
    if (words)
        *words = z->words;
    return z->fault;
}

uint64_t inflate_consumed(const struct inflate *z)
{
    return z->file.at - (z->in_len - z->in_at);
}
