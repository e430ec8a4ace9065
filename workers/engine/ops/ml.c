#include "workers/engine/ops/ml.h"

#include <math.h>
#include <string.h>

#include "workers/engine/ops/wide.h"

enum status ml_post_of(const struct node *n, enum ml_post *out, struct err *e)
{
    static const char *const names[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
    const char *s = node_string(n, "post_transform", "NONE");
    for (int i = 0; i < 5; i++)
        if (!strcmp(s, names[i])) {
            *out = (enum ml_post)i;
            return ST_OK;
        }
    return node_error(n, e, "attribute 'post_transform' is '%s'", s);
}

float ml_logistic(float x)
{
    return (float)(1 / (1 + exp(-(double)x)));
}

/* The inverse of the normal distribution, as Winitzki's approximation of the inverse error function has it. */
float ml_probit(float x)
{
    double y = 2 * (double)x - 1, log_term = log((1 - y) * (1 + y)), v = 2 / (3.14159 * 0.147) + 0.5 * log_term,
           root = -v + sqrt(v * v - log_term / 0.147);
    return (float)(1.41421356 * (y < 0 ? -1 : 1) * sqrt(root));
}

void ml_post(enum ml_post how, size_t n, float *scores)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = (double)scores[i] > max ? (double)scores[i] : max;
    for (size_t i = 0; i < n; i++) {
        if (how == ML_LOGISTIC)
            scores[i] = ml_logistic(scores[i]);
        else if (how == ML_PROBIT)
            scores[i] = ml_probit(scores[i]);
        else if (how == ML_SOFTMAX || (how == ML_SOFTMAX_ZERO && scores[i] != 0))
            scores[i] = (float)exp((double)scores[i] - max);
        sum += (double)scores[i];
    }
    for (size_t i = 0; (how == ML_SOFTMAX || how == ML_SOFTMAX_ZERO) && i < n; i++)
        scores[i] = (float)((double)scores[i] / sum);
}

const struct str *ml_strings(const struct node *n, const char *name, uint32_t *count)
{
    const struct attr *a = node_attr(n, name);
    *count = a && a->kind == ATTR_STRINGS ? a->count : 0;
    return *count ? a->strings : NULL;
}

enum status ml_labels_of(const struct node *n, const char *strings, const char *ints, struct ml_labels *out, struct err *e)
{
    uint32_t count;
    *out = (struct ml_labels){0};
    out->strings = ml_strings(n, strings, &out->count);
    const int64_t *v = node_ints(n, ints, &count);
    if (out->strings && v && count)
        return node_error(n, e, "both '%s' and '%s' are given", strings, ints);
    if (!out->strings && v && count)
        out->ints = v, out->count = count;
    return out->count ? ST_OK : node_error(n, e, "neither '%s' nor '%s' is given", strings, ints);
}

void ml_label(struct run *r, const struct ml_labels *l, size_t i, size_t at)
{
    struct tensor *y = run_out(r, 0);
    if (!y)
        return;
    if (l->strings)
        ((struct str *)tensor_data(y))[at] = l->strings[i];
    else
        ((int64_t *)tensor_data(y))[at] = l->ints[i];
}

void ml_rows(const struct tensor *x, size_t *rows, size_t *columns)
{
    *rows = x->rank > 1 ? (size_t)x->dims[0] : 1;
    *columns = x->rank == 0 ? 1 : (size_t)x->dims[x->rank - 1];
}

enum status ml_numbers(const struct shaping *s, uint32_t i, struct err *e)
{
    const struct type *t = &s->in[i];
    if (!shape_has(s, i) || t->kind != VALUE_TENSOR || t->dtype == DT_STR)
        return node_error(s->node, e, "input %u is not a tensor of numbers", i);
    if (t->rank == 0 || t->rank > 2)
        return node_error(s->node, e, "input %u has %d axes; 1 or 2 are needed", i, t->rank);
    return ST_OK;
}

dim ml_row_count(struct shaping *s, const struct type *x)
{
    return x->rank == 2 ? x->dims[0] : x->rank == 1 ? 1 : dim_fresh(s->syms);
}

int ml_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out)
{
    (void)out;
    return in == 0 && axis == 0 && s->in[0].rank == 2 ? 0 : -1;
}
