#include "workers/engine/cpuinfo.h"

#include <string.h>
#include <xmmintrin.h>

static int has(const struct kernels *k)
{
    __builtin_cpu_init();
    if (k == &kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (k == &kernels_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return 1;
}

enum status cpu_kernels(const char *isa, const struct kernels **out, struct err *e)
{
    static const struct kernels *const best_first[] = {&kernels_avx512, &kernels_avx2, &kernels_generic};
    int any = !isa || strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        const struct kernels *k = best_first[i];
        if (any ? has(k) : strcmp(isa, k->name) == 0) {
            if (!has(k))
                return err_set(e, ST_USER, "this processor has no '%s' instructions: use 'auto', or 'generic', which runs anywhere",
                               isa);
            *out = k;
            return ST_OK;
        }
    }
    return err_set(e, ST_USER, "unknown instruction set '%s': it is one of auto, avx512, avx2, generic", isa);
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
