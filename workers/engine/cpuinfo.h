/* What this processor can do, and the state of its floating point unit. */
#ifndef EBB_ENGINE_CPUINFO_H
#define EBB_ENGINE_CPUINFO_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

/* isa: NULL or "auto" for the best there is, else "avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2", "generic". ST_USER when the name is unknown or the
   processor lacks it. */
MUST_USE enum status cpu_kernels(const char *isa, const struct kernels **out, struct err *e);

/* Round to nearest, subnormals kept, no traps: the state in which all processors give the same bits. Whatever the caller's
   thread had comes back with fp_leave. */
unsigned fp_enter(void);
void fp_leave(unsigned saved);

#endif
