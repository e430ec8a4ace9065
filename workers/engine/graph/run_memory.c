/* What a run holds: made, given its inputs, freed. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/running.h"

char running_caller;

/* Making and freeing ----------------------------------------------------------------------------------------------------------------- */

static void arity(const struct graph *g, uint32_t *in, uint32_t *out)
{
    *in = *out = 1;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        *in = g->nodes[i]->n_in > *in ? g->nodes[i]->n_in : *in;
        *out = g->nodes[i]->n_out > *out ? g->nodes[i]->n_out : *out;
    }
}

/* Input k is not needed afterwards, and is not another input too. */
static int ends_here(const struct node *n, uint32_t k, const struct slot *s)
{
    uint32_t times = 0, found = 0;
    for (uint32_t i = 0; i < n->n_in; i++)
        times += n->in[i] == n->in[k];
    for (uint32_t i = 0; i < s->n_ends; i++)
        found += s->ends[i] == n->in[k];
    return times == 1 && found == 1;
}

static enum status make_slot(struct run *r, uint32_t i, struct err *e)
{
    const struct graph *g = r->g;
    const struct node *n = g->nodes[i];
    struct slot *s = &r->slots[i];
    s->watch = mem_array(n->n_in + 1, sizeof *s->watch);
    s->out = mem_array(n->n_out + 1, sizeof *s->out);
    s->out_bytes = mem_array(n->n_out + 1, sizeof *s->out_bytes);
    if (!s->watch || !s->out || !s->out_bytes)
        return err_nomem(e, "a run");
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] >= 0 && !g->values[n->in[k]].constant.buffer)
            s->watch[s->n_seen++] = k;
    s->seen = mem_array(s->n_seen + 1, sizeof *s->seen);
    if (!s->seen)
        return err_nomem(e, "a run");
    s->ends = g->ends + g->ends_at[i];
    s->n_ends = g->ends_at[i + 1] - g->ends_at[i];
    if (!(n->def->flags & OP_IN_PLACE))
        return ST_OK;
    s->takers = mem_array(s->n_seen + 1, sizeof *s->takers);
    if (!s->takers)
        return err_nomem(e, "a run");
    for (uint32_t k = 0; k < s->n_seen; k++)
        if (ends_here(n, s->watch[k], s))
            s->takers[s->n_takers++] = s->watch[k];
    return ST_OK;
}

/* The symbols that the sizes of inputs are, so that a run can see that each has one size. */
static enum status number_symbols(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    r->symbol = mem_array((size_t)g->n_in * RANK_MAX + 1, sizeof *r->symbol);
    r->symbol_size = mem_array((size_t)g->n_in * RANK_MAX + 1, sizeof *r->symbol_size);
    int *which = mem_array((size_t)g->n_in * RANK_MAX + 1, sizeof *which);
    if (!r->symbol || !r->symbol_size || !which) {
        mem_free(which);
        return err_nomem(e, "a run");
    }
    for (uint32_t i = 0; i < (g->n_in - g->n_taken) * RANK_MAX; i++) {
        const struct type *t = &g->values[g->in[i / RANK_MAX]].type;
        int s = t->kind == VALUE_TENSOR && (int)(i % RANK_MAX) < t->rank ? dim_symbol(g->syms, t->dims[i % RANK_MAX]) : -1;
        uint32_t at = 0;
        while (s >= 0 && at < r->symbols && which[at] != s)
            at++;
        if (s >= 0 && at == r->symbols)
            which[r->symbols++] = s;
        r->symbol[i] = s < 0 ? -1 : (int32_t)at;
    }
    mem_free(which);
    return ST_OK;
}

static enum status set_up(struct run *r, struct run *root, struct err *e)
{
    const struct graph *g = r->g;
    uint32_t n_in, n_out;
    arity(g, &n_in, &n_out);
    r->root = root ? root : r;
    r->values = mem_array(g->n_values + 1, sizeof *r->values);
    r->slots = mem_array(g->n_nodes + 1, sizeof *r->slots);
    r->in = mem_array(n_in, sizeof *r->in);
    r->out = mem_array(n_out, sizeof *r->out);
    r->in_types = mem_array(n_in, sizeof *r->in_types);
    r->constants = mem_array(n_in, sizeof *r->constants);
    r->in_values = mem_array(n_in, VALUES_MAX * sizeof *r->in_values);
    r->borrowed = mem_array(g->n_in + 1, sizeof *r->borrowed);
    if (!r->values || !r->slots || !r->in || !r->out || !r->in_types || !r->constants || !r->in_values || !r->borrowed)
        return err_nomem(e, "a run");
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].constant.buffer)
            r->values[i] = (struct value){.kind = VALUE_TENSOR, .tensor = g->values[i].constant};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        TRY(make_slot(r, i, e));
    if (!root)
        TRY(number_symbols(r, e));
    if (root)
        r->pool = root->pool;
    else
        TRY(pool_new(g->run_bytes, &r->pool, e));
    return ST_OK;
}

void running_free_strings(struct strings *s)
{
    while (s) {
        struct strings *next = s->next;
        mem_free(s);
        s = next;
    }
}

void run_free(struct run *r)
{
    if (!r)
        return;
    while (r->bodies) {
        struct run *next = r->bodies->next_body;
        run_free(r->bodies);
        r->bodies = next;
    }
    for (uint32_t i = 0; r->values && i < r->g->n_values; i++)
        value_release(&r->values[i]);
    for (uint32_t i = 0; r->slots && i < r->g->n_nodes; i++) {
        mem_free(r->slots[i].watch);
        mem_free(r->slots[i].seen);
        mem_free(r->slots[i].takers);
        mem_free(r->slots[i].out);
        mem_free(r->slots[i].out_bytes);
    }
    for (uint32_t i = 0; i < r->chunks; i++)
        mem_free(r->chunk[i].base);
    running_free_strings(r->strings);
    running_free_strings(r->spare);
    room_free(r->room);
    mem_free(r->values);
    mem_free(r->slots);
    mem_free(r->in);
    mem_free(r->out);
    mem_free(r->in_types);
    mem_free(r->constants);
    mem_free(r->in_values);
    mem_free(r->borrowed);
    mem_free(r->symbol);
    mem_free(r->symbol_size);
    if (r->root == r)
        pool_free(r->pool);
    mem_free(r);
}

enum status running_new(const struct graph *g, struct run *root, struct run **out, struct err *e)
{
    BUG_IF(!g->ends_at, "a graph is run before it is finished");
    struct run *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_nomem(e, "a run");
    r->g = g;
    enum status st = set_up(r, root, e);
    if (st != ST_OK) {
        if (!r->root)
            r->root = r;
        run_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

enum status run_new(const struct graph *g, struct run **out, struct err *e)
{
    return running_new(g, NULL, out, e);
}

size_t run_bytes(const struct run *r)
{
    size_t n = pool_bytes(r->pool);
    for (uint32_t i = 0; i < r->chunks; i++)
        n += r->chunk[i].cap;
    return n;
}

struct pool *run_pool(struct run *r)
{
    return r->pool;
}

const struct node *run_node(const struct run *r)
{
    return r->node;
}

/* Inputs ----------------------------------------------------------------------------------------------------------------------------- */

static const char *type_text(enum dtype d, uint32_t rank, const int64_t *dims, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "%s[", dtype_name(d));
    for (uint32_t i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

/* An input is what the graph was finished for. */
static enum status check_input(const struct run *r, uint32_t i, const struct tensor *t, struct err *e)
{
    const struct graph_value *v = &r->g->values[r->g->in[i]];
    char got[256], want[64];
    int fits = v->type.rank < 0 || (uint32_t)v->type.rank == t->rank;
    for (uint32_t k = 0; fits && v->type.rank >= 0 && k < t->rank; k++)
        fits = t->dims[k] >= 0 && (!dim_known(v->type.dims[k]) || v->type.dims[k] == t->dims[k]);
    if (fits && (v->type.dtype == DT_NONE || v->type.dtype == t->dtype))
        return ST_OK;
    char shape[512];
    size_t n = (size_t)snprintf(shape, sizeof shape, "%s[", dtype_name(v->type.dtype));
    for (int k = 0; k < v->type.rank && n < sizeof shape; k++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%s", k ? ", " : "", dim_text(r->g->syms, v->type.dims[k], want, sizeof want));
    if (n < sizeof shape)
        snprintf(shape + n, sizeof shape - n, v->type.rank < 0 ? "...]" : "]");
    return err_set(e, ST_USER, "input '%s' is %s where the model takes %s", v->name, type_text(t->dtype, t->rank, t->dims, got, sizeof got), shape);
}

enum status run_set(struct run *r, uint32_t i, enum dtype d, uint32_t rank, const int64_t *dims, const void *data, struct err *e)
{
    BUG_IF(i >= r->g->n_in || rank > RANK_MAX, "input %u of %u", i, r->g->n_in);
    struct value *v = &r->values[r->g->in[i]];
    struct tensor t = {.dtype = d, .rank = rank, .buffer = &r->borrowed[i]};
    if (rank)
        memcpy(t.dims, dims, rank * sizeof *dims);
    TRY(check_input(r, i, &t, e));
    value_clear(v);
    r->borrowed[i] = (struct buffer){.refs = 1u << 30, .base = (void *)data, .owner = &running_caller};
    v->kind = VALUE_TENSOR;
    v->tensor = t;
    return ST_OK;
}

/* Tensors of sequences are copied: their memory is the caller's, who says so only of whole inputs. */
enum status run_set_value(struct run *r, uint32_t i, const struct value *v, struct err *e)
{
    if (v->kind == VALUE_TENSOR)
        return run_set(r, i, v->tensor.dtype, v->tensor.rank, v->tensor.dims, tensor_data(&v->tensor), e);
    BUG_IF(i >= r->g->n_in, "input %u of %u", i, r->g->n_in);
    struct value *to = &r->values[r->g->in[i]];
    value_clear(to);
    to->element = v->element;
    to->kind = v->kind;
    for (uint32_t k = 0; v->kind == VALUE_SEQUENCE && k < v->count; k++) {
        struct tensor t = v->items[k].tensor;
        int64_t bytes = tensor_size(t.dtype, t.rank, t.dims);
        struct buffer *b;
        if (bytes < 0)
            return err_set(e, ST_USER, "input '%s' has sizes that cannot be", r->g->values[r->g->in[i]].name);
        r->node = NULL;
        TRY(run_buffer(r, (size_t)bytes, &b, e));
        memcpy(b->base, tensor_data(&v->items[k].tensor), (size_t)bytes);
        t.buffer = b;
        t.offset = 0;
        enum status st = value_append(r->pool, to, &t, e);
        buffer_drop(b);
        TRY(st);
    }
    return ST_OK;
}

enum status run_give(struct run *body, uint32_t i, const struct value *v, struct err *e)
{
    BUG_IF(i >= body->g->n_in, "input %u of %u", i, body->g->n_in);
    return value_share(&body->values[body->g->in[i]], v, e);
}

enum status run_give_capture(struct run *body, uint32_t i, const struct value *v, struct err *e)
{
    BUG_IF(i >= body->g->n_captures, "capture %u of %u", i, body->g->n_captures);
    int32_t to = body->g->captures[i];
    if (body->g->values[to].constant.buffer)
        return ST_OK;
    return value_share(&body->values[to], v, e);
}
