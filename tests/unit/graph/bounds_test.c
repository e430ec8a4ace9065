/* What a record makes a graph ask for: more memory than a run may have, sizes that cannot be told. An error of that record, and the next one goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/graph.h"

enum { BOUND = 64 << 20 };

static struct graph *new_graph(struct graph *outer)
{
    struct graph *g;
    struct err e;
    const struct kernels *k;
    assert_int_equal(cpu_kernels(NULL, &k, &e), ST_OK);
    assert_int_equal(graph_new(k, outer, &g, &e), ST_OK);
    return g;
}

static void input(struct graph *g, const char *name, enum dtype d, int rank)
{
    struct type t;
    type_tensor(&t, d, rank, NULL);
    for (int i = 0; i < rank; i++) {
        char size[64];
        snprintf(size, sizeof size, "%s.%d", name, i);
        t.dims[i] = dim_named(g->syms, size);
    }
    assert_true(graph_input(g, name, &t) >= 0);
}

static struct node *add(struct graph *g, const char *op, const char *const *names, uint32_t n)
{
    int32_t in[8], out[1] = {graph_value(g, "y")};
    for (uint32_t i = 0; i < n; i++)
        in[i] = *names[i] ? graph_value(g, names[i]) : -1;
    struct node *node = graph_node(g, "", op, 17, "the node", n, in, 1, out);
    assert_non_null(node);
    assert_true(graph_output(g, graph_value(g, "y")) >= 0);
    return node;
}

struct brought {
    enum dtype dtype;
    uint32_t rank;
    int64_t dims[4];
    const void *data;
};

static enum status go(struct run *r, uint32_t n, const struct brought *in, struct err *e)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(run_set(r, i, in[i].dtype, in[i].rank, in[i].dims, in[i].data, e), ST_OK);
    return run_graph(r, e);
}

static float x4[4] = {1, 2, 3, 4};
#define X {DT_F32, 1, {4}, x4}
#define LONGS(COUNT, ...) {DT_I64, 1, {COUNT}, (int64_t[]){__VA_ARGS__}}
#define LONG(V) {DT_I64, 0, {0}, (int64_t[]){V}}

static const struct bad {
    const char *op, *names[4];
    uint32_t n;
    struct brought good[4], bad[4];
    const char *words; /* of the message */
    int64_t count;     /* of good's result */
} cases[] = {
    {"Expand", {"x", "s"}, 2, {X, LONGS(2, 3, 4)}, {X, LONGS(2, 2500000000, 4)}, "a tensor of 37.3 GiB", 12},
    {"Tile", {"x", "s"}, 2, {X, LONGS(1, 2)}, {X, LONGS(1, 2500000000)}, "a tensor of 37.3 GiB", 8},
    {"Tile", {"x", "s"}, 2, {X, LONGS(1, 2)}, {X, LONGS(1, INT64_MAX / 2)}, "out of range", 8},
    {"ConstantOfShape", {"s"}, 1, {LONGS(2, 2, 2)}, {LONGS(2, 100000, 100000)}, "a tensor of 37.3 GiB", 4},
    {"ConstantOfShape", {"s"}, 1, {LONGS(2, 2, 2)}, {LONGS(2, INT64_MAX, INT64_MAX)}, "sizes that cannot be", 4},
    {"Range", {"a", "b", "c"}, 3, {LONG(0), LONG(5), LONG(1)}, {LONG(0), LONG(10000000000), LONG(1)}, "the range is too long: 1e+10 elements", 5},
    {"Range", {"a", "b", "c"}, 3, {LONG(0), LONG(5), LONG(1)}, {LONG(0), LONG(1000000000), LONG(1)}, "a tensor of 7.5 GiB", 5},
    {"Pad", {"x", "s"}, 2, {X, LONGS(2, 0, 3)}, {X, LONGS(2, 0, 10000000000)}, "a tensor of 37.3 GiB", 7},
    {"Pad", {"x", "s"}, 2, {X, LONGS(2, 0, 3)}, {X, LONGS(2, INT64_MAX - 2, 4)}, "out of range", 7},
    {"Reshape", {"x", "s"}, 2, {X, LONGS(2, 2, -1)}, {X, LONGS(2, 2, INT64_MIN)}, "size 1 is -4611686018427387904", 4},
    {"Expand", {"x", "s"}, 2, {X, LONGS(2, 3, 4)}, {X, LONGS(2, INT64_MIN, 4)}, "size 0 is -4611686018427387904", 12},
    {"ConstantOfShape", {"s"}, 1, {LONGS(2, 2, 2)}, {LONGS(2, INT64_MIN, 2)}, "size 0 is -4611686018427387904", 4},
    {"Tile", {"x", "s"}, 2, {X, LONGS(1, 2)}, {X, LONGS(1, INT64_MIN)}, "repeat 0 is -4611686018427387904", 8},
    {"Pad", {"x", "s"}, 2, {X, LONGS(2, 0, 3)}, {X, LONGS(2, INT64_MIN, 1)}, "axis 0 of size 4 is cut by more than it has", 7},
    {"Resize", {"x", "", "", "s"}, 4, {X, {0}, {0}, LONGS(1, 6)}, {X, {0}, {0}, LONGS(1, INT64_MIN)}, "size -4611686018427387904", 6},
    {"Resize", {"x", "", "", "s"}, 4, {X, {0}, {0}, LONGS(1, 6)}, {X, {0}, {0}, LONGS(1, 10000000000)}, "a tensor of 37.3 GiB", 6},
    {"OneHot", {"s", "n", "x"}, 3, {LONGS(2, 1, 0), LONG(3), {DT_F32, 1, {2}, x4}}, {LONGS(2, 1, 0), LONG(5000000000), {DT_F32, 1, {2}, x4}},
     "a tensor of 37.3 GiB", 6},
};

/* Sizes are told by inputs, so that nothing is known when the model is loaded. */
static void test_each_op(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct bad *c = &cases[i];
        struct brought good[4], bad[4];
        uint32_t n = 0;
        struct err e = {0};
        struct graph *g = new_graph(NULL);
        for (uint32_t k = 0; k < c->n; k++) {
            if (!*c->names[k])
                continue;
            input(g, c->names[k], c->good[k].dtype, (int)c->good[k].rank);
            good[n] = c->good[k];
            bad[n++] = c->bad[k];
        }
        add(g, c->op, c->names, c->n);
        if (graph_finish(g, &(struct graph_opts){.run_bytes = BOUND}, &e) != ST_OK)
            fail_msg("%s: %s", c->op, e.text);
        struct run *r;
        assert_int_equal(run_new(g, &r, &e), ST_OK);
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(go(r, n, good, &e), ST_OK);
            assert_int_equal(tensor_count(&run_result(r, 0)->tensor), c->count);
            enum status st = go(r, n, bad, &e);
            if (st != ST_USER || !strstr(e.text, "node 'the node'") || !strstr(e.text, c->op) || !strstr(e.text, c->words))
                fail_msg("%s: %d, \"%s\" instead of one with \"%s\"", c->op, (int)st, st == ST_OK ? "" : e.text, c->words);
            assert_true(run_bytes(r) <= BOUND);
        }
        run_free(r);
        graph_free(g);
    }
}

/* A loop of 10^10 turns; what it gathers is a tensor for each, or the same one each time. */
static void loop(const char *gathers)
{
    struct graph *g = new_graph(NULL), *body = new_graph(g);
    struct err e;
    uint8_t yes = 1;
    struct type t;
    type_tensor(&t, DT_I64, 0, NULL);
    graph_input(body, "i", &t);
    type_tensor(&t, DT_BOOL, 0, NULL);
    graph_input(body, "more", &t);
    graph_constant(body, "constant", DT_I64, 0, NULL, (int64_t[]){7});
    int32_t in[2] = {graph_value(body, "i"), graph_value(body, "i")}, out[1] = {graph_value(body, "doubled")}, on[1] = {graph_value(body, "more")},
            again[1] = {graph_value(body, "again")};
    assert_non_null(graph_node(body, "", "Add", 17, "add", 2, in, 1, out));
    assert_non_null(graph_node(body, "", "Identity", 17, "on", 1, on, 1, again));
    graph_output(body, again[0]);
    graph_output(body, graph_value(body, gathers));
    input(g, "n", DT_I64, 0);
    graph_constant(g, "yes", DT_BOOL, 0, NULL, &yes);
    struct node *n = add(g, "Loop", (const char *const[]){"n", "yes"}, 2);
    struct attr a = {.name = strdup("body"), .kind = ATTR_GRAPH, .count = 1, .graphs = calloc(1, sizeof a.graphs)};
    assert_non_null(a.graphs);
    *a.graphs = body;
    assert_int_equal(node_add_attr(n, &a, &e), ST_OK);
    if (graph_finish(g, &(struct graph_opts){.run_bytes = BOUND}, &e) != ST_OK)
        fail_msg("%s", e.text);
    struct run *r;
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(go(r, 1, &(struct brought)LONG(5), &e), ST_OK);
        assert_int_equal(tensor_count(&run_result(r, 0)->tensor), 5);
        assert_int_equal(go(r, 1, &(struct brought)LONG(10000000000), &e), ST_USER);
        if (!strstr(e.text, "node '") || !strstr(e.text, "the memory that it may have here (64.0 MiB)"))
            fail_msg("%s", e.text);
        assert_true(run_bytes(r) <= BOUND);
    }
    run_free(r);
    graph_free(g);
}

static void test_loop(void **state)
{
    (void)state;
    loop("doubled");
    loop("constant");
}

/* What one record left behind in buffers of other sizes is no reason to refuse the next. */
static void test_what_lies_idle_goes(void **state)
{
    (void)state;
    struct graph *g = new_graph(NULL);
    struct err e;
    input(g, "s", DT_I64, 1);
    add(g, "ConstantOfShape", (const char *const[]){"s"}, 1);
    assert_int_equal(graph_finish(g, &(struct graph_opts){.run_bytes = BOUND}, &e), ST_OK);
    struct run *r;
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    for (int64_t floats = 1 << 10; floats <= 14 << 20; floats += floats / 4) { /* each needs a buffer that no earlier one left; together far more than the bound */
        struct brought in = LONGS(1, floats);
        if (go(r, 1, &in, &e) != ST_OK)
            fail_msg("%lld floats: %s", (long long)floats, e.text);
        assert_true(run_bytes(r) <= BOUND);
    }
    run_free(r);
    graph_free(g);
}

static enum status cannot_tell(struct shaping *s, struct err *e)
{
    (void)e;
    type_tensor(&s->out[0], DT_F32, 1, NULL);
    return ST_OK;
}

static enum status makes_nothing(struct run *r, const struct node *n, struct err *e)
{
    (void)r, (void)n, (void)e;
    return ST_OK;
}

/* Whatever an op's shape function leaves open, and whatever its run forgets, is that record's error; nobody reads what is not there. */
static void test_sizes_left_open(void **state)
{
    (void)state;
    for (int makes = 0; makes < 2; makes++) {
        struct graph *g = new_graph(NULL);
        struct err e;
        input(g, "x", DT_F32, 1);
        struct node *n = add(g, "Neg", (const char *const[]){"x"}, 1);
        assert_int_equal(graph_finish(g, &(struct graph_opts){0}, &e), ST_OK);
        struct op_def def = *n->def;
        def.shape = cannot_tell;
        def.flags = makes ? OP_MAKES : 0;
        if (makes)
            def.run = makes_nothing;
        n->def = &def;
        struct run *r;
        assert_int_equal(run_new(g, &r, &e), ST_OK);
        assert_int_equal(go(r, 1, &(struct brought)X, &e), ST_USER);
        assert_string_equal(e.text, makes ? "node 'the node' (Neg): it has made no output 0 of what it was given"
                                          : "node 'the node' (Neg): the sizes of output 0 cannot be told from what its inputs hold");
        run_free(r);
        graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_op), cmocka_unit_test(test_loop), cmocka_unit_test(test_what_lies_idle_goes),
                                       cmocka_unit_test(test_sizes_left_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
