/* Convolutions of 3 x 3 in Winograd's way (conv.h says which numbers that makes): 16 products over the input channels give four pixels where the plain
   way takes 36. Tiles of 2 x 2 are the columns of these products. The 4 x 4 of the input that a tile needs are what a convolution of 4 x 4 with a stride of two
   would read: its planes and panels serve. */
#ifndef EBB_ENGINE_CONV_WINOGRAD_H
#define EBB_ENGINE_CONV_WINOGRAD_H

#include "workers/engine/cpu/conv_tiles.h"

/* Tiles done at once: their V and their sums stay in the outer caches while the weights of one place after another pass. */
enum { PLACES = 16, W_TILES = 64, W_CHANNELS = KC / PLACES };

/* As if it were a convolution whose pixels are the tiles. */
INL struct conv_args tiles_as_pixels(const struct conv_args *g)
{
    struct conv_args t = *g;
    for (int i = 1; i < 3; i++) {
        t.kernel[i] = 4;
        t.stride[i] = 2;
        t.out[i] = (g->out[i] + 1) / 2;
    }
    return t;
}

struct winograd_room {
    uint32_t *off;
    float *panels; /* some channels of one panel's tiles: the 4 x 4 */
    float *v;      /* [place][panel][channel][NR] */
    float *m;      /* [place][output channel][W_TILES] */
    float *planes;
    size_t floats;
};

INL struct winograd_room winograd_room(const struct conv_args *g, const struct plan *p, void *scratch)
{
    struct winograd_room r = {.off = scratch};
    size_t off = round16(p->k), panels = round16(panel_step(KC)), v = (size_t)PLACES * W_TILES * g->ic, m = (size_t)PLACES * W_TILES * g->oc;
    r.panels = (float *)scratch + off;
    r.v = r.panels + panels;
    r.m = r.v + v;
    r.planes = r.m + m;
    r.floats = off + panels + v + m + p->images * p->image;
    return r;
}

USABLE size_t winograd_scratch(const struct conv_args *g)
{
    struct conv_args t = tiles_as_pixels(g);
    struct plan p = plan_of(&t);
    return winograd_room(g, &p, NULL).floats * sizeof(float) + 64;
}

/* packed[place][tile of rows][k][i], as a plain convolution of one tap has it 16 times */
USABLE void winograd_pack(const struct conv_args *g, const float *w, float *packed)
{
    uint32_t n_tiles = tiles_of(g->oc);
    size_t place = (size_t)n_tiles * g->ic * MR;
    memset(packed, 0, (PLACES * place + VL) * sizeof *packed);
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t r0 = tile_row(g->oc, n_tiles, t), r = r0; r < tile_row(g->oc, n_tiles, t + 1); r++)
            for (uint32_t c = 0; c < g->ic; c++) {
                float u[PLACES];
                conv_winograd_weights(w + ((size_t)r * g->ic + c) * 9, u);
                for (uint32_t i = 0; i < PLACES; i++)
                    packed[i * place + ((size_t)t * g->ic + c) * MR + (r - r0)] = u[i];
            }
}

INL void input_side(vf *d, int step)
{
    vf d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    d[0] = d0 - d2, d[step] = d1 + d2, d[2 * step] = d2 - d1, d[3 * step] = d1 - d3;
}

/* One panel: the 4 x 4 of each channel from `from`, to v[place]. */
INL void transform_inputs(uint32_t channels, const float *from, float *v, size_t place)
{
    for (uint32_t c = 0; c < channels; c++, from += PLACES * NR, v += NR)
        for (int j = 0; j < NR; j += VL) {
            vf d[PLACES];
#pragma GCC unroll 16
            for (int i = 0; i < PLACES; i++)
                d[i] = load(from + i * NR + j);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                input_side(d + i, 4);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                input_side(d + 4 * i, 1);
#pragma GCC unroll 16
            for (int i = 0; i < PLACES; i++)
                store(v + (size_t)i * place + j, d[i]);
        }
}

/* One output channel of `count` tiles: the sums to rows [2][2 * W_TILES] of pixels. */
INL void transform_sums(const float *m, size_t place, int count, float *rows)
{
    float part[4][W_TILES];
    for (int j = 0; j < count; j += VL) {
        vf half[8];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            vf m0 = load(m + (size_t)i * place + j), m1 = load(m + (size_t)(4 + i) * place + j), m2 = load(m + (size_t)(8 + i) * place + j),
               m3 = load(m + (size_t)(12 + i) * place + j);
            half[i] = m0 + m1 + m2, half[4 + i] = m1 - m2 - m3;
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            store(part[2 * i] + j, half[4 * i] + half[4 * i + 1] + half[4 * i + 2]);
            store(part[2 * i + 1] + j, half[4 * i + 1] - half[4 * i + 2] - half[4 * i + 3]);
        }
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < count; j++) {
            rows[(2 * i) * W_TILES + 2 * j] = part[2 * i][j];
            rows[(2 * i) * W_TILES + 2 * j + 1] = part[2 * i + 1][j];
        }
}

/* Tiles q0 to q1 (over some images) of one output channel. */
INL void write_tiles(const struct conv_args *g, const struct conv_args *t, const struct plan *p, uint32_t channel, size_t q0, size_t q1, const float *rows,
                     const float *res, float *y)
{
    for (size_t q = q0; q < q1;) {
        size_t image = q / p->out, i = q % p->out, left = t->out[2] - i % t->out[2], m = q1 - q < left ? q1 - q : left;
        size_t h = i / t->out[2] * 2, w = i % t->out[2] * 2, n = w + 2 * m < g->out[2] ? 2 * m : g->out[2] - w;
        for (size_t k = 0; k < 2 && h + k < g->out[1]; k++) {
            size_t at = ((image * g->oc + channel) * g->out[1] + h + k) * g->out[2] + w;
            finish(g, (uint32_t)n, rows + k * 2 * W_TILES + 2 * (q - q0), g->bias ? g->bias + channel : NULL, res ? res + at : NULL, y + at);
        }
        q += m;
    }
}

USABLE void winograd(const struct conv_args *g)
{
    struct conv_args t = tiles_as_pixels(g);
    struct plan plan = plan_of(&t), *p = &plan;
    struct winograd_room r = winograd_room(g, p, g->scratch);
    uint32_t n_tiles = tiles_of(g->oc);
    size_t panel = (size_t)g->ic * NR, v_place = panel * (W_TILES / NR), m_place = (size_t)g->oc * W_TILES, w_place = (size_t)n_tiles * g->ic * MR;
    shifts(&t, p, r.off);
    for (uint32_t b0 = 0; b0 < g->batch; b0 += p->images) {
        uint32_t nb = g->batch - b0 < p->images ? g->batch - b0 : p->images;
        const float *x = g->x + (size_t)b0 * g->ic * p->in;
        size_t all = nb * p->out, shift = (size_t)b0 * g->oc * g->out[1] * g->out[2];
        for (uint32_t i = 0; i < nb * g->ic; i++)
            phase_channel(&t, p, 0, x + i * p->in, r.planes + i / g->ic * p->image + i % g->ic * p->channel);
        for (size_t q0 = 0; q0 < all; q0 += W_TILES) {
            size_t q1 = q0 + W_TILES < all ? q0 + W_TILES : all;
            for (size_t q = q0; q < q1; q += NR)
                for (uint32_t c = 0; c < g->ic; c += W_CHANNELS) {
                    uint32_t some = g->ic - c < W_CHANNELS ? g->ic - c : W_CHANNELS;
                    pack_pixels(&t, p, r.planes, r.off + c * PLACES, some * PLACES, q, q + NR < q1 ? q + NR : q1, r.panels);
                    transform_inputs(some, r.panels, r.v + (q - q0) / NR * panel + (size_t)c * NR, v_place);
                }
            for (uint32_t i = 0; i < PLACES; i++)
                for (size_t q = q0; q < q1; q += NR)
                    for (uint32_t tile = 0; tile < n_tiles; tile++) {
                        uint32_t r0 = tile_row(g->oc, n_tiles, tile), mr = tile_row(g->oc, n_tiles, tile + 1) - r0;
                        tiles[mr](g->ic, g->packed + i * w_place + (size_t)tile * g->ic * MR, r.v + i * v_place + (q - q0) / NR * panel, NULL,
                                  r.m + i * m_place + (size_t)r0 * W_TILES + (q - q0), W_TILES, 1, NULL);
                    }
            for (uint32_t o = 0; o < g->oc; o++) {
                float rows[4 * W_TILES];
                transform_sums(r.m + (size_t)o * W_TILES, m_place, (int)(q1 - q0), rows);
                write_tiles(g, &t, p, o, q0, q1, rows, g->res ? g->res + shift : NULL, g->y + shift);
            }
        }
    }
}

#endif
