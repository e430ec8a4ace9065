/* Where: elements of one operand or of another. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/walk.h"

static void where_values(struct shaping *s)
{
    uint32_t nc, na, nb;
    const dim *c = arg_values(s, 0, &nc), *a = arg_values(s, 1, &na), *b = arg_values(s, 2, &nb);
    if (!s->syms || !c || !a || !b || s->out[0].rank > 1)
        return;
    uint32_t n = nc != 1 ? nc : na != 1 ? na : nb;
    if ((nc != n && nc != 1) || (na != n && na != 1) || (nb != n && nb != 1))
        return;
    dim *v = values_room(s, 0, n);
    for (uint32_t i = 0; v && i < n; i++) {
        dim which = c[nc == 1 ? 0 : i], x = a[na == 1 ? 0 : i], y = b[nb == 1 ? 0 : i];
        v[i] = x == y ? x : !dim_known(which) ? DIM_UNKNOWN : which ? x : y;
    }
}

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPE(BOOL), e));
    TRY(arg_type(s, 1, TYPES_ALL, e));
    TRY(arg_type(s, 2, TYPES_ALL, e));
    if (s->in[1].dtype != s->in[2].dtype)
        return node_error(s->node, e, "input 1 is of type %s and input 2 of type %s; they must be the same", dtype_name(s->in[1].dtype),
                          dtype_name(s->in[2].dtype));
    struct type t = s->in[0];
    t.values = NULL;
    TRY(type_broadcast(s, &t, &s->in[1], &t, e));
    TRY(type_broadcast(s, &t, &s->in[2], &t, e));
    type_tensor(&s->out[0], s->in[1].dtype, t.rank, t.dims);
    if (!dtype_is_float(s->in[1].dtype) && s->in[1].dtype != DT_STR)
        where_values(s);
    return ST_OK;
}

#define WHERE_LOOP(type, A, B)                                                  \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                        \
    {                                                                           \
        type u = A, v = B;                                                      \
        y[i] = c[i] ? u : v;                                                    \
    }
#define WHERE_ROW(type)                                                         \
    {                                                                           \
        const type *a = (const type *)pa, *b = (const type *)pb;                \
        type *y = (type *)py, u0 = *a, v0 = *b;                                 \
        if (sa && sb)                                                           \
            WHERE_LOOP(type, a[i], b[i])                                        \
        else if (sa)                                                            \
            WHERE_LOOP(type, a[i], v0)                                          \
        else if (sb)                                                            \
            WHERE_LOOP(type, u0, b[i])                                          \
        else                                                                    \
            WHERE_LOOP(type, u0, v0)                                            \
    } break

static void row(size_t size, int64_t n, const uint8_t *c, int64_t sc, const char *pa, int64_t sa, const char *pb, int64_t sb, char *py)
{
    if (!sc) { /* one condition for the whole row */
        const char *from = *c ? pa : pb;
        if (!(*c ? sa : sb))
            fill_elements(size, from, n, py);
        else if (from != py)
            memcpy(py, from, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1:
        WHERE_ROW(uint8_t);
    case 2:
        WHERE_ROW(uint16_t);
    case 4:
        WHERE_ROW(uint32_t);
    case 8:
        WHERE_ROW(uint64_t);
    default:
        WHERE_ROW(struct str);
    }
}

static enum status run(struct run *r, const struct node *node, struct err *e)
{
    (void)node, (void)e;
    const struct tensor *c = run_in(r, 0), *a = run_in(r, 1), *b = run_in(r, 2);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return ST_OK;
    struct walk w;
    walk_init(&w, y->rank, y->dims);
    walk_broadcast(&w, c->rank, c->dims);
    walk_broadcast(&w, a->rank, a->dims);
    walk_broadcast(&w, b->rank, b->dims);
    walk_merge(&w);
    if (walk_empty(&w))
        return ST_OK;
    struct walk_at p = {0};
    uint32_t last = w.rank - 1;
    size_t z = dtype_bytes(y->dtype);
    const uint8_t *pc = tensor_data(c);
    const char *pa = tensor_data(a), *pb = tensor_data(b);
    char *py = tensor_data(y);
    do {
        row(z, w.dims[last], pc + p.at[0], w.step[0][last], pa + p.at[1] * (int64_t)z, w.step[1][last], pb + p.at[2] * (int64_t)z,
            w.step[2][last], py);
        py += w.dims[last] * (int64_t)z;
    } while (walk_next(&w, &p));
    return ST_OK;
}

const struct op_def ops_where[] = {
    {.domain = "", .name = "Where", .since = 9, .until = OPSET_ANY, .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
     .flags = OP_IN_PLACE, .shape = shape, .run = run, .follow = follow_elementwise},
    {0},
};
