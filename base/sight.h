/* Whether two processes see the same files in the same way. */
#ifndef EBB_BASE_SIGHT_H
#define EBB_BASE_SIGHT_H

#include <stdint.h>

#define SIGHT_BYTES 16

/* What decides what a process sees: the boot, its mount namespace, its root, its user, groups and what it may override. Two that get the same bytes see the same; others may all
   the same. 0: it cannot be told here, *out is zeroed then. */
int sight_of_this(uint8_t out[SIGHT_BYTES]);

#endif
