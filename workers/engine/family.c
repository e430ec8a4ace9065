#include "workers/engine/family.h"

#include <stdio.h>
#include <string.h>

#define BERT_KEYS {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", NULL}
#define BERT_LAYER                                                                                                            \
    .layer = "encoder.layer", .q = "attention.self.query", .k = "attention.self.key", .v = "attention.self.value",            \
    .out = "attention.output.dense", .attention_norm = "attention.output.LayerNorm", .up = "intermediate.dense",              \
    .down = "output.dense", .ffn_norm = "output.LayerNorm", .embed_norm = "embeddings.LayerNorm"
#define BERT_MASK                                                                                                             \
    {"cls.predictions.transform.dense", NULL, "cls.predictions.transform.LayerNorm", "cls.predictions.decoder.weight",        \
     "cls.predictions.bias", "cls.predictions.decoder.bias"}
#define ROBERTA_MASK {"lm_head.dense", "gelu", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias", "lm_head.decoder.bias"}
#define ROBERTA(name)                                                                                                         \
    {                                                                                                                         \
        .type = name, .prefix = "roberta", .key = BERT_KEYS, .default_act = "gelu", .positions = POSITIONS_AFTER_PADDING,     \
        .padding = 1, .types = 2, .has_types = 1, .norm_eps = 1e-12f, BERT_LAYER,                                             \
        .classify = {"classifier.dense", NULL, "tanh", "classifier.out_proj"}, .mask = ROBERTA_MASK, .mask_token = "<mask>",  \
    }

static const struct family families[] = {
    {
        .type = "bert",
        .prefix = "bert",
        .key = BERT_KEYS,
        .default_act = "gelu",
        .types = 2,
        .has_types = 1,
        .norm_eps = 1e-12f,
        BERT_LAYER,
        .classify = {"pooler.dense", NULL, "tanh", "classifier"},
        .mask = BERT_MASK,
        .mask_token = "[MASK]",
    },
    {
        .type = "distilbert",
        .prefix = "distilbert",
        .key = {"n_layers", "dim", "n_heads", "hidden_dim", "activation", NULL},
        .default_act = "gelu",
        .norm_eps = 1e-12f,
        .fixed_eps = 1,
        .embed_norm = "embeddings.LayerNorm",
        .layer = "transformer.layer",
        .q = "attention.q_lin",
        .k = "attention.k_lin",
        .v = "attention.v_lin",
        .out = "attention.out_lin",
        .attention_norm = "sa_layer_norm",
        .up = "ffn.lin1",
        .down = "ffn.lin2",
        .ffn_norm = "output_layer_norm",
        .classify = {"pre_classifier", NULL, "relu", "classifier"},
        .mask = {"vocab_transform", NULL, "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias", NULL},
        .mask_token = "[MASK]",
    },
    ROBERTA("roberta"),
    ROBERTA("camembert"),
    ROBERTA("xlm-roberta"),
    {
        .type = "mpnet",
        .prefix = "mpnet",
        .key = BERT_KEYS,
        .default_act = "gelu",
        .positions = POSITIONS_AFTER_PADDING,
        .fixed_padding = 1,
        .padding = 1,
        .norm_eps = 1e-12f,
        .relative = RELATIVE_BIAS,
        .embed_norm = "embeddings.LayerNorm",
        .layer = "encoder.layer",
        .q = "attention.attn.q",
        .k = "attention.attn.k",
        .v = "attention.attn.v",
        .out = "attention.attn.o",
        .attention_norm = "attention.LayerNorm",
        .up = "intermediate.dense",
        .down = "output.dense",
        .ffn_norm = "output.LayerNorm",
        .classify = {"classifier.dense", NULL, "tanh", "classifier.out_proj"},
        .mask = ROBERTA_MASK,
        .mask_token = "<mask>",
    },
    {
        .type = "electra",
        .prefix = "electra",
        .key = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "embedding_size"},
        .default_act = "gelu",
        .types = 2,
        .has_types = 1,
        .norm_eps = 1e-12f,
        BERT_LAYER,
        .projection = "embeddings_project",
        .classify = {"classifier.dense", NULL, "gelu", "classifier.out_proj"},
        .mask = {"generator_predictions.dense", "gelu", "generator_predictions.LayerNorm", "generator_lm_head.weight",
                 "generator_lm_head.bias", NULL},
        .mask_token = "[MASK]",
    },
    {
        .type = "albert",
        .prefix = "albert",
        .key = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "embedding_size"},
        .default_act = "gelu_new",
        .types = 2,
        .has_types = 1,
        .norm_eps = 1e-12f,
        .embed_norm = "embeddings.LayerNorm",
        .projection = "encoder.embedding_hidden_mapping_in",
        .layer = "encoder.albert_layer_groups",
        .inner = "albert_layers",
        .q = "attention.query",
        .k = "attention.key",
        .v = "attention.value",
        .out = "attention.dense",
        .attention_norm = "attention.LayerNorm",
        .up = "ffn",
        .down = "ffn_output",
        .ffn_norm = "full_layer_layer_norm",
        .classify = {"pooler", NULL, "tanh", "classifier"},
        .mask = {"predictions.dense", NULL, "predictions.LayerNorm", "predictions.decoder.weight", "predictions.bias",
                 "predictions.decoder.bias"},
        .mask_token = "[MASK]",
    },
    {
        .type = "deberta-v2",
        .prefix = "deberta",
        .key = BERT_KEYS,
        .default_act = "gelu",
        .has_types = 1,
        .norm_eps = 1e-7f,
        .relative = RELATIVE_DISENTANGLED,
        .embed_norm = "embeddings.LayerNorm",
        .layer = "encoder.layer",
        .q = "attention.self.query_proj",
        .k = "attention.self.key_proj",
        .v = "attention.self.value_proj",
        .out = "attention.output.dense",
        .attention_norm = "attention.output.LayerNorm",
        .up = "intermediate.dense",
        .down = "output.dense",
        .ffn_norm = "output.LayerNorm",
        .classify = {"pooler.dense", "pooler_hidden_act", "gelu", "classifier"},
        .mask = BERT_MASK,
        .mask_token = "[MASK]",
    },
};
enum { FAMILIES = sizeof families / sizeof *families };

const struct family *family_find(const char *type)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].type, type) == 0)
            return &families[i];
    return NULL;
}

const char *family_names(char *out, size_t cap)
{
    size_t n = 0;
    for (int i = 0; i < FAMILIES && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", families[i].type);
    return out;
}
