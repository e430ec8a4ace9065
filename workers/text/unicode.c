#include "workers/text/unicode.h"

#include <pthread.h>
#include <string.h>

#include <utf8proc.h>

uint16_t uni_table[UNI_TABLE];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* White_Space is stable since Unicode 6.3. */
static const struct uni_range white[] = {
    {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};

/* 2B820 to 2B91F are missing as they are in the reference. */
static const struct uni_range han[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};

/* \w beyond what utf8proc calls letters, marks, decimal digits and connectors: Join_Control, Other_Alphabetic outside the marks,
   and the characters of Unicode 15.1 and 16 */
static const struct uni_range word_extra[] = {
    {0x897, 0x897}, {0x1C89, 0x1C8A}, {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0xA7CB, 0xA7CD}, {0xA7DA, 0xA7DC},
    {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC},
    {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2}, {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0},
    {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A}, {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79},
    {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    {0x2EBF0, 0x2EE5D},
};

/* Decompositions that came after Unicode 9, which the reference leaves alone. */
static const struct uni_range late[] = {
    {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xAB69, 0xAB69},   {0x105C9, 0x105C9}, {0x105E4, 0x105E4}, {0x10781, 0x107BA},
    {0x11383, 0x113C8}, {0x11938, 0x11938}, {0x16121, 0x16128}, {0x16D68, 0x16D6A}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

/* Lower cases that came after Unicode 15, and the one that is two characters. */
struct lower_range {
    uint32_t first, last, lower, lower2;
};
static const struct lower_range lower_extra[] = {
    {0x130, 0x130, 'i', 0x307},    {0x1C89, 0x1C89, 0x1C8A, 0},     {0xA7CB, 0xA7CB, 0x264, 0},
    {0xA7CC, 0xA7CC, 0xA7CD, 0},   {0xA7CE, 0xA7CE, 0xA7CF, 0},     {0xA7D2, 0xA7D2, 0xA7D3, 0},
    {0xA7D4, 0xA7D4, 0xA7D5, 0},   {0xA7DA, 0xA7DA, 0xA7DB, 0},     {0xA7DC, 0xA7DC, 0x19B, 0},
    {0x10D50, 0x10D65, 0x10D70, 0}, {0x16EA0, 0x16EB8, 0x16EBB, 0},
};

#define COUNT(array) (sizeof array / sizeof array[0])

static int in_ranges(const struct uni_range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > r[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= r[lo].first;
}

static int is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        return in_ranges(word_extra, COUNT(word_extra), c);
    }
}

/* A starter that no earlier character composes with, and that no step removes. Of the characters that are second in a
   composition, all but the jamo are marks. */
static int starts_anew(uint32_t c)
{
    if (c == 0xFFFD || (c >= 0x1160 && c <= 0x11FF))
        return 0;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
        return 0;
    case UTF8PROC_CATEGORY_CC:
        return c == '\t' || c == '\n' || c == '\r';
    default:
        return !in_ranges(uni_other, uni_other_count, c) && !in_ranges(uni_mark, uni_mark_count, c);
    }
}

/* What utf8proc says of a character's place in grapheme clusters. Clusters of Hangul and of flags are not told here: all that is
   asked of a cluster is whether it has fewer than six bytes. */
static unsigned cluster_flags(uint32_t c)
{
    switch (utf8proc_get_property((utf8proc_int32_t)c)->boundclass) {
    case UTF8PROC_BOUNDCLASS_EXTEND:
    case UTF8PROC_BOUNDCLASS_SPACINGMARK:
    case UTF8PROC_BOUNDCLASS_ZWJ:
        return UNI_JOINS;
    case UTF8PROC_BOUNDCLASS_PREPEND:
        return UNI_PREPENDS;
    default:
        return 0;
    }
}

static int decomposes(uint32_t c)
{
    return (c >= 0xAC00 && c <= 0xD7A3) || utf8proc_get_property((utf8proc_int32_t)c)->decomp_seqindex != UINT16_MAX;
}

static unsigned more_flags(uint32_t c, unsigned f)
{
    if (is_word(c))
        f |= UNI_WORD;
    uint32_t full[UNI_DECOMPOSED_MAX];
    if (starts_anew(c) && (!decomposes(c) || (uni_decompose(c, 1, full) > 0 && starts_anew(full[0]))))
        f |= UNI_BOUNDARY;
    return f | cluster_flags(c);
}

static const struct {
    const struct uni_range *range;
    const size_t *count;
    unsigned flag;
} ranges[] = {
    {uni_other, &uni_other_count, UNI_OTHER},    {uni_punct, &uni_punct_count, UNI_PUNCT},    {uni_mn, &uni_mn_count, UNI_MN},
    {uni_mark, &uni_mark_count, UNI_MARK},       {uni_letter, &uni_letter_count, UNI_LETTER}, {uni_number, &uni_number_count, UNI_NUMBER},
    {uni_digit, &uni_digit_count, UNI_DIGIT},
};

unsigned uni_flags_beyond(uint32_t c)
{
    unsigned f = in_ranges(han, COUNT(han), c) ? UNI_HAN : 0;
    for (size_t i = 0; i < COUNT(ranges); i++)
        if (in_ranges(ranges[i].range, *ranges[i].count, c))
            f |= ranges[i].flag;
    return more_flags(c, f);
}

static void fill_range(const struct uni_range *r, size_t n, unsigned flag)
{
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = r[i].first; c <= r[i].last && c < UNI_TABLE; c++)
            uni_table[c] |= (uint16_t)flag;
}

static void fill(void)
{
    fill_range(white, COUNT(white), UNI_WHITE);
    fill_range(han, COUNT(han), UNI_HAN);
    for (size_t i = 0; i < COUNT(ranges); i++)
        fill_range(ranges[i].range, *ranges[i].count, ranges[i].flag);
    for (uint32_t c = '!'; c < 0x7F; c++)
        if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9'))
            uni_table[c] |= UNI_PUNCT;
    for (uint32_t c = 0; c < UNI_TABLE; c++)
        uni_table[c] = (uint16_t)more_flags(c, uni_table[c]);
}

void uni_init(void)
{
    pthread_once(&once, fill);
}

int uni_script(uint32_t c)
{
    size_t lo = 0, hi = uni_scripts_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > uni_scripts[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < uni_scripts_count && c >= uni_scripts[lo].first ? uni_scripts[lo].script : 0;
}

int uni_grapheme_break(uint32_t before, uint32_t c, int32_t *state)
{
    return utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, state);
}

int uni_combining_class(uint32_t c)
{
    if (c < 0x300 || !(uni_flags(c) & UNI_MARK))
        return 0;
    return (int)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

int uni_lower(uint32_t c, uint32_t *out)
{
    if (c < 0x80) {
        out[0] = c >= 'A' && c <= 'Z' ? c + 32 : c;
        return 1;
    }
    if (c == 0x130 || c >= 0x1C89)
        for (size_t i = 0; i < COUNT(lower_extra); i++)
            if (c >= lower_extra[i].first && c <= lower_extra[i].last) {
                out[0] = lower_extra[i].lower + (c - lower_extra[i].first);
                out[1] = lower_extra[i].lower2;
                return out[1] ? 2 : 1;
            }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

int uni_decompose(uint32_t c, int compat, uint32_t *out)
{
    if (c < 0xA0 || (!compat && c < 0xC0) || in_ranges(late, COUNT(late), c)) {
        out[0] = c;
        return 1;
    }
    utf8proc_int32_t full[UNI_DECOMPOSED_MAX];
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (compat)
        options |= UTF8PROC_COMPAT;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, full, UNI_DECOMPOSED_MAX, options, NULL);
    if (n <= 0 || n > UNI_DECOMPOSED_MAX) { /* not a character */
        out[0] = c;
        return 1;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++)
        out[i] = (uint32_t)full[i];
    return (int)n;
}

size_t uni_compose(uint32_t *c, size_t len)
{
    utf8proc_ssize_t n = utf8proc_normalize_utf32((utf8proc_int32_t *)c, (utf8proc_ssize_t)len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n < 0 ? len : (size_t)n;
}

/* The length of the well-formed sequence at p, 0 if there is none. */
static size_t sequence(const uint8_t *p, size_t left, uint32_t *c)
{
    uint8_t a = p[0];
    if (a < 0x80) {
        *c = a;
        return 1;
    }
    if (a >= 0xC2 && a < 0xE0 && left >= 2 && (p[1] & 0xC0) == 0x80) {
        *c = (uint32_t)(a & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (a >= 0xE0 && a < 0xF0 && left >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        *c = (uint32_t)(a & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return *c >= 0x800 && (*c < 0xD800 || *c > 0xDFFF) ? 3 : 0;
    }
    if (a >= 0xF0 && a < 0xF5 && left >= 4 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 && (p[3] & 0xC0) == 0x80) {
        *c = (uint32_t)(a & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
        return *c >= 0x10000 && *c <= 0x10FFFF ? 4 : 0;
    }
    return 0;
}

uint32_t uni_decode(const uint8_t **p, const uint8_t *end)
{
    uint32_t c = 0xFFFD;
    size_t n = sequence(*p, (size_t)(end - *p), &c);
    if (!n) {
        c = 0xFFFD;
        n = 1;
    }
    *p += n;
    return c;
}

size_t uni_encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

int uni_valid(const uint8_t *p, size_t len)
{
    uint32_t c;
    while (len) {
        uint64_t eight;
        if (len >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u))) {
            p += 8;
            len -= 8;
            continue;
        }
        size_t n = sequence(p, len, &c);
        if (!n)
            return 0;
        p += n;
        len -= n;
    }
    return 1;
}
