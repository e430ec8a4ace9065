#include "workers/engine/peak.h"

#include <string.h>

#define CHAINS 10 /* hide the latency of a multiply-add */

typedef float v8f __attribute__((vector_size(32)));
typedef float v16f __attribute__((vector_size(64)));

/* The compiler must not drop what nobody reads. */
static volatile float sink;

__attribute__((target("avx512f"))) static void burn_avx512(uint64_t rounds)
{
    v16f a[CHAINS], x = (v16f){0} + 1e-3f, y = x + 0.5f;
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++)
        a[i] = x * (float)i;
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++)
            __asm__("vfmadd231ps %1, %2, %0" : "+v"(a[i]) : "v"(x), "v"(y));
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++)
        sink = a[i][0];
}

__attribute__((target("avx2,fma"))) static void burn_avx2(uint64_t rounds)
{
    v8f a[CHAINS], x = (v8f){0} + 1e-3f, y = x + 0.5f;
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++)
        a[i] = x * (float)i;
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++)
            __asm__("vfmadd231ps %1, %2, %0" : "+x"(a[i]) : "x"(x), "x"(y));
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++)
        sink = a[i][0];
}

double peak_burn(const char *isa, uint64_t rounds)
{
    int wide = strncmp(isa, "avx512", 6) == 0;
    if (!wide && strncmp(isa, "avx2", 4) != 0)
        return 0;
    if (wide)
        burn_avx512(rounds);
    else
        burn_avx2(rounds);
    return (double)rounds * CHAINS * (wide ? 16 : 8) * 2;
}
