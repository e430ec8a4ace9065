#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return mem_printf(n && dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

char *path_absolute(const char *path)
{
    char here[4096] = "";
    if (*path != '/' && !getcwd(here, sizeof here))
        here[0] = 0;
    struct buf out = {0};
    char *whole = mem_printf("%s/%s", here, path), *save = NULL;
    if (!whole)
        return NULL;
    int failed = 0;
    for (char *word = strtok_r(whole, "/", &save); word && !failed; word = strtok_r(NULL, "/", &save)) {
        if (strcmp(word, ".") == 0)
            continue;
        if (strcmp(word, "..") == 0) {
            while (out.len && out.data[out.len - 1] != '/')
                out.len--;
            if (out.len)
                out.len--;
            continue;
        }
        failed = buf_char(&out, '/') || buf_str(&out, word);
    }
    mem_free(whole);
    if (!failed && out.len == 0)
        failed = buf_char(&out, '/');
    if (failed || !buf_cstr(&out)) {
        buf_release(&out);
        return NULL;
    }
    return out.data;
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

enum status path_sync_dir(const char *dir, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ST_ENV, errno, "cannot open folder '%s'", dir);
    int failed = fsync(fd), errnum = errno;
    close(fd);
    if (failed && errnum != EINVAL) /* file systems that cannot sync folders say EINVAL */
        return err_errno(e, ST_ENV, errnum, "cannot sync folder '%s'", dir);
    return ST_OK;
}

enum status path_sync_parent(const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? mem_strdup(".") : slash == path ? mem_strdup("/") : mem_strndup(path, (size_t)(slash - path));
    if (!dir)
        return err_nomem(e, "a path");
    enum status st = path_sync_dir(dir, e);
    mem_free(dir);
    return st;
}

enum status path_make_dirs(const char *path, unsigned mode, struct err *e)
{
    char *p = mem_strdup(path);
    if (!p)
        return err_nomem(e, "a path");
    enum status st = ST_OK;
    for (char *at = p + 1; st == ST_OK; at++) {
        if (*at != '/' && *at != 0)
            continue;
        char keep = *at;
        *at = 0;
        if (mkdir(p, mode) == 0)
            st = path_sync_parent(p, e);
        else if (errno != EEXIST)
            st = err_errno(e, ST_ENV, errno, "cannot make folder '%s'", p);
        else if (keep == 0) {
            struct stat s;
            if (stat(p, &s) || !S_ISDIR(s.st_mode))
                st = err_set(e, ST_USER, "'%s' stands where a folder is wanted", p);
        }
        *at = keep;
        if (keep == 0)
            break;
    }
    mem_free(p);
    return st;
}

enum status path_read(const char *path, size_t limit, struct buf *out, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno == ENOENT ? ST_NOT_FOUND : ST_ENV, errno, "cannot open '%s'", path);
    enum status st = ST_OK;
    for (;;) {
        if (buf_reserve(out, 65536)) {
            st = err_nomem(e, path);
            break;
        }
        ssize_t n = read(fd, out->data + out->len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
        if (n <= 0)
            break;
        out->len += (size_t)n;
        if (out->len > limit) {
            st = err_set(e, ST_USER, "'%s' is larger than %zu bytes", path, limit);
            break;
        }
    }
    close(fd);
    if (st == ST_OK && !buf_cstr(out))
        st = err_nomem(e, path);
    return st;
}

static enum status write_file(const char *path, const void *data, size_t len, mode_t mode, struct err *e)
{
    char *temp = mem_printf("%s.tmp-%d", path, (int)getpid());
    if (!temp)
        return err_nomem(e, "a path");
    enum status st = ST_OK;
    unlink(temp); /* one left by a crash may have another mode */
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0) {
        st = err_errno(e, ST_ENV, errno, "cannot make '%s'", temp);
        goto out;
    }
    for (size_t done = 0; done < len && st == ST_OK;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            st = err_errno(e, ST_ENV, errno, "cannot write '%s'", temp);
    }
    if (st == ST_OK && fsync(fd))
        st = err_errno(e, ST_ENV, errno, "cannot sync '%s'", temp);
    if (close(fd) && st == ST_OK)
        st = err_errno(e, ST_ENV, errno, "cannot close '%s'", temp);
    if (st == ST_OK && rename(temp, path))
        st = err_errno(e, ST_ENV, errno, "cannot rename '%s' to '%s'", temp, path);
    if (st == ST_OK)
        st = path_sync_parent(path, e);
    else
        unlink(temp);
out:
    mem_free(temp);
    return st;
}

enum status path_write(const char *path, const void *data, size_t len, struct err *e)
{
    return write_file(path, data, len, 0666, e);
}

enum status path_write_private(const char *path, const void *data, size_t len, struct err *e)
{
    return write_file(path, data, len, 0600, e);
}

int path_exists(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s;
    (void)type;
    (void)where;
    return remove(path);
}

enum status path_remove_tree(const char *path, struct err *e)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        return err_errno(e, ST_ENV, errno, "cannot remove '%s'", path);
    return ST_OK;
}

enum status path_free_bytes(const char *path, uint64_t *bytes, struct err *e)
{
    char *p = path_absolute(path);
    if (!p)
        return err_nomem(e, "a path");
    struct statvfs v;
    int failed;
    while ((failed = statvfs(p, &v)) && errno == ENOENT && p[1]) {
        char *slash = strrchr(p, '/');
        slash[slash == p] = 0;
    }
    enum status st = failed ? err_errno(e, ST_ENV, errno, "cannot ask for the free space of '%s'", p) : ST_OK;
    if (!failed)
        *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    mem_free(p);
    return st;
}
