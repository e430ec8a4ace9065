/* Encoders as exporters write them: is everything put together again, do the results stay what transformers computes, and does a text keep its
   bits whether it runs alone, in a batch or packed? The files are made by tests/golden/exports.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/graph/pack.h"
#include "workers/engine/graph/segment.h"
#include "workers/engine/onnx/onnx.h"

#define FOLDER "tests/golden/exports/"
enum { TEXTS = 5, WIDTH = 8, LONGEST = 12, TOKENS = 64 };

static json_t *golden;

/* Texts alone have masks of ones and types of zeros; all inputs have the same two sizes. */
static struct onnx_model *load(const char *name, int no_fuse)
{
    char path[200];
    struct err e;
    struct onnx_model *m;
    struct given given[4];
    struct graph_opts o = {.no_fuse = no_fuse, .given = given};
    snprintf(path, sizeof path, FOLDER "%s.onnx", name);
    if (onnx_load(path, &kernels_generic, &m, &e) != ST_OK)
        fail_msg("%s", e.text);
    struct graph *g = m->graph;
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct graph_value *v = &g->values[g->in[i]];
        v->type.dims[0] = dim_named(g->syms, "batch");
        v->type.dims[1] = dim_named(g->syms, "sequence");
        if (i > 0)
            given[o.n_given++] = (struct given){g->in[i], strstr(v->name, "mask") ? 1 : 0};
    }
    if (no_fuse)
        o.n_given = 0;
    if (graph_finish(g, &o, &e) != ST_OK)
        fail_msg("%s: %s", name, e.text);
    return m;
}

static uint32_t count(const struct graph *g, const char *domain, const char *op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += strcmp(g->nodes[i]->domain, domain) == 0 && strcmp(g->nodes[i]->op, op) == 0;
    return n;
}

/* Output `o` of texts first..first+n-1 (of one length unless packed). */
static const struct tensor *infer(struct run *r, const struct graph *g, uint32_t first, uint32_t n, int packed, uint32_t o)
{
    static int64_t ids[TOKENS], ones[TOKENS], zeros[TOKENS];
    static uint32_t lengths[TEXTS];
    static struct seqs s;
    struct err e;
    uint32_t at = 0;
    json_t *texts = json_object_get(golden, "texts");
    for (uint32_t i = 0; i < n; i++) {
        json_t *t = json_array_get(texts, first + i);
        lengths[i] = (uint32_t)json_array_size(t);
        for (uint32_t k = 0; k < lengths[i]; k++, at++) {
            ids[at] = json_integer_value(json_array_get(t, k));
            ones[at] = 1;
        }
    }
    s = (struct seqs){n, at, lengths};
    run_pack(r, packed ? &s : NULL);
    int64_t dims[2] = {packed ? 1 : n, packed ? at : at / n};
    for (uint32_t i = 0; i < g->n_in; i++) {
        const char *name = g->values[g->in[i]].name;
        const int64_t *data = strstr(name, "mask") ? ones : strstr(name, "type") ? zeros : ids;
        assert_int_equal(run_set(r, i, DT_I64, 2, dims, data, &e), ST_OK);
    }
    if (run_graph(r, &e) != ST_OK)
        fail_msg("%s", e.text);
    return &run_result(r, o)->tensor;
}

static void check(const char *name, int packs, uint32_t attentions, uint32_t linears)
{
    struct onnx_model *m = load(name, 0), *plain = load(name, 1);
    struct run *r, *u;
    struct err e;
    char why[PACK_WHY_MAX] = "";
    enum packed_kind kinds[2];
    float alone[TEXTS][WIDTH], rows[TEXTS * LONGEST][WIDTH];
    uint32_t at = 0;
    if (count(m->graph, "ebb", "Attention") != attentions || count(m->graph, "ebb", "Linear") != linears)
        fail_msg("%s: %u Attention, %u Linear", name, count(m->graph, "ebb", "Attention"), count(m->graph, "ebb", "Linear"));
    assert_int_equal(count(m->graph, "", "LayerNormalization"), 3);
    assert_int_equal(count(m->graph, "ebb", "SeqPool"), 1);
    assert_int_equal(count(m->graph, "", "Erf"), 0);
    if (pack_prove(m->graph, kinds, why) != packs)
        fail_msg("%s: packs %d (%s)", name, !packs, why);
    assert_int_equal(pack_prove(plain->graph, kinds, why), 0); /* attention written out mixes tokens */
    assert_int_equal(run_new(m->graph, &r, &e), ST_OK);
    assert_int_equal(run_new(plain->graph, &u, &e), ST_OK);
    json_t *want = json_object_get(golden, name);
    for (uint32_t i = 0; i < TEXTS; i++) {
        const struct tensor *t = infer(r, m->graph, i, 1, 0, 0);
        uint32_t len = (uint32_t)t->dims[1];
        memcpy(rows[at], tensor_data(t), len * sizeof rows[0]);
        at += len;
        memcpy(alone[i], tensor_data(&run_result(r, 1)->tensor), sizeof alone[i]);
        const float *p = tensor_data(infer(u, plain->graph, i, 1, 0, 1));
        for (int k = 0; k < WIDTH; k++) {
            double g = json_real_value(json_array_get(json_array_get(want, i), (size_t)k));
            if (fabs((double)alone[i][k] - g) > 1e-5 || fabs((double)p[k] - g) > 1e-5)
                fail_msg("%s, text %u: %g fused, %g as exported, %g by transformers", name, i, (double)alone[i][k], (double)p[k], g);
        }
    }
    const struct tensor *pair = infer(r, m->graph, 1, 1, 0, 1); /* texts 1 and 3 have one length */
    assert_memory_equal(tensor_data(pair), alone[1], sizeof alone[1]);
    if (packs) {
        assert_int_equal(pack_prove(m->graph, kinds, why), 1);
        assert_int_equal(kinds[0], PACKED_TOKENS);
        assert_int_equal(kinds[1], PACKED_SEQS);
        for (int twice = 0; twice < 2; twice++) {
            const struct tensor *t = infer(r, m->graph, 0, TEXTS, 1, 0);
            assert_int_equal(t->dims[1], at);
            assert_memory_equal(tensor_data(t), rows, at * sizeof rows[0]);
            t = &run_result(r, 1)->tensor;
            assert_int_equal(t->dims[0], TEXTS);
            assert_memory_equal(tensor_data(t), alone, sizeof alone);
            t = infer(r, m->graph, 2, 1, 0, 1); /* and alone again */
            assert_memory_equal(tensor_data(t), alone[2], sizeof alone[2]);
        }
    }
    run_free(r);
    run_free(u);
    onnx_free(m);
    onnx_free(plain);
}

static void test_bert(void **state)
{
    (void)state;
    check("bert-eager-11", 1, 1, 4);
    check("bert-eager-14", 1, 1, 4);
    check("bert-sdpa-17", 1, 1, 4);
    check("bert-eager-dynamo", 1, 1, 4);
    check("bert-sdpa-dynamo", 1, 1, 4);
}

static void test_families(void **state)
{
    (void)state;
    check("distilbert-sdpa-14", 1, 1, 4);
    check("roberta-sdpa-14", 1, 1, 4);
    check("electra-sdpa-17", 1, 1, 5);
    check("mpnet-eager-14", 0, 0, 6); /* its scores have a sum of their own: not fused, not packed, right all the same */
}

/* Cuts lie where one tensor of tokens crosses: behind the embeddings, the attention and the feed-forward part. */
static void test_segments(void **state)
{
    (void)state;
    struct onnx_model *m = load("bert-sdpa-17", 0);
    struct segment *list;
    struct err e;
    uint32_t n, nodes = 0;
    int64_t sizes[2];
    uint64_t weights = 0;
    double flops = 0, linear = 0;
    for (uint32_t i = 0; i < 2; i++)
        sizes[i] = dim_symbol(m->graph->syms, dim_named(m->graph->syms, "batch")) == (int)i ? 2 : 10;
    assert_int_equal(graph_segments(m->graph, sizes, 2, &list, &n, &e), ST_OK);
    assert_in_range(n, 3, 12);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(list[i].first, nodes);
        nodes += list[i].count;
        weights += list[i].weight_bytes;
        flops += list[i].flops;
        if (i + 1 < n)
            assert_int_equal(list[i].out_bytes, 2 * 10 * WIDTH * sizeof(float));
    }
    assert_int_equal(nodes, m->graph->n_nodes);
    for (uint32_t i = 0; i < m->graph->n_nodes; i++)
        if (strcmp(m->graph->nodes[i]->op, "Linear") == 0)
            linear += node_flops(m->graph, m->graph->nodes[i], sizes, 2);
    assert_true(linear == 2.0 * 20 * (8 * 24 + 8 * 8 + 8 * 12 + 12 * 8));
    assert_true(flops > linear && flops < 2 * linear);
    assert_in_range(weights, (40 + 20 + 2) * WIDTH * 4, 8000);
    mem_free(list);
    onnx_free(m);
}

static int open_golden(void **state)
{
    (void)state;
    json_error_t e;
    golden = json_load_file(FOLDER "golden.json", 0, &e);
    return golden ? 0 : -1;
}

static int close_golden(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bert), cmocka_unit_test(test_families), cmocka_unit_test(test_segments)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
