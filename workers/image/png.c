/* PNG by libspng: every colour type and depth, interlaced or not. Samples are taken as they are stored and converted here, so that the outcome is
   Pillow's and not the library's. */
#include <stdio.h>
#include <string.h>

#include <spng.h>

#include "base/mem.h"
#include "workers/image/format.h"

struct png {
    spng_ctx *ctx;
    struct spng_ihdr head;
    struct spng_plte palette;
    struct spng_trns clear; /* which colour, or which entries of the palette, are transparent */
    int has_clear;
};

static enum status failed(int code, struct err *e)
{
    if (code == SPNG_EMEM)
        return err_nomem(e, "decoding a PNG");
    return err_set(e, ST_CORRUPT, "the PNG cannot be decoded: %s", spng_strerror(code));
}

static uint32_t sample(const uint8_t *row, uint32_t i, uint8_t depth)
{
    if (depth == 8)
        return row[i];
    if (depth == 16)
        return (uint32_t)row[2 * i] << 8 | row[2 * i + 1];
    uint32_t bit = i * depth;
    return (uint32_t)row[bit >> 3] >> (8 - depth - (bit & 7)) & ((1u << depth) - 1);
}

/* One pixel as RGBA of 8 bits */
static void pixel(const struct png *p, const uint8_t *row, uint32_t x, uint8_t out[4])
{
    uint8_t depth = p->head.bit_depth, shift = depth == 16 ? 8 : 0;
    const struct spng_trns *t = p->has_clear ? &p->clear : NULL;
    out[3] = 255;
    switch (p->head.color_type) {
    case SPNG_COLOR_TYPE_GRAYSCALE: {
        uint32_t v = sample(row, x, depth);
        if (t && v == t->gray)
            out[3] = 0;
        v = depth == 16 ? (v > 255 ? 255 : v) : v * (255 / ((1u << depth) - 1));
        memset(out, (int)v, 3);
        break;
    }
    case SPNG_COLOR_TYPE_GRAYSCALE_ALPHA:
        memset(out, (int)(sample(row, 2 * x, depth) >> shift), 3);
        out[3] = (uint8_t)(sample(row, 2 * x + 1, depth) >> shift);
        break;
    case SPNG_COLOR_TYPE_TRUECOLOR: {
        uint32_t r = sample(row, 3 * x, depth), g = sample(row, 3 * x + 1, depth), b = sample(row, 3 * x + 2, depth);
        if (t && r == t->red && g == t->green && b == t->blue)
            out[3] = 0;
        out[0] = (uint8_t)(r >> shift);
        out[1] = (uint8_t)(g >> shift);
        out[2] = (uint8_t)(b >> shift);
        break;
    }
    case SPNG_COLOR_TYPE_TRUECOLOR_ALPHA:
        for (uint32_t c = 0; c < 4; c++)
            out[c] = (uint8_t)(sample(row, 4 * x + c, depth) >> shift);
        break;
    default: { /* a palette; entries that it lacks are black */
        uint32_t i = sample(row, x, depth);
        memset(out, 0, 3);
        if (i < p->palette.n_entries) {
            const struct spng_plte_entry *c = &p->palette.entries[i];
            out[0] = c->red;
            out[1] = c->green;
            out[2] = c->blue;
        }
        if (t && i < t->n_type3_entries)
            out[3] = t->type3_alpha[i];
    }
    }
}

static void convert_row(const struct png *p, enum image_alpha alpha, const uint8_t *row, uint8_t *to)
{
    for (uint32_t x = 0; x < p->head.width; x++, to += 3) {
        uint8_t c[4];
        pixel(p, row, x, c);
        if (c[3] == 255 || alpha == IMAGE_ALPHA_DROP)
            memcpy(to, c, 3);
        else
            image_over_white(c, to);
    }
}

static enum status read_pixels(struct png *p, enum image_alpha alpha, struct image *out, struct err *e)
{
    size_t bytes, stride = (size_t)out->width * 3;
    int plain = p->head.color_type == SPNG_COLOR_TYPE_TRUECOLOR && p->head.bit_depth == 8 && (alpha == IMAGE_ALPHA_DROP || !p->has_clear);
    int code = spng_decoded_image_size(p->ctx, SPNG_FMT_RAW, &bytes);
    if (code)
        return failed(code, e);
    if (plain) /* stored as it is wanted */
        return (code = spng_decode_image(p->ctx, out->rgb, bytes, SPNG_FMT_RAW, 0)) ? failed(code, e) : ST_OK;
    size_t row_bytes = bytes / out->height;
    uint8_t *raw = mem_alloc(p->head.interlace_method ? bytes : row_bytes);
    if (!raw)
        return err_nomem(e, "decoding a PNG");
    if (p->head.interlace_method) {
        code = spng_decode_image(p->ctx, raw, bytes, SPNG_FMT_RAW, 0);
        for (uint32_t y = 0; !code && y < out->height; y++)
            convert_row(p, alpha, raw + y * row_bytes, out->rgb + y * stride);
    } else {
        code = spng_decode_image(p->ctx, NULL, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE);
        for (uint32_t y = 0; !code && y < out->height; y++) {
            code = spng_decode_row(p->ctx, raw, row_bytes);
            if (code == SPNG_EOI && y + 1 == out->height)
                code = 0;
            if (!code)
                convert_row(p, alpha, raw, out->rgb + y * stride);
        }
    }
    mem_free(raw);
    return code ? failed(code, e) : ST_OK;
}

static enum status decode(struct png *p, const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out,
                          int *orientation, struct err *e)
{
    int code = spng_set_png_buffer(p->ctx, data, len);
    if (!code) /* a chunk besides the picture's: palettes, profiles, text */
        code = spng_set_chunk_limits(p->ctx, 16 << 20, 32 << 20);
    if (!code)
        code = spng_get_ihdr(p->ctx, &p->head);
    if (code)
        return failed(code, e);
    TRY(image_check_size(&o->limits, "PNG", p->head.width, p->head.height, e));
    if (p->head.color_type == SPNG_COLOR_TYPE_INDEXED && (code = spng_get_plte(p->ctx, &p->palette)))
        return failed(code, e);
    code = spng_get_trns(p->ctx, &p->clear);
    if (code && code != SPNG_ECHUNKAVAIL)
        return failed(code, e);
    p->has_clear = !code;
    struct spng_exif exif;
    if (o->orient && spng_get_exif(p->ctx, &exif) == 0)
        *orientation = exif_orientation((const uint8_t *)exif.data, exif.length);
    TRY(image_reserve(out, p->head.width, p->head.height, e));
    return read_pixels(p, o->alpha, out, e);
}

enum status image_png(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation, struct err *e)
{
    struct spng_alloc seam = {.malloc_fn = mem_alloc, .realloc_fn = mem_resize, .calloc_fn = mem_array, .free_fn = mem_free};
    struct png p = {.ctx = spng_ctx_new2(&seam, 0)};
    if (!p.ctx)
        return err_nomem(e, "decoding a PNG");
    enum status st = decode(&p, o, data, len, out, orientation, e);
    spng_ctx_free(p.ctx);
    return st;
}
