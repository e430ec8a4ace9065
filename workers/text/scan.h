/* Scanners for the regular expressions that most byte-level tokenizers use: the length of the match that begins at p < end. These
   expressions match everywhere, so that the next match begins where the last one ended. The text is UTF-8. */
#ifndef EBB_TEXT_SCAN_H
#define EBB_TEXT_SCAN_H

#include <stddef.h>
#include <stdint.h>

void scan_init(void); /* before the others; any thread may call it */
size_t scan_gpt2(const uint8_t *p, const uint8_t *end);
/* numbers of at most `digits` characters */
size_t scan_cl100k(const uint8_t *p, const uint8_t *end, int digits);

#endif
