/* The models of a tokenizer.json: vocabulary and merges into what wordpiece.c, bpe.c, unigram.c and encode.c work with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/text/parts.h"
#include "workers/text/unicode.h"

#define WORD_CHARS_MAX 65536
#define AFFIX_MAX 64

/* What every model has: the tokens, and how many there are. Of ids given twice one is wrong. */
static enum status set_vocab(const struct place *at, struct tokenizer *t, const struct trie_key *keys, size_t count)
{
    uint32_t size = 0;
    for (size_t i = 0; i < count; i++)
        if ((uint32_t)keys[i].value >= size)
            size = (uint32_t)keys[i].value + 1;
    uint8_t *seen = mem_array((size_t)size + 1, 1);
    if (!seen)
        return err_nomem(at->e, "a vocabulary");
    for (size_t i = 0; i < count; i++)
        if (seen[keys[i].value]++) {
            mem_free(seen);
            return err_set(at->e, ST_USER, "'%s': the vocabulary gives id %d twice, the second time to '%.100s'", at->path,
                           (int)keys[i].value, keys[i].bytes);
        }
    mem_free(seen);
    if (vocab_init(&t->vocab, keys, count) < 0)
        return err_nomem(at->e, "a vocabulary");
    t->vocab_size = t->model_size = size;
    t->vocab_count = (uint32_t)count;
    return ST_OK;
}

enum status tok_set_wordpiece(const struct place *at, struct tokenizer *t, struct trie_key *keys, size_t count, const char *unk,
                              const char *prefix, json_int_t max_chars)
{
    if (max_chars < 1 || max_chars > WORD_CHARS_MAX)
        return err_set(at->e, ST_USER, "'%s': max_input_chars_per_word is %lld, but must be 1 to %d", at->path,
                       (long long)max_chars, WORD_CHARS_MAX);
    t->kind = MODEL_WORDPIECE;
    TRY(set_vocab(at, t, keys, count));
    if (wordpiece_init(&t->model, keys, count, prefix, strlen(prefix), -1, (uint32_t)max_chars) < 0)
        return err_nomem(at->e, "a vocabulary");
    t->model.unk = trie_get(&t->model.trie, unk, strlen(unk));
    if (t->model.unk < 0)
        return err_set(at->e, ST_USER, "'%s': the unknown token '%.100s' is not in the vocabulary", at->path, unk);
    return ST_OK;
}

/* {"token": id, ...}; *keys is to be freed, its bytes belong to the JSON. */
static enum status read_vocab(const struct place *at, const json_t *vocab, struct trie_key **out, size_t *count)
{
    if (!json_is_object(vocab) || !json_object_size(vocab))
        return tok_lacks(at, "the model", "a 'vocab' with tokens and their ids");
    struct trie_key *keys = mem_array(json_object_size(vocab), sizeof *keys);
    if (!keys)
        return err_nomem(at->e, "a vocabulary");
    size_t n = 0;
    const char *token;
    json_t *id;
    json_object_foreach ((json_t *)(uintptr_t)vocab, token, id) {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > ID_MAX) {
            mem_free(keys);
            return err_set(at->e, ST_USER, "'%s': the id of '%.100s' is not a number from 0 to %d", at->path, token, ID_MAX);
        }
        keys[n++] = (struct trie_key){.bytes = token, .len = (uint32_t)strlen(token), .value = (int32_t)value};
    }
    *out = keys;
    *count = n;
    return ST_OK;
}

static enum status load_wordpiece(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const char *unk = tok_text(v, "unk_token"), *prefix = tok_text(v, "continuing_subword_prefix");
    const json_t *max = json_object_get(v, "max_input_chars_per_word");
    if (!unk)
        return tok_lacks(at, "the model", "a string 'unk_token'");
    if (!prefix)
        return tok_lacks(at, "the model", "a string 'continuing_subword_prefix'");
    if (!json_is_integer(max))
        return tok_lacks(at, "the model", "a number 'max_input_chars_per_word'");
    struct trie_key *keys = NULL;
    size_t count = 0;
    TRY(read_vocab(at, json_object_get(v, "vocab"), &keys, &count));
    enum status rc = tok_set_wordpiece(at, t, keys, count, unk, prefix, json_integer_value(max));
    mem_free(keys);
    return rc;
}

static enum status load_wordlevel(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const char *unk = tok_text(v, "unk_token");
    if (!unk)
        return tok_lacks(at, "the model", "a string 'unk_token'");
    struct trie_key *keys = NULL;
    size_t count = 0;
    t->kind = MODEL_WORDLEVEL;
    TRY(read_vocab(at, json_object_get(v, "vocab"), &keys, &count));
    enum status rc = set_vocab(at, t, keys, count);
    mem_free(keys);
    TRY(rc);
    t->unk = vocab_find(&t->vocab, unk, strlen(unk));
    return (t->unk_name = mem_strdup(unk)) ? ST_OK : err_nomem(at->e, "a vocabulary");
}

/* Unigram ----------------------------------------------------------------------------------------------------------------------- */

/* The reference's JSON reader rounds twice: once the digits as a whole number, once its quotient by a power of ten. Where sums of scores
   are nearly the same, the last bit decides between two ways to cut a word, so the same is done here. Files have the shortest digits
   that give a number back, and these are found again from the number. */
static double as_read(double v)
{
    char text[40];
    int digits = 15;
    do
        snprintf(text, sizeof text, "%.*e", digits - 1, fabs(v));
    while (strtod(text, NULL) != fabs(v) && ++digits <= 17);
    uint64_t whole = 0;
    char *e = strchr(text, 'e');
    if (!e)
        return v;
    long exponent = strtol(e + 1, NULL, 10);
    size_t n = 0, last = 0; /* digits; those up to the last that is not 0 */
    for (const char *p = text; p < e; p++)
        if (*p != '.' && ++n && *p != '0')
            last = n;
    n = 0;
    for (const char *p = text; p < e && n < last; p++)
        if (*p != '.') {
            whole = whole * 10 + (uint64_t)(*p - '0');
            n++;
        }
    exponent -= (long)last - 1;
    if (!whole || exponent >= 0 || exponent < -300)
        return v; /* a whole number, or far from any score */
    snprintf(text, sizeof text, "1e%ld", -exponent);
    double f = (double)whole / strtod(text, NULL);
    return v < 0 ? -f : f;
}

static enum status load_unigram(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const json_t *vocab = json_object_get(v, "vocab"), *unk = json_object_get(v, "unk_id");
    size_t count = json_array_size(vocab);
    if (!json_is_array(vocab) || !count)
        return tok_lacks(at, "the model", "a list 'vocab' with tokens and their scores");
    if (count > ID_MAX)
        return err_set(at->e, ST_USER, "'%s': the vocabulary has more than %d tokens", at->path, ID_MAX);
    if (unk && !json_is_null(unk) &&
        (!json_is_integer(unk) || json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)count))
        return err_set(at->e, ST_USER, "'%s': 'unk_id' is not an id of the vocabulary", at->path);
    int fallback = 0;
    TRY(tok_flag_if(at, v, "byte_fallback", &fallback));
    struct trie_key *keys = mem_array(count, sizeof *keys);
    double *score = mem_array(count, sizeof *score);
    enum status rc = keys && score ? ST_OK : err_nomem(at->e, "a vocabulary");
    for (size_t i = 0; rc == ST_OK && i < count; i++) {
        const json_t *pair = json_array_get(vocab, i), *token = json_array_get(pair, 0), *number = json_array_get(pair, 1);
        if (!json_is_string(token) || !json_is_number(number)) {
            rc = err_set(at->e, ST_USER, "'%s': entry %zu of the vocabulary is not a token with a score", at->path, i);
            break;
        }
        keys[i] = (struct trie_key){
            .bytes = json_string_value(token), .len = (uint32_t)json_string_length(token), .value = (int32_t)i};
        score[i] = json_is_real(number) ? as_read(json_real_value(number)) : json_number_value(number);
    }
    if (rc == ST_OK)
        rc = set_vocab(at, t, keys, count);
    if (rc == ST_OK) {
        t->kind = MODEL_UNIGRAM;
        int32_t id = json_is_integer(unk) ? (int32_t)json_integer_value(unk) : -1;
        if (unigram_init(&t->unigram, keys, count, score, id, fallback) < 0)
            rc = err_nomem(at->e, "a vocabulary");
        else
            score = NULL;
    }
    mem_free(score);
    mem_free(keys);
    return rc;
}

/* BPE --------------------------------------------------------------------------------------------------------------------------- */

static const char meta[] = "\xE2\x96\x81"; /* U+2581 */

/* left and right are what the file calls the two tokens. */
static enum status add_merge(const struct place *at, struct tokenizer *t, const char *left, size_t left_len, const char *right,
                             size_t right_len, uint32_t rank, char *room)
{
    size_t prefix = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    int32_t a = vocab_find(&t->vocab, left, left_len), b = vocab_find(&t->vocab, right, right_len), both = -1;
    if (a >= 0 && b >= 0 && right_len >= prefix) {
        memcpy(room, left, left_len);
        memcpy(room + left_len, right + prefix, right_len - prefix);
        both = vocab_find(&t->vocab, room, left_len + right_len - prefix);
    }
    if (both < 0)
        return err_set(at->e, ST_USER, "'%s': merge %u needs tokens that the vocabulary lacks: '%.*s' and '%.*s'", at->path, rank + 1,
                       (int)(left_len < 60 ? left_len : 60), left, (int)(right_len < 60 ? right_len : 60), right);
    bpe_add(&t->bpe, a, b, rank, both);
    if (right_len >= 3 && !memcmp(right, meta, 3) && (left_len < 3 || memcmp(left + left_len - 3, meta, 3) != 0))
        t->bpe.crosses = 1;
    return ST_OK;
}

/* "a b" */
static enum status add_merge_line(const struct place *at, struct tokenizer *t, const char *line, size_t len, uint32_t rank, char *room)
{
    const char *space = memchr(line, ' ', len), *end = line + len;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return err_set(at->e, ST_USER, "'%s': merge %u is not two tokens with a space between them", at->path, rank + 1);
    return add_merge(at, t, line, (size_t)(space - line), space + 1, (size_t)(end - space - 1), rank, room);
}

static enum status copy_text(const struct place *at, const json_t *v, const char *key, char **out)
{
    const char *s = tok_text(v, key);
    if (!s || !*s)
        return ST_OK;
    if (strlen(s) > AFFIX_MAX)
        return err_set(at->e, ST_USER, "'%s': the model's '%s' has more than %d bytes", at->path, key, AFFIX_MAX);
    return (*out = mem_strdup(s)) ? ST_OK : err_nomem(at->e, "a vocabulary");
}

static enum status load_bpe(const struct place *at, struct tokenizer *t, const json_t *v)
{
    const json_t *merges = json_object_get(v, "merges"), *dropout = json_object_get(v, "dropout");
    int fuse = 0, fallback = 0, ignore = 0;
    TRY(tok_flag_if(at, v, "fuse_unk", &fuse));
    TRY(tok_flag_if(at, v, "byte_fallback", &fallback));
    TRY(tok_flag_if(at, v, "ignore_merges", &ignore));
    if (json_is_number(dropout) && json_number_value(dropout) > 0)
        return err_set(at->e, ST_USER, "'%s': the model has a dropout: its tokens would be drawn by lot; set it to null", at->path);
    if (!json_is_array(merges))
        return tok_lacks(at, "the model", "a list 'merges'");
    t->kind = MODEL_BPE;
    t->bpe.fuse_unk = (uint8_t)fuse;
    t->bpe.byte_fallback = (uint8_t)fallback;
    t->bpe.ignore_merges = (uint8_t)ignore;
    TRY(copy_text(at, v, "continuing_subword_prefix", &t->bpe.prefix));
    TRY(copy_text(at, v, "end_of_word_suffix", &t->bpe.suffix));
    const char *unk = tok_text(v, "unk_token");
    if (unk && !(t->bpe.unk_name = mem_strdup(unk)))
        return err_nomem(at->e, "a vocabulary");

    struct trie_key *keys = NULL;
    size_t count = 0, longest = 0;
    TRY(read_vocab(at, json_object_get(v, "vocab"), &keys, &count));
    for (size_t i = 0; i < count; i++)
        longest = keys[i].len > longest ? keys[i].len : longest;
    enum status rc = set_vocab(at, t, keys, count);
    mem_free(keys);
    TRY(rc);
    t->bpe.unk = unk ? vocab_find(&t->vocab, unk, strlen(unk)) : -1;

    char *room = mem_alloc(2 * longest + 1); /* of two tokens */
    if (!room || bpe_start(&t->bpe, &t->vocab, json_array_size(merges)) < 0) {
        mem_free(room);
        return err_nomem(at->e, "the merges of a tokenizer");
    }
    uint32_t rank = 0;
    for (size_t i = 0; rc == ST_OK && i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i), *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (json_is_string(m)) {
            if (strncmp(json_string_value(m), "#version", 8) != 0)
                rc = add_merge_line(at, t, json_string_value(m), json_string_length(m), rank++, room);
        } else if (json_array_size(m) == 2 && json_is_string(a) && json_is_string(b)) {
            rc = add_merge(at, t, json_string_value(a), json_string_length(a), json_string_value(b), json_string_length(b), rank++, room);
        } else {
            rc = err_set(at->e, ST_USER, "'%s': merge %zu is not two tokens", at->path, i + 1);
        }
    }
    mem_free(room);
    return rc;
}

enum status tok_set_bpe_files(const struct place *at, struct tokenizer *t, const json_t *vocab, const struct place *merges_at,
                              const char *merges, size_t len)
{
    json_t *list = json_array();
    json_t *model = json_pack("{s:O, s:O}", "vocab", vocab, "merges", list);
    enum status rc = list && model ? ST_OK : err_nomem(at->e, "the merges of a tokenizer");
    for (const char *p = merges, *end = merges + len; rc == ST_OK && p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end;
        if (stop > p && stop[-1] == '\r')
            stop--;
        if (stop > p && (stop - p < 8 || memcmp(p, "#version", 8) != 0)) {
            json_t *line = uni_valid((const uint8_t *)p, (size_t)(stop - p)) ? json_stringn_nocheck(p, (size_t)(stop - p)) : NULL;
            if (!line)
                rc = err_set(merges_at->e, ST_USER, "'%s' is not UTF-8", merges_at->path);
            else if (json_array_append_new(list, line) < 0)
                rc = err_nomem(at->e, "the merges of a tokenizer");
        }
        p = nl ? nl + 1 : end;
    }
    if (rc == ST_OK)
        rc = load_bpe(at, t, model);
    json_decref(model);
    json_decref(list);
    return rc;
}

enum status tok_load_model(const struct place *at, struct tokenizer *t, const json_t *v)
{
    if (!json_is_object(v))
        return tok_lacks(at, "the file", "a 'model'");
    const char *type = tok_text(v, "type");
    if (!type) { /* files of old versions name no type */
        if (json_object_get(v, "merges"))
            type = "BPE";
        else if (json_object_get(v, "max_input_chars_per_word"))
            type = "WordPiece";
        else if (json_is_array(json_object_get(v, "vocab")))
            type = "Unigram";
        else if (json_object_get(v, "unk_token") && json_object_get(v, "vocab"))
            type = "WordLevel";
    }
    if (type && !strcmp(type, "WordPiece"))
        return load_wordpiece(at, t, v);
    if (type && !strcmp(type, "BPE"))
        return load_bpe(at, t, v);
    if (type && !strcmp(type, "Unigram"))
        return load_unigram(at, t, v);
    if (type && !strcmp(type, "WordLevel"))
        return load_wordlevel(at, t, v);
    return tok_unsupported(at, "model type", type);
}
