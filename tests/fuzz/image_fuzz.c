/* JPEG, PNG or WebP of anybody: refused, or a picture of the size that was allowed, prepared for two kinds of model. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "workers/image/prepare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROOM (3 * 40 * 40)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const configs[] = {
        "{\"image_processor_type\":\"ViTImageProcessor\",\"size\":40}",
        "{\"image_processor_type\":\"CLIPImageProcessor\",\"size\":{\"shortest_edge\":40},\"crop_size\":40}",
        "{\"image_processor_type\":\"generic\"}",
    };
    static struct image_spec spec[3];
    static struct image_scratch scratch;
    static float out[ROOM];
    struct err e;
    for (int i = 0; i < 3; i++) {
        if (!spec[i].type[0] && image_spec_parse("config", configs[i], strlen(configs[i]), &spec[i], &e) != ST_OK)
            abort();
        spec[i].decode.limits = (struct image_limits){.max_side = 2048, .max_pixels = 1 << 18, .max_bytes = 1 << 20};
        spec[i].decode.alpha = i == 0 ? IMAGE_ALPHA_DROP : IMAGE_ALPHA_WHITE;
        spec[i].decode.orient = i != 0;
    }
    uint32_t width, height;
    enum status st = image_prepare(&spec[0], &scratch, data, size, out, ROOM, &width, &height, &e);
    if (st != ST_OK) {
        if ((st != ST_CORRUPT && st != ST_USER) || !e.text[0])
            abort();
        return 0;
    }
    if (width != 40 || height != 40)
        abort();
    for (int i = 1; i < 3; i++) {
        st = image_prepare(&spec[i], &scratch, data, size, out, ROOM, &width, &height, &e);
        if (st != ST_OK && (st != ST_AGAIN || i == 1))
            abort();
        if ((uint64_t)scratch.decoded.width * scratch.decoded.height > 1 << 18)
            abort();
    }
    return 0;
}
