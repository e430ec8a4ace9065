/* Gemm: alpha A B + beta C, A and B perhaps transposed. A constant B is packed when the model is loaded, with beta C where that is a constant
   row and alpha is 1. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/args.h"
#include "workers/engine/ops/linear.h"
#include "workers/engine/ops/product.h"
#include "workers/engine/packfile.h"
#include "workers/engine/ops/walk.h"

struct packed {
    struct linear linear;
    int has_c; /* beta C is in the bias */
};

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_PRODUCT, e));
    TRY(arg_same(s, 1, e));
    const struct type *a = &s->in[0], *b = &s->in[1];
    int ta = node_int(s->node, "transA", 0) != 0, tb = node_int(s->node, "transB", 0) != 0;
    type_unknown(s, &s->out[0], a->dtype, 2);
    if ((a->rank >= 0 && a->rank != 2) || (b->rank >= 0 && b->rank != 2))
        return node_error(s->node, e, "two matrices are wanted, not tensors of %d and %d axes", a->rank, b->rank);
    if (a->rank == 2)
        s->out[0].dims[0] = a->dims[ta];
    if (b->rank == 2)
        s->out[0].dims[1] = b->dims[!tb];
    if (a->rank == 2 && b->rank == 2 && dim_known(a->dims[!ta]) && dim_known(b->dims[tb]) && a->dims[!ta] != b->dims[tb])
        return node_error(s->node, e, "rows of %lld cannot be multiplied with columns of %lld", (long long)a->dims[!ta], (long long)b->dims[tb]);
    if (!arg_there(s, 2))
        return ST_OK;
    TRY(arg_same(s, 2, e));
    struct type both = {0};
    TRY(type_broadcast(s, &s->out[0], &s->in[2], &both, e));
    for (int i = 0; i < both.rank; i++)
        if (both.rank > 2 || (dim_known(both.dims[i]) && dim_known(s->out[0].dims[i]) && both.dims[i] != s->out[0].dims[i]))
            return node_error(s->node, e, "C is larger than the product");
    return ST_OK;
}

static enum status plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct tensor *b = s->constants[1], *c = n->n_in > 2 ? s->constants[2] : NULL;
    if (!b || b->dtype != DT_F32 || tensor_count(b) == 0 || s->constants[0])
        return ST_OK;
    int turned = node_int(n, "transB", 0) != 0;
    int64_t k = b->dims[turned], cols = b->dims[!turned];
    float beta = node_float(n, "beta", 1), alpha = node_float(n, "alpha", 1);
    TRY(product_fits(n, 1, (size_t)cols, (size_t)k, e));
    struct packed *p = mem_zalloc(sizeof *p);
    float *bias = mem_array((size_t)cols, sizeof *bias);
    if (!p || !bias) {
        mem_free(p);
        mem_free(bias);
        return err_nomem(e, "the model's weights");
    }
    int64_t count = c ? tensor_count(c) : 0;
    p->has_c = alpha == 1 && c && (count == 1 || (count == cols && c->dims[c->rank - 1] == cols));
    for (int64_t j = 0; p->has_c && j < cols; j++)
        bias[j] = beta * ((const float *)tensor_data(c))[count == 1 ? 0 : j];
    enum status st = packfile_linear_of(n->pack, &p->linear, n->kernels, PREC_F32, (uint32_t)cols, (uint32_t)k, tensor_data(b), turned ? (size_t)k : 1,
                                        turned ? 1 : (size_t)cols, bias, e);
    mem_free(bias);
    if (st == ST_OK)
        n->state = p;
    else
        mem_free(p);
    return st;
}

static void release(struct node *n)
{
    struct packed *p = n->state;
    if (p)
        linear_release(&p->linear);
    mem_free(p);
    n->state = NULL;
}

/* y = alpha y + beta c, c being repeated where its sizes are 1. Integers are scaled in double and cut off once. */
#define FINISH(T, EXPRESSION)                                                                          \
    {                                                                                                  \
        const T *pc = c;                                                                               \
        T *py = y;                                                                                     \
        do {                                                                                           \
            for (int64_t i = 0; i < w.dims[last]; i++, py++) {                                         \
                T x = pc ? pc[at.at[0] + i * w.step[0][last]] : 0;                                     \
                *py = (T)(EXPRESSION);                                                                 \
            }                                                                                          \
        } while (walk_next(&w, &at));                                                                  \
    } break
#define FINISH_FLOAT(T) FINISH(T, (alpha == 1 ? *py : (T)(alpha * (double)*py)) + (beta == 1 ? x : (T)(beta * (double)x)))
#define FINISH_INT(T, U) FINISH(T, alpha == 1 && beta == 1 ? (T)((U)*py + (U)x) : (T)(alpha * (double)*py + beta * (double)x))

static void finish(enum dtype d, uint32_t rank, const int64_t *dims, double alpha, double beta, const struct tensor *tc, const void *c, void *y)
{
    struct walk w;
    walk_init(&w, rank, dims);
    walk_broadcast(&w, c ? tc->rank : 0, c ? tc->dims : NULL);
    int64_t out[RANK_MAX];
    row_major(rank, dims, out);
    walk_steps(&w, out);
    walk_merge(&w);
    struct walk_at at = {0};
    uint32_t last = w.rank - 1;
    switch (d) {
    case DT_F32:
        FINISH_FLOAT(float);
    case DT_F64:
        FINISH_FLOAT(double);
    case DT_I32:
        FINISH_INT(int32_t, uint32_t);
    case DT_U32:
        FINISH_INT(uint32_t, uint32_t);
    case DT_I64:
        FINISH_INT(int64_t, uint64_t);
    case DT_U64:
        FINISH_INT(uint64_t, uint64_t);
    default:
        BUG("Gemm of type %d", d);
    }
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 1), *c = node_has(n, 2) ? run_in(r, 2) : NULL;
    struct tensor *y = run_out(r, 0);
    if (!y || !tensor_count(y))
        return ST_OK;
    int ta = node_int(n, "transA", 0) != 0, tb = node_int(n, "transB", 0) != 0;
    double alpha = (double)node_float(n, "alpha", 1), beta = (double)node_float(n, "beta", 1);
    struct matrices p = {.batches = 1, .m = (size_t)y->dims[0], .n = (size_t)y->dims[1], .k = (size_t)a->dims[!ta]};
    p.a_row = ta ? 1 : p.k;
    p.a_col = ta ? p.m : 1;
    p.b_row = tb ? 1 : p.n;
    p.b_col = tb ? p.k : 1;
    const struct packed *packed = n->state;
    enum dtype d = dtype_is_half(y->dtype) ? DT_F32 : y->dtype;
    size_t z = dtype_bytes(d);
    const void *pc = NULL;
    void *scratch;
    if (a->dims[!ta] != b->dims[tb])
        return node_error(n, e, "rows of %lld cannot be multiplied with columns of %lld", (long long)a->dims[!ta], (long long)b->dims[tb]);
    TRY(product_fits(n, p.m, p.n, p.k, e));
    TRY(product_widen(r, a, &p.a, e));
    if (c)
        TRY(product_widen(r, c, &pc, e));
    if (ta && packed) {
        TRY(run_scratch(r, p.m * p.k * z, &scratch, e));
        copy_steps(z, 2, (int64_t[]){y->dims[0], (int64_t)p.k}, p.a, (int64_t[]){1, y->dims[0]}, scratch, (int64_t[]){(int64_t)p.k, 1});
        p.a = scratch;
    }
    p.c = tensor_data(y);
    if (dtype_is_half(y->dtype)) {
        TRY(run_scratch(r, p.m * p.n * z, &scratch, e));
        p.c = scratch;
    }
    if (packed && p.k) {
        linear_run(&packed->linear, (uint32_t)p.m, p.a, p.k, ACT_NONE, NULL, 0, p.c, p.n);
        if (packed->has_c)
            return ST_OK;
    } else {
        TRY(product_widen(r, b, &p.b, e));
        TRY(run_scratch(r, product_floats(n->kernels, d, &p) * sizeof(float), &scratch, e));
        product_run(n->kernels, d, &p, scratch);
    }
    if (alpha != 1 || (c && beta != 0))
        finish(d, 2, y->dims, alpha, beta, c, beta != 0 ? pc : NULL, p.c);
    if (p.c != tensor_data(y))
        half_narrow(y->dtype, tensor_count(y), p.c, tensor_data(y));
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    int ta = node_int(s->node, "transA", 0) != 0, tb = node_int(s->node, "transB", 0) != 0;
    if (in == 0)
        return (int)axis == ta ? 0 : -1;
    if (in == 1)
        return (int)axis == !tb ? 1 : -1;
    return follow_elementwise(s, in, axis, out);
}

const struct op_def ops_gemm[] = {
    {.domain = "", .name = "Gemm", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1, .shape = shape,
     .plan = plan, .run = run, .release = release, .follow = follow},
    {0},
};
