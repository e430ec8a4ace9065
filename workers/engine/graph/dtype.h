/* Element types of a graph's tensors, as ONNX numbers them (TensorProto.DataType). */
#ifndef EBB_GRAPH_DTYPE_H
#define EBB_GRAPH_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* A string element. The bytes belong to a constant or to the run's string memory, so that elements can be copied as they are. */
struct str {
    const char *data;
    size_t len;
};

/* name, ONNX number, C type of one element, name in messages. f16 and bf16 are bits; kernels widen them to float. */
#define DTYPE_MAP(X)                    \
    X(F32, 1, float, "float32")         \
    X(U8, 2, uint8_t, "uint8")          \
    X(I8, 3, int8_t, "int8")            \
    X(U16, 4, uint16_t, "uint16")       \
    X(I16, 5, int16_t, "int16")         \
    X(I32, 6, int32_t, "int32")         \
    X(I64, 7, int64_t, "int64")         \
    X(STR, 8, struct str, "string")     \
    X(BOOL, 9, uint8_t, "bool")         \
    X(F16, 10, uint16_t, "float16")     \
    X(F64, 11, double, "float64")       \
    X(U32, 12, uint32_t, "uint32")      \
    X(U64, 13, uint64_t, "uint64")      \
    X(BF16, 16, uint16_t, "bfloat16")

enum dtype {
    DT_NONE = 0,
#define X(name, number, ctype, text) DT_##name = number,
    DTYPE_MAP(X)
#undef X
    DT_END = 17
};

size_t dtype_bytes(enum dtype d);     /* of one element; 0 for a type that is not supported */
const char *dtype_name(enum dtype d); /* "float32"; "type 14" for one that is not */
int dtype_is_float(enum dtype d);     /* f16, bf16, f32, f64 */
int dtype_is_int(enum dtype d);       /* signed or unsigned; bool is neither */

/* Exact; f16 and bf16 round to nearest even on the way down, overflow becomes infinity, NaN stays NaN. */
float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float x);
uint16_t f64_to_f16(double x);
float bf16_to_f32(uint16_t x);
uint16_t f32_to_bf16(float x);

#endif
