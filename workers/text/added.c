/* Added tokens: those that are found in a text as they stand, before it is cut into words. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define ADDED_MAX (1 << 20)

/* Where the index (plus one) of a token is, or would be. */
static uint32_t *slot_of(const struct tokenizer *t, const char *content)
{
    for (uint32_t i = (uint32_t)hash_bytes(content, strlen(content));; i++) {
        uint32_t *s = &t->added_slot[i & (t->added_slots - 1)];
        if (!*s || !strcmp(t->added[*s - 1].content, content))
            return s;
    }
}

static const struct added *find(const struct tokenizer *t, const char *content)
{
    uint32_t i = t->added_slots ? *slot_of(t, content) : 0;
    return i ? &t->added[i - 1] : NULL;
}

/* Makes room for one more. */
static int reserve(struct tokenizer *t)
{
    void *list = t->added;
    if (mem_grow(&list, &t->added_cap, t->added_count, sizeof *t->added) < 0)
        return -1;
    t->added = list;
    if (2 * (t->added_count + 1) <= t->added_slots)
        return 0;
    uint32_t slots = t->added_slots ? 2 * t->added_slots : 64, *slot = mem_array(slots, sizeof *slot);
    if (!slot)
        return -1;
    mem_free(t->added_slot);
    t->added_slot = slot;
    t->added_slots = slots;
    for (size_t i = 0; i < t->added_count; i++)
        *slot_of(t, t->added[i].content) = (uint32_t)i + 1;
    return 0;
}

/* The id of any token, of the model or added; -1 if there is none. */
int32_t tok_find_id(const struct tokenizer *t, const char *content)
{
    const struct added *a = find(t, content);
    return a ? a->id : vocab_find(&t->vocab, content, strlen(content));
}

int tok_is_added(const struct tokenizer *t, const char *content)
{
    return find(t, content) != NULL;
}

/* id is what the file says, or -1. The reference numbers tokens by its own rule (those the model lacks follow the vocabulary)
   and only warns when the file says otherwise; such a file is refused here, for one of the two is wrong. */
enum status tok_add(const struct place *at, struct tokenizer *t, const struct added *like, const char *content,
                     json_int_t id)
{
    if (!*content)
        return ST_OK; /* ignored by the reference too */
    const struct added *old = find(t, content);
    if (old) {
        if (old->single_word != like->single_word || old->lstrip != like->lstrip || old->rstrip != like->rstrip ||
            old->normalized != like->normalized || old->special != like->special || (id >= 0 && id != old->id))
            return err_set(at->e, ST_USER, "'%s': the added token '%.100s' is there twice, each time different", at->path, content);
        return ST_OK;
    }
    int32_t found = vocab_find(&t->vocab, content, strlen(content));
    if (found < 0) {
        uint32_t next = t->vocab_count > t->added_next ? t->vocab_count : t->added_next;
        found = (int32_t)next;
        if (next < t->model_size)
            return err_set(at->e, ST_USER, "'%s': the ids of the vocabulary have gaps, so that none is left for the added token '%.100s'",
                           at->path, content);
    }
    if (id >= 0 && id != found)
        return err_set(at->e, ST_USER, "'%s': the added token '%.100s' has id %lld, but would be numbered %d", at->path, content,
                       (long long)id, (int)found);
    if (found > ID_MAX)
        return err_set(at->e, ST_USER, "'%s': the id of the added token '%.100s' is beyond %d", at->path, content, ID_MAX);
    if (reserve(t) < 0)
        return err_nomem(at->e, "added tokens");
    struct added *a = &t->added[t->added_count];
    *a = *like;
    a->id = found;
    if (!(a->content = mem_strdup(content)))
        return err_nomem(at->e, "added tokens");
    *slot_of(t, content) = (uint32_t)++t->added_count;
    if ((uint32_t)found >= t->vocab_size)
        t->vocab_size = (uint32_t)found + 1;
    if ((uint32_t)found >= t->added_next)
        t->added_next = (uint32_t)found + 1;
    return ST_OK;
}

enum status tok_load_added(const struct place *at, struct tokenizer *t, const json_t *list)
{
    if (!list || json_is_null(list))
        return ST_OK;
    if (!json_is_array(list))
        return err_set(at->e, ST_USER, "'%s': 'added_tokens' is not a list", at->path);
    if (json_array_size(list) > ADDED_MAX)
        return err_set(at->e, ST_USER, "'%s': there are more than %d added tokens", at->path, ADDED_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *content = tok_text(v, "content");
        const json_t *id = json_object_get(v, "id");
        if (!content || !json_is_integer(id) || json_integer_value(id) < 0)
            return err_set(at->e, ST_USER, "'%s': added token %zu lacks 'content' or 'id'", at->path, i);
        struct added a = {0};
        int single, lstrip, rstrip, normalized, special;
        TRY(tok_flag(at, "an added token", v, "single_word", &single));
        TRY(tok_flag(at, "an added token", v, "lstrip", &lstrip));
        TRY(tok_flag(at, "an added token", v, "rstrip", &rstrip));
        TRY(tok_flag(at, "an added token", v, "normalized", &normalized));
        TRY(tok_flag(at, "an added token", v, "special", &special));
        a.single_word = (uint8_t)single;
        a.lstrip = (uint8_t)lstrip;
        a.rstrip = (uint8_t)rstrip;
        a.normalized = (uint8_t)normalized;
        a.special = (uint8_t)special;
        TRY(tok_add(at, t, &a, content, json_integer_value(id)));
    }
    return ST_OK;
}

/* The bytes to look for: a token's content, normalised where it is sought in normalised text. *out is to be freed. */
static enum status pattern(const struct place *at, const struct tokenizer *t, const struct added *a, char **out, uint32_t *chars,
                           size_t *len)
{
    struct normal_room room = {0};
    struct pattern_room *patterns = NULL;
    struct stretch text = {0};
    room.patterns = &patterns;
    enum status rc = err_nomem(at->e, "added tokens");
    size_t n = strlen(a->content);
    struct piece p = {0};
    if (stretch_add(&text, (const uint8_t *)a->content, n, NULL, 0) < 0)
        goto release;
    p = stretch_piece(&text, 0);
    if (a->normalized && (rc = normals_run(&t->normals, &room, &p, 1, 1, 0, at->e)) != ST_OK)
        goto release;
    if (!p.len) {
        rc = err_set(at->e, ST_USER, "'%s': nothing is left of the added token '%.100s' once it is normalised", at->path, a->content);
        goto release;
    }
    rc = (*out = mem_strndup((const char *)p.p, p.len)) ? ST_OK : err_nomem(at->e, "added tokens");
    *len = p.len;
    *chars = 0;
    for (size_t i = 0; i < p.len; i++)
        *chars += (p.p[i] & 0xC0) != 0x80;
release:
    normal_room_release(&room);
    pattern_room_free(patterns);
    stretch_release(&text);
    return rc;
}

/* Of tokens that look the same once normalised the first counts, special ones before others; trie_build takes the last. */
enum status tok_build_set(const struct place *at, const struct tokenizer *t, struct added_set *set, int normalized)
{
    struct trie_key *keys = mem_array(t->added_count + 1, sizeof *keys);
    if (!keys)
        return err_nomem(at->e, "added tokens");
    enum status rc = ST_OK;
    size_t n = 0;
    set->only = -1;
    for (int special = 0; special <= 1; special++)
        for (size_t i = t->added_count; i-- && rc == ST_OK;) {
            const struct added *a = &t->added[i];
            if (a->normalized != normalized || a->special != special)
                continue;
            char *bytes = NULL;
            uint32_t chars = 0;
            size_t len = 0;
            rc = pattern(at, t, a, &bytes, &chars, &len);
            if (rc != ST_OK)
                break;
            keys[n++] = (struct trie_key){.bytes = bytes, .len = (uint32_t)len, .value = (int32_t)i};
            uint8_t first = (uint8_t)bytes[0];
            set->only = n == 1 || set->only == first ? first : -1;
            set->first[first] = 1;
            if (chars > set->longest)
                set->longest = chars;
        }
    set->count = n;
    if (rc == ST_OK && n && trie_build(&set->trie, keys, n) < 0)
        rc = err_nomem(at->e, "added tokens");
    for (size_t i = 0; i < n; i++)
        mem_free((char *)(uintptr_t)keys[i].bytes);
    mem_free(keys);
    return rc;
}

/* {"0": {"content": "[PAD]", "special": true, ...}, ...} */
enum status tok_load_added_decoder(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const char *id;
    json_t *token;
    json_object_foreach ((json_t *)(uintptr_t)v, id, token) {
        const char *content = tok_text(token, "content");
        int special = 0, normalized, single = 0, lstrip = 0, rstrip = 0;
        TRY(tok_flag_if(at, token, "special", &special));
        normalized = !special;
        TRY(tok_flag_if(at, token, "normalized", &normalized));
        TRY(tok_flag_if(at, token, "single_word", &single));
        TRY(tok_flag_if(at, token, "lstrip", &lstrip));
        TRY(tok_flag_if(at, token, "rstrip", &rstrip));
        char *end;
        long number = strtol(id, &end, 10);
        if (!content || *end || end == id || number < 0 || t->added_count >= ADDED_MAX)
            return err_set(at->e, ST_USER, "'%s': entry '%.20s' of added_tokens_decoder is not a token with a number", at->path, id);
        struct added a = {.single_word = (uint8_t)single,
                          .lstrip = (uint8_t)lstrip,
                          .rstrip = (uint8_t)rstrip,
                          .normalized = (uint8_t)normalized,
                          .special = (uint8_t)special};
        TRY(tok_add(at, t, &a, content, number));
    }
    return ST_OK;
}
