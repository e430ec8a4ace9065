/* modules.json of sentence-transformers: a Transformer, a Pooling, then any number of Dense and Normalize. What the engine computes
   is exactly what these say; anything else would change the result, so it is refused. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "storage/modeldir.h"
#include "workers/engine/config.h"

struct at {
    const char *dir, *file;
};

/* How sentence-transformers spells the kinds, in either of its two ways, in the order in which it puts them side by side. */
static const struct {
    const char *flag, *name, *long_name;
    enum pooling p;
} poolings[] = {
    {"pooling_mode_cls_token", "cls", "cls", POOL_CLS},
    {"pooling_mode_max_tokens", "max", "max", POOL_MAX},
    {"pooling_mode_mean_tokens", "mean", "mean", POOL_MEAN},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len", "mean_sqrt_len_tokens", POOL_MEAN_SQRT},
    {"pooling_mode_weightedmean_tokens", "weightedmean", "weightedmean", POOL_WEIGHTED},
    {"pooling_mode_lasttoken", "lasttoken", "lasttoken", POOL_LAST},
};
enum { POOLINGS = sizeof poolings / sizeof *poolings };

const char *pooling_name(enum pooling p)
{
    for (int i = 0; i < POOLINGS; i++)
        if (poolings[i].p == p)
            return poolings[i].name;
    BUG("no name for pooling %d", (int)p);
}

static enum status add_mode(struct at at, const char *mode, struct model_config *c, struct err *e)
{
    for (int i = 0; mode && i < POOLINGS; i++)
        if (strcmp(mode, poolings[i].name) == 0 || strcmp(mode, poolings[i].long_name) == 0) {
            if (c->pooling_count == POOLINGS_MAX)
                return err_set(e, ST_USER, "'%s/%s' asks for more than %d kinds of pooling", at.dir, at.file, POOLINGS_MAX);
            c->pooling[c->pooling_count++] = poolings[i].p;
            return ST_OK;
        }
    return err_set(e, ST_USER,
                   "'%s/%s': pooling '%s' is not supported; it is one of cls, max, mean, mean_sqrt_len, weightedmean, lasttoken", at.dir,
                   at.file, mode ? mode : "?");
}

static enum status read_pooling(struct at at, json_t *j, struct model_config *c, struct err *e)
{
    json_t *modes = json_object_get(j, "pooling_mode");
    c->pooling_count = 0;
    if (json_is_string(modes))
        TRY(add_mode(at, json_string_value(modes), c, e));
    for (size_t i = 0; i < json_array_size(modes); i++)
        TRY(add_mode(at, json_string_value(json_array_get(modes, i)), c, e));
    for (int i = 0; !modes && i < POOLINGS; i++)
        if (json_is_true(json_object_get(j, poolings[i].flag)))
            TRY(add_mode(at, poolings[i].name, c, e));
    if (c->pooling_count == 0)
        return err_set(e, ST_USER, "'%s/%s' asks for no or an unknown kind of pooling", at.dir, at.file);
    json_t *dim = json_object_get(j, "word_embedding_dimension");
    if (!dim)
        dim = json_object_get(j, "embedding_dimension");
    if (dim && (!json_is_integer(dim) || json_integer_value(dim) != c->hidden))
        return err_set(e, ST_USER, "'%s/%s': word_embedding_dimension is not the hidden_size %u of config.json", at.dir, at.file,
                       c->hidden);
    return ST_OK;
}

static enum status read_dense(struct at at, json_t *j, uint32_t width, struct step *s, struct err *e)
{
    static const struct {
        const char *name;
        enum act act;
    } acts[] = {{"Tanh", ACT_TANH}, {"Identity", ACT_NONE}, {"ReLU", ACT_RELU}, {"GELU", ACT_GELU}};
    json_int_t in = json_integer_value(json_object_get(j, "in_features")), out = json_integer_value(json_object_get(j, "out_features"));
    if (in != width || out < 1 || out > 65536)
        return err_set(e, ST_USER, "'%s/%s': in_features must be the %u that come before it, out_features a number from 1 to 65536", at.dir,
                       at.file, width);
    const char *to = json_string_value(json_object_get(j, "module_output_name"));
    const char *from = json_string_value(json_object_get(j, "module_input_name"));
    if (json_is_true(json_object_get(j, "use_residual")) || (to && strcmp(to, "sentence_embedding") != 0) ||
        (from && strcmp(from, "sentence_embedding") != 0))
        return err_set(e, ST_USER, "'%s/%s': a Dense with a residual, or from or to other than sentence_embedding, is not supported", at.dir,
                       at.file);
    const char *act = json_string_value(json_object_get(j, "activation_function")), *dot = act ? strrchr(act, '.') : NULL;
    act = act ? (dot ? dot + 1 : act) : "Tanh"; /* the default of the class */
    s->in = width;
    s->out = (uint32_t)out;
    s->has_bias = !json_is_false(json_object_get(j, "bias"));
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(acts[i].name, act) == 0) {
            s->act = acts[i].act;
            return ST_OK;
        }
    return err_set(e, ST_USER, "'%s/%s': activation_function '%s' is not supported; it is one of Tanh, Identity, ReLU, GELU", at.dir, at.file,
                   act);
}

/* The config.json of module i, whose folder is path. */
static enum status open_module(const char *dir, uint32_t i, const char *path, char *file, size_t cap, json_t **j, struct err *e)
{
    if ((size_t)snprintf(file, cap, "%s/config.json", path) >= cap)
        return err_set(e, ST_USER, "'%s/modules.json': the path of module %u is too long", dir, i);
    enum status st = modeldir_json(dir, file, j, e);
    if (st == ST_NOT_FOUND)
        return err_set(e, ST_USER, "'%s/%s' is missing, though modules.json names its folder", dir, file);
    return st;
}

static enum status read_module(const char *dir, uint32_t i, const char *kind, const char *path, struct model_config *c, struct err *e)
{
    char file[1024];
    json_t *j = NULL;
    struct step *s = &c->step[c->step_count];
    if (i == 0 && strcmp(kind, "Transformer") == 0) {
        if (path[0])
            return err_set(e, ST_USER,
                           "'%s/modules.json' places the transformer in the folder '%s'; supported is a model whose config.json "
                           "and weights lie in '%s' itself",
                           dir, path, dir);
        return ST_OK;
    }
    if (i == 1 && strcmp(kind, "Pooling") == 0) {
        TRY(open_module(dir, i, path, file, sizeof file, &j, e));
        enum status st = read_pooling((struct at){dir, file}, j, c, e);
        json_decref(j);
        return st;
    }
    int dense = strcmp(kind, "Dense") == 0;
    if (i < 2 || (!dense && strcmp(kind, "Normalize") != 0))
        return err_set(e, ST_USER,
                       "'%s/modules.json': module %u is a '%s'; supported by this version are Transformer, Pooling, then Dense and "
                       "Normalize",
                       dir, i, kind);
    if (c->step_count == STEPS_MAX)
        return err_set(e, ST_USER, "'%s/modules.json' has more than %d modules behind the Pooling", dir, STEPS_MAX);
    s->is_dense = dense;
    if (dense) {
        if ((size_t)snprintf(s->folder, sizeof s->folder, "%s", path) >= sizeof s->folder)
            return err_set(e, ST_USER, "'%s/modules.json': the path of module %u is too long", dir, i);
        TRY(open_module(dir, i, path, file, sizeof file, &j, e));
        enum status st = read_dense((struct at){dir, file}, j, config_width(c), s, e);
        json_decref(j);
        TRY(st);
    }
    c->step_count++;
    return ST_OK;
}

static enum status read_modules(const char *dir, json_t *modules, struct model_config *c, struct err *e)
{
    size_t n = json_array_size(modules);
    if (!json_is_array(modules) || n == 0)
        return err_set(e, ST_USER, "'%s/modules.json' is not a list of modules", dir);
    for (uint32_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_object_get(json_array_get(modules, i), "type")), *path;
        const char *dot = type ? strrchr(type, '.') : NULL;
        TRY(modeldir_module_path(dir, modules, i, &path, e));
        TRY(read_module(dir, i, dot ? dot + 1 : type ? type : "?", path, c, e));
    }
    return n == 1 ? err_set(e, ST_USER, "'%s/modules.json' has no Pooling: one vector a text needs it", dir) : ST_OK;
}

enum status modules_read(const char *dir, struct model_config *c, int *found, struct err *e)
{
    json_t *j = NULL;
    struct err why;
    enum status st = modeldir_json(dir, "modules.json", &j, &why);
    *found = st == ST_OK;
    if (st == ST_OK)
        st = read_modules(dir, j, c, e);
    else if (st == ST_NOT_FOUND)
        st = ST_OK;
    else
        err_set(e, st, "%s", why.text);
    json_decref(j);
    return st;
}
