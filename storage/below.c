#include "storage/below.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Takes "." and "x/.." out of a relative path. 0: it leads out. */
static int straighten(char *path)
{
    char *to = path;
    for (char *name = path, *next; name; name = next) {
        next = strchr(name, '/');
        size_t n = next ? (size_t)(next++ - name) : strlen(name);
        if (n == 0 || (n == 1 && *name == '.'))
            continue;
        if (n == 2 && name[0] == '.' && name[1] == '.') {
            if (to == path)
                return 0;
            while (to > path && *--to != '/')
                ;
            continue;
        }
        if (to > path)
            *to++ = '/';
        memmove(to, name, n);
        to += n;
    }
    *to = '\0';
    return 1;
}

/* For kernels, and sandboxes, without openat2: no links at all */
static int walk(int folder, char *path)
{
    if (*path == '/' || !straighten(path)) {
        errno = EXDEV;
        return -1;
    }
    int at = folder;
    for (char *name = path, *next; at >= 0; name = next) {
        next = strchr(name, '/');
        if (next)
            *next++ = '\0';
        struct stat st;
        int flags = next ? O_PATH | O_DIRECTORY : O_RDONLY | O_NONBLOCK | O_NOCTTY;
        int fd = openat(at, *name ? name : ".", flags | O_CLOEXEC | O_NOFOLLOW);
        int why = errno;
        if (fd < 0 && fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
            why = EXDEV;
        if (at != folder)
            close(at);
        errno = why;
        at = fd;
        if (!next)
            break;
    }
    return at;
}

static int open_below(int folder, char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd;
    do
        fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    return fd < 0 && (errno == ENOSYS || errno == EPERM || errno == E2BIG) ? walk(folder, path) : fd;
}

enum status below_size(const char *path, uint64_t size, uint64_t max_bytes, struct err *e)
{
    return err_set(e, ST_USER, "'%.300s' has %llu bytes, %llu are allowed", path, (unsigned long long)size, (unsigned long long)max_bytes);
}

/* shown: the name as it was given, cut for people */
static enum status open_shown(const char *folder, char *path, uint64_t max_bytes, char shown[301], int *out, uint64_t *size, struct err *e)
{
    size_t n = strlen(folder);
    char *below = path; /* an absolute name is as good as a relative one if it lies below the folder */
    strncpy(shown, path, 300);
    shown[300] = '\0';
    if (strncmp(path, folder, n) == 0 && path[n] == '/')
        for (below = path + n; *below == '/';)
            below++;
    int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", folder);
    int fd = open_below(dir, below), why = errno;
    close(dir);
    if (fd < 0 && why == EXDEV)
        return err_set(e, ST_USER, "'%s' leads out of '%.300s', the folder of the file that names it", shown, folder);
    if (fd < 0)
        return err_errno(e, why == EIO || why == EMFILE || why == ENFILE || why == ESTALE ? ST_ENV : ST_USER, why, "cannot open '%s'", shown);
    struct stat s;
    enum status st = ST_OK;
    if (fstat(fd, &s))
        st = err_errno(e, ST_ENV, errno, "cannot read the size of '%.300s'", shown);
    else if (!S_ISREG(s.st_mode))
        st = err_set(e, ST_USER, "'%.300s' is no regular file", shown);
    else if (max_bytes && (uint64_t)s.st_size > max_bytes)
        st = below_size(shown, (uint64_t)s.st_size, max_bytes, e);
    if (st != ST_OK) {
        close(fd);
        return st;
    }
    *out = fd;
    *size = (uint64_t)s.st_size;
    return ST_OK;
}

enum status below_open(const char *folder, char *path, uint64_t max_bytes, int *fd, uint64_t *size, struct err *e)
{
    char shown[301];
    return open_shown(folder, path, max_bytes, shown, fd, size, e);
}

enum status below_read(const char *folder, char *path, uint64_t max_bytes, struct buf *out, struct err *e)
{
    char shown[301];
    int fd;
    uint64_t size;
    TRY(open_shown(folder, path, max_bytes, shown, &fd, &size, e));
    enum status st = ST_OK;
    buf_clear(out);
    if (buf_reserve(out, (size_t)size + 1))
        st = err_nomem(e, "the bytes of a file");
    while (st == ST_OK && out->len < size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)size - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = err_errno(e, ST_ENV, errno, "cannot read '%.300s'", shown);
        if (n <= 0)
            break; /* 0: it has become shorter, the decoder will say so */
        out->len += (size_t)n;
    }
    close(fd);
    return st;
}
