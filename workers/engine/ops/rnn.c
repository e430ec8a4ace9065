/* RNN, GRU and LSTM. The inputs of all steps go through their weights as one product; each step then adds what the state gives. A sequence
   sees its own rows alone, so a batch does not show. */
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/acts.h"
#include "workers/engine/ops/panel.h"
#include "workers/engine/ops/wide.h"

enum { X, W, R, B, LENGTHS, H0, C0, P };
enum { OUT_Y, OUT_H, OUT_C };

struct rnn {
    uint32_t directions;
    struct acts acts[2][3];
    float *packed[2][3]; /* of each direction: input weights; state weights (GRU: of z and r); GRU: state weights of h */
};

static uint32_t gates(const struct node *n)
{
    return n->op[0] == 'L' ? 4 : n->op[0] == 'G' ? 3 : 1;
}

static int64_t batch_first(const struct node *n)
{
    return node_int(n, "layout", 0) != 0;
}

static enum status read_acts(const struct node *n, struct rnn *o, struct err *e)
{
    static const char *const usual[3][3] = {{"Tanh", "", ""}, {"Sigmoid", "Tanh", ""}, {"Sigmoid", "Tanh", "Tanh"}};
    uint32_t each = gates(n) == 4 ? 3 : gates(n) == 3 ? 2 : 1, n_alpha, n_beta, ia = 0, ib = 0;
    const struct attr *names = node_attr(n, "activations");
    const float *alpha = node_floats(n, "activation_alpha", &n_alpha), *beta = node_floats(n, "activation_beta", &n_beta);
    if (names && (names->kind != ATTR_STRINGS || names->count < each * o->directions))
        return node_error(n, e, "attribute 'activations' must name %u functions", each * o->directions);
    for (uint32_t d = 0; d < o->directions; d++)
        for (uint32_t i = 0; i < each; i++) {
            struct acts *f = &o->acts[d][i];
            TRY(acts_find(n, names ? names->strings[d * each + i].data : usual[each - 1][i], f, e));
            int params = acts_params(f);
            if (params > 0 && alpha && ia < n_alpha)
                f->a = alpha[ia++];
            if (params > 1 && beta && ib < n_beta)
                f->b = beta[ib++];
        }
    return ST_OK;
}

static enum status rnn_check(struct node *n, struct err *e)
{
    const char *d = node_string(n, "direction", "forward");
    if (strcmp(d, "forward") && strcmp(d, "reverse") && strcmp(d, "bidirectional"))
        return node_error(n, e, "attribute 'direction' is '%s'", d);
    struct rnn *o = mem_zalloc(sizeof *o);
    if (!o)
        return err_nomem(e, "the model's graph");
    n->state = o;
    o->directions = d[0] == 'b' ? 2 : 1;
    return read_acts(n, o, e);
}

static enum status want(const struct shaping *s, uint32_t i, int rank, const dim *dims, struct err *e)
{
    if (!shape_has(s, i))
        return ST_OK;
    TRY(shape_rank(s, i, rank, e));
    for (int d = 0; d < s->in[i].rank; d++)
        if (dim_known(dims[d]) && dim_known(s->in[i].dims[d]) && dims[d] != s->in[i].dims[d])
            return node_error(s->node, e, "input %u is of size %lld along axis %d; %lld is needed", i, (long long)s->in[i].dims[d], d,
                              (long long)dims[d]);
    return ST_OK;
}

static enum status rnn_shape(struct shaping *s, struct err *e)
{
    const struct rnn *o = s->node->state;
    const struct type *x = &s->in[X], *r = &s->in[R];
    int64_t g = gates(s->node), d = o->directions, first = batch_first(s->node);
    TRY(shape_float(s, X, 3, e));
    if (x->dtype == DT_F64)
        return node_error(s->node, e, "float64 is not supported");
    for (uint32_t i = W; i < s->n_in; i++)
        if (i != LENGTHS && (i <= R || shape_has(s, i)))
            TRY(shape_type(s, i, x->dtype, e));
    if (shape_has(s, LENGTHS))
        TRY(shape_type(s, LENGTHS, DT_I32, e));
    TRY(shape_rank(s, X, 3, e));
    TRY(shape_rank(s, R, 3, e));
    dim h = node_int(s->node, "hidden_size", r->rank == 3 ? r->dims[2] : DIM_UNKNOWN);
    dim len = x->rank == 3 ? x->dims[first ? 1 : 0] : dim_fresh(s->syms), batch = x->rank == 3 ? x->dims[first ? 0 : 1] : dim_fresh(s->syms);
    if (!dim_known(h) && h == DIM_UNKNOWN)
        h = dim_fresh(s->syms);
    if (dim_known(h) && h < 1)
        return node_error(s->node, e, "attribute 'hidden_size' is %lld", (long long)h);
    dim gh = dim_mul(s->syms, h, g), in = x->rank == 3 ? x->dims[2] : DIM_UNKNOWN;
    TRY(want(s, W, 3, (dim[]){d, gh, in}, e));
    TRY(want(s, R, 3, (dim[]){d, gh, h}, e));
    TRY(want(s, B, 2, (dim[]){d, dim_mul(s->syms, gh, 2)}, e));
    TRY(want(s, LENGTHS, 1, (dim[]){batch}, e));
    TRY(want(s, H0, 3, first ? (dim[]){batch, d, h} : (dim[]){d, batch, h}, e));
    TRY(want(s, C0, 3, first ? (dim[]){batch, d, h} : (dim[]){d, batch, h}, e));
    TRY(want(s, P, 2, (dim[]){d, dim_mul(s->syms, h, 3)}, e));
    for (uint32_t i = 0; i < s->n_out; i++) {
        if (i == OUT_Y)
            type_tensor(&s->out[i], x->dtype, 4, first ? (dim[]){batch, len, d, h} : (dim[]){len, d, batch, h});
        else
            type_tensor(&s->out[i], x->dtype, 3, first ? (dim[]){batch, d, h} : (dim[]){d, batch, h});
    }
    return ST_OK;
}

/* Part i of direction d: which rows of W or R, and how many. */
static size_t part_rows(const struct node *n, int i, size_t h, size_t *first)
{
    size_t g = gates(n);
    *first = i == 2 ? 2 * h : 0;
    if (g == 3)
        return i == 0 ? 3 * h : i == 1 ? 2 * h : h;
    return i == 2 ? 0 : g * h;
}

static void pack_part(const struct node *n, int i, size_t h, size_t in, const float *w, const float *r, float *to)
{
    size_t first, rows = part_rows(n, i, h, &first), depth = i == 0 ? in : h;
    panel_pack(n->kernels, rows, depth, (i == 0 ? w : r) + first * depth, depth, 1, to);
}

static enum status rnn_plan(struct node *n, const struct shaping *s, struct err *e)
{
    struct rnn *o = n->state;
    const struct tensor *w = s->constants[W], *r = s->constants[R];
    if (!w || !r || w->dtype != DT_F32)
        return ST_OK;
    size_t h = (size_t)r->dims[2], in = (size_t)w->dims[2], g = gates(n), first;
    for (uint32_t d = 0; d < o->directions; d++)
        for (int i = 0; i < 3; i++) {
            size_t rows = part_rows(n, i, h, &first);
            if (!rows)
                continue;
            o->packed[d][i] = mem_aligned(panel_floats(n->kernels, rows, i == 0 ? in : h) * sizeof(float) + 64);
            if (!o->packed[d][i])
                return err_nomem(e, "the model's weights");
            pack_part(n, i, h, in, (const float *)tensor_data(w) + d * g * h * in, (const float *)tensor_data(r) + d * g * h * h, o->packed[d][i]);
        }
    return ST_OK;
}

/* One direction. */
struct pass {
    const struct node *n;
    const struct acts *acts;
    size_t len, batch, in, h, g;
    const float *packed[3];
    const float *wb, *rb, *peep; /* biases: g * h each; NULL for none */
    const int32_t *lengths;
    int reverse;
    float clip;
    float *from_x;   /* (len x batch) x gh, in the order of x's rows */
    size_t step_t, step_b; /* rows of x from one step or sequence to the next */
    float *from_h;   /* batch x gh */
    float *state, *cell, *spare; /* batch x h */
    float *y;        /* NULL, or where step 0 of sequence 0 goes */
    size_t y_t, y_b;
};

static void clip(const struct pass *p, size_t n, float *x)
{
    if (p->clip > 0)
        for (size_t i = 0; i < n; i++)
            x[i] = x[i] < -p->clip ? -p->clip : x[i] > p->clip ? p->clip : x[i];
}

static void act(const struct pass *p, int which, float *x)
{
    clip(p, p->h, x);
    acts_run(&p->acts[which], p->n->kernels, p->h, x);
}

/* z holds what the input gave (g * h), r what the state gave. */
static void lstm_row(const struct pass *p, float *z, const float *r, float *state, float *cell)
{
    size_t h = p->h;
    float *i = z, *o = z + h, *f = z + 2 * h, *c = z + 3 * h;
    for (size_t j = 0; j < 4 * h; j++)
        z[j] += r[j];
    for (size_t j = 0; p->peep && j < h; j++) {
        i[j] += p->peep[j] * cell[j];
        f[j] += p->peep[2 * h + j] * cell[j];
    }
    act(p, 0, i);
    if (node_int(p->n, "input_forget", 0))
        for (size_t j = 0; j < h; j++)
            f[j] = 1 - i[j];
    else
        act(p, 0, f);
    act(p, 1, c);
    for (size_t j = 0; j < h; j++)
        cell[j] = f[j] * cell[j] + i[j] * c[j];
    for (size_t j = 0; p->peep && j < h; j++)
        o[j] += p->peep[h + j] * cell[j];
    act(p, 0, o);
    memcpy(c, cell, h * sizeof *c);
    acts_run(&p->acts[2], p->n->kernels, h, c);
    for (size_t j = 0; j < h; j++)
        state[j] = o[j] * c[j];
}

/* The gates of a GRU; where the reset comes first, spare is the state that it lets through, and what that gives is added later. */
static void gru_gates(const struct pass *p, float *z, const float *r, const float *state, float *spare)
{
    size_t h = p->h;
    for (size_t j = 0; j < 2 * h; j++)
        z[j] += r[j];
    act(p, 0, z);
    act(p, 0, z + h);
    for (size_t j = 0; j < h; j++)
        spare[j] = z[h + j] * state[j];
}

static void gru_row(const struct pass *p, float *z, const float *r, float *state, int reset_later)
{
    size_t h = p->h;
    float *t = z + 2 * h;
    for (size_t j = 0; j < h; j++)
        t[j] += reset_later ? z[h + j] * (p->rb ? r[j] + p->rb[2 * h + j] : r[j]) : r[j];
    act(p, 1, t);
    for (size_t j = 0; j < h; j++)
        state[j] = (1 - z[j]) * t[j] + z[j] * state[j];
}

/* The step that sequence b does as its `step`th, or -1 when it is over. */
static int64_t time_of(const struct pass *p, size_t b, size_t step)
{
    size_t len = p->lengths ? (size_t)p->lengths[b] : p->len;
    return step >= len ? -1 : p->reverse ? (int64_t)(len - 1 - step) : (int64_t)step;
}

static void run_pass(const struct pass *p)
{
    const struct kernels *k = p->n->kernels;
    size_t h = p->h, gh = p->g * h, zr = p->g == 3 ? 2 * h : gh;
    int reset_later = p->g == 3 && node_int(p->n, "linear_before_reset", 0);
    for (size_t step = 0; step < p->len; step++) {
        panel_gemm(k, p->batch, zr, h, p->state, h, p->packed[1], p->from_h, gh);
        if (p->g == 3) {
            for (size_t b = 0; b < p->batch; b++) {
                int64_t t = time_of(p, b, step);
                if (t >= 0)
                    gru_gates(p, p->from_x + ((size_t)t * p->step_t + b * p->step_b) * gh, p->from_h + b * gh, p->state + b * h, p->spare + b * h);
            }
            panel_gemm(k, p->batch, h, h, reset_later ? p->state : p->spare, h, p->packed[2], p->from_h + 2 * h, gh);
        }
        for (size_t b = 0; b < p->batch; b++) {
            int64_t t = time_of(p, b, step);
            if (t < 0)
                continue;
            float *z = p->from_x + ((size_t)t * p->step_t + b * p->step_b) * gh, *r = p->from_h + b * gh, *state = p->state + b * h;
            if (p->g == 4) {
                lstm_row(p, z, r, state, p->cell + b * h);
            } else if (p->g == 3) {
                gru_row(p, z, r + 2 * h, state, reset_later);
            } else {
                for (size_t j = 0; j < h; j++)
                    z[j] += r[j];
                act(p, 0, z);
                memcpy(state, z, h * sizeof *z);
            }
            if (p->y)
                memcpy(p->y + (size_t)t * p->y_t + b * p->y_b, state, h * sizeof *state);
        }
    }
}

/* from_x = x W^T + biases; of a GRU that resets after the product, the state's bias of h stays out. */
static void project(const struct pass *p, const float *x)
{
    size_t gh = p->g * p->h, rows = p->len * p->batch;
    panel_gemm(p->n->kernels, rows, gh, p->in, x, p->in, p->packed[0], p->from_x, gh);
    if (!p->wb)
        return;
    int apart = p->g == 3 && node_int(p->n, "linear_before_reset", 0);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < gh; j++)
            p->from_x[i * gh + j] += apart && j >= 2 * p->h ? p->wb[j] : p->wb[j] + p->rb[j];
}

/* State or cell between a tensor [directions, batch, h] (or batch first) and rows of the batch. */
static void move_state(const struct pass *p, int first, uint32_t directions, uint32_t d, const float *in, float *rows, float *out)
{
    for (size_t b = 0; b < p->batch; b++) {
        size_t at = (first ? b * directions + d : d * p->batch + b) * p->h;
        if (out)
            memcpy(out + at, rows + b * p->h, p->h * sizeof *rows);
        else if (in)
            memcpy(rows + b * p->h, in + at, p->h * sizeof *rows);
        else
            memset(rows + b * p->h, 0, p->h * sizeof *rows);
    }
}

static enum status scratch_floats(struct run *r, size_t n, float **out, struct err *e)
{
    void *p;
    TRY(run_scratch(r, (n + 16) * sizeof(float), &p, e));
    *out = p;
    return ST_OK;
}

static enum status check_lengths(const struct node *n, const struct pass *p, struct err *e)
{
    for (size_t b = 0; p->lengths && b < p->batch; b++)
        if (p->lengths[b] < 0 || (size_t)p->lengths[b] > p->len)
            return node_error(n, e, "sequence %zu is said to have %d of %zu steps", b, p->lengths[b], p->len);
    return ST_OK;
}

static enum status rnn_run(struct run *r, const struct node *n, struct err *e)
{
    const struct rnn *o = n->state;
    const float *in[8] = {0};
    float *out[3] = {0};
    int first = (int)batch_first(n);
    const struct tensor *x = run_in(r, X), *rw = run_in(r, R);
    for (uint32_t i = 0; i < n->n_in; i++)
        if (i != LENGTHS)
            TRY(wide_f32(r, run_in(r, i), &in[i], e));
    for (uint32_t i = 0; i < n->n_out; i++)
        TRY(wide_f32_out(r, run_out(r, i), &out[i], e));
    struct pass p = {.n = n, .len = (size_t)x->dims[first], .batch = (size_t)x->dims[!first], .in = (size_t)x->dims[2], .h = (size_t)rw->dims[2],
                     .g = gates(n), .clip = node_float(n, "clip", 0)};
    const struct tensor *lengths = n->n_in > LENGTHS ? run_in(r, LENGTHS) : NULL;
    p.lengths = lengths ? tensor_data(lengths) : NULL;
    TRY(check_lengths(n, &p, e));
    size_t gh = p.g * p.h, D = o->directions;
    p.step_t = first ? 1 : p.batch, p.step_b = first ? p.len : 1;
    p.y_t = first ? D * p.h : D * p.batch * p.h, p.y_b = first ? p.len * D * p.h : p.h;
    TRY(scratch_floats(r, p.len * p.batch * gh, &p.from_x, e));
    TRY(scratch_floats(r, p.batch * gh, &p.from_h, e));
    TRY(scratch_floats(r, p.batch * p.h, &p.state, e));
    TRY(scratch_floats(r, p.batch * p.h, &p.cell, e));
    TRY(scratch_floats(r, p.batch * p.h, &p.spare, e));
    if (out[OUT_Y])
        memset(out[OUT_Y], 0, p.len * p.batch * D * p.h * sizeof(float)); /* beyond a sequence's end */
    for (uint32_t d = 0; d < D; d++) {
        const char *way = node_string(n, "direction", "forward");
        p.reverse = d == 1 || way[0] == 'r';
        p.acts = o->acts[d];
        p.wb = in[B] ? in[B] + d * 2 * gh : NULL;
        p.rb = p.wb ? p.wb + gh : NULL;
        p.peep = in[P] && p.g == 4 ? in[P] + d * 3 * p.h : NULL;
        for (int i = 0; i < 3; i++) {
            size_t at, rows = part_rows(n, i, p.h, &at);
            p.packed[i] = o->packed[d][i];
            if (p.packed[i] || !rows)
                continue;
            float *packed;
            TRY(scratch_floats(r, panel_floats(n->kernels, rows, i == 0 ? p.in : p.h), &packed, e));
            pack_part(n, i, p.h, p.in, in[W] + d * gh * p.in, in[R] + d * gh * p.h, packed);
            p.packed[i] = packed;
        }
        p.y = out[OUT_Y] ? out[OUT_Y] + d * (first ? p.h : p.batch * p.h) : NULL;
        move_state(&p, first, (uint32_t)D, d, in[H0], p.state, NULL);
        move_state(&p, first, (uint32_t)D, d, p.g == 4 ? in[C0] : NULL, p.cell, NULL);
        project(&p, in[X]);
        run_pass(&p);
        if (out[OUT_H])
            move_state(&p, first, (uint32_t)D, d, NULL, p.state, out[OUT_H]);
        if (out[OUT_C])
            move_state(&p, first, (uint32_t)D, d, NULL, p.cell, out[OUT_C]);
    }
    for (uint32_t i = 0; i < n->n_out; i++)
        wide_f32_done(run_out(r, i), out[i]);
    return ST_OK;
}

static void rnn_release(struct node *n)
{
    struct rnn *o = n->state;
    for (int i = 0; o && i < 6; i++)
        mem_free(o->packed[i / 3][i % 3]);
    release_state(n);
}

static int rnn_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    int first = (int)batch_first(s->node);
    uint32_t own = in == LENGTHS ? 0 : first ? 0 : 1;
    if ((in != X && in != LENGTHS && in != H0 && in != C0) || axis != own)
        return -1;
    return first ? 0 : out == OUT_Y ? 2 : 1;
}

#define RNN(op, from, in, out)                                                                                                   \
    {.domain = "", .name = op, .since = from, .until = OPSET_ANY, .min_in = 3, .max_in = in, .min_out = 0, .max_out = out,       \
     .check = rnn_check, .shape = rnn_shape, .plan = rnn_plan, .run = rnn_run, .release = rnn_release, .follow = rnn_follow}
const struct op_def ops_rnn[] = {RNN("RNN", 7, 6, 2), RNN("GRU", 7, 6, 2), RNN("LSTM", 7, 8, 3), {0}};
