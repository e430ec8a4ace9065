/* Where models can be cut: the segments are all of the model, in order, each weight once. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/tinymodel.h"
#include "workers/engine/model.h"

static char dir[] = "/tmp/ebb-cut-test-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    return path_remove_tree(dir, NULL) != ST_OK;
}

static struct cut cut_of(const char *path, uint32_t tokens, struct model_info *i)
{
    struct cut c = {.tokens = tokens};
    struct err e;
    if (model_probe_cut(path, NULL, i, &c, &e) != ST_OK)
        fail_msg("%s", e.text);
    return c;
}

static uint64_t weights(const struct cut *c)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->count; i++)
        n += c->list[i].weight_bytes;
    return n;
}

static void directories(void **state)
{
    (void)state;
    static const struct {
        struct tinymodel t;
        uint64_t last; /* bytes that come out of the whole, for a text of 10 tokens */
        int head;      /* what is on top has weights */
    } cases[] = {
        {{.layers = 3}, 32 * 4, 0},
        {{.dense = "Tanh"}, 24 * 4, 1},
        {{.head = "classify", .labels = 5}, 5 * 4, 1},
        {{.head = "token-classify", .family = "roberta"}, 10 * 3 * 4, 1},
        {{.head = "fill-mask"}, 5 * 8, 1}, /* the tokens of one mask, each with its score */
        {{.family = "mpnet"}, 32 * 4, 0},
        {{.family = "deberta-v2", .layers = 4}, 32 * 4, 0},
        {{.family = "albert", .layers = 3}, 32 * 4, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const struct tinymodel *t = &cases[k].t;
        struct model_info i;
        assert_int_equal(path_remove_tree(dir, NULL), ST_OK);
        assert_int_equal(tinymodel_write(dir, t), 0);
        struct cut c = cut_of(dir, 10, &i);
        uint32_t layers = t->layers ? t->layers : 2;
        assert_int_equal(c.count, layers + 2);
        assert_string_equal(c.list[0].first, "embeddings");
        assert_string_equal(c.list[c.count - 1].first, "head");
        assert_true(weights(&c) == i.weight_bytes);
        assert_true((c.list[c.count - 1].weight_bytes > 0) == cases[k].head);
        assert_int_equal(c.list[c.count - 1].out_bytes, cases[k].last);
        int shares = t->family && strcmp(t->family, "albert") == 0;
        for (uint32_t s = 1; s <= layers; s++) {
            /* 4 projections and the two of the feed-forward part for each token; scores, and what they weigh, for each pair */
            assert_true(c.list[s].flops == 2.0 * (10 * (4 * 32 * 32 + 2 * 32 * 128) + 2 * 10 * 10 * 32));
            assert_int_equal(c.list[s].out_bytes, 10 * 32 * 4);
            assert_true((c.list[s].weight_bytes > 0) == (!shares || s == 1));
            assert_true(shares || c.list[s].weight_bytes >= 4 * (4 * 32 * 32 + 2 * 32 * 128));
        }
        assert_true(c.list[0].weight_bytes >= 4u * i.vocab * (shares ? 16 : 32));
        cut_release(&c);
    }
}

/* What a segment weighs follows the precision. */
static void precisions(void **state)
{
    (void)state;
    struct model_info i;
    assert_int_equal(tinymodel_write(dir, &(struct tinymodel){.hidden = 64}), 0);
    struct cut f32 = cut_of(dir, 10, &i), bf16 = {.tokens = 10};
    assert_int_equal(model_probe_cut(dir, &(struct model_opts){.precision = "bf16"}, &i, &bf16, NULL), ST_OK);
    assert_true(weights(&bf16) == i.weight_bytes);
    assert_true(bf16.list[0].weight_bytes == f32.list[0].weight_bytes);
    assert_true(bf16.list[1].weight_bytes < f32.list[1].weight_bytes * 6 / 10);
    cut_release(&f32);
    cut_release(&bf16);
}

/* The graph of a BERT as exported: the cuts are those of graph/segment.c, for a batch of one. */
static void graphs(void **state)
{
    (void)state;
    struct model_info i;
    struct cut ten = cut_of("tests/golden/exports/bert-sdpa-17.onnx", 10, &i), twenty = cut_of("tests/golden/exports/bert-sdpa-17.onnx", 20, &i);
    assert_in_range(ten.count, 3, 40);
    assert_int_equal(ten.count, twenty.count);
    for (uint32_t s = 0; s + 1 < ten.count; s++) {
        assert_true(strlen(ten.list[s].first) > 0);
        assert_in_range(twenty.list[s].out_bytes, ten.list[s].out_bytes + 1, 4 * ten.list[s].out_bytes); /* of tokens, pairs of them, and sizes */
        assert_true(twenty.list[s].flops >= ten.list[s].flops);
        assert_int_equal(twenty.list[s].weight_bytes, ten.list[s].weight_bytes);
    }
    assert_true(weights(&ten) > 0 && weights(&ten) <= i.weight_bytes);
    cut_release(&ten);
    cut_release(&twenty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(directories, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(precisions, make_dir, drop_dir),
        cmocka_unit_test(graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
