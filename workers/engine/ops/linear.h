/* y = act(x W^T + b) + residual. Weights are packed once, in the form that the kernels want in this precision. */
#ifndef EBB_ENGINE_OPS_LINEAR_H
#define EBB_ENGINE_OPS_LINEAR_H

#include "base/status.h"
#include "workers/engine/cpu/kernels.h"

struct linear {
    const struct kernels *kernels;
    enum precision precision;
    uint32_t n, k; /* outputs, inputs */
    /* One block, position-independent, linear_packed_bytes long: the weights, then the bias. Made and freed here, or, after linear_bind, another's
       (a mapped file). Its content depends on kernels->product[precision].layout, not on the machine otherwise. */
    void *packed;
    float *bias; /* within packed */
    int bound;   /* packed is another's */
    int filled;  /* and is only read */
};

size_t linear_packed_bytes(const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k);
/* Zero weights. On failure l is as after linear_release. */
MUST_USE enum status linear_init(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k,
                                 struct err *e);
/* Over a block that linear_set has filled before: l->packed of another time. 64-byte aligned; only read; it must outlive l. */
void linear_bind(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, const void *block);
/* Over a block of zero bytes that linear_set is to fill; 64-byte aligned; it must outlive l. */
void linear_lend(struct linear *l, const struct kernels *kernels, enum precision precision, uint32_t n, uint32_t k, void *block);
/* 1: its block is another's, and lies there; 0: it is its own, or there is none. */
uint32_t linear_piece(const struct linear *l, const void **at, size_t *bytes);
void linear_release(struct linear *l);
/* Outputs first..first+count-1: w has count rows of k, as published. Several projections of one input share one product so. bias may be NULL. */
void linear_set(struct linear *l, uint32_t first, uint32_t count, const float *w, const float *bias);
/* The same from any strides: weight (output j, input i) is w[j * row + i * column]; ONNX keeps them as (1, n). */
void linear_set_strided(struct linear *l, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, const float *bias);
void linear_run(const struct linear *l, uint32_t rows, const float *x, size_t ldx, enum act act, const float *res, size_t ldres,
                float *y, size_t ldy);
/* With all that an epilogue can do; e->bias is set to the layer's own. */
void linear_apply(const struct linear *l, uint32_t rows, const float *x, size_t ldx, const struct epilogue *e, float *y, size_t ldy);

#endif
