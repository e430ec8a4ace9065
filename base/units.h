/* Numbers as people write them. */
#ifndef EBB_BASE_UNITS_H
#define EBB_BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#define UNITS_MAX 32

/* Each fills out (UNITS_MAX bytes) and returns it. */
char *units_count(char *out, double n);            /* "612,000", "5.1 M", "1.2 G" (thousands apart below 10 million) */
char *units_bytes(char *out, uint64_t bytes);      /* "812 B", "3.4 GiB" */
char *units_duration(char *out, double seconds);   /* "0.8 s", "42 s", "7 min 36 s", "3 h 05 min", "2 d 4 h" */
char *units_rate(char *out, double per_second);    /* "9,840/s", "41 k/s" */

/* "64MB", "64 MiB", "1.5G", "4096": MB is 10^6, MiB and M are 2^20. "30s", "0.2s", "5min", "2h", "500ms", "30": seconds without a unit.
   0 on success, -1 for anything else. */
int units_parse_bytes(const char *text, uint64_t *bytes);
int units_parse_duration(const char *text, uint64_t *ms);

#endif
