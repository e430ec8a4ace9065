/* Small directories of encoders for tests, as a publisher would lay them out: config.json, model.safetensors (or shards), tokenizer.json,
   vocab.txt, tokenizer_config.json, modules.json and 1_Pooling/config.json, sentence_bert_config.json.
   Weights are random but the same for the same seed and sizes, whatever the dtype: each has at most 7 significant bits, so that
   F32, F16 and BF16 files hold equal numbers. */
#ifndef EBB_TESTS_TINYMODEL_H
#define EBB_TESTS_TINYMODEL_H

#include <stddef.h>
#include <stdint.h>

struct tinymodel { /* zero stands for the default in brackets */
    uint32_t seed;          /* [1] */
    uint32_t hidden;        /* [32] a multiple of heads */
    uint32_t layers;        /* [2] */
    uint32_t heads;         /* [4, 2 or 1, what divides hidden] */
    uint32_t ffn;           /* [4 * hidden] */
    uint32_t vocab;         /* [512] at least TINYMODEL_MIN_VOCAB */
    uint32_t max_positions; /* [128] */
    uint32_t max_tokens;    /* [64] max_seq_length of sentence_bert_config.json */
    const char *dtype;      /* ["F32"] or "F16", "BF16" */
    const char *act;        /* ["gelu"] hidden_act */
    const char *pooling;    /* ["mean"], "cls", "max", "mean_sqrt_len"; "" writes no modules.json */
    int no_normalize;       /* 1: modules.json names no Normalize */
    int bert_prefix;        /* 1: tensors are named "bert.encoder..." */
    uint32_t shards;        /* [1] > 1: model-0000i-of-0000n.safetensors and model.safetensors.index.json */
    const char *family;     /* ["bert"] or distilbert, roberta, camembert, xlm-roberta, mpnet, electra, albert, deberta-v2 */
    const char *head;       /* [""] or "classify", "token-classify", "fill-mask": with its head, and without modules.json */
    uint32_t labels;        /* [3] */
    const char *problem;    /* [none] problem_type */
    const char *dense;      /* [none] an activation, "Tanh": modules.json names a Dense to 3 / 4 of hidden before Normalize */
    int untied;             /* 1: the last matrix of fill-mask is one of its own */
    int variant;            /* 1: deberta-v2 with projections of distances of its own, positions and types, and no buckets; albert with two
                               groups of two layers; electra with an embedding as wide as the rest */
};

#define TINYMODEL_MIN_VOCAB 109 /* special tokens, letters, digits, their ## forms, punctuation */

/* The vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK] are 0..4; then a..z, ##a..##z, 0..9, ##0..##9, the 32 ASCII punctuation marks,
   then aa, ab, .. zz, ##aa .. ##zz, and [unusedN] to the end. Makes dir where it is not there. 0, or -1 after a line on stderr. */
int tinymodel_write(const char *dir, const struct tinymodel *t);
/* One field by its name: "hidden=24", "family=roberta", "positions=64" (max_positions), "tokens=48" (max_tokens), "normalize=0". Texts are
   kept as pointers into arg. 0, or -1 after a line on stderr. */
int tinymodel_set(struct tinymodel *t, const char *arg);

#endif
