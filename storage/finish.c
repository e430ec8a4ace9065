/* The end: bytes are completed and synced, then sealed (<work>/output). From then on nothing but names is missing, and they are made
   idempotently: partial file there = not named yet, partial file gone and target there = done. _SUCCESS comes last (for a single file: its
   own name), then parts and old indexes go. Whatever fails, the next go takes the same steps again. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "storage/assembly.h"

/* Everything up to the seal: after it, nothing but names is missing. */
static enum status finish_bytes(struct assembly *a, struct err *e)
{
    if (a->st.head != a->d->end)
        return err_set(e, ST_AGAIN, "'%s' is assembled up to %" PRIu64 " of %" PRIu64, a->o.path, a->st.head, a->d->end);
    if (a->st.attempt > 0)
        TRY(merge_rest(a, e));
    TRY(outfiles_complete(&a->files, e));
    int errnum = fault_point("assemble.finish.sync");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot sync '%s'", a->errors_path);
    TRY(assembly_sync(a, e));
    struct seal s = {.job = a->st.job, .attempt = a->st.attempt, .kind = a->st.kind, .is_dir = a->st.is_dir, .dims = a->st.dims,
                     .part_bytes = a->st.part_bytes, .rows = a->files.st.rows, .files = a->files.st.file, .kept = a->files.st.kept,
                     .errors = a->st.errors, .errors_bytes = a->st.errors_bytes, .end = a->d->end};
    TRY(output_digest(a->errors_fd, a->errors_path, s.errors_bytes, s.errors_digest, e));
    errnum = fault_point("assemble.finish.seal");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot seal '%s'", a->o.path);
    TRY(seal_write(&a->o, &s, e));
    a->seal = s;
    a->sealed = 1;
    assembly_close_files(a);
    return ST_OK;
}

/* One name: the partial file takes it, or has taken it already. */
static enum status give_name(const struct assembly *a, enum output_name what, uint64_t index, uint64_t bytes, struct err *e)
{
    char *from = output_name(&a->o, what, index, 1), *to = output_name(&a->o, what, index, 0);
    enum status st = from && to ? ST_OK : err_nomem(e, "a path");
    int errnum = fault_point("assemble.rename");
    if (st == ST_OK && (errnum || (rename(from, to) && (errnum = errno) != ENOENT)))
        st = err_errno(e, ST_ENV, errnum, "cannot rename '%s' to '%s'", from, to);
    struct stat s;
    if (st == ST_OK && stat(to, &s))
        st = errno == ENOENT ? err_set(e, ST_CORRUPT, "'%s' was finished and is gone: start the job anew with --force", to)
                             : err_errno(e, ST_ENV, errno, "cannot find '%s'", to);
    else if (st == ST_OK && (uint64_t)s.st_size != bytes)
        st = err_set(e, ST_CORRUPT, "'%s' has %lld bytes and was finished with %" PRIu64, to, (long long)s.st_size, bytes);
    mem_free(from);
    mem_free(to);
    return st;
}

static enum status give_names(struct assembly *a, const struct file_record *r, const struct manifest_info *info, struct err *e)
{
    const struct seal *s = &a->seal;
    char *folder = output_folder(&a->o);
    enum status st = folder ? ST_OK : err_nomem(e, "a path");
    for (uint64_t i = s->kept; i < s->files && st == ST_OK; i++) {
        if (a->o.is_dir)
            st = give_name(a, OUTPUT_ROWS, i, r[i].bytes, e);
        if (st == ST_OK && a->o.kind == OUTPUT_NPY)
            st = give_name(a, OUTPUT_IDS, i, r[i].ids_bytes, e);
    }
    if (st == ST_OK)
        st = give_name(a, OUTPUT_ERRORS, 0, s->errors_bytes, e);
    if (st == ST_OK)
        st = output_sync_dir(folder, e);
    if (st == ST_OK)
        st = manifest_write(&a->o, s, r, info, e);
    if (st == ST_OK && !a->o.is_dir) { /* a single file has no _SUCCESS: its name comes last instead */
        st = give_name(a, OUTPUT_ROWS, 0, r[0].bytes, e);
        if (st == ST_OK)
            st = output_sync_dir(folder, e);
    }
    mem_free(folder);
    return st;
}

static enum status make_success(const struct assembly *a, struct err *e)
{
    int errnum = fault_point("assemble.finish.success");
    char *path = output_name(&a->o, OUTPUT_SUCCESS, 0, 0);
    if (!path)
        return err_nomem(e, "a path");
    int fd = errnum ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    enum status st = ST_OK;
    if (fd < 0)
        st = err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot make '%s'", path);
    else {
        st = output_sync(fd, path, e);
        close(fd);
    }
    if (st == ST_OK)
        st = path_sync_parent(path, e);
    mem_free(path);
    return st;
}

/* Parts, and the indexes of earlier attempts. */
static enum status remove_rest(const struct assembly *a, struct err *e)
{
    int errnum = fault_point("assemble.finish.parts");
    char *parts = mem_printf("%s/%" PRIu64, a->parts_dir, a->st.job);
    enum status st = parts ? ST_OK : err_nomem(e, "a path");
    if (errnum)
        st = err_errno(e, ST_ENV, errnum, "cannot remove '%s'", parts ? parts : "parts");
    if (st == ST_OK)
        for (int tries = 0; (st = path_remove_tree(parts, e)) != ST_OK && tries < 3; tries++) {
            /* a worker that was thought lost may still be writing there */
        }
    for (uint32_t i = 0; i < a->seal.attempt && st == ST_OK; i++)
        for (int k = 0; k < 2 && st == ST_OK; k++) {
            char *path = output_work_file(&a->o, k ? "errors" : "files", i);
            if (!path)
                st = err_nomem(e, "a path");
            else if (unlink(path) && errno != ENOENT)
                st = err_errno(e, ST_ENV, errno, "cannot remove '%s'", path);
            mem_free(path);
        }
    mem_free(parts);
    return st;
}

enum status assembly_finish(struct assembly *a, const struct manifest_info *info, struct err *e)
{
    TRY(assembly_usable(a, e));
    struct file_record *r = NULL;
    enum status st = a->sealed ? ST_OK : finish_bytes(a, e);
    int errnum;
    if (st == ST_OK && (errnum = fault_point("assemble.finish.names")))
        st = err_errno(e, ST_ENV, errnum, "cannot give '%s' its names", a->o.path);
    if (st == ST_OK)
        st = output_read_files(&a->o, (uint32_t)a->seal.attempt, a->seal.files, &r, e);
    if (st == ST_OK)
        st = give_names(a, r, info, e);
    mem_free(r);
    if (st == ST_OK && a->o.is_dir)
        st = make_success(a, e);
    if (st == ST_OK)
        st = remove_rest(a, e);
    if (st != ST_OK && st != ST_AGAIN)
        a->failed = 1;
    return st;
}
