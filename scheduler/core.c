#include "scheduler/core.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#ifdef SCHED_MUTANTS
int sched_mutant;
#endif

/* Map ------------------------------------------------------------------------------------------------------------------------- */

static size_t slot_of(const struct map *m, uint64_t key)
{
    uint64_t x = key * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(x ^ x >> 29) & (m->cap - 1);
}

int map_room(struct map *m, size_t more)
{
    size_t cap = m->cap ? m->cap : 16;
    while ((m->count + more) * 4 > cap * 3)
        cap *= 2;
    if (cap == m->cap)
        return 0;
    struct map bigger = {.entries = mem_array(cap, sizeof *bigger.entries), .cap = cap};
    if (!bigger.entries)
        return -1;
    for (size_t i = 0; i < m->cap; i++)
        if (m->entries[i].key)
            map_put(&bigger, m->entries[i].key, m->entries[i].value);
    mem_free(m->entries);
    *m = bigger;
    return 0;
}

void *map_get(const struct map *m, uint64_t key)
{
    if (!m->count || !key)
        return NULL;
    for (size_t i = slot_of(m, key); m->entries[i].key; i = (i + 1) & (m->cap - 1))
        if (m->entries[i].key == key)
            return m->entries[i].value;
    return NULL;
}

void map_put(struct map *m, uint64_t key, void *value)
{
    BUG_IF(!key || m->count >= m->cap, "map: no room for %llu", (unsigned long long)key);
    size_t i = slot_of(m, key);
    for (; m->entries[i].key; i = (i + 1) & (m->cap - 1))
        BUG_IF(m->entries[i].key == key, "map: %llu is there already", (unsigned long long)key);
    m->entries[i].key = key;
    m->entries[i].value = value;
    m->count++;
}

void map_del(struct map *m, uint64_t key)
{
    size_t i = slot_of(m, key), mask = m->cap - 1;
    for (; m->entries[i].key != key; i = (i + 1) & mask)
        BUG_IF(!m->entries[i].key, "map: %llu is not there", (unsigned long long)key);
    m->count--;
    for (size_t j = i;;) { /* closes the gap: whatever follows and would not be found across it moves up */
        m->entries[i].key = 0;
        for (;;) {
            j = (j + 1) & mask;
            if (!m->entries[j].key)
                return;
            size_t home = slot_of(m, m->entries[j].key);
            if (i <= j ? home <= i || home > j : home <= i && home > j)
                break;
        }
        m->entries[i] = m->entries[j];
        i = j;
    }
}

/* Heap ------------------------------------------------------------------------------------------------------------------------ */

int heap_room(struct heap *h, size_t more)
{
    size_t cap = h->cap ? h->cap : 16;
    while (h->count + more > cap)
        cap *= 2;
    if (cap == h->cap)
        return 0;
    void *p = mem_resize(h->entries, cap * sizeof *h->entries);
    if (!p)
        return -1;
    h->entries = p;
    h->cap = cap;
    return 0;
}

static void heap_settle(struct heap *h, size_t i)
{
    struct heap_entry e = h->entries[i];
    while (i && h->entries[(i - 1) / 2].key > e.key) {
        h->entries[i] = h->entries[(i - 1) / 2];
        *h->entries[i].place = (uint32_t)i + 1;
        i = (i - 1) / 2;
    }
    for (;;) {
        size_t child = i * 2 + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && h->entries[child + 1].key < h->entries[child].key)
            child++;
        if (h->entries[child].key >= e.key)
            break;
        h->entries[i] = h->entries[child];
        *h->entries[i].place = (uint32_t)i + 1;
        i = child;
    }
    h->entries[i] = e;
    *e.place = (uint32_t)i + 1;
}

void heap_set(struct heap *h, uint64_t key, void *item, uint32_t *place)
{
    if (!*place) {
        BUG_IF(h->count >= h->cap, "heap: no room");
        *place = (uint32_t)++h->count;
    }
    h->entries[*place - 1] = (struct heap_entry){key, item, place};
    heap_settle(h, *place - 1);
}

void heap_take(struct heap *h, uint32_t *place)
{
    if (!*place)
        return;
    size_t i = *place - 1;
    *place = 0;
    h->count--;
    if (i < h->count) {
        h->entries[i] = h->entries[h->count];
        heap_settle(h, i);
    }
}

/* Room and output ------------------------------------------------------------------------------------------------------------- */

static int grow(void **items, size_t *cap, size_t want, size_t size)
{
    if (want <= *cap)
        return 0;
    size_t to = *cap ? *cap : 8;
    while (to < want)
        to *= 2;
    void *p = mem_resize(*items, to * size);
    if (!p)
        return -1;
    *items = p;
    *cap = to;
    return 0;
}

#define SLAB_NODES 256

int core_room(struct sched *s, size_t rows, size_t messages, size_t nodes, size_t leases)
{
    /* each touched node may cost a row for its old key and one for its new, each step some job rows and two closing messages */
    size_t all = s->out->count + s->dirty_count + s->dirty_job_count + s->message_count + rows + nodes * 2 + messages + 4;
    if (grow((void **)&s->out->actions, &s->out->cap, all, sizeof *s->out->actions) ||
        grow((void **)&s->messages, &s->message_cap, s->message_count + messages + 4, sizeof *s->messages) ||
        grow((void **)&s->dirty, &s->dirty_cap, s->dirty_count + nodes + 1, sizeof *s->dirty))
        return -1;
    while (s->free_node_count < nodes) {
        if (grow((void **)&s->slabs, &s->slab_cap, s->slab_count + 1, sizeof *s->slabs))
            return -1;
        struct node *slab = mem_array(SLAB_NODES, sizeof *slab);
        if (!slab)
            return -1;
        s->slabs[s->slab_count++] = slab;
        for (size_t i = SLAB_NODES; i-- > 0; s->free_nodes = &slab[i])
            slab[i].next = s->free_nodes;
        s->free_node_count += SLAB_NODES;
    }
    while (s->free_lease_count < leases) {
        struct lease *l = mem_zalloc(sizeof *l);
        if (!l)
            return -1;
        l->worker_next = s->free_leases;
        s->free_leases = l;
        s->free_lease_count++;
    }
    return map_room(&s->epochs, leases) || heap_room(&s->backoffs, nodes) ? -1 : 0;
}

struct sched_action *core_row(struct sched *s, enum sched_action_kind kind, uint64_t job)
{
    BUG_IF(s->out->count >= s->out->cap, "a step wrote more rows than it had room for");
    struct sched_action *a = &s->out->actions[s->out->count++];
    *a = (struct sched_action){.kind = kind, .job = job};
    return a;
}

struct sched_action *core_message(struct sched *s, enum sched_action_kind kind, uint64_t job, uint64_t worker, uint64_t epoch)
{
    BUG_IF(s->message_count >= s->message_cap, "a step sent more messages than it had room for");
    struct sched_action *a = &s->messages[s->message_count++];
    *a = (struct sched_action){.kind = kind, .job = job, .worker = worker, .epoch = epoch};
    return a;
}

void core_history(struct sched *s, struct job *j, const char *fmt, ...)
{
    struct sched_action *a = core_row(s, SCHED_DO_ADD_EVENT, j->row.id);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->u.text, sizeof a->u.text, fmt, ap);
    va_end(ap);
}

void core_touch_job(struct sched *s, struct job *j)
{
    if (j->dirty)
        return;
    j->dirty = 1;
    j->next_dirty = s->dirty_jobs;
    s->dirty_jobs = j;
    s->dirty_job_count++;
}

struct node *core_node(struct sched *s)
{
    struct node *n = s->free_nodes;
    BUG_IF(!n, "a step needed more spans than it had room for");
    s->free_nodes = n->next;
    s->free_node_count--;
    *n = (struct node){0};
    return n;
}

static void fill_row(struct span_row *row, const struct node *n)
{
    *row = (struct span_row){.span = n->span,
                             .state = n->lease ? SPAN_LEASED : SPAN_READY,
                             .attempts = n->attempts,
                             .losses = n->losses,
                             .probe = n->probe,
                             .crashes = n->crashes,
                             .crash_host = n->crash_host};
    if (n->lease) {
        row->worker = n->lease->worker->id;
        row->epoch = n->lease->epoch;
        row->next_seq = n->next_seq;
    }
}

void core_flush(struct sched *s)
{
    for (size_t i = 0; i < s->dirty_count; i++) {
        struct node *n = s->dirty[i].node;
        n->dirty = 0;
        if (n->dead) {
            n->dead = 0;
            n->next = s->free_nodes;
            s->free_nodes = n;
            s->free_node_count++;
            continue;
        }
        n->stored = 1;
        n->stored_begin = n->span.begin;
        if (MUTANT(4) && n->lease && n->lease->next_seq == 0)
            continue;
        n->next_seq = n->lease ? n->lease->next_seq : 0;
        fill_row(&core_row(s, SCHED_DO_PUT_SPAN, s->dirty[i].job->row.id)->u.span, n);
    }
    s->dirty_count = 0;
    while (s->dirty_jobs) {
        struct job *j = s->dirty_jobs;
        s->dirty_jobs = j->next_dirty;
        j->dirty = 0;
        core_row(s, SCHED_DO_PUT_JOB, j->row.id)->u.job = j->row;
    }
    s->dirty_job_count = 0;
    if (s->message_count) {
        memcpy(s->out->actions + s->out->count, s->messages, s->message_count * sizeof *s->messages);
        s->out->count += s->message_count;
        s->message_count = 0;
    }
}

void core_later(struct sched *s)
{
    s->retry_ms = s->now_ms + 100;
    s->work_dirty = 1;
}

size_t core_job_slot(const struct sched *s, uint64_t id)
{
    size_t low = 0, high = s->job_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->jobs[mid]->row.id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct job *core_job(const struct sched *s, uint64_t id)
{
    size_t i = core_job_slot(s, id);
    return i < s->job_count && s->jobs[i]->row.id == id ? s->jobs[i] : NULL;
}

/* What people and tests see of a ledger. */
void sched_spans(const struct sched *s, uint64_t job, void (*visit)(void *arg, const struct span_row *row), void *arg)
{
    struct job *j = core_job(s, job);
    for (struct node *n = j ? ledger_first(&j->ledger) : NULL; n; n = ledger_next(n)) {
        struct span_row row;
        fill_row(&row, n);
        visit(arg, &row);
    }
}
