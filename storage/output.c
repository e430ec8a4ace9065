/* Where an output's files stand, whose it is, and the small files of its working folder. */
#include "storage/output.h"

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

#include "base/fault.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/suggest.h"

/* Names --------------------------------------------------------------------------------------------------------------------- */

static const char *const endings[] = {[OUTPUT_JSONL] = "jsonl", [OUTPUT_NPY] = "npy"};

static int has_ending(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m + 1 && path[n - m - 1] == '.' && strcmp(path + n - m, ending) == 0 && path[n - m - 2] != '/';
}

static int path_len(const struct output_spec *o) /* without slashes at the end */
{
    size_t n = strlen(o->path);
    while (n > 1 && o->path[n - 1] == '/')
        n--;
    return (int)n;
}

static int names_npy(const char *path)
{
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    size_t base = n;
    while (base && path[base - 1] != '/')
        base--;
    return n - base > 4 && memcmp(path + n - 4, ".npy", 4) == 0;
}

enum status output_resolve(const char *path, const char *format_word, struct output_spec *out, struct err *e)
{
    struct output_spec o = {.path = path};
    int by_ending = -1, by_word = -1;
    for (int k = OUTPUT_JSONL; k <= OUTPUT_NPY; k++) {
        if (has_ending(path, endings[k]))
            by_ending = k;
        if (format_word && strcmp(format_word, endings[k]) == 0)
            by_word = k;
    }
    if (format_word && by_word < 0) {
        const char *near = suggest(format_word, endings, 2);
        return err_set(e, ST_USER, "unknown output format '%s'%s%s%s: known are jsonl and npy", format_word, near ? " (did you mean '" : "",
                       near ? near : "", near ? "')" : "");
    }
    if (!*path)
        return err_set(e, ST_USER, "the output's path is empty: name a folder, or a file that ends in .jsonl or .npy");
    struct stat s;
    int exists = stat(path, &s) == 0;
    o.is_dir = path[strlen(path) - 1] == '/' || (exists && S_ISDIR(s.st_mode)) || by_ending < 0;
    if (exists && !S_ISDIR(s.st_mode) && o.is_dir)
        return err_set(e, ST_USER, "'%s' is a file, and its ending is none that ebb writes: end it in .jsonl or .npy, or name a folder", path);
    static const char *const others[] = {"json", "ndjson", "csv", "tsv", "txt", "parquet", "npz", "gz", "zst"};
    for (size_t i = 0; i < sizeof others / sizeof *others && o.is_dir && !exists; i++)
        if (has_ending(path, others[i]))
            return err_set(e, ST_USER, "'%s': ebb writes files that end in .jsonl or .npy, and folders: add a '/' if a folder is meant", path);
    if (!o.is_dir && by_word >= 0 && by_word != by_ending)
        return err_set(e, ST_USER, "'%s' ends in .%s and the output format is %s: change one of them", path, endings[by_ending],
                       endings[by_word]);
    if (o.is_dir && !format_word && names_npy(path))
        return err_set(e, ST_USER, "'%s' is a folder, and is called like an array: for one .npy file %s, for a folder add --output-format npy or jsonl", path,
                       exists ? "take another name" : "leave the '/' out");
    o.kind = (enum output_kind)(by_word >= 0 ? by_word : !o.is_dir ? by_ending : OUTPUT_JSONL);
    *out = o;
    return ST_OK;
}

char *output_work_dir(const struct output_spec *o)
{
    return mem_printf("%.*s%s", path_len(o), o->path, o->is_dir ? "/.ebb" : ".ebb");
}

char *output_parts_dir(const struct output_spec *o)
{
    return mem_printf("%.*s%s", path_len(o), o->path, o->is_dir ? "/.ebb/parts" : ".ebb/parts");
}

char *output_work_file(const struct output_spec *o, const char *name, uint32_t attempt)
{
    char number[16] = "";
    if (attempt != UINT32_MAX)
        snprintf(number, sizeof number, "-%" PRIu32, attempt);
    return mem_printf("%.*s%s/%s%s", path_len(o), o->path, o->is_dir ? "/.ebb" : ".ebb", name, number);
}

char *output_folder(const struct output_spec *o)
{
    int n = path_len(o);
    if (!o->is_dir) {
        while (n > 1 && o->path[n - 1] != '/')
            n--;
        while (n > 1 && o->path[n - 1] == '/')
            n--;
    }
    return mem_strndup(o->path, (size_t)n);
}

char *output_name(const struct output_spec *o, enum output_name what, uint64_t index, int partial)
{
    static const char *const in_dir[] = {[OUTPUT_ERRORS] = "errors.jsonl", [OUTPUT_MANIFEST] = "manifest.json", [OUTPUT_SUCCESS] = "_SUCCESS"};
    static const char *const at_file[] = {[OUTPUT_ROWS] = "", [OUTPUT_IDS] = ".ids.jsonl", [OUTPUT_ERRORS] = ".errors.jsonl",
                                          [OUTPUT_MANIFEST] = ".manifest.json"};
    const char *behind = partial ? PARTIAL : "";
    int n = path_len(o);
    BUG_IF(!o->is_dir && what == OUTPUT_SUCCESS, "a single file has no _SUCCESS");
    if (!o->is_dir)
        return mem_printf("%.*s%s%s", n, o->path, at_file[what], behind);
    if (what == OUTPUT_ROWS || what == OUTPUT_IDS)
        return mem_printf("%.*s/part-%05" PRIu64 ".%s%s", n, o->path, index, what == OUTPUT_IDS ? "ids.jsonl" : endings[o->kind], behind);
    return mem_printf("%.*s/%s%s", n, o->path, in_dir[what], behind);
}

char *output_base_name(const struct output_spec *o, enum output_name what, uint64_t index)
{
    char *path = output_name(o, what, index, 0);
    char *base = path ? mem_strdup(path_base(path)) : NULL;
    mem_free(path);
    return base;
}

/* part-<index>.<...>: which index, and is it partial? 0 when the name is none of an output's rows or ids. */
static int parse_part_name(const char *name, uint64_t *index, int *partial)
{
    static const char *const tails[] = {".jsonl", ".npy", ".ids.jsonl"};
    if (strncmp(name, "part-", 5) != 0 || strspn(name + 5, "0123456789") < 5)
        return 0;
    *index = 0;
    for (name += 5; *name >= '0' && *name <= '9'; name++) {
        if (*index > UINT64_MAX / 16)
            return 0;
        *index = *index * 10 + (uint64_t)(*name - '0');
    }
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t n = strlen(tails[i]);
        if (strncmp(name, tails[i], n) != 0)
            continue;
        *partial = strcmp(name + n, PARTIAL) == 0;
        if (*partial || name[n] == 0)
            return 1;
    }
    return 0;
}

/* Removes from the output's folder what `mine` says yes to. */
static enum status drop_names(const char *folder, int (*mine)(const char *name, const void *arg), const void *arg, struct err *e)
{
    DIR *d = opendir(folder);
    if (!d)
        return errno == ENOENT ? ST_OK : err_errno(e, ST_ENV, errno, "cannot read folder '%s'", folder);
    enum status st = ST_OK;
    const struct dirent *x;
    while (st == ST_OK && (x = readdir(d)))
        if (mine(x->d_name, arg) && unlinkat(dirfd(d), x->d_name, 0) && errno != ENOENT)
            st = err_errno(e, ST_ENV, errno, "cannot remove '%s/%s'", folder, x->d_name);
    closedir(d);
    return st;
}

static int is_late_partial(const char *name, const void *from)
{
    uint64_t index;
    int partial;
    return parse_part_name(name, &index, &partial) && partial && index >= *(const uint64_t *)from;
}

enum status output_drop_partial(const struct output_spec *o, uint64_t from, struct err *e)
{
    if (!o->is_dir)
        return ST_OK;
    char *folder = output_folder(o);
    if (!folder)
        return err_nomem(e, "a path");
    enum status st = drop_names(folder, is_late_partial, &from, e);
    mem_free(folder);
    return st;
}

/* Whose it is --------------------------------------------------------------------------------------------------------------- */

/* The first name (bytewise) in the output's folder that is not the working folder's, into `found`; "" when there is none. */
static enum status find_foreign(const struct output_spec *o, char *found, size_t size, struct err *e)
{
    found[0] = 0;
    if (!o->is_dir) {
        static const char *const behind[] = {"", PARTIAL, ".ids.jsonl", ".errors.jsonl", ".manifest.json"};
        for (size_t i = 0; i < sizeof behind / sizeof *behind && !found[0]; i++) {
            char *path = mem_printf("%.*s%s", path_len(o), o->path, behind[i]);
            if (!path)
                return err_nomem(e, "a path");
            if (path_exists(path))
                snprintf(found, size, "%s", path_base(path));
            mem_free(path);
        }
        return ST_OK;
    }
    DIR *d = opendir(o->path);
    if (!d) {
        if (errno == ENOENT)
            return ST_OK;
        if (errno == ENOTDIR)
            return err_set(e, ST_USER, "'%s' is no folder: choose another --output", o->path);
        return err_errno(e, ST_ENV, errno, "cannot read folder '%s'", o->path);
    }
    const struct dirent *x;
    while ((x = readdir(d)))
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 && strcmp(x->d_name, ".ebb") != 0 &&
            (!found[0] || strcmp(x->d_name, found) < 0))
            snprintf(found, size, "%s", x->d_name);
    closedir(d);
    return ST_OK;
}

enum status output_owner(const struct output_spec *o, struct buf *fingerprint_json, struct err *e)
{
    char *job = output_work_file(o, "job", UINT32_MAX);
    if (!job)
        return err_nomem(e, "a path");
    buf_clear(fingerprint_json);
    struct err mine = {0};
    enum status st = path_read(job, (size_t)16 << 20, fingerprint_json, &mine);
    mem_free(job);
    if (st != ST_NOT_FOUND && st != ST_OK && e)
        *e = mine;
    if (st != ST_NOT_FOUND)
        return st;
    char found[NAME_MAX + 1];
    TRY(find_foreign(o, found, sizeof found, e));
    if (!found[0])
        return err_set(e, ST_NOT_FOUND, "'%s' is nobody's output yet", o->path);
    char *manifest = o->is_dir ? path_join(o->path, "manifest.json") : NULL;
    int finished = manifest && path_exists(manifest);
    mem_free(manifest);
    if (finished)
        return err_set(e, ST_USER, "'%s' holds a finished output, but what belonged to it in '%s/.ebb' is gone, so that it cannot be told whose it is; choose another --output or --force",
                       o->path, o->path);
    if (o->is_dir)
        return err_set(e, ST_USER, "'%s' is not empty: it holds '%s', which ebb did not make; choose another --output or --force", o->path,
                       found);
    return err_set(e, ST_USER, "'%s' cannot be written: '%s' stands there, which ebb did not make; choose another --output or --force",
                   o->path, found);
}

static int is_ours(const char *name, const void *arg)
{
    (void)arg;
    static const char *const names[] = {"_SUCCESS", "manifest.json", "errors.jsonl", ("errors.jsonl" PARTIAL)};
    uint64_t index;
    int partial;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return parse_part_name(name, &index, &partial);
}

static int is_index(const char *name, const void *arg)
{
    (void)arg;
    return strcmp(name, "output") == 0 || strncmp(name, "files-", 6) == 0 || strncmp(name, "errors-", 7) == 0;
}

/* Another job's output, or files that merely have our names: everything that this output would write goes, _SUCCESS first. */
static enum status clear(const struct output_spec *o, const char *work, struct err *e)
{
    enum status st = ST_OK;
    if (o->is_dir) {
        char *success = output_name(o, OUTPUT_SUCCESS, 0, 0);
        if (!success)
            return err_nomem(e, "a path");
        if (unlink(success) == 0)
            st = output_sync_dir(o->path, e);
        mem_free(success);
        if (st == ST_OK)
            st = drop_names(o->path, is_ours, NULL, e);
    } else
        for (int what = OUTPUT_ROWS; what <= OUTPUT_MANIFEST && st == ST_OK; what++)
            for (int partial = 0; partial < 2 && st == ST_OK; partial++) {
                char *path = output_name(o, (enum output_name)what, 0, partial);
                if (!path)
                    return err_nomem(e, "a path");
                if (unlink(path) && errno != ENOENT)
                    st = err_errno(e, ST_ENV, errno, "cannot remove '%s'", path);
                mem_free(path);
            }
    if (st == ST_OK)
        st = drop_names(work, is_index, NULL, e);
    if (st == ST_OK) {
        char *parts = output_parts_dir(o);
        st = parts ? path_remove_tree(parts, e) : err_nomem(e, "a path");
        mem_free(parts);
    }
    return st;
}

enum status output_claim(const struct output_spec *o, const char *fingerprint_json, size_t len, struct err *e)
{
    char *work = output_work_dir(o), *parts = output_parts_dir(o), *job = output_work_file(o, "job", UINT32_MAX);
    struct buf now = {0};
    enum status st = work && parts && job ? ST_OK : err_nomem(e, "a path");
    if (st == ST_OK)
        st = path_make_dirs(work, 0777, e);
    if (st == ST_OK) {
        struct err mine = {0};
        enum status had = path_read(job, (size_t)16 << 20, &now, &mine);
        if (had == ST_OK && now.len == len && memcmp(now.data, fingerprint_json, len) == 0)
            st = path_make_dirs(parts, 0777, e);
        else if (had != ST_OK && had != ST_NOT_FOUND && had != ST_USER) { /* not known whose it is: nothing is touched */
            if (e)
                *e = mine;
            st = had;
        } else {
            st = clear(o, work, e);
            if (st == ST_OK)
                st = path_make_dirs(parts, 0777, e);
            if (st == ST_OK)
                st = path_write(job, fingerprint_json, len, e);
        }
    }
    buf_release(&now);
    mem_free(job);
    mem_free(parts);
    mem_free(work);
    return st;
}

/* Indexes and seal ---------------------------------------------------------------------------------------------------------- */

int file_record_put(struct buf *b, const struct file_record *r)
{
    return buf_le64(b, r->rows) || buf_le64(b, r->bytes) || buf_le64(b, r->ids_bytes) || buf_add(b, r->digest, 16) ||
                   buf_add(b, r->ids_digest, 16)
               ? -1
               : 0;
}

static void get_digest(struct cursor *c, uint8_t out[16])
{
    const uint8_t *p = cursor_bytes(c, 16);
    if (p)
        memcpy(out, p, 16);
}

void file_record_get(struct cursor *c, struct file_record *r)
{
    *r = (struct file_record){.rows = cursor_le64(c)};
    r->bytes = cursor_le64(c);
    r->ids_bytes = cursor_le64(c);
    get_digest(c, r->digest);
    get_digest(c, r->ids_digest);
}

int error_record_put(struct buf *b, const struct error_record *r)
{
    return buf_le64(b, r->record.begin) || buf_le64(b, r->record.end) || buf_le64(b, r->row) || buf_le64(b, r->source) ||
                   buf_le64(b, r->line)
               ? -1
               : 0;
}

void error_record_get(struct cursor *c, struct error_record *r)
{
    *r = (struct error_record){.record.begin = cursor_le64(c)};
    r->record.end = cursor_le64(c);
    r->row = cursor_le64(c);
    r->source = cursor_le64(c);
    r->line = cursor_le64(c);
}

/* Reads count * size bytes of an index. */
static enum status read_index(const struct output_spec *o, const char *name, uint32_t attempt, uint64_t count, size_t size, struct buf *out,
                              struct err *e)
{
    char *path = output_work_file(o, name, attempt);
    if (!path || count > SIZE_MAX / size / 2 || buf_reserve(out, (size_t)count * size)) {
        mem_free(path);
        return err_nomem(e, "an index of the output");
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum status st = fd < 0 ? err_errno(e, errno == ENOENT ? ST_CORRUPT : ST_ENV, errno, "cannot open the output's index '%s'", path)
                            : output_pread(fd, path, out->data, (size_t)count * size, 0, e);
    if (fd >= 0)
        close(fd);
    if (st == ST_OK)
        out->len = (size_t)count * size;
    mem_free(path);
    return st;
}

enum status output_read_files(const struct output_spec *o, uint32_t attempt, uint64_t count, struct file_record **out, struct err *e)
{
    struct buf b = {0};
    struct file_record *r = NULL;
    enum status st = read_index(o, "files", attempt, count, FILE_RECORD_BYTES, &b, e);
    if (st == ST_OK && !(r = mem_array((size_t)count, sizeof *r)))
        st = err_nomem(e, "an index of the output");
    struct cursor c = cursor_make(b.data, b.len);
    for (size_t i = 0; st == ST_OK && i < count; i++)
        file_record_get(&c, &r[i]);
    buf_release(&b);
    if (st == ST_OK)
        *out = r;
    return st;
}

enum status output_read_errors(const struct output_spec *o, uint32_t attempt, uint64_t count, struct error_record **out, struct err *e)
{
    struct buf b = {0};
    struct error_record *r = NULL;
    enum status st = read_index(o, "errors", attempt, count, ERROR_RECORD_BYTES, &b, e);
    if (st == ST_OK && !(r = mem_array((size_t)count, sizeof *r)))
        st = err_nomem(e, "an index of the output");
    struct cursor c = cursor_make(b.data, b.len);
    for (size_t i = 0; st == ST_OK && i < count; i++)
        error_record_get(&c, &r[i]);
    buf_release(&b);
    if (st == ST_OK)
        *out = r;
    return st;
}

static const char seal_magic[8] = {'e', 'b', 'b', 's', 'e', 'a', 'l', 1};

static void seal_numbers(struct seal *s, uint64_t *out[12])
{
    uint64_t *const all[12] = {&s->job, &s->attempt, &s->kind, &s->is_dir, &s->dims, &s->part_bytes,
                               &s->rows, &s->files, &s->kept, &s->errors, &s->errors_bytes, &s->end};
    memcpy(out, all, sizeof all);
}

enum status seal_write(const struct output_spec *o, const struct seal *s, struct err *e)
{
    struct seal copy = *s;
    uint64_t *v[12];
    struct buf b = {0};
    seal_numbers(&copy, v);
    int failed = buf_add(&b, seal_magic, sizeof seal_magic);
    for (int i = 0; i < 12 && !failed; i++)
        failed = buf_le64(&b, *v[i]);
    failed = failed || buf_add(&b, s->errors_digest, 16);
    failed = failed || buf_le64(&b, XXH3_64bits(b.data, b.len));
    char *path = failed ? NULL : output_work_file(o, "output", UINT32_MAX);
    enum status st = path ? path_write(path, b.data, b.len, e) : err_nomem(e, "the output's seal");
    mem_free(path);
    buf_release(&b);
    return st;
}

enum status seal_read(const struct output_spec *o, struct seal *s, struct err *e)
{
    struct buf b = {0};
    char *path = output_work_file(o, "output", UINT32_MAX);
    enum status st = path ? path_read(path, 4096, &b, e) : err_nomem(e, "the output's seal");
    if (st == ST_OK) {
        struct cursor c = cursor_make(b.data, b.len);
        const uint8_t *magic = cursor_bytes(&c, sizeof seal_magic);
        if (!magic || memcmp(magic, seal_magic, 7) != 0)
            st = err_set(e, ST_CORRUPT, "'%s' is damaged: it is not the seal of an output", path);
        else if (magic[7] > seal_magic[7])
            st = err_set(e, ST_USER, "'%s' has format %u and this program knows formats up to %d: use the newer ebb that wrote it", path,
                         magic[7], seal_magic[7]);
        struct seal got = {0};
        uint64_t *v[12];
        seal_numbers(&got, v);
        for (int i = 0; i < 12; i++)
            *v[i] = cursor_le64(&c);
        get_digest(&c, got.errors_digest);
        size_t covered = b.len - cursor_left(&c);
        uint64_t sum = cursor_le64(&c);
        if (st == ST_OK && (c.bad || cursor_left(&c) || sum != XXH3_64bits(b.data, covered) || magic[7] != seal_magic[7]))
            st = err_set(e, ST_CORRUPT, "'%s' is damaged: the seal's checksum is wrong", path);
        if (st == ST_OK)
            *s = got;
    }
    mem_free(path);
    buf_release(&b);
    return st;
}

/* Little things ------------------------------------------------------------------------------------------------------------- */

enum status output_pwrite(int fd, const char *path, const void *data, size_t len, uint64_t at, struct err *e)
{
    for (size_t done = 0; done < len;) {
        int errnum = fault_point("assemble.write");
        ssize_t n = errnum ? -1 : pwrite(fd, (const char *)data + done, len - done, (off_t)(at + done));
        if (n < 0 && !errnum)
            errnum = errno;
        if (n >= 0)
            done += (size_t)n;
        else if (errnum == ENOSPC || errnum == EDQUOT)
            return err_errno(e, ST_ENV, errnum, "cannot write '%s': free some space, then go on", path);
        else if (errnum != EINTR)
            return err_errno(e, ST_ENV, errnum, "cannot write '%s'", path);
    }
    return ST_OK;
}

enum status output_intact(int fd, const char *path, uint64_t bytes, struct err *e)
{
    struct stat s;
    if (fstat(fd, &s))
        return err_errno(e, ST_ENV, errno, "cannot read the size of '%s'", path);
    if (!s.st_nlink)
        return err_set(e, ST_CORRUPT, "'%s' was removed while it was written: start the job anew with --force", path);
    if ((uint64_t)s.st_size < bytes)
        return err_set(e, ST_CORRUPT, "'%s' has %lld bytes, and %" PRIu64 " were written, something else changed it: start the job anew with --force", path,
                       (long long)s.st_size, bytes);
    return ST_OK;
}

enum status output_pread(int fd, const char *path, void *data, size_t len, uint64_t at, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (char *)data + done, len - done, (off_t)(at + done));
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            return err_set(e, ST_CORRUPT, "'%s' is too short: it ends at byte %" PRIu64 " instead of %" PRIu64 " or later", path, at + done,
                           at + len);
        else if (errno != EINTR)
            return err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
    }
    return ST_OK;
}

enum status output_sync(int fd, const char *path, struct err *e)
{
    int errnum = fault_point("assemble.sync");
    if (errnum || fsync(fd))
        return err_errno(e, ST_ENV, errnum ? errnum : errno, "cannot sync '%s'", path);
    return ST_OK;
}

enum status output_sync_dir(const char *dir, struct err *e)
{
    int errnum = fault_point("assemble.sync");
    if (errnum)
        return err_errno(e, ST_ENV, errnum, "cannot sync folder '%s'", dir);
    return path_sync_dir(dir, e);
}

enum status output_digest(int fd, const char *path, uint64_t bytes, uint8_t out[16], struct err *e)
{
    const size_t block = 256 * 1024;
    char *data = mem_alloc(block);
    XXH3_state_t *x = XXH3_createState();
    enum status st = data && x && XXH3_128bits_reset(x) == XXH_OK ? ST_OK : err_nomem(e, "a digest");
    for (uint64_t at = 0; at < bytes && st == ST_OK;) {
        size_t n = bytes - at < block ? (size_t)(bytes - at) : block;
        st = output_pread(fd, path, data, n, at, e);
        if (st == ST_OK)
            XXH3_128bits_update(x, data, n);
        at += n;
    }
    if (st == ST_OK) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(x));
        memcpy(out, c.digest, 16);
    }
    XXH3_freeState(x);
    mem_free(data);
    return st;
}
