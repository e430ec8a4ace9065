/* The Unigram model: of all ways to cut a word into known pieces the one whose scores add up to most (Viterbi), as
   sentencepiece does it. What no single piece covers is an unknown character; those that follow each other are one. */
#ifndef EBB_TEXT_UNIGRAM_H
#define EBB_TEXT_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/text/trie.h"

struct unigram {
    struct trie trie;
    double *score; /* by id */
    double unk_score;
    int32_t unk; /* -1: none, and a word that needs it is an error */
    int32_t fallback[256]; /* the tokens <0x00> to <0xFF>, -1 where there is none */
    uint8_t byte_fallback;
};

struct unigram_node {
    double score;
    uint32_t from; /* UINT32_MAX: nothing ends here */
    int32_t id;
};

struct unigram_room {
    struct unigram_node *node;
    size_t cap;
};

/* Sorts keys, whose values are ids; takes score. -1: out of memory. */
int unigram_init(struct unigram *u, struct trie_key *keys, size_t count, double *score, int32_t unk, int byte_fallback);
void unigram_release(struct unigram *u);
void unigram_room_release(struct unigram_room *r);
/* Writes the ids, len at most, and to ends (which may be NULL) how many bytes of the word each leaves behind it. */
MUST_USE enum status unigram_split(const struct unigram *u, struct unigram_room *r, const uint8_t *word, size_t len, int32_t *ids,
                                   uint32_t *ends, size_t *count, struct err *e);

#endif
