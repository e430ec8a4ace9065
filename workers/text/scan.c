#include "workers/text/scan.h"

#include <pthread.h>

#include "workers/text/unicode.h"

enum { SPACE = 1, LETTER = 2, NUMBER = 4, OTHER = 8 };

static uint8_t ascii[128];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static inline unsigned class_of(unsigned flags)
{
    return flags & UNI_LETTER ? LETTER : flags & UNI_NUMBER ? NUMBER : flags & UNI_WHITE ? SPACE : OTHER;
}

static void fill(void)
{
    uni_init();
    for (uint32_t c = 0; c < 128; c++)
        ascii[c] = (uint8_t)class_of(uni_flags(c));
}

void scan_init(void)
{
    pthread_once(&once, fill);
}

/* The class of the character at p; *next is behind it. */
static inline unsigned class_at(const uint8_t *p, const uint8_t **next)
{
    if (*p < 0x80) {
        *next = p + 1;
        return ascii[*p];
    }
    *next = p;
    return class_of(uni_flags(uni_next(next)));
}

static inline const uint8_t *run(const uint8_t *p, const uint8_t *end, unsigned class)
{
    const uint8_t *next;
    while (p < end && class_at(p, &next) == class)
        p = next;
    return p;
}

/* \s+(?!\S)|\s+ at the white space p: the last of several is left to what follows. */
static size_t spaces(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *last = p, *q = p, *next;
    while (q < end && class_at(q, &next) == SPACE) {
        last = q;
        q = next;
    }
    return (size_t)((q == end || last == p ? q : last) - p);
}

static size_t contraction(const uint8_t *p, const uint8_t *end, int any_case)
{
    if (end - p < 2 || p[0] != '\'')
        return 0;
    unsigned a = p[1], b = end - p > 2 ? p[2] : 0;
    if (any_case) {
        if (a == 0xC5 && b == 0xBF) /* the long s is an s in another case */
            return 3;
        a |= a >= 'A' && a <= 'Z' ? 0x20 : 0;
        b |= b >= 'A' && b <= 'Z' ? 0x20 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t scan_gpt2(const uint8_t *p, const uint8_t *end)
{
    size_t n = contraction(p, end, 0);
    if (n)
        return n;
    const uint8_t *q = p + (*p == ' '), *next;
    unsigned class = q < end ? class_at(q, &next) : SPACE;
    if (class == SPACE)
        return spaces(p, end);
    return (size_t)(run(next, end, class) - p);
}

size_t scan_cl100k(const uint8_t *p, const uint8_t *end, int digits)
{
    size_t n = contraction(p, end, 1);
    if (n)
        return n;
    const uint8_t *next, *after;
    unsigned class = class_at(p, &next);
    if (class == LETTER)
        return (size_t)(run(next, end, LETTER) - p);
    if (class == NUMBER) {
        while (--digits > 0 && next < end && class_at(next, &after) == NUMBER)
            next = after;
        return (size_t)(next - p);
    }
    if (*p != '\r' && *p != '\n' && next < end && class_at(next, &after) == LETTER)
        return (size_t)(run(after, end, LETTER) - p);
    const uint8_t *q = p + (*p == ' ');
    if (q < end && class_at(q, &after) == OTHER) {
        q = run(after, end, OTHER);
        while (q < end && (*q == '\r' || *q == '\n'))
            q++;
        return (size_t)(q - p);
    }
    const uint8_t *line = NULL; /* behind the last end of a line in the white space */
    for (q = p; q < end && class_at(q, &after) == SPACE; q = after)
        if (*q == '\r' || *q == '\n')
            line = after;
    return line ? (size_t)(line - p) : spaces(p, end);
}
