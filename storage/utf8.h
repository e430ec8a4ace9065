/* Is it UTF-8, and where does it stop being so? (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF) */
#ifndef EBB_STORAGE_UTF8_H
#define EBB_STORAGE_UTF8_H

#include <stddef.h>

/* Bytes before the first one that is not part of a valid character; `len` when all are. */
size_t utf8_prefix(const char *s, size_t len);
/* Shortens a string that was cut anywhere to whole characters, and replaces control characters by '?', so that a message with
   foreign words in it can be printed. */
void utf8_tidy(char *s);

#endif
