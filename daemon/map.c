#include "daemon/map.h"

#include "base/mem.h"

static size_t home(const struct map *m, uint64_t key)
{
    key *= 0x9e3779b97f4a7c15u; /* Fibonacci hashing */
    return (size_t)(key >> 20) & (m->cap - 1);
}

static struct map_slot *slot_of(const struct map *m, uint64_t key)
{
    size_t i = home(m, key);
    while (m->slots[i].value && m->slots[i].key != key)
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

void *map_find(const struct map *m, uint64_t key)
{
    return m->cap ? slot_of(m, key)->value : NULL;
}

static int grow(struct map *m)
{
    struct map bigger = {.cap = m->cap ? m->cap * 2 : 16, .count = m->count};
    bigger.slots = mem_array(bigger.cap, sizeof *bigger.slots);
    if (!bigger.slots)
        return -1;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].value)
            *slot_of(&bigger, m->slots[i].key) = m->slots[i];
    mem_free(m->slots);
    *m = bigger;
    return 0;
}

int map_add(struct map *m, uint64_t key, void *value)
{
    if (m->count * 2 >= m->cap && grow(m))
        return -1;
    struct map_slot *s = slot_of(m, key);
    m->count += s->value == NULL;
    *s = (struct map_slot){key, value};
    return 0;
}

void *map_remove(struct map *m, uint64_t key)
{
    struct map_slot *s = m->cap ? slot_of(m, key) : NULL;
    if (!s || !s->value)
        return NULL;
    void *value = s->value;
    size_t hole = (size_t)(s - m->slots);
    s->value = NULL;
    m->count--;
    for (size_t i = (hole + 1) & (m->cap - 1); m->slots[i].value; i = (i + 1) & (m->cap - 1)) {
        size_t want = home(m, m->slots[i].key);
        if (((i - want) & (m->cap - 1)) >= ((i - hole) & (m->cap - 1))) { /* the hole lies on its way */
            m->slots[hole] = m->slots[i];
            m->slots[i].value = NULL;
            hole = i;
        }
    }
    return value;
}

void *map_next(const struct map *m, size_t *i)
{
    while (*i < m->cap) {
        void *v = m->slots[(*i)++].value;
        if (v)
            return v;
    }
    return NULL;
}

void map_release(struct map *m)
{
    mem_free(m->slots);
    *m = (struct map){0};
}
