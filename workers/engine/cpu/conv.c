/* Convolution, one source compiled once per instruction set as kernels.c is. Two ways, both with the same chain per element (and Winograd's, conv_winograd.h,
   which has one of its own):

   - pixels as the columns of a product: the output pixels of a block (over rows and images) in panels of NR, for each block of k the
     shifted input rows are copied into panels, and a tile of MR output channels x NR pixels runs over it. What is written is the output
     itself: no layout is ever changed.
   - one input channel per group (depthwise): over a padded plane, whole vectors of output pixels, one tap after another.

   Both read planes (conv_planes.h). */
#include "workers/engine/cpu/conv_winograd.h"

enum { SLACK = 8 * VL + 16, DEEP = 8, ROWS_AT_ONCE = 2048, FEW_TILES = 12 };

/* Copies n pixels from q0 on between a tile (rows of `width`) and the output: they may lie in several images. One of in and out is NULL. */
static void move_tile(const struct conv_args *g, const struct plan *p, const float *in, float *out, size_t q0, uint32_t n, uint32_t mr,
                      float *edge, uint32_t width)
{
    size_t image_step = (size_t)g->groups * g->oc * p->out;
    for (uint32_t j = 0; j < n;) {
        size_t image = (q0 + j) / p->out, i = (q0 + j) % p->out, left = p->out - i;
        uint32_t m = n - j < left ? n - j : (uint32_t)left;
        for (uint32_t r = 0; r < mr; r++) {
            size_t home = image * image_step + r * p->out + i;
            if (out)
                memcpy(out + home, edge + r * width + j, m * sizeof *edge);
            else
                memcpy(edge + r * width + j, in + home, m * sizeof *edge);
        }
        j += m;
    }
}

struct block {
    uint32_t k0, kc;
    size_t q0; /* first pixel of the panel */
    uint32_t n;
    const float *panel;
};

/* Activations that a tile does itself. */
static int within_tile(const struct conv_args *g)
{
    return g->act == CONV_ACT_NONE || g->act == CONV_ACT_RELU || g->act == CONV_ACT_CLIP || g->act == CONV_ACT_HARD_SWISH;
}

static struct ending ending_of(const struct conv_args *g)
{
    struct ending e = {.clips = g->act == CONV_ACT_RELU || g->act == CONV_ACT_CLIP, .swish = g->act == CONV_ACT_HARD_SWISH, .hi = __builtin_inff()};
    if (g->act == CONV_ACT_CLIP || e.swish)
        e.lo = g->a, e.hi = g->b;
    return e;
}

/* One tile over one block of k: output channels r0 .. r0 + mr, pixels that do not lie behind each other in the output, or too few of them. y, res
   and bias are the group's first. */
static __attribute__((noinline)) void edge_tile(const struct conv_args *g, const struct plan *p, const struct block *b, uint32_t r0, uint32_t mr,
                                                const float *w, const float *bias, const float *res, float *y)
{
    _Alignas(64) float edge[MR * NR], add[MR * NR];
    int last = b->k0 + b->kc == p->k;
    struct ending end = ending_of(g);
    if (b->k0 > 0) {
        memset(edge, 0, sizeof edge);
        move_tile(g, p, y + r0 * p->out, NULL, b->q0, b->n, mr, edge, NR);
    }
    end.bias = bias ? bias + r0 : NULL;
    if (last && res) {
        memset(add, 0, sizeof add);
        move_tile(g, p, res + r0 * p->out, NULL, b->q0, b->n, mr, add, NR);
        end.res = add, end.ldres = NR;
    }
    tiles[mr](b->kc, w, b->panel, NULL, edge, NR, b->k0 == 0, last ? &end : NULL);
    for (uint32_t r = 0; last && !within_tile(g) && r < mr; r++)
        finish(g, NR, edge + r * NR, NULL, NULL, edge + r * NR);
    move_tile(g, p, NULL, y + r0 * p->out, b->q0, b->n, mr, edge, NR);
}

/* The last pixels of a block, if they fill no more than one vector: two tiles of channels at once, one vector wide. c is [2 * MR][VL]. */
static __attribute__((noinline)) void thin_tile(uint32_t kc, const float *w0, const float *w1, const float *b, float *c, int first)
{
    vf acc[2 * MR];
#pragma GCC unroll 28
    for (int i = 0; i < 2 * MR; i++)
        acc[i] = first ? (vf){0} : load(c + i * VL);
    for (uint32_t k = 0; k < kc; k++, w0 += MR, w1 += MR, b += NR) {
        vf x = load(b);
#pragma GCC unroll 14
        for (int i = 0; i < MR; i++) {
            acc[i] = mul_add(splat(w0[i]), x, acc[i]);
            acc[MR + i] = mul_add(splat(w1[i]), x, acc[MR + i]);
        }
    }
#pragma GCC unroll 28
    for (int i = 0; i < 2 * MR; i++)
        store(c + i * VL, acc[i]);
}

/* The last one to four pixels of a block: channels are the lanes, a tile's rows of one k are one vector. c is [tiles][px][VL]. */
INL void slim(const int tiles_n, const int px, uint32_t kc, const float *const w[], const float *b, float *c, int first)
{
    vf acc[8][4];
    const float *at[8];
#pragma GCC unroll 8
    for (int t = 0; t < tiles_n; t++) {
        at[t] = w[t];
#pragma GCC unroll 4
        for (int j = 0; j < px; j++)
            acc[t][j] = first ? (vf){0} : load(c + (t * px + j) * VL);
    }
    for (uint32_t k = 0; k < kc; k++, b += NR) {
        vf x[4];
#pragma GCC unroll 4
        for (int j = 0; j < px; j++)
            x[j] = splat(b[j]);
#pragma GCC unroll 8
        for (int t = 0; t < tiles_n; t++) {
            vf v = load(at[t]);
            at[t] += MR;
#pragma GCC unroll 4
            for (int j = 0; j < px; j++)
                acc[t][j] = mul_add(v, x[j], acc[t][j]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tiles_n; t++)
#pragma GCC unroll 4
        for (int j = 0; j < px; j++)
            store(c + (t * px + j) * VL, acc[t][j]);
}

static __attribute__((noinline)) void slim_1(uint32_t kc, const float *const w[], const float *b, float *c, int first)
{
    slim(8, 1, kc, w, b, c, first);
}

static __attribute__((noinline)) void slim_2(uint32_t kc, const float *const w[], const float *b, float *c, int first)
{
    slim(4, 2, kc, w, b, c, first);
}

static __attribute__((noinline)) void slim_4(uint32_t kc, const float *const w[], const float *b, float *c, int first)
{
    slim(3, 4, kc, w, b, c, first);
}

/* How many tiles go together when n pixels are left; 1: as any other panel. */
static uint32_t together(uint32_t n)
{
    if ((int)MR <= (int)VL && n <= 4)
        return n == 1 ? 8 : n == 2 ? 4 : 3;
    return n <= VL ? 2 : 1;
}

/* n channels of px pixels: lanes[pixel][channel] to rows[channel][pixel], or back. */
static void transpose(uint32_t n, uint32_t px, float *lanes, float *rows, int back)
{
    for (uint32_t j = 0; j < px; j++)
        for (uint32_t i = 0; i < n; i++)
            if (back)
                lanes[j * VL + i] = rows[i * VL + j];
            else
                rows[i * VL + j] = lanes[j * VL + i];
}

/* The last pixels of a block, for `count` tiles: channels r[t] .. r[t + 1] are tile t. */
static __attribute__((noinline)) void conv_thin(const struct conv_args *g, const struct plan *p, const struct block *b, const uint32_t *r, uint32_t count,
                                                const float *w, const float *bias, const float *res, float *y)
{
    _Alignas(64) float c[8 * MR * VL], lanes[16 * VL], add[MR * VL];
    const float *at[8];
    int last = b->k0 + b->kc == p->k, is_slim = (int)MR <= (int)VL && b->n <= 4;
    uint32_t px = b->n == 3 ? 4 : b->n;
    if (b->k0 > 0) {
        memset(lanes, 0, sizeof lanes);
        for (int i = 0; !is_slim && i < 2 * MR; i++)
            store(c + i * VL, (vf){0});
    }
    for (uint32_t t = 0; t < 8; t++)
        at[t] = w + (size_t)(t < count ? t : count - 1) * p->k * MR;
    for (uint32_t t = 0; b->k0 > 0 && t < count; t++) {
        move_tile(g, p, y + r[t] * p->out, NULL, b->q0, b->n, r[t + 1] - r[t], c + t * MR * VL, VL);
        if (is_slim)
            transpose(r[t + 1] - r[t], b->n, lanes + t * px * VL, c + t * MR * VL, 1);
    }
    if (!is_slim)
        thin_tile(b->kc, at[0], at[1], b->panel, c, b->k0 == 0);
    else
        (px == 1 ? slim_1 : px == 2 ? slim_2 : slim_4)(b->kc, at, b->panel, lanes, b->k0 == 0);
    for (uint32_t t = 0; t < count; t++) {
        float *rows = c + t * MR * VL;
        if (is_slim)
            transpose(r[t + 1] - r[t], b->n, lanes + t * px * VL, rows, 0);
        if (last && res)
            move_tile(g, p, res + r[t] * p->out, NULL, b->q0, b->n, r[t + 1] - r[t], add, VL);
        for (uint32_t i = 0; last && i < r[t + 1] - r[t]; i++)
            finish(g, b->n, rows + i * VL, bias ? bias + r[t] + i : NULL, res ? add + i * VL : NULL, rows + i * VL);
        move_tile(g, p, NULL, y + r[t] * p->out, b->q0, b->n, r[t + 1] - r[t], rows, VL);
    }
}

/* All output channels of a group, for the panels of a block of pixels and one block of k. A block of weights stays in the second-level
   cache while the panels pass, a panel in the first. */
static void conv_block(const struct conv_args *g, const struct plan *p, uint32_t k0, uint32_t kc, size_t q0, size_t q1, const float *panels,
                       const float *packed, const float *bias, const float *res, float *y)
{
    uint32_t n_tiles = tiles_of(g->oc), step = OC_BLOCK / MR, each = g->oc / n_tiles, more = g->oc % n_tiles;
    int last = k0 + kc == p->k, later = last && !within_tile(g);
    struct ending end = ending_of(g);
    end.ldres = p->out;
    packed += (size_t)k0 * MR;
    for (uint32_t t0 = 0; t0 < n_tiles; t0 += step) {
        uint32_t t1 = t0 + step < n_tiles ? t0 + step : n_tiles, r0 = tile_row(g->oc, n_tiles, t0);
        struct block b = {.k0 = k0, .kc = kc, .panel = panels};
        for (b.q0 = q0; b.q0 < q1; b.q0 += NR, b.panel += panel_step(kc)) {
            size_t image = b.q0 / p->out, i = b.q0 - image * p->out, shift = image * g->groups * g->oc * p->out + i;
            b.n = q1 - b.q0 < NR ? (uint32_t)(q1 - b.q0) : NR;
            int whole = b.n == NR && i + NR <= p->out;
            uint32_t r[9] = {r0}, group = together(b.n);
            for (uint32_t t = t0; t < t1; t++, r[0] = r[1]) {
                const float *w = packed + (size_t)t * p->k * MR;
                r[1] = r[0] + each + (t < more);
                if (whole) {
                    float *c = y + shift + r[0] * p->out;
                    end.bias = bias ? bias + r[0] : NULL;
                    end.res = res ? res + shift + r[0] * p->out : NULL;
                    tiles[r[1] - r[0]](kc, w, b.panel, NULL, c, p->out, k0 == 0, last ? &end : NULL);
                    for (uint32_t k = 0; later && k < r[1] - r[0]; k++)
                        finish(g, NR, c + k * p->out, NULL, NULL, c + k * p->out);
                } else if (group > 1) {
                    uint32_t count = t1 - t < group ? t1 - t : group;
                    for (uint32_t j = 1; j < count; j++)
                        r[j + 1] = r[j] + each + (t + j < more);
                    conv_thin(g, p, &b, r, count, w, bias, res, y);
                    r[1] = r[count];
                    t += count - 1;
                } else {
                    edge_tile(g, p, &b, r[0], r[1] - r[0], w, bias, res, y);
                }
            }
        }
    }
}

/* With few output channels a panel would be read too seldom to be worth its making: where every NR pixels lie in one row, the tiles read the
   planes themselves. With one tap the rows of a tile are a plane apart: where that is an even number of cache lines they would fall into few sets of
   the cache. */
static int reads_planes(const struct conv_args *g, const struct plan *p)
{
    return p->row % NR == 0 && tiles_of(g->oc) <= FEW_TILES && (p->taps > 1 || (p->channel % 16 == 0 && p->channel / 16 % 2 == 1));
}

/* All output channels of a group over all pixels of some images. */
static void conv_planes(const struct conv_args *g, const struct plan *p, const uint32_t *off, size_t all, const float *planes, const float *packed,
                        const float *bias, const float *res, float *y)
{
    uint32_t n_tiles = tiles_of(g->oc);
    int later = !within_tile(g);
    struct ending end = ending_of(g);
    end.ldres = p->out;
    for (size_t q = 0; q < all; q += NR)
        for (uint32_t k0 = 0; k0 < p->k; k0 += KC) {
            uint32_t kc = p->k - k0 < KC ? p->k - k0 : KC, last = k0 + kc == p->k;
            size_t image = q / p->out, i = q - image * p->out, shift = image * g->groups * g->oc * p->out + i;
            const float *from = planes + image * p->image + pixel_at(g, p, i);
            for (uint32_t t = 0; t < n_tiles; t++) {
                uint32_t r0 = tile_row(g->oc, n_tiles, t), mr = tile_row(g->oc, n_tiles, t + 1) - r0;
                float *c = y + shift + r0 * p->out;
                end.bias = bias ? bias + r0 : NULL;
                end.res = res ? res + shift + r0 * p->out : NULL;
                far_tiles[mr](kc, packed + ((size_t)t * p->k + k0) * MR, from, off + k0, c, p->out, k0 == 0, last ? &end : NULL);
                for (uint32_t k = 0; last && later && k < mr; k++)
                    finish(g, NR, c + k * p->out, NULL, NULL, c + k * p->out);
            }
        }
}

static size_t panels_floats(const struct plan *p)
{
    return PANELS * panel_step(p->k < KC ? p->k : KC);
}

static void dense(const struct conv_args *g, const struct plan *p)
{
    uint32_t *off = g->scratch;
    float *panels = (float *)off + round16(p->k), *planes = panels + round16(panels_floats(p));
    shifts(g, p, off);
    for (uint32_t group = 0; group < g->groups; group++)
        for (uint32_t b0 = 0; b0 < g->batch; b0 += p->images) {
            uint32_t nb = g->batch - b0 < p->images ? g->batch - b0 : p->images;
            const float *x = g->x + ((size_t)b0 * g->groups + group) * g->ic * p->in, *from = p->direct ? x : planes;
            if (!p->direct)
                for (uint32_t b = 0; b < nb; b++)
                    for (uint32_t c = 0; c < g->ic; c++)
                        phase_channel(g, p, 0, x + ((size_t)b * g->groups * g->ic + c) * p->in, planes + b * p->image + c * p->channel);
            size_t all = nb * p->out, shift = ((size_t)b0 * g->groups + group) * g->oc * p->out;
            const float *packed = g->packed + (size_t)group * tiles_of(g->oc) * p->k * MR, *bias = g->bias ? g->bias + (size_t)group * g->oc : NULL,
                        *res = g->res ? g->res + shift : NULL;
            if (reads_planes(g, p)) {
                conv_planes(g, p, off, all, from, packed, bias, res, g->y + shift);
                continue;
            }
            for (size_t q0 = 0; q0 < all; q0 += PANELS * NR) {
                size_t q1 = q0 + PANELS * NR < all ? q0 + PANELS * NR : all;
                for (uint32_t k0 = 0; k0 < p->k; k0 += KC) {
                    uint32_t kc = p->k - k0 < KC ? p->k - k0 : KC;
                    pack_pixels(g, p, from, off + k0, kc, q0, q1, panels);
                    conv_block(g, p, k0, kc, q0, q1, panels, packed, bias, res, g->y + shift);
                }
            }
        }
}

/* Depthwise -------------------------------------------------------------------------------------------------------------------------- */

/* n elements (rounded up to vectors) from one plane, with the width of a plane between rows: what lies between rows is thrown away. */
INL void taps_at(const int deep, const int max, uint32_t taps, const uint32_t *off, const float *w, const float *x, float *to)
{
    vf acc[DEEP];
#pragma GCC unroll 8
    for (int i = 0; i < deep; i++)
        acc[i] = splat(max ? -__builtin_inff() : 0);
    for (uint32_t t = 0; t < taps; t++) {
        vf v = splat(max ? 0 : w[t]);
        const float *from = x + off[t];
#pragma GCC unroll 8
        for (int i = 0; i < deep; i++) {
            vf u = load(from + i * VL);
            acc[i] = max ? larger(u, acc[i]) : mul_add(v, u, acc[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < deep; i++)
        store(to + i * VL, acc[i]);
}

INL void depth_rows(const int max, uint32_t n, uint32_t taps, const uint32_t *off, const float *w, const float *x, float *to)
{
    uint32_t j = 0;
    for (; j + DEEP * VL <= n; j += DEEP * VL)
        taps_at(DEEP, max, taps, off, w, x + j, to + j);
    if (j + 4 * VL <= n) {
        taps_at(4, max, taps, off, w, x + j, to + j);
        j += 4 * VL;
    }
    for (; j + VL < n; j += 2 * VL)
        taps_at(2, max, taps, off, w, x + j, to + j);
    if (j < n)
        taps_at(1, max, taps, off, w, x + j, to + j);
}

static uint32_t rows_at_once(const struct conv_args *g, const struct plan *p)
{
    uint32_t n = ROWS_AT_ONCE / p->size[2];
    n = n ? n : 1;
    return n < g->out[1] ? n : g->out[1];
}

static void depthwise(const struct conv_args *g, const struct plan *p)
{
    uint32_t *off = g->scratch, rows = rows_at_once(g, p), width = p->size[2];
    float *temp = (float *)off + round16(p->k), *plane = temp + round16((size_t)rows * width + SLACK);
    shifts(g, p, off);
    memset(plane + p->channel, 0, SLACK * sizeof *plane); /* vectors read beyond the last row */
    for (uint32_t b = 0; b < g->batch; b++)
        for (uint32_t group = 0; group < g->groups; group++) {
            phase_channel(g, p, 0, g->x + ((size_t)b * g->groups + group) * p->in, plane);
            for (uint32_t o = group * g->oc; o < (group + 1) * g->oc; o++) {
                size_t shift = ((size_t)b * g->groups * g->oc + o) * p->out;
                for (uint32_t d = 0; d < g->out[0]; d++)
                    for (uint32_t h0 = 0; h0 < g->out[1]; h0 += rows) {
                        uint32_t n = g->out[1] - h0 < rows ? g->out[1] - h0 : rows;
                        depth_rows(0, (n - 1) * width + g->out[2], p->taps, off, g->packed + (size_t)o * p->taps,
                                   plane + ((size_t)d * p->size[1] + h0) * width, temp);
                        for (uint32_t h = 0; h < n; h++) {
                            size_t at = shift + ((size_t)d * g->out[1] + h0 + h) * g->out[2];
                            finish(g, g->out[2], temp + (size_t)h * width, g->bias ? g->bias + o : NULL, g->res ? g->res + at : NULL,
                                   g->y + at);
                        }
                    }
            }
        }
}

/* The largest of each window, plane by plane: a depthwise convolution with larger() in the place of the sum. */
static void max_pool(const struct conv_args *g)
{
    struct plan plan = plan_of(g), *p = &plan;
    uint32_t *off = g->scratch, rows = rows_at_once(g, p), width = p->size[2];
    float *temp = (float *)off + round16(p->k), *plane = temp + round16((size_t)rows * width + SLACK);
    shifts(g, p, off);
    memset(plane + p->channel, 0, SLACK * sizeof *plane);
    for (size_t i = 0; i < (size_t)g->batch * g->groups; i++) {
        phase_channel(g, p, -__builtin_inff(), g->x + i * p->in, plane);
        for (uint32_t d = 0; d < g->out[0]; d++)
            for (uint32_t h0 = 0; h0 < g->out[1]; h0 += rows) {
                uint32_t n = g->out[1] - h0 < rows ? g->out[1] - h0 : rows;
                depth_rows(1, (n - 1) * width + g->out[2], p->taps, off, NULL, plane + ((size_t)d * p->size[1] + h0) * width, temp);
                for (uint32_t h = 0; h < n; h++)
                    memcpy(g->y + i * p->out + ((size_t)d * g->out[1] + h0 + h) * g->out[2], temp + (size_t)h * width, g->out[2] * sizeof *temp);
            }
    }
}

/* The table -------------------------------------------------------------------------------------------------------------------------- */

static void conv_run(const struct conv_args *g)
{
    struct plan p = plan_of(g);
    if (p.out == 0 || g->batch == 0)
        return;
    if (g->winograd)
        winograd(g);
    else if (is_depthwise(g))
        depthwise(g, &p);
    else
        dense(g, &p);
}

static size_t conv_scratch(const struct conv_args *g)
{
    if (g->winograd)
        return winograd_scratch(g);
    struct plan p = plan_of(g);
    size_t depth = round16((size_t)rows_at_once(g, &p) * p.size[2] + SLACK) + p.channel + SLACK;
    size_t product = round16(panels_floats(&p)) + (p.direct ? 0 : p.images * p.image);
    return (round16(p.k) + (is_depthwise(g) ? depth : product)) * sizeof(float) + 64;
}

static size_t conv_packed(const struct conv_args *g)
{
    size_t taps = (size_t)g->kernel[0] * g->kernel[1] * g->kernel[2];
    if (g->winograd)
        taps = 16;
    else if (is_depthwise(g))
        return g->groups * g->oc * taps;
    return (size_t)g->groups * tiles_of(g->oc) * MR * g->ic * taps + VL; /* vectors of a tile's rows reach beyond it */
}

/* packed[tile][k][i], zeros beyond the rows of a tile */
static void conv_pack(const struct conv_args *g, const float *w, float *packed)
{
    size_t k = (size_t)g->ic * g->kernel[0] * g->kernel[1] * g->kernel[2];
    if (g->winograd) {
        winograd_pack(g, w, packed);
        return;
    }
    if (is_depthwise(g)) {
        memcpy(packed, w, (size_t)g->groups * g->oc * k * sizeof *w);
        return;
    }
    uint32_t n_tiles = tiles_of(g->oc);
    memset(packed + (size_t)g->groups * n_tiles * MR * k, 0, VL * sizeof *packed);
    for (uint32_t group = 0; group < g->groups; group++)
        for (uint32_t t = 0; t < n_tiles; t++, packed += k * MR) {
            uint32_t r0 = tile_row(g->oc, n_tiles, t), r1 = tile_row(g->oc, n_tiles, t + 1);
            memset(packed, 0, k * MR * sizeof *packed);
            for (uint32_t r = r0; r < r1; r++)
                for (size_t i = 0; i < k; i++)
                    packed[i * MR + (r - r0)] = w[((size_t)group * g->oc + r) * k + i];
        }
}

#define NAME_(isa) conv_##isa
#define NAME(isa) NAME_(isa)
#define TEXT_(isa) #isa
#define TEXT(isa) TEXT_(isa)
const struct conv_kernels NAME(ISA) = {
    .name = TEXT(ISA),
    .packed = conv_packed,
    .pack = conv_pack,
    .scratch = conv_scratch,
    .run = conv_run,
    .max_pool = max_pool,
};
