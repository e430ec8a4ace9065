/* How a model wants its pictures: preprocessor_config.json as transformers' image processors write it, turned into a short list of steps. What the file
   leaves out is its type's default. A type or field that is not known here, and would change the numbers, is refused by name.

   Steps, in this order: decode to RGB, resize, crop about the centre (what sticks out is black), rescale and normalise, swap to BGR, pad at the right and
   below with zeros.

   The type "generic" is ours, for models without a processor of their own: nothing is done that the file does not say. All fields:
   do_resize, size, resample, do_center_crop, crop_size, do_rescale, rescale_factor, do_normalize, image_mean, image_std, do_convert_rgb,
   do_flip_channel_order, do_pad, pad_size, data_format ("channels_first", "channels_last"). image_mean and image_std stand in the order of the channels
   that the model is given. */
#ifndef EBB_IMAGE_SPEC_H
#define EBB_IMAGE_SPEC_H

#include "workers/image/resize.h"

enum image_sizing {
    IMAGE_AS_IS,
    IMAGE_EXACT,    /* to height x width */
    IMAGE_SHORTEST, /* the shorter side to `edge`, the longer in proportion, rounded down */
};

#define IMAGE_SIDE_MAX 4096 /* of what a model is given */

struct image_spec {
    char type[64];                    /* as the file names it */
    struct image_decode_opts decode;  /* limits are the default ones, orient is off; the caller may change both */
    enum image_sizing sizing;
    enum resample resample;
    uint32_t edge, width, height;     /* of the resize */
    uint32_t crop_width, crop_height; /* 0: no crop */
    uint32_t pad_width, pad_height;   /* 0: no padding */
    int bgr;
    int channels_last;                /* HWC instead of CHW; the caller may change it */
    float value[3][256];              /* what a byte of the red, green, blue channel becomes */
};

/* `name` stands in messages ("'model/preprocessor_config.json': ..."). ST_USER. */
MUST_USE enum status image_spec_parse(const char *name, const void *json, size_t len, struct image_spec *out, struct err *e);
/* dir/preprocessor_config.json. ST_NOT_FOUND: there is none. */
MUST_USE enum status image_spec_load(const char *dir, struct image_spec *out, struct err *e);
/* 1: every picture comes out as width x height; 0: that depends on the picture. */
int image_spec_fixed(const struct image_spec *s, uint32_t *width, uint32_t *height);

#endif
