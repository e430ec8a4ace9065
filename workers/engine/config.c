#include "workers/engine/config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "storage/modeldir.h"

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

static enum status read_act(struct at at, json_t *j, enum act *out, struct err *e)
{
    static const struct {
        const char *name;
        enum act act;
    } known[] = {{"gelu", ACT_GELU}, {"gelu_new", ACT_GELU_TANH}, {"gelu_pytorch_tanh", ACT_GELU_TANH}, {"relu", ACT_RELU}};
    json_t *v = json_object_get(j, "hidden_act");
    const char *name = v ? json_string_value(v) : "gelu"; /* the default of the architecture */
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].act;
            return ST_OK;
        }
    return err_set(e, ST_USER, "'%s/%s': hidden_act '%s' is not supported; it is one of gelu, gelu_new, gelu_pytorch_tanh, relu",
                   at.dir, at.file, name ? name : "?");
}

static enum status read_architecture(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    const char *type = json_string_value(json_object_get(j, "model_type"));
    const char *class = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    const char *what = type ? type : class ? class : "?";
    if (strcmp(what, "bert") != 0 && strcmp(what, "BertModel") != 0)
        return err_set(e, ST_USER, "'%s/%s': the architecture '%s' is not supported by this version; supported is 'bert'", at.dir,
                       at.file, what);
    snprintf(c->architecture, sizeof c->architecture, "bert");
    json_t *pos = json_object_get(j, "position_embedding_type");
    const char *kind = pos ? json_string_value(pos) : "absolute";
    if (!kind || strcmp(kind, "absolute") != 0)
        return err_set(e, ST_USER, "'%s/%s': position_embedding_type '%s' is not supported; supported is 'absolute'", at.dir, at.file,
                       kind ? kind : "?");
    if (json_is_true(json_object_get(j, "is_decoder")))
        return err_set(e, ST_USER, "'%s/%s' describes a decoder (is_decoder is true); supported are encoders", at.dir, at.file);
    return ST_OK;
}

static enum status read_main(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    if (!json_is_object(j))
        return err_set(e, ST_USER, "'%s/%s' is not a JSON object", at.dir, at.file);
    TRY(read_architecture(at, j, c, e));
    TRY(get_u32(at, j, "num_hidden_layers", 1024, &c->layers, e));
    TRY(get_u32(at, j, "hidden_size", 65536, &c->hidden, e));
    TRY(get_u32(at, j, "num_attention_heads", 1024, &c->heads, e));
    TRY(get_u32(at, j, "intermediate_size", 1 << 20, &c->ffn, e));
    TRY(get_u32(at, j, "vocab_size", 1 << 24, &c->vocab, e));
    TRY(get_u32(at, j, "max_position_embeddings", 1 << 20, &c->positions, e));
    c->types = 2;
    if (json_object_get(j, "type_vocab_size"))
        TRY(get_u32(at, j, "type_vocab_size", 1 << 16, &c->types, e));
    if (c->hidden % c->heads != 0)
        return err_set(e, ST_USER, "'%s/%s': hidden_size %u is not a multiple of num_attention_heads %u", at.dir, at.file, c->hidden,
                       c->heads);
    json_t *eps = json_object_get(j, "layer_norm_eps");
    c->norm_eps = 1e-12f;
    if (eps) {
        double v = json_number_value(eps);
        if (!json_is_number(eps) || !(v >= 0 && v <= 1))
            return err_set(e, ST_USER, "'%s/%s': layer_norm_eps must be a number from 0 to 1", at.dir, at.file);
        c->norm_eps = (float)v;
    }
    return read_act(at, j, &c->act, e);
}

/* How sentence-transformers spells the kinds, in either of its two ways. */
static const struct {
    const char *flag, *name;
    int supported;
    enum pooling p;
} poolings[] = {
    {"pooling_mode_mean_tokens", "mean", 1, POOL_MEAN},
    {"pooling_mode_cls_token", "cls", 1, POOL_CLS},
    {"pooling_mode_max_tokens", "max", 1, POOL_MAX},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len", 1, POOL_MEAN_SQRT},
    {"pooling_mode_weightedmean_tokens", "weightedmean", 0, POOL_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", 0, POOL_MEAN},
};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

const char *pooling_name(enum pooling p)
{
    for (int i = 0; i < POOLINGS; i++)
        if (poolings[i].supported && poolings[i].p == p)
            return poolings[i].name;
    BUG("no name for pooling %d", (int)p);
}

static enum status read_pooling(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    const char *mode = json_string_value(json_object_get(j, "pooling_mode"));
    int found = -1, n = 0;
    for (int i = 0; i < POOLINGS; i++)
        if (mode ? strcmp(mode, poolings[i].name) == 0 : json_is_true(json_object_get(j, poolings[i].flag))) {
            found = i;
            n++;
        }
    if (n != 1)
        return err_set(e, ST_USER, "'%s/%s' asks for %s kinds of pooling at once; supported is one", at.dir, at.file,
                       n ? "several" : "no or unknown");
    if (!poolings[found].supported)
        return err_set(e, ST_USER, "'%s/%s': pooling '%s' is not supported; it is one of mean, cls, max, mean_sqrt_len", at.dir,
                       at.file, poolings[found].name);
    c->pooling = poolings[found].p;
    json_t *dim = json_object_get(j, "word_embedding_dimension");
    if (dim && (!json_is_integer(dim) || json_integer_value(dim) != c->hidden))
        return err_set(e, ST_USER, "'%s/%s': word_embedding_dimension is not the hidden_size %u of config.json", at.dir, at.file,
                       c->hidden);
    return ST_OK;
}

/* Transformer, Pooling, then perhaps Normalize: what the engine computes. Anything else would change the result, so it is
   refused. */
static enum status read_modules(const char *dir, json_t *modules, struct model_config *c, struct err *e)
{
    static const char *const order[] = {"Transformer", "Pooling", "Normalize"};
    size_t n = json_array_size(modules);
    if (!json_is_array(modules) || n == 0)
        return err_set(e, ST_USER, "'%s/modules.json' is not a list of modules", dir);
    for (uint32_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_object_get(json_array_get(modules, i), "type")), *path;
        const char *dot = type ? strrchr(type, '.') : NULL, *kind = dot ? dot + 1 : type ? type : "?";
        if (i >= 3 || strcmp(kind, order[i]) != 0)
            return err_set(e, ST_USER,
                           "'%s/modules.json': module %u is a '%s'; supported by this version are Transformer, Pooling and "
                           "Normalize, in this order",
                           dir, i, kind);
        TRY(modeldir_module_path(dir, modules, i, &path, e));
        if (i == 0 && path[0])
            return err_set(e, ST_USER,
                           "'%s/modules.json' places the transformer in the folder '%s'; supported is a model whose config.json "
                           "and weights lie in '%s' itself",
                           dir, path, dir);
        if (i == 1) {
            char file[1024];
            if ((size_t)snprintf(file, sizeof file, "%s/config.json", path) >= sizeof file)
                return err_set(e, ST_USER, "'%s/modules.json': the path of module 1 is too long", dir);
            json_t *j = NULL;
            enum status st = modeldir_json(dir, file, &j, e);
            if (st == ST_NOT_FOUND)
                return err_set(e, ST_USER, "'%s/%s' is missing, though modules.json names its folder", dir, file);
            if (st == ST_OK)
                st = read_pooling((struct at){dir, file}, j, c, e);
            json_decref(j);
            TRY(st);
        }
        c->normalize |= i == 2;
    }
    return n == 1 ? err_set(e, ST_USER, "'%s/modules.json' has no Pooling: one vector a text needs it", dir) : ST_OK;
}

/* Missing files are fine; *out is 0 then, or when the field is missing or null. */
static enum status read_limit(const char *dir, const char *file, const char *key, uint32_t *out, struct err *e)
{
    json_t *j = NULL;
    struct err why;
    enum status st = modeldir_json(dir, file, &j, &why);
    *out = 0;
    if (st == ST_NOT_FOUND)
        return ST_OK;
    if (st != ST_OK)
        return err_set(e, st, "%s", why.text);
    json_t *v = json_object_get(j, key);
    /* model_max_length is 1e30 where a publisher knew of no limit */
    if (json_is_number(v) && json_number_value(v) >= 1 && json_number_value(v) < 1e9)
        *out = (uint32_t)json_number_value(v);
    else if (v && !json_is_null(v) && !json_is_number(v))
        st = err_set(e, ST_USER, "'%s/%s': '%s' is not a number", dir, file, key);
    json_decref(j);
    return st;
}

enum status config_read(const char *dir, struct model_config *out, struct err *e)
{
    struct model_config c = {.pooling = POOL_MEAN};
    json_t *j = NULL;
    struct err why;
    enum status st = modeldir_json(dir, "config.json", &j, e);
    if (st == ST_NOT_FOUND)
        return err_set(e, ST_USER, "'%s' is not a model directory: it has no config.json", dir);
    if (st == ST_OK)
        st = read_main((struct at){dir, "config.json"}, j, &c, e);
    json_decref(j);
    TRY(st);
    j = NULL;
    st = modeldir_json(dir, "modules.json", &j, &why);
    if (st == ST_OK)
        st = read_modules(dir, j, &c, e);
    else if (st == ST_NOT_FOUND)
        st = ST_OK;
    else
        err_set(e, st, "%s", why.text);
    json_decref(j);
    TRY(st);
    TRY(read_limit(dir, "sentence_bert_config.json", "max_seq_length", &c.max_tokens, e));
    if (c.max_tokens == 0)
        TRY(read_limit(dir, "tokenizer_config.json", "model_max_length", &c.max_tokens, e));
    if (c.max_tokens == 0 || c.max_tokens > c.positions)
        c.max_tokens = c.positions;
    *out = c;
    return ST_OK;
}
