#include "workers/image/resize.h"

#include <string.h>

#include "base/mem.h"

#define FRACTION 22 /* bits of a weight: 8 more for the pixel, 2 for lobes below zero */

void resizer_release(struct resizer *r)
{
    mem_free(r->weights);
    mem_free(r->first);
    mem_free(r->count);
    mem_free(r->exact);
    mem_free(r->between);
    memset(r, 0, sizeof *r);
}

static enum status room(void *held, size_t *cap, size_t count, size_t size, struct err *e)
{
    void **at = held;
    if (count <= *cap)
        return ST_OK;
    mem_free(*at);
    *cap = 0;
    *at = count > SIZE_MAX / size ? NULL : mem_alloc(count * size);
    if (!*at)
        return err_nomem(e, "resizing an image");
    *cap = count;
    return ST_OK;
}

/* Filters -------------------------------------------------------------------------------------------------------------------------- */

/* The Taylor series on [-1/2, 1/2] turns, where the first term left out is below 2^-60 */
static double sin_pi(double x)
{
    double turns = (double)(int)(x < 0 ? x - 0.5 : x + 0.5), sign = (int)turns & 1 ? -1 : 1;
    double y = (x - turns) * 3.14159265358979323846, y2 = y * y, term = y, sum = 0;
    for (int n = 1; n < 26; n += 2) {
        sum += term;
        term *= -y2 / ((n + 1) * (n + 2));
    }
    return sign * sum;
}

static double sinc(double x)
{
    return x == 0 ? 1 : sin_pi(x) / (x * 3.14159265358979323846);
}

static double box(double x)
{
    return x > -0.5 && x <= 0.5 ? 1 : 0;
}

static double bilinear(double x)
{
    x = x < 0 ? -x : x;
    return x < 1 ? 1 - x : 0;
}

static double hamming(double x)
{
    x = x < 0 ? -x : x;
    return x == 0 ? 1 : x >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * sin_pi(x + 0.5));
}

/* Keys' cubic with a = -1/2 */
static double bicubic(double x)
{
    x = x < 0 ? -x : x;
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

static double lanczos(double x)
{
    return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*weight)(double);
    double support;
} filters[] = {
    [RESAMPLE_LANCZOS] = {lanczos, 3}, [RESAMPLE_BILINEAR] = {bilinear, 1}, [RESAMPLE_BICUBIC] = {bicubic, 2},
    [RESAMPLE_BOX] = {box, 0.5},       [RESAMPLE_HAMMING] = {hamming, 1},
};

/* Weights of the output pixels [from, from + n) along one side of `in` pixels that becomes `out`; *stride is the room for each */
static enum status weigh(struct resizer *r, uint32_t in, uint32_t out, uint32_t from, uint32_t n, enum resample filter, size_t *stride,
                         struct err *e)
{
    double scale = (double)in / out, stretch = scale < 1 ? 1 : scale, support = filters[filter].support * stretch;
    uint32_t most = (uint32_t)support;
    most += support > most;
    *stride = (size_t)most * 2 + 1;
    TRY(room(&r->exact, &r->exact_cap, *stride, sizeof *r->exact, e));
    TRY(room(&r->first, &r->first_cap, n, sizeof *r->first, e));
    TRY(room(&r->count, &r->count_cap, n, sizeof *r->count, e));
    TRY(room(&r->weights, &r->weights_cap, *stride * n, sizeof *r->weights, e));
    for (uint32_t i = 0; i < n; i++) {
        double center = (from + i + 0.5) * scale, sum = 0;
        double low = center - support + 0.5, high = center + support + 0.5;
        uint32_t first = low < 0 ? 0 : (uint32_t)low, end = high > in ? in : (uint32_t)high, count = end - first;
        for (uint32_t k = 0; k < count; k++)
            sum += r->exact[k] = filters[filter].weight((k + first - center + 0.5) * (1.0 / stretch));
        for (uint32_t k = 0; k < count; k++) {
            double w = (sum != 0 ? r->exact[k] / sum : r->exact[k]) * (1 << FRACTION);
            r->weights[i * *stride + k] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
        }
        r->first[i] = first;
        r->count[i] = count;
    }
    return ST_OK;
}

/* Passes --------------------------------------------------------------------------------------------------------------------------- */

static uint8_t rounded(int32_t v)
{
    v >>= FRACTION;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One row: n output pixels; `from` is pixel `left` of the source */
static void along_row(const struct resizer *r, size_t stride, uint32_t left, const uint8_t *from, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, to += 3) {
        const uint8_t *p = from + (size_t)(r->first[i] - left) * 3;
        const int32_t *w = r->weights + i * stride;
        int32_t a = 1 << (FRACTION - 1), b = a, c = a;
        for (uint32_t k = r->count[i]; k; k--, p += 3, w++) {
            a += p[0] * *w;
            b += p[1] * *w;
            c += p[2] * *w;
        }
        to[0] = rounded(a);
        to[1] = rounded(b);
        to[2] = rounded(c);
    }
}

/* One output row out of `count` rows of n bytes each, in blocks whose sums stay in registers or the first cache */
static void along_column(const int32_t *w, uint32_t count, const uint8_t *from, size_t row_bytes, uint8_t *to, size_t n)
{
    enum { BLOCK = 256 };
    int32_t sum[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        for (size_t j = 0; j < m; j++)
            sum[j] = 1 << (FRACTION - 1);
        for (uint32_t k = 0; k < count; k++) {
            const uint8_t *p = from + k * row_bytes + at;
            for (size_t j = 0; j < m; j++)
                sum[j] += p[j] * w[k];
        }
        for (size_t j = 0; j < m; j++)
            to[at + j] = rounded(sum[j]);
    }
}

/* Pillow goes over the pixels by adding up the step, so that what it rounds off adds up too */
static enum status nearest(struct resizer *r, const struct image *in, uint32_t width, uint32_t height, struct window w, struct image *out,
                           struct err *e)
{
    double step = (double)in->width / width, at = step * 0.5;
    TRY(room(&r->first, &r->first_cap, w.width, sizeof *r->first, e));
    for (uint32_t x = 0; x < w.x + w.width; x++, at += step)
        if (x >= w.x)
            r->first[x - w.x] = at < in->width ? (uint32_t)at : in->width - 1;
    step = (double)in->height / height;
    at = step * 0.5;
    for (uint32_t y = 0; y < w.y + w.height; y++, at += step) {
        if (y < w.y)
            continue;
        uint32_t sy = at < in->height ? (uint32_t)at : in->height - 1;
        const uint8_t *from = in->rgb + (size_t)sy * in->width * 3;
        uint8_t *to = out->rgb + (size_t)(y - w.y) * w.width * 3;
        for (uint32_t x = 0; x < w.width; x++)
            memcpy(to + 3 * (size_t)x, from + 3 * (size_t)r->first[x], 3);
    }
    return ST_OK;
}

static void copy(const uint8_t *from, size_t row_bytes, struct window w, uint8_t *to)
{
    for (uint32_t y = 0; y < w.height; y++)
        memcpy(to + (size_t)y * w.width * 3, from + (size_t)(w.y + y) * row_bytes + (size_t)w.x * 3, (size_t)w.width * 3);
}

/* The source pixels that the n output pixels of the last weigh() look at */
static void reach(const struct resizer *r, uint32_t n, uint32_t *from, uint32_t *count)
{
    *from = r->first[0];
    *count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (r->first[i] + r->count[i] - *from > *count)
            *count = r->first[i] + r->count[i] - *from;
}

enum status image_resize(struct resizer *r, const struct image *in, uint32_t width, uint32_t height, enum resample filter, struct window w,
                         struct image *out, struct err *e)
{
    size_t stride, in_bytes = (size_t)in->width * 3, out_bytes = (size_t)w.width * 3;
    TRY(image_reserve(out, w.width, w.height, e));
    if (width == in->width && height == in->height) {
        copy(in->rgb, in_bytes, w, out->rgb);
        return ST_OK;
    }
    if (filter == RESAMPLE_NEAREST)
        return nearest(r, in, width, height, w, out, e);

    /* the part of the source that the window needs */
    struct window part = w;
    if (width != in->width) {
        TRY(weigh(r, in->width, width, w.x, w.width, filter, &stride, e));
        reach(r, w.width, &part.x, &part.width);
    }
    if (height != in->height) {
        TRY(weigh(r, in->height, height, w.y, w.height, filter, &stride, e));
        reach(r, w.height, &part.y, &part.height);
    }
    const uint8_t *from = in->rgb + (size_t)part.y * in_bytes + (size_t)part.x * 3;

    /* since version 13 Pillow goes along the columns first where that takes away more than twice as many pixels; before, nearly always along the
       rows */
    int columns_first = height < in->height && (int64_t)in->height - height > 2 * ((int64_t)in->width - width);
    size_t part_bytes = (size_t)part.width * 3;
    if (columns_first) {
        uint8_t *to = out->rgb;
        if (width != in->width) {
            TRY(room(&r->between, &r->between_cap, part_bytes * w.height, 1, e));
            to = r->between;
        }
        for (uint32_t y = 0; y < w.height; y++)
            along_column(r->weights + y * stride, r->count[y], from + (r->first[y] - part.y) * in_bytes, in_bytes, to + y * part_bytes, part_bytes);
        if (width == in->width)
            return ST_OK;
        TRY(weigh(r, in->width, width, w.x, w.width, filter, &stride, e));
        for (uint32_t y = 0; y < w.height; y++)
            along_row(r, stride, part.x, to + y * part_bytes, out->rgb + y * out_bytes, w.width);
        return ST_OK;
    }
    if (width != in->width) {
        uint8_t *to = out->rgb;
        if (height != in->height) {
            TRY(room(&r->between, &r->between_cap, out_bytes * part.height, 1, e));
            to = r->between;
        }
        TRY(weigh(r, in->width, width, w.x, w.width, filter, &stride, e));
        for (uint32_t y = 0; y < part.height; y++)
            along_row(r, stride, part.x, from + y * in_bytes, to + y * out_bytes, w.width);
        if (height == in->height)
            return ST_OK;
        from = to;
        in_bytes = out_bytes;
        TRY(weigh(r, in->height, height, w.y, w.height, filter, &stride, e));
    }
    for (uint32_t y = 0; y < w.height; y++)
        along_column(r->weights + y * stride, r->count[y], from + (r->first[y] - part.y) * in_bytes, in_bytes, out->rgb + y * out_bytes, out_bytes);
    return ST_OK;
}
