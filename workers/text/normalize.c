#include "workers/text/normalize.h"

#include <string.h>

#include "base/mem.h"
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
        }
        if (rc)
            return -1;
    }
    return 0;
}

int normalizer_ascii(const struct normalizer *n, int c)
{
    for (int i = 0; i < n->count; i++) {
        if (n->step[i] == NORM_CLEAN) {
            unsigned f = uni_flags((uint32_t)c);
            if (c == 0 || (f & UNI_OTHER))
                return -1;
            if (f & UNI_WHITE)
                c = ' ';
        } else if (n->step[i] == NORM_LOWER && c >= 'A' && c <= 'Z') {
            c += 32;
        }
    }
    return c;
}
