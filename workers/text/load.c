#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/scan.h"
#include "workers/text/unicode.h"

#define FILE_MAX (256L << 20)

const char *tok_text(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

enum status tok_lacks(const struct place *at, const char *where, const char *what)
{
    return err_set(at->e, ST_USER, "'%s': %s lacks %s", at->path, where, what);
}

enum status tok_unsupported(const struct place *at, const char *what, const char *type)
{
    if (!type)
        return tok_lacks(at, what, "a 'type'");
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
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
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

/* The two kinds of files ------------------------------------------------------------------------------------------------------ */

static enum status load_tokenizer_json(const struct place *at, struct tokenizer *t, const json_t *root)
{
    TRY(tok_load_model(at, t, json_object_get(root, "model")));
    TRY(tok_load_normalizer(at, t, json_object_get(root, "normalizer")));
    TRY(tok_load_split(at, t, json_object_get(root, "pre_tokenizer")));
    normals_finish(&t->normals); /* added tokens are normalised */
    TRY(tok_load_added(at, t, json_object_get(root, "added_tokens")));
    TRY(tok_load_post(at, t, json_object_get(root, "post_processor")));
    return tok_load_truncation(at, t, json_object_get(root, "truncation"));
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
    enum status rc = tok_set_wordpiece(at, t, keys, n, unk, "##", 100);
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
        return tok_unsupported(config_at, "tokenizer_class", class);
    int lower = 1, han = 1, strip = -1, basic = 1;
    TRY(tok_flag_if(config_at, config, "do_lower_case", &lower));
    TRY(tok_flag_if(config_at, config, "tokenize_chinese_chars", &han));
    TRY(tok_flag_if(config_at, config, "strip_accents", &strip));
    TRY(tok_flag_if(config_at, config, "do_basic_tokenize", &basic));
    if (!basic)
        return err_set(config_at->e, ST_USER, "'%s': do_basic_tokenize false is not supported by this version", config_at->path);
    TRY(tok_add_bert(config_at, t, 1, han, strip < 0 ? lower : strip, lower));
    normals_finish(&t->normals);
    struct stage *white = tok_new_stage(t, STAGE_CLASS), *punct = tok_new_stage(t, STAGE_CLASS);
    white->class = UNI_WHITE;
    white->behavior = SPLIT_REMOVED;
    punct->class = UNI_PUNCT;

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
    return tok_post_around(at, t, tok_find_id(t, token_of(config, "cls_token", "[CLS]")),
                           tok_find_id(t, token_of(config, "sep_token", "[SEP]")), 0);
}

/* The byte-level BPE of GPT-2 and RoBERTa, as the slow tokenizers of transformers read it. */
static enum status load_bpe_files(const struct place *at, const struct place *merges_at, const struct place *config_at, struct tokenizer *t,
                                  const json_t *vocab, const char *merges, size_t len, const json_t *config)
{
    static const struct {
        const char *class;
        int roberta;
    } classes[] = {
        {"GPT2Tokenizer", 0},        {"GPT2TokenizerFast", 0},       {"RobertaTokenizer", 1}, {"RobertaTokenizerFast", 1},
        {"LongformerTokenizer", 1}, {"LongformerTokenizerFast", 1}, {"BartTokenizer", 1},    {"BartTokenizerFast", 1},
    };
    const char *class = tok_text(config, "tokenizer_class");
    size_t i = 0;
    while (class && i < sizeof classes / sizeof classes[0] && strcmp(class, classes[i].class) != 0)
        i++;
    if (!class)
        return tok_lacks(config_at, "the configuration", "a 'tokenizer_class', which says how vocab.json and merges.txt are meant");
    if (i == sizeof classes / sizeof classes[0])
        return tok_unsupported(config_at, "tokenizer_class", class);
    int roberta = classes[i].roberta, prefix = 0;
    TRY(tok_flag_if(config_at, config, "add_prefix_space", &prefix));
    TRY(tok_set_bpe_files(at, t, vocab, merges_at, merges, len));
    struct stage *s = tok_new_stage(t, STAGE_BYTES);
    s->regex = 1;
    s->prefix = prefix;
    scan_init();
    TRY(tok_load_added_decoder(config_at, t, json_object_get(config, "added_tokens_decoder")));
    static const struct {
        const char *key, *gpt2, *roberta;
    } special[] = {
        {"bos_token", "<|endoftext|>", "<s>"}, {"eos_token", "<|endoftext|>", "</s>"}, {"unk_token", "<|endoftext|>", "<unk>"},
        {"sep_token", NULL, "</s>"},           {"pad_token", NULL, "<pad>"},           {"cls_token", NULL, "<s>"},
        {"mask_token", NULL, "<mask>"},
    };
    const char *around[2] = {NULL, NULL};
    for (i = 0; i < sizeof special / sizeof special[0]; i++) {
        const char *token = token_of(config, special[i].key, roberta ? special[i].roberta : special[i].gpt2);
        if (token && tok_find_id(t, token) >= 0 && !tok_is_added(t, token))
            TRY(tok_add(at, t, &(struct added){.special = 1, .lstrip = roberta && !strcmp(special[i].key, "mask_token")}, token, -1));
        if (!strcmp(special[i].key, "cls_token"))
            around[0] = token;
        if (!strcmp(special[i].key, "sep_token"))
            around[1] = token;
    }
    tok_post_default(t);
    if (!roberta)
        return ST_OK;
    t->trim[t->trims++] = (struct trim){1, prefix};
    for (i = 0; i < 2; i++)
        if (tok_find_id(t, around[i]) < 0)
            return err_set(at->e, ST_USER, "'%s': the %s '%.100s' is not in the vocabulary", at->path, i ? "sep_token" : "cls_token",
                           around[i]);
    return tok_post_around(at, t, tok_find_id(t, around[0]), tok_find_id(t, around[1]), 1);
}

/* Shapes that follow from what was loaded ------------------------------------------------------------------------------------------ */

/* Is the border in front of a space between two letters one that every stage cuts at, or at least does not look across? */
static int stages_cut(const struct stages *stages)
{
    int sure = 0;
    for (int i = 0; i < stages->count; i++) {
        const struct stage *s = &stages->at[i];
        switch (s->kind) {
        case STAGE_BYTES:
            sure |= s->regex;
            break;
        case STAGE_META:
            sure |= s->split;
            break;
        case STAGE_PATTERN:
            if (pattern_known(s->pattern) == PATTERN_OTHER || pattern_known(s->pattern) == PATTERN_SPACES || s->behavior != SPLIT_ISOLATED)
                return 0;
            sure = 1;
            break;
        case STAGE_CLASS:
            if (s->behavior != SPLIT_REMOVED && s->behavior != SPLIT_ISOLATED && s->class != UNI_DIGIT)
                return 0;
            sure |= s->class == UNI_WHITE;
            break;
        case STAGE_WORDS:
            sure = 1;
            break;
        case STAGE_RUNS: /* its separator may be what the normalizer makes of spaces; nothing else makes it sure */
            break;
        case STAGE_SCRIPTS:
        case STAGE_FIXED:
            return 0;
        }
    }
    return sure;
}

static int normals_cut(const struct normals *n, int *spaces_to_meta)
{
    for (int i = 0; i < n->count; i++) {
        const struct normal_op *op = &n->op[i];
        size_t len = 0;
        const char *text = op->kind == NORMAL_REPLACE ? pattern_text(op->pattern, &len) : NULL;
        if (op->kind == NORMAL_BYTES)
            return 0;
        if (op->kind != NORMAL_REPLACE)
            continue;
        if (pattern_known(op->pattern) != PATTERN_SPACES && (!text || len != 1))
            return 0;
        if (text && *text != ' ' && (*text & 0x80) == 0)
            return 0; /* a letter that becomes something else */
        *spaces_to_meta |= text && *text == ' ' && op->text_len == 3 && !memcmp(op->text, "\xE2\x96\x81", 3);
    }
    return 1;
}

/* Added tokens in normalised text must not reach over such a border. */
static int added_cut(const struct tokenizer *t)
{
    for (size_t i = 0; i < t->added_count; i++)
        if (t->added[i].normalized && (strchr(t->added[i].content, ' ') || t->added[i].rstrip))
            return 0;
    return 1;
}

static enum status finish(const struct place *at, struct tokenizer *t)
{
    if (t->kind == MODEL_BPE) {
        struct stage *last = t->stages.count ? &t->stages.at[t->stages.count - 1] : NULL;
        if (last && last->kind == STAGE_BYTES)
            last->raw = t->bpe.bytes = 1;
        if (bpe_finish(&t->bpe) < 0)
            return err_nomem(at->e, "a vocabulary");
        static const char sep[] = "\xE2\x96\x81";
        if (!t->bpe.bytes && !t->bpe.crosses && !t->bpe.ignore_merges && !t->bpe.prefix && !t->bpe.suffix &&
            vocab_find(&t->vocab, sep, 3) >= 0 && t->stages.count < STAGES_MAX && !(last && last->kind == STAGE_META && last->split)) {
            struct stage *s = tok_new_stage(t, STAGE_RUNS);
            s->separator = 0x2581;
            s->utf8_len = 3;
            memcpy(s->utf8, sep, 3);
        }
    }
    int to_meta = 0, normal = normals_cut(&t->normals, &to_meta), cuts = stages_cut(&t->stages);
    if (to_meta) /* spaces are gone: only the separator in their place cuts */
        cuts = t->stages.count == 1 && t->stages.at[0].kind == STAGE_RUNS;
    t->cuttable = normal && cuts && added_cut(t);
    t->added_of = mem_array((size_t)t->vocab_size + 1, sizeof *t->added_of);
    if (!t->added_of)
        return err_nomem(at->e, "added tokens");
    for (size_t i = 0; i < t->added_count; i++)
        t->added_of[t->added[i].id] = (uint32_t)i + 1;
    stream_prepare(t);
    return ST_OK;
}

static int exists(const char *path)
{
    return access(path, F_OK) == 0 || errno != ENOENT;
}

struct files {
    char *json, *vocab, *config, *bpe, *merges;
};

static enum status load_config(const struct place *at, json_t **out)
{
    return exists(at->path) ? read_json(at, out) : ST_OK;
}

static enum status load_pair_of_files(const struct files *f, struct tokenizer *t, const json_t *config, struct err *e)
{
    struct place at = {f->bpe, e}, merges_at = {f->merges, e}, config_at = {f->config, e};
    json_t *vocab = NULL;
    char *merges = NULL;
    size_t len = 0;
    enum status rc = read_json(&at, &vocab);
    if (rc == ST_OK)
        rc = slurp(&merges_at, &merges, &len);
    if (rc == ST_OK)
        rc = load_bpe_files(&at, &merges_at, &config_at, t, vocab, merges, len, config);
    json_decref(vocab);
    mem_free(merges);
    return rc;
}

/* Which side of a long text is cut: the newer word for it wins over the tokenizer.json's. */
static enum status load_side(const struct place *at, struct tokenizer *t, const json_t *config)
{
    const char *side = tok_text(config, "truncation_side");
    if (!side)
        return ST_OK;
    if (strcmp(side, "left") != 0 && strcmp(side, "right") != 0)
        return tok_unsupported(at, "truncation_side", side);
    t->left = !strcmp(side, "left");
    return ST_OK;
}

static enum status load_files(const struct files *f, const char *dir, struct tokenizer *t, struct err *e)
{
    struct place at = {f->json, e}, config_at = {f->config, e};
    json_t *root = NULL, *config = NULL;
    char *data = NULL;
    size_t len = 0;
    enum status rc;
    if (exists(f->json)) {
        rc = read_json(&at, &root);
        if (rc == ST_OK)
            rc = load_tokenizer_json(&at, t, root);
        if (rc == ST_OK)
            rc = load_config(&config_at, &config);
    } else if (exists(f->vocab)) {
        at.path = f->vocab;
        rc = slurp(&at, &data, &len);
        if (rc == ST_OK)
            rc = load_config(&config_at, &config);
        if (rc == ST_OK)
            rc = load_vocab_txt(&at, &config_at, t, data, len, config);
    } else if (exists(f->bpe) && exists(f->merges)) {
        at.path = f->bpe;
        rc = load_config(&config_at, &config);
        if (rc == ST_OK)
            rc = load_pair_of_files(f, t, config, e);
    } else {
        return err_set(e, ST_NOT_FOUND, "'%s' has no tokenizer: neither tokenizer.json nor vocab.txt nor vocab.json with merges.txt is there",
                       dir);
    }
    if (rc == ST_OK)
        rc = load_side(&config_at, t, config);
    if (rc == ST_OK)
        rc = tok_build_set(&at, t, &t->raw, 0);
    if (rc == ST_OK)
        rc = tok_build_set(&at, t, &t->normal, 1);
    if (rc == ST_OK)
        rc = finish(&at, t);
    mem_free(data);
    json_decref(config);
    json_decref(root);
    return rc;
}

enum status tok_load(const char *dir, struct tokenizer *t, struct err *e)
{
    uni_init();
    struct files f = {mem_printf("%s/tokenizer.json", dir), mem_printf("%s/vocab.txt", dir), mem_printf("%s/tokenizer_config.json", dir),
                      mem_printf("%s/vocab.json", dir), mem_printf("%s/merges.txt", dir)};
    enum status rc = f.json && f.vocab && f.config && f.bpe && f.merges ? load_files(&f, dir, t, e) : err_nomem(e, "a tokenizer");
    mem_free(f.json);
    mem_free(f.vocab);
    mem_free(f.config);
    mem_free(f.bpe);
    mem_free(f.merges);
    return rc;
}
