/* From the bytes of a picture to the numbers that a model is given, by the steps of its preprocessor_config.json. */
#ifndef EBB_IMAGE_PREPARE_H
#define EBB_IMAGE_PREPARE_H

#include "workers/image/spec.h"

/* Memory that is used again for the next picture; zeroed at first. One per thread. */
struct image_scratch {
    struct image decoded, resized;
    struct resizer resizer;
};
void image_scratch_release(struct image_scratch *s);

/* The pixels of a picture that comes out as width x height (three numbers each). Sets *width and *height, and fills `out` if `room` (floats) is enough for
   3 * width * height; ST_AGAIN if it is not: the picture stays decoded in the scratch, and image_prepare_again fills a larger `out`. With
   image_spec_fixed the size is known before.
   ST_CORRUPT, ST_USER: of this picture (see image_decode; or it would become larger than the limits allow); ST_NOMEM. */
MUST_USE enum status image_prepare(const struct image_spec *s, struct image_scratch *m, const void *data, size_t len, float *out, size_t room,
                                   uint32_t *width, uint32_t *height, struct err *e);
MUST_USE enum status image_prepare_again(const struct image_spec *s, struct image_scratch *m, float *out, size_t room, uint32_t *width,
                                         uint32_t *height, struct err *e);

#endif
