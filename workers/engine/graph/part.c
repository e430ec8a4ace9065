#include "workers/engine/graph/part.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "workers/engine/graph/batch.h"
#include "workers/engine/graph/inner.h"
#include "workers/engine/graph/pack.h"

/* How records lie in values ------------------------------------------------------------------------------------------------------------------ */

/* Sizes that follow from those of the inputs are known once these are. */
static int sizes_follow(const struct graph *g, const struct type *t, const int64_t *known, uint32_t symbols)
{
    int64_t count = 1;
    if (t->kind != VALUE_TENSOR || t->rank < 0 || !t->values)
        return 0;
    for (int i = 0; i < t->rank; i++) {
        if (!dim_known(t->dims[i]))
            return 0;
        count *= t->dims[i];
    }
    for (int64_t i = 0; i < count; i++)
        if (dim_value(g->syms, t->values[i], known, symbols) == DIM_UNKNOWN)
            return 0;
    return 1;
}

static int open_only_at(const struct type *t, int a, int b)
{
    for (int i = 0; i < t->rank; i++)
        if (!dim_known(t->dims[i]) && i != a && i != b)
            return 0;
    return t->rank > a && t->rank > b;
}

static struct belonging of_packed(const struct type *t, enum packed_kind kind, dim length)
{
    struct belonging b = {BELONGS_UNKNOWN, 0};
    if (kind == PACKED_SAME)
        b.kind = BELONGS_ALL;
    else if (kind == PACKED_TOKENS && open_only_at(t, 0, 1))
        b = (struct belonging){BELONGS_TOKENS, 1};
    else if (kind == PACKED_SEQS && open_only_at(t, 0, 0))
        b.kind = BELONGS_RECORDS;
    else if (kind == PACKED_SIZES)
        b.kind = BELONGS_SIZES;
    else if (kind == PACKED_PLACE_SIZES)
        b.kind = BELONGS_PLACE_SIZES;
    else if (kind == PACKED_PLACES) {
        b.kind = BELONGS_PLACES;
        for (int i = 0; i < t->rank; i++)
            if (!dim_known(t->dims[i]) && t->dims[i] != length)
                b.kind = BELONGS_UNKNOWN;
    }
    return b;
}

static struct belonging of_equal(int axis)
{
    if (axis >= 0)
        return (struct belonging){BELONGS_RECORDS, (uint8_t)axis};
    return (struct belonging){axis == BATCH_SAME ? BELONGS_ALL : axis == BATCH_SIZES ? BELONGS_SIZES : BELONGS_UNKNOWN, 0};
}

static enum status fill_belongings(const struct graph *g, enum part_sharing sharing, enum packed_kind *packed, int *axis, int64_t *known, struct belonging *of,
                                   uint8_t *stays, struct err *e)
{
    int r = sharing == PART_PACKED ? pack_values(g, packed) : sharing == PART_EQUAL ? batch_values(g, axis) : 1;
    if (r < 0)
        return err_nomem(e, "a part");
    BUG_IF(r == 0, "parts of a graph whose records are not apart");
    uint32_t symbols = syms_count(g->syms);
    for (uint32_t i = 0; i < symbols; i++)
        known[i] = DIM_UNKNOWN;
    for (uint32_t i = 0; i < g->n_in; i++)
        for (int k = 0; k < g->values[g->in[i]].type.rank; k++) {
            int s = dim_symbol(g->syms, g->values[g->in[i]].type.dims[k]);
            if (s >= 0)
                known[s] = 3;
        }
    for (uint32_t v = 0; v < g->n_values; v++) {
        const struct type *t = &g->values[v].type;
        of[v] = (struct belonging){BELONGS_ALL, 0};
        if (sharing == PART_PACKED)
            of[v] = of_packed(t, packed[v], g->values[g->in[0]].type.dims[1]);
        else if (sharing == PART_EQUAL)
            of[v] = of_equal(axis[v]);
        int sizes = of[v].kind == BELONGS_SIZES || of[v].kind == BELONGS_PLACE_SIZES;
        stays[v] = of[v].kind == BELONGS_UNKNOWN || (sizes && !sizes_follow(g, t, known, symbols));
    }
    return ST_OK;
}

enum status part_belongings(const struct graph *g, enum part_sharing sharing, struct belonging **out, uint8_t **stays, struct err *e)
{
    enum packed_kind *packed = mem_array(g->n_values + 1, sizeof *packed);
    int *axis = mem_array(g->n_values + 1, sizeof *axis);
    int64_t *known = mem_array(syms_count(g->syms) + 1, sizeof *known);
    struct belonging *of = mem_array(g->n_values + 1, sizeof *of);
    uint8_t *stay = mem_array(g->n_values + 1, 1);
    enum status st = packed && axis && known && of && stay ? fill_belongings(g, sharing, packed, axis, known, of, stay, e) : err_nomem(e, "a part");
    mem_free(packed);
    mem_free(axis);
    mem_free(known);
    if (st == ST_OK) {
        *out = of;
        *stays = stay;
        return ST_OK;
    }
    mem_free(of);
    mem_free(stay);
    return st;
}

/* Cuts ------------------------------------------------------------------------------------------------------------------------------------------ */

void part_edge_release(struct part_edge *p)
{
    mem_free(p->list);
    *p = (struct part_edge){0};
}

void graph_part_release(struct graph_part *p)
{
    part_edge_release(&p->before);
    part_edge_release(&p->behind);
}

static uint64_t check_of(const struct graph *g, const struct part_edge *p, uint32_t at)
{
    uint64_t h = XXH3_64bits_withSeed(&at, sizeof at, g->n_nodes);
    for (uint32_t i = 0; i < p->count; i++) {
        const struct graph_value *v = &g->values[p->list[i].value];
        char text[160];
        h = XXH3_64bits_withSeed(v->name, strlen(v->name), h);
        h = XXH3_64bits_withSeed(text, (size_t)snprintf(text, sizeof text, "%d/%d/%d/%d", (int)v->type.dtype, v->type.rank, p->list[i].belongs.kind, p->list[i].belongs.axis), h);
        for (int k = 0; k < v->type.rank; k++) {
            const char *d = dim_text(g->syms, v->type.dims[k], text, sizeof text);
            h = XXH3_64bits_withSeed(d, strlen(d), h);
        }
    }
    return h;
}

/* What is made before node `at`, or given to the first part alone, and needed from there on. */
static enum status find_edge(const struct graph *g, const struct cutting *c, const uint8_t *cheap, const struct belonging *of, uint32_t at, struct part_edge *out,
                             struct err *e)
{
    uint8_t *needed = mem_array(g->n_values + 1, 1);
    *out = (struct part_edge){.list = mem_array(g->n_values + 1, sizeof *out->list)};
    if (!needed || !out->list) {
        mem_free(needed);
        part_edge_release(out);
        return err_nomem(e, "a part");
    }
    for (uint32_t i = at; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_in; k++)
            if (g->nodes[i]->in[k] >= 0)
                needed[g->nodes[i]->in[k]] = 1;
    for (uint32_t i = 0; i < g->n_out; i++)
        needed[g->out[i]] = 1;
    for (uint32_t v = 0; v < g->n_values; v++) {
        if (!needed[v] || cheap[v] || g->values[v].producer >= (int32_t)at)
            continue;
        BUG_IF(!graph_can_cross(g, c, (int32_t)v), "'%s' would cross a cut", g->values[v].name);
        out->list[out->count++] = (struct part_value){(int32_t)v, of[v]};
    }
    out->check = check_of(g, out, at);
    mem_free(needed);
    return ST_OK;
}

/* The nodes of a part, and those cheap ones that it needs. */
static void find_needed(const struct graph *g, const uint8_t *cheap, uint32_t first, uint32_t end, uint8_t *needed)
{
    for (uint32_t i = first; i < end; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            needed[i] |= g->nodes[i]->out[k] >= 0 && !cheap[g->nodes[i]->out[k]];
    for (uint32_t i = 0; i < g->n_out && first < end && end == g->n_nodes; i++)
        if (cheap[g->out[i]] && g->values[g->out[i]].producer >= 0)
            needed[g->values[g->out[i]].producer] = 1;
    for (uint32_t i = g->n_nodes; i-- > 0;)
        for (uint32_t k = 0; needed[i] && k < g->nodes[i]->n_in; k++) {
            int32_t v = g->nodes[i]->in[k];
            if (v >= 0 && cheap[v] && g->values[v].producer >= 0)
                needed[g->values[v].producer] = 1;
        }
}

static int set_list(int32_t **list, size_t *cap, uint32_t *count, uint32_t keep, const struct part_edge *p)
{
    int32_t *to = mem_array(keep + p->count + 1, sizeof *to);
    if (!to)
        return -1;
    if (keep)
        memcpy(to, *list, keep * sizeof *to);
    for (uint32_t i = 0; i < p->count; i++)
        to[keep + i] = p->list[i].value;
    mem_free(*list);
    *list = to;
    *cap = keep + p->count + 1;
    *count = keep + p->count;
    return 0;
}

/* Nodes that are not needed go, and constants that nobody needs then. */
static uint64_t shrink(struct graph *g, const uint8_t *needed)
{
    uint32_t kept = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (needed[i])
            g->nodes[kept++] = g->nodes[i];
        else
            node_free(g->nodes[i]);
    g->n_nodes = kept;
    for (uint32_t v = 0; v < g->n_values; v++) {
        g->values[v].uses = 0;
        g->values[v].producer = -1;
    }
    for (uint32_t i = 0; i < g->n_out; i++)
        g->values[g->out[i]].uses++;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        for (uint32_t k = 0; k < g->nodes[i]->n_in; k++)
            if (g->nodes[i]->in[k] >= 0)
                g->values[g->nodes[i]->in[k]].uses++;
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            if (g->nodes[i]->out[k] >= 0)
                g->values[g->nodes[i]->out[k]].producer = (int32_t)i;
    }
    for (uint32_t v = 0; v < g->n_values; v++) {
        struct tensor *t = &g->values[v].constant;
        if (t->buffer && !g->values[v].uses)
            tensor_release(t);
        else if (t->buffer)
            bytes += (uint64_t)tensor_count(t) * dtype_bytes(t->dtype);
    }
    return bytes;
}

enum status graph_keep_part(struct graph *g, const struct cutting *c, const struct belonging *of, uint32_t first, uint32_t end, struct graph_part *out, struct err *e)
{
    struct graph_part p = {.first = first, .end = end};
    uint8_t *cheap = NULL, *needed = mem_array(g->n_nodes + 1, 1);
    BUG_IF(first > end || end > g->n_nodes, "nodes %u to %u of %u", first, end, g->n_nodes);
    enum status st = needed ? graph_cheap(g, c, &cheap, e) : err_nomem(e, "a part");
    int later = first > 0, last = end == g->n_nodes;
    if (st == ST_OK && first < end && later)
        st = find_edge(g, c, cheap, of, first, &p.before, e);
    if (st == ST_OK && first < end && !last)
        st = find_edge(g, c, cheap, of, end, &p.behind, e);
    if (st == ST_OK)
        find_needed(g, cheap, first, end, needed);
    mem_free(cheap);
    if (st == ST_OK && set_list(&g->in, &g->in_cap, &g->n_in, later && c->first_alone && first < end ? 0 : g->n_in, &p.before) != 0)
        st = err_nomem(e, "a part");
    if (st == ST_OK)
        g->n_taken = p.before.count;
    if (st == ST_OK && set_list(&g->out, &g->out_cap, &g->n_out, last && first < end ? g->n_out : 0, &p.behind) != 0)
        st = err_nomem(e, "a part");
    if (st == ST_OK)
        p.weight_bytes = shrink(g, needed);
    mem_free(needed);
    if (st == ST_OK)
        *out = p;
    else
        graph_part_release(&p);
    return st;
}
