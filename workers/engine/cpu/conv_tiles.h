/* What convolutions are made of: what follows a chain, tiles of output channels x pixels, and panels of pixels. */
#ifndef EBB_ENGINE_CONV_TILES_H
#define EBB_ENGINE_CONV_TILES_H

#include "workers/engine/cpu/conv_planes.h"

/* A panel's block of k (KC x NR floats) stays in the first-level cache, the panels of a block of pixels and the weights of OC_BLOCK
   channels in the second. */
enum { KC = 256, PANELS = 192 / NR, OC_BLOCK = 84 };

#define USABLE static __attribute__((unused)) /* not each file takes all of this */

INL vf clip(vf x, vf lo, vf hi)
{
    return smaller(larger(x, lo), hi);
}

INL vf activate(enum conv_act act, vf x, vf a, vf b)
{
    switch (act) {
    case CONV_ACT_RELU: return larger(x, (vf){0});
    case CONV_ACT_CLIP: return clip(x, a, b);
    case CONV_ACT_LEAKY: return choose(x < (vf){0}, x * a, x);
    case CONV_ACT_HARD_SIGMOID: return clip(x * a + b, (vf){0}, splat(1));
    case CONV_ACT_HARD_SWISH: return x * clip(x * a + b, (vf){0}, splat(1));
    case CONV_ACT_NONE: break;
    }
    return x;
}

/* What follows a chain: n elements of one output channel. y may be x. */
INL void finish_row(const enum conv_act act, uint32_t n, const float *x, const float *bias, const float *res, float a, float b, float *y)
{
    uint32_t j = 0;
    vf va = splat(a), vb = splat(b), add = splat(bias ? *bias : 0);
    for (; j + VL <= n; j += VL) {
        vf v = load(x + j);
        if (bias)
            v = v + add;
        if (res)
            v = v + load(res + j);
        store(y + j, activate(act, v, va, vb));
    }
    if (j < n) {
        float t[VL] = {0}, u[VL] = {0};
        memcpy(t, x + j, (n - j) * sizeof *t);
        if (res)
            memcpy(u, res + j, (n - j) * sizeof *u);
        vf v = load(t);
        if (bias)
            v = v + add;
        if (res)
            v = v + load(u);
        store(t, activate(act, v, va, vb));
        memcpy(y + j, t, (n - j) * sizeof *t);
    }
}

USABLE void finish(const struct conv_args *g, uint32_t n, const float *x, const float *bias, const float *res, float *y)
{
    switch (g->act) {
    case CONV_ACT_NONE: finish_row(CONV_ACT_NONE, n, x, bias, res, g->a, g->b, y); break;
    case CONV_ACT_RELU: finish_row(CONV_ACT_RELU, n, x, bias, res, g->a, g->b, y); break;
    case CONV_ACT_CLIP: finish_row(CONV_ACT_CLIP, n, x, bias, res, g->a, g->b, y); break;
    case CONV_ACT_LEAKY: finish_row(CONV_ACT_LEAKY, n, x, bias, res, g->a, g->b, y); break;
    case CONV_ACT_HARD_SIGMOID: finish_row(CONV_ACT_HARD_SIGMOID, n, x, bias, res, g->a, g->b, y); break;
    case CONV_ACT_HARD_SWISH: finish_row(CONV_ACT_HARD_SWISH, n, x, bias, res, g->a, g->b, y); break;
    }
}

/* Products --------------------------------------------------------------------------------------------------------------------------- */

/* What follows the last of k while a tile is in registers: bias (one of each row), residual (rows like c's), then clipping. NULL: not there. */
struct ending {
    const float *bias, *res;
    size_t ldres;
    int clips, swish; /* swish: x * clip(x * lo + hi, 0, 1) */
    float lo, hi;
};

/* c[mr][NR] (+)= chain over kc of w[k][i] * b[k][j]; with `off`, row k of b is b + off[k] */
INL void tile(const int mr, uint32_t kc, const float *w, const float *b, const uint32_t *off, float *c, size_t ldc, int first, const struct ending *e)
{
    vf acc[MR][TV];
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            acc[i][j] = first ? (vf){0} : load(c + (size_t)i * ldc + j * VL);
    for (uint32_t k = 0; k < kc; k++) {
        vf x[TV];
        const float *row = off ? b + off[k] : b;
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            x[j] = load(row + j * VL);
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++) {
            vf v = splat(w[i]);
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = mul_add(v, x[j], acc[i][j]);
        }
        w += MR;
        if (!off) {
            __builtin_prefetch(b + 12 * NR);
            b += NR;
        }
    }
    if (e && e->bias)
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = acc[i][j] + splat(e->bias[i]);
    if (e && e->res)
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = acc[i][j] + load(e->res + (size_t)i * e->ldres + j * VL);
    if (e && e->clips) {
        vf lo = splat(e->lo), hi = splat(e->hi);
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = clip(acc[i][j], lo, hi);
    }
    if (e && e->swish) {
        vf a = splat(e->lo), b0 = splat(e->hi);
#pragma GCC unroll 14
        for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TV; j++)
                acc[i][j] = acc[i][j] * clip(acc[i][j] * a + b0, (vf){0}, splat(1));
    }
#pragma GCC unroll 14
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TV; j++)
            store(c + (size_t)i * ldc + j * VL, acc[i][j]);
}

typedef void conv_tile_fn(uint32_t kc, const float *w, const float *b, const uint32_t *off, float *c, size_t ldc, int first, const struct ending *e);
#define TILE(mr)                                                                                                                 \
    static __attribute__((noinline)) void conv_tile_##mr(uint32_t kc, const float *w, const float *b, const uint32_t *off, float *c,   \
                                                    size_t ldc, int first, const struct ending *e)                               \
    {                                                                                                                            \
        (void)off;                                                                                                               \
        tile(mr, kc, w, b, NULL, c, ldc, first, e);                                                                              \
    }                                                                                                                            \
    static __attribute__((noinline)) void tile_far_##mr(uint32_t kc, const float *w, const float *b, const uint32_t *off, float *c, \
                                                        size_t ldc, int first, const struct ending *e)                           \
    {                                                                                                                            \
        tile(mr, kc, w, b, off, c, ldc, first, e);                                                                               \
    }
TILE(1) TILE(2)
#if ISA_LEVEL >= 2
TILE(3) TILE(4) TILE(5) TILE(6)
#endif
#if ISA_LEVEL >= 3
TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)
#endif
#if ISA_LEVEL >= 3
#define EACH_TILE(name) {NULL, name(1), name(2), name(3), name(4), name(5), name(6), name(7), name(8), name(9), name(10), name(11), name(12), name(13), name(14)}
#elif ISA_LEVEL >= 2
#define EACH_TILE(name) {NULL, name(1), name(2), name(3), name(4), name(5), name(6)}
#else
#define EACH_TILE(name) {NULL, name(1), name(2)}
#endif
#define NEAR(mr) conv_tile_##mr
#define FAR(mr) tile_far_##mr
USABLE conv_tile_fn *const tiles[MR + 1] = EACH_TILE(NEAR); /* over a panel */
USABLE conv_tile_fn *const far_tiles[MR + 1] = EACH_TILE(FAR); /* over rows where they lie */

INL void copy_row(float *to, const float *from)
{
#pragma GCC unroll 8
    for (int j = 0; j < TV; j++)
        store(to + j * VL, load(from + j * VL));
}

/* to[k][0..n) = from[off[k]..), for all k; exactly n floats of each row are written */
USABLE void copy_columns(uint32_t kc, uint32_t n, const float *from, const uint32_t *off, float *to)
{
    if (n == NR) {
        for (uint32_t k = 0; k < kc; k++)
            copy_row(to + (size_t)k * NR, from + off[k]);
        return;
    }
    uint32_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (uint32_t k = 0; k < kc; k++)
            memcpy(to + (size_t)k * NR + j, from + off[k] + j, 8 * sizeof *to);
    if (j == n)
        return;
    if (j > 0) { /* once more, ending with the last */
        for (uint32_t k = 0; k < kc; k++)
            memcpy(to + (size_t)k * NR + n - 8, from + off[k] + n - 8, 8 * sizeof *to);
    } else if (n >= 4) {
        for (uint32_t k = 0; k < kc; k++) {
            memcpy(to + (size_t)k * NR, from + off[k], 4 * sizeof *to);
            memcpy(to + (size_t)k * NR + n - 4, from + off[k] + n - 4, 4 * sizeof *to);
        }
    } else {
        for (uint32_t k = 0; k < kc; k++)
            for (uint32_t i = 0; i < n; i++)
                to[(size_t)k * NR + i] = from[off[k] + i];
    }
}

/* From one panel to the next: a line more than it holds, so that the same row of all panels does not fall into one set of the cache. */
INL size_t panel_step(uint32_t kc)
{
    return ((size_t)kc + 1) * NR;
}

/* m pixels that lie behind each other, the first of them pixel j of the block. Whole panels are filled row by row of k, so that each input row is
   read once from its beginning to its end. */
USABLE void pack_run(uint32_t kc, size_t j, size_t m, const float *from, const uint32_t *off, float *panels)
{
    size_t head = (NR - j % NR) % NR;
    head = head < m ? head : m;
    if (head)
        copy_columns(kc, (uint32_t)head, from, off, panels + j / NR * panel_step(kc) + j % NR);
    j += head, m -= head, from += head;
    size_t whole = m / NR;
    float *to = panels + j / NR * panel_step(kc);
    for (uint32_t k = 0; whole && k < kc; k++)
        for (size_t i = 0; i < whole; i++)
            copy_row(to + i * panel_step(kc) + (size_t)k * NR, from + off[k] + i * NR);
    if (m % NR)
        copy_columns(kc, (uint32_t)(m % NR), from + whole * NR, off, to + whole * panel_step(kc));
}

/* Pixels q0 to q1 (over images) of a block of k, as panels. */
USABLE void pack_pixels(const struct conv_args *g, const struct plan *p, const float *planes, const uint32_t *off, uint32_t kc, size_t q0, size_t q1,
                        float *panels)
{
    if ((q1 - q0) % NR)
        memset(panels + (q1 - q0) / NR * panel_step(kc), 0, sizeof *panels * NR * kc);
    for (size_t q = q0; q < q1;) {
        size_t image = q / p->out, i = q % p->out, left = p->row - i % p->row, m = q1 - q < left ? q1 - q : left;
        pack_run(kc, q - q0, m, planes + image * p->image + pixel_at(g, p, i), off, panels);
        q += m;
    }
}

INL size_t round16(size_t n)
{
    return (n + 15) / 16 * 16;
}

INL uint32_t tiles_of(uint32_t oc)
{
    return (oc + MR - 1) / MR;
}

/* Tiles of nearly equal height: the first channel of tile t. */
INL uint32_t tile_row(uint32_t oc, uint32_t n_tiles, uint32_t t)
{
    uint32_t each = oc / n_tiles, more = oc % n_tiles;
    return t * each + (t < more ? t : more);
}

#endif
