/* What Pillow and transformers made of the same pictures (tests/golden/images.py). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workers/image/prepare.h"

#define GOLDEN "tests/golden/"

static int digit(char c)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

/* Bytes of base64; the caller frees */
static uint8_t *bytes_of(const char *text, size_t *len)
{
    uint8_t *out = malloc(strlen(text) + 1);
    uint32_t held = 0, bits = 0;
    *len = 0;
    for (; *text && *text != '='; text++) {
        assert_true(digit(*text) >= 0);
        held = held << 6 | (uint32_t)digit(*text);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[(*len)++] = (uint8_t)(held >> bits);
        }
    }
    return out;
}

static uint8_t *slurp(const char *name, size_t *len)
{
    char path[256];
    snprintf(path, sizeof path, GOLDEN "images/%s", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is missing", path);
    uint8_t *data = malloc(1 << 20);
    *len = fread(data, 1, 1 << 20, f);
    fclose(f);
    return data;
}

static const char *word(const json_t *c, const char *key)
{
    return json_string_value(json_object_get(c, key));
}

static uint32_t number(const json_t *c, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(c, key));
}

/* The largest difference of a byte, the sizes having been compared */
static int compare(const struct image *got, uint32_t width, uint32_t height, const char *expected, const char *what)
{
    size_t len;
    uint8_t *want = bytes_of(expected, &len);
    if (got->width != width || got->height != height || len != (size_t)3 * width * height)
        fail_msg("%s: %u x %u instead of %u x %u", what, got->width, got->height, width, height);
    int worst = 0;
    for (size_t i = 0; i < len; i++)
        worst = abs(got->rgb[i] - want[i]) > worst ? abs(got->rgb[i] - want[i]) : worst;
    free(want);
    return worst;
}

typedef void (*case_fn)(const json_t *c);

static void each(const char *kind, size_t at_least, case_fn run)
{
    char *line = NULL;
    size_t cap = 0, cases = 0;
    FILE *f = fopen(GOLDEN "images.jsonl", "r");
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *c = json_loads(line, 0, NULL);
        assert_non_null(c);
        if (strcmp(word(c, "kind"), kind) == 0) {
            run(c);
            cases++;
        }
        json_decref(c);
    }
    free(line);
    fclose(f);
    assert_true(cases >= at_least);
}

static void decode_case(const json_t *c)
{
    const char *name = word(c, "file");
    size_t len;
    uint8_t *data = slurp(name, &len);
    struct image out = {0};
    struct err e = {0};
    for (int white = 0; white < 2; white++) {
        struct image_decode_opts o = {.limits = IMAGE_LIMITS_DEFAULT, .alpha = white ? IMAGE_ALPHA_WHITE : IMAGE_ALPHA_DROP};
        const char *want = white && word(c, "white") ? word(c, "white") : word(c, "rgb");
        if (image_decode(&o, data, len, &out, &e) != ST_OK)
            fail_msg("%s: %s", name, e.text);
        int worst = compare(&out, number(c, "width"), number(c, "height"), want, name);
        if (worst)
            fail_msg("%s%s: off by %d", name, white ? " over white" : "", worst);
    }
    image_release(&out);
    free(data);
}

static void decodes_as_pillow(void **state)
{
    (void)state;
    each("decode", 20, decode_case);
}

static void turn_case(const json_t *c)
{
    size_t len;
    uint8_t *data = slurp(word(c, "file"), &len);
    struct image out = {0};
    struct err e = {0};
    struct image_decode_opts o = {.limits = IMAGE_LIMITS_DEFAULT, .orient = 1};
    if (image_decode(&o, data, len, &out, &e) != ST_OK)
        fail_msg("%s: %s", word(c, "file"), e.text);
    assert_int_equal(compare(&out, number(c, "width"), number(c, "height"), word(c, "rgb"), word(c, "file")), 0);
    o.orient = 0;
    assert_int_equal(image_decode(&o, data, len, &out, &e), ST_OK);
    assert_int_equal(out.width, 17); /* not turned unless told */
    image_release(&out);
    free(data);
}

static void turns_as_exif_says(void **state)
{
    (void)state;
    each("turn", 10, turn_case);
}

static void random_picture(struct image *out, uint32_t width, uint32_t height)
{
    struct err e;
    uint32_t seed = width * 1000 + height;
    assert_int_equal(image_reserve(out, width, height, &e), ST_OK);
    for (size_t i = 0; i < (size_t)3 * width * height; i++) {
        seed = seed * 1664525 + 1013904223;
        out->rgb[i] = (uint8_t)(seed >> 24);
    }
}

static void resize_case(const json_t *c)
{
    const json_t *from = json_object_get(c, "from"), *to = json_object_get(c, "to");
    uint32_t side[4];
    for (size_t i = 0; i < 4; i++)
        side[i] = (uint32_t)json_integer_value(json_array_get(i < 2 ? from : to, i & 1));
    enum resample filter = (enum resample)number(c, "resample");
    struct image in = {0}, out = {0}, part = {0};
    struct resizer r = {0};
    struct err e;
    char what[96];
    snprintf(what, sizeof what, "filter %d, %u x %u to %u x %u", (int)filter, side[0], side[1], side[2], side[3]);
    random_picture(&in, side[0], side[1]);
    assert_int_equal(image_resize(&r, &in, side[2], side[3], filter, (struct window){0, 0, side[2], side[3]}, &out, &e), ST_OK);
    int worst = compare(&out, side[2], side[3], word(c, "rgb"), what);
    if (worst)
        fail_msg("%s: off by %d", what, worst);
    /* any window shows the same pixels */
    for (uint32_t i = 0; i < 6; i++) {
        struct window w = {.x = i * 7 % side[2], .y = i * 5 % side[3]};
        w.width = 1 + (i * 11) % (side[2] - w.x);
        w.height = 1 + (i * 3) % (side[3] - w.y);
        assert_int_equal(image_resize(&r, &in, side[2], side[3], filter, w, &part, &e), ST_OK);
        for (uint32_t y = 0; y < w.height; y++)
            assert_memory_equal(part.rgb + (size_t)3 * y * w.width, out.rgb + 3 * ((size_t)(y + w.y) * side[2] + w.x), (size_t)3 * w.width);
    }
    image_release(&in);
    image_release(&out);
    image_release(&part);
    resizer_release(&r);
}

static void resizes_as_pillow(void **state)
{
    (void)state;
    each("resize", 36, resize_case);
}

static void prepare_case(const json_t *c)
{
    size_t len, bytes;
    uint8_t *data = slurp(word(c, "file"), &len), *want = bytes_of(word(c, "values"), &bytes);
    char *config = json_dumps(json_object_get(c, "config"), 0);
    struct image_spec *s = malloc(sizeof *s);
    struct image_scratch m = {0};
    struct err e = {0};
    uint32_t width, height, fixed_width, fixed_height;
    if (image_spec_parse("config", config, strlen(config), s, &e) != ST_OK)
        fail_msg("%s: %s", config, e.text);
    size_t room = (size_t)3 * 1024 * 1024;
    float *out = malloc(room * sizeof *out);
    if (image_prepare(s, &m, data, len, out, room, &width, &height, &e) != ST_OK)
        fail_msg("%s: %s", config, e.text);
    if (width != number(c, "width") || height != number(c, "height"))
        fail_msg("%s, %s: %u x %u", word(c, "file"), config, width, height);
    if (image_spec_fixed(s, &fixed_width, &fixed_height))
        assert_true(fixed_width == width && fixed_height == height);
    size_t pixels = (size_t)width * height, step = number(c, "step");
    assert_int_equal(bytes / 4, (3 * pixels + step - 1) / step);
    for (size_t i = 0; i < bytes / 4; i++) {
        float v;
        memcpy(&v, want + 4 * i, 4);
        if (memcmp(&v, &out[i * step], 4) != 0)
            fail_msg("%s, %s: number %zu is %.9g, not %.9g", word(c, "file"), config, i * step, (double)out[i * step], (double)v);
    }
    /* the other layout holds the same numbers */
    float *last = malloc(3 * pixels * sizeof *last);
    s->channels_last = 1;
    assert_int_equal(image_prepare(s, &m, data, len, last, 3 * pixels - 1, &width, &height, &e), ST_AGAIN);
    assert_int_equal(image_prepare_again(s, &m, last, 3 * pixels, &width, &height, &e), ST_OK);
    for (size_t i = 0; i < pixels; i++)
        for (size_t k = 0; k < 3; k++)
            assert_memory_equal(&last[3 * i + k], &out[k * pixels + i], sizeof *out);
    free(last);
    free(out);
    free(s);
    free(config);
    free(data);
    free(want);
    image_scratch_release(&m);
}

static void prepares_as_transformers(void **state)
{
    (void)state;
    each("prepare", 50, prepare_case);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_as_pillow),
        cmocka_unit_test(turns_as_exif_says),
        cmocka_unit_test(resizes_as_pillow),
        cmocka_unit_test(prepares_as_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
