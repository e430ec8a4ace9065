/* WebP by libwebp: lossy and lossless, with and without alpha; of an animation the first frame. */
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "base/mem.h"
#include "workers/image/format.h"

static enum status failed(VP8StatusCode code, struct err *e)
{
    switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return err_nomem(e, "decoding a WebP");
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
        return err_set(e, ST_CORRUPT, "the WebP is truncated");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return err_set(e, ST_CORRUPT, "the WebP uses a feature that is not supported");
    default:
        return err_set(e, ST_CORRUPT, "the WebP is damaged");
    }
}

static void convert(enum image_alpha alpha, const uint8_t *rgba, struct image *out)
{
    size_t pixels = (size_t)out->width * out->height;
    for (size_t i = 0; i < pixels; i++) {
        if (alpha == IMAGE_ALPHA_WHITE && rgba[4 * i + 3] != 255)
            image_over_white(rgba + 4 * i, out->rgb + 3 * i);
        else
            memcpy(out->rgb + 3 * i, rgba + 4 * i, 3);
    }
}

static enum status decode_still(const struct image_decode_opts *o, const WebPBitstreamFeatures *f, const uint8_t *data, size_t len,
                                struct image *out, struct err *e)
{
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return err_set(e, ST_ENV, "the WebP library is not the one that ebb was built with");
    int blend = f->has_alpha && o->alpha == IMAGE_ALPHA_WHITE;
    size_t pixels = (size_t)out->width * out->height;
    uint8_t *rgba = NULL;
    if (blend && !(rgba = mem_alloc(pixels * 4)))
        return err_nomem(e, "decoding a WebP");
    config.output.colorspace = blend ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = blend ? rgba : out->rgb;
    config.output.u.RGBA.stride = (int)out->width * (blend ? 4 : 3);
    config.output.u.RGBA.size = pixels * (blend ? 4 : 3);
    VP8StatusCode code = WebPDecode(data, len, &config);
    if (code == VP8_STATUS_OK && blend)
        convert(o->alpha, rgba, out);
    WebPFreeDecBuffer(&config.output);
    mem_free(rgba);
    return code == VP8_STATUS_OK ? ST_OK : failed(code, e);
}

static enum status decode_first_frame(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, struct err *e)
{
    WebPAnimDecoderOptions options;
    if (!WebPAnimDecoderOptionsInit(&options))
        return err_set(e, ST_ENV, "the WebP library is not the one that ebb was built with");
    WebPData bytes = {.bytes = data, .size = len};
    WebPAnimDecoder *d = WebPAnimDecoderNew(&bytes, &options);
    if (!d)
        return err_set(e, ST_CORRUPT, "the animated WebP is damaged or truncated");
    uint8_t *rgba;
    int at_ms, got = WebPAnimDecoderGetNext(d, &rgba, &at_ms);
    if (got)
        convert(o->alpha, rgba, out);
    WebPAnimDecoderDelete(d);
    return got ? ST_OK : err_set(e, ST_CORRUPT, "the first picture of the animated WebP is damaged");
}

static int find_orientation(const uint8_t *data, size_t len)
{
    WebPData bytes = {.bytes = data, .size = len};
    WebPDemuxer *d = WebPDemux(&bytes);
    WebPChunkIterator chunk;
    int orientation = 1;
    if (d && WebPDemuxGetChunk(d, "EXIF", 1, &chunk)) {
        orientation = exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    WebPDemuxDelete(d);
    return orientation;
}

enum status image_webp(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation,
                       struct err *e)
{
    WebPBitstreamFeatures f;
    VP8StatusCode code = WebPGetFeatures(data, len, &f);
    if (code != VP8_STATUS_OK)
        return failed(code, e);
    TRY(image_check_size(&o->limits, "WebP", (uint64_t)f.width, (uint64_t)f.height, e));
    TRY(image_reserve(out, (uint32_t)f.width, (uint32_t)f.height, e));
    if (o->orient)
        *orientation = find_orientation(data, len);
    return f.has_animation ? decode_first_frame(o, data, len, out, e) : decode_still(o, &f, data, len, out, e);
}
