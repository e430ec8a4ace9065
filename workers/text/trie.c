#include "workers/text/trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Free cells are a ring in the order of their making, threaded by position; a state with one child takes the oldest hole, one
   with many looks through the youngest only, so that building stays linear whatever the keys are. */
#define TRIES_MAX 96

struct todo { /* keys[lo..hi) share their first `depth` bytes and lead to `state` */
    size_t lo, hi;
    uint32_t depth, state;
};

struct builder {
    struct trie *t;
    uint32_t *prev, *next; /* the ring; index count is its head */
    uint32_t cap;
    struct todo *todo;
    size_t todo_count, todo_cap;
};

static int compare(const void *a, const void *b)
{
    const struct trie_key *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;
    int d = n ? memcmp(x->bytes, y->bytes, n) : 0;
    if (d || x->len != y->len)
        return d ? d : x->len > y->len ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order); /* qsort is not stable */
}

#define HEAD 0u /* the root's cell is never free: its place in the ring is the head */

static void ring_remove(struct builder *b, uint32_t c)
{
    b->next[b->prev[c]] = b->next[c];
    b->prev[b->next[c]] = b->prev[c];
}

static int add_block(struct builder *b)
{
    struct trie *t = b->t;
    if (t->count > INT32_MAX - 256)
        return -1;
    if (t->count + 256 > b->cap) {
        uint32_t cap = b->cap ? b->cap + b->cap / 2 / 256 * 256 + 256 : 1024;
        struct trie_cell *cell = mem_resize(t->cell, (size_t)cap * sizeof *cell);
        if (cell)
            t->cell = cell;
        uint32_t *prev = mem_resize(b->prev, (size_t)cap * sizeof *prev);
        if (prev)
            b->prev = prev;
        uint32_t *next = mem_resize(b->next, (size_t)cap * sizeof *next);
        if (next)
            b->next = next;
        if (!cell || !prev || !next)
            return -1;
        b->cap = cap;
    }
    uint32_t first = t->count;
    if (!first)
        b->prev[HEAD] = b->next[HEAD] = HEAD;
    for (uint32_t c = first; c < first + 256; c++) {
        t->cell[c] = (struct trie_cell){.base = 0, .parent = TRIE_NONE, .value = -1};
        if (c == HEAD)
            continue;
        uint32_t last = b->prev[HEAD];
        b->next[last] = c;
        b->prev[c] = last;
        b->next[c] = HEAD;
        b->prev[HEAD] = c;
    }
    t->count += 256;
    return 0;
}

static int fits(const struct builder *b, uint32_t base, const uint8_t *label, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t c = base ^ label[i];
        if (c == TRIE_ROOT || b->t->cell[c].parent != TRIE_NONE)
            return 0;
    }
    return 1;
}

static int find_base(struct builder *b, const uint8_t *label, int count, uint32_t *base)
{
    if (count == 1 && b->next[HEAD] != HEAD) {
        *base = b->next[HEAD] ^ label[0];
        return 0;
    }
    uint32_t c = b->prev[HEAD];
    for (int i = 0; i < TRIES_MAX && c != HEAD; i++, c = b->prev[c])
        if (fits(b, c ^ label[0], label, count)) {
            *base = c ^ label[0];
            return 0;
        }
    *base = b->t->count;
    return add_block(b);
}

static int push(struct builder *b, struct todo x)
{
    void *p = b->todo;
    if (mem_grow(&p, &b->todo_cap, b->todo_count, sizeof x) < 0)
        return -1;
    b->todo = p;
    b->todo[b->todo_count++] = x;
    return 0;
}

static int expand(struct builder *b, const struct trie_key *keys, struct todo x)
{
    /* keys that end here come first; the last of them counts */
    while (x.lo < x.hi && keys[x.lo].len == x.depth)
        b->t->cell[x.state].value = keys[x.lo++].value;
    if (x.lo == x.hi)
        return 0;

    uint8_t label[256];
    size_t from[257];
    int count = 0;
    for (size_t i = x.lo; i < x.hi; i++) {
        uint8_t byte = (uint8_t)keys[i].bytes[x.depth];
        if (!count || byte != label[count - 1]) {
            label[count] = byte;
            from[count++] = i;
        }
    }
    from[count] = x.hi;

    uint32_t base = 0;
    if (find_base(b, label, count, &base) < 0)
        return -1;
    b->t->cell[x.state].base = base;
    for (int i = 0; i < count; i++) {
        uint32_t c = base ^ label[i];
        ring_remove(b, c);
        b->t->cell[c].parent = x.state;
    }
    for (int i = 0; i < count; i++)
        if (push(b, (struct todo){from[i], from[i + 1], x.depth + 1, base ^ label[i]}) < 0)
            return -1;
    return 0;
}

int trie_build(struct trie *t, struct trie_key *keys, size_t count)
{
    *t = (struct trie){0};
    struct builder b = {.t = t};
    for (size_t i = 0; i < count; i++)
        keys[i].order = (uint32_t)i;
    int rc = add_block(&b);
    if (!rc) {
        t->cell[TRIE_ROOT].parent = TRIE_ROOT;
        if (count > 1)
            qsort(keys, count, sizeof *keys, compare);
        rc = push(&b, (struct todo){0, count, 0, TRIE_ROOT});
    }
    while (!rc && b.todo_count)
        rc = expand(&b, keys, b.todo[--b.todo_count]);
    mem_free(b.todo);
    mem_free(b.prev);
    mem_free(b.next);
    if (rc)
        trie_release(t);
    return rc;
}

void trie_release(struct trie *t)
{
    mem_free(t->cell);
    *t = (struct trie){0};
}

uint32_t trie_find(const struct trie *t, const void *key, size_t len)
{
    const uint8_t *p = key;
    uint32_t state = TRIE_ROOT;
    for (size_t i = 0; i < len && state != TRIE_NONE; i++)
        state = trie_step(t, state, p[i]);
    return state;
}

int32_t trie_get(const struct trie *t, const void *key, size_t len)
{
    uint32_t state = trie_find(t, key, len);
    return state == TRIE_NONE ? -1 : t->cell[state].value;
}
