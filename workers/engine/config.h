/* What the JSON files of a model directory say: config.json, modules.json and the pooling's, sentence_bert_config.json. */
#ifndef EBB_ENGINE_CONFIG_H
#define EBB_ENGINE_CONFIG_H

#include <stdint.h>

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct model_config {
    char architecture[64]; /* model_type */
    uint32_t layers, hidden, heads, ffn, vocab, positions, types;
    float norm_eps;
    enum act act;
    enum pooling pooling;
    int normalize;
    uint32_t max_tokens; /* special tokens included */
};

/* Values are in range and fit each other, or this fails naming file and field. */
MUST_USE enum status config_read(const char *dir, struct model_config *out, struct err *e);
const char *pooling_name(enum pooling p);

#endif
