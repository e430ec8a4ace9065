#include "workers/image/prepare.h"

#define MOST_SIDE (1 << 24) /* of a resized picture of which a crop is taken */

void image_scratch_release(struct image_scratch *s)
{
    image_release(&s->decoded);
    image_release(&s->resized);
    resizer_release(&s->resizer);
}

/* What of the resized picture the crop shows, along one side */
struct crop {
    uint32_t from, shown; /* pixels of the resized picture */
    uint32_t before;      /* black ones before them */
    uint32_t total;
};

static struct crop crop_of(uint32_t size, uint32_t crop)
{
    if (!crop)
        return (struct crop){0, size, 0, size};
    if (crop <= size)
        return (struct crop){(size - crop) / 2, crop, 0, crop};
    return (struct crop){0, size, (crop - size + 1) / 2, crop}; /* as half of a negative number, rounded down */
}

static enum status sizes(const struct image_spec *s, const struct image *in, uint64_t *width, uint64_t *height, struct err *e)
{
    *width = in->width;
    *height = in->height;
    if (s->sizing == IMAGE_EXACT) {
        *width = s->width;
        *height = s->height;
    } else if (s->sizing == IMAGE_SHORTEST) {
        uint64_t shorter = in->width <= in->height ? in->width : in->height, longer = in->width <= in->height ? in->height : in->width;
        uint64_t grown = (uint64_t)((double)(s->edge * longer) / (double)shorter);
        *width = in->width <= in->height ? s->edge : grown;
        *height = in->width <= in->height ? grown : s->edge;
    }
    if (*width > MOST_SIDE || *height > MOST_SIDE)
        return err_set(e, ST_USER, "the image of %u x %u pixels is too narrow to be resized", in->width, in->height);
    /* with a crop only the window is ever made */
    if (!s->crop_width && *width * *height > s->decode.limits.max_pixels)
        return err_set(e, ST_USER, "the image of %u x %u pixels would become one of %llu x %llu, %llu pixels are allowed", in->width,
                       in->height, (unsigned long long)*width, (unsigned long long)*height,
                       (unsigned long long)s->decode.limits.max_pixels);
    return ST_OK;
}

/* One channel, whose pixels lie `step` floats apart */
static void fill(const struct image *in, int from, const float value[256], float zero_pixel, struct crop across, struct crop down, uint32_t width,
                 uint32_t height, float *to, size_t step)
{
    for (uint32_t y = 0; y < height; y++) {
        int row = y >= down.before && y < down.before + down.shown;
        const uint8_t *p = row ? in->rgb + (size_t)(y - down.before) * in->width * 3 + from : NULL;
        uint32_t x = 0;
        for (; x < (row ? across.before : across.total); x++, to += step)
            *to = y < down.total ? zero_pixel : 0;
        for (; row && x < across.before + across.shown; x++, p += 3, to += step)
            *to = value[*p];
        for (; x < across.total; x++, to += step)
            *to = y < down.total ? zero_pixel : 0;
        for (; x < width; x++, to += step)
            *to = 0;
    }
}

enum status image_prepare_again(const struct image_spec *s, struct image_scratch *m, float *out, size_t room, uint32_t *width, uint32_t *height,
                                struct err *e)
{
    uint64_t full_width, full_height;
    TRY(sizes(s, &m->decoded, &full_width, &full_height, e));
    struct crop across = crop_of((uint32_t)full_width, s->crop_width), down = crop_of((uint32_t)full_height, s->crop_height);
    *width = s->pad_width ? s->pad_width : across.total;
    *height = s->pad_width ? s->pad_height : down.total;
    if (*width < across.total || *height < down.total)
        return err_set(e, ST_USER, "the image of %u x %u pixels is larger than the %u x %u that it is padded to", across.total, down.total, *width,
                       *height);
    size_t pixels = (size_t)*width * *height;
    if (room / 3 < pixels)
        return err_set(e, ST_AGAIN, "the image needs room for %u x %u pixels", *width, *height);
    struct window w = {across.from, down.from, across.shown, down.shown};
    TRY(image_resize(&m->resizer, &m->decoded, (uint32_t)full_width, (uint32_t)full_height, s->resample, w, &m->resized, e));
    for (int c = 0; c < 3; c++) {
        int from = s->bgr ? 2 - c : c;
        /* transformers normalises by the place in the result and swaps afterwards, or before: MobileViT, which swaps, does not normalise */
        fill(&m->resized, from, s->value[c], s->value[c][0], across, down, *width, *height, s->channels_last ? out + c : out + (size_t)c * pixels,
             s->channels_last ? 3 : 1);
    }
    return ST_OK;
}

enum status image_prepare(const struct image_spec *s, struct image_scratch *m, const void *data, size_t len, float *out, size_t room,
                          uint32_t *width, uint32_t *height, struct err *e)
{
    TRY(image_decode(&s->decode, data, len, &m->decoded, e));
    return image_prepare_again(s, m, out, room, width, height, e);
}
