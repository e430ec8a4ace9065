/* Attention of one head of one sequence. Keys and values are packed into panels once; then, for each tile of queries, scores, softmax and the
   product with the values follow while the tile is in cache. */
#include "workers/engine/cpu/element.h"
#include "workers/engine/cpu/pack.h"

/* x = exp(x * scale + bias - max), up to the end of the 16-lane block with zeros; returns the sum. x has room for whole blocks. */
INL float softmax_row(uint32_t n, float *x, float scale, const float *bias, const int rounded)
{
    uint32_t full = n / 16 * 16, rest = n - full;
    struct v16 top;
    EACH(top, splat(-__builtin_inff()));
    if (bias || !(scale > 0)) { /* else the largest of the products is the product of the largest */
        for (uint32_t j = 0; j < n; j += 16) {
            struct v16 y = load16(x + j);
            EACH(y, y.v[l] * splat(scale));
            if (bias) {
                struct v16 b = j == full ? load_part(bias + j, rest, 0) : load16(bias + j);
                EACH(y, y.v[l] + b.v[l]);
            }
            store16(x + j, y);
        }
        scale = 1;
    }
    for (uint32_t j = 0; j < full; j += 16) {
        struct v16 y = load16(x + j);
        EACH(top, larger(y.v[l], top.v[l]));
    }
    if (rest) { /* exp makes zeros of what lies beyond */
        struct v16 y = first16(load16(x + full), rest, -__builtin_inff());
        store16(x + full, y);
        EACH(top, larger(y.v[l], top.v[l]));
    }
    float max = max16(top) * scale;
    struct v16 acc = zero16();
    for (uint32_t j = 0; j < n; j += 16) {
        struct v16 y = load16(x + j);
        EACH(y, exp_neg(y.v[l] * splat(scale) - splat(max)));
        if (rounded)
            EACH(y, round_bf16(y.v[l]));
        store16(x + j, y);
        EACH(acc, acc.v[l] + y.v[l]);
    }
    return sum16(acc);
}

/* panels[j / NR][d][j % NR] = x[j][d], with zeros beyond len */
static void pack_keys(uint32_t len, uint32_t dim, const float *x, size_t ld, float *panels)
{
    for (uint32_t j0 = 0; j0 < len; j0 += NR, panels += (size_t)NR * dim)
        for (uint32_t g = 0; g < NR; g += VL) {
            uint32_t first = j0 + g, n = len < first ? 0 : len - first < VL ? len - first : VL, d = 0;
            const float *from = x + first * ld;
            for (; d + VL <= dim; d += VL) {
                vf r[VL];
#pragma GCC unroll 16
                for (uint32_t i = 0; i < VL; i++)
                    r[i] = i < n ? load(from + i * ld + d) : (vf){0};
                transpose(r);
#pragma GCC unroll 16
                for (uint32_t i = 0; i < VL; i++)
                    store(panels + (size_t)(d + i) * NR + g, r[i]);
            }
            for (; d < dim; d++)
                for (uint32_t i = 0; i < VL; i++)
                    panels[(size_t)d * NR + g + i] = i < n ? from[i * ld + d] : 0;
        }
}

/* panels[d / NR][j][d % NR] = x[j][d], with zeros beyond dim */
static void pack_values(uint32_t len, uint32_t dim, const float *x, size_t ld, float *panels)
{
    for (uint32_t d0 = 0; d0 < dim; d0 += NR) {
        uint32_t n = dim - d0 < NR ? dim - d0 : NR;
        for (uint32_t j = 0; j < len; j++, panels += NR) {
            memcpy(panels, x + j * ld + d0, n * sizeof *panels);
            if (n < NR)
                memset(panels + n, 0, (NR - n) * sizeof *panels);
        }
    }
}

static void round_all(size_t n, float *x)
{
    for (size_t i = 0; i + 16 <= n; i += 16) { /* whole panels and tiles: a multiple of 16 */
        struct v16 y = load16(x + i);
        EACH(y, round_bf16(y.v[l]));
        store16(x + i, y);
    }
}

/* Of rows from..from+n the part that belongs to the next head, which lies beside this one: at a row's stride nothing else fetches it early. */
static void fetch_next(const struct attention_args *a, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++)
        for (uint32_t d = a->dim; d < 2 * a->dim; d += 16) {
            _mm_prefetch((const char *)(a->q + i * a->ld + d), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->k + i * a->ld + d), _MM_HINT_T1);
            _mm_prefetch((const char *)(a->v + i * a->ld + d), _MM_HINT_T1);
        }
}

INL void attend(const struct attention_args *a, const int rounded)
{
    uint32_t cols = (a->len + NR - 1) / NR * NR, dims = (a->dim + NR - 1) / NR * NR;
    float *keys = a->scratch, *values = keys + (size_t)cols * a->dim, *scores = values + (size_t)a->len * dims;
    float *queries = scores + (size_t)MR * cols; /* of one tile, where they are rounded: rows `dims` apart */
    _Alignas(64) float o[MR * NR];
    pack_keys(a->len, a->dim, a->k, a->ld, keys);
    pack_values(a->len, a->dim, a->v, a->ld, values);
    if (rounded) {
        round_all((size_t)cols * a->dim, keys);
        round_all((size_t)a->len * dims, values);
    }
    uint32_t tiles_n = (a->len + MR - 1) / MR;
    for (uint32_t t = 0; t < tiles_n; t++) {
        uint32_t r0 = a->len * t / tiles_n, mr = a->len * (t + 1) / tiles_n - r0;
        float inverse[MR];
        fetch_next(a, r0, mr);
        const float *q = a->q + r0 * a->ld;
        size_t ldq = a->ld;
        if (rounded) {
            memset(queries, 0, sizeof *queries * mr * dims);
            for (uint32_t r = 0; r < mr; r++)
                memcpy(queries + (size_t)r * dims, q + r * a->ld, sizeof *q * a->dim);
            round_all((size_t)mr * dims, queries);
            q = queries;
            ldq = dims;
        }
        for (uint32_t j = 0; j < cols; j += NR)
            SYM(row_tiles)[mr](a->dim, q, ldq, keys + (size_t)j * a->dim, scores + j, cols, 1);
        for (uint32_t r = 0; r < mr; r++)
            inverse[r] = 1 / softmax_row(a->len, scores + (size_t)r * cols, a->scale,
                                         a->bias ? a->bias + (ptrdiff_t)(r0 + r) * a->ldbias : NULL, rounded);
        for (uint32_t d = 0; d < dims; d += NR) {
            uint32_t n = a->dim - d < NR ? a->dim - d : NR;
            SYM(row_tiles)[mr](a->len, scores, cols, values + (size_t)d * a->len, o, NR, 1);
            for (uint32_t r = 0; r < mr; r++) {
                float *y = a->out + (r0 + r) * a->ldo + d;
                if (n == NR)
                    for (uint32_t j = 0; j < NR; j += VL)
                        store(y + j, load(o + r * NR + j) * splat(inverse[r]));
                else
                    for (uint32_t j = 0; j < n; j++)
                        y[j] = o[r * NR + j] * inverse[r];
            }
        }
    }
}

void SYM(attention)(const struct attention_args *a)
{
    if (a->precision == PREC_BF16)
        attend(a, 1);
    else
        attend(a, 0);
}
