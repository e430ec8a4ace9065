/* What looks at a whole sequence, beside attention: its mean, its largest, its first token; and positions counted from its start. As ops of their own they
   can tell the sequences of a packed micro-batch apart. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

/* Reduces [B, L, N] over L to [B, N]. */
static int over_length(const struct graph *g, const struct node *n)
{
    uint32_t count = 0;
    const int64_t *axes = node_ints(n, "axes", &count);
    double x = 0;
    if (g->values[n->in[0]].type.rank != 3 || g->values[n->in[0]].type.dtype != DT_F32 || node_int(n, "keepdims", 1) != 0)
        return 0;
    if (axes)
        return count == 1 && (axes[0] == 1 || axes[0] == -2);
    return n->n_in > 1 && constant_number(g, n->in[1], &x) && (x == 1 || x == -2);
}

static enum status pool(struct graph *g, int32_t x, const char *how, int32_t out, const char *name, uint32_t *changed, struct err *e)
{
    struct node *made = rewrite_node(g, "ebb", "SeqPool", 1, name, 1, &x, out);
    if (!made)
        return err_nomem(e, "the model's graph");
    ++*changed;
    return rewrite_string(made, "how", how, e);
}

enum status fuse_pool(struct graph *g, struct node *n, const struct uniform *u, uint32_t *changed, struct err *e)
{
    double axis;
    if (n->n_out < 1 || n->out[0] < 0 || n->n_in < 1 || n->in[0] < 0)
        return ST_OK;
    if (node_is(n, "Div")) { /* sum over the length, by the length */
        struct node *sum = made_by(g, n->in[0], "ReduceSum");
        if (!sum || !over_length(g, sum) || n->in[1] < 0)
            return ST_OK;
        const struct uniform *by = &u[n->in[1]];
        dim length = g->values[sum->in[0]].type.dims[1];
        if ((by->kind == UNIFORM_SIZE && by->size == length) || (by->kind == UNIFORM_NUMBER && dim_known(length) && by->number == (double)length))
            return pool(g, sum->in[0], "mean", n->out[0], n->name, changed, e);
        return ST_OK;
    }
    if (node_is(n, "CumSum") && n->n_in == 2 && constant_number(g, n->in[1], &axis) && (axis == 1 || axis == -1) && !node_int(n, "exclusive", 0) &&
        !node_int(n, "reverse", 0)) { /* positions of tokens that are no padding */
        const struct type *t = &g->values[n->in[0]].type;
        if (t->rank != 2 || dim_known(t->dims[1]) || (t->dtype != DT_I32 && t->dtype != DT_I64))
            return ST_OK;
        ++*changed;
        return rewrite_node(g, "ebb", "SeqCumSum", 1, n->name, 1, n->in, n->out[0]) ? ST_OK : err_nomem(e, "the model's graph");
    }
    if (dim_known(g->values[n->in[0]].type.rank == 3 ? g->values[n->in[0]].type.dims[1] : 0))
        return ST_OK; /* a fixed length is no sequence */
    if (node_is(n, "ReduceMean") && over_length(g, n))
        return pool(g, n->in[0], "mean", n->out[0], n->name, changed, e);
    if (node_is(n, "ReduceMax") && over_length(g, n))
        return pool(g, n->in[0], "max", n->out[0], n->name, changed, e);
    if (node_is(n, "Gather") && node_int(n, "axis", 0) == 1 && n->in[1] >= 0) {
        const struct tensor *index = constant_of(g, n->in[1]);
        const struct type *t = &g->values[n->in[0]].type;
        if (index && index->rank == 0 && constant_is(g, n->in[1], 0) && t->rank == 3 && t->dtype == DT_F32)
            return pool(g, n->in[0], "cls", n->out[0], n->name, changed, e);
    }
    return ST_OK;
}

/* Slice of constant rows [1, P] from 0 to the length, along axis 1. Its constant, or NULL. */
static const struct tensor *leading_positions(const struct graph *g, int32_t v, dim *length)
{
    struct node *n = made_by(g, v, "Slice");
    if (!n || n->n_in < 3)
        return NULL;
    const struct tensor *rows = constant_of(g, n->in[0]);
    const struct type *t = &g->values[v].type;
    const dim *end = n->in[2] >= 0 && g->values[n->in[2]].type.kind == VALUE_TENSOR ? g->values[n->in[2]].type.values : NULL;
    if (!rows || rows->dtype != DT_I64 || rows->rank != 2 || rows->dims[0] != 1 || t->rank != 2 || !end || dim_known(end[0]) ||
        !constant_is(g, n->in[1], 0) || (n->n_in > 3 && n->in[3] >= 0 && !constant_is(g, n->in[3], 1)) ||
        (n->n_in > 4 && n->in[4] >= 0 && !constant_is(g, n->in[4], 1)))
        return NULL;
    *length = end[0]; /* more than there are positions is refused when it runs */
    return rows;
}

/* A value of the graph's inputs with the sizes [batch, length]. */
static int32_t input_of_length(const struct graph *g, dim length)
{
    for (uint32_t i = 0; i < g->n_in; i++) {
        const struct type *t = &g->values[g->in[i]].type;
        if (t->kind == VALUE_TENSOR && t->rank == 2 && t->dims[1] == length)
            return g->in[i];
    }
    return -1;
}

static enum status replace_row(struct graph *g, struct node *n, const struct tensor *table, int64_t row, uint32_t *changed, struct err *e)
{
    struct node *add = only_user(g, n->out[0]);
    if (!node_is(add, "Add") || add->in[0] == add->in[1] || row < 0 || row >= table->dims[0] || is_output(g, n->out[0]) ||
        !same_dims(&g->values[other_input(add, n->out[0])].type, &g->values[add->out[0]].type))
        return ST_OK;
    char name[160];
    snprintf(name, sizeof name, "%.120s.row%lld", n->name, (long long)row);
    int32_t c = graph_constant(g, name, DT_F32, 1, (const int64_t[]){table->dims[1]}, (const float *)tensor_data(table) + row * table->dims[1]);
    if (c < 0)
        return err_nomem(e, "the model's graph");
    *changed += (uint32_t)replace_value(g, n->out[0], c);
    return ST_OK;
}

enum status fuse_positions(struct graph *g, struct node *n, const struct uniform *u, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "Gather") || n->out[0] < 0 || node_int(n, "axis", 0) != 0)
        return ST_OK;
    const struct tensor *table = constant_f32(g, n->in[0], 2);
    if (!table || n->in[1] < 0)
        return ST_OK;
    if (u[n->in[1]].kind == UNIFORM_NUMBER && !constant_of(g, n->in[1])) /* all tokens of one type: one row for all */
        return replace_row(g, n, table, (int64_t)u[n->in[1]].number, changed, e);
    dim length;
    const struct tensor *rows = leading_positions(g, n->in[1], &length);
    int32_t ids = rows ? input_of_length(g, length) : -1;
    if (ids < 0)
        return ST_OK;
    int64_t count = rows->dims[1], width = table->dims[1];
    float *picked = mem_array((size_t)(count * width) + 1, sizeof *picked);
    if (!picked)
        return err_nomem(e, "the model's graph");
    const int64_t *row = tensor_data(rows);
    for (int64_t i = 0; i < count; i++) {
        if (row[i] < 0 || row[i] >= table->dims[0]) {
            mem_free(picked);
            return ST_OK; /* the op itself will say so */
        }
        memcpy(picked + i * width, (const float *)tensor_data(table) + row[i] * width, (size_t)width * sizeof *picked);
    }
    char name[160];
    snprintf(name, sizeof name, "%.120s.positions", n->name);
    int32_t c = graph_constant(g, name, DT_F32, 2, (const int64_t[]){count, width}, picked);
    mem_free(picked);
    struct node *made = c >= 0 ? rewrite_node(g, "ebb", "Positions", 1, n->name, 2, (const int32_t[]){c, ids}, n->out[0]) : NULL;
    if (!made)
        return err_nomem(e, "the model's graph");
    ++*changed;
    return ST_OK;
}

enum status fuse_range(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "Range") || n->out[0] < 0 || g->values[n->out[0]].type.dtype != DT_I64 || !constant_is(g, n->in[0], 0) || !constant_is(g, n->in[2], 1))
        return ST_OK;
    dim length = g->values[n->out[0]].type.dims[0];
    int32_t ids = dim_known(length) ? -1 : input_of_length(g, length);
    if (ids < 0)
        return ST_OK;
    if (!rewrite_node(g, "ebb", "Range", 1, n->name, 1, (const int32_t[]){ids}, n->out[0]))
        return err_nomem(e, "the model's graph");
    ++*changed;
    return ST_OK;
}
