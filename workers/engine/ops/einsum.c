/* Einsum: operands are taken two at a time, from the left. A label that both have and that is needed later is a batch axis; one that is not needed
   later is summed over; the others are rows or columns: each step is a batch of matrix products. */
#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/args.h"
#include "workers/engine/ops/product.h"
#include "workers/engine/ops/walk.h"

enum { LETTERS = 52, LABELS = LETTERS + RANK_MAX, OPERANDS = 8 };

struct term {
    uint8_t label[RANK_MAX]; /* letters; an ellipsis is left out */
    int n, ellipsis;         /* how many letters; which place it has among them, -1: none */
};

struct equation {
    uint32_t n;
    struct term in[OPERANDS], out;
};

static int letter(char c)
{
    return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1;
}

static const char *parse_term(const char *p, struct term *t)
{
    *t = (struct term){.ellipsis = -1};
    for (;; p++) {
        if (*p == ' ')
            continue;
        if (p[0] == '.' && p[1] == '.' && p[2] == '.' && t->ellipsis < 0) {
            t->ellipsis = t->n;
            p += 2;
        } else if (letter(*p) >= 0 && t->n < RANK_MAX) {
            t->label[t->n++] = (uint8_t)letter(*p);
        } else {
            return p;
        }
    }
}

/* 0 when it is no equation */
static int parse(const char *p, struct equation *q)
{
    q->n = 0;
    for (;;) {
        if (q->n == OPERANDS)
            return 0;
        p = parse_term(p, &q->in[q->n++]);
        if (*p != ',')
            break;
        p++;
    }
    if (p[0] == '-' && p[1] == '>') {
        p = parse_term(p + 2, &q->out);
        for (int i = 0; i < q->out.n; i++)
            for (int k = 0; k < i; k++)
                if (q->out.label[i] == q->out.label[k])
                    return 0;
        return *p == '\0';
    }
    /* without an arrow: the ellipsis, then what is named once, in the order of the alphabet */
    uint32_t times[LETTERS] = {0};
    q->out = (struct term){.ellipsis = -1};
    for (uint32_t i = 0; i < q->n; i++) {
        for (int k = 0; k < q->in[i].n; k++)
            times[q->in[i].label[k]]++;
        if (q->in[i].ellipsis >= 0)
            q->out.ellipsis = 0;
    }
    for (int i = 0; i < LETTERS; i++) {
        int l = i < 26 ? i + 26 : i - 26; /* A to Z, a to z */
        if (times[l] != 1)
            continue;
        if (q->out.n == RANK_MAX)
            return 0;
        q->out.label[q->out.n++] = (uint8_t)l;
    }
    return *p == '\0';
}

/* The label of each axis of an operand; those under an ellipsis are numbered from the right. 0 when the ranks do not fit. */
static int axis_labels(const struct term *t, int rank, uint8_t *label)
{
    int extra = rank - t->n;
    if (t->ellipsis < 0 ? extra != 0 : extra < 0 || rank > RANK_MAX)
        return 0;
    for (int i = 0, k = 0; i < rank;) {
        if (k == t->ellipsis && extra > 0) {
            for (int j = extra; j-- > 0;)
                label[i++] = (uint8_t)(LETTERS + j);
            extra = 0;
        } else {
            label[i++] = t->label[k++];
        }
    }
    return 1;
}

/* Labels of the output's axes, given how many axes ellipses stand for. */
static int out_labels(const struct equation *q, int wide, uint8_t *label)
{
    struct term t = q->out;
    int rank = t.n + (t.ellipsis >= 0 ? wide : 0);
    return rank <= RANK_MAX && axis_labels(&t, rank, label) ? rank : -1;
}

static enum status check(struct node *n, struct err *e)
{
    struct equation q;
    const char *text = node_string(n, "equation", "");
    if (!parse(text, &q))
        return node_error(n, e, "the equation '%.100s' cannot be read", text);
    if (q.n != n->n_in)
        return node_error(n, e, "the equation '%.100s' has %u operands, the node %u", text, q.n, n->n_in);
    uint64_t there = 0;
    for (uint32_t i = 0; i < q.n; i++)
        for (int k = 0; k < q.in[i].n; k++)
            there |= (uint64_t)1 << q.in[i].label[k];
    for (int k = 0; k < q.out.n; k++)
        if (!(there >> q.out.label[k] & 1))
            return node_error(n, e, "the equation '%.100s' has a label in its output that no operand has", text);
    return ST_OK;
}

static enum status shape(struct shaping *s, struct err *e)
{
    struct equation q;
    dim size[LABELS];
    uint8_t label[RANK_MAX];
    int wide = 0;
    (void)parse(node_string(s->node, "equation", ""), &q);
    for (int i = 0; i < LABELS; i++)
        size[i] = 1;
    type_tensor(&s->out[0], s->in[0].dtype, -1, NULL);
    int unknown = 0;
    for (uint32_t i = 0; i < q.n; i++) {
        TRY(arg_type(s, i, TYPES_PRODUCT, e));
        TRY(arg_same(s, i, e));
        const struct type *x = &s->in[i];
        if (x->rank < 0) {
            unknown = 1;
            continue;
        }
        if (!axis_labels(&q.in[i], x->rank, label))
            return node_error(s->node, e, "operand %u has %d axes, which the equation does not fit", i, x->rank);
        if (q.in[i].ellipsis >= 0 && x->rank - q.in[i].n > wide)
            wide = x->rank - q.in[i].n;
        for (int k = 0; k < x->rank; k++) {
            dim *d = &size[label[k]];
            if (*d == 1 || (!dim_known(*d) && dim_known(x->dims[k]) && x->dims[k] != 1))
                *d = x->dims[k];
            else if (dim_known(*d) && dim_known(x->dims[k]) && x->dims[k] != 1 && *d != x->dims[k])
                return node_error(s->node, e, "axis %d of operand %u has size %lld, another of the same label %lld", k, i, (long long)x->dims[k],
                                  (long long)*d);
        }
    }
    if (unknown)
        return ST_OK;
    int rank = out_labels(&q, wide, label);
    if (rank < 0)
        return node_error(s->node, e, "the result has too many axes");
    s->out[0].rank = rank;
    for (int k = 0; k < rank; k++)
        s->out[0].dims[k] = size[label[k]];
    return ST_OK;
}

/* An operand or a product of some: where its elements lie, by label. */
struct operand {
    const char *data;
    uint64_t labels;
    int64_t step[LABELS];
};

/* The labels of a set, in order; their sizes; their product. */
static uint32_t list(uint64_t set, const int64_t *size, uint8_t *label, uint32_t at)
{
    for (uint8_t l = 0; l < LABELS; l++)
        if (set >> l & 1 && size[l] != 1)
            label[at++] = l;
    return at;
}

static int64_t count(uint64_t set, const int64_t *size)
{
    int64_t n = 1;
    for (int l = 0; l < LABELS; l++)
        if (set >> l & 1)
            n *= size[l];
    return n;
}

/* x laid out as the sets say, one after the other; labels that it lacks repeat it. */
static enum status lay_out(struct run *r, const struct node *n, size_t z, const struct operand *x, const uint64_t *sets, const int64_t *size,
                           const void **out, struct err *e)
{
    uint8_t label[LABELS];
    uint32_t rank = 0;
    for (int i = 0; i < 3; i++)
        rank = list(sets[i], size, label, rank);
    if (rank > RANK_MAX)
        return node_error(n, e, "more than %d axes meet", RANK_MAX);
    int64_t dims[RANK_MAX] = {0}, from[RANK_MAX], to[RANK_MAX], total = 1;
    for (uint32_t i = 0; i < rank; i++) {
        dims[i] = size[label[i]];
        from[i] = x->labels >> label[i] & 1 ? x->step[label[i]] : 0;
        total *= dims[i];
    }
    row_major(rank, dims, to);
    if (memcmp(from, to, rank * sizeof *to) == 0) {
        *out = x->data;
        return ST_OK;
    }
    void *p;
    TRY(run_scratch(r, (size_t)total * z, &p, e));
    copy_steps(z, rank, dims, x->data, from, p, to);
    *out = p;
    return ST_OK;
}

/* c = the product of a and b (NULL: of a and 1), over labels that `later` does not need. */
static enum status contract(struct run *r, const struct node *n, enum dtype d, const struct operand *a, const struct operand *b, uint64_t later,
                            const int64_t *size, struct operand *c, struct err *e)
{
    size_t z = dtype_bytes(d);
    uint64_t lb = b ? b->labels : 0, batch = a->labels & lb & later, rows = a->labels & ~lb & later, cols = lb & ~a->labels & later;
    uint64_t summed = (a->labels | lb) & ~later;
    int64_t nb = count(batch, size), m = count(rows, size), k = count(summed, size), w = count(cols, size);
    const void *pa, *pb;
    void *scratch, *p;
    TRY(lay_out(r, n, z, a, (uint64_t[]){batch, rows, summed}, size, &pa, e));
    struct operand one = {0};
    _Alignas(8) char unit[8];
    element_set(d, unit, 1, 1);
    one.data = unit;
    TRY(lay_out(r, n, z, b ? b : &one, (uint64_t[]){batch, summed, cols}, size, &pb, e));
    TRY(product_fits(n, (size_t)m, (size_t)w, (size_t)k, e));
    TRY(product_fits(n, (size_t)nb, 0, 0, e));
    TRY(run_scratch(r, (size_t)(nb * m * w) * z, &p, e));
    struct matrices g = {.batches = (size_t)nb,
                         .m = (size_t)m,
                         .n = (size_t)w,
                         .k = (size_t)k,
                         .a = pa,
                         .b = pb,
                         .a_batch = (size_t)(m * k),
                         .a_row = (size_t)k,
                         .a_col = 1,
                         .b_batch = (size_t)(k * w),
                         .b_row = (size_t)w,
                         .b_col = 1,
                         .c = p};
    TRY(run_scratch(r, product_floats(n->kernels, d, &g) * sizeof(float), &scratch, e));
    product_run(n->kernels, d, &g, scratch);
    uint8_t label[LABELS];
    uint32_t rank = list(batch, size, label, 0);
    rank = list(rows, size, label, rank);
    rank = list(cols, size, label, rank);
    *c = (struct operand){.data = p, .labels = batch | rows | cols};
    int64_t step = 1;
    for (uint32_t i = rank; i-- > 0; step *= size[label[i]])
        c->step[label[i]] = step;
    return ST_OK;
}

static enum status run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    struct equation q;
    struct operand x[OPERANDS];
    int64_t size[LABELS];
    uint8_t label[RANK_MAX];
    int wide = 0;
    if (!y || !tensor_count(y))
        return ST_OK;
    (void)parse(node_string(n, "equation", ""), &q);
    for (int i = 0; i < LABELS; i++)
        size[i] = 1;
    enum dtype d = dtype_is_half(y->dtype) ? DT_F32 : y->dtype;
    for (uint32_t i = 0; i < q.n; i++) {
        const struct tensor *t = run_in(r, i);
        int64_t step[RANK_MAX];
        const void *p;
        (void)axis_labels(&q.in[i], (int)t->rank, label); /* shape has seen that it fits */
        row_major(t->rank, t->dims, step);
        TRY(product_widen(r, t, &p, e));
        x[i] = (struct operand){.data = p};
        if (q.in[i].ellipsis >= 0 && (int)t->rank - q.in[i].n > wide)
            wide = (int)t->rank - q.in[i].n;
        for (uint32_t k = 0; k < t->rank; k++) {
            int64_t dim_ = t->dims[k];
            x[i].labels |= (uint64_t)1 << label[k];
            x[i].step[label[k]] += dim_ == 1 ? 0 : step[k];
            if (dim_ != 1 && size[label[k]] != 1 && size[label[k]] != dim_)
                return node_error(n, e, "axis %u of operand %u has size %lld, another of the same label %lld", k, i, (long long)dim_,
                                  (long long)size[label[k]]);
            size[label[k]] = dim_ == 1 ? size[label[k]] : dim_;
        }
    }
    int rank = out_labels(&q, wide, label);
    uint64_t wanted = 0, later;
    for (int k = 0; k < rank; k++)
        wanted |= (uint64_t)1 << label[k];
    struct operand acc = x[0], next;
    for (uint32_t i = 1; i < q.n; i++) {
        later = wanted;
        for (uint32_t k = i + 1; k < q.n; k++)
            later |= x[k].labels;
        TRY(contract(r, n, d, &acc, &x[i], later, size, &next, e));
        acc = next;
    }
    if (acc.labels & ~wanted) {
        TRY(contract(r, n, d, &acc, NULL, wanted, size, &next, e));
        acc = next;
    }
    int64_t dims[RANK_MAX], from[RANK_MAX], to[RANK_MAX];
    for (int k = 0; k < rank; k++) {
        dims[k] = size[label[k]];
        from[k] = acc.labels >> label[k] & 1 ? acc.step[label[k]] : 0;
    }
    row_major((uint32_t)rank, dims, to);
    if (d == y->dtype) {
        copy_steps(dtype_bytes(d), (uint32_t)rank, dims, acc.data, from, tensor_data(y), to);
        return ST_OK;
    }
    void *p;
    TRY(run_scratch(r, (size_t)tensor_count(y) * sizeof(float), &p, e));
    copy_steps(sizeof(float), (uint32_t)rank, dims, acc.data, from, p, to);
    half_narrow(y->dtype, tensor_count(y), p, tensor_data(y));
    return ST_OK;
}

static int follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    struct equation q;
    uint8_t label[RANK_MAX], to[RANK_MAX];
    int wide = 0;
    if (!parse(node_string(s->node, "equation", ""), &q))
        return -1;
    for (uint32_t i = 0; i < q.n; i++) {
        if (s->in[i].rank < 0)
            return -1;
        if (q.in[i].ellipsis >= 0 && s->in[i].rank - q.in[i].n > wide)
            wide = s->in[i].rank - q.in[i].n;
    }
    int rank = out_labels(&q, wide, to);
    if (!axis_labels(&q.in[in], s->in[in].rank, label))
        return -1;
    for (int k = 0; k < rank; k++)
        if (to[k] == label[axis])
            return s->in[in].dims[axis] == s->out[0].dims[k] ? k : -1;
    return -1;
}

const struct op_def ops_einsum[] = {
    {.domain = "", .name = "Einsum", .since = 12, .until = OPSET_ANY, .min_in = 1, .max_in = OPERANDS, .min_out = 1, .max_out = 1, .check = check,
     .shape = shape, .run = run, .follow = follow},
    {0},
};
