/* The normalizer and the pre_tokenizer of a tokenizer.json. */
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/scan.h"
#include "workers/text/unicode.h"

#define DEPTH_MAX 8

/* {"String": "..."} or {"Regex": "..."} */
static enum status load_pattern(const struct place *at, const char *what, const json_t *v, struct pattern **out)
{
    const json_t *string = json_object_get(v, "String"), *regex = json_object_get(v, "Regex"), *it = regex ? regex : string;
    if (!json_is_string(it))
        return tok_lacks(at, what, "a 'pattern' that is a String or a Regex");
    enum status rc = pattern_open(json_string_value(it), json_string_length(it), it == regex, out, at->e);
    return rc == ST_OK || rc == ST_NOMEM ? rc : err_prefix(at->e, "'%s': %s", at->path, what);
}

/* Normaliser ------------------------------------------------------------------------------------------------------------------ */

static enum status new_op(const struct place *at, struct tokenizer *t, enum normal_kind kind, struct normal_op **out)
{
    struct normals *n = &t->normals;
    if (n->count == NORMALS_MAX)
        return err_set(at->e, ST_USER, "'%s': the normalizer has more than %d parts", at->path, NORMALS_MAX);
    *out = &n->op[n->count++];
    **out = (struct normal_op){.kind = kind};
    return ST_OK;
}

/* Steps over characters that follow each other share one op. */
static enum status add_step(const struct place *at, struct tokenizer *t, enum norm_step step)
{
    struct normals *n = &t->normals;
    struct normal_op *op = n->count ? &n->op[n->count - 1] : NULL;
    if (!op || op->kind != NORMAL_CHARS || (step == NORM_CHARSMAP && op->chars.map))
        TRY(new_op(at, t, NORMAL_CHARS, &op));
    if (op->chars.count == NORM_STEPS_MAX)
        return err_set(at->e, ST_USER, "'%s': the normalizer has more than %d steps", at->path, NORM_STEPS_MAX);
    op->chars.step[op->chars.count++] = (uint8_t)step;
    return ST_OK;
}

enum status tok_add_bert(const struct place *at, struct tokenizer *t, int clean, int han, int strip, int lower)
{
    if (clean)
        TRY(add_step(at, t, NORM_CLEAN));
    if (han)
        TRY(add_step(at, t, NORM_HAN));
    if (strip) {
        TRY(add_step(at, t, NORM_NFD));
        TRY(add_step(at, t, NORM_DROP_MN));
    }
    if (lower)
        TRY(add_step(at, t, NORM_LOWER));
    return ST_OK;
}

static enum status load_bert(const struct place *at, struct tokenizer *t, const json_t *v)
{
    int clean, han, lower, strip;
    TRY(tok_flag(at, "the BertNormalizer", v, "clean_text", &clean));
    TRY(tok_flag(at, "the BertNormalizer", v, "handle_chinese_chars", &han));
    TRY(tok_flag(at, "the BertNormalizer", v, "lowercase", &lower));
    const json_t *s = json_object_get(v, "strip_accents");
    strip = lower;
    if (s && !json_is_null(s))
        TRY(tok_flag(at, "the BertNormalizer", v, "strip_accents", &strip));
    return tok_add_bert(at, t, clean, han, strip, lower);
}

static enum status load_precompiled(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const json_t *map = json_object_get(v, "precompiled_charsmap");
    if (!json_is_string(map))
        return tok_lacks(at, "the normalizer 'Precompiled'", "a string 'precompiled_charsmap'");
    TRY(add_step(at, t, NORM_CHARSMAP));
    struct normal_op *op = &t->normals.op[t->normals.count - 1];
    int rc = charsmap_init(&op->map, json_string_value(map), json_string_length(map));
    if (rc == -1)
        return err_nomem(at->e, "a normalizer");
    if (rc)
        return err_set(at->e, ST_USER, "'%s': the 'precompiled_charsmap' of the normalizer is damaged", at->path);
    op->chars.map = &op->map;
    return ST_OK;
}

static enum status set_text(const struct place *at, struct normal_op *op, const char *what, const json_t *v)
{
    if (!json_is_string(v))
        return tok_lacks(at, what, "the string to put in");
    op->text_len = json_string_length(v);
    return (op->text = mem_strndup(json_string_value(v), op->text_len)) ? ST_OK : err_nomem(at->e, "a normalizer");
}

static enum status load_normalizer(const struct place *at, struct tokenizer *t, const json_t *v, int depth)
{
    static const struct {
        const char *type;
        enum norm_step step;
    } simple[] = {
        {"NFC", NORM_NFC},         {"NFD", NORM_NFD},
        {"NFKC", NORM_NFKC},       {"NFKD", NORM_NFKD},
        {"Lowercase", NORM_LOWER}, {"StripAccents", NORM_DROP_MARKS},
        {"Nmt", NORM_NMT},
    };
    if (!v || json_is_null(v))
        return ST_OK;
    const char *type = tok_text(v, "type");
    struct normal_op *op = NULL;
    if (!type)
        return tok_unsupported(at, "normalizer", type);
    if (!strcmp(type, "Sequence") && depth < DEPTH_MAX) {
        const json_t *list = json_object_get(v, "normalizers");
        if (!json_is_array(list))
            return tok_lacks(at, "the normalizer 'Sequence'", "a list 'normalizers'");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_normalizer(at, t, json_array_get(list, i), depth + 1));
        return ST_OK;
    }
    if (!strcmp(type, "BertNormalizer"))
        return load_bert(at, t, v);
    if (!strcmp(type, "Precompiled"))
        return load_precompiled(at, t, v);
    if (!strcmp(type, "Strip")) {
        int left, right;
        TRY(tok_flag(at, "the normalizer 'Strip'", v, "strip_left", &left));
        TRY(tok_flag(at, "the normalizer 'Strip'", v, "strip_right", &right));
        TRY(new_op(at, t, NORMAL_STRIP, &op));
        op->left = left;
        op->right = right;
        return ST_OK;
    }
    if (!strcmp(type, "Prepend")) {
        TRY(new_op(at, t, NORMAL_PREPEND, &op));
        return set_text(at, op, "the normalizer 'Prepend'", json_object_get(v, "prepend"));
    }
    if (!strcmp(type, "Replace")) {
        TRY(new_op(at, t, NORMAL_REPLACE, &op));
        TRY(load_pattern(at, "the normalizer 'Replace'", json_object_get(v, "pattern"), &op->pattern));
        return set_text(at, op, "the normalizer 'Replace'", json_object_get(v, "content"));
    }
    if (!strcmp(type, "ByteLevel"))
        return new_op(at, t, NORMAL_BYTES, &op);
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++)
        if (!strcmp(type, simple[i].type))
            return add_step(at, t, simple[i].step);
    return tok_unsupported(at, "normalizer", type);
}

enum status tok_load_normalizer(const struct place *at, struct tokenizer *t, const json_t *v)
{
    return load_normalizer(at, t, v, 0);
}

/* Pre-tokenizer ------------------------------------------------------------------------------------------------------------------ */

struct stage *tok_new_stage(struct tokenizer *t, enum stage_kind kind)
{
    if (t->stages.count == STAGES_MAX)
        return NULL;
    struct stage *s = &t->stages.at[t->stages.count++];
    *s = (struct stage){.kind = kind, .behavior = SPLIT_ISOLATED};
    return s;
}

static enum status new_stage(const struct place *at, struct tokenizer *t, enum stage_kind kind, struct stage **out)
{
    *out = tok_new_stage(t, kind);
    return *out ? ST_OK : err_set(at->e, ST_USER, "'%s': the pre_tokenizer has more than %d parts", at->path, STAGES_MAX);
}

static enum status new_class(const struct place *at, struct tokenizer *t, unsigned class, enum split_behavior behavior)
{
    struct stage *s;
    TRY(new_stage(at, t, STAGE_CLASS, &s));
    s->class = class;
    s->behavior = behavior;
    return ST_OK;
}

static enum status load_behavior(const struct place *at, const json_t *v, enum split_behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(v);
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum split_behavior)i;
            return ST_OK;
        }
    return tok_unsupported(at, "behavior", name);
}

/* One character. */
static enum status load_char(const struct place *at, const char *what, const json_t *v, struct stage *s)
{
    const uint8_t *p = (const uint8_t *)(json_is_string(v) ? json_string_value(v) : ""), *end = p + json_string_length(v), *start = p;
    if (p < end)
        s->separator = uni_decode(&p, end);
    if (p == start || p != end)
        return tok_lacks(at, what, "the one character it is about");
    s->utf8_len = uni_encode(s->separator, s->utf8);
    return ST_OK;
}

static enum status load_meta(const struct place *at, struct tokenizer *t, const json_t *v)
{
    static const char what[] = "the pre_tokenizer 'Metaspace'";
    struct stage *s;
    int split = 1, prefix = 1;
    TRY(new_stage(at, t, STAGE_META, &s));
    TRY(load_char(at, what, json_object_get(v, "replacement"), s));
    const char *scheme = tok_text(v, "prepend_scheme");
    if (scheme && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
        return tok_unsupported(at, "prepend_scheme", scheme);
    TRY(tok_flag_if(at, v, "split", &split));
    TRY(tok_flag_if(at, v, "add_prefix_space", &prefix));
    if (!prefix && (!scheme || strcmp(scheme, "never") != 0))
        return err_set(at->e, ST_USER, "'%s': 'add_prefix_space' of %s does not go with its 'prepend_scheme'", at->path, what);
    s->split = split;
    s->scheme = !scheme || !strcmp(scheme, "always") ? META_ALWAYS : !strcmp(scheme, "first") ? META_FIRST : META_NEVER;
    t->whole_origins |= s->scheme == META_FIRST;
    return ST_OK;
}

static enum status load_bytes(const struct place *at, struct tokenizer *t, const json_t *v)
{
    struct stage *s;
    int prefix, regex = 1;
    TRY(tok_flag(at, "the pre_tokenizer 'ByteLevel'", v, "add_prefix_space", &prefix));
    TRY(tok_flag_if(at, v, "use_regex", &regex));
    TRY(new_stage(at, t, STAGE_BYTES, &s));
    s->prefix = prefix;
    s->regex = regex;
    return ST_OK;
}

static enum status load_split(const struct place *at, struct tokenizer *t, const json_t *v, int depth)
{
    if (!v || json_is_null(v))
        return ST_OK;
    const char *type = tok_text(v, "type");
    struct stage *s;
    int flag = 0;
    if (!type)
        return tok_unsupported(at, "pre_tokenizer", type);
    if (!strcmp(type, "Sequence") && depth < DEPTH_MAX) {
        const json_t *list = json_object_get(v, "pretokenizers");
        if (!json_is_array(list))
            return tok_lacks(at, "the pre_tokenizer 'Sequence'", "a list 'pretokenizers'");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_split(at, t, json_array_get(list, i), depth + 1));
        return ST_OK;
    }
    if (!strcmp(type, "BertPreTokenizer")) {
        TRY(new_class(at, t, UNI_WHITE, SPLIT_REMOVED));
        return new_class(at, t, UNI_PUNCT, SPLIT_ISOLATED);
    }
    if (!strcmp(type, "WhitespaceSplit"))
        return new_class(at, t, UNI_WHITE, SPLIT_REMOVED);
    if (!strcmp(type, "Whitespace"))
        return new_stage(at, t, STAGE_WORDS, &s);
    if (!strcmp(type, "UnicodeScripts"))
        return new_stage(at, t, STAGE_SCRIPTS, &s);
    if (!strcmp(type, "Metaspace"))
        return load_meta(at, t, v);
    if (!strcmp(type, "ByteLevel"))
        return load_bytes(at, t, v);
    if (!strcmp(type, "Digits")) {
        TRY(tok_flag(at, "the pre_tokenizer 'Digits'", v, "individual_digits", &flag));
        return new_class(at, t, UNI_DIGIT, flag ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (!strcmp(type, "Punctuation")) {
        enum split_behavior behavior = SPLIT_ISOLATED;
        if (json_object_get(v, "behavior"))
            TRY(load_behavior(at, json_object_get(v, "behavior"), &behavior));
        return new_class(at, t, UNI_PUNCT, behavior);
    }
    if (!strcmp(type, "CharDelimiterSplit") || !strcmp(type, "Delimiter")) {
        TRY(new_stage(at, t, STAGE_CLASS, &s));
        s->behavior = SPLIT_REMOVED;
        return load_char(at, "the pre_tokenizer 'CharDelimiterSplit'", json_object_get(v, "delimiter"), s);
    }
    if (!strcmp(type, "FixedLength")) {
        const json_t *n = json_object_get(v, "length");
        json_int_t length = n ? json_integer_value(n) : 5;
        if (length < 1 || length > INT32_MAX)
            return err_set(at->e, ST_USER, "'%s': the 'length' of the pre_tokenizer 'FixedLength' is not a number above 0", at->path);
        TRY(new_stage(at, t, STAGE_FIXED, &s));
        s->length = (uint32_t)length;
        return ST_OK;
    }
    if (!strcmp(type, "Split")) {
        TRY(new_stage(at, t, STAGE_PATTERN, &s));
        TRY(tok_flag(at, "the pre_tokenizer 'Split'", v, "invert", &s->invert));
        TRY(load_behavior(at, json_object_get(v, "behavior"), &s->behavior));
        return load_pattern(at, "the pre_tokenizer 'Split'", json_object_get(v, "pattern"), &s->pattern);
    }
    return tok_unsupported(at, "pre_tokenizer", type);
}

enum status tok_load_split(const struct place *at, struct tokenizer *t, const json_t *v)
{
    scan_init();
    return load_split(at, t, v, 0);
}
