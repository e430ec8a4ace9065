/* Comparisons, logic and bits of two operands. */
#include <string.h>

#include "workers/engine/ops/args.h"
#include "workers/engine/ops/binary.h"

#define COMPARING(name, op)                                                                                    \
    BINARY_FLOAT(BINARY_ROW, name, RESULT_BOOL, x op y)                                                        \
    BINARY_SIGNED(BINARY_ROW, name, RESULT_BOOL, x op y)                                                       \
    BINARY_UNSIGNED(BINARY_ROW, name, RESULT_BOOL, x op y)                                                     \
    static binary_row *const name##_rows[DT_END] = {ROWS_FLOAT(name), ROWS_SIGNED(name), ROWS_UNSIGNED(name)}; \
    static enum status name##_shape(struct shaping *s, struct err *e)                                          \
    {                                                                                                          \
        TRY(binary_shape(s, TYPES_NUMBER, 1, e));                                                              \
        if (!dtype_is_float(s->in[0].dtype))                                                                   \
            binary_values(s, name##_value);                                                                    \
        return ST_OK;                                                                                          \
    }                                                                                                          \
    static enum status name##_run(struct run *r, const struct node *n, struct err *e)                          \
    {                                                                                                          \
        (void)e;                                                                                               \
        return binary_run(r, n, name##_rows, 1);                                                               \
    }

#define COMPARE_VALUE(name, op)                                                       \
    static dim name##_value(struct syms *s, dim a, dim b)                             \
    {                                                                                 \
        dim d = dim_sub(s, a, b);                                                     \
        return dim_known(d) ? d op 0 : DIM_UNKNOWN;                                   \
    }
COMPARE_VALUE(Less, <)
COMPARE_VALUE(LessOrEqual, <=)
COMPARE_VALUE(Greater, >)
COMPARE_VALUE(GreaterOrEqual, >=)
COMPARING(Less, <)
COMPARING(LessOrEqual, <=)
COMPARING(Greater, >)
COMPARING(GreaterOrEqual, >=)

BINARY_FLOAT(BINARY_ROW, Equal, RESULT_BOOL, x == y)
BINARY_SIGNED(BINARY_ROW, Equal, RESULT_BOOL, x == y)
BINARY_UNSIGNED(BINARY_ROW, Equal, RESULT_BOOL, x == y)
BINARY_ROW(Equal_BOOL, uint8_t, uint8_t, (x != 0) == (y != 0))
BINARY_ROW(Equal_STR, struct str, uint8_t, x.len == y.len && (x.len == 0 || memcmp(x.data, y.data, x.len) == 0))
static binary_row *const Equal_rows[DT_END] = {ROWS_FLOAT(Equal), ROWS_SIGNED(Equal), ROWS_UNSIGNED(Equal), [DT_BOOL] = Equal_BOOL,
                                               [DT_STR] = Equal_STR};

static enum status Equal_shape(struct shaping *s, struct err *e)
{
    TRY(binary_shape(s, TYPES_ALL, 1, e));
    if (!dtype_is_float(s->in[0].dtype) && s->in[0].dtype != DT_STR)
        binary_values(s, value_equal);
    return ST_OK;
}

static enum status Equal_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    return binary_run(r, n, Equal_rows, 1);
}

#define LOGIC(name, expression)                                                        \
    BINARY_ROW(name##_BOOL, uint8_t, uint8_t, expression)                              \
    static binary_row *const name##_rows[DT_END] = {[DT_BOOL] = name##_BOOL};          \
    static enum status name##_run(struct run *r, const struct node *n, struct err *e)  \
    {                                                                                  \
        (void)e;                                                                       \
        return binary_run(r, n, name##_rows, 1);                                       \
    }
LOGIC(And, (x != 0) & (y != 0))
LOGIC(Or, (x != 0) | (y != 0))
LOGIC(Xor, (x != 0) ^ (y != 0))

static enum status logic_shape(struct shaping *s, struct err *e)
{
    return binary_shape(s, TYPE(BOOL), 1, e);
}

#define BITS(name, op)                                                                              \
    BINARY_SIGNED(BINARY_ROW, name, RESULT_SAME, x op y)                                            \
    BINARY_UNSIGNED(BINARY_ROW, name, RESULT_SAME, x op y)                                          \
    static binary_row *const name##_rows[DT_END] = {ROWS_SIGNED(name), ROWS_UNSIGNED(name)};        \
    static enum status name##_run(struct run *r, const struct node *n, struct err *e)               \
    {                                                                                               \
        (void)e;                                                                                    \
        return binary_run(r, n, name##_rows, 0);                                                    \
    }
BITS(BitwiseAnd, &)
BITS(BitwiseOr, |)
BITS(BitwiseXor, ^)

static enum status bits_shape(struct shaping *s, struct err *e)
{
    return binary_shape(s, TYPES_INT, 0, e);
}

/* A shift by all bits or more leaves nothing. */
BINARY_UNSIGNED(BINARY_ROW, Left, RESULT_SAME, y >= 8 * sizeof x ? 0 : (uint64_t)x << y)
BINARY_UNSIGNED(BINARY_ROW, Right, RESULT_SAME, y >= 8 * sizeof x ? 0 : x >> y)
/* To the right the sign comes in. */
BINARY_SIGNED(BINARY_ROW, Left, RESULT_SAME, (uint64_t)y >= 8 * sizeof x ? 0 : (uint64_t)x << y)
BINARY_SIGNED(BINARY_ROW, Right, RESULT_SAME, (uint64_t)y >= 8 * sizeof x ? (x < 0 ? -1 : 0) : x >> y)
static binary_row *const Left_rows[DT_END] = {ROWS_SIGNED(Left), ROWS_UNSIGNED(Left)};
static binary_row *const Right_rows[DT_END] = {ROWS_SIGNED(Right), ROWS_UNSIGNED(Right)};

static enum status shift_check(struct node *n, struct err *e)
{
    const char *d = node_string(n, "direction", "");
    if (strcmp(d, "LEFT") != 0 && strcmp(d, "RIGHT") != 0)
        return node_error(n, e, "direction is '%s'; it must be LEFT or RIGHT", d);
    return ST_OK;
}

static enum status shift_shape(struct shaping *s, struct err *e)
{
    return binary_shape(s, TYPES_INT, 0, e);
}

static enum status shift_run(struct run *r, const struct node *n, struct err *e)
{
    (void)e;
    return binary_run(r, n, strcmp(node_string(n, "direction", ""), "LEFT") == 0 ? Left_rows : Right_rows, 0);
}

#define ROW(NAME, SINCE, FLAGS, CHECK, SHAPE, RUN)                                                                         \
    {.domain = "", .name = NAME, .since = SINCE, .until = OPSET_ANY, .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, \
     .flags = FLAGS, .check = CHECK, .shape = SHAPE, .run = RUN, .follow = binary_follow}

const struct op_def ops_compare[] = {
    ROW("Equal", 1, 0, NULL, Equal_shape, Equal_run),
    ROW("Less", 1, 0, NULL, Less_shape, Less_run),
    ROW("LessOrEqual", 12, 0, NULL, LessOrEqual_shape, LessOrEqual_run),
    ROW("Greater", 1, 0, NULL, Greater_shape, Greater_run),
    ROW("GreaterOrEqual", 12, 0, NULL, GreaterOrEqual_shape, GreaterOrEqual_run),
    ROW("And", 1, OP_IN_PLACE, NULL, logic_shape, And_run),
    ROW("Or", 1, OP_IN_PLACE, NULL, logic_shape, Or_run),
    ROW("Xor", 1, OP_IN_PLACE, NULL, logic_shape, Xor_run),
    ROW("BitwiseAnd", 18, OP_IN_PLACE, NULL, bits_shape, BitwiseAnd_run),
    ROW("BitwiseOr", 18, OP_IN_PLACE, NULL, bits_shape, BitwiseOr_run),
    ROW("BitwiseXor", 18, OP_IN_PLACE, NULL, bits_shape, BitwiseXor_run),
    ROW("BitShift", 11, OP_IN_PLACE, shift_check, shift_shape, shift_run),
    {0},
};
