/* The generic ops: what is known of sizes before a model runs, which axes stay by themselves, the same bits in any company, errors that name the
   node. Their results are compared with ONNX's own by tests/e2e; here stands what those tests do not see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/graph/graph.h"
#include "workers/engine/ops/args.h"
#include "workers/engine/ops/binary.h"
#include "workers/engine/ops/walk.h"

static const struct graph_opts plain = {.no_fuse = 1};
static struct graph *g;
static dim batch, seq;

static int begin(void **state)
{
    (void)state;
    const struct kernels *k;
    struct err e;
    assert_int_equal(cpu_kernels(NULL, &k, &e), ST_OK);
    assert_int_equal(graph_new(k, NULL, &g, &e), ST_OK);
    batch = dim_named(g->syms, "batch");
    seq = dim_named(g->syms, "seq");
    return 0;
}

static int end(void **state)
{
    (void)state;
    graph_free(g);
    return 0;
}

static void input(const char *name, enum dtype d, int rank, const dim *dims)
{
    struct type t;
    type_tensor(&t, d, rank, dims);
    assert_true(graph_input(g, name, &t) >= 0);
}

static void ints(const char *name, uint32_t n, const int64_t *v)
{
    int64_t dims = n;
    assert_true(graph_constant(g, name, DT_I64, 1, &dims, v) >= 0);
}

static void number(const char *name, int64_t v)
{
    assert_true(graph_constant(g, name, DT_I64, 0, NULL, &v) >= 0);
}

/* Inputs are names with blanks between them. The node and its first output have the same name. */
static struct node *op(const char *type, const char *inputs, const char *y)
{
    char text[200], *save = NULL;
    int32_t in[8], out[1] = {graph_value(g, y)};
    uint32_t n = 0;
    snprintf(text, sizeof text, "%s", inputs);
    for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save))
        in[n++] = strcmp(p, "-") == 0 ? -1 : graph_value(g, p);
    struct node *node = graph_node(g, "", type, 18, y, n, in, 1, out);
    assert_non_null(node);
    return node;
}

static struct node *with_int(struct node *n, const char *name, int64_t v)
{
    struct err e;
    struct attr a = {.name = mem_strdup(name), .kind = ATTR_INT, .i = v};
    assert_int_equal(node_add_attr(n, &a, &e), ST_OK);
    return n;
}

static struct node *with_ints(struct node *n, const char *name, uint32_t count, const int64_t *v)
{
    struct err e;
    struct attr a = {.name = mem_strdup(name), .kind = ATTR_INTS, .count = count, .ints = mem_array(count, sizeof *v)};
    memcpy(a.ints, v, count * sizeof *v);
    assert_int_equal(node_add_attr(n, &a, &e), ST_OK);
    return n;
}

static void finish(const char *result)
{
    struct err e;
    graph_output(g, graph_value(g, result));
    if (graph_finish(g, &plain, &e) != ST_OK)
        fail_msg("%s", e.text);
}

/* Sizes of a value as text, "[batch, seq*4]"; a value's elements likewise. */
static const char *text_of(const dim *d, int64_t n)
{
    static char text[400];
    char one[100];
    size_t at = (size_t)snprintf(text, sizeof text, "[");
    for (int64_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", d[i] == DIM_UNKNOWN ? "?" : dim_text(g->syms, d[i], one, sizeof one));
    snprintf(text + at, sizeof text - at, "]");
    return text;
}

static const struct type *type_of(const char *name)
{
    int32_t v = graph_find(g, name);
    assert_true(v >= 0);
    return &g->values[v].type;
}

static const char *sizes(const char *name)
{
    return text_of(type_of(name)->dims, type_of(name)->rank);
}

static const char *elements(const char *name)
{
    const struct type *t = type_of(name);
    int32_t v = graph_find(g, name);
    const struct tensor *c = &g->values[v].constant;
    dim d[VALUES_MAX];
    for (int64_t i = 0; c->buffer && i < tensor_count(c); i++)
        d[i] = tensor_i64(c, i);
    if (c->buffer)
        return text_of(d, tensor_count(c));
    return t->values ? text_of(t->values, t->rank ? t->dims[0] : 1) : "none";
}

/* What exporters write to split heads and join them again. */
static void test_heads(void **state)
{
    (void)state;
    input("x", DT_F32, 3, (dim[]){batch, seq, 64});
    op("Shape", "x", "shape");
    number("0", 0);
    number("1", 1);
    ints("first", 1, (int64_t[]){0});
    ints("4,16", 2, (int64_t[]){4, 16});
    ints("-1,64", 2, (int64_t[]){-1, 64});
    op("Gather", "shape 0", "b");
    op("Gather", "shape 1", "s");
    op("Unsqueeze", "b first", "b1");
    op("Unsqueeze", "s first", "s1");
    with_int(op("Concat", "b1 s1 4,16", "split"), "axis", 0);
    op("Reshape", "x split", "heads");
    with_ints(op("Transpose", "heads", "turned"), "perm", 4, (int64_t[]){0, 2, 1, 3});
    with_ints(op("Transpose", "turned", "back"), "perm", 4, (int64_t[]){0, 2, 1, 3});
    with_int(op("Concat", "b1 -1,64", "join"), "axis", 0);
    op("Reshape", "back join", "y");
    finish("y");
    assert_string_equal(elements("split"), "[batch, seq, 4, 16]");
    assert_string_equal(sizes("turned"), "[batch, 4, seq, 16]");
    assert_string_equal(elements("join"), "[batch, -1, 64]");
    assert_string_equal(sizes("y"), "[batch, seq, 64]");
}

/* Expand as exporters write it: a shape in which -1 stands for what the input has. */
static void test_expand(void **state)
{
    (void)state;
    input("x", DT_F32, 2, (dim[]){1, seq});
    input("like", DT_F32, 2, (dim[]){batch, seq});
    op("Shape", "like", "shape");
    ints("1", 1, (int64_t[]){1});
    ints("-1", 1, (int64_t[]){-1});
    ints("2", 1, (int64_t[]){2});
    with_int(op("Gather", "shape first", "b"), "axis", 0);
    ints("first", 1, (int64_t[]){0});
    with_int(op("Concat", "b -1", "want"), "axis", 0);
    op("ConstantOfShape", "2", "zeros");
    op("Equal", "want -1", "left");
    op("Shape", "x", "own");
    op("Where", "left own want", "all");
    op("Expand", "x all", "y");
    finish("y");
    assert_string_equal(elements("left"), "[0, 1]");
    assert_string_equal(elements("all"), "[batch, seq]");
    assert_string_equal(sizes("y"), "[batch, seq]");
}

static void test_arithmetic(void **state)
{
    (void)state;
    input("x", DT_F32, 3, (dim[]){batch, seq, 8});
    op("Shape", "x", "shape");
    ints("3", 1, (int64_t[]){3});
    ints("2", 1, (int64_t[]){2});
    ints("0", 1, (int64_t[]){0});
    ints("1", 1, (int64_t[]){1});
    number("zero", 0);
    number("one", 1);
    op("Add", "shape 3", "add");
    op("Sub", "shape 1", "sub");
    op("Mul", "shape 2", "mul");
    op("Div", "mul 2", "div");
    op("Gather", "shape 1", "s1");
    op("Div", "s1 2", "half");
    op("ReduceProd", "shape", "prod");
    op("Size", "x", "size");
    op("Slice", "shape 1 3", "tail");
    op("Max", "shape 2", "max");
    with_int(op("Cast", "tail", "cast"), "to", DT_I32);
    with_int(op("Gather", "shape one", "s"), "axis", 0);
    op("Range", "zero s one", "positions");
    op("ConstantOfShape", "tail", "zeros");
    op("Slice", "x 1 half 1", "part");
    op("Sub", "s1 1", "but_one");
    op("Slice", "x 0 but_one 1", "shorter");
    with_int(op("Concat", "x x part", "joined"), "axis", 1);
    op("Flatten", "x", "flat");
    graph_output(g, graph_value(g, "part"));
    for (int i = 0; i < 8; i++)
        graph_output(g, graph_value(g, (const char *[]){"prod", "size", "max", "cast", "positions", "zeros", "joined", "flat"}[i]));
    graph_output(g, graph_value(g, "shorter"));
    graph_output(g, graph_value(g, "div"));
    finish("add");
    assert_string_equal(elements("add"), "[3+batch, 3+seq, 11]");
    assert_string_equal(elements("div"), "[batch, seq, 8]");
    assert_string_equal(elements("prod"), "[batch*seq*8]");
    assert_string_equal(elements("size"), "[batch*seq*8]");
    assert_string_equal(elements("tail"), "[seq, 8]");
    assert_string_equal(elements("cast"), "[seq, 8]");
    assert_string_equal(sizes("positions"), "[seq]");
    assert_string_equal(sizes("zeros"), "[seq, 8]");
    assert_string_equal(sizes("flat"), "[batch, seq*8]");
    assert_string_equal(sizes("shorter"), "[batch, -1+seq, 8]");
    assert_string_equal(elements("half"), "[floor(seq / 2)]");
}

/* Follows ------------------------------------------------------------------------------------------------------------------------------ */

/* Where axis `axis` of input `in` of the node that makes y goes. */
static int follows(const char *y, uint32_t in, uint32_t axis)
{
    const struct node *n = g->nodes[g->values[graph_find(g, y)].producer];
    struct type types[8], out = *type_of(y);
    const struct tensor *constants[8];
    for (uint32_t i = 0; i < n->n_in; i++) {
        types[i] = g->values[n->in[i]].type;
        constants[i] = g->values[n->in[i]].constant.buffer ? &g->values[n->in[i]].constant : NULL;
    }
    struct shaping s = {.syms = g->syms, .node = n, .n_in = n->n_in, .n_out = 1, .in = types, .out = &out, .constants = constants};
    return n->def->follow ? n->def->follow(&s, in, axis, 0) : -1;
}

static void test_follow(void **state)
{
    (void)state;
    static const char *const names[] = {"reshape", "merge", "turned", "soft", "soft1", "mean", "drop", "slice", "cut", "gather", "mm", "linear",
                                        "concat", "concat0", "bias", "tile", "pad"};
    input("x", DT_F32, 3, (dim[]){batch, seq, 64});
    input("q", DT_F32, 4, (dim[]){batch, 4, seq, 16});
    input("k", DT_F32, 4, (dim[]){batch, 4, 16, seq});
    input("i", DT_I64, 1, (dim[]){seq});
    int64_t wd[2] = {64, 8};
    float *w = mem_zalloc(64 * 8 * sizeof *w);
    graph_constant(g, "w", DT_F32, 2, wd, w);
    mem_free(w);
    float b[64] = {0};
    graph_constant(g, "b", DT_F32, 1, (int64_t[]){64}, b);
    ints("0,0,4,16", 4, (int64_t[]){0, 0, 4, 16});
    ints("-1,64", 2, (int64_t[]){-1, 64});
    ints("0", 1, (int64_t[]){0});
    ints("1", 1, (int64_t[]){1});
    ints("2", 1, (int64_t[]){2});
    ints("2,1,1", 3, (int64_t[]){2, 1, 1});
    ints("pads", 6, (int64_t[]){0, 1, 0, 0, 0, 0});
    op("Reshape", "x 0,0,4,16", "reshape");
    op("Reshape", "x -1,64", "merge");
    with_ints(op("Transpose", "x", "turned"), "perm", 3, (int64_t[]){1, 0, 2});
    op("Softmax", "x", "soft");
    with_int(op("Softmax", "x", "soft1"), "axis", 1);
    op("ReduceMean", "x 1", "mean");
    with_int(op("ReduceMean", "x 1", "drop"), "keepdims", 0);
    op("Slice", "x 0 1 1", "slice");
    op("Slice", "x 1 2 0", "cut");
    with_int(op("Gather", "x i", "gather"), "axis", 1);
    op("MatMul", "q k", "mm");
    op("MatMul", "x w", "linear");
    with_int(op("Concat", "x x", "concat"), "axis", 1);
    with_int(op("Concat", "x x", "concat0"), "axis", 0);
    op("Add", "x b", "bias");
    op("Tile", "x 2,1,1", "tile");
    op("Pad", "x pads", "pad");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        graph_output(g, graph_value(g, names[i]));
    finish("mm");
    static const struct {
        const char *name;
        uint32_t in;
        int to[4];
    } expected[] = {
        {"reshape", 0, {0, 1, -1}}, {"merge", 0, {-1, -1, 1}},  {"turned", 0, {1, 0, 2}},   {"soft", 0, {0, 1, -1}},   {"soft1", 0, {0, -1, 2}},
        {"mean", 0, {0, -1, 2}},    {"drop", 0, {0, -1, 1}},    {"slice", 0, {0, -1, 2}},   {"cut", 0, {-1, 1, 2}},    {"gather", 0, {0, -1, 2}},
        {"gather", 1, {1}},         {"mm", 0, {0, 1, 2, -1}},   {"mm", 1, {0, 1, -1, 3}},   {"linear", 0, {0, 1, -1}}, {"linear", 1, {-1, 2}},
        {"concat", 0, {0, -1, 2}},  {"concat0", 1, {-1, 1, 2}}, {"bias", 0, {0, 1, 2}},     {"bias", 1, {2}},          {"tile", 0, {-1, 1, 2}},
        {"pad", 0, {0, -1, 2}},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct node *n = g->nodes[g->values[graph_find(g, expected[i].name)].producer];
        int rank = g->values[n->in[expected[i].in]].type.rank;
        for (int a = 0; a < rank; a++)
            if (follows(expected[i].name, expected[i].in, (uint32_t)a) != expected[i].to[a])
                fail_msg("%s: axis %d of input %u becomes %d, not %d", expected[i].name, a, expected[i].in,
                         follows(expected[i].name, expected[i].in, (uint32_t)a), expected[i].to[a]);
    }
}

/* Running -------------------------------------------------------------------------------------------------------------------------------- */

static void fails(struct run *r, const char *text)
{
    struct err e;
    assert_int_equal(run_graph(r, &e), ST_USER);
    assert_string_equal(e.text, text);
}

static void test_errors_at_run_time(void **state)
{
    (void)state;
    struct run *r;
    struct err e;
    input("x", DT_I64, 1, (dim[]){seq});
    input("i", DT_I64, 1, (dim[]){batch});
    ints("2,-1", 2, (int64_t[]){2, -1});
    op("Gather", "x i", "pick");
    op("Div", "pick x", "ratio");
    op("Reshape", "ratio 2,-1", "y");
    finish("y");
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    int64_t x[4] = {8, 4, 2, 1}, i[4] = {0, 1, -1, 3};
    assert_int_equal(run_set(r, 0, DT_I64, 1, (int64_t[]){4}, x, &e), ST_OK);
    assert_int_equal(run_set(r, 1, DT_I64, 1, (int64_t[]){4}, i, &e), ST_OK);
    assert_int_equal(run_graph(r, &e), ST_OK);
    assert_memory_equal(tensor_data(&run_result(r, 0)->tensor), ((int64_t[]){1, 1, 0, 1}), 32);
    i[2] = 4;
    fails(r, "node 'pick' (Gather): index 4 (element 2 of the indices) is outside an axis of size 4");
    i[2] = -5;
    fails(r, "node 'pick' (Gather): index -5 (element 2 of the indices) is outside an axis of size 4");
    i[2] = 0;
    x[3] = 0;
    fails(r, "node 'ratio' (Div): division by zero (element 3 of input 1)");
    x[3] = 1;
    assert_int_equal(run_set(r, 1, DT_I64, 1, (int64_t[]){3}, i, &e), ST_OK);
    fails(r, "node 'ratio' (Div): shapes [3] and [4] do not go together");
    assert_int_equal(run_set(r, 0, DT_I64, 1, (int64_t[]){3}, x, &e), ST_OK);
    fails(r, "node 'y' (Reshape): 3 elements cannot be laid out in rows of 2");
    assert_int_equal(run_set(r, 0, DT_I64, 1, (int64_t[]){4}, x, &e), ST_OK); /* and it goes on */
    assert_int_equal(run_set(r, 1, DT_I64, 1, (int64_t[]){4}, i, &e), ST_OK);
    assert_int_equal(run_graph(r, &e), ST_OK);
    run_free(r);
}

static uint32_t seed = 1;
static float noise(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-30f;
}

/* A record's numbers do not depend on how many others it shares a call with, nor on which place it has. */
static void test_bits_in_company(void **state)
{
    (void)state;
    enum { ROWS = 7, N = 37, HEADS = 3, OUT = 21 };
    static const char *const names[] = {"mean", "max", "norm", "lse", "soft", "log", "mm", "lin", "means", "exp", "pow", "ein"};
    static float x[ROWS * N * HEADS], w[N * OUT], all[12][ROWS * N * OUT];
    struct run *r;
    struct err e;
    input("x", DT_F32, 3, (dim[]){batch, HEADS, N});
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = noise();
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        w[i] = noise();
    graph_constant(g, "w", DT_F32, 2, (int64_t[]){N, OUT}, w);
    float half = 1.7f;
    graph_constant(g, "e", DT_F32, 0, NULL, &half);
    ints("last", 1, (int64_t[]){-1});
    ints("mid", 1, (int64_t[]){1});
    op("ReduceMean", "x last", "mean");
    op("ReduceMax", "x last", "max");
    op("ReduceL2", "x last", "norm");
    op("ReduceLogSumExp", "x last", "lse");
    op("Softmax", "x", "soft");
    op("LogSoftmax", "x", "log");
    op("MatMul", "x w", "lin");
    with_ints(op("Transpose", "x", "xt"), "perm", 3, (int64_t[]){0, 2, 1});
    op("MatMul", "x xt", "mm");
    op("ReduceMean", "x mid", "means");
    op("Exp", "x", "exp");
    op("Abs", "x", "abs");
    op("Pow", "abs e", "pow");
    struct node *n = op("Einsum", "x w", "ein");
    struct attr a = {.name = mem_strdup("equation"), .kind = ATTR_STRING, .s = {mem_strdup("bhn,no->boh"), 11}};
    assert_int_equal(node_add_attr(n, &a, &e), ST_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        graph_output(g, graph_value(g, names[i]));
    if (graph_finish(g, &plain, &e) != ST_OK)
        fail_msg("%s", e.text);
    assert_int_equal(run_new(g, &r, &e), ST_OK);
    assert_int_equal(run_set(r, 0, DT_F32, 3, (int64_t[]){ROWS, HEADS, N}, x, &e), ST_OK);
    assert_int_equal(run_graph(r, &e), ST_OK);
    for (uint32_t o = 0; o < g->n_out; o++)
        memcpy(all[o], tensor_data(&run_result(r, o)->tensor), (size_t)tensor_count(&run_result(r, o)->tensor) * sizeof(float));
    for (int64_t first = 0; first < ROWS; first++)
        for (int64_t rows = 1; rows <= 2 && first + rows <= ROWS; rows++) {
            assert_int_equal(run_set(r, 0, DT_F32, 3, (int64_t[]){rows, HEADS, N}, x + first * HEADS * N, &e), ST_OK);
            assert_int_equal(run_graph(r, &e), ST_OK);
            for (uint32_t o = 0; o < g->n_out; o++) {
                const struct tensor *t = &run_result(r, o)->tensor;
                size_t each = (size_t)(tensor_count(t) / rows);
                if (memcmp(tensor_data(t), all[o] + (size_t)first * each, each * (size_t)rows * sizeof(float)) != 0)
                    fail_msg("%s: records %d+%d differ alone and in company", names[o], (int)first, (int)rows);
            }
        }
    run_free(r);
}

/* Walks ------------------------------------------------------------------------------------------------------------------------------------ */

static uint32_t pick(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* copy_steps against one element after the other, in any order of axes, with repeated and reversed ones. */
static void test_copies(void **state)
{
    (void)state;
    enum { MOST = 4096 };
    static char from[MOST * 16], to[MOST * 16], want[MOST * 16];
    static const size_t widths[] = {1, 2, 4, 8, 16};
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)pick(256);
    for (int round = 0; round < 3000; round++) {
        uint32_t rank = pick(5), order[5];
        int64_t dims[5], own[5], from_step[5], to_step[5], count = 1, start = 0;
        for (uint32_t i = 0; i < rank; i++) {
            dims[i] = pick(8) ? (int64_t)pick(rank > 3 ? 7 : 15) + 1 : (int64_t)pick(3);
            order[i] = i;
            count *= dims[i];
        }
        if (count > MOST)
            continue;
        for (uint32_t i = rank; i > 1; i--) {
            uint32_t k = pick(i), t = order[i - 1];
            order[i - 1] = order[k];
            order[k] = t;
        }
        int64_t n = 1;
        for (uint32_t i = rank; i-- > 0; n *= dims[order[i]])
            own[order[i]] = n;
        for (uint32_t i = 0; i < rank; i++) {
            uint32_t kind = pick(8);
            from_step[i] = kind == 0 ? 0 : kind == 1 ? -own[i] : own[i];
            start += kind == 1 && dims[i] ? (dims[i] - 1) * own[i] : 0;
        }
        row_major(rank, dims, to_step);
        size_t z = widths[pick(5)];
        memset(to, 0, sizeof to);
        memset(want, 0, sizeof want);
        for (int64_t k = 0; k < count; k++) {
            int64_t rest = k, at = start;
            for (uint32_t i = rank; i-- > 0; rest /= dims[i])
                at += rest % dims[i] * from_step[i];
            memcpy(want + (size_t)k * z, from + (size_t)at * z, z);
        }
        copy_steps(z, rank, dims, from + (size_t)start * z, from_step, to, to_step);
        assert_memory_equal(to, want, sizeof want);
    }
}

BINARY_FLOAT(BINARY_ROW, Minus, RESULT_SAME, x - y)
static binary_row *const minus[DT_END] = {ROWS_FLOAT(Minus)};

static void test_broadcast(void **state)
{
    (void)state;
    static float a[4096], b[4096], y[4096];
    for (int i = 0; i < 4096; i++) {
        a[i] = noise();
        b[i] = noise();
    }
    struct buffer ba = {.base = a}, bb = {.base = b}, by = {.base = y};
    for (int round = 0; round < 2000; round++) {
        struct tensor ta = {.dtype = DT_F32, .rank = pick(5), .buffer = &ba}, tb = {.dtype = DT_F32, .rank = pick(5), .buffer = &bb};
        struct tensor ty = {.dtype = DT_F32, .rank = ta.rank > tb.rank ? ta.rank : tb.rank, .buffer = &by};
        for (uint32_t i = 0; i < ty.rank; i++) { /* from the right */
            int64_t d = pick(7) + 1;
            ty.dims[ty.rank - 1 - i] = 1;
            if (i < ta.rank)
                ty.dims[ty.rank - 1 - i] = ta.dims[ta.rank - 1 - i] = pick(3) ? d : 1;
            if (i < tb.rank) {
                tb.dims[tb.rank - 1 - i] = pick(3) ? d : 1;
                if (ty.dims[ty.rank - 1 - i] == 1)
                    ty.dims[ty.rank - 1 - i] = tb.dims[tb.rank - 1 - i];
            }
        }
        if (tensor_count(&ty) > 4096)
            continue;
        binary_broadcast(&ta, &tb, &ty, minus, 0);
        for (int64_t k = 0, n = tensor_count(&ty); k < n; k++) {
            int64_t rest = k, ia = 0, ib = 0, pa = 1, pb = 1;
            for (uint32_t i = 0; i < ty.rank; i++) {
                int64_t at = rest % ty.dims[ty.rank - 1 - i];
                rest /= ty.dims[ty.rank - 1 - i];
                if (i < ta.rank) {
                    ia += ta.dims[ta.rank - 1 - i] == 1 ? 0 : at * pa;
                    pa *= ta.dims[ta.rank - 1 - i];
                }
                if (i < tb.rank) {
                    ib += tb.dims[tb.rank - 1 - i] == 1 ? 0 : at * pb;
                    pb *= tb.dims[tb.rank - 1 - i];
                }
            }
            float want = a[ia] - b[ib];
            assert_memory_equal(&y[k], &want, sizeof want);
        }
    }
}

/* Halves in vectors are what one at a time gives. */
static void test_halves(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_BF16};
    for (int i = 0; i < 2; i++) {
        enum dtype d = types[i];
        for (uint32_t base = 0; base < 65536; base += 256) {
            uint16_t h[256], back[256];
            float wide[256];
            for (uint32_t k = 0; k < 256; k++)
                h[k] = (uint16_t)(base + k);
            half_widen(d, 256, h, 1, wide);
            half_narrow(d, 256, wide, back);
            for (uint32_t k = 0; k < 256; k++) {
                float one = d == DT_F16 ? f16_to_f32(h[k]) : bf16_to_f32(h[k]);
                if (one == one) {
                    assert_memory_equal(&wide[k], &one, sizeof one);
                    assert_int_equal(back[k], h[k]);
                } else {
                    assert_true(wide[k] != wide[k]);
                }
            }
        }
        for (int round = 0; round < 20000; round++) {
            float x[64];
            uint16_t h[64];
            for (int k = 0; k < 64; k++) {
                uint32_t u = pick(1 << 24) << 16 ^ pick(1 << 24);
                if (round & 1) /* near the middle between two halves, where rounding turns */
                    u = (u & 0x8fffe000u) + (100u << 23) + 0x1000u + pick(3) - 1;
                memcpy(&x[k], &u, sizeof u);
            }
            half_narrow(d, 64, x, h);
            for (int k = 0; k < 64; k++)
                if (h[k] != (d == DT_F16 ? f32_to_f16(x[k]) : f32_to_bf16(x[k])))
                    fail_msg("%a becomes %x", (double)x[k], h[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_heads, begin, end),
        cmocka_unit_test_setup_teardown(test_expand, begin, end),
        cmocka_unit_test_setup_teardown(test_arithmetic, begin, end),
        cmocka_unit_test_setup_teardown(test_follow, begin, end),
        cmocka_unit_test_setup_teardown(test_errors_at_run_time, begin, end),
        cmocka_unit_test_setup_teardown(test_bits_in_company, begin, end),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
