#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "workers/tensor_in/tensor_in.h"

#define GOLDEN "tests/golden/"

static const int64_t any[RANK_MAX] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

static enum dtype dtype_of(char kind, int64_t size)
{
    switch (kind) {
    case 'f':
        return size == 2 ? DT_F16 : size == 4 ? DT_F32 : DT_F64;
    case 'i':
        return size == 1 ? DT_I8 : size == 2 ? DT_I16 : size == 4 ? DT_I32 : DT_I64;
    case 'u':
        return size == 1 ? DT_U8 : size == 2 ? DT_U16 : size == 4 ? DT_U32 : DT_U64;
    default:
        return DT_BOOL;
    }
}

/* Elements in the array's own type: NumPy's file and NumPy's text, read by two different readers, give the same bytes */
static void golden_line(const char *line)
{
    /* the numbers as they stand: jansson has no integers beyond 63 bits */
    const char *text = strstr(line, ", \"values\": ");
    assert_non_null(text);
    char *head = strndup(line, (size_t)(text - line) + 1);
    head[text - line] = '}';
    text += strlen(", \"values\": ");
    size_t text_len = strlen(text) - 1 - (line[strlen(line) - 1] == '\n');
    json_t *c = json_loads(head, 0, NULL), *shape = json_object_get(c, "shape");
    const char *name = json_string_value(json_object_get(c, "file")), *kind = json_string_value(json_object_get(c, "kind"));
    static uint8_t file[8192];
    char path[256];
    snprintf(path, sizeof path, GOLDEN "arrays/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t len = fread(file, 1, sizeof file, f);
    fclose(f);
    struct npy n;
    struct err e = {0};
    if (npy_parse(file, len, &n, &e) != ST_OK || npy_check_size(&n, len, &e) != ST_OK)
        fail_msg("%s: %s", name, e.text);
    assert_int_equal(n.kind, kind[0]);
    assert_int_equal(n.size, json_integer_value(json_object_get(c, "size")));
    assert_int_equal(n.rank, json_array_size(shape));
    for (uint32_t i = 0; i < n.rank; i++)
        assert_int_equal(n.dims[i], json_integer_value(json_array_get(shape, i)));
    struct tensor_want w = {.name = name, .dtype = dtype_of(kind[0], n.size), .rank = n.rank, .dims = any};
    struct tensor_in a = {0}, b = {0}, r = {0};
    if (tensor_in_npy(&w, &n, 0, file + n.data_at, len - n.data_at, &a, &e) != ST_OK)
        fail_msg("%s: %s", name, e.text);
    assert_int_equal(a.count, n.count);
    if (n.count) { /* an empty list does not say how long its rows would be */
        if (tensor_in_json(&w, text, text_len, &b, &e) != ST_OK)
            fail_msg("%s: %s", name, e.text);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.dims, b.dims, n.rank * sizeof *a.dims);
        if (memcmp(a.data, b.data, n.count * n.size) != 0)
            fail_msg("%s: the numbers differ", name);
    }
    /* row by row, and a byte too few or too many */
    if (n.rank && n.count) {
        w.rank--;
        for (uint64_t i = 0; i < n.dims[0]; i++) {
            assert_int_equal(tensor_in_npy(&w, &n, 1, file + n.data_at + i * n.row_bytes, n.row_bytes, &r, &e), ST_OK);
            assert_memory_equal(r.data, (char *)a.data + i * n.row_bytes, n.row_bytes);
        }
        assert_int_equal(tensor_in_npy(&w, &n, 1, file + n.data_at, n.row_bytes - 1, &r, &e), ST_USER);
        assert_int_equal(npy_check_size(&n, len - 1, &e), ST_CORRUPT);
        assert_int_equal(npy_check_size(&n, len + 1, &e), ST_CORRUPT);
    }
    /* cut anywhere in its header, it is no array */
    for (size_t k = 0; k < n.data_at; k++) {
        uint8_t *part = malloc(k ? k : 1);
        struct npy m;
        memcpy(part, file, k);
        assert_int_equal(npy_parse(part, k, &m, &e), ST_CORRUPT);
        free(part);
    }
    tensor_in_release(&a);
    tensor_in_release(&b);
    tensor_in_release(&r);
    json_decref(c);
    free(head);
}

static void as_numpy_wrote_them(void **state)
{
    (void)state;
    char *line = NULL;
    size_t cap = 0, lines = 0;
    FILE *f = fopen(GOLDEN "arrays.jsonl", "r");
    assert_non_null(f);
    for (; getline(&line, &cap, f) > 0; lines++)
        golden_line(line);
    assert_true(lines >= 20);
    free(line);
    fclose(f);
}

static void headers_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *head, *says;
        enum status st;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }", "save numpy.ascontiguousarray(a)", ST_USER},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", "elements of type 'O' (objects of Python) are not supported", ST_USER},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", "complex numbers", ST_USER},
        {"{'descr': '<U5', 'fortran_order': False, 'shape': (3,), }", "texts", ST_USER},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (3,), }", "elements of type 'f16' are not supported", ST_USER},
        {"{'descr': '<i3', 'fortran_order': False, 'shape': (3,), }", "'i3'", ST_USER},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", "arrays of records", ST_USER},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1), }", "more than 12 axes", ST_USER},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "larger than any file", ST_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "its shape cannot be read", ST_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "its shape cannot be read", ST_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 3, }", "its shape cannot be read", ST_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': False }", "lacks type, order or shape", ST_CORRUPT},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': () }", "its order cannot be read", ST_CORRUPT},
        {"{'descr': '<f4', 'x': 1}", "unknown entry 'x'", ST_CORRUPT},
        {"hello", "its header cannot be read", ST_CORRUPT},
    };
    struct npy n;
    struct err e;
    uint8_t bytes[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len = strlen(cases[i].head);
        memcpy(bytes, "\x93NUMPY\1\0", 8);
        bytes[8] = (uint8_t)len;
        bytes[9] = 0;
        memcpy(bytes + 10, cases[i].head, len);
        if (npy_parse(bytes, 10 + len, &n, &e) != cases[i].st || !strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].head, e.text);
    }
    assert_int_equal(npy_parse("PK\3\4......", 10, &n, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "unzip it"));
    assert_int_equal(npy_parse("\x93NUMPY\4\0\2\0{}", 12, &n, &e), ST_USER);
    assert_int_equal(npy_parse("\x93NUMPY\2\0\0\0\0\x80", 12, &n, &e), ST_CORRUPT);
    assert_non_null(strstr(e.text, "longer than any array needs"));
}

static void numbers_of_json(void **state)
{
    (void)state;
    static const int64_t two_by[] = {2, -1};
    static const struct {
        enum dtype dtype;
        uint32_t rank;
        const char *json, *says; /* NULL: taken */
    } cases[] = {
        {DT_F32, 2, " [[1, 2.5e-1] ,\n[3,4]] ", NULL},
        {DT_F32, 2, "[[],[]]", NULL},
        {DT_F32, 2, "[[1,2],[3]]", "'x'[1] has fewer elements than the ones before it"},
        {DT_F32, 2, "[[1],[3,4]]", "'x'[1] has more elements than the ones before it"},
        {DT_F32, 2, "[[1],[2],[3]]", "'x' has more than the 2 elements that the model wants"},
        {DT_F32, 2, "[[1]]", "'x' has the shape [1, 1], the model wants [2, any]"},
        {DT_F32, 2, "[]", "'x' has the shape [0, 0], the model wants [2, any]"},
        {DT_F32, 2, "[[1],2]", "'x'[1] is no array, although the model's input has more axes"},
        {DT_F32, 2, "[[1],[[2]]]", "'x'[1][0] is an array, nested deeper than the model's input"},
        {DT_F32, 2, "[[1],[null]]", "'x'[1][0] is no number"},
        {DT_F32, 2, "[[1],[\"2\"]]", "'x'[1][0] is no number"},
        {DT_F32, 2, "[[1],[NaN]]", "'x'[1][0] is no number"},
        {DT_F32, 2, "[[1],[,]]", "'x'[1][0] is missing"},
        {DT_F32, 2, "[[1],[2,]]", "'x'[1] has more elements"},
        {DT_F32, 2, "[[1],[2", "'x'[1] is no array of numbers"},
        {DT_F32, 2, "[[1],[", "'x'[1][0] ends too early"},
        {DT_F32, 2, "[[1],[2]]]", "'x' has something behind its end"},
        {DT_F32, 2, "7", "'x' is no array"},
        {DT_F32, 2, "", "'x' is no array"},
        {DT_F32, 0, "7", NULL},
        {DT_F32, 0, "[7]", "'x' is an array, nested deeper than the model's input"},
        {DT_F32, 0, "1e39", "'x' is too large for the type (float32)"},
        {DT_F64, 0, "1e309", "'x' is too large for the type"},
        {DT_F16, 0, "65520", "'x' is too large for the type (float16)"},
        {DT_F16, 0, "65519", NULL},
        {DT_I8, 0, "-128", NULL},
        {DT_I8, 0, "-129", "'x' is outside of the type's range (int8)"},
        {DT_I8, 0, "128", "'x' is outside of the type's range (int8)"},
        {DT_I64, 0, "-9223372036854775808", NULL},
        {DT_I64, 0, "-9223372036854775809", "outside of the type's range"},
        {DT_U64, 0, "18446744073709551615", NULL},
        {DT_U64, 0, "18446744073709551616", "is no whole number"},
        {DT_U8, 0, "-1", "outside of the type's range (uint8)"},
        {DT_U8, 0, "-0", NULL},
        {DT_I32, 0, "1.5", "is no whole number (int32)"},
        {DT_I32, 0, "true", "is no number"},
        {DT_BOOL, 0, "true", NULL},
        {DT_BOOL, 0, "0", NULL},
        {DT_BOOL, 0, "2", "outside of the type's range (bool)"},
    };
    struct tensor_in t = {0};
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tensor_want w = {.name = "x", .dtype = cases[i].dtype, .rank = cases[i].rank, .dims = two_by};
        size_t len = strlen(cases[i].json);
        char *copy = malloc(len ? len : 1); /* without a terminator: a byte too far is noticed */
        memcpy(copy, cases[i].json, len);
        enum status st = tensor_in_json(&w, copy, len, &t, &e);
        if (cases[i].says ? st != ST_USER || !strstr(e.text, cases[i].says) || t.count : st != ST_OK)
            fail_msg("%s: %s", cases[i].json, st == ST_OK ? "taken" : e.text);
        free(copy);
    }
    tensor_in_release(&t);
}

/* Every double is read as strtod reads it, long and short, near the ends of the fast way */
static void doubles_as_strtod(void **state)
{
    (void)state;
    struct tensor_want w = {.name = "x", .dtype = DT_F64};
    struct tensor_in t = {0};
    struct err e;
    uint64_t seed = 7;
    for (int i = 0; i < 200000; i++) {
        char text[64];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t r = seed >> 11;
        switch (i % 4) {
        case 0:
            snprintf(text, sizeof text, "%s%llu.%0*llu", i & 8 ? "-" : "", (unsigned long long)(r % 1000), 1 + i % 19, (unsigned long long)(r % 7));
            break;
        case 1:
            snprintf(text, sizeof text, "%llue%d", (unsigned long long)(r & (((uint64_t)2 << 52) - 1)), (int)(r % 60) - 30);
            break;
        case 2:
            snprintf(text, sizeof text, "%.17g", (double)r * 1e-9);
            break;
        default:
            snprintf(text, sizeof text, "%llu", (unsigned long long)(seed * (1 + (uint64_t)i)));
        }
        double want = strtod(text, NULL);
        assert_int_equal(tensor_in_json(&w, text, strlen(text), &t, &e), ST_OK);
        if (memcmp(t.data, &want, sizeof want) != 0)
            fail_msg("%s", text);
    }
    tensor_in_release(&t);
}

static void types_of_npy(void **state)
{
    (void)state;
    static const uint8_t nan_first[] = {0, 0, 0xc0, 0x7f, 0, 0, 0x80, 0x3f}, large[] = {0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0};
    struct npy n = {.kind = 'f', .size = 4, .rank = 1, .dims = {2}, .count = 2, .row_bytes = 4};
    struct tensor_want w = {.name = "x", .dtype = DT_F64, .rank = 1, .dims = any};
    struct tensor_in t = {0};
    struct err e;
    assert_int_equal(tensor_in_npy(&w, &n, 0, nan_first, 8, &t, &e), ST_OK);
    assert_true(((double *)t.data)[0] != ((double *)t.data)[0] && ((double *)t.data)[1] == 1);
    w.dtype = DT_I32;
    assert_int_equal(tensor_in_npy(&w, &n, 0, nan_first, 8, &t, &e), ST_USER);
    assert_string_equal(e.text, "'x' holds floats, the model wants int32");
    w.dtype = DT_F16;
    assert_int_equal(tensor_in_npy(&w, &n, 0, large, 8, &t, &e), ST_OK); /* a NaN */
    n.kind = 'u';
    assert_int_equal(tensor_in_npy(&w, &n, 0, large, 8, &t, &e), ST_USER);
    assert_string_equal(e.text, "'x': element 0 is too large for the type (float16)");
    w.dtype = DT_I8;
    assert_int_equal(tensor_in_npy(&w, &n, 0, large, 8, &t, &e), ST_USER);
    assert_string_equal(e.text, "'x': element 0 is outside of the type's range (int8)");
    n.kind = 'i';
    assert_int_equal(tensor_in_npy(&w, &n, 0, "\x80\xff\xff\xff\x7f\0\0\0", 8, &t, &e), ST_OK);
    assert_memory_equal(t.data, "\x80\x7f", 2);
    n.kind = 'b';
    n.size = 1;
    w.dtype = DT_BOOL;
    assert_int_equal(tensor_in_npy(&w, &n, 0, "\0\7", 2, &t, &e), ST_OK);
    assert_memory_equal(t.data, "\0\1", 2);
    w.dtype = DT_F32;
    w.rank = 0;
    assert_int_equal(tensor_in_npy(&w, &n, 0, "\0\7", 2, &t, &e), ST_USER);
    assert_string_equal(e.text, "'x' has the shape [2], the model wants []");
    tensor_in_release(&t);
}

static void memory_runs_out(void **state)
{
    (void)state;
    char text[4096] = "[";
    for (size_t i = 0; i < 900; i++)
        strcat(text, i ? ",1" : "1");
    strcat(text, "]");
    struct tensor_want w = {.name = "x", .dtype = DT_F64, .rank = 1, .dims = any};
    struct err e;
    enum status st = ST_NOMEM;
    int failed = 0;
    for (uint64_t n = 1; st != ST_OK; n++, failed++) {
        struct tensor_in t = {0};
        mem_fail_nth(n);
        st = tensor_in_json(&w, text, strlen(text), &t, &e);
        mem_fail_nth(0);
        assert_true(st == ST_OK ? t.count == 900 : st == ST_NOMEM && t.count == 0);
        tensor_in_release(&t);
    }
    assert_true(failed > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_numpy_wrote_them), cmocka_unit_test(headers_that_are_refused), cmocka_unit_test(numbers_of_json),
        cmocka_unit_test(doubles_as_strtod),   cmocka_unit_test(types_of_npy),             cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
