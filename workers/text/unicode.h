/* What a tokenizer asks of a character, answered as the reference implementation answers: by the Unicode versions it was built
   with, whatever the installed database knows. Decompositions come from utf8proc. */
#ifndef EBB_TEXT_UNICODE_H
#define EBB_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

struct uni_range {
    uint32_t first, last;
};

struct uni_script_range {
    uint32_t first, last;
    int32_t script;
};

struct uni_late {
    uint32_t first, last;
    char category[3];
};

extern const struct uni_late uni_lates[]; /* what PCRE2's database may lack */
extern const size_t uni_lates_count;
extern const struct uni_range uni_other[], uni_punct[], uni_mn[], uni_mark[], uni_letter[], uni_number[], uni_digit[];
extern const size_t uni_other_count, uni_punct_count, uni_mn_count, uni_mark_count, uni_letter_count, uni_number_count, uni_digit_count;
extern const struct uni_script_range uni_scripts[];
extern const size_t uni_scripts_count;

enum {
    UNI_WHITE = 1,    /* White_Space */
    UNI_OTHER = 2,    /* control, format and private use, but for tab, line feed and carriage return */
    UNI_PUNCT = 4,    /* ASCII punctuation and symbols, P elsewhere */
    UNI_MN = 8,       /* non-spacing mark */
    UNI_MARK = 16,    /* any mark */
    UNI_HAN = 32,     /* the "Chinese characters" of BERT */
    UNI_WORD = 64,    /* \w of a regular expression */
    UNI_BOUNDARY = 128, /* whatever stands before it is normalised the same without it, and it the same without that */
    UNI_LETTER = 256,   /* \p{L} of a regular expression */
    UNI_NUMBER = 512,   /* \p{N} */
    UNI_DIGIT = 1024,   /* what Digits splits at */
    UNI_JOINS = 2048,   /* may share a grapheme cluster with what stands before it */
    UNI_PREPENDS = 4096, /* with what stands behind it, whatever that is */
};

/* Fills the tables on first use; every other function here needs it called before. Any thread may call it. */
void uni_init(void);

#define UNI_TABLE 0x20000u
extern uint16_t uni_table[UNI_TABLE]; /* of the first two planes */
unsigned uni_flags_beyond(uint32_t c);

static inline unsigned uni_flags(uint32_t c)
{
    return c < UNI_TABLE ? uni_table[c] : uni_flags_beyond(c);
}

int uni_script(uint32_t c); /* as UnicodeScripts numbers them; 0 goes with every one */
/* Is there a border between the grapheme clusters of two neighbours? *state is 0 at the start of a cluster. */
int uni_grapheme_break(uint32_t before, uint32_t c, int32_t *state);
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

/* uni_decode for text that is known to be UTF-8 and not at its end. */
static inline uint32_t uni_next(const uint8_t **at)
{
    const uint8_t *p = *at;
    uint32_t a = p[0];
    if (a < 0x80) {
        *at = p + 1;
        return a;
    }
    if (a < 0xE0) {
        *at = p + 2;
        return (a & 0x1F) << 6 | (p[1] & 0x3Fu);
    }
    if (a < 0xF0) {
        *at = p + 3;
        return (a & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    }
    *at = p + 4;
    return (a & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

#endif
