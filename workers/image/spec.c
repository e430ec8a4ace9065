#include "workers/image/spec.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "storage/modeldir.h"
#include "workers/image/types.h"

#define FILE_NAME "preprocessor_config.json"

/* The file as it is read: where messages point, and the type that gives the defaults */
struct reading {
    const char *name;
    const json_t *root;
    const struct image_type *type;
};

/* null is as good as absent */
static const json_t *field(const struct reading *r, const char *key)
{
    const json_t *v = json_object_get(r->root, key);
    return json_is_null(v) ? NULL : v;
}

static enum status wrong(const struct reading *r, const char *key, const char *must, struct err *e)
{
    return err_set(e, ST_USER, "'%s': '%s' must be %s", r->name, key, must);
}

static enum status get_bool(const struct reading *r, const char *key, int absent, int *out, struct err *e)
{
    const json_t *v = field(r, key);
    *out = v ? json_is_true(v) : absent;
    return !v || json_is_boolean(v) ? ST_OK : wrong(r, key, "true or false", e);
}

static enum status get_number(const struct reading *r, const char *key, double absent, double *out, struct err *e)
{
    const json_t *v = field(r, key);
    *out = v ? json_number_value(v) : absent;
    return !v || json_is_number(v) ? ST_OK : wrong(r, key, "a number", e);
}

/* Also one number for all three */
static enum status get_colour(const struct reading *r, const char *key, const double absent[3], double out[3], struct err *e)
{
    const json_t *v = field(r, key);
    for (size_t i = 0; i < 3; i++) {
        const json_t *n = json_is_array(v) ? json_array_get(v, i) : v;
        if (v && (!json_is_number(n) || (json_is_array(v) && json_array_size(v) != 3)))
            return wrong(r, key, "a number, or a list of three", e);
        out[i] = v ? json_number_value(n) : absent[i];
    }
    return ST_OK;
}

static int side(const json_t *v, uint32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > IMAGE_SIDE_MAX)
        return 0;
    *out = (uint32_t)json_integer_value(v);
    return 1;
}

/* A size: both sides, or (both 0) the shorter one. `square`: what a bare number means. */
static enum status get_size(const struct reading *r, const char *key, int square, uint32_t *width, uint32_t *height, uint32_t *edge,
                            struct err *e)
{
    const json_t *v = field(r, key);
    int ok;
    *width = *height = *edge = 0;
    if (json_is_integer(v)) {
        ok = side(v, edge);
        if (square) {
            *width = *height = *edge;
            *edge = 0;
        }
    } else if (json_is_array(v)) {
        ok = json_array_size(v) == 2 && side(json_array_get(v, 0), height) && side(json_array_get(v, 1), width);
    } else if (json_object_get(v, "shortest_edge")) {
        ok = json_object_size(v) == 1 && side(json_object_get(v, "shortest_edge"), edge);
    } else {
        ok = json_object_size(v) == 2 && side(json_object_get(v, "height"), height) && side(json_object_get(v, "width"), width);
    }
    if (!ok)
        return err_set(e, ST_USER,
                       "'%s': '%s' must be a number, {\"height\": h, \"width\": w} or {\"shortest_edge\": n} of whole numbers from 1 to %d; other "
                       "ways to give a size are not supported",
                       r->name, key, IMAGE_SIDE_MAX);
    return ST_OK;
}

/* Type ----------------------------------------------------------------------------------------------------------------------------- */

static int is_type(const char *word, size_t len, const char *name)
{
    return len == strlen(name) && strncmp(word, name, len) == 0;
}

static enum status get_type(struct reading *r, struct image_spec *s, struct err *e)
{
    const json_t *v = field(r, "image_processor_type");
    const char *key = v ? "image_processor_type" : "feature_extractor_type";
    const char *word = json_string_value(v ? v : field(r, "feature_extractor_type"));
    if (!word)
        return err_set(e, ST_USER, "'%s' lacks 'image_processor_type', e.g. \"ViTImageProcessor\", or \"generic\" to spell out every step", r->name);
    size_t len = strlen(word);
    static const char *const endings[] = {"Fast", "Pil", "ImageProcessor", "FeatureExtractor"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        if (len > n && strncmp(word + len - n, endings[i], n) == 0)
            len -= n;
    }
    for (size_t i = 0; i < sizeof image_types / sizeof *image_types; i++)
        if (is_type(word, len, image_types[i].name)) {
            r->type = &image_types[i];
            snprintf(s->type, sizeof s->type, "%s", word);
            return ST_OK;
        }
    char known[512] = "";
    for (size_t i = 0, at = 0; i < sizeof image_types / sizeof *image_types; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", image_types[i].name);
    return err_set(e, ST_USER, "'%s': %s '%.60s' is not supported; supported are the processors of %s", r->name, key, word, known);
}

/* Fields that are read below, and those that change no pixel */
static const struct {
    const char *key;
    int rule; /* the only rule that knows it; -1: all */
} known[] = {
    {"image_processor_type", -1}, {"feature_extractor_type", -1}, {"processor_class", -1},
    {"do_resize", -1},            {"size", -1},                   {"resample", -1},
    {"do_center_crop", -1},       {"crop_size", -1},              {"do_rescale", -1},
    {"rescale_factor", -1},       {"do_normalize", -1},           {"image_mean", -1},
    {"image_std", -1},            {"do_convert_rgb", -1},         {"default_to_square", -1},
    {"data_format", -1},          {"input_data_format", -1},      {"return_tensors", -1},
    {"device", -1},               {"disable_grouping", -1},       {"_valid_processor_keys", -1},
    {"do_reduce_labels", -1},     {"reduce_labels", -1},          {"image_seq_length", -1},
    {"crop_pct", RULE_CONVNEXT},  {"crop_pct", RULE_POOLFORMER},  {"rescale_offset", RULE_EFFICIENTNET},
    {"include_top", RULE_EFFICIENTNET}, {"do_flip_channel_order", RULE_MOBILEVIT}, {"do_flip_channel_order", RULE_GENERIC},
    {"do_flip_channels", RULE_MOBILEVIT}, {"do_pad", RULE_GENERIC}, {"pad_size", RULE_GENERIC},
};

static enum status check_fields(const struct reading *r, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)r->root, key, v) {
        int ok = json_is_null(v) || json_is_false(v) || (strcmp(key, "pad_size") == 0 && !json_is_true(field(r, "do_pad")));
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            ok |= strcmp(key, known[i].key) == 0 && (known[i].rule < 0 || known[i].rule == (int)r->type->rule);
        if (!ok)
            return err_set(e, ST_USER,
                           "'%s': the field '%.60s' is not known for %s; take it out if it does not change the picture, or use the type \"generic\"",
                           r->name, key, r->type->name);
    }
    return ST_OK;
}

/* Steps ---------------------------------------------------------------------------------------------------------------------------- */

static enum status read_resize(const struct reading *r, struct image_spec *s, struct err *e)
{
    const struct image_type *t = r->type;
    int on, square;
    double number = t->resample, pct = 0;
    TRY(get_bool(r, "do_resize", t->rule != RULE_GENERIC, &on, e));
    TRY(get_bool(r, "default_to_square", t->square, &square, e));
    TRY(get_number(r, "resample", t->resample, &number, e));
    if (!(number >= 0 && number <= RESAMPLE_HAMMING) || number != (double)(int)number)
        return wrong(r, "resample", "one of Pillow's filters, 0 (nearest) to 5 (hamming)", e);
    s->resample = (enum resample)(int)number;
    if (!on)
        return ST_OK;
    if (field(r, "size"))
        TRY(get_size(r, "size", square, &s->width, &s->height, &s->edge, e));
    else if (t->rule == RULE_GENERIC)
        return err_set(e, ST_USER, "'%s': do_resize needs 'size'", r->name);
    else if (t->shortest)
        s->edge = (uint32_t)t->size;
    else
        s->width = s->height = (uint32_t)t->size;
    if (t->rule == RULE_CONVNEXT || t->rule == RULE_POOLFORMER) {
        TRY(get_number(r, "crop_pct", t->rule == RULE_CONVNEXT ? 0.875 : 0.9, &pct, e));
        if (!(pct >= 0.01 && pct <= 1))
            return wrong(r, "crop_pct", "a number from 0.01 to 1", e);
    }
    if (t->rule == RULE_CONVNEXT && !s->edge)
        return wrong(r, "size", "{\"shortest_edge\": n} for this type", e);
    if (t->rule == RULE_CONVNEXT && s->edge < 384) {
        s->crop_width = s->crop_height = s->edge;
        s->edge = (uint32_t)(s->edge / pct);
    } else if (t->rule == RULE_CONVNEXT) {
        s->width = s->height = s->edge;
        s->edge = 0;
    } else if (t->rule == RULE_LEVIT && s->edge) {
        s->edge = (uint32_t)(256.0 / 224.0 * s->edge);
    } else if (t->rule == RULE_POOLFORMER && (s->edge || s->width == s->height)) {
        s->edge = (uint32_t)((s->edge ? s->edge : s->width) / pct);
    } else if (t->rule == RULE_POOLFORMER) {
        s->width = (uint32_t)(s->width / pct);
        s->height = (uint32_t)(s->height / pct);
    }
    s->sizing = s->edge ? IMAGE_SHORTEST : IMAGE_EXACT;
    return ST_OK;
}

static enum status read_crop(const struct reading *r, struct image_spec *s, struct err *e)
{
    int on;
    uint32_t width = (uint32_t)r->type->crop, height = width, edge;
    TRY(get_bool(r, "do_center_crop", r->type->crops, &on, e));
    if (!on)
        return ST_OK;
    if (field(r, "crop_size"))
        TRY(get_size(r, "crop_size", 1, &width, &height, &edge, e));
    if (!width)
        return err_set(e, ST_USER, "'%s': do_center_crop needs 'crop_size' with a height and a width", r->name);
    if (s->crop_width && (s->crop_width != width || s->crop_height != height))
        return err_set(e, ST_USER, "'%s': 'crop_size' and the crop that comes with this 'size' differ; a crop of a crop is not supported", r->name);
    s->crop_width = width;
    s->crop_height = height;
    return ST_OK;
}

/* Bytes to numbers, with the roundings of transformers: rescaled in double and rounded to float, then float by float */
static enum status read_values(const struct reading *r, struct image_spec *s, struct err *e)
{
    const struct image_type *t = r->type;
    int rescale, normalize, minus_one = 0, again = 0;
    double factor, mean[3], std[3];
    TRY(get_bool(r, "do_rescale", t->rule != RULE_GENERIC, &rescale, e));
    TRY(get_bool(r, "do_normalize", t->rule != RULE_GENERIC, &normalize, e));
    TRY(get_number(r, "rescale_factor", 1.0 / 255, &factor, e));
    TRY(get_colour(r, "image_mean", t->mean, mean, e));
    TRY(get_colour(r, "image_std", t->std, std, e));
    if (t->rule == RULE_MOBILEVIT)
        normalize = 0;
    if (t->rule == RULE_EFFICIENTNET) {
        TRY(get_bool(r, "rescale_offset", 0, &minus_one, e));
        TRY(get_bool(r, "include_top", 1, &again, e));
    }
    for (int c = 0; c < 3; c++)
        for (int b = 0; b < 256; b++) {
            float v = rescale ? (float)(b * factor) : (float)b, m = (float)mean[c], d = (float)std[c];
            if (rescale && minus_one)
                v -= 1;
            if (normalize)
                v = (v - m) / d;
            if (again)
                v = v / d;
            if (!(v > -1e30f && v < 1e30f))
                return err_set(e, ST_USER, "'%s': 'rescale_factor', 'image_mean' and 'image_std' make a byte %g", r->name, (double)v);
            s->value[c][b] = v;
        }
    return ST_OK;
}

static enum status read_layout(const struct reading *r, struct image_spec *s, struct err *e)
{
    const json_t *v = field(r, "data_format");
    const char *word = v ? json_string_value(v) : "channels_first";
    int on;
    uint32_t edge;
    if (!word || (strcmp(word, "channels_first") != 0 && strcmp(word, "channels_last") != 0))
        return wrong(r, "data_format", "\"channels_first\" or \"channels_last\"", e);
    s->channels_last = strcmp(word, "channels_last") == 0;
    const char *flip = field(r, "do_flip_channel_order") ? "do_flip_channel_order" : "do_flip_channels";
    TRY(get_bool(r, flip, r->type->rule == RULE_MOBILEVIT, &s->bgr, e));
    TRY(get_bool(r, "do_convert_rgb", r->type->convert_rgb, &on, e));
    s->decode.alpha = on ? IMAGE_ALPHA_WHITE : IMAGE_ALPHA_DROP;
    TRY(get_bool(r, "do_pad", 0, &on, e));
    if (!on)
        return ST_OK;
    if (field(r, "pad_size"))
        TRY(get_size(r, "pad_size", 1, &s->pad_width, &s->pad_height, &edge, e));
    if (!s->pad_width)
        return err_set(e, ST_USER, "'%s': do_pad needs 'pad_size' with a height and a width", r->name);
    uint32_t width = s->crop_width ? s->crop_width : s->width, height = s->crop_width ? s->crop_height : s->height;
    if (width > s->pad_width || height > s->pad_height)
        return err_set(e, ST_USER, "'%s': 'pad_size' is smaller than the pictures that it is for", r->name);
    return ST_OK;
}

static enum status read_all(struct reading *r, struct image_spec *out, struct err *e)
{
    struct image_spec s;
    memset(&s, 0, sizeof s);
    s.decode.limits = IMAGE_LIMITS_DEFAULT;
    if (!json_is_object(r->root))
        return err_set(e, ST_USER, "'%s' is not a JSON object", r->name);
    TRY(get_type(r, &s, e));
    TRY(check_fields(r, e));
    TRY(read_resize(r, &s, e));
    TRY(read_crop(r, &s, e));
    TRY(read_values(r, &s, e));
    TRY(read_layout(r, &s, e));
    *out = s;
    return ST_OK;
}

enum status image_spec_parse(const char *name, const void *json, size_t len, struct image_spec *out, struct err *e)
{
    json_error_t why;
    json_t *root = json_loadb(json, len, 0, &why);
    if (!root)
        return err_set(e, ST_USER, "'%s' is not valid JSON: line %d, column %d: %s", name, why.line, why.column, why.text);
    struct reading r = {.name = name, .root = root};
    enum status st = read_all(&r, out, e);
    json_decref(root);
    return st;
}

enum status image_spec_load(const char *dir, struct image_spec *out, struct err *e)
{
    json_t *root;
    char name[512];
    TRY(modeldir_json(dir, FILE_NAME, &root, e));
    snprintf(name, sizeof name, "%s/" FILE_NAME, dir);
    struct reading r = {.name = name, .root = root};
    enum status st = read_all(&r, out, e);
    json_decref(root);
    return st;
}

int image_spec_fixed(const struct image_spec *s, uint32_t *width, uint32_t *height)
{
    *width = s->pad_width ? s->pad_width : s->crop_width ? s->crop_width : s->width;
    *height = s->pad_width ? s->pad_height : s->crop_width ? s->crop_height : s->height;
    return *width != 0;
}
