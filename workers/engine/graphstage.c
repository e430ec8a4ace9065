/* Stages of ONNX models: what crosses a cut is written behind a run, and read, checked and given to the run of the next stage.

   Where a run of several records does not go through, each goes alone: its part of what was taken is cut out then (part.h tells where it lies), and sizes are those
   that it has alone. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/carry.h"
#include "workers/engine/graphinner.h"

/* Sizes ------------------------------------------------------------------------------------------------------------------------------------ */

static void forget(struct graph_lane *l)
{
    for (uint32_t i = 0; i < syms_count(l->m->g->syms); i++)
        l->size[i] = DIM_UNKNOWN;
}

static int is_packed(const struct graph_lane *l)
{
    return l->m->info.sharing == SHARING_PACKED;
}

void graph_lane_know_texts(struct graph_lane *l, uint32_t n, uint32_t tokens, uint32_t length)
{
    forget(l);
    if (l->m->batch >= 0)
        l->size[l->m->batch] = is_packed(l) ? 1 : n;
    if (l->m->length >= 0)
        l->size[l->m->length] = is_packed(l) ? tokens : length;
}

void graph_lane_know(struct graph_lane *l, uint32_t n, const struct array *in)
{
    const struct graph *g = l->m->g;
    forget(l);
    for (uint32_t i = 0; i < l->m->own; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        int lead = l->m->info.batched;
        for (int k = 0; k < t->rank; k++) {
            int s = dim_symbol(g->syms, t->dims[k]);
            if (s >= 0 && (k < lead || (uint32_t)(k - lead) < in[i].rank))
                l->size[s] = k < lead ? n : in[i].dims[k - lead];
        }
    }
}

/* Of axis k of a value that crosses; DIM_UNKNOWN: only running tells. */
static int64_t expected(const struct graph_lane *l, const struct part_value *p, int k, uint32_t n, uint32_t longest)
{
    const struct graph *g = l->m->g;
    dim d = g->values[p->value].type.dims[k];
    if (dim_known(d))
        return d;
    if (is_packed(l) && p->belongs.kind == BELONGS_RECORDS && k == 0)
        return n;
    if (is_packed(l) && p->belongs.kind == BELONGS_PLACES)
        return longest;
    return dim_value(g->syms, d, l->size, syms_count(g->syms));
}

static enum status check(struct graph_lane *l, uint32_t j, uint32_t n, uint32_t longest, struct err *e)
{
    const struct graph *g = l->m->g;
    const struct part_value *p = &l->m->stage.before.list[j];
    const struct graph_value *v = &g->values[p->value];
    const struct array *a = &l->taken[j];
    if (a->dtype != v->type.dtype || (v->type.rank >= 0 && (uint32_t)v->type.rank != a->rank))
        return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: '%.200s' is %s of rank %u, not %s of rank %d", v->name, dtype_name(a->dtype), a->rank,
                       dtype_name(v->type.dtype), v->type.rank);
    for (int k = 0; k < v->type.rank; k++) {
        int64_t want = expected(l, p, k, n, longest);
        int s = dim_symbol(g->syms, v->type.dims[k]);
        if (want == DIM_UNKNOWN && s >= 0) /* one size wherever it comes again */
            l->size[s] = a->dims[k];
        else if (want != DIM_UNKNOWN && want != a->dims[k])
            return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: '%.200s' has size %lld along axis %d, not %lld", v->name, (long long)a->dims[k], k,
                           (long long)want);
    }
    return ST_OK;
}

/* Taking -------------------------------------------------------------------------------------------------------------------------------------- */

static uint32_t longest_of(uint32_t n, const uint32_t *lengths)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n && lengths; i++)
        longest = lengths[i] > longest ? lengths[i] : longest;
    return longest;
}

static enum status know(struct graph_lane *l, struct carry_in *in, uint32_t n, const uint32_t *lengths, struct err *e)
{
    const struct graph_model *m = l->m;
    uint32_t tokens = 0, fill = m->fill;
    if (n > 1 && m->info.sharing == SHARING_NONE)
        return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: %u records share a run of a model that takes one", n);
    if (lengths) {
        for (uint32_t i = 0; i < n; i++)
            tokens += lengths[i];
        graph_lane_know_texts(l, n, tokens, fill ? fill : lengths[0]);
        return ST_OK;
    }
    forget(l);
    for (uint32_t i = 0; i < m->n_open; i++) {
        TRY(carry_read_sizes(in, 1, &l->size[m->open[i]], e));
        if (m->open[i] == m->batch && l->size[m->open[i]] != n)
            return err_set(e, ST_CORRUPT, "what came from the stage before is damaged: a batch of %lld is said to be of %u records", (long long)l->size[m->open[i]], n);
    }
    return ST_OK;
}

enum status graph_lane_take(struct graph_lane *l, struct carry_in *in, uint32_t n, const uint32_t *lengths, struct err *e)
{
    const struct part_edge *p = &l->m->stage.before;
    l->given = NULL;
    TRY(know(l, in, n, lengths, e));
    for (uint32_t j = 0; j < p->count; j++) {
        void *to;
        TRY(carry_read_tensor(in, l->m->g->values[p->list[j].value].name, &l->taken[j], e));
        TRY(check(l, j, n, longest_of(n, lengths), e));
        TRY(graph_lane_room(&l->taken_room[j], carry_bytes(&l->taken[j]), &to, e));
        carry_unpack(&l->taken[j], to);
        l->taken[j].data = to;
    }
    l->taken_records = n;
    l->given = l->taken;
    return ST_OK;
}

enum status graph_lane_take_nothing(struct graph_lane *l, uint32_t length, struct err *e)
{
    const struct graph_model *m = l->m;
    const struct part_edge *p = &m->stage.before;
    graph_lane_know_texts(l, 1, length, m->fill ? m->fill : length);
    for (uint32_t j = 0; j < p->count; j++) {
        const struct graph_value *v = &m->g->values[p->list[j].value];
        struct array *a = &l->taken[j];
        *a = (struct array){.dtype = v->type.dtype, .rank = v->type.rank < 0 ? 0 : (uint32_t)v->type.rank};
        int known = v->type.rank >= 0;
        for (int k = 0; k < v->type.rank; k++)
            known &= (a->dims[k] = expected(l, &p->list[j], k, 1, length)) != DIM_UNKNOWN;
        int64_t bytes = known ? tensor_size(a->dtype, a->rank, a->dims) : -1;
        if (bytes < 0)
            return err_set(e, ST_USER, "only running it tells the sizes of '%s'", v->name);
        void *to;
        TRY(graph_lane_room(&l->taken_room[j], (size_t)bytes, &to, e));
        memset(to, 0, (size_t)bytes);
        a->data = to;
    }
    l->taken_records = 1;
    l->given = l->taken;
    return ST_OK;
}

/* Of `to`, only [start, start + count) along axis k stays. */
static void narrow(struct array *a, char *to, int k, int64_t start, int64_t count)
{
    size_t outer = 1, inner = dtype_bytes(a->dtype), size = (size_t)a->dims[k];
    for (int i = 0; i < k; i++)
        outer *= (size_t)a->dims[i];
    for (uint32_t i = (uint32_t)k + 1; i < a->rank; i++)
        inner *= (size_t)a->dims[i];
    BUG_IF(start < 0 || count < 0 || (size_t)(start + count) > size, "rows %lld to %lld of %zu", (long long)start, (long long)(start + count), size);
    for (size_t o = 0; o < outer; o++) /* towards the front, so that nothing is written over before it was read */
        memmove(to + o * (size_t)count * inner, to + (o * size + (size_t)start) * inner, (size_t)count * inner);
    a->dims[k] = count;
}

static void put_size(enum dtype d, void *to, size_t at, int64_t x)
{
    switch (dtype_bytes(d)) {
    case 1:
        ((uint8_t *)to)[at] = (uint8_t)x;
        break;
    case 2:
        ((uint16_t *)to)[at] = (uint16_t)x;
        break;
    case 4:
        ((uint32_t *)to)[at] = (uint32_t)x;
        break;
    default:
        ((int64_t *)to)[at] = x;
    }
}

enum status graph_lane_take_one(struct graph_lane *l, uint32_t r, uint32_t start, uint32_t length, struct err *e)
{
    const struct graph_model *m = l->m;
    const struct graph *g = m->g;
    const struct part_edge *p = &m->stage.before;
    int64_t batch = m->batch >= 0 ? l->size[m->batch] : 0, tokens = m->length >= 0 ? l->size[m->length] : 0;
    for (uint32_t j = 0; j < p->count; j++) {
        const struct type *t = &g->values[p->list[j].value].type;
        struct belonging b = p->list[j].belongs;
        struct array *a = &l->alone[j];
        void *to;
        *a = l->taken[j];
        if (b.kind == BELONGS_ALL)
            continue;
        size_t bytes = carry_bytes(a);
        TRY(graph_lane_room(&l->alone_room[j], bytes, &to, e));
        if (bytes)
            memcpy(to, a->data, bytes);
        a->data = to;
        if (b.kind == BELONGS_RECORDS)
            narrow(a, to, b.axis, r, 1);
        else if (b.kind == BELONGS_TOKENS)
            narrow(a, to, b.axis, start, length);
        for (int k = 0; b.kind == BELONGS_PLACES && k < t->rank; k++)
            if (!dim_known(t->dims[k]))
                narrow(a, to, k, 0, length);
        if (b.kind != BELONGS_SIZES && b.kind != BELONGS_PLACE_SIZES)
            continue;
        if (m->batch >= 0)
            l->size[m->batch] = 1;
        if (m->length >= 0 && is_packed(l))
            l->size[m->length] = length;
        for (size_t i = 0; i < bytes / dtype_bytes(a->dtype); i++)
            put_size(a->dtype, to, i, dim_value(g->syms, t->values[i], l->size, syms_count(g->syms)));
        if (m->batch >= 0)
            l->size[m->batch] = batch;
        if (m->length >= 0)
            l->size[m->length] = tokens;
    }
    l->given = l->alone;
    return ST_OK;
}

enum status graph_lane_give(struct graph_lane *l, struct err *e)
{
    uint32_t count = l->m->stage.before.count;
    BUG_IF(count && !l->given, "a stage runs without what crosses the cut before it");
    for (uint32_t j = 0; j < count; j++)
        TRY(run_set(l->run, l->m->own + j, l->given[j].dtype, l->given[j].rank, l->given[j].dims, l->given[j].data, e));
    return ST_OK;
}

enum status graph_lane_resume(struct graph_lane *l, struct err *e)
{
    const struct graph_model_info *m = &l->m->info;
    TRY(graph_lane_give(l, e));
    l->records = l->given == l->alone ? 1 : l->taken_records;
    l->tokens = 0;
    run_pack(l->run, NULL);
    TRY(run_graph(l->run, e));
    for (uint32_t o = 0; l->records > 1 && o < m->n_out && l->m->last; o++) {
        const struct tensor *t = &run_result(l->run, o)->tensor;
        if (t->rank < 1 || t->dims[0] != l->records)
            return err_set(e, ST_USER, "output '%s' does not have a part for each record", m->out[o].name);
    }
    return ST_OK;
}

/* Giving ---------------------------------------------------------------------------------------------------------------------------------------- */

enum status graph_lane_carry(const struct graph_lane *l, struct carry_out *out, struct err *e)
{
    const struct graph_model *m = l->m;
    for (uint32_t i = 0; i < m->n_open && !m->info.text; i++) {
        int64_t size = m->open[i] == m->batch ? l->records : l->size[m->open[i]];
        TRY(carry_sizes(out, 1, &size, e));
    }
    for (uint32_t j = 0; j < m->stage.behind.count; j++) {
        const struct tensor *t = &run_result(l->run, j)->tensor;
        struct array a = {.dtype = t->dtype, .rank = t->rank, .data = tensor_data(t)};
        memcpy(a.dims, t->dims, t->rank * sizeof *t->dims);
        TRY(carry_tensor(out, &a, e));
    }
    return ST_OK;
}
