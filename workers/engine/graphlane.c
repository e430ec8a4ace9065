/* A lane of an ONNX model: records become inputs of a run, results are theirs again. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graphinner.h"

enum status graph_lane_new(const struct graph_model *m, struct graph_lane **out, struct err *e)
{
    struct graph_lane *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a lane");
    l->m = m;
    size_t taken = m->stage.before.count + 1;
    l->size = mem_array(syms_count(m->g->syms) + 1, sizeof *l->size);
    l->taken = mem_array(taken, sizeof *l->taken);
    l->alone = mem_array(taken, sizeof *l->alone);
    l->taken_room = mem_array(taken, sizeof *l->taken_room);
    l->alone_room = mem_array(taken, sizeof *l->alone_room);
    enum status st = l->size && l->taken && l->alone && l->taken_room && l->alone_room ? run_new(m->g, &l->run, e) : err_nomem(e, "a lane");
    if (st != ST_OK) {
        graph_lane_free(l);
        return st;
    }
    *out = l;
    return ST_OK;
}

void graph_lane_free(struct graph_lane *l)
{
    if (!l)
        return;
    run_free(l->run);
    for (uint32_t i = 0; i < PORTS_MAX; i++)
        mem_free(l->stack[i].data);
    for (uint32_t i = 0; i < l->m->stage.before.count; i++) {
        if (l->taken_room)
            mem_free(l->taken_room[i].data);
        if (l->alone_room)
            mem_free(l->alone_room[i].data);
    }
    mem_free(l->size);
    mem_free(l->taken);
    mem_free(l->alone);
    mem_free(l->taken_room);
    mem_free(l->alone_room);
    mem_free(l);
}

size_t graph_lane_bytes(const struct graph_lane *l)
{
    size_t n = run_bytes(l->run);
    for (uint32_t i = 0; i < PORTS_MAX; i++)
        n += l->stack[i].cap;
    for (uint32_t i = 0; i < l->m->stage.before.count; i++)
        n += l->taken_room[i].cap + l->alone_room[i].cap;
    return n;
}

enum status graph_lane_room(struct lane_room *room, size_t bytes, void **out, struct err *e)
{
    if (room->cap < bytes || !room->data) {
        void *data = mem_aligned(bytes + bytes / 2 + 1);
        if (!data)
            return err_nomem(e, "a lane's inputs");
        mem_free(room->data);
        room->data = data;
        room->cap = bytes + bytes / 2 + 1;
    }
    *out = room->data;
    return ST_OK;
}

static int same_sizes(const struct array *a, const struct array *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

enum status graph_lane_run(struct graph_lane *l, uint32_t n, const struct array *in, struct err *e)
{
    const struct graph_model_info *m = &l->m->info;
    BUG_IF(n == 0 || (n > 1 && m->sharing != SHARING_EQUAL), "%u records in one run", n);
    BUG_IF(l->m->stage.before.count, "records are given to a stage that is not the first");
    for (uint32_t i = 0; i < m->n_in; i++) {
        const struct array *a = &in[i];
        int64_t dims[ARRAY_RANK_MAX + 1];
        uint32_t rank = a->rank, lead = m->batched ? 1 : 0;
        if (rank + lead > ARRAY_RANK_MAX)
            return err_set(e, ST_USER, "input '%s' has rank %u", m->in[i].name, rank);
        dims[0] = n;
        memcpy(dims + lead, a->dims, rank * sizeof *dims);
        int64_t bytes = tensor_size(a->dtype, rank, a->dims);
        if (bytes < 0)
            return err_set(e, ST_USER, "input '%s' has sizes that cannot be", m->in[i].name);
        const void *data = a->data;
        if (n > 1) {
            void *to;
            TRY(graph_lane_room(&l->stack[i], (size_t)bytes * n, &to, e));
            for (uint32_t r = 0; r < n; r++) {
                const struct array *x = &in[(size_t)r * m->n_in + i];
                BUG_IF(!same_sizes(x, a) || x->dtype != a->dtype, "records of unlike sizes in one run");
                if (bytes)
                    memcpy((char *)to + (size_t)bytes * r, x->data, (size_t)bytes);
            }
            data = to;
        }
        TRY(run_set(l->run, i, a->dtype, rank + lead, dims, data, e));
    }
    l->records = n;
    l->tokens = 0;
    graph_lane_know(l, n, in);
    run_pack(l->run, NULL);
    TRY(run_graph(l->run, e));
    for (uint32_t o = 0; n > 1 && o < m->n_out && l->m->last; o++) {
        const struct tensor *t = &run_result(l->run, o)->tensor;
        BUG_IF(t->rank < 1 || t->dims[0] != n, "output '%s' does not have a part for each record", m->out[o].name);
    }
    return ST_OK;
}

void graph_lane_result(const struct graph_lane *l, uint32_t o, uint32_t r, struct array *out)
{
    const struct tensor *t = &run_result(l->run, o)->tensor;
    /* alone, a record's first axis is its batch where the output has it: it is 1 then */
    uint32_t lead = l->m->info.batched && t->rank > 0 && t->dims[0] == l->records ? 1 : 0;
    *out = (struct array){.dtype = t->dtype, .rank = t->rank - lead};
    memcpy(out->dims, t->dims + lead, out->rank * sizeof *out->dims);
    int64_t count = 1;
    for (uint32_t i = 0; i < out->rank; i++)
        count *= out->dims[i];
    out->data = (const char *)tensor_data(t) + (lead ? (size_t)(count * r) * dtype_bytes(t->dtype) : 0);
}

/* Texts ----------------------------------------------------------------------------------------------------------------------------------------- */

static void put(enum dtype d, void *to, size_t at, int64_t x)
{
    switch (d) {
    case DT_I32:
        ((int32_t *)to)[at] = (int32_t)x;
        break;
    case DT_F32:
        ((float *)to)[at] = (float)x;
        break;
    case DT_F64:
        ((double *)to)[at] = (double)x;
        break;
    case DT_F16:
        ((uint16_t *)to)[at] = f32_to_f16((float)x);
        break;
    case DT_BF16:
        ((uint16_t *)to)[at] = f32_to_bf16((float)x);
        break;
    default:
        dtype_bytes(d) == 1 ? (void)(((uint8_t *)to)[at] = (uint8_t)x) : dtype_bytes(d) == 2 ? (void)(((uint16_t *)to)[at] = (uint16_t)x)
        : dtype_bytes(d) == 4 ? (void)(((uint32_t *)to)[at] = (uint32_t)x) : (void)(((int64_t *)to)[at] = x);
    }
}

enum status graph_lane_texts(struct graph_lane *l, uint32_t n, const uint32_t *lengths, const int32_t *ids, const uint8_t *types, uint32_t fill, struct err *e)
{
    const struct graph_model *m = l->m;
    int packed = m->info.sharing == SHARING_PACKED;
    uint32_t tokens = 0, length = fill ? fill : lengths[0];
    for (uint32_t i = 0; i < n; i++) {
        BUG_IF(!packed && (n > 1 && (m->info.sharing == SHARING_NONE || (!fill && lengths[i] != length))), "texts of unlike lengths in one run");
        BUG_IF(fill && lengths[i] > fill, "a text of %u tokens for a model of %u", lengths[i], fill);
        tokens += packed ? lengths[i] : length;
    }
    for (uint32_t i = 0; i < m->info.n_in; i++) {
        enum dtype d = m->info.in[i].dtype;
        void *to;
        size_t at = 0, from = 0;
        TRY(graph_lane_room(&l->stack[i], tokens * dtype_bytes(d), &to, e));
        for (uint32_t r = 0; r < n; r++) {
            uint32_t most = packed ? lengths[r] : length;
            for (uint32_t k = 0; k < most; k++) {
                int there = k < lengths[r];
                int64_t x = !there ? 0 : m->part[i] == PORT_IDS ? ids[from + k] : m->part[i] == PORT_MASK ? 1 : m->part[i] == PORT_TYPES ? (types ? types[from + k] : 0) : (int64_t)k;
                put(d, to, at++, x);
            }
            from += lengths[r];
        }
        int64_t dims[2] = {packed ? 1 : n, packed ? tokens : length};
        TRY(run_set(l->run, i, d, 2, dims, to, e));
    }
    l->records = n;
    l->tokens = tokens;
    l->length = length;
    l->seqs = (struct seqs){.count = n, .tokens = tokens, .lengths = lengths};
    TRY(graph_lane_give(l, e));
    run_pack(l->run, packed ? &l->seqs : NULL);
    return run_graph(l->run, e);
}

enum status graph_lane_rows(const struct graph_lane *l, uint32_t o, const float **rows, uint32_t *width, int *rows_are_tokens, struct err *e)
{
    const struct tensor *t = &run_result(l->run, o)->tensor;
    const struct graph_model_info *m = &l->m->info;
    int packed = m->sharing == SHARING_PACKED;
    int by_token = packed ? l->m->packed[o] == PACKED_TOKENS : t->rank == 3 && t->dims[0] == l->records && t->dims[1] == l->length;
    int by_text = packed ? l->m->packed[o] == PACKED_SEQS : t->rank == 2 && t->dims[0] == l->records;
    if (t->dtype != DT_F32 || (!by_token && !by_text) || t->rank != (by_token ? 3 : 2) || t->dims[t->rank - 1] > UINT32_MAX)
        return err_set(e, ST_USER, "output '%s' is neither a row of float32 for each text nor one for each token", m->out[o].name);
    *rows = tensor_data(t);
    *width = (uint32_t)t->dims[t->rank - 1];
    *rows_are_tokens = by_token;
    return ST_OK;
}

/* Groups ---------------------------------------------------------------------------------------------------------------------------------------- */

uint32_t graph_groups(uint32_t n, uint32_t n_in, const struct array *in, uint32_t *order, uint32_t *groups)
{
    uint32_t count = 0, placed = 0;
    for (uint32_t r = 0; r < n; r++)
        order[r] = UINT32_MAX;
    /* a group's first is the first record that is in no group yet; n is a micro-batch */
    for (uint32_t first = 0; first < n; first++) {
        int taken = 0;
        for (uint32_t k = 0; k < placed && !taken; k++)
            taken = order[k] == first;
        if (taken)
            continue;
        groups[count] = 0;
        for (uint32_t r = first; r < n; r++) {
            int same = 1;
            for (uint32_t i = 0; i < n_in && same; i++)
                same = same_sizes(&in[(size_t)first * n_in + i], &in[(size_t)r * n_in + i]);
            if (same) {
                order[placed++] = r;
                groups[count]++;
            }
        }
        count++;
    }
    return count;
}
