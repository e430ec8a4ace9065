#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "workers/engine/onnx/parts.h"

enum { DEPTH_MAX = 64 };
static const uint64_t file_max = (uint64_t)1 << 31; /* what protobuf allows: weights beyond it are external */

static void *take(void *data, size_t size)
{
    void *p = mem_alloc(size ? size : 1);
    if (!p && data)
        *(int *)data = 1;
    return p;
}

static void give(void *data, void *p)
{
    (void)data;
    mem_free(p);
}

ProtobufCAllocator onnx_allocator = {.alloc = take, .free = give};

enum status onnx_unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t len, ProtobufCMessage **out, struct err *e)
{
    int failed = 0;
    ProtobufCAllocator a = {.alloc = take, .free = give, .allocator_data = &failed};
    *out = protobuf_c_message_unpack(type, &a, len, data);
    if (*out)
        return ST_OK;
    return failed ? err_nomem(e, "a model file") : err_set(e, ST_USER, "the file is damaged, or no ONNX file");
}

enum status onnx_read_file(const char *path, struct buf *out, struct err *e)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(e, errno == ENOENT ? ST_USER : ST_ENV, errno, "cannot read '%s'", path);
    enum status st = ST_OK;
    if (fstat(fd, &s) != 0)
        st = err_errno(e, ST_ENV, errno, "cannot read '%s'", path);
    else if (!S_ISREG(s.st_mode))
        st = err_set(e, ST_USER, "'%s' is not a plain file", path);
    else if ((uint64_t)s.st_size > file_max)
        st = err_set(e, ST_USER, "'%s' is larger than 2 GiB, which no ONNX file can be", path);
    else if (buf_reserve(out, (size_t)s.st_size + 1) != 0)
        st = err_nomem(e, "a model file");
    while (st == ST_OK && out->len < (size_t)s.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)s.st_size - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            st = n < 0 ? err_errno(e, ST_ENV, errno, "cannot read '%s'", path) : err_set(e, ST_USER, "'%s' was cut while it was read", path);
            break;
        }
        out->len += (size_t)n;
    }
    close(fd);
    return st;
}

struct scan {
    uint64_t bytes, limit; /* that unpacking will take */
};

static enum status damaged(struct err *e)
{
    return err_set(e, ST_USER, "the file is damaged, or no ONNX file");
}

static enum status scan(struct scan *s, const ProtobufCMessageDescriptor *type, struct cursor c, int depth, struct err *e)
{
    if (depth > DEPTH_MAX)
        return err_set(e, ST_USER, "messages lie more than %d deep in each other", DEPTH_MAX);
    s->bytes += type->sizeof_message + 32;
    while (cursor_left(&c)) {
        uint64_t tag = cursor_varint(&c), len = 0;
        const uint8_t *p = NULL;
        if (c.bad || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
            return damaged(e);
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        switch (tag & 7) {
        case 0:
            cursor_varint(&c);
            break;
        case 1:
            cursor_bytes(&c, 8);
            break;
        case 2:
            len = cursor_varint(&c);
            if (c.bad || len > cursor_left(&c))
                return damaged(e);
            p = cursor_bytes(&c, (size_t)len);
            break;
        case 5:
            cursor_bytes(&c, 4);
            break;
        default:
            return damaged(e);
        }
        if (c.bad)
            return damaged(e);
        int message = f && f->type == PROTOBUF_C_TYPE_MESSAGE;
        if (message && !p)
            return err_set(e, ST_USER, "field '%s' of %s is no message: the file is damaged, or no ONNX file", f->name, type->short_name);
        /* numbers packed in one byte each become eight */
        s->bytes += message ? 8 : !f ? len + 64 : f->type == PROTOBUF_C_TYPE_BYTES || f->type == PROTOBUF_C_TYPE_STRING ? len + 24 : 8 * len + 8;
        if (s->bytes > s->limit)
            return err_set(e, ST_USER, "the file would take more than %llu MiB of memory for %s alone", (unsigned long long)(s->limit >> 20), type->short_name);
        if (message)
            TRY(scan(s, f->descriptor, cursor_make(p, (size_t)len), depth + 1, e));
    }
    return ST_OK;
}

enum status onnx_scan(const ProtobufCMessageDescriptor *type, const void *data, size_t len, struct err *e)
{
    struct scan s = {.limit = ((uint64_t)256 << 20) + 8 * (uint64_t)len};
    if (len == 0)
        return err_set(e, ST_USER, "the file is empty");
    return scan(&s, type, cursor_make(data, len), 0, e);
}
