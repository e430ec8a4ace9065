#include "workers/text/wordpiece.h"

int wordpiece_init(struct wordpiece *w, struct trie_key *keys, size_t count, const char *prefix, size_t prefix_len, int32_t unk,
                   uint32_t max_chars)
{
    if (trie_build(&w->trie, keys, count) < 0)
        return -1;
    w->rest = trie_find(&w->trie, prefix, prefix_len);
    w->unk = unk;
    w->max_chars = max_chars;
    w->prefix_len = prefix_len;
    return 0;
}

void wordpiece_release(struct wordpiece *w)
{
    trie_release(&w->trie);
}

size_t wordpiece_split(const struct wordpiece *w, const uint8_t *word, size_t len, int32_t *ids)
{
    size_t count = 0, at = 0;
    uint32_t start = TRIE_ROOT;
    while (at < len && start != TRIE_NONE) {
        int32_t best = -1;
        size_t best_end = at;
        uint32_t state = start;
        for (size_t i = at; i < len;) {
            state = trie_step(&w->trie, state, word[i++]);
            if (state == TRIE_NONE)
                break;
            if (w->trie.cell[state].value >= 0) {
                best = w->trie.cell[state].value;
                best_end = i;
            }
        }
        if (best < 0)
            break;
        ids[count++] = best;
        at = best_end;
        start = w->rest;
    }
    if (at == len)
        return count;
    ids[0] = w->unk;
    return 1;
}
