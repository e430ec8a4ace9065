/* Resizing as Pillow does it: a filter whose support grows with the reduction, along the rows and along the columns, in fixed point with 22 bits
   of fraction, rounded to 8 bits between the two. Integers but for the weights, and those without the C library's functions: the same
   bits on every machine. */
#ifndef EBB_IMAGE_RESIZE_H
#define EBB_IMAGE_RESIZE_H

#include "workers/image/image.h"

/* name, number in preprocessor_config.json (Pillow's), half of the filter's width in source pixels */
#define RESAMPLE_MAP(X)        \
    X(NEAREST, "nearest", 0, 0)   \
    X(LANCZOS, "lanczos", 1, 3)   \
    X(BILINEAR, "bilinear", 2, 1) \
    X(BICUBIC, "bicubic", 3, 2)   \
    X(BOX, "box", 4, 0.5)         \
    X(HAMMING, "hamming", 5, 1)
enum resample {
#define X(name, word, number, support) RESAMPLE_##name = number,
    RESAMPLE_MAP(X)
#undef X
};

/* Memory that is used again for the next picture; zeroed at first. One per thread. */
struct resizer {
    int plain;               /* no vectors: for tests, the outcome is the same */
    int32_t *weights;
    uint32_t *first, *count; /* per output pixel: source pixels that it takes */
    double *exact;
    uint8_t *between;        /* after the first pass */
    uint8_t *columns;        /* eight rows, turned */
    size_t weights_cap, first_cap, count_cap, exact_cap, between_cap, columns_cap;
};
void resizer_release(struct resizer *r);

struct window {
    uint32_t x, y, width, height;
};

/* What the window shows of `in` resized to width x height: the same pixels as a crop of the whole. The window lies within it. Sizes are the
   caller's to limit. ST_NOMEM only. `out` is not `in`. */
MUST_USE enum status image_resize(struct resizer *r, const struct image *in, uint32_t width, uint32_t height, enum resample filter,
                                  struct window window, struct image *out, struct err *e);

#endif
