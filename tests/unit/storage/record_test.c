/* Does each record become the text, id and kept fields that it holds, and each bad one an error that says what is wrong? */
#include "tests/unit/storage/input_files.h"

#include <jansson.h>
#include <time.h>

#include "storage/record.h"

static const char *const keep_two[] = {"stars", "la\"ng"};

static struct decoder *open_decoder(enum format format, const char *field, const char *id, const char *const *keep, size_t keep_count,
                                    const struct columns *columns)
{
    struct decoder_opts o = {.format = format, .field = field, .id = id, .keep = keep, .keep_count = keep_count};
    struct decoder *d;
    assert_ok(decoder_open(&o, columns, &d, e));
    return d;
}

static struct record run(struct decoder *d, const char *data, size_t len)
{
    struct raw raw = {.data = data, .len = len};
    struct record out;
    assert_ok(decoder_run(d, &raw, &out, e));
    return out;
}

static void assert_slice(const char *got, size_t len, const char *want)
{
    if (!want) {
        assert_null(got);
        return;
    }
    assert_non_null(got);
    if (len != strlen(want) || memcmp(got, want, len))
        fail_msg("'%.*s' is not '%s'", (int)len, got, want);
}

struct good {
    const char *data, *text, *id, *keep;
};

struct bad {
    const char *data;
    enum record_error error;
    const char *message, *id;
};

static void check_good(struct decoder *d, const struct good *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct record r = run(d, cases[i].data, strlen(cases[i].data));
        if (r.error != RECORD_NONE)
            fail_msg("%s: %s", cases[i].data, r.message);
        assert_slice(r.text, r.text_len, cases[i].text);
        assert_slice(r.id_json, r.id_len, cases[i].id);
        assert_slice(r.keep_json, r.keep_len, cases[i].keep);
    }
}

static void check_bad(struct decoder *d, const struct bad *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct record r = run(d, cases[i].data, strlen(cases[i].data));
        if (r.error != cases[i].error || strcmp(r.message, cases[i].message))
            fail_msg("%s: %s: %s", cases[i].data, record_error_code(r.error), r.message);
        assert_null(r.text);
        assert_slice(r.id_json, r.id_len, cases[i].id);
    }
}
#define GOOD(d, cases) check_good(d, cases, sizeof cases / sizeof *cases)
#define BAD(d, cases) check_bad(d, cases, sizeof cases / sizeof *cases)

static void json_good(void **state)
{
    (void)state;
    const struct good cases[] = {
        {"{\"id\":1,\"text\":\"a\"}", "a", "1", ",\"stars\":null,\"la\\\"ng\":null"},
        {" { \"text\" : \"\\u00e9\\n\\ud83d\\ude00\" , \"id\" : \"x\\ny\" , \"stars\" : 0.10 } ", "\xc3\xa9\n\xf0\x9f\x98\x80", "\"x\\ny\"",
         ",\"stars\":0.10,\"la\\\"ng\":null"},
        {"{\"text\":\"\",\"custom_id\":\"c\",\"la\\\"ng\":{\"a\":[1,{\"b\":\"}\\\"\"}]},\"stars\":[ ]}", "", "\"c\"",
         ",\"stars\":[ ],\"la\\\"ng\":{\"a\":[1,{\"b\":\"}\\\"\"}]}"},
        {"{\"id\":1.50e3,\"text\":\"a\",\"stars\":true}", "a", "1.50e3", ",\"stars\":true,\"la\\\"ng\":null"},
        {"{\"text\":\"a\",\"id\":-18446744073709551616}", "a", "-18446744073709551616", NULL},
        {"{\"text\":\"a\",\"id\":123456789012345678901234567890,\"x\":[\"1e999\",1e999]}", "a", "123456789012345678901234567890", NULL},
        {"{\"id\":null,\"text\":\"a\"}", "a", NULL, NULL},
        {"{\"id\":[1],\"text\":\"a\"}", "a", NULL, NULL},
        {"{\"text\":\"a\",\"text\":\"b\",\"id\":1,\"id\":2}", "b", "2", NULL},
        {"{\"te\\u0078t\":\"a\",\"\\u0069d\":7,\"st\\u0061rs\":5}", "a", "7", ",\"stars\":5,\"la\\\"ng\":null"},
        {"{\"content\":\"a\",\"title\":\"b\"}", "a", NULL, NULL},
        {"{\"id\":\"1\",\"body\":\"a\",\"n\":3}", "a", "\"1\"", NULL},
        {"{\"text\":\"\xe2\x80\xa8\"}", "\xe2\x80\xa8", NULL, NULL},
    };
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, keep_two, 2, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct record r = run(d, cases[i].data, strlen(cases[i].data));
        if (r.error != RECORD_NONE)
            fail_msg("%s: %s", cases[i].data, r.message);
        assert_slice(r.text, r.text_len, cases[i].text);
        assert_slice(r.id_json, r.id_len, cases[i].id);
        if (cases[i].keep)
            assert_slice(r.keep_json, r.keep_len, cases[i].keep);
    }
    decoder_close(d);
    const struct good named[] = {
        {"{\"a b\":\"x\",\"text\":\"y\",\"id\":3,\"key\":\"k\"}", "x", "\"k\"", ""},
        {"{\"a b\":\"x\",\"text\":\"y\",\"id\":3}", "x", NULL, ""},
    };
    d = open_decoder(FORMAT_JSONL, "a b", "key", NULL, 0, NULL);
    GOOD(d, named);
    decoder_close(d);
}

static void json_bad(void **state)
{
    (void)state;
    const struct bad cases[] = {
        {"{\"id\":1,\"text\" \"a\"}", RECORD_INVALID_JSON, "not valid JSON: ':' expected, near column 18", NULL},
        {"{\"text\":\"a\"", RECORD_INVALID_JSON, "not valid JSON: '}' expected, near column 11", NULL},
        {"{\"text\":\"a\"} x", RECORD_INVALID_JSON, "not valid JSON: end of file expected, near column 14", NULL},
        {"{\"text\":\"a\",}", RECORD_INVALID_JSON, "not valid JSON: string or '}' expected, near column 13", NULL},
        {"{\"text\":NaN}", RECORD_INVALID_JSON, "not valid JSON: invalid token, near column 11", NULL},
        {"{\"text\":'a'}", RECORD_INVALID_JSON, "not valid JSON: invalid token, near column 9", NULL},
        {"{\"text\":\"\\ud800\"}", RECORD_INVALID_JSON, "not valid JSON: invalid Unicode '\\uD800', near column 16", NULL},
        {"{\"a\\u0000\":1}", RECORD_MISSING_FIELD, "no field 'text' (fields: a)", NULL},
        {"{\"text\":\"ab\xff\"}", RECORD_INVALID_UTF8, "byte 12 of the record is not valid UTF-8", NULL},
        {"{\"text\":\"\xed\xa0\x80\"}", RECORD_INVALID_UTF8, "byte 10 of the record is not valid UTF-8", NULL},
        {"17", RECORD_NOT_OBJECT, "a number, where an object like {\"text\": ...} should stand", NULL},
        {"[{\"text\":\"a\"}]", RECORD_NOT_OBJECT, "an array, where an object like {\"text\": ...} should stand", NULL},
        {"\"a\"", RECORD_NOT_OBJECT, "a string, where an object like {\"text\": ...} should stand", NULL},
        {"{}", RECORD_MISSING_FIELD, "no field 'text': the object is empty", NULL},
        {"{\"id\":7,\"title\":\"a\",\"body\":\"b\"}", RECORD_MISSING_FIELD, "no field 'text' (fields: id, title, body)", "7"},
        {"{\"id\":7,\"text\":5}", RECORD_WRONG_TYPE, "field 'text' is a number, not a string", "7"},
        {"{\"text\":null}", RECORD_WRONG_TYPE, "field 'text' is null, not a string", NULL},
        {"{\"text\":[\"a\"],\"content\":\"b\"}", RECORD_WRONG_TYPE, "field 'text' is an array, not a string", NULL},
        {"{\"id\":1,\"x\":99999999999999999999,\"text\" \"a\"}", RECORD_INVALID_JSON, "not valid JSON: ':' expected, near column 43", NULL},
        {"{\"id\":1,\"x\":099999999999999999999}", RECORD_INVALID_JSON, "not valid JSON: invalid token, near column 13", NULL},
    };
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, keep_two, 2, NULL);
    BAD(d, cases);
    decoder_close(d);
    const struct bad named[] = {
        {"{\"id\":7,\"text\":\"a\"}", RECORD_MISSING_FIELD, "no field 'body' (fields: id, text)", "7"},
    };
    d = open_decoder(FORMAT_JSONL, "body", NULL, NULL, 0, NULL);
    BAD(d, named);
    decoder_close(d);
}

static void json_nul_in_text(void **state)
{
    (void)state;
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, NULL, 0, NULL);
    struct record r = run(d, "{\"text\":\"a\\u0000b\"}", 19);
    assert_int_equal(r.error, RECORD_NONE);
    assert_int_equal(r.text_len, 3);
    assert_memory_equal(r.text, "a\0b", 3);
    r = run(d, "{\"text\":\"a\0b\"}", 14);
    assert_int_equal(r.error, RECORD_INVALID_JSON);
    r = run(d, "{\"text\":null\0}", 14);
    assert_int_equal(r.error, RECORD_INVALID_JSON);
    assert_string_equal(r.message, "not valid JSON: a NUL byte, near column 13");
    decoder_close(d);
}

static void json_bombs(void **state)
{
    (void)state;
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, keep_two, 2, NULL);
    struct buf b = {0};
    for (int i = 0; i < 1000000; i++)
        assert_int_equal(buf_char(&b, '['), 0);
    struct record r = run(d, b.data, b.len);
    assert_int_equal(r.error, RECORD_INVALID_JSON);
    assert_non_null(strstr(r.message, "nested too deep"));
    /* many fields with long names: the message stays short, and says that there is more */
    b.len = 0;
    assert_int_equal(buf_str(&b, "{\"x\":1"), 0);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(buf_printf(&b, ",\"a rather long name of a field \xc3\xa9\\u0007 %d\":1", i), 0);
    assert_int_equal(buf_char(&b, '}'), 0);
    r = run(d, b.data, b.len);
    assert_int_equal(r.error, RECORD_MISSING_FIELD);
    assert_non_null(strstr(r.message, "..."));
    for (const char *p = r.message; *p; p++)
        assert_true((unsigned char)*p >= 0x20);
    /* a hundred thousand numbers that no integer holds */
    b.len = 0;
    assert_int_equal(buf_str(&b, "{\"text\":\"t\",\"stars\":[0"), 0);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(buf_str(&b, ",99999999999999999999"), 0);
    assert_int_equal(buf_str(&b, "]}"), 0);
    clock_t begin = clock();
    r = run(d, b.data, b.len);
    assert_int_equal(r.error, RECORD_NONE);
    assert_int_equal(r.keep_len, b.len - strlen("{\"text\":\"t\",\"stars\":}") + strlen(",\"stars\":,\"la\\\"ng\":null"));
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 5); /* quadratic would be minutes */
    buf_release(&b);
    decoder_close(d);
}

/* Random objects, written by jansson: what is cut out of them is JSON that means the same. */
static json_t *random_value(struct random *r, int depth)
{
    switch (rnd(r, depth ? 7 : 5)) {
    case 0: return json_integer((json_int_t)rnd(r, UINT64_MAX));
    case 1: return json_real((double)rnd(r, 1000000) / 64);
    case 2: return json_boolean(rnd(r, 2));
    case 3: return json_null();
    case 4: {
        char s[12];
        size_t len = (size_t)rnd(r, sizeof s);
        for (size_t i = 0; i < len; i++)
            s[i] = "ab\"\\{}[],: \n"[rnd(r, 12)];
        return json_stringn(s, len);
    }
    case 5: {
        json_t *a = json_array();
        for (uint64_t n = rnd(r, 4); n-- > 0;)
            json_array_append_new(a, random_value(r, depth - 1));
        return a;
    }
    default: {
        json_t *o = json_object();
        for (uint64_t n = rnd(r, 4); n-- > 0;) {
            char key[3] = {"\"\\abi{"[rnd(r, 6)], "d:}\"x"[rnd(r, 5)], 0};
            json_object_set_new(o, key, random_value(r, depth - 1));
        }
        return o;
    }
    }
}

static void random_objects(void **state)
{
    (void)state;
    struct random r = {99};
    const char *const keep[] = {"ad", "id", "\\:", "\"\""};
    struct decoder *d = open_decoder(FORMAT_JSONL, "text", NULL, keep, 4, NULL);
    for (int round = 0; round < 3000; round++) {
        json_t *o = json_object();
        for (uint64_t n = rnd(&r, 5); n-- > 0;) {
            char key[3] = {"\"\\abi{"[rnd(&r, 6)], "d:}\"x"[rnd(&r, 5)], 0};
            json_object_set_new(o, key, random_value(&r, 3));
        }
        json_object_set_new(o, "text", json_string("t"));
        char *line = json_dumps(o, rnd(&r, 2) ? JSON_COMPACT : JSON_ENSURE_ASCII);
        struct record out = run(d, line, strlen(line));
        assert_int_equal(out.error, RECORD_NONE);
        char *kept = mem_printf("{\"x\":0%.*s}", (int)out.keep_len, out.keep_json);
        json_t *back = json_loads(kept, 0, NULL);
        assert_non_null(back);
        for (size_t i = 0; i < 4; i++) {
            json_t *want = json_object_get(o, keep[i]), *got = json_object_get(back, keep[i]);
            assert_true(want ? json_equal(want, got) : json_is_null(got));
        }
        json_t *id = json_object_get(o, "id");
        assert_int_equal(out.id_json != NULL, json_is_string(id) || json_is_number(id));
        if (out.id_json) {
            json_t *same = json_loadb(out.id_json, out.id_len, JSON_DECODE_ANY, NULL);
            assert_true(json_equal(same, id));
            json_decref(same);
        }
        json_decref(back);
        json_decref(o);
        mem_free(kept);
        free(line);
    }
    decoder_close(d);
}

/* However a record is bent, decoding it ends and touches nothing else (the sanitizers' run tells). */
static void bent_objects(void **state)
{
    (void)state;
    struct random r = {100};
    const char *seed = "{\"id\":12345678901234567890,\"text\":\"\\u00e9\\\\\\\"\",\"stars\":[1e400,{\"a\":\"}\"}],\"la\\\"ng\":-0.5}";
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, keep_two, 2, NULL);
    unsigned good = 0, bad = 0;
    for (int round = 0; round < 20000; round++) {
        size_t len = strlen(seed);
        char *line = mem_alloc(len); /* no NUL behind it: reading on would be seen */
        memcpy(line, seed, len);
        for (uint64_t n = rnd(&r, 3); n-- > 0;)
            line[rnd(&r, len)] = "{}[]\":,\\0e-\xff \t"[rnd(&r, 14)];
        size_t cut = rnd(&r, 4) ? len : (size_t)rnd(&r, len);
        char *exact = mem_alloc(cut);
        memcpy(exact, line, cut);
        struct record out = run(d, exact, cut);
        good += out.error == RECORD_NONE;
        bad += out.error != RECORD_NONE;
        mem_free(exact);
        mem_free(line);
    }
    assert_true(good > 1000 && bad > 1000);
    decoder_close(d);
}

static void csv_good_and_bad(void **state)
{
    (void)state;
    char *names[] = {(char[]){"id"}, (char[]){"text"}, (char[]){"stars"}, (char[]){"la\"ng"}};
    struct columns c = {names, 4};
    struct decoder *d = open_decoder(FORMAT_CSV, NULL, NULL, keep_two, 2, &c);
    const struct good good[] = {
        {"17,hello,5,de", "hello", "\"17\"", ",\"stars\":\"5\",\"la\\\"ng\":\"de\""},
        {"\"a\"\"b\",\"x,\ny\",\"\t\x01\\\",\xe2\x80\xa8\x7f", "x,\ny", "\"a\\\"b\"",
         ",\"stars\":\"\\t\\u0001\\\\\",\"la\\\"ng\":\"\xe2\x80\xa8\x7f\""},
        {",,,", "", NULL, ",\"stars\":\"\",\"la\\\"ng\":\"\""},
    };
    GOOD(d, good);
    const struct bad bad[] = {
        {"1,a,5", RECORD_WRONG_COLUMNS, "3 columns where the header has 4: 'la\"ng' is missing", "\"1\""},
        {"1", RECORD_WRONG_COLUMNS, "1 column where the header has 4: 'text', 'stars', 'la\"ng' are missing", "\"1\""},
        {"1,a,5,de,x,y", RECORD_WRONG_COLUMNS, "6 columns where the header has 4", "\"1\""},
        {"1,a\xc3(,5,de", RECORD_INVALID_UTF8, "byte 4 of the record is not valid UTF-8", "\"1\""},
        {"1,\"a\"b,5,de", RECORD_BAD_QUOTES, "text behind the closing quote of column 2, 'text'; a quote within quotes is written twice",
         NULL},
    };
    BAD(d, bad);
    decoder_close(d);
    d = open_decoder(FORMAT_TSV, "stars", "text", NULL, 0, &c);
    const struct good tabs[] = {{"1\ta\t5,0\tde", "5,0", "\"a\"", ""}};
    GOOD(d, tabs);
    decoder_close(d);
    d = open_decoder(FORMAT_CSV, NULL, NULL, NULL, 0, &(struct columns){names, 1});
    const struct good only[] = {{"the only column", "the only column", "\"the only column\"", ""}};
    GOOD(d, only);
    decoder_close(d);
}

static void refuse(const struct decoder_opts *o, const struct columns *c, const char *words)
{
    struct decoder *d;
    struct err e = {0};
    assert_int_equal(decoder_open(o, c, &d, &e), ST_USER);
    if (strcmp(e.text, words))
        fail_msg("%s", e.text);
}

static void refused_at_open(void **state)
{
    (void)state;
    char *names[] = {(char[]){"id"}, (char[]){"title"}, (char[]){"text"}, (char[]){"title"}, (char[]){"stars"}};
    char *one[] = {(char[]){"id;text"}};
    refuse(&(struct decoder_opts){.format = FORMAT_CSV}, &(struct columns){one, 1},
           "the header is one column, 'id;text': is it divided by something else? columns are divided by ',' (csv) or tabs (tsv); say --field if that is its name");
    struct columns c = {names, 5};
    const char *keep[] = {"star"}, *twice[] = {"title"};
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .field = "body"}, &c, "no column 'body' (columns: id, title, text, title, stars)");
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .field = "tetx"}, &c,
           "no column 'tetx' (columns: id, title, text, title, stars; did you mean 'text'?)");
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .keep = keep, .keep_count = 1}, &c,
           "no column 'star' (columns: id, title, text, title, stars; did you mean 'stars'?)");
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .keep = twice, .keep_count = 1}, &c,
           "the header has column 'title' twice (2 and 4): give them different names");
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .id = "key"}, &c, "no column 'key' (columns: id, title, text, title, stars)");
    refuse(&(struct decoder_opts){.format = FORMAT_CSV}, &(struct columns){names, 2},
           "no column 'text': say which column holds the text (columns: id, title)");
    refuse(&(struct decoder_opts){.format = FORMAT_LINES, .field = "text"}, NULL,
           "plain lines have no fields, so none called 'text': leave field, id and keep out");
    /* a source without rows has no header, and no records either */
    struct decoder *d = open_decoder(FORMAT_CSV, "body", "key", keep, 1, &(struct columns){0});
    decoder_close(d);
}

static void lines_and_errors_passed_on(void **state)
{
    (void)state;
    struct decoder *d = open_decoder(FORMAT_LINES, NULL, NULL, NULL, 0, NULL);
    const struct good good[] = {{"a, \"b\"", "a, \"b\"", NULL, ""}, {"", "", NULL, ""}};
    GOOD(d, good);
    const struct bad bad[] = {{"ab\xe2\x82", RECORD_INVALID_UTF8, "byte 3 of the record is not valid UTF-8", NULL},
                              {"\xc0\x80", RECORD_INVALID_UTF8, "byte 1 of the record is not valid UTF-8", NULL},
                              {"abcdefghijk\xf5", RECORD_INVALID_UTF8, "byte 12 of the record is not valid UTF-8", NULL}};
    BAD(d, bad);
    struct raw raw = {.data = "", .error = RECORD_TOO_LONG, .message = "5 bytes, a record may have 4"};
    struct record r;
    assert_ok(decoder_run(d, &raw, &r, e));
    assert_int_equal(r.error, RECORD_TOO_LONG);
    assert_string_equal(r.message, raw.message);
    assert_null(r.text);
    assert_string_equal(record_error_code(r.error), "too_long");
    decoder_close(d);
}

/* For a model of numbers only id and kept fields matter: there need be no text at all. */
static void without_text(void **state)
{
    (void)state;
    char *names[] = {(char[]){"id"}, (char[]){"age"}, (char[]){"height"}};
    static const char *const keep[] = {"age"};
    struct columns c = {names, 3};
    for (int csv = 0; csv < 2; csv++) {
        struct decoder_opts o = {.format = csv ? FORMAT_CSV : FORMAT_JSONL, .field = "nowhere", .keep = keep, .keep_count = 1, .no_text = 1};
        struct raw raw = {.data = csv ? "a,4,1.5" : "{\"id\":\"a\",\"age\":4,\"x\":[1.5]}"};
        struct decoder *d;
        struct record r;
        raw.len = strlen(raw.data);
        assert_ok(decoder_open(&o, csv ? &c : NULL, &d, e));
        assert_ok(decoder_run(d, &raw, &r, e));
        assert_int_equal(r.error, RECORD_NONE);
        assert_int_equal(r.text_len, 0);
        assert_true(r.id_len == 3 && memcmp(r.id_json, "\"a\"", 3) == 0);
        const char *kept = csv ? ",\"age\":\"4\"" : ",\"age\":4";
        assert_true(r.keep_len == strlen(kept) && memcmp(r.keep_json, kept, r.keep_len) == 0);
        decoder_close(d);
    }
}

/* The second text of a pair, whatever the format. */
static void pairs(void **state)
{
    (void)state;
    char *names[] = {(char[]){"id"}, (char[]){"text"}, (char[]){"other"}};
    struct columns c = {names, 3};
    static const struct {
        const char *data, *text, *pair, *message;
    } json[] = {
        {"{\"text\":\"a\",\"other\":\"b\"}", "a", "b", NULL},
        {"{\"other\":\"x\\ty\",\"text\":\"a\\nb\"}", "a\nb", "x\ty", NULL},
        {"{\"other\":\"\",\"body\":\"the only other text\"}", "the only other text", "", NULL},
        {"{\"text\":\"a\"}", NULL, NULL, "no field 'other' (fields: text)"},
        {"{\"text\":\"a\",\"other\":null}", NULL, NULL, "field 'other' is null, not a string"},
        {"{\"text\":\"a\",\"other\":[\"b\"]}", NULL, NULL, "field 'other' is an array, not a string"},
    };
    for (int csv = 0; csv < 2; csv++) {
        struct decoder_opts o = {.format = csv ? FORMAT_CSV : FORMAT_JSONL, .pair = "other"};
        struct decoder *d;
        assert_ok(decoder_open(&o, csv ? &c : NULL, &d, e));
        for (size_t i = 0; i < (csv ? 1 : sizeof json / sizeof *json); i++) {
            const char *data = csv ? "1,\"a \"\"q\"\"\",\"b, c\"" : json[i].data;
            struct record r = run(d, data, strlen(data));
            if (!csv && json[i].message)
                assert_string_equal(r.message, json[i].message);
            assert_slice(r.text, r.text_len, csv ? "a \"q\"" : json[i].text);
            assert_slice(r.pair, r.pair_len, csv ? "b, c" : json[i].pair);
        }
        decoder_close(d);
    }
    refuse(&(struct decoder_opts){.format = FORMAT_CSV, .pair = "othr"}, &c, "no column 'othr' (columns: id, text, other; did you mean 'other'?)");
    refuse(&(struct decoder_opts){.format = FORMAT_LINES, .pair = "other"}, NULL,
           "plain lines have no fields, so none called 'other': leave field, id and keep out");
    struct decoder *d = open_decoder(FORMAT_JSONL, NULL, NULL, NULL, 0, NULL);
    struct record r = run(d, "{\"text\":\"a\",\"other\":\"b\"}", 26);
    assert_null(r.pair); /* not asked for */
    decoder_close(d);
}

static void memory_runs_out(void **state)
{
    (void)state;
    char *names[] = {(char[]){"id"}, (char[]){"text"}, (char[]){"stars"}, (char[]){"la\"ng"}};
    struct columns c = {names, 4};
    for (int csv = 0; csv < 2; csv++) {
        const char *data = csv ? "\"1\"\"\",\"a\"\"b\",\"\"\"\",d" : "{\"id\":99999999999999999999,\"text\":\"a\",\"stars\":1e999}";
        unsigned failures = 0;
        for (uint64_t nth = 1;; nth++) {
            struct decoder_opts o = {.format = csv ? FORMAT_CSV : FORMAT_JSONL, .field = "text", .pair = "text", .id = "id", .keep = keep_two, .keep_count = 2};
            struct decoder *d = NULL;
            struct err e = {0};
            struct raw raw = {.data = data, .len = strlen(data)};
            struct record out;
            mem_fail_nth(nth);
            enum status status = decoder_open(&o, csv ? &c : NULL, &d, &e);
            if (status == ST_OK)
                status = decoder_run(d, &raw, &out, &e);
            mem_fail_nth(0);
            if (status == ST_OK)
                assert_int_equal(out.error, RECORD_NONE);
            else
                assert_int_equal(status, ST_NOMEM);
            decoder_close(d);
            if (status == ST_OK)
                break;
            failures++;
        }
        assert_true(failures > 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_good),        cmocka_unit_test(json_bad),
        cmocka_unit_test(json_nul_in_text), cmocka_unit_test(json_bombs),
        cmocka_unit_test(random_objects),   cmocka_unit_test(bent_objects),
        cmocka_unit_test(csv_good_and_bad), cmocka_unit_test(refused_at_open),
        cmocka_unit_test(lines_and_errors_passed_on), cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(without_text),
        cmocka_unit_test(pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
