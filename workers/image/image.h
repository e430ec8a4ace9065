/* Pictures from bytes: JPEG, PNG and WebP, told apart by their first bytes, become RGB of 8 bits, as Pillow's convert("RGB") gives them.
   Anybody's bytes may be given: limits are checked before anything of the picture's size is allocated. */
#ifndef EBB_IMAGE_IMAGE_H
#define EBB_IMAGE_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reused from picture to picture: a zeroed struct is an empty one, image_release frees. */
struct image {
    uint32_t width, height;
    uint8_t *rgb; /* 3 * width * height bytes, rows from the top without gaps; IMAGE_SLACK bytes behind them may be read */
    size_t cap;
};

#define IMAGE_SLACK 32

struct image_limits {
    uint32_t max_side;   /* pixels */
    uint64_t max_pixels; /* of the picture, and of whatever it is resized to */
    uint64_t max_bytes;  /* of the file */
};
#define IMAGE_LIMITS_DEFAULT ((struct image_limits){.max_side = 16384, .max_pixels = 64 << 20, .max_bytes = 64 << 20})

/* What becomes of transparency. DROP: colours stand as they are stored (Pillow's convert("RGB")). WHITE: laid over white (what transformers'
   do_convert_rgb does). */
enum image_alpha { IMAGE_ALPHA_DROP, IMAGE_ALPHA_WHITE };

struct image_decode_opts {
    struct image_limits limits;
    enum image_alpha alpha;
    int orient; /* turn the picture as its EXIF orientation says */
};

/* Grey is repeated in the three channels (1, 2, 4 bits are spread over 0..255; of 16 bits values above 255 become 255, as in Pillow), palettes are
   looked up, colours of 16 bits keep their high byte, CMYK is converted as Pillow does. Of an animation the first picture is taken.
   ST_CORRUPT: no picture of a known kind, damaged or truncated; ST_USER: beyond a limit; ST_NOMEM. On failure *out holds no picture (its memory
   stays for the next). */
MUST_USE enum status image_decode(const struct image_decode_opts *o, const void *data, size_t len, struct image *out, struct err *e);
void image_release(struct image *i);

/* Gives it these sizes, contents undefined; the caller has checked that they are within limits. */
MUST_USE enum status image_reserve(struct image *i, uint32_t width, uint32_t height, struct err *e);

#endif
