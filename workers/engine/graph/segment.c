#include "workers/engine/graph/segment.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* More of the whole work than this in one segment, and it is cut where more bytes cross, if it can be. */
#define MUCH 0.2

struct sizes {
    const struct graph *g;
    const int64_t *value;
    uint32_t values;
};

static double size_of(const struct sizes *s, dim d)
{
    int64_t x = dim_value(s->g->syms, d, s->value, s->values);
    return x == DIM_UNKNOWN || x < 0 ? 1 : (double)x;
}

static double elements(const struct sizes *s, const struct type *t)
{
    double n = 1;
    for (int i = 0; t->kind == VALUE_TENSOR && i < t->rank; i++)
        n *= size_of(s, t->dims[i]);
    return n;
}

static double bytes_of(const struct sizes *s, int32_t v)
{
    const struct type *t = &s->g->values[v].type;
    return elements(s, t) * (double)dtype_bytes(t->dtype);
}

static int is(const struct node *n, const char *op)
{
    return strcmp(n->op, op) == 0;
}

static const struct type *in_type(const struct graph *g, const struct node *n, uint32_t i)
{
    static const struct type none;
    return i < n->n_in && n->in[i] >= 0 ? &g->values[n->in[i]].type : &none;
}

double node_flops(const struct graph *g, const struct node *n, const int64_t *value, uint32_t values)
{
    struct sizes s = {g, value, values};
    if (!n->n_out || n->out[0] < 0)
        return 0;
    const struct type *y = &g->values[n->out[0]].type, *a = in_type(g, n, 0), *b = in_type(g, n, 1);
    double out = elements(&s, y);
    if ((is(n, "MatMul") || is(n, "Linear") || is(n, "Gemm") || is(n, "MatMulInteger") || is(n, "QLinearMatMul")) && a->rank > 0)
        return 2 * out * size_of(&s, a->dims[is(n, "Gemm") && node_int(n, "transA", 0) ? 0 : a->rank - 1]);
    if ((is(n, "Conv") || is(n, "FusedConv") || is(n, "ConvInteger") || is(n, "QLinearConv")) && b->rank > 2) {
        const struct type *w = is(n, "QLinearConv") ? in_type(g, n, 3) : b;
        return w->rank > 2 ? 2 * out * elements(&s, w) / size_of(&s, w->dims[0]) : out;
    }
    if (is(n, "ConvTranspose") && b->rank > 2)
        return 2 * elements(&s, a) * elements(&s, b) / size_of(&s, b->dims[0]);
    if (is(n, "Attention") && strcmp(n->domain, "ebb") == 0)
        return 4 * out * size_of(&s, a->dims[1]); /* scores, and their product with the values */
    if ((is(n, "LSTM") || is(n, "GRU") || is(n, "RNN")) && a->rank == 3)
        return 2 * size_of(&s, a->dims[0]) * size_of(&s, a->dims[1]) * (elements(&s, b) + elements(&s, in_type(g, n, 2)));
    if (n->def->flags & (OP_VIEW | OP_HOST))
        return 0;
    return out;
}

/* How a value is made anew. */
enum { DEAR, CHEAP, FIXED }; /* FIXED: of constants alone. Rather than weights cross, what was too large to be folded is made on both sides */

/* Where each value comes from: what all that it takes costs, and whether it is made of the graph's inputs cheaply. */
static enum status find_cheap(const struct sizes *s, int first_alone, const double *flops, double total, uint8_t **out, struct err *e)
{
    const struct graph *g = s->g;
    uint8_t *cheap = mem_array(g->n_values + 1, 1);
    double *whole = mem_array(g->n_values + 1, sizeof *whole);
    if (!cheap || !whole) {
        mem_free(cheap);
        mem_free(whole);
        return err_nomem(e, "segments");
    }
    for (uint32_t v = 0; v < g->n_values; v++)
        cheap[v] = g->values[v].constant.buffer ? FIXED : DEAR;
    for (uint32_t i = 0; i < g->n_in; i++)
        if (!cheap[g->in[i]])
            cheap[g->in[i]] = first_alone ? DEAR : CHEAP;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct node *n = g->nodes[i];
        double sum = flops[i];
        int all = 1, fixed = 1;
        for (uint32_t k = 0; k < n->n_in; k++) {
            int32_t v = n->in[k];
            if (v < 0)
                continue;
            const struct tensor *c = g->values[v].constant.buffer ? &g->values[v].constant : NULL;
            sum += whole[v];
            fixed &= cheap[v] == FIXED;
            all &= cheap[v] && (!c || c->buffer->bytes <= 65536); /* a table of embeddings is not kept on every side */
        }
        for (uint32_t k = 0; k < n->n_out; k++) {
            if (n->out[k] < 0)
                continue;
            whole[n->out[k]] = sum;
            cheap[n->out[k]] = fixed ? FIXED : all && sum <= total * 1e-3 ? CHEAP : DEAR;
        }
    }
    mem_free(whole);
    *out = cheap;
    return ST_OK;
}

int graph_can_cross(const struct graph *g, const struct cutting *c, int32_t v)
{
    const struct type *t = &g->values[v].type;
    return t->kind == VALUE_TENSOR && !t->optional && dtype_bytes(t->dtype) && !(c->stays && c->stays[v]);
}

/* Bytes that cross behind each node; infinity where something would that cannot. */
static enum status find_crossing(const struct sizes *s, const struct cutting *cutting, const uint8_t *cheap, double **out, struct err *e)
{
    const struct graph *g = s->g;
    double *crossing = mem_array(g->n_nodes + 1, sizeof *crossing);
    uint32_t *last = mem_array(g->n_values + 1, sizeof *last);
    if (!crossing || !last) {
        mem_free(crossing);
        mem_free(last);
        return err_nomem(e, "segments");
    }
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_in; k++)
            if (g->nodes[i]->in[k] >= 0)
                last[g->nodes[i]->in[k]] = i;
    for (uint32_t i = 0; i < g->n_out; i++)
        last[g->out[i]] = g->n_nodes; /* a result travels to the end */
    for (uint32_t v = 0; v < g->n_values; v++) {
        int32_t made = g->values[v].producer;
        if (cheap[v] || (made < 0 && !last[v]))
            continue;
        double bytes = graph_can_cross(g, cutting, (int32_t)v) ? bytes_of(s, (int32_t)v) : INFINITY;
        for (uint32_t c = made < 0 ? 0 : (uint32_t)made; c < last[v] && c < g->n_nodes; c++)
            crossing[c] += bytes;
    }
    mem_free(last);
    *out = crossing;
    return ST_OK;
}

static uint64_t new_weights(const struct graph *g, uint32_t first, uint32_t count, uint8_t *seen)
{
    uint64_t bytes = 0;
    for (uint32_t i = first; i < first + count; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_in; k++) {
            int32_t v = g->nodes[i]->in[k];
            if (v < 0 || seen[v] || !g->values[v].constant.buffer)
                continue;
            seen[v] = 1;
            bytes += (uint64_t)tensor_count(&g->values[v].constant) * dtype_bytes(g->values[v].constant.dtype);
        }
    return bytes;
}

/* Of all nodes, one after the other. */
static double find_flops(const struct graph *g, const int64_t *sizes, uint32_t symbols, double *flops)
{
    double total = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        total += flops[i] = node_flops(g, g->nodes[i], sizes, symbols);
    return total;
}

enum status graph_cheap(const struct graph *g, const struct cutting *c, uint8_t **out, struct err *e)
{
    struct sizes s = {g, c->where, c->symbols};
    double *flops = mem_array(g->n_nodes + 1, sizeof *flops);
    if (!flops)
        return err_nomem(e, "segments");
    double total = find_flops(g, c->where, c->symbols, flops);
    enum status st = find_cheap(&s, c->first_alone, flops, total, out, e);
    mem_free(flops);
    return st;
}

/* What choosing looks at. */
struct choice {
    const struct graph *g;
    const double *work; /* of each node: its share of all operations and of all weights, so that a table of embeddings, which costs no time, can be a part */
    const double *crossing;
    double total;
    uint8_t *cut; /* of each node: there is a cut behind it */
};

/* Returns the sum of all. */
static double find_work(const struct graph *g, const double *flops, double total, uint8_t *seen, double *work)
{
    double weights = 0, sum = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        weights += work[i] = (double)new_weights(g, i, 1, seen);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        sum += work[i] = (weights > 0 ? work[i] / weights : 0) + (total > 0 ? flops[i] / total : 0);
    return sum;
}

/* Cuts of nodes [first, end): wherever the fewest bytes cross, of all places that leave work on both sides. A part that still has much of the work (the early layers of a
   network whose planes shrink, say) is looked at by itself again. */
static void choose(struct choice *c, uint32_t first, uint32_t end)
{
    double work = 0, done = 0, least = INFINITY, some = c->total * (end - first < c->g->n_nodes ? 0.02 : 1e-3);
    uint32_t from = first;
    for (uint32_t i = first; i < end; i++)
        work += c->work[i];
    if (work == 0 || (work <= c->total * MUCH && end - first < c->g->n_nodes))
        return;
    for (uint32_t i = first; i + 1 < end; i++) {
        done += c->work[i];
        if (done > work * 0.01 && done < work * 0.99 && done >= some && work - done >= some && c->crossing[i] > 0 && c->crossing[i] < least)
            least = c->crossing[i];
    }
    if (!isfinite(least))
        return;
    done = 0;
    for (uint32_t i = first; i < end; i++) {
        done += c->work[i];
        /* a segment has some work: cuts right behind each other serve nobody */
        if (i + 1 < end && (c->crossing[i] == 0 || c->crossing[i] > least * 1.01 || done < some))
            continue;
        if (i + 1 < end || from > first)
            choose(c, from, i + 1);
        if (i + 1 < end)
            c->cut[i] = 1;
        from = i + 1;
        done = 0;
    }
}

static void measure(const struct sizes *s, const double *flops, const double *crossing, const uint8_t *cut, uint8_t *seen, struct segment *list, uint32_t *count)
{
    const struct graph *g = s->g;
    uint32_t first = 0;
    double work = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        int end = i + 1 == g->n_nodes;
        work += flops[i];
        if (!cut[i])
            continue;
        double bytes = end ? 0 : crossing[i]; /* results cross to the end: not twice */
        for (uint32_t k = 0; end && k < g->n_out; k++)
            bytes += bytes_of(s, g->out[k]);
        list[(*count)++] = (struct segment){first, i + 1 - first, work, new_weights(g, first, i + 1 - first, seen), (uint64_t)bytes};
        first = i + 1;
        work = 0;
    }
}

enum status graph_segments(const struct graph *g, const struct cutting *c, struct segment **out, uint32_t *count, struct err *e)
{
    struct sizes where = {g, c->where, c->symbols}, s = {g, c->sizes, c->symbols};
    uint8_t *cheap = NULL, *seen = mem_array(g->n_values + 1, 1), *cut = mem_array(g->n_nodes + 1, 1);
    double *flops = mem_array(g->n_nodes + 1, sizeof *flops), *work = mem_array(g->n_nodes + 1, sizeof *work), *crossing = NULL, total = 0;
    struct segment *list = mem_array(g->n_nodes + 1, sizeof *list);
    enum status st = seen && cut && flops && work && list ? ST_OK : err_nomem(e, "segments");
    if (st == ST_OK) {
        total = find_flops(g, c->where, c->symbols, flops);
        st = find_cheap(&where, c->first_alone, flops, total, &cheap, e);
    }
    if (st == ST_OK)
        st = find_crossing(&where, c, cheap, &crossing, e);
    if (st == ST_OK) {
        double all = find_work(g, flops, total, seen, work);
        memset(seen, 0, g->n_values);
        choose(&(struct choice){g, work, crossing, all, cut}, 0, g->n_nodes);
        if (g->n_nodes)
            cut[g->n_nodes - 1] = 1;
        find_flops(g, c->sizes, c->symbols, flops);
        mem_free(crossing);
        crossing = NULL;
        st = find_crossing(&s, c, cheap, &crossing, e);
    }
    if (st == ST_OK) {
        *count = 0;
        measure(&s, flops, crossing, cut, seen, list, count);
        *out = list;
        list = NULL;
    }
    mem_free(cheap);
    mem_free(seen);
    mem_free(cut);
    mem_free(flops);
    mem_free(work);
    mem_free(crossing);
    mem_free(list);
    return st;
}
