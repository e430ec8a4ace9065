/* The graph of one layer, as published (BertModel of transformers):
     x -> qkv -> attention -> output projection + x -> norm -> up, activation -> down + x -> norm -> x
   Each op is row-wise over all packed tokens but attention and pooling, which stay within a sequence. */
#include "workers/engine/bert.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/ops/attention.h"
#include "workers/engine/ops/embed.h"
#include "workers/engine/ops/linear.h"
#include "workers/engine/ops/norm.h"
#include "workers/engine/ops/pool.h"

struct layer {
    struct linear qkv, out, up, down;
    struct norm after_attention, after_ffn;
};

struct bert {
    struct model_config c;
    const struct kernels *kernels;
    struct embed embed;
    struct norm embed_norm;
    struct attention attention;
    struct pool pool;
    struct layer layer[];
};

/* Tensors ------------------------------------------------------------------------------------------------------------------------ */

struct shape {
    uint32_t rank;
    uint32_t dim[2];
};

static struct shape vec(uint32_t n)
{
    return (struct shape){1, {n, 1}};
}

static struct shape mat(uint32_t rows, uint32_t cols)
{
    return (struct shape){2, {rows, cols}};
}

static int has_shape(const struct tensor *t, struct shape s)
{
    if (t->rank != s.rank)
        return 0;
    for (uint32_t i = 0; i < s.rank; i++)
        if (t->dim[i] != s.dim[i])
            return 0;
    return 1;
}

static const char *shape_text(uint32_t rank, const uint64_t *dim, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");
    for (uint32_t i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%llu", i ? ", " : "", (unsigned long long)dim[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
    return out;
}

static const struct tensor *find_named(const struct weights *w, const char *name)
{
    char prefixed[176];
    const struct tensor *t = weights_find(w, name);
    if (t)
        return t;
    snprintf(prefixed, sizeof prefixed, "bert.%s", name);
    return weights_find(w, prefixed);
}

/* Published with or without "bert." in front; old conversions call the norm's weight and bias gamma and beta. */
static enum status find(const struct weights *w, const char *name, struct shape s, const struct tensor **out, struct err *e)
{
    char other[160];
    const struct tensor *t = find_named(w, name);
    const char *norm = strstr(name, "LayerNorm.");
    if (!t && norm) {
        snprintf(other, sizeof other, "%.*sLayerNorm.%s", (int)(norm - name), name, strstr(norm, ".weight") ? "gamma" : "beta");
        t = find_named(w, other);
    }
    if (!t)
        return err_set(e, ST_USER, "'%s': tensor '%s' is missing, with and without the prefix 'bert.'", weights_main_file(w), name);
    if (!has_shape(t, s)) {
        char has[200], needs[200];
        uint64_t dim[2] = {s.dim[0], s.dim[1]};
        return err_set(e, ST_USER, "'%s': tensor '%s' has the shape %s; config.json asks for %s", weights_file(w, t->file), t->name,
                       shape_text(t->rank, t->dim, has, sizeof has), shape_text(s.rank, dim, needs, sizeof needs));
    }
    if (strcmp(t->dtype, "F32") != 0 && strcmp(t->dtype, "F16") != 0 && strcmp(t->dtype, "BF16") != 0)
        return err_set(e, ST_USER, "'%s': tensor '%s' has dtype '%s'; supported are F32, F16 and BF16", weights_file(w, t->file),
                       t->name, t->dtype);
    *out = t;
    return ST_OK;
}

static enum status read_into(const struct weights *w, const char *name, struct shape s, float *out, struct err *e)
{
    const struct tensor *t;
    TRY(find(w, name, s, &t, e));
    return weights_read(w, t, out, e);
}

/* What each layer consists of, once, for check, count and load: name, outputs, inputs, into which op, from which output on. */
struct projection {
    const char *name;
    uint32_t n, k;
    struct linear *to;
    uint32_t first;
};

static void projections(const struct model_config *c, struct layer *l, struct projection p[6])
{
    uint32_t h = c->hidden;
    p[0] = (struct projection){"attention.self.query", h, h, &l->qkv, 0};
    p[1] = (struct projection){"attention.self.key", h, h, &l->qkv, h};
    p[2] = (struct projection){"attention.self.value", h, h, &l->qkv, 2 * h};
    p[3] = (struct projection){"attention.output.dense", h, h, &l->out, 0};
    p[4] = (struct projection){"intermediate.dense", c->ffn, h, &l->up, 0};
    p[5] = (struct projection){"output.dense", h, c->ffn, &l->down, 0};
}

static const char *const layer_norms[2] = {"attention.output.LayerNorm", "output.LayerNorm"};

enum status bert_check(const struct weights *w, const struct model_config *c, struct err *e)
{
    const struct tensor *t;
    char name[128];
    TRY(find(w, "embeddings.word_embeddings.weight", mat(c->vocab, c->hidden), &t, e));
    TRY(find(w, "embeddings.position_embeddings.weight", mat(c->positions, c->hidden), &t, e));
    TRY(find(w, "embeddings.token_type_embeddings.weight", mat(c->types, c->hidden), &t, e));
    TRY(find(w, "embeddings.LayerNorm.weight", vec(c->hidden), &t, e));
    TRY(find(w, "embeddings.LayerNorm.bias", vec(c->hidden), &t, e));
    for (uint32_t i = 0; i < c->layers; i++) {
        struct layer none;
        struct projection p[6];
        projections(c, &none, p);
        for (int j = 0; j < 6; j++) {
            snprintf(name, sizeof name, "encoder.layer.%u.%s.weight", i, p[j].name);
            TRY(find(w, name, mat(p[j].n, p[j].k), &t, e));
            snprintf(name, sizeof name, "encoder.layer.%u.%s.bias", i, p[j].name);
            TRY(find(w, name, vec(p[j].n), &t, e));
        }
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof name, "encoder.layer.%u.%s.weight", i, layer_norms[j]);
            TRY(find(w, name, vec(c->hidden), &t, e));
            snprintf(name, sizeof name, "encoder.layer.%u.%s.bias", i, layer_norms[j]);
            TRY(find(w, name, vec(c->hidden), &t, e));
        }
    }
    return ST_OK;
}

uint64_t bert_parameters(const struct model_config *c)
{
    uint64_t h = c->hidden, f = c->ffn;
    return h * ((uint64_t)c->vocab + c->positions + c->types) + 2 * h + c->layers * (4 * (h * h + h) + 2 * h * f + f + h + 4 * h);
}

uint64_t bert_weight_bytes(const struct model_config *c, const struct kernels *k)
{
    uint64_t layer = linear_bytes(k, 3 * c->hidden, c->hidden) + linear_bytes(k, c->hidden, c->hidden) +
                     linear_bytes(k, c->ffn, c->hidden) + linear_bytes(k, c->hidden, c->ffn) + 2 * norm_bytes(c->hidden);
    return embed_bytes(c->vocab, c->positions, c->hidden) + norm_bytes(c->hidden) + c->layers * layer;
}

/* Loading ------------------------------------------------------------------------------------------------------------------------ */

static enum status load_norm(const struct weights *w, const char *prefix, const struct bert *b, struct norm *o, struct err *e)
{
    char name[128];
    TRY(norm_init(o, b->kernels, b->c.hidden, b->c.norm_eps, e));
    snprintf(name, sizeof name, "%s.weight", prefix);
    TRY(read_into(w, name, vec(o->n), o->gamma, e));
    snprintf(name, sizeof name, "%s.bias", prefix);
    return read_into(w, name, vec(o->n), o->beta, e);
}

static enum status load_embed(const struct weights *w, struct bert *b, float *space, struct err *e)
{
    const struct model_config *c = &b->c;
    TRY(embed_init(&b->embed, b->kernels, c->vocab, c->positions, c->hidden, e));
    TRY(read_into(w, "embeddings.word_embeddings.weight", mat(c->vocab, c->hidden), b->embed.word, e));
    TRY(read_into(w, "embeddings.position_embeddings.weight", mat(c->positions, c->hidden), b->embed.position, e));
    TRY(read_into(w, "embeddings.token_type_embeddings.weight", mat(c->types, c->hidden), space, e));
    memcpy(b->embed.type, space, sizeof(float) * c->hidden);
    return load_norm(w, "embeddings.LayerNorm", b, &b->embed_norm, e);
}

/* space holds the largest weight and bias of a layer, as published. */
static enum status load_layer(const struct weights *w, uint32_t i, struct bert *b, float *space, struct err *e)
{
    const struct model_config *c = &b->c;
    struct layer *l = &b->layer[i];
    struct projection p[6];
    char name[128];
    TRY(linear_init(&l->qkv, b->kernels, 3 * c->hidden, c->hidden, e));
    TRY(linear_init(&l->out, b->kernels, c->hidden, c->hidden, e));
    TRY(linear_init(&l->up, b->kernels, c->ffn, c->hidden, e));
    TRY(linear_init(&l->down, b->kernels, c->hidden, c->ffn, e));
    projections(c, l, p);
    for (int j = 0; j < 6; j++) {
        float *bias = space + (size_t)p[j].n * p[j].k;
        snprintf(name, sizeof name, "encoder.layer.%u.%s.weight", i, p[j].name);
        TRY(read_into(w, name, mat(p[j].n, p[j].k), space, e));
        snprintf(name, sizeof name, "encoder.layer.%u.%s.bias", i, p[j].name);
        TRY(read_into(w, name, vec(p[j].n), bias, e));
        linear_set(p[j].to, p[j].first, p[j].n, space, bias);
    }
    snprintf(name, sizeof name, "encoder.layer.%u.%s", i, layer_norms[0]);
    TRY(load_norm(w, name, b, &l->after_attention, e));
    snprintf(name, sizeof name, "encoder.layer.%u.%s", i, layer_norms[1]);
    return load_norm(w, name, b, &l->after_ffn, e);
}

enum status bert_load(const struct weights *w, const struct model_config *c, const struct kernels *k, struct bert **out,
                      struct err *e)
{
    TRY(bert_check(w, c, e));
    size_t wide = c->ffn > c->hidden ? c->ffn : c->hidden, types = (size_t)c->types * c->hidden;
    size_t room = wide * ((size_t)c->hidden + 1);
    struct bert *b = mem_zalloc(sizeof *b + c->layers * sizeof b->layer[0]);
    float *space = mem_alloc(sizeof(float) * (room > types ? room : types));
    enum status st = b && space ? ST_OK : err_nomem(e, "the model's weights");
    if (st == ST_OK) {
        b->c = *c;
        b->kernels = k;
        attention_init(&b->attention, k, c->hidden, c->heads);
        b->pool = (struct pool){.kernels = k, .how = c->pooling, .normalize = c->normalize, .n = c->hidden};
        st = load_embed(w, b, space, e);
    }
    for (uint32_t i = 0; i < c->layers && st == ST_OK; i++)
        st = load_layer(w, i, b, space, e);
    mem_free(space);
    if (st == ST_OK)
        *out = b;
    else
        bert_free(b);
    return st;
}

void bert_free(struct bert *b)
{
    if (!b)
        return;
    embed_release(&b->embed);
    norm_release(&b->embed_norm);
    for (uint32_t i = 0; i < b->c.layers; i++) {
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

/* Running ------------------------------------------------------------------------------------------------------------------------ */

/* An odd number of cache lines: rows of a tile then never meet in one set of the first-level cache. */
static size_t stride(uint32_t n)
{
    size_t lines = ((size_t)n + 15) / 16;
    return 16 * (lines | 1);
}

static size_t wide_columns(const struct model_config *c)
{
    return stride(3 * c->hidden > c->ffn ? 3 * c->hidden : c->ffn);
}

static uint32_t longest(const struct bert *b, uint32_t max_tokens)
{
    return max_tokens < b->c.positions ? max_tokens : b->c.positions;
}

size_t bert_work_bytes(const struct bert *b, uint32_t max_tokens)
{
    return sizeof(float) * max_tokens * (2 * stride(b->c.hidden) + wide_columns(&b->c)) +
           attention_bytes(&b->attention, longest(b, max_tokens));
}

void bert_work_init(struct bert_work *work, const struct bert *b, uint32_t max_tokens, void *memory)
{
    work->ld = stride(b->c.hidden);
    work->ld_wide = wide_columns(&b->c);
    work->x = memory;
    work->t = work->x + max_tokens * work->ld;
    work->wide = work->t + max_tokens * work->ld;
    work->scratch = work->wide + max_tokens * work->ld_wide;
}

void bert_run(const struct bert *b, const struct bert_work *work, uint32_t n_seqs, const uint32_t *lengths, const int32_t *ids,
              float *out)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        rows += lengths[i];
    float *x = work->x, *t = work->t, *wide = work->wide;
    size_t ld = work->ld, ldw = work->ld_wide;
    embed_run(&b->embed, n_seqs, lengths, ids, t, ld);
    norm_run(&b->embed_norm, rows, t, ld, x, ld);
    for (uint32_t i = 0; i < b->c.layers; i++) {
        const struct layer *l = &b->layer[i];
        linear_run(&l->qkv, rows, x, ld, ACT_NONE, NULL, 0, wide, ldw);
        attention_run(&b->attention, n_seqs, lengths, wide, ldw, t, ld, work->scratch);
        linear_run(&l->out, rows, t, ld, ACT_NONE, x, ld, wide, ld);
        norm_run(&l->after_attention, rows, wide, ld, x, ld);
        linear_run(&l->up, rows, x, ld, b->c.act, NULL, 0, wide, ldw);
        linear_run(&l->down, rows, wide, ldw, ACT_NONE, x, ld, t, ld);
        norm_run(&l->after_ffn, rows, t, ld, x, ld);
    }
    pool_run(&b->pool, n_seqs, lengths, x, ld, out);
}
