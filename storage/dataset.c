#include "storage/dataset.h"

#define XXH_STATIC_LINKING_ONLY /* the state on the stack */
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/fixed.h"
#include "storage/inflate.h"
#include "storage/reader.h"
#include "storage/walk.h"

static const struct {
    const char *word;
    int stream;
} formats[] = {
#define X(name, word, stream) [FORMAT_##name] = {word, stream},
    FORMAT_MAP(X)
#undef X
};
#define FORMATS (sizeof formats / sizeof *formats)

const char *format_name(enum format f)
{
    return formats[f].word;
}

int format_parse(const char *word, enum format *out)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (!strcmp(formats[i].word, word)) {
            *out = (enum format)i;
            return 1;
        }
    return 0;
}

/* What a name says --------------------------------------------------------------------------------------------------------------- */

static int ends(const char *name, size_t len, const char *ending)
{
    size_t n = strlen(ending);
    return len > n && !strncasecmp(name + len - n, ending, n);
}

static enum compression compression_of(const char *path, size_t *len)
{
    *len = strlen(path);
    if (ends(path, *len, ".gz")) {
        *len -= 3;
        return COMPRESSION_GZIP;
    }
    if (ends(path, *len, ".zst")) {
        *len -= 4;
        return COMPRESSION_ZSTD;
    }
    return COMPRESSION_NONE;
}

static enum format format_of(const char *path)
{
    static const struct {
        const char *ending;
        enum format format;
    } endings[] = {{".jsonl", FORMAT_JSONL}, {".ndjson", FORMAT_JSONL}, {".json", FORMAT_JSONL},
                   {".csv", FORMAT_CSV},     {".tsv", FORMAT_TSV},      {".txt", FORMAT_LINES},
                   {".jpg", FORMAT_IMAGES},  {".jpeg", FORMAT_IMAGES},  {".png", FORMAT_IMAGES},
                   {".webp", FORMAT_IMAGES}, {".npy", FORMAT_NPY}};
    const char *name = path_base(path);
    size_t len;
    compression_of(name, &len);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends(name, len, endings[i].ending))
            return endings[i].format;
    return FORMAT_AUTO;
}

static enum status agree_on_format(struct dataset *d, struct err *e)
{
    for (size_t i = 0; i < d->count; i++) {
        const char *path = d->sources[i].path;
        enum format f = format_of(path);
        if (f == FORMAT_AUTO)
            return err_set(e, ST_USER, "the name of '%s' does not say its format: give --format jsonl, csv, tsv, lines, images or npy, or only the files that you mean, as by a pattern such as '*.jsonl'", path);
        if (i && f != d->format)
            return err_set(e, ST_USER, "'%s' is %s by its name and '%s' is %s: a job reads one format; give --format or fewer inputs",
                           d->sources[0].path, format_name(d->format), path, format_name(f));
        d->format = f;
    }
    return ST_OK;
}

static enum status refuse_compressed(const struct dataset *d, struct err *e)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->sources[i].compression != COMPRESSION_NONE)
            return err_set(e, ST_USER, "'%s' is compressed, which is not supported for %s: unpack it", d->sources[i].path, format_name(d->format));
    return ST_OK;
}

/* Opening ------------------------------------------------------------------------------------------------------------------------ */

static enum status build_layout(struct dataset *d, struct err *e)
{
    uint64_t *sizes = mem_array(d->count, sizeof *sizes);
    uint8_t *kinds = mem_array(d->count, 1);
    uint64_t most = UINT64_C(1) << 62;
    int large = 0;
    enum status status = ST_OK;
    if (!sizes || !kinds) {
        status = err_nomem(e, "the layout of the dataset");
        goto done;
    }
    for (size_t i = 0; i < d->count; i++) {
        sizes[i] = d->sources[i].size_bytes;
        sizes[i] += fixed_format(d->format) && !sizes[i]; /* an empty one has its place, for the error that it is */
        kinds[i] = d->sources[i].compression != COMPRESSION_NONE ? 2 : formats[d->format].stream ? 1 : 0;
        uint64_t owns = sizes[i];
        if (kinds[i] == 2)
            owns = sizes[i] >> (62 - LAYOUT_STREAM_SHIFT) ? most : (sizes[i] << LAYOUT_STREAM_SHIFT) + (1 << 20);
        large |= owns >= most;
        most -= large ? 0 : owns;
    }
    if (large)
        status = err_set(e, ST_USER, "the dataset is too large for one job (64 TiB compressed, 4 EiB plain): split it into several");
    else if (layout_init(&d->layout, d->count, sizes, kinds))
        status = err_nomem(e, "the layout of the dataset");
    for (size_t i = 0; status == ST_OK && i < d->count; i++)
        d->sources[i].base = d->layout.base[i];
done:
    mem_free(sizes);
    mem_free(kinds);
    return status;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status refuse_twice(const struct dataset *d, struct err *e)
{
    const char **paths = mem_array(d->count, sizeof *paths);
    if (!paths)
        return err_nomem(e, "the list of inputs");
    for (size_t i = 0; i < d->count; i++)
        paths[i] = d->sources[i].path;
    qsort(paths, d->count, sizeof *paths, by_path);
    enum status status = ST_OK;
    for (size_t i = 1; i < d->count && status == ST_OK; i++)
        if (!strcmp(paths[i - 1], paths[i]))
            status = err_set(e, ST_USER, "'%s' is given twice, by two of the inputs", paths[i]);
    mem_free(paths);
    return status;
}

/* Looks at the first bytes of the first source that has some: a whole dataset in another encoding is refused at once. */
static enum status peek(const struct dataset *d, int by_name, struct err *e)
{
    size_t i = 0;
    while (i < d->count && !d->sources[i].size_bytes)
        i++;
    if (i == d->count)
        return ST_OK;
    const struct source *s = &d->sources[i];
    struct inflate *z;
    unsigned char head[256] = {0};
    size_t n;
    TRY(inflate_open(s, 0, &z, e));
    enum status status = inflate_read(z, head, sizeof head, &n, e);
    inflate_close(z);
    if (status != ST_OK)
        return status;
    const char *unicode = NULL;
    if (n >= 4 && (!memcmp(head, "\xff\xfe\0\0", 4) || !memcmp(head, "\0\0\xfe\xff", 4)))
        unicode = "UTF-32";
    else if (n >= 2 && (!memcmp(head, "\xff\xfe", 2) || !memcmp(head, "\xfe\xff", 2)))
        unicode = "UTF-16";
    if (unicode)
        return err_set(e, ST_USER, "'%s' is %s and ebb reads UTF-8: convert it with iconv -f %s -t UTF-8", s->path, unicode, unicode);
    if (s->compression == COMPRESSION_NONE) {
        const char *ending = NULL;
        if (n >= 3 && !memcmp(head, "\x1f\x8b\x08", 3))
            ending = ".gz";
        else if (n >= 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4))
            ending = ".zst";
        if (ending)
            return err_set(e, ST_USER, "'%s' is compressed, but its name does not end in %s: rename it", s->path, ending);
    }
    size_t len, at = n >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0;
    compression_of(s->path, &len);
    while (at < n && strchr(" \t\r\n", head[at] ? head[at] : 'x'))
        at++;
    if (by_name && ends(s->path, len, ".json") && at < n && head[at] == '[')
        return err_set(e, ST_USER, "'%s' begins with '[': ebb reads JSON Lines, one object a line; make them with jq -c '.[]', or give "
                       "--format jsonl if the lines are arrays", s->path);
    return ST_OK;
}

/* The position behind the first `limit` records. */
static enum status find_end(const struct dataset *d, uint64_t limit, uint64_t max_record_bytes, uint64_t *end, struct err *e)
{
    const struct reader_opts opts = {.format = d->format, .max_record_bytes = max_record_bytes};
    *end = layout_end(&d->layout);
    for (size_t i = 0; i < d->count; i++) {
        struct reader *r;
        struct raw raw;
        enum status status = ST_OK;
        if (!d->sources[i].size_bytes && !fixed_format(d->format))
            continue;
        TRY(reader_open(&d->sources[i], &opts, 0, &r, e));
        while (limit && (status = reader_next(r, UINT64_MAX, &raw, e)) == ST_OK)
            if (--limit == 0)
                *end = d->sources[i].base + raw.end;
        reader_close(r);
        if (limit == 0)
            return ST_OK;
        if (status != ST_END)
            return status;
    }
    return ST_OK;
}

enum status dataset_open(const struct dataset_spec *spec, struct dataset *out, struct err *e)
{
    struct walk walk = {0};
    struct dataset d = {.format = spec->format};
    enum status status = spec->input_count ? ST_OK : err_set(e, ST_USER, "no input is given");
    for (size_t i = 0; i < spec->input_count && status == ST_OK; i++) {
        char *path = path_absolute(spec->inputs[i]);
        status = path ? walk_add(&walk, path, e) : err_nomem(e, "the list of inputs");
        mem_free(path);
    }
    d.sources = walk.sources; /* one owner from here on */
    d.count = walk.count;
    for (size_t i = 0; i < d.count; i++) {
        size_t len;
        d.sources[i].compression = compression_of(d.sources[i].path, &len);
    }
    if (status == ST_OK && spec->input_count > 1)
        status = refuse_twice(&d, e);
    if (status == ST_OK && spec->format == FORMAT_AUTO)
        status = agree_on_format(&d, e);
    if (status == ST_OK && fixed_format(d.format))
        status = refuse_compressed(&d, e);
    if (status == ST_OK)
        status = build_layout(&d, e);
    if (status == ST_OK && !fixed_format(d.format))
        status = peek(&d, spec->format == FORMAT_AUTO, e);
    if (status == ST_OK)
        d.end = layout_end(&d.layout);
    if (status == ST_OK && spec->limit)
        status = find_end(&d, spec->limit, spec->max_record_bytes, &d.end, e);
    if (status != ST_OK) {
        dataset_release(&d);
        return status;
    }
    *out = d;
    return ST_OK;
}

void dataset_release(struct dataset *d)
{
    for (size_t i = 0; i < d->count; i++)
        mem_free(d->sources[i].path);
    mem_free(d->sources);
    layout_release(&d->layout);
    *d = (struct dataset){0};
}

/* Identity ----------------------------------------------------------------------------------------------------------------------- */

static void digest_number(XXH3_state_t *state, uint64_t v)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(v >> 8 * i);
    XXH3_128bits_update(state, bytes, sizeof bytes);
}

void dataset_digest(const struct dataset *d, uint8_t out[16])
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    digest_number(&state, d->format);
    digest_number(&state, d->end);
    digest_number(&state, d->count);
    for (size_t i = 0; i < d->count; i++) {
        const struct source *s = &d->sources[i];
        XXH3_128bits_update(&state, s->path, strlen(s->path) + 1);
        digest_number(&state, s->size_bytes);
        digest_number(&state, (uint64_t)s->mtime_ns);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(out, canonical.digest, 16);
}

int dataset_differs(const struct dataset *then, const struct dataset *now, char *words, size_t size)
{
    if (then->format != now->format) {
        snprintf(words, size, "the format was %s and is %s", format_name(then->format), format_name(now->format));
        return 1;
    }
    for (size_t i = 0; i < then->count && i < now->count; i++) {
        const struct source *a = &then->sources[i], *b = &now->sources[i];
        int order = strcmp(a->path, b->path);
        if (order)
            snprintf(words, size, "source %zu was '%s' and is '%s'", i + 1, a->path, b->path);
        else if (a->size_bytes != b->size_bytes)
            snprintf(words, size, "'%s' had %" PRIu64 " bytes and has %" PRIu64, a->path, a->size_bytes, b->size_bytes);
        else if (a->mtime_ns != b->mtime_ns)
            snprintf(words, size, "'%s' was written again, %+.3f s later", a->path, (double)(b->mtime_ns - a->mtime_ns) / 1e9);
        else
            continue;
        return 1;
    }
    if (then->count != now->count) {
        const struct dataset *more = then->count > now->count ? then : now;
        size_t first = then->count > now->count ? now->count : then->count;
        snprintf(words, size, "'%s' %s (there were %zu sources and are %zu)", more->sources[first].path,
                 more == then ? "is gone" : "is new", then->count, now->count);
        return 1;
    }
    if (then->end != now->end) {
        snprintf(words, size, "the limit of records is another");
        return 1;
    }
    return 0;
}

/* Standard input ----------------------------------------------------------------------------------------------------------------- */

enum status dataset_spool(int fd, const char *path, uint64_t *bytes, struct err *e)
{
    enum { SIZE = 256 * 1024 };
    char *temporary = mem_printf("%s.XXXXXX", path);
    char *block = mem_alloc(SIZE);
    enum status status = ST_OK;
    int to = -1;
    uint64_t total = 0;
    if (!temporary || !block) {
        status = err_nomem(e, "copying standard input");
        goto done;
    }
    to = mkostemp(temporary, O_CLOEXEC);
    if (to < 0) {
        status = err_errno(e, ST_ENV, errno, "cannot make '%s'", temporary);
        goto done;
    }
    for (;;) {
        ssize_t n = read(fd, block, SIZE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = err_errno(e, ST_ENV, errno, "cannot read standard input");
        if (n <= 0)
            break;
        for (ssize_t at = 0; at < n && status == ST_OK;) {
            ssize_t put = write(to, block + at, (size_t)(n - at));
            if (put < 0 && errno != EINTR)
                status = err_errno(e, ST_ENV, errno, "cannot write standard input to '%s'", temporary);
            at += put > 0 ? put : 0;
        }
        if (status != ST_OK)
            break;
        total += (uint64_t)n;
    }
    if (status == ST_OK && fsync(to))
        status = err_errno(e, ST_ENV, errno, "cannot sync '%s'", temporary);
    if (close(to) && status == ST_OK)
        status = err_errno(e, ST_ENV, errno, "cannot close '%s'", temporary);
    if (status == ST_OK && rename(temporary, path))
        status = err_errno(e, ST_ENV, errno, "cannot rename '%s' to '%s'", temporary, path);
    if (status != ST_OK)
        unlink(temporary);
    else
        status = path_sync_parent(path, e);
done:
    mem_free(temporary);
    mem_free(block);
    if (status == ST_OK)
        *bytes = total;
    return status;
}

/* At rest ------------------------------------------------------------------------------------------------------------------------
   Integers are LEB128 unless said. A chunk is: version (1), format, end, number of all sources, number of the first source in it, number
   of sources in it, then for each: bytes of the path shared with the one before it in this chunk, further bytes, those bytes,
   size, time (8 bytes, little-endian, two's complement), compression. */

#define CHUNK_SOURCES 4096
#define CHUNK_VERSION 1

enum status dataset_encode_chunk(const struct dataset *d, size_t chunk, struct buf *out, int *more, struct err *e)
{
    BUG_IF(chunk > d->count / CHUNK_SOURCES, "chunk %zu of a dataset of %zu sources", chunk, d->count);
    size_t first = chunk * CHUNK_SOURCES;
    size_t count = d->count - first < CHUNK_SOURCES ? d->count - first : CHUNK_SOURCES;
    int failed = buf_varint(out, CHUNK_VERSION) || buf_varint(out, d->format) || buf_varint(out, d->end) || buf_varint(out, d->count) ||
                 buf_varint(out, first) || buf_varint(out, count);
    const char *last = "";
    for (size_t i = first; i < first + count && !failed; i++) {
        const struct source *s = &d->sources[i];
        size_t shared = 0, len = strlen(s->path);
        while (last[shared] && last[shared] == s->path[shared])
            shared++;
        failed = buf_varint(out, shared) || buf_varint(out, len - shared) || buf_add(out, s->path + shared, len - shared) ||
                 buf_varint(out, s->size_bytes) || buf_le64(out, (uint64_t)s->mtime_ns) || buf_varint(out, s->compression);
        last = s->path;
    }
    if (failed)
        return err_nomem(e, "the list of sources");
    *more = first + count < d->count;
    return ST_OK;
}

/* The sources that are still to come are not counted in d->count; d->layout.count holds the promised number until dataset_finish. */
enum status dataset_decode_chunk(struct dataset *d, const void *data, size_t len, struct err *e)
{
    struct cursor c = cursor_make(data, len);
    uint64_t version = cursor_varint(&c), format = cursor_varint(&c), end = cursor_varint(&c), all = cursor_varint(&c);
    uint64_t first = cursor_varint(&c), count = cursor_varint(&c);
    if (!c.bad && version != CHUNK_VERSION)
        return err_set(e, ST_CORRUPT, "the list of sources has version %" PRIu64 ", this program knows %d", version, CHUNK_VERSION);
    if (c.bad || format == FORMAT_AUTO || format >= FORMATS || first != d->count || count > CHUNK_SOURCES || count > all - first ||
        first > all || (d->count && (d->layout.count != all || d->format != format || d->end != end)))
        return err_set(e, ST_CORRUPT, "the list of sources is damaged at source %zu", d->count + 1);
    d->format = (enum format)format;
    d->end = end;
    struct source *sources = mem_resize(d->sources, (d->count + count + !(d->count + count)) * sizeof *sources);
    if (!sources)
        return err_nomem(e, "the list of sources");
    d->sources = sources;
    d->layout.count = all;
    const char *last = "";
    for (uint64_t i = 0; i < count; i++) {
        uint64_t shared = cursor_varint(&c), rest = cursor_varint(&c);
        const uint8_t *tail = cursor_bytes(&c, rest);
        uint64_t size = cursor_varint(&c), mtime = cursor_le64(&c), compression = cursor_varint(&c);
        if (c.bad || shared > strlen(last) || compression > COMPRESSION_ZSTD || memchr(tail, 0, rest))
            return err_set(e, ST_CORRUPT, "the list of sources is damaged at source %zu", d->count + 1);
        char *path = mem_alloc(shared + rest + 1);
        if (!path)
            return err_nomem(e, "the list of sources");
        memcpy(path, last, shared);
        memcpy(path + shared, tail, rest);
        path[shared + rest] = 0;
        d->sources[d->count++] = (struct source){
            .path = path, .size_bytes = size, .mtime_ns = (int64_t)mtime, .compression = (enum compression)compression};
        last = path;
    }
    if (cursor_left(&c))
        return err_set(e, ST_CORRUPT, "the list of sources has %zu bytes too many at source %zu", cursor_left(&c), d->count);
    return ST_OK;
}

enum status dataset_finish(struct dataset *d, struct err *e)
{
    size_t promised = d->layout.count;
    d->layout.count = 0;
    if (promised != d->count)
        return err_set(e, ST_CORRUPT, "the list of sources ends after %zu of %zu", d->count, promised);
    TRY(build_layout(d, e));
    if (d->end > layout_end(&d->layout))
        return err_set(e, ST_CORRUPT, "the job ends behind its dataset");
    return ST_OK;
}
