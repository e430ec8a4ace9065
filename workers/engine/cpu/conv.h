/* Convolutions in f32, as one table of functions per instruction set, all with the bits of the naive one: an element of the output is one
   chain of fused multiply-adds from zero over (input channel, kernel depth, row, column), padding counted as zeros; then the bias is added,
   then the residual, then the activation follows. Nothing else about a call (batch, blocks, path) shows in a bit.

   With `winograd` (F(2 x 2, 3 x 3)) an element is made otherwise, and again in one way only. The output is cut into tiles of 2 x 2 from its first element on; d is a
   tile's 4 x 4 of the padded input, w a kernel. For each of 16 places the sum is a chain over the input channels of U[place] = G w G' and V[place] = B' d B,
   and the tile is A' M A of these sums, then bias, residual, activation:
     V: of each column of d (d0 - d2, d1 + d2, d2 - d1, d1 - d3), then the same of each row of that;
     U: in double (w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2), of columns, then of rows, rounded once;
     A': of each column of M ((m0 + m1) + m2, (m1 - m2) - m3), then of each row. */
#ifndef EBB_ENGINE_CONV_H
#define EBB_ENGINE_CONV_H

#include <stddef.h>
#include <stdint.h>

/* a and b are the activation's parameters: CLIP min(max(x, a), b); LEAKY x < 0 ? a x : x; HARD_SIGMOID min(max(a x + b, 0), 1);
   HARD_SWISH x * min(max(x * a + b, 0), 1) */
enum conv_act { CONV_ACT_NONE, CONV_ACT_RELU, CONV_ACT_CLIP, CONV_ACT_LEAKY, CONV_ACT_HARD_SIGMOID, CONV_ACT_HARD_SWISH };

/* Arrays of three: depth, height, width; 1 where there is none. */
struct conv_args {
    uint32_t batch, groups, ic, oc; /* channels of one group */
    uint32_t in[3], out[3], kernel[3], stride[3], dilation[3];
    int32_t pad[3]; /* in front; negative: so much is left out. Behind as much as `out` needs */
    const float *x; /* batch x (groups * ic) x in */
    const float *packed;
    const float *bias; /* groups * oc; NULL: none */
    const float *res;  /* like y; NULL: none */
    enum conv_act act;
    int winograd; /* only where conv_can_winograd; weights are packed for one or the other */
    float a, b;
    float *y;      /* batch x (groups * oc) x out */
    void *scratch; /* 64-byte aligned */
};

struct conv_kernels {
    const char *name;
    /* Floats of the packed weights: depends on groups, ic, oc, kernel and winograd alone. */
    size_t (*packed)(const struct conv_args *g);
    /* w is (groups * oc) x ic x kernel */
    void (*pack)(const struct conv_args *g, const float *w, float *packed);
    size_t (*scratch)(const struct conv_args *g); /* bytes */
    void (*run)(const struct conv_args *g);
    /* The largest input of each window, for groups > 1 planes of each image (ic = oc = 1); weights, bias and what follows are not looked at. */
    void (*max_pool)(const struct conv_args *g);
};

/* One group, 3 x 3, no strides, no dilation. Looks at groups, kernel, stride and dilation alone. */
int conv_can_winograd(const struct conv_args *g);
void conv_winograd_weights(const float w[9], float u[16]); /* of one input and one output channel */

extern const struct conv_kernels conv_avx512, conv_avx2, conv_generic, conv_reference;
struct kernels;
const struct conv_kernels *conv_kernels_of(const struct kernels *k); /* those of the same instruction set */

#endif
