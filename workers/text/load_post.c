/* The post_processor and the truncation of a tokenizer.json. */
#include <string.h>

#include "workers/text/parts.h"

static enum status put(const struct place *at, struct post *p, struct post_part part)
{
    if (p->count == POST_MAX)
        return err_set(at->e, ST_USER, "'%s': the post_processor adds more than %d special tokens", at->path, POST_MAX - 2);
    p->part[p->count++] = part;
    if (part.sequence < 0)
        p->special++;
    else
        p->has[part.sequence] = 1;
    return ST_OK;
}

static enum status put_text(const struct place *at, struct post *p, int sequence, int type)
{
    return put(at, p, (struct post_part){.sequence = sequence, .type = (uint8_t)type});
}

static enum status put_id(const struct place *at, const struct tokenizer *t, struct post *p, json_int_t id, int type)
{
    if (id < 0 || id >= t->vocab_size)
        return err_set(at->e, ST_USER, "'%s': the post_processor uses id %lld, which the vocabulary lacks", at->path, (long long)id);
    return put(at, p, (struct post_part){.sequence = -1, .id = (int32_t)id, .type = (uint8_t)type});
}

enum status tok_post_around(const struct place *at, struct tokenizer *t, json_int_t first, json_int_t last, int roberta)
{
    struct post *p = &t->single;
    t->single = t->pair = (struct post){0};
    for (int pair = 0; pair < 2; pair++, p = &t->pair) {
        TRY(put_id(at, t, p, first, 0));
        TRY(put_text(at, p, 0, 0));
        TRY(put_id(at, t, p, last, 0));
        if (!pair)
            continue;
        if (roberta)
            TRY(put_id(at, t, p, last, 0));
        TRY(put_text(at, p, 1, !roberta));
        TRY(put_id(at, t, p, last, !roberta));
    }
    return ST_OK;
}

void tok_post_default(struct tokenizer *t)
{
    t->single = (struct post){.part = {{.sequence = 0}}, .count = 1, .has = {1, 0}};
    t->pair = (struct post){.part = {{.sequence = 0}, {.sequence = 1, .type = 1}}, .count = 2, .has = {1, 1}};
}

static enum status load_pieces(const struct place *at, const struct tokenizer *t, const json_t *pieces, const json_t *specials,
                               struct post *out)
{
    *out = (struct post){0};
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i), *text = json_object_get(piece, "Sequence"),
                     *token = json_object_get(piece, "SpecialToken"), *type = json_object_get(text ? text : token, "type_id");
        const char *sequence = tok_text(text, "id"), *special = tok_text(token, "id");
        int which = sequence && !strcmp(sequence, "B"), number = type ? (int)json_integer_value(type) : 0;
        if (number < 0 || number > 255)
            return err_set(at->e, ST_USER, "'%s': piece %zu of the post_processor's template has a type_id that is not 0 to 255", at->path,
                           i);
        if (sequence && (which || !strcmp(sequence, "A")) && !out->has[which] && (!which || out == &t->pair)) {
            TRY(put_text(at, out, which, number));
        } else if (special) {
            const json_t *ids = json_object_get(json_object_get(specials, special), "ids");
            if (!json_is_array(ids))
                return err_set(at->e, ST_USER, "'%s': the post_processor does not say which ids '%.100s' has", at->path, special);
            for (size_t k = 0; k < json_array_size(ids); k++) {
                const json_t *id = json_array_get(ids, k);
                TRY(put_id(at, t, out, json_is_integer(id) ? json_integer_value(id) : -1, number));
            }
        } else {
            return err_set(at->e, ST_USER, "'%s': piece %zu of the post_processor's template is not supported", at->path, i);
        }
    }
    return ST_OK;
}

static enum status load_template(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const json_t *single = json_object_get(v, "single"), *pair = json_object_get(v, "pair"),
                 *specials = json_object_get(v, "special_tokens");
    if (!json_is_array(single))
        return tok_lacks(at, "the post_processor", "a list 'single'");
    TRY(load_pieces(at, t, single, specials, &t->single));
    if (!t->single.has[0])
        return tok_lacks(at, "the post_processor's template", "the text (Sequence 'A')");
    return load_pieces(at, t, pair, specials, &t->pair);
}

static enum status load_around(const struct place *at, struct tokenizer *t, const json_t *v, int roberta)
{
    const json_t *cls = json_array_get(json_object_get(v, "cls"), 1), *sep = json_array_get(json_object_get(v, "sep"), 1);
    return tok_post_around(at, t, json_is_integer(cls) ? json_integer_value(cls) : -1, json_is_integer(sep) ? json_integer_value(sep) : -1,
                           roberta);
}

static enum status load_trim(const struct place *at, struct tokenizer *t, const json_t *v, const char *where)
{
    int on, prefix;
    TRY(tok_flag(at, where, v, "trim_offsets", &on));
    TRY(tok_flag(at, where, v, "add_prefix_space", &prefix));
    if (on && t->trims < 4)
        t->trim[t->trims++] = (struct trim){1, prefix};
    return ST_OK;
}

static enum status load_post(const struct place *at, struct tokenizer *t, const json_t *v, int depth, int *adders)
{
    if (!v || json_is_null(v))
        return ST_OK;
    const char *type = tok_text(v, "type");
    if (type && !strcmp(type, "Sequence") && depth < 4) {
        const json_t *list = json_object_get(v, "processors");
        if (!json_is_array(list))
            return tok_lacks(at, "the post_processor 'Sequence'", "a list 'processors'");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_post(at, t, json_array_get(list, i), depth + 1, adders));
        return ST_OK;
    }
    if (type && !strcmp(type, "ByteLevel"))
        return load_trim(at, t, v, "the post_processor 'ByteLevel'");
    int roberta = type && !strcmp(type, "RobertaProcessing"), bert = type && !strcmp(type, "BertProcessing");
    int template = type && !strcmp(type, "TemplateProcessing");
    if (!roberta && !bert && !template)
        return tok_unsupported(at, "post_processor", type);
    if ((*adders)++)
        return err_set(at->e, ST_USER, "'%s': two post_processors that add special tokens are not supported by this version", at->path);
    if (template)
        return load_template(at, t, v);
    if (roberta)
        TRY(load_trim(at, t, v, "the post_processor 'RobertaProcessing'"));
    return load_around(at, t, v, roberta);
}

enum status tok_load_post(const struct place *at, struct tokenizer *t, const json_t *v)
{
    int adders = 0;
    tok_post_default(t);
    return load_post(at, t, v, 0, &adders);
}

/* {"direction": "Left" or "Right", ...}; how long texts may be is the model's affair. */
enum status tok_load_truncation(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const char *direction = tok_text(v, "direction");
    if (direction && strcmp(direction, "Left") != 0 && strcmp(direction, "Right") != 0)
        return tok_unsupported(at, "direction of truncation", direction);
    t->left = direction && !strcmp(direction, "Left");
    return ST_OK;
}
