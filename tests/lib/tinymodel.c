#include "tests/lib/tinymodel.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_TENSORS = 4096, NAME_MAX_LEN = 96 };

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
    char rest[64];
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
    t->is_norm_weight = strstr(t->name, "LayerNorm.weight") != NULL;
}

static void add_norm(struct list *l, uint32_t h, const char *where)
{
    add(l, 1, h, 0, 16, "%s.LayerNorm.weight", where);
    add(l, 1, h, 0, 64, "%s.LayerNorm.bias", where);
}

static void add_linear(struct list *l, uint32_t out, uint32_t in, uint32_t layer, const char *where)
{
    add(l, 2, out, in, in, "encoder.layer.%u.%s.weight", layer, where);
    add(l, 1, out, 0, 64, "encoder.layer.%u.%s.bias", layer, where);
}

static void list_tensors(struct list *l, const struct tinymodel *t)
{
    uint32_t h = t->hidden;
    add(l, 2, t->vocab, h, 3, "embeddings.word_embeddings.weight");
    add(l, 2, t->max_positions, h, 12, "embeddings.position_embeddings.weight");
    add(l, 2, 2, h, 12, "embeddings.token_type_embeddings.weight");
    add_norm(l, h, "embeddings");
    for (uint32_t i = 0; i < t->layers; i++) {
        char where[64];
        add_linear(l, h, h, i, "attention.self.query");
        add_linear(l, h, h, i, "attention.self.key");
        add_linear(l, h, h, i, "attention.self.value");
        add_linear(l, h, h, i, "attention.output.dense");
        snprintf(where, sizeof where, "encoder.layer.%u.attention.output", i);
        add_norm(l, h, where);
        add_linear(l, t->ffn, h, i, "intermediate.dense");
        add_linear(l, h, t->ffn, i, "output.dense");
        snprintf(where, sizeof where, "encoder.layer.%u.output", i);
        add_norm(l, h, where);
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
    struct list l = {.t = calloc(MAX_TENSORS, sizeof(struct tensor)), .prefix = t->bert_prefix ? "bert." : ""};
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

static int write_modules(const char *dir, const struct tinymodel *t)
{
    char pooling_dir[4096];
    snprintf(pooling_dir, sizeof pooling_dir, "%s/1_Pooling", dir);
    if (mkdir(pooling_dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "cannot make '%s': %s\n", pooling_dir, strerror(errno));
        return -1;
    }
    if (write_text(pooling_dir, "config.json",
                   "{\n  \"word_embedding_dimension\": %u,\n  \"pooling_mode_cls_token\": %s,\n"
                   "  \"pooling_mode_mean_tokens\": %s,\n  \"pooling_mode_max_tokens\": %s,\n"
                   "  \"pooling_mode_mean_sqrt_len_tokens\": %s\n}\n",
                   t->hidden, strcmp(t->pooling, "cls") == 0 ? "true" : "false",
                   strcmp(t->pooling, "mean") == 0 ? "true" : "false", strcmp(t->pooling, "max") == 0 ? "true" : "false",
                   strcmp(t->pooling, "mean_sqrt_len") == 0 ? "true" : "false") != 0)
        return -1;
    return write_text(dir, "modules.json",
                      "[\n  {\"idx\": 0, \"name\": \"0\", \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},\n"
                      "  {\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", \"type\": "
                      "\"sentence_transformers.models.Pooling\"}%s\n]\n",
                      t->no_normalize ? ""
                                      : ",\n  {\"idx\": 2, \"name\": \"2\", \"path\": \"2_Normalize\", \"type\": "
                                        "\"sentence_transformers.models.Normalize\"}");
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
    if (t.vocab < TINYMODEL_MIN_VOCAB || t.hidden % t.heads != 0) {
        fprintf(stderr, "tinymodel: vocab must be at least %d and hidden a multiple of heads\n", TINYMODEL_MIN_VOCAB);
        return -1;
    }
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "cannot make '%s': %s\n", dir, strerror(errno));
        return -1;
    }
    if (write_text(dir, "config.json",
                   "{\n  \"architectures\": [\"BertModel\"],\n  \"hidden_act\": \"%s\",\n  \"hidden_size\": %u,\n"
                   "  \"intermediate_size\": %u,\n  \"layer_norm_eps\": 1e-12,\n  \"max_position_embeddings\": %u,\n"
                   "  \"model_type\": \"bert\",\n  \"num_attention_heads\": %u,\n  \"num_hidden_layers\": %u,\n"
                   "  \"pad_token_id\": 0,\n  \"position_embedding_type\": \"absolute\",\n  \"type_vocab_size\": 2,\n"
                   "  \"vocab_size\": %u\n}\n",
                   t.act, t.hidden, t.ffn, t.max_positions, t.heads, t.layers, t.vocab) != 0 ||
        write_text(dir, "sentence_bert_config.json", "{\n  \"max_seq_length\": %u,\n  \"do_lower_case\": false\n}\n",
                   t.max_tokens) != 0 ||
        write_weights(dir, &t) != 0 || write_tokenizer(dir, &t) != 0)
        return -1;
    return t.pooling[0] ? write_modules(dir, &t) : 0;
}
