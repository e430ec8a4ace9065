#include "storage/source.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

enum status source_open(const struct source *s, uint64_t from, struct source_file *out, struct err *e)
{
    /* O_NONBLOCK: a fifo that took the file's place must not hang us; it changes nothing for regular files */
    int fd;
    do
        fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_errno(e, errno == ENOENT || errno == ENOTDIR || errno == ESTALE ? ST_NOT_FOUND : ST_ENV, errno, "cannot open '%s'", s->path);
    struct stat st;
    enum status status = ST_OK;
    if (fstat(fd, &st)) {
        status = err_errno(e, ST_ENV, errno, "cannot read the size of '%s'", s->path);
    } else if (!S_ISREG(st.st_mode)) {
        status = err_set(e, ST_USER, "'%s' changed since the job was submitted (it is no regular file any more)", s->path);
    } else {
        uint64_t size = (uint64_t)st.st_size;
        int64_t mtime = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        if (size < s->size_bytes)
            status = err_set(e, ST_USER, "'%s' changed since the job was submitted (it had %" PRIu64 " bytes and has %" PRIu64 ")",
                             s->path, s->size_bytes, size);
        else if (size == s->size_bytes && mtime != s->mtime_ns) /* a file that grew has a new time, and is welcome */
            status = err_set(e, ST_USER, "'%s' changed since the job was submitted (it was written again, %+.3f s later)", s->path,
                             (double)(mtime - s->mtime_ns) / 1e9);
    }
    if (status == ST_OK && from > s->size_bytes)
        from = s->size_bytes;
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
