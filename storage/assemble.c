/* The happy path: extents come out of the store in the order of the input; their rows go to the end of the files of rows
   (storage/outfiles.c), their error rows to the end of the file of errors, with an index beside it that knows which record each is
   about. assembly_save syncs and tells the lengths; assembly_finish completes the files, seals them (<work>/output), and then only
   makes names: partial file there = not named yet, partial file gone and target there = done.

   A retry is a merge: the rows and errors of the earlier output flow past and are written anew, with those of the retried records in
   their place; files before the first record in error are kept as they are.

   What can fail: anything; then the assembly is of no use (`failed`), the caller closes it and opens it with what assembly_save gave last:
   files are truncated to that. Behind the seal an opened assembly only goes on making names. */
#include "storage/assemble.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/assembly.h"
#include "storage/part.h"
#include "storage/rows.h"

#define FLUSH ((size_t)256 * 1024)

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
void assembly_close_files(struct assembly *a)
{
    outfiles_close(&a->files);
    part_file_close(&a->part);
    merge_close(a);
    close_fd(&a->errors_fd);
    close_fd(&a->index_fd);
    mem_free(a->errors_path);
    mem_free(a->index_path);
    a->errors_path = a->index_path = NULL;
    buf_release(&a->errors);
    buf_release(&a->index);
}

void assembly_close(struct assembly *a)
{
    if (!a)
        return;
    assembly_close_files(a);
    mem_free(a->path);
    mem_free(a->parts_dir);
    mem_free(a->parts);
    mem_free(a);
}

/* Opening ------------------------------------------------------------------------------------------------------------------- */

static enum status open_sized(char **path, uint64_t bytes, int fresh, int *fd, struct err *e)
{
    if (!*path)
        return err_nomem(e, "a path");
    int errnum = fault_point("assemble.open");
    *fd = errnum ? -1 : open(*path, O_RDWR | O_CLOEXEC | (fresh ? O_CREAT | O_TRUNC : 0), 0666);
    struct stat s;
    if (*fd < 0 && !errnum && errno == ENOENT && !fresh)
        return err_set(e, ST_CORRUPT, "'%s' is gone, and with it records that were done: start the job anew with --force", *path);
    if (*fd < 0 || fstat(*fd, &s))
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot open '%s'", *path);
    if ((uint64_t)s.st_size < bytes)
        return err_set(e, ST_CORRUPT, "'%s' has %lld bytes, and %" PRIu64 " were safe before: start the job anew with --force", *path,
                       (long long)s.st_size, bytes);
    if ((uint64_t)s.st_size > bytes && ftruncate(*fd, (off_t)bytes))
        return err_errno(e, ST_ENV, errno, "cannot truncate '%s'", *path);
    return ST_OK;
}
static enum status check_spec(const struct assembly *a, const struct asmstate *s, struct err *e)
{
    const struct output_spec *o = &a->o;
    if (s->job != a->st.job)
        return err_set(e, ST_CORRUPT, "the saved state of '%s' is of job %" PRIu64 ", not of %" PRIu64, o->path, s->job, a->st.job);
    int other_rows = o->kind == OUTPUT_NPY && s->dims && o->dims && s->dims != o->dims; /* 0: not known then, or not yet known now */
    if (s->kind != o->kind || s->is_dir != (uint64_t)o->is_dir || other_rows || s->part_bytes != o->part_bytes)
        return err_set(e, ST_CORRUPT, "'%s' was begun with another format or size of files", o->path);
    return ST_OK;
}

static enum status open_files(struct assembly *a, const struct asmstate *saved, struct err *e)
{
    uint64_t kept = 0;
    uint32_t attempt = (uint32_t)a->st.attempt;
    if (attempt > 0)
        TRY(merge_open(a, saved == NULL, &kept, e));
    if (saved) {
        a->st = *saved;
        if (!a->st.dims)
            a->st.dims = a->o.dims;
        a->walk = (struct errwalk){.d = a->d, .source = saved->line_source, .lines = saved->line_count, .known = 1};
    } else
        errwalk_jump(&a->walk, 0);
    int fresh = saved == NULL;
    a->errors_path = output_name(&a->o, OUTPUT_ERRORS, 0, 1);
    a->index_path = output_work_file(&a->o, "errors", attempt);
    TRY(open_sized(&a->errors_path, a->st.errors_bytes, fresh, &a->errors_fd, e));
    TRY(open_sized(&a->index_path, a->st.errors * ERROR_RECORD_BYTES, fresh, &a->index_fd, e));
    return outfiles_open(&a->files, &a->o, attempt, saved ? &saved->files : NULL, kept, a->old.files, e);
}

enum status assembly_open(const struct output_spec *o, uint64_t job, const struct dataset *d, uint32_t attempt, const void *saved,
                          size_t saved_len, struct assembly **out, struct err *e)
{
    struct assembly *a = mem_zalloc(sizeof *a);
    if (!a)
        return err_nomem(e, "the output");
    a->o = *o;
    a->d = d;
    a->files.rows_fd = a->files.ids_fd = a->files.index_fd = a->part.fd = a->errors_fd = a->index_fd = -1;
    a->old.rows_fd = a->old.ids_fd = a->old.errors_fd = -1;
    a->st = (struct asmstate){.job = job, .attempt = attempt, .kind = o->kind, .is_dir = (uint64_t)o->is_dir, .dims = o->dims,
                              .part_bytes = o->part_bytes};
    struct asmstate was;
    struct seal seal;
    struct err mine = {0};
    enum status st = ST_OK;
    if (!(a->path = mem_strdup(o->path)) || !(a->parts_dir = output_parts_dir(o)))
        st = err_nomem(e, "the output");
    a->o.path = a->path;
    a->part.dir = a->parts_dir;
    a->part.job = job;
    a->walk.d = d;
    if (st == ST_OK && saved_len) {
        st = asmstate_get(saved, saved_len, &was, e);
        if (st == ST_OK && was.attempt != attempt)
            saved_len = 0; /* of an attempt that is over */
        else if (st == ST_OK)
            st = check_spec(a, &was, e);
        if (st == ST_OK && saved_len && !a->o.dims)
            a->o.dims = (uint32_t)was.dims;
    }
    if (st != ST_OK)
        goto fail;
    st = seal_read(&a->o, &seal, &mine);
    if (st != ST_OK && st != ST_NOT_FOUND) {
        if (e)
            *e = mine;
        goto fail;
    }
    int ours = st == ST_OK && seal.job == job;
    if (ours && seal.attempt == attempt) {
        a->sealed = 1;
        a->seal = seal;
        a->st.head = seal.end;
        *out = a;
        return ST_OK;
    }
    if (ours && seal.attempt > attempt)
        st = err_set(e, ST_USER, "'%s' holds attempt %" PRIu64 " of job %" PRIu64 " already: attempt %" PRIu32 " is over", o->path,
                     seal.attempt, job, attempt);
    else if (!ours && attempt > 0)
        st = err_set(e, ST_CORRUPT, "'%s' holds no finished output of job %" PRIu64 " to put the retried records into", o->path, job);
    else
        st = ST_OK;
    if (st == ST_OK) {
        if (attempt > 0)
            a->old.seal = seal;
        st = open_files(a, saved_len ? &was : NULL, e);
    }
    if (st == ST_OK) {
        *out = a;
        return ST_OK;
    }
fail:
    assembly_close(a);
    return st;
}

uint64_t assembly_head(const struct assembly *a)
{
    return a->st.head;
}

/* Writing ------------------------------------------------------------------------------------------------------------------- */

static enum status flush(struct assembly *a, struct err *e)
{
    TRY(output_intact(a->errors_fd, a->errors_path, a->st.errors_bytes - a->errors.len, e));
    TRY(output_pwrite(a->errors_fd, a->errors_path, a->errors.data, a->errors.len, a->st.errors_bytes - a->errors.len, e));
    buf_clear(&a->errors);
    TRY(output_pwrite(a->index_fd, a->index_path, a->index.data, a->index.len, a->st.errors * ERROR_RECORD_BYTES - a->index.len, e));
    buf_clear(&a->index);
    return ST_OK;
}

enum status assembly_count_error(struct assembly *a, size_t before, const struct error_record *r, struct err *e)
{
    if (error_record_put(&a->index, r))
        return err_nomem(e, "error rows");
    a->st.errors++;
    a->st.errors_bytes += a->errors.len - before;
    return a->errors.len > FLUSH ? flush(a, e) : ST_OK;
}

struct emit {
    struct assembly *a;
    uint64_t rows_before; /* the extent */
};

static enum status emit_error(void *arg, const struct errline *x, uint64_t line, struct err *e)
{
    const struct emit *m = arg;
    struct assembly *a = m->a;
    const struct source *s = &a->d->sources[x->source];
    size_t before = a->errors.len;
    BUG_IF(line == 0, "an error without a line at %" PRIu64, x->record.begin);
    if (errline_people(&a->errors, s->path, line, x->record.begin - a->d->layout.base[x->source], x))
        return err_nomem(e, "error rows");
    struct error_record r = {.record = x->record, .row = m->rows_before + x->row, .source = x->source, .line = line};
    if (r.record.end <= r.record.begin)
        r.record.end = r.record.begin + 1;
    return assembly_count_error(a, before, &r, e);
}

static enum status append_rows(struct assembly *a, const struct extent *x, struct err *e)
{
    if (x->rows == 0 && x->rows_bytes == 0)
        return ST_OK;
    TRY(part_file_open(&a->part, x, e));
    const char *path = a->part.path;
    uint64_t behind = x->rows_at + x->rows_bytes, to = 0;
    struct run r = {.fd = a->part.fd, .path = path, .at = x->rows_at, .bytes = x->rows_bytes, .rows = x->rows};
    if (a->o.kind == OUTPUT_NPY) {
        r.ids_fd = r.fd;
        r.ids_path = path;
        r.ids_at = behind;
        r.ids_bytes = x->aux_bytes;
        TRY(outfiles_skip_lines(&a->files, r.fd, path, behind, behind + x->aux_bytes, x->rows, &to, e));
        if (to != behind + x->aux_bytes)
            return err_set(e, ST_CORRUPT, "part '%s' holds more ids than the %" PRIu64 " rows of the extent at %" PRIu64, path, x->rows,
                           x->span.begin);
    } else {
        char last = 0;
        if (x->rows && x->rows_bytes)
            TRY(output_pread(r.fd, path, &last, 1, behind - 1, e));
        if (last != '\n')
            return err_set(e, ST_CORRUPT, "part '%s' is damaged: the rows of the extent at %" PRIu64 " do not end with a line end", path,
                           x->span.begin);
    }
    return outfiles_append(&a->files, &r, e);
}

/* Appends the extent's rows and errors; the part may be freed once this is saved. */
static enum status append(struct assembly *a, const struct extent *x, struct err *e)
{
    struct emit m = {a, a->files.st.rows};
    if (x->epoch) {
        void *items = a->parts;
        int failed = mem_grow(&items, &a->part_cap, a->part_count, sizeof *a->parts);
        a->parts = items;
        if (failed)
            return err_nomem(e, "the output");
        TRY(part_file_open(&a->part, x, e));
    }
    TRY(append_rows(a, x, e));
    TRY(errwalk_extent(&a->walk, x, &a->part, emit_error, &m, e));
    if (x->epoch && x->part_extents == 1)
        a->parts[a->part_count++] = (struct taken_part){x->epoch, x->seq};
    return ST_OK;
}
/* Advancing ----------------------------------------------------------------------------------------------------------------- */

static enum status take(struct assembly *a, const struct extent *x, struct err *e)
{
    struct asmstate *s = &a->st;
    if (x->span.end <= x->span.begin)
        return err_set(e, ST_CORRUPT, "the extent at %" PRIu64 " ends where it begins", x->span.begin);
    if (s->taken && x->span.begin < s->last_end)
        return err_set(e, ST_CORRUPT, "extents [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64 ", %" PRIu64 ") of job %" PRIu64 " overlap",
                       s->last_begin, s->last_end, x->span.begin, x->span.end, s->job);
    if (s->attempt == 0 && x->span.begin != s->head)
        return err_set(e, ST_CORRUPT, "between extents [%" PRIu64 ", %" PRIu64 ") and [%" PRIu64 ", %" PRIu64 ") of job %" PRIu64 " nothing is done",
                       s->last_begin, s->last_end, x->span.begin, x->span.end, s->job);
    if (x->span.end > a->d->end)
        return err_set(e, ST_CORRUPT, "extent [%" PRIu64 ", %" PRIu64 ") of job %" PRIu64 " ends behind the dataset, at %" PRIu64, x->span.begin,
                       x->span.end, s->job, a->d->end);
    if (s->attempt > 0)
        TRY(merge_extent(a, x, e));
    TRY(append(a, x, e));
    s->taken++;
    s->last_begin = x->span.begin;
    s->last_end = s->head = x->span.end;
    return ST_OK;
}

enum status assembly_usable(const struct assembly *a, struct err *e)
{
    return a->failed ? err_set(e, ST_ENV, "the assembly of '%s' failed before: it must be closed and opened anew", a->o.path) : ST_OK;
}

static enum status advance(struct assembly *a, struct extent_iter *it, uint64_t head, uint64_t bytes, int *more, struct err *e)
{
    uint64_t spent = 0;
    struct extent x;
    for (;;) {
        enum status st = extent_iter_next(it, &x, e);
        if (st != ST_OK && st != ST_END)
            return st;
        if (st == ST_END || x.span.begin >= head)
            break;
        if (x.attempt != a->st.attempt || (a->st.taken && x.span.begin == a->st.last_begin))
            continue;
        if (spent >= bytes && spent) {
            *more = 1;
            return ST_OK;
        }
        uint64_t rows = a->files.st.rows;
        TRY(take(a, &x, e));
        spent += x.rows_bytes + x.aux_bytes + x.errors_bytes + 64;
        if (a->st.attempt > 0)
            spent += (a->files.st.rows - rows) * 64; /* rows that flowed past: a guess, only to give others a turn */
    }
    if (a->st.attempt == 0 && a->st.head < head)
        return err_set(e, ST_CORRUPT, "behind extent [%" PRIu64 ", %" PRIu64 ") of job %" PRIu64 " nothing is done up to %" PRIu64, a->st.last_begin,
                       a->st.last_end, a->st.job, head);
    if (a->st.head < head)
        a->st.head = head;
    return ST_OK;
}

enum status assembly_advance(struct assembly *a, struct store *s, uint64_t head, uint64_t bytes, int *more, struct err *e)
{
    *more = 0;
    TRY(assembly_usable(a, e));
    if (head > a->d->end)
        head = a->d->end;
    if (a->sealed || a->st.head >= head)
        return ST_OK;
    struct extent_iter *it = NULL;
    enum status st = extent_iter_open(s, a->st.job, a->st.taken ? a->st.last_begin : 0, &it, e);
    if (st == ST_OK)
        st = advance(a, it, head, bytes, more, e);
    extent_iter_close(it);
    a->failed |= st != ST_OK;
    return st;
}

enum status assembly_sync(struct assembly *a, struct err *e)
{
    TRY(flush(a, e));
    TRY(output_sync(a->errors_fd, a->errors_path, e));
    TRY(output_sync(a->index_fd, a->index_path, e));
    return outfiles_sync(&a->files, e);
}

enum status assembly_save(struct assembly *a, struct buf *out, struct err *e)
{
    TRY(assembly_usable(a, e));
    enum status st = a->sealed ? ST_OK : assembly_sync(a, e);
    if (st == ST_OK) {
        a->st.line_source = a->walk.source;
        a->st.line_count = a->walk.lines;
        if (!a->sealed)
            a->st.files = a->files.st;
        if (asmstate_put(out, &a->st))
            st = err_nomem(e, "the state of the output");
    }
    if (st == ST_OK)
        a->saved_parts = a->part_count;
    else
        a->failed = 1;
    return st;
}

enum status assembly_free_parts(struct assembly *a, struct err *e)
{
    enum status st = assembly_usable(a, e);
    size_t i = 0;
    for (; i < a->saved_parts && st == ST_OK; i++) {
        char *path = mem_printf("%s/%" PRIu64 "/%" PRIu64 "-%" PRIu64, a->parts_dir, a->st.job, a->parts[i].epoch, a->parts[i].seq);
        if (!path)
            st = err_nomem(e, "a path");
        else if (unlink(path) && errno != ENOENT)
            st = err_errno(e, ST_ENV, errno, "cannot remove part '%s'", path);
        mem_free(path);
    }
    if (st == ST_OK) {
        a->part_count -= a->saved_parts;
        if (a->part_count)
            memmove(a->parts, a->parts + a->saved_parts, a->part_count * sizeof *a->parts);
        a->saved_parts = 0;
    }
    return st;
}
