/* Sizes of axes as expressions. When a model is loaded some sizes are not known: they are symbols ("batch", "sequence") or sums, products and
   quotients of such. When it runs every size is a number. The same shape functions serve both.

   A `dim` from DIM_LEAST on is that number (a size is never negative, but an element of a shape tensor, which is a dim too, may be: -1);
   what lies below names an expression in the table `syms`. Equal expressions have equal names, so that a == b tells whether two sizes
   are surely equal. */
#ifndef EBB_GRAPH_SYM_H
#define EBB_GRAPH_SYM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef int64_t dim;
struct syms; /* grows; owned by a graph. At run time NULL may stand for it: all sizes are numbers then. */

MUST_USE enum status syms_new(struct syms **out, struct err *e);
void syms_free(struct syms *s);

#define DIM_LEAST (-((int64_t)1 << 62)) /* numbers below it do not occur: where a tensor holds one, values have this instead */
static inline int dim_known(dim d)
{
    return d >= DIM_LEAST;
}

/* One name, one symbol: "batch" is the same wherever it is said. */
dim dim_named(struct syms *s, const char *name);
/* A size that only running tells (how many elements are not zero). Equal to no other. With s NULL: DIM_UNKNOWN. */
dim dim_fresh(struct syms *s);
#define DIM_UNKNOWN INT64_MIN
/* A symbol's name, an expression as text ("batch*12"), a number; buf is for those that need room. */
const char *dim_text(const struct syms *s, dim d, char *buf, size_t cap);

/* Folded where both are numbers, simplified where that is easy: (a * b) / b is a, a + 0 is a. Any unknown makes an unknown.
   dim_div is the floor of the quotient. Results that overflow, or divide by zero, are DIM_UNKNOWN. A negative size is refused by whoever calls
   the shape function. */
dim dim_add(struct syms *s, dim a, dim b);
dim dim_sub(struct syms *s, dim a, dim b);
dim dim_mul(struct syms *s, dim a, dim b);
dim dim_div(struct syms *s, dim a, dim b);
dim dim_ceil_div(struct syms *s, dim a, dim b);
dim dim_min(struct syms *s, dim a, dim b);
dim dim_max(struct syms *s, dim a, dim b);

/* The expression's value when symbol i (in order of first mention) is value[i]; DIM_UNKNOWN when it depends on another. */
dim dim_value(const struct syms *s, dim d, const int64_t *value, uint32_t count);
/* Its number among the symbols, or -1 when it is not just a symbol. */
int dim_symbol(const struct syms *s, dim d);
/* Does d depend on symbol number i (or on something unknown)? */
int dim_uses(const struct syms *s, dim d, int symbol);
uint32_t syms_count(const struct syms *s);

#endif
