/* Whole files and rows of arrays as records: does every span get its own, whatever its ends, and is what cannot be read an error and not nothing? */
#include "tests/unit/storage/input_files.h"

#include <unistd.h>

#include "storage/dataset.h"
#include "storage/fixed.h"
#include "storage/record.h"

#define HEAD 128

/* A .npy file of `rows` rows of `row` bytes, whose bytes count up */
static struct source array(const char *dir, const char *name, size_t rows, size_t row, long more)
{
    static char bytes[100000];
    size_t len = (size_t)((long)(HEAD + rows * row) + more);
    memset(bytes, ' ', HEAD);
    memcpy(bytes, "\x93NUMPY\1\0", 8);
    bytes[8] = HEAD - 10;
    bytes[9] = 0;
    int n = snprintf(bytes + 10, HEAD - 10, "{'descr': '|u1', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, row);
    bytes[10 + n] = ' ';
    for (size_t i = 0; i < rows * row; i++)
        bytes[HEAD + i] = (char)(i * 7 + i / 251);
    return source_at(put(dir, name, bytes, len), COMPRESSION_NONE);
}

static void rows_of_any_span(void **state)
{
    struct random r = {11};
    for (int round = 0; round < 200; round++) {
        size_t rows = rnd(&r, 20), row = rnd(&r, 9);
        struct source s = array(*state, "a.npy", rows, row, 0);
        struct reader_opts o = {.format = FORMAT_NPY};
        size_t given = 0;
        uint64_t lines = 0;
        /* spans that tile the source */
        for (uint64_t from = 0, to; from < s.size_bytes; from = to) {
            to = from + 1 + rnd(&r, 60);
            if (to > s.size_bytes)
                to = s.size_bytes;
            struct reader *reader;
            struct raw raw;
            assert_ok(reader_open(&s, &o, from, &reader, e));
            struct err err;
            enum status st;
            while ((st = reader_next(reader, to, &raw, &err)) == ST_OK) {
                assert_int_equal(raw.error, RECORD_NONE);
                assert_int_equal(raw.offset, HEAD + given * row);
                assert_true(raw.offset >= from && raw.offset < to);
                assert_int_equal(raw.end, raw.offset + row);
                assert_int_equal(raw.len, row);
                for (size_t i = 0; i < row; i++)
                    assert_int_equal((uint8_t)raw.data[i], (uint8_t)((given * row + i) * 7 + (given * row + i) / 251));
                assert_int_equal(lines + raw.line, given); /* rows are counted as lines are */
                given++;
                assert_true(reader_position(reader) <= to);
            }
            assert_int_equal(st, ST_END);
            assert_int_equal(reader_position(reader), to);
            assert_int_equal(reader_at_end(reader), to == s.size_bytes);
            assert_int_equal(reader_bytes(reader), to - from);
            lines += reader_lines(reader);
            reader_close(reader);
        }
        assert_int_equal(given, row ? rows : 0);
        mem_free(s.path);
    }
}

/* The only record of a source, read as a job reads it */
static struct raw only(struct reader **r, const struct source *s, enum format format, uint64_t max)
{
    struct reader_opts o = {.format = format, .max_record_bytes = max};
    struct raw raw, none;
    struct err err;
    assert_ok(reader_open(s, &o, 0, r, e));
    assert_ok(reader_next(*r, UINT64_MAX, &raw, e));
    assert_int_equal(raw.offset, 0);
    assert_int_equal(raw.end, s->size_bytes ? s->size_bytes : 1);
    assert_int_equal(raw.line, 0);
    assert_int_equal(reader_next(*r, UINT64_MAX, &none, &err), ST_END);
    assert_true(reader_at_end(*r));
    assert_int_equal(reader_lines(*r), 0);
    /* whoever enters behind its first byte finds nothing */
    struct reader *behind;
    assert_ok(reader_open(s, &o, 1, &behind, e));
    assert_int_equal(reader_next(behind, UINT64_MAX, &none, &err), ST_END);
    reader_close(behind);
    return raw;
}

static void an_image_is_one_record(void **state)
{
    struct reader *r;
    char bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 31);
    struct source s = put_source(*state, "a.png", COMPRESSION_NONE, bytes, sizeof bytes);
    struct raw raw = only(&r, &s, FORMAT_IMAGES, 0);
    assert_int_equal(raw.error, RECORD_NONE);
    assert_int_equal(raw.len, sizeof bytes);
    assert_memory_equal(raw.data, bytes, sizeof bytes);
    /* its bytes are no text, and pass the decoder as they are */
    struct decoder *d;
    struct record record;
    struct decoder_opts o = {.format = FORMAT_IMAGES};
    assert_ok(decoder_open(&o, NULL, &d, e));
    assert_ok(decoder_run(d, &raw, &record, e));
    assert_true(record.error == RECORD_NONE && record.text_len == sizeof bytes && !record.id_json && !record.keep_len);
    decoder_close(d);
    reader_close(r);
    raw = only(&r, &s, FORMAT_IMAGES, 299);
    assert_int_equal(raw.error, RECORD_TOO_LONG);
    assert_string_equal(raw.message, "300 bytes, a record may have 299");
    assert_int_equal(raw.len, 0);
    reader_close(r);
    mem_free(s.path);
    s = put_source(*state, "empty.png", COMPRESSION_NONE, "", 0);
    raw = only(&r, &s, FORMAT_IMAGES, 0);
    assert_true(raw.error == RECORD_NONE && raw.len == 0);
    reader_close(r);
    mem_free(s.path);
    o.keep_count = 1;
    o.keep = &(const char *){"stars"};
    struct err err;
    assert_int_equal(decoder_open(&o, NULL, &d, &err), ST_USER);
    assert_string_equal(err.text, "images have no fields, so none called 'stars': leave field, id and keep out");
}

static void arrays_that_are_none(void **state)
{
    struct reader *r;
    struct source sources[] = {
        put_source(*state, "text.npy", COMPRESSION_NONE, "hello, world", 12),
        put_source(*state, "empty.npy", COMPRESSION_NONE, "", 0),
        array(*state, "short.npy", 5, 4, -1),
        array(*state, "long.npy", 5, 4, 1),
    };
    static const char *const says[] = {"no .npy file", "no .npy file", "it has 147 bytes, its header asks for 148", "it has 149 bytes, its header asks for 148"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct raw raw = only(&r, &sources[i], FORMAT_NPY, 0);
        assert_int_equal(raw.error, RECORD_DAMAGED);
        assert_string_equal(raw.message, says[i]);
        reader_close(r);
        mem_free(sources[i].path);
    }
}

static void sources_that_change(void **state)
{
    struct reader *r;
    struct raw raw;
    struct err err;
    struct source s = array(*state, "a.npy", 5, 40, 0);
    struct reader_opts o = {.format = FORMAT_NPY};
    assert_ok(reader_open(&s, &o, 0, &r, e));
    assert_ok(reader_next(r, UINT64_MAX, &raw, e));
    assert_int_equal(truncate(s.path, HEAD + 60), 0);
    assert_int_equal(reader_next(r, UINT64_MAX, &raw, &err), ST_USER);
    assert_non_null(strstr(err.text, "changed since the job was submitted"));
    reader_close(r);
    assert_int_equal(reader_open(&s, &o, 0, &r, &err), ST_USER);
    assert_int_equal(unlink(s.path), 0);
    assert_int_not_equal(reader_open(&s, &o, 0, &r, &err), ST_OK);
    assert_non_null(strstr(err.text, "cannot open"));
    mem_free(s.path);
}

static struct dataset open_all(const char *dir, enum format format, uint64_t limit)
{
    struct dataset d;
    struct dataset_spec spec = {.inputs = &dir, .input_count = 1, .format = format, .limit = limit};
    assert_ok(dataset_open(&spec, &d, e));
    return d;
}

static void folders_of_images(void **state)
{
    char *dir = path_join(*state, "photos"), *other;
    assert_int_equal(mkdir(dir, 0755), 0);
    mem_free(put(dir, "a.jpg", "\xff\xd8\xff", 3));
    mem_free(put(dir, "b.JPEG", "", 0));
    mem_free(put(dir, "c.png", "12345", 5));
    mem_free(put(dir, "d.webp", "1", 1));
    struct dataset d = open_all(dir, FORMAT_AUTO, 0);
    assert_int_equal(d.format, FORMAT_IMAGES);
    assert_int_equal(d.count, 4);
    assert_int_equal(d.end, 3 + 1 + 5 + 1); /* the empty one has a place */
    assert_false(layout_is_stream(&d.layout, 2));
    dataset_release(&d);
    d = open_all(dir, FORMAT_IMAGES, 2);
    assert_int_equal(d.end, 4);
    /* at rest and back */
    struct buf b = {0};
    int more;
    assert_ok(dataset_encode_chunk(&d, 0, &b, &more, e));
    struct dataset back = {0};
    assert_ok(dataset_decode_chunk(&back, b.data, b.len, e));
    assert_ok(dataset_finish(&back, e));
    assert_int_equal(back.format, FORMAT_IMAGES);
    assert_int_equal(layout_end(&back.layout), 10);
    dataset_release(&back);
    dataset_release(&d);
    buf_release(&b);
    /* mixed, and packed */
    other = put(dir, "notes.txt", "x", 1);
    struct err err;
    struct dataset_spec spec = {.inputs = (const char *const *)&dir, .input_count = 1};
    assert_int_equal(dataset_open(&spec, &d, &err), ST_USER);
    assert_non_null(strstr(err.text, "is images by its name and"));
    assert_int_equal(unlink(other), 0);
    mem_free(other);
    mem_free(put(dir, "e.png.gz", "x", 1));
    assert_int_equal(dataset_open(&spec, &d, &err), ST_USER);
    assert_non_null(strstr(err.text, "e.png.gz' is compressed, which is not supported for images: unpack it"));
    mem_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_of_any_span, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(an_image_is_one_record, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(arrays_that_are_none, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(sources_that_change, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(folders_of_images, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
