/* What the JSON files of a model directory say: config.json, modules.json and its folders', sentence_bert_config.json,
   tokenizer_config.json. */
#ifndef EBB_ENGINE_CONFIG_H
#define EBB_ENGINE_CONFIG_H

#include <stdint.h>

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"
#include "workers/engine/family.h"
#include "workers/engine/task.h"

/* From logits to scores */
enum scoring { SCORING_SOFTMAX, SCORING_SIGMOID, SCORING_RAW };
extern const char *const scoring_words[3];

enum { POOLINGS_MAX = 6, STEPS_MAX = 8 };

/* What follows pooling, in order: a linear layer, or scaling to length 1. */
struct step {
    int is_dense;
    char folder[128];
    uint32_t in, out;
    int has_bias;
    enum act act;
};

struct model_config {
    const struct family *family;
    uint32_t layers, groups, inner; /* weights of groups * inner layers serve layers * inner */
    uint32_t hidden, embedding, heads, ffn, vocab, positions, types;
    uint32_t padding_id;
    int absolute_positions; /* 0: there is no table of positions */
    int tied;               /* the words' vectors are the last matrix of fill-mask too */
    float norm_eps;
    enum act act, classify_act;
    struct {
        uint32_t span, buckets, max; /* distances; 0 buckets: one for each distance */
        int from_content, to_content; /* c2p, p2c */
        int shared, normalised;       /* vectors of distances: projected as contents are; normalised first */
    } relative;

    enum task task;
    enum pooling pooling[POOLINGS_MAX]; /* side by side */
    uint32_t pooling_count;
    struct step step[STEPS_MAX];
    uint32_t step_count;
    char **label;
    uint32_t label_count;
    enum scoring scoring;
    char mask_token[32];
    uint32_t max_tokens; /* special tokens included */
};

/* Values are in range and fit each other, or this fails naming file and field. task: a word, or NULL or "auto": what the
   directory was made for. On failure nothing is to be released. */
MUST_USE enum status config_read(const char *dir, const char *task, struct model_config *out, struct err *e);
void config_release(struct model_config *c);
uint32_t config_width(const struct model_config *c); /* of an embedding */
const char *pooling_name(enum pooling p);

/* For modules.c: the names of activations in config.json; -1 when it is not known. */
int config_act(const char *name, enum act *out);
/* modules.json and what it names: pooling and steps. *found is 0 when there is none. */
MUST_USE enum status modules_read(const char *dir, struct model_config *c, int *found, struct err *e);

#endif
