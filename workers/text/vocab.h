/* The tokens of a model: which string an id stands for, and the other way round. Read-only once it is built. */
#ifndef EBB_TEXT_VOCAB_H
#define EBB_TEXT_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "workers/text/trie.h"

struct vocab {
    char *text; /* all tokens, each with a NUL behind it */
    size_t *at; /* of id: where its token begins in text, plus one; 0: no such id */
    uint32_t *len;
    uint32_t *slot; /* a hash table of ids plus one */
    uint32_t mask;
    uint32_t size;  /* the largest id plus one */
    uint32_t count; /* of ids that there are */
};

/* Of two equal strings the one with the larger index counts. -1: out of memory, or more bytes than fit. */
int vocab_init(struct vocab *v, const struct trie_key *keys, size_t count);
void vocab_release(struct vocab *v);
int32_t vocab_find(const struct vocab *v, const void *token, size_t len); /* -1: none */
/* NULL: no such id. */
const char *vocab_token(const struct vocab *v, int32_t id, uint32_t *len);

static inline uint64_t hash_mix(uint64_t a, uint64_t b)
{
    __uint128_t m = (__uint128_t)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD1B54A32D192ED03u);
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t hash_bytes(const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    uint64_t h = len, x = 0;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&x, p, 8);
        h = hash_mix(h, x);
    }
    x = 0;
    memcpy(&x, p, len);
    return hash_mix(h, x);
}

#endif
