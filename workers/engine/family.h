/* What tells one family of encoders from another: the keys of its config.json, the names of its tensors, and a few switches. */
#ifndef EBB_ENGINE_FAMILY_H
#define EBB_ENGINE_FAMILY_H

#include <stdint.h>

#include "workers/engine/cpu/kernels.h"

enum positions {
    POSITIONS_FROM_ZERO,
    POSITIONS_AFTER_PADDING, /* the first token has padding_id + 1; a token that is padding has padding_id and is not counted */
};

enum relative_kind {
    RELATIVE_NONE,
    RELATIVE_BIAS,         /* a number for each head and distance, added to the scores */
    RELATIVE_DISENTANGLED, /* products of contents with vectors of distances */
};

struct family {
    const char *type;   /* model_type */
    const char *prefix; /* that its tensors may have */
    struct {            /* of config.json */
        const char *layers, *hidden, *heads, *ffn, *act, *embedding;
    } key;
    const char *default_act;
    enum positions positions;
    int fixed_padding;       /* 1: padding_id is `padding` whatever config.json says */
    uint32_t padding, types; /* defaults; types 0 and no key: it has none */
    int has_types;
    float norm_eps;
    int fixed_eps;           /* 1: config.json has no say */
    enum relative_kind relative;
    /* tensors, without prefix */
    const char *embed_norm, *projection;
    const char *layer, *inner; /* "encoder.layer" .N. ["albert_layers" .M.] */
    const char *q, *k, *v, *out, *attention_norm, *up, *down, *ffn_norm;
    /* heads */
    struct {
        const char *dense, *act_key, *act, *out; /* act: of this name unless config.json's act_key says another */
    } classify;
    struct {
        const char *dense, *act, *norm, *weight, *bias, *other_bias; /* act NULL: the one of the layers */
    } mask;
    const char *mask_token; /* unless tokenizer_config.json names another */
};

/* By config.json's model_type; NULL when it is not known. */
const struct family *family_find(const char *type);
/* "bert, distilbert, ..." */
const char *family_names(char *out, size_t cap);

#endif
