#include "workers/engine/graphmodel.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/batch.h"
#include "workers/engine/graph/pack.h"
#include "workers/engine/graph/segment.h"
#include "workers/engine/onnx/onnx.h"

enum part { PART_IDS, PART_MASK, PART_TYPES, PART_POSITIONS, PARTS };

struct graph_model {
    struct graph_model_info info;
    struct onnx_model *onnx;
    const struct graph *g;
    enum part part[PORTS_MAX];         /* of each input, of texts */
    enum packed_kind packed[PORTS_MAX]; /* of each output */
    uint32_t fill;
};

struct graph_lane {
    const struct graph_model *m;
    struct run *run;
    struct stacked { /* of each input: records side by side */
        void *data;
        size_t cap;
    } stack[PORTS_MAX];
    uint32_t records, tokens, length;
    struct seqs seqs;
};

/* Opening --------------------------------------------------------------------------------------------------------------------------------- */

static int has(const char *name, const char *word)
{
    return strstr(name, word) != NULL;
}

/* What an input of a text model is for, by the names that exporters give. */
static int part_of(const char *name, enum part *out)
{
    if (has(name, "mask"))
        *out = PART_MASK;
    else if (has(name, "type") || has(name, "segment"))
        *out = PART_TYPES;
    else if (has(name, "position"))
        *out = PART_POSITIONS;
    else if (has(name, "ids") || has(name, "tokens"))
        *out = PART_IDS;
    else
        return 0;
    return 1;
}

/* Each input is one of those that texts have. */
static int is_text(struct graph_model *m, const struct graph *g)
{
    int seen[PARTS] = {0};
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct graph_value *v = &g->values[g->in[i]];
        if (v->type.kind != VALUE_TENSOR || !part_of(v->name, &m->part[i]) || seen[m->part[i]]++)
            return 0;
    }
    return seen[PART_IDS];
}

/* All inputs are [batch, length], of the same two symbols whatever the file calls them; a length may be fixed. */
static enum status prepare_text(struct graph_model *m, struct graph *g, struct given *given, uint32_t *n_given, struct err *e)
{
    int seen[PARTS] = {0};
    dim batch = dim_named(g->syms, "batch"), length = dim_named(g->syms, "length");
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct graph_value *v = &g->values[g->in[i]];
        struct type *t = &v->type;
        seen[m->part[i]]++;
        if (t->optional || (t->rank != 2 && t->rank >= 0) ||
            !(dtype_is_int(t->dtype) || ((t->dtype == DT_BOOL || dtype_is_float(t->dtype)) && m->part[i] == PART_MASK)))
            return err_set(e, ST_USER, "input '%s' is not one that a model of texts has (input_ids, attention_mask, token_type_ids, position_ids; of [batch, length])",
                           v->name);
        if (t->rank < 0)
            type_tensor(t, t->dtype, 2, (dim[]){batch, length});
        if (dim_known(t->dims[0]) && t->dims[0] != 1)
            return err_set(e, ST_USER, "input '%s' has a batch of exactly %lld: export the model with an open one, or 1", v->name, (long long)t->dims[0]);
        if (dim_known(t->dims[1]) && ((m->fill && m->fill != (uint32_t)t->dims[1]) || t->dims[1] < 1 || t->dims[1] > 1 << 20))
            return err_set(e, ST_USER, "input '%s' has the length %lld, another input %u", v->name, (long long)t->dims[1], m->fill);
        if (dim_known(t->dims[1]))
            m->fill = (uint32_t)t->dims[1];
    }
    if (m->fill && !seen[PART_MASK])
        return err_set(e, ST_USER, "texts would have to be filled up to %u tokens, but no input is for a mask: export the model with an open length", m->fill);
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct type *t = &g->values[g->in[i]].type;
        t->dims[0] = dim_known(t->dims[0]) ? t->dims[0] : batch;
        t->dims[1] = dim_known(t->dims[1]) ? t->dims[1] : length;
        if (m->fill)
            continue;
        if (m->part[i] == PART_MASK) /* a text alone has no padding */
            given[(*n_given)++] = (struct given){g->in[i], 1};
    }
    return ST_OK;
}

/* Do all inputs have a first axis that is one and the same size, open or 1? */
static int has_batch(const struct graph *g)
{
    dim batch = DIM_UNKNOWN;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        if (t->kind != VALUE_TENSOR || t->rank < 1 || (dim_known(t->dims[0]) && t->dims[0] != 1) || (i && t->dims[0] != batch))
            return 0;
        batch = t->dims[0];
    }
    return g->n_in > 0;
}

static void describe_port(const struct graph *g, int32_t value, int batched, struct port *p)
{
    const struct type *t = &g->values[value].type;
    *p = (struct port){.name = g->values[value].name, .dtype = t->dtype, .rank = t->rank};
    int skip = batched && t->rank > 0;
    for (int i = skip; i < t->rank; i++)
        p->dims[i - skip] = dim_known(t->dims[i]) ? t->dims[i] : -1;
    p->rank -= skip;
}

static enum status describe(struct graph_model *m, struct err *e)
{
    const struct graph *g = m->g;
    struct graph_model_info *i = &m->info;
    i->n_in = g->n_in;
    i->n_out = g->n_out;
    i->ops = g->n_nodes;
    for (uint32_t k = 0; k < g->n_in; k++) {
        if (g->values[g->in[k]].type.kind != VALUE_TENSOR || g->values[g->in[k]].type.optional)
            return err_set(e, ST_USER, "input '%s' is no plain tensor, which records cannot bring in this version", g->values[g->in[k]].name);
        describe_port(g, g->in[k], i->batched, &i->in[k]);
    }
    for (uint32_t k = 0; k < g->n_out; k++) {
        if (g->values[g->out[k]].type.kind != VALUE_TENSOR)
            return err_set(e, ST_USER, "output '%s' is no tensor, which this version does not write", g->values[g->out[k]].name);
        describe_port(g, g->out[k], i->batched, &i->out[k]);
    }
    return ST_OK;
}

static enum status prove(struct graph_model *m, int text, struct err *e)
{
    struct graph_model_info *i = &m->info;
    char why[BATCH_WHY_MAX];
    i->sharing = SHARING_NONE;
    i->batched = has_batch(m->g);
    int r = text && !m->fill ? pack_prove(m->g, m->packed, i->why) : 0;
    if (r == 1) {
        i->sharing = SHARING_PACKED;
        return ST_OK;
    }
    if (r == 0 && i->batched)
        r = batch_prove(m->g, why);
    else
        snprintf(why, sizeof why, "its inputs have no first axis in common");
    if (r < 0)
        return err_nomem(e, "a model");
    if (r == 1)
        i->sharing = SHARING_EQUAL;
    else
        snprintf(i->why, sizeof i->why, "%s", why);
    return ST_OK;
}

/* single: records go one by one, so that the batch is 1: what exporters compute from its size folds away. */
static enum status finish(struct graph_model *m, const struct graph_model_opts *o, int single, struct err *e)
{
    struct graph *g = m->onnx->graph;
    struct given given[PORTS_MAX];
    uint32_t n_given = 0;
    m->g = g;
    if (g->n_in > PORTS_MAX || g->n_out > PORTS_MAX)
        return err_set(e, ST_USER, "the model has %u inputs and %u outputs; at most %d of each are supported", g->n_in, g->n_out, PORTS_MAX);
    m->info.text = o->text && is_text(m, g);
    if (m->info.text)
        TRY(prepare_text(m, g, given, &n_given, e));
    for (uint32_t i = 0; single && i < g->n_in; i++)
        g->values[g->in[i]].type.dims[0] = 1;
    m->info.nodes = g->n_nodes;
    m->info.ir_version = m->onnx->ir_version;
    m->info.opset = m->onnx->opset;
    m->info.parameters = m->onnx->parameters;
    m->info.weight_bytes = m->onnx->weight_bytes;
    snprintf(m->info.producer, sizeof m->info.producer, "%s", m->onnx->producer);
    return graph_finish(g, &(struct graph_opts){.precision = o->precision, .pack = o->pack, .run_bytes = o->run_bytes, .given = given, .n_given = n_given}, e);
}

static enum status open_once(struct graph_model *m, const char *path, const struct kernels *k, const struct graph_model_opts *o, int single, struct err *e)
{
    TRY(onnx_load(path, k, &m->onnx, e));
    enum status st = finish(m, o, single, e);
    if (st == ST_OK && !single)
        st = prove(m, m->info.text, e);
    if (st == ST_OK)
        st = describe(m, e);
    return st == ST_USER ? err_prefix(e, "'%s'", path) : st;
}

static int has_open_batch(const struct graph_model *m)
{
    return m->info.batched && !dim_known(m->g->values[m->g->in[0]].type.dims[0]);
}

enum status graph_model_open(const char *path, const struct kernels *k, const struct graph_model_opts *o, struct graph_model **out, struct err *e)
{
    struct graph_model *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(e, "a model");
    enum status st = open_once(m, path, k, o, 0, e);
    if (st == ST_OK && m->info.sharing == SHARING_NONE && has_open_batch(m)) {
        onnx_free(m->onnx); /* once more, the batch being 1 */
        m->onnx = NULL;
        st = open_once(m, path, k, o, 1, e);
    }
    if (st == ST_OK)
        *out = m;
    else
        graph_model_free(m);
    return st;
}

void graph_model_free(struct graph_model *m)
{
    if (!m)
        return;
    onnx_free(m->onnx);
    mem_free(m);
}

const struct graph_model_info *graph_model_info(const struct graph_model *m)
{
    return &m->info;
}

uint32_t graph_model_fill(const struct graph_model *m)
{
    return m->fill;
}

enum status graph_model_cut(const struct graph_model *m, struct cut *out, struct err *e)
{
    const struct graph *g = m->g;
    struct segment *list = NULL;
    uint32_t symbols = syms_count(g->syms), n = 0;
    int64_t *size = mem_array(symbols + 1, sizeof *size);
    if (!size)
        return err_nomem(e, "segments");
    for (uint32_t i = 0; i < symbols; i++)
        size[i] = out->tokens;
    for (uint32_t i = 0; i < g->n_in && (m->info.batched || m->info.text); i++) {
        int batch = dim_symbol(g->syms, g->values[g->in[i]].type.dims[0]);
        if (batch >= 0)
            size[batch] = 1;
    }
    enum status st = graph_segments(g, size, symbols, &list, &n, e);
    mem_free(size);
    if (st != ST_OK)
        return st;
    struct cut_segment *s = mem_array(n + 1, sizeof *s);
    for (uint32_t i = 0; s && i < n; i++) {
        s[i] = (struct cut_segment){.weight_bytes = list[i].weight_bytes, .flops = list[i].flops, .out_bytes = list[i].out_bytes};
        snprintf(s[i].first, sizeof s[i].first, "%s", g->nodes[list[i].first]->name);
    }
    mem_free(list);
    if (!s)
        return err_nomem(e, "segments");
    out->list = s;
    out->count = n;
    return ST_OK;
}

uint32_t graph_model_vocab(const struct graph_model *m)
{
    for (uint32_t i = 0; i < m->g->n_nodes; i++) {
        const struct node *n = m->g->nodes[i];
        int embed = strcmp(n->op, "EmbedLayerNormalization") == 0;
        uint32_t table = embed ? 2 : 0, at = embed ? 0 : 1;
        if ((!embed && strcmp(n->op, "Gather") != 0) || n->n_in <= 2 * (uint32_t)embed + 1 || n->in[table] < 0 || n->in[at] < 0)
            continue;
        const struct graph_value *ids = &m->g->values[n->in[at]];
        const struct tensor *t = &m->g->values[n->in[table]].constant;
        /* the ids themselves, or cast to another type */
        int32_t from = n->in[at];
        if (ids->producer >= 0 && strcmp(m->g->nodes[ids->producer]->op, "Cast") == 0)
            from = m->g->nodes[ids->producer]->in[0];
        for (uint32_t k = 0; k < m->g->n_in; k++)
            if (m->g->in[k] == from && m->part[k] == PART_IDS && t->buffer && t->rank == 2 && t->dims[0] < INT32_MAX)
                return (uint32_t)t->dims[0];
    }
    return 0;
}

/* Lanes ------------------------------------------------------------------------------------------------------------------------------------- */

enum status graph_lane_new(const struct graph_model *m, struct graph_lane **out, struct err *e)
{
    struct graph_lane *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a lane");
    l->m = m;
    enum status st = run_new(m->g, &l->run, e);
    if (st != ST_OK) {
        mem_free(l);
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
    mem_free(l);
}

size_t graph_lane_bytes(const struct graph_lane *l)
{
    size_t n = run_bytes(l->run);
    for (uint32_t i = 0; i < PORTS_MAX; i++)
        n += l->stack[i].cap;
    return n;
}

static enum status room(struct graph_lane *l, uint32_t i, size_t bytes, void **out, struct err *e)
{
    if (l->stack[i].cap < bytes) {
        void *data = mem_aligned(bytes + bytes / 2);
        if (!data)
            return err_nomem(e, "a lane's inputs");
        mem_free(l->stack[i].data);
        l->stack[i].data = data;
        l->stack[i].cap = bytes + bytes / 2;
    }
    *out = l->stack[i].data;
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
            TRY(room(l, i, (size_t)bytes * n + 1, &to, e));
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
    run_pack(l->run, NULL);
    TRY(run_graph(l->run, e));
    for (uint32_t o = 0; n > 1 && o < m->n_out; o++) {
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
        TRY(room(l, i, tokens * dtype_bytes(d), &to, e));
        for (uint32_t r = 0; r < n; r++) {
            uint32_t most = packed ? lengths[r] : length;
            for (uint32_t k = 0; k < most; k++) {
                int there = k < lengths[r];
                int64_t x = !there ? 0 : m->part[i] == PART_IDS ? ids[from + k] : m->part[i] == PART_MASK ? 1 : m->part[i] == PART_TYPES ? (types ? types[from + k] : 0) : (int64_t)k;
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
