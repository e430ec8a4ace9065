/* A long prompt in slices: a decoder's stages work on different parts of one prompt at once, each slice attending to all before it (its prefix), so that even
   a single prompt fills a pipeline (Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models", ICML 2021). Pure.

   What a slice of l tokens behind a prefix of p costs on a stage (of unlike stages, on the slowest):

       t(l, p) = a + b l + c l (p + (l + 1) / 2)

   a is what every pass costs (weights read from memory, a message), b the work on a token, c the attention of one token to one before it; l (p + (l + 1) / 2) is how many
   such pairs the slice has. Of M prompts one behind the other through S stages the last token leaves after

       M x (sum of t over a prompt's slices) + (S - 1) x (the largest t)

   How it is made small: with W(x) = b x + c x (x + 1) / 2 a slice from x to y costs a + W(y) - W(x), so the sum is k a + W(all tokens) for any k slices, and only their
   largest is to be made small: k consecutive parts of a line of positive weights, which the longest slice under a bound, again and again, does if anything
   does. For each number of slices that can still win the bound is bisected. TeraPipe's dynamic programme over a table of costs finds the same (the test compares them) in
   the square of the number of places for each bound. */
#ifndef EBB_SCHEDULER_SLICES_H
#define EBB_SCHEDULER_SLICES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct slices_cost {
    double a, b, c;       /* ms; none below 0 */
};

double slices_time(const struct slices_cost *t, uint64_t length, uint64_t prefix);

struct slices_point {     /* a measurement */
    uint64_t length, prefix;
    double ms;
};

/* The (a, b, c), none below 0, that is nearest to n measurements: least squares of the relative errors, for they run from a short slice's to a long one's and all
   divisions are made of both. *worst: the largest relative error left, so that a caller can say how well the form fits. ST_USER: a measurement is no positive
   time of a slice, or they do not tell a, b and c apart (three of unlike lengths and prefixes do). */
MUST_USE enum status slices_fit(const struct slices_point *points, size_t n, struct slices_cost *out, double *worst, struct err *e);

#define SLICES_MOST_PLACES 16384

struct slices_problem {
    struct slices_cost cost;
    uint64_t tokens;       /* of a prompt */
    uint64_t granularity;  /* slices end at its multiples, and at the prompt's end; 0: 16 */
    uint64_t stages;       /* S */
    uint64_t prompts;      /* M; 0: 1 */
};

struct slices {
    uint64_t *lengths;     /* in order; they add up to the prompt */
    size_t count;
    double largest_ms, sum_ms; /* of a prompt */
    double total_ms;       /* the formula's */
};

/* The best division. ST_USER: no tokens or no stages, a cost that is negative or not finite, more than SLICES_MOST_PLACES places to cut. The caller releases *out; on
   failure it is empty. */
MUST_USE enum status slices_make(const struct slices_problem *p, struct slices *out, struct err *e);
/* For comparison: `count` slices of as equal a length as the granularity allows (fewer where there are not as many places). */
MUST_USE enum status slices_equal(const struct slices_problem *p, size_t count, struct slices *out, struct err *e);
void slices_release(struct slices *s);

#endif
