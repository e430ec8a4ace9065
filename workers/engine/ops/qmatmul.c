/* Products of quantised matrices: MatMulInteger, QLinearMatMul, and of com.microsoft DynamicQuantizeMatMul, MatMulIntegerToFloat, QGemm.
   Sums are exact in int32; each op says what becomes of them. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/mm.h"
#include "workers/engine/ops/quant.h"
#include "workers/engine/ops/wide.h"

/* Which inputs mean what; -1: the op has none. */
struct ports {
    int8_t a, b, a_zero, b_zero, a_scale, b_scale, y_scale, y_zero, bias;
};

static const struct ports ports[] = {
    {0, 1, 2, 3, -1, -1, -1, -1, -1}, /* MatMulInteger */
    {0, 3, 2, 5, 1, 4, 6, 7, -1},     /* QLinearMatMul */
    {0, 1, -1, 3, -1, 2, -1, -1, 4},  /* DynamicQuantizeMatMul */
    {0, 1, 4, 5, 2, 3, -1, -1, 6},    /* MatMulIntegerToFloat */
    {0, 3, 2, 5, 1, 4, 7, 8, 6},      /* QGemm */
};
enum which { INTEGER, LINEAR, DYNAMIC, TO_FLOAT, GEMM };

static enum which which_of(const struct node *n)
{
    return n->op[0] == 'D' ? DYNAMIC : !strcmp(n->op, "QGemm") ? GEMM : n->op[0] == 'Q' ? LINEAR : n->op[6] == 'I' && n->op[13] ? TO_FLOAT : INTEGER;
}

static int transposed(const struct node *n, const char *name)
{
    return which_of(n) == GEMM && node_int(n, name, 0);
}

static int has(const struct shaping *s, int8_t port)
{
    return port >= 0 && shape_has(s, (uint32_t)port);
}

static enum status byte_type(const struct shaping *s, int8_t port, struct err *e)
{
    if (!shape_has(s, (uint32_t)port) || (s->in[port].dtype != DT_U8 && s->in[port].dtype != DT_I8))
        return node_error(s->node, e, "input %d is of type %s; int8 or uint8 is needed", port,
                          shape_has(s, (uint32_t)port) ? dtype_name(s->in[port].dtype) : "none");
    return ST_OK;
}

static enum status q_shape(struct shaping *s, struct err *e)
{
    enum which w = which_of(s->node);
    const struct ports *p = &ports[w];
    enum dtype out = DT_F32;
    if (w == DYNAMIC)
        TRY(shape_type(s, 0, DT_F32, e));
    else
        TRY(byte_type(s, p->a, e));
    TRY(byte_type(s, p->b, e));
    if (has(s, p->a_zero))
        TRY(shape_type(s, (uint32_t)p->a_zero, s->in[p->a].dtype, e));
    if (has(s, p->b_zero))
        TRY(shape_type(s, (uint32_t)p->b_zero, s->in[p->b].dtype, e));
    for (int i = 0; i < 3; i++) {
        int8_t port = i == 0 ? p->a_scale : i == 1 ? p->b_scale : p->y_scale;
        if (port >= 0 && (port != p->y_scale || w != GEMM || shape_has(s, (uint32_t)port)))
            TRY(shape_float(s, (uint32_t)port, 0, e));
    }
    if (w == INTEGER)
        out = DT_I32;
    else if (w == LINEAR)
        out = s->in[p->y_zero].dtype;
    else if (w == GEMM && has(s, p->y_scale))
        out = has(s, p->y_zero) ? s->in[p->y_zero].dtype : DT_U8;
    if (w == LINEAR && out != DT_U8 && out != DT_I8)
        return node_error(s->node, e, "its output would be of type %s; int8 or uint8 is needed", dtype_name(out));
    if (has(s, p->bias))
        TRY(shape_type(s, (uint32_t)p->bias, w == GEMM ? DT_I32 : DT_F32, e));
    return mm_shape(s, (uint32_t)p->a, (uint32_t)p->b, transposed(s->node, "transA"), transposed(s->node, "transB"), out, &s->out[0], e);
}

static enum status q_plan(struct node *n, const struct shaping *s, struct err *e)
{
    const struct ports *p = &ports[which_of(n)];
    const struct tensor *b = s->constants[p->b], *zero = has(s, p->b_zero) ? s->constants[p->b_zero] : NULL;
    if (!b || b->rank != 2 || tensor_count(b) == 0 || (has(s, p->b_zero) && !zero))
        return ST_OK;
    int trans = transposed(n, "transB");
    size_t k = (size_t)b->dims[trans], cols = (size_t)b->dims[!trans];
    size_t zeros = zero ? (size_t)tensor_count(zero) : 1;
    if (zeros != 1 && zeros != cols)
        return node_error(n, e, "%zu zero points for %zu columns", zeros, cols);
    int16_t *packed = mem_aligned(quant_packed(k, cols) * sizeof *packed);
    if (!packed)
        return err_nomem(e, "the model's weights");
    quant_pack(b->dtype, k, cols, tensor_data(b), trans ? 1 : cols, trans ? k : 1, zero ? tensor_data(zero) : NULL, zeros != 1, packed);
    n->state = packed;
    return ST_OK;
}

/* One batch: what is added, scaled and stored after the sums are there. */
struct after {
    enum which which;
    const float *a_scale, *b_scale, *bias; /* b_scale: one or n */
    const int32_t *addend;                 /* QGemm's C, rows and columns with these steps */
    size_t add_row, add_col;
    float y_scale, alpha;
    int b_scales, a_scales;
    enum dtype out;
    int32_t zero, lo, hi;
};

static void finish(const struct after *o, size_t m, size_t n, size_t row0, const int32_t *c, void *y)
{
    if (o->which == INTEGER) {
        memcpy(y, c, m * n * sizeof *c);
        return;
    }
    for (size_t i = 0; i < m; i++) {
        float a_scale = o->a_scale[o->a_scales ? row0 + i : 0];
        if (o->out == DT_F32 && !o->addend && o->alpha == 1) { /* what most models come to, in a loop that vectors take */
            const int32_t *v = c + i * n;
            float *to = (float *)y + i * n;
            if (!o->b_scales)
                for (size_t j = 0; j < n; j++)
                    to[j] = (float)v[j] * (a_scale * o->b_scale[0]);
            else
                for (size_t j = 0; j < n; j++)
                    to[j] = (float)v[j] * (a_scale * o->b_scale[j]);
            for (size_t j = 0; o->bias && j < n; j++)
                to[j] += o->bias[j];
            continue;
        }
        for (size_t j = 0; j < n; j++) {
            int32_t v = c[i * n + j];
            if (o->addend)
                v += o->addend[(row0 + i) * o->add_row + j * o->add_col];
            float scale = a_scale * o->b_scale[o->b_scales ? j : 0] * o->alpha;
            if (o->out == DT_F32) {
                float f = (float)v * scale;
                ((float *)y)[i * n + j] = o->bias ? f + o->bias[j] : f;
            } else {
                float q = quant_round((float)v * (scale / o->y_scale)) + (float)o->zero;
                int32_t w = q >= (float)o->hi ? o->hi : q > (float)o->lo ? (int32_t)q : o->lo;
                ((uint8_t *)y)[i * n + j] = (uint8_t)w;
            }
        }
    }
}

static const struct tensor *port(const struct run *r, const struct node *n, int8_t p)
{
    return p >= 0 && (uint32_t)p < n->n_in ? run_in(r, (uint32_t)p) : NULL;
}

static enum status read_after(struct run *r, const struct node *n, const struct ports *p, const struct mm *m, enum dtype out, struct after *o,
                              struct err *e)
{
    const struct tensor *as = port(r, n, p->a_scale), *bs = port(r, n, p->b_scale), *ys = port(r, n, p->y_scale), *yz = port(r, n, p->y_zero),
                        *bias = port(r, n, p->bias);
    *o = (struct after){.which = which_of(n), .alpha = 1, .out = out, .y_scale = 1};
    if (o->which == INTEGER)
        return ST_OK;
    TRY(wide_f32(r, as, &o->a_scale, e));
    TRY(wide_f32(r, bs, &o->b_scale, e));
    o->a_scales = as && tensor_count(as) != 1;
    o->b_scales = bs && tensor_count(bs) != 1;
    if ((o->a_scales && (size_t)tensor_count(as) != m->m) || (o->b_scales && (size_t)tensor_count(bs) != m->n))
        return node_error(n, e, "its scales do not go with a product of %zu x %zu", m->m, m->n);
    if (ys)
        o->y_scale = (float)wide_get(ys->dtype, tensor_data(ys), 0);
    if (yz)
        o->zero = (int32_t)wide_get(yz->dtype, tensor_data(yz), 0);
    quant_range(out, &o->lo, &o->hi);
    if (o->which == GEMM)
        o->alpha = node_float(n, "alpha", 1);
    if (bias && o->which == GEMM) {
        size_t rows = bias->rank == 2 ? (size_t)bias->dims[0] : 1, cols = bias->rank ? (size_t)bias->dims[bias->rank - 1] : 1;
        if ((rows != 1 && rows != m->m) || (cols != 1 && cols != m->n) || bias->rank > 2)
            return node_error(n, e, "input C does not go with a product of %zu x %zu", m->m, m->n);
        o->addend = tensor_data(bias);
        o->add_row = rows == 1 ? 0 : cols;
        o->add_col = cols == 1 ? 0 : 1;
    } else if (bias) {
        if ((size_t)tensor_count(bias) != m->n)
            return node_error(n, e, "its bias has %lld values for %zu columns", (long long)tensor_count(bias), m->n);
        o->bias = tensor_data(bias);
    }
    return ST_OK;
}

/* a as bytes, quantised here where the op says so. */
struct left {
    const uint8_t *bytes;
    enum dtype dtype;
    const void *zeros; /* one, or one for each row of all; NULL: none */
    int zero_rows;
};

/* Rows that are quantised together: of one text where texts are packed, else all. Packed are [1, tokens, ...], or [texts, ...]. */
static size_t together(const struct seqs *seqs, const struct tensor *a, size_t rows, size_t text)
{
    if (!seqs || seqs->count == 1)
        return rows;
    if (a->rank > 2 && a->dims[0] == 1 && a->dims[1] == seqs->tokens)
        return rows / seqs->tokens * seqs->lengths[text];
    return rows / seqs->count;
}

static enum status quantise(struct run *r, const struct tensor *a, struct left *out, struct after *o, struct err *e)
{
    size_t count = (size_t)tensor_count(a), k = (size_t)(a->rank ? a->dims[a->rank - 1] : 1), rows = k ? count / k : 0;
    const float *x = tensor_data(a);
    const struct seqs *seqs = run_seqs(r);
    void *bytes, *scales, *zeros;
    TRY(run_scratch(r, count + 64, &bytes, e));
    TRY(run_scratch(r, (rows + 1) * sizeof(float), &scales, e));
    TRY(run_scratch(r, rows + 1, &zeros, e));
    *out = (struct left){.bytes = bytes, .dtype = DT_U8, .zeros = zeros};
    o->a_scale = scales;
    if (!count) {
        *(float *)scales = 1;
        *(uint8_t *)zeros = 0;
        return ST_OK;
    }
    for (size_t row = 0, text = 0; row < rows; text++) {
        size_t some = together(seqs, a, rows, text);
        float scale;
        uint8_t zero, *q = (uint8_t *)bytes + row * k;
        quant_dynamic(some * k, x + row * k, &scale, &zero);
        for (size_t i = 0; i < some * k; i++)
            q[i] = (uint8_t)quant_one(x[row * k + i], scale, zero, 0, 255);
        if (some == rows) {
            *(float *)scales = scale;
            *(uint8_t *)zeros = zero;
            return ST_OK;
        }
        for (size_t i = 0; i < some; i++) {
            ((float *)scales)[row + i] = scale;
            ((uint8_t *)zeros)[row + i] = zero;
        }
        row += some;
    }
    o->a_scales = out->zero_rows = 1;
    return ST_OK;
}

enum { ROWS_AT_ONCE = 120 }; /* of a: so many wide rows of some hundred stay in the second-level cache */

static enum status q_run(struct run *r, const struct node *n, struct err *e)
{
    const struct ports *p = &ports[which_of(n)];
    const struct tensor *a = port(r, n, p->a), *b = port(r, n, p->b), *az = port(r, n, p->a_zero), *bz = port(r, n, p->b_zero);
    struct tensor *y = run_out(r, 0);
    if (!y || tensor_count(y) == 0)
        return ST_OK;
    int ta = transposed(n, "transA"), tb = transposed(n, "transB");
    struct mm m;
    struct after o;
    struct left l = {.bytes = tensor_data(a), .dtype = a->dtype, .zeros = az ? tensor_data(az) : NULL, .zero_rows = az && tensor_count(az) != 1};
    TRY(mm_of(n, a, b, ta, tb, &m, e));
    TRY(read_after(r, n, p, &m, y->dtype, &o, e));
    int zero_cols = bz && tensor_count(bz) != 1, dynamic = o.which == DYNAMIC;
    if ((l.zero_rows && (size_t)tensor_count(az) != m.m) || (zero_cols && (size_t)tensor_count(bz) != m.n))
        return node_error(n, e, "its zero points do not go with a product of %zu x %zu", m.m, m.n);
    if (dynamic)
        TRY(quantise(r, a, &l, &o, e));
    size_t even = (m.k + 1) / 2 * 2, bytes_y = dtype_bytes(y->dtype), most = m.m < ROWS_AT_ONCE ? m.m : ROWS_AT_ONCE;
    void *wide, *sums, *packed = n->state, *turned = NULL;
    TRY(run_scratch(r, most * even * sizeof(int16_t), &wide, e));
    TRY(run_scratch(r, most * m.n * sizeof(int32_t), &sums, e));
    if (!n->state)
        TRY(run_scratch(r, quant_packed(m.k, m.n) * sizeof(int16_t), &packed, e));
    if (ta)
        TRY(run_scratch(r, m.m * m.k, &turned, e));
    for (size_t i = 0; i < m.batches; i++) {
        size_t ia, ib;
        mm_at(&m, i, &ia, &ib);
        const uint8_t *from = l.bytes + ia * m.m * m.k;
        if (ta) {
            for (size_t j = 0; j < m.m * m.k; j++)
                ((uint8_t *)turned)[j] = from[j % m.k * m.m + j / m.k];
            from = turned;
        }
        if (!n->state && (i == 0 || !m.b_alone))
            quant_pack(b->dtype, m.k, m.n, (const uint8_t *)tensor_data(b) + ib * m.k * m.n, tb ? 1 : m.n, tb ? m.k : 1, bz ? tensor_data(bz) : NULL,
                       zero_cols, packed);
        for (size_t row = 0; row < m.m; row += most) {
            size_t some = m.m - row < most ? m.m - row : most;
            /* scales that are given are for the rows of one matrix; those found here, for all rows of a */
            size_t at = (dynamic ? ia * m.m : 0) + row;
            const uint8_t *zeros = l.zeros && l.zero_rows ? (const uint8_t *)l.zeros + at : l.zeros;
            quant_widen(l.dtype, some, m.k, from + row * m.k, m.k, zeros, l.zero_rows, wide);
            quant_gemm(n->kernels, some, m.n, m.k, wide, packed, sums, m.n);
            finish(&o, some, m.n, at, sums, (uint8_t *)tensor_data(y) + (i * m.m + row) * m.n * bytes_y);
        }
    }
    return ST_OK;
}

static int q_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    const struct ports *p = &ports[which_of(s->node)];
    (void)out;
    if (which_of(s->node) == DYNAMIC || transposed(s->node, "transA") || (int)in != p->a)
        return -1;
    int8_t per_row[] = {p->a_zero, p->a_scale}; /* one for each row: the rows depend on where they stand */
    for (int i = 0; i < 2; i++)
        if (has(s, per_row[i]) && (s->in[per_row[i]].rank > 1 || (s->in[per_row[i]].rank == 1 && s->in[per_row[i]].dims[0] != 1)) &&
            (int)axis == s->in[p->a].rank - 2)
            return -1;
    if (which_of(s->node) == GEMM && has(s, p->bias) && s->in[p->bias].rank == 2 && s->in[p->bias].dims[0] != 1)
        return -1;
    return mm_follow(s, (uint32_t)p->a, (uint32_t)p->b, in, axis);
}

#define Q(d, op, from, least, most)                                                                                              \
    {.domain = d, .name = op, .since = from, .until = OPSET_ANY, .min_in = least, .max_in = most, .min_out = 1, .max_out = 1,    \
     .shape = q_shape, .plan = q_plan, .run = q_run, .release = release_state, .follow = q_follow}
const struct op_def ops_qmatmul[] = {
    Q("", "MatMulInteger", 10, 2, 4),
    Q("", "QLinearMatMul", 10, 8, 8),
    Q("com.microsoft", "DynamicQuantizeMatMul", 1, 3, 5),
    Q("com.microsoft", "MatMulIntegerToFloat", 1, 4, 7),
    Q("com.microsoft", "QGemm", 1, 6, 9),
    {0},
};
