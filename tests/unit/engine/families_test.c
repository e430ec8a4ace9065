/* Every family and head against transformers and sentence-transformers (tests/golden/families.py), on tiny models; and that a row's bits
   depend on nothing but its own tokens. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/model.h"

enum { MODEL_RECORDS = 8, MAX_TOKENS = 64, MASK_ID = 4 };

static const char golden_file[] = "tests/golden/families.jsonl";
static char dir[] = "/tmp/ebb-families-test-XXXXXX";
static json_t *all; /* the lines */

static int start(void **state)
{
    (void)state;
    FILE *f = fopen(golden_file, "r");
    if (!f) {
        fprintf(stderr, "cannot read %s: run the tests from the top of the tree\n", golden_file);
        return -1;
    }
    char *line = NULL;
    size_t cap = 0;
    all = json_array();
    while (getline(&line, &cap, f) > 0)
        if (json_array_append_new(all, json_loads(line, 0, NULL)) != 0)
            return -1;
    free(line);
    fclose(f);
    return mkdtemp(dir) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    struct err e;
    json_decref(all);
    return path_remove_tree(dir, &e) != ST_OK;
}

/* Records of one model, and what came out for each alone. */
struct records {
    uint32_t n, lengths[MODEL_RECORDS];
    int32_t ids[MODEL_RECORDS * MAX_TOKENS];
    uint8_t types[MODEL_RECORDS * MAX_TOKENS];
    json_t *golden[MODEL_RECORDS];
    size_t tokens;
};

static void add(struct records *r, json_t *line)
{
    json_t *ids = json_object_get(line, "ids"), *types = json_object_get(line, "types");
    assert_in_range(json_array_size(ids), 1, MAX_TOKENS);
    assert_true(r->n < MODEL_RECORDS);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        r->ids[r->tokens] = (int32_t)json_integer_value(json_array_get(ids, i));
        r->types[r->tokens++] = (uint8_t)json_integer_value(json_array_get(types, i));
    }
    r->golden[r->n] = line;
    r->lengths[r->n++] = (uint32_t)json_array_size(ids);
}

static void make_model(json_t *args)
{
    struct tinymodel t = {0};
    struct err e;
    size_t i;
    json_t *arg;
    assert_int_equal(path_remove_tree(dir, &e), ST_OK);
    json_array_foreach(args, i, arg)
        assert_int_equal(tinymodel_set(&t, json_string_value(arg)), 0);
    assert_int_equal(tinymodel_write(dir, &t), 0);
}

static struct model *open_with(const struct model_opts *o)
{
    struct model *m = NULL;
    struct err e;
    if (model_open(dir, o, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    model_set_mask(m, MASK_ID);
    return m;
}

static struct model_ctx *context(const struct model *m)
{
    struct model_ctx *c = NULL;
    assert_int_equal(model_ctx_new(m, MODEL_RECORDS * MAX_TOKENS, MODEL_RECORDS, &c, NULL), ST_OK);
    return c;
}

/* All numbers below j, whatever its nesting, one after the other. */
static size_t flatten(const json_t *j, double *out, size_t n)
{
    size_t i;
    json_t *v;
    if (!json_is_array(j)) {
        out[n] = json_number_value(j);
        return n + 1;
    }
    json_array_foreach(j, i, v)
        n = flatten(v, out, n);
    return n;
}

static void compare(const struct model_tensor *t, const json_t *want, const char *what, double *worst)
{
    static double flat[MAX_TOKENS * 64];
    uint32_t rows = t->rows ? t->rows[0] : 1;
    size_t n = flatten(want, flat, 0);
    assert_int_equal(n, (size_t)rows * t->width);
    for (size_t i = 0; i < n; i++) {
        double got = t->f32 ? (double)t->f32[i] : (double)t->i32[i], diff = fabs(got - flat[i]);
        *worst = diff > *worst ? diff : *worst;
        if (!(diff <= (t->f32 ? 1e-5 : 0)))
            fail_msg("%s, element %zu: %.9g, not %.9g", what, i, got, flat[i]);
    }
}

static struct model_batch one(const struct records *r, uint32_t i, size_t at)
{
    return (struct model_batch){.n = 1, .lengths = &r->lengths[i], .ids = r->ids + at, .types = r->types + at};
}

static void golden_of(const struct records *r, double *worst)
{
    struct model *m = open_with(NULL);
    struct model_ctx *c = context(m);
    size_t at = 0;
    for (uint32_t i = 0; i < r->n; at += r->lengths[i++]) {
        char *what = json_dumps(json_object_get(r->golden[i], "model"), JSON_COMPACT);
        struct model_batch b = one(r, i, at);
        const struct model_result *out = model_infer(m, c, &b);
        assert_string_equal(json_string_value(json_object_get(r->golden[i], "head")), model_info(m)->task);
        for (uint32_t k = 0; k < out->count; k++) {
            const json_t *want = json_object_get(r->golden[i], out->tensor[k].name);
            assert_non_null(want);
            compare(&out->tensor[k], want, what, worst);
        }
        free(what);
    }
    model_ctx_free(c);
    model_free(m);
}

/* The bits of record i of a result, into out; returns how many bytes. */
static size_t bits_of(const struct model_result *r, uint32_t i, char *out)
{
    size_t n = 0;
    for (uint32_t k = 0; k < r->count; k++) {
        const struct model_tensor *t = &r->tensor[k];
        size_t first = 0, rows = t->rows ? t->rows[i] : 1;
        for (uint32_t j = 0; j < i; j++)
            first += t->rows ? t->rows[j] : 1;
        const char *data = t->f32 ? (const char *)t->f32 : (const char *)t->i32;
        memcpy(out + n, data + first * t->width * 4, rows * t->width * 4);
        n += rows * t->width * 4;
    }
    return n;
}

static void bits_of_records(const struct records *r)
{
    static const struct model_opts kinds[] = {{0}, {.isa = "generic"}, {.reference = 1}};
    static char alone[MODEL_RECORDS][MAX_TOKENS * 64 * 8], got[MAX_TOKENS * 64 * 8];
    size_t sizes[MODEL_RECORDS];
    for (int v = 0; v < 3; v++) {
        struct model *m = open_with(&kinds[v]);
        struct model_ctx *c = context(m);
        size_t at = 0;
        for (uint32_t i = 0; i < r->n; at += r->lengths[i++]) {
            struct model_batch b = one(r, i, at);
            const struct model_result *out = model_infer(m, c, &b);
            size_t n = bits_of(out, 0, v ? got : alone[i]);
            if (v == 0)
                sizes[i] = n;
            assert_int_equal(n, sizes[i]);
            if (v > 0)
                assert_memory_equal(got, alone[i], n);
        }
        struct model_batch b = {.n = r->n, .lengths = r->lengths, .ids = r->ids, .types = r->types};
        const struct model_result *out = model_infer(m, c, &b);
        for (uint32_t i = 0; i < r->n; i++) {
            assert_int_equal(bits_of(out, i, got), sizes[i]);
            assert_memory_equal(got, alone[i], sizes[i]);
        }
        model_ctx_free(c);
        model_free(m);
    }
}

static void each_model(void (*what)(const struct records *r, void *arg), void *arg)
{
    for (size_t i = 0; i < json_array_size(all);) {
        struct records r = {0};
        json_t *args = json_object_get(json_array_get(all, i), "model");
        make_model(args);
        for (; i < json_array_size(all) && json_equal(json_object_get(json_array_get(all, i), "model"), args); i++)
            add(&r, json_array_get(all, i));
        what(&r, arg);
    }
}

static void visit_golden(const struct records *r, void *worst)
{
    golden_of(r, worst);
}

static void visit_bits(const struct records *r, void *arg)
{
    (void)arg;
    bits_of_records(r);
}

static void same_as_transformers(void **state)
{
    (void)state;
    double worst = 0;
    assert_true(json_array_size(all) > 100);
    each_model(visit_golden, &worst);
    print_message("%zu records, largest difference %.2g\n", json_array_size(all), worst);
}

static void bits_depend_on_the_record_alone(void **state)
{
    (void)state;
    each_model(visit_bits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_transformers), cmocka_unit_test(bits_depend_on_the_record_alone)};
    return cmocka_run_group_tests(tests, start, end);
}
