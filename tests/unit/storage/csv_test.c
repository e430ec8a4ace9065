/* Are rows of CSV cut where RFC 4180 says, however they come in pieces, and taken apart into the right fields? */
#include "tests/unit/storage/input_files.h"

#include "storage/csv.h"

/* The slow way: one byte at a time, as the RFC reads. Gives the offset behind each row's end. */
static size_t row_ends(const char *p, size_t len, char delimiter, size_t *ends)
{
    size_t count = 0;
    int quoted = 0, field_start = 1, closed = 0;
    for (size_t i = 0; i < len; i++) {
        char c = p[i];
        if (quoted) {
            if (c == '"' && i + 1 < len && p[i + 1] == '"')
                i++;
            else if (c == '"')
                quoted = 0, closed = 1;
            continue;
        }
        if (c == '"' && field_start && !closed) {
            quoted = 1;
            field_start = 0;
            continue;
        }
        closed = 0;
        field_start = c == delimiter || c == '\n';
        if (c == '\n')
            ends[count++] = i + 1;
    }
    return count;
}

static void random_rows_in_random_pieces(void **state)
{
    (void)state;
    struct random r = {17};
    const char alphabet[] = "a\"\"\"\n,,\t\r";
    for (int round = 0; round < 20000; round++) {
        char text[48];
        size_t len = 1 + (size_t)rnd(&r, sizeof text), ends[48];
        for (size_t i = 0; i < len; i++)
            text[i] = alphabet[rnd(&r, sizeof alphabet - 1)];
        char delimiter = rnd(&r, 2) ? ',' : '\t';
        size_t want = row_ends(text, len, delimiter, ends), got = 0;
        struct csv_scan scan = {.delimiter = delimiter};
        for (size_t at = 0; at < len;) {
            size_t piece = 1 + (size_t)rnd(&r, len - at), used;
            int found = csv_scan(&scan, text + at, piece, &used);
            at += used;
            if (!found) {
                assert_int_equal(used, piece);
                continue;
            }
            assert_true(got < want);
            assert_int_equal(at, ends[got++]);
        }
        assert_int_equal(got, want);
    }
}

static void fields(void **state)
{
    (void)state;
    const struct {
        const char *row;
        size_t count, bad;
        const char *fields[6];
    } cases[] = {
        {"a,b,c", 3, 0, {"a", "b", "c"}},
        {"", 1, 0, {""}},
        {",", 2, 0, {"", ""}},
        {"\"a,b\",\"c\nd\"", 2, 0, {"a,b", "c\nd"}},
        {"\"\"", 1, 0, {""}},
        {"\"\"\"\"", 1, 0, {"\""}},
        {"\"a\"\"b\",\"\"\"c\"\"\",d", 3, 0, {"a\"b", "\"c\"", "d"}},
        {"5\" pipe,6\"", 2, 0, {"5\" pipe", "6\""}},
        {"a, \"b\"", 2, 0, {"a", " \"b\""}},
        {"\"a\"x,b", 2, 1, {"a", "b"}},
        {"a,\"b", 2, 2, {"a", "b"}},
        {"a,\"b\"\"", 2, 2, {"a", NULL}},
        {"a,b,", 3, 0, {"a", "b", ""}},
    };
    struct csv_row row = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(csv_parse(&row, cases[i].row, strlen(cases[i].row), ',', SIZE_MAX, e));
        assert_int_equal(row.count, cases[i].count);
        assert_int_equal(row.held, cases[i].count);
        assert_int_equal(row.bad, cases[i].bad);
        for (size_t k = 0; k < row.count; k++) {
            if (!cases[i].fields[k])
                continue;
            assert_int_equal(row.fields[k].len, strlen(cases[i].fields[k]));
            assert_memory_equal(row.fields[k].data, cases[i].fields[k], row.fields[k].len);
        }
    }
    csv_release(&row);
}

static void tabs(void **state)
{
    (void)state;
    struct csv_row row = {0};
    assert_ok(csv_parse(&row, "a,b\t\"c\td\"", 9, '\t', SIZE_MAX, e));
    assert_int_equal(row.count, 2);
    assert_memory_equal(row.fields[0].data, "a,b", 3);
    assert_memory_equal(row.fields[1].data, "c\td", 3);
    csv_release(&row);
}

static void further_fields_are_counted_not_held(void **state)
{
    (void)state;
    char commas[1000];
    memset(commas, ',', sizeof commas);
    struct csv_row row = {0};
    assert_ok(csv_parse(&row, commas, sizeof commas, ',', 3, e));
    assert_int_equal(row.count, 1001);
    assert_int_equal(row.held, 3);
    assert_true(row.cap < 100);
    csv_release(&row);
}

/* What is written by the rules is read back as it was. */
static void random_fields_come_back(void **state)
{
    (void)state;
    struct random r = {4711};
    const char alphabet[] = "ab\",\n\r\t x";
    struct csv_row row = {0};
    for (int round = 0; round < 5000; round++) {
        char field[8][12], line[8 * 28];
        size_t len[8], count = 1 + (size_t)rnd(&r, 8), at = 0;
        for (size_t k = 0; k < count; k++) {
            len[k] = (size_t)rnd(&r, 12);
            int quote = 0;
            for (size_t i = 0; i < len[k]; i++) {
                field[k][i] = alphabet[rnd(&r, sizeof alphabet - 1)];
                quote |= strchr("\",\n\r", field[k][i]) != NULL;
            }
            if (k)
                line[at++] = ',';
            quote |= rnd(&r, 2) != 0;
            if (quote)
                line[at++] = '"';
            for (size_t i = 0; i < len[k]; i++) {
                line[at++] = field[k][i];
                if (field[k][i] == '"')
                    line[at++] = '"';
            }
            if (quote)
                line[at++] = '"';
        }
        assert_ok(csv_parse(&row, line, at, ',', SIZE_MAX, e));
        assert_int_equal(row.count, count);
        assert_int_equal(row.bad, 0);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(row.fields[k].len, len[k]);
            assert_memory_equal(row.fields[k].data, field[k], len[k]);
        }
        line[at++] = '\n';
        struct csv_scan scan = {.delimiter = ','};
        size_t used;
        assert_int_equal(csv_scan(&scan, line, at, &used), 1);
        assert_int_equal(used, at);
    }
    csv_release(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_in_random_pieces), cmocka_unit_test(fields), cmocka_unit_test(tabs),
        cmocka_unit_test(further_fields_are_counted_not_held), cmocka_unit_test(random_fields_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
