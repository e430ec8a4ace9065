#include "workers/engine/head.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/pool.h"
#include "workers/engine/scores.h"

enum { MASKS_AT_ONCE = 8, WORDS_AT_ONCE = 1024, /* rows of the words' vectors that are read at once */ OUT_AT_ONCE = 8192 };

struct head {
    struct model_config c; /* without its labels */
    const struct kernels *kernels;
    uint32_t top_k;
    struct linear dense, *out; /* classify, token-classify (out alone), fill-mask */
    uint32_t outs;             /* out in pieces of OUT_AT_ONCE outputs */
    struct norm norm;          /* fill-mask */
    enum act act;
    struct linear step[STEPS_MAX];
    uint32_t widest, width;    /* of what is between, of a row that comes out */
};

/* Loading ------------------------------------------------------------------------------------------------------------------------- */

static enum status load_step(struct loading *l, const char *dir, uint32_t i, struct linear *to, struct err *e)
{
    const struct step *s = &l->c->step[i];
    char *path = mem_printf("%s/%s", dir, s->folder);
    struct weights *w = NULL;
    const struct weights *own = l->w;
    enum status st = path ? weights_open(path, &w, e) : err_nomem(e, "a path");
    mem_free(path);
    TRY(st);
    l->w = w;
    char packed[32];
    snprintf(packed, sizeof packed, "step.%u", i);
    st = loading_linear(l, packed, s->out, s->in, to, e);
    if (st == ST_OK)
        st = loading_named(l, "linear.weight", s->has_bias ? "linear.bias" : NULL, s->out, s->in, to, e);
    l->w = own;
    weights_free(w);
    return st;
}

static enum status load_embed(struct loading *l, const char *dir, struct head *h, struct err *e)
{
    const struct model_config *c = l->c;
    h->widest = c->pooling_count * c->hidden;
    for (uint32_t i = 0; i < c->step_count; i++)
        if (c->step[i].is_dense) {
            TRY(load_step(l, dir, i, &h->step[i], e));
            TRY(loading_flush(l, e));
            h->widest = c->step[i].out > h->widest ? c->step[i].out : h->widest;
        }
    h->width = config_width(c);
    return ST_OK;
}

/* The last matrix, whose pieces are then filled one after the other. */
static enum status load_out(struct loading *l, struct head *h, uint32_t n, uint32_t k, struct err *e)
{
    char packed[32];
    h->outs = (n + OUT_AT_ONCE - 1) / OUT_AT_ONCE;
    if (l->load && !(h->out = mem_array(h->outs, sizeof *h->out)))
        return err_nomem(e, "the model's weights");
    for (uint32_t i = 0; i < h->outs; i++) {
        snprintf(packed, sizeof packed, "out.%u", i);
        TRY(loading_linear(l, packed, i + 1 < h->outs ? OUT_AT_ONCE : n - i * OUT_AT_ONCE, k, l->load ? &h->out[i] : NULL, e));
    }
    return ST_OK;
}

/* weight and bias, of which there are [rows, k] and [rows] for all pieces; words: the weight where it is in memory. */
static enum status fill_out(struct loading *l, struct head *h, const char *weight, const char *bias, const float *words, uint32_t n, uint32_t k, struct err *e)
{
    int fill = 0;
    for (uint32_t i = 0; l->load && i < h->outs; i++)
        fill |= !h->out[i].filled;
    float *space = fill ? loading_space(l, (size_t)WORDS_AT_ONCE * k + n) : NULL, *some = space ? space + n : NULL;
    int load = l->load;
    if (fill && !space)
        return err_nomem(e, "the model's weights");
    l->load = fill;
    enum status st = loading_tensor(l, bias, n, 0, space, e);
    l->load = load;
    for (uint32_t i = 0, count; st == ST_OK && fill && i < n; i += count) {
        struct linear *to = &h->out[i / OUT_AT_ONCE];
        count = n - i < WORDS_AT_ONCE ? n - i : WORDS_AT_ONCE; /* which divides OUT_AT_ONCE */
        if (!words)
            st = loading_rows(l, weight, n, k, i, count, some, e);
        if (st == ST_OK && !to->filled)
            linear_set(to, i % OUT_AT_ONCE, count, words ? words + (size_t)i * k : some, space + i);
    }
    return st;
}

static enum status load_classify(struct loading *l, struct head *h, struct err *e)
{
    const struct model_config *c = l->c;
    char weight[64], bias[64];
    h->act = c->classify_act;
    h->width = c->label_count;
    if (c->task == TASK_CLASSIFY) {
        TRY(loading_linear(l, "dense", c->hidden, c->hidden, &h->dense, e));
        TRY(loading_part(l, c->family->classify.dense, 0, c->hidden, c->hidden, &h->dense, e));
    }
    snprintf(weight, sizeof weight, "%s.weight", c->task == TASK_CLASSIFY ? c->family->classify.out : "classifier");
    snprintf(bias, sizeof bias, "%s.bias", c->task == TASK_CLASSIFY ? c->family->classify.out : "classifier");
    TRY(load_out(l, h, c->label_count, c->hidden, e));
    TRY(loading_shape(l, weight, c->label_count, c->hidden, e));
    TRY(fill_out(l, h, weight, bias, NULL, c->label_count, c->hidden, e));
    return loading_flush(l, e);
}

/* The last matrix is that of the words' vectors, unless config.json says that it is one of its own. */
static enum status load_mask(struct loading *l, const float *words, struct head *h, struct err *e)
{
    const struct model_config *c = l->c;
    const struct family *f = c->family;
    /* the matrix's own bias counts where the matrix is one of its own; else the two are the same, and one of them may be left out */
    int own = f->mask.other_bias && loading_has(l, f->mask.other_bias) && (!c->tied || !loading_has(l, f->mask.bias));
    const char *bias = own ? f->mask.other_bias : f->mask.bias;
    h->act = c->act;
    if (f->mask.act && config_act(f->mask.act, &h->act) != 0)
        BUG("the activation '%s'", f->mask.act);
    h->width = h->top_k;
    TRY(loading_linear(l, "dense", c->embedding, c->hidden, &h->dense, e));
    TRY(loading_part(l, f->mask.dense, 0, c->embedding, c->hidden, &h->dense, e));
    TRY(loading_norm(l, f->mask.norm, c->embedding, c->norm_eps, &h->norm, e));
    TRY(load_out(l, h, c->vocab, c->embedding, e));
    if (!c->tied)
        TRY(loading_shape(l, f->mask.weight, c->vocab, c->embedding, e));
    TRY(fill_out(l, h, c->tied ? ENCODER_WORDS : f->mask.weight, bias, c->tied ? words : NULL, c->vocab, c->embedding, e));
    return loading_flush(l, e);
}

enum status head_load(struct loading *l, const char *dir, const float *words, uint32_t top_k, struct head **out, struct err *e)
{
    struct head *h = mem_zalloc(sizeof *h);
    l->precision = PREC_F32; /* little to be won, and everything to be lost */
    if (!h)
        return err_nomem(e, "the model's weights");
    h->c = *l->c;
    h->c.label = NULL;
    h->kernels = l->kernels;
    h->top_k = top_k < l->c->vocab ? top_k : l->c->vocab;
    enum status st = loading_mark(l, "head", e);
    switch (st == ST_OK ? l->c->task : TASKS) {
    case TASK_EMBED: st = load_embed(l, dir, h, e); break;
    case TASK_CLASSIFY:
    case TASK_TOKENS: st = load_classify(l, h, e); break;
    case TASK_FILL_MASK: st = load_mask(l, words, h, e); break;
    case TASK_OUTPUTS: /* of arrays; never here */
    case TASKS: break;
    }
    if (st == ST_OK && l->load && !l->packing)
        *out = h;
    else
        head_free(h);
    return st;
}

void head_free(struct head *h)
{
    if (!h)
        return;
    linear_release(&h->dense);
    for (uint32_t i = 0; h->out && i < h->outs; i++)
        linear_release(&h->out[i]);
    mem_free(h->out);
    norm_release(&h->norm);
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        linear_release(&h->step[i]);
    mem_free(h);
}

uint32_t head_pieces(const struct head *h, struct window_piece *out, uint32_t most)
{
    uint32_t n = linear_piece(&h->dense, &out[0].at, &out[0].bytes);
    for (uint32_t i = 0; i < h->outs && n < most; i++)
        n += linear_piece(&h->out[i], &out[n].at, &out[n].bytes);
    for (uint32_t i = 0; i < STEPS_MAX && n < most; i++)
        n += linear_piece(&h->step[i], &out[n].at, &out[n].bytes);
    return n;
}

/* Memory -------------------------------------------------------------------------------------------------------------------------- */

static size_t lines(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

/* Floats of what comes out, of what is on the way, and numbers of tokens; in this order. */
struct layout {
    size_t out, between, ids;
};

static struct layout layout_of(const struct head *h, uint32_t max_tokens, uint32_t max_seqs)
{
    const struct model_config *c = &h->c;
    switch (c->task) {
    case TASK_EMBED: return (struct layout){lines((size_t)max_seqs * h->widest), lines((size_t)max_seqs * h->widest), 0};
    case TASK_CLASSIFY: return (struct layout){lines((size_t)max_seqs * h->width), 2 * lines((size_t)max_seqs * c->hidden), 0};
    case TASK_TOKENS: return (struct layout){lines((size_t)max_tokens * h->width), 0, 0};
    case TASK_FILL_MASK:
        return (struct layout){lines((size_t)max_tokens * h->width),
                               MASKS_AT_ONCE * (lines(c->hidden) + lines(c->embedding) + lines(c->vocab)),
                               lines((size_t)max_tokens * h->width)};
    case TASK_OUTPUTS: /* of arrays; never here */
    case TASKS: break;
    }
    BUG("task %d", (int)c->task);
}

size_t head_work_bytes(const struct head *h, uint32_t max_tokens, uint32_t max_seqs)
{
    struct layout l = layout_of(h, max_tokens, max_seqs);
    return sizeof(float) * (l.out + l.between + l.ids + lines(max_seqs));
}

void head_work_init(struct head_work *work, const struct head *h, uint32_t max_tokens, uint32_t max_seqs, void *memory)
{
    struct layout l = layout_of(h, max_tokens, max_seqs);
    *work = (struct head_work){.memory = memory, .max_tokens = max_tokens, .max_seqs = max_seqs};
    work->rows = (uint32_t *)((float *)memory + l.out + l.between + l.ids);
}

/* Running ------------------------------------------------------------------------------------------------------------------------- */

/* Two buffers, in turn: the steps' width may change. */
static const float *run_embed(const struct head *h, float *a, float *b, uint32_t n, const uint32_t *lengths, const float *x, size_t ld)
{
    const struct model_config *c = &h->c;
    uint32_t width = c->pooling_count * c->hidden;
    for (uint32_t i = 0; i < c->pooling_count; i++) {
        struct pool pool = {.kernels = h->kernels, .how = c->pooling[i], .n = c->hidden};
        pool_run(&pool, n, lengths, x, ld, a + (size_t)i * c->hidden, width);
    }
    for (uint32_t i = 0; i < c->step_count; i++) {
        const struct step *s = &c->step[i];
        if (!s->is_dense) {
            for (uint32_t k = 0; k < n; k++)
                h->kernels->unit(width, a + (size_t)k * width);
            continue;
        }
        linear_run(&h->step[i], n, a, width, s->act, NULL, 0, b, s->out);
        width = s->out;
        float *t = a;
        a = b;
        b = t;
    }
    return a;
}

static void run_out(const struct head *h, uint32_t rows, const float *x, size_t ldx, float *y, size_t ldy)
{
    for (uint32_t i = 0; i < h->outs; i++)
        linear_run(&h->out[i], rows, x, ldx, ACT_NONE, NULL, 0, y + (size_t)i * OUT_AT_ONCE, ldy);
}

static void run_classify(const struct head *h, float *out, float *between, uint32_t max_seqs, uint32_t n, const uint32_t *lengths,
                         const float *x, size_t ld)
{
    uint32_t hidden = h->c.hidden;
    float *first = between, *dense = between + lines((size_t)max_seqs * hidden);
    for (uint32_t i = 0; i < n; x += lengths[i] * ld, i++)
        memcpy(first + (size_t)i * hidden, x, hidden * sizeof *x);
    linear_run(&h->dense, n, first, hidden, h->act, NULL, 0, dense, hidden);
    run_out(h, n, dense, hidden, out, h->width);
    for (uint32_t i = 0; i < n; i++)
        scores_row(h->c.scoring, h->width, out + (size_t)i * h->width);
}

/* n rows, gathered in `between`: logits of the whole vocabulary, then the best of them. */
static void fill_masks(const struct head *h, uint32_t n, float *between, float *out, int32_t *ids)
{
    const struct model_config *c = &h->c;
    size_t ldx = lines(c->hidden), ldt = lines(c->embedding), ldl = lines(c->vocab);
    float *t = between + MASKS_AT_ONCE * ldx, *logits = t + MASKS_AT_ONCE * ldt;
    linear_run(&h->dense, n, between, ldx, h->act, NULL, 0, t, ldt);
    norm_run(&h->norm, n, t, ldt, t, ldt);
    run_out(h, n, t, ldt, logits, ldl);
    for (uint32_t i = 0; i < n; i++)
        scores_top(c->vocab, logits + i * ldl, h->width, ids + (size_t)i * h->width, out + (size_t)i * h->width);
}

static void run_mask(const struct head *h, struct head_work *work, float *out, float *between, int32_t *found, uint32_t n_seqs,
                     const uint32_t *lengths, const int32_t *ids, int32_t mask_id, const float *x, size_t ld)
{
    uint32_t waiting = 0;
    size_t done = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        work->rows[s] = 0;
        for (uint32_t i = 0; i < lengths[s]; i++, ids++, x += ld) {
            if (*ids != mask_id)
                continue;
            work->rows[s]++;
            memcpy(between + waiting * lines(h->c.hidden), x, h->c.hidden * sizeof *x);
            if (++waiting < MASKS_AT_ONCE)
                continue;
            fill_masks(h, waiting, between, out + done * h->width, found + done * h->width);
            done += waiting;
            waiting = 0;
        }
    }
    if (waiting)
        fill_masks(h, waiting, between, out + done * h->width, found + done * h->width);
}

const struct model_result *head_run(const struct head *h, struct head_work *work, uint32_t n_seqs, const uint32_t *lengths,
                                    const int32_t *ids, int32_t mask_id, const float *x, size_t ld)
{
    struct layout l = layout_of(h, work->max_tokens, work->max_seqs);
    float *out = work->memory, *between = out + l.out;
    int32_t *found = (int32_t *)(between + l.between);
    struct model_tensor *t = &work->result.tensor[0];
    uint32_t rows = 0;
    work->result.count = 1;
    *t = (struct model_tensor){.width = h->width, .f32 = out};
    switch (h->c.task) {
    case TASK_EMBED:
        t->name = "embedding";
        t->f32 = run_embed(h, out, between, n_seqs, lengths, x, ld);
        break;
    case TASK_CLASSIFY:
        t->name = "scores";
        run_classify(h, out, between, work->max_seqs, n_seqs, lengths, x, ld);
        break;
    case TASK_TOKENS:
        t->name = "scores";
        for (uint32_t i = 0; i < n_seqs; i++)
            rows += work->rows[i] = lengths[i];
        run_out(h, rows, x, ld, out, h->width);
        for (uint32_t i = 0; i < rows; i++)
            scores_row(h->c.scoring, h->width, out + (size_t)i * h->width);
        t->rows = work->rows;
        break;
    case TASK_FILL_MASK:
        t->name = "scores";
        run_mask(h, work, out, between, found, n_seqs, lengths, ids, mask_id, x, ld);
        t->rows = work->rows;
        work->result.tensor[1] = (struct model_tensor){.name = "tokens", .width = h->width, .i32 = found, .rows = work->rows};
        work->result.count = 2;
        break;
    case TASK_OUTPUTS: /* of arrays; never here */
    case TASKS: break;
    }
    return &work->result;
}
