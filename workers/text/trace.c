/* The normaliser's slow twin, which keeps track of where each character comes from. The reference describes every change as a list of
   characters, each of which replaces one (0), replaces one and swallows N more (-N), or is new (1); what a character is aligned with
   follows from that list, and so do these functions. */
#include <string.h>

#include "base/mem.h"
#include "workers/text/charsmap.h"
#include "workers/text/normalize.h"
#include "workers/text/tokenizer.h"
#include "workers/text/unicode.h"

struct change {
    uint32_t c;
    int by;
};

struct changes {
    struct change *at;
    size_t len, cap;
};

static int add(struct changes *x, uint32_t c, int by)
{
    void *p = x->at;
    if (mem_grow(&p, &x->cap, x->len, sizeof *x->at) < 0)
        return -1;
    x->at = p;
    x->at[x->len++] = (struct change){c, by};
    return 0;
}

int trace_reserve(struct trace *t, size_t len)
{
    if (len <= t->cap)
        return 0;
    size_t cap = len + len / 2 + 64;
    void *p = cap > SIZE_MAX / sizeof *t->at ? NULL : mem_resize(t->at, cap * sizeof *t->at);
    if (!p)
        return -1;
    t->at = p;
    t->cap = cap;
    return 0;
}

void trace_release(struct trace *t)
{
    mem_free(t->at);
    *t = (struct trace){0};
}

/* Applies the list; the first `gone` characters are swallowed before it begins. */
static int apply(struct runes *r, struct trace *from, const struct changes *x, size_t gone, struct trace *tmp, uint32_t base)
{
    size_t old = r->len, k = gone;
    r->len = 0;
    if (runes_reserve(r, x->len) < 0 || trace_reserve(tmp, x->len + 1) < 0)
        return -1;
    for (size_t i = 0; i < x->len; i++) {
        int by = x->at[i].by;
        struct tok_span a = {base, base};
        if (by > 0)
            a = k && k - 1 < old ? from->at[k - 1] : a;
        else if (k < old)
            a = from->at[k];
        if (by <= 0)
            k += 1 + (size_t)-by;
        r->at[r->len++] = x->at[i].c;
        tmp->at[i] = a;
    }
    struct trace t = *from;
    *from = *tmp;
    *tmp = t;
    return 0;
}

static int order(const struct change *a)
{
    return uni_combining_class(a->c);
}

/* Stable, by combining class: a short run by insertion; a long one, which only a hostile text has, by counting. */
static int sort_run(struct change *c, size_t len)
{
    if (len <= 32) {
        for (size_t i = 1; i < len; i++) {
            struct change x = c[i];
            size_t k = i;
            for (; k && order(&c[k - 1]) > order(&x); k--)
                c[k] = c[k - 1];
            c[k] = x;
        }
        return 0;
    }
    size_t start[257] = {0};
    struct change *copy = mem_array(len, sizeof *copy);
    if (!copy)
        return -1;
    memcpy(copy, c, len * sizeof *c);
    for (size_t i = 0; i < len; i++)
        start[order(&c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < len; i++)
        c[start[order(&copy[i])]++] = copy[i];
    mem_free(copy);
    return 0;
}

static int sort_marks(struct changes *x)
{
    for (size_t i = 0; i < x->len;) {
        size_t j = i;
        while (j < x->len && order(&x->at[j]))
            j++;
        if (j - i > 1 && sort_run(x->at + i, j - i) < 0)
            return -1;
        i = j + 1;
    }
    return 0;
}

static uint32_t composed(uint32_t a, uint32_t b)
{
    uint32_t two[2] = {a, b};
    return uni_compose(two, 2) == 1 ? two[0] : 0;
}

/* Canonical composition over a decomposed, ordered list. */
static void compose(struct changes *x)
{
    size_t n = 0, starter = SIZE_MAX;
    int last = -1; /* the class of the last character kept behind the starter; -1: none */
    for (size_t i = 0; i < x->len; i++) {
        struct change c = x->at[i];
        int class = order(&c);
        if (starter != SIZE_MAX && (last < 0 || (last < class && last != 0))) {
            uint32_t r = composed(x->at[starter].c, c.c);
            if (r) {
                x->at[starter] = (struct change){r, x->at[starter].by + c.by - 1};
                continue;
            }
        }
        if (class == 0) {
            starter = n;
            last = -1;
        } else {
            last = class;
        }
        x->at[n++] = c;
    }
    x->len = n;
}

static int decompose(const struct runes *r, struct changes *x, int compat)
{
    for (size_t i = 0; i < r->len; i++) {
        uint32_t full[UNI_DECOMPOSED_MAX];
        int n = uni_decompose(r->at[i], compat, full);
        for (int k = 0; k < n; k++)
            if (add(x, full[k], k > 0) < 0)
                return -1;
    }
    return sort_marks(x);
}

/* What the table makes of one cluster or character, as the reference counts it. */
static int replace(const struct charsmap *m, const uint8_t *p, size_t len, int chars, struct changes *x)
{
    size_t n = 0;
    const uint8_t *to = charsmap_find(m, p, len, &n);
    if (!to)
        return 0;
    int count = 0;
    for (const uint8_t *end = to + n; to < end; count++)
        if (add(x, uni_decode(&to, end), 0) < 0)
            return -1;
    for (int i = 0; i < count - chars; i++)
        x->at[x->len - 1 - (size_t)i].by = 1;
    if (count < chars && x->len)
        x->at[x->len - 1].by += count - chars;
    return 1;
}

static int map_chars(const struct charsmap *m, const struct runes *r, struct changes *x)
{
    for (size_t i = 0; i < r->len;) {
        int32_t state = 0;
        size_t n = 1, size;
        while (i + n < r->len && !uni_grapheme_break(r->at[i + n - 1], r->at[i + n], &state))
            n++;
        uint8_t bytes[16];
        size = uni_encode(r->at[i], bytes);
        for (size_t k = 1; k < n && size < 6; k++)
            size += uni_encode(r->at[i + k], bytes + size);
        int done = size < 6 ? replace(m, bytes, size, (int)n, x) : 0;
        for (size_t k = 0; done == 0 && k < n; k++) {
            int rc = replace(m, bytes, uni_encode(r->at[i + k], bytes), 1, x);
            if (rc < 0 || (!rc && add(x, r->at[i + k], 0) < 0))
                return -1;
        }
        if (done < 0)
            return -1;
        i += n;
    }
    return 0;
}

/* A step that keeps, drops or exchanges single characters. */
static int each(enum norm_step step, const struct runes *r, struct changes *x, size_t *gone)
{
    struct normalizer one = {.count = 1, .step = {(uint8_t)step}};
    for (size_t i = 0; i < r->len; i++) {
        uint32_t room[4] = {r->at[i]}, more[64];
        struct runes c = {room, 1, 4}, tmp = {more, 0, 64};
        if (normalizer_run(&one, &c, &tmp) < 0)
            return -1;
        for (size_t k = 0; k < c.len; k++)
            if (add(x, c.at[k], k > 0) < 0)
                return -1;
        if (c.len)
            continue;
        if (x->len)
            x->at[x->len - 1].by--;
        else
            ++*gone;
    }
    return 0;
}

int normalizer_trace(const struct normalizer *n, struct runes *r, struct trace *from, struct runes *tmp, struct trace *tmp_from,
                     uint32_t base)
{
    (void)tmp;
    struct changes x = {0};
    int rc = 0;
    for (int i = 0; i < n->count && !rc; i++) {
        size_t gone = 0;
        x.len = 0;
        enum norm_step step = (enum norm_step)n->step[i];
        switch (step) {
        case NORM_NFD:
        case NORM_NFKD:
            rc = decompose(r, &x, step == NORM_NFKD);
            break;
        case NORM_NFC:
        case NORM_NFKC:
            rc = decompose(r, &x, step == NORM_NFKC);
            if (!rc)
                compose(&x);
            break;
        case NORM_CHARSMAP:
            rc = map_chars(n->map, r, &x);
            break;
        default:
            rc = each(step, r, &x, &gone);
        }
        if (!rc)
            rc = apply(r, from, &x, gone, tmp_from, base);
    }
    mem_free(x.at);
    return rc;
}
