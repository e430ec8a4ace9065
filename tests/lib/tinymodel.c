#include "tests/lib/tinymodel.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_TENSORS = 4096, NAME_MAX_LEN = 128 };

struct tensor {
    char name[NAME_MAX_LEN];
    uint32_t rank, dim[2];
    uint64_t count, begin, end; /* bytes within its shard's data */
    uint32_t shard;
    int is_norm_weight;
    uint32_t fan_in;
};

struct list {
    struct tensor *t;
    uint32_t n;
    const char *prefix;
};

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        fprintf(stderr, "cannot write '%s': %s\n", path, strerror(errno));
    return f;
}

static int finish(FILE *f, const char *dir, const char *name)
{
    int bad = ferror(f);
    if (fclose(f) != 0 || bad) {
        fprintf(stderr, "cannot write '%s/%s': %s\n", dir, name, strerror(errno));
        return -1;
    }
    return 0;
}

__attribute__((format(printf, 3, 4))) static int write_text(const char *dir, const char *name, const char *fmt, ...)
{
    FILE *f = create(dir, name);
    if (!f)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    return finish(f, dir, name);
}

/* Tensors ------------------------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 6, 7))) static void add(struct list *l, uint32_t rank, uint32_t d0, uint32_t d1, uint32_t fan_in,
                                                      const char *fmt, ...)
{
    if (l->n == MAX_TENSORS) {
        fprintf(stderr, "tinymodel: too many layers\n");
        abort();
    }
    struct tensor *t = &l->t[l->n++];
    memset(t, 0, sizeof *t);
    char rest[112];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rest, sizeof rest, fmt, ap);
    va_end(ap);
    snprintf(t->name, sizeof t->name, "%s%s", l->prefix, rest);
    t->rank = rank;
    t->dim[0] = d0;
    t->dim[1] = d1;
    t->count = rank == 1 ? d0 : (uint64_t)d0 * d1;
    t->fan_in = fan_in;
    t->is_norm_weight = strstr(t->name, "LayerNorm.weight") || strstr(t->name, "layer_norm.weight");
}

/* The families' names for the same things, as transformers saves them. */
static const struct family {
    const char *name, *class, *prefix, *layer, *q, *k, *v, *out, *attention_norm, *up, *down, *ffn_norm;
} families[] = {
    {"bert", "Bert", "bert.", "encoder.layer.%u.", "attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"distilbert", "DistilBert", "distilbert.", "transformer.layer.%u.", "attention.q_lin", "attention.k_lin", "attention.v_lin",
     "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"},
    {"roberta", "Roberta", "roberta.", "encoder.layer.%u.", "attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"camembert", "Camembert", "roberta.", "encoder.layer.%u.", "attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"xlm-roberta", "XLMRoberta", "roberta.", "encoder.layer.%u.", "attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"mpnet", "MPNet", "mpnet.", "encoder.layer.%u.", "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o",
     "attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"electra", "Electra", "electra.", "encoder.layer.%u.", "attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"},
    {"albert", "Albert", "albert.", "encoder.albert_layer_groups.%u.albert_layers.%u.", "attention.query", "attention.key",
     "attention.value", "attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"},
    {"deberta-v2", "DebertaV2", "deberta.", "encoder.layer.%u.", "attention.self.query_proj", "attention.self.key_proj",
     "attention.self.value_proj", "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense",
     "output.LayerNorm"},
};

static const struct family *family_of(const struct tinymodel *t)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, t->family) == 0)
            return &families[i];
    return NULL;
}

static int is(const struct tinymodel *t, const char *family)
{
    return strcmp(t->family, family) == 0;
}

static int has_head(const struct tinymodel *t, const char *head)
{
    return strcmp(t->head, head) == 0;
}

/* Of an embedding, in the families that have another size for it. */
static uint32_t embedding_of(const struct tinymodel *t)
{
    return (is(t, "electra") && !t->variant) || is(t, "albert") ? t->hidden / 2 : t->hidden;
}

static void add_norm(struct list *l, uint32_t n, const char *where)
{
    add(l, 1, n, 0, 16, "%s.weight", where);
    add(l, 1, n, 0, 64, "%s.bias", where);
}

static void add_linear(struct list *l, uint32_t out, uint32_t in, const char *where)
{
    add(l, 2, out, in, in, "%s.weight", where);
    add(l, 1, out, 0, 64, "%s.bias", where);
}

static void list_layer(struct list *l, const struct tinymodel *t, uint32_t i)
{
    const struct family *f = family_of(t);
    const struct {
        const char *name;
        uint32_t out, in; /* in 0: a norm */
    } parts[] = {{f->q, t->hidden, t->hidden},        {f->k, t->hidden, t->hidden},   {f->v, t->hidden, t->hidden},
                 {f->out, t->hidden, t->hidden},      {f->attention_norm, t->hidden, 0}, {f->up, t->ffn, t->hidden},
                 {f->down, t->hidden, t->ffn},        {f->ffn_norm, t->hidden, 0}};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        char where[96];
        int n = t->variant && is(t, "albert") ? snprintf(where, sizeof where, f->layer, i / 2, i % 2) : snprintf(where, sizeof where, f->layer, i, 0);
        snprintf(where + n, sizeof where - (size_t)n, "%s", parts[k].name);
        if (parts[k].in)
            add_linear(l, parts[k].out, parts[k].in, where);
        else
            add_norm(l, parts[k].out, where);
    }
}

/* DeBERTa's vectors of distances, where they are not projected as contents are. */
static void list_distances(struct list *l, const struct tinymodel *t, uint32_t i)
{
    static const char *const names[] = {"pos_key_proj", "pos_query_proj"};
    for (int k = 0; k < 2; k++) {
        char where[96];
        snprintf(where, sizeof where, "encoder.layer.%u.attention.self.%s", i, names[k]);
        add_linear(l, t->hidden, t->hidden, where);
    }
}

static void list_classify(struct list *l, const struct tinymodel *t)
{
    uint32_t h = t->hidden;
    const char *prefix = l->prefix;
    if (is(t, "bert"))
        add_linear(l, h, h, "pooler.dense");
    else if (is(t, "albert"))
        add_linear(l, h, h, "pooler");
    l->prefix = "";
    if (is(t, "deberta-v2"))
        add_linear(l, h, h, "pooler.dense");
    else if (is(t, "distilbert"))
        add_linear(l, h, h, "pre_classifier");
    else if (!is(t, "bert") && !is(t, "albert"))
        add_linear(l, h, h, "classifier.dense");
    int out_proj = is(t, "roberta") || is(t, "camembert") || is(t, "xlm-roberta") || is(t, "mpnet") || is(t, "electra");
    add_linear(l, t->labels, h, out_proj ? "classifier.out_proj" : "classifier");
    l->prefix = prefix;
}

static void list_mask(struct list *l, const struct tinymodel *t)
{
    static const struct {
        const char *family, *dense, *norm, *weight, *bias;
    } heads[] = {
        {"bert deberta-v2", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
         "cls.predictions.bias"},
        {"distilbert", "vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"},
        {"roberta camembert xlm-roberta mpnet", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"},
        {"electra", "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", "generator_lm_head.bias"},
        {"albert", "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"},
    };
    const char *prefix = l->prefix;
    l->prefix = "";
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        const char *at = strstr(heads[i].family, t->family);
        if (!at || (at > heads[i].family && at[-1] != ' ') || (at[strlen(t->family)] && at[strlen(t->family)] != ' '))
            continue;
        add_linear(l, embedding_of(t), t->hidden, heads[i].dense);
        add_norm(l, embedding_of(t), heads[i].norm);
        add(l, 1, t->vocab, 0, 16, "%s", heads[i].bias);
        if (t->untied)
            add(l, 2, t->vocab, embedding_of(t), embedding_of(t), "%s.weight", heads[i].weight);
        char decoder_bias[96];
        snprintf(decoder_bias, sizeof decoder_bias, "%s.bias", heads[i].weight);
        if (t->untied && strcmp(decoder_bias, heads[i].bias) != 0) /* the one that counts then */
            add(l, 1, t->vocab, 0, 16, "%s", decoder_bias);
    }
    l->prefix = prefix;
}

static void list_tensors(struct list *l, const struct tinymodel *t)
{
    uint32_t h = t->hidden, w = embedding_of(t);
    add(l, 2, t->vocab, w, 3, "embeddings.word_embeddings.weight");
    int plain = is(t, "deberta-v2") && !t->variant;
    if (!plain)
        add(l, 2, t->max_positions, w, 12, "embeddings.position_embeddings.weight");
    if (!plain && !is(t, "mpnet") && !is(t, "distilbert"))
        add(l, 2, 2, w, 12, "embeddings.token_type_embeddings.weight");
    add_norm(l, w, "embeddings.LayerNorm");
    if (is(t, "electra") && !t->variant)
        add_linear(l, h, w, "embeddings_project");
    if (is(t, "albert"))
        add_linear(l, h, w, "encoder.embedding_hidden_mapping_in");
    if (is(t, "mpnet"))
        add(l, 2, 32, t->heads, 3, "encoder.relative_attention_bias.weight");
    if (is(t, "deberta-v2")) {
        add(l, 2, t->variant ? 40 : 32, h, 3, "encoder.rel_embeddings.weight");
        if (plain)
            add_norm(l, h, "encoder.LayerNorm");
    }
    uint32_t layers = !is(t, "albert") ? t->layers : t->variant ? 4 : 1;
    for (uint32_t i = 0; i < layers; i++)
        list_layer(l, t, i);
    for (uint32_t i = 0; i < layers && is(t, "deberta-v2") && t->variant; i++)
        list_distances(l, t, i);
    if (has_head(t, "classify"))
        list_classify(l, t);
    if (has_head(t, "fill-mask"))
        list_mask(l, t);
    if (has_head(t, "token-classify")) {
        l->prefix = "";
        add_linear(l, t->labels, h, "classifier");
    }
}

static uint64_t splitmix(uint64_t *s)
{
    uint64_t z = *s += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The power of two nearest to sqrt(3 / fan_in): rows of unit variance stay so. */
static float scale_for(uint32_t fan_in)
{
    float s = 1;
    while (s * s * (float)fan_in > 3 * 2)
        s /= 2;
    return s;
}

static float weight(const struct tensor *t, uint64_t *state)
{
    int32_t r = (int32_t)(splitmix(state) % 255) - 127; /* 7 bits and a sign */
    if (t->is_norm_weight)
        return 1 + (float)(r / 16) / 64; /* 0.89 .. 1.11 */
    return (float)r / 128 * scale_for(t->fan_in);
}

/* Both are exact for our weights: at most 8 significant bits, no exponent below -14. */
static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)(u >> 16);
}

static uint16_t to_f16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = u >> 16 & 0x8000, exponent = u >> 23 & 0xff, fraction = u & 0x7fffff;
    if (exponent == 0)
        return (uint16_t)sign;
    return (uint16_t)(sign | ((exponent - 127 + 15) << 10) | fraction >> 13);
}

static int write_shard(const char *dir, const char *name, struct list *l, uint32_t shard, const struct tinymodel *t)
{
    FILE *f = create(dir, name);
    if (!f)
        return -1;
    uint64_t size = strcmp(t->dtype, "F32") == 0 ? 4 : 2, at = 0;
    size_t cap = 256 * (size_t)(l->n + 1), n = 0;
    char *header = malloc(cap);
    if (!header)
        abort();
    n += (size_t)snprintf(header + n, cap - n, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < l->n; i++) {
        struct tensor *x = &l->t[i];
        if (x->shard != shard)
            continue;
        x->begin = at;
        x->end = at += x->count * size;
        char shape[32];
        if (x->rank == 1)
            snprintf(shape, sizeof shape, "[%u]", x->dim[0]);
        else
            snprintf(shape, sizeof shape, "[%u,%u]", x->dim[0], x->dim[1]);
        n += (size_t)snprintf(header + n, cap - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
                              x->name, t->dtype, shape, (unsigned long long)x->begin, (unsigned long long)x->end);
    }
    header[n++] = '}';
    while (n % 8)
        header[n++] = ' ';
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n >> 8 * i);
    fwrite(len, 1, 8, f);
    fwrite(header, 1, n, f);
    free(header);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tensor *x = &l->t[i];
        if (x->shard != shard)
            continue;
        uint64_t state = ((uint64_t)t->seed << 32) + i;
        for (uint64_t j = 0; j < x->count; j++) {
            float w = weight(x, &state);
            uint16_t half = strcmp(t->dtype, "F16") == 0 ? to_f16(w) : to_bf16(w);
            fwrite(size == 4 ? (const void *)&w : (const void *)&half, size, 1, f);
        }
    }
    return finish(f, dir, name);
}

static int write_weights(const char *dir, const struct tinymodel *t)
{
    struct list l = {.t = calloc(MAX_TENSORS, sizeof(struct tensor)), .prefix = t->bert_prefix || t->head[0] ? family_of(t)->prefix : ""};
    if (!l.t)
        abort();
    list_tensors(&l, t);
    int rc = 0;
    if (t->shards <= 1) {
        rc = write_shard(dir, "model.safetensors", &l, 0, t);
        free(l.t);
        return rc;
    }
    FILE *f = create(dir, "model.safetensors.index.json");
    if (!f) {
        free(l.t);
        return -1;
    }
    fprintf(f, "{\"metadata\":{\"total_size\":0},\"weight_map\":{");
    for (uint32_t i = 0; i < l.n; i++) {
        l.t[i].shard = (uint32_t)((uint64_t)i * t->shards / l.n);
        fprintf(f, "%s\n\"%s\":\"model-%05u-of-%05u.safetensors\"", i ? "," : "", l.t[i].name, l.t[i].shard + 1, t->shards);
    }
    fprintf(f, "}}\n");
    rc = finish(f, dir, "model.safetensors.index.json");
    for (uint32_t s = 0; s < t->shards && rc == 0; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", s + 1, t->shards);
        rc = write_shard(dir, name, &l, s, t);
    }
    free(l.t);
    return rc;
}

/* Vocabulary --------------------------------------------------------------------------------------------------------------------- */

static const char special[5][8] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

static void token(uint32_t id, char out[32])
{
    uint32_t i = id;
    if (i < 5) {
        strcpy(out, special[i]);
        return;
    }
    i -= 5;
    if (i < 52) {
        snprintf(out, 32, "%s%c", i < 26 ? "" : "##", 'a' + (int)(i % 26));
        return;
    }
    i -= 52;
    if (i < 20) {
        snprintf(out, 32, "%s%c", i < 10 ? "" : "##", '0' + (int)(i % 10));
        return;
    }
    i -= 20;
    if (i < 32) {
        snprintf(out, 32, "%c", punctuation[i]);
        return;
    }
    i -= 32;
    if (i < 2 * 676) {
        uint32_t k = i % 676;
        snprintf(out, 32, "%s%c%c", i < 676 ? "" : "##", 'a' + (int)(k / 26), 'a' + (int)(k % 26));
        return;
    }
    snprintf(out, 32, "[unused%u]", i - 2 * 676);
}

static int write_tokenizer(const char *dir, const struct tinymodel *t)
{
    char s[32];
    FILE *f = create(dir, "vocab.txt");
    if (!f)
        return -1;
    for (uint32_t i = 0; i < t->vocab; i++) {
        token(i, s);
        fprintf(f, "%s\n", s);
    }
    if (finish(f, dir, "vocab.txt") != 0 || !(f = create(dir, "tokenizer.json")))
        return -1;
    fprintf(f, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [");
    for (int i = 0; i < 5; i++)
        fprintf(f,
                "%s\n    {\"id\": %d, \"special\": true, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false}",
                i ? "," : "", i, special[i]);
    fprintf(f, "\n  ],\n  \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, "
               "\"strip_accents\": null, \"lowercase\": true},\n  \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},\n"
               "  \"post_processor\": {\n    \"type\": \"TemplateProcessing\",\n"
               "    \"single\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
               "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}],\n"
               "    \"pair\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
               "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
               "\"type_id\": 1}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 1}}],\n"
               "    \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [2], \"tokens\": [\"[CLS]\"]}, "
               "\"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [3], \"tokens\": [\"[SEP]\"]}}\n  },\n"
               "  \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true},\n"
               "  \"model\": {\n    \"type\": \"WordPiece\",\n    \"unk_token\": \"[UNK]\",\n"
               "    \"continuing_subword_prefix\": \"##\",\n    \"max_input_chars_per_word\": 100,\n    \"vocab\": {");
    for (uint32_t i = 0; i < t->vocab; i++) {
        token(i, s);
        fprintf(f, "%s\n      \"", i ? "," : "");
        for (const char *p = s; *p; p++)
            fprintf(f, "%s%c", *p == '"' || *p == '\\' ? "\\" : "", *p);
        fprintf(f, "\": %u", i);
    }
    fprintf(f, "\n    }\n  }\n}\n");
    if (finish(f, dir, "tokenizer.json") != 0)
        return -1;
    return write_text(dir, "tokenizer_config.json",
                      "{\"do_lower_case\": true, \"unk_token\": \"[UNK]\", \"sep_token\": \"[SEP]\", \"pad_token\": \"[PAD]\", "
                      "\"cls_token\": \"[CLS]\", \"mask_token\": \"[MASK]\", \"tokenize_chinese_chars\": true, "
                      "\"strip_accents\": null, \"tokenizer_class\": \"BertTokenizer\", \"model_max_length\": %u}\n",
                      t->max_positions);
}

static int make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return 0;
    fprintf(stderr, "cannot make '%s': %s\n", path, strerror(errno));
    return -1;
}

static int write_dense(const char *dir, const struct tinymodel *t)
{
    char folder[4096];
    uint32_t out = t->hidden * 3 / 4;
    struct tensor tensors[2];
    struct list l = {.t = tensors, .prefix = ""};
    snprintf(folder, sizeof folder, "%s/2_Dense", dir);
    add_linear(&l, out, t->hidden, "linear");
    if (make_folder(folder) != 0 ||
        write_text(folder, "config.json",
                   "{\"in_features\": %u, \"out_features\": %u, \"bias\": true, \"activation_function\": "
                   "\"torch.nn.modules.%s.%s\"}\n",
                   t->hidden, out, strcmp(t->dense, "Identity") == 0 ? "linear" : "activation", t->dense) != 0)
        return -1;
    return write_shard(folder, "model.safetensors", &l, 0, t);
}

static int write_modules(const char *dir, const struct tinymodel *t)
{
    static const char *const modes[][2] = {{"cls", "cls_token"},
                                           {"max", "max_tokens"},
                                           {"mean", "mean_tokens"},
                                           {"mean_sqrt_len", "mean_sqrt_len_tokens"},
                                           {"weightedmean", "weightedmean_tokens"},
                                           {"lasttoken", "lasttoken"}};
    char pooling_dir[4096], words[64], flags[512] = "";
    snprintf(pooling_dir, sizeof pooling_dir, "%s/1_Pooling", dir);
    snprintf(words, sizeof words, "+%s+", t->pooling);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char word[32];
        size_t n = strlen(flags);
        snprintf(word, sizeof word, "+%s+", modes[i][0]);
        snprintf(flags + n, sizeof flags - n, ",\n  \"pooling_mode_%s\": %s", modes[i][1], strstr(words, word) ? "true" : "false");
    }
    if (make_folder(pooling_dir) != 0 ||
        write_text(pooling_dir, "config.json", "{\n  \"word_embedding_dimension\": %u%s\n}\n", t->hidden, flags) != 0 ||
        (t->dense && write_dense(dir, t) != 0))
        return -1;
    return write_text(dir, "modules.json",
                      "[\n  {\"idx\": 0, \"name\": \"0\", \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},\n"
                      "  {\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", \"type\": "
                      "\"sentence_transformers.models.Pooling\"}%s%s\n]\n",
                      t->dense ? ",\n  {\"idx\": 2, \"name\": \"2\", \"path\": \"2_Dense\", \"type\": \"sentence_transformers.models.Dense\"}"
                               : "",
                      t->no_normalize ? ""
                                      : ",\n  {\"idx\": 3, \"name\": \"3\", \"path\": \"3_Normalize\", \"type\": "
                                        "\"sentence_transformers.models.Normalize\"}");
}

static int write_config(const char *dir, const struct tinymodel *t)
{
    static const char *const classes[][2] = {
        {"", "Model"}, {"classify", "ForSequenceClassification"}, {"token-classify", "ForTokenClassification"}, {"fill-mask", "ForMaskedLM"}};
    char labels[1024] = "", more[512] = "", problem[80] = "";
    const char *class = "?";
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (has_head(t, classes[i][0]))
            class = classes[i][1];
    if (has_head(t, "classify") || has_head(t, "token-classify")) {
        size_t n = (size_t)snprintf(labels, sizeof labels, "  \"id2label\": {");
        for (uint32_t i = 0; i < t->labels; i++)
            n += (size_t)snprintf(labels + n, sizeof labels - n, "%s\"%u\": \"%s%u\"", i ? ", " : "", i, i % 2 ? "B-" : "L", i);
        snprintf(labels + n, sizeof labels - n, "},\n");
    }
    if (t->problem)
        snprintf(problem, sizeof problem, "  \"problem_type\": \"%s\",\n", t->problem);
    if (is(t, "electra") || is(t, "albert"))
        snprintf(more, sizeof more, "  \"embedding_size\": %u,\n", embedding_of(t));
    if (is(t, "albert") && t->variant)
        snprintf(more + strlen(more), sizeof more - strlen(more), "  \"num_hidden_groups\": 2,\n  \"inner_group_num\": 2,\n");
    if (is(t, "deberta-v2") && t->variant)
        snprintf(more, sizeof more,
                 "  \"relative_attention\": true,\n  \"max_relative_positions\": 20,\n  \"pos_att_type\": \"c2p|p2c\",\n"
                 "  \"pooler_hidden_act\": \"gelu\",\n");
    else if (is(t, "deberta-v2"))
        snprintf(more, sizeof more,
                 "  \"relative_attention\": true,\n  \"position_buckets\": 16,\n  \"max_relative_positions\": -1,\n"
                 "  \"norm_rel_ebd\": \"layer_norm\",\n  \"share_att_key\": true,\n  \"pos_att_type\": [\"p2c\", \"c2p\"],\n"
                 "  \"position_biased_input\": false,\n");
    if (is(t, "distilbert"))
        return write_text(dir, "config.json",
                          "{\n  \"architectures\": [\"DistilBert%s\"],\n  \"activation\": \"%s\",\n  \"dim\": %u,\n"
                          "  \"hidden_dim\": %u,\n%s%s  \"max_position_embeddings\": %u,\n  \"model_type\": \"distilbert\",\n"
                          "  \"n_heads\": %u,\n  \"n_layers\": %u,\n  \"pad_token_id\": 0,\n  \"tie_word_embeddings\": %s,\n"
                          "  \"vocab_size\": %u\n}\n",
                          class, t->act, t->hidden, t->ffn, labels, problem, t->max_positions, t->heads, t->layers,
                          t->untied ? "false" : "true", t->vocab);
    return write_text(dir, "config.json",
                      "{\n  \"architectures\": [\"%s%s\"],\n  \"hidden_act\": \"%s\",\n  \"hidden_size\": %u,\n"
                      "  \"intermediate_size\": %u,\n  \"layer_norm_eps\": 1e-12,\n  \"max_position_embeddings\": %u,\n"
                      "  \"model_type\": \"%s\",\n  \"num_attention_heads\": %u,\n  \"num_hidden_layers\": %u,\n"
                      "  \"pad_token_id\": 0,\n  \"position_embedding_type\": \"absolute\",\n  \"type_vocab_size\": %u,\n"
                      "%s%s%s%s  \"vocab_size\": %u\n}\n",
                      family_of(t)->class, class, t->act, t->hidden, t->ffn, t->max_positions, t->family, t->heads, t->layers,
                      is(t, "deberta-v2") && !t->variant ? 0 : 2, more, labels, problem, t->untied ? "  \"tie_word_embeddings\": false,\n" : "", t->vocab);
}

int tinymodel_write(const char *dir, const struct tinymodel *spec)
{
    struct tinymodel t = *spec;
    t.seed = t.seed ? t.seed : 1;
    t.hidden = t.hidden ? t.hidden : 32;
    t.layers = t.layers ? t.layers : 2;
    t.heads = t.heads ? t.heads : t.hidden % 4 == 0 ? 4 : t.hidden % 2 == 0 ? 2 : 1;
    t.ffn = t.ffn ? t.ffn : 4 * t.hidden;
    t.vocab = t.vocab ? t.vocab : 512;
    t.max_positions = t.max_positions ? t.max_positions : 128;
    t.max_tokens = t.max_tokens ? t.max_tokens : 64;
    t.dtype = t.dtype ? t.dtype : "F32";
    t.act = t.act ? t.act : "gelu";
    t.pooling = t.pooling ? t.pooling : "mean";
    t.family = t.family ? t.family : "bert";
    t.head = t.head ? t.head : "";
    t.labels = t.labels ? t.labels : 3;
    if (t.vocab < TINYMODEL_MIN_VOCAB || t.hidden % t.heads != 0) {
        fprintf(stderr, "tinymodel: vocab must be at least %d and hidden a multiple of heads\n", TINYMODEL_MIN_VOCAB);
        return -1;
    }
    if (!family_of(&t)) {
        fprintf(stderr, "tinymodel: there is no family '%s'\n", t.family);
        return -1;
    }
    if (make_folder(dir) != 0 || write_config(dir, &t) != 0 ||
        write_text(dir, "sentence_bert_config.json", "{\n  \"max_seq_length\": %u,\n  \"do_lower_case\": false\n}\n",
                   t.max_tokens) != 0 ||
        write_weights(dir, &t) != 0 || write_tokenizer(dir, &t) != 0)
        return -1;
    return t.pooling[0] && !t.head[0] ? write_modules(dir, &t) : 0;
}

int tinymodel_set(struct tinymodel *t, const char *arg)
{
    uint32_t normalize = !t->no_normalize, untied = (uint32_t)t->untied, variant = (uint32_t)t->variant;
    const struct {
        const char *name;
        uint32_t *number;
        const char **text;
    } fields[] = {
        {"seed", &t->seed, NULL},         {"hidden", &t->hidden, NULL},           {"layers", &t->layers, NULL},
        {"heads", &t->heads, NULL},       {"ffn", &t->ffn, NULL},                 {"vocab", &t->vocab, NULL},
        {"labels", &t->labels, NULL},     {"positions", &t->max_positions, NULL}, {"tokens", &t->max_tokens, NULL},
        {"normalize", &normalize, NULL},  {"shards", &t->shards, NULL},           {"untied", &untied, NULL},
        {"variant", &variant, NULL},
        {"family", NULL, &t->family},     {"head", NULL, &t->head},               {"problem", NULL, &t->problem},
        {"pooling", NULL, &t->pooling},   {"dense", NULL, &t->dense},             {"act", NULL, &t->act},
        {"dtype", NULL, &t->dtype},
    };
    const char *value = strchr(arg, '=');
    for (size_t i = 0; value && i < sizeof fields / sizeof *fields; i++) {
        size_t n = (size_t)(value - arg);
        if (strlen(fields[i].name) != n || strncmp(fields[i].name, arg, n) != 0)
            continue;
        if (fields[i].text) {
            *fields[i].text = value + 1;
            return 0;
        }
        char *end;
        unsigned long v = strtoul(value + 1, &end, 10);
        if (*end || end == value + 1 || v > 1000000)
            break;
        *fields[i].number = (uint32_t)v;
        t->no_normalize = !normalize;
        t->untied = untied != 0;
        t->variant = variant != 0;
        return 0;
    }
    fprintf(stderr, "tinymodel: '%s' is not known\n", arg);
    return -1;
}
