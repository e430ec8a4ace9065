#include "workers/engine/graph/dtype.h"

#include <string.h>

size_t dtype_bytes(enum dtype d)
{
    switch (d) {
#define X(name, number, ctype, text) \
    case DT_##name:                  \
        return sizeof(ctype);
        DTYPE_MAP(X)
#undef X
    case DT_NONE:
    case DT_END:
        break;
    }
    return 0;
}

const char *dtype_name(enum dtype d)
{
    switch (d) {
#define X(name, number, ctype, text) \
    case DT_##name:                  \
        return text;
        DTYPE_MAP(X)
#undef X
    case DT_NONE:
    case DT_END:
        break;
    }
    static const char *const others[] = {"an unknown type", NULL,      NULL,      NULL,      NULL,      NULL,      NULL,      NULL,      NULL,
                                         NULL,              NULL,      NULL,      NULL,      NULL,      "type 14", "type 15", NULL,      "type 17",
                                         "type 18",         "type 19", "type 20", "type 21", "type 22", "type 23", "type 24"};
    unsigned n = (unsigned)d;
    return n < sizeof others / sizeof *others && others[n] ? others[n] : "a type that does not exist";
}

int dtype_is_float(enum dtype d)
{
    return d == DT_F16 || d == DT_BF16 || d == DT_F32 || d == DT_F64;
}

int dtype_is_int(enum dtype d)
{
    return d == DT_U8 || d == DT_I8 || d == DT_U16 || d == DT_I16 || d == DT_I32 || d == DT_I64 || d == DT_U32 || d == DT_U64;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) { /* zero, or fraction * 2^-24 */
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f32_to_f16(float x)
{
    uint32_t u = to_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) /* NaN stays one: the quiet bit is set */
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
    if (a >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: subnormal, units of 2^-24 */
        if (a < 0x33000000)
            return (uint16_t)sign;
        uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffff) | 0x800000; /* m * 2^(e-150), 14 <= shift <= 24 */
        uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
        q += rest > half || (rest == half && (q & 1));
        return (uint16_t)(sign | q);
    }
    uint32_t q = (a - 0x38000000) >> 13, rest = a & 0x1fff;
    q += rest > 0x1000 || (rest == 0x1000 && (q & 1));
    return (uint16_t)(sign | q);
}

/* A double's 53 bits onto f16's 11 in one rounding: through a float rounded to odd, whose 24 bits are more than 2 wider than f16's. */
uint16_t f64_to_f16(double x)
{
    float f = (float)x;
    if (f - f == 0 && (double)f != x) { /* finite, and not exact */
        uint32_t u = to_bits(f);
        if ((u & 1) == 0) {
            int larger = f < 0 ? (double)f > x : (double)f < x; /* x lies further from zero than f */
            if (f == 0)
                larger = 1;
            u = larger ? u + 1 : u - 1;
            f = from_bits(u);
        }
    }
    return f32_to_f16(f);
}

float bf16_to_f32(uint16_t x)
{
    return from_bits((uint32_t)x << 16);
}

uint16_t f32_to_bf16(float x)
{
    uint32_t u = to_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
