/* Graphs built by hand: order, types, folding, running. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/graph.h"

static struct graph *new_graph(void)
{
    struct graph *g;
    struct err e;
    const struct kernels *k;
    assert_int_equal(cpu_kernels(NULL, &k, &e), ST_OK);
    assert_int_equal(graph_new(k, NULL, &g, &e), ST_OK);
    return g;
}

static struct node *add(struct graph *g, const char *op, const char *a, const char *b, const char *y)
{
    int32_t in[2] = {graph_value(g, a), b ? graph_value(g, b) : -1}, out[1] = {graph_value(g, y)};
    struct node *n = graph_node(g, "", op, 17, y, b ? 2 : 1, in, 1, out);
    assert_non_null(n);
    return n;
}

static int32_t input(struct graph *g, const char *name, enum dtype d, int rank, const dim *dims)
{
    struct type t;
    type_tensor(&t, d, rank, dims);
    return graph_input(g, name, &t);
}

static void test_runs(void **state)
{
    (void)state;
    struct graph *g = new_graph();
    struct err e;
    dim dims[2] = {dim_named(g->syms, "batch"), 3};
    input(g, "x", DT_F32, 2, dims);
    add(g, "Identity", "b", NULL, "y"); /* out of order */
    add(g, "Identity", "a", NULL, "b");
    add(g, "Identity", "x", NULL, "a");
    graph_output(g, graph_value(g, "y"));
    assert_int_equal(graph_finish(g, &(struct graph_opts){.no_fuse = 1}, &e), ST_OK);
    assert_string_equal(g->nodes[0]->name, "a");
    assert_true(g->values[graph_find(g, "y")].type.dims[0] == dims[0]);
    struct run *r;
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    for (int64_t rows = 1; rows < 4; rows++) {
        float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        assert_int_equal(run_set(r, 0, DT_F32, 2, (int64_t[]){rows, 3}, x, &e), ST_OK);
        assert_int_equal(run_graph(r, &e), ST_OK);
        const struct tensor *y = &run_result(r, 0)->tensor;
        assert_int_equal(y->dims[0], rows);
        assert_memory_equal(tensor_data(y), x, (size_t)rows * 12);
        assert_ptr_not_equal(tensor_data(y), x); /* the caller has its memory back */
    }
    assert_int_equal(run_set(r, 0, DT_F32, 2, (int64_t[]){1, 4}, NULL, &e), ST_USER);
    assert_string_equal(e.text, "input 'x' is float32[1, 4] where the model takes float32[batch, 3]");
    run_free(r);
    graph_free(g);
}

static void test_refuses(void **state)
{
    (void)state;
    struct err e;
    struct graph *g = new_graph();
    add(g, "Identity", "b", NULL, "a");
    add(g, "Identity", "a", NULL, "b");
    graph_output(g, graph_value(g, "b"));
    assert_int_equal(graph_finish(g, &(struct graph_opts){0}, &e), ST_USER);
    assert_string_equal(e.text, "node 'b' (Identity): it needs 'a', which depends on it: the graph has a cycle");
    graph_free(g);

    g = new_graph();
    add(g, "Identity", "nowhere", NULL, "a");
    graph_output(g, graph_value(g, "a"));
    assert_int_equal(graph_finish(g, &(struct graph_opts){0}, &e), ST_USER);
    assert_non_null(strstr(e.text, "its input 'nowhere' is made by no node"));
    graph_free(g);

    g = new_graph();
    add(g, "Foo", "x", NULL, "a");
    add(g, "Foo", "x", NULL, "b");
    add(g, "Bar", "x", NULL, "c");
    assert_int_equal(graph_finish(g, &(struct graph_opts){0}, &e), ST_USER);
    assert_string_equal(e.text, "node 'a': op 'ai.onnx.Foo' (opset 17) is not supported by this version (nor are 1 more such nodes); "
                                "node 'c': op 'ai.onnx.Bar' (opset 17) is not supported by this version");
    graph_free(g);
}

static void test_folds(void **state)
{
    (void)state;
    struct graph *g = new_graph();
    struct err e;
    int64_t shape[2] = {2, 3}, two = 2;
    graph_constant(g, "shape", DT_I64, 1, &two, shape);
    add(g, "ConstantOfShape", "shape", NULL, "zeros");
    add(g, "Identity", "zeros", NULL, "y");
    graph_output(g, graph_value(g, "y"));
    assert_int_equal(graph_finish(g, &(struct graph_opts){0}, &e), ST_OK);
    assert_int_equal(g->n_nodes, 0);
    struct run *r;
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    assert_int_equal(run_graph(r, &e), ST_OK);
    const struct tensor *y = &run_result(r, 0)->tensor;
    assert_int_equal(y->rank, 2);
    assert_memory_equal(tensor_data(y), ((float[6]){0}), 24);
    run_free(r);
    graph_free(g);
}

static void test_sizes(void **state)
{
    (void)state;
    struct syms *s;
    struct err e;
    char buf[200];
    assert_int_equal(syms_new(&s, &e), ST_OK);
    dim b = dim_named(s, "batch"), n = dim_named(s, "seq");
    assert_true(b == dim_named(s, "batch"));
    assert_true(b != n);
    dim bn = dim_mul(s, b, n);
    assert_true(bn == dim_mul(s, n, b));
    assert_true(dim_div(s, bn, b) == n);
    assert_true(dim_div(s, dim_mul(s, bn, 12), 4) == dim_mul(s, 3, bn));
    assert_true(dim_sub(s, dim_add(s, b, 5), b) == 5);
    assert_true(dim_add(s, b, 0) == b);
    assert_true(dim_mul(s, dim_add(s, b, 1), dim_sub(s, b, 1)) == dim_sub(s, dim_mul(s, b, b), 1));
    assert_true(dim_max(s, dim_add(s, b, 1), b) == dim_add(s, b, 1));
    assert_true(dim_div(s, n, 2) == dim_div(s, n, 2));
    assert_string_equal(dim_text(s, dim_mul(s, bn, 12), buf, sizeof buf), "batch*seq*12");
    assert_string_equal(dim_text(s, dim_div(s, dim_add(s, n, -3), 2), buf, sizeof buf), "floor(-3+seq / 2)");
    assert_true(dim_value(s, dim_div(s, dim_add(s, n, -3), 2), (int64_t[]){7, 10}, 2) == 3);
    assert_true(dim_div(s, b, 0) == DIM_UNKNOWN);
    assert_true(dim_mul(s, INT64_MAX / 2, 3) == DIM_UNKNOWN);
    assert_true(dim_ceil_div(NULL, 7, 2) == 4 && dim_div(NULL, -7, 2) == -4);
    syms_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_refuses), cmocka_unit_test(test_folds),
                                       cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
