#include "workers/text/unigram.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define NOTHING UINT32_MAX
#define UNK_PENALTY 10.0 /* below the lowest score; sentencepiece's figure */

int unigram_init(struct unigram *u, struct trie_key *keys, size_t count, double *score, int32_t unk, int byte_fallback)
{
    double least = INFINITY;
    for (size_t i = 0; i < count; i++)
        if (score[keys[i].value] < least)
            least = score[keys[i].value];
    if (trie_build(&u->trie, keys, count) < 0)
        return -1;
    u->score = score;
    u->unk_score = least - UNK_PENALTY;
    u->unk = unk;
    u->byte_fallback = (uint8_t)byte_fallback;
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        u->fallback[i] = trie_get(&u->trie, name, 6);
    }
    return 0;
}

void unigram_release(struct unigram *u)
{
    trie_release(&u->trie);
    mem_free(u->score);
    *u = (struct unigram){0};
}

void unigram_room_release(struct unigram_room *r)
{
    mem_free(r->node);
    *r = (struct unigram_room){0};
}

static size_t char_len(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static void offer(struct unigram_node *to, double score, uint32_t from, int32_t id)
{
    if (to->from == NOTHING || score > to->score)
        *to = (struct unigram_node){score, from, id};
}

/* One piece of the word: known, told by its bytes, or unknown. */
static enum status emit(const struct unigram *u, const uint8_t *p, size_t len, int32_t id, size_t end, int32_t *ids, uint32_t *ends,
                        size_t *count, struct err *e)
{
    if (id == u->unk)
        id = trie_get(&u->trie, p, len); /* a run of unknown characters may be known as a whole */
    if (id < 0 && u->byte_fallback) {
        size_t i = 0;
        while (i < len && u->fallback[p[i]] >= 0)
            i++;
        if (i == len) {
            for (i = 0; i < len; i++) {
                if (ends)
                    ends[*count] = (uint32_t)end;
                ids[(*count)++] = u->fallback[p[i]];
            }
            return ST_OK;
        }
    }
    if (id < 0 && u->unk < 0)
        return err_set(e, ST_USER, "the tokenizer does not know '%.*s' and has no unknown token", (int)(len < 40 ? len : 40), p);
    if (ends)
        ends[*count] = (uint32_t)end;
    ids[(*count)++] = id < 0 ? u->unk : id;
    return ST_OK;
}

enum status unigram_split(const struct unigram *u, struct unigram_room *r, const uint8_t *word, size_t len, int32_t *ids,
                          uint32_t *ends, size_t *count, struct err *e)
{
    *count = 0;
    if (len + 1 > r->cap) {
        size_t cap = len < 1000 ? 1024 : len + len / 2;
        void *p = len >= NOTHING / 2 ? NULL : mem_resize(r->node, cap * sizeof *r->node);
        if (!p)
            return err_nomem(e, "a long word");
        r->node = p;
        r->cap = cap;
    }
    struct unigram_node *node = r->node;
    for (size_t i = 0; i <= len; i++)
        node[i].from = NOTHING;
    node[0].score = 0;
    for (size_t i = 0; i < len;) {
        double here = node[i].score;
        size_t one = char_len(word[i]);
        int single = 0;
        uint32_t state = TRIE_ROOT;
        for (size_t k = i; k < len;) {
            state = trie_step(&u->trie, state, word[k++]);
            if (state == TRIE_NONE)
                break;
            int32_t id = u->trie.cell[state].value;
            if (id < 0)
                continue;
            offer(&node[k], u->score[id] + here, (uint32_t)i, id);
            single |= k - i == one;
        }
        if (!single && i + one <= len) {
            if (u->unk < 0)
                return err_set(e, ST_USER, "the tokenizer does not know '%.*s' and has no unknown token", (int)one, word + i);
            offer(&node[i + one], u->unk_score + here, (uint32_t)i, u->unk);
        }
        i += one;
    }
    /* the way back, turned round in place: `from` of a start becomes its end */
    size_t at = len, next = NOTHING;
    while (at > 0) {
        size_t from = node[at].from;
        if (from == NOTHING || from >= at)
            BUG("a word of %zu bytes has no way to byte %zu", len, at);
        node[at].score = 0;
        size_t keep = at;
        node[at].from = (uint32_t)next;
        next = keep;
        at = from;
    }
    for (size_t start = 0, end = next; start < len;) {
        int32_t id = node[end].id;
        size_t after = node[end].from;
        while (id == u->unk && after != NOTHING && node[after].id == u->unk) {
            end = after;
            after = node[end].from;
        }
        TRY(emit(u, word + start, end - start, id, end, ids, ends, count, e));
        start = end;
        end = after;
    }
    return ST_OK;
}
