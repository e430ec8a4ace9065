#include "workers/engine/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "storage/modeldir.h"

enum { MAX_HEADER_BYTES = 100 << 20, MAX_FILES = 1024, READ_BYTES = 1 << 18 };

struct file {
    int fd;
    char *path;
    uint64_t size, data; /* bytes; where the data begins */
    json_t *header;      /* owns the names of the tensors */
};

struct weights {
    char *main_file;
    struct file *file;
    size_t files, file_cap;
    struct tensor *t; /* by name */
    size_t n, cap;
};

void weights_free(struct weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->files; i++) {
        close(w->file[i].fd);
        mem_free(w->file[i].path);
        json_decref(w->file[i].header);
    }
    mem_free(w->file);
    mem_free(w->t);
    mem_free(w->main_file);
    mem_free(w);
}

static enum status read_at(const struct file *f, uint64_t at, void *to, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(f->fd, (char *)to + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%s'", f->path);
        if (n == 0)
            return err_set(e, ST_ENV, "'%s' became shorter while it was read", f->path);
        done += (size_t)n;
    }
    return ST_OK;
}

static uint32_t dtype_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } known[] = {{"F64", 8},     {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},     {"U32", 4},     {"F16", 2},
                 {"BF16", 2},    {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},      {"BOOL", 1},    {"F8_E4M3", 1},
                 {"F8_E5M2", 1}, {"C64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(dtype, known[i].name) == 0)
            return known[i].bytes;
    return 0;
}

/* A JSON integer that is not negative. */
static int as_u64(const json_t *j, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return 0;
    *out = (uint64_t)json_integer_value(j);
    return 1;
}

/* Fills t from its header entry. What it checks holds for damaged and hostile files alike. */
static enum status parse_tensor(const struct file *f, const char *name, const json_t *j, struct tensor *t, struct err *e)
{
    const char *dtype = json_string_value(json_object_get(j, "dtype"));
    const json_t *shape = json_object_get(j, "shape"), *offsets = json_object_get(j, "data_offsets");
    uint64_t begin, end, bytes;
    if (!dtype || !json_is_array(shape) || json_array_size(offsets) != 2 || !as_u64(json_array_get(offsets, 0), &begin) ||
        !as_u64(json_array_get(offsets, 1), &end))
        return err_set(e, ST_USER, "'%s': the header's entry for tensor '%s' is not {dtype, shape, data_offsets}", f->path, name);
    t->name = name;
    t->dtype = dtype;
    t->count = 1;
    if (json_array_size(shape) > TENSOR_MAX_RANK)
        return err_set(e, ST_USER, "'%s': tensor '%s' has %zu dimensions; %d are supported", f->path, name, json_array_size(shape),
                       TENSOR_MAX_RANK);
    for (size_t i = 0; i < json_array_size(shape); i++) {
        uint64_t d;
        if (!as_u64(json_array_get(shape, i), &d) || __builtin_mul_overflow(t->count, d, &t->count))
            return err_set(e, ST_USER, "'%s': tensor '%s' has an impossible shape", f->path, name);
        t->dim[t->rank++] = d;
    }
    uint64_t data_bytes = f->size - f->data;
    if (begin > end)
        return err_set(e, ST_USER, "'%s': tensor '%s' ends at byte %llu, before its begin at %llu", f->path, name,
                       (unsigned long long)end, (unsigned long long)begin);
    if (end > data_bytes)
        return err_set(e, ST_USER,
                       "'%s' is truncated: tensor '%s' ends at byte %llu of the data, and there are %llu; fetch the file again",
                       f->path, name, (unsigned long long)end, (unsigned long long)data_bytes);
    uint32_t each = dtype_bytes(dtype);
    if (each && (__builtin_mul_overflow(t->count, each, &bytes) || bytes != end - begin))
        return err_set(e, ST_USER, "'%s': tensor '%s' has %llu bytes, which is not what its shape and its dtype '%s' need",
                       f->path, name, (unsigned long long)(end - begin), dtype);
    t->begin = f->data + begin;
    t->end = f->data + end;
    return ST_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* The tensors fill the data without gap or overlap, as the format wants it: bytes that nobody names are damage, too. */
static enum status check_places(const struct file *f, struct tensor *t, size_t n, struct err *e)
{
    qsort(t, n, sizeof *t, by_place);
    uint64_t at = f->data;
    for (size_t i = 0; i < n; i++) {
        if (t[i].begin < at && t[i].end > t[i].begin)
            return err_set(e, ST_USER, "'%s': tensor '%s' overlaps the tensor '%s'", f->path, t[i].name, t[i - 1].name);
        if (t[i].begin > at)
            return err_set(e, ST_USER, "'%s': %llu bytes before tensor '%s' belong to no tensor", f->path,
                           (unsigned long long)(t[i].begin - at), t[i].name);
        at = t[i].end;
    }
    if (at != f->size)
        return err_set(e, ST_USER, "'%s': %llu bytes at the end belong to no tensor; fetch the file again", f->path,
                       (unsigned long long)(f->size - at));
    return ST_OK;
}

static enum status read_header(struct file *f, struct err *e)
{
    uint8_t le[8];
    if (f->size < 8)
        return err_set(e, ST_USER, "'%s' is truncated: it has %llu bytes, less than a header", f->path, (unsigned long long)f->size);
    TRY(read_at(f, 0, le, sizeof le, e));
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | le[i];
    if (len > f->size - 8)
        return err_set(e, ST_USER, "'%s' is truncated or no safetensors file: its header would have %llu bytes, the file has %llu",
                       f->path, (unsigned long long)len, (unsigned long long)f->size);
    if (len > MAX_HEADER_BYTES)
        return err_set(e, ST_USER, "'%s': its header would have %llu bytes; at most %d are read", f->path, (unsigned long long)len,
                       MAX_HEADER_BYTES);
    char *text = mem_alloc((size_t)len);
    if (!text)
        return err_nomem(e, "a safetensors header");
    enum status st = read_at(f, 8, text, (size_t)len, e);
    if (st == ST_OK) {
        json_error_t je;
        f->header = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, &je);
        if (!f->header && json_error_code(&je) == json_error_out_of_memory)
            st = err_nomem(e, "a safetensors header");
        else if (!json_is_object(f->header))
            st = err_set(e, ST_USER, "'%s' is damaged or no safetensors file: its header is not a JSON object: %s", f->path,
                         f->header ? "it is another value" : je.text);
    }
    mem_free(text);
    f->data = 8 + len;
    return st;
}

/* Opens one file and adds its tensors; of a shard, those that weight_map gives to it. */
static enum status add_file(struct weights *w, const char *dir, const char *name, const json_t *weight_map, struct err *e)
{
    if (mem_grow((void **)&w->file, &w->file_cap, w->files, sizeof *w->file) != 0)
        return err_nomem(e, "the model's files");
    struct file *f = &w->file[w->files];
    *f = (struct file){.path = mem_printf("%s/%s", dir, name)};
    if (!f->path)
        return err_nomem(e, "the model's files");
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) {
        enum status st = err_errno(e, errno == ENOENT ? ST_USER : ST_ENV, errno, "cannot read '%s'", f->path);
        mem_free(f->path);
        return st;
    }
    w->files++; /* from here on weights_free closes it */
    struct stat s;
    if (fstat(f->fd, &s) != 0)
        return err_errno(e, ST_ENV, errno, "cannot read '%s'", f->path);
    if (!S_ISREG(s.st_mode))
        return err_set(e, ST_USER, "'%s' is not a plain file", f->path);
    f->size = (uint64_t)s.st_size;
    TRY(read_header(f, e));
    size_t count = json_object_size(f->header), n = 0;
    struct tensor *all = mem_array(count, sizeof *all);
    if (!all)
        return err_nomem(e, "the model's tensors");
    enum status st = ST_OK;
    const char *key;
    json_t *j;
    json_object_foreach(f->header, key, j)
    {
        if (strcmp(key, "__metadata__") == 0)
            continue;
        all[n].file = (uint32_t)(w->files - 1);
        st = parse_tensor(f, key, j, &all[n++], e);
        if (st != ST_OK)
            break;
    }
    if (st == ST_OK)
        st = check_places(f, all, n, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const char *owner = json_string_value(json_object_get(weight_map, all[i].name));
        if (weight_map && (!owner || strcmp(owner, name) != 0))
            continue;
        if (mem_grow((void **)&w->t, &w->cap, w->n, sizeof *w->t) != 0)
            st = err_nomem(e, "the model's tensors");
        else
            w->t[w->n++] = all[i];
    }
    mem_free(all);
    return st;
}

static enum status add_shards(struct weights *w, const char *dir, const char *index_name, json_t *index, struct err *e)
{
    json_t *map = json_object_get(index, "weight_map"), *file, *seen = json_object();
    const char *tensor;
    enum status st = seen ? ST_OK : err_nomem(e, "the model's files");
    if (st == ST_OK && !json_is_object(map))
        st = err_set(e, ST_USER, "'%s/%s' has no weight_map", dir, index_name);
    json_object_foreach(map, tensor, file)
    {
        if (st != ST_OK)
            break;
        const char *name = json_string_value(file);
        if (!name || !name[0] || strchr(name, '/') || name[0] == '.')
            st = err_set(e, ST_USER, "'%s/%s': tensor '%s' is given to '%s', which is no file name", dir, index_name, tensor,
                         name ? name : "?");
        else if (!json_object_get(seen, name)) {
            if (json_object_size(seen) == MAX_FILES)
                st = err_set(e, ST_USER, "'%s/%s' names more than %d files", dir, index_name, MAX_FILES);
            else if (json_object_set_new(seen, name, json_true()) != 0)
                st = err_nomem(e, "the model's files");
            else
                st = add_file(w, dir, name, map, e);
        }
    }
    if (st == ST_OK && w->n > 1)
        qsort(w->t, w->n, sizeof *w->t, by_name);
    json_object_foreach(map, tensor, file)
    {
        if (st == ST_OK && !weights_find(w, tensor))
            st = err_set(e, ST_USER, "'%s/%s': tensor '%s' is missing, though '%s' places it there", dir, json_string_value(file),
                         tensor, index_name);
    }
    json_decref(seen);
    return st;
}

static int has_pickle(const char *dir)
{
    static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    struct stat s;
    int found = 0;
    for (int i = 0; i < 2 && !found; i++) {
        char *path = mem_printf("%s/%s", dir, names[i]);
        found = path && stat(path, &s) == 0;
        mem_free(path);
    }
    return found;
}

static enum status open_all(struct weights *w, const char *dir, struct err *e)
{
    static const char single[] = "model.safetensors", index_name[] = "model.safetensors.index.json";
    struct stat s;
    w->main_file = mem_printf("%s/%s", dir, single);
    if (!w->main_file)
        return err_nomem(e, "a path");
    if (lstat(w->main_file, &s) == 0 || errno != ENOENT) {
        TRY(add_file(w, dir, single, NULL, e));
        if (w->n > 1)
            qsort(w->t, w->n, sizeof *w->t, by_name);
        return ST_OK;
    }
    mem_free(w->main_file);
    w->main_file = mem_printf("%s/%s", dir, index_name);
    if (!w->main_file)
        return err_nomem(e, "a path");
    json_t *index = NULL;
    enum status st = modeldir_json(dir, index_name, &index, e);
    if (st == ST_NOT_FOUND && has_pickle(dir))
        return err_set(e, ST_USER,
                       "'%s' has its weights only as pytorch_model.bin, a program for Python's pickle, which is not run\nsave them once as safetensors, in Python: "
                       "AutoModel.from_pretrained('%s').save_pretrained('%s', safe_serialization=True), with the class that 'architectures' in config.json names",
                       dir, dir, dir);
    if (st == ST_NOT_FOUND)
        return err_set(e, ST_USER,
                       "'%s' has neither model.safetensors nor model.safetensors.index.json: weights in other formats "
                       "(pytorch_model.bin) must be saved as safetensors first",
                       dir);
    if (st == ST_OK)
        st = add_shards(w, dir, index_name, index, e);
    json_decref(index);
    return st;
}

enum status weights_open(const char *dir, struct weights **out, struct err *e)
{
    struct weights *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_nomem(e, "the model's weights");
    enum status st = open_all(w, dir, e);
    if (st == ST_OK)
        *out = w;
    else
        weights_free(w);
    return st;
}

const struct tensor *weights_find(const struct weights *w, const char *name)
{
    struct tensor key = {.name = name};
    return w->n ? bsearch(&key, w->t, w->n, sizeof *w->t, by_name) : NULL;
}

const char *weights_file(const struct weights *w, uint32_t file)
{
    return w->file[file].path;
}

const char *weights_main_file(const struct weights *w)
{
    return w->main_file;
}

/* Data ----------------------------------------------------------------------------------------------------------------------------- */

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) { /* zero, or fraction * 2^-24 */
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* "[3, 17]" */
static const char *place(const struct tensor *t, uint64_t at, char *out, size_t cap)
{
    uint64_t index[TENSOR_MAX_RANK];
    for (uint32_t i = t->rank; i-- > 0; at /= t->dim[i])
        index[i] = at % t->dim[i];
    size_t n = 0;
    for (uint32_t i = 0; i < t->rank && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%llu", i ? ", " : "[", (unsigned long long)index[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "%s", t->rank ? "]" : "[]");
    return out;
}

enum status weights_read(const struct weights *w, const struct tensor *t, float *out, struct err *e)
{
    return weights_read_some(w, t, 0, t->count, out, e);
}

enum status weights_read_some(const struct weights *w, const struct tensor *t, uint64_t first, uint64_t count, float *out, struct err *e)
{
    BUG_IF(first > t->count || count > t->count - first, "elements %llu+%llu of %llu", (unsigned long long)first, (unsigned long long)count,
           (unsigned long long)t->count);
    const struct file *f = &w->file[t->file];
    int f32 = strcmp(t->dtype, "F32") == 0, f16 = strcmp(t->dtype, "F16") == 0, bf16 = strcmp(t->dtype, "BF16") == 0;
    if (!f32 && !f16 && !bf16)
        return err_set(e, ST_USER, "'%s': tensor '%s' has dtype '%s'; supported are F32, F16 and BF16", f->path, t->name, t->dtype);
    size_t each = f32 ? 4 : 2;
    uint8_t *block = mem_alloc(READ_BYTES);
    if (!block)
        return err_nomem(e, "a read buffer");
    enum status st = ST_OK;
    for (uint64_t done = 0; done < count && st == ST_OK;) {
        size_t n = count - done < READ_BYTES / each ? (size_t)(count - done) : READ_BYTES / each;
        st = read_at(f, t->begin + (first + done) * each, block, n * each, e);
        for (size_t i = 0; i < n && st == ST_OK; i++) {
            const uint8_t *p = block + i * each;
            uint32_t low = (uint32_t)p[0] | (uint32_t)p[1] << 8;
            float x = f32    ? from_bits(low | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24)
                      : bf16 ? from_bits(low << 16)
                             : from_f16((uint16_t)low);
            if (!isfinite(x)) {
                char where[200];
                st = err_set(e, ST_USER, "'%s': tensor '%s' holds %s at %s: the file is damaged, or its training went wrong",
                             f->path, t->name, isnan(x) ? "a NaN" : "an infinity", place(t, first + done + i, where, sizeof where));
            }
            out[done + i] = x;
        }
        done += n;
    }
    mem_free(block);
    return st;
}
