/* What a tokenizer asks of a character, answered as the reference implementation answers: by the Unicode versions it was built
   with, whatever the installed database knows. Decompositions come from utf8proc. */
#ifndef EBB_TEXT_UNICODE_H
#define EBB_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

struct uni_range {
    uint32_t first, last;
};

extern const struct uni_range uni_other[], uni_punct[], uni_mn[], uni_mark[];
extern const size_t uni_other_count, uni_punct_count, uni_mn_count, uni_mark_count;

enum {
    UNI_WHITE = 1,    /* White_Space */
    UNI_OTHER = 2,    /* control, format and private use, but for tab, line feed and carriage return */
    UNI_PUNCT = 4,    /* ASCII punctuation and symbols, P elsewhere */
    UNI_MN = 8,       /* non-spacing mark */
    UNI_MARK = 16,    /* any mark */
    UNI_HAN = 32,     /* the "Chinese characters" of BERT */
    UNI_WORD = 64,    /* \w of a regular expression */
    UNI_BOUNDARY = 128, /* whatever stands before it is normalised the same without it, and it the same without that */
};

/* Fills the tables on first use; every other function here needs it called before. Any thread may call it. */
void uni_init(void);

unsigned uni_flags(uint32_t c);
int uni_combining_class(uint32_t c); /* 0 to 254 */
/* Writes the lower case of c to out (2 at most) and returns the count. */
int uni_lower(uint32_t c, uint32_t *out);
/* Writes the full decomposition of c, not yet ordered, to out (UNI_DECOMPOSED_MAX at most) and returns the count. */
#define UNI_DECOMPOSED_MAX 32
int uni_decompose(uint32_t c, int compat, uint32_t *out);
/* Composes len decomposed and ordered characters in place; returns how many are left. */
size_t uni_compose(uint32_t *c, size_t len);

/* Reads one character at p < end and moves p; a malformed byte reads as U+FFFD. */
uint32_t uni_decode(const uint8_t **p, const uint8_t *end);
size_t uni_encode(uint32_t c, uint8_t out[4]); /* returns the number of bytes */
int uni_valid(const uint8_t *p, size_t len);   /* is this UTF-8? */

#endif
