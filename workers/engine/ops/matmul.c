/* MatMul: NumPy's, over any number of axes in front. A constant second operand that is one matrix is packed when the model is loaded. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/args.h"
#include "workers/engine/ops/linear.h"
#include "workers/engine/ops/mm.h"
#include "workers/engine/ops/product.h"
#include "workers/engine/packfile.h"

static enum status shape(struct shaping *s, struct err *e)
{
    TRY(arg_type(s, 0, TYPES_PRODUCT, e));
    TRY(arg_same(s, 1, e));
    return mm_shape(s, 0, 1, 0, 0, s->in[0].dtype, &s->out[0], e);
}

static enum status plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct tensor *b = s->constants[1];
    if (!b || b->dtype != DT_F32 || b->rank != 2 || tensor_count(b) == 0 || s->constants[0])
        return ST_OK;
    int64_t k = b->dims[0], cols = b->dims[1];
    TRY(product_fits(n, 1, (size_t)cols, (size_t)k, e));
    struct linear *l = mem_zalloc(sizeof *l);
    enum status st = l ? packfile_linear_of(n->pack, l, n->kernels, PREC_F32, (uint32_t)cols, (uint32_t)k, tensor_data(b), 1, (size_t)cols, NULL, e)
                           : err_nomem(e, "the model's weights");
    if (st != ST_OK) {
        mem_free(l);
        return st;
    }
    n->state = l;
    return ST_OK;
}

static void release(struct node *n)
{
    if (n->state)
        linear_release(n->state);
    mem_free(n->state);
    n->state = NULL;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 1);
    struct tensor *y = run_out(r, 0);
    struct mm m;
    if (!y || !tensor_count(y))
        return ST_OK;
    TRY(mm_of(n, a, b, 0, 0, &m, e));
    TRY(product_fits(n, m.m, m.n, m.k, e));
    if (n->state) {
        TRY(product_fits(n, m.m * m.batches, m.n, m.k, e));
        linear_run(n->state, (uint32_t)(m.m * m.batches), tensor_data(a), m.k, ACT_NONE, NULL, 0, tensor_data(y), m.n);
        return ST_OK;
    }
    if (m.b_alone && m.m * m.batches <= INT32_MAX) { /* one matrix for all: one product */
        m.m *= m.batches;
        m.batches = 1;
    }
    const void *pa, *pb;
    void *scratch = NULL, *wide = NULL;
    enum dtype d = dtype_is_half(y->dtype) ? DT_F32 : y->dtype;
    TRY(product_widen(r, a, &pa, e));
    TRY(product_widen(r, b, &pb, e));
    if (dtype_is_half(y->dtype))
        TRY(run_scratch(r, (size_t)tensor_count(y) * sizeof(float), &wide, e));
    char *to = wide ? wide : tensor_data(y);
    size_t z = dtype_bytes(d), at_once = 1; /* matrices that follow each other evenly: those of the last axis in front */
    struct matrices p = {.batches = 1, .m = m.m, .n = m.n, .k = m.k, .a_row = m.k, .a_col = 1, .b_row = m.n, .b_col = 1};
    if (m.rank && m.batches > 1) {
        at_once = p.batches = (size_t)m.dims[m.rank - 1];
        p.a_batch = (size_t)m.a_step[m.rank - 1] * m.m * m.k;
        p.b_batch = (size_t)m.b_step[m.rank - 1] * m.k * m.n;
        TRY(product_fits(n, at_once, 0, 0, e));
    }
    TRY(run_scratch(r, product_floats(n->kernels, d, &p) * sizeof(float), &scratch, e));
    for (size_t i = 0; i < m.batches; i += at_once) {
        size_t ia, ib;
        mm_at(&m, i, &ia, &ib);
        p.a = (const char *)pa + ia * m.m * m.k * z;
        p.b = (const char *)pb + ib * m.k * m.n * z;
        p.c = to + i * m.m * m.n * z;
        product_run(n->kernels, d, &p, scratch);
    }
    if (wide)
        half_narrow(y->dtype, tensor_count(y), wide, tensor_data(y));
    return ST_OK;
}

/* Axes in front as in any op with broadcasting; a's rows and b's columns stay rows and columns. */
static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    int rank = s->in[in].rank, a = (int)axis, to = s->out[0].rank;
    if (rank < 0 || to < 0)
        return -1;
    int cut = s->in[0].rank == 1 || s->in[1].rank == 1; /* an operand of one axis: the output lacks one */
    if (rank == 1)
        return -1;
    if (a == rank - 1)
        return in == 1 && s->in[0].rank >= 1 ? to - 1 : -1;
    if (a == rank - 2)
        return in == 0 ? to - (s->in[1].rank == 1 ? 1 : 2) : -1;
    int at = to + cut - (rank - a);
    return at >= 0 && s->in[in].dims[a] == s->out[0].dims[at] ? at : -1;
}

const struct op_def ops_matmul[] = {
    {.domain = "", .name = "MatMul", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .shape = shape,
     .plan = plan, .run = run, .release = release, .follow = follow},
    {0},
};
