/* The WordPiece model: the longest known piece first, from the left; a word that does not come out even is unknown as a whole. */
#ifndef EBB_TEXT_WORDPIECE_H
#define EBB_TEXT_WORDPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "workers/text/trie.h"

struct wordpiece {
    struct trie trie;
    uint32_t rest; /* state of the trie in which the continuing pieces begin, TRIE_NONE when there are none */
    int32_t unk;
    uint32_t max_chars; /* a longer word is unknown */
    size_t prefix_len;  /* of continuing pieces */
};

/* Sorts keys. -1: out of memory. */
int wordpiece_init(struct wordpiece *w, struct trie_key *keys, size_t count, const char *prefix, size_t prefix_len, int32_t unk,
                   uint32_t max_chars);
void wordpiece_release(struct wordpiece *w);
/* Writes the pieces of a word of len > 0 bytes (and at most max_chars characters, which the caller has counted) to ids, len at
   most, and returns how many, at least 1. */
size_t wordpiece_split(const struct wordpiece *w, const uint8_t *word, size_t len, int32_t *ids);

#endif
