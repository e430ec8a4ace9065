/* Attention that minds how far two tokens are apart, over packed sequences: MPNet's bias for each distance, DeBERTa's products of
   contents with vectors of distances. */
#ifndef EBB_ENGINE_RELATIVE_H
#define EBB_ENGINE_RELATIVE_H

#include "workers/engine/loading.h"
#include "workers/engine/window.h"

struct relative_layer {       /* DeBERTa's, of one layer */
    struct linear *key, *query; /* of each head: the vectors of distances, as keys and as queries; NULL: not used */
};

struct relative {
    enum relative_kind kind;
    const struct kernels *kernels;
    enum precision precision;     /* of attention */
    uint32_t heads, dim, longest;
    float scale;
    float *bias;                  /* MPNet: [heads][2 * longest - 1], of key minus query, from -(longest - 1) on */
    uint32_t *bucket;             /* DeBERTa: row of the vectors, of query minus key, from -(longest - 1) on */
    uint32_t rows;                /* of vectors */
    float *vectors;               /* while loading: [rows][hidden] */
    struct relative_layer *layer;
    uint32_t layers;
};

/* r is zero; relative_release also after a failure. */
MUST_USE enum status relative_load(struct loading *l, struct relative *r, struct err *e);
/* Behind layer i's own projections: `name` is the layer's prefix; qkv is loaded. */
MUST_USE enum status relative_load_layer(struct loading *l, struct relative *r, uint32_t i, const char *name, struct err *e);
void relative_loaded(struct relative *r); /* drops what only loading needed */
void relative_release(struct relative *r);
/* Of layer i: where its vectors lie in a file. */
uint32_t relative_pieces(const struct relative *r, uint32_t i, struct window_piece *out, uint32_t most);
size_t relative_bytes(const struct relative *r, uint32_t max_len); /* of scratch */
/* As attention_run (ops/attention.h). */
void relative_run(const struct relative *r, uint32_t layer, uint32_t n_seqs, const uint32_t *lengths, const float *qkv, size_t ld, float *y,
                  size_t ldy, float *scratch);

#endif
