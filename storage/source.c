#include "storage/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

enum status source_open_failed(const char *path, int errnum, struct err *e)
{
    return err_errno(e, errnum == ENOENT || errnum == ENOTDIR || errnum == ESTALE ? ST_NOT_FOUND : ST_ENV, errnum, "cannot open '%s'", path);
}

enum status source_check(const struct source *s, int fd, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_errno(e, ST_ENV, errno, "cannot read the size of '%s'", s->path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ST_USER, "'%s' changed since the job was submitted (it is no regular file any more)", s->path);
    uint64_t size = (uint64_t)st.st_size;
    int64_t mtime = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    if (size < s->size_bytes)
        return err_set(e, ST_USER, "'%s' changed since the job was submitted (it had %" PRIu64 " bytes and has %" PRIu64 ")", s->path,
                       s->size_bytes, size);
    if (size == s->size_bytes && mtime != s->mtime_ns) /* a file that grew has a new time, and is welcome */
        return err_set(e, ST_USER, "'%s' changed since the job was submitted (it was written again, %+.3f s later)", s->path,
                       (double)(mtime - s->mtime_ns) / 1e9);
    return ST_OK;
}

enum status source_open(const struct source *s, uint64_t from, struct source_file *out, struct err *e)
{
    if (from > s->size_bytes)
        from = s->size_bytes;
    if (s->via && s->via->open) {
        void *handle;
        TRY(s->via->open(s->via, s, from, &handle, e));
        *out = (struct source_file){.fd = -1, .path = s->path, .size = s->size_bytes, .at = from, .via = s->via, .handle = handle};
        return ST_OK;
    }
    /* O_NONBLOCK: a fifo that took the file's place must not hang us; it changes nothing for regular files */
    int fd;
    do
        fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return source_open_failed(s->path, errno, e);
    enum status status = source_check(s, fd, e);
    if (status == ST_OK && from && lseek(fd, (off_t)from, SEEK_SET) < 0)
        status = err_errno(e, ST_ENV, errno, "cannot seek in '%s'", s->path);
    if (status != ST_OK) {
        close(fd);
        return status;
    }
    (void)posix_fadvise(fd, (off_t)from, 0, POSIX_FADV_SEQUENTIAL); /* advice only */
    *out = (struct source_file){.fd = fd, .path = s->path, .size = s->size_bytes, .at = from};
    return ST_OK;
}

void source_close(struct source_file *f)
{
    if (f->handle)
        f->via->close(f->handle);
    f->handle = NULL;
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

enum status source_read(struct source_file *f, void *data, size_t want, size_t *got, struct err *e)
{
    char *to = data;
    *got = 0;
    if (want > f->size - f->at)
        want = (size_t)(f->size - f->at);
    while (f->handle && *got < want) {
        size_t n = 0;
        enum status st = f->via->read(f->handle, to + *got, want - *got, &n, e);
        if (st != ST_OK && *got)
            return ST_OK;
        if (st != ST_OK)
            return st;
        if (n == 0)
            return err_set(e, ST_USER, "'%s' changed since the job was submitted (it had %" PRIu64 " bytes and ends after %" PRIu64 ")", f->path, f->size,
                           f->at);
        *got += n;
        f->at += n;
    }
    while (*got < want) {
        int pretend = fault_point("source_read");
        ssize_t n = pretend ? -1 : read(f->fd, to + *got, want - *got);
        if (pretend)
            errno = pretend;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && *got) /* give what there is; the next call meets the error again */
            break;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%s' at byte %" PRIu64, f->path, f->at);
        if (n == 0)
            return err_set(e, ST_USER, "'%s' changed since the job was submitted (it had %" PRIu64 " bytes and ends after %" PRIu64 ")",
                           f->path, f->size, f->at);
        *got += (size_t)n;
        f->at += (uint64_t)n;
    }
    return ST_OK;
}
