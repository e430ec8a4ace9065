#include "workers/text/normalize.h"

#include <string.h>

#include "base/mem.h"
#include "workers/text/charsmap.h"
#include "workers/text/unicode.h"

int runes_reserve(struct runes *r, size_t more)
{
    if (more <= r->cap - r->len)
        return 0;
    size_t want = r->cap ? r->cap * 2 : 1024;
    if (want < r->len + more)
        want = r->len + more;
    if (want > SIZE_MAX / sizeof *r->at)
        return -1;
    void *p = mem_resize(r->at, want * sizeof *r->at);
    if (!p)
        return -1;
    r->at = p;
    r->cap = want;
    return 0;
}

void runes_release(struct runes *r)
{
    mem_free(r->at);
    memset(r, 0, sizeof *r);
}

static void swap(struct runes *a, struct runes *b)
{
    struct runes t = *a;
    *a = *b;
    *b = t;
}

static void clean(struct runes *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->len; i++) {
        uint32_t c = r->at[i];
        unsigned f = uni_flags(c);
        if (c == 0 || c == 0xFFFD || (f & UNI_OTHER))
            continue;
        r->at[n++] = f & UNI_WHITE ? ' ' : c;
    }
    r->len = n;
}

static void drop(struct runes *r, unsigned flag)
{
    size_t n = 0;
    for (size_t i = 0; i < r->len; i++)
        if (!(uni_flags(r->at[i]) & flag))
            r->at[n++] = r->at[i];
    r->len = n;
}

static int space_han(struct runes *r, struct runes *tmp)
{
    size_t count = 0;
    for (size_t i = 0; i < r->len; i++)
        count += (uni_flags(r->at[i]) & UNI_HAN) != 0;
    if (!count)
        return 0;
    tmp->len = 0;
    if (runes_reserve(tmp, r->len + 2 * count) < 0)
        return -1;
    for (size_t i = 0; i < r->len; i++) {
        uint32_t c = r->at[i];
        if (uni_flags(c) & UNI_HAN) {
            tmp->at[tmp->len++] = ' ';
            tmp->at[tmp->len++] = c;
            tmp->at[tmp->len++] = ' ';
        } else {
            tmp->at[tmp->len++] = c;
        }
    }
    swap(r, tmp);
    return 0;
}

static int lower(struct runes *r, struct runes *tmp)
{
    tmp->len = 0;
    if (runes_reserve(tmp, 2 * r->len) < 0)
        return -1;
    for (size_t i = 0; i < r->len; i++)
        tmp->len += (size_t)uni_lower(r->at[i], tmp->at + tmp->len);
    swap(r, tmp);
    return 0;
}

/* Puts a run of marks in the order of their combining classes, equal ones as they stand. A short run by insertion; a long
   one, which only a hostile text has, by counting, with tmp as room. */
static int order_run(uint32_t *c, size_t len, struct runes *tmp)
{
    if (len <= 16) {
        for (size_t i = 1; i < len; i++) {
            uint32_t x = c[i];
            int class = uni_combining_class(x);
            size_t j = i;
            for (; j && uni_combining_class(c[j - 1]) > class; j--)
                c[j] = c[j - 1];
            c[j] = x;
        }
        return 0;
    }
    size_t start[257] = {0};
    tmp->len = 0;
    if (runes_reserve(tmp, len) < 0)
        return -1;
    for (size_t i = 0; i < len; i++)
        start[uni_combining_class(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < len; i++)
        tmp->at[start[uni_combining_class(c[i])]++] = c[i];
    memcpy(c, tmp->at, len * sizeof *c);
    return 0;
}

static int decompose(struct runes *r, struct runes *tmp, int compat)
{
    tmp->len = 0;
    for (size_t i = 0; i < r->len; i++) {
        if (runes_reserve(tmp, UNI_DECOMPOSED_MAX) < 0)
            return -1;
        tmp->len += (size_t)uni_decompose(r->at[i], compat, tmp->at + tmp->len);
    }
    swap(r, tmp);
    for (size_t i = 0; i < r->len;) {
        size_t j = i;
        while (j < r->len && uni_combining_class(r->at[j]) != 0)
            j++;
        if (j - i > 1 && order_run(r->at + i, j - i, tmp) < 0)
            return -1;
        i = j + 1;
    }
    return 0;
}

static int nmt_char(uint32_t c)
{
    switch (c) {
    case 0x9:
    case 0xA:
    case 0xC:
    case 0xD:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xFEFF:
    case 0xFFFD:
        return ' ';
    case 0xB:
    case 0x7F:
    case 0x8F:
    case 0x9F:
        return NORM_GONE;
    default:
        if (c >= 0x200B && c <= 0x200F)
            return ' ';
        return (c >= 1 && c <= 8) || (c >= 0xE && c <= 0x1F) ? NORM_GONE : (int)c;
    }
}

static void nmt(struct runes *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->len; i++) {
        int c = nmt_char(r->at[i]);
        if (c != NORM_GONE)
            r->at[n++] = (uint32_t)c;
    }
    r->len = n;
}

#define CLUSTER_MAX 6 /* bytes; a cluster of so many or more is replaced character by character */

/* The length in characters of the grapheme cluster at c; *bytes is its length in UTF-8, at most CLUSTER_MAX told. */
static size_t cluster(const uint32_t *c, size_t len, uint8_t bytes[16], size_t *size)
{
    size_t n = uni_encode(c[0], bytes), i = 1;
    int32_t state = 0;
    int joined = (c[0] == '\r' && len > 1 && c[1] == '\n') || (uni_flags(c[0]) & UNI_PREPENDS);
    for (; i < len; i++) {
        if (!joined && !(uni_flags(c[i]) & UNI_JOINS) && state == 0)
            break;
        if (uni_grapheme_break(c[i - 1], c[i], &state))
            break;
        joined = 1; /* what follows is decided by the whole rule */
        if (n < CLUSTER_MAX)
            n += uni_encode(c[i], bytes + n);
    }
    *size = n;
    return i;
}

/* What replaces a cluster or character, appended to out as characters; 0: it stays. */
static int replaced(const struct charsmap *m, const uint8_t *p, size_t len, struct runes *out)
{
    size_t n = 0;
    const uint8_t *to = charsmap_find(m, p, len, &n);
    if (!to)
        return 0;
    if (runes_reserve(out, n + 1) < 0)
        return -1;
    for (const uint8_t *end = to + n; to < end;)
        out->at[out->len++] = uni_decode(&to, end);
    return 1;
}

static int map_chars(const struct charsmap *m, struct runes *r, struct runes *tmp)
{
    tmp->len = 0;
    for (size_t i = 0; i < r->len;) {
        uint8_t bytes[16];
        size_t size, n = cluster(r->at + i, r->len - i, bytes, &size);
        int done = size < CLUSTER_MAX && n > 1 ? replaced(m, bytes, size, tmp) : 0;
        for (size_t k = 0; !done && k < n; k++) {
            int rc = replaced(m, bytes, uni_encode(r->at[i + k], bytes), tmp);
            if (!rc && runes_reserve(tmp, 1) < 0)
                rc = -1;
            if (!rc)
                tmp->at[tmp->len++] = r->at[i + k];
            if (rc < 0)
                return -1;
        }
        if (done < 0)
            return -1;
        i += n;
    }
    swap(r, tmp);
    return 0;
}

int normalizer_run(const struct normalizer *n, struct runes *r, struct runes *tmp)
{
    for (int i = 0; i < n->count; i++) {
        int rc = 0;
        switch ((enum norm_step)n->step[i]) {
        case NORM_CLEAN:
            clean(r);
            break;
        case NORM_HAN:
            rc = space_han(r, tmp);
            break;
        case NORM_DROP_MN:
            drop(r, UNI_MN);
            break;
        case NORM_DROP_MARKS:
            drop(r, UNI_MARK);
            break;
        case NORM_LOWER:
            rc = lower(r, tmp);
            break;
        case NORM_NFD:
        case NORM_NFKD:
            rc = decompose(r, tmp, n->step[i] == NORM_NFKD);
            break;
        case NORM_NFC:
        case NORM_NFKC:
            rc = decompose(r, tmp, n->step[i] == NORM_NFKC);
            if (!rc)
                r->len = uni_compose(r->at, r->len);
            break;
        case NORM_NMT:
            nmt(r);
            break;
        case NORM_CHARSMAP:
            rc = map_chars(n->map, r, tmp);
            break;
        }
        if (rc)
            return -1;
    }
    return 0;
}

static int ascii_mapped(const struct charsmap *m, int c)
{
    size_t n = 0;
    uint8_t byte = (uint8_t)c;
    if (c == '\r')
        return NORM_UNSURE;
    const uint8_t *to = charsmap_find(m, &byte, 1, &n);
    return !to ? c : !n ? NORM_GONE : n == 1 && *to < 0x80 ? *to : NORM_UNSURE;
}

int normalizer_ascii(const struct normalizer *n, int c)
{
    for (int i = 0; i < n->count && c >= 0; i++) {
        switch (n->step[i]) {
        case NORM_CLEAN: {
            unsigned f = uni_flags((uint32_t)c);
            if (c == 0 || (f & UNI_OTHER))
                return NORM_GONE;
            if (f & UNI_WHITE)
                c = ' ';
            break;
        }
        case NORM_LOWER:
            if (c >= 'A' && c <= 'Z')
                c += 32;
            break;
        case NORM_NMT:
            c = nmt_char((uint32_t)c);
            break;
        case NORM_CHARSMAP:
            c = ascii_mapped(n->map, c);
            break;
        default:
            break;
        }
    }
    return c;
}
