/* The table by which sentencepiece normalises: a double array (darts) over byte strings, and the strings that replace them. */
#ifndef EBB_TEXT_CHARSMAP_H
#define EBB_TEXT_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

struct charsmap {
    uint8_t *bytes; /* as the file has it, decoded */
    size_t units;   /* of the double array, 4 bytes each, from bytes + 4 on */
    const uint8_t *text; /* the replacements, each ended by a NUL */
    size_t text_len;
};

/* From base64. 0, -1: out of memory, -2: not such a table. */
int charsmap_init(struct charsmap *m, const char *base64, size_t len);
void charsmap_release(struct charsmap *m);
/* What replaces p (decided by the shortest known beginning of it, as the reference does); NULL: nothing. */
const uint8_t *charsmap_find(const struct charsmap *m, const uint8_t *p, size_t len, size_t *out_len);

#endif
