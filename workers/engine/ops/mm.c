#include "workers/engine/ops/mm.h"

#include <string.h>

enum status mm_shape(struct shaping *s, uint32_t a, uint32_t b, int trans_a, int trans_b, enum dtype d, struct type *out, struct err *e)
{
    const struct type *x = &s->in[a], *w = &s->in[b];
    if (x->rank < 0 || w->rank < 0) {
        type_unknown(s, out, d, -1);
        return ST_OK;
    }
    if (x->rank == 0 || w->rank == 0)
        return node_error(s->node, e, "an operand is a single number");
    dim ka = x->rank == 1 ? x->dims[0] : x->dims[x->rank - 1 - (trans_a != 0)];
    dim kb = w->rank == 1 ? w->dims[0] : w->dims[w->rank - 2 + (trans_b != 0)];
    if (dim_known(ka) && dim_known(kb) && ka != kb)
        return node_error(s->node, e, "rows of %lld cannot be multiplied with columns of %lld", (long long)ka, (long long)kb);
    struct type left = *x, right = *w, front;
    left.rank = x->rank > 2 ? x->rank - 2 : 0;
    right.rank = w->rank > 2 ? w->rank - 2 : 0;
    TRY(type_broadcast(s, &left, &right, &front, e));
    dim dims[RANK_MAX + 2];
    int rank = front.rank;
    memcpy(dims, front.dims, sizeof(dim) * (size_t)rank);
    if (x->rank > 1)
        dims[rank++] = x->dims[x->rank - 2 + (trans_a != 0)];
    if (w->rank > 1)
        dims[rank++] = w->dims[w->rank - 1 - (trans_b != 0)];
    if (rank > RANK_MAX)
        return node_error(s->node, e, "the product has %d axes", rank);
    type_tensor(out, d, rank, dims);
    return ST_OK;
}

enum status mm_of(const struct node *n, const struct tensor *a, const struct tensor *b, int trans_a, int trans_b, struct mm *out, struct err *e)
{
    *out = (struct mm){.m = 1, .n = 1, .batches = 1};
    if (a->rank == 0 || b->rank == 0)
        return node_error(n, e, "an operand is a single number");
    int64_t ka = a->rank == 1 ? a->dims[0] : a->dims[a->rank - 1 - (trans_a != 0)], kb = b->rank == 1 ? b->dims[0] : b->dims[b->rank - 2 + (trans_b != 0)];
    if (ka != kb)
        return node_error(n, e, "rows of %lld cannot be multiplied with columns of %lld", (long long)ka, (long long)kb);
    out->k = (size_t)ka;
    if (a->rank > 1)
        out->m = (size_t)a->dims[a->rank - 2 + (trans_a != 0)];
    if (b->rank > 1)
        out->n = (size_t)b->dims[b->rank - 1 - (trans_b != 0)];
    uint32_t fa = a->rank > 2 ? a->rank - 2 : 0, fb = b->rank > 2 ? b->rank - 2 : 0;
    out->rank = fa > fb ? fa : fb;
    int64_t sa = 1, sb = 1;
    for (uint32_t i = out->rank; i-- > 0;) {
        int64_t da = i + fa >= out->rank ? a->dims[i + fa - out->rank] : 1, db = i + fb >= out->rank ? b->dims[i + fb - out->rank] : 1;
        if (da != db && da != 1 && db != 1)
            return node_error(n, e, "axes of %lld and %lld do not go together", (long long)da, (long long)db);
        out->dims[i] = da == 1 ? db : da;
        out->a_step[i] = da == 1 ? 0 : sa;
        out->b_step[i] = db == 1 ? 0 : sb;
        sa *= da, sb *= db;
        out->batches *= (size_t)out->dims[i];
    }
    out->b_alone = sb == 1;
    return ST_OK;
}

void mm_at(const struct mm *m, size_t i, size_t *a, size_t *b)
{
    int64_t x = 0, y = 0;
    for (uint32_t d = m->rank; d-- > 0; i /= (size_t)m->dims[d]) {
        int64_t at = (int64_t)(i % (size_t)m->dims[d]);
        x += at * m->a_step[d], y += at * m->b_step[d];
    }
    *a = (size_t)x, *b = (size_t)y;
}

int mm_follow(const struct shaping *s, uint32_t a, uint32_t b, uint32_t in, uint32_t axis)
{
    int ra = s->in[a].rank, rb = s->in[b].rank;
    if (in != a || ra < 2 || rb < 1 || (int)axis >= ra - 1 || rb > ra)
        return -1;
    if (rb > 2 && (int)axis < ra - 2) { /* b must not have this axis */
        int at = (int)axis - (ra - rb);
        if (at >= 0 && s->in[b].dims[at] != 1)
            return -1;
    }
    return (int)axis;
}
