/* The one allocator seam: everything that ebb allocates goes through here, so that a test can fail the Nth allocation. */
#ifndef EBB_BASE_MEM_H
#define EBB_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Each returns NULL when memory is out; mem_free(NULL) is allowed. Sizes are bytes. */
void *mem_alloc(size_t size);
void *mem_zalloc(size_t size);
void *mem_array(size_t count, size_t size); /* zeroed; NULL on overflow too */
void *mem_resize(void *p, size_t size);     /* on failure p stands as it was */
void *mem_aligned(size_t size);             /* 64-byte aligned, not zeroed; freed by mem_free */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void mem_free(void *p);

/* Makes room for one more in a growing array: *items holds *cap elements of `size` bytes, `count` in use. 0 on success. */
int mem_grow(void **items, size_t *cap, size_t count, size_t size);

/* Tests: the nth allocation from now on fails (1 is the next), once; 0 turns it off. Returns how many allocations were made
   since the last call. */
uint64_t mem_fail_nth(uint64_t nth);

#endif
