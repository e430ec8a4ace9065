/* What the ops of ai.onnx.ml share: rows of numbers, what happens to scores, names of classes. */
#ifndef EBB_OPS_ML_H
#define EBB_OPS_ML_H

#include "workers/engine/graph/op.h"

enum ml_post { ML_NONE, ML_SOFTMAX, ML_LOGISTIC, ML_SOFTMAX_ZERO, ML_PROBIT };
MUST_USE enum status ml_post_of(const struct node *n, enum ml_post *out, struct err *e);
/* In place. */
void ml_post(enum ml_post how, size_t n, float *scores);
float ml_logistic(float x);
float ml_probit(float x);

/* Class names: strings or integers. */
struct ml_labels {
    uint32_t count;
    const struct str *strings;
    const int64_t *ints;
};
MUST_USE enum status ml_labels_of(const struct node *n, const char *strings, const char *ints, struct ml_labels *out, struct err *e);
static inline enum dtype ml_label_type(const struct ml_labels *l)
{
    return l->strings ? DT_STR : DT_I64;
}
/* Label i into place `at` of output 0. */
void ml_label(struct run *r, const struct ml_labels *l, size_t i, size_t at);

/* [N, F] or [F]: rows and columns of input 0. */
void ml_rows(const struct tensor *x, size_t *rows, size_t *columns);
MUST_USE enum status ml_numbers(const struct shaping *s, uint32_t i, struct err *e); /* input i is numbers of 1 or 2 axes */
dim ml_row_count(struct shaping *s, const struct type *x);
int ml_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out); /* rows */
const struct str *ml_strings(const struct node *n, const char *name, uint32_t *count);

#endif
