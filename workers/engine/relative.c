#include "workers/engine/relative.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"

/* MPNet: 32 buckets, the half of them for keys behind the query; exact up to 7, then as the logarithm up to 128. The bounds are those
   that the published formula gives, written down so that no logarithm decides. */
enum { BUCKETS = 32 };

static uint32_t bucket_of(int64_t key_minus_query)
{
    static const int64_t from[] = {12, 16, 23, 32, 46, 64, 91}; /* of the buckets 9 to 15 */
    int64_t n = key_minus_query < 0 ? -key_minus_query : key_minus_query;
    uint32_t b = n < 8 ? (uint32_t)n : 8;
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        b += n >= from[i];
    return b + (key_minus_query > 0 ? BUCKETS / 2 : 0);
}

static enum status load_bias(struct loading *l, struct relative *r, struct err *e)
{
    size_t width = 2 * (size_t)r->longest - 1;
    float *space = NULL;
    l->bytes += sizeof(float) * r->heads * width;
    if (l->load) {
        r->bias = mem_array(r->heads * width, sizeof *r->bias);
        space = loading_space(l, (size_t)BUCKETS * r->heads);
        if (!r->bias || !space)
            return err_nomem(e, "the model's weights");
    }
    TRY(loading_tensor(l, "encoder.relative_attention_bias.weight", BUCKETS, r->heads, space, e));
    for (size_t i = 0; l->load && i < width; i++)
        for (uint32_t h = 0; h < r->heads; h++)
            r->bias[h * width + i] = space[bucket_of((int64_t)i - (int64_t)(r->longest - 1)) * r->heads + h];
    return ST_OK;
}

/* DeBERTa: small distances exactly, larger ones by their logarithm. The logarithm is libm's, but only its rounding up to a whole number
   counts, and only when the model is loaded. */
static int64_t distance(const struct model_config *c, int64_t query_minus_key)
{
    int64_t mid = c->relative.buckets / 2, n = query_minus_key < 0 ? -query_minus_key : query_minus_key;
    if (!c->relative.buckets || n <= mid)
        return query_minus_key;
    double x = log((double)n / (double)mid) / log((double)(c->relative.max - 1) / (double)mid) * (double)(mid - 1);
    n = (int64_t)ceil(x) + mid;
    return query_minus_key < 0 ? -n : n;
}

static enum status load_vectors(struct loading *l, struct relative *r, struct err *e)
{
    const struct model_config *c = l->c;
    size_t width = 2 * (size_t)r->longest - 1;
    r->rows = 2 * c->relative.span;
    r->layers = c->groups * c->inner;
    if (l->load) {
        r->bucket = mem_array(width, sizeof *r->bucket);
        r->vectors = mem_array((size_t)r->rows * c->hidden, sizeof *r->vectors);
        r->layer = mem_array(r->layers, sizeof *r->layer);
        if (!r->bucket || !r->vectors || !r->layer)
            return err_nomem(e, "the model's weights");
    }
    TRY(loading_tensor(l, "encoder.rel_embeddings.weight", r->rows, c->hidden, r->vectors, e));
    if (c->relative.normalised) {
        struct norm norm = {0};
        enum status st = loading_norm(l, "encoder.LayerNorm", c->hidden, c->norm_eps, &norm, e);
        unsigned fp = fp_enter();
        if (st == ST_OK && l->load)
            norm_run(&norm, r->rows, r->vectors, c->hidden, r->vectors, c->hidden);
        fp_leave(fp);
        norm_release(&norm);
        TRY(st);
    }
    for (size_t i = 0; l->load && i < width; i++) {
        int64_t at = distance(c, (int64_t)i - (int64_t)(r->longest - 1)) + c->relative.span;
        r->bucket[i] = at < 0 ? 0 : at >= r->rows ? r->rows - 1 : (uint32_t)at;
    }
    return ST_OK;
}

enum status relative_load(struct loading *l, struct relative *r, struct err *e)
{
    const struct model_config *c = l->c;
    uint32_t terms = 1 + (uint32_t)(c->relative.from_content + c->relative.to_content);
    *r = (struct relative){.kind = c->family->relative, .kernels = l->kernels, .heads = c->heads, .dim = c->hidden / c->heads};
    r->precision = l->precision == PREC_BF16 ? PREC_BF16 : PREC_F32;
    r->longest = c->positions;
    r->scale = 1 / __builtin_sqrtf((float)r->dim * (float)(r->kind == RELATIVE_DISENTANGLED ? terms : 1));
    if (r->kind == RELATIVE_BIAS)
        return load_bias(l, r, e);
    if (r->kind == RELATIVE_DISENTANGLED && !c->relative.span)
        r->kind = RELATIVE_NONE;
    return r->kind == RELATIVE_DISENTANGLED ? load_vectors(l, r, e) : ST_OK;
}

static void head_name(char *out, size_t cap, const char *layer, const char *what, uint32_t head)
{
    snprintf(out, cap, "%s.distances.%s.%u", layer, what, head);
}

/* The vectors of distances as keys (or queries), cut into heads: x has rows of ld. */
static enum status cut_heads(struct relative *r, const float *x, size_t ld, struct linear *heads, struct err *e)
{
    float *w = mem_array((size_t)r->rows * (r->dim + 1), sizeof *w), *zeros = w ? w + (size_t)r->rows * r->dim : NULL;
    for (uint32_t h = 0; w && h < r->heads; h++) {
        for (uint32_t i = 0; i < r->rows; i++)
            memcpy(w + (size_t)i * r->dim, x + i * ld + (size_t)h * r->dim, r->dim * sizeof *w);
        if (!heads[h].filled)
            linear_set(&heads[h], 0, r->rows, w, zeros);
    }
    mem_free(w);
    return w ? ST_OK : err_nomem(e, "the model's weights");
}

/* fill: the vectors go through the layer's projection; else its tensors are only looked at. */
static enum status project(struct loading *l, struct relative *r, const char *layer, const char *what, int fill, struct linear *heads, struct err *e)
{
    const struct model_config *c = l->c;
    char name[160];
    struct linear projection = {0};
    float *x = NULL;
    const char *word = c->relative.shared ? (what[0] == 'k' ? "key_proj" : "query_proj") : what[0] == 'k' ? "pos_key_proj" : "pos_query_proj";
    snprintf(name, sizeof name, "%s.attention.self.%s", layer, word);
    uint64_t counted = l->parameters, bytes = l->bytes;
    int load = l->load;
    l->load = fill;
    enum status st = loading_linear(l, NULL, c->hidden, c->hidden, &projection, e);
    if (st == ST_OK)
        st = loading_part(l, name, 0, c->hidden, c->hidden, &projection, e);
    l->load = load;
    if (c->relative.shared)
        l->parameters = counted; /* they were counted as the contents' */
    l->bytes = bytes;            /* not kept */
    if (st == ST_OK && fill) {
        x = mem_array((size_t)r->rows * c->hidden, sizeof *x);
        st = x ? ST_OK : err_nomem(e, "the model's weights");
        unsigned fp = fp_enter();
        if (st == ST_OK)
            linear_run(&projection, r->rows, r->vectors, c->hidden, ACT_NONE, NULL, 0, x, c->hidden);
        fp_leave(fp);
        if (st == ST_OK)
            st = cut_heads(r, x, c->hidden, heads, e);
    }
    linear_release(&projection);
    mem_free(x);
    return st;
}

/* For each head: the layer's vectors as keys, or queries. */
static enum status load_heads(struct loading *l, struct relative *r, const char *layer, const char *what, struct linear **out, struct err *e)
{
    char name[160];
    struct linear *heads = NULL;
    int fill = 0;
    enum precision precision = l->precision;
    if (l->load && !(heads = *out = mem_array(r->heads, sizeof *heads)))
        return err_nomem(e, "the model's weights");
    l->precision = PREC_F32; /* once, for all texts */
    enum status st = ST_OK;
    for (uint32_t h = 0; h < r->heads && st == ST_OK; h++) {
        head_name(name, sizeof name, layer, what, h);
        st = loading_linear(l, name, r->rows, r->dim, heads ? &heads[h] : NULL, e);
        fill |= st == ST_OK && heads && !heads[h].filled;
    }
    if (st == ST_OK)
        st = project(l, r, layer, what, fill, heads, e);
    l->precision = precision;
    return st;
}

enum status relative_load_layer(struct loading *l, struct relative *r, uint32_t i, const char *name, struct err *e)
{
    struct relative_layer none, *to = l->load && r->layer ? &r->layer[i] : &none;
    if (r->kind != RELATIVE_DISENTANGLED)
        return ST_OK;
    if (l->c->relative.from_content)
        TRY(load_heads(l, r, name, "key", &to->key, e));
    if (l->c->relative.to_content)
        TRY(load_heads(l, r, name, "query", &to->query, e));
    return ST_OK;
}

void relative_loaded(struct relative *r)
{
    mem_free(r->vectors);
    r->vectors = NULL;
}

static void release_heads(struct linear *heads, uint32_t n)
{
    for (uint32_t h = 0; heads && h < n; h++)
        linear_release(&heads[h]);
    mem_free(heads);
}

void relative_release(struct relative *r)
{
    for (uint32_t i = 0; r->layer && i < r->layers; i++) {
        release_heads(r->layer[i].key, r->heads);
        release_heads(r->layer[i].query, r->heads);
    }
    mem_free(r->layer);
    mem_free(r->bias);
    mem_free(r->bucket);
    mem_free(r->vectors);
    *r = (struct relative){0};
}

uint32_t relative_pieces(const struct relative *r, uint32_t i, struct window_piece *out, uint32_t most)
{
    uint32_t n = 0;
    for (int k = 0; k < 2 && r->layer; k++) {
        const struct linear *heads = k ? r->layer[i].query : r->layer[i].key;
        for (uint32_t h = 0; heads && h < r->heads && n < most; h++)
            n += linear_piece(&heads[h], &out[n].at, &out[n].bytes);
    }
    return n;
}

/* Running ------------------------------------------------------------------------------------------------------------------------- */

/* Rows of attention's own scratch are whole cache lines; so are ours. */
static size_t whole_lines(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

size_t relative_bytes(const struct relative *r, uint32_t max_len)
{
    size_t n = whole_lines(attention_scratch(r->kernels, max_len, r->dim));
    if (r->kind == RELATIVE_DISENTANGLED)
        n += whole_lines((size_t)max_len * max_len) + 2 * (size_t)max_len * whole_lines(r->rows);
    return n * sizeof(float);
}

/* bias[i][j] = (query i . vector of i - j, as a key) * scale + (key j . vector of i - j, as a query) * scale */
static const float *disentangled(const struct relative *r, const struct relative_layer *l, uint32_t h, uint32_t len, const float *q,
                                 const float *k, size_t ld, float *space)
{
    size_t cols = whole_lines(r->rows);
    float *bias = space, *by_query = bias + whole_lines((size_t)len * len), *by_key = by_query + len * cols;
    if (l->key)
        linear_run(&l->key[h], len, q, ld, ACT_NONE, NULL, 0, by_query, cols);
    if (l->query)
        linear_run(&l->query[h], len, k, ld, ACT_NONE, NULL, 0, by_key, cols);
    for (uint32_t i = 0; i < len; i++)
        for (uint32_t j = 0; j < len; j++) {
            uint32_t at = r->bucket[r->longest - 1 + i - j];
            float sum = l->key ? by_query[i * cols + at] * r->scale : 0;
            if (l->query)
                sum += by_key[j * cols + at] * r->scale;
            bias[(size_t)i * len + j] = sum;
        }
    return bias;
}

void relative_run(const struct relative *r, uint32_t layer, uint32_t n_seqs, const uint32_t *lengths, const float *qkv, size_t ld, float *y,
                  size_t ldy, float *scratch)
{
    size_t hidden = (size_t)r->heads * r->dim, width = 2 * (size_t)r->longest - 1;
    for (uint32_t s = 0; s < n_seqs; qkv += lengths[s] * ld, y += lengths[s] * ldy, s++)
        for (uint32_t h = 0; h < r->heads; h++) {
            const float *q = qkv + (size_t)h * r->dim;
            struct attention_args a = {
                .len = lengths[s],
                .dim = r->dim,
                .q = q,
                .k = q + hidden,
                .v = q + 2 * hidden,
                .ld = ld,
                .scale = r->scale,
                .precision = r->precision,
                .out = y + (size_t)h * r->dim,
                .ldo = ldy,
                .scratch = scratch,
            };
            if (r->kind == RELATIVE_BIAS) {
                a.bias = r->bias + h * width + (r->longest - 1);
                a.ldbias = -1;
            } else {
                float *space = scratch + whole_lines(attention_scratch(r->kernels, lengths[s], r->dim));
                a.bias = disentangled(r, &r->layer[layer], h, lengths[s], a.q, a.k, ld, space);
                a.ldbias = (ptrdiff_t)lengths[s];
            }
            r->kernels->attention(&a);
        }
}
