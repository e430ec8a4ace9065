/* Inside of a tokenizer: filled by load.c, read by tokenizer.c. */
#ifndef EBB_TEXT_PARTS_H
#define EBB_TEXT_PARTS_H

#include <jansson.h>

#include "workers/text/normalize.h"
#include "workers/text/tokenizer.h"
#include "workers/text/trie.h"
#include "workers/text/wordpiece.h"

#define ID_MAX (1 << 24)

enum tok_split {
    SPLIT_BERT,  /* at white space, and around every punctuation character */
    SPLIT_WORDS, /* runs of \w, runs of what is neither \w nor white space */
    SPLIT_SPACE, /* at white space */
};

/* A token that is found as it stands, before the text is cut into words. */
struct added {
    char *content;
    int32_t id;
    uint8_t single_word, lstrip, rstrip, normalized, special;
};

/* All added tokens that are looked for in the same text. */
struct added_set {
    struct trie trie;    /* content to index of struct added */
    size_t count;        /* 0: nothing to look for */
    uint8_t first[256];  /* does any begin with this byte? */
    int only;            /* the byte that all begin with, or -1 */
    uint32_t longest;    /* in characters */
};

/* What an ASCII byte is to the splitter, once it is normalised. */
enum { KIND_WORD, KIND_SYMBOL, KIND_SPACE, KIND_PUNCT, KIND_NONE };

struct tokenizer {
    struct wordpiece model;
    struct normalizer norm;
    enum tok_split split;
    struct added *added;
    size_t added_count, added_cap;
    struct added_set raw, normal; /* found in the text as it came; in the normalised text */
    int32_t *around;              /* the special ids in front of a text, then those behind it */
    uint32_t before, after;
    uint32_t vocab_size;
    uint32_t vocab_count, model_size; /* entries of the model's vocabulary; its largest id + 1 */
    uint8_t ascii_kind[128], ascii_char[128];
    int32_t ascii_id[128]; /* of the one-character word */
};

/* The file at hand; every message begins with it. */
struct place {
    const char *path;
    struct err *e;
};

/* load.c: tok_flag wants the key, tok_flag_if leaves *value alone without it. */
const char *tok_text(const json_t *v, const char *key);
MUST_USE enum status tok_flag(const struct place *at, const char *where, const json_t *v, const char *key, int *value);
MUST_USE enum status tok_flag_if(const struct place *at, const json_t *config, const char *key, int *value);
MUST_USE enum status tok_load(const char *dir, struct tokenizer *t, struct err *e);
/* The kind of a normalised character. */
int tok_kind(enum tok_split split, uint32_t c);

/* added.c: the id of any token, of the model or added; -1 if there is none. */
int32_t tok_find_id(const struct tokenizer *t, const char *content);
int tok_is_added(const struct tokenizer *t, const char *content);
/* id is what the file says, or -1. */
MUST_USE enum status tok_add(const struct place *at, struct tokenizer *t, const struct added *like, const char *content,
                             json_int_t id);
MUST_USE enum status tok_load_added(const struct place *at, struct tokenizer *t, const json_t *list);
MUST_USE enum status tok_load_added_decoder(const struct place *at, struct tokenizer *t, const json_t *v);
MUST_USE enum status tok_build_set(const struct place *at, const struct tokenizer *t, struct added_set *set, int normalized);

#endif
