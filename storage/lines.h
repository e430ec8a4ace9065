/* Where a line ends. */
#ifndef EBB_STORAGE_LINES_H
#define EBB_STORAGE_LINES_H

#include <stddef.h>
#include <stdint.h>

/* 1: a line ends in [p, p + len), *used counts up to and with its '\n'. 0: none does, *used is len. */
int lines_scan(const char *p, size_t len, size_t *used);
uint64_t lines_count(const char *p, size_t len); /* of '\n' */
int lines_blank(const char *p, size_t len);      /* nothing but spaces, tabs and '\r' */

#endif
