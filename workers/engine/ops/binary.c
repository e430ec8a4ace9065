#include "workers/engine/ops/binary.h"

#include <math.h>
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

enum { BLOCK = 256 };

static void half_row(enum dtype d, int64_t n, const uint16_t *a, int64_t sa, const uint16_t *b, int64_t sb, char *y, binary_row *row, int test)
{
    float wa[BLOCK], wb[BLOCK], wy[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t c = n - i < BLOCK ? n - i : BLOCK;
        half_widen(d, sa ? c : 1, a + i * sa, 1, wa);
        half_widen(d, sb ? c : 1, b + i * sb, 1, wb);
        if (test) {
            row(c, wa, sa, wb, sb, y + i);
        } else {
            row(c, wa, sa, wb, sb, wy);
            half_narrow(d, c, wy, y + 2 * i);
        }
    }
}

void binary_broadcast(const struct tensor *a, const struct tensor *b, struct tensor *y, binary_row *const *rows, int test)
{
    struct walk w;
    walk_init(&w, y->rank, y->dims);
    walk_broadcast(&w, a->rank, a->dims);
    walk_broadcast(&w, b->rank, b->dims);
    int64_t out[RANK_MAX];
    row_major(y->rank, y->dims, out);
    walk_steps(&w, out);
    walk_merge(&w);
    if (walk_empty(&w))
        return;
    struct walk_at p = {0};
    int half = dtype_is_half(a->dtype);
    int64_t n = w.dims[w.rank - 1], sa = w.step[0][w.rank - 1], sb = w.step[1][w.rank - 1];
    int64_t z = (int64_t)dtype_bytes(a->dtype), zy = (int64_t)dtype_bytes(y->dtype);
    const char *pa = tensor_data(a), *pb = tensor_data(b);
    char *py = tensor_data(y);
    binary_row *row = rows[half ? DT_F32 : a->dtype];
    do {
        const char *ra = pa + p.at[0] * z, *rb = pb + p.at[1] * z;
        char *ry = py + p.at[2] * zy;
        if (half)
            half_row(a->dtype, n, (const uint16_t *)ra, sa, (const uint16_t *)rb, sb, ry, row, test);
        else
            row(n, ra, sa, rb, sb, ry);
    } while (walk_next(&w, &p));
}

/* Opsets before 7: `broadcast` = 1, and the second operand's first axis lies under axis `axis` of the first. How many sizes of one
   have to follow the second operand's own. */
static enum status legacy_tail(const struct node *n, int rank_a, int rank_b, int *tail, struct err *e)
{
    *tail = 0;
    if (n->opset >= 7 || *n->domain || !node_attr(n, "axis") || !node_int(n, "broadcast", 0) || rank_a < 0 || rank_b < 0)
        return ST_OK;
    uint32_t axis;
    TRY(axis_in(n, node_int(n, "axis", 0), rank_a, &axis, e));
    *tail = rank_a - (int)axis - rank_b;
    if (*tail < 0)
        return node_error(n, e, "an operand of %d axes does not fit at axis %u of one with %d", rank_b, axis, rank_a);
    return ST_OK;
}

enum status binary_shape(struct shaping *s, uint32_t types, int test, struct err *e)
{
    TRY(arg_type(s, 0, types, e));
    TRY(arg_same(s, 1, e));
    struct type b = s->in[1];
    int tail;
    TRY(legacy_tail(s->node, s->in[0].rank, b.rank, &tail, e));
    while (tail-- > 0)
        b.dims[b.rank++] = 1;
    TRY(type_broadcast(s, &s->in[0], &b, &s->out[0], e));
    s->out[0].dtype = test ? DT_BOOL : s->in[0].dtype;
    return ST_OK;
}

enum status binary_run(struct run *r, const struct node *n, binary_row *const *rows, int test)
{
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    struct tensor b = *run_in(r, 1);
    int tail;
    TRY(legacy_tail(n, (int)run_in(r, 0)->rank, (int)b.rank, &tail, NULL));
    while (tail-- > 0)
        b.dims[b.rank++] = 1;
    binary_broadcast(run_in(r, 0), &b, y, rows, test);
    return ST_OK;
}

int binary_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    if (s->node->opset < 7 && !*s->node->domain && node_attr(s->node, "axis") && node_int(s->node, "broadcast", 0))
        return in == 0 ? (int)axis : -1;
    return follow_elementwise(s, in, axis, out);
}

void binary_values(struct shaping *s, dim (*f)(struct syms *, dim, dim))
{
    uint32_t na, nb;
    const dim *a = arg_values(s, 0, &na), *b = arg_values(s, 1, &nb);
    if (!s->syms || !a || !b || s->out[0].rank > 1 || (na != nb && na != 1 && nb != 1))
        return;
    uint32_t n = na == 1 ? nb : na;
    dim *v = values_room(s, 0, n);
    for (uint32_t i = 0; v && i < n; i++)
        v[i] = f(s->syms, a[na == 1 ? 0 : i], b[nb == 1 ? 0 : i]);
}
