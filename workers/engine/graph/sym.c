/* An expression is kept as a sum of products: terms of a whole number times atoms. An atom is a symbol, or a quotient, minimum or maximum that
   could not be simplified. Sums and products of such are again such, in one normal form, so that equal sizes get equal names. */
#include "workers/engine/graph/sym.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { TERMS_MAX = 12, ATOMS_MAX = 8, DEPTH_MAX = 12, EXPRS_MAX = 1 << 20 };

enum atom_kind { ATOM_SYMBOL, ATOM_DIV, ATOM_CEIL_DIV, ATOM_MIN, ATOM_MAX };
struct atom {
    enum atom_kind kind;
    char *name;    /* of a symbol */
    uint32_t number; /* of a symbol */
    uint32_t depth;  /* of quotients in quotients */
    dim a, b;
};

struct term {
    int64_t factor;
    uint32_t n;
    uint32_t atom[ATOMS_MAX]; /* rising */
};

struct expr {
    uint32_t n;
    struct term *term; /* in order of their atoms; the constant term first */
    uint32_t next;     /* of the same hash, plus 1 */
};

struct syms {
    struct atom *atom;
    size_t atoms, atom_cap;
    struct expr *expr;
    size_t exprs, expr_cap;
    uint32_t symbols, fresh;
    uint32_t bucket[4096];
};

struct sum {
    uint32_t n;
    struct term term[TERMS_MAX];
    int bad;
};

enum status syms_new(struct syms **out, struct err *e)
{
    struct syms *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_nomem(e, "a table of sizes");
    *out = s;
    return ST_OK;
}

void syms_free(struct syms *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->atoms; i++)
        mem_free(s->atom[i].name);
    for (size_t i = 0; i < s->exprs; i++)
        mem_free(s->expr[i].term);
    mem_free(s->atom);
    mem_free(s->expr);
    mem_free(s);
}

uint32_t syms_count(const struct syms *s)
{
    return s->symbols;
}

/* Sums ------------------------------------------------------------------------------------------------------------------------------- */

/* Expression i is the dim INT64_MIN + 1 + i. */
static dim name_of(size_t i)
{
    return INT64_MIN + 1 + (int64_t)i;
}

static const struct expr *expr_of(const struct syms *s, dim d)
{
    uint64_t i = (uint64_t)d - (uint64_t)INT64_MIN - 1;
    return s && !dim_known(d) && d != DIM_UNKNOWN && i < s->exprs ? &s->expr[i] : NULL;
}

static int term_order(const struct term *a, const struct term *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++)
        if (a->atom[i] != b->atom[i])
            return a->atom[i] < b->atom[i] ? -1 : 1;
    return a->n == b->n ? 0 : a->n < b->n ? -1 : 1;
}

static void sum_add(struct sum *s, const struct term *t)
{
    if (t->factor == 0)
        return;
    uint32_t i = 0;
    while (i < s->n && term_order(&s->term[i], t) < 0)
        i++;
    if (i < s->n && term_order(&s->term[i], t) == 0) {
        if (__builtin_add_overflow(s->term[i].factor, t->factor, &s->term[i].factor))
            s->bad = 1;
        if (s->term[i].factor == 0) {
            s->n--;
            memmove(&s->term[i], &s->term[i + 1], (s->n - i) * sizeof s->term[0]);
        }
        return;
    }
    if (s->n == TERMS_MAX) {
        s->bad = 1;
        return;
    }
    memmove(&s->term[i + 1], &s->term[i], (s->n - i) * sizeof s->term[0]);
    s->term[i] = *t;
    s->n++;
}

static struct sum sum_of(const struct syms *s, dim d)
{
    struct sum r = {0};
    const struct expr *x = expr_of(s, d);
    if (x) {
        r.n = x->n;
        memcpy(r.term, x->term, x->n * sizeof *x->term);
    } else if (dim_known(d)) {
        struct term t = {.factor = d};
        sum_add(&r, &t);
    } else {
        r.bad = 1;
    }
    return r;
}

static struct term term_product(const struct term *a, const struct term *b, int *bad)
{
    struct term r = {0};
    if (__builtin_mul_overflow(a->factor, b->factor, &r.factor) || a->n + b->n > ATOMS_MAX) {
        *bad = 1;
        return r;
    }
    for (uint32_t i = 0, j = 0; i < a->n || j < b->n;)
        r.atom[r.n++] = j == b->n || (i < a->n && a->atom[i] <= b->atom[j]) ? a->atom[i++] : b->atom[j++];
    return r;
}

/* t / d where d's atoms are among t's and the factor divides; 0 where not. */
static int term_quotient(const struct term *t, const struct term *d, struct term *out)
{
    if (d->factor == 0 || t->factor % d->factor != 0)
        return 0;
    *out = (struct term){.factor = t->factor / d->factor};
    uint32_t j = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (j < d->n && t->atom[i] == d->atom[j])
            j++;
        else
            out->atom[out->n++] = t->atom[i];
    }
    return j == d->n;
}

static dim intern(struct syms *s, const struct sum *x)
{
    if (x->bad)
        return DIM_UNKNOWN;
    if (x->n == 0)
        return 0;
    if (x->n == 1 && x->term[0].n == 0)
        return x->term[0].factor >= DIM_LEAST ? x->term[0].factor : DIM_UNKNOWN;
    uint64_t h = x->n;
    for (uint32_t i = 0; i < x->n; i++) {
        h = (h ^ (uint64_t)x->term[i].factor) * 0x9e3779b97f4a7c15u;
        for (uint32_t k = 0; k < x->term[i].n; k++)
            h = (h ^ x->term[i].atom[k]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    uint32_t *bucket = &s->bucket[h % (sizeof s->bucket / sizeof *s->bucket)];
    for (uint32_t i = *bucket; i; i = s->expr[i - 1].next) {
        const struct expr *c = &s->expr[i - 1];
        int same = c->n == x->n;
        for (uint32_t k = 0; same && k < x->n; k++)
            same = c->term[k].factor == x->term[k].factor && term_order(&c->term[k], &x->term[k]) == 0;
        if (same)
            return name_of(i - 1);
    }
    struct term *copy = mem_array(x->n, sizeof *copy);
    if (!copy || s->exprs >= EXPRS_MAX || mem_grow((void **)&s->expr, &s->expr_cap, s->exprs, sizeof *s->expr) != 0) {
        mem_free(copy);
        return DIM_UNKNOWN;
    }
    memcpy(copy, x->term, x->n * sizeof *copy);
    s->expr[s->exprs] = (struct expr){.n = x->n, .term = copy, .next = *bucket};
    *bucket = (uint32_t)s->exprs + 1;
    return name_of(s->exprs++);
}

static dim of_atom(struct syms *s, uint32_t atom)
{
    struct sum x = {.n = 1, .term[0] = {.factor = 1, .n = 1, .atom = {atom}}};
    return intern(s, &x);
}

/* Symbols ---------------------------------------------------------------------------------------------------------------------------- */

static dim new_symbol(struct syms *s, char *name)
{
    if (!name || s->atoms >= EXPRS_MAX || mem_grow((void **)&s->atom, &s->atom_cap, s->atoms, sizeof *s->atom) != 0) {
        mem_free(name);
        return DIM_UNKNOWN;
    }
    s->atom[s->atoms] = (struct atom){.kind = ATOM_SYMBOL, .name = name, .number = s->symbols++};
    return of_atom(s, (uint32_t)s->atoms++);
}

dim dim_named(struct syms *s, const char *name)
{
    if (!s)
        return DIM_UNKNOWN;
    for (size_t i = 0; i < s->atoms; i++)
        if (s->atom[i].kind == ATOM_SYMBOL && strcmp(s->atom[i].name, name) == 0)
            return of_atom(s, (uint32_t)i);
    return new_symbol(s, mem_strdup(name));
}

dim dim_fresh(struct syms *s)
{
    return s ? new_symbol(s, mem_printf("?%u", s->fresh++)) : DIM_UNKNOWN;
}

static const struct atom *single_atom(const struct syms *s, dim d)
{
    const struct expr *x = expr_of(s, d);
    return x && x->n == 1 && x->term[0].n == 1 && x->term[0].factor == 1 ? &s->atom[x->term[0].atom[0]] : NULL;
}

int dim_symbol(const struct syms *s, dim d)
{
    const struct atom *a = single_atom(s, d);
    return a && a->kind == ATOM_SYMBOL ? (int)a->number : -1;
}

/* Arithmetic ------------------------------------------------------------------------------------------------------------------------- */

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}


static dim combine(struct syms *s, dim a, dim b, int64_t sign)
{
    struct sum x = sum_of(s, a), y = sum_of(s, b);
    x.bad |= y.bad;
    for (uint32_t i = 0; i < y.n && !x.bad; i++) {
        x.bad |= __builtin_mul_overflow(y.term[i].factor, sign, &y.term[i].factor);
        sum_add(&x, &y.term[i]);
    }
    return intern(s, &x);
}

dim dim_add(struct syms *s, dim a, dim b)
{
    int64_t r;
    if (dim_known(a) && dim_known(b))
        return __builtin_add_overflow(a, b, &r) || r < DIM_LEAST ? DIM_UNKNOWN : r;
    return s ? combine(s, a, b, 1) : DIM_UNKNOWN;
}

dim dim_sub(struct syms *s, dim a, dim b)
{
    int64_t r;
    if (dim_known(a) && dim_known(b))
        return __builtin_sub_overflow(a, b, &r) || r < DIM_LEAST ? DIM_UNKNOWN : r;
    return s ? combine(s, a, b, -1) : DIM_UNKNOWN;
}

dim dim_mul(struct syms *s, dim a, dim b)
{
    int64_t r;
    if (dim_known(a) && dim_known(b))
        return __builtin_mul_overflow(a, b, &r) || r < DIM_LEAST ? DIM_UNKNOWN : r;
    if (!s)
        return DIM_UNKNOWN;
    struct sum x = sum_of(s, a), y = sum_of(s, b), z = {.bad = x.bad | y.bad};
    for (uint32_t i = 0; i < x.n && !z.bad; i++)
        for (uint32_t j = 0; j < y.n && !z.bad; j++) {
            struct term t = term_product(&x.term[i], &y.term[j], &z.bad);
            if (!z.bad)
                sum_add(&z, &t);
        }
    return intern(s, &z);
}

/* Whole where b is one product and divides each term of a. */
static int exact_quotient(struct syms *s, dim a, dim b, dim *out)
{
    struct sum x = sum_of(s, a), y = sum_of(s, b), z = {0};
    if (x.bad || y.bad || y.n != 1) {
        if (!x.bad && !y.bad && a == b) {
            *out = 1;
            return 1;
        }
        return 0;
    }
    for (uint32_t i = 0; i < x.n; i++) {
        struct term t;
        if (!term_quotient(&x.term[i], &y.term[0], &t))
            return 0;
        sum_add(&z, &t);
    }
    *out = intern(s, &z);
    return *out != DIM_UNKNOWN;
}

static uint32_t depth_of(const struct syms *s, dim d)
{
    const struct expr *x = expr_of(s, d);
    uint32_t depth = 0;
    for (uint32_t i = 0; x && i < x->n; i++)
        for (uint32_t k = 0; k < x->term[i].n; k++)
            if (s->atom[x->term[i].atom[k]].depth > depth)
                depth = s->atom[x->term[i].atom[k]].depth;
    return depth;
}

static dim other(struct syms *s, enum atom_kind kind, dim a, dim b)
{
    if (!s || a == DIM_UNKNOWN || b == DIM_UNKNOWN)
        return DIM_UNKNOWN;
    for (size_t i = 0; i < s->atoms; i++)
        if (s->atom[i].kind == kind && s->atom[i].a == a && s->atom[i].b == b)
            return of_atom(s, (uint32_t)i);
    uint32_t da = depth_of(s, a), db = depth_of(s, b), depth = 1 + (da > db ? da : db);
    if (depth > DEPTH_MAX || s->atoms >= EXPRS_MAX || mem_grow((void **)&s->atom, &s->atom_cap, s->atoms, sizeof *s->atom) != 0)
        return DIM_UNKNOWN;
    s->atom[s->atoms] = (struct atom){.kind = kind, .depth = depth, .a = a, .b = b};
    return of_atom(s, (uint32_t)s->atoms++);
}

dim dim_div(struct syms *s, dim a, dim b)
{
    dim q;
    if (b == 0)
        return DIM_UNKNOWN;
    if (dim_known(a) && dim_known(b))
        return floor_div(a, b);
    if (b == 1)
        return a;
    return s && exact_quotient(s, a, b, &q) ? q : other(s, ATOM_DIV, a, b);
}

dim dim_ceil_div(struct syms *s, dim a, dim b)
{
    dim q;
    if (b == 0)
        return DIM_UNKNOWN;
    if (dim_known(a) && dim_known(b))
        return -floor_div(-a, b);
    if (b == 1)
        return a;
    return s && exact_quotient(s, a, b, &q) ? q : other(s, ATOM_CEIL_DIV, a, b);
}

/* Which is less, where their difference is a number: -1, 0, 1; 2 where that cannot be told. */
static int order(struct syms *s, dim a, dim b)
{
    dim d = dim_sub(s, a, b);
    return dim_known(d) ? (d > 0) - (d < 0) : 2;
}

dim dim_min(struct syms *s, dim a, dim b)
{
    int o = order(s, a, b);
    return o == 2 ? other(s, ATOM_MIN, a, b) : o <= 0 ? a : b;
}

dim dim_max(struct syms *s, dim a, dim b)
{
    int o = order(s, a, b);
    return o == 2 ? other(s, ATOM_MAX, a, b) : o >= 0 ? a : b;
}

int dim_uses(const struct syms *s, dim d, int symbol)
{
    const struct expr *x = expr_of(s, d);
    if (!x)
        return !dim_known(d);
    for (uint32_t i = 0; i < x->n; i++)
        for (uint32_t k = 0; k < x->term[i].n; k++) {
            const struct atom *a = &s->atom[x->term[i].atom[k]];
            if (a->kind == ATOM_SYMBOL ? (int)a->number == symbol : dim_uses(s, a->a, symbol) || dim_uses(s, a->b, symbol))
                return 1;
        }
    return 0;
}

/* Values and text -------------------------------------------------------------------------------------------------------------------- */

/* Atoms are made of older ones, so that this ends. */
static int64_t atom_value(const struct syms *s, uint32_t i, const int64_t *value, uint32_t count)
{
    const struct atom *a = &s->atom[i];
    if (a->kind == ATOM_SYMBOL)
        return a->number < count ? value[a->number] : DIM_UNKNOWN;
    dim x = dim_value(s, a->a, value, count), y = dim_value(s, a->b, value, count);
    if (!dim_known(x) || !dim_known(y))
        return DIM_UNKNOWN;
    switch (a->kind) {
    case ATOM_DIV:
        return dim_div(NULL, x, y);
    case ATOM_CEIL_DIV:
        return dim_ceil_div(NULL, x, y);
    case ATOM_MIN:
        return x < y ? x : y;
    case ATOM_MAX:
        return x > y ? x : y;
    case ATOM_SYMBOL:
        break;
    }
    return DIM_UNKNOWN;
}

dim dim_value(const struct syms *s, dim d, const int64_t *value, uint32_t count)
{
    if (dim_known(d))
        return d;
    const struct expr *x = expr_of(s, d);
    if (!x)
        return DIM_UNKNOWN;
    int64_t sum = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        int64_t product = x->term[i].factor;
        for (uint32_t k = 0; k < x->term[i].n; k++) {
            int64_t v = atom_value(s, x->term[i].atom[k], value, count);
            if (!dim_known(v) || __builtin_mul_overflow(product, v, &product))
                return DIM_UNKNOWN;
        }
        if (__builtin_add_overflow(sum, product, &sum))
            return DIM_UNKNOWN;
    }
    return sum < DIM_LEAST ? DIM_UNKNOWN : sum;
}

struct out {
    char *buf;
    size_t cap, n;
};

static void put(struct out *o, const char *text)
{
    for (; *text && o->n + 1 < o->cap; text++)
        o->buf[o->n++] = *text;
    o->buf[o->n] = '\0';
}

static void put_dim(struct out *o, const struct syms *s, dim d);

static void put_atom(struct out *o, const struct syms *s, const struct atom *a)
{
    static const char *const words[] = {[ATOM_DIV] = "floor", [ATOM_CEIL_DIV] = "ceil", [ATOM_MIN] = "min", [ATOM_MAX] = "max"};
    if (a->kind == ATOM_SYMBOL) {
        put(o, a->name);
        return;
    }
    put(o, words[a->kind]);
    put(o, "(");
    put_dim(o, s, a->a);
    put(o, a->kind == ATOM_MIN || a->kind == ATOM_MAX ? ", " : " / ");
    put_dim(o, s, a->b);
    put(o, ")");
}

static void put_dim(struct out *o, const struct syms *s, dim d)
{
    char number[32];
    const struct expr *x = expr_of(s, d);
    if (o->n + 1 >= o->cap)
        return; /* full: shared parts are not walked again and again */
    if (!x) {
        snprintf(number, sizeof number, "%lld", (long long)d);
        put(o, dim_known(d) ? number : "?");
        return;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        const struct term *t = &x->term[i];
        int64_t f = t->factor;
        if (i || (f == -1 && t->n))
            put(o, f < 0 ? "-" : "+");
        if (i && f < 0)
            f = -f;
        for (uint32_t k = 0; k < t->n; k++) {
            put(o, k ? "*" : "");
            put_atom(o, s, &s->atom[t->atom[k]]);
        }
        if (t->n == 0 || (f != 1 && f != -1)) {
            snprintf(number, sizeof number, "%s%lld", t->n ? "*" : "", (long long)f);
            put(o, number);
        }
    }
}

const char *dim_text(const struct syms *s, dim d, char *buf, size_t cap)
{
    struct out o = {buf, cap, 0};
    const struct atom *a = single_atom(s, d);
    if (a && a->kind == ATOM_SYMBOL)
        return a->name;
    buf[0] = '\0';
    put_dim(&o, s, d);
    return buf;
}
