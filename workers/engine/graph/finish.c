/* From what a loader built to what can run: ops are looked up and checked, nodes put in order, types inferred, constants folded, plans made.

   Inference and folding take turns: a folded constant tells more sizes, a size that has become a number makes a shape tensor a constant, and so on.
   Bodies of If, Loop and Scan are inferred by the shape function of their node, which knows the types of what they are given. */
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/inner.h"

enum { ROUNDS = 100, WIDENED_MAX = 20000 };
/* A constant is not made larger by folding than this, besides what it is made of: ConstantOfShape or Expand would fill the memory. */
static const int64_t fold_bytes = (int64_t)16 << 20;

/* Types and constants ------------------------------------------------------------------------------------------------------------------ */

static dim *graph_room(struct shaping *s, uint32_t count)
{
    return room_get(&graph_outermost(s->owner)->room, count);
}

void graph_shaping(struct graph *g, const struct node *n, struct type *in, struct type *out, const struct tensor **constants, struct shaping *s)
{
    static const struct type none;
    for (uint32_t i = 0; i < n->n_in; i++) {
        int32_t v = n->in[i];
        in[i] = v < 0 ? none : g->values[v].type;
        constants[i] = v >= 0 && g->values[v].constant.buffer ? &g->values[v].constant : NULL;
    }
    for (uint32_t k = 0; k < n->n_out; k++)
        out[k] = none;
    *s = (struct shaping){.syms = g->syms, .node = n, .n_in = n->n_in, .n_out = n->n_out, .in = in, .out = out, .constants = constants,
                          .room = graph_room, .owner = g};
}

struct work {
    struct type *in, *out;
    const struct tensor **constants;
    struct tensor *made;
};

static void work_release(struct work *w)
{
    mem_free(w->in);
    mem_free(w->out);
    mem_free(w->constants);
    mem_free(w->made);
}

static enum status work_init(struct work *w, const struct graph *g, struct err *e)
{
    uint32_t in = 1, out = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        in = g->nodes[i]->n_in > in ? g->nodes[i]->n_in : in;
        out = g->nodes[i]->n_out > out ? g->nodes[i]->n_out : out;
    }
    *w = (struct work){mem_array(in, sizeof *w->in), mem_array(out, sizeof *w->out), mem_array(in, sizeof *w->constants),
                       mem_array(out, sizeof *w->made)};
    if (w->in && w->out && w->constants && w->made)
        return ST_OK;
    work_release(w);
    return err_nomem(e, "types");
}

static int has_body(const struct node *n)
{
    for (uint32_t k = 0; k < n->n_attr; k++)
        if (n->attr[k].graphs)
            return 1;
    return 0;
}

/* All that it needs is constant, and what it makes is not too large. */
static int foldable(const struct graph *g, const struct node *n, const struct work *w)
{
    int64_t room = fold_bytes, made = 0;
    if (!n->def->run || n->def->flags & (OP_NO_FOLD | OP_VALUES) || has_body(n))
        return 0;
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (n->in[i] < 0)
            continue;
        if (!w->constants[i])
            return 0;
        room += (int64_t)w->constants[i]->buffer->bytes;
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        if (n->out[k] < 0)
            continue;
        if (w->out[k].kind != VALUE_TENSOR || g->values[n->out[k]].constant.buffer)
            return 0;
        int64_t bytes = 0;
        int known = w->out[k].rank >= 0;
        for (int i = 0; known && i < w->out[k].rank; i++)
            known = dim_known(w->out[k].dims[i]);
        if (known)
            bytes = tensor_size(w->out[k].dtype, (uint32_t)w->out[k].rank, w->out[k].dims);
        if (bytes < 0)
            return 0;
        made += bytes;
    }
    return made <= room;
}

/* Its outputs become constants; the node is taken out later, as nobody needs it. Something wrong with them is an error of the whole model where the
   node surely runs: in the outermost graph. */
static enum status fold(struct graph *g, struct node *n, struct work *w, struct shaping *s, struct err *e)
{
    enum status st = n->def->plan ? n->def->plan(n, s, e) : ST_OK;
    if (st == ST_OK)
        st = graph_check_attrs(n, e);
    memset(w->made, 0, n->n_out * sizeof *w->made);
    if (st == ST_OK)
        st = run_once(g, n, w->constants, w->made, e);
    if (st == ST_OK)
        for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++)
            if (w->made[k].buffer && graph_set_constant(g, n->out[k], &w->made[k]) != 0)
                st = err_nomem(e, "a constant");
    for (uint32_t k = 0; k < n->n_out; k++)
        tensor_release(&w->made[k]);
    if (n->def->release && n->state)
        n->def->release(n);
    n->state = NULL;
    if (st == ST_OK && n->def->check)
        st = n->def->check(n, e); /* what check made is there again, for whoever looks */
    return st == ST_USER && g->depth ? ST_OK : st;
}

static enum status check_type(struct graph *g, const struct node *n, uint32_t k, struct type *t, struct err *e)
{
    if (t->kind == VALUE_TENSOR && !dtype_bytes(t->dtype))
        return node_error(n, e, "output %u would be of %s, which is not supported", k, dtype_name(t->dtype));
    if (t->rank > RANK_MAX)
        return node_error(n, e, "output %u would have rank %d; at most %d is supported", k, t->rank, RANK_MAX);
    for (int i = 0; t->kind == VALUE_TENSOR && i < t->rank; i++) {
        if (dim_known(t->dims[i]) && t->dims[i] < 0)
            return node_error(n, e, "output %u would have size %lld along axis %d", k, (long long)t->dims[i], i);
        if (t->dims[i] == DIM_UNKNOWN)
            t->dims[i] = dim_fresh(g->syms);
    }
    return ST_OK;
}

static int made_already(const struct graph *g, const struct node *n)
{
    for (uint32_t k = 0; k < n->n_out; k++)
        if (n->out[k] >= 0 && !g->values[n->out[k]].constant.buffer)
            return 0;
    return 1;
}

/* From node *from on. *again: that node was rewritten, and the order is another from there on. */
static enum status infer_nodes(struct graph *g, int folding, struct work *w, uint32_t *from, int *again, struct err *e)
{
    for (uint32_t i = *from; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        struct shaping s;
        if (made_already(g, n))
            continue;
        graph_shaping(g, n, w->in, w->out, w->constants, &s);
        enum status st = n->def->shape(&s, e);
        if (st == ST_USER) { /* e stands, unless it is for halves alone */
            struct err why;
            enum status widened = graph_widen(g, n, w->in, w->out, w->constants, again, &why);
            if (widened != ST_OK)
                return err_set(e, widened, "%s", why.text);
            *from = i;
            if (*again)
                return ST_OK;
        }
        TRY(st);
        TRY(graph_check_attrs(n, e));
        for (uint32_t k = 0; k < n->n_out; k++) {
            if (n->out[k] < 0)
                continue;
            TRY(check_type(g, n, k, &w->out[k], e));
            if (!g->values[n->out[k]].constant.buffer)
                g->values[n->out[k]].type = w->out[k];
        }
        if (folding && foldable(g, n, w))
            TRY(fold(g, n, w, &s, e));
    }
    return ST_OK;
}

static int no_folding(const struct graph *g)
{
    while (g->outer)
        g = g->outer;
    return g->no_fold;
}

/* A constant is made by nobody. */
static void drop_folded(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            if (g->nodes[i]->out[k] >= 0 && g->values[g->nodes[i]->out[k]].constant.buffer)
                g->nodes[i]->out[k] = -1;
}

static enum status infer(struct graph *g, struct err *e)
{
    int again = 1;
    uint32_t from = 0;
    for (uint32_t round = 0; again; round++) {
        struct work w;
        if (round > WIDENED_MAX)
            return err_set(e, ST_USER, "more than %d nodes take no halves, which is not supported by this version", WIDENED_MAX);
        again = 0;
        TRY(work_init(&w, g, e));
        enum status st = infer_nodes(g, !no_folding(g), &w, &from, &again, e);
        work_release(&w);
        TRY(st);
        if (!again)
            continue;
        drop_folded(g);
        TRY(graph_find_producers(g, e));
        TRY(graph_sort(g, e));
    }
    return ST_OK;
}

enum status graph_infer(struct graph *g, const struct type *in, const struct tensor *const *in_constants, const struct type *captures,
                        const struct tensor *const *capture_constants, struct err *e)
{
    for (uint32_t i = 0; i < g->n_in + g->n_captures; i++) {
        int capture = i >= g->n_in;
        uint32_t at = capture ? i - g->n_in : i;
        const struct tensor *constant = capture ? capture_constants[at] : in_constants ? in_constants[at] : NULL;
        struct graph_value *v = &g->values[capture ? g->captures[at] : g->in[at]];
        if (v->constant.buffer)
            continue;
        v->type = capture ? captures[at] : in[at];
        if (constant)
            tensor_share(&v->constant, constant);
    }
    return infer(g, e);
}

/* Folding by what is known of elements ---------------------------------------------------------------------------------------------------- */

static enum status constant_from_values(struct graph *g, int32_t v, int *done, struct err *e)
{
    struct type t = g->values[v].type;
    int64_t dims[RANK_MAX], count = 1;
    *done = 0;
    if (t.kind != VALUE_TENSOR || t.optional || !t.values || t.rank < 0 || !(dtype_is_int(t.dtype) || t.dtype == DT_BOOL))
        return ST_OK;
    for (int i = 0; i < t.rank; i++) {
        if (!dim_known(t.dims[i]))
            return ST_OK;
        dims[i] = t.dims[i];
        count *= dims[i];
        if (count > VALUES_MAX)
            return ST_OK;
    }
    for (int64_t i = 0; i < count; i++)
        if (!dim_known(t.values[i]) || t.values[i] == DIM_LEAST)
            return ST_OK;
    struct tensor c;
    TRY(tensor_make(&c, t.dtype, (uint32_t)t.rank, dims, e));
    void *p = tensor_data(&c);
    for (int64_t i = 0; i < count; i++)
        switch (dtype_bytes(t.dtype)) {
        case 1:
            ((uint8_t *)p)[i] = (uint8_t)t.values[i];
            break;
        case 2:
            ((uint16_t *)p)[i] = (uint16_t)t.values[i];
            break;
        case 4:
            ((uint32_t *)p)[i] = (uint32_t)t.values[i];
            break;
        default:
            ((int64_t *)p)[i] = t.values[i];
        }
    if (graph_set_constant(g, v, &c) != 0) {
        tensor_release(&c);
        return err_nomem(e, "a constant");
    }
    *done = 1;
    return ST_OK;
}

static int is_alive(const struct graph *g, const struct node *n)
{
    for (uint32_t k = 0; k < n->n_out; k++)
        if (n->out[k] >= 0 && g->values[n->out[k]].uses)
            return 1;
    return 0;
}

/* Nodes of which nothing is needed go; producers and uses are counted anew. */
static int sweep(struct graph *g)
{
    uint32_t kept = g->n_nodes;
    for (uint32_t v = 0; v < g->n_values; v++)
        g->values[v].uses = 0;
    for (uint32_t i = 0; i < g->n_out; i++)
        g->values[g->out[i]].uses++;
    for (uint32_t i = g->n_nodes; i-- > 0;) { /* from behind: a node is looked at before those that it needs */
        struct node *n = g->nodes[i];
        for (uint32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0 && g->values[n->out[k]].constant.buffer)
                n->out[k] = -1; /* folded */
        if (!is_alive(g, n)) {
            node_free(n);
            continue;
        }
        for (uint32_t k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0)
                g->values[n->in[k]].uses++;
        g->nodes[--kept] = n;
    }
    uint32_t gone = kept;
    g->n_nodes -= gone;
    memmove(g->nodes, g->nodes + gone, g->n_nodes * sizeof *g->nodes);
    for (uint32_t v = 0; v < g->n_values; v++) {
        struct graph_value *value = &g->values[v];
        value->producer = -1;
        if (value->constant.buffer && !value->uses && g->finished) /* large ones are not kept for nothing */
            tensor_release(&value->constant);
    }
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            if (g->nodes[i]->out[k] >= 0)
                g->values[g->nodes[i]->out[k]].producer = (int32_t)i;
    return gone != 0;
}

/* With the types of all values settled. */
static enum status settle(struct graph *g, int *changed, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        for (uint32_t k = 0; k < n->n_out; k++) {
            int done = 0;
            if (n->out[k] >= 0 && !g->values[n->out[k]].constant.buffer && !(n->def->flags & OP_NO_FOLD) && !no_folding(g))
                TRY(constant_from_values(g, n->out[k], &done, e));
            *changed |= done;
        }
    }
    int inlined = 0;
    *changed |= sweep(g);
    if (!no_folding(g))
        TRY(graph_inline_ifs(g, &inlined, e));
    if (inlined) {
        TRY(graph_find_producers(g, e));
        TRY(graph_sort(g, e));
        sweep(g);
        *changed = 1;
    }
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_attr; k++) {
            const struct attr *a = &g->nodes[i]->attr[k];
            for (uint32_t b = 0; a->graphs && b < (a->kind == ATTR_GRAPH ? 1 : a->count); b++)
                TRY(settle(a->graphs[b], changed, e));
        }
    return ST_OK;
}

/* Plans, and what a run needs to know ------------------------------------------------------------------------------------------------------ */

static enum status plan_nodes(struct graph *g, struct work *w, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        struct shaping s;
        graph_shaping(g, n, w->in, w->out, w->constants, &s);
        for (uint32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0)
                w->out[k] = g->values[n->out[k]].type;
        if (n->def->plan)
            TRY(n->def->plan(n, &s, e));
        TRY(graph_check_attrs(n, e));
    }
    return ST_OK;
}

/* Weights that have been packed are not kept as they were too. */
static enum status drop_planned(struct graph *g, struct err *e)
{
    uint8_t *kept = mem_array(g->n_values + 1, 1);
    if (!kept)
        return err_nomem(e, "a graph");
    for (uint32_t i = 0; i < g->n_out; i++)
        kept[g->out[i]] = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_in; k++)
            if (g->nodes[i]->in[k] >= 0 && (k == 0 || !(g->nodes[i]->def->flags & OP_PLANNED)))
                kept[g->nodes[i]->in[k]] = 1;
    for (uint32_t v = 0; v < g->n_values; v++) {
        struct buffer *b = g->values[v].constant.buffer;
        if (!b || kept[v] || b->refs != 1 || !dtype_is_float(g->values[v].constant.dtype))
            continue;
        mem_free(b->base);
        b->base = NULL;
    }
    mem_free(kept);
    return ST_OK;
}

/* A value is not needed after the last node that takes it, or that made it when none does. Results, constants and captures stay. */
static enum status find_ends(struct graph *g, struct err *e)
{
    uint32_t total = 0;
    int32_t *last = mem_array(g->n_values + 1, sizeof *last);
    g->ends_at = mem_array(g->n_nodes + 2, sizeof *g->ends_at);
    g->ends = mem_array(g->n_values + 1, sizeof *g->ends);
    if (!last || !g->ends_at || !g->ends) {
        mem_free(last);
        return err_nomem(e, "a graph's order");
    }
    for (uint32_t v = 0; v < g->n_values; v++)
        last[v] = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        for (uint32_t k = 0; k < n->n_out; k++)
            if (n->out[k] >= 0)
                last[n->out[k]] = (int32_t)i;
        for (uint32_t k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0)
                last[n->in[k]] = (int32_t)i;
    }
    for (uint32_t i = 0; i < g->n_out; i++)
        last[g->out[i]] = -1;
    for (uint32_t i = 0; i < g->n_captures; i++)
        last[g->captures[i]] = -1;
    if (!g->depth) /* an input stands until the next is set */
        for (uint32_t i = 0; i < g->n_in; i++)
            last[g->in[i]] = -1;
    for (uint32_t v = 0; v < g->n_values; v++)
        if (last[v] >= 0 && !g->values[v].constant.buffer)
            g->ends_at[last[v] + 1]++;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->ends_at[i + 1] += g->ends_at[i];
    for (uint32_t v = 0; v < g->n_values; v++) /* filled from the front of each; ends_at[i] moves to its end */
        if (last[v] >= 0 && !g->values[v].constant.buffer)
            g->ends[g->ends_at[last[v]]++] = (int32_t)v, total++;
    for (uint32_t i = g->n_nodes + 1; i-- > 1;)
        g->ends_at[i] = g->ends_at[i - 1];
    g->ends_at[0] = 0;
    BUG_IF(g->n_nodes && g->ends_at[g->n_nodes] != total, "%u values end, not %u", g->ends_at[g->n_nodes], total);
    mem_free(last);
    return ST_OK;
}

enum status graph_plan(struct graph *g, struct err *e)
{
    struct work w;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_attr; k++) {
            const struct attr *a = &g->nodes[i]->attr[k];
            for (uint32_t b = 0; a->graphs && b < (a->kind == ATTR_GRAPH ? 1 : a->count); b++)
                TRY(graph_plan(a->graphs[b], e));
        }
    TRY(work_init(&w, g, e));
    enum status st = plan_nodes(g, &w, e);
    work_release(&w);
    if (st == ST_OK)
        st = drop_planned(g, e);
    if (st == ST_OK)
        st = find_ends(g, e);
    return st;
}

/* Nodes whose outputs others make now. */
static void drop_emptied(struct graph *g)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        int makes = 0;
        for (uint32_t k = 0; k < n->n_out; k++)
            makes |= n->out[k] >= 0;
        if (makes)
            g->nodes[kept++] = n;
        else
            node_free(n);
    }
    g->n_nodes = kept;
}

enum status graph_rework(struct graph *g, struct err *e)
{
    drop_emptied(g);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        if (n->def)
            continue;
        n->def = op_find(n->domain, n->op, n->opset, NULL);
        if (!n->def)
            return node_error(n, e, "op '%s.%s' is not there", n->domain, n->op);
        TRY(graph_check_arity(n, e));
        if (n->def->check)
            TRY(n->def->check(n, e));
    }
    TRY(graph_find_producers(g, e));
    TRY(graph_sort(g, e));
    sweep(g);
    return infer(g, e);
}

enum status graph_resolve(struct graph *g, const struct graph_opts *o, struct err *e)
{
    int changed = 1;
    g->no_fold = o->no_fold;
    g->run_bytes = o->run_bytes ? o->run_bytes : host_memory_bytes() / 2;
    TRY(graph_refuse_unsupported(g, e));
    TRY(graph_prepare(g, e));
    for (int round = 0; changed; round++) {
        if (round == ROUNDS)
            return err_set(e, ST_USER, "the model's constants do not come to rest");
        changed = 0;
        TRY(infer(g, e));
        TRY(settle(g, &changed, e));
    }
    if (!o->no_fuse)
        TRY(graph_fuse(g, o->given, o->n_given, e));
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        g->nodes[i]->precision = o->precision;
        g->nodes[i]->pack = o->pack;
    }
    return ST_OK;
}

enum status graph_finish(struct graph *g, const struct graph_opts *o, struct err *e)
{
    TRY(graph_resolve(g, o, e));
    return graph_plan(g, e);
}
