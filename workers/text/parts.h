/* Inside of a tokenizer: filled by load*.c, read by encode.c, stream.c and tokenizer.c. */
#ifndef EBB_TEXT_PARTS_H
#define EBB_TEXT_PARTS_H

#include <jansson.h>

#include "workers/text/bpe.h"
#include "workers/text/normal.h"
#include "workers/text/normalize.h"
#include "workers/text/split.h"
#include "workers/text/tokenizer.h"
#include "workers/text/trie.h"
#include "workers/text/unigram.h"
#include "workers/text/vocab.h"
#include "workers/text/wordpiece.h"

#define ID_MAX (1 << 24)

enum tok_model {
    MODEL_WORDPIECE,
    MODEL_BPE,
    MODEL_UNIGRAM,
    MODEL_WORDLEVEL,
};

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

/* What comes out: special tokens and texts in this order. */
struct post_part {
    int sequence;   /* 0 or 1: a text; -1: the token id */
    int32_t id;
    uint8_t type;
};
#define POST_MAX 64
struct post {
    struct post_part part[POST_MAX];
    uint32_t count, special;
    int has[2]; /* does it use the first text, the second one? */
};

struct trim { /* spans lose the white space of their tokens */
    int on, prefix;
};

struct tokenizer {
    uint64_t serial; /* no two have the same */
    enum tok_model kind;
    struct vocab vocab;
    struct wordpiece model;
    struct bpe bpe;
    struct unigram unigram;
    int32_t unk; /* of MODEL_WORDLEVEL; -1: none */
    char *unk_name;

    struct normals normals;
    struct stages stages;
    int whole_origins; /* pre-tokenising asks where the text begins */
    int cuttable;      /* a text may be cut before a space that stands between two letters, and taken piece by piece */

    /* WordPiece with plain steps and splits takes a shorter way (stream.c) */
    int stream;
    struct normalizer norm;
    enum tok_split split;
    uint8_t ascii_kind[128], ascii_char[128];
    int32_t ascii_id[128]; /* of the one-character word */

    struct added *added;
    size_t added_count, added_cap;
    uint32_t *added_slot, added_slots; /* a hash table of indexes plus one, by content; its size */
    uint32_t added_next;               /* the largest id among them plus one */
    uint32_t *added_of; /* of id: its index in added plus one; 0: not an added token */
    struct added_set raw, normal; /* found in the text as it came; in the normalised text */
    struct post single, pair;
    struct trim trim[4];
    int trims;
    int left; /* truncation cuts at the beginning */
    uint32_t vocab_size;
    uint32_t vocab_count, model_size; /* entries of the model's vocabulary; its largest id + 1 */
};

/* Ids on their way, and of each the bytes it stands for, where they are wanted. */
struct blanks {
    uint8_t before, after; /* 255 stands for more, too */
};
struct ids {
    int32_t *id;
    struct tok_span *span;
    struct blanks *blank; /* how many characters of white space the token begins and ends with */
    size_t count, cap, span_cap, blank_cap;
};

int ids_reserve(struct ids *x, size_t want, int spans); /* -1: out of memory */

#define CACHE_WORD 24 /* bytes */
#define CACHE_IDS 9
#define CACHE_SLOTS 16384

struct cache_entry {
    uint64_t key[3]; /* the word, zeros behind it */
    uint8_t len, count;
    int32_t id[CACHE_IDS];
};

struct tok_scratch {
    struct runes runes, tmp;
    struct runes held; /* normalised, not yet searched for added tokens */
    uint8_t *word;
    size_t word_cap;
    struct ids ids[2], all;
    uint8_t *types;
    size_t types_cap;
    struct normal_room normal;
    struct stretch room[STAGES_MAX], text;
    struct pattern_room *patterns;
    struct bpe_room bpe;
    struct unigram_room unigram;
    uint32_t *ends;
    size_t ends_cap;
    struct cache_entry *cache;
    uint64_t cache_serial; /* of the tokenizer whose words it holds */
};

/* encode.c: appends the ids of a text to out, until there are more than limit. ST_NOMEM, or ST_USER. */
MUST_USE enum status encode_text(const struct tokenizer *t, struct tok_scratch *s, const uint8_t *text, size_t len, size_t limit,
                                 int spans, struct ids *out, struct err *e);
/* stream.c: the same for what t->stream allows, without spans. */
MUST_USE enum status stream_text(const struct tokenizer *t, struct tok_scratch *s, const uint8_t *text, size_t len, size_t limit,
                                 struct ids *out, struct err *e);
void stream_prepare(struct tokenizer *t);

/* The file at hand; every message begins with it. */
struct place {
    const char *path;
    struct err *e;
};

/* load.c: tok_flag wants the key, tok_flag_if leaves *value alone without it. */
const char *tok_text(const json_t *v, const char *key);
MUST_USE enum status tok_lacks(const struct place *at, const char *where, const char *what);
MUST_USE enum status tok_unsupported(const struct place *at, const char *what, const char *type);
MUST_USE enum status tok_flag(const struct place *at, const char *where, const json_t *v, const char *key, int *value);
MUST_USE enum status tok_flag_if(const struct place *at, const json_t *config, const char *key, int *value);
MUST_USE enum status tok_load(const char *dir, struct tokenizer *t, struct err *e);

/* load_model.c */
MUST_USE enum status tok_load_model(const struct place *at, struct tokenizer *t, const json_t *v);
/* Takes a whole WordPiece vocabulary; sorts keys. */
MUST_USE enum status tok_set_wordpiece(const struct place *at, struct tokenizer *t, struct trie_key *keys, size_t count, const char *unk,
                                       const char *prefix, json_int_t max_chars);
/* Takes a BPE vocabulary and merges as the two files give them. */
MUST_USE enum status tok_set_bpe_files(const struct place *at, struct tokenizer *t, const json_t *vocab, const struct place *merges_at,
                                       const char *merges, size_t len);

/* load_parts.c */
MUST_USE enum status tok_load_normalizer(const struct place *at, struct tokenizer *t, const json_t *v);
MUST_USE enum status tok_add_bert(const struct place *at, struct tokenizer *t, int clean, int han, int strip, int lower);
MUST_USE enum status tok_load_split(const struct place *at, struct tokenizer *t, const json_t *v);
struct stage *tok_new_stage(struct tokenizer *t, enum stage_kind kind); /* NULL: there are too many */

/* load_post.c */
MUST_USE enum status tok_load_post(const struct place *at, struct tokenizer *t, const json_t *v);
MUST_USE enum status tok_post_around(const struct place *at, struct tokenizer *t, json_int_t first, json_int_t last, int roberta);
MUST_USE enum status tok_load_truncation(const struct place *at, struct tokenizer *t, const json_t *v);
void tok_post_default(struct tokenizer *t);

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

/* find.c: added tokens in bytes. */
#define FIND_NONE UINT32_MAX
struct match {
    size_t start, end;
    const struct added *token;
};
/* Finds the first token that starts at *from or later and before `stop`; if there is none, 0, and *from is where to go on. */
int find_added(const struct tokenizer *t, const struct added_set *set, const uint8_t *text, size_t len, size_t *from, size_t stop,
               struct match *m);
int find_is_word(uint32_t c); /* FIND_NONE is none */
uint32_t find_char_at(const uint8_t *text, size_t len, size_t at);
size_t find_skip_white(const uint8_t *text, size_t len, size_t at);
size_t find_trim_white(const uint8_t *text, size_t low, size_t at);

#endif
