#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t fail_at; /* 0: off */
static _Atomic uint64_t made;

static int refuse(void)
{
    uint64_t n = atomic_load_explicit(&fail_at, memory_order_relaxed);
    if (__builtin_expect(n == 0, 1))
        return 0;
    return atomic_fetch_add(&made, 1) + 1 == n;
}

uint64_t mem_fail_nth(uint64_t nth)
{
    uint64_t n = atomic_exchange(&made, 0);
    atomic_store(&fail_at, nth);
    return n;
}

void *mem_alloc(size_t size)
{
    return refuse() ? NULL : malloc(size ? size : 1);
}

void *mem_zalloc(size_t size)
{
    return refuse() ? NULL : calloc(1, size ? size : 1);
}

void *mem_array(size_t count, size_t size)
{
    return refuse() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *mem_resize(void *p, size_t size)
{
    return refuse() ? NULL : realloc(p, size ? size : 1);
}

void *mem_aligned(size_t size)
{
    if (refuse() || size > SIZE_MAX - 63)
        return NULL;
    return aligned_alloc(64, size ? (size + 63) / 64 * 64 : 64);
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_alloc(n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_printf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : mem_alloc((size_t)n + 1);
    if (p) {
        va_start(ap, fmt);
        vsnprintf(p, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return p;
}

void mem_free(void *p)
{
    free(p);
}

int mem_grow(void **items, size_t *cap, size_t count, size_t size)
{
    if (count < *cap)
        return 0;
    size_t want = *cap ? *cap * 2 : 8;
    if (want > SIZE_MAX / size)
        return -1;
    void *p = mem_resize(*items, want * size);
    if (!p)
        return -1;
    *items = p;
    *cap = want;
    return 0;
}
