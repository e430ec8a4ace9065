#include "workers/engine/cpuinfo.h"

#include <cpuid.h>
#include <string.h>
#include <xmmintrin.h>

struct isa {
    const struct kernels *kernels;
    int (*has)(void);
};

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

static int has_avx512vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* Leaf 7.1 of CPUID, which gcc 12's __builtin_cpu_supports does not know: bit 4 is AVX-VNNI, bit 5 AVX512-BF16. */
static int leaf_7_1(unsigned bit)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1);
}

static int has_avx512bf16(void)
{
    return has_avx512vnni() && leaf_7_1(5);
}

static int has_avx2vnni(void)
{
    return has_avx2() && leaf_7_1(4);
}

static int has_generic(void)
{
    return 1;
}

static const struct isa best_first[] = {
    {&kernels_avx512bf16, has_avx512bf16}, {&kernels_avx512vnni, has_avx512vnni}, {&kernels_avx512, has_avx512},
    {&kernels_avx2vnni, has_avx2vnni},     {&kernels_avx2, has_avx2},             {&kernels_generic, has_generic},
};

enum status cpu_kernels(const char *isa, const struct kernels **out, struct err *e)
{
    int any = !isa || strcmp(isa, "auto") == 0;
    __builtin_cpu_init();
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        const struct isa *t = &best_first[i];
        if (any ? t->has() : strcmp(isa, t->kernels->name) == 0) {
            if (!t->has())
                return err_set(e, ST_USER, "this processor has no '%s' instructions: use 'auto', or 'generic', which runs anywhere",
                               isa);
            *out = t->kernels;
            return ST_OK;
        }
    }
    return err_set(e, ST_USER,
                   "unknown instruction set '%s': it is one of auto, avx512bf16, avx512vnni, avx512, avx2vnni, avx2, generic", isa);
}

enum { MXCSR_DEFAULT = 0x1f80 };

unsigned fp_enter(void)
{
    unsigned saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return saved;
}

void fp_leave(unsigned saved)
{
    _mm_setcsr(saved);
}
