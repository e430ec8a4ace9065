/* Transpose: axes in another order. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

/* perm[i] is the input's axis that becomes axis i; reversed where the node does not say. */
static enum status permutation(const struct node *n, uint32_t rank, uint32_t *perm, struct err *e)
{
    uint32_t count, seen = 0;
    const int64_t *p = node_ints(n, "perm", &count);
    if (p && count != rank)
        return node_error(n, e, "perm names %u axes of a tensor of rank %u", count, rank);
    for (uint32_t i = 0; i < rank; i++) {
        perm[i] = rank - 1 - i;
        if (!p)
            continue;
        TRY(axis_in(n, p[i], (int)rank, &perm[i], e));
        if (seen >> perm[i] & 1)
            return node_error(n, e, "perm names axis %u twice", perm[i]);
        seen |= 1u << perm[i];
    }
    return ST_OK;
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_ALL, e));
    const struct type *x = &s->in[0];
    type_tensor(&s->out[0], x->dtype, x->rank, NULL);
    if (x->rank < 0)
        return ST_OK;
    uint32_t perm[RANK_MAX];
    TRY(permutation(s->node, (uint32_t)x->rank, perm, e));
    for (int i = 0; i < x->rank; i++)
        s->out[0].dims[i] = x->dims[perm[i]];
    if (x->rank <= 1 && s->syms)
        s->out[0].values = x->values;
    return ST_OK;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    uint32_t perm[RANK_MAX];
    int64_t in[RANK_MAX], from[RANK_MAX], to[RANK_MAX];
    TRY(permutation(n, x->rank, perm, e));
    row_major(x->rank, x->dims, in);
    row_major(y->rank, y->dims, to);
    for (uint32_t i = 0; i < x->rank; i++)
        from[i] = in[perm[i]];
    copy_steps(dtype_bytes(x->dtype), y->rank, y->dims, tensor_data(x), from, tensor_data(y), to);
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)in, (void)out;
    uint32_t perm[RANK_MAX];
    int rank = s->in[0].rank;
    if (rank < 0 || permutation(s->node, (uint32_t)rank, perm, NULL) != ST_OK)
        return -1;
    for (int i = 0; i < rank; i++)
        if (perm[i] == axis)
            return i;
    return -1;
}

const struct op_def ops_transpose[] = {
    {.domain = "", .name = "Transpose", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .shape = shape,
     .run = run, .follow = follow},
    {0},
};
