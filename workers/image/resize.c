#include "workers/image/resize.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"

#define FRACTION 22 /* bits of a weight: 8 more for the pixel, 2 for lobes below zero */
#define HALF (1 << (FRACTION - 1))

void resizer_release(struct resizer *r)
{
    mem_free(r->weights);
    mem_free(r->columns);
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
static void along_row_plain(const struct resizer *r, size_t stride, uint32_t left, const uint8_t *from, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, to += 3) {
        const uint8_t *p = from + (size_t)(r->first[i] - left) * 3;
        const int32_t *w = r->weights + i * stride;
        int32_t a = HALF, b = a, c = a;
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

/* `size` bytes of an output row out of `count` rows */
static void along_column_plain(const int32_t *w, uint32_t count, const uint8_t *from, size_t row_bytes, uint8_t *to, size_t size)
{
    for (size_t j = 0; j < size; j++) {
        int32_t sum = HALF;
        for (uint32_t k = 0; k < count; k++)
            sum += from[k * row_bytes + j] * w[k];
        to[j] = rounded(sum);
    }
}

/* The same sums with eight lanes. They are whole numbers, so the order does not matter. */
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i load(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

/* Eight rows of eight bytes to eight columns */
AVX2 static inline void turn(const uint8_t *const from[8], size_t at, uint8_t to[64])
{
    __m128i r[8], a[4], b[4];
    for (int i = 0; i < 8; i++)
        r[i] = _mm_loadl_epi64((const __m128i *)(const void *)(from[i] + at));
    for (int i = 0; i < 4; i++)
        a[i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        _mm_storeu_si128((__m128i *)(void *)(to + 32 * i), _mm_unpacklo_epi32(b[i], b[i + 2]));
        _mm_storeu_si128((__m128i *)(void *)(to + 32 * i + 16), _mm_unpackhi_epi32(b[i], b[i + 2]));
    }
}

/* Up to eight rows at once, a lane for each: the bytes are turned so that those of one column lie together, and turned back. `size`: bytes of a
   row that are looked at; up to IMAGE_SLACK more are read. */
AVX2 static void along_rows_avx2(struct resizer *r, size_t stride, uint32_t left, const uint8_t *const from[8], size_t size, uint8_t *const to[8],
                                 int rows, uint32_t n)
{
    uint8_t *in = r->columns, *out = in + (size + 7) / 8 * 64;
    for (size_t at = 0; at < size; at += 8)
        turn(from, at, in + 8 * at);
    const __m256i half = _mm256_set1_epi32(HALF);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *p = in + (size_t)(r->first[i] - left) * 24;
        const int32_t *w = r->weights + i * stride;
        __m256i sum[3] = {half, half, half};
        for (uint32_t k = 0; k < r->count[i]; k++, p += 24) {
            __m256i weight = _mm256_set1_epi32(w[k]);
            for (int c = 0; c < 3; c++)
                sum[c] = _mm256_add_epi32(sum[c], _mm256_mullo_epi32(load(p + 8 * c), weight));
        }
        for (int c = 0; c < 3; c++) { /* packing saturates to 0..255 */
            __m256i s = _mm256_srai_epi32(sum[c], FRACTION);
            __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
            _mm_storel_epi64((__m128i *)(void *)(out + (size_t)i * 24 + 8 * c), _mm_packus_epi16(words, words));
        }
    }
    size_t out_size = (size_t)n * 3;
    for (size_t at = 0; at < out_size; at += 8) {
        const uint8_t *columns[8];
        uint8_t block[64];
        for (size_t i = 0; i < 8; i++)
            columns[i] = out + 8 * (at + i);
        turn(columns, 0, block);
        size_t left_over = out_size - at < 8 ? out_size - at : 8;
        for (int y = 0; y < rows; y++)
            memcpy(to[y] + at, block + 8 * y, left_over);
    }
}

AVX2 static void along_column_avx2(const int32_t *w, uint32_t count, const uint8_t *from, size_t row_bytes, uint8_t *to, size_t size)
{
    size_t j = 0;
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (; j + 32 <= size; j += 32) {
        __m256i half = _mm256_set1_epi32(HALF), sum[4] = {half, half, half, half};
        const uint8_t *p = from + j;
        for (uint32_t k = 0; k < count; k++, p += row_bytes)
            for (int v = 0; v < 4; v++)
                sum[v] = _mm256_add_epi32(sum[v], _mm256_mullo_epi32(load(p + 8 * v), _mm256_set1_epi32(w[k])));
        for (int v = 0; v < 4; v++)
            sum[v] = _mm256_srai_epi32(sum[v], FRACTION);
        /* packing saturates: to 0..255, and works on each half by itself */
        __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
        _mm256_storeu_si256((__m256i *)(void *)(to + j), _mm256_permutevar8x32_epi32(packed, in_order));
    }
    along_column_plain(w, count, from + j, row_bytes, to + j, size - j);
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define along_column_avx2 along_column_plain
static void along_rows_avx2(struct resizer *r, size_t stride, uint32_t left, const uint8_t *const from[8], size_t size, uint8_t *const to[8],
                            int rows, uint32_t n)
{
    BUG("no AVX2");
}
static int has_avx2(void)
{
    return 0;
}
#endif

/* `rows` rows of `size` bytes, `from_bytes` and `to_bytes` apart */
static enum status along_rows(struct resizer *r, size_t stride, uint32_t left, const uint8_t *from, size_t from_bytes, size_t size, uint8_t *to,
                              size_t to_bytes, uint32_t rows, uint32_t n, struct err *e)
{
    if (r->plain || !has_avx2()) {
        for (uint32_t y = 0; y < rows; y++)
            along_row_plain(r, stride, left, from + y * from_bytes, to + y * to_bytes, n);
        return ST_OK;
    }
    size_t room_in = (size + 7) / 8 * 64, room_out = ((size_t)n * 3 + 7) / 8 * 64;
    TRY(room(&r->columns, &r->columns_cap, room_in + room_out, 1, e));
    memset(r->columns + room_in + room_out - 64, 0, 64);
    for (uint32_t y = 0; y < rows; y += 8) {
        const uint8_t *in[8];
        uint8_t *out[8];
        for (uint32_t i = 0; i < 8; i++) { /* too few rows: the last one again */
            uint32_t row = y + i < rows ? y + i : rows - 1;
            in[i] = from + row * from_bytes;
            out[i] = to + row * to_bytes;
        }
        along_rows_avx2(r, stride, left, in, size, out, rows - y < 8 ? (int)(rows - y) : 8, n);
    }
    return ST_OK;
}

static void along_column(const struct resizer *r, const int32_t *w, uint32_t count, const uint8_t *from, size_t row_bytes, uint8_t *to, size_t size)
{
    (r->plain || !has_avx2() ? along_column_plain : along_column_avx2)(w, count, from, row_bytes, to, size);
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

static enum status make_between(struct resizer *r, size_t size, struct err *e)
{
    size_t had = r->between_cap;
    TRY(room(&r->between, &r->between_cap, size + IMAGE_SLACK, 1, e));
    if (r->between_cap != had)
        memset(r->between + size, 0, IMAGE_SLACK);
    return ST_OK;
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
            TRY(make_between(r, part_bytes * w.height, e));
            to = r->between;
        }
        for (uint32_t y = 0; y < w.height; y++)
            along_column(r, r->weights + y * stride, r->count[y], from + (r->first[y] - part.y) * in_bytes, in_bytes, to + y * part_bytes, part_bytes);
        if (width == in->width)
            return ST_OK;
        TRY(weigh(r, in->width, width, w.x, w.width, filter, &stride, e));
        return along_rows(r, stride, part.x, to, part_bytes, part_bytes, out->rgb, out_bytes, w.height, w.width, e);
    }
    if (width != in->width) {
        uint8_t *to = out->rgb;
        if (height != in->height) {
            TRY(make_between(r, out_bytes * part.height, e));
            to = r->between;
        }
        TRY(weigh(r, in->width, width, w.x, w.width, filter, &stride, e));
        TRY(along_rows(r, stride, part.x, from, in_bytes, part_bytes, to, out_bytes, part.height, w.width, e));
        if (height == in->height)
            return ST_OK;
        from = to;
        in_bytes = out_bytes;
        TRY(weigh(r, in->height, height, w.y, w.height, filter, &stride, e));
    }
    for (uint32_t y = 0; y < w.height; y++)
        along_column(r, r->weights + y * stride, r->count[y], from + (r->first[y] - part.y) * in_bytes, in_bytes, out->rgb + y * out_bytes, out_bytes);
    return ST_OK;
}
