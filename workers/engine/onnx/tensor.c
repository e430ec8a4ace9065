/* TensorProto -> a constant. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "workers/engine/onnx/parts.h"

static const char *name_of(const Onnx__TensorProto *t)
{
    return t->name ? t->name : "";
}

static enum status bad(const Onnx__TensorProto *t, struct err *e, const char *what)
{
    return err_set(e, ST_USER, "tensor '%s': %s", name_of(t), what);
}

/* External data ----------------------------------------------------------------------------------------------------------------------- */

/* Relative, and never upwards. */
static int path_is_inside(const char *path)
{
    if (!path[0] || path[0] == '/')
        return 0;
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return 0;
        p += n;
        while (*p == '/')
            p++;
    }
    return 1;
}

static int parse_number(const char *text, uint64_t *out)
{
    char *end;
    if (!text || text[0] < '0' || text[0] > '9')
        return 0;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static enum status remember(struct external *x, const char *name, struct err *e)
{
    for (uint32_t i = 0; i < x->count; i++)
        if (strcmp(x->names[i], name) == 0)
            return ST_OK;
    if (mem_grow((void **)&x->names, &x->cap, x->count, sizeof *x->names) != 0)
        return err_nomem(e, "file names");
    char *copy = mem_strdup(name);
    if (!copy)
        return err_nomem(e, "file names");
    x->names[x->count++] = copy;
    return ST_OK;
}

static enum status read_at(int fd, const char *path, void *out, size_t len, uint64_t at, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (char *)out + done, len - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
        if (n == 0)
            return err_set(e, ST_USER, "'%s' was cut while it was read", path);
        done += (size_t)n;
    }
    return ST_OK;
}

struct place {
    int fd;
    char *path;
    uint64_t offset;
};

/* Opened, and known to hold so many bytes there. */
static enum status open_external(const Onnx__TensorProto *t, struct external *x, size_t bytes, struct place *out, struct err *e)
{
    const char *location = NULL;
    uint64_t offset = 0, length = bytes;
    for (size_t i = 0; i < t->n_external_data; i++) {
        const char *key = t->external_data[i]->key, *value = t->external_data[i]->value;
        if (!key || !value)
            continue;
        if (strcmp(key, "location") == 0)
            location = value;
        else if ((strcmp(key, "offset") == 0 && !parse_number(value, &offset)) || (strcmp(key, "length") == 0 && !parse_number(value, &length)))
            return err_set(e, ST_USER, "tensor '%s': %s '%.40s' of its external data is no number", name_of(t), key, value);
    }
    if (!location || !path_is_inside(location))
        return err_set(e, ST_USER, "tensor '%s': its external data lies in '%.200s', which is not inside the model's folder", name_of(t), location ? location : "");
    if (!x || !x->folder)
        return bad(t, e, "its data is external, which cannot be here");
    if (length != bytes)
        return err_set(e, ST_USER, "tensor '%s': takes %zu bytes by its sizes, but %llu of external data", name_of(t), bytes, (unsigned long long)length);
    char *path = mem_printf("%s/%s", x->folder, location);
    if (!path)
        return err_nomem(e, "a path");
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum status st = ST_OK;
    if (fd < 0)
        st = err_errno(e, errno == ENOENT ? ST_USER : ST_ENV, errno, "tensor '%s': cannot read its external data '%s'", name_of(t), path);
    else if (fstat(fd, &s) != 0)
        st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
    else if (!S_ISREG(s.st_mode))
        st = err_set(e, ST_USER, "tensor '%s': its external data '%s' is not a plain file", name_of(t), path);
    else if (offset > (uint64_t)s.st_size || length > (uint64_t)s.st_size - offset)
        st = err_set(e, ST_USER, "tensor '%s': its external data, bytes %llu to %llu, lies beyond the end of '%s' (%lld bytes)", name_of(t),
                     (unsigned long long)offset, (unsigned long long)(offset + length), path, (long long)s.st_size);
    if (st == ST_OK)
        st = remember(x, location, e);
    if (st == ST_OK) {
        *out = (struct place){fd, path, offset};
        return ST_OK;
    }
    if (fd >= 0)
        close(fd);
    mem_free(path);
    return st;
}

/* Fields -------------------------------------------------------------------------------------------------------------------------------- */

static enum status wrong_count(const Onnx__TensorProto *t, size_t have, int64_t want, const char *what, struct err *e)
{
    return err_set(e, ST_USER, "tensor '%s': has %zu %s where its sizes ask for %lld", name_of(t), have, what, (long long)want);
}

static enum status strings(const Onnx__TensorProto *t, struct tensor *out, const int64_t *dims, int64_t count, struct err *e)
{
    if (t->n_string_data != (size_t)count)
        return wrong_count(t, t->n_string_data, count, "strings", e);
    struct str *s = mem_array((size_t)count + 1, sizeof *s);
    if (!s)
        return err_nomem(e, "strings");
    for (int64_t i = 0; i < count; i++)
        s[i] = (struct str){t->string_data[i].data ? (const char *)t->string_data[i].data : "", t->string_data[i].len};
    enum status st = tensor_copy(out, DT_STR, (uint32_t)t->n_dims, dims, s, e);
    mem_free(s);
    return st;
}

static enum status typed(const Onnx__TensorProto *t, struct tensor *out, int64_t count, struct err *e)
{
    void *p = tensor_data(out);
    size_t n = (size_t)count;
#define WANT(field)                                                   \
    if (t->n_##field != n)                                            \
    return wrong_count(t, t->n_##field, count, "elements in " #field, e)
#define NARROW(type, field)            \
    do {                               \
        WANT(field);                   \
        type *to = p;                  \
        for (size_t i = 0; i < n; i++) \
            to[i] = (type)t->field[i]; \
        return ST_OK;                  \
    } while (0)
    switch (out->dtype) {
    case DT_F32:
        NARROW(float, float_data);
    case DT_F64:
        NARROW(double, double_data);
    case DT_I64:
        NARROW(int64_t, int64_data);
    case DT_I32:
        NARROW(int32_t, int32_data);
    case DT_U32:
        NARROW(uint32_t, uint64_data);
    case DT_U64:
        NARROW(uint64_t, uint64_data);
    case DT_I16:
        NARROW(int16_t, int32_data);
    case DT_U16:
    case DT_F16:
    case DT_BF16:
        NARROW(uint16_t, int32_data);
    case DT_I8:
        NARROW(int8_t, int32_data);
    case DT_U8:
        NARROW(uint8_t, int32_data);
    case DT_BOOL: {
        WANT(int32_data);
        uint8_t *to = p;
        for (size_t i = 0; i < n; i++)
            to[i] = t->int32_data[i] != 0;
        return ST_OK;
    }
    default:
        return bad(t, e, "is of a type that is not supported");
    }
}

static void forget(void *pointer, size_t *count)
{
    void **p = pointer;
    mem_free(*p);
    *p = NULL;
    *count = 0;
}

/* What was taken is not needed twice. */
static void drop(Onnx__TensorProto *t)
{
    if (t->has_raw_data)
        forget(&t->raw_data.data, &t->raw_data.len);
    forget(&t->float_data, &t->n_float_data);
    forget(&t->int32_data, &t->n_int32_data);
    forget(&t->int64_data, &t->n_int64_data);
    forget(&t->double_data, &t->n_double_data);
    forget(&t->uint64_data, &t->n_uint64_data);
}

static int is_external(const Onnx__TensorProto *t)
{
    return t->has_data_location && t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

static enum status fill(Onnx__TensorProto *t, const struct place *place, struct tensor *out, int64_t bytes, int64_t count, struct err *e)
{
    uint8_t *p = tensor_data(out);
    if (place->path)
        TRY(read_at(place->fd, place->path, p, (size_t)bytes, place->offset, e));
    else if (t->has_raw_data) {
        if (t->raw_data.len != (size_t)bytes)
            return wrong_count(t, t->raw_data.len, bytes, "bytes of data", e);
        if (bytes)
            memcpy(p, t->raw_data.data, (size_t)bytes);
    } else {
        return typed(t, out, count, e);
    }
    for (int64_t i = 0; out->dtype == DT_BOOL && i < count; i++)
        p[i] = p[i] != 0;
    return ST_OK;
}

enum status onnx_tensor(Onnx__TensorProto *t, struct external *x, struct tensor *out, struct err *e)
{
    enum dtype d = t->has_data_type && t->data_type >= 0 && t->data_type < 64 ? (enum dtype)t->data_type : DT_NONE;
    if (!dtype_bytes(d))
        return err_set(e, ST_USER, "tensor '%s': its elements are of %s, which is not supported by this version", name_of(t), dtype_name(d));
    if (t->segment)
        return bad(t, e, "is stored in segments, which is not supported by this version");
    if (t->n_dims > RANK_MAX)
        return err_set(e, ST_USER, "tensor '%s': has rank %zu; at most %d is supported", name_of(t), t->n_dims, RANK_MAX);
    int64_t dims[RANK_MAX] = {0};
    for (size_t i = 0; i < t->n_dims; i++)
        dims[i] = t->dims[i];
    int64_t bytes = tensor_size(d, (uint32_t)t->n_dims, dims);
    if (bytes < 0)
        return bad(t, e, "has sizes that cannot be");
    int64_t count = bytes / (int64_t)dtype_bytes(d);
    if (d == DT_STR)
        return strings(t, out, dims, count, e);
    /* before memory is taken for it: is there as much data as it claims? */
    struct place place = {.fd = -1};
    if (is_external(t)) {
        TRY(open_external(t, x, (size_t)bytes, &place, e));
    } else {
        size_t most = t->has_raw_data ? t->raw_data.len : (t->n_float_data + t->n_int32_data + t->n_int64_data + t->n_double_data + t->n_uint64_data) * 8;
        if ((uint64_t)bytes > most)
            return wrong_count(t, most, bytes, "bytes of data at most", e);
    }
    *out = (struct tensor){0};
    enum status st = tensor_make(out, d, (uint32_t)t->n_dims, dims, e);
    if (st == ST_OK)
        st = fill(t, &place, out, bytes, count, e);
    if (st != ST_OK)
        tensor_release(out);
    else
        drop(t);
    if (place.path)
        close(place.fd);
    mem_free(place.path);
    return st;
}
