/* From what a loader built to what can run: ops are looked up and checked, nodes put in order, types inferred, constants folded, plans made.

   Inference and folding take turns: a folded constant tells more sizes, a size that has become a number makes a shape tensor a constant, and so on.
   Bodies of If, Loop and Scan are inferred by the shape function of their node, which knows the types of what they are given. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/inner.h"

enum { ROUNDS = 100 };
/* A constant is not made larger by folding than this, besides what it is made of: ConstantOfShape or Expand would fill the memory. */
static const int64_t fold_bytes = (int64_t)16 << 20;

/* What is not supported -------------------------------------------------------------------------------------------------------------- */

struct listing {
    struct unsupported *list;
    size_t cap, count;
};

static enum status list_unsupported(const struct graph *g, struct listing *l, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        int known = 0;
        for (uint32_t k = 0; k < n->n_attr; k++)
            for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++)
                TRY(list_unsupported(n->attr[k].graphs[b], l, e));
        if (n->def || op_find(n->domain, n->op, n->opset, &known))
            continue;
        struct unsupported u = {.opset = n->opset, .other_opset = known, .count = 1};
        snprintf(u.op, sizeof u.op, "%s.%s", n->domain[0] ? n->domain : "ai.onnx", n->op);
        snprintf(u.node, sizeof u.node, "%s", n->name);
        size_t at = 0;
        while (at < l->count && strcmp(l->list[at].op, u.op) != 0)
            at++;
        if (at < l->count) {
            l->list[at].count++;
            continue;
        }
        if (mem_grow((void **)&l->list, &l->cap, l->count, sizeof *l->list) != 0)
            return err_nomem(e, "a list of nodes");
        l->list[l->count++] = u;
    }
    return ST_OK;
}

enum status graph_unsupported(const struct graph *g, struct unsupported **out, uint32_t *count, struct err *e)
{
    struct listing l = {0};
    enum status st = list_unsupported(g, &l, e);
    if (st != ST_OK) {
        mem_free(l.list);
        return st;
    }
    *out = l.list;
    *count = (uint32_t)l.count;
    return ST_OK;
}

static enum status refuse_unsupported(const struct graph *g, struct err *e)
{
    struct unsupported *list = NULL;
    uint32_t count = 0;
    char text[sizeof e->text] = "";
    size_t n = 0, room = sizeof text - 40;
    TRY(graph_unsupported(g, &list, &count, e));
    uint32_t shown = 0;
    for (; shown < count && n < room; shown++) {
        char more[48] = "", one[512];
        if (list[shown].count > 1)
            snprintf(more, sizeof more, " (nor are %u more such nodes)", list[shown].count - 1);
        int len = snprintf(one, sizeof one, "%snode '%s': op '%s' (opset %d) is not supported by this version%s", shown ? "; " : "", list[shown].node,
                           list[shown].op, list[shown].opset, more);
        if ((size_t)len >= sizeof one || n + (size_t)len >= room)
            break;
        memcpy(text + n, one, (size_t)len + 1);
        n += (size_t)len;
    }
    mem_free(list);
    if (!count)
        return ST_OK;
    if (shown < count)
        snprintf(text + n, sizeof text - n, "; and %u more ops", count - shown);
    return err_set(e, ST_USER, "%s", text);
}

/* Once: ops, checks, order ------------------------------------------------------------------------------------------------------------ */

static enum status check_arity(const struct node *n, struct err *e)
{
    const struct op_def *d = n->def;
    uint32_t need = d->min_in;
    if (n->n_own < need || (d->max_in != 0xffff && n->n_own > d->max_in))
        return node_error(n, e, "has %u inputs where %u to %u are expected", n->n_own, d->min_in, d->max_in);
    if (n->n_out < d->min_out || (d->max_out != 0xffff && n->n_out > d->max_out))
        return node_error(n, e, "has %u outputs where %u to %u are expected", n->n_out, d->min_out, d->max_out);
    for (uint32_t i = 0; i < need; i++)
        if (n->in[i] < 0 && d->max_in != 0xffff)
            return node_error(n, e, "input %u is left out, but needed", i);
    return ST_OK;
}

static enum status check_attrs(const struct node *n, struct err *e)
{
    return n->bad_attr ? node_error(n, e, "attribute '%s' is of the wrong kind", n->bad_attr) : ST_OK;
}

/* The captures of its bodies become inputs behind a node's own. */
static enum status add_captures(struct node *n, struct err *e)
{
    for (uint32_t k = 0; k < n->n_attr; k++)
        for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++) {
            const struct graph *body = n->attr[k].graphs[b];
            int32_t *in = mem_resize(n->in, (n->n_in + body->n_captures + 1) * sizeof *in);
            if (!in)
                return err_nomem(e, "a node");
            n->in = in;
            for (uint32_t i = 0; i < body->n_captures; i++)
                n->in[n->n_in++] = body->captured[i];
        }
    return ST_OK;
}

/* Who makes what; each value is made once. */
static enum status find_producers(struct graph *g, struct err *e)
{
    for (uint32_t v = 0; v < g->n_values; v++)
        g->values[v].producer = -1;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++) {
            int32_t v = g->nodes[i]->out[k];
            if (v < 0)
                continue;
            if (g->values[v].producer >= 0 || g->values[v].constant.buffer)
                return node_error(g->nodes[i], e, "'%s' is made twice", g->values[v].name);
            g->values[v].producer = (int32_t)i;
        }
    for (uint32_t i = 0; i < g->n_in; i++)
        if (g->values[g->in[i]].producer >= 0)
            return node_error(g->nodes[g->values[g->in[i]].producer], e, "makes '%s', which is an input of the graph", g->values[g->in[i]].name);
    return ST_OK;
}

static int is_given(const struct graph *g, int32_t v)
{
    if (g->values[v].producer >= 0 || g->values[v].constant.buffer)
        return 1;
    for (uint32_t i = 0; i < g->n_in; i++)
        if (g->in[i] == v)
            return 1;
    for (uint32_t i = 0; i < g->n_captures; i++)
        if (g->captures[i] == v)
            return 1;
    return 0;
}

/* Depth first from each node to those whose values it needs, without recursion; the order of the file is kept where it can be. */
static enum status visit(struct graph *g, struct node **order, uint32_t *placed, uint8_t *state, uint32_t *stack, uint32_t *next, uint32_t first, struct err *e)
{
    uint32_t top = 0;
    if (state[first])
        return ST_OK;
    stack[0] = first;
    next[0] = 0;
    state[first] = 1;
    for (;;) {
        struct node *n = g->nodes[stack[top]];
        if (next[top] == n->n_in) {
            state[stack[top]] = 2;
            order[(*placed)++] = n;
            if (top-- == 0)
                return ST_OK;
            continue;
        }
        int32_t v = n->in[next[top]++];
        if (v < 0)
            continue;
        int32_t p = g->values[v].producer;
        if (p < 0) {
            if (!is_given(g, v))
                return node_error(n, e, "its input '%s' is made by no node, and is neither an input nor an initializer of the graph", g->values[v].name);
            continue;
        }
        if (state[p] == 1)
            return node_error(n, e, "it needs '%s', which depends on it: the graph has a cycle", g->values[v].name);
        if (state[p] == 0) {
            top++;
            stack[top] = (uint32_t)p;
            next[top] = 0;
            state[p] = 1;
        }
    }
}

static enum status sort(struct graph *g, struct err *e)
{
    uint32_t n = g->n_nodes, placed = 0;
    struct node **order = mem_array(n + 1, sizeof *order);
    uint8_t *state = mem_array(n + 1, 1);
    uint32_t *stack = mem_array(n + 1, sizeof *stack), *next = mem_array(n + 1, sizeof *next);
    enum status st = order && state && stack && next ? ST_OK : err_nomem(e, "a graph's order");
    for (uint32_t i = 0; i < n && st == ST_OK; i++)
        st = visit(g, order, &placed, state, stack, next, i, e);
    if (st == ST_OK && n)
        memcpy(g->nodes, order, n * sizeof *order);
    for (uint32_t i = 0; i < n && st == ST_OK; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_out; k++)
            if (g->nodes[i]->out[k] >= 0)
                g->values[g->nodes[i]->out[k]].producer = (int32_t)i;
    mem_free(order);
    mem_free(state);
    mem_free(stack);
    mem_free(next);
    return st;
}

static enum status prepare(struct graph *g, struct err *e)
{
    if (g->depth > BODY_DEPTH_MAX)
        return err_set(e, ST_USER, "bodies lie more than %d deep in each other", BODY_DEPTH_MAX);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        n->def = op_find(n->domain, n->op, n->opset, NULL);
        TRY(check_arity(n, e));
        for (uint32_t k = 0; k < n->n_attr; k++)
            for (uint32_t b = 0; n->attr[k].graphs && b < (n->attr[k].kind == ATTR_GRAPH ? 1 : n->attr[k].count); b++)
                TRY(prepare(n->attr[k].graphs[b], e));
        if (n->def->check)
            TRY(n->def->check(n, e));
        TRY(check_attrs(n, e));
        TRY(add_captures(n, e));
    }
    TRY(find_producers(g, e));
    TRY(sort(g, e));
    for (uint32_t i = 0; i < g->n_out; i++)
        if (!is_given(g, g->out[i]))
            return err_set(e, ST_USER, "output '%s' is made by no node", g->values[g->out[i]].name);
    g->finished = 1;
    return ST_OK;
}

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
        st = check_attrs(n, e);
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

static enum status infer_nodes(struct graph *g, int folding, struct work *w, struct err *e)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        struct node *n = g->nodes[i];
        struct shaping s;
        if (made_already(g, n))
            continue;
        graph_shaping(g, n, w->in, w->out, w->constants, &s);
        TRY(n->def->shape(&s, e));
        TRY(check_attrs(n, e));
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

static enum status infer(struct graph *g, struct err *e)
{
    struct work w;
    TRY(work_init(&w, g, e));
    enum status st = infer_nodes(g, !no_folding(g), &w, e);
    work_release(&w);
    return st;
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
        TRY(find_producers(g, e));
        TRY(sort(g, e));
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
        TRY(check_attrs(n, e));
    }
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

static enum status plan(struct graph *g, struct err *e)
{
    struct work w;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_attr; k++) {
            const struct attr *a = &g->nodes[i]->attr[k];
            for (uint32_t b = 0; a->graphs && b < (a->kind == ATTR_GRAPH ? 1 : a->count); b++)
                TRY(plan(a->graphs[b], e));
        }
    TRY(work_init(&w, g, e));
    enum status st = plan_nodes(g, &w, e);
    work_release(&w);
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
        TRY(check_arity(n, e));
        if (n->def->check)
            TRY(n->def->check(n, e));
    }
    TRY(find_producers(g, e));
    TRY(sort(g, e));
    sweep(g);
    return infer(g, e);
}

enum status graph_finish(struct graph *g, const struct graph_opts *o, struct err *e)
{
    int changed = 1;
    g->no_fold = o->no_fold;
    TRY(refuse_unsupported(g, e));
    TRY(prepare(g, e));
    for (int round = 0; changed; round++) {
        if (round == ROUNDS)
            return err_set(e, ST_USER, "the model's constants do not come to rest");
        changed = 0;
        TRY(infer(g, e));
        TRY(settle(g, &changed, e));
    }
    if (!o->no_fuse)
        TRY(graph_fuse(g, o->given, o->n_given, e));
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->nodes[i]->precision = o->precision;
    return plan(g, e);
}
