/* Nested arrays of numbers. One pass; the shape is that of the first row at each depth, and every later row has to be as long. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/json.h"
#include "workers/tensor_in/elements.h"

#define DIGITS_MAX 1024 /* characters of one number; an honest one has some twenty */

struct parse {
    const struct tensor_want *w;
    const char *p, *end;
    struct tensor_in *out;
    uint64_t cap;              /* elements that there is room for */
    int64_t index[RANK_MAX];   /* where it stands */
    int known[RANK_MAX];       /* the length at this depth is settled */
};

static void blanks(struct parse *p)
{
    while (p->p < p->end && (*p->p == ' ' || *p->p == '\n' || *p->p == '\t' || *p->p == '\r'))
        p->p++;
}

/* "'pixels'[3][17]" */
static enum status wrong(const struct parse *p, uint32_t depth, const char *what, struct err *e)
{
    char place[RANK_MAX * 24] = "";
    for (uint32_t i = 0, at = 0; i < depth; i++)
        at += (uint32_t)snprintf(place + at, sizeof place - at, "[%lld]", (long long)p->index[i]);
    return err_set(e, ST_USER, "'%s'%s %s", p->w->name, place, what);
}

/* Powers of ten that a double holds exactly: a product or quotient of two exact numbers is rounded once */
static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* s is a number of JSON's grammar */
static void read_number(const char *s, size_t len, struct numeral *n)
{
    const char *p = s, *end = s + len;
    uint64_t digits = 0;
    int exact = 1, places = 0, power = 0, plain = 1;
    n->negative = *p == '-';
    p += n->negative;
    for (; p < end && (*p == '.' || (*p >= '0' && *p <= '9')); p++) {
        if (*p == '.') {
            plain = 0;
            continue;
        }
        places += !plain;
        exact &= !__builtin_mul_overflow(digits, 10, &digits) && !__builtin_add_overflow(digits, (uint64_t)(*p - '0'), &digits);
    }
    if (p < end) { /* an exponent */
        plain = 0;
        int minus = p[1] == '-';
        for (p += 1 + (p[1] == '-' || p[1] == '+'); p < end; p++)
            if (power < 10000)
                power = power * 10 + (*p - '0');
        power = minus ? -power : power;
    }
    power -= places;
    n->whole = plain && exact;
    n->magnitude = digits;
    if (exact && digits <= (uint64_t)1 << 53 && power >= -22 && power <= 22) {
        double d = power < 0 ? (double)digits / tens[-power] : (double)digits * tens[power];
        n->real = n->negative ? -d : d;
    } else {
        char copy[DIGITS_MAX + 1];
        memcpy(copy, s, len);
        copy[len] = '\0';
        n->real = strtod(copy, NULL); /* the program never leaves the "C" locale */
    }
}

static int take(struct parse *p, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->p) < n || memcmp(p->p, word, n) != 0)
        return 0;
    p->p += n;
    return 1;
}

static enum status read_element(struct parse *p, struct err *e)
{
    struct tensor_in *t = p->out;
    struct numeral n = {.whole = 1};
    if (p->w->dtype == DT_BOOL && take(p, "true")) {
        n.magnitude = 1;
    } else if (p->w->dtype != DT_BOOL || !take(p, "false")) {
        size_t len = json_number(p->p, p->end);
        if (!len)
            return wrong(p, t->rank,
                         p->p == p->end                    ? "ends too early"
                         : *p->p == '['                    ? "is an array, nested deeper than the model's input"
                         : *p->p == '"' || *p->p == '{'    ? "is no number"
                         : *p->p == ']' || *p->p == ','    ? "is missing"
                                                           : "is no number",
                         e);
        if (len > DIGITS_MAX)
            return wrong(p, t->rank, "is a number of too many digits", e);
        read_number(p->p, len, &n);
        p->p += len;
        if (n.real - n.real != 0)
            return wrong(p, t->rank, "is too large for the type", e);
    }
    if (t->count == p->cap) {
        uint64_t more = p->cap ? p->cap * 2 : 64;
        TRY(tensor_in_reserve(t, more, e));
        p->cap = t->cap / dtype_bytes(t->dtype);
    }
    const char *bad = element_put(t->dtype, t->data, t->count, &n);
    if (bad) {
        char words[96];
        snprintf(words, sizeof words, "%s (%s)", bad, dtype_name(t->dtype));
        return wrong(p, t->rank, words, e);
    }
    t->count++;
    return ST_OK;
}

static enum status read_array(struct parse *p, uint32_t depth, struct err *e)
{
    struct tensor_in *t = p->out;
    blanks(p);
    if (depth == t->rank)
        return read_element(p, e);
    if (!take(p, "["))
        return wrong(p, depth, depth ? "is no array, although the model's input has more axes" : "is no array", e);
    int64_t n = 0;
    blanks(p);
    if (!take(p, "]"))
        for (;; n++) {
            p->index[depth] = n;
            if (p->known[depth] && n == t->dims[depth]) /* told before the rest is read */
                return wrong(p, depth, "has more elements than the ones before it", e);
            if (p->w->dims[depth] >= 0 && n == p->w->dims[depth]) {
                char words[96];
                snprintf(words, sizeof words, "has more than the %lld elements that the model wants", (long long)n);
                return wrong(p, depth, words, e);
            }
            TRY(read_array(p, depth + 1, e));
            blanks(p);
            if (take(p, ","))
                continue;
            if (!take(p, "]"))
                return wrong(p, depth, "is no array of numbers", e);
            n++;
            break;
        }
    if (p->known[depth] && n != t->dims[depth])
        return wrong(p, depth, "has fewer elements than the ones before it", e);
    p->known[depth] = 1;
    t->dims[depth] = n;
    return ST_OK;
}

enum status tensor_in_json(const struct tensor_want *w, const char *json, size_t len, struct tensor_in *out, struct err *e)
{
    struct parse p = {.w = w, .p = json, .end = json + len, .out = out};
    BUG_IF(w->rank > RANK_MAX || !dtype_bytes(w->dtype), "an input of rank %u and type %d", w->rank, (int)w->dtype);
    out->dtype = w->dtype;
    out->rank = w->rank;
    out->count = 0;
    memset(out->dims, 0, sizeof out->dims);
    p.cap = out->cap / dtype_bytes(out->dtype);
    enum status st = read_array(&p, 0, e);
    blanks(&p);
    if (st == ST_OK && p.p != p.end)
        st = wrong(&p, 0, "has something behind its end", e);
    if (st == ST_OK)
        st = tensor_in_fits(w, out, e);
    if (st == ST_OK)
        st = tensor_in_reserve(out, out->count, e); /* an empty tensor has an address too */
    if (st != ST_OK)
        out->count = 0;
    return st;
}
