#include "storage/errwalk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "storage/output.h"
#include "storage/part.h"
#include "storage/reader.h"

void part_file_close(struct part_file *p)
{
    if (p->fd >= 0)
        close(p->fd);
    mem_free(p->path);
    p->path = NULL;
    p->fd = -1;
    p->epoch = 0;
}

static enum status open_part(struct part_file *p, const struct extent *x, struct err *e)
{
    part_file_close(p);
    char path[PATH_MAX];
    if (strlen(p->dir) + 64 > sizeof path)
        return err_set(e, ST_USER, "the path '%s' is too long", p->dir);
    part_path(path, sizeof path, p->dir, p->job, x->epoch, x->seq);
    if (!(p->path = mem_strdup(path)))
        return err_nomem(e, "a path");
    p->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (p->fd < 0 && errno == ENOENT)
        return err_set(e, ST_CORRUPT, "part '%s' is missing, and with it records that were done: start the job anew with --force", path);
    if (p->fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot open part '%s'", path);
    if (fstat(p->fd, &s))
        return err_errno(e, ST_ENV, errno, "cannot read the size of part '%s'", path);
    p->size = (uint64_t)s.st_size;
    p->epoch = x->epoch;
    p->seq = x->seq;
    return ST_OK;
}

enum status part_file_open(struct part_file *p, const struct extent *x, struct err *e)
{
    if (p->fd < 0 || p->epoch != x->epoch || p->seq != x->seq) {
        enum status st = open_part(p, x, e);
        if (st != ST_OK) {
            part_file_close(p);
            return st;
        }
    }
    uint64_t sections[] = {x->rows_at, x->rows_bytes, x->aux_bytes, x->errors_bytes}, end = 0;
    for (size_t i = 0; i < 4; i++)
        end = sections[i] > UINT64_MAX - end ? UINT64_MAX : end + sections[i];
    if (end > p->size || (x->part_extents == 1 && end != p->size))
        return err_set(e, ST_CORRUPT, "part '%s' has %" PRIu64 " bytes, and the extent at %" PRIu64 " says that it ends at %" PRIu64, p->path,
                       p->size, x->span.begin, end);
    return ST_OK;
}

void errwalk_jump(struct errwalk *w, uint64_t begin)
{
    size_t i = layout_source(&w->d->layout, begin);
    w->source = i;
    w->lines = 0;
    w->known = i == w->d->layout.count || w->d->layout.base[i] == begin;
}

/* Line ends in a record that was never read by the one who set it aside, and who takes it for one line: right but where a record may
   hold line ends in quotes. */
static uint64_t quarantined_lines(const struct dataset *d, const struct extent *x)
{
    if (d->format != FORMAT_CSV && d->format != FORMAT_TSV)
        return x->lines ? x->lines : x->records;
    size_t i = layout_source(&d->layout, x->span.begin);
    struct reader *r = NULL;
    struct raw raw;
    struct err why = {0};
    const struct reader_opts opts = {.format = d->format};
    uint64_t base = d->layout.base[i], lines = x->records;
    enum status st = reader_open(&d->sources[i], &opts, x->span.begin - base, &r, &why);
    while (st == ST_OK)
        st = reader_next(r, x->span.end - base, &raw, &why);
    if (st == ST_END)
        lines = reader_lines(r);
    else
        log_warn("line numbers behind the record at byte %" PRIu64 " of '%s' may be too small: it was set aside, and %s",
                 x->span.begin - base, d->sources[i].path, why.text);
    reader_close(r);
    return lines;
}

static void move(struct errwalk *w, const struct extent *x, uint64_t lines)
{
    size_t last = layout_source(&w->d->layout, x->span.end - 1);
    if (last == w->source)
        w->lines += lines;
    else
        *w = (struct errwalk){.d = w->d, .source = last, .lines = lines, .known = 1};
}

static uint64_t line_of(const struct errwalk *w, uint64_t source, uint64_t line)
{
    if (source != w->source)
        return line + 1;
    return w->known ? w->lines + line + 1 : 0;
}

/* The reason reads "code|message". */
static enum status quarantined(struct errwalk *w, const struct extent *x, errwalk_fn *visit, void *arg, struct err *e)
{
    struct buf b = {0};
    if (layout_source(&w->d->layout, x->span.begin) == w->d->count)
        return err_set(e, ST_CORRUPT, "the extent at %" PRIu64 " lies behind the end of the dataset", x->span.begin);
    const char *bar = memchr(x->reason, '|', strnlen(x->reason, sizeof x->reason));
    const char *message = bar ? bar + 1 : x->reason, *code = bar ? x->reason : "failed";
    size_t code_len = bar ? (size_t)(bar - x->reason) : strlen(code);
    int failed = errline_string(&b, code, code_len);
    size_t at = b.len;
    failed = failed || errline_string(&b, message, strnlen(message, (size_t)(x->reason + sizeof x->reason - message)));
    if (failed) {
        buf_release(&b);
        return err_nomem(e, "an error row");
    }
    size_t source = layout_source(&w->d->layout, x->span.begin);
    struct errline l = {.record = x->span, .source = source, .code = b.data, .code_len = at, .message = b.data + at, .message_len = b.len - at};
    enum status st = visit(arg, &l, line_of(w, source, 0), e);
    buf_release(&b);
    if (st == ST_OK)
        move(w, x, quarantined_lines(w->d, x));
    return st;
}

enum status errwalk_extent(struct errwalk *w, const struct extent *x, struct part_file *p, errwalk_fn *visit, void *arg, struct err *e)
{
    if (x->epoch == 0)
        return quarantined(w, x, visit, arg, e);
    if (x->errors_bytes == 0 && x->errors == 0) {
        move(w, x, x->lines);
        return ST_OK;
    }
    TRY(part_file_open(p, x, e));
    char *data = mem_alloc((size_t)x->errors_bytes);
    if (!data)
        return err_nomem(e, "error rows");
    enum status st = output_pread(p->fd, p->path, data, (size_t)x->errors_bytes, x->rows_at + x->rows_bytes + x->aux_bytes, e);
    const char *at = data, *end = data + x->errors_bytes;
    uint64_t n = 0, row = 0;
    for (; st == ST_OK && at < end; n++) {
        struct errline l;
        if (errline_read(&at, end, &l) || l.row > x->rows || l.row < row || l.source >= w->d->count || l.record.begin < x->span.begin ||
            l.record.begin >= x->span.end)
            st = err_set(e, ST_CORRUPT, "part '%s' is damaged: error row %" PRIu64 " of the extent at %" PRIu64 " does not read", p->path,
                         n + 1, x->span.begin);
        else {
            row = l.row;
            st = visit(arg, &l, line_of(w, l.source, l.line), e);
        }
    }
    if (st == ST_OK && n != x->errors)
        st = err_set(e, ST_CORRUPT, "part '%s' is damaged: it holds %" PRIu64 " error rows for the extent at %" PRIu64 " instead of %" PRIu64,
                     p->path, n, x->span.begin, x->errors);
    mem_free(data);
    if (st == ST_OK)
        move(w, x, x->lines);
    return st;
}
