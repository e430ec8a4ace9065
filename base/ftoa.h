/* The shortest decimal that reads back as the same float. Schubfach (R. Giulietti, "The Schubfach way to render doubles", 2020),
   for binary32. */
#ifndef EBB_BASE_FTOA_H
#define EBB_BASE_FTOA_H

#include <stddef.h>

#define FTOA_MAX 16

/* Writes x as a JSON number ("0.1", "-1.5e-9", "3.4028235e38", "0.0", "-0.0") and returns its length, at most FTOA_MAX; not
   terminated. x is finite; NaN and infinities, which JSON lacks, are the caller's to refuse (BUG). */
size_t ftoa(float x, char *out);

#endif
