/* The graph of one layer, as published (BertModel of transformers and its kin):
     x -> qkv -> attention -> output projection + x -> norm -> up, activation -> down + x -> norm -> x
   Each op is row-wise over all packed tokens but attention, which stays within a sequence. */
#include "workers/engine/encoder.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/attention.h"
#include "workers/engine/ops/embed.h"
#include "workers/engine/relative.h"

struct layer {
    struct linear qkv, out, up, down;
    struct norm after_attention, after_ffn;
};

struct encoder {
    struct model_config c; /* without its labels */
    const struct kernels *kernels;
    struct embed embed;
    struct norm embed_norm;
    int projects;
    struct linear projection;
    struct attention attention;
    struct relative relative;
    int embeds;            /* embeddings are one of its segments */
    uint32_t first, end;   /* layers of the run that are */
    struct window *window; /* NULL: all layers are in memory */
    uint32_t weights; /* layers with weights of their own */
    struct layer layer[];
};

/* Loading ------------------------------------------------------------------------------------------------------------------------- */

static enum status zeros(struct loading *l, uint32_t n, const float **to, float **own, struct err *e)
{
    if (!l->load)
        return ST_OK;
    if (!(*own = mem_aligned(n * sizeof **own)))
        return err_nomem(e, "the model's weights");
    memset(*own, 0, n * sizeof **own);
    *to = *own;
    return ST_OK;
}

static enum status load_embed(struct loading *l, struct encoder *b, struct err *e)
{
    const struct model_config *c = l->c;
    uint32_t types = c->types ? c->types : 1, positions = c->absolute_positions ? c->positions : 0, n = c->embedding;
    struct embed unused, *o = l->load ? &b->embed : &unused;
    *o = (struct embed){.kernels = l->kernels, .vocab = c->vocab, .positions = positions, .types = types, .n = n};
    o->after_padding = c->family->positions == POSITIONS_AFTER_PADDING;
    o->padding_id = (int32_t)c->padding_id;
    l->bytes += embed_bytes(c->vocab, positions, types, n);
    TRY(loading_table(l, ENCODER_WORDS, c->vocab, n, &o->word, &o->own[0], e));
    TRY(positions ? loading_table(l, "embeddings.position_embeddings.weight", positions, n, &o->position, &o->own[1], e) : zeros(l, n, &o->position, &o->own[1], e));
    TRY(c->types ? loading_table(l, "embeddings.token_type_embeddings.weight", types, n, &o->type, &o->own[2], e) : zeros(l, n, &o->type, &o->own[2], e));
    return loading_norm(l, c->family->embed_norm, n, c->norm_eps, &b->embed_norm, e);
}

static void layer_name(const struct model_config *c, uint32_t i, char *out, size_t cap)
{
    if (c->family->inner)
        snprintf(out, cap, "%s.%u.%s.%u", c->family->layer, i / c->inner, c->family->inner, i % c->inner);
    else
        snprintf(out, cap, "%s.%u", c->family->layer, i);
}

static enum status layer_linear(struct loading *l, const char *layer, const char *what, uint32_t n, uint32_t k, struct linear *to, struct err *e)
{
    char packed[128];
    snprintf(packed, sizeof packed, "%s.%s", layer, what);
    return loading_linear(l, packed, n, k, to, e);
}

static enum status load_layer(struct loading *l, struct encoder *b, uint32_t i, struct layer *to, struct err *e)
{
    const struct model_config *c = l->c;
    const struct family *f = c->family;
    uint32_t h = c->hidden;
    const struct {
        const char *name;
        uint32_t n, k;
        struct linear *to;
        uint32_t first;
    } parts[] = {{f->q, h, h, &to->qkv, 0},   {f->k, h, h, &to->qkv, h},        {f->v, h, h, &to->qkv, 2 * h},
                 {f->out, h, h, &to->out, 0}, {f->up, c->ffn, h, &to->up, 0}, {f->down, h, c->ffn, &to->down, 0}};
    char layer[96], name[160];
    layer_name(c, i, layer, sizeof layer);
    TRY(loading_mark(l, layer, e));
    TRY(layer_linear(l, layer, "qkv", 3 * h, h, &to->qkv, e));
    TRY(layer_linear(l, layer, "out", h, h, &to->out, e));
    TRY(layer_linear(l, layer, "up", c->ffn, h, &to->up, e));
    TRY(layer_linear(l, layer, "down", h, c->ffn, &to->down, e));
    for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
        snprintf(name, sizeof name, "%s.%s", layer, parts[j].name);
        TRY(loading_part(l, name, parts[j].first, parts[j].n, parts[j].k, parts[j].to, e));
    }
    snprintf(name, sizeof name, "%s.%s", layer, f->attention_norm);
    TRY(loading_norm(l, name, h, c->norm_eps, &to->after_attention, e));
    snprintf(name, sizeof name, "%s.%s", layer, f->ffn_norm);
    TRY(loading_norm(l, name, h, c->norm_eps, &to->after_ffn, e));
    TRY(relative_load_layer(l, &b->relative, i, layer, e));
    return loading_flush(l, e);
}

static enum status load_first(struct loading *l, struct encoder *b, struct err *e)
{
    const struct model_config *c = l->c;
    TRY(loading_mark(l, "embeddings", e));
    TRY(load_embed(l, b, e));
    if (b->projects) {
        TRY(loading_linear(l, "projection", c->hidden, c->embedding, &b->projection, e));
        TRY(loading_part(l, c->family->projection, 0, c->hidden, c->embedding, &b->projection, e));
    }
    return loading_flush(l, e);
}

/* Has one of the layers that are wanted these weights? */
static int wants_weights(const struct encoder *b, uint32_t weights)
{
    for (uint32_t i = b->first; i < b->end; i++)
        if (encoder_weights_of(&b->c, i) == weights)
            return 1;
    return 0;
}

/* Everything is looked at; what belongs to no segment that is wanted is neither read nor counted. */
static enum status load_all(struct loading *l, struct encoder *b, struct err *e)
{
    const struct model_config *c = l->c;
    struct loading_was was = loading_enter(l, b->embeds);
    TRY(load_first(l, b, e));
    loading_leave(l, was, b->embeds);
    was = loading_enter(l, b->first < b->end);
    TRY(relative_load(l, &b->relative, e));
    loading_leave(l, was, b->first < b->end);
    for (uint32_t i = 0; i < c->groups * c->inner; i++) {
        int wanted = wants_weights(b, i);
        was = loading_enter(l, wanted);
        TRY(load_layer(l, b, i, &b->layer[was.load ? i : 0], e));
        loading_leave(l, was, wanted);
    }
    relative_loaded(&b->relative);
    return ST_OK;
}

uint32_t encoder_segments(const struct model_config *c)
{
    return c->layers * c->inner + 2;
}

uint32_t encoder_longest(const struct model_config *c)
{
    return c->positions - (c->absolute_positions && c->family->positions == POSITIONS_AFTER_PADDING ? c->padding_id + 1 : 0);
}

static void choose_segments(const struct loading *l, struct encoder *b)
{
    uint32_t layers = l->c->layers * l->c->inner;
    b->embeds = loading_wants(l, 0);
    b->first = l->part && l->first > 1 ? l->first - 1 : 0;
    b->end = !l->part || l->end > layers ? layers : l->end > 1 ? l->end - 1 : 0;
    b->first = b->first < b->end ? b->first : b->end;
}

enum status encoder_load(struct loading *l, struct encoder **out, struct err *e)
{
    const struct model_config *c = l->c;
    uint32_t n = l->load ? c->groups * c->inner : 1; /* one that stays empty where nothing is read */
    struct encoder *b = mem_zalloc(sizeof *b + n * sizeof b->layer[0]);
    if (!b)
        return err_nomem(e, "the model's weights");
    b->c = *c;
    b->c.label = NULL;
    b->kernels = l->kernels;
    b->weights = n;
    choose_segments(l, b);
    b->projects = c->family->projection && (c->embedding != c->hidden || c->family->inner);
    attention_init(&b->attention, l->kernels, c->hidden, c->heads);
    b->attention.precision = l->precision == PREC_BF16 ? PREC_BF16 : PREC_F32;
    enum status st = load_all(l, b, e);
    if (st == ST_OK && l->load && !l->packing)
        *out = b;
    else
        encoder_free(b);
    return st;
}

void encoder_free(struct encoder *b)
{
    if (!b)
        return;
    embed_release(&b->embed);
    norm_release(&b->embed_norm);
    linear_release(&b->projection);
    relative_release(&b->relative);
    for (uint32_t i = 0; i < b->weights; i++) {
        struct layer *l = &b->layer[i];
        linear_release(&l->qkv);
        linear_release(&l->out);
        linear_release(&l->up);
        linear_release(&l->down);
        norm_release(&l->after_attention);
        norm_release(&l->after_ffn);
    }
    mem_free(b);
}

const float *encoder_words(const struct encoder *b)
{
    return b->embed.word;
}

/* Windows ------------------------------------------------------------------------------------------------------------------------- */

uint32_t encoder_layers(const struct encoder *b)
{
    return b->end - b->first;
}

uint32_t encoder_weights(const struct encoder *b)
{
    return b->weights;
}

uint32_t encoder_layer_weights(const struct encoder *b, uint32_t i)
{
    return encoder_weights_of(&b->c, b->first + i);
}

uint32_t encoder_pieces(const struct encoder *b, uint32_t weights, struct window_piece *out, uint32_t most)
{
    const struct layer *l = &b->layer[weights];
    const struct linear *own[] = {&l->qkv, &l->out, &l->up, &l->down};
    uint32_t n = 0;
    for (int i = 0; i < 4; i++)
        n += linear_piece(own[i], &out[n].at, &out[n].bytes);
    return n + relative_pieces(&b->relative, weights, out + n, most - n);
}

void encoder_tables(const struct encoder *b, struct window_piece out[ENCODER_TABLES])
{
    const struct embed *o = &b->embed;
    const float *const at[] = {o->word, o->position, o->type};
    const uint32_t rows[] = {o->vocab, o->positions, o->types};
    for (int i = 0; i < ENCODER_TABLES; i++)
        out[i] = at[i] && !o->own[i] ? (struct window_piece){at[i], sizeof(float) * rows[i] * o->n} : (struct window_piece){0};
}

void encoder_use_window(struct encoder *b, struct window *w)
{
    b->window = w;
}

/* Running ------------------------------------------------------------------------------------------------------------------------- */

/* An odd number of cache lines: rows of a tile then never meet in one set of the first-level cache. */
static size_t stride(uint32_t n)
{
    size_t lines = ((size_t)n + 15) / 16;
    return 16 * (lines | 1);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static size_t narrow_columns(const struct model_config *c)
{
    return stride(larger(c->hidden, c->embedding));
}

static size_t wide_columns(const struct model_config *c)
{
    return stride(larger(3 * c->hidden, larger(c->ffn, c->embedding)));
}

/* A few sequences go through all layers before the next do, so that what lies between two ops stays in the second- and third-level cache. Only x is kept for all. */
enum { ROWS_AT_ONCE = 256 };

static uint32_t rows_at_once(const struct encoder *b, uint32_t max_tokens)
{
    uint32_t most = larger(ROWS_AT_ONCE, b->c.positions);
    return max_tokens < most ? max_tokens : most;
}

static size_t attention_space(const struct encoder *b, uint32_t max_tokens)
{
    uint32_t longest = max_tokens < b->c.positions ? max_tokens : b->c.positions;
    return b->relative.kind == RELATIVE_NONE ? attention_bytes(&b->attention, longest) : relative_bytes(&b->relative, longest);
}

size_t encoder_work_bytes(const struct encoder *b, uint32_t max_tokens)
{
    size_t narrow = narrow_columns(&b->c), some = rows_at_once(b, max_tokens);
    return sizeof(float) * (max_tokens * narrow + some * (narrow + wide_columns(&b->c))) + attention_space(b, max_tokens);
}

void encoder_work_init(struct encoder_work *work, const struct encoder *b, uint32_t max_tokens, void *memory)
{
    size_t some = rows_at_once(b, max_tokens);
    work->ld = narrow_columns(&b->c);
    work->ld_wide = wide_columns(&b->c);
    work->x = memory;
    work->t = work->x + max_tokens * work->ld;
    work->wide = work->t + some * work->ld;
    work->scratch = work->wide + some * work->ld_wide;
}

/* Which weights layer i of the run has: each group serves the same number of layers, as even as may be. */
uint32_t encoder_weights_of(const struct model_config *c, uint32_t i)
{
    uint32_t group = (uint32_t)((uint64_t)(i / c->inner) * c->groups / c->layers);
    return group * c->inner + i % c->inner;
}

/* Some sequences of `rows` tokens in all, into x. */
static void embed_some(const struct encoder *b, const struct encoder_work *work, uint32_t n_seqs, const uint32_t *lengths, uint32_t rows, const int32_t *ids,
                       const uint8_t *types, float *x)
{
    size_t ld = work->ld, ldw = work->ld_wide;
    embed_run(&b->embed, n_seqs, lengths, ids, b->c.types > 1 ? types : NULL, work->t, ld);
    norm_run(&b->embed_norm, rows, work->t, ld, x, ld);
    if (b->projects) {
        linear_run(&b->projection, rows, x, ld, ACT_NONE, NULL, 0, work->wide, ldw);
        for (uint32_t i = 0; i < rows; i++)
            memcpy(x + i * ld, work->wide + i * ldw, b->c.hidden * sizeof *x);
    }
}

/* The same through layer i of the run, from x into x. */
static void layer_some(const struct encoder *b, const struct encoder_work *work, uint32_t i, uint32_t n_seqs, const uint32_t *lengths, uint32_t rows, float *x)
{
    float *t = work->t, *wide = work->wide;
    size_t ld = work->ld, ldw = work->ld_wide;
    uint32_t weights = encoder_weights_of(&b->c, i);
    const struct layer *l = &b->layer[weights];
    linear_run(&l->qkv, rows, x, ld, ACT_NONE, NULL, 0, wide, ldw);
    if (b->relative.kind == RELATIVE_NONE)
        attention_run(&b->attention, n_seqs, lengths, wide, ldw, t, ld, work->scratch);
    else
        relative_run(&b->relative, weights, n_seqs, lengths, wide, ldw, t, ld, work->scratch);
    linear_run(&l->out, rows, t, ld, ACT_NONE, x, ld, wide, ld);
    norm_run(&l->after_attention, rows, wide, ld, x, ld);
    linear_run(&l->up, rows, x, ld, b->c.act, NULL, 0, wide, ldw);
    linear_run(&l->down, rows, wide, ldw, ACT_NONE, x, ld, t, ld);
    norm_run(&l->after_ffn, rows, t, ld, x, ld);
}

/* How many sequences go together, of those from lengths on; *rows: their tokens. */
static uint32_t take_some(uint32_t n_seqs, const uint32_t *lengths, uint32_t *rows)
{
    uint32_t n = 1;
    for (*rows = lengths[0]; n < n_seqs && *rows + lengths[n] <= ROWS_AT_ONCE; n++)
        *rows += lengths[n];
    return n;
}

/* Layer after layer, all sequences through each. */
static void run_sweep(const struct encoder *b, const struct encoder_work *work, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids, const uint8_t *types)
{
    float *x = work->x;
    size_t at = 0;
    for (uint32_t done = 0, n, rows; b->embeds && done < n_seqs; done += n, at += rows, x += rows * work->ld) {
        n = take_some(n_seqs - done, lengths + done, &rows);
        window_table_enter(b->window);
        embed_some(b, work, n, lengths + done, rows, ids + at, types ? types + at : NULL, x);
        window_table_leave(b->window);
    }
    window_begin(b->window);
    for (uint32_t i = b->first; i < b->end; i++) {
        window_wait(b->window, i - b->first);
        x = work->x;
        for (uint32_t done = 0, n, rows; done < n_seqs; done += n, x += rows * work->ld) {
            n = take_some(n_seqs - done, lengths + done, &rows);
            layer_some(b, work, i, n, lengths + done, rows, x);
        }
        window_done(b->window, i - b->first);
    }
}

void encoder_run(const struct encoder *b, const struct encoder_work *work, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
                 const uint8_t *types)
{
    float *x = work->x;
    size_t at = 0;
    if (b->window) {
        run_sweep(b, work, n_seqs, lengths, ids, types);
        return;
    }
    for (uint32_t done = 0, n, rows; done < n_seqs; done += n, at += rows, x += rows * work->ld) {
        n = take_some(n_seqs - done, lengths + done, &rows);
        if (b->embeds)
            embed_some(b, work, n, lengths + done, rows, ids + at, types ? types + at : NULL, x);
        for (uint32_t i = b->first; i < b->end; i++)
            layer_some(b, work, i, n, lengths + done, rows, x);
    }
}
