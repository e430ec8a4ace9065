/* Runs a finished graph: node after node, each value let go when the last node that needs it has run. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/running.h"

/* What is left of the last run: its results, or more where it failed. */
static void clear(struct run *r, int all)
{
    const struct graph *g = r->g;
    for (uint32_t i = 0; i < (all ? g->n_values : g->n_out); i++) {
        int32_t v = all ? (int32_t)i : g->out[i];
        if (!g->values[v].constant.buffer && g->values[v].producer >= 0)
            value_clear(&r->values[v]);
    }
}

enum status run_go(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    clear(r, 0);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        struct slot *s = &r->slots[i];
        for (uint32_t k = 0; k < n->n_in; k++)
            r->in[k] = n->in[k] < 0 ? NULL : &r->values[n->in[k]];
        for (uint32_t k = 0; k < n->n_out; k++)
            r->out[k] = n->out[k] < 0 ? NULL : &r->values[n->out[k]];
        enum status st = running_turn(r, n, s, e);
        if (st != ST_OK) {
            clear(r, 1);
            return st;
        }
        for (uint32_t k = 0; k < s->n_ends; k++)
            value_clear(&r->values[s->ends[k]]);
    }
    return ST_OK;
}

const struct value *run_taken(const struct run *r, uint32_t i)
{
    return &r->values[r->g->out[i]];
}

void run_done(struct run *r)
{
    const struct graph *g = r->g;
    clear(r, 0);
    for (uint32_t i = 0; i < g->n_in; i++)
        value_clear(&r->values[g->in[i]]);
    for (uint32_t i = 0; i < g->n_captures; i++)
        if (!g->values[g->captures[i]].constant.buffer)
            value_clear(&r->values[g->captures[i]]);
}

enum status run_body(struct run *r, const struct graph *body, struct run **out, struct err *e)
{
    for (struct run *b = r->bodies; b; b = b->next_body)
        if (b->g == body) {
            *out = b;
            return ST_OK;
        }
    struct run *b = NULL;
    TRY(running_new(body, r->root, &b, e));
    b->next_body = r->bodies;
    r->bodies = b;
    *out = b;
    return ST_OK;
}

/* A whole run -------------------------------------------------------------------------------------------------------------------------- */

/* A result does not lie in memory that the caller takes back. */
static enum status own(struct run *r, struct value *v, struct err *e)
{
    for (uint32_t i = 0; v->kind == VALUE_SEQUENCE && i < v->count; i++)
        TRY(own(r, &v->items[i], e));
    if (v->kind != VALUE_TENSOR || !v->tensor.buffer->owner)
        return ST_OK;
    struct tensor *t = &v->tensor;
    if (t->buffer->owner == &running_caller || t->dtype == DT_STR) {
        size_t bytes = (size_t)tensor_count(t) * dtype_bytes(t->dtype);
        struct buffer *b;
        TRY(run_buffer(r, bytes, &b, e));
        if (bytes)
            memcpy(b->base, tensor_data(t), bytes);
        buffer_drop(t->buffer);
        t->buffer = b;
        t->offset = 0;
    }
    struct str *s = t->dtype == DT_STR ? tensor_data(t) : NULL;
    for (int64_t i = 0; s && i < tensor_count(t); i++)
        TRY(run_string(r, s[i].data, s[i].len, &s[i], e));
    return ST_OK;
}

/* Sizes of one name are one size: what was inferred when the model was loaded rests on that. */
static enum status check_symbols(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    for (uint32_t i = 0; i < r->symbols; i++)
        r->symbol_size[i] = -1;
    for (uint32_t i = 0; i < g->n_in - g->n_taken; i++) {
        const struct graph_value *v = &g->values[g->in[i]];
        const struct tensor *t = &r->values[g->in[i]].tensor;
        for (uint32_t k = 0; r->values[g->in[i]].kind == VALUE_TENSOR && k < t->rank; k++) {
            int32_t s = r->symbol[i * RANK_MAX + k];
            char name[128];
            if (s < 0)
                continue;
            if (r->symbol_size[s] >= 0 && r->symbol_size[s] != t->dims[k])
                return err_set(e, ST_USER, "input '%s' has size %lld along axis %u, but '%s' is %lld elsewhere among the inputs", v->name, (long long)t->dims[k], k,
                               dim_text(g->syms, v->type.dims[k], name, sizeof name), (long long)r->symbol_size[s]);
            r->symbol_size[s] = t->dims[k];
        }
    }
    return ST_OK;
}

static enum status whole(struct run *r, struct err *e)
{
    const struct graph *g = r->g;
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct graph_value *v = &g->values[g->in[i]];
        if (r->values[g->in[i]].kind == VALUE_NONE && !v->type.optional && !v->constant.buffer)
            return err_set(e, ST_USER, "input '%s' is not given", v->name);
    }
    TRY(check_symbols(r, e));
    clear(r, 0);
    while (r->strings) {
        struct strings *s = r->strings;
        r->strings = s->next;
        s->next = r->spare;
        r->spare = s;
    }
    TRY(run_go(r, e));
    r->node = NULL;
    for (uint32_t i = 0; i < g->n_out; i++)
        TRY(own(r, &r->values[g->out[i]], e));
    return ST_OK;
}

enum status run_graph(struct run *r, struct err *e)
{
    unsigned saved = fp_enter();
    enum status st = whole(r, e);
    fp_leave(saved);
    return st;
}

const struct value *run_result(const struct run *r, uint32_t i)
{
    return &r->values[r->g->out[i]];
}

enum status run_submit(struct run *r, ticket *out, struct err *e)
{
    TRY(run_graph(r, e));
    *out = 1; /* it is done */
    return ST_OK;
}

enum status run_wait(struct run *r, ticket t, struct err *e)
{
    (void)r;
    (void)e;
    BUG_IF(t != 1, "no such ticket");
    return ST_OK;
}

/* One node on its own ------------------------------------------------------------------------------------------------------------------ */

static enum status once(struct run *r, struct node *n, struct slot *s, const struct tensor *const *in, struct value *values, struct tensor *out,
                        struct err *e)
{
    for (uint32_t i = 0; i < n->n_in; i++) {
        r->in[i] = in[i] ? &values[i] : NULL;
        if (in[i])
            values[i] = (struct value){.kind = VALUE_TENSOR, .tensor = *in[i]};
    }
    for (uint32_t k = 0; k < n->n_out; k++)
        r->out[k] = n->out[k] < 0 ? NULL : &values[n->n_in + k];
    unsigned saved = fp_enter();
    enum status st = running_turn(r, n, s, e);
    fp_leave(saved);
    for (uint32_t k = 0; k < n->n_out && st == ST_OK; k++) {
        if (!r->out[k])
            continue;
        struct tensor *t = &r->out[k]->tensor;
        if (!t->buffer->owner)
            tensor_share(&out[k], t);
        else
            st = tensor_copy(&out[k], t->dtype, t->rank, t->dims, tensor_data(t), e);
    }
    return st;
}

enum status run_once(const struct graph *g, struct node *n, const struct tensor *const *in, struct tensor *out, struct err *e)
{
    struct run r = {.g = g, .root = &r};
    struct slot s = {0};
    uint32_t n_in = n->n_in + 1, n_out = n->n_out + 1;
    struct value *values = mem_array(n_in + n_out, sizeof *values);
    s.out = mem_array(n_out, sizeof *s.out);
    s.out_bytes = mem_array(n_out, sizeof *s.out_bytes);
    r.in = mem_array(n_in, sizeof *r.in);
    r.out = mem_array(n_out, sizeof *r.out);
    r.in_types = mem_array(n_in, sizeof *r.in_types);
    r.constants = mem_array(n_in, sizeof *r.constants);
    r.in_values = mem_array(n_in, VALUES_MAX * sizeof *r.in_values);
    enum status st = !values || !s.out || !s.out_bytes || !r.in || !r.out || !r.in_types || !r.constants || !r.in_values
                         ? err_nomem(e, "folding constants")
                         : pool_new(graph_outermost((struct graph *)g)->run_bytes, &r.pool, e);
    if (st == ST_OK)
        st = once(&r, n, &s, in, values, out, e);
    for (uint32_t k = 0; st != ST_OK && k < n->n_out; k++)
        tensor_release(&out[k]);
    for (uint32_t k = 0; values && k < n->n_out; k++)
        value_release(&values[n->n_in + k]);
    for (uint32_t i = 0; i < r.chunks; i++)
        mem_free(r.chunk[i].base);
    running_free_strings(r.strings);
    room_free(r.room);
    pool_free(r.pool);
    mem_free(values);
    mem_free(s.out);
    mem_free(s.out_bytes);
    mem_free(r.in);
    mem_free(r.out);
    mem_free(r.in_types);
    mem_free(r.constants);
    mem_free(r.in_values);
    return st;
}
