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
    check("mpnet-eager-14", 1, 1, 4); /* its scores have a sum of their own, of places alone */
}

/* What is added to the scores is shared by packed texts only where it does not know the text's length: 1 for places alone, 0 where they are divided by it. */
static void test_places(void **state)
{
    (void)state;
    for (int by_length = 0; by_length < 2; by_length++) {
        struct graph *g;
        struct err e;
        struct type t;
        char why[PACK_WHY_MAX] = "";
        enum packed_kind kinds[1];
        assert_int_equal(graph_new(&kernels_generic, NULL, &g, &e), ST_OK);
        type_tensor(&t, DT_I64, 2, (dim[]){dim_named(g->syms, "batch"), dim_named(g->syms, "length")});
        int32_t ids = graph_input(g, "ids", &t);
        int64_t sizes[2] = {0, 1}, heads[4] = {0, 0, 2, 4}, merged[3] = {0, 0, 8}, four = 4, three = 3, one = 1, front[2] = {0, 1};
        float table[40 * 8];
        for (int i = 0; i < 40 * 8; i++)
            table[i] = (float)(i % 13) - 6;
#define V(name) graph_value(g, name)
#define NODE(op, out, ...) graph_node(g, "", op, 17, out, sizeof((int32_t[]){__VA_ARGS__}) / 4, (int32_t[]){__VA_ARGS__}, 1, (int32_t[]){V(out)})
        int32_t none = graph_constant(g, "0", DT_I64, 0, NULL, &sizes[0]), step = graph_constant(g, "1", DT_I64, 0, NULL, &sizes[1]),
                shaped = graph_constant(g, "heads", DT_I64, 1, &four, heads), back = graph_constant(g, "merged", DT_I64, 1, &three, merged),
                first = graph_constant(g, "first", DT_I64, 1, &one, front);
        int32_t words = graph_constant(g, "words", DT_F32, 2, (int64_t[]){40, 8}, table), each = graph_constant(g, "each", DT_F32, 3, (int64_t[]){2, 1, 1}, table);
        NODE("Gather", "x", words, ids);
        NODE("Reshape", "split", V("x"), shaped);
        struct node *rows = NODE("Transpose", "rows", V("split")), *columns = NODE("Transpose", "columns", V("split"));
        NODE("MatMul", "products", V("rows"), V("columns"));
        NODE("Shape", "shape", ids);
        NODE("Gather", "length", V("shape"), step);
        NODE("Range", "range", none, V("length"), step);
        struct node *cast = NODE("Cast", "place", V("range")), *number = NODE("Cast", "number", V("length"));
        NODE("Div", "share", V("place"), by_length ? V("number") : graph_constant(g, "seven", DT_F32, 0, NULL, &(float){7}));
        NODE("Unsqueeze", "query", V("share"), graph_constant(g, "second", DT_I64, 1, &one, &one));
        NODE("Sub", "apart", V("query"), V("share"));
        NODE("Mul", "weighed", V("apart"), each);
        NODE("Unsqueeze", "bias", V("weighed"), first);
        NODE("Add", "scores", V("products"), V("bias"));
        struct node *softmax = NODE("Softmax", "weights", V("scores"));
        NODE("MatMul", "mixed", V("weights"), V("rows"));
        struct node *over = NODE("Transpose", "over", V("mixed"));
        NODE("Reshape", "y", V("over"), back);
        struct node *turns[] = {rows, columns, over};
        for (int i = 0; i < 3; i++) {
            int64_t perm[3][4] = {{0, 2, 1, 3}, {0, 2, 3, 1}, {0, 2, 1, 3}}, *p = mem_array(4, sizeof *p);
            memcpy(p, perm[i], sizeof perm[i]);
            struct attr a = {.name = mem_strdup("perm"), .kind = ATTR_INTS, .count = 4, .ints = p};
            assert_int_equal(node_add_attr(turns[i], &a, &e), ST_OK);
        }
        struct node *casts[] = {cast, number, softmax};
        for (int i = 0; i < 3; i++) {
            struct attr a = {.name = mem_strdup(i == 2 ? "axis" : "to"), .kind = ATTR_INT, .i = i == 2 ? -1 : DT_F32};
            assert_int_equal(node_add_attr(casts[i], &a, &e), ST_OK);
        }
        graph_output(g, V("y"));
        if (graph_finish(g, &(struct graph_opts){0}, &e) != ST_OK)
            fail_msg("%s", e.text);
        assert_int_equal(count(g, "ebb", "Attention"), 1);
        assert_int_equal(count(g, "ebb", "Range"), 1);
        assert_int_equal(pack_prove(g, kinds, why), !by_length);
        if (by_length)
            assert_non_null(strstr(why, "node 'number' (Cast)"));
        struct run *r;
        assert_int_equal(run_new(g, &r, &e), ST_OK);
        uint32_t lengths[3] = {4, 9, 6}, at = 0;
        int64_t tokens[19];
        float alone[19 * 8];
        for (int i = 0; i < 19; i++)
            tokens[i] = (i * 17) % 40;
        for (int i = 0; i < 3; at += lengths[i++]) {
            assert_int_equal(run_set(r, 0, DT_I64, 2, (int64_t[]){1, lengths[i]}, tokens + at, &e), ST_OK);
            if (run_graph(r, &e) != ST_OK)
                fail_msg("%s", e.text);
            memcpy(alone + 8 * at, tensor_data(&run_result(r, 0)->tensor), lengths[i] * 8 * sizeof(float));
        }
        if (!by_length) {
            struct seqs s = {3, 19, lengths};
            run_pack(r, &s);
            assert_int_equal(run_set(r, 0, DT_I64, 2, (int64_t[]){1, 19}, tokens, &e), ST_OK);
            if (run_graph(r, &e) != ST_OK)
                fail_msg("%s", e.text);
            assert_memory_equal(tensor_data(&run_result(r, 0)->tensor), alone, sizeof alone);
        }
        run_free(r);
        graph_free(g);
    }
}

/* Quantised as ONNX Runtime does it: the scale of activations belongs to a text, so texts are packed, and each keeps the bits that it has alone. */
static void test_dynamic(void **state)
{
    (void)state;
    struct onnx_model *m = load("bert-dynamic-17", 0);
    struct run *r;
    struct err e;
    char why[PACK_WHY_MAX] = "";
    enum packed_kind kinds[2];
    float alone[TEXTS][WIDTH], rows[TEXTS * LONGEST][WIDTH];
    uint32_t at = 0;
    assert_int_equal(count(m->graph, "com.microsoft", "DynamicQuantizeMatMul"), 6);
    assert_int_equal(count(m->graph, "", "DynamicQuantizeLinear"), 0);
    assert_int_equal(count(m->graph, "ebb", "Attention"), 1);
    assert_int_equal(count(m->graph, "ebb", "Positions"), 1);
    if (pack_prove(m->graph, kinds, why) != 1)
        fail_msg("not packed: %s", why);
    assert_int_equal(run_new(m->graph, &r, &e), ST_OK);
    json_t *want = json_object_get(golden, "bert-sdpa-17");
    double off = 0;
    for (uint32_t i = 0; i < TEXTS; i++) {
        const struct tensor *t = infer(r, m->graph, i, 1, 0, 0);
        uint32_t len = (uint32_t)t->dims[1];
        memcpy(rows[at], tensor_data(t), len * sizeof rows[0]);
        at += len;
        memcpy(alone[i], tensor_data(&run_result(r, 1)->tensor), sizeof alone[i]);
        for (int k = 0; k < WIDTH; k++)
            off = fmax(off, fabs((double)alone[i][k] - json_real_value(json_array_get(json_array_get(want, i), (size_t)k))));
    }
    assert_true(off > 0 && off < 0.05); /* bytes for weights and activations, in rows of eight */
    const struct tensor *t = infer(r, m->graph, 0, TEXTS, 1, 0);
    assert_int_equal(t->dims[1], at);
    assert_memory_equal(tensor_data(t), rows, at * sizeof rows[0]);
    assert_memory_equal(tensor_data(&run_result(r, 1)->tensor), alone, sizeof alone);
    run_free(r);
    onnx_free(m);
}

/* A product alone: the same bits as its parts, with and without bias and zero points, one scale or one a column, for a record of any number of rows. */
static void test_dynamic_bits(void **state)
{
    (void)state;
    enum { K = 37, N = 21, ROWS = 133 };
    static float x[ROWS * K], got[2][ROWS * N];
    static uint8_t w[K * N], zero[N];
    static float scale[N], bias[N];
    uint32_t seed = 1;
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (float)(int32_t)(seed = seed * 1664525u + 1013904223u) / 7e8f;
    for (int i = 0; i < K * N; i++)
        w[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < N; i++) {
        zero[i] = (uint8_t)(100 + i);
        scale[i] = 0.001f * (float)(i + 1);
        bias[i] = 0.3f - (float)i;
    }
    for (int way = 0; way < 8; way++)
        for (int fused = 0; fused < 2; fused++) {
            struct graph *g;
            struct err e;
            struct type t;
            int64_t many = N, wide[2] = {K, N};
            assert_int_equal(graph_new(&kernels_generic, NULL, &g, &e), ST_OK);
            type_tensor(&t, DT_F32, 2, (dim[]){dim_named(g->syms, "rows"), K});
            int32_t in = graph_input(g, "x", &t), q = graph_value(g, "q"), s = graph_value(g, "s"), z = graph_value(g, "z"), sums = graph_value(g, "sums"),
                    f = graph_value(g, "f"), ss = graph_value(g, "ss"), y = graph_value(g, "y"), out = way & 1 ? graph_value(g, "out") : y;
            int32_t cw = graph_constant(g, "w", DT_U8, 2, wide, w), cz = way & 2 ? graph_constant(g, "wz", DT_U8, 1, &many, zero) : -1,
                    cs = graph_constant(g, "ws", DT_F32, way & 4 ? 1 : 0, &many, scale), cb = graph_constant(g, "b", DT_F32, 1, &many, bias);
            assert_non_null(graph_node(g, "", "DynamicQuantizeLinear", 17, "q", 1, &in, 3, (int32_t[]){q, s, z}));
            assert_non_null(graph_node(g, "", "MatMulInteger", 17, "m", 4, (int32_t[]){q, cw, z, cz}, 1, &sums));
            struct node *cast = graph_node(g, "", "Cast", 17, "c", 1, &sums, 1, &f);
            struct attr a = {.name = strdup("to"), .kind = ATTR_INT, .i = DT_F32};
            assert_int_equal(node_add_attr(cast, &a, &e), ST_OK);
            assert_non_null(graph_node(g, "", "Mul", 17, "ss", 2, (int32_t[]){s, cs}, 1, &ss));
            assert_non_null(graph_node(g, "", "Mul", 17, "y", 2, (int32_t[]){f, ss}, 1, &y));
            if (way & 1)
                assert_non_null(graph_node(g, "", "Add", 17, "out", 2, (int32_t[]){cb, y}, 1, &out));
            graph_output(g, out);
            if (graph_finish(g, &(struct graph_opts){.no_fuse = !fused}, &e) != ST_OK)
                fail_msg("%s", e.text);
            assert_int_equal(count(g, "com.microsoft", "DynamicQuantizeMatMul"), fused);
            assert_int_equal(g->n_nodes == 1, fused);
            struct run *r;
            assert_int_equal(run_new(g, &r, &e), ST_OK);
            assert_int_equal(run_set(r, 0, DT_F32, 2, (int64_t[]){ROWS, K}, x, &e), ST_OK);
            assert_int_equal(run_graph(r, &e), ST_OK);
            memcpy(got[fused], tensor_data(&run_result(r, 0)->tensor), sizeof got[0]);
            run_free(r);
            graph_free(g);
            if (fused)
                assert_memory_equal(got[0], got[1], sizeof got[0]);
        }
}

/* Cuts lie where one tensor of tokens crosses: behind the embeddings, the attention and the feed-forward part; in between only where a segment would have more than a
   fifth of the work. */
static void test_segments(void **state)
{
    (void)state;
    struct onnx_model *m = load("bert-sdpa-17", 0);
    struct segment *list;
    struct err e;
    uint32_t n, nodes = 0, narrow = 0;
    int64_t sizes[2];
    uint64_t weights = 0;
    double flops = 0, linear = 0;
    for (uint32_t i = 0; i < 2; i++)
        sizes[i] = dim_symbol(m->graph->syms, dim_named(m->graph->syms, "batch")) == (int)i ? 2 : 10;
    assert_int_equal(graph_segments(m->graph, &(struct cutting){.where = sizes, .sizes = sizes, .symbols = 2}, &list, &n, &e), ST_OK);
    assert_in_range(n, 9, 16);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(list[i].first, nodes);
        nodes += list[i].count;
        weights += list[i].weight_bytes;
        flops += list[i].flops;
        narrow += i + 1 < n && list[i].out_bytes == 2 * 10 * WIDTH * sizeof(float);
        assert_true(i + 1 == n || list[i].out_bytes >= 2 * 10 * WIDTH * sizeof(float));
    }
    assert_true(narrow >= 7 && narrow + 1 < n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(list[i].flops < flops / 2);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bert), cmocka_unit_test(test_families), cmocka_unit_test(test_places), cmocka_unit_test(test_dynamic),
                                       cmocka_unit_test(test_dynamic_bits), cmocka_unit_test(test_segments)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
