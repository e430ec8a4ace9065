/* Which matrices a product over tensors multiplies: NumPy's matmul. */
#ifndef EBB_OPS_MM_H
#define EBB_OPS_MM_H

#include "workers/engine/graph/op.h"

/* Sizes of a and b as they are multiplied (after transposing the last two axes where that is asked); out: axes in front are broadcast, one-axis
   operands lose the axis that was put to them. */
MUST_USE enum status mm_shape(struct shaping *s, uint32_t a, uint32_t b, int trans_a, int trans_b, enum dtype d, struct type *out, struct err *e);

struct mm {
    size_t m, n, k, batches;
    uint32_t rank; /* of the axes in front */
    int64_t dims[RANK_MAX], a_step[RANK_MAX], b_step[RANK_MAX]; /* in matrices */
    int b_alone; /* b is one matrix */
};
MUST_USE enum status mm_of(const struct node *n, const struct tensor *a, const struct tensor *b, int trans_a, int trans_b, struct mm *out,
                           struct err *e);
/* The matrices of product i. */
void mm_at(const struct mm *m, size_t i, size_t *a, size_t *b);
int mm_follow(const struct shaping *s, uint32_t a, uint32_t b, uint32_t in, uint32_t axis); /* rows of a and axes in front */

#endif
