/* Products of matrices that are only known when a model runs; a constant second matrix is packed once, see linear.h. */
#ifndef EBB_OPS_PRODUCT_H
#define EBB_OPS_PRODUCT_H

#include "workers/engine/graph/op.h"

/* c[b] = a[b] b[b] for b < batches. Steps in elements, 0 to repeat; c is dense, a matrix of m rows of n after the other. */
struct matrices {
    size_t batches, m, n, k;
    const void *a, *b;
    size_t a_batch, a_row, a_col, b_batch, b_row, b_col;
    void *c; /* overlaps neither */
};

/* f32, f64, and 32- and 64-bit integers (which wrap around). Each element is one chain over k; for f32 that of kernels.h, so that its bits are those
   of a packed layer. `scratch` is of product_floats floats, 64-byte aligned; only f32 needs some. */
size_t product_floats(const struct kernels *k, enum dtype d, const struct matrices *p);
void product_run(const struct kernels *k, enum dtype d, const struct matrices *p, float *scratch);
/* The types above and f16, bf16: those are widened by the caller and run as f32. */
#define TYPES_PRODUCT (TYPES_FLOAT | TYPE(I32) | TYPE(I64) | TYPE(U32) | TYPE(U64))
/* A tensor's elements as f32 where they are halves, in scratch memory; else where they are. */
MUST_USE enum status product_widen(struct run *r, const struct tensor *t, const void **out, struct err *e);
/* Sizes fit the kernels, which count in 32 bits. */
MUST_USE enum status product_fits(const struct node *n, size_t m, size_t cols, size_t depth, struct err *e);

#endif
