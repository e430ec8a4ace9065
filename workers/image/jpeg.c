/* JPEG by libjpeg-turbo: baseline and progressive, grey, colour and CMYK. The library gives up by a long jump. Its integer transform and its
   smooth upsampling are used, which are the same on every processor. Like Pillow, it goes on over damaged data as far as the library does, but
   not over a missing end. */
#include <stdio.h>
#include <setjmp.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "workers/image/format.h"

#define MAX_SCANS 200 /* of a progressive file: each costs a pass over all coefficients, and an honest one has about ten */

struct reading {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    enum status status;
    char words[JMSG_LENGTH_MAX];
};

static struct reading *reading_of(j_common_ptr info)
{
    return info->client_data;
}

noreturn static void give_up(struct reading *r, enum status status, const char *words)
{
    r->status = status;
    snprintf(r->words, sizeof r->words, "%s", words);
    longjmp(r->back, 1);
}

noreturn static void on_error(j_common_ptr info)
{
    struct reading *r = reading_of(info);
    char words[JMSG_LENGTH_MAX];
    info->err->format_message(info, words);
    give_up(r, info->err->msg_code == JERR_OUT_OF_MEMORY ? ST_NOMEM : ST_CORRUPT, words);
}

static void on_message(j_common_ptr info, int level)
{
    (void)info;
    (void)level;
}

static void on_progress(j_common_ptr info)
{
    struct reading *r = reading_of(info);
    if (r->info.input_scan_number > MAX_SCANS)
        give_up(r, ST_CORRUPT, "more scans than any picture needs");
}

static void start_source(j_decompress_ptr info)
{
    (void)info;
}

static boolean no_more(j_decompress_ptr info)
{
    give_up(reading_of((j_common_ptr)info), ST_CORRUPT, "it is truncated");
}

static void skip(j_decompress_ptr info, long bytes)
{
    if (bytes <= 0)
        return;
    if ((size_t)bytes > info->src->bytes_in_buffer)
        no_more(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}

/* Adobe writes CMYK inverted, and all others do as Adobe does */
static void from_cmyk(const uint8_t *from, uint8_t *to, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++, from += 4, to += 3) {
        uint32_t light = from[3];
        for (int c = 0; c < 3; c++) {
            uint32_t dark = (255u - from[c]) * light + 128;
            uint32_t v = light - (((dark >> 8) + dark) >> 8);
            to[c] = (uint8_t)v;
        }
    }
}

static void read_pixels(struct reading *r, struct image *out)
{
    struct jpeg_decompress_struct *info = &r->info;
    int cmyk = info->out_color_space == JCS_CMYK;
    JSAMPARRAY row = NULL;
    if (cmyk)
        row = info->mem->alloc_sarray((j_common_ptr)info, JPOOL_IMAGE, out->width * 4, 1);
    while (info->output_scanline < info->output_height) {
        uint8_t *line = out->rgb + (size_t)info->output_scanline * out->width * 3;
        if (jpeg_read_scanlines(info, cmyk ? row : (JSAMPARRAY)&line, 1) == 1 && cmyk)
            from_cmyk(row[0], line, out->width);
    }
}

static enum status decode(struct reading *r, const struct image_decode_opts *o, struct image *out, int *orientation, struct err *e)
{
    struct jpeg_decompress_struct *info = &r->info;
    if (setjmp(r->back))
        return r->status == ST_NOMEM ? err_nomem(e, "decoding a JPEG") : err_set(e, ST_CORRUPT, "the JPEG cannot be decoded: %s", r->words);
    jpeg_create_decompress(info);
    info->src = &r->source;
    info->progress = &r->progress;
    if (o->orient)
        jpeg_save_markers(info, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(info, TRUE);
    TRY(image_check_size(&o->limits, "JPEG", info->image_width, info->image_height, e));
    switch (info->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
        info->out_color_space = JCS_RGB;
        break;
    case JCS_CMYK:
    case JCS_YCCK:
        info->out_color_space = JCS_CMYK;
        break;
    default:
        return err_set(e, ST_CORRUPT, "the JPEG has %d colour components; supported are grey, colour and CMYK", info->num_components);
    }
    info->dct_method = JDCT_ISLOW;
    /* coefficients of 2 bytes, at most 4 components of whole blocks, beside the library's own tables */
    info->mem->max_memory_to_use = (long)(64 << 20) + 16 * (long)info->image_width * (long)info->image_height;
    for (jpeg_saved_marker_ptr m = info->marker_list; m; m = m->next)
        if (m->data_length >= 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            *orientation = exif_orientation(m->data, m->data_length);
    TRY(image_reserve(out, info->image_width, info->image_height, e));
    jpeg_start_decompress(info);
    if (info->output_width != out->width || info->output_height != out->height)
        return err_set(e, ST_CORRUPT, "the JPEG changes its size");
    read_pixels(r, out);
    return ST_OK;
}

enum status image_jpeg(const struct image_decode_opts *o, const uint8_t *data, size_t len, struct image *out, int *orientation,
                       struct err *e)
{
    struct reading r;
    memset(&r, 0, sizeof r);
    r.info.client_data = &r;
    r.info.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = on_error;
    r.errors.emit_message = on_message;
    r.progress.progress_monitor = on_progress;
    r.source = (struct jpeg_source_mgr){.next_input_byte = data,
                                        .bytes_in_buffer = len,
                                        .init_source = start_source,
                                        .fill_input_buffer = no_more,
                                        .skip_input_data = skip,
                                        .resync_to_restart = jpeg_resync_to_restart,
                                        .term_source = start_source};
    enum status st = decode(&r, o, out, orientation, e);
    jpeg_destroy_decompress(&r.info);
    return st;
}
