#include "workers/text/bpe.h"

#include <stdio.h>

#include "base/mem.h"
#include "workers/text/unicode.h"

#define SMALL 48 /* pieces; longer words go over the heap */
#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX

/* The byte-level alphabet: printable Latin-1 as it is, the other 68 bytes from U+0100 on. */
static int is_plain(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t bytelevel_char(uint8_t byte)
{
    if (is_plain(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte < 0xAD)
        return 0x121u + (byte - 0x7Fu);
    return 0x143;
}

int bytelevel_byte(uint32_t c)
{
    if (is_plain(c))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

int bpe_start(struct bpe *b, const struct vocab *vocab, size_t merges)
{
    size_t slots = 16;
    while (slots < 2 * merges)
        slots *= 2;
    b->vocab = vocab;
    b->mask = (uint32_t)(slots - 1);
    b->merge = mem_array(slots, sizeof *b->merge);
    for (size_t i = 0; b->merge && i < slots; i++)
        b->merge[i].pair = BPE_FREE;
    return b->merge ? 0 : -1;
}

static struct bpe_merge *slot_of(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> 32);; i++) {
        struct bpe_merge *m = &b->merge[i & b->mask];
        if (m->pair == pair || m->pair == BPE_FREE)
            return m;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    *slot_of(b, pair_of(left, right)) = (struct bpe_merge){pair_of(left, right), rank, id};
}

static const struct bpe_merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_merge *m = slot_of(b, pair_of(left, right));
    return m->pair == BPE_FREE ? NULL : m;
}

/* The id of a piece with what the model puts around it. */
static int32_t piece_id(const struct bpe *b, const uint8_t *p, size_t len, int rest, int last)
{
    size_t before = rest && b->prefix ? strlen(b->prefix) : 0, after = last && b->suffix ? strlen(b->suffix) : 0;
    if (!before && !after)
        return vocab_find(b->vocab, p, len);
    uint8_t all[256];
    if (before + len + after > sizeof all)
        return -1; /* bpe_finish saw to it that prefix and suffix are short */
    if (before)
        memcpy(all, b->prefix, before);
    memcpy(all + before, p, len);
    if (after)
        memcpy(all + before + len, b->suffix, after);
    return vocab_find(b->vocab, all, before + len + after);
}

/* The tokens that stand for bytes, by these bytes. */
static int whole_words(struct bpe *b)
{
    const struct vocab *v = b->vocab;
    size_t n = 0, end = 0, room = 0;
    for (uint32_t id = 0; id < v->size; id++)
        room += v->at[id] ? v->len[id] : 0;
    struct trie_key *keys = mem_array((size_t)v->count + 1, sizeof *keys);
    char *bytes = mem_alloc(room + 1);
    for (uint32_t id = 0; keys && bytes && id < v->size; id++) {
        uint32_t len = 0;
        const uint8_t *p = (const uint8_t *)vocab_token(v, (int32_t)id, &len);
        if (!p || !len)
            continue;
        size_t start = end;
        int byte = 0;
        for (const uint8_t *stop = p + len; p < stop && (byte = bytelevel_byte(uni_decode(&p, stop))) >= 0;)
            bytes[end++] = (char)byte;
        if (byte >= 0)
            keys[n++] = (struct trie_key){.bytes = bytes + start, .len = (uint32_t)(end - start), .value = (int32_t)id};
    }
    int rc = keys && bytes ? vocab_init(&b->whole, keys, n) : -1;
    mem_free(keys);
    mem_free(bytes);
    return rc;
}

int bpe_finish(struct bpe *b)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->fallback[i] = b->byte_fallback ? vocab_find(b->vocab, name, 6) : -1;
        uint8_t utf8[4];
        size_t n = uni_encode(bytelevel_char((uint8_t)i), utf8);
        for (int rest = 0; rest < 2; rest++)
            for (int last = 0; last < 2; last++)
                b->byte[rest][last][i] = piece_id(b, utf8, n, rest, last);
    }
    return b->bytes && b->ignore_merges ? whole_words(b) : 0;
}

void bpe_release(struct bpe *b)
{
    mem_free(b->merge);
    mem_free(b->prefix);
    mem_free(b->suffix);
    mem_free(b->unk_name);
    vocab_release(&b->whole);
    *b = (struct bpe){0};
}

void bpe_room_release(struct bpe_room *r)
{
    mem_free(r->symbol);
    mem_free(r->heap);
    *r = (struct bpe_room){0};
}

size_t bpe_most(const struct bpe *b, size_t len)
{
    if (!b->byte_fallback)
        return len + 1;
    /* a byte may be spelt with two, and both fall back; so do prefix and suffix */
    return len * ((b->bytes ? 2 : 1) + (b->prefix ? strlen(b->prefix) : 0)) + (b->suffix ? strlen(b->suffix) : 0) + 1;
}

/* First pieces ---------------------------------------------------------------------------------------------------------------- */

struct pieces {
    struct bpe_symbol *at;
    size_t count;
    int has_unk;
    uint32_t unk_len;
};

static void add(struct pieces *p, int32_t id, uint32_t len)
{
    p->at[p->count++] = (struct bpe_symbol){.id = id, .len = len};
}

/* The bytes of a character that the vocabulary lacks, if it has a token for each. */
static int fall_back(const struct bpe *b, struct pieces *out, const uint8_t *p, size_t len, int rest, int last)
{
    const uint8_t *part[3] = {(const uint8_t *)(rest && b->prefix ? b->prefix : ""), p,
                              (const uint8_t *)(last && b->suffix ? b->suffix : "")};
    size_t size[3] = {strlen((const char *)part[0]), len, strlen((const char *)part[2])};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < size[k]; i++)
            if (b->fallback[part[k][i]] < 0)
                return 0;
    size_t before = out->count;
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < size[k]; i++) /* of bytes that stand for a byte the first one takes all of it */
            add(out, b->fallback[part[k][i]], !b->bytes || out->count == before);
    return 1;
}

/* A known character ends a run of unknown ones; one told by its bytes does not, as in the reference. */
static enum status take(const struct bpe *b, struct pieces *out, int32_t id, const uint8_t *p, size_t size, int rest, int last,
                        struct err *e)
{
    uint32_t len = b->bytes ? 1 : (uint32_t)size; /* of the word */
    if (id >= 0) {
        if (out->has_unk)
            add(out, b->unk, out->unk_len);
        out->has_unk = 0;
        add(out, id, len);
        return ST_OK;
    }
    if (b->byte_fallback && fall_back(b, out, p, size, rest, last))
        return ST_OK;
    if (!b->unk_name)
        return ST_OK;
    if (b->unk < 0)
        return err_set(e, ST_USER, "the tokenizer does not know '%.*s' and its vocabulary lacks the unknown token '%.100s'", (int)size, p,
                       b->unk_name);
    if (out->has_unk && !b->fuse_unk) {
        add(out, b->unk, out->unk_len);
        out->unk_len = 0;
    } else if (!out->has_unk) {
        out->unk_len = 0;
    }
    out->has_unk = 1;
    out->unk_len += len;
    return ST_OK;
}

static enum status first_pieces(const struct bpe *b, struct pieces *out, const uint8_t *word, size_t len, struct err *e)
{
    const uint8_t *p = word, *end = word + len;
    while (p < end) {
        const uint8_t *from = p;
        int rest = p > word;
        uint8_t utf8[4];
        if (b->bytes) {
            int32_t id = b->byte[rest][p + 1 == end][*p];
            p++;
            if (id >= 0 && !out->has_unk) {
                add(out, id, 1);
                continue;
            }
            size_t n = uni_encode(bytelevel_char(*from), utf8);
            TRY(take(b, out, id, utf8, n, rest, p == end, e));
            continue;
        }
        uni_decode(&p, end);
        size_t n = (size_t)(p - from);
        TRY(take(b, out, piece_id(b, from, n, rest, p == end), from, n, rest, p == end, e));
    }
    if (out->has_unk)
        add(out, b->unk, out->unk_len);
    return ST_OK;
}

/* Merging --------------------------------------------------------------------------------------------------------------------- */

static size_t merge_small(const struct bpe *b, struct bpe_symbol *s, size_t n)
{
    uint32_t rank[SMALL];
    int32_t to[SMALL];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = find(b, s[i].id, s[i + 1].id);
        rank[i] = m ? m->rank : NO_RANK;
        to[i] = m ? m->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        s[best].id = to[best];
        s[best].len += s[best + 1].len;
        n--;
        memmove(s + best + 1, s + best + 2, (n - best - 1) * sizeof *s);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            memmove(to + best + 1, to + best + 2, (n - best - 2) * sizeof *to);
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_merge *m = find(b, s[i].id, s[i + 1].id);
            rank[i] = m ? m->rank : NO_RANK;
            to[i] = m ? m->id : 0;
        }
    }
    return n;
}

static void sift_up(uint64_t *h, size_t i)
{
    uint64_t x = h[i];
    for (; i && h[(i - 1) / 2] > x; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = x;
}

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && h[k + 1] < h[k];
        if (h[k] >= x)
            break;
        h[i] = h[k];
    }
    h[i] = x;
}

static int consider(const struct bpe *b, struct bpe_room *r, uint32_t i)
{
    const struct bpe_symbol *s = r->symbol;
    if (i == NONE || s[i].next == NONE)
        return 0;
    const struct bpe_merge *m = find(b, s[i].id, s[s[i].next].id);
    if (!m)
        return 0;
    void *heap = r->heap;
    if (mem_grow(&heap, &r->heap_cap, r->heap_len, sizeof *r->heap) < 0)
        return -1;
    r->heap = heap;
    r->heap[r->heap_len] = (uint64_t)m->rank << 32 | i;
    sift_up(r->heap, r->heap_len++);
    return 0;
}

/* An entry of the heap is stale when its pair is no more; a piece only grows, so that an equal pair never comes back there. */
static int merge_long(const struct bpe *b, struct bpe_room *r, size_t *count)
{
    struct bpe_symbol *s = r->symbol;
    size_t n = *count;
    r->heap_len = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i].prev = i ? i - 1 : NONE;
        s[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < n; i++)
        if (consider(b, r, i) < 0)
            return -1;
    while (r->heap_len) {
        uint64_t top = r->heap[0];
        r->heap[0] = r->heap[--r->heap_len];
        if (r->heap_len)
            sift_down(r->heap, r->heap_len, 0);
        uint32_t i = (uint32_t)top, k = s[i].next;
        if (s[i].id < 0 || k == NONE)
            continue;
        const struct bpe_merge *m = find(b, s[i].id, s[k].id);
        if (!m || m->rank != top >> 32)
            continue;
        s[i].id = m->id;
        s[i].len += s[k].len;
        s[i].next = s[k].next;
        s[k].id = -1;
        if (s[i].next != NONE)
            s[s[i].next].prev = i;
        if (consider(b, r, s[i].prev) < 0 || consider(b, r, i) < 0)
            return -1;
    }
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i].id >= 0)
            s[left++] = s[i];
    *count = left;
    return 0;
}

enum status bpe_split(const struct bpe *b, struct bpe_room *r, const uint8_t *word, size_t len, int32_t *ids, uint32_t *ends,
                      size_t *count, struct err *e)
{
    *count = 0;
    if (b->ignore_merges) {
        int32_t id = vocab_find(b->bytes ? &b->whole : b->vocab, word, len);
        if (id >= 0) {
            ids[0] = id;
            if (ends)
                ends[0] = (uint32_t)len;
            *count = 1;
            return ST_OK;
        }
    }
    size_t most = bpe_most(b, len);
    if (most > r->symbol_cap) {
        size_t cap = most < 1024 ? 1024 : most + most / 2;
        void *p = cap > SIZE_MAX / sizeof *r->symbol || cap >= NONE ? NULL : mem_resize(r->symbol, cap * sizeof *r->symbol);
        if (!p)
            return err_nomem(e, "a long word");
        r->symbol = p;
        r->symbol_cap = cap;
    }
    struct pieces out = {.at = r->symbol};
    TRY(first_pieces(b, &out, word, len, e));
    if (out.count <= SMALL)
        out.count = merge_small(b, out.at, out.count);
    else if (merge_long(b, r, &out.count) < 0)
        return err_nomem(e, "a long word");
    size_t end = 0;
    for (size_t i = 0; i < out.count; i++) {
        ids[i] = out.at[i].id;
        end += out.at[i].len;
        if (ends)
            ends[i] = (uint32_t)(end < len ? end : len);
    }
    *count = out.count;
    return ST_OK;
}
