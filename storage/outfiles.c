/* The happy path: a run is copied by the kernel from the part to the end of the current file. When the file is full within the run,
   the run is split behind the row that fills it; the file is completed (a .npy header gets its shape, data are synced, the digest is
   taken, a record is added to the index) and the next run begins the next file.

   What can fail: no space, I/O: what was appended since the last saved state is then of no account, since a restart truncates. */
#include "storage/outfiles.h"

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

#define SCRATCH ((size_t)256 * 1024)

static uint64_t header_bytes(const struct outfiles *f)
{
    return f->o.kind == OUTPUT_NPY ? NPY_HEADER : 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_file(struct outfiles *f)
{
    close_fd(&f->rows_fd);
    close_fd(&f->ids_fd);
    mem_free(f->rows_path);
    mem_free(f->ids_path);
    f->rows_path = f->ids_path = NULL;
}

void outfiles_close(struct outfiles *f)
{
    close_file(f);
    close_fd(&f->index_fd);
    mem_free(f->index_path);
    mem_free(f->folder);
    mem_free(f->work);
    mem_free(f->scratch);
    *f = (struct outfiles){.rows_fd = -1, .ids_fd = -1, .index_fd = -1};
}

/* NPY format 1.0: magic, version, length of the text, a Python dict padded with spaces to the header's end. */
static enum status write_header(struct outfiles *f, struct err *e)
{
    if (f->o.kind != OUTPUT_NPY)
        return ST_OK;
    char h[NPY_HEADER + 1];
    memcpy(h, "\x93NUMPY\x01\x00\x76\x00", 10); /* 0x76: 118 bytes of text follow */
    int n = snprintf(h + 10, sizeof h - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu32 "), }", f->st.file_rows,
                     f->o.dims);
    memset(h + 10 + n, ' ', (size_t)(NPY_HEADER - 10 - n));
    h[NPY_HEADER - 1] = '\n';
    return output_pwrite(f->rows_fd, f->rows_path, h, NPY_HEADER, 0, e);
}

/* With `bytes` UINT64_MAX the file is made anew; else it is truncated to them. */
static enum status open_one(const char *path, uint64_t bytes, int *fd, struct err *e)
{
    int fresh = bytes == UINT64_MAX;
    int errnum = fault_point("assemble.open");
    *fd = errnum ? -1 : open(path, O_RDWR | O_CLOEXEC | (fresh ? O_CREAT | O_TRUNC : 0), 0666);
    if (*fd < 0 && !errnum && errno == ENOENT && !fresh)
        return err_set(e, ST_CORRUPT, "'%s' is gone, and with it records that were done: start the job anew with --force", path);
    if (*fd < 0)
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot open '%s'", path);
    if (fresh)
        return ST_OK;
    struct stat s;
    if (fstat(*fd, &s))
        return err_errno(e, ST_ENV, errno, "cannot read the size of '%s'", path);
    if ((uint64_t)s.st_size < bytes)
        return err_set(e, ST_CORRUPT, "'%s' has %lld bytes, and %" PRIu64 " were safe before: start the job anew with --force", path,
                       (long long)s.st_size, bytes);
    if ((uint64_t)s.st_size > bytes && ftruncate(*fd, (off_t)bytes))
        return err_errno(e, ST_ENV, errno, "cannot truncate '%s'", path);
    return ST_OK;
}

static enum status open_file(struct outfiles *f, int fresh, struct err *e)
{
    f->rows_path = output_name(&f->o, OUTPUT_ROWS, f->st.file, 1);
    if (!f->rows_path || (f->o.kind == OUTPUT_NPY && !(f->ids_path = output_name(&f->o, OUTPUT_IDS, f->st.file, 1))))
        return err_nomem(e, "a path");
    TRY(open_one(f->rows_path, fresh ? UINT64_MAX : header_bytes(f) + f->st.file_bytes, &f->rows_fd, e));
    if (f->ids_path)
        TRY(open_one(f->ids_path, fresh ? UINT64_MAX : f->st.ids_bytes, &f->ids_fd, e));
    if (fresh) {
        f->st.file_rows = f->st.file_bytes = f->st.ids_bytes = 0;
        f->new_names = 1;
        TRY(write_header(f, e));
    }
    f->st.file_open = 1;
    return ST_OK;
}

/* Finished files that have no name yet must be as long as the index says. */
static enum status check_finished(const struct outfiles *f, uint32_t attempt, struct err *e)
{
    struct file_record *r = NULL;
    TRY(output_read_files(&f->o, attempt, f->st.file, &r, e));
    enum status st = ST_OK;
    for (uint64_t i = f->st.kept; i < f->st.file && st == ST_OK; i++)
        for (int what = OUTPUT_ROWS; what <= (f->o.kind == OUTPUT_NPY ? OUTPUT_IDS : OUTPUT_ROWS) && st == ST_OK; what++) {
            char *path = output_name(&f->o, (enum output_name)what, i, 1);
            struct stat s;
            uint64_t want = what == OUTPUT_ROWS ? r[i].bytes : r[i].ids_bytes;
            if (!path)
                st = err_nomem(e, "a path");
            else if (stat(path, &s))
                st = err_errno(e, errno == ENOENT ? ST_CORRUPT : ST_ENV, errno, "cannot find '%s', a finished file of the output", path);
            else if ((uint64_t)s.st_size != want)
                st = err_set(e, ST_CORRUPT, "'%s' has %lld bytes instead of %" PRIu64 ": start the job anew with --force", path,
                             (long long)s.st_size, want);
            mem_free(path);
        }
    mem_free(r);
    return st;
}

static enum status begin_anew(struct outfiles *f, uint64_t kept, const struct file_record *records, struct err *e)
{
    struct buf b = {0};
    enum status st = open_one(f->index_path, UINT64_MAX, &f->index_fd, e);
    f->new_names = 1;
    for (uint64_t i = 0; i < kept && st == ST_OK; i++) {
        f->st.rows += records[i].rows;
        if (file_record_put(&b, &records[i]))
            st = err_nomem(e, "an index of the output");
    }
    if (st == ST_OK)
        st = output_pwrite(f->index_fd, f->index_path, b.data, b.len, 0, e);
    buf_release(&b);
    f->st.kept = f->st.file = kept;
    if (st == ST_OK)
        st = output_drop_partial(&f->o, 0, e);
    return st == ST_OK ? open_file(f, 1, e) : st;
}

enum status outfiles_open(struct outfiles *f, const struct output_spec *o, uint32_t attempt, const struct outfiles_state *state,
                          uint64_t kept, const struct file_record *records, struct err *e)
{
    *f = (struct outfiles){.o = *o, .rows_fd = -1, .ids_fd = -1, .index_fd = -1};
    f->part_bytes = !o->is_dir ? UINT64_MAX : o->part_bytes ? o->part_bytes : PART_BYTES_DEFAULT;
    f->row_bytes = (uint64_t)o->dims * 4;
    enum status st = ST_OK;
    if (!(f->index_path = output_work_file(o, "files", attempt)) || !(f->folder = output_folder(o)) || !(f->work = output_work_dir(o)) ||
        !(f->scratch = mem_alloc(SCRATCH)))
        st = err_nomem(e, "the output's files");
    else if (!state)
        st = begin_anew(f, kept, records, e);
    else {
        f->st = *state;
        st = open_one(f->index_path, f->st.file * FILE_RECORD_BYTES, &f->index_fd, e);
        if (st == ST_OK)
            st = check_finished(f, attempt, e);
        if (st == ST_OK)
            st = output_drop_partial(o, f->st.file + f->st.file_open, e);
        if (st == ST_OK && f->st.file_open)
            st = open_file(f, 0, e);
    }
    if (st != ST_OK)
        outfiles_close(f);
    return st;
}

enum status outfiles_copy(struct outfiles *f, int from, const char *from_path, uint64_t at, int to, const char *to_path, uint64_t to_at,
                          uint64_t len, struct err *e)
{
    while (len) {
        int errnum = fault_point("assemble.copy");
        off_t in = (off_t)at, out = (off_t)to_at;
        ssize_t n = errnum ? -1 : copy_file_range(from, &in, to, &out, len < (1u << 30) ? (size_t)len : 1u << 30, 0);
        if (n < 0 && !errnum)
            errnum = errno;
        if (n < 0 && (errnum == ENOSPC || errnum == EDQUOT))
            return err_errno(e, ST_ENV, errnum, "cannot write '%s': free some space, then go on", to_path);
        if (n < 0 && errnum == EINTR)
            continue;
        if (n < 0 && (errnum == EIO || errnum == EACCES || errnum == ENOMEM))
            return err_errno(e, ST_ENV, errnum, "cannot copy '%s' to '%s'", from_path, to_path);
        if (n <= 0) { /* file systems that cannot do it say so in many ways, and some say 0 */
            n = (ssize_t)(len < SCRATCH ? len : SCRATCH);
            TRY(output_pread(from, from_path, f->scratch, (size_t)n, at, e));
            TRY(output_pwrite(to, to_path, f->scratch, (size_t)n, to_at, e));
        }
        at += (uint64_t)n;
        to_at += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return ST_OK;
}


enum status outfiles_skip_lines(struct outfiles *f, int fd, const char *path, uint64_t at, uint64_t end, uint64_t n, uint64_t *to,
                                struct err *e)
{
    while (n && at < end) {
        size_t len = end - at < SCRATCH ? (size_t)(end - at) : SCRATCH;
        TRY(output_pread(fd, path, f->scratch, len, at, e));
        const char *p = f->scratch, *stop = p + len;
        while (n && (p = memchr(p, '\n', (size_t)(stop - p)))) {
            p++;
            n--;
        }
        at += p ? (uint64_t)(p - f->scratch) : len;
    }
    if (n)
        return err_set(e, ST_CORRUPT, "'%s' holds %" PRIu64 " lines fewer before byte %" PRIu64 " than its rows say", path, n, end);
    *to = at;
    return ST_OK;
}

static enum status count_lines(struct outfiles *f, const struct run *r, uint64_t end, uint64_t *n, struct err *e)
{
    *n = 0;
    for (uint64_t at = r->at; at < end;) {
        size_t len = end - at < SCRATCH ? (size_t)(end - at) : SCRATCH;
        TRY(output_pread(r->fd, r->path, f->scratch, len, at, e));
        for (const char *p = f->scratch, *stop = p + len; (p = memchr(p, '\n', (size_t)(stop - p))); p++)
            ++*n;
        at += len;
    }
    return ST_OK;
}

/* How much of the run goes into the current file. */
static enum status split(struct outfiles *f, const struct run *r, struct run *head, struct err *e)
{
    uint64_t room = f->part_bytes - f->st.file_bytes;
    *head = *r;
    if (r->bytes < room)
        return ST_OK;
    if (f->o.kind == OUTPUT_NPY) {
        uint64_t rows = (room + f->row_bytes - 1) / f->row_bytes;
        if (rows >= r->rows)
            return ST_OK;
        head->rows = rows;
        head->bytes = rows * f->row_bytes;
        uint64_t to = 0;
        TRY(outfiles_skip_lines(f, r->ids_fd, r->ids_path, r->ids_at, r->ids_at + r->ids_bytes, rows, &to, e));
        head->ids_bytes = to - r->ids_at;
        return ST_OK;
    }
    uint64_t to = 0;
    TRY(outfiles_skip_lines(f, r->fd, r->path, r->at + room - 1, r->at + r->bytes, 1, &to, e));
    head->bytes = to - r->at;
    if (head->bytes == r->bytes)
        return ST_OK;
    TRY(count_lines(f, r, to, &head->rows, e));
    if (head->rows >= r->rows)
        return err_set(e, ST_CORRUPT, "'%s' holds more lines than its %" PRIu64 " rows", r->path, r->rows);
    return ST_OK;
}

enum status outfiles_complete(struct outfiles *f, struct err *e)
{
    struct file_record r = {.rows = f->st.file_rows, .bytes = header_bytes(f) + f->st.file_bytes, .ids_bytes = f->st.ids_bytes};
    struct buf b = {0};
    if (!f->st.file_open)
        return ST_OK;
    TRY(write_header(f, e));
    TRY(output_sync(f->rows_fd, f->rows_path, e));
    TRY(output_digest(f->rows_fd, f->rows_path, r.bytes, r.digest, e));
    if (f->ids_path) {
        TRY(output_sync(f->ids_fd, f->ids_path, e));
        TRY(output_digest(f->ids_fd, f->ids_path, r.ids_bytes, r.ids_digest, e));
    }
    if (file_record_put(&b, &r)) {
        buf_release(&b);
        return err_nomem(e, "an index of the output");
    }
    enum status st = output_pwrite(f->index_fd, f->index_path, b.data, b.len, f->st.file * FILE_RECORD_BYTES, e);
    buf_release(&b);
    if (st != ST_OK)
        return st;
    close_file(f);
    f->st.file++;
    f->st.file_open = f->st.file_rows = f->st.file_bytes = f->st.ids_bytes = 0;
    return ST_OK;
}

enum status outfiles_append(struct outfiles *f, const struct run *r, struct err *e)
{
    struct run left = *r;
    if (f->o.kind == OUTPUT_NPY && r->bytes != r->rows * f->row_bytes)
        return err_set(e, ST_CORRUPT, "'%s' holds %" PRIu64 " bytes for %" PRIu64 " rows of %" PRIu32 " floats", r->path, r->bytes, r->rows,
                       f->o.dims);
    while (left.bytes) {
        struct run head;
        if (!f->st.file_open)
            TRY(open_file(f, 1, e));
        TRY(output_intact(f->rows_fd, f->rows_path, header_bytes(f) + f->st.file_bytes, e));
        if (f->ids_path)
            TRY(output_intact(f->ids_fd, f->ids_path, f->st.ids_bytes, e));
        TRY(split(f, &left, &head, e));
        TRY(outfiles_copy(f, head.fd, head.path, head.at, f->rows_fd, f->rows_path, header_bytes(f) + f->st.file_bytes, head.bytes, e));
        if (f->ids_path)
            TRY(outfiles_copy(f, head.ids_fd, head.ids_path, head.ids_at, f->ids_fd, f->ids_path, f->st.ids_bytes, head.ids_bytes, e));
        f->st.rows += head.rows;
        f->st.file_rows += head.rows;
        f->st.file_bytes += head.bytes;
        f->st.ids_bytes += head.ids_bytes;
        left.at += head.bytes;
        left.bytes -= head.bytes;
        left.rows -= head.rows;
        left.ids_at += head.ids_bytes;
        left.ids_bytes -= head.ids_bytes;
        if (f->st.file_bytes >= f->part_bytes)
            TRY(outfiles_complete(f, e));
    }
    return ST_OK;
}

enum status outfiles_sync(struct outfiles *f, struct err *e)
{
    if (f->rows_fd >= 0)
        TRY(output_sync(f->rows_fd, f->rows_path, e));
    if (f->ids_fd >= 0)
        TRY(output_sync(f->ids_fd, f->ids_path, e));
    TRY(output_sync(f->index_fd, f->index_path, e));
    if (f->new_names) {
        TRY(output_sync_dir(f->folder, e));
        TRY(output_sync_dir(f->work, e));
        f->new_names = 0;
    }
    return ST_OK;
}
