#include "workers/image/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "storage/utf8.h"

/* Base64 --------------------------------------------------------------------------------------------------------------------------- */

static int digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1; /* the alphabet for URLs too */
}

/* 1: all of it was base64 (with or without its padding; line ends do not count). -1: memory is out. */
static int decode(const char *p, size_t len, struct buf *out)
{
    uint32_t held = 0, bits = 0;
    buf_clear(out);
    if (buf_reserve(out, len / 4 * 3 + 3))
        return -1;
    while (len && (p[len - 1] == '=' || p[len - 1] == '\n'))
        len--;
    for (const char *end = p + len; p < end; p++) {
        int d = digit((unsigned char)*p);
        if (d < 0 && (*p == '\n' || *p == '\r'))
            continue;
        if (d < 0)
            return 0;
        held = held << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out->data[out->len++] = (char)(held >> bits);
        }
    }
    return bits < 6;
}

static int begins(const char *text, size_t len, const char *with)
{
    size_t n = strlen(with);
    return len >= n && memcmp(text, with, n) == 0;
}

/* Paths ---------------------------------------------------------------------------------------------------------------------------- */

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

static enum status read_all(int fd, const char *path, uint64_t max_bytes, struct buf *out, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_errno(e, ST_ENV, errno, "cannot read the size of '%.300s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ST_USER, "'%.300s' is no regular file", path);
    if ((uint64_t)st.st_size > max_bytes)
        return err_set(e, ST_USER, "'%.300s' has %llu bytes, %llu are allowed", path, (unsigned long long)st.st_size, (unsigned long long)max_bytes);
    buf_clear(out);
    if (buf_reserve(out, (size_t)st.st_size + 1))
        return err_nomem(e, "the bytes of an image");
    while (out->len < (size_t)st.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%.300s'", path);
        if (n == 0)
            break; /* it has become shorter: the decoder will say so */
        out->len += (size_t)n;
    }
    return ST_OK;
}

static enum status fetch_file(const char *folder, char *path, uint64_t max_bytes, struct buf *out, struct err *e)
{
    size_t n = strlen(folder);
    char *below = path; /* an absolute name is as good as a relative one if it lies below the folder */
    if (strncmp(path, folder, n) == 0 && path[n] == '/')
        for (below = path + n; *below == '/';)
            below++;
    int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_errno(e, ST_ENV, errno, "cannot open '%s'", folder);
    char shown[301];
    strncpy(shown, path, sizeof shown - 1);
    shown[sizeof shown - 1] = '\0';
    int fd = open_below(dir, below), why = errno;
    close(dir);
    if (fd < 0 && why == EXDEV)
        return err_set(e, ST_USER, "'%s' leads out of '%.300s', the folder of the file that names it", shown, folder);
    if (fd < 0)
        return err_errno(e, why == EIO || why == EMFILE || why == ENFILE || why == ESTALE ? ST_ENV : ST_USER, why, "cannot open '%s'", shown);
    enum status st = read_all(fd, shown, max_bytes, out, e);
    close(fd);
    return st;
}

enum status image_fetch(const char *folder, const char *text, size_t len, uint64_t max_bytes, struct buf *out, struct err *e)
{
    int is_data = begins(text, len, "data:");
    if (is_data || begins(text, len, "/9j/") || begins(text, len, "iVBORw0KGgo") || begins(text, len, "UklGR")) {
        const char *comma = is_data ? memchr(text, ',', len) : NULL, *from = comma ? comma + 1 : text;
        int marked = comma && comma - text >= 12 && memcmp(comma - 7, ";base64", 7) == 0;
        if (is_data && !marked)
            return err_set(e, ST_USER, "a data URI that is not base64 (\"data:image/png;base64,...\")");
        if (len / 4 * 3 > max_bytes)
            return err_set(e, ST_USER, "the image has about %zu bytes, %llu are allowed", len / 4 * 3, (unsigned long long)max_bytes);
        int rc = decode(from, len - (size_t)(from - text), out);
        if (rc < 0)
            return err_nomem(e, "the bytes of an image");
        if (rc)
            return ST_OK;
        if (is_data)
            return err_set(e, ST_USER, "the data URI holds something that is not base64");
    }
    if (!len)
        return err_set(e, ST_USER, "an empty text where a path or an image should stand");
    if (memchr(text, 0, len) || len >= 4096)
        return err_set(e, ST_USER, "a text of %zu bytes that is neither a path nor an image in base64", len);
    char *path = mem_strndup(text, len);
    if (!path)
        return err_nomem(e, "the path of an image");
    enum status st = fetch_file(folder, path, max_bytes, out, e);
    mem_free(path);
    if (st != ST_OK && e)
        utf8_tidy(e->text); /* a name may have been cut in the middle of a letter */
    return st;
}
