/* The windows of convolutions and pools: kernel, strides, dilations and padding along one to three spatial axes (all but the first two
   of a tensor). The arrays hold depth, height and width; axes that a tensor lacks are of size 1 in front. */
#ifndef EBB_OPS_SPACE_H
#define EBB_OPS_SPACE_H

#include "workers/engine/graph/op.h"

enum { SPACE_MAX = 3 };
enum space_auto { SPACE_GIVEN, SPACE_SAME_UPPER, SPACE_SAME_LOWER, SPACE_VALID };
struct space {
    uint32_t n; /* spatial axes that the tensor has */
    int64_t kernel[SPACE_MAX], stride[SPACE_MAX], dilation[SPACE_MAX], begin[SPACE_MAX], end[SPACE_MAX];
    enum space_auto how;
    int ceil;
};

/* From the attributes, for a tensor of `rank` axes; kernel sizes from `weights` (sizes behind the first two) where not given as an
   attribute. ST_USER: wrong counts or values. A kernel size that is not known yet is DIM_UNKNOWN or an expression. */
MUST_USE enum status space_read(const struct node *n, int rank, const dim *weights, struct space *out, struct err *e);
/* The attributes alone, before ranks are known. */
MUST_USE enum status space_check(struct node *n, struct err *e);
/* Output size along spatial axis i (0: depth) of an input of that size. ST_USER when the window does not fit. */
MUST_USE enum status space_out(const struct space *p, struct syms *syms, const struct node *n, uint32_t i, dim in, dim *out, struct err *e);
/* Padding in numbers, where auto_pad says so. */
void space_pads(struct space *p, const int64_t in[SPACE_MAX], const int64_t out[SPACE_MAX]);
/* Sizes of a tensor's spatial axes, 1 in front. */
void space_dims(const struct tensor *t, int64_t out[SPACE_MAX]);

#endif
