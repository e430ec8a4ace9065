#include "workers/engine/graph/tensor.h"

#include <string.h>

#include "base/mem.h"

int64_t tensor_size(enum dtype d, uint32_t rank, const int64_t *dims)
{
    int64_t n = (int64_t)dtype_bytes(d);
    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] < 0)
            return -1;
    for (uint32_t i = 0; i < rank; i++)
        if (dims[i] == 0)
            return 0;
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, dims[i], &n) || n > (int64_t)1 << 46)
            return -1;
    return n;
}

static enum status make(struct tensor *t, enum dtype d, uint32_t rank, const int64_t *dims, size_t more, struct err *e)
{
    int64_t bytes = rank <= RANK_MAX && dtype_bytes(d) ? tensor_size(d, rank, dims) : -1;
    if (bytes < 0)
        return err_set(e, ST_USER, "a tensor of %s has rank %u and sizes that cannot be", dtype_name(d), rank);
    struct buffer *b = mem_zalloc(sizeof *b);
    size_t all = (size_t)bytes + more;
    void *base = mem_aligned(all ? all : 1);
    if (!b || !base) {
        mem_free(b);
        mem_free(base);
        return err_nomem(e, "a tensor");
    }
    *b = (struct buffer){.refs = 1, .bytes = all, .base = base};
    *t = (struct tensor){.dtype = d, .rank = rank, .buffer = b};
    memcpy(t->dims, dims, rank * sizeof *dims);
    return ST_OK;
}

enum status tensor_make(struct tensor *t, enum dtype d, uint32_t rank, const int64_t *dims, struct err *e)
{
    int64_t none = 0;
    TRY(make(t, d, rank, rank ? dims : &none, 0, e));
    memset(t->buffer->base, 0, t->buffer->bytes);
    return ST_OK;
}

enum status tensor_copy(struct tensor *t, enum dtype d, uint32_t rank, const int64_t *dims, const void *data, struct err *e)
{
    int64_t none = 0, bytes = rank <= RANK_MAX ? tensor_size(d, rank, dims) : -1;
    size_t more = 0, count = bytes < 0 ? 0 : (size_t)bytes / sizeof(struct str);
    const struct str *s = data;
    if (d == DT_STR)
        for (size_t i = 0; i < count; i++)
            more += s[i].len + 1;
    TRY(make(t, d, rank, rank ? dims : &none, more, e));
    if (bytes > 0)
        memcpy(t->buffer->base, data, (size_t)bytes);
    if (d == DT_STR && count) {
        struct str *to = t->buffer->base;
        char *at = (char *)t->buffer->base + bytes;
        for (size_t i = 0; i < count; i++) {
            memcpy(at, s[i].data, s[i].len);
            at[s[i].len] = '\0';
            to[i].data = at;
            at += s[i].len + 1;
        }
    }
    return ST_OK;
}

void tensor_share(struct tensor *t, const struct tensor *other)
{
    *t = *other;
    if (t->buffer)
        t->buffer->refs++;
}

void tensor_release(struct tensor *t)
{
    if (t->buffer && --t->buffer->refs == 0) {
        mem_free(t->buffer->base);
        mem_free(t->buffer);
    }
    *t = (struct tensor){0};
}
