/* A retry is a merge: the rows and errors of the earlier output flow past and are written anew, with those of the retried records in
   their place; files before the first record in error are kept as they are. The index of errors knows before which row each record in
   error would have stood. Adjacent records in error have no row between them, so an extent's rows always go to one place. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "storage/assembly.h"

#define WINDOW ((size_t)256 * 1024)

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

void merge_close(struct assembly *a)
{
    struct old *old = &a->old;
    close_old_file(old);
    close_fd(&old->errors_fd);
    mem_free(old->errors_path);
    mem_free(old->files);
    mem_free(old->errors);
    buf_release(&old->window);
    *old = (struct old){.rows_fd = -1, .ids_fd = -1, .errors_fd = -1};
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

enum status merge_open(struct assembly *a, int fresh, uint64_t *kept, struct err *e)
{
    struct old *old = &a->old;
    uint32_t was = (uint32_t)old->seal.attempt;
    TRY(withdraw(a, e));
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
    struct buf *w = &old->window;
    const char *nl;
    while (!(nl = w->len > old->used ? memchr(w->data + old->used, '\n', w->len - old->used) : NULL)) {
        if (old->used) {
            w->len -= old->used;
            memmove(w->data, w->data + old->used, w->len);
            old->used = 0;
        }
        uint64_t at = a->st.old_errors_at + w->len, left = old->seal.errors_bytes - at;
        size_t n = left < WINDOW ? (size_t)left : WINDOW;
        if (n == 0)
            return err_set(e, ST_CORRUPT, "'%s' holds fewer rows than its index", old->errors_path);
        if (buf_reserve(w, n))
            return err_nomem(e, "error rows");
        TRY(output_pread(old->errors_fd, old->errors_path, w->data + w->len, n, at, e));
        w->len += n;
    }
    *line = w->data + old->used;
    *len = (size_t)(nl - *line) + 1;
    return ST_OK;
}

static void pass_old_error(struct assembly *a, size_t len)
{
    a->old.used += len;
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
        TRY(assembly_count_error(a, before, &r, e));
        pass_old_error(a, len);
    }
    return ST_OK;
}

enum status merge_extent(struct assembly *a, const struct extent *x, struct err *e)
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

enum status merge_rest(struct assembly *a, struct err *e)
{
    TRY(keep_old_errors(a, UINT64_MAX, e));
    return copy_old_rows(a, a->old.seal.rows, e);
}
