#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define FILE_MAX (256L << 20)
#define WORD_CHARS_MAX 65536
#define AROUND_MAX 64

const char *tok_text(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static enum status lacks(const struct place *at, const char *where, const char *what)
{
    return err_set(at->e, ST_USER, "'%s': %s lacks %s", at->path, where, what);
}

static enum status unsupported(const struct place *at, const char *what, const char *type)
{
    if (!type)
        return lacks(at, what, "a 'type'");
    return err_set(at->e, ST_USER, "'%s': %s '%.100s' is not supported by this version", at->path, what, type);
}

/* Reads a whole file. */
static enum status slurp(const struct place *at, char **data, size_t *len)
{
    FILE *f = fopen(at->path, "rbe");
    if (!f)
        return err_errno(at->e, ST_ENV, errno, "cannot open '%s'", at->path);
    struct stat st;
    enum status rc = ST_OK;
    char *buf = NULL;
    size_t got = 0;
    if (fstat(fileno(f), &st) < 0)
        rc = err_errno(at->e, ST_ENV, errno, "cannot read '%s'", at->path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(at->e, ST_USER, "'%s' is not a regular file", at->path);
    else if (st.st_size > FILE_MAX)
        rc = err_set(at->e, ST_USER, "'%s' is larger than %ld MiB, too large for a tokenizer", at->path, FILE_MAX >> 20);
    else if (!(buf = mem_alloc((size_t)st.st_size + 1)))
        rc = err_nomem(at->e, "a tokenizer's file");
    else {
        got = fread(buf, 1, (size_t)st.st_size, f);
        if (ferror(f))
            rc = err_errno(at->e, ST_ENV, errno, "cannot read '%s'", at->path);
    }
    fclose(f);
    if (rc != ST_OK) {
        mem_free(buf);
        return rc;
    }
    buf[got] = 0;
    *data = buf;
    *len = got;
    return ST_OK;
}

static enum status read_json(const struct place *at, json_t **out)
{
    char *data = NULL;
    size_t len = 0;
    TRY(slurp(at, &data, &len));
    json_error_t why;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &why);
    mem_free(data);
    if (!root)
        return json_error_code(&why) == json_error_out_of_memory
                   ? err_nomem(at->e, "a tokenizer's file")
                   : err_set(at->e, ST_USER, "'%s': line %d, column %d: %s", at->path, why.line, why.column, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(at->e, ST_USER, "'%s' is not a JSON object", at->path);
    }
    *out = root;
    return ST_OK;
}

enum status tok_flag(const struct place *at, const char *where, const json_t *v, const char *key, int *out)
{
    const json_t *b = json_object_get(v, key);
    if (!json_is_boolean(b))
        return err_set(at->e, ST_USER, "'%s': '%s' of %s is not true or false", at->path, key, where);
    *out = json_is_true(b);
    return ST_OK;
}

/* Normaliser ------------------------------------------------------------------------------------------------------------------ */

static enum status add_step(const struct place *at, struct normalizer *n, enum norm_step step)
{
    if (n->count == NORM_STEPS_MAX)
        return err_set(at->e, ST_USER, "'%s': the normalizer has more than %d steps", at->path, NORM_STEPS_MAX);
    n->step[n->count++] = (uint8_t)step;
    return ST_OK;
}

static enum status add_bert(const struct place *at, struct normalizer *n, int clean, int han, int strip, int lower)
{
    if (clean)
        TRY(add_step(at, n, NORM_CLEAN));
    if (han)
        TRY(add_step(at, n, NORM_HAN));
    if (strip) {
        TRY(add_step(at, n, NORM_NFD));
        TRY(add_step(at, n, NORM_DROP_MN));
    }
    if (lower)
        TRY(add_step(at, n, NORM_LOWER));
    return ST_OK;
}

static enum status load_normalizer(const struct place *at, struct normalizer *n, const json_t *v, int depth)
{
    static const struct {
        const char *type;
        enum norm_step step;
    } simple[] = {
        {"NFC", NORM_NFC},     {"NFD", NORM_NFD},         {"NFKC", NORM_NFKC},
        {"NFKD", NORM_NFKD},   {"Lowercase", NORM_LOWER}, {"StripAccents", NORM_DROP_MARKS},
    };
    if (!v || json_is_null(v))
        return ST_OK;
    const char *type = tok_text(v, "type");
    if (type && !strcmp(type, "Sequence") && depth < 4) {
        const json_t *list = json_object_get(v, "normalizers");
        if (!json_is_array(list))
            return lacks(at, "the normalizer 'Sequence'", "a list 'normalizers'");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(load_normalizer(at, n, json_array_get(list, i), depth + 1));
        return ST_OK;
    }
    if (type && !strcmp(type, "BertNormalizer")) {
        int clean, han, lower, strip;
        TRY(tok_flag(at, "the BertNormalizer", v, "clean_text", &clean));
        TRY(tok_flag(at, "the BertNormalizer", v, "handle_chinese_chars", &han));
        TRY(tok_flag(at, "the BertNormalizer", v, "lowercase", &lower));
        const json_t *s = json_object_get(v, "strip_accents");
        strip = lower;
        if (s && !json_is_null(s))
            TRY(tok_flag(at, "the BertNormalizer", v, "strip_accents", &strip));
        return add_bert(at, n, clean, han, strip, lower);
    }
    for (size_t i = 0; type && i < sizeof simple / sizeof simple[0]; i++)
        if (!strcmp(type, simple[i].type))
            return add_step(at, n, simple[i].step);
    return unsupported(at, "normalizer", type);
}

/* Model ----------------------------------------------------------------------------------------------------------------------- */

/* Takes a whole vocabulary; sorts keys. */
static enum status set_vocab(const struct place *at, struct tokenizer *t, struct trie_key *keys, size_t count, const char *unk,
                             const char *prefix, json_int_t max_chars)
{
    if (max_chars < 1 || max_chars > WORD_CHARS_MAX)
        return err_set(at->e, ST_USER, "'%s': max_input_chars_per_word is %lld, but must be 1 to %d", at->path,
                       (long long)max_chars, WORD_CHARS_MAX);
    uint32_t size = 0;
    for (size_t i = 0; i < count; i++)
        if ((uint32_t)keys[i].value >= size)
            size = (uint32_t)keys[i].value + 1;
    uint8_t *seen = mem_array(size, 1);
    if (!seen)
        return err_nomem(at->e, "a vocabulary");
    for (size_t i = 0; i < count; i++)
        if (seen[keys[i].value]++) {
            mem_free(seen);
            return err_set(at->e, ST_USER, "'%s': the vocabulary gives id %d twice, the second time to '%.100s'", at->path,
                           (int)keys[i].value, keys[i].bytes);
        }
    mem_free(seen);
    if (wordpiece_init(&t->model, keys, count, prefix, strlen(prefix), -1, (uint32_t)max_chars) < 0)
        return err_nomem(at->e, "a vocabulary");
    t->model.unk = trie_get(&t->model.trie, unk, strlen(unk));
    if (t->model.unk < 0)
        return err_set(at->e, ST_USER, "'%s': the unknown token '%.100s' is not in the vocabulary", at->path, unk);
    t->vocab_size = t->model_size = size;
    t->vocab_count = (uint32_t)count;
    return ST_OK;
}

static enum status load_model(const struct place *at, struct tokenizer *t, const json_t *v)
{
    if (!json_is_object(v))
        return lacks(at, "the file", "a 'model'");
    const char *type = tok_text(v, "type");
    if (!type && json_object_get(v, "max_input_chars_per_word")) /* files of old versions name no type */
        type = "WordPiece";
    if (!type || strcmp(type, "WordPiece") != 0)
        return unsupported(at, "model type", type);
    const char *unk = tok_text(v, "unk_token"), *prefix = tok_text(v, "continuing_subword_prefix");
    const json_t *max = json_object_get(v, "max_input_chars_per_word"), *vocab = json_object_get(v, "vocab");
    if (!unk)
        return lacks(at, "the model", "a string 'unk_token'");
    if (!prefix)
        return lacks(at, "the model", "a string 'continuing_subword_prefix'");
    if (!json_is_integer(max))
        return lacks(at, "the model", "a number 'max_input_chars_per_word'");
    if (!json_is_object(vocab) || !json_object_size(vocab))
        return lacks(at, "the model", "a 'vocab' with tokens and their ids");

    struct trie_key *keys = mem_array(json_object_size(vocab), sizeof *keys);
    if (!keys)
        return err_nomem(at->e, "a vocabulary");
    size_t n = 0;
    const char *token;
    json_t *id;
    enum status rc = ST_OK;
    json_object_foreach ((json_t *)(uintptr_t)vocab, token, id) {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > ID_MAX) {
            rc = err_set(at->e, ST_USER, "'%s': the id of '%.100s' is not a number from 0 to %d", at->path, token, ID_MAX);
            break;
        }
        keys[n++] = (struct trie_key){.bytes = token, .len = (uint32_t)strlen(token), .value = (int32_t)value};
    }
    if (rc == ST_OK)
        rc = set_vocab(at, t, keys, n, unk, prefix, json_integer_value(max));
    mem_free(keys);
    return rc;
}

static enum status load_split(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const char *type = tok_text(v, "type");
    if (!v || json_is_null(v))
        return lacks(at, "the file", "a 'pre_tokenizer'");
    if (type && !strcmp(type, "BertPreTokenizer"))
        t->split = SPLIT_BERT;
    else if (type && !strcmp(type, "Whitespace"))
        t->split = SPLIT_WORDS;
    else if (type && !strcmp(type, "WhitespaceSplit"))
        t->split = SPLIT_SPACE;
    else
        return unsupported(at, "pre_tokenizer", type);
    return ST_OK;
}

/* Post-processor -------------------------------------------------------------------------------------------------------------- */

static enum status put_around(const struct place *at, struct tokenizer *t, json_int_t id, int behind)
{
    if (id < 0 || id >= t->vocab_size)
        return err_set(at->e, ST_USER, "'%s': the post_processor uses id %lld, which the vocabulary lacks", at->path, (long long)id);
    if (t->before + t->after == AROUND_MAX)
        return err_set(at->e, ST_USER, "'%s': the post_processor adds more than %d special tokens", at->path, AROUND_MAX);
    t->around[t->before + t->after] = (int32_t)id;
    if (behind)
        t->after++;
    else
        t->before++;
    return ST_OK;
}

static enum status load_template(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const json_t *single = json_object_get(v, "single"), *specials = json_object_get(v, "special_tokens");
    if (!json_is_array(single))
        return lacks(at, "the post_processor", "a list 'single'");
    int seen = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const char *sequence = tok_text(json_object_get(piece, "Sequence"), "id");
        const char *special = tok_text(json_object_get(piece, "SpecialToken"), "id");
        if (sequence && !strcmp(sequence, "A") && !seen) {
            seen = 1;
        } else if (special) {
            const json_t *ids = json_object_get(json_object_get(specials, special), "ids");
            if (!json_is_array(ids))
                return err_set(at->e, ST_USER, "'%s': the post_processor does not say which ids '%.100s' has", at->path, special);
            for (size_t k = 0; k < json_array_size(ids); k++) {
                const json_t *id = json_array_get(ids, k);
                TRY(put_around(at, t, json_is_integer(id) ? json_integer_value(id) : -1, seen));
            }
        } else {
            return err_set(at->e, ST_USER, "'%s': piece %zu of the post_processor's template is not supported", at->path, i);
        }
    }
    return seen ? ST_OK : lacks(at, "the post_processor's template", "the text (Sequence 'A')");
}

static enum status load_post(const struct place *at, struct tokenizer *t, const json_t *v)
{
    if (!v || json_is_null(v))
        return ST_OK;
    const char *type = tok_text(v, "type");
    if (type && !strcmp(type, "TemplateProcessing"))
        return load_template(at, t, v);
    if (type && !strcmp(type, "BertProcessing")) {
        static const char *const key[2] = {"cls", "sep"};
        for (int i = 0; i < 2; i++) {
            const json_t *id = json_array_get(json_object_get(v, key[i]), 1);
            TRY(put_around(at, t, json_is_integer(id) ? json_integer_value(id) : -1, i));
        }
        return ST_OK;
    }
    return unsupported(at, "post_processor", type);
}

/* The two kinds of files ------------------------------------------------------------------------------------------------------ */

static enum status load_tokenizer_json(const struct place *at, struct tokenizer *t, const json_t *root)
{
    TRY(load_model(at, t, json_object_get(root, "model")));
    TRY(load_normalizer(at, &t->norm, json_object_get(root, "normalizer"), 0));
    TRY(load_split(at, t, json_object_get(root, "pre_tokenizer")));
    TRY(tok_load_added(at, t, json_object_get(root, "added_tokens")));
    return load_post(at, t, json_object_get(root, "post_processor"));
}

/* A token is a string, or an object with its content. */
static const char *token_of(const json_t *config, const char *key, const char *def)
{
    const json_t *v = json_object_get(config, key);
    const char *s = json_is_object(v) ? tok_text(v, "content") : json_string_value(v);
    return s ? s : def;
}

enum status tok_flag_if(const struct place *at, const json_t *config, const char *key, int *value)
{
    const json_t *v = json_object_get(config, key);
    return v && !json_is_null(v) ? tok_flag(at, "the configuration", config, key, value) : ST_OK;
}

/* One token a line, its id the line's number; of a repeated token the last line counts, as in the reference. */
static enum status read_vocab_txt(const struct place *at, struct tokenizer *t, char *data, size_t len, const char *unk)
{
    if (!uni_valid((const uint8_t *)data, len))
        return err_set(at->e, ST_USER, "'%s' is not UTF-8", at->path);
    size_t lines = 1;
    for (size_t i = 0; i < len; i++)
        lines += data[i] == '\n';
    if (lines > ID_MAX)
        return err_set(at->e, ST_USER, "'%s' has more than %d lines", at->path, ID_MAX);
    struct trie_key *keys = mem_array(lines, sizeof *keys);
    if (!keys)
        return err_nomem(at->e, "a vocabulary");
    size_t n = 0;
    int32_t id = 0;
    for (char *p = data, *end = data + len; p < end; id++) {
        char *nl = memchr(p, '\n', (size_t)(end - p));
        char *stop = nl ? nl : end;
        char *last = stop > p && stop[-1] == '\r' ? stop - 1 : stop;
        *last = 0;
        if (last > p)
            keys[n++] = (struct trie_key){.bytes = p, .len = (uint32_t)(last - p), .value = id};
        p = nl ? nl + 1 : end;
    }
    enum status rc = set_vocab(at, t, keys, n, unk, "##", 100);
    mem_free(keys);
    return rc;
}

static enum status load_vocab_txt(const struct place *at, const struct place *config_at, struct tokenizer *t, char *data, size_t len,
                                  const json_t *config)
{
    static const char *const classes[] = {"BertTokenizer",       "BertTokenizerFast",       "DistilBertTokenizer",
                                          "DistilBertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast",
                                          "MobileBertTokenizer", "MobileBertTokenizerFast"};
    const char *class = tok_text(config, "tokenizer_class");
    size_t i = 0;
    while (class && i < sizeof classes / sizeof classes[0] && strcmp(class, classes[i]) != 0)
        i++;
    if (class && i == sizeof classes / sizeof classes[0])
        return unsupported(config_at, "tokenizer_class", class);
    int lower = 1, han = 1, strip = -1, basic = 1;
    TRY(tok_flag_if(config_at, config, "do_lower_case", &lower));
    TRY(tok_flag_if(config_at, config, "tokenize_chinese_chars", &han));
    TRY(tok_flag_if(config_at, config, "strip_accents", &strip));
    TRY(tok_flag_if(config_at, config, "do_basic_tokenize", &basic));
    if (!basic)
        return err_set(config_at->e, ST_USER, "'%s': do_basic_tokenize false is not supported by this version", config_at->path);
    TRY(add_bert(config_at, &t->norm, 1, han, strip < 0 ? lower : strip, lower));
    t->split = SPLIT_BERT;

    static const struct {
        const char *key, *def;
    } special[] = {
        {"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"},
    };
    TRY(read_vocab_txt(at, t, data, len, token_of(config, special[0].key, special[0].def)));
    TRY(tok_load_added_decoder(config_at, t, json_object_get(config, "added_tokens_decoder")));
    for (i = 0; i < sizeof special / sizeof special[0]; i++) {
        const char *token = token_of(config, special[i].key, special[i].def);
        int must = i == 1 || i == 3;
        if (tok_find_id(t, token) < 0 && must)
            return err_set(at->e, ST_USER, "'%s': the %s '%.100s' is not in the vocabulary", at->path, special[i].key, token);
        if (tok_find_id(t, token) >= 0 && !tok_is_added(t, token))
            TRY(tok_add(at, t, &(struct added){.special = 1}, token, -1));
    }
    TRY(put_around(at, t, tok_find_id(t, token_of(config, "cls_token", "[CLS]")), 0));
    return put_around(at, t, tok_find_id(t, token_of(config, "sep_token", "[SEP]")), 1);
}

int tok_kind(enum tok_split split, uint32_t c)
{
    unsigned f = uni_flags(c);
    if (f & UNI_WHITE)
        return KIND_SPACE;
    switch (split) {
    case SPLIT_BERT:
        return f & UNI_PUNCT ? KIND_PUNCT : KIND_WORD;
    case SPLIT_WORDS:
        return f & UNI_WORD ? KIND_WORD : KIND_SYMBOL;
    case SPLIT_SPACE:
        break;
    }
    return KIND_WORD;
}

static void fill_ascii(struct tokenizer *t)
{
    for (int c = 0; c < 128; c++) {
        int to = normalizer_ascii(&t->norm, c);
        t->ascii_kind[c] = to < 0 ? KIND_NONE : (uint8_t)tok_kind(t->split, (uint32_t)to);
        t->ascii_char[c] = to < 0 ? 0 : (uint8_t)to;
        if (to >= 0)
            wordpiece_split(&t->model, &t->ascii_char[c], 1, &t->ascii_id[c]);
    }
}

static int exists(const char *path)
{
    return access(path, F_OK) == 0 || errno != ENOENT;
}

static enum status load_files(const char *json_path, const char *vocab_path, const char *config_path, const char *dir,
                              struct tokenizer *t, struct err *e)
{
    struct place at = {json_path, e}, vocab_at = {vocab_path, e}, config_at = {config_path, e};
    json_t *root = NULL;
    enum status rc;
    if (exists(json_path)) {
        rc = read_json(&at, &root);
        if (rc == ST_OK)
            rc = load_tokenizer_json(&at, t, root);
    } else if (exists(vocab_path)) {
        char *data = NULL;
        size_t len = 0;
        at = vocab_at;
        rc = slurp(&at, &data, &len);
        if (rc == ST_OK && exists(config_path))
            rc = read_json(&config_at, &root);
        if (rc == ST_OK)
            rc = load_vocab_txt(&at, &config_at, t, data, len, root);
        mem_free(data);
    } else {
        return err_set(e, ST_NOT_FOUND, "'%s' has no tokenizer: neither tokenizer.json nor vocab.txt is there", dir);
    }
    if (rc == ST_OK)
        rc = tok_build_set(&at, t, &t->raw, 0);
    if (rc == ST_OK)
        rc = tok_build_set(&at, t, &t->normal, 1);
    json_decref(root);
    return rc;
}

enum status tok_load(const char *dir, struct tokenizer *t, struct err *e)
{
    uni_init();
    t->around = mem_array(AROUND_MAX, sizeof *t->around);
    char *json = mem_printf("%s/tokenizer.json", dir);
    char *vocab = mem_printf("%s/vocab.txt", dir);
    char *config = mem_printf("%s/tokenizer_config.json", dir);
    enum status rc = t->around && json && vocab && config ? load_files(json, vocab, config, dir, t, e) : err_nomem(e, "a tokenizer");
    mem_free(json);
    mem_free(vocab);
    mem_free(config);
    if (rc == ST_OK)
        fill_ascii(t);
    return rc;
}
