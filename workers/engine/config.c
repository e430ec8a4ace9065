#include "workers/engine/config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "storage/modeldir.h"

const char *const task_words[TASKS] = {"embed", "classify", "token-classify", "fill-mask", "outputs"};
const char *const scoring_words[3] = {"softmax", "sigmoid", "raw"};

/* Where a message points */
struct at {
    const char *dir, *file;
};

static enum status get_u32(struct at at, json_t *j, const char *key, uint32_t max, uint32_t *out, struct err *e)
{
    json_t *v = json_object_get(j, key);
    if (!v)
        return err_set(e, ST_USER, "'%s/%s' lacks '%s'", at.dir, at.file, key);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return err_set(e, ST_USER, "'%s/%s': '%s' must be a whole number from 1 to %u", at.dir, at.file, key, max);
    *out = (uint32_t)json_integer_value(v);
    return ST_OK;
}

/* Leaves *out when the field is missing or null. */
static enum status may_u32(struct at at, json_t *j, const char *key, uint32_t min, uint32_t max, uint32_t *out, struct err *e)
{
    json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v))
        return ST_OK;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return err_set(e, ST_USER, "'%s/%s': '%s' must be a whole number from %u to %u", at.dir, at.file, key, min, max);
    *out = (uint32_t)json_integer_value(v);
    return ST_OK;
}

/* Activations and architectures ----------------------------------------------------------------------------------------------------- */

int config_act(const char *name, enum act *out)
{
    static const struct {
        const char *name;
        enum act act;
    } known[] = {{"gelu", ACT_GELU},          {"gelu_new", ACT_GELU_TANH}, {"gelu_pytorch_tanh", ACT_GELU_TANH}, {"relu", ACT_RELU},
                 {"gelu_python", ACT_GELU},   {"gelu_fast", ACT_GELU_TANH}, {"tanh", ACT_TANH}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].act;
            return 0;
        }
    return -1;
}

static enum status read_act(struct at at, json_t *j, const char *key, const char *otherwise, enum act *out, struct err *e)
{
    json_t *v = key ? json_object_get(j, key) : NULL;
    const char *name = v ? json_string_value(v) : otherwise;
    if (name && config_act(name, out) == 0)
        return ST_OK;
    return err_set(e, ST_USER, "'%s/%s': %s '%s' is not supported; it is one of gelu, gelu_new, gelu_pytorch_tanh, relu, tanh", at.dir,
                   at.file, key ? key : "activation", name ? name : "?");
}

static enum status read_family(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    const char *type = json_string_value(json_object_get(j, "model_type"));
    const char *class = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    char known[256];
    c->family = type ? family_find(type) : class && strncmp(class, "Bert", 4) == 0 ? family_find("bert") : NULL;
    if (!c->family)
        return err_set(e, ST_USER, "'%s/%s': the architecture '%s' is not supported by this version; supported are %s", at.dir, at.file,
                       type ? type : class ? class : "?", family_names(known, sizeof known));
    json_t *pos = json_object_get(j, "position_embedding_type");
    const char *kind = pos && !json_is_null(pos) ? json_string_value(pos) : "absolute";
    if (!kind || strcmp(kind, "absolute") != 0)
        return err_set(e, ST_USER, "'%s/%s': position_embedding_type '%s' is not supported; supported is 'absolute'", at.dir, at.file,
                       kind ? kind : "?");
    if (json_is_true(json_object_get(j, "is_decoder")))
        return err_set(e, ST_USER, "'%s/%s' describes a decoder (is_decoder is true); supported are encoders", at.dir, at.file);
    return ST_OK;
}

/* DeBERTa: "p2c|c2p" or a list of these. */
static enum status read_attention_types(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    json_t *v = json_object_get(j, "pos_att_type");
    char words[64] = "";
    if (json_is_string(v)) {
        snprintf(words, sizeof words, "%s", json_string_value(v));
    } else {
        for (size_t i = 0; i < json_array_size(v); i++) {
            const char *word = json_string_value(json_array_get(v, i));
            size_t n = strlen(words);
            snprintf(words + n, sizeof words - n, "%s|", word ? word : "?");
        }
    }
    char *rest = words;
    for (char *word; (word = strsep(&rest, "| ")) != NULL;)
        if (strcmp(word, "c2p") == 0)
            c->relative.from_content = 1;
        else if (strcmp(word, "p2c") == 0)
            c->relative.to_content = 1;
        else if (*word)
            return err_set(e, ST_USER, "'%s/%s': pos_att_type '%s' is not supported; supported are c2p and p2c", at.dir, at.file, word);
    return ST_OK;
}

static enum status read_relative(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    uint32_t conv = 0, embedding = c->hidden;
    TRY(may_u32(at, j, "conv_kernel_size", 0, 64, &conv, e));
    TRY(may_u32(at, j, "embedding_size", 1, 65536, &embedding, e));
    if (conv)
        return err_set(e, ST_USER, "'%s/%s': conv_kernel_size %u is not supported; supported are models without a convolution", at.dir,
                       at.file, conv);
    if (embedding != c->hidden)
        return err_set(e, ST_USER, "'%s/%s': an embedding_size (%u) other than the hidden_size is not supported for this architecture",
                       at.dir, at.file, embedding);
    c->absolute_positions = !json_is_false(json_object_get(j, "position_biased_input"));
    if (!json_is_true(json_object_get(j, "relative_attention")))
        return ST_OK;
    TRY(read_attention_types(at, j, c, e));
    json_t *max = json_object_get(j, "max_relative_positions"), *buckets = json_object_get(j, "position_buckets");
    c->relative.max = c->positions;
    if (json_integer_value(max) > 0)
        TRY(get_u32(at, j, "max_relative_positions", 1 << 16, &c->relative.max, e));
    if (json_integer_value(buckets) > 0)
        TRY(get_u32(at, j, "position_buckets", 1 << 14, &c->relative.buckets, e));
    if (c->relative.buckets && (c->relative.buckets < 4 || c->relative.max <= c->relative.buckets / 2 + 1))
        return err_set(e, ST_USER, "'%s/%s': position_buckets %u do not fit max_relative_positions %u", at.dir, at.file,
                       c->relative.buckets, c->relative.max);
    c->relative.span = c->relative.buckets ? c->relative.buckets : c->relative.max;
    c->relative.shared = json_is_true(json_object_get(j, "share_att_key"));
    const char *norm = json_string_value(json_object_get(j, "norm_rel_ebd"));
    c->relative.normalised = norm && strstr(norm, "layer_norm") != NULL;
    return ST_OK;
}

static enum status read_sizes(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    const struct family *f = c->family;
    TRY(get_u32(at, j, f->key.layers, 1024, &c->layers, e));
    TRY(get_u32(at, j, f->key.hidden, 65536, &c->hidden, e));
    TRY(get_u32(at, j, f->key.heads, 1024, &c->heads, e));
    TRY(get_u32(at, j, f->key.ffn, 1 << 20, &c->ffn, e));
    TRY(get_u32(at, j, "vocab_size", 1 << 24, &c->vocab, e));
    TRY(get_u32(at, j, "max_position_embeddings", 1 << 20, &c->positions, e));
    c->embedding = c->hidden;
    if (f->key.embedding)
        TRY(may_u32(at, j, f->key.embedding, 1, 65536, &c->embedding, e));
    c->types = f->types;
    if (f->has_types)
        TRY(may_u32(at, j, "type_vocab_size", f->types ? 1 : 0, 1 << 16, &c->types, e));
    c->groups = c->layers;
    c->inner = 1;
    if (f->inner) {
        c->groups = 1;
        TRY(may_u32(at, j, "num_hidden_groups", 1, c->layers, &c->groups, e));
        TRY(may_u32(at, j, "inner_group_num", 1, 64, &c->inner, e));
    }
    c->padding_id = f->padding;
    if (f->positions == POSITIONS_AFTER_PADDING && !f->fixed_padding)
        TRY(may_u32(at, j, "pad_token_id", 0, 1 << 24, &c->padding_id, e));
    if (f->positions == POSITIONS_AFTER_PADDING && c->positions < c->padding_id + 2)
        return err_set(e, ST_USER, "'%s/%s': max_position_embeddings %u leaves none behind that of the padding token %u", at.dir, at.file,
                       c->positions, c->padding_id);
    if (c->hidden % c->heads != 0)
        return err_set(e, ST_USER, "'%s/%s': %s %u is not a multiple of %s %u", at.dir, at.file, f->key.hidden, c->hidden, f->key.heads,
                       c->heads);
    return ST_OK;
}

static enum status read_main(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    if (!json_is_object(j))
        return err_set(e, ST_USER, "'%s/%s' is not a JSON object", at.dir, at.file);
    TRY(read_family(at, j, c, e));
    TRY(read_sizes(at, j, c, e));
    json_t *eps = json_object_get(j, "layer_norm_eps");
    c->norm_eps = c->family->norm_eps;
    if (eps && !c->family->fixed_eps) {
        double v = json_number_value(eps);
        if (!json_is_number(eps) || !(v >= 0 && v <= 1))
            return err_set(e, ST_USER, "'%s/%s': layer_norm_eps must be a number from 0 to 1", at.dir, at.file);
        c->norm_eps = (float)v;
    }
    c->absolute_positions = 1;
    c->tied = !json_is_false(json_object_get(j, "tie_word_embeddings"));
    if (c->family->relative == RELATIVE_DISENTANGLED)
        TRY(read_relative(at, j, c, e));
    TRY(read_act(at, j, c->family->classify.act_key, c->family->classify.act, &c->classify_act, e));
    return read_act(at, j, c->family->key.act, c->family->default_act, &c->act, e);
}

/* Tasks ------------------------------------------------------------------------------------------------------------------------------ */

static int ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static enum status read_task(struct at at, json_t *j, const char *word, int has_modules, struct model_config *c, struct err *e)
{
    static const char *const heads[] = {"Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"};
    if (word && strcmp(word, "auto") != 0) {
        for (int i = 0; i < TASK_OUTPUTS; i++)
            if (strcmp(word, task_words[i]) == 0) {
                c->task = (enum task)i;
                return ST_OK;
            }
        if (strcmp(word, task_words[TASK_OUTPUTS]) == 0)
            return err_set(e, ST_USER, "the task 'outputs' is for ONNX files; this model can have auto, embed, classify, token-classify or fill-mask");
        return err_set(e, ST_USER, "the task '%s' is not known; it is one of auto, embed, classify, token-classify, fill-mask", word);
    }
    const char *class = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    c->task = TASK_EMBED;
    if (has_modules || !class)
        return ST_OK;
    for (int i = 0; i < TASK_OUTPUTS; i++)
        if (ends_with(class, heads[i])) {
            c->task = (enum task)i;
            return ST_OK;
        }
    return err_set(e, ST_USER,
                   "'%s/%s' is of a '%s', whose head is not supported; --task embed takes the encoder alone, --task classify, token-classify "
                   "or fill-mask another head if its weights are there",
                   at.dir, at.file, class);
}

static enum status add_label(struct at at, struct model_config *c, const char *name, struct err *e)
{
    for (uint32_t i = 0; i < c->label_count; i++)
        if (strcmp(c->label[i], name) == 0)
            return err_set(e, ST_USER, "'%s/%s': id2label calls two labels '%s'; give each a name of its own", at.dir, at.file, name);
    if (!(c->label[c->label_count] = mem_strdup(name)))
        return err_nomem(e, "the model's labels");
    c->label_count++;
    return ST_OK;
}

static enum status read_labels(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    json_t *names = json_object_get(j, "id2label");
    uint32_t n = 2;
    TRY(may_u32(at, j, "num_labels", 1, 1 << 20, &n, e));
    if (names && !json_is_null(names)) {
        if (!json_is_object(names) || json_object_size(names) == 0 || json_object_size(names) > 1 << 20)
            return err_set(e, ST_USER, "'%s/%s': id2label is not an object of names", at.dir, at.file);
        n = (uint32_t)json_object_size(names);
    }
    if (!(c->label = mem_array(n, sizeof *c->label)))
        return err_nomem(e, "the model's labels");
    for (uint32_t i = 0; i < n; i++) {
        char key[16], plain[32];
        snprintf(key, sizeof key, "%u", i);
        snprintf(plain, sizeof plain, "LABEL_%u", i);
        json_t *name = json_object_get(names, key);
        if (names && json_object_size(names) && !json_is_string(name))
            return err_set(e, ST_USER, "'%s/%s': id2label has %u entries, but none for '%u' that is a text", at.dir, at.file, n, i);
        TRY(add_label(at, c, name ? json_string_value(name) : plain, e));
    }
    return ST_OK;
}

/* As transformers' pipelines and sentence-transformers' CrossEncoder have it. */
static enum status read_scoring(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    const char *problem = json_string_value(json_object_get(j, "problem_type"));
    const char *act = json_string_value(json_object_get(json_object_get(j, "sentence_transformers"), "activation_fn"));
    if (!act)
        act = json_string_value(json_object_get(j, "sbert_ce_default_activation_function"));
    if (c->task == TASK_TOKENS)
        c->scoring = SCORING_SOFTMAX;
    else if (problem && strcmp(problem, "regression") == 0)
        c->scoring = SCORING_RAW;
    else if (problem && strcmp(problem, "multi_label_classification") == 0)
        c->scoring = SCORING_SIGMOID;
    else if (problem && strcmp(problem, "single_label_classification") == 0 && c->label_count > 1)
        c->scoring = SCORING_SOFTMAX;
    else if (problem && strcmp(problem, "single_label_classification") != 0)
        return err_set(e, ST_USER, "'%s/%s': problem_type '%s' is not known", at.dir, at.file, problem);
    else if (c->label_count > 1)
        c->scoring = SCORING_SOFTMAX;
    else if (!act || ends_with(act, ".Sigmoid"))
        c->scoring = SCORING_SIGMOID;
    else if (ends_with(act, ".Identity"))
        c->scoring = SCORING_RAW;
    else
        return err_set(e, ST_USER, "'%s/%s': the activation '%s' of the score is not supported; supported are Sigmoid and Identity", at.dir,
                       at.file, act);
    return ST_OK;
}

/* Other files ------------------------------------------------------------------------------------------------------------------------- */

/* ST_OK with *j NULL when there is no such file. */
static enum status open_optional(const char *dir, const char *file, json_t **j, struct err *e)
{
    struct err why;
    enum status st = modeldir_json(dir, file, j, &why);
    if (st == ST_NOT_FOUND)
        return ST_OK;
    return st == ST_OK ? ST_OK : err_set(e, st, "%s", why.text);
}

/* *out is 0 when file or field is missing, or the field is null. */
static enum status read_limit(const char *dir, const char *file, const char *key, uint32_t *out, struct err *e)
{
    json_t *j = NULL;
    *out = 0;
    TRY(open_optional(dir, file, &j, e));
    enum status st = ST_OK;
    json_t *v = json_object_get(j, key);
    /* model_max_length is 1e30 where a publisher knew of no limit */
    if (json_is_number(v) && json_number_value(v) >= 1 && json_number_value(v) < 1e9)
        *out = (uint32_t)json_number_value(v);
    else if (v && !json_is_null(v) && !json_is_number(v))
        st = err_set(e, ST_USER, "'%s/%s': '%s' is not a number", dir, file, key);
    json_decref(j);
    return st;
}

static enum status read_limits(const char *dir, struct model_config *c, struct err *e)
{
    TRY(read_limit(dir, "sentence_bert_config.json", "max_seq_length", &c->max_tokens, e));
    if (c->max_tokens == 0)
        TRY(read_limit(dir, "tokenizer_config.json", "model_max_length", &c->max_tokens, e));
    uint32_t most = c->family->positions == POSITIONS_AFTER_PADDING ? c->positions - c->padding_id - 1 : c->positions;
    if (c->max_tokens == 0 || c->max_tokens > most)
        c->max_tokens = most;
    return ST_OK;
}

/* "[MASK]", or {"content": "[MASK]", ...} */
static enum status read_mask_token(const char *dir, struct model_config *c, struct err *e)
{
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    snprintf(c->mask_token, sizeof c->mask_token, "%s", c->family->mask_token);
    for (int i = 0; i < 2; i++) {
        json_t *j = NULL;
        TRY(open_optional(dir, files[i], &j, e));
        json_t *v = json_object_get(j, "mask_token");
        const char *word = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
        int fits = word && strlen(word) < sizeof c->mask_token;
        if (fits)
            snprintf(c->mask_token, sizeof c->mask_token, "%s", word);
        json_decref(j);
        if (fits)
            break;
    }
    return ST_OK;
}

static enum status read_all(const char *dir, const char *task, json_t *j, struct model_config *c, struct err *e)
{
    struct at at = {dir, "config.json"};
    int has_modules;
    TRY(read_main(at, j, c, e));
    TRY(modules_read(dir, c, &has_modules, e));
    TRY(read_task(at, j, task, has_modules, c, e));
    if (c->task == TASK_CLASSIFY || c->task == TASK_TOKENS) {
        TRY(read_labels(at, j, c, e));
        TRY(read_scoring(at, j, c, e));
    }
    if (c->task == TASK_FILL_MASK)
        TRY(read_mask_token(dir, c, e));
    return read_limits(dir, c, e);
}

enum status config_read(const char *dir, const char *task, struct model_config *out, struct err *e)
{
    struct model_config c = {.pooling = {POOL_MEAN}, .pooling_count = 1};
    json_t *j = NULL;
    enum status st = modeldir_json(dir, "config.json", &j, e);
    if (st == ST_NOT_FOUND)
        return err_set(e, ST_USER, "'%s' is not a model directory: it has no config.json", dir);
    if (st == ST_OK)
        st = read_all(dir, task, j, &c, e);
    json_decref(j);
    if (st == ST_OK)
        *out = c;
    else
        config_release(&c);
    return st;
}

void config_release(struct model_config *c)
{
    for (uint32_t i = 0; i < c->label_count; i++)
        mem_free(c->label[i]);
    mem_free(c->label);
    *c = (struct model_config){0};
}

uint32_t config_width(const struct model_config *c)
{
    uint32_t n = c->pooling_count * c->hidden;
    for (uint32_t i = 0; i < c->step_count; i++)
        n = c->step[i].is_dense ? c->step[i].out : n;
    return n;
}
