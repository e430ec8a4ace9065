/* Products of activations that are quantised as they come, as quantisers write them:

     DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul (the two scales' product) -> Add (bias)

   become one DynamicQuantizeMatMul of com.microsoft, which computes the same numbers with the same roundings. What it knows, and the parts do not, is that the
   scale belongs to a record: texts can be packed, each with a scale of its own (pack.c). */
#include <stdio.h>

#include "base/mem.h"
#include "workers/engine/graph/fuse.h"
#include "workers/engine/graph/rewrite.h"

/* The product of the scale that q's node found and a constant one: in *weights the constant. */
static int is_scale(const struct graph *g, int32_t v, const struct node *q, int64_t columns, int32_t *weights)
{
    const struct node *mul = made_by(g, v, "Mul");
    if (!mul || (mul->in[0] != q->out[1] && mul->in[1] != q->out[1]))
        return 0;
    *weights = other_input(mul, q->out[1]);
    const struct tensor *t = constant_f32(g, *weights, -1);
    return t && t->rank <= 1 && (tensor_count(t) == 1 || tensor_count(t) == columns);
}

enum status fuse_dynamic(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "MatMulInteger") || n->n_in < 3 || n->out[0] < 0)
        return ST_OK;
    const struct node *q = made_by(g, n->in[0], "DynamicQuantizeLinear");
    const struct tensor *w = constant_of(g, n->in[1]);
    int32_t zero = n->n_in > 3 ? n->in[3] : -1, scales;
    if (!q || q->n_out < 3 || q->out[1] < 0 || n->in[0] != q->out[0] || n->in[2] != q->out[2] || !w || w->rank != 2 || tensor_count(w) == 0 ||
        (zero >= 0 && !constant_of(g, zero)))
        return ST_OK;
    const struct node *cast = only_user(g, n->out[0]);
    if (!node_is(cast, "Cast") || g->values[cast->out[0]].type.dtype != DT_F32)
        return ST_OK;
    const struct node *mul = only_user(g, cast->out[0]);
    if (!node_is(mul, "Mul") || mul->in[0] == mul->in[1] || !is_scale(g, other_input(mul, cast->out[0]), q, w->dims[1], &scales))
        return ST_OK;
    int32_t out = mul->out[0], bias = -1;
    if (g->values[n->out[0]].type.rank < 1 || g->values[n->out[0]].type.rank != g->values[out].type.rank)
        return ST_OK;
    const struct node *add = only_user(g, out);
    if (node_is(add, "Add") && add->in[0] != add->in[1]) {
        const struct tensor *b = constant_f32(g, other_input(add, out), 1);
        if (b && b->dims[0] == w->dims[1] && g->values[add->out[0]].type.rank == g->values[out].type.rank) {
            bias = other_input(add, out);
            out = add->out[0];
        }
    }
    int32_t in[5] = {q->in[0], n->in[1], scales, zero, bias};
    uint32_t count = bias >= 0 ? 5 : zero >= 0 ? 4 : 3;
    if (!rewrite_node(g, "com.microsoft", "DynamicQuantizeMatMul", 1, n->name, count, in, out))
        return err_nomem(e, "the model's graph");
    ++*changed;
    return ST_OK;
}

enum { TABLE_MOST = 1 << 20 }; /* elements: larger tables stay bytes, of which rows are widened as they are looked up */

/* Rows that are looked up in a small table of bytes and widened then: the table is widened once, so that the passes that know tables (positions, types of
   tokens) know it too. */
enum status fuse_table(struct graph *g, struct node *n, uint32_t *changed, struct err *e)
{
    if (!node_is(n, "DequantizeLinear") || n->out[0] < 0 || n->n_in < 2 || g->values[n->out[0]].type.dtype != DT_F32)
        return ST_OK;
    const struct node *gather = made_by(g, n->in[0], "Gather");
    const struct tensor *table = gather ? constant_of(g, gather->in[0]) : NULL, *scale = constant_f32(g, n->in[1], -1);
    const struct tensor *zero = n->n_in > 2 && n->in[2] >= 0 ? constant_of(g, n->in[2]) : NULL;
    if (!table || table->rank != 2 || (table->dtype != DT_U8 && table->dtype != DT_I8) || tensor_count(table) > TABLE_MOST || node_int(gather, "axis", 0) != 0 ||
        !scale || scale->rank > 1 || tensor_count(scale) != 1 || (n->n_in > 2 && n->in[2] >= 0 && (!zero || tensor_count(zero) != 1 || zero->dtype != table->dtype)))
        return ST_OK;
    size_t count = (size_t)tensor_count(table);
    float *wide = mem_array(count + 1, sizeof *wide), by = *(const float *)tensor_data(scale);
    if (!wide)
        return err_nomem(e, "the model's graph");
    const void *from = tensor_data(table);
    int is_signed = table->dtype == DT_I8, z = !zero ? 0 : is_signed ? *(const int8_t *)tensor_data(zero) : *(const uint8_t *)tensor_data(zero);
    for (size_t i = 0; i < count; i++)
        wide[i] = (float)((is_signed ? ((const int8_t *)from)[i] : ((const uint8_t *)from)[i]) - z) * by;
    char name[160];
    snprintf(name, sizeof name, "%.120s.table", gather->name);
    int32_t c = graph_constant(g, name, DT_F32, 2, table->dims, wide);
    mem_free(wide);
    if (c < 0 || !rewrite_node(g, "", "Gather", gather->opset, gather->name, 2, (const int32_t[]){c, gather->in[1]}, n->out[0]))
        return err_nomem(e, "the model's graph");
    ++*changed;
    return ST_OK;
}
