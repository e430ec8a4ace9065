/* A model in parts gives the bits of the whole one: every family, every task, every precision, every cut into one to four stages, whatever shares a
   micro-batch; and what crosses a cut is not believed. */
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
#include "tests/lib/files.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/model.h"

enum { LAYERS = 3, MOST_SEGMENTS = 2 * LAYERS + 4, RECORDS = 5, TOKENS = 64, MASK_ID = 4, MOST_FLOATS = TOKENS * 512 };

static char top[] = "/tmp/ebb-stage-test-XXXXXX", dir[FILES_ROOM], packs[FILES_ROOM];

static int start(void **state)
{
    (void)state;
    return files_begin(top, dir, packs);
}

static int end(void **state)
{
    (void)state;
    return files_end(top);
}

/* Five texts, with masks in some of them, and a type for each token. */
static const uint32_t lengths[RECORDS] = {7, 1, 20, 3, 12};
static int32_t ids[TOKENS];
static uint8_t types[TOKENS];

static void make_texts(void)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = i % 5 == 3 ? MASK_ID : (int32_t)(5 + i * 37 % 100);
        types[i] = i % 4 > 1;
    }
}

static void make_model(const struct tinymodel *t)
{
    struct err e;
    assert_int_equal(path_remove_tree(dir, &e), ST_OK);
    assert_int_equal(path_remove_tree(packs, &e), ST_OK);
    assert_int_equal(tinymodel_write(dir, t), 0);
}

static struct model *open_it(const struct model_opts *o)
{
    struct model *m = NULL;
    struct err e;
    if (model_open(dir, o, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    model_set_mask(m, MASK_ID);
    return m;
}

struct part {
    struct model *model;
    struct model_ctx *ctx;
};

static struct part open_part(const struct model_opts *o, uint32_t first, uint32_t last)
{
    struct model_opts with = *o;
    struct part p = {0};
    with.part = 1;
    with.first = first;
    with.end = last;
    p.model = open_it(&with);
    assert_int_equal(model_ctx_new(p.model, TOKENS, RECORDS, &p.ctx, NULL), ST_OK);
    return p;
}

static void close_part(struct part *p)
{
    model_ctx_free(p->ctx);
    model_free(p->model);
}

/* Everything in a result, for each record behind the one before, as it would be for the records one by one. */
struct outcome {
    uint32_t count, rows[RECORDS];
    size_t words[RECORDS];
    uint32_t word[RECORDS][MOST_FLOATS / RECORDS];
};

static void keep(struct outcome *o, uint32_t first, uint32_t n, const struct model_result *r)
{
    size_t at[MODEL_OUTPUTS_MAX] = {0};
    assert_null(r->errors);
    o->count = r->count;
    for (uint32_t i = first; i < first + n; i++) {
        o->words[i] = 0;
        for (uint32_t k = 0; k < r->count; k++) {
            const struct model_tensor *t = &r->tensor[k];
            uint32_t rows = t->rows ? t->rows[i - first] : 1;
            size_t words = (size_t)rows * t->width;
            assert_true(o->words[i] + words <= MOST_FLOATS / RECORDS);
            memcpy(o->word[i] + o->words[i], t->f32 ? (const void *)(t->f32 + at[k]) : (const void *)(t->i32 + at[k]), 4 * words);
            o->rows[i] = rows;
            o->words[i] += words;
            at[k] += words;
        }
    }
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *what)
{
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < RECORDS; i++)
        if (a->rows[i] != b->rows[i] || a->words[i] != b->words[i] || memcmp(a->word[i], b->word[i], 4 * a->words[i]) != 0)
            fail_msg("%s: record %d differs", what, i);
}

static struct model_batch batch_of(uint32_t first, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < first; i++)
        at += lengths[i];
    return (struct model_batch){.n = n, .lengths = lengths + first, .ids = ids + at, .types = types + at};
}

/* `each` records in a micro-batch. */
static void run_whole(const struct model_opts *o, uint32_t each, struct outcome *out)
{
    struct model *m = open_it(o);
    struct model_ctx *c;
    assert_int_equal(model_ctx_new(m, TOKENS, RECORDS, &c, NULL), ST_OK);
    for (uint32_t i = 0; i < RECORDS; i += each) {
        struct model_batch b = batch_of(i, each < RECORDS - i ? each : RECORDS - i);
        keep(out, i, b.n, model_infer(m, c, &b));
    }
    model_ctx_free(c);
    model_free(m);
}

static void run_stages(struct part *const *stage, uint32_t stages, uint32_t each, struct outcome *out)
{
    struct err e;
    for (uint32_t i = 0; i < RECORDS; i += each) {
        struct model_batch b = batch_of(i, each < RECORDS - i ? each : RECORDS - i);
        const void *in = NULL, *next;
        size_t len = 0;
        const struct model_result *r = NULL;
        for (uint32_t s = 0; s < stages; s++) {
            if (model_stage(stage[s]->model, stage[s]->ctx, &b, in, len, &next, &len, &r, &e) != ST_OK)
                fail_msg("%s", e.text);
            assert_true((r != NULL) == (s == stages - 1) && (next != NULL) == (s < stages - 1));
            in = next;
        }
        keep(out, i, b.n, r);
    }
}

struct parts {
    uint32_t segments;
    struct part from[MOST_SEGMENTS][MOST_SEGMENTS + 1]; /* [first][end] */
    const struct outcome *want;
    const char *what;
    uint32_t cuts;
};

/* All ways to go on from segment `at` with `left` more stages. */
static void try_cuts(struct parts *p, struct part **stage, uint32_t stages, uint32_t at, uint32_t left)
{
    static struct outcome got;
    if (left == 0) {
        if (at < p->segments)
            return;
        static const uint32_t sizes[] = {RECORDS, 1, 2};
        uint32_t each = sizes[p->cuts++ % 3];
        memset(&got, 0, sizeof got);
        run_stages(stage, stages, each, &got);
        assert_same(&got, p->want, p->what);
        return;
    }
    for (uint32_t next = at + 1; next <= p->segments; next++) {
        stage[stages] = &p->from[at][next];
        try_cuts(p, stage, stages + 1, next, left - 1);
    }
}

static void every_cut(const struct model_opts *o, const char *what)
{
    static struct outcome want, together;
    static struct parts p;
    struct model_info info;
    struct cut cut = {.tokens = 8};
    struct err e;
    memset(&want, 0, sizeof want);
    memset(&together, 0, sizeof together);
    run_whole(&(struct model_opts){.precision = o->precision, .isa = o->isa}, 1, &want);
    run_whole(o, RECORDS, &together);
    assert_same(&together, &want, what);
    if (model_probe_cut(dir, o, &info, &cut, &e) != ST_OK)
        fail_msg("%s", e.text);
    p = (struct parts){.segments = cut.count, .want = &want, .what = what};
    assert_in_range(p.segments, 4, MOST_SEGMENTS);
    for (uint32_t i = 0; i < p.segments; i++)
        for (uint32_t k = i + 1; k <= p.segments; k++) {
            p.from[i][k] = open_part(o, i, k);
            const struct model_info *part = model_info(p.from[i][k].model);
            uint64_t most = 0;
            for (uint32_t s = i; s < k; s++)
                most += cut.list[s].weight_bytes;
            assert_memory_equal(part->digest.bytes, info.digest.bytes, sizeof info.digest.bytes);
            assert_int_equal(part->dims, info.dims);
            assert_int_equal(part->max_tokens, info.max_tokens);
            assert_string_equal(part->numerics, info.numerics);
            assert_true(part->weight_bytes <= info.weight_bytes);
            if (strcmp(info.architecture, "bert") == 0) /* nothing is shared between layers */
                assert_int_equal(part->weight_bytes, most);
            if (i == 0 && k == p.segments)
                assert_int_equal(part->weight_bytes, info.weight_bytes);
        }
    struct part *stage[4];
    for (uint32_t stages = 1; stages <= 4; stages++)
        try_cuts(&p, stage, 0, 0, stages);
    for (uint32_t i = 0; i < p.segments; i++)
        for (uint32_t k = i + 1; k <= p.segments; k++)
            close_part(&p.from[i][k]);
    cut_release(&cut);
}

static const struct {
    const char *family;
    int variant;
} kinds[] = {{"bert", 0}, {"distilbert", 0}, {"roberta", 0}, {"camembert", 0}, {"xlm-roberta", 0}, {"mpnet", 0}, {"electra", 0},
             {"electra", 1}, {"albert", 0}, {"albert", 1}, {"deberta-v2", 0}, {"deberta-v2", 1}};
static const struct {
    const char *head, *dense;
    int untied;
} heads[] = {{NULL, NULL, 0}, {NULL, "Tanh", 0}, {"classify", NULL, 0}, {"token-classify", NULL, 0}, {"fill-mask", NULL, 0}, {"fill-mask", NULL, 1}};
static const char *const precisions[] = {"f32", "bf16", "int8"};

static void every_cut_of_every_model(void **state)
{
    (void)state;
    make_texts();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            make_model(&(struct tinymodel){.seed = (uint32_t)(10 * k + h), .layers = LAYERS, .hidden = 24, .heads = 2, .ffn = 40, .vocab = 120, .family = kinds[k].family,
                                           .variant = kinds[k].variant, .head = heads[h].head, .dense = heads[h].dense, .untied = heads[h].untied,
                                           .pooling = h == 0 ? "cls" : NULL});
            char what[100];
            size_t p = (k + h) % 3; /* each family and each head in each precision; f32 always */
            for (int i = 0; i < (p ? 2 : 1); i++) {
                const char *precision = precisions[i ? p : 0];
                snprintf(what, sizeof what, "%s %d, %s %d, %s", kinds[k].family, kinds[k].variant, heads[h].head ? heads[h].head : "embed", heads[h].untied, precision);
                every_cut(&(struct model_opts){.precision = precision, .pack_dir = (k + h) % 2 ? packs : NULL}, what);
            }
        }
}

/* Whatever came over the wire. */
static void what_comes_in_is_looked_at(void **state)
{
    (void)state;
    struct err e;
    make_texts();
    make_model(&(struct tinymodel){.layers = 2, .max_positions = 32, .max_tokens = 30});
    struct part first = open_part(&(struct model_opts){0}, 0, 2), last = open_part(&(struct model_opts){0}, 2, 4);
    const void *out, *none;
    size_t len, none_len;
    const struct model_result *r;
    struct model_batch b = batch_of(0, 3), bad;
    assert_int_equal(model_stage(first.model, first.ctx, &b, NULL, 0, &out, &len, &r, &e), ST_OK);
    assert_int_equal(len, 28 * 32 * 4);
    float *in = malloc(len + 4);
    memcpy(in, out, len);
    const size_t wrong[] = {0, 1, len - 4, len - 1, len + 1, len + 4};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(model_stage(last.model, last.ctx, &b, in, wrong[i], &none, &none_len, &r, &e), ST_CORRUPT);
        assert_non_null(strstr(e.text, "28 tokens"));
        assert_null(none);
        assert_null(r);
    }
    assert_int_equal(model_stage(last.model, last.ctx, &b, NULL, len, &none, &none_len, &r, &e), ST_CORRUPT);
    assert_int_equal(model_stage(first.model, first.ctx, &b, in, len, &none, &none_len, &r, &e), ST_CORRUPT);
    const uint32_t long_one[] = {33}, nothing[] = {0}, much[] = {32, 32, 1}, huge[] = {UINT32_MAX, UINT32_MAX};
    const struct {
        uint32_t n;
        const uint32_t *lengths;
        const char *says;
    } batches[] = {{0, lengths, "0 items"}, {RECORDS + 1, lengths, "6 items"}, {1, long_one, "33 tokens"}, {1, nothing, "0 tokens"}, {3, much, "65 tokens"}, {2, huge, "tokens"}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        bad = (struct model_batch){.n = batches[i].n, .lengths = batches[i].lengths, .ids = ids};
        assert_int_equal(model_stage(first.model, first.ctx, &bad, NULL, 0, &none, &none_len, &r, &e), ST_CORRUPT);
        if (!strstr(e.text, batches[i].says))
            fail_msg("%s", e.text);
        assert_int_equal(model_stage(last.model, last.ctx, &bad, in, len, &none, &none_len, &r, &e), ST_CORRUPT);
    }
    static const int32_t odd[] = {-1, 512, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        int32_t was = ids[5];
        ids[5] = odd[i];
        assert_int_equal(model_stage(first.model, first.ctx, &b, NULL, 0, &none, &none_len, &r, &e), ST_CORRUPT);
        assert_non_null(strstr(e.text, "the vocabulary has 512"));
        ids[5] = was;
    }
    types[3] = 2;
    assert_int_equal(model_stage(first.model, first.ctx, &b, NULL, 0, &none, &none_len, &r, &e), ST_CORRUPT);
    types[3] = 0;
    bad = b;
    bad.ids = NULL;
    assert_int_equal(model_stage(first.model, first.ctx, &bad, NULL, 0, &none, &none_len, &r, &e), ST_CORRUPT);
    assert_int_equal(model_stage(last.model, last.ctx, &bad, in, len, &none, &none_len, &r, &e), ST_OK); /* the pooling looks at no ids */
    assert_non_null(r);
    close_part(&first);
    close_part(&last);
    free(in);
}

/* fill-mask finds its masks in the last stage. */
static void masks_need_ids(void **state)
{
    (void)state;
    struct err e;
    make_texts();
    make_model(&(struct tinymodel){.layers = 2, .head = "fill-mask"});
    struct part last = open_part(&(struct model_opts){0}, 3, 4);
    struct model_batch b = batch_of(0, 1);
    float in[7 * 32] = {0};
    const void *out;
    size_t len;
    const struct model_result *r;
    b.ids = NULL;
    assert_int_equal(model_stage(last.model, last.ctx, &b, in, sizeof in, &out, &len, &r, &e), ST_CORRUPT);
    close_part(&last);
}

static void only_what_it_says(void **state)
{
    (void)state;
    struct err e;
    struct model *m = NULL;
    struct model_info whole;
    make_model(&(struct tinymodel){.layers = 2, .head = "classify"});
    assert_int_equal(model_probe(dir, NULL, &whole, &e), ST_OK);
    for (uint32_t at = 0; at <= 4; at += 2) {
        m = open_it(&(struct model_opts){.part = 1, .first = at, .end = at, .pack_dir = packs});
        assert_int_equal(model_info(m)->weight_bytes, 0);
        assert_memory_equal(model_info(m)->digest.bytes, whole.digest.bytes, sizeof whole.digest.bytes);
        assert_int_equal(model_info(m)->labels, 3);
        assert_string_equal(model_label(m, 0), "L0");
        assert_int_equal(model_info(m)->max_tokens, whole.max_tokens);
        model_free(m);
    }
    assert_false(path_exists(packs)); /* it asks for no weights */
    const uint32_t bad[][2] = {{0, 5}, {3, 2}, {5, 5}, {UINT32_MAX, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        m = NULL;
        assert_int_equal(model_open(dir, &(struct model_opts){.part = 1, .first = bad[i][0], .end = bad[i][1]}, &m, &e), ST_USER);
        assert_non_null(strstr(e.text, "has 4 segments"));
        assert_null(m);
    }
}

/* Memory is out at any point of opening a part. */
static void memory_is_out(void **state)
{
    (void)state;
    struct err e;
    make_model(&(struct tinymodel){.layers = 2, .family = "deberta-v2", .head = "fill-mask"});
    for (uint32_t first = 0; first < 4; first++) {
        struct model *m = NULL;
        enum status st;
        uint64_t n = 0;
        do {
            mem_fail_nth(++n);
            st = model_open(dir, &(struct model_opts){.part = 1, .first = first, .end = first + 1}, &m, &e);
            mem_fail_nth(0);
            if (st != ST_OK)
                assert_int_equal(st, ST_NOMEM);
        } while (st != ST_OK);
        model_free(m);
        assert_true(n > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_of_every_model),
        cmocka_unit_test(what_comes_in_is_looked_at),
        cmocka_unit_test(masks_need_ids),
        cmocka_unit_test(only_what_it_says),
        cmocka_unit_test(memory_is_out),
    };
    return cmocka_run_group_tests(tests, start, end);
}
