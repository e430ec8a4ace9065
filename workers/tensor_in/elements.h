/* Writing single elements into a tensor. Only workers/tensor_in includes this. */
#ifndef EBB_TENSOR_IN_ELEMENTS_H
#define EBB_TENSOR_IN_ELEMENTS_H

#include "workers/tensor_in/tensor_in.h"

/* A number as it was read: whole ones exactly */
struct numeral {
    int whole;        /* `negative` and `magnitude` say it exactly; `real` is the nearest double all the same */
    int negative;
    uint64_t magnitude;
    double real;
};

/* NULL, or what is wrong with the number for this type */
const char *element_put(enum dtype d, void *data, uint64_t at, const struct numeral *n);
MUST_USE enum status tensor_in_reserve(struct tensor_in *t, uint64_t count, struct err *e); /* keeps what is there */
/* t's shape against what is wanted */
MUST_USE enum status tensor_in_fits(const struct tensor_want *w, const struct tensor_in *t, struct err *e);

#endif
