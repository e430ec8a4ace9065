/* What the tests of kernels share: all the tables that can run here, random numbers, arrays with guards behind each row. Include after
   cmocka.h. */
#ifndef EBB_TESTS_ARRAYS_H
#define EBB_TESTS_ARRAYS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"

/* The tables of AVX-512 and AVX-VNNI on whatever processor this is */
extern const struct kernels kernels_emulated512bf16, kernels_emulated512, kernels_emulated256vnni;

static const struct kernels *fast[9];
static int fast_n;

static uint64_t seed = 1;

static inline uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static inline float uniform(void)
{
    return ((float)below(1 << 24) - (float)(1 << 23)) / (float)(1 << 23);
}

static inline float *floats(size_t n)
{
    float *p = mem_aligned(n * sizeof *p);
    assert_non_null(p);
    return p;
}

static inline float *randoms(size_t n, float scale)
{
    float *p = floats(n);
    for (size_t i = 0; i < n; i++)
        p[i] = uniform() * scale;
    return p;
}

/* rows of n, ld apart, guards between */
enum { GUARD = 0x5ca1ab1e };
static inline float *guarded(size_t rows, size_t ld)
{
    float *p = floats(rows * ld);
    uint32_t g = GUARD;
    for (size_t i = 0; i < rows * ld; i++)
        memcpy(p + i, &g, 4);
    return p;
}

static inline void same(const float *a, size_t lda, const float *b, size_t ldb, size_t rows, size_t n, const char *what)
{
    uint32_t g;
    for (size_t i = 0; i < rows; i++) {
        if (memcmp(a + i * lda, b + i * ldb, n * sizeof *a) != 0)
            for (size_t j = 0; j < n; j++)
                if (memcmp(a + i * lda + j, b + i * ldb + j, 4) != 0)
                    fail_msg("%s: row %zu, element %zu: %a, not %a", what, i, j, (double)a[i * lda + j], (double)b[i * ldb + j]);
        for (size_t j = n; j < lda; j++) {
            memcpy(&g, a + i * lda + j, 4);
            if (g != GUARD)
                fail_msg("%s: wrote behind row %zu, at %zu", what, i, j);
        }
    }
}

static inline int pick_kernels(void **state)
{
    (void)state;
    static const char *const names[] = {"avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2", "generic"};
    for (int i = 0; i < 6; i++) {
        struct err e;
        if (cpu_kernels(names[i], &fast[fast_n], &e) == ST_OK)
            fast_n++;
        else
            print_message("not tested here: %s\n", e.text);
    }
    fast[fast_n++] = &kernels_emulated512bf16;
    fast[fast_n++] = &kernels_emulated512;
    fast[fast_n++] = &kernels_emulated256vnni;
    return 0;
}

#endif
