#include "scheduler/slices.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

#define GRANULARITY 16
#define SINGULAR 1e-9 /* of a pivot, in units of its column */

double slices_time(const struct slices_cost *t, uint64_t length, uint64_t prefix)
{
    double l = (double)length, p = (double)prefix;
    return t->a + t->b * l + t->c * l * (p + (l + 1) / 2);
}

/* The fit ----------------------------------------------------------------------------------------------------------------------------- */

/* The three terms of a measurement, each in units of its time: they should add up to 1. */
static void terms(const struct slices_point *p, double x[3])
{
    x[0] = 1 / p->ms;
    x[1] = slices_time(&(struct slices_cost){.b = 1}, p->length, p->prefix) / p->ms;
    x[2] = slices_time(&(struct slices_cost){.c = 1}, p->length, p->prefix) / p->ms;
}

/* Solves the normal equations of the terms in `used` (bits), the others being 0: Gauss with pivots, columns scaled to 1. 0 when they are
   (nearly) dependent. */
static int solve(const double normal[3][3], const double right[3], unsigned used, double out[3])
{
    double m[3][4], scale[3];
    int index[3], n = 0;
    for (int i = 0; i < 3; i++) {
        out[i] = 0;
        if (used >> i & 1)
            index[n++] = i;
    }
    for (int i = 0; i < n; i++)
        scale[i] = sqrt(normal[index[i]][index[i]]);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++)
            m[i][k] = normal[index[i]][index[k]] / (scale[i] * scale[k]);
        m[i][n] = right[index[i]] / scale[i];
    }
    for (int i = 0; i < n; i++) {
        int pivot = i;
        for (int k = i + 1; k < n; k++)
            if (fabs(m[k][i]) > fabs(m[pivot][i]))
                pivot = k;
        if (!(fabs(m[pivot][i]) > SINGULAR))
            return 0;
        for (int k = 0; k <= n; k++) {
            double kept = m[i][k];
            m[i][k] = m[pivot][k];
            m[pivot][k] = kept;
        }
        for (int k = i + 1; k < n; k++) {
            double f = m[k][i] / m[i][i];
            for (int j = i; j <= n; j++)
                m[k][j] -= f * m[i][j];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double v = m[i][n];
        for (int k = i + 1; k < n; k++)
            v -= m[i][k] * out[index[k]] * scale[k];
        out[index[i]] = v / m[i][i] / scale[i];
    }
    return 1;
}

enum status slices_fit(const struct slices_point *points, size_t n, struct slices_cost *out, double *worst, struct err *e)
{
    double normal[3][3] = {{0}}, right[3] = {0}, x[3], found[3];
    for (size_t k = 0; k < n; k++) {
        const struct slices_point *p = &points[k];
        if (!p->length || !(p->ms > 0) || !isfinite(p->ms))
            return err_set(e, ST_USER, "measurement %zu, %" PRIu64 " tokens behind %" PRIu64 " in %g ms, is no slice's time", k, p->length, p->prefix, p->ms);
        terms(p, x);
        for (int i = 0; i < 3; i++) {
            right[i] += x[i];
            for (int j = 0; j < 3; j++)
                normal[i][j] += x[i] * x[j];
        }
    }
    if (!n || !solve(normal, right, 7, found))
        return err_set(e, ST_USER, "%zu measurement%s do not tell what a pass, a token and its attention cost: measure three slices or more of unlike lengths and prefixes",
                       n, n == 1 ? "" : "s");
    /* What would be negative is left out: with three terms each choice can be tried. */
    double best = INFINITY, best_found[3] = {0};
    for (unsigned used = 1; used < 8; used++) {
        if (!solve(normal, right, used, found) || found[0] < 0 || found[1] < 0 || found[2] < 0)
            continue;
        double error = 0;
        for (size_t k = 0; k < n; k++) {
            terms(&points[k], x);
            double off = x[0] * found[0] + x[1] * found[1] + x[2] * found[2] - 1;
            error += off * off;
        }
        if (error < best) {
            best = error;
            memcpy(best_found, found, sizeof found);
        }
    }
    *out = (struct slices_cost){best_found[0], best_found[1], best_found[2]};
    *worst = 0;
    for (size_t k = 0; k < n; k++) {
        double off = fabs(slices_time(out, points[k].length, points[k].prefix) / points[k].ms - 1);
        if (off > *worst)
            *worst = off;
    }
    return ST_OK;
}

/* The division ------------------------------------------------------------------------------------------------------------------------ */

struct line {              /* the places where a slice may end, and the weight of all before each */
    uint64_t tokens, granularity;
    size_t places;         /* 0 is the beginning, `places` the end */
    struct slices_cost cost;
};

static uint64_t token(const struct line *w, size_t place)
{
    return place < w->places ? place * w->granularity : w->tokens;
}

/* What the slice between two places costs beyond a. */
static double weight(const struct line *w, size_t from, size_t to)
{
    const struct slices_cost bare = {0, w->cost.b, w->cost.c};
    return slices_time(&bare, token(w, to) - token(w, from), token(w, from));
}

/* The last place that a slice from here can reach within the bound; `from` itself when there is none. Where the bound ends a slice is the root of a
   quadratic; which place that is, weights say, for they are what is compared. */
static size_t reach(const struct line *w, size_t from, double bound)
{
    double begin = (double)token(w, from), half = w->cost.c / 2, one = w->cost.b + w->cost.c * (begin + 0.5);
    double root = one > 0 ? 2 * bound / (one + sqrt(one * one + 4 * half * bound)) : INFINITY; /* tokens; in the form that loses no digits */
    double place = (begin + root) / (double)w->granularity;
    size_t to = place < (double)w->places ? (size_t)place : w->places;
    if (to < from)
        to = from;
    while (to > from && weight(w, from, to) > bound)
        to--;
    while (to < w->places && weight(w, from, to + 1) <= bound)
        to++;
    return to;
}

/* Cuts the line into at most `most` slices within the bound, each as long as it can be. Returns how many, 0 when it cannot be done; *largest: the heaviest of them;
   ends (may be NULL): the place behind each. */
static size_t cut(const struct line *w, double bound, size_t most, double *largest, size_t *ends)
{
    size_t at = 0, n = 0;
    *largest = 0;
    while (at < w->places) {
        size_t to = reach(w, at, bound);
        if (to == at || n == most)
            return 0;
        double weighs = weight(w, at, to);
        if (weighs > *largest)
            *largest = weighs;
        at = to;
        if (ends)
            ends[n] = at;
        n++;
    }
    return n;
}

static double total(const struct slices_problem *p, double sum, double largest)
{
    return (double)(p->prompts ? p->prompts : 1) * sum + (double)(p->stages - 1) * largest;
}

static enum status check(const struct slices_problem *p, struct line *w, struct err *e)
{
    const struct slices_cost *t = &p->cost;
    if (!p->tokens || !p->stages)
        return err_set(e, ST_USER, "%" PRIu64 " tokens through %" PRIu64 " stages: there must be one of each", p->tokens, p->stages);
    if (!(t->a >= 0 && t->b >= 0 && t->c >= 0 && isfinite(t->a + t->b + t->c)))
        return err_set(e, ST_USER, "a slice cannot cost %g + %g for a token + %g for a pair", t->a, t->b, t->c);
    *w = (struct line){.tokens = p->tokens, .granularity = p->granularity ? p->granularity : GRANULARITY, .cost = p->cost};
    uint64_t places = (p->tokens - 1) / w->granularity + 1;
    if (places > SLICES_MOST_PLACES)
        return err_set(e, ST_USER, "%" PRIu64 " tokens in steps of %" PRIu64 " are %" PRIu64 " places to cut, at most %d can be looked at: take a coarser granularity",
                       p->tokens, w->granularity, places, SLICES_MOST_PLACES);
    w->places = (size_t)places;
    return ST_OK;
}

static void fill(const struct slices_problem *p, const struct line *w, const size_t *ends, size_t count, struct slices *out)
{
    out->count = count;
    out->sum_ms = out->largest_ms = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t from = i ? token(w, ends[i - 1]) : 0;
        out->lengths[i] = token(w, ends[i]) - from;
        double t = slices_time(&p->cost, out->lengths[i], from);
        out->sum_ms += t;
        if (t > out->largest_ms)
            out->largest_ms = t;
    }
    out->total_ms = total(p, out->sum_ms, out->largest_ms);
}

/* What k slices come to at best, whatever the places: no largest is below the mean, nor below the heaviest step. */
static double hope(const struct slices_problem *p, double all, double step, size_t k)
{
    double mean = all / (double)k;
    return total(p, (double)k * p->cost.a + all, p->cost.a + (mean > step ? mean : step));
}

struct search {
    const struct slices_problem *p;
    const struct line *w;
    double all, step;      /* weight of the line, and of its heaviest step */
    double best, best_bound;
    size_t best_count;
};

/* What the largest of k slices must weigh less than for k to win. */
static double must_beat(const struct search *s, size_t k)
{
    return (s->best - total(s->p, (double)k * s->p->cost.a + s->all, 0)) / (double)(s->p->stages - 1) - s->p->cost.a;
}

static void keep(struct search *s, double bound)
{
    double largest;
    size_t count = cut(s->w, bound, s->w->places, &largest, NULL);
    double value = total(s->p, (double)count * s->p->cost.a + s->all, s->p->cost.a + largest);
    if (!s->best_count || value < s->best || (value == s->best && count < s->best_count)) {
        s->best = value;
        s->best_bound = bound;
        s->best_count = count;
    }
}

/* The smallest largest slice of at most k, which is below `high`. */
static void bisect(struct search *s, size_t k, double high)
{
    double low = s->all / (double)k > s->step ? s->all / (double)k : s->step, largest;
    low -= low * 1e-12; /* it was rounded */
    for (;;) {
        double mid = low + (high - low) / 2;
        if (!(mid > low && mid < high))
            break;
        if (cut(s->w, mid, k, &largest, NULL))
            high = largest;
        else
            low = mid;
    }
    keep(s, high);
}

/* From many slices to few. When k slices cannot win, and would not even if they were as cheap as j fewer, none of the numbers between can: the largest of
   fewer slices is no smaller. */
static void search(struct search *s, size_t most)
{
    double largest;
    for (size_t k = most, skip; k >= 1; k = k > skip ? k - skip : 0) {
        skip = 1;
        if (cut(s->w, must_beat(s, k), k, &largest, NULL)) {
            bisect(s, k, largest);
            continue;
        }
        for (size_t j = 1; j < k && !cut(s->w, must_beat(s, k - j), k, &largest, NULL); j *= 2)
            skip = j + 1;
    }
}

enum status slices_make(const struct slices_problem *p, struct slices *out, struct err *e)
{
    struct line w;
    *out = (struct slices){.lengths = NULL};
    TRY(check(p, &w, e));
    struct search s = {.p = p, .w = &w, .all = weight(&w, 0, w.places)};
    for (size_t i = 0; i < w.places; i++) {
        double step = weight(&w, i, i + 1);
        if (step > s.step)
            s.step = step;
    }
    keep(&s, s.all); /* one slice */
    if (p->stages > 1) {
        double largest;
        size_t finest = cut(&w, s.step, w.places, &largest, NULL); /* more slices have no smaller largest one */
        /* Without places k a + all / k has its least at the root of all (S - 1) / (M a): a good beginning, so that little else can win. */
        double root = p->cost.a > 0 ? sqrt(s.all * (double)(p->stages - 1) / (p->cost.a * (double)(p->prompts ? p->prompts : 1))) : (double)finest;
        size_t middle = root < 1 ? 1 : root < (double)finest ? (size_t)root : finest;
        bisect(&s, middle, s.all);
        size_t most = middle;
        while (most < finest && hope(p, s.all, s.step, most + 1) < s.best)
            most++;
        search(&s, most);
    }
    size_t *ends = mem_array(s.best_count, sizeof *ends);
    out->lengths = mem_array(s.best_count, sizeof *out->lengths);
    double largest;
    if (!ends || !out->lengths) {
        mem_free(ends);
        slices_release(out);
        return err_nomem(e, "the slices of a prompt");
    }
    size_t count = cut(&w, s.best_bound, s.best_count, &largest, ends);
    BUG_IF(count != s.best_count, "a division into %zu slices comes to %zu the second time", s.best_count, count);
    fill(p, &w, ends, count, out);
    mem_free(ends);
    return ST_OK;
}

enum status slices_equal(const struct slices_problem *p, size_t count, struct slices *out, struct err *e)
{
    struct line w;
    *out = (struct slices){.lengths = NULL};
    TRY(check(p, &w, e));
    if (count == 0)
        return err_set(e, ST_USER, "a prompt in no slices");
    if (count > w.places)
        count = w.places;
    size_t *ends = mem_array(count, sizeof *ends);
    out->lengths = mem_array(count, sizeof *out->lengths);
    if (!ends || !out->lengths) {
        mem_free(ends);
        slices_release(out);
        return err_nomem(e, "the slices of a prompt");
    }
    for (size_t i = 0; i < count; i++)
        ends[i] = (size_t)((double)(i + 1) * (double)w.places / (double)count + 0.5);
    fill(p, &w, ends, count, out);
    mem_free(ends);
    return ST_OK;
}

void slices_release(struct slices *s)
{
    mem_free(s->lengths);
    *s = (struct slices){.lengths = NULL};
}
