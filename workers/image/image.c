#include "workers/image/image.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/image/format.h"

void image_release(struct image *i)
{
    mem_free(i->rgb);
    memset(i, 0, sizeof *i);
}

enum status image_reserve(struct image *i, uint32_t width, uint32_t height, struct err *e)
{
    uint64_t bytes = (uint64_t)width * height * 3;
    if (bytes > i->cap) {
        mem_free(i->rgb);
        i->rgb = mem_alloc(bytes + IMAGE_SLACK);
        i->cap = i->rgb ? bytes : 0;
        if (!i->rgb) {
            i->width = i->height = 0;
            return err_nomem(e, "the pixels of an image");
        }
        memset(i->rgb + bytes, 0, IMAGE_SLACK);
    }
    i->width = width;
    i->height = height;
    return ST_OK;
}

enum status image_check_size(const struct image_limits *l, const char *kind, uint64_t width, uint64_t height, struct err *e)
{
    if (!width || !height)
        return err_set(e, ST_CORRUPT, "the %s has no pixels", kind);
    if (width > l->max_side || height > l->max_side)
        return err_set(e, ST_USER, "the %s has %llu x %llu pixels, a side may have %u", kind, (unsigned long long)width,
                       (unsigned long long)height, l->max_side);
    if (width * height > l->max_pixels)
        return err_set(e, ST_USER, "the %s has %llu x %llu pixels, %llu are allowed", kind, (unsigned long long)width,
                       (unsigned long long)height, (unsigned long long)l->max_pixels);
    return ST_OK;
}

/* a / 255 rounded, for a that has 0x80 added already */
static uint32_t div255(uint32_t a)
{
    return ((a >> 8) + a) >> 8;
}

void image_over_white(const uint8_t rgba[4], uint8_t rgb[3])
{
    enum { BITS = 7 }; /* of fraction, so that the sum is rounded once */
    uint32_t a = rgba[3];
    for (int c = 0; c < 3; c++)
        rgb[c] = (uint8_t)(div255((rgba[c] * a + 255 * (255 - a) + 0x80) << BITS) >> BITS);
}

/* Corners of the picture that is read, seen from the one that is written: pixel (x, y) of the new comes from ... */
enum status image_turn(struct image *i, int orientation, struct err *e)
{
    if (orientation < 2 || orientation > 8)
        return ST_OK;
    int swapped = orientation >= 5;
    struct image turned = {0};
    TRY(image_reserve(&turned, swapped ? i->height : i->width, swapped ? i->width : i->height, e));
    uint32_t w = i->width, h = i->height;
    for (uint32_t y = 0; y < turned.height; y++)
        for (uint32_t x = 0; x < turned.width; x++) {
            uint32_t sx = swapped ? y : x, sy = swapped ? x : y;
            if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
                sx = w - 1 - sx;
            if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
                sy = h - 1 - sy;
            memcpy(turned.rgb + ((size_t)y * turned.width + x) * 3, i->rgb + ((size_t)sy * w + sx) * 3, 3);
        }
    mem_free(i->rgb);
    *i = turned;
    return ST_OK;
}

static const struct {
    const char *magic;
    size_t at, len;
    const char *name;
} foreign[] = {
    {"GIF8", 0, 4, "a GIF"},      {"BM", 0, 2, "a BMP"},          {"II*\0", 0, 4, "a TIFF"},      {"MM\0*", 0, 4, "a TIFF"},
    {"%PDF", 0, 4, "a PDF"},      {"ftypavif", 4, 8, "an AVIF"},  {"ftypheic", 4, 8, "an HEIC"},  {"ftypmif1", 4, 8, "an HEIF"},
    {"\0\0\1\0", 0, 4, "an ICO"}, {"\0\0\0\fjP  ", 0, 8, "a JPEG 2000"}, {"\xff\n", 0, 2, "a JPEG XL"}, {"<svg", 0, 4, "an SVG"},
};

static enum status unknown(const uint8_t *data, size_t len, struct err *e)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (len >= foreign[i].at + foreign[i].len && memcmp(data + foreign[i].at, foreign[i].magic, foreign[i].len) == 0)
            return err_set(e, ST_CORRUPT, "%s image is not supported; convert it to JPEG, PNG or WebP", foreign[i].name);
    char hex[16 * 3 + 1] = "";
    for (size_t i = 0; i < len && i < 16; i++)
        snprintf(hex + 3 * i, 4, " %02x", data[i]);
    return err_set(e, ST_CORRUPT, len ? "no JPEG, PNG or WebP image; it begins with the bytes%s" : "no image, there are no bytes%s", hex);
}

enum status image_decode(const struct image_decode_opts *o, const void *data, size_t len, struct image *out, struct err *e)
{
    const uint8_t *p = data;
    int orientation = 1;
    enum status st;
    out->width = out->height = 0;
    if (len > o->limits.max_bytes)
        return err_set(e, ST_USER, "the image has %zu bytes, %llu are allowed", len, (unsigned long long)o->limits.max_bytes);
    if (len >= 3 && memcmp(p, "\xff\xd8\xff", 3) == 0)
        st = image_jpeg(o, p, len, out, &orientation, e);
    else if (len >= 8 && memcmp(p, "\x89PNG\r\n\x1a\n", 8) == 0)
        st = image_png(o, p, len, out, &orientation, e);
    else if (len >= 12 && memcmp(p, "RIFF", 4) == 0 && memcmp(p + 8, "WEBP", 4) == 0)
        st = image_webp(o, p, len, out, &orientation, e);
    else
        st = unknown(p, len, e);
    if (st == ST_OK)
        st = image_turn(out, orientation, e);
    if (st != ST_OK)
        out->width = out->height = 0;
    return st;
}
