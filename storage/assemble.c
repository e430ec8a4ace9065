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
#include "storage/asmstate.h"
#include "storage/errwalk.h"
#include "storage/outfiles.h"
#include "storage/output.h"
#include "storage/part.h"
#include "storage/rows.h"

#define FLUSH ((size_t)256 * 1024)

/* The output of an earlier attempt, while a retry merges. */
struct old {
    struct seal seal;
    struct file_record *files;
    struct error_record *errors;
    int rows_fd, ids_fd, errors_fd;
    char *rows_path, *ids_path, *errors_path;
    struct buf window; /* of the errors, from old_errors_at on */
};

struct taken_part {
    uint64_t epoch, seq;
};

struct assembly {
    struct output_spec o;
    const struct dataset *d;
    char *path, *parts_dir;
    struct asmstate st;
    struct outfiles files;
    struct errwalk walk;
    struct part_file part;
    int errors_fd, index_fd;
    char *errors_path, *index_path;
    struct buf errors, index; /* not written yet; st.errors and st.errors_bytes count them */
    struct old old;
    struct taken_part *parts; /* appended whole; those before `saved_parts` lie before what was saved */
    size_t part_count, part_cap, saved_parts;
    int sealed, failed;
    struct seal seal;
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_old_file(struct old *old)
{
    close_fd(&old->rows_fd);
    close_fd(&old->ids_fd);
    mem_free(old->rows_path);
    mem_free(old->ids_path);
    old->rows_path = old->ids_path = NULL;
}

static void close_old(struct old *old)
{
    close_old_file(old);
    close_fd(&old->errors_fd);
    mem_free(old->errors_path);
    mem_free(old->files);
    mem_free(old->errors);
    buf_release(&old->window);
    *old = (struct old){.rows_fd = -1, .ids_fd = -1, .errors_fd = -1};
}

static void close_files(struct assembly *a)
{
    outfiles_close(&a->files);
    part_file_close(&a->part);
    close_old(&a->old);
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
    close_files(a);
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
    if (*fd < 0 || fstat(*fd, &s))
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot open '%s'", *path);
    if ((uint64_t)s.st_size < bytes)
        return err_set(e, ST_CORRUPT, "'%s' has %lld bytes, and %" PRIu64 " were safe before: start the job anew with --force", *path,
                       (long long)s.st_size, bytes);
    if ((uint64_t)s.st_size > bytes && ftruncate(*fd, (off_t)bytes))
        return err_errno(e, ST_ENV, errno, "cannot truncate '%s'", *path);
    return ST_OK;
}

/* The earlier output: its indexes, and where the merge begins. *kept: files before the one that holds the first row to move. */
static enum status open_old(struct assembly *a, int fresh, uint64_t *kept, struct err *e)
{
    struct old *old = &a->old;
    uint32_t was = (uint32_t)old->seal.attempt;
    TRY(output_read_files(&a->o, was, old->seal.files, &old->files, e));
    TRY(output_read_errors(&a->o, was, old->seal.errors, &old->errors, e));
    if (!(old->errors_path = output_name(&a->o, OUTPUT_ERRORS, 0, 0)))
        return err_nomem(e, "a path");
    old->errors_fd = open(old->errors_path, O_RDONLY | O_CLOEXEC);
    if (old->errors_fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", old->errors_path);
    uint64_t first = old->seal.errors ? old->errors[0].row : old->seal.rows, row = 0;
    *kept = 0;
    while (*kept + 1 < old->seal.files && row + old->files[*kept].rows <= first)
        row += old->files[(*kept)++].rows;
    if (fresh) {
        a->st.old_file = *kept;
        a->st.old_row = row;
    }
    return ST_OK;
}

/* An output that is being changed must not look finished. */
static enum status withdraw(const struct assembly *a, struct err *e)
{
    char *name = output_name(&a->o, a->o.is_dir ? OUTPUT_SUCCESS : OUTPUT_MANIFEST, 0, 0), *folder = output_folder(&a->o);
    enum status st = name && folder ? ST_OK : err_nomem(e, "a path");
    int errnum = fault_point("assemble.withdraw");
    if (st == ST_OK && (errnum || (unlink(name) && errno != ENOENT)))
        st = err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot remove '%s'", name);
    if (st == ST_OK)
        st = output_sync_dir(folder, e);
    mem_free(name);
    mem_free(folder);
    return st;
}

static enum status check_spec(const struct assembly *a, const struct asmstate *s, struct err *e)
{
    const struct output_spec *o = &a->o;
    if (s->job != a->st.job)
        return err_set(e, ST_CORRUPT, "the saved state of '%s' is of job %" PRIu64 ", not of %" PRIu64, o->path, s->job, a->st.job);
    if (s->kind != o->kind || s->is_dir != (uint64_t)o->is_dir || s->dims != o->dims || s->part_bytes != o->part_bytes)
        return err_set(e, ST_CORRUPT, "'%s' was begun with another format or size of files", o->path);
    return ST_OK;
}

static enum status open_files(struct assembly *a, const struct asmstate *saved, struct err *e)
{
    uint64_t kept = 0;
    uint32_t attempt = (uint32_t)a->st.attempt;
    if (attempt > 0) {
        TRY(withdraw(a, e));
        TRY(open_old(a, saved == NULL, &kept, e));
    }
    if (saved) {
        a->st = *saved;
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
    TRY(output_pwrite(a->errors_fd, a->errors_path, a->errors.data, a->errors.len, a->st.errors_bytes - a->errors.len, e));
    buf_clear(&a->errors);
    TRY(output_pwrite(a->index_fd, a->index_path, a->index.data, a->index.len, a->st.errors * ERROR_RECORD_BYTES - a->index.len, e));
    buf_clear(&a->index);
    return ST_OK;
}

/* Counts the row whose bytes were added to a->errors behind `before`, and adds its record. */
static enum status count_error(struct assembly *a, size_t before, const struct error_record *r, struct err *e)
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
    return count_error(a, before, &r, e);
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

/* Retry: what the earlier output holds -------------------------------------------------------------------------------------- */

static enum status open_old_file(struct assembly *a, struct err *e)
{
    struct old *old = &a->old;
    if (old->rows_fd >= 0)
        return ST_OK;
    if (!(old->rows_path = output_name(&a->o, OUTPUT_ROWS, a->st.old_file, 0)) ||
        (a->o.kind == OUTPUT_NPY && !(old->ids_path = output_name(&a->o, OUTPUT_IDS, a->st.old_file, 0))))
        return err_nomem(e, "a path");
    old->rows_fd = open(old->rows_path, O_RDONLY | O_CLOEXEC);
    if (old->rows_fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", old->rows_path);
    if (old->ids_path && (old->ids_fd = open(old->ids_path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", old->ids_path);
    struct stat s;
    if (fstat(old->rows_fd, &s) || (uint64_t)s.st_size != old->files[a->st.old_file].bytes)
        return err_set(e, ST_CORRUPT, "'%s' is not as it was written (%" PRIu64 " bytes): it was changed since", old->rows_path,
                       old->files[a->st.old_file].bytes);
    return ST_OK;
}

/* Rows of the earlier output up to `row` flow past. */
static enum status copy_old_rows(struct assembly *a, uint64_t row, struct err *e)
{
    struct old *old = &a->old;
    struct asmstate *s = &a->st;
    uint64_t header = a->o.kind == OUTPUT_NPY ? NPY_HEADER : 0;
    while (s->old_row < row) {
        if (s->old_file >= old->seal.files)
            return err_set(e, ST_CORRUPT, "the indexes of '%s' do not agree on its rows", a->o.path);
        const struct file_record *f = &old->files[s->old_file];
        TRY(open_old_file(a, e));
        uint64_t left = f->rows - s->old_file_row, n = row - s->old_row;
        uint64_t at = header + s->old_at, to = f->bytes, ids_to = f->ids_bytes;
        if (n < left && a->o.kind == OUTPUT_NPY) {
            to = at + n * a->o.dims * 4;
            TRY(outfiles_skip_lines(&a->files, old->ids_fd, old->ids_path, s->old_ids_at, f->ids_bytes, n, &ids_to, e));
        } else if (n < left)
            TRY(outfiles_skip_lines(&a->files, old->rows_fd, old->rows_path, at, f->bytes, n, &to, e));
        else
            n = left;
        struct run r = {.fd = old->rows_fd, .ids_fd = old->ids_fd, .path = old->rows_path, .ids_path = old->ids_path, .at = at,
                        .bytes = to - at, .rows = n, .ids_at = s->old_ids_at, .ids_bytes = ids_to - s->old_ids_at};
        TRY(outfiles_append(&a->files, &r, e));
        s->old_row += n;
        s->old_file_row += n;
        s->old_at = to - header;
        s->old_ids_at = ids_to;
        if (s->old_file_row == f->rows) {
            close_old_file(old);
            s->old_file++;
            s->old_file_row = s->old_at = s->old_ids_at = 0;
        }
    }
    return ST_OK;
}

/* The next error row of the earlier output, with its line end; valid until the next call. */
static enum status next_old_error(struct assembly *a, const char **line, size_t *len, struct err *e)
{
    struct old *old = &a->old;
    const char *nl;
    while (!(nl = old->window.len ? memchr(old->window.data, '\n', old->window.len) : NULL)) {
        uint64_t at = a->st.old_errors_at + old->window.len, left = old->seal.errors_bytes - at;
        size_t n = left < FLUSH ? (size_t)left : FLUSH;
        if (n == 0)
            return err_set(e, ST_CORRUPT, "'%s' holds fewer rows than its index", old->errors_path);
        if (buf_reserve(&old->window, n))
            return err_nomem(e, "error rows");
        TRY(output_pread(old->errors_fd, old->errors_path, old->window.data + old->window.len, n, at, e));
        old->window.len += n;
    }
    *line = old->window.data;
    *len = (size_t)(nl - old->window.data) + 1;
    return ST_OK;
}

static void pass_old_error(struct assembly *a, size_t len)
{
    struct buf *w = &a->old.window;
    memmove(w->data, w->data + len, w->len - len);
    w->len -= len;
    a->st.old_errors++;
    a->st.old_errors_at += len;
}

/* Errors of records before `begin` stay as they are. */
static enum status keep_old_errors(struct assembly *a, uint64_t begin, struct err *e)
{
    while (a->st.old_errors < a->old.seal.errors && a->old.errors[a->st.old_errors].record.begin < begin) {
        const char *line;
        size_t len, before = a->errors.len;
        TRY(next_old_error(a, &line, &len, e));
        struct error_record r = a->old.errors[a->st.old_errors];
        r.row += a->st.inserted;
        if (buf_add(&a->errors, line, len))
            return err_nomem(e, "error rows");
        TRY(count_error(a, before, &r, e));
        pass_old_error(a, len);
    }
    return ST_OK;
}

/* Makes way for the extent: everything of the earlier output that lies before it flows past, the errors of its records go. */
static enum status merge(struct assembly *a, const struct extent *x, struct err *e)
{
    const struct old *old = &a->old;
    TRY(keep_old_errors(a, x->span.begin, e));
    uint64_t first = a->st.old_errors, i = first;
    for (; i < old->seal.errors && old->errors[i].record.begin < x->span.end; i++) {
        const char *line;
        size_t len;
        if (old->errors[i].row != old->errors[first].row)
            return err_set(e, ST_CORRUPT, "the retried extent at %" PRIu64 " covers records that were done before", x->span.begin);
        TRY(next_old_error(a, &line, &len, e));
        pass_old_error(a, len);
    }
    if (i > first) {
        const struct error_record *r = &old->errors[first];
        TRY(copy_old_rows(a, r->row, e));
        if (r->record.begin == x->span.begin)
            a->walk = (struct errwalk){.d = a->d, .source = r->source, .lines = r->line - 1, .known = 1};
        else if (!(a->st.taken && a->st.last_end == x->span.begin))
            return err_set(e, ST_CORRUPT, "the retried extent at %" PRIu64 " begins at no record that was in error", x->span.begin);
    } else if (x->records && !(a->st.taken && a->st.last_end == x->span.begin))
        return err_set(e, ST_CORRUPT, "the retried extent at %" PRIu64 " covers no record that was in error", x->span.begin);
    a->st.inserted += x->rows;
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
        TRY(merge(a, x, e));
    TRY(append(a, x, e));
    s->taken++;
    s->last_begin = x->span.begin;
    s->last_end = s->head = x->span.end;
    return ST_OK;
}

static enum status usable(const struct assembly *a, struct err *e)
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
    TRY(usable(a, e));
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

static enum status sync_all(struct assembly *a, struct err *e)
{
    TRY(flush(a, e));
    TRY(output_sync(a->errors_fd, a->errors_path, e));
    TRY(output_sync(a->index_fd, a->index_path, e));
    return outfiles_sync(&a->files, e);
}

enum status assembly_save(struct assembly *a, struct buf *out, struct err *e)
{
    TRY(usable(a, e));
    enum status st = a->sealed ? ST_OK : sync_all(a, e);
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
    enum status st = usable(a, e);
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

/* Finishing ----------------------------------------------------------------------------------------------------------------- */

/* Everything up to the seal: after it, nothing but names is missing. */
static enum status finish_bytes(struct assembly *a, struct err *e)
{
    if (a->st.head != a->d->end)
        return err_set(e, ST_AGAIN, "'%s' is assembled up to %" PRIu64 " of %" PRIu64, a->o.path, a->st.head, a->d->end);
    if (a->st.attempt > 0) {
        TRY(keep_old_errors(a, UINT64_MAX, e));
        TRY(copy_old_rows(a, a->old.seal.rows, e));
    }
    TRY(outfiles_complete(&a->files, e));
    int errnum = fault_point("assemble.finish.sync");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot sync '%s'", a->errors_path);
    TRY(sync_all(a, e));
    struct seal s = {.job = a->st.job, .attempt = a->st.attempt, .kind = a->st.kind, .is_dir = a->st.is_dir, .dims = a->st.dims,
                     .part_bytes = a->st.part_bytes, .rows = a->files.st.rows, .files = a->files.st.file, .kept = a->files.st.kept,
                     .errors = a->st.errors, .errors_bytes = a->st.errors_bytes, .end = a->d->end};
    TRY(output_digest(a->errors_fd, a->errors_path, s.errors_bytes, s.errors_digest, e));
    errnum = fault_point("assemble.finish.seal");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot seal '%s'", a->o.path);
    TRY(seal_write(&a->o, &s, e));
    a->seal = s;
    a->sealed = 1;
    close_files(a);
    return ST_OK;
}

/* One name: the partial file takes it, or has taken it already. */
static enum status give_name(const struct assembly *a, enum output_name what, uint64_t index, uint64_t bytes, struct err *e)
{
    char *from = output_name(&a->o, what, index, 1), *to = output_name(&a->o, what, index, 0);
    enum status st = from && to ? ST_OK : err_nomem(e, "a path");
    int errnum = fault_point("assemble.rename");
    if (st == ST_OK && (errnum || (rename(from, to) && (errnum = errno) != ENOENT)))
        st = err_errno(e, ST_ENV, errnum, "cannot rename '%s' to '%s'", from, to);
    struct stat s;
    if (st == ST_OK && stat(to, &s))
        st = err_errno(e, errno == ENOENT ? ST_CORRUPT : ST_ENV, errno, "'%s' was finished and is gone", to);
    else if (st == ST_OK && (uint64_t)s.st_size != bytes)
        st = err_set(e, ST_CORRUPT, "'%s' has %lld bytes and was finished with %" PRIu64, to, (long long)s.st_size, bytes);
    mem_free(from);
    mem_free(to);
    return st;
}

static enum status give_names(struct assembly *a, const struct file_record *r, const struct manifest_info *info, struct err *e)
{
    const struct seal *s = &a->seal;
    char *folder = output_folder(&a->o);
    enum status st = folder ? ST_OK : err_nomem(e, "a path");
    for (uint64_t i = s->kept; i < s->files && st == ST_OK; i++) {
        if (a->o.is_dir)
            st = give_name(a, OUTPUT_ROWS, i, r[i].bytes, e);
        if (st == ST_OK && a->o.kind == OUTPUT_NPY)
            st = give_name(a, OUTPUT_IDS, i, r[i].ids_bytes, e);
    }
    if (st == ST_OK)
        st = give_name(a, OUTPUT_ERRORS, 0, s->errors_bytes, e);
    if (st == ST_OK)
        st = output_sync_dir(folder, e);
    if (st == ST_OK)
        st = manifest_write(&a->o, s, r, info, e);
    if (st == ST_OK && !a->o.is_dir) { /* a single file has no _SUCCESS: its name comes last instead */
        st = give_name(a, OUTPUT_ROWS, 0, r[0].bytes, e);
        if (st == ST_OK)
            st = output_sync_dir(folder, e);
    }
    mem_free(folder);
    return st;
}

static enum status make_success(const struct assembly *a, struct err *e)
{
    int errnum = fault_point("assemble.finish.success");
    char *path = output_name(&a->o, OUTPUT_SUCCESS, 0, 0);
    if (!path)
        return err_nomem(e, "a path");
    int fd = errnum ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    enum status st = ST_OK;
    if (fd < 0)
        st = err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot make '%s'", path);
    else {
        st = output_sync(fd, path, e);
        close(fd);
    }
    if (st == ST_OK)
        st = path_sync_parent(path, e);
    mem_free(path);
    return st;
}

/* Parts, and the indexes of earlier attempts. */
static enum status remove_rest(const struct assembly *a, struct err *e)
{
    int errnum = fault_point("assemble.finish.parts");
    char *parts = mem_printf("%s/%" PRIu64, a->parts_dir, a->st.job);
    enum status st = parts ? ST_OK : err_nomem(e, "a path");
    if (errnum)
        st = err_errno(e, ST_ENV, errnum, "cannot remove '%s'", parts ? parts : "parts");
    if (st == ST_OK)
        for (int tries = 0; (st = path_remove_tree(parts, e)) != ST_OK && tries < 3; tries++) {
            /* a worker that was thought lost may still be writing there */
        }
    for (uint32_t i = 0; i < a->seal.attempt && st == ST_OK; i++)
        for (int k = 0; k < 2 && st == ST_OK; k++) {
            char *path = output_work_file(&a->o, k ? "errors" : "files", i);
            if (!path)
                st = err_nomem(e, "a path");
            else if (unlink(path) && errno != ENOENT)
                st = err_errno(e, ST_ENV, errno, "cannot remove '%s'", path);
            mem_free(path);
        }
    mem_free(parts);
    return st;
}

enum status assembly_finish(struct assembly *a, const struct manifest_info *info, struct err *e)
{
    TRY(usable(a, e));
    struct file_record *r = NULL;
    enum status st = a->sealed ? ST_OK : finish_bytes(a, e);
    int errnum;
    if (st == ST_OK && (errnum = fault_point("assemble.finish.names")))
        st = err_errno(e, ST_ENV, errnum, "cannot give '%s' its names", a->o.path);
    if (st == ST_OK)
        st = output_read_files(&a->o, (uint32_t)a->seal.attempt, a->seal.files, &r, e);
    if (st == ST_OK)
        st = give_names(a, r, info, e);
    mem_free(r);
    if (st == ST_OK && a->o.is_dir)
        st = make_success(a, e);
    if (st == ST_OK)
        st = remove_rest(a, e);
    if (st != ST_OK && st != ST_AGAIN)
        a->failed = 1;
    return st;
}
