/* What the machine, and the process itself, have. */
#ifndef EBB_BASE_HOST_H
#define EBB_BASE_HOST_H

#include <stdint.h>

uint32_t host_processors(void);     /* that this process may use; at least 1 */
uint64_t host_resident_bytes(void); /* memory of this process; 0: not known */
uint64_t host_memory_bytes(void);   /* of the machine, or what the group of processes may have where that is less; 0: not known */
uint64_t host_memory_limit(void);   /* what this process alone may have (RLIMIT_DATA, RLIMIT_AS); 0: no limit */

/* A limit below this leaves a worker no room for any model. */
#define HOST_LEAST_WORKER_MEMORY (64u << 20)

#endif
