/* Models from files: every allocation may fail; steady runs allocate nothing; what is proved of batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/batch.h"
#include "workers/engine/onnx/onnx.h"

#define SEEDS "tests/fuzz/seeds/onnx_fuzz"

static const struct kernels *kernels(void)
{
    const struct kernels *k;
    struct err e;
    assert_int_equal(cpu_kernels(NULL, &k, &e), ST_OK);
    return k;
}

/* x is [rows, 4] in all but the convolution's, where it is [rows, 1, 4, 4]. */
static enum status run_some(struct run *r, const struct graph *g, int64_t rows, struct err *e)
{
    static float x[64];
    const struct type *t = &g->values[g->in[0]].type;
    int64_t dims[4] = {rows, t->rank == 4 ? 1 : 4, 4, 4};
    for (int i = 0; i < 64; i++)
        x[i] = (float)i / 8;
    TRY(run_set(r, 0, DT_F32, (uint32_t)t->rank, dims, x, e));
    return run_graph(r, e);
}

static enum status all(const char *path, const struct kernels *k, struct err *e)
{
    struct onnx_model *m = NULL;
    struct run *r = NULL;
    TRY(onnx_load(path, k, &m, e));
    enum status st = graph_finish(m->graph, &(struct graph_opts){0}, e);
    if (st == ST_OK)
        st = run_new(m->graph, &r, e);
    if (st == ST_OK)
        st = run_some(r, m->graph, 2, e);
    run_free(r);
    onnx_free(m);
    return st;
}

static void each_seed(void (*f)(const char *path))
{
    DIR *d = opendir(SEEDS);
    assert_non_null(d);
    int count = 0;
    for (struct dirent *x; (x = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", SEEDS, x->d_name);
        if (x->d_name[0] == '.')
            continue;
        f(path);
        count++;
    }
    closedir(d);
    assert_true(count >= 9);
}

static void fail_each(const char *path)
{
    struct err e;
    const struct kernels *k = kernels();
    enum status st = ST_NOMEM;
    for (uint64_t n = 1; st == ST_NOMEM; n++) {
        mem_fail_nth(n);
        st = all(path, k, &e);
        mem_fail_nth(0);
        assert_true(n < 100000);
    }
    if (st != ST_OK)
        fail_msg("'%s': %s", path, e.text);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    each_seed(fail_each);
}

static void steady(const char *path)
{
    struct onnx_model *m;
    struct run *r;
    struct err e;
    assert_int_equal(onnx_load(path, kernels(), &m, &e), ST_OK);
    assert_int_equal(graph_finish(m->graph, &(struct graph_opts){0}, &e), ST_OK);
    assert_int_equal(run_new(m->graph, &r, &e), ST_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(run_some(r, m->graph, 1 + i % 2, &e), ST_OK);
    size_t bytes = run_bytes(r);
    mem_fail_nth(0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(run_some(r, m->graph, 1 + i % 2, &e), ST_OK);
    uint64_t made = mem_fail_nth(0);
    assert_int_equal(run_bytes(r), bytes);
    /* a loop keeps what it carries and gathers in lists of its own */
    if (made && !strstr(path, "loop") && !strstr(path, "sequence"))
        fail_msg("'%s': %llu allocations in ten runs", path, (unsigned long long)made);
    run_free(r);
    onnx_free(m);
}

static void test_steady_runs_allocate_nothing(void **state)
{
    (void)state;
    each_seed(steady);
}

static int proved(const char *name, char *why)
{
    struct onnx_model *m;
    struct err e;
    char path[256];
    snprintf(path, sizeof path, "%s/%s", SEEDS, name);
    assert_int_equal(onnx_load(path, kernels(), &m, &e), ST_OK);
    assert_int_equal(graph_finish(m->graph, &(struct graph_opts){0}, &e), ST_OK);
    int r = batch_prove(m->graph, why);
    onnx_free(m);
    return r;
}

static void test_batches(void **state)
{
    (void)state;
    char why[BATCH_WHY_MAX];
    assert_int_equal(proved("relu", why), 1);
    assert_int_equal(proved("linear", why), 1);
    assert_int_equal(proved("shape", why), 1); /* the batch goes through a Shape, and comes back by a Reshape */
    assert_int_equal(proved("conv", why), 1);
    assert_int_equal(proved("if", why), 1);    /* its condition is known */
    assert_int_equal(proved("loop", why), 0);
    assert_string_equal(why, "node 'Loop' (Loop) may mix records");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation_may_fail), cmocka_unit_test(test_steady_runs_allocate_nothing),
                                       cmocka_unit_test(test_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
