/* Records of every format become what a model's named inputs want, or an error that says why not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"
#include "workers/image/prepare.h"
#include "workers/tensor_in/feed.h"

#define VIT "{\"image_processor_type\":\"ViTImageProcessor\",\"size\":{\"height\":5,\"width\":6}}"

static struct image_spec *spec_of(const char *json)
{
    struct image_spec *s = malloc(sizeof *s);
    struct err e;
    assert_int_equal(image_spec_parse("preprocessor_config.json", json, strlen(json), s, &e), ST_OK);
    return s;
}

struct setup {
    struct feed *feed;
    struct feed_scratch *scratch;
};

static struct setup open_feed(const struct port *in, uint32_t n, const struct feed_opts *o)
{
    struct setup s;
    struct err e = {0};
    if (feed_new(in, n, o, &s.feed, &e) != ST_OK)
        fail_msg("%s", e.text);
    assert_int_equal(feed_scratch_new(s.feed, &s.scratch, &e), ST_OK);
    return s;
}

static void close_feed(struct setup *s)
{
    feed_scratch_free(s->scratch);
    feed_free(s->feed);
}

static void refuse(const struct port *in, uint32_t n, const struct feed_opts *o, const char *says)
{
    struct feed *f;
    struct err e = {0};
    if (feed_new(in, n, o, &f, &e) != ST_USER || !strstr(e.text, says))
        fail_msg("%s", e.text);
}

static struct array *run(struct setup *s, const struct feed_record *r)
{
    struct array *a;
    size_t bytes;
    enum record_error what;
    struct err e = {0};
    if (feed_run(s->feed, s->scratch, r, &a, &bytes, &what, &e) != ST_OK)
        fail_msg("%.*s: %s", (int)r->len, r->data, e.text);
    assert_int_equal(what, RECORD_NONE);
    return a;
}

static void fault(struct setup *s, const struct feed_record *r, enum record_error want, const char *says)
{
    struct array *a;
    size_t bytes;
    enum record_error what;
    struct err e = {0};
    if (feed_run(s->feed, s->scratch, r, &a, &bytes, &what, &e) != ST_USER || what != want || !strstr(e.text, says))
        fail_msg("%s: %s", record_error_code(what), e.text);
}

static char *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    char *data = malloc(1 << 16);
    assert_non_null(f);
    *len = fread(data, 1, 1 << 16, f);
    fclose(f);
    return data;
}

static void pictures(void **state)
{
    (void)state;
    struct image_spec *spec = spec_of(VIT);
    struct feed_opts o = {.format = FORMAT_IMAGES, .images = spec};
    struct port in = {.name = "pixel_values", .dtype = DT_F32, .rank = 3, .dims = {3, 5, 6}};
    struct setup s = open_feed(&in, 1, &o);
    assert_string_equal(feed_words(s.feed), "each file -> 'pixel_values' [3, 5, 6]");
    assert_int_equal(feed_bytes(s.feed), sizeof(struct array) + 90 * sizeof(float));
    size_t len;
    char *data = slurp("tests/golden/images/colour.png", &len);
    struct array *a = run(&s, &(struct feed_record){.data = data, .len = len});
    assert_true(a->dtype == DT_F32 && a->rank == 3 && a->dims[0] == 3 && a->dims[1] == 5 && a->dims[2] == 6);
    /* the same numbers, by the library itself */
    static float want[90];
    struct image_scratch m = {0};
    uint32_t width, height;
    struct err e;
    assert_int_equal(image_prepare(spec, &m, data, len, want, 90, &width, &height, &e), ST_OK);
    assert_memory_equal(a->data, want, sizeof want);
    mem_free(a);
    fault(&s, &(struct feed_record){.data = "hello", .len = 5}, RECORD_BAD_IMAGE, "no JPEG, PNG or WebP image");
    fault(&s, &(struct feed_record){.data = "", .len = 0}, RECORD_BAD_IMAGE, "there are no bytes");
    close_feed(&s);
    /* rows last, with a batch of one */
    in = (struct port){.name = "x", .dtype = DT_F32, .rank = 4, .dims = {1, -1, -1, 3}};
    s = open_feed(&in, 1, &o);
    a = run(&s, &(struct feed_record){.data = data, .len = len});
    assert_true(a->rank == 4 && a->dims[0] == 1 && a->dims[1] == 5 && a->dims[2] == 6 && a->dims[3] == 3);
    for (size_t i = 0; i < 30; i++)
        for (size_t c = 0; c < 3; c++)
            assert_memory_equal((const float *)a->data + 3 * i + c, &want[30 * c + i], 4);
    mem_free(a);
    close_feed(&s);
    /* a record of JSON that names a file beside it, or holds it */
    struct source source = {.path = "tests/golden/images/list.jsonl"};
    in = (struct port){.name = "pixel_values", .dtype = DT_F32, .rank = 3, .dims = {-1, -1, -1}};
    o.format = FORMAT_JSONL;
    s = open_feed(&in, 1, &o);
    assert_string_equal(feed_words(s.feed), "the member 'image' -> 'pixel_values' [any, any, any]");
#define LINE(text) (&(struct feed_record){.data = text, .len = sizeof text - 1, .source = &source})
    a = run(&s, LINE("{\"id\":1,\"image\":\"colour.png\"}"));
    assert_memory_equal(a->data, want, sizeof want);
    mem_free(a);
    a = run(&s, LINE("{\"pixel_values\":[[[1]],[[2]],[[3]]]}"));
    assert_memory_equal(a->data, ((float[]){1, 2, 3}), 12);
    mem_free(a);
    fault(&s, LINE("{\"image\":\"../golden/x.png\"}"), RECORD_BAD_IMAGE, "leads out of");
    fault(&s, LINE("{\"image\":\"none.png\"}"), RECORD_BAD_IMAGE, "cannot open 'none.png'");
    fault(&s, LINE("{\"image\":\"data:image/png;base64,aGVsbG8=\"}"), RECORD_BAD_IMAGE, "no JPEG, PNG or WebP");
    fault(&s, LINE("{\"picture\":\"colour.png\"}"), RECORD_MISSING_FIELD, "there is no 'image', a path or base64");
    fault(&s, LINE("{\"image\":7}"), RECORD_MISSING_FIELD, "there is no 'pixel_values'");
    close_feed(&s);
    image_scratch_release(&m);
    free(data);
    free(spec);
}

static void pictures_that_do_not_go_with_the_model(void **state)
{
    (void)state;
    struct image_spec *spec = spec_of(VIT), *open_ended = spec_of("{\"image_processor_type\":\"ConvNextImageProcessor\",\"do_resize\":false}");
    struct feed_opts o = {.format = FORMAT_IMAGES, .images = spec};
    struct port in[2] = {{.name = "a", .dtype = DT_F32, .rank = 3, .dims = {3, 6, 5}}, {.name = "b", .dtype = DT_F32, .rank = 0}};
    refuse(in, 1, &o, "the model's input 'a' [3, 6, 5] does not go with its preprocessor_config.json (ViTImageProcessor), which makes pictures of height 5 and width 6");
    refuse(in, 2, &o, "the model has 2 inputs, pictures can only be given to a model with one");
    refuse(in, 0, &o, "the model has no inputs");
    in[0].dims[0] = 1;
    refuse(in, 1, &o, "is not one of pictures with three channels");
    in[0].dims[0] = 3;
    in[0].dtype = DT_U8;
    refuse(in, 1, &o, "is of type uint8, pictures become float32");
    in[0].dtype = DT_F32;
    o.images = open_ended;
    refuse(in, 1, &o, "wants pictures of one size");
    o.images = NULL;
    refuse(in, 1, &o, "the model has no preprocessor_config.json");
    o.format = FORMAT_LINES;
    refuse(in, 1, &o, "plain lines have none");
    o.format = FORMAT_NPY;
    refuse(in, 2, &o, "an array can only be given to a model with one");
    in[0].dtype = DT_STR;
    o.format = FORMAT_JSONL;
    refuse(in, 1, &o, "wants texts, which only CSV gives");
    free(spec);
    free(open_ended);
}

static void members_of_json(void **state)
{
    (void)state;
    static const struct port in[] = {{.name = "a", .dtype = DT_F32, .rank = 2, .dims = {2, -1}},
                                     {.name = "b\"c", .dtype = DT_I64, .rank = 0},
                                     {.name = "any", .dtype = DT_BOOL, .rank = -1}};
    struct feed_opts o = {.format = FORMAT_JSONL};
    struct setup s = open_feed(in, 3, &o);
    struct source source = {.path = "/x"};
    struct array *a = run(&s, LINE("{\"any\":[[[true],[false]]],\"a\":[[9]],\"b\\\"c\":-7,\"a\":[[1,2,3],[4,5,6]]}"));
    assert_true(a[0].rank == 2 && a[0].dims[0] == 2 && a[0].dims[1] == 3 && ((const float *)a[0].data)[5] == 6);
    assert_true(a[1].rank == 0 && *(const int64_t *)a[1].data == -7);
    assert_true(a[2].rank == 3 && a[2].dims[1] == 2 && ((const uint8_t *)a[2].data)[0] == 1 && ((const uint8_t *)a[2].data)[1] == 0);
    mem_free(a);
    fault(&s, LINE("{\"a\":[[1],[2]],\"any\":1}"), RECORD_MISSING_FIELD, "there is no 'b\"c', an array for the model's input of that name");
    fault(&s, LINE("{\"a\":[[1],[2,3]],\"b\\\"c\":1,\"any\":1}"), RECORD_WRONG_SHAPE, "'a'[1] has more elements than the ones before it");
    fault(&s, LINE("{\"a\":[[1],[2]],\"b\\\"c\":1.5,\"any\":1}"), RECORD_WRONG_SHAPE, "'b\"c' is no whole number");
    fault(&s, LINE("{\"a\":"), RECORD_INVALID_JSON, "no JSON object");
    close_feed(&s);
    o.field = "vector";
    s = open_feed(in, 1, &o);
    a = run(&s, LINE("{\"vector\":[[1],[2]]}"));
    assert_true(a[0].dims[1] == 1);
    mem_free(a);
    close_feed(&s);
}

static void rows_of_arrays(void **state)
{
    (void)state;
    static const struct port in = {.name = "x", .dtype = DT_F32, .rank = 2, .dims = {2, 2}}, any = {.name = "x", .dtype = DT_F64, .rank = -1};
    struct npy n = {.kind = 'i', .size = 2, .rank = 3, .dims = {9, 2, 2}, .count = 36, .row_bytes = 8};
    struct feed_opts o = {.format = FORMAT_NPY};
    struct feed_record r = {.data = "\1\0\2\0\3\0\xff\xff", .len = 8, .npy = &n};
    struct setup s = open_feed(&in, 1, &o);
    struct array *a = run(&s, &r);
    assert_memory_equal(a->data, ((float[]){1, 2, 3, -1}), 16);
    mem_free(a);
    close_feed(&s);
    s = open_feed(&any, 1, &o);
    a = run(&s, &r);
    assert_true(a->rank == 2 && ((const double *)a->data)[3] == -1);
    mem_free(a);
    n.rank = 2;
    n.dims[1] = 4;
    a = run(&s, &r);
    assert_true(a->rank == 1 && a->dims[0] == 4);
    mem_free(a);
    close_feed(&s);
    s = open_feed(&in, 1, &o);
    fault(&s, &r, RECORD_WRONG_SHAPE, "'x' has the shape [4], the model wants [2, 2]");
    close_feed(&s);
}

static void tables(void **state)
{
    (void)state;
    static char *names[] = {"id", "age", "city", "height"};
    static const char *const keep[] = {"city"};
    struct columns columns = {names, 4};
#define ROW(text) (&(struct feed_record){.data = text, .len = sizeof text - 1, .columns = &columns})
    static const struct port each[] = {{.name = "height", .dtype = DT_F64, .rank = 1, .dims = {1}},
                                       {.name = "city", .dtype = DT_STR, .rank = 1, .dims = {1}},
                                       {.name = "age", .dtype = DT_I32, .rank = 0}};
    static const struct port vector = {.name = "float_input", .dtype = DT_F32, .rank = 1, .dims = {2}};
    struct feed_opts o = {.format = FORMAT_CSV, .keep = keep, .keep_count = 1};
    struct setup s = open_feed(each, 3, &o);
    struct array *a = run(&s, ROW("a,41,\"Sao \"\"Paulo\"\"\", +1.75 "));
    assert_true(*(const double *)a[0].data == 1.75 && *(const int32_t *)a[2].data == 41 && a[2].rank == 0);
    const struct str *text = a[1].data;
    assert_int_equal(text->len, 11);
    assert_memory_equal(text->data, "Sao \"Paulo\"", 11);
    mem_free(a);
    fault(&s, ROW("a,4.5,b,1"), RECORD_WRONG_TYPE, "'age' is no whole number");
    fault(&s, ROW("a,,b,1"), RECORD_WRONG_TYPE, "'age' ends too early");
    fault(&s, ROW("a,1,b,tall"), RECORD_WRONG_TYPE, "'height' is no number");
    fault(&s, ROW("a,1,b"), RECORD_WRONG_COLUMNS, "3 columns, the header has 4");
    close_feed(&s);
    s = open_feed(&vector, 1, &o);
    a = run(&s, ROW("a,41,x,1.75"));
    assert_true(a->rank == 1 && a->dims[0] == 2);
    assert_memory_equal(a->data, ((float[]){41, 1.75}), 8);
    mem_free(a);
    close_feed(&s);
    o.keep_count = 0;
    s = open_feed(&vector, 1, &o);
    fault(&s, ROW("a,41,7,1.75"), RECORD_WRONG_SHAPE, "3 columns, the model's input 'float_input' wants 2");
    close_feed(&s);
}

static void memory_runs_out(void **state)
{
    (void)state;
    struct image_spec *spec = spec_of(VIT);
    struct source source = {.path = "tests/golden/images/list.jsonl"};
    struct feed_opts o = {.format = FORMAT_JSONL, .images = spec};
    struct port in = {.name = "x", .dtype = DT_F32, .rank = 3, .dims = {3, -1, -1}};
    enum status st = ST_NOMEM;
    int failed = -1;
    for (uint64_t n = 1; st != ST_OK; n++, failed++) {
        struct feed *f = NULL;
        struct feed_scratch *m = NULL;
        struct array *a = NULL;
        size_t bytes;
        enum record_error what;
        struct err e;
        mem_fail_nth(n);
        st = feed_new(&in, 1, &o, &f, &e);
        if (st == ST_OK)
            st = feed_scratch_new(f, &m, &e);
        if (st == ST_OK)
            st = feed_run(f, m, LINE("{\"image\":\"subsampled.jpg\"}"), &a, &bytes, &what, &e);
        mem_fail_nth(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
        mem_free(a);
        feed_scratch_free(m);
        feed_free(f);
    }
    assert_true(failed > 10);
    free(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures),       cmocka_unit_test(pictures_that_do_not_go_with_the_model),
        cmocka_unit_test(members_of_json), cmocka_unit_test(rows_of_arrays),
        cmocka_unit_test(tables),          cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
