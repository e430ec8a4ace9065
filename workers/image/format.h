/* What the decoders of the single formats share. Only workers/image includes this. */
#ifndef EBB_IMAGE_FORMAT_H
#define EBB_IMAGE_FORMAT_H

#include "workers/image/image.h"

/* Each decodes one format into *out; *orientation is EXIF's (1..8; 1 when there is none), looked for only with o->orient. */
MUST_USE enum status image_jpeg(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation,
                                struct err *e);
MUST_USE enum status image_png(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation,
                               struct err *e);
MUST_USE enum status image_webp(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation,
                                struct err *e);

/* ST_USER when width x height is beyond the limits, ST_CORRUPT when there are no pixels; `kind` is the format's name. */
MUST_USE enum status image_check_size(const struct image_limits *l, const char *kind, uint64_t width, uint64_t height, struct err *e);
/* One colour with alpha over white, as Pillow's alpha_composite computes it: to three bytes. */
void image_over_white(const uint8_t rgba[4], uint8_t rgb[3]);

/* The orientation that a block of EXIF (a TIFF header and its first directory) holds; 1 when none can be read. */
int exif_orientation(const uint8_t *data, size_t len);
/* Turns the picture so that orientation 2..8 becomes 1. */
MUST_USE enum status image_turn(struct image *i, int orientation, struct err *e);

#endif
