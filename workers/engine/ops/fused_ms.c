/* Small fused ops of com.microsoft: BiasGelu, FastGelu, Gelu, QuickGelu; FusedMatMul, FusedGemm; MatMulNBits. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/acts.h"
#include "workers/engine/ops/mm.h"
#include "workers/engine/ops/panel.h"
#include "workers/engine/ops/wide.h"

/* x + bias, then the activation ------------------------------------------------------------------------------------------------------------------ */

static enum status gelu_shape(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 0, e));
    if (shape_has(s, 1)) {
        TRY(shape_type(s, 1, s->in[0].dtype, e));
        TRY(shape_rank(s, 1, 1, e));
        int rank = s->in[0].rank;
        if (rank > 0 && s->in[1].rank == 1 && dim_known(s->in[1].dims[0]) && dim_known(s->in[0].dims[rank - 1]) &&
            s->in[1].dims[0] != s->in[0].dims[rank - 1])
            return node_error(s->node, e, "its bias has %lld values for rows of %lld", (long long)s->in[1].dims[0], (long long)s->in[0].dims[rank - 1]);
    }
    shape_as(s, 0, 0);
    return ST_OK;
}

static enum status gelu_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *b = n->n_in > 1 ? run_in(r, 1) : NULL;
    struct tensor *y = run_out(r, 0);
    struct acts f;
    const float *from, *bias;
    float *to;
    if (!y)
        return ST_OK;
    TRY(acts_find(n, n->op[0] == 'F' ? "FastGelu" : n->op[0] == 'Q' ? "QuickGelu" : "Gelu", &f, e));
    if (n->op[0] == 'Q')
        f.a = node_float(n, "alpha", 1.702f);
    TRY(wide_f32(r, x, &from, e));
    TRY(wide_f32(r, b, &bias, e));
    TRY(wide_f32_out(r, y, &to, e));
    size_t all = (size_t)tensor_count(x), row = b ? (size_t)tensor_count(b) : 1;
    for (size_t i = 0; i < all; i += row)
        for (size_t j = 0; j < row; j++)
            to[i + j] = bias ? from[i + j] + bias[j] : from[i + j];
    acts_run(&f, n->kernels, all, to);
    wide_f32_done(y, to);
    return ST_OK;
}

static int gelu_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return in == 0 && (!shape_has(s, 1) || (int)axis < s->in[0].rank - 1) ? (int)axis : -1;
}

/* FusedMatMul: alpha * op(A) op(B); FusedGemm: act(alpha * op(A) op(B) + beta * C) ---------------------------------------------------------------- */

static int is_gemm(const struct node *n)
{
    return n->op[5] == 'G';
}

static enum status product_check(struct node *n, struct err *e)
{
    if (node_int(n, "transBatchA", 0) || node_int(n, "transBatchB", 0))
        return node_error(n, e, "transposing the axes in front is not supported");
    if (is_gemm(n)) {
        struct acts f;
        TRY(acts_find(n, node_string(n, "activation", "Relu"), &f, e));
    }
    return ST_OK;
}

static enum status product_shape(struct shaping *s, struct err *e)
{
    TRY(shape_float(s, 0, 1, e));
    TRY(shape_type(s, 1, s->in[0].dtype, e));
    if (s->in[0].dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    if (shape_has(s, 2))
        TRY(shape_type(s, 2, s->in[0].dtype, e));
    return mm_shape(s, 0, 1, node_int(s->node, "transA", 0) != 0, node_int(s->node, "transB", 0) != 0, s->in[0].dtype, &s->out[0], e);
}

static enum status product_plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct tensor *b = s->constants[1];
    if (!b || b->dtype != DT_F32 || b->rank != 2)
        return ST_OK;
    int turn = node_int(n, "transB", 0) != 0;
    size_t k = (size_t)b->dims[turn], cols = (size_t)b->dims[!turn];
    float *packed = mem_aligned(panel_floats(n->kernels, cols, k) * sizeof *packed + 64);
    if (!packed)
        return err_nomem(e, "the model's weights");
    panel_pack(n->kernels, cols, k, tensor_data(b), turn ? k : 1, turn ? 1 : cols, packed);
    n->state = packed;
    return ST_OK;
}

static enum status scratch(struct run *r, size_t n, float **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 16) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

static enum status product_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *a = run_in(r, 0), *b = run_in(r, 1), *c = n->n_in > 2 ? run_in(r, 2) : NULL;
    struct tensor *y = run_out(r, 0);
    int ta = node_int(n, "transA", 0) != 0, tb = node_int(n, "transB", 0) != 0;
    struct mm m;
    const float *x, *w, *add;
    float *to, *packed = n->state, *turned = NULL;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    TRY(mm_of(n, a, b, ta, tb, &m, e));
    TRY(wide_f32(r, a, &x, e));
    TRY(wide_f32(r, b, &w, e));
    TRY(wide_f32(r, c, &add, e));
    TRY(wide_f32_out(r, y, &to, e));
    if (!packed)
        TRY(scratch(r, panel_floats(n->kernels, m.n, m.k), &packed, e));
    if (ta)
        TRY(scratch(r, m.m * m.k, &turned, e));
    for (size_t i = 0; i < m.batches; i++) {
        size_t ia, ib;
        mm_at(&m, i, &ia, &ib);
        const float *left = x + ia * m.m * m.k;
        for (size_t j = 0; ta && j < m.m * m.k; j++)
            turned[j] = left[j % m.k * m.m + j / m.k];
        if (!n->state && (i == 0 || !m.b_alone))
            panel_pack(n->kernels, m.n, m.k, w + ib * m.k * m.n, tb ? m.k : 1, tb ? 1 : m.n, packed);
        panel_gemm(n->kernels, m.m, m.n, m.k, ta ? turned : left, m.k, packed, to + i * m.m * m.n, m.n);
    }
    float alpha = node_float(n, "alpha", 1), beta = node_float(n, "beta", 1);
    size_t all = m.batches * m.m * m.n;
    for (size_t i = 0; alpha != 1 && i < all; i++)
        to[i] *= alpha;
    if (c) {
        size_t rows = c->rank == 2 ? (size_t)c->dims[0] : 1, cols = c->rank ? (size_t)c->dims[c->rank - 1] : 1;
        if (c->rank > 2 || (rows != 1 && rows != m.m) || (cols != 1 && cols != m.n))
            return node_error(n, e, "input C does not go with a product of %zu x %zu", m.m, m.n);
        for (size_t i = 0; i < all; i++)
            to[i] += beta * add[(rows == 1 ? 0 : i / m.n * cols) + (cols == 1 ? 0 : i % m.n)];
    }
    if (is_gemm(n)) {
        struct acts f;
        TRY(acts_find(n, node_string(n, "activation", "Relu"), &f, e));
        f.a = node_float(n, "activation_alpha", f.a);
        f.b = node_float(n, "activation_beta", f.b);
        acts_run(&f, n->kernels, all, to);
    }
    wide_f32_done(y, to);
    return ST_OK;
}

static int product_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    if (node_int(s->node, "transA", 0) || (shape_has(s, 2) && s->in[2].rank == 2 && s->in[2].dims[0] != 1))
        return -1;
    return mm_follow(s, 0, 1, in, axis);
}

/* MatMulNBits: B is N rows of blocks of 4 (or 8) bits, a scale and perhaps a zero point for each block -------------------------------------------- */

static enum status nbits_check(struct node *n, struct err *e)
{
    int64_t bits = node_int(n, "bits", 4), block = node_int(n, "block_size", 0), k = node_int(n, "K", 0), cols = node_int(n, "N", 0);
    if ((bits != 4 && bits != 8) || block < 16 || (block & (block - 1)) || k < 1 || cols < 1 || k > INT32_MAX || cols > INT32_MAX)
        return node_error(n, e, "%lld bits in blocks of %lld for weights of %lld x %lld are not supported", (long long)bits, (long long)block,
                          (long long)k, (long long)cols);
    return ST_OK;
}

static enum status nbits_shape(struct shaping *s, struct err *e)
{
    const struct type *x = &s->in[0];
    TRY(shape_float(s, 0, 1, e));
    if (x->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    TRY(shape_type(s, 1, DT_U8, e));
    TRY(shape_float(s, 2, 1, e));
    if (shape_has(s, 4))
        return node_error(s->node, e, "an order of groups is not supported: requantise the model without it");
    if (x->rank > 0 && dim_known(x->dims[x->rank - 1]) && x->dims[x->rank - 1] != node_int(s->node, "K", 0))
        return node_error(s->node, e, "its input has rows of %lld, its weights take %lld", (long long)x->dims[x->rank - 1], (long long)node_int(s->node, "K", 0));
    shape_as(s, 0, 0);
    if (x->rank > 0)
        s->out[0].dims[x->rank - 1] = node_int(s->node, "N", 0);
    return ST_OK;
}

/* w[j][i] in float, rows of K. */
static enum status unpack(const struct node *n, const struct tensor *b, const struct tensor *scales, const struct tensor *zeros, float *w, struct err *e)
{
    size_t bits = (size_t)node_int(n, "bits", 4), block = (size_t)node_int(n, "block_size", 32), k = (size_t)node_int(n, "K", 1), cols = (size_t)node_int(n, "N", 1);
    size_t blocks = (k + block - 1) / block, bytes = block * bits / 8, zero_row = (blocks * bits + 7) / 8;
    if ((size_t)tensor_count(b) != cols * blocks * bytes || (size_t)tensor_count(scales) != cols * blocks)
        return node_error(n, e, "its weights or scales do not go with %zu x %zu", k, cols);
    int packed_zeros = zeros && zeros->dtype == DT_U8;
    if (zeros && (size_t)tensor_count(zeros) != (packed_zeros ? cols * zero_row : cols * blocks))
        return node_error(n, e, "its zero points do not go with %zu x %zu", k, cols);
    const uint8_t *from = tensor_data(b), *z = packed_zeros ? tensor_data(zeros) : NULL;
    for (size_t j = 0; j < cols; j++)
        for (size_t i = 0; i < k; i++) {
            size_t at = i / block;
            float scale = (float)wide_get(scales->dtype, tensor_data(scales), j * blocks + at), zero = bits == 4 ? 8 : 128;
            if (z)
                zero = bits == 4 ? (float)(z[j * zero_row + at / 2] >> (at % 2 * 4) & 15) : (float)z[j * zero_row + at];
            else if (zeros)
                zero = (float)wide_get(zeros->dtype, tensor_data(zeros), j * blocks + at);
            const uint8_t *v = from + (j * blocks + at) * bytes;
            size_t in = i % block;
            float q = bits == 4 ? (float)(v[in / 2] >> (in % 2 * 4) & 15) : (float)v[in];
            w[j * k + i] = (q - zero) * scale;
        }
    return ST_OK;
}

static enum status nbits_plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct tensor *b = s->constants[1], *scales = s->constants[2], *zeros = shape_has(s, 3) ? s->constants[3] : NULL;
    if (!b || !scales || (shape_has(s, 3) && !zeros))
        return ST_OK;
    size_t k = (size_t)node_int(n, "K", 1), cols = (size_t)node_int(n, "N", 1);
    float *w = mem_array(k * cols, sizeof *w), *packed = mem_aligned(panel_floats(n->kernels, cols, k) * sizeof *packed + 64);
    enum status st = w && packed ? unpack(n, b, scales, zeros, w, e) : err_nomem(e, "the model's weights");
    if (st == ST_OK)
        panel_pack(n->kernels, cols, k, w, k, 1, packed);
    mem_free(w);
    if (st != ST_OK)
        mem_free(packed);
    else
        n->state = packed;
    return st;
}

static enum status nbits_run(struct run *r, const struct node *n, struct err *e)
{
    const struct tensor *x = run_in(r, 0), *bias = n->n_in > 5 ? run_in(r, 5) : NULL;
    struct tensor *y = run_out(r, 0);
    const float *from, *add;
    float *to, *packed = n->state, *w;
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    size_t k = (size_t)node_int(n, "K", 1), cols = (size_t)node_int(n, "N", 1), rows = (size_t)tensor_count(x) / k;
    if (!packed) {
        TRY(scratch(r, k * cols, &w, e));
        TRY(scratch(r, panel_floats(n->kernels, cols, k), &packed, e));
        TRY(unpack(n, run_in(r, 1), run_in(r, 2), n->n_in > 3 ? run_in(r, 3) : NULL, w, e));
        panel_pack(n->kernels, cols, k, w, k, 1, packed);
    }
    TRY(wide_f32(r, x, &from, e));
    TRY(wide_f32(r, bias, &add, e));
    TRY(wide_f32_out(r, y, &to, e));
    if (bias && (size_t)tensor_count(bias) != cols)
        return node_error(n, e, "its bias has %lld values for %zu columns", (long long)tensor_count(bias), cols);
    panel_gemm(n->kernels, rows, cols, k, from, k, packed, to, cols);
    for (size_t i = 0; bias && i < rows * cols; i++)
        to[i] += add[i % cols];
    wide_f32_done(y, to);
    return ST_OK;
}

#define GELU .shape = gelu_shape, .run = gelu_run, .follow = gelu_follow
#define PRODUCT .check = product_check, .shape = product_shape, .plan = product_plan, .run = product_run, .release = release_state, .follow = product_follow
const struct op_def ops_fused_ms[] = {
    {.domain = "com.microsoft", .name = "BiasGelu", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, GELU},
    {.domain = "com.microsoft", .name = "FastGelu", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, GELU},
    {.domain = "com.microsoft", .name = "Gelu", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, GELU},
    {.domain = "com.microsoft", .name = "QuickGelu", .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, GELU},
    {.domain = "com.microsoft", .name = "FusedMatMul", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PRODUCT},
    {.domain = "com.microsoft", .name = "FusedGemm", .since = 1, .until = OPSET_ANY, .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1, PRODUCT},
    {.domain = "com.microsoft", .name = "MatMulNBits", .since = 1, .until = OPSET_ANY, .min_in = 3, .max_in = 6, .min_out = 1, .max_out = 1,
     .check = nbits_check, .shape = nbits_shape, .plan = nbits_plan, .run = nbits_run, .release = release_state, .follow = follow_but_last},
    {0},
};
