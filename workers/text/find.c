#include "workers/text/parts.h"
#include "workers/text/unicode.h"

int find_is_word(uint32_t c)
{
    return c != FIND_NONE && (uni_flags(c) & UNI_WORD);
}

static uint32_t char_before(const uint8_t *text, size_t at)
{
    if (!at)
        return FIND_NONE;
    size_t i = at - 1;
    while (i && at - i < 4 && (text[i] & 0xC0) == 0x80)
        i--;
    const uint8_t *p = text + i;
    return uni_decode(&p, text + at);
}

uint32_t find_char_at(const uint8_t *text, size_t len, size_t at)
{
    const uint8_t *p = text + at;
    return at < len ? uni_decode(&p, text + len) : FIND_NONE;
}

int find_added(const struct tokenizer *t, const struct added_set *set, const uint8_t *text, size_t len, size_t *from, size_t stop,
               struct match *m)
{
    size_t i = *from;
    while (set->count && i < stop) {
        if (set->only >= 0) {
            const uint8_t *p = memchr(text + i, set->only, stop - i);
            if (!p)
                break;
            i = (size_t)(p - text);
        } else if (!set->first[text[i]]) {
            i++;
            continue;
        }
        uint32_t state = TRIE_ROOT;
        int32_t index = -1;
        size_t end = i;
        for (size_t k = i; k < len; k++) {
            state = trie_step(&set->trie, state, text[k]);
            if (state == TRIE_NONE)
                break;
            if (set->trie.cell[state].value >= 0) {
                index = set->trie.cell[state].value;
                end = k + 1;
            }
        }
        if (index < 0) {
            i++;
            continue;
        }
        const struct added *a = &t->added[index];
        if (a->single_word && (find_is_word(char_before(text, i)) || find_is_word(find_char_at(text, len, end)))) {
            i = end;
            continue;
        }
        *m = (struct match){i, end, a};
        return 1;
    }
    *from = i > stop ? i : stop;
    return 0;
}

size_t find_skip_white(const uint8_t *text, size_t len, size_t at)
{
    const uint8_t *p = text + at, *end = text + len;
    while (p < end) {
        const uint8_t *next = p;
        if (!(uni_flags(uni_decode(&next, end)) & UNI_WHITE))
            break;
        p = next;
    }
    return (size_t)(p - text);
}

size_t find_trim_white(const uint8_t *text, size_t low, size_t at)
{
    while (at > low) {
        size_t i = at - 1;
        while (i > low && (text[i] & 0xC0) == 0x80)
            i--;
        if (!(uni_flags(char_before(text, at)) & UNI_WHITE))
            break;
        at = i;
    }
    return at;
}

