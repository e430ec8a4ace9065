/* preprocessor_config.json of anybody: refused, or something by which any picture can be prepared. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "workers/image/prepare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct image_spec spec;
    static struct image_scratch scratch;
    static float out[1 << 16];
    struct err e;
    enum status st = image_spec_parse("config", data, size, &spec, &e);
    if (st == ST_USER)
        return 0;
    if (st != ST_OK)
        abort();
    spec.decode.limits.max_pixels = 1 << 18;
    for (uint32_t i = 1; i < 40; i += 13) {
        uint32_t width, height, fixed_width, fixed_height;
        if (image_reserve(&scratch.decoded, i, 40 - i, &e) != ST_OK)
            abort();
        memset(scratch.decoded.rgb, (int)i, (size_t)3 * i * (40 - i));
        st = image_prepare_again(&spec, &scratch, out, sizeof out / sizeof *out, &width, &height, &e);
        if (st != ST_OK && st != ST_AGAIN && st != ST_USER)
            abort();
        if (st == ST_OK && image_spec_fixed(&spec, &fixed_width, &fixed_height) && (width != fixed_width || height != fixed_height))
            abort();
    }
    return 0;
}
