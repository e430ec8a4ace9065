/* Pictures and configurations that are cut, damaged, too large or not what they say. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/image/prepare.h"

#define FOLDER "tests/golden/images/"

static uint8_t file[1 << 20];

static size_t slurp(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, FOLDER "%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t len = fread(file, 1, sizeof file, f);
    fclose(f);
    assert_true(len > 0);
    return len;
}

static const struct image_decode_opts usual = {
    .limits = {.max_side = 16384, .max_pixels = 64 << 20, .max_bytes = 64 << 20}, .alpha = IMAGE_ALPHA_WHITE, .orient = 1};

static enum status decode(const void *data, size_t len, struct err *e)
{
    struct image out = {0};
    enum status st = image_decode(&usual, data, len, &out, e);
    assert_true(st == ST_OK || (out.width == 0 && out.height == 0 && e->text[0]));
    image_release(&out);
    return st;
}

static void each_file(void (*run)(const char *name, size_t len))
{
    DIR *d = opendir(FOLDER);
    assert_non_null(d);
    int files = 0;
    for (struct dirent *f; (f = readdir(d));)
        if (f->d_name[0] != '.') {
            run(f->d_name, slurp(f->d_name));
            files++;
        }
    closedir(d);
    assert_true(files > 25);
}

/* Pixels that are missing are an error; what stands behind the last pixel is not looked at */
static void cut(const char *name, size_t len)
{
    struct err e = {0};
    for (size_t n = 0; n < len; n++) {
        uint8_t *part = malloc(n ? n : 1); /* exactly as long, so that a byte too far is noticed */
        memcpy(part, file, n);
        enum status st = decode(part, n, &e);
        if (n < len * 3 / 4 && st != ST_CORRUPT)
            fail_msg("%s cut to %zu of %zu bytes: %s", name, n, len, st == ST_OK ? "decoded" : e.text);
        free(part);
    }
}

static void cut_anywhere(void **state)
{
    (void)state;
    each_file(cut);
}

static void spoil(const char *name, size_t len)
{
    (void)name;
    struct err e;
    uint32_t seed = 1;
    for (int round = 0; round < 300; round++) {
        uint8_t *copy = malloc(len);
        memcpy(copy, file, len);
        for (int i = 0; i < 1 + round % 4; i++) {
            seed = seed * 1664525 + 1013904223;
            copy[(seed >> 8) % len] = (uint8_t)(seed >> 24);
        }
        enum status st = decode(copy, len, &e);
        assert_true(st == ST_OK || st == ST_CORRUPT || st == ST_USER);
        free(copy);
    }
}

static void damaged_anywhere(void **state)
{
    (void)state;
    each_file(spoil);
}

static void beyond_limits(void **state)
{
    (void)state;
    struct err e;
    struct image out = {0};
    static const char *const names[] = {"subsampled.jpg", "palette.png", "lossy.webp"};
    for (int i = 0; i < 3; i++) {
        size_t len = slurp(names[i]);
        struct image_decode_opts o = usual;
        o.limits.max_side = 16;
        assert_int_equal(image_decode(&o, file, len, &out, &e), ST_USER);
        assert_non_null(strstr(e.text, "a side may have 16"));
        o = usual;
        o.limits.max_pixels = 17 * 13 - 1;
        assert_int_equal(image_decode(&o, file, len, &out, &e), ST_USER);
        assert_non_null(strstr(e.text, "pixels, 220 are allowed"));
        o = usual;
        o.limits.max_bytes = len - 1;
        assert_int_equal(image_decode(&o, file, len, &out, &e), ST_USER);
        assert_non_null(strstr(e.text, "bytes, "));
        assert_null(out.rgb); /* nothing of the picture's size was taken */
    }
    image_release(&out);
}

static void what_is_no_image(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t len;
        const char *says;
    } cases[] = {
        {"", 0, "no image, there are no bytes"},
        {"GIF89a..", 8, "a GIF image is not supported; convert it to JPEG, PNG or WebP"},
        {"\0\0\0 ftypavif", 12, "an AVIF image"},
        {"hello", 5, "no JPEG, PNG or WebP image; it begins with the bytes 68 65 6c 6c 6f"},
        {"\xff\xd8\xff", 3, "the JPEG cannot be decoded: it is truncated"},
        {"\x89PNG\r\n\x1a\n", 8, "the PNG cannot be decoded: "},
        {"RIFF\4\0\0\0WEBP", 12, "the WebP is "},
    };
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(decode(cases[i].data, cases[i].len, &e), ST_CORRUPT);
        if (!strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s", i, e.text);
    }
}

/* A picture that says it is large, with nothing behind: refused, or given up without filling it */
static void large_and_empty(void **state)
{
    (void)state;
    struct err e;
    size_t len = slurp("colour.png");
    memcpy(file + 16, "\0\0\x40\1\0\0\0\1", 8); /* 16,385 x 1; the CRC is wrong too */
    assert_int_not_equal(decode(file, len, &e), ST_OK);
    len = slurp("progressive.jpg");
    for (size_t i = 0; i + 9 < len; i++)
        if (file[i] == 0xff && file[i + 1] == 0xc2)
            memcpy(file + i + 5, "\xf0\0\xf0\0", 4);
    assert_int_equal(decode(file, len, &e), ST_USER);
    assert_non_null(strstr(e.text, "61440 x 61440"));
}

static void out_of_memory_anywhere(void **state)
{
    (void)state;
    static const char *const names[] = {"subsampled.jpg", "interlaced.png", "alpha.png", "alpha.webp", "turned6.jpg"};
    static const char config[] = "{\"image_processor_type\":\"ViTImageProcessor\",\"size\":20}";
    static float out[3 * 20 * 20];
    struct image_spec *s = malloc(sizeof *s);
    struct err e;
    uint32_t width, height;
    assert_int_equal(image_spec_parse("c", config, sizeof config - 1, s, &e), ST_OK);
    s->decode = usual;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t len = slurp(names[i]);
        enum status st = ST_NOMEM;
        int failed = 0;
        for (uint64_t n = 1; st != ST_OK; n++) {
            struct image_scratch m = {0};
            mem_fail_nth(n);
            st = image_prepare(s, &m, file, len, out, sizeof out / sizeof *out, &width, &height, &e);
            mem_fail_nth(0);
            /* libspng tells an allocation that fails while it reads a chunk from damage, but not everywhere */
            assert_true(st == ST_OK || st == ST_NOMEM || (strstr(names[i], ".png") && st == ST_CORRUPT));
            failed += st == ST_NOMEM;
            image_scratch_release(&m);
        }
        assert_true(failed >= 3);
    }
    free(s);
}

#define TYPE(t) "{\"image_processor_type\":\"" t "\""
static void configurations_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"", "'dir/x.json' is not valid JSON: line 1"},
        {"[1]", "'dir/x.json' is not valid JSON"},
        {"{}", "lacks 'image_processor_type'"},
        {TYPE("DonutImageProcessor") "}", "image_processor_type 'DonutImageProcessor' is not supported; supported are the processors of ViT, CLIP"},
        {TYPE("ViTImageProcessor") ",\"do_thumbnail\":true}", "the field 'do_thumbnail' is not known for ViT"},
        {TYPE("ViTImageProcessor") ",\"crop_pct\":0.9}", "the field 'crop_pct' is not known for ViT"},
        {TYPE("ViTImageProcessor") ",\"do_resize\":1}", "'do_resize' must be true or false"},
        {TYPE("ViTImageProcessor") ",\"size\":0}", "'size' must be a number"},
        {TYPE("ViTImageProcessor") ",\"size\":{\"longest_edge\":300}}", "other ways to give a size are not supported"},
        {TYPE("ViTImageProcessor") ",\"size\":{\"shortest_edge\":300,\"longest_edge\":400}}", "other ways to give a size are not supported"},
        {TYPE("ViTImageProcessor") ",\"size\":1e9}", "'size' must be"},
        {TYPE("ViTImageProcessor") ",\"resample\":6}", "'resample' must be one of Pillow's filters"},
        {TYPE("ViTImageProcessor") ",\"resample\":2.5}", "'resample' must be one of Pillow's filters"},
        {TYPE("ViTImageProcessor") ",\"image_mean\":[1,2]}", "'image_mean' must be a number, or a list of three"},
        {TYPE("ViTImageProcessor") ",\"image_std\":0}", "make a byte"},
        {TYPE("ViTImageProcessor") ",\"rescale_factor\":\"a\"}", "'rescale_factor' must be a number"},
        {TYPE("ViTImageProcessor") ",\"do_center_crop\":true}", "do_center_crop needs 'crop_size'"},
        {TYPE("CLIPImageProcessor") ",\"crop_size\":{\"shortest_edge\":5}}", "do_center_crop needs 'crop_size' with a height and a width"},
        {TYPE("ConvNextImageProcessor") ",\"size\":[3,4]}", "'size' must be {\"shortest_edge\": n} for this type"},
        {TYPE("ConvNextImageProcessor") ",\"crop_pct\":0}", "'crop_pct' must be"},
        {TYPE("ConvNextImageProcessor") ",\"size\":{\"shortest_edge\":9},\"do_center_crop\":true,\"crop_size\":8}", "a crop of a crop"},
        {TYPE("generic") ",\"do_resize\":true}", "do_resize needs 'size'"},
        {TYPE("generic") ",\"do_pad\":true}", "do_pad needs 'pad_size'"},
        {TYPE("generic") ",\"do_pad\":true,\"pad_size\":8,\"do_resize\":true,\"size\":9}", "'pad_size' is smaller than"},
        {TYPE("generic") ",\"data_format\":\"hwc\"}", "'data_format' must be \"channels_first\" or \"channels_last\""},
    };
    struct image_spec *s = malloc(sizeof *s);
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (image_spec_parse("dir/x.json", cases[i].json, strlen(cases[i].json), s, &e) != ST_USER)
            fail_msg("%s is not refused", cases[i].json);
        if (i != 1 && (!strstr(e.text, cases[i].says) || !strstr(e.text, "dir/x.json")))
            fail_msg("%s: %s", cases[i].json, e.text);
    }
    free(s);
}

static void the_generic_type(void **state)
{
    (void)state;
    /* what a model wants that is given BGR minus a mean, rows last, in a frame */
    static const char config[] = TYPE("generic") ",\"do_flip_channel_order\":true,\"do_normalize\":true,\"image_mean\":[104,117,123],"
                                                 "\"image_std\":1,\"data_format\":\"channels_last\",\"do_pad\":true,\"pad_size\":[14,19]}";
    struct image_spec *s = malloc(sizeof *s);
    struct image plain = {0};
    struct image_scratch m = {0};
    struct err e;
    uint32_t width, height;
    static float out[14 * 19 * 3];
    assert_int_equal(image_spec_parse("c", config, sizeof config - 1, s, &e), ST_OK);
    assert_true(image_spec_fixed(s, &width, &height) && width == 19 && height == 14);
    size_t len = slurp("colour.png");
    assert_int_equal(image_decode(&usual, file, len, &plain, &e), ST_OK);
    assert_int_equal(image_prepare(s, &m, file, len, out, 14 * 19 * 3, &width, &height, &e), ST_OK);
    static const float mean[] = {104, 117, 123};
    for (uint32_t y = 0; y < 14; y++)
        for (uint32_t x = 0; x < 19; x++)
            for (uint32_t c = 0; c < 3; c++) {
                float want = x < 17 && y < 13 ? (float)plain.rgb[(y * 17 + x) * 3 + 2 - c] - mean[c] : 0;
                assert_true(out[(y * 19 + x) * 3 + c] == want);
            }
    /* one that does not fit is an error of its own */
    len = slurp("subsampled.jpg");
    assert_int_equal(image_prepare(s, &m, file, len, out, 14 * 19 * 3, &width, &height, &e), ST_USER);
    assert_string_equal(e.text, "the image of 53 x 37 pixels is larger than the 19 x 14 that it is padded to");
    image_release(&plain);
    image_scratch_release(&m);
    free(s);
}

/* A line of pixels would become a wall of them */
static void narrow_pictures(void **state)
{
    (void)state;
    static const char open_ended[] = TYPE("generic") ",\"do_resize\":true,\"size\":{\"shortest_edge\":500}}";
    static const char cropped[] = TYPE("CLIPImageProcessor") "}";
    struct image_spec *s = malloc(sizeof *s);
    struct image_scratch m = {0};
    struct err e;
    uint32_t width, height;
    float *out = malloc((size_t)3 * 224 * 224 * sizeof *out);
    assert_int_equal(image_reserve(&m.decoded, 1, 16384, &e), ST_OK);
    memset(m.decoded.rgb, 100, (size_t)3 * 16384);
    assert_int_equal(image_spec_parse("c", open_ended, sizeof open_ended - 1, s, &e), ST_OK);
    assert_int_equal(image_prepare_again(s, &m, out, (size_t)3 * 224 * 224, &width, &height, &e), ST_USER);
    assert_non_null(strstr(e.text, "would become one of 500 x 8192000"));
    assert_int_equal(image_spec_parse("c", cropped, sizeof cropped - 1, s, &e), ST_OK);
    assert_int_equal(image_prepare_again(s, &m, out, (size_t)3 * 224 * 224, &width, &height, &e), ST_OK);
    assert_true(width == 224 && height == 224);
    for (size_t i = 0; i < (size_t)3 * 224 * 224; i++)
        assert_true(out[i] == s->value[i / (224 * 224)][100]);
    image_scratch_release(&m);
    free(out);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(damaged_anywhere),
        cmocka_unit_test(beyond_limits),
        cmocka_unit_test(what_is_no_image),
        cmocka_unit_test(large_and_empty),
        cmocka_unit_test(out_of_memory_anywhere),
        cmocka_unit_test(configurations_that_are_refused),
        cmocka_unit_test(the_generic_type),
        cmocka_unit_test(narrow_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
