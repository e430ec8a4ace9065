/* With vectors and without, whole and through windows: the same bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/image/resize.h"

static uint64_t state_of_random = 5;

static uint32_t rnd(uint32_t below)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state_of_random >> 33) % below);
}

static void random_picture(struct image *i, uint32_t width, uint32_t height)
{
    struct err e;
    image_release(i); /* exactly as large as it needs to be, so that a byte too far is noticed */
    assert_int_equal(image_reserve(i, width, height, &e), ST_OK);
    for (size_t k = 0; k < (size_t)3 * width * height; k++)
        i->rgb[k] = (uint8_t)(rnd(4) ? rnd(256) : rnd(2) * 255);
}

static void vectors_change_nothing(void **state)
{
    (void)state;
    struct image in = {0}, plain = {0}, fast = {0};
    struct resizer scalar = {.plain = 1}, vectors = {0};
    struct err e;
    for (int round = 0; round < 3000; round++) {
        uint32_t most = round % 10 ? 40 : 300;
        random_picture(&in, 1 + rnd(most), 1 + rnd(most));
        uint32_t width = 1 + rnd(most), height = 1 + rnd(most);
        if (rnd(8) == 0)
            width = in.width;
        if (rnd(8) == 0)
            height = in.height;
        struct window w = {.x = rnd(width), .y = rnd(height)};
        w.width = 1 + rnd(width - w.x);
        w.height = 1 + rnd(height - w.y);
        enum resample filter = (enum resample)rnd(6);
        image_release(&plain);
        image_release(&fast);
        assert_int_equal(image_resize(&scalar, &in, width, height, filter, w, &plain, &e), ST_OK);
        assert_int_equal(image_resize(&vectors, &in, width, height, filter, w, &fast, &e), ST_OK);
        assert_true(plain.width == w.width && plain.height == w.height);
        if (memcmp(plain.rgb, fast.rgb, (size_t)3 * w.width * w.height) != 0)
            fail_msg("%u x %u to %u x %u, filter %d", in.width, in.height, width, height, (int)filter);
    }
    image_release(&in);
    image_release(&plain);
    image_release(&fast);
    resizer_release(&scalar);
    resizer_release(&vectors);
}

/* One colour stays what it is, through any filter and size: weights add up to one */
static void one_colour(void **state)
{
    (void)state;
    struct image in = {0}, out = {0};
    struct resizer r = {0};
    struct err e;
    for (int round = 0; round < 600; round++) {
        random_picture(&in, 1 + rnd(200), 1 + rnd(200));
        uint8_t v = (uint8_t)rnd(256);
        memset(in.rgb, v, (size_t)3 * in.width * in.height);
        uint32_t width = 1 + rnd(200), height = 1 + rnd(200);
        assert_int_equal(image_resize(&r, &in, width, height, (enum resample)(round % 6), (struct window){0, 0, width, height}, &out, &e), ST_OK);
        for (size_t k = 0; k < (size_t)3 * width * height; k++)
            if (out.rgb[k] != v)
                fail_msg("filter %d makes %d of %d", round % 6, out.rgb[k], v);
    }
    image_release(&in);
    image_release(&out);
    resizer_release(&r);
}

static void memory_runs_out(void **state)
{
    (void)state;
    struct image in = {0};
    struct err e;
    random_picture(&in, 31, 33);
    for (int plain = 0; plain < 2; plain++) {
        enum status st = ST_NOMEM;
        uint64_t n = 1;
        for (; st != ST_OK; n++) {
            struct resizer r = {.plain = plain};
            struct image out = {0};
            mem_fail_nth(n);
            st = image_resize(&r, &in, 17, 19, RESAMPLE_BICUBIC, (struct window){0, 0, 17, 19}, &out, &e);
            mem_fail_nth(0);
            assert_true(st == ST_OK || st == ST_NOMEM);
            image_release(&out);
            resizer_release(&r);
        }
        assert_true(n > 5);
    }
    image_release(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_change_nothing),
        cmocka_unit_test(one_colour),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
