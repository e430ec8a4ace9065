#include "workers/engine/graphmodel.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/batch.h"
#include "workers/engine/graphinner.h"

/* Opening --------------------------------------------------------------------------------------------------------------------------------- */

static int has(const char *name, const char *word)
{
    return strstr(name, word) != NULL;
}

/* What an input of a text model is for, by the names that exporters give. */
static int part_of(const char *name, enum port_part *out)
{
    if (has(name, "mask"))
        *out = PORT_MASK;
    else if (has(name, "type") || has(name, "segment"))
        *out = PORT_TYPES;
    else if (has(name, "position"))
        *out = PORT_POSITIONS;
    else if (has(name, "ids") || has(name, "tokens"))
        *out = PORT_IDS;
    else
        return 0;
    return 1;
}

/* Each input is one of those that texts have. */
static int is_text(struct graph_model *m, const struct graph *g)
{
    int seen[PORT_PARTS] = {0};
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct graph_value *v = &g->values[g->in[i]];
        if (v->type.kind != VALUE_TENSOR || !part_of(v->name, &m->part[i]) || seen[m->part[i]]++)
            return 0;
    }
    return seen[PORT_IDS];
}

/* All inputs are [batch, length], of the same two symbols whatever the file calls them; a length may be fixed. */
static enum status prepare_text(struct graph_model *m, struct graph *g, struct given *given, uint32_t *n_given, struct err *e)
{
    int seen[PORT_PARTS] = {0};
    dim batch = dim_named(g->syms, "batch"), length = dim_named(g->syms, "length");
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct graph_value *v = &g->values[g->in[i]];
        struct type *t = &v->type;
        seen[m->part[i]]++;
        if (t->optional || (t->rank != 2 && t->rank >= 0) ||
            !(dtype_is_int(t->dtype) || ((t->dtype == DT_BOOL || dtype_is_float(t->dtype)) && m->part[i] == PORT_MASK)))
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
    if (m->fill && !seen[PORT_MASK])
        return err_set(e, ST_USER, "texts would have to be filled up to %u tokens, but no input is for a mask: export the model with an open length", m->fill);
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct type *t = &g->values[g->in[i]].type;
        t->dims[0] = dim_known(t->dims[0]) ? t->dims[0] : batch;
        t->dims[1] = dim_known(t->dims[1]) ? t->dims[1] : length;
        if (m->fill)
            continue;
        if (m->part[i] == PORT_MASK) /* a text alone has no padding */
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
static enum status resolve(struct graph_model *m, const struct graph_model_opts *o, int single, struct err *e)
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
    return graph_resolve(g, &(struct graph_opts){.precision = o->precision, .pack = o->pack, .run_bytes = o->run_bytes, .given = given, .n_given = n_given}, e);
}

/* Rows of the table in which token ids are looked up. */
static uint32_t find_vocab(const struct graph_model *m)
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
            if (m->g->in[k] == from && m->part[k] == PORT_IDS && t->buffer && t->rank == 2 && t->dims[0] < INT32_MAX)
                return (uint32_t)t->dims[0];
    }
    return 0;
}

static enum status open_once(struct graph_model *m, const char *path, const struct kernels *k, const struct graph_model_opts *o, int single, struct err *e)
{
    TRY(onnx_load(path, k, &m->onnx, e));
    enum status st = resolve(m, o, single, e);
    if (st == ST_OK && !single)
        st = prove(m, m->info.text, e);
    if (st == ST_OK)
        st = describe(m, e);
    if (st == ST_OK)
        m->vocab = find_vocab(m);
    return st == ST_USER ? err_prefix(e, "'%s'", path) : st;
}

/* The symbols of what records bring. */
static enum status find_symbols(struct graph_model *m, struct err *e)
{
    const struct graph *g = m->g;
    m->open = mem_array((size_t)g->n_in * RANK_MAX + 1, sizeof *m->open);
    if (!m->open)
        return err_nomem(e, "a model");
    m->batch = m->length = -1;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        for (int k = 0; k < t->rank; k++) {
            int32_t s = dim_symbol(g->syms, t->dims[k]);
            uint32_t at = 0;
            while (at < m->n_open && m->open[at] != s)
                at++;
            if (s >= 0 && at == m->n_open)
                m->open[m->n_open++] = s;
            if (k == 0 && (m->info.batched || m->info.text))
                m->batch = s;
            if (k == 1 && m->info.text)
                m->length = s;
        }
    }
    return ST_OK;
}

/* Stages must say what comes out of them all before anything has run. */
static void find_whole(struct graph_model *m)
{
    for (uint32_t i = 0; i < m->g->n_out && m->info.text; i++) {
        const struct type *t = &m->g->values[m->g->out[i]].type;
        if (t->rank < 1 || !dim_known(t->dims[t->rank - 1]))
            snprintf(m->info.whole, sizeof m->info.whole, "only running it tells how wide its output '%.100s' is", m->g->values[m->g->out[i]].name);
    }
}

/* Cuts are chosen for records of this size, whoever asks. */
enum { CUT_SIZE = 128 };

static void fill_sizes(const struct graph_model *m, int64_t *to, uint32_t symbols, int64_t size)
{
    for (uint32_t i = 0; i < symbols; i++)
        to[i] = size;
    if (m->batch >= 0)
        to[m->batch] = 1;
}

static enum status cut_up(const struct graph_model *m, uint32_t size, const uint8_t *stays, struct cutting *c, int64_t *sizes, struct segment **list, uint32_t *count,
                          struct err *e)
{
    uint32_t symbols = syms_count(m->g->syms);
    fill_sizes(m, sizes, symbols, CUT_SIZE);
    fill_sizes(m, sizes + symbols, symbols, size);
    *c = (struct cutting){.where = sizes, .sizes = sizes + symbols, .symbols = symbols, .first_alone = !m->info.text, .stays = stays};
    TRY(graph_segments(m->g, c, list, count, e));
    struct segment *s = *list;
    for (uint32_t i = 1; i < *count && m->info.whole[0]; i++) { /* one of all */
        s[0].count += s[i].count;
        s[0].flops += s[i].flops;
        s[0].weight_bytes += s[i].weight_bytes;
        s[0].out_bytes = s[i].out_bytes;
    }
    if (m->info.whole[0] && *count)
        *count = 1;
    return ST_OK;
}

/* The segments, for that size; keep: the model becomes a part of itself. */
static enum status segments(const struct graph_model *m, uint32_t size, struct segment **list, uint32_t *count, struct graph_model *keep, const struct graph_model_opts *o,
                            struct err *e)
{
    static const enum part_sharing how[] = {[SHARING_NONE] = PART_ALONE, [SHARING_EQUAL] = PART_EQUAL, [SHARING_PACKED] = PART_PACKED};
    struct cutting c;
    struct belonging *of = NULL;
    uint8_t *stays = NULL;
    int64_t *sizes = mem_array((size_t)syms_count(m->g->syms) * 2 + 1, sizeof *sizes);
    enum status st = sizes ? part_belongings(m->g, how[m->info.sharing], &of, &stays, e) : err_nomem(e, "segments");
    if (st == ST_OK)
        st = cut_up(m, size, stays, &c, sizes, list, count, e);
    if (st == ST_OK && keep) {
        uint32_t n = *count, nodes = m->g->n_nodes;
        if (o->first > o->end || o->end > n)
            st = err_set(e, ST_USER, "segments %u to %u of a model with %u%s%s", o->first, o->end, n, m->info.whole[0] ? ": " : "", m->info.whole);
        else
            st = graph_keep_part(keep->onnx->graph, &c, of, o->first < n ? (*list)[o->first].first : nodes, o->end < n ? (*list)[o->end].first : nodes, &keep->stage, e);
        if (st != ST_OK) {
            mem_free(*list);
            *list = NULL;
        }
    }
    mem_free(of);
    mem_free(stays);
    mem_free(sizes);
    return st;
}

static enum status keep_part(struct graph_model *m, const struct graph_model_opts *o, struct err *e)
{
    struct segment *list = NULL;
    uint32_t count = 0, nodes = m->g->n_nodes;
    TRY(segments(m, CUT_SIZE, &list, &count, m, o, e));
    mem_free(list);
    m->own = m->g->n_in - m->g->n_taken;
    m->last = m->stage.end == nodes && m->stage.first < nodes;
    m->info.part_bytes = m->stage.weight_bytes;
    return ST_OK;
}

static int has_open_batch(const struct graph_model *m)
{
    return m->info.batched && !dim_known(m->g->values[m->g->in[0]].type.dims[0]);
}

static enum status open_all(struct graph_model *m, const char *path, const struct kernels *k, const struct graph_model_opts *o, struct err *e)
{
    TRY(open_once(m, path, k, o, 0, e));
    if (m->info.sharing == SHARING_NONE && has_open_batch(m)) {
        onnx_free(m->onnx); /* once more, the batch being 1 */
        m->onnx = NULL;
        TRY(open_once(m, path, k, o, 1, e));
    }
    TRY(find_symbols(m, e));
    find_whole(m);
    m->own = m->g->n_in;
    m->last = 1;
    m->stage.end = m->g->n_nodes;
    m->info.part_bytes = m->info.weight_bytes;
    enum status st = o->part ? keep_part(m, o, e) : ST_OK;
    if (st == ST_OK)
        st = graph_plan(m->onnx->graph, e);
    return st == ST_USER ? err_prefix(e, "'%s'", path) : st;
}

enum status graph_model_open(const char *path, const struct kernels *k, const struct graph_model_opts *o, struct graph_model **out, struct err *e)
{
    struct graph_model *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(e, "a model");
    enum status st = open_all(m, path, k, o, e);
    if (st == ST_OK)
        *out = m;
    else
        graph_model_free(m);
    malloc_trim(0); /* the file, and what parts of it were let go, came to more than stays */
    return st;
}

void graph_model_free(struct graph_model *m)
{
    if (!m)
        return;
    onnx_free(m->onnx);
    graph_part_release(&m->stage);
    mem_free(m->open);
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
    struct segment *list = NULL;
    uint32_t n = 0;
    BUG_IF(m->stage.first > 0 || m->stage.end < m->g->n_nodes, "the cuts of a part are asked for");
    TRY(segments(m, out->tokens, &list, &n, NULL, NULL, e));
    struct cut_segment *s = mem_array(n + 1, sizeof *s);
    for (uint32_t i = 0; s && i < n; i++) {
        s[i] = (struct cut_segment){.weight_bytes = list[i].weight_bytes, .flops = list[i].flops, .out_bytes = list[i].out_bytes};
        snprintf(s[i].first, sizeof s[i].first, "%s", m->g->nodes[list[i].first]->name);
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
    return m->vocab;
}

int graph_model_is_first(const struct graph_model *m)
{
    return m->stage.first == 0;
}

int graph_model_is_last(const struct graph_model *m)
{
    return m->last;
}

uint64_t graph_model_check(const struct graph_model *m, int behind)
{
    return behind ? m->stage.behind.check : m->stage.before.check;
}
