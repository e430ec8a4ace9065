/* Text to token ids, as a Hugging Face tokenizer.json describes it, or the older files: a vocab.txt, or a vocab.json with its
   merges.txt, beside a tokenizer_config.json. What it means is what the tokenizers library (0.23) makes of it; docs/tokenisers.md.
   A tokenizer is read-only after it is opened and may be used by many threads at once; each thread has its own scratch. */
#ifndef EBB_TEXT_TOKENIZER_H
#define EBB_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;
/* The memory of one thread; grows to the longest text seen, at most a few MB more than that text. It serves any tokenizer; the
   words that it remembers are those of the last one. */
struct tok_scratch;

/* Reads `<dir>/tokenizer.json`, else `<dir>/vocab.txt`, else `<dir>/vocab.json` and `<dir>/merges.txt`. What it does not support is
   refused here, naming file and component ("'m/tokenizer.json': pre_tokenizer 'X' is not supported by this version"). On failure
   *out is untouched. */
MUST_USE enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e);
void tokenizer_free(struct tokenizer *t);

uint32_t tokenizer_vocab_size(const struct tokenizer *t); /* largest id + 1 */
/* How many special tokens the post-processor puts around one text (2 for BERT: [CLS] and [SEP]), and around two. */
uint32_t tokenizer_special_count(const struct tokenizer *t);
uint32_t tokenizer_pair_special_count(const struct tokenizer *t);
/* The token of an id as its file spells it (a byte-level one in its own alphabet: "\u0120the"); NULL: no such id. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id);
int32_t tokenizer_id(const struct tokenizer *t, const char *token); /* -1: no such token */
int tokenizer_is_special(const struct tokenizer *t, int32_t id);

MUST_USE enum status tok_scratch_new(struct tok_scratch **out, struct err *e);
void tok_scratch_free(struct tok_scratch *s);

/* A run of bytes, or of tokens. */
struct tok_span {
    uint32_t start, end;
};

/* Which of two texts is cut when both are too long together. */
enum tok_cut {
    TOK_LONGEST_FIRST,
    TOK_ONLY_FIRST,
    TOK_ONLY_SECOND,
};

struct tok_input {
    const char *text; /* UTF-8, any characters, NUL too; a byte that is no UTF-8 counts as U+FFFD */
    size_t len;
    const char *pair; /* NULL: there is one text */
    size_t pair_len;
    uint32_t max_tokens; /* of all ids, special tokens included; 0: no limit */
    enum tok_cut cut;
    int spans; /* are they wanted? They take time */
};

struct tok_result { /* the arrays are owned by the scratch and valid until its next use */
    const int32_t *ids; /* special tokens included */
    uint32_t count;
    int truncated;        /* there were more tokens than max_tokens allowed */
    const uint8_t *types; /* of each id (0 or 1 in most models) */
    const struct tok_span *spans; /* of each id, the bytes of its text that it stands for; 0,0 for special tokens. NULL: not wanted */
    struct tok_span part[2];      /* which of the ids are the first text's, the second one's */
};

/* At most max_tokens ids come out (as Hugging Face's truncation: the text's tail is cut, or its head where the file says "Left"; the
   closing special token stays). Work stops at the limit where tail is cut: what lies far behind is not tokenised, though some
   normalisers look at all of it. ST_NOMEM; ST_USER, when this text cannot be tokenised: a regular expression takes too many steps,
   the vocabulary has no token for something unknown, or the text that may be cut is too short to make up for the other. */
MUST_USE enum status tokenizer_encode_input(const struct tokenizer *t, struct tok_scratch *s, const struct tok_input *in,
                                            struct tok_result *out, struct err *e);
/* The same for one text. */
MUST_USE enum status tokenizer_encode(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len,
                                      uint32_t max_tokens, struct tok_result *out, struct err *e);

#endif
