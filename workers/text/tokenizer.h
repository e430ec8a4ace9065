/* Text to token ids, as a Hugging Face tokenizer.json (or a vocab.txt beside a tokenizer_config.json) describes it.
   A tokenizer is read-only after it is opened and may be used by many threads at once; each thread has its own scratch. */
#ifndef EBB_TEXT_TOKENIZER_H
#define EBB_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;
struct tok_scratch; /* the memory of one thread; grows to the longest text seen, at most a few MB */

/* Reads `<dir>/tokenizer.json`, else `<dir>/vocab.txt`. What it does not support is refused here, naming file and component
   ("'m/tokenizer.json': model type 'Unigram' is not supported by this version"). On failure *out is untouched. */
MUST_USE enum status tokenizer_open(const char *dir, struct tokenizer **out, struct err *e);
void tokenizer_free(struct tokenizer *t);

uint32_t tokenizer_vocab_size(const struct tokenizer *t); /* largest id + 1 */
/* How many special tokens the post-processor puts around one text (2 for BERT: [CLS] and [SEP]). */
uint32_t tokenizer_special_count(const struct tokenizer *t);

MUST_USE enum status tok_scratch_new(struct tok_scratch **out, struct err *e);
void tok_scratch_free(struct tok_scratch *s);

struct tok_result {
    const int32_t *ids; /* owned by the scratch, valid until its next use; special tokens included */
    uint32_t count;
    int truncated; /* the text had more tokens than max_tokens allowed */
};

/* Encodes text (valid UTF-8, any bytes, NUL too). At most max_tokens ids come out, special tokens included (as Hugging Face's
   truncation: the text's tail is cut, the closing special token stays); max_tokens 0 is no limit. Work stops at the limit: its
   cost never grows with what lies far behind. ST_NOMEM is the only failure. */
MUST_USE enum status tokenizer_encode(const struct tokenizer *t, struct tok_scratch *s, const char *text, size_t len,
                                      uint32_t max_tokens, struct tok_result *out, struct err *e);

#endif
