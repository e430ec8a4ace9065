/* What a tokenizer.json calls a pattern: a plain string, or a regular expression in Oniguruma's syntax, run by PCRE2. Read-only once
   it is made; each thread matches with a room of its own. */
#ifndef EBB_TEXT_PATTERN_H
#define EBB_TEXT_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct pattern;
struct pattern_room; /* a thread's memory for matching; NULL until first used */

/* Expressions that have a scanner of their own, which gives what PCRE2 gives, only sooner. */
enum pattern_known {
    PATTERN_OTHER,
    PATTERN_GPT2,    /* the regex of ByteLevel */
    PATTERN_CL100K,  /* GPT-4's, Llama 3's: numbers by three */
    PATTERN_QWEN,    /* the same, numbers one by one */
    PATTERN_SPACES,  /* " {2,}" */
};

#define PATTERN_GPT2_REGEX "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Says why it cannot be compiled, naming the expression. */
MUST_USE enum status pattern_open(const char *text, size_t len, int regex, struct pattern **out, struct err *e);
void pattern_free(struct pattern *p);
enum pattern_known pattern_known(const struct pattern *p);
const char *pattern_text(const struct pattern *p, size_t *len);

/* The next match at `from` or later in a subject that is UTF-8. ST_END: there is none. ST_USER: it takes too many steps to tell. */
MUST_USE enum status pattern_find(const struct pattern *p, struct pattern_room **room, const uint8_t *subject, size_t len, size_t from,
                                  size_t *start, size_t *end, struct err *e);
void pattern_room_free(struct pattern_room *room);

#endif
