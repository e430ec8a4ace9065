/* The product of two matrices that are only known when a model runs; a constant second matrix is packed once, see linear.h. */
#ifndef EBB_OPS_PRODUCT_H
#define EBB_OPS_PRODUCT_H

#include "workers/engine/graph/op.h"

struct product {
    size_t m, n, k;
    const void *a; /* m rows of k */
    const void *b; /* k rows of n; with `turned` n rows of k */
    int turned;
    void *c; /* m rows of n; overlaps neither */
};

/* f32, f64, and 32- and 64-bit integers (which wrap around). For f32 `panels` has room for product_floats floats, 64-byte aligned; each element is the
   one chain over k of kernels.h, so that its bits are those of a packed layer. */
size_t product_floats(const struct kernels *k, size_t n, size_t depth);
void product_run(const struct kernels *k, enum dtype d, const struct product *p, float *panels);
/* The types above and f16, bf16: those are widened by the caller and run as f32. */
#define TYPES_PRODUCT (TYPES_FLOAT | TYPE(I32) | TYPE(I64) | TYPE(U32) | TYPE(U64))
/* A tensor's elements as f32: where they are, or a copy in scratch memory. */
MUST_USE enum status product_widen(struct run *r, const struct tensor *t, const void **out, struct err *e);
/* Sizes fit the kernels, which count in 32 bits. */
MUST_USE enum status product_fits(const struct node *n, size_t m, size_t cols, size_t depth, struct err *e);

#endif
