#include "scheduler/plan_graph.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Memory --------------------------------------------------------------------------------------------------------------------------- */

struct plan_block {
    struct plan_block *next;
    max_align_t data[];
};

void *plan_take(struct plan_arena *a, size_t count, size_t size)
{
    struct plan_block *b;
    if (a->failed || (size && count > (SIZE_MAX - sizeof *b) / size) || !(b = mem_zalloc(sizeof *b + count * size))) {
        a->failed = 1;
        return NULL;
    }
    b->next = a->blocks;
    a->blocks = b;
    return b->data;
}

void plan_drop(struct plan_arena *a)
{
    for (struct plan_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    a->blocks = NULL;
}

/* What belongs together ------------------------------------------------------------------------------------------------------------ */

static size_t root(size_t *up, size_t i)
{
    while (up[i] != i)
        i = up[i] = up[up[i]];
    return i;
}

struct links { /* edges of lumps, by their begin */
    size_t *at, *to;
};

static struct links links_by(struct plan_graph *g, const size_t *lump_of, size_t lumps, int backwards)
{
    const struct plan_instance *in = g->inst;
    struct links l = {plan_take(&g->arena, lumps + 2, sizeof(size_t)), plan_take(&g->arena, in->edge_count + 1, sizeof(size_t))};
    if (g->arena.failed)
        return l;
    for (size_t e = 0; e < in->edge_count; e++)
        l.at[lump_of[backwards ? in->edges[e].to : in->edges[e].from] + 2]++;
    for (size_t i = 2; i < lumps + 2; i++)
        l.at[i] += l.at[i - 1];
    for (size_t e = 0; e < in->edge_count; e++) {
        size_t a = lump_of[in->edges[e].from], b = lump_of[in->edges[e].to];
        l.to[l.at[(backwards ? b : a) + 1]++] = backwards ? a : b;
    }
    return l;
}

/* Depth first from `from` over what has no mark yet; marks with `mark`, appends in the order in which nodes are left. */
static void visit(const struct links *l, size_t from, size_t *marks, size_t mark, size_t *stack, size_t *next, size_t *order, size_t *count)
{
    size_t depth = 0;
    stack[0] = from;
    marks[from] = mark;
    next[from] = l->at[from];
    for (;;) {
        size_t v = stack[depth];
        if (next[v] < l->at[v + 1]) {
            size_t w = l->to[next[v]++];
            if (!marks[w]) {
                marks[w] = mark;
                next[w] = l->at[w];
                stack[++depth] = w;
            }
            continue;
        }
        order[(*count)++] = v;
        if (!depth--)
            return;
    }
}

/* Groups become lumps, and so does each cycle of these (Kosaraju: strongly connected components come out in topological order). */
static void make_lumps(struct plan_graph *g)
{
    const struct plan_instance *in = g->inst;
    size_t n = in->node_count;
    struct plan_arena *a = &g->arena;
    size_t *up = plan_take(a, n, sizeof *up), *marks = plan_take(a, n, sizeof *marks), *stack = plan_take(a, n, sizeof *stack),
           *next = plan_take(a, n, sizeof *next), *order = plan_take(a, n, sizeof *order), *ends = plan_take(a, n, sizeof *ends);
    g->lump_of = plan_take(a, n, sizeof *g->lump_of);
    if (a->failed)
        return;
    for (size_t i = 0; i < n; i++)
        up[i] = i;
    for (size_t i = 0; i < n; i++) /* graphs have some thousand nodes at most */
        for (size_t k = 0; in->nodes[i].group >= 0 && k < i; k++)
            if (in->nodes[k].group == in->nodes[i].group) {
                up[root(up, i)] = root(up, k);
                break;
            }
    for (size_t i = 0; i < n; i++)
        up[i] = root(up, i);
    struct links forward = links_by(g, up, n, 0), backward = links_by(g, up, n, 1);
    if (a->failed)
        return;
    size_t count = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        if (up[i] == i && !marks[i])
            visit(&forward, i, marks, 1, stack, next, order, &count);
    memset(marks, 0, n * sizeof *marks);
    for (size_t i = count; i-- > 0;)
        if (!marks[order[i]])
            visit(&backward, order[i], marks, ++g->lumps, stack, next, ends, &at);
    for (size_t i = 0; i < n; i++)
        g->lump_of[i] = marks[up[i]] - 1;
    g->words = (g->lumps + 63) / 64;
    g->before = plan_take(a, g->lumps * g->words, sizeof *g->before);
    if (a->failed)
        return;
    for (size_t e = 0; e < in->edge_count; e++) {
        size_t from = g->lump_of[in->edges[e].from], to = g->lump_of[in->edges[e].to];
        if (from != to)
            plan_set(g->before + to * g->words, from);
    }
}

static void make_items(struct plan_graph *g)
{
    const struct plan_instance *in = g->inst;
    size_t *item_of = plan_take(&g->arena, in->node_count, sizeof *item_of);
    g->items = plan_take(&g->arena, in->node_count, sizeof *g->items);
    if (g->arena.failed)
        return;
    for (size_t e = 0; e < in->edge_count; e++) {
        size_t from = in->edges[e].from, to = g->lump_of[in->edges[e].to];
        const struct plan_node *n = &in->nodes[from];
        if (g->lump_of[from] == to)
            continue;
        if (!item_of[from]) {
            struct plan_item *it = &g->items[g->item_count++];
            item_of[from] = g->item_count;
            it->owner = g->lump_of[from];
            it->fixed = n->output_ms >= 0;
            it->bits = n->output_bytes * 8;
            it->ms = it->fixed ? n->output_ms : in->link.bits_per_s > 0 ? it->bits * 1e3 / in->link.bits_per_s + in->link.latency_ms : 0;
            it->readers = plan_take(&g->arena, g->words, sizeof *it->readers);
            if (!it->readers)
                return;
        }
        plan_set(g->items[item_of[from] - 1].readers, to);
    }
}

/* Ideals --------------------------------------------------------------------------------------------------------------------------- */

static int within(const uint64_t *small, const uint64_t *large, size_t words)
{
    for (size_t w = 0; w < words; w++)
        if (small[w] & ~large[w])
            return 0;
    return 1;
}

static size_t hash(const uint64_t *set, size_t words)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (size_t w = 0; w < words; w++) {
        h ^= set[w];
        h *= 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    return (size_t)h;
}

/* Lumps are in topological order, so its prefixes are ideals. */
static void only_prefixes(struct plan_graph *g)
{
    g->cut_short = 1;
    g->ideals = g->lumps + 1;
    memset(g->ideal, 0, g->ideals * g->words * sizeof *g->ideal);
    for (size_t i = 1; i < g->ideals; i++) {
        memcpy(g->ideal + i * g->words, g->ideal + (i - 1) * g->words, g->words * sizeof *g->ideal);
        plan_set(g->ideal + i * g->words, i - 1);
    }
}

static void make_ideals(struct plan_graph *g)
{
    enum { SLOTS = 1 << 13 };
    size_t words = g->words, most = PLAN_MOST_IDEALS > g->lumps + 1 ? PLAN_MOST_IDEALS : g->lumps + 1;
    uint32_t *slots = plan_take(&g->arena, SLOTS, sizeof *slots);
    g->ideal = plan_take(&g->arena, (most + 1) * words, sizeof *g->ideal);
    if (g->arena.failed)
        return;
    g->ideals = 1;
    for (size_t at = 0; at < g->ideals; at++) {
        const uint64_t *now = g->ideal + at * words;
        for (size_t v = 0; v < g->lumps; v++) {
            if (plan_bit(now, v) || !within(g->before + v * words, now, words))
                continue;
            if (g->ideals >= PLAN_MOST_IDEALS) {
                only_prefixes(g);
                return;
            }
            uint64_t *with = g->ideal + g->ideals * words;
            memcpy(with, now, words * sizeof *with);
            plan_set(with, v);
            size_t slot = hash(with, words) % SLOTS;
            while (slots[slot] && memcmp(g->ideal + (size_t)slots[slot] * words, with, words * sizeof *with) != 0)
                slot = (slot + 1) % SLOTS;
            if (!slots[slot])
                slots[slot] = (uint32_t)g->ideals++;
        }
    }
}

static void weigh_ideals(struct plan_graph *g)
{
    const struct plan_instance *in = g->inst;
    size_t kinds = in->kind_count, n = g->ideals;
    g->time = plan_take(&g->arena, kinds * n, sizeof *g->time);
    g->cannot = plan_take(&g->arena, kinds * n, sizeof *g->cannot);
    g->weight = plan_take(&g->arena, n, sizeof *g->weight);
    if (g->arena.failed)
        return;
    for (size_t i = 0; i < n; i++)
        for (size_t v = 0; v < in->node_count; v++) {
            if (!plan_bit(g->ideal + i * g->words, g->lump_of[v]))
                continue;
            g->weight[i] += in->nodes[v].weight_bytes;
            for (size_t k = 0; k < kinds; k++)
                if (isfinite(in->nodes[v].time_ms[k]))
                    g->time[k * n + i] += in->nodes[v].time_ms[k];
                else
                    g->cannot[k * n + i]++;
        }
}

/* Devices -------------------------------------------------------------------------------------------------------------------------- */

static struct plan_link link_of(const struct plan_instance *in, size_t from, size_t to)
{
    return in->links ? in->links[from * in->device_count + to] : in->link;
}

static int same_link(struct plan_link a, struct plan_link b)
{
    return a.bits_per_s == b.bits_per_s && a.latency_ms == b.latency_ms;
}

static int alike(const struct plan_instance *in, size_t a, size_t b)
{
    const struct plan_device *x = &in->devices[a], *y = &in->devices[b];
    if (x->kind != y->kind || x->memory_bytes != y->memory_bytes || !x->free_link != !y->free_link)
        return 0;
    if (!in->links)
        return 1;
    if (!same_link(link_of(in, a, b), link_of(in, b, a)))
        return 0;
    for (size_t d = 0; d < in->device_count; d++)
        if (d != a && d != b && (!same_link(link_of(in, a, d), link_of(in, b, d)) || !same_link(link_of(in, d, a), link_of(in, d, b))))
            return 0;
    return 1;
}

static void make_classes(struct plan_graph *g)
{
    const struct plan_instance *in = g->inst;
    g->classes = plan_take(&g->arena, in->device_count, sizeof *g->classes);
    for (size_t d = 0; d < in->device_count && !g->arena.failed; d++) {
        size_t c = 0;
        while (c < g->class_count && !alike(in, g->classes[c].devices[0], d))
            c++;
        struct plan_class *k = &g->classes[c];
        if (c == g->class_count) {
            g->class_count++;
            const struct plan_device *x = &in->devices[d];
            *k = (struct plan_class){.kind = x->kind, .memory = x->memory_bytes ? x->memory_bytes : UINT64_MAX, .free_link = x->free_link};
            k->devices = plan_take(&g->arena, in->device_count, sizeof *k->devices);
            if (!k->devices)
                return;
        }
        k->devices[k->count++] = d;
    }
}

/* What stages cost ----------------------------------------------------------------------------------------------------------------- */

struct alive { /* items that are alive at each ideal */
    size_t *at, *items;
};

static struct alive find_alive(struct plan_graph *g)
{
    struct alive l = {plan_take(&g->arena, g->ideals + 1, sizeof(size_t)), NULL};
    size_t total = 0;
    for (int fill = 0; fill < 2 && !g->arena.failed; fill++) {
        size_t n = 0;
        for (size_t i = 0; i < g->ideals; i++) {
            const uint64_t *now = g->ideal + i * g->words;
            l.at[i] = n;
            for (size_t k = 0; k < g->item_count; k++) {
                if (!plan_bit(now, g->items[k].owner) || within(g->items[k].readers, now, g->words))
                    continue;
                if (fill)
                    l.items[n] = k;
                n++;
            }
        }
        l.at[g->ideals] = total = n;
        if (!fill)
            l.items = plan_take(&g->arena, total + 1, sizeof *l.items);
    }
    return l;
}

static int meets(const uint64_t *a, const uint64_t *in, const uint64_t *not_in, size_t words)
{
    for (size_t w = 0; w < words; w++)
        if (a[w] & in[w] & ~not_in[w])
            return 1;
    return 0;
}

static void make_pairs(struct plan_graph *g)
{
    struct alive l = find_alive(g);
    size_t n = 0;
    for (int fill = 0; fill < 2 && !g->arena.failed; fill++) {
        n = 0;
        for (size_t j = 0; j < g->ideals; j++) {
            const uint64_t *from = g->ideal + j * g->words;
            if (fill)
                g->pair_at[j] = n;
            for (size_t i = j + 1; i < g->ideals; i++) {
                const uint64_t *to = g->ideal + i * g->words;
                if (!within(from, to, g->words))
                    continue;
                if (fill) {
                    struct plan_pair p = {.to = (uint32_t)i};
                    for (size_t k = l.at[j]; k < l.at[j + 1]; k++)
                        if (meets(g->items[l.items[k]].readers, to, from, g->words))
                            p.in += g->items[l.items[k]].ms;
                    for (size_t k = l.at[i]; k < l.at[i + 1]; k++)
                        if (!plan_bit(from, g->items[l.items[k]].owner))
                            p.out += g->items[l.items[k]].ms;
                    g->pairs[n] = p;
                }
                n++;
            }
        }
        if (!fill) {
            g->pairs = plan_take(&g->arena, n + 1, sizeof *g->pairs);
            g->pair_at = plan_take(&g->arena, g->ideals + 1, sizeof *g->pair_at);
        }
    }
    if (g->arena.failed)
        return;
    g->pair_at[g->ideals] = n;
    g->effort += n * 8;
    if (!g->inst->links)
        return;
    size_t c = g->class_count;
    g->hop = plan_take(&g->arena, c * c * g->ideals, sizeof *g->hop);
    for (size_t a = 0; a < c * c && !g->arena.failed; a++) {
        const struct plan_class *x = &g->classes[a / c], *y = &g->classes[a % c];
        struct plan_link link = link_of(g->inst, x->devices[0], x == y && x->count > 1 ? y->devices[1] : y->devices[0]);
        for (size_t i = 0; i < g->ideals; i++)
            for (size_t k = l.at[i]; k < l.at[i + 1]; k++) {
                const struct plan_item *it = &g->items[l.items[k]];
                g->hop[a * g->ideals + i] += it->fixed ? it->ms : link.bits_per_s > 0 ? it->bits * 1e3 / link.bits_per_s + link.latency_ms : 0;
            }
    }
}

void plan_load_parts(const struct plan_graph *g, uint32_t c, size_t j, const struct plan_pair *pair, uint32_t before, uint32_t behind, double *compute,
                     double *in, double *out)
{
    const struct plan_class *k = &g->classes[c];
    size_t n = g->ideals, i = pair->to;
    *in = *out = 0;
    if (g->cannot[k->kind * n + i] != g->cannot[k->kind * n + j] || g->weight[i] - g->weight[j] > k->memory) {
        *compute = INFINITY;
        return;
    }
    *compute = g->time[k->kind * n + i] - g->time[k->kind * n + j];
    if (k->free_link)
        return;
    if (!g->hop) {
        *in = pair->in;
        *out = pair->out;
        return;
    }
    if (before != PLAN_NOBODY)
        *in = g->hop[(before * g->class_count + c) * n + j];
    if (behind != PLAN_NOBODY)
        *out = g->hop[(c * g->class_count + behind) * n + i];
}

double plan_load(const struct plan_graph *g, uint32_t c, size_t j, const struct plan_pair *pair, uint32_t before, uint32_t behind)
{
    double compute, in, out;
    plan_load_parts(g, c, j, pair, before, behind, &compute, &in, &out);
    if (!g->inst->overlap)
        return compute + in + out;
    return compute > in ? compute > out ? compute : out : in > out ? in : out;
}

/* -- */

static enum status check(const struct plan_instance *in, struct err *e)
{
    if (!in->node_count || !in->device_count || !in->kind_count)
        return err_set(e, ST_USER, "a plan needs at least one node and one device");
    for (size_t i = 0; i < in->edge_count; i++)
        if (in->edges[i].from >= in->node_count || in->edges[i].to >= in->node_count)
            return err_set(e, ST_USER, "edge %zu leads to no node", i);
    for (size_t d = 0; d < in->device_count; d++)
        if (in->devices[d].kind >= in->kind_count)
            return err_set(e, ST_USER, "device '%s' is of no known kind", in->devices[d].name);
    for (size_t i = 0; i < in->node_count; i++) {
        const struct plan_node *n = &in->nodes[i];
        int runs = 0, fits = 0;
        for (uint32_t k = 0; k < in->kind_count; k++)
            if (isnan(n->time_ms[k]) || n->time_ms[k] < 0)
                return err_set(e, ST_USER, "node %" PRIu64 " ('%s') has a time that is no time", n->id, n->name);
        for (size_t d = 0; d < in->device_count; d++) {
            int can = isfinite(n->time_ms[in->devices[d].kind]);
            runs |= can;
            fits |= can && (!in->devices[d].memory_bytes || n->weight_bytes <= in->devices[d].memory_bytes);
        }
        if (!runs)
            return err_set(e, ST_USER, "node %" PRIu64 " ('%s') can run on none of the devices", n->id, n->name);
        if (!fits)
            return err_set(e, ST_USER, "node %" PRIu64 " ('%s') has %" PRIu64 " bytes of weights, more than any device on which it can run", n->id, n->name,
                           n->weight_bytes);
    }
    return ST_OK;
}

enum status plan_graph_init(struct plan_graph *g, const struct plan_instance *inst, struct err *e)
{
    *g = (struct plan_graph){.inst = inst};
    TRY(check(inst, e));
    void (*const steps[])(struct plan_graph *) = {make_lumps, make_items, make_ideals, weigh_ideals, make_classes, make_pairs};
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !g->arena.failed; i++)
        steps[i](g);
    if (!g->arena.failed)
        return ST_OK;
    plan_graph_release(g);
    return err_nomem(e, "a plan");
}

void plan_graph_release(struct plan_graph *g)
{
    plan_drop(&g->arena);
}
