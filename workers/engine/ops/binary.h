/* Two operands, element by element, with NumPy's broadcasting: what Add, Equal, Max and the like share. */
#ifndef EBB_OPS_BINARY_H
#define EBB_OPS_BINARY_H

#include "workers/engine/graph/op.h"

/* A row of n results; sa and sb are 1, or 0 where one element serves the whole row. y may be a or b. */
typedef void binary_row(int64_t n, const void *a, int64_t sa, const void *b, int64_t sb, void *y);

/* rows[d] serves inputs of type d; f16 and bf16 are widened and go through rows[DT_F32]. y has the sizes that both broadcast to; its
   type is the inputs', or bool when `test` is set. */
void binary_broadcast(const struct tensor *a, const struct tensor *b, struct tensor *y, binary_row *const *rows, int test);

/* Inputs 0 and 1 of one type among `types`, output 0 of their type or, with `test`, bool; opsets before 7 with `broadcast` and `axis`. */
MUST_USE enum status binary_shape(struct shaping *s, uint32_t types, int test, struct err *e);
/* Runs the node: inputs 0 and 1 to output 0. */
MUST_USE enum status binary_run(struct run *r, const struct node *n, binary_row *const *rows, int test);
/* Follow for opsets before 7, where the second operand may lie elsewhere; follow_elementwise from 7 on. */
int binary_follow(const struct shaping *s, uint32_t in, uint32_t axis, uint32_t out);

/* values of output 0 from those of inputs 0 and 1, element by element, where both are known */
void binary_values(struct shaping *s, dim (*f)(struct syms *s, dim a, dim b));

/* Kernels. R is the type of a result; `expression` of x and y, elements of type T. */
#define BINARY_ROW(name, T, R, expression)                                                             \
    static void name(int64_t n, const void *pa, int64_t sa, const void *pb, int64_t sb, void *py)      \
    {                                                                                                  \
        const T *a = pa, *b = pb;                                                                      \
        R *out = py;                                                                                   \
        if (sa && sb) {                                                                                \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                       \
            {                                                                                          \
                T x = a[i], y = b[i];                                                                  \
                out[i] = (R)(expression);                                                              \
            }                                                                                          \
        } else if (sa) {                                                                               \
            T y = *b;                                                                                  \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                       \
            {                                                                                          \
                T x = a[i];                                                                            \
                out[i] = (R)(expression);                                                              \
            }                                                                                          \
        } else {                                                                                       \
            T x = *a;                                                                                  \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                       \
            {                                                                                          \
                T y = b[i * sb];                                                                       \
                out[i] = (R)(expression);                                                              \
            }                                                                                          \
        }                                                                                              \
    }

#define BINARY_SIGNED(X, name, R, expression)       \
    X(name##_I8, int8_t, R(int8_t), expression)     \
    X(name##_I16, int16_t, R(int16_t), expression)  \
    X(name##_I32, int32_t, R(int32_t), expression)  \
    X(name##_I64, int64_t, R(int64_t), expression)
#define BINARY_UNSIGNED(X, name, R, expression)       \
    X(name##_U8, uint8_t, R(uint8_t), expression)     \
    X(name##_U16, uint16_t, R(uint16_t), expression)  \
    X(name##_U32, uint32_t, R(uint32_t), expression)  \
    X(name##_U64, uint64_t, R(uint64_t), expression)
#define BINARY_FLOAT(X, name, R, expression)      \
    X(name##_F32, float, R(float), expression)    \
    X(name##_F64, double, R(double), expression)
#define RESULT_SAME(T) T
#define RESULT_BOOL(T) uint8_t

#define ROWS_SIGNED(name) [DT_I8] = name##_I8, [DT_I16] = name##_I16, [DT_I32] = name##_I32, [DT_I64] = name##_I64
#define ROWS_UNSIGNED(name) [DT_U8] = name##_U8, [DT_U16] = name##_U16, [DT_U32] = name##_U32, [DT_U64] = name##_U64
#define ROWS_FLOAT(name) [DT_F32] = name##_F32, [DT_F64] = name##_F64

#endif
