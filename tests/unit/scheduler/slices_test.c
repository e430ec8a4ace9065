/* Slices of a prompt against trying every division, against the published dynamic programme, and against slices of equal length; and what measurements tell. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "scheduler/slices.h"

static uint64_t seed;

static uint32_t draw(uint32_t n) /* xorshift64* */
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)((seed * 2685821657736338717u) >> 33) % n;
}

static void begin(uint64_t number)
{
    seed = number * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < 8; i++)
        draw(2);
}

static struct slices_problem make(uint32_t most_places)
{
    struct slices_problem p = {.granularity = 1 + draw(8), .stages = 1 + draw(9), .prompts = draw(3)};
    p.tokens = 1 + draw(most_places * (uint32_t)p.granularity);
    p.cost = (struct slices_cost){draw(4) ? 0.05 * draw(200) : 0, draw(5) ? 0.01 * (1 + draw(100)) : 0, draw(4) ? 0.0001 * (1 + draw(200)) : 0};
    return p;
}

static size_t places_of(const struct slices_problem *p)
{
    return (size_t)((p->tokens + p->granularity - 1) / p->granularity);
}

static uint64_t place(const struct slices_problem *p, size_t i)
{
    return i * p->granularity < p->tokens ? i * p->granularity : p->tokens;
}

static double formula(const struct slices_problem *p, double sum, double largest)
{
    return (double)(p->prompts ? p->prompts : 1) * sum + (double)(p->stages - 1) * largest;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b))))
        fail_msg("%.15g is not %.15g", a, b);
}

/* It is a division of the prompt at allowed places, and costs what it says. */
static void check(const struct slices_problem *p, const struct slices *s)
{
    uint64_t at = 0;
    double sum = 0, largest = 0;
    assert_true(s->count >= 1);
    for (size_t i = 0; i < s->count; i++) {
        assert_true(s->lengths[i] > 0);
        double t = slices_time(&p->cost, s->lengths[i], at);
        sum += t;
        largest = fmax(largest, t);
        at += s->lengths[i];
        assert_true(at == p->tokens || at % p->granularity == 0);
    }
    assert_int_equal(at, p->tokens);
    assert_near(s->sum_ms, sum);
    assert_near(s->largest_ms, largest);
    assert_near(s->total_ms, formula(p, sum, largest));
}

static void as_good_as_trying_everything(void **state)
{
    (void)state;
    struct err e;
    for (uint64_t number = 0; number < 400; number++) {
        begin(number);
        struct slices_problem p = make(11);
        size_t n = places_of(&p);
        double best = INFINITY;
        for (uint32_t cuts = 0; cuts < 1u << (n - 1); cuts++) {
            double sum = 0, largest = 0;
            uint64_t from = 0;
            for (size_t i = 1; i <= n; i++)
                if (i == n || cuts >> (i - 1) & 1) {
                    double t = slices_time(&p.cost, place(&p, i) - from, from);
                    sum += t;
                    largest = fmax(largest, t);
                    from = place(&p, i);
                }
            best = fmin(best, formula(&p, sum, largest));
        }
        struct slices s;
        assert_int_equal(slices_make(&p, &s, &e), ST_OK);
        check(&p, &s);
        assert_near(s.total_ms, best);
        slices_release(&s);
    }
}

/* TeraPipe, algorithm 1: for each possible largest time the smallest sum. */
static double published(const struct slices_problem *p)
{
    enum { MOST = 64 };
    size_t n = places_of(p);
    double best = INFINITY, sum[MOST + 1];
    assert_true(n <= MOST);
    for (size_t a = 0; a < n; a++)
        for (size_t b = a + 1; b <= n; b++) {
            double bound = slices_time(&p->cost, place(p, b) - place(p, a), place(p, a));
            if (formula(p, 0, bound) >= best)
                continue;
            sum[0] = 0;
            for (size_t i = 1; i <= n; i++) {
                sum[i] = INFINITY;
                for (size_t k = 0; k < i; k++) {
                    double t = slices_time(&p->cost, place(p, i) - place(p, k), place(p, k));
                    if (t <= bound && sum[k] + t < sum[i])
                        sum[i] = sum[k] + t;
                }
            }
            best = fmin(best, formula(p, sum[n], bound));
        }
    return best;
}

static void as_good_as_the_published_programme(void **state)
{
    (void)state;
    struct err e;
    for (uint64_t number = 0; number < 40; number++) {
        begin(number + 1000);
        struct slices_problem p = make(40);
        struct slices s;
        assert_int_equal(slices_make(&p, &s, &e), ST_OK);
        check(&p, &s);
        assert_near(s.total_ms, published(&p));
        slices_release(&s);
    }
}

static struct slices_problem with(struct slices_problem p, uint64_t tokens, uint64_t stages, uint64_t prompts, uint64_t granularity)
{
    p.tokens = tokens;
    p.stages = stages;
    p.prompts = prompts;
    p.granularity = granularity;
    return p;
}

static double made_ms(struct slices_problem p)
{
    struct slices s;
    struct err e;
    if (slices_make(&p, &s, &e) != ST_OK)
        fail_msg("%s", e.text);
    check(&p, &s);
    double ms = s.total_ms;
    slices_release(&s);
    return ms;
}

static void more_of_anything_goes_one_way(void **state)
{
    (void)state;
    const struct slices_problem shape = {.cost = {2, 0.05, 0.0001}};
    const double slack = 1 - 1e-12;
    for (uint64_t tokens = 100; tokens < 5000; tokens += 333) {
        double before = made_ms(with(shape, tokens, 4, 1, 8));
        assert_true(made_ms(with(shape, tokens + 8, 4, 1, 8)) >= before * slack); /* tokens: longer */
        assert_true(made_ms(with(shape, tokens, 5, 1, 8)) >= before * slack);     /* each stage is passed */
        assert_true(made_ms(with(shape, tokens, 4, 2, 8)) > before);
        assert_true(made_ms(with(shape, tokens, 4, 1, 4)) <= before / slack);     /* finer: never worse */
        struct slices_problem dear = with(shape, tokens, 4, 1, 8);
        dear.cost.a *= 2;
        assert_true(made_ms(dear) >= before * slack);
    }
}

/* Slices get shorter along the prompt, for each attends to all before it; and the more prompts follow each other, the fewer they are, one in the end. */
static void shapes(void **state)
{
    (void)state;
    struct err e;
    struct slices s;
    struct slices_problem p = {.cost = {1, 0.02, 0.0002}, .tokens = 4096, .granularity = 1, .stages = 8};
    assert_int_equal(slices_make(&p, &s, &e), ST_OK);
    check(&p, &s);
    for (size_t i = 1; i + 1 < s.count; i++)
        assert_true(s.lengths[i] <= s.lengths[i - 1]);
    size_t before = s.count;
    assert_true(before > 8);
    slices_release(&s);
    for (p.prompts = 2; p.prompts <= 32768; p.prompts *= 2) {
        assert_int_equal(slices_make(&p, &s, &e), ST_OK);
        assert_true(s.count <= before);
        before = s.count;
        slices_release(&s);
    }
    assert_int_equal(before, 1);
    p.stages = 1; /* nothing to fill */
    p.prompts = 1;
    assert_int_equal(slices_make(&p, &s, &e), ST_OK);
    assert_int_equal(s.count, 1);
    slices_release(&s);
    p.cost.a = 0; /* though slices cost nothing */
    assert_int_equal(slices_make(&p, &s, &e), ST_OK);
    assert_int_equal(s.count, 1);
    slices_release(&s);
    p = (struct slices_problem){.cost = {0, 1, 0}, .tokens = 1000, .granularity = 100, .stages = 5}; /* without attention they are equal */
    assert_int_equal(slices_make(&p, &s, &e), ST_OK);
    assert_int_equal(s.count, 10);
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(s.lengths[i], 100);
    slices_release(&s);
}

/* A model like GPT-3's of 175 thousand million parameters on 48 stages, and a small one on 4: what unequal lengths gain. Printed, and never a loss. */
static void equal_slices_are_never_better(void **state)
{
    (void)state;
    struct err e;
    const struct {
        const char *name;
        struct slices_problem p;
    } cases[] = {
        {"2,048 tokens, 48 stages, little attention", {.cost = {4, 0.045, 0.000006}, .tokens = 2048, .granularity = 8, .stages = 48}},
        {"8,192 tokens, 8 stages", {.cost = {4, 0.045, 0.000011}, .tokens = 8192, .granularity = 8, .stages = 8}},
        {"32,768 tokens, 8 stages, mostly attention", {.cost = {4, 0.045, 0.000011}, .tokens = 32768, .granularity = 16, .stages = 8}},
        {"8,192 tokens, 4 stages, 4 prompts", {.cost = {2, 0.02, 0.00001}, .tokens = 8192, .granularity = 8, .stages = 4, .prompts = 4}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct slices s, equal;
        double best = INFINITY;
        size_t best_count = 0;
        assert_int_equal(slices_make(&cases[i].p, &s, &e), ST_OK);
        check(&cases[i].p, &s);
        for (size_t k = 1; k <= 400; k++) {
            assert_int_equal(slices_equal(&cases[i].p, k, &equal, &e), ST_OK);
            check(&cases[i].p, &equal);
            if (equal.total_ms < best) {
                best = equal.total_ms;
                best_count = equal.count;
            }
            slices_release(&equal);
        }
        assert_int_equal(slices_equal(&cases[i].p, 1, &equal, &e), ST_OK);
        print_message("%s: %zu slices of %d to %d tokens %.1f ms; %zu equal ones %.1f ms (%.1f %% more); whole %.1f ms\n", cases[i].name, s.count, (int)s.lengths[s.count - 1],
                      (int)s.lengths[0], s.total_ms, best_count, best, 100 * (best / s.total_ms - 1), equal.total_ms);
        assert_true(s.total_ms <= best);
        assert_true(s.total_ms <= equal.total_ms);
        slices_release(&equal);
        slices_release(&s);
    }
    for (uint64_t number = 0; number < 300; number++) {
        begin(number + 5000);
        struct slices_problem p = make(300);
        struct slices s, equal;
        assert_int_equal(slices_make(&p, &s, &e), ST_OK);
        assert_int_equal(slices_equal(&p, 1 + draw(40), &equal, &e), ST_OK);
        assert_true(s.total_ms <= equal.total_ms * (1 + 1e-12));
        slices_release(&equal);
        slices_release(&s);
    }
}

static void what_cannot_be_divided(void **state)
{
    (void)state;
    struct err e;
    struct slices s;
    struct slices_problem p = {.cost = {1, 1, 1}, .tokens = 0, .stages = 2};
    assert_int_equal(slices_make(&p, &s, &e), ST_USER);
    assert_string_equal(e.text, "0 tokens through 2 stages: there must be one of each");
    p = (struct slices_problem){.cost = {1, 1, 1}, .tokens = 5};
    assert_int_equal(slices_make(&p, &s, &e), ST_USER);
    p = (struct slices_problem){.cost = {1, -1, 1}, .tokens = 5, .stages = 2};
    assert_int_equal(slices_make(&p, &s, &e), ST_USER);
    assert_string_equal(e.text, "a slice cannot cost 1 + -1 for a token + 1 for a pair");
    p.cost.b = NAN;
    assert_int_equal(slices_make(&p, &s, &e), ST_USER);
    p = (struct slices_problem){.cost = {1, 1, 1}, .tokens = UINT64_MAX, .granularity = 1, .stages = 2};
    assert_int_equal(slices_make(&p, &s, &e), ST_USER);
    assert_non_null(strstr(e.text, "take a coarser granularity"));
    assert_null(s.lengths);
    p = (struct slices_problem){.cost = {1, 1, 1}, .tokens = 5, .stages = 2};
    assert_int_equal(slices_equal(&p, 0, &s, &e), ST_USER);
}

static void memory_is_out(void **state)
{
    (void)state;
    struct err e;
    const struct slices_problem p = {.cost = {1, 0.1, 0.001}, .tokens = 700, .granularity = 10, .stages = 4};
    for (uint64_t nth = 1;; nth++) {
        struct slices s;
        mem_fail_nth(nth);
        enum status st = slices_make(&p, &s, &e);
        mem_fail_nth(0);
        if (st == ST_OK) {
            assert_int_equal(nth, 3);
            slices_release(&s);
            return;
        }
        assert_int_equal(st, ST_NOMEM);
        assert_null(s.lengths);
    }
}

/* The largest there may be, with slices so cheap that very many numbers of them are nearly as good: it comes to its end. */
static void large_ones_end(void **state)
{
    (void)state;
    const double dear[] = {0, 1e-6, 1e-3, 1};
    for (size_t i = 0; i < 4; i++) {
        struct slices s;
        struct err e;
        struct slices_problem p = {.cost = {dear[i], 0.05, 1e-6}, .tokens = 16 * SLICES_MOST_PLACES, .stages = 8};
        assert_int_equal(slices_make(&p, &s, &e), ST_OK);
        assert_true(s.count >= 8);
        slices_release(&s);
    }
}

/* Fitting ----------------------------------------------------------------------------------------------------------------------------- */

static size_t grid(struct slices_point *points, const struct slices_cost *t, double noise)
{
    static const uint64_t lengths[] = {1, 16, 64, 256, 1024}, prefixes[] = {0, 100, 1000, 4000};
    size_t n = 0;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 4; k++) {
            points[n] = (struct slices_point){.length = lengths[i], .prefix = prefixes[k]};
            points[n].ms = slices_time(t, lengths[i], prefixes[k]) * (1 + noise * ((double)draw(2001) / 1000 - 1));
            n++;
        }
    return n;
}

static void a_fit_finds_what_it_was_made_of(void **state)
{
    (void)state;
    struct slices_point points[20];
    struct slices_cost found;
    struct err e;
    double worst;
    for (uint64_t number = 0; number < 200; number++) {
        begin(number + 9000);
        const struct slices_cost t = {0.01 * (1 + draw(1000)), 0.001 * (1 + draw(1000)), 1e-6 * (1 + draw(1000))};
        assert_int_equal(slices_fit(points, grid(points, &t, 0), &found, &worst, &e), ST_OK);
        assert_true(fabs(found.a - t.a) < 1e-6 * t.a && fabs(found.b - t.b) < 1e-6 * t.b && fabs(found.c - t.c) < 1e-6 * t.c);
        assert_true(worst < 1e-9);
        assert_int_equal(slices_fit(points, grid(points, &t, 0.05), &found, &worst, &e), ST_OK);
        assert_true(worst < 0.15); /* two others' noise and its own */
        assert_true(found.a >= 0 && found.b >= 0 && found.c >= 0);
        for (size_t i = 0; i < 20; i++) {
            double off = slices_time(&found, points[i].length, points[i].prefix) / slices_time(&t, points[i].length, points[i].prefix) - 1;
            assert_true(fabs(off) < 0.06);
        }
    }
}

static double relative_error(const struct slices_point *points, size_t n, struct slices_cost t)
{
    double error = 0;
    for (size_t i = 0; i < n; i++) {
        double off = slices_time(&t, points[i].length, points[i].prefix) / points[i].ms - 1;
        error += off * off;
    }
    return error;
}

/* No division may be made of a cost below nothing: where the nearest fit has one, the nearest without it is taken. */
static void no_term_is_negative(void **state)
{
    (void)state;
    struct slices_cost found;
    struct err e;
    double worst;
    struct slices_point points[20];
    begin(1);
    size_t n = grid(points, &(struct slices_cost){1, 0.1, 0}, 0);
    for (size_t i = 0; i < n; i++) /* a longer prefix is quicker: c < 0 fits best */
        points[i].ms *= 1 - 1e-5 * (double)points[i].prefix;
    assert_int_equal(slices_fit(points, n, &found, &worst, &e), ST_OK);
    assert_true(found.c == 0 && found.a > 0 && found.b > 0);
    double here = relative_error(points, n, found); /* nothing nearby is better */
    for (int i = -1; i <= 1; i++)
        for (int k = -1; k <= 1; k++)
            if (i || k)
                assert_true(relative_error(points, n, (struct slices_cost){found.a * (1 + 0.01 * i), found.b * (1 + 0.01 * k), 0}) > here);
    assert_true(relative_error(points, n, (struct slices_cost){found.a, found.b, 1e-9}) > here);
}

static void what_measurements_do_not_tell(void **state)
{
    (void)state;
    struct slices_cost found;
    struct err e;
    double worst;
    const struct slices_point same[] = {{64, 0, 1}, {64, 0, 1.1}, {64, 0, 0.9}, {64, 128, 2}};
    assert_int_equal(slices_fit(same, 4, &found, &worst, &e), ST_USER);
    assert_string_equal(e.text, "4 measurements do not tell what a pass, a token and its attention cost: measure three slices or more of unlike lengths and prefixes");
    assert_int_equal(slices_fit(same, 0, &found, &worst, &e), ST_USER);
    assert_int_equal(slices_fit(same, 1, &found, &worst, &e), ST_USER);
    const struct slices_point three[] = {{64, 0, 1}, {128, 0, 1.9}, {64, 512, 1.3}};
    assert_int_equal(slices_fit(three, 3, &found, &worst, &e), ST_OK);
    assert_true(worst < 1e-9);
    const struct slices_point bad[] = {{64, 0, 1}, {0, 3, 1}, {64, 128, 0}, {64, 128, INFINITY}, {64, 128, NAN}};
    for (size_t i = 1; i < 5; i++)
        assert_int_equal(slices_fit(bad + i, 1, &found, &worst, &e), ST_USER);
    assert_int_equal(slices_fit(bad, 2, &found, &worst, &e), ST_USER);
    assert_string_equal(e.text, "measurement 1, 0 tokens behind 3 in 1 ms, is no slice's time");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_good_as_trying_everything),
        cmocka_unit_test(as_good_as_the_published_programme),
        cmocka_unit_test(more_of_anything_goes_one_way),
        cmocka_unit_test(shapes),
        cmocka_unit_test(equal_slices_are_never_better),
        cmocka_unit_test(what_cannot_be_divided),
        cmocka_unit_test(memory_is_out),
        cmocka_unit_test(large_ones_end),
        cmocka_unit_test(a_fit_finds_what_it_was_made_of),
        cmocka_unit_test(no_term_is_negative),
        cmocka_unit_test(what_measurements_do_not_tell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
