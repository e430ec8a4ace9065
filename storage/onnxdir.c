#include "storage/onnxdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* Which file ------------------------------------------------------------------------------------------------------------------------------ */

static int ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n > m && strcmp(s + n - m, tail) == 0;
}

static int is_file(const char *dir, const char *name)
{
    struct stat s;
    char *path = mem_printf("%s/%s", dir, name);
    int is = path && stat(path, &s) == 0 && S_ISREG(s.st_mode);
    mem_free(path);
    return is;
}

static enum status answer(const char *folder, size_t folder_len, const char *file, char **out_folder, char **out_file, struct err *e)
{
    char *a = folder_len ? mem_strndup(folder, folder_len) : mem_strdup("."), *b = mem_strdup(file);
    if (!a || !b) {
        mem_free(a);
        mem_free(b);
        return err_nomem(e, "a path");
    }
    *out_folder = a;
    *out_file = b;
    return ST_OK;
}

enum status onnxdir_find(const char *path, char **folder, char **file, struct err *e)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return err_set(e, ST_NOT_FOUND, "there is no '%s'", path);
    if (S_ISREG(s.st_mode) && ends_with(path, ".onnx")) {
        const char *slash = strrchr(path, '/');
        return answer(path, slash ? (slash == path ? 1 : (size_t)(slash - path)) : 0, slash ? slash + 1 : path, folder, file, e);
    }
    DIR *d = S_ISDIR(s.st_mode) ? opendir(path) : NULL;
    if (!d)
        return err_set(e, ST_NOT_FOUND, "'%s' is neither an ONNX file nor a directory", path);
    char one[256] = "";
    int count = 0, weights = 0;
    for (struct dirent *x; (x = readdir(d));) {
        weights |= ends_with(x->d_name, ".safetensors") || ends_with(x->d_name, ".safetensors.index.json");
        if (x->d_name[0] == '.' || !ends_with(x->d_name, ".onnx") || strlen(x->d_name) >= sizeof one)
            continue;
        count++;
        memcpy(one, x->d_name, strlen(x->d_name) + 1);
    }
    closedir(d);
    if (weights)
        return err_set(e, ST_NOT_FOUND, "'%s' holds safetensors", path);
    if (is_file(path, "model.onnx"))
        return answer(path, strlen(path), "model.onnx", folder, file, e);
    if (count == 1)
        return answer(path, strlen(path), one, folder, file, e);
    if (count > 1)
        return err_set(e, ST_USER, "'%s' holds %d ONNX files and none is model.onnx: name the file itself", path, count);
    if (is_file(path, "onnx/model.onnx"))
        return answer(path, strlen(path), "onnx/model.onnx", folder, file, e);
    return err_set(e, ST_NOT_FOUND, "'%s' holds no ONNX file", path);
}

/* Which files of data ---------------------------------------------------------------------------------------------------------------------- */

enum { WINDOW = 4096, DEPTH_MAX = 64, NAME_MAX_BYTES = 1024 };

struct reader {
    int fd;
    const char *path;
    const char *file;  /* names are relative to its folder */
    uint64_t at;       /* of the window */
    size_t have;
    uint8_t window[WINDOW];
    enum status (*name)(void *arg, const char *name, struct err *e);
    void *arg;
};

static enum status damaged(const struct reader *r, struct err *e)
{
    return err_set(e, ST_USER, "'%s': the file is damaged, or no ONNX file", r->path);
}

static enum status byte_at(struct reader *r, uint64_t at, uint8_t *out, struct err *e)
{
    if (at < r->at || at - r->at >= r->have) {
        ssize_t n;
        do
            n = pread(r->fd, r->window, WINDOW, (off_t)at);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%s'", r->path);
        if (n == 0)
            return damaged(r, e);
        r->at = at;
        r->have = (size_t)n;
    }
    *out = r->window[at - r->at];
    return ST_OK;
}

static enum status varint(struct reader *r, uint64_t *at, uint64_t end, uint64_t *out, struct err *e)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t b;
        if (*at >= end)
            return damaged(r, e);
        TRY(byte_at(r, (*at)++, &b, e));
        *out |= (uint64_t)(b & 127) << shift;
        if (!(b & 128))
            return ST_OK;
    }
    return damaged(r, e);
}

/* The way from a model to a place: a message, its field, the message there. */
enum kind { MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, FUNCTION, PAIR, NONE };
static enum kind inside(enum kind k, uint64_t field)
{
    switch (k) {
    case MODEL:
        return field == 7 ? GRAPH : field == 25 ? FUNCTION : NONE;
    case GRAPH:
        return field == 1 ? NODE : field == 5 ? TENSOR : NONE;
    case FUNCTION:
        return field == 7 ? NODE : NONE;
    case NODE:
        return field == 5 ? ATTRIBUTE : NONE;
    case ATTRIBUTE:
        return field == 5 || field == 10 ? TENSOR : field == 6 || field == 11 ? GRAPH : NONE;
    case TENSOR:
        return field == 13 ? PAIR : NONE;
    case PAIR:
    case NONE:
        break;
    }
    return NONE;
}

/* Relative, and never upwards. */
static int is_inside(const char *path)
{
    int ok = path[0] && path[0] != '/';
    for (const char *p = path; *p && ok;) {
        size_t n = strcspn(p, "/");
        ok = !(n == 2 && p[0] == '.' && p[1] == '.');
        for (p += n; *p == '/';)
            p++;
    }
    return ok;
}

static enum status text(struct reader *r, uint64_t at, uint64_t len, char out[NAME_MAX_BYTES], struct err *e)
{
    out[0] = '\0';
    if (len >= NAME_MAX_BYTES)
        return ST_OK;
    for (uint64_t i = 0; i < len; i++) {
        uint8_t b;
        TRY(byte_at(r, at + i, &b, e));
        out[i] = (char)b;
    }
    out[len] = '\0';
    return ST_OK;
}

static enum status walk(struct reader *r, enum kind kind, uint64_t at, uint64_t end, int depth, struct err *e)
{
    char key[NAME_MAX_BYTES] = "", value[NAME_MAX_BYTES] = "";
    if (depth > DEPTH_MAX)
        return err_set(e, ST_USER, "'%s': messages lie more than %d deep in each other", r->path, DEPTH_MAX);
    while (at < end) {
        uint64_t tag, len = 0;
        TRY(varint(r, &at, end, &tag, e));
        switch (tag & 7) {
        case 0:
            TRY(varint(r, &at, end, &len, e));
            continue;
        case 1:
            len = 8;
            break;
        case 2:
            TRY(varint(r, &at, end, &len, e));
            break;
        case 5:
            len = 4;
            break;
        default:
            return damaged(r, e);
        }
        if (len > end - at)
            return damaged(r, e);
        enum kind next = (tag & 7) == 2 ? inside(kind, tag >> 3) : NONE;
        if (next != NONE)
            TRY(walk(r, next, at, at + len, depth + 1, e));
        if (kind == PAIR && (tag & 7) == 2 && (tag >> 3 == 1 || tag >> 3 == 2))
            TRY(text(r, at, len, tag >> 3 == 1 ? key : value, e));
        at += len;
    }
    if (kind != PAIR || strcmp(key, "location") != 0 || !is_inside(value))
        return ST_OK;
    const char *slash = strrchr(r->file, '/');
    char *name = mem_printf("%.*s%s", slash ? (int)(slash - r->file + 1) : 0, r->file, value);
    enum status st = name ? r->name(r->arg, name, e) : err_nomem(e, "a path");
    mem_free(name);
    return st;
}

enum status onnxdir_external(const char *folder, const char *file, enum status (*name)(void *arg, const char *name, struct err *e), void *arg, struct err *e)
{
    char *path = mem_printf("%s/%s", folder, file);
    struct reader *r = mem_zalloc(sizeof *r);
    struct stat s;
    enum status st = path && r ? ST_OK : err_nomem(e, "a path");
    if (st == ST_OK) {
        *r = (struct reader){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path, .file = file, .name = name, .arg = arg};
        if (r->fd < 0)
            st = err_errno(e, errno == ENOENT ? ST_USER : ST_ENV, errno, "cannot read '%s'", path);
        else if (fstat(r->fd, &s) != 0)
            st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
        else if (!S_ISREG(s.st_mode))
            st = err_set(e, ST_USER, "'%s' is not a plain file", path);
        else
            st = walk(r, MODEL, 0, (uint64_t)s.st_size, 0, e);
        if (r->fd >= 0)
            close(r->fd);
    }
    mem_free(r);
    mem_free(path);
    return st;
}
