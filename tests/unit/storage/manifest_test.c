#include "tests/unit/storage/out_fixture.h"

#include <jansson.h>
#include <xxhash.h>

static json_t *load(struct fixture *f, struct buf *text)
{
    char path[160];
    json_error_t e;
    snprintf(path, sizeof path, f->o.is_dir ? "%s/manifest.json" : "%s.manifest.json", f->out);
    buf_clear(text);
    OK(path_read(path, 1 << 20, text, &f_err));
    json_t *m = json_loadb(text->data, text->len, 0, &e);
    if (!m)
        fail_msg("%s: %s", path, e.text);
    return m;
}

/* The file that `name` (a key of o) names has as many bytes and the digest that stand beside it. */
static void check_file(struct fixture *f, const json_t *o, const char *name, const char *bytes, const char *digest)
{
    char path[200], hex[33];
    struct buf b = {0};
    snprintf(path, sizeof path, "%s/%s", f->o.is_dir ? f->out : f->dir, json_string_value(json_object_get(o, name)));
    OK(path_read(path, 1 << 24, &b, &f_err));
    assert_int_equal(json_integer_value(json_object_get(o, bytes)), b.len);
    XXH128_canonical_t d;
    XXH128_canonicalFromHash(&d, XXH3_128bits(b.data, b.len));
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", d.digest[i]);
    assert_string_equal(json_string_value(json_object_get(o, digest)), hex);
    buf_release(&b);
}

static void it_tells_what_is_there(void **state)
{
    (void)state;
    for (int shape = 0; shape < 4; shape++) {
        struct fixture f;
        struct buf text = {0};
        size_t rows = 0, errors = 0, i;
        json_t *file;
        fixture_init(&f, "pp", 30, 4);
        fixture_spec(&f, shape < 2, shape & 1 ? OUTPUT_NPY : OUTPUT_JSONL, 200);
        OK(output_claim(&f.o, "{}", 2, &f_err));
        commit(&f, 0, f.d.end, 100, 0);
        OK(assemble(&f, 0, 300, NULL, &f_err));
        json_t *m = load(&f, &text), *files = json_object_get(json_object_get(m, "output"), "files");
        json_array_foreach(files, i, file)
        {
            rows += (size_t)json_integer_value(json_object_get(file, "rows"));
            check_file(&f, file, "name", "bytes", "xxh3_128");
            if (shape & 1)
                check_file(&f, file, "ids", "ids_bytes", "ids_xxh3_128");
        }
        assert_true(shape >= 2 || json_array_size(files) > 2);
        for (size_t k = 0; k < f.count; k++)
            errors += f.records[k].fate != GOOD;
        assert_int_equal(rows, f.count - errors);
        json_t *e = json_object_get(m, "errors");
        check_file(&f, e, "name", "bytes", "xxh3_128");
        assert_int_equal(json_integer_value(json_object_get(e, "rows")), errors);
        assert_string_equal(json_string_value(json_object_get(json_object_get(m, "model"), "name")), "mini");
        assert_string_equal(json_string_value(json_object_get(json_object_get(m, "model"), "digest")), "d1");
        assert_string_equal(json_string_value(json_object_get(m, "numerics")), "n1");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(m, "counts"), "records")), 3);
        assert_string_equal(json_string_value(json_object_get(json_object_get(m, "job"), "model")), "m");
        /* keys in a fixed order, indented by two */
        static const char *const order[] = {"{\n  \"manifest\": 1,\n", "  \"ebb\": \"0.1\"", "\"model\": {\n    \"name\"", "\"numerics\"", "\"attempt\"",
                                            "\"submitted_ms\"", "\"finished_ms\"", "\"counts\"", "\"output\"", "\"errors\": {\n", "\"job\": {\n    \"model\""};
        const char *p = buf_cstr(&text);
        for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
            const char *q = strstr(p, order[k]);
            if (!q)
                fail_msg("no %s in order in:\n%s", order[k], text.data);
            p = q;
        }
        assert_int_equal(text.data[text.len - 1], '\n');
        json_decref(m);
        buf_release(&text);
        fixture_release(&f);
    }
}

/* The same job gives the same manifest, byte for byte, also when it was named twice. */
static void it_is_stable(void **state)
{
    (void)state;
    struct fixture f;
    struct buf one = {0}, two = {0};
    fixture_init(&f, "p", 20, 8);
    fixture_spec(&f, 1, OUTPUT_JSONL, 100);
    OK(output_claim(&f.o, "{}", 2, &f_err));
    commit(&f, 0, f.d.end, 100, 0);
    OK(assemble(&f, 0, 300, NULL, &f_err));
    json_decref(load(&f, &one));
    OK(assemble(&f, 0, 300, NULL, &f_err));
    json_decref(load(&f, &two));
    assert_int_equal(one.len, two.len);
    assert_memory_equal(one.data, two.data, one.len);
    buf_release(&one);
    buf_release(&two);
    fixture_release(&f);
}

static void a_specification_that_is_no_json(void **state)
{
    (void)state;
    struct fixture f;
    struct assembly *a = NULL;
    struct err e = {0};
    struct manifest_info info = test_info;
    int more = 0;
    fixture_init(&f, "p", 3, 8);
    fixture_spec(&f, 1, OUTPUT_JSONL, 100);
    OK(output_claim(&f.o, "{}", 2, &f_err));
    commit(&f, 0, f.d.end, 1000, 0);
    OK(assembly_open(&f.o, JOB, &f.d, 0, NULL, 0, &a, &f_err));
    OK(assembly_advance(a, f.store, f.d.end, 1 << 20, &more, &f_err));
    info.spec_json = "{\"model\":";
    assert_int_equal(assembly_finish(a, &info, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "the job's specification is no JSON: "));
    assembly_close(a);
    OK(assemble(&f, 0, 300, NULL, &f_err));
    check_output(&f);
    fixture_release(&f);
}

/* What the whole world of Python reads. Without numpy here the bytes are checked by assemble_test against the format's description. */
static void numpy_reads_it(void **state)
{
    (void)state;
    if (system("python3 -c 'import numpy' 2>/dev/null") != 0) {
        print_message("skipped: python3 here has no numpy; the header is compared with its description byte by byte in assemble_test\n");
        skip();
    }
    struct fixture f;
    char command[600];
    fixture_init(&f, "p", 40, 4);
    for (size_t i = 0; i < f.count; i++)
        f.records[i].fate = GOOD;
    fixture_spec(&f, 0, OUTPUT_NPY, 0);
    OK(output_claim(&f.o, "{}", 2, &f_err));
    commit(&f, 0, f.d.end, 100, 0);
    OK(assemble(&f, 0, 300, NULL, &f_err));
    snprintf(command, sizeof command,
             "python3 -c 'import numpy,sys; a=numpy.load(sys.argv[1]); i=numpy.arange(40); "
             "assert a.shape==(40,3) and a.dtype==numpy.float32 and (a[:,0]==i).all() and (a[:,2]==-1).all()' %s",
             f.out);
    assert_int_equal(system(command), 0);
    fixture_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_tells_what_is_there),
        cmocka_unit_test(it_is_stable),
        cmocka_unit_test(a_specification_that_is_no_json),
        cmocka_unit_test(numpy_reads_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
