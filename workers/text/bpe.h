/* The BPE model: the pieces of a word, first its characters (or bytes), are merged pair by pair, the pair of the lowest rank
   first, of equal ones the leftmost. A word of n pieces costs n log n at most. */
#ifndef EBB_TEXT_BPE_H
#define EBB_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "workers/text/vocab.h"

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; BPE_FREE: an empty slot */
    uint32_t rank;
    int32_t id;
};

#define BPE_FREE UINT64_MAX

struct bpe {
    struct bpe_merge *merge; /* a hash table */
    uint32_t mask;
    const struct vocab *vocab;
    struct vocab whole; /* with bytes: the tokens as the bytes they stand for, where whole words are looked up */
    char *prefix, *suffix; /* of a piece that is not the first; of the last one. NULL: none */
    char *unk_name;        /* NULL: what is unknown is left out */
    int32_t unk;           /* -1: the vocabulary lacks unk_name */
    int32_t fallback[256]; /* the tokens <0x00> to <0xFF>, -1 where there is none */
    int32_t byte[2][2][256]; /* with bytes: [not the first][the last][byte] */
    uint8_t bytes;           /* pieces begin as bytes: what the byte-level alphabet stands for */
    uint8_t fuse_unk, byte_fallback, ignore_merges;
    uint8_t crosses; /* does any merge put U+2581 behind something else? Else words may be cut in front of it */
};

/* What is on its way in one word; the memory of one thread. */
struct bpe_symbol {
    int32_t id;
    uint32_t len;
    uint32_t prev, next;
};
struct bpe_room {
    struct bpe_symbol *symbol;
    uint64_t *heap; /* rank << 32 | position */
    size_t symbol_cap, heap_cap, heap_len;
};

/* ranks rise from 0; of a pair given twice the last counts. -1: out of memory. */
int bpe_start(struct bpe *b, const struct vocab *vocab, size_t merges);
void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Once flags, prefix and suffix are set. -1: out of memory. */
int bpe_finish(struct bpe *b);
void bpe_release(struct bpe *b);
void bpe_room_release(struct bpe_room *r);

/* The most ids that a word of len bytes may give. */
size_t bpe_most(const struct bpe *b, size_t len);
/* Writes the ids, and to ends (which may be NULL) how many bytes of the word each leaves behind it. ST_NOMEM, or ST_USER when the
   word holds something unknown and the vocabulary has no unknown token. */
MUST_USE enum status bpe_split(const struct bpe *b, struct bpe_room *r, const uint8_t *word, size_t len, int32_t *ids, uint32_t *ends,
                               size_t *count, struct err *e);

/* The byte that a character of the byte-level alphabet stands for, -1: none; and the other way round. */
int bytelevel_byte(uint32_t c);
uint32_t bytelevel_char(uint8_t byte);

#endif
