/* A read-only map from byte strings to numbers that finds all prefixes of a text in one walk: a double array whose cell for
   (state, byte) is base[state] ^ byte, valid when the cell names the state as its parent. */
#ifndef EBB_TEXT_TRIE_H
#define EBB_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

struct trie_cell {
    uint32_t base;
    uint32_t parent; /* TRIE_NONE: the cell is free */
    int32_t value;   /* -1: no key ends here */
};

struct trie {
    struct trie_cell *cell;
    uint32_t count; /* of cells, a multiple of 256 */
};

#define TRIE_ROOT 0u
#define TRIE_NONE UINT32_MAX

struct trie_key {
    const char *bytes;
    uint32_t len;
    int32_t value; /* >= 0 */
    uint32_t order; /* set by trie_build */
};

/* Sorts keys; of equal ones the last given counts. -1: out of memory (or more than 2^31 cells). */
int trie_build(struct trie *t, struct trie_key *keys, size_t count);
void trie_release(struct trie *t);
/* The state that the whole key leads to, TRIE_NONE when no key begins so. */
uint32_t trie_find(const struct trie *t, const void *key, size_t len);
int32_t trie_get(const struct trie *t, const void *key, size_t len); /* the value of the whole key, or -1 */

static inline uint32_t trie_step(const struct trie *t, uint32_t state, uint8_t byte)
{
    uint32_t next = t->cell[state].base ^ byte; /* base < count, a multiple of 256: always within */
    return t->cell[next].parent == state && next != TRIE_ROOT ? next : TRIE_NONE;
}

#endif
