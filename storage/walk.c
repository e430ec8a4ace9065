#include "storage/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"

#define EVERYTHING SIZE_MAX /* no name of the pattern: all files below */

struct folder {             /* still to be read, and the name of the pattern that its entries must match */
    char *path;
    size_t name;
};

struct hunt {
    struct walk *walk;
    char **names;           /* the pattern, taken apart at '/' */
    size_t name_count, name_cap;
    struct folder *todo;    /* a stack: depth is bounded by memory, not by the call stack */
    size_t todo_count, todo_cap;
};

static int is_pattern(const char *name)
{
    return strpbrk(name, "*?[") != NULL;
}

static void hunt_release(struct hunt *h)
{
    for (size_t i = 0; i < h->name_count; i++)
        mem_free(h->names[i]);
    for (size_t i = 0; i < h->todo_count; i++)
        mem_free(h->todo[i].path);
    mem_free(h->names);
    mem_free(h->todo);
}

/* Takes `path` over, also when it fails. */
static enum status later(struct hunt *h, char *path, size_t name, struct err *e)
{
    void *items = h->todo;
    int failed = !path || mem_grow(&items, &h->todo_cap, h->todo_count, sizeof *h->todo);
    h->todo = items;
    if (failed) {
        mem_free(path);
        return err_nomem(e, "the list of inputs");
    }
    h->todo[h->todo_count++] = (struct folder){path, name};
    return ST_OK;
}

/* A file or folder that was found and whose name matched to the end. Takes `path` over. named: the user wrote it, so that nothing about it is
   passed over in silence. */
static enum status found(struct hunt *h, char *path, int named, struct err *e)
{
    struct stat st;
    enum status status;
    if (!path)
        return err_nomem(e, "the list of inputs");
    if (stat(path, &st)) {
        status = err_errno(e, ST_USER, errno, "cannot read '%s'", path);
    } else if (S_ISDIR(st.st_mode)) {
        return later(h, path, EVERYTHING, e);
    } else if (!S_ISREG(st.st_mode)) {
        status = named ? err_set(e, ST_USER, "'%s' is no regular file: copy what it gives into one first, or pipe it into --input -", path)
                       : ST_OK;
    } else if (eaccess(path, R_OK)) {
        status = err_errno(e, ST_USER, errno, "cannot read '%s'", path);
    } else {
        struct walk *w = h->walk;
        void *items = w->sources;
        int failed = mem_grow(&items, &w->cap, w->count, sizeof *w->sources);
        w->sources = items;
        if (!failed) {
            w->sources[w->count++] = (struct source){.path = path,
                                                     .size_bytes = (uint64_t)st.st_size,
                                                     .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
            return ST_OK;
        }
        status = err_nomem(e, "the list of inputs");
    }
    mem_free(path);
    return status;
}

/* Is the entry a folder, or with `follow` a link to one? */
static int is_folder(DIR *dir, const struct dirent *entry, int follow)
{
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK)
        return entry->d_type == DT_DIR;
    if (entry->d_type == DT_LNK && !follow)
        return 0;
    struct stat st;
    return !fstatat(dirfd(dir), entry->d_name, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
}

static int is_link_to_folder(DIR *dir, const struct dirent *entry)
{
    return !is_folder(dir, entry, 0) && is_folder(dir, entry, 1);
}

/* Of a single-file output: "o.npy.ebb". */
static int is_working_folder(DIR *dir, const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 4 && !strcmp(entry->d_name + n - 4, ".ebb") && is_folder(dir, entry, 0);
}

static enum status entry_found(struct hunt *h, const struct folder *f, DIR *dir, const struct dirent *entry, struct err *e)
{
    const char *name = entry->d_name;
    if (f->name == EVERYTHING) {
        if (name[0] == '.' || is_link_to_folder(dir, entry) || is_working_folder(dir, entry))
            return ST_OK;
        return found(h, path_join(f->path, name), 0, e);
    }
    const char *want = h->names[f->name];
    if (!strcmp(want, "**")) {
        if (name[0] == '.' || !is_folder(dir, entry, 0))
            return ST_OK;
        return later(h, path_join(f->path, name), f->name, e);
    }
    if (!strcmp(name, ".") || !strcmp(name, "..") || fnmatch(want, name, FNM_PERIOD))
        return ST_OK;
    if (f->name + 1 == h->name_count)
        return found(h, path_join(f->path, name), 0, e);
    return is_folder(dir, entry, 1) ? later(h, path_join(f->path, name), f->name + 1, e) : ST_OK;
}

/* Goes down the names that are no patterns. *f is a folder to be read, or its path is NULL and nothing is left of it. */
static enum status descend(struct hunt *h, struct folder *f, struct err *e)
{
    while (f->name != EVERYTHING && !is_pattern(h->names[f->name])) {
        char *path = path_join(f->path, h->names[f->name]);
        mem_free(f->path);
        f->path = NULL;
        if (!path)
            return err_nomem(e, "the list of inputs");
        if (!path_exists(path)) {
            mem_free(path);
            return ST_OK;
        }
        if (++f->name == h->name_count)
            return found(h, path, 0, e);
        f->path = path;
    }
    if (f->name != EVERYTHING && !strcmp(h->names[f->name], "**")) {
        if (f->name + 1 < h->name_count) /* no folder at all is one of the numbers that ** stands for */
            return later(h, mem_strdup(f->path), f->name + 1, e);
        f->name = EVERYTHING;
    }
    return ST_OK;
}

static enum status read_folder(struct hunt *h, struct folder *f, struct err *e)
{
    TRY(descend(h, f, e));
    if (!f->path)
        return ST_OK;
    DIR *dir = opendir(f->path);
    if (!dir && (errno == ENOENT || errno == ENOTDIR) && f->name != EVERYTHING)
        return ST_OK; /* the pattern does not match here */
    if (!dir)
        return err_errno(e, errno == ENOMEM || errno == EMFILE ? ST_ENV : ST_USER, errno, "cannot read the folder '%s'", f->path);
    enum status status = ST_OK;
    while (status == ST_OK) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno)
                status = err_errno(e, ST_ENV, errno, "cannot read the folder '%s'", f->path);
            break;
        }
        status = entry_found(h, f, dir, entry, e);
    }
    closedir(dir);
    return status;
}

static enum status split_pattern(struct hunt *h, const char *pattern, struct err *e)
{
    while (*pattern) {
        size_t len = strcspn(pattern, "/");
        if (len && !(len == 2 && !strncmp(pattern, "**", 2) && h->name_count && !strcmp(h->names[h->name_count - 1], "**"))) {
            void *items = h->names;
            int failed = mem_grow(&items, &h->name_cap, h->name_count, sizeof *h->names);
            h->names = items;
            if (failed || !(h->names[h->name_count] = mem_strndup(pattern, len)))
                return err_nomem(e, "the list of inputs");
            h->name_count++;
        }
        pattern += len;
        pattern += *pattern == '/';
    }
    return ST_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct source *)a)->path, ((const struct source *)b)->path);
}

enum status walk_add(struct walk *w, const char *input, struct err *e)
{
    struct hunt h = {.walk = w};
    size_t first = w->count;
    int exists = path_exists(input), pattern = !exists && is_pattern(input);
    enum status status = ST_OK;
    if (pattern) {
        status = split_pattern(&h, input, e);
        if (status == ST_OK)
            status = later(&h, mem_strdup("/"), 0, e);
    } else if (exists) {
        status = found(&h, mem_strdup(input), 1, e);
    } else {
        status = err_set(e, ST_USER, "input '%s' does not exist", input);
    }
    while (status == ST_OK && h.todo_count) {
        struct folder f = h.todo[--h.todo_count];
        status = read_folder(&h, &f, e);
        mem_free(f.path);
    }
    hunt_release(&h);
    if (status != ST_OK)
        return status;
    if (w->count == first)
        return pattern ? err_set(e, ST_USER, "input '%s' matches no file", input)
                       : err_set(e, ST_USER, "the folder '%s' holds no files", input);
    qsort(w->sources + first, w->count - first, sizeof *w->sources, by_path);
    size_t kept = first + 1; /* ** and * can lead to one file by several ways */
    for (size_t i = first + 1; i < w->count; i++) {
        if (!strcmp(w->sources[i].path, w->sources[kept - 1].path))
            mem_free(w->sources[i].path);
        else
            w->sources[kept++] = w->sources[i];
    }
    w->count = kept;
    return ST_OK;
}

void walk_release(struct walk *w)
{
    for (size_t i = 0; i < w->count; i++)
        mem_free(w->sources[i].path);
    mem_free(w->sources);
    *w = (struct walk){0};
}
