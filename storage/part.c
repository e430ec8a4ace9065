/* The happy path: records fill the file's bytes in memory; part_write makes the file under a name that was never used, syncs it and
   its folder, and only then may a COMMIT name it.

   What can fail: the name is taken (an earlier life of the same lease, or somebody else): never touched; a write or a sync fails: the
   file is condemned, since what a second sync says after a failed one is worth nothing. */
#include "storage/part.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/errline.h"

struct part {
    struct buf data; /* closed extents, then the rows of the open one */
    struct buf aux, errors; /* of the open one */
    struct extent *extents;
    size_t count, cap;
    struct extent open;
    int is_open;
    char *folder; /* the last one that was made and synced by this part */
};

enum status part_new(struct part **out, struct err *e)
{
    struct part *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "a part");
    *out = p;
    return ST_OK;
}

void part_free(struct part *p)
{
    if (!p)
        return;
    buf_release(&p->data);
    buf_release(&p->aux);
    buf_release(&p->errors);
    mem_free(p->extents);
    mem_free(p->folder);
    mem_free(p);
}

void part_clear(struct part *p)
{
    buf_clear(&p->data);
    buf_clear(&p->aux);
    buf_clear(&p->errors);
    p->count = 0;
    p->is_open = 0;
}

size_t part_bytes(const struct part *p)
{
    return p->data.len + p->aux.len + p->errors.len;
}

size_t part_extent_count(const struct part *p)
{
    return p->count;
}

const struct extent *part_extents(const struct part *p)
{
    return p->extents;
}

enum status part_begin(struct part *p, uint64_t begin, struct err *e)
{
    BUG_IF(p->is_open, "an extent at %" PRIu64 " begins inside the one at %" PRIu64, begin, p->open.span.begin);
    void *items = p->extents;
    int failed = mem_grow(&items, &p->cap, p->count, sizeof *p->extents);
    p->extents = items;
    if (failed)
        return err_nomem(e, "a part");
    p->open = (struct extent){.span = {begin, begin}, .rows_at = p->data.len};
    p->is_open = 1;
    return ST_OK;
}

enum status part_row(struct part *p, const void *row, size_t len, const void *aux, size_t aux_len, struct err *e)
{
    BUG_IF(!p->is_open, "a row outside of an extent");
    size_t before = p->data.len;
    if (buf_add(&p->data, row, len) || buf_add(&p->aux, aux, aux_len)) {
        p->data.len = before;
        return err_nomem(e, "a row of a part");
    }
    p->open.rows++;
    p->open.records++;
    return ST_OK;
}

enum status part_rows(struct part *p, const void *rows, size_t len, uint64_t n, struct err *e)
{
    BUG_IF(!p->is_open, "rows outside of an extent");
    if (len && buf_add(&p->data, rows, len))
        return err_nomem(e, "rows of a part");
    p->open.rows += n;
    p->open.records++;
    return ST_OK;
}

enum status part_error(struct part *p, const struct part_error *error, struct err *e)
{
    BUG_IF(!p->is_open, "an error row outside of an extent");
    struct errline x = {
        .record = error->record,
        .source = error->source,
        .line = error->line,
        .row = p->open.rows,
        .code = error->code,
        .code_len = strlen(error->code),
        .message = error->message,
        .message_len = strlen(error->message),
        .id = error->id_json,
        .id_len = error->id_len,
    };
    if (errline_write(&p->errors, &x))
        return err_nomem(e, "an error row of a part");
    p->open.errors++;
    p->open.records++;
    return ST_OK;
}

enum status part_end(struct part *p, uint64_t end, uint64_t lines, uint64_t bytes, struct err *e)
{
    BUG_IF(!p->is_open || end <= p->open.span.begin, "an extent that ends at %" PRIu64, end);
    if (buf_reserve(&p->data, p->aux.len + p->errors.len))
        return err_nomem(e, "a part");
    struct extent *x = &p->open;
    x->span.end = end;
    x->lines = lines;
    x->bytes = bytes;
    x->rows_bytes = p->data.len - x->rows_at;
    x->aux_bytes = p->aux.len;
    x->errors_bytes = p->errors.len;
    if (buf_add(&p->data, p->aux.data, p->aux.len) || buf_add(&p->data, p->errors.data, p->errors.len))
        BUG("room that was reserved is not there");
    buf_clear(&p->aux);
    buf_clear(&p->errors);
    p->extents[p->count++] = *x;
    for (size_t i = 0; i < p->count; i++)
        p->extents[i].part_extents = (uint32_t)p->count;
    p->is_open = 0;
    return ST_OK;
}

void part_path(char *out, size_t size, const char *dir, uint64_t job, uint64_t epoch, uint64_t seq)
{
    int n = snprintf(out, size, "%s/%" PRIu64 "/%" PRIu64 "-%" PRIu64, dir, job, epoch, seq);
    BUG_IF(n < 0 || (size_t)n >= size, "the path of a part in '%s' does not fit", dir);
}

static enum status write_file(int fd, const struct part *p, const char *path, struct err *e)
{
    for (size_t done = 0; done < p->data.len;) {
        int errnum = fault_point("part.write");
        ssize_t n = errnum ? -1 : write(fd, p->data.data + done, p->data.len - done);
        if (n < 0 && !errnum)
            errnum = errno;
        if (n >= 0)
            done += (size_t)n;
        else if (errnum == ENOSPC || errnum == EDQUOT)
            return err_errno(e, ST_ENV, errnum, "cannot write part '%s': free some space, then go on", path);
        else if (errnum != EINTR)
            return err_errno(e, ST_ENV, errnum, "cannot write part '%s'", path);
    }
    int errnum = fault_point("part.fsync");
    if (errnum || fsync(fd))
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot sync part '%s'", path);
    return ST_OK;
}

/* The folder of the job's parts. Somebody else may have made it a moment ago and not have synced it yet, so its parent is synced in any
   case, once for each part and folder. */
static enum status make_folder(struct part *p, const char *dir, uint64_t job, struct err *e)
{
    char *folder = mem_printf("%s/%" PRIu64, dir, job);
    if (!folder)
        return err_nomem(e, "the path of a part");
    if (p->folder && strcmp(p->folder, folder) == 0) {
        mem_free(folder);
        return ST_OK;
    }
    enum status st = path_make_dirs(folder, 0777, e);
    if (st == ST_OK)
        st = path_sync_dir(dir, e);
    if (st != ST_OK) {
        mem_free(folder);
        return st;
    }
    mem_free(p->folder);
    p->folder = folder;
    return ST_OK;
}

void part_seal(struct part *p, uint64_t epoch, uint64_t seq, struct part_info *info, const void **data)
{
    BUG_IF(p->is_open, "a part is sealed while an extent of it is open");
    for (size_t i = 0; i < p->count; i++) {
        p->extents[i].epoch = epoch;
        p->extents[i].seq = seq;
    }
    *data = p->data.data ? p->data.data : "";
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(*data, p->data.len));
    info->size_bytes = p->data.len;
    memcpy(info->digest, digest.digest, sizeof info->digest);
}

enum status part_write(struct part *p, const char *dir, uint64_t job, uint64_t epoch, uint64_t seq, struct part_info *info, struct err *e)
{
    BUG_IF(p->is_open, "a part is written while an extent of it is open");
    char path[PATH_MAX];
    if (strlen(dir) + 64 > sizeof path)
        return err_set(e, ST_USER, "the path '%s' is too long", dir);
    TRY(make_folder(p, dir, job, e));
    part_path(path, sizeof path, dir, job, epoch, seq);
    int errnum = fault_point("part.open");
    int fd = errnum ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && !errnum)
        errnum = errno;
    if (fd < 0 && errnum == ENOENT) { /* somebody removed the folder meanwhile */
        mem_free(p->folder);
        p->folder = NULL;
    }
    if (fd < 0)
        return err_errno(e, ST_ENV, errnum, "cannot make part '%s'", path);
    enum status st = write_file(fd, p, path, e);
    if (close(fd) && st == ST_OK)
        st = err_errno(e, ST_ENV, errno, "cannot close part '%s'", path);
    if (st == ST_OK) {
        errnum = fault_point("part.dirsync");
        st = errnum ? err_errno(e, ST_ENV, errnum, "cannot sync folder '%s'", p->folder) : path_sync_dir(p->folder, e);
    }
    if (st != ST_OK) {
        unlink(path);
        return st;
    }
    const void *data;
    part_seal(p, epoch, seq, info, &data);
    return ST_OK;
}

enum status part_verify(const char *dir, uint64_t job, uint64_t epoch, uint64_t seq, uint64_t size_bytes, uint32_t wait_ms, struct err *e)
{
    char path[PATH_MAX];
    if (strlen(dir) + 64 > sizeof path)
        return err_set(e, ST_USER, "the path '%s' is too long", dir);
    part_path(path, sizeof path, dir, job, epoch, seq);
    struct stat s;
    if (lstat(path, &s) == 0 && S_ISREG(s.st_mode) && (uint64_t)s.st_size == size_bytes)
        return ST_OK; /* a name is never used twice: what a network file system remembers of it is as good as new */
    uint64_t until = clock_ms() + wait_ms;
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW); /* opening asks a network file system anew, stat may not */
        int failed = fd < 0 || fstat(fd, &s), errnum = errno;
        if (fd >= 0)
            close(fd);
        if (!failed && S_ISREG(s.st_mode) && (uint64_t)s.st_size == size_bytes)
            return ST_OK;
        uint64_t now = clock_ms();
        if (now >= until) {
            if (failed)
                return err_errno(e, errnum == ENOENT ? ST_NOT_FOUND : ST_ENV, errnum, "part '%s' cannot be seen", path);
            if (!S_ISREG(s.st_mode))
                return err_set(e, ST_CORRUPT, "part '%s' is no regular file", path);
            return err_set(e, ST_CORRUPT, "part '%s' has %lld bytes instead of %" PRIu64, path, (long long)s.st_size, size_bytes);
        }
        clock_sleep_ms(until - now < 20 ? until - now : 20);
    }
}

/* "<epoch>-<seq>" and nothing else. */
static int parse_name(const char *name, uint64_t *epoch, uint64_t *seq)
{
    uint64_t *v[] = {epoch, seq};
    for (int i = 0; i < 2; i++) {
        const char *from = name;
        for (*v[i] = 0; *name >= '0' && *name <= '9'; name++) {
            unsigned digit = (unsigned)(*name - '0');
            if (*v[i] > (UINT64_MAX - digit) / 10)
                return 0;
            *v[i] = *v[i] * 10 + digit;
        }
        if (name == from || (*from == '0' && name - from > 1) || *name != (i ? '\0' : '-'))
            return 0;
        name++;
    }
    return 1;
}

enum status part_sweep(const char *dir, uint64_t job, int (*keep)(void *arg, uint64_t epoch, uint64_t seq), void *arg, uint64_t *removed,
                       struct err *e)
{
    *removed = 0;
    char *folder = mem_printf("%s/%" PRIu64, dir, job);
    if (!folder)
        return err_nomem(e, "a sweep of parts");
    enum status st = ST_OK;
    DIR *d = opendir(folder);
    if (!d) {
        if (errno != ENOENT)
            st = err_errno(e, ST_ENV, errno, "cannot read folder '%s'", folder);
        goto out;
    }
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(d))) {
        uint64_t epoch, seq;
        if (!parse_name(entry->d_name, &epoch, &seq) || keep(arg, epoch, seq))
            continue;
        if (unlinkat(dirfd(d), entry->d_name, 0) == 0)
            ++*removed;
        else if (errno != ENOENT) {
            st = err_errno(e, ST_ENV, errno, "cannot remove '%s/%s'", folder, entry->d_name);
            break;
        }
    }
    if (st == ST_OK && errno)
        st = err_errno(e, ST_ENV, errno, "cannot read folder '%s'", folder);
    closedir(d);
out:
    mem_free(folder);
    return st;
}
