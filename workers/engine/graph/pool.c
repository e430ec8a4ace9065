/* Buffers of a run, kept when they are let go, by classes of size (four to each power of two), so that steady work allocates nothing. */
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "workers/engine/graph/inner.h"

enum { CLASSES = 200, SMALLEST = 256, LOOK = 5 };

struct held {
    struct buffer b; /* first, so that a buffer is its held */
    struct held *next_free, *next;
    uint32_t class;
};

struct pool {
    struct held *free[CLASSES];
    struct held *all;
    size_t bytes; /* of buffers, and what is charged */
    uint64_t most;
};

enum status pool_new(uint64_t most, struct pool **out, struct err *e)
{
    struct pool *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(e, "a run's memory");
    p->most = most;
    *out = p;
    return ST_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    for (struct held *h = p->all, *next; h; h = next) {
        next = h->next;
        mem_free(h->b.base);
        mem_free(h);
    }
    mem_free(p);
}

size_t pool_bytes(const struct pool *p)
{
    return p->bytes;
}

uint64_t pool_most(const struct pool *p)
{
    return p->most;
}

static int beyond(const struct pool *p, size_t bytes)
{
    return p->bytes > p->most || bytes > p->most - p->bytes;
}

void pool_trim(struct pool *p)
{
    memset(p->free, 0, sizeof p->free);
    for (struct held **at = &p->all; *at;) {
        struct held *h = *at;
        if (h->b.refs) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        p->bytes -= h->b.bytes;
        mem_free(h->b.base);
        mem_free(h);
    }
}

int pool_charge(struct pool *p, size_t bytes)
{
    if (beyond(p, bytes))
        pool_trim(p);
    if (beyond(p, bytes))
        return -1;
    p->bytes += bytes;
    return 0;
}

void pool_credit(struct pool *p, size_t bytes)
{
    BUG_IF(p->bytes < bytes, "%zu bytes go of a run's %zu", bytes, p->bytes);
    p->bytes -= bytes;
}

/* Class c holds (4 + c % 4) << (6 + c / 4) bytes. */
static size_t class_bytes(uint32_t c)
{
    return (size_t)(4 + c % 4) << (6 + c / 4);
}

static uint32_t class_of(size_t bytes)
{
    if (bytes <= SMALLEST)
        return 0;
    uint32_t log = 63 - (uint32_t)__builtin_clzll((unsigned long long)(bytes - 1)); /* 2^log <= bytes - 1 */
    return ((log - 8) * 4 + (uint32_t)((bytes - 1) >> (log - 2) & 3)) + 1;
}

int pool_full(const struct pool *p, size_t bytes)
{
    return bytes > (size_t)1 << 46 || beyond(p, class_bytes(class_of(bytes)));
}

/* Of a class that is not there yet, or not free. */
static struct held *make(struct pool *p, uint32_t class)
{
    size_t size = class_bytes(class);
    if (pool_charge(p, size) != 0)
        return NULL;
    struct held *h = mem_zalloc(sizeof *h);
    void *base = h ? mem_aligned(size) : NULL;
    if (!base) {
        pool_credit(p, size);
        mem_free(h);
        return NULL;
    }
    *h = (struct held){.b = {.refs = 1, .bytes = size, .base = base, .owner = p}, .next = p->all, .class = class};
    p->all = h;
    return h;
}

struct buffer *pool_get(struct pool *p, size_t bytes)
{
    if (bytes > (size_t)1 << 46)
        return NULL;
    uint32_t c = class_of(bytes);
    for (uint32_t i = c; i < c + LOOK && i < CLASSES; i++)
        if (p->free[i]) {
            struct held *h = p->free[i];
            p->free[i] = h->next_free;
            h->b.refs = 1;
            return &h->b;
        }
    struct held *h = make(p, c);
    return h ? &h->b : NULL;
}

void buffer_keep(struct buffer *b)
{
    if (b && b->owner)
        b->refs++;
}

void buffer_drop(struct buffer *b)
{
    if (!b || !b->owner || --b->refs)
        return;
    struct held *h = (struct held *)(void *)b;
    struct pool *p = b->owner;
    h->next_free = p->free[h->class];
    p->free[h->class] = h;
}

/* Values ----------------------------------------------------------------------------------------------------------------------------- */

void value_clear(struct value *v)
{
    if (v->kind == VALUE_TENSOR)
        buffer_drop(v->tensor.buffer);
    for (uint32_t i = 0; v->kind == VALUE_SEQUENCE && i < v->count; i++)
        value_clear(&v->items[i]);
    v->kind = VALUE_NONE;
    v->tensor.buffer = NULL;
    v->count = 0;
}

void value_release(struct value *v)
{
    value_clear(v);
    for (uint32_t i = 0; i < v->cap; i++)
        value_release(&v->items[i]);
    if (v->charged)
        pool_credit(v->charged, v->cap * sizeof *v->items);
    mem_free(v->items);
    *v = (struct value){0};
}

/* p may be NULL where `count` is that of another sequence: then it is not charged. */
static enum status room_for(struct pool *p, struct value *v, uint32_t count, struct err *e)
{
    if (count <= v->cap)
        return ST_OK;
    uint32_t cap = v->cap ? v->cap + v->cap / 2 : 8;
    if (cap < count)
        cap = count;
    if (v->charged)
        p = v->charged;
    size_t more = (cap - v->cap) * sizeof *v->items;
    char text[UNITS_MAX];
    if (p && (v->charged || !v->cap)) {
        if (pool_charge(p, more) != 0)
            return err_set(e, ST_USER, "a sequence of %u tensors would take the run beyond the memory that it may have here (%s)", count, units_bytes(text, p->most));
        v->charged = p;
    }
    struct value *items = mem_resize(v->items, cap * sizeof *items);
    if (!items) {
        if (v->charged)
            pool_credit(v->charged, more);
        return err_nomem(e, "a sequence");
    }
    memset(items + v->cap, 0, (cap - v->cap) * sizeof *items);
    v->items = items;
    v->cap = cap;
    return ST_OK;
}

enum status value_append(struct pool *p, struct value *sequence, const struct tensor *t, struct err *e)
{
    TRY(room_for(p, sequence, sequence->count + 1, e));
    struct value *item = &sequence->items[sequence->count++];
    item->kind = VALUE_TENSOR;
    item->tensor = *t;
    buffer_keep(t->buffer);
    return ST_OK;
}

enum status value_share(struct value *to, const struct value *from, struct err *e)
{
    if (to == from)
        return ST_OK;
    value_clear(to);
    to->element = from->element;
    if (from->kind == VALUE_TENSOR) {
        to->tensor = from->tensor;
        buffer_keep(to->tensor.buffer);
    }
    if (from->kind == VALUE_SEQUENCE)
        TRY(room_for(from->charged, to, from->count, e));
    to->kind = from->kind;
    for (uint32_t i = 0; from->kind == VALUE_SEQUENCE && i < from->count; i++) {
        to->count = i + 1;
        TRY(value_share(&to->items[i], &from->items[i], e));
    }
    return ST_OK;
}
