/* Max, Min, Sum and Mean of any number of operands: from the first to the last, one after the other. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/binary.h"

/* NaN beside a number is NaN. */
BINARY_FLOAT(BINARY_ROW, Max, RESULT_SAME, x != x || x > y ? x : y)
BINARY_SIGNED(BINARY_ROW, Max, RESULT_SAME, x > y ? x : y)
BINARY_UNSIGNED(BINARY_ROW, Max, RESULT_SAME, x > y ? x : y)
static binary_row *const Max_rows[DT_END] = {ROWS_FLOAT(Max), ROWS_SIGNED(Max), ROWS_UNSIGNED(Max)};
BINARY_FLOAT(BINARY_ROW, Min, RESULT_SAME, x != x || x < y ? x : y)
BINARY_SIGNED(BINARY_ROW, Min, RESULT_SAME, x < y ? x : y)
BINARY_UNSIGNED(BINARY_ROW, Min, RESULT_SAME, x < y ? x : y)
static binary_row *const Min_rows[DT_END] = {ROWS_FLOAT(Min), ROWS_SIGNED(Min), ROWS_UNSIGNED(Min)};
BINARY_FLOAT(BINARY_ROW, Sum, RESULT_SAME, x + y)
static binary_row *const Sum_rows[DT_END] = {ROWS_FLOAT(Sum)};
BINARY_FLOAT(BINARY_ROW, Over, RESULT_SAME, x / y)
static binary_row *const Over_rows[DT_END] = {ROWS_FLOAT(Over)};

static enum status variadic_shape(struct shaping *s, uint32_t types, struct err *e)
{
    TRY(arg_type(s, 0, types, e));
    struct type t = s->in[0];
    t.values = NULL;
    for (uint32_t i = 1; i < s->n_in; i++) {
        TRY(arg_same(s, i, e));
        TRY(type_broadcast(s, &t, &s->in[i], &t, e));
    }
    type_tensor(&s->out[0], t.dtype, t.rank, t.dims);
    return ST_OK;
}

static enum status max_shape(struct shaping *s, struct err *e)
{
    TRY(variadic_shape(s, TYPES_NUMBER, e));
    if (s->n_in == 2 && !dtype_is_float(s->in[0].dtype))
        binary_values(s, strcmp(s->node->op, "Max") == 0 ? dim_max : dim_min);
    return ST_OK;
}

static enum status sum_shape(struct shaping *s, struct err *e)
{
    return variadic_shape(s, TYPES_FLOAT, e);
}

/* With halves each step rounds, as when the graph were written out in twos. */
static void variadic(struct run *r, const struct node *n, binary_row *const *rows)
{
    const struct tensor *a = run_in(r, 0);
    struct tensor *y = run_out(r, 0);
    if (!y)
        return;
    if (n->n_in == 1) {
        memcpy(tensor_data(y), tensor_data(a), (size_t)tensor_count(a) * dtype_bytes(a->dtype));
        return;
    }
    binary_broadcast(a, run_in(r, 1), y, rows, 0);
    for (uint32_t i = 2; i < n->n_in; i++)
        binary_broadcast(y, run_in(r, i), y, rows, 0);
}

static enum status max_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    variadic(r, n, Max_rows);
    return ST_OK;
}

static enum status min_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    variadic(r, n, Min_rows);
    return ST_OK;
}

static enum status sum_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    variadic(r, n, Sum_rows);
    return ST_OK;
}

static enum status mean_run(struct run *r, const struct node *n, struct err *e)
{
    struct tensor *y = run_out(r, 0);
    void *count;
    if (!y)
        return ST_OK;
    variadic(r, n, Sum_rows);
    TRY(run_scratch(r, 64, &count, e));
    element_set(y->dtype, count, (double)n->n_in, 0);
    struct buffer b = {.refs = 1, .base = count};
    struct tensor c = {.dtype = y->dtype, .buffer = &b};
    binary_broadcast(y, &c, y, Over_rows, 0);
    return ST_OK;
}

#define ROW(NAME, SHAPE, RUN)                                                                                                  \
    {.domain = "", .name = NAME, .since = 1, .until = OPSET_ANY, .min_in = 1, .max_in = 0xffff, .min_out = 1, .max_out = 1, \
     .shape = SHAPE, .run = RUN, .follow = follow_elementwise}

const struct op_def ops_variadic[] = {
    ROW("Max", max_shape, max_run),
    ROW("Min", max_shape, min_run),
    ROW("Sum", sum_shape, sum_run),
    ROW("Mean", sum_shape, mean_run),
    {0},
};
