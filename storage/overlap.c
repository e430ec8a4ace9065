#include "storage/overlap.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/path.h"

/* Names that an output may have, behind its path. */
static const char *const in_folder[] = {"/part-00000.jsonl", "/part-00000.npy", "/part-00000.ids.jsonl", "/errors.jsonl", "/manifest.json", "/_SUCCESS"};
static const char *const at_file[] = {"", ".ids.jsonl", ".errors.jsonl", ".manifest.json"};

static size_t trimmed(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

static int below(const char *path, const char *folder)
{
    size_t n = trimmed(folder);
    return n == 1 || (strncmp(path, folder, n) == 0 && path[n] == '/');
}

static enum status would_be_replaced(const struct output_spec *o, const char *work, const struct dataset *d, struct err *e)
{
    struct stat out, in;
    int n = (int)trimmed(o->path), there = !o->is_dir && stat(o->path, &out) == 0;
    for (size_t i = 0; i < d->count; i++) {
        const char *path = d->sources[i].path;
        int same = o->is_dir && below(path, o->path);
        for (size_t k = 0; !o->is_dir && !same && k < sizeof at_file / sizeof *at_file; k++)
            same = strncmp(path, o->path, (size_t)n) == 0 && strcmp(path + n, at_file[k]) == 0;
        if (!same && there) /* under another name */
            same = stat(path, &in) == 0 && in.st_ino == out.st_ino && in.st_dev == out.st_dev;
        if (same && !below(path, work))
            return o->is_dir ? err_set(e, ST_USER, "the input '%s' lies in the output '%.*s'; choose an --output elsewhere", path, n, o->path)
                             : err_set(e, ST_USER, "the input '%s' would be replaced by the output '%.*s'; choose another --output", path, n, o->path);
    }
    return ST_OK;
}

/* The path, or a folder above it: what a pattern matches brings all files below. Folders with a hidden name in between bring nothing. */
static int found_by(const char *input, int is_folder, char *path)
{
    if (is_folder) {
        size_t n = trimmed(input);
        return below(path, input) && !strstr(path + (n == 1 ? 0 : n), "/.");
    }
    int flags = FNM_PERIOD | (strstr(input, "**") ? 0 : FNM_PATHNAME), found = 0;
    for (char *slash = path + strlen(path); slash && slash != path && !found; slash = strrchr(path, '/')) {
        *slash = 0;
        found = fnmatch(input, path, flags) == 0;
    }
    return found;
}

static enum status would_be_found(const struct output_spec *o, const char *input, struct err *e)
{
    struct stat s;
    const char *const *behind = o->is_dir ? in_folder : at_file;
    size_t count = o->is_dir ? sizeof in_folder / sizeof *in_folder : sizeof at_file / sizeof *at_file;
    int is_folder = stat(input, &s) == 0 && S_ISDIR(s.st_mode), n = (int)trimmed(o->path);
    if (!is_folder && !strpbrk(input, "*?["))
        return ST_OK; /* one file */
    for (size_t i = 0; i < count; i++) {
        char *path = mem_printf("%.*s%s", n, o->path, behind[i]);
        if (!path)
            return err_nomem(e, "a path");
        int found = found_by(input, is_folder, path);
        mem_free(path);
        if (found)
            return err_set(e, ST_USER, "the output '%.*s' lies in the input '%s': the same command would read its own results the next time; choose an --output "
                                       "elsewhere", n, o->path, input);
    }
    return ST_OK;
}

enum status overlap_inputs(const struct output_spec *o, const char *const *inputs, size_t input_count, struct err *e)
{
    for (size_t i = 0; i < input_count; i++)
        TRY(would_be_found(o, inputs[i], e));
    return ST_OK;
}

enum status overlap_sources(const struct output_spec *o, const struct dataset *d, struct err *e)
{
    char *work = output_work_dir(o);
    if (!work)
        return err_nomem(e, "a path");
    enum status st = would_be_replaced(o, work, d, e);
    mem_free(work);
    return st;
}
