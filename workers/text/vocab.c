#include "workers/text/vocab.h"

#include "base/mem.h"

static uint32_t *slot_of(const struct vocab *v, const void *token, size_t len)
{
    for (uint32_t i = (uint32_t)hash_bytes(token, len);; i++) {
        uint32_t *s = &v->slot[i & v->mask];
        if (!*s || (v->len[*s - 1] == len && (!len || !memcmp(v->text + v->at[*s - 1] - 1, token, len))))
            return s;
    }
}

int vocab_init(struct vocab *v, const struct trie_key *keys, size_t count)
{
    *v = (struct vocab){0};
    size_t bytes = 0, slots = 16;
    for (size_t i = 0; i < count; i++) {
        bytes += (size_t)keys[i].len + 1;
        if ((uint32_t)keys[i].value >= v->size)
            v->size = (uint32_t)keys[i].value + 1;
    }
    while (slots < 2 * count)
        slots *= 2;
    v->mask = (uint32_t)(slots - 1);
    v->text = mem_alloc(bytes + 1);
    v->at = mem_array((size_t)v->size + 1, sizeof *v->at);
    v->len = mem_array((size_t)v->size + 1, sizeof *v->len);
    v->slot = mem_array(slots, sizeof *v->slot);
    if (!v->text || !v->at || !v->len || !v->slot || slots > UINT32_MAX) {
        vocab_release(v);
        return -1;
    }
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = (uint32_t)keys[i].value;
        v->count += !v->at[id];
        v->at[id] = end + 1;
        v->len[id] = keys[i].len;
        memcpy(v->text + end, keys[i].bytes, keys[i].len);
        end += keys[i].len;
        v->text[end++] = 0;
        *slot_of(v, keys[i].bytes, keys[i].len) = id + 1;
    }
    return 0;
}

void vocab_release(struct vocab *v)
{
    mem_free(v->text);
    mem_free(v->at);
    mem_free(v->len);
    mem_free(v->slot);
    *v = (struct vocab){0};
}

int32_t vocab_find(const struct vocab *v, const void *token, size_t len)
{
    return v->slot ? (int32_t)*slot_of(v, token, len) - 1 : -1;
}

const char *vocab_token(const struct vocab *v, int32_t id, uint32_t *len)
{
    if (id < 0 || (uint32_t)id >= v->size || !v->at[id])
        return NULL;
    if (len)
        *len = v->len[id];
    return v->text + v->at[id] - 1;
}
