#include "storage/modeldir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "storage/onnxdir.h"

enum { JSON_MAX_BYTES = 64 << 20, READ_BYTES = 1 << 20, KNOWN = 8 /* digests that are remembered */ };

struct names {
    char **name; /* relative to the directory */
    size_t n, cap;
};

static void names_release(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->name[i]);
    mem_free(l->name);
}

/* Takes name over, which is NULL when its allocation failed. */
static enum status names_add(struct names *l, char *name, struct err *e)
{
    if (!name || mem_grow((void **)&l->name, &l->cap, l->n, sizeof *l->name) != 0) {
        mem_free(name);
        return err_nomem(e, "the names of the model's files");
    }
    l->name[l->n++] = name;
    return ST_OK;
}

/* Sorts, and drops what is named twice (modules.json may name the model's own folder). */
static void names_sort(struct names *l)
{
    for (size_t i = 1; i < l->n; i++)
        for (size_t j = i; j > 0 && strcmp(l->name[j - 1], l->name[j]) > 0; j--) {
            char *t = l->name[j];
            l->name[j] = l->name[j - 1];
            l->name[j - 1] = t;
        }
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (kept > 0 && strcmp(l->name[kept - 1], l->name[i]) == 0)
            mem_free(l->name[i]);
        else
            l->name[kept++] = l->name[i];
    }
    l->n = kept;
}

/* ST_NOT_FOUND when there is no such file. A FIFO or device would block or never end, so only plain files are opened. */
static enum status open_plain(const char *dir, const char *name, int *fd, uint64_t *size, struct err *e)
{
    char *path = mem_printf("%s/%s", dir, name);
    if (!path)
        return err_nomem(e, "a path");
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int errnum = errno;
    mem_free(path);
    if (f < 0) {
        if (errnum == ENOENT || errnum == ENOTDIR)
            return err_set(e, ST_NOT_FOUND, "'%s' has no file '%s'", dir, name);
        return err_errno(e, ST_ENV, errnum, "cannot read '%s/%s'", dir, name);
    }
    struct stat st;
    if (fstat(f, &st) != 0) {
        errnum = errno;
        close(f);
        return err_errno(e, ST_ENV, errnum, "cannot read '%s/%s'", dir, name);
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return err_set(e, ST_USER, "'%s/%s' is not a plain file", dir, name);
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return ST_OK;
}

static enum status read_exactly(int fd, void *to, size_t len, const char *dir, const char *name, struct err *e)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, (char *)to + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%s/%s'", dir, name);
        if (n == 0)
            return err_set(e, ST_ENV, "'%s/%s' became shorter while it was read", dir, name);
        at += (size_t)n;
    }
    return ST_OK;
}

enum status modeldir_json(const char *dir, const char *name, struct json_t **out, struct err *e)
{
    int fd;
    uint64_t size;
    TRY(open_plain(dir, name, &fd, &size, e));
    if (size > JSON_MAX_BYTES) {
        close(fd);
        return err_set(e, ST_USER, "'%s/%s' has %llu bytes, more than the %d that are read of such a file", dir, name,
                       (unsigned long long)size, JSON_MAX_BYTES);
    }
    char *text = mem_alloc((size_t)size);
    enum status st = text ? read_exactly(fd, text, (size_t)size, dir, name, e) : err_nomem(e, name);
    close(fd);
    if (st == ST_OK) {
        json_error_t je;
        json_t *j = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &je);
        if (j)
            *out = j;
        else if (json_error_code(&je) == json_error_out_of_memory)
            st = err_nomem(e, name);
        else
            st = err_set(e, ST_USER, "'%s/%s' is not valid JSON: line %d, column %d: %s", dir, name, je.line, je.column, je.text);
    }
    mem_free(text);
    return st;
}

enum status modeldir_module_path(const char *dir, struct json_t *modules, uint32_t index, const char **path, struct err *e)
{
    if (!json_is_array(modules))
        return err_set(e, ST_USER, "'%s/modules.json' is not a list of modules", dir);
    const char *p = json_string_value(json_object_get(json_array_get(modules, index), "path"));
    if (!p)
        return err_set(e, ST_USER, "'%s/modules.json': module %u has no path", dir, index);
    int leaves = p[0] == '/';
    for (const char *s = p; *s; s += strcspn(s, "/"), s += *s == '/')
        leaves |= strncmp(s, "..", 2) == 0 && (s[2] == 0 || s[2] == '/');
    if (leaves)
        return err_set(e, ST_USER, "'%s/modules.json': module %u has the path '%s', which leads out of the directory", dir, index,
                       p);
    *path = p;
    return ST_OK;
}

static int ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static enum status list_own(const char *dir, int onnx, struct names *l, struct err *e)
{
    static const char *const wanted[] = {"config.json",           "tokenizer.json",          "vocab.txt",
                                         "tokenizer_config.json", "special_tokens_map.json", "modules.json",
                                         "sentence_bert_config.json", "preprocessor_config.json"};
    DIR *d = opendir(dir);
    if (!d) {
        if (errno == ENOENT)
            return err_set(e, ST_USER, "there is no model directory '%s'", dir);
        if (errno == ENOTDIR)
            return err_set(e, ST_USER, "'%s' is not a directory: a model is a directory with config.json and model.safetensors",
                           dir);
        return err_errno(e, ST_ENV, errno, "cannot read the model directory '%s'", dir);
    }
    enum status st = ST_OK;
    for (struct dirent *x; st == ST_OK && (x = readdir(d));) {
        int take = !onnx && (ends_with(x->d_name, ".safetensors") || ends_with(x->d_name, ".safetensors.index.json"));
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !take; i++)
            take = strcmp(x->d_name, wanted[i]) == 0;
        if (take)
            st = names_add(l, mem_strdup(x->d_name), e);
    }
    closedir(d);
    return st;
}

/* Of a module's folder, where it is there. */
static enum status add_module_file(const char *dir, const char *folder, const char *file, struct names *l, struct err *e)
{
    struct err why;
    int fd;
    uint64_t size;
    char *name = mem_printf("%s/%s", folder, file);
    if (!name)
        return err_nomem(e, "a path");
    enum status there = open_plain(dir, name, &fd, &size, &why);
    if (there == ST_OK) {
        close(fd);
        return names_add(l, name, e);
    }
    mem_free(name);
    return there == ST_NOT_FOUND ? ST_OK : err_set(e, there, "%s", why.text);
}

static enum status list_modules(const char *dir, struct names *l, struct err *e)
{
    json_t *modules = NULL;
    struct err why;
    enum status st = modeldir_json(dir, "modules.json", &modules, &why);
    if (st == ST_NOT_FOUND)
        return ST_OK;
    if (st != ST_OK)
        return err_set(e, st, "%s", why.text);
    if (!json_is_array(modules))
        st = err_set(e, ST_USER, "'%s/modules.json' is not a list of modules", dir);
    for (uint32_t i = 0; st == ST_OK && i < json_array_size(modules); i++) {
        const char *path;
        st = modeldir_module_path(dir, modules, i, &path, e);
        if (st != ST_OK || !path[0])
            continue;
        st = add_module_file(dir, path, "config.json", l, e); /* a Normalize module has no file */
        if (st == ST_OK)
            st = add_module_file(dir, path, "model.safetensors", l, e); /* a Dense has */
    }
    json_decref(modules);
    return st;
}

static enum status digest_file(const char *dir, const char *name, XXH3_state_t *x, void *block, uint64_t *size, struct err *e)
{
    int fd;
    enum status st = open_plain(dir, name, &fd, size, e);
    if (st != ST_OK)
        return st;
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(*size >> 8 * i);
    XXH3_128bits_update(x, name, strlen(name) + 1);
    XXH3_128bits_update(x, le, sizeof le);
    for (uint64_t left = *size; st == ST_OK && left > 0;) {
        size_t n = left < READ_BYTES ? (size_t)left : READ_BYTES;
        st = read_exactly(fd, block, n, dir, name, e);
        if (st == ST_OK)
            XXH3_128bits_update(x, block, n);
        left -= n;
    }
    close(fd);
    return st;
}

static enum status add_name(void *arg, const char *name, struct err *e)
{
    return names_add(arg, mem_strdup(name), e);
}

/* Which files: of *dir, which *folder owns where it is not path itself; *file: the ONNX file, NULL: a Hugging Face directory. The caller frees all three on any
   outcome. */
static enum status list_all(const char *path, const char **dir, char **folder, char **file, struct names *l, struct err *e)
{
    struct err why;
    enum status st = onnxdir_find(path, folder, file, &why);
    *dir = path;
    if (st == ST_OK)
        *dir = *folder;
    else if (st != ST_NOT_FOUND)
        return err_set(e, st, "%s", why.text);
    st = list_own(*dir, *folder != NULL, l, e);
    if (st == ST_OK)
        st = list_modules(*dir, l, e);
    if (st == ST_OK && *file)
        st = add_name(l, *file, e);
    if (st == ST_OK && *file)
        st = onnxdir_external(*dir, *file, add_name, l, e);
    if (st != ST_OK)
        return st;
    names_sort(l);
    int has_config = *file != NULL; /* an ONNX file is enough */
    for (size_t i = 0; i < l->n; i++)
        has_config |= strcmp(l->name[i], "config.json") == 0;
    return has_config ? ST_OK : err_set(e, ST_USER, "'%s' is not a model directory: it has no config.json", *dir);
}

static enum status digest_all(const char *dir, const struct names *l, struct model_digest *out, struct err *e)
{
    struct model_digest d = {0};
    void *block = mem_alloc(READ_BYTES);
    XXH3_state_t *x = XXH3_createState();
    enum status st = block && x ? ST_OK : err_nomem(e, "the model's digest");
    if (st == ST_OK)
        XXH3_128bits_reset(x);
    for (size_t i = 0; i < l->n && st == ST_OK; i++) {
        uint64_t size = 0;
        st = digest_file(dir, l->name[i], x, block, &size, e);
        d.size_bytes += size;
        d.files++;
    }
    if (st == ST_OK) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(x));
        memcpy(d.bytes, c.digest, sizeof d.bytes);
        for (int i = 0; i < 16; i++) {
            d.hex[2 * i] = "0123456789abcdef"[d.bytes[i] >> 4];
            d.hex[2 * i + 1] = "0123456789abcdef"[d.bytes[i] & 15];
        }
        *out = d;
    }
    XXH3_freeState(x);
    mem_free(block);
    return st;
}

/* What was read: by what stat says of all its files. */
static struct {
    pthread_mutex_t lock;
    struct {
        XXH128_hash_t files;
        struct model_digest digest; /* files 0: none */
    } at[KNOWN];
    uint32_t next;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* 0: *out stands for the files as they are now, *newest_s is the last change of any of them. */
static int identify(const char *dir, const struct names *l, XXH128_hash_t *out, time_t *newest_s)
{
    XXH3_state_t *x = XXH3_createState();
    int at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int failed = at < 0 || !x || XXH3_128bits_reset(x) == XXH_ERROR;
    *newest_s = 0;
    for (size_t i = 0; i < l->n && !failed; i++) {
        struct stat s;
        if ((failed = fstatat(at, l->name[i], &s, 0) != 0))
            break;
        const uint64_t words[] = {(uint64_t)s.st_dev, (uint64_t)s.st_ino, (uint64_t)s.st_size, (uint64_t)s.st_mtim.tv_sec, (uint64_t)s.st_mtim.tv_nsec,
                                  (uint64_t)s.st_ctim.tv_sec, (uint64_t)s.st_ctim.tv_nsec};
        XXH3_128bits_update(x, l->name[i], strlen(l->name[i]) + 1);
        XXH3_128bits_update(x, words, sizeof words);
        *newest_s = s.st_mtim.tv_sec > *newest_s ? s.st_mtim.tv_sec : *newest_s;
        *newest_s = s.st_ctim.tv_sec > *newest_s ? s.st_ctim.tv_sec : *newest_s;
    }
    if (!failed)
        *out = XXH3_128bits_digest(x);
    if (at >= 0)
        close(at);
    XXH3_freeState(x);
    return failed;
}

static int find_known(XXH128_hash_t files, struct model_digest *out)
{
    int found = 0;
    pthread_mutex_lock(&known.lock);
    for (int i = 0; i < KNOWN && !found; i++)
        if (known.at[i].digest.files && XXH128_isEqual(known.at[i].files, files)) {
            *out = known.at[i].digest;
            found = 1;
        }
    pthread_mutex_unlock(&known.lock);
    return found;
}

static void make_known(XXH128_hash_t files, const struct model_digest *d)
{
    pthread_mutex_lock(&known.lock);
    known.at[known.next].files = files;
    known.at[known.next].digest = *d;
    known.next = (known.next + 1) % KNOWN;
    pthread_mutex_unlock(&known.lock);
}

static enum status digest(const char *path, int may_know, struct model_digest *out, struct err *e)
{
    char *folder = NULL, *file = NULL;
    const char *dir;
    struct names l = {0};
    XXH128_hash_t before, after;
    time_t began = time(NULL), newest;
    enum status st = list_all(path, &dir, &folder, &file, &l, e);
    if (st == ST_OK && may_know)
        may_know = identify(dir, &l, &before, &newest) == 0;
    if (st == ST_OK && !(may_know && find_known(before, out))) {
        st = digest_all(dir, &l, out, e);
        if (st == ST_OK && may_know && newest < began - 2 && identify(dir, &l, &after, &newest) == 0 && XXH128_isEqual(before, after))
            make_known(before, out);
    }
    names_release(&l);
    mem_free(folder);
    mem_free(file);
    return st;
}

enum status modeldir_digest(const char *path, struct model_digest *out, struct err *e)
{
    return digest(path, 0, out, e);
}

enum status modeldir_digest_known(const char *path, struct model_digest *out, struct err *e)
{
    return digest(path, 1, out, e);
}

enum status modeldir_files(const char *path, struct model_files *out, struct err *e)
{
    char *folder = NULL, *file = NULL;
    const char *dir;
    struct names l = {0};
    struct model_files m = {0};
    enum status st = list_all(path, &dir, &folder, &file, &l, e);
    if (st == ST_OK && (!(m.folder = mem_strdup(dir)) || !(m.entry = mem_strdup(file ? file : "")) || !(m.items = mem_array(l.n, sizeof *m.items))))
        st = err_nomem(e, "the names of the model's files");
    for (size_t i = 0; st == ST_OK && i < l.n; i++) {
        int fd;
        st = open_plain(dir, l.name[i], &fd, &m.items[i].size_bytes, e);
        if (st != ST_OK)
            break;
        close(fd);
        m.items[i].name = l.name[i];
        l.name[i] = NULL;
        m.count++;
    }
    names_release(&l);
    mem_free(folder);
    mem_free(file);
    if (st == ST_OK)
        *out = m;
    else
        modeldir_files_release(&m);
    return st;
}

void modeldir_files_release(struct model_files *m)
{
    for (size_t i = 0; i < m->count; i++)
        mem_free(m->items[i].name);
    mem_free(m->items);
    mem_free(m->folder);
    mem_free(m->entry);
    *m = (struct model_files){0};
}
