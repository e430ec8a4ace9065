/* Reductions along a row, and what rests on them: norms, softmax, the ends of an encoder. */
#include "workers/engine/cpu/element.h"

/* Adding +0 to a lane that a row does not reach changes no bit: a sum that starts at +0 never becomes -0. */
#define REDUCE(start, rest, step)                                                                                                \
    struct v16 acc;                                                                                                              \
    EACH(acc, splat(start));                                                                                                     \
    size_t j = 0;                                                                                                                \
    for (; j + 16 <= n; j += 16) {                                                                                               \
        struct v16 y = load16(x + j);                                                                                            \
        EACH(acc, step);                                                                                                         \
    }                                                                                                                            \
    if (j < n) {                                                                                                                 \
        struct v16 y = load_part(x + j, n - j, rest);                                                                            \
        EACH(acc, step);                                                                                                         \
    }

float SYM(sum)(size_t n, const float *x)
{
    REDUCE(0, 0, acc.v[l] + y.v[l])
    return sum16(acc);
}

float SYM(max)(size_t n, const float *x)
{
    REDUCE(-__builtin_inff(), -__builtin_inff(), larger(y.v[l], acc.v[l]))
    return max16(acc);
}

float SYM(min)(size_t n, const float *x)
{
    REDUCE(-__builtin_inff(), __builtin_inff(), larger(-y.v[l], acc.v[l]))
    return -max16(acc);
}

float SYM(squares)(size_t n, const float *x, float mean)
{
    REDUCE(0, mean, mul_add(y.v[l] - splat(mean), y.v[l] - splat(mean), acc.v[l]))
    return sum16(acc);
}

float SYM(dot)(size_t n, const float *x, const float *y)
{
    struct v16 acc = zero16();
    size_t j = 0;
    for (; j + 16 <= n; j += 16) {
        struct v16 a = load16(x + j), b = load16(y + j);
        EACH(acc, mul_add(a.v[l], b.v[l], acc.v[l]));
    }
    if (j < n) {
        struct v16 a = load_part(x + j, n - j, 0), b = load_part(y + j, n - j, 0);
        EACH(acc, mul_add(a.v[l], b.v[l], acc.v[l]));
    }
    return sum16(acc);
}

INL struct v16 norm16(struct v16 x, float mean, float scale, const float *gamma, const float *beta, size_t j, size_t n)
{
    int whole = n - j >= 16;
    EACH(x, (x.v[l] - splat(mean)) * splat(scale));
    if (gamma && beta) {
        struct v16 g = whole ? load16(gamma + j) : load_part(gamma + j, n - j, 0);
        struct v16 b = whole ? load16(beta + j) : load_part(beta + j, n - j, 0);
        EACH(x, mul_add(x.v[l], g.v[l], b.v[l]));
    } else if (gamma) {
        struct v16 g = whole ? load16(gamma + j) : load_part(gamma + j, n - j, 0);
        EACH(x, x.v[l] * g.v[l]);
    } else if (beta) {
        struct v16 b = whole ? load16(beta + j) : load_part(beta + j, n - j, 0);
        EACH(x, x.v[l] + b.v[l]);
    }
    return x;
}

INL void norm_row(uint32_t n, const float *x, float mean, float scale, const float *gamma, const float *beta, float *y)
{
    uint32_t j = 0;
    for (; j + 16 <= n; j += 16)
        store16(y + j, norm16(load16(x + j), mean, scale, gamma, beta, j, n));
    if (j < n)
        store_part(y + j, n - j, norm16(load_part(x + j, n - j, 0), mean, scale, gamma, beta, j, n));
}

void SYM(norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps, float *y,
               size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float mean = SYM(sum)(n, x) / (float)n;
        float scale = 1 / __builtin_sqrtf(SYM(squares)(n, x, mean) / (float)n + eps);
        if (gamma && beta)
            norm_row(n, x, mean, scale, gamma, beta, y);
        else if (gamma)
            norm_row(n, x, mean, scale, gamma, NULL, y);
        else
            norm_row(n, x, mean, scale, NULL, beta, y);
    }
}

void SYM(rms_norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, float eps, float *y, size_t ldy)
{
    for (uint32_t i = 0; i < rows; i++, x += ldx, y += ldy) {
        float scale = 1 / __builtin_sqrtf(SYM(squares)(n, x, 0) / (float)n + eps);
        if (gamma)
            norm_row(n, x, 0, scale, gamma, NULL, y);
        else
            norm_row(n, x, 0, scale, NULL, NULL, y);
    }
}

void SYM(softmax)(size_t n, const float *x, float *y)
{
    float max = SYM(max)(n, x);
    struct v16 acc = zero16();
    size_t j = 0;
    for (; j + 16 <= n; j += 16) {
        struct v16 v = load16(x + j);
        EACH(v, exp_neg(v.v[l] - splat(max)));
        store16(y + j, v);
        EACH(acc, acc.v[l] + v.v[l]);
    }
    if (j < n) {
        struct v16 v = load_part(x + j, n - j, -__builtin_inff());
        EACH(v, exp_neg(v.v[l] - splat(max)));
        store_part(y + j, n - j, v);
        v = load_part(y + j, n - j, 0);
        EACH(acc, acc.v[l] + v.v[l]);
    }
    float inverse = 1 / sum16(acc);
    for (j = 0; j < n; j++)
        y[j] *= inverse;
}

void SYM(log_softmax)(size_t n, const float *x, float *y)
{
    float max = SYM(max)(n, x);
    struct v16 acc = zero16();
    size_t j = 0;
    for (; j < n; j += 16) {
        struct v16 v = n - j >= 16 ? load16(x + j) : load_part(x + j, n - j, -__builtin_inff());
        EACH(v, exp_neg(v.v[l] - splat(max)));
        if (n - j < 16) { /* -inf - max is not below EXP_MIN where max is -inf too */
            float t[16];
            store16(t, v);
            v = load_part(t, n - j, 0);
        }
        EACH(acc, acc.v[l] + v.v[l]);
    }
    float t[16] = {sum16(acc)};
    store(t, log_of(load(t)));
    for (j = 0; j < n; j++)
        y[j] = (x[j] - max) - t[0];
}

void SYM(unit)(uint32_t n, float *x)
{
    float length = __builtin_sqrtf(SYM(squares)(n, x, 0));
    length = length > 1e-12f ? length : 1e-12f;
    for (uint32_t j = 0; j < n; j++)
        x[j] /= length;
}

/* The ends ----------------------------------------------------------------------------------------------------------------------- */

void SYM(embed)(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type, float *y,
                size_t ldy)
{
    for (uint32_t i = 0; i < len; i++, y += ldy, position += n) {
        const float *w = word + (size_t)ids[i] * n;
        for (uint32_t j = 0; j < n; j++)
            y[j] = (w[j] + type[j]) + position[j];
    }
}

void SYM(pool)(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y)
{
    memcpy(y, x, n * sizeof *y);
    if (how == POOL_CLS)
        return;
    for (uint32_t i = 1; i < len; i++) {
        x += ldx;
        if (how == POOL_MAX)
            for (uint32_t j = 0; j < n; j++)
                y[j] = x[j] > y[j] ? x[j] : y[j];
        else
            for (uint32_t j = 0; j < n; j++)
                y[j] += x[j];
    }
    if (how == POOL_MAX)
        return;
    float by = how == POOL_MEAN ? (float)len : __builtin_sqrtf((float)len);
    for (uint32_t j = 0; j < n; j++)
        y[j] /= by;
}
