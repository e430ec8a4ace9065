/* What looks at a sequence from its start. Made by graph/fuse_sequence.c only.
   ebb.SeqPool: x [batch, length, n] to [batch, n]; attribute how: mean, max, cls (the first token).
   ebb.SeqCumSum: x [batch, length] of int32 or int64: sums from each sequence's start.
   ebb.Positions: a constant table [positions, n] and an input of the sizes [batch, length], to [1, length, n]: the table's first rows; packed, the first
   rows of each sequence in turn. */
#include <string.h>

#include "workers/engine/cpu/kernels.h"
#include "workers/engine/ops/args.h"

static enum status pool_check(struct node *n, struct err *e)
{
    const char *how = node_string(n, "how", "");
    if (strcmp(how, "mean") != 0 && strcmp(how, "max") != 0 && strcmp(how, "cls") != 0)
        return node_error(n, e, "'%s' is no way of pooling", how);
    return ST_OK;
}

static enum status pool_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    if (x->dtype != DT_F32 || x->rank != 3)
        return node_error(s->node, e, "wrong types");
    if (!s->syms && s->packed) /* as many rows as there are texts: run makes it */
        type_unknown(s, &s->out[0], DT_F32, 2);
    else
        type_tensor(&s->out[0], DT_F32, 2, (const dim[]){x->dims[0], x->dims[2]});
    return ST_OK;
}

static enum status pool_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    const struct seqs *s = run_seqs(r);
    const char *name = node_string(n, "how", "");
    enum pooling how = strcmp(name, "mean") == 0 ? POOL_MEAN : strcmp(name, "max") == 0 ? POOL_MAX : POOL_CLS;
    int64_t rows = x->dims[0] * x->dims[1], width = x->dims[2];
    if (s) {
        if ((int64_t)s->tokens != rows)
            return node_error(n, e, "%lld rows for %u packed tokens", (long long)rows, s->tokens);
        TRY(run_make(r, 0, DT_F32, 2, (const int64_t[]){s->count, width}, e));
    } else if (x->dims[1] == 0) {
        return node_error(n, e, "a sequence without tokens has no %s", name);
    }
    const float *p = tensor_data(x);
    float *y = tensor_data(run_out(r, 0));
    uint32_t count = s ? s->count : (uint32_t)x->dims[0];
    for (uint32_t i = 0; i < count; i++, y += width) {
        uint32_t len = s ? s->lengths[i] : (uint32_t)x->dims[1];
        n->kernels->pool(how, len, (uint32_t)width, p, (size_t)width, y);
        p += (size_t)len * (size_t)width;
    }
    return ST_OK;
}

static int pool_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)s;
    (void)in;
    (void)out;
    return axis == 0 ? 0 : axis == 2 ? 1 : -1;
}

static enum status cumsum_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    if ((x->dtype != DT_I32 && x->dtype != DT_I64) || x->rank != 2)
        return node_error(s->node, e, "wrong types");
    type_tensor(&s->out[0], x->dtype, 2, x->dims);
    return ST_OK;
}

static enum status cumsum_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    const struct seqs *s = run_seqs(r);
    const void *from = tensor_data(x);
    void *to = tensor_data(run_out(r, 0));
    size_t at = 0;
    if (s && (int64_t)s->tokens != tensor_count(x))
        return node_error(n, e, "%lld numbers for %u packed tokens", (long long)tensor_count(x), s->tokens);
    for (uint32_t i = 0; i < (s ? s->count : (uint32_t)x->dims[0]); i++) {
        size_t end = at + (s ? s->lengths[i] : (size_t)x->dims[1]);
        uint64_t sum = 0;
        for (; at < end; at++) {
            if (x->dtype == DT_I64)
                ((int64_t *)to)[at] = (int64_t)(sum += (uint64_t)((const int64_t *)from)[at]);
            else
                ((int32_t *)to)[at] = (int32_t)(uint32_t)(sum += (uint64_t)((const int32_t *)from)[at]);
        }
    }
    return ST_OK;
}

static enum status positions_shape(struct shaping *s, struct err *e)
{
    const struct type *table = &s->in[0], *ids = &s->in[1];
    if (table->dtype != DT_F32 || table->rank != 2 || ids->rank != 2)
        return node_error(s->node, e, "wrong types");
    type_tensor(&s->out[0], DT_F32, 3, (const dim[]){1, ids->dims[1], table->dims[1]});
    return ST_OK;
}

static enum status positions_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *table = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    const struct seqs *s = run_seqs(r);
    size_t width = (size_t)table->dims[1];
    float *to = tensor_data(y);
    uint32_t count = s ? s->count : 1;
    if (s && (int64_t)s->tokens != y->dims[1])
        return node_error(n, e, "%lld rows for %u packed tokens", (long long)y->dims[1], s->tokens);
    for (uint32_t i = 0; i < count; i++) {
        size_t len = s ? s->lengths[i] : (size_t)y->dims[1];
        if ((int64_t)len > table->dims[0])
            return node_error(n, e, "a sequence of %zu tokens; the model knows %lld positions", len, (long long)table->dims[0]);
        memcpy(to, tensor_data(table), len * width * sizeof *to);
        to += len * width;
    }
    return ST_OK;
}

/* Range: 0, 1, 2 ... of a text's length. Where texts are packed, of the longest one: what is made of it is made once for all (pack.c). */
static enum status range_shape(struct shaping *s, struct err *e)
{
    if (s->in[0].rank != 2)
        return node_error(s->node, e, "wrong types");
    if (s->packed)
        type_unknown(s, &s->out[0], DT_I64, 1);
    else
        type_tensor(&s->out[0], DT_I64, 1, (const dim[]){s->in[0].dims[1]});
    return ST_OK;
}

static enum status range_run(struct run *r, const struct node *n, struct err *e)
{
    (void)n;
    const struct seqs *s = run_seqs(r);
    int64_t longest = s ? 0 : run_in(r, 0)->dims[1];
    for (uint32_t i = 0; s && i < s->count; i++)
        longest = s->lengths[i] > longest ? s->lengths[i] : longest;
    TRY(run_make(r, 0, DT_I64, 1, &longest, e));
    int64_t *to = tensor_data(run_out(r, 0));
    for (int64_t i = 0; i < longest; i++)
        to[i] = i;
    return ST_OK;
}

const struct op_def ops_sequence_pool[] = {
    {.domain = "ebb", .name = "SeqPool", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_MAKES,
     .check = pool_check, .shape = pool_shape, .run = pool_run, .follow = pool_follow},
    {.domain = "ebb", .name = "SeqCumSum", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = cumsum_shape,
     .run = cumsum_run},
    {.domain = "ebb", .name = "Positions", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .shape = positions_shape,
     .run = positions_run},
    {.domain = "ebb", .name = "Range", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OP_MAKES, .shape = range_shape,
     .run = range_run},
    {0},
};
