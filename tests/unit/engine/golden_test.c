/* The engine's embeddings against sentence-transformers' own (tests/golden/embeddings.py), on the real model. */
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

#include "base/mem.h"
#include "workers/engine/model.h"

enum { DIMS = 384, MAX_TOKENS = 256 };

static const char golden_file[] = "tests/golden/minilm_embeddings.jsonl";

struct golden {
    uint32_t len;
    int32_t ids[MAX_TOKENS];
    float want[DIMS];
};

static struct golden *golden;
static size_t goldens;

static const char *model_dir(void)
{
    const char *dir = getenv("EBB_TEST_MODEL");
    return dir ? dir : "build/demo/all-MiniLM-L6-v2";
}

static int read_golden(void **state)
{
    (void)state;
    FILE *f = fopen(golden_file, "r");
    if (!f) {
        fprintf(stderr, "cannot read %s: run the tests from the top of the tree\n", golden_file);
        return -1;
    }
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        json_t *ids = json_object_get(j, "ids"), *want = json_object_get(j, "embedding");
        if (json_array_size(ids) < 2 || json_array_size(ids) > MAX_TOKENS || json_array_size(want) != DIMS)
            return -1;
        golden = realloc(golden, (goldens + 1) * sizeof *golden);
        struct golden *g = &golden[goldens++];
        g->len = (uint32_t)json_array_size(ids);
        for (uint32_t i = 0; i < g->len; i++)
            g->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        for (uint32_t i = 0; i < DIMS; i++)
            g->want[i] = (float)json_number_value(json_array_get(want, i));
        json_decref(j);
    }
    free(line);
    fclose(f);
    return 0;
}

static int drop_golden(void **state)
{
    (void)state;
    free(golden);
    return 0;
}

static struct model *open_model(const struct model_opts *o)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", model_dir());
    if (access(path, R_OK) != 0) {
        print_message("SKIP: no model in '%s'; 'make demo' fetches it, or set EBB_TEST_MODEL\n", model_dir());
        skip();
    }
    struct model *m = NULL;
    struct err e;
    if (model_open(model_dir(), o, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    return m;
}

static void compare(const float *got, const struct golden *g, size_t line, double *worst)
{
    double dot = 0, a = 0, b = 0;
    for (int i = 0; i < DIMS; i++) {
        double diff = fabs((double)got[i] - (double)g->want[i]);
        *worst = diff > *worst ? diff : *worst;
        if (!(diff <= 1e-5))
            fail_msg("line %zu, element %d: %.9g, not %.9g", line, i, (double)got[i], (double)g->want[i]);
        dot += (double)got[i] * (double)g->want[i];
        a += (double)got[i] * (double)got[i];
        b += (double)g->want[i] * (double)g->want[i];
    }
    double cosine = dot / sqrt(a * b);
    if (!(cosine >= 0.99999))
        fail_msg("line %zu: cosine %.9f", line, cosine);
}

static void same_as_sentence_transformers(void **state)
{
    (void)state;
    struct model *m = open_model(NULL);
    struct model_ctx *c = NULL;
    assert_true(goldens >= 60);
    const struct model_info *info = model_info(m);
    assert_int_equal(info->dims, DIMS);
    assert_int_equal(info->max_tokens, MAX_TOKENS);
    assert_int_equal(info->layers, 6);
    assert_int_equal(info->normalize, 1);
    assert_string_equal(info->pooling, "mean");
    assert_int_equal(info->parameters, 22565376); /* 22,713,216 with the pooler, which embeddings do not use */
    assert_int_equal(model_ctx_new(m, MAX_TOKENS, 1, &c, NULL), ST_OK);
    double worst = 0;
    for (size_t i = 0; i < goldens; i++) {
        float got[DIMS];
        model_run(m, c, 1, &golden[i].len, golden[i].ids, got);
        compare(got, &golden[i], i + 1, &worst);
    }
    print_message("%zu texts, largest difference %.2g (%s)\n", goldens, worst, info->isa);
    model_ctx_free(c);
    model_free(m);
}

/* One micro-batch of all texts gives the bits of each text alone. */
static void packed_as_alone(void **state)
{
    (void)state;
    struct model *m = open_model(NULL);
    struct model_ctx *one = NULL, *all = NULL;
    uint32_t total = 0, *lengths = calloc(goldens, sizeof *lengths);
    for (size_t i = 0; i < goldens; i++)
        total += lengths[i] = golden[i].len;
    int32_t *ids = calloc(total, sizeof *ids);
    for (size_t i = 0, at = 0; i < goldens; at += golden[i].len, i++)
        memcpy(ids + at, golden[i].ids, golden[i].len * sizeof *ids);
    float *packed = calloc(goldens * DIMS, sizeof *packed);
    assert_int_equal(model_ctx_new(m, MAX_TOKENS, 1, &one, NULL), ST_OK);
    assert_int_equal(model_ctx_new(m, total, (uint32_t)goldens, &all, NULL), ST_OK);
    model_run(m, all, (uint32_t)goldens, lengths, ids, packed);
    for (size_t i = 0; i < goldens; i++) {
        float alone[DIMS];
        model_run(m, one, 1, &lengths[i], golden[i].ids, alone);
        assert_memory_equal(alone, packed + i * DIMS, sizeof alone);
    }
    free(packed);
    free(ids);
    free(lengths);
    model_ctx_free(one);
    model_ctx_free(all);
    model_free(m);
}

/* The short texts through the naive and the generic kernels: the same bits as the fast ones. */
static void same_bits_on_every_isa(void **state)
{
    (void)state;
    struct model *fast = open_model(NULL), *slow[2] = {open_model(&(struct model_opts){.reference = 1}),
                                                       open_model(&(struct model_opts){.isa = "generic"})};
    struct model_ctx *cf = NULL, *cs[2] = {NULL, NULL};
    assert_int_equal(model_ctx_new(fast, MAX_TOKENS, 1, &cf, NULL), ST_OK);
    int done = 0;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(model_ctx_new(slow[k], MAX_TOKENS, 1, &cs[k], NULL), ST_OK);
        for (size_t i = 0; i < goldens; i++) {
            if (golden[i].len > 16 || i % 6 != 0)
                continue;
            float a[DIMS], b[DIMS];
            model_run(fast, cf, 1, &golden[i].len, golden[i].ids, a);
            model_run(slow[k], cs[k], 1, &golden[i].len, golden[i].ids, b);
            assert_memory_equal(a, b, sizeof a);
            done++;
        }
        model_ctx_free(cs[k]);
        model_free(slow[k]);
    }
    assert_true(done >= 8);
    model_ctx_free(cf);
    model_free(fast);
}

/* Of the precisions that round: how near they stay. Odd texts of few tokens are the worst. */
static void rounding_stays_near(void **state)
{
    (void)state;
    static const struct {
        const char *precision;
        double least, average;
    } kinds[] = {{"bf16", 0.9999, 0.9999}, {"int8", 0.98, 0.993}};
    for (int k = 0; k < 2; k++) {
        struct model *m = open_model(&(struct model_opts){.precision = kinds[k].precision});
        struct model_ctx *c = NULL;
        assert_int_equal(model_ctx_new(m, MAX_TOKENS, 1, &c, NULL), ST_OK);
        double least = 1, sum = 0;
        for (size_t i = 0; i < goldens; i++) {
            float got[DIMS];
            double dot = 0, a = 0, b = 0;
            model_run(m, c, 1, &golden[i].len, golden[i].ids, got);
            for (int j = 0; j < DIMS; j++) {
                dot += (double)got[j] * (double)golden[i].want[j];
                a += (double)got[j] * (double)got[j];
                b += (double)golden[i].want[j] * (double)golden[i].want[j];
            }
            double cosine = dot / sqrt(a * b);
            least = cosine < least ? cosine : least;
            sum += cosine;
        }
        print_message("%s (%s): cosine to f32 at least %.6f, %.6f on the average\n", kinds[k].precision, model_info(m)->numerics, least,
                      sum / (double)goldens);
        assert_true(least >= kinds[k].least && sum / (double)goldens >= kinds[k].average);
        model_ctx_free(c);
        model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_sentence_transformers),
        cmocka_unit_test(packed_as_alone),
        cmocka_unit_test(same_bits_on_every_isa),
        cmocka_unit_test(rounding_stays_near),
    };
    return cmocka_run_group_tests(tests, read_golden, drop_golden);
}
