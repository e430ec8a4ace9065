/* softmax(q k^T * scale + bias) v for many sequences and heads, whatever the layout: what the attention ops of all dialects come down to. */
#ifndef EBB_OPS_SDPA_H
#define EBB_OPS_SDPA_H

#include "workers/engine/graph/op.h"

/* Row t of head h of sequence b begins at p + b * batch + h * head + t * row. */
struct sdpa_rows {
    const float *p;
    size_t batch, head, row;
};
enum sdpa_keep { SDPA_KEEP_NONE, SDPA_KEEP_SCALED, SDPA_KEEP_MASKED, SDPA_KEEP_CAPPED, SDPA_KEEP_SOFTMAX };
struct sdpa {
    size_t batch, heads, kv_heads, queries, keys, each, v_each; /* the last two: elements of a head's row */
    struct sdpa_rows q, k, v;
    float scale, softcap; /* softcap 0: none */
    const float *bias;    /* added to the scores; steps may be 0 */
    size_t bias_batch, bias_head, bias_query, bias_key;
    size_t bias_keys;     /* keys from here on are hidden; 0: all are there */
    int causal;           /* query i sees keys up to i + first */
    int64_t first;
    const int32_t *first_of;  /* per sequence instead of `first` */
    int64_t window, ahead;    /* query i sees keys after i + first - window and before i + first + ahead; 0: no such bound */
    const int32_t *keys_of;   /* per sequence: keys from here on are not there */
    float *out;
    size_t out_batch, out_head, out_row;
    float *scores; /* batch x heads x queries x keys, or NULL */
    enum sdpa_keep keep;
};
MUST_USE enum status sdpa_run(struct run *r, const struct kernels *k, const struct sdpa *o, struct err *e);

/* Rotates pairs of the first `rotary` elements of each head's row by the angle of its position. cos and sin: rows of rotary / 2. */
void rotate_row(size_t rotary, size_t each, int interleaved, const float *cos_row, const float *sin_row, const float *x, float *y);

#endif
