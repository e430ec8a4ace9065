/* Stages of ONNX models: whatever the cuts, a row of stages gives the bytes of the whole model, errors of records too; each holds its share of the weights; what is
   damaged on the way is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/path.h"
#include "tests/lib/onnxwrite.h"
#include "workers/engine/carry.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/model.h"

enum { RECORDS = 7, TOKENS_MOST = 200, SEGMENTS_MOST = 64, CUTS_MOST = 25, STAGES = 4 };

static char dir[] = "/tmp/ebb-graph-stage-test-XXXXXX";

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

static uint32_t seed = 1;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* What records bring, and what came out of them -------------------------------------------------------------------------------------------- */

struct given {
    struct model_batch texts;
    uint32_t lengths[RECORDS];
    int32_t ids[TOKENS_MOST];
    const struct array *in[RECORDS];
    struct array array[RECORDS][8];
    void *data[RECORDS][8];
    uint32_t n;
};

static void add(struct buf *b, const void *data, size_t len)
{
    assert_int_equal(buf_add(b, data, len), 0);
}

static void put_result(struct buf *b, const struct model_result *r, uint32_t n)
{
    for (uint32_t t = 0; t < r->count; t++) {
        const struct model_tensor *x = &r->tensor[t];
        size_t rows = 0;
        for (uint32_t i = 0; i < n; i++)
            rows += x->rows ? x->rows[i] : 1;
        add(b, x->f32 ? (const void *)x->f32 : x->i32, rows * x->width * 4);
    }
    for (uint32_t i = 0; i < n && r->errors; i++)
        add(b, r->errors[i] ? r->errors[i] : "fine", r->errors[i] ? strlen(r->errors[i]) : 4);
}

struct gathered {
    struct buf of[RECORDS];
    uint32_t failed;
};

static void gather(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
{
    struct gathered *g = arg;
    assert_true(record < RECORDS && !g->of[record].len);
    add(&g->of[record], "x", 1);
    if (error)
        add(&g->of[record], error, strlen(error));
    g->failed += error != NULL;
    for (uint32_t i = 0; i < n_out; i++) {
        size_t bytes = dtype_bytes(out[i].dtype);
        for (uint32_t k = 0; k < out[i].rank; k++)
            bytes *= (size_t)out[i].dims[k];
        add(&g->of[record], out[i].dims, out[i].rank * sizeof *out[i].dims);
        add(&g->of[record], out[i].data, bytes);
    }
}

static void join(struct gathered *g, uint32_t n, struct buf *to)
{
    for (uint32_t i = 0; i < n; i++) {
        add(to, g->of[i].data, g->of[i].len);
        buf_release(&g->of[i]);
    }
}

/* A model in all its parts -------------------------------------------------------------------------------------------------------------------- */

struct rig {
    const char *path;
    struct model_opts o;
    struct model *whole;
    struct model_ctx *whole_ctx;
    uint32_t segments;
    struct model *part[SEGMENTS_MOST + 1][SEGMENTS_MOST + 1];
    struct model_ctx *ctx[SEGMENTS_MOST + 1][SEGMENTS_MOST + 1];
};

static void must(enum status st, const struct err *e, const char *what)
{
    if (st != ST_OK)
        fail_msg("%s: %s", what, e->text);
}

static const char *precision, *pack_dir; /* of the rigs that follow */

static void open_rig(struct rig *r, const char *path, const char *task)
{
    struct err e;
    struct model_info info;
    struct cut c = {.tokens = 20};
    *r = (struct rig){.path = path, .o = {.task = task, .precision = precision, .pack_dir = pack_dir}};
    must(model_open(path, &r->o, &r->whole, &e), &e, path);
    must(model_ctx_new(r->whole, TOKENS_MOST, RECORDS, &r->whole_ctx, &e), &e, path);
    must(model_probe_cut(path, &r->o, &info, &c, &e), &e, path);
    r->segments = c.count;
    cut_release(&c);
    assert_in_range(r->segments, 1, SEGMENTS_MOST);
    if (model_info(r->whole)->kind == TASK_FILL_MASK)
        model_set_mask(r->whole, 4);
}

static void open_part(struct rig *r, uint32_t first, uint32_t end)
{
    struct err e;
    struct model_opts o = r->o;
    if (r->part[first][end])
        return;
    o.part = 1;
    o.first = first;
    o.end = end;
    must(model_open(r->path, &o, &r->part[first][end], &e), &e, r->path);
    must(model_ctx_new(r->part[first][end], TOKENS_MOST, RECORDS, &r->ctx[first][end], &e), &e, r->path);
    const struct model_info *a = model_info(r->part[first][end]), *b = model_info(r->whole);
    assert_int_equal(a->dims, b->dims);
    assert_string_equal(a->task, b->task);
    assert_int_equal(a->vocab, b->vocab);
    assert_string_equal(a->inputs, b->inputs);
    assert_string_equal(a->ops, b->ops);
    if (a->kind == TASK_FILL_MASK)
        model_set_mask(r->part[first][end], 4);
}

static void close_rig(struct rig *r)
{
    for (uint32_t i = 0; i <= r->segments; i++)
        for (uint32_t k = 0; k <= r->segments; k++) {
            model_ctx_free(r->ctx[i][k]);
            model_free(r->part[i][k]);
        }
    model_ctx_free(r->whole_ctx);
    model_free(r->whole);
}

/* What crosses comes at an odd address, in memory that ends where it ends. */
static const char *move(void **room, const void *data, size_t len)
{
    char *to = malloc(len + 1);
    assert_non_null(to);
    memcpy(to + 1, data, len);
    free(*room);
    *room = to;
    return to + 1;
}

static void run_whole(struct rig *r, const struct given *g, struct buf *out, uint32_t *failed)
{
    struct err e;
    *failed = 0;
    if (!model_info(r->whole)->arrays) {
        const struct model_result *x = model_infer(r->whole, r->whole_ctx, &g->texts);
        assert_non_null(x);
        put_result(out, x, g->n);
        for (uint32_t i = 0; i < g->n && x->errors; i++)
            *failed += x->errors[i] != NULL;
        return;
    }
    struct gathered got = {0};
    must(model_infer_arrays(r->whole, r->whole_ctx, g->n, g->in, gather, &got, &e), &e, r->path);
    *failed = got.failed;
    join(&got, g->n, out);
}

/* at[0..k]: bounds of k parts. */
static void run_parts(struct rig *r, const struct given *g, uint32_t k, const uint32_t *at, struct buf *out)
{
    struct err e;
    void *room = NULL;
    const void *in = NULL, *x = NULL;
    size_t len = 0, x_len = 0;
    const struct model_result *result = NULL;
    int arrays = model_info(r->whole)->arrays;
    open_part(r, at[0], at[1]);
    if (arrays) {
        must(model_arrays_pack(r->part[at[0]][at[1]], r->ctx[at[0]][at[1]], g->n, g->in, &x, &len, &e), &e, r->path);
        in = move(&room, x, len);
    }
    for (uint32_t i = 0; i < k; i++) {
        open_part(r, at[i], at[i + 1]);
        const struct model *m = r->part[at[i]][at[i + 1]];
        struct model_ctx *c = r->ctx[at[i]][at[i + 1]];
        if (arrays)
            must(model_stage_arrays(m, c, g->n, in, len, &x, &x_len, &e), &e, r->path);
        else
            must(model_stage(m, c, &g->texts, in, len, &x, &x_len, &result, &e), &e, r->path);
        assert_int_equal(result != NULL, !arrays && i + 1 == k);
        if (!result) {
            in = move(&room, x, x_len);
            len = x_len;
        }
    }
    if (arrays) {
        struct gathered got = {0};
        must(model_arrays_take(r->part[at[0]][at[1]], r->ctx[at[0]][at[1]], g->n, in, len, gather, &got, &e), &e, r->path);
        join(&got, g->n, out);
    } else {
        put_result(out, result, g->n);
    }
    free(room);
}

static void compare(struct rig *r, const struct given *g, const struct buf *want, uint32_t k, const uint32_t *at)
{
    struct buf got = {0};
    run_parts(r, g, k, at, &got);
    if (got.len != want->len || memcmp(got.data, want->data, got.len) != 0)
        fail_msg("%s: %u parts, at %u %u %u, of %u segments: %zu bytes, not %zu, or others", r->path, k, at[1], k > 2 ? at[2] : 0, k > 3 ? at[3] : 0, r->segments, got.len, want->len);
    buf_release(&got);
}

/* Every cut into 1..4 parts, or many of them where there are too many. */
static uint32_t all_cuts(struct rig *r, const struct given *g)
{
    struct buf want = {0};
    uint32_t failed, n = r->segments;
    run_whole(r, g, &want, &failed);
    compare(r, g, &want, 1, (uint32_t[]){0, n});
    for (uint32_t a = 1; a < n; a++)
        compare(r, g, &want, 2, (uint32_t[]){0, a, n});
    for (uint32_t i = 0; n > 2 && i < CUTS_MOST; i++) {
        uint32_t a = 1 + draw(n - 2), b = a + 1 + draw(n - a - 1);
        compare(r, g, &want, 3, (uint32_t[]){0, a, b, n});
        if (b - a > 1)
            compare(r, g, &want, 4, (uint32_t[]){0, a, a + 1 + draw(b - a - 1), b, n});
    }
    buf_release(&want);
    return failed;
}

/* Texts --------------------------------------------------------------------------------------------------------------------------------------- */

static void give_texts(struct given *g, uint32_t vocab, uint32_t longest)
{
    uint32_t tokens = 0;
    *g = (struct given){.n = RECORDS};
    for (uint32_t r = 0; r < g->n; r++) {
        g->lengths[r] = r == 3 ? g->lengths[0] : 1 + draw(longest); /* two of one length */
        for (uint32_t k = 0; k < g->lengths[r]; k++)
            g->ids[tokens++] = (int32_t)draw(vocab);
    }
    g->texts = (struct model_batch){.n = g->n, .lengths = g->lengths, .ids = g->ids};
}

static char *text_model(const char *name, const char *from)
{
    char command[600], *path = mem_printf("%s/%s", dir, name);
    assert_non_null(path);
    if (from)
        snprintf(command, sizeof command, "mkdir -p %s && cp %s %s/model.onnx && : > %s/vocab.txt", path, from, path, path);
    else
        snprintf(command, sizeof command, "mkdir -p %s && : > %s/vocab.txt", path, path);
    assert_int_equal(system(command), 0);
    return path;
}

static void test_texts(void **state)
{
    (void)state;
    static const char *const names[] = {"bert-sdpa-17", "bert-eager-11", "bert-eager-dynamo", "bert-dynamic-17", "distilbert-sdpa-14", "electra-sdpa-17", "mpnet-eager-14", "roberta-sdpa-14"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[100];
        struct rig r;
        struct given g;
        snprintf(from, sizeof from, "tests/golden/exports/%s.onnx", names[i]);
        char *path = text_model(names[i], from);
        open_rig(&r, path, NULL);
        if (model_info(r.whole)->arrays)
            fail_msg("%s takes arrays", names[i]);
        give_texts(&g, 20, 8);
        assert_non_null(strstr(model_info(r.whole)->ops, "packed"));
        assert_true(r.segments >= 5);
        assert_int_equal(all_cuts(&r, &g), 0);
        close_rig(&r);
        mem_free(path);
    }
}

/* Of less precision, and with weights in one file for all parts: made by the first of them, mapped by the others. */
static void test_precisions(void **state)
{
    (void)state;
    static const char *const words[] = {"f32", "bf16", "int8"};
    char *packs = mem_printf("%s/packs", dir), *path = text_model("precisions", "tests/golden/exports/electra-sdpa-17.onnx");
    for (int i = 0; i < 3; i++)
        for (int again = 0; again < 2; again++) {
            struct rig r;
            struct given g;
            struct model *m;
            struct err e;
            precision = words[i];
            pack_dir = packs;
            if (!again) { /* a part begins */
                must(model_open(path, &(struct model_opts){.precision = precision, .pack_dir = pack_dir, .part = 1, .first = 2, .end = 4}, &m, &e), &e, path);
                model_free(m);
            }
            open_rig(&r, path, NULL);
            give_texts(&g, 20, 8);
            assert_int_equal(all_cuts(&r, &g), 0);
            open_part(&r, 1, r.segments);
            assert_true(!again || model_info(r.part[1][r.segments])->shared_bytes > 0);
            close_rig(&r);
        }
    precision = pack_dir = NULL;
    mem_free(packs);
    mem_free(path);
}

/* Arrays -------------------------------------------------------------------------------------------------------------------------------------- */

/* Open sizes are `open`, or one more for some records. */
static void give_arrays(struct given *g, const struct model *m, uint32_t open)
{
    uint32_t count;
    const struct port *p = model_inputs(m, &count);
    *g = (struct given){.n = RECORDS};
    assert_in_range(count, 1, 8);
    for (uint32_t r = 0; r < g->n; r++) {
        g->in[r] = g->array[r];
        for (uint32_t i = 0; i < count; i++) {
            struct array *a = &g->array[r][i];
            size_t n = 1;
            *a = (struct array){.dtype = p[i].dtype, .rank = p[i].rank < 0 ? 1 : (uint32_t)p[i].rank};
            for (uint32_t k = 0; k < a->rank; k++) {
                a->dims[k] = p[i].dims[k] < 0 ? open + (r % 3 == 1) : p[i].dims[k];
                n *= (size_t)a->dims[k];
            }
            a->data = g->data[r][i] = calloc(n + 1, dtype_bytes(a->dtype));
            assert_non_null(a->data);
            for (size_t k = 0; k < n; k++)
                switch (a->dtype) {
                case DT_F32:
                    ((float *)g->data[r][i])[k] = (float)((int)draw(2001) - 1000) / 500;
                    break;
                case DT_I64:
                    ((int64_t *)g->data[r][i])[k] = draw(8);
                    break;
                case DT_I32:
                    ((int32_t *)g->data[r][i])[k] = (int32_t)draw(8);
                    break;
                default:
                    ((uint8_t *)g->data[r][i])[k] = (uint8_t)draw(dtype_bytes(a->dtype) == 1 && a->dtype != DT_BOOL ? 256 : 2);
                }
        }
    }
}

static void free_arrays(struct given *g)
{
    for (uint32_t r = 0; r < RECORDS; r++)
        for (uint32_t i = 0; i < 8; i++)
            free(g->data[r][i]);
}

/* Returns how many records failed. */
static uint32_t arrays(const char *path, const char *task, uint32_t open, uint32_t least, const char *shared)
{
    struct rig r;
    struct given g;
    open_rig(&r, path, task);
    assert_true(model_info(r.whole)->arrays);
    if (r.segments < least)
        fail_msg("%s: %u segments", path, r.segments);
    if (!strstr(model_info(r.whole)->ops, shared))
        fail_msg("%s: %s", path, model_info(r.whole)->ops);
    give_arrays(&g, r.whole, open);
    if (strstr(path, "failing")) /* the row it chooses is its first number */
        for (uint32_t i = 0; i < RECORDS; i++)
            ((float *)g.data[i][0])[0] = i == 2 || i == 4 ? 3 : 1;
    uint32_t failed = all_cuts(&r, &g);
    close_rig(&r);
    free_arrays(&g);
    return failed;
}

#define TOGETHER "share a run"
#define ONE_BY_ONE "one by one"

static void test_exported(void **state)
{
    (void)state;
    assert_int_equal(arrays("tests/golden/exported/gpt2", NULL, 5, 5, ONE_BY_ONE), 0);
    assert_int_equal(arrays("tests/golden/exported/t5_encoder", NULL, 5, 5, ONE_BY_ONE), 0);
    assert_int_equal(arrays("tests/golden/exported/recurrent", NULL, 5, 5, ONE_BY_ONE), 0);
    assert_int_equal(arrays("tests/golden/exported/resnet", "embed", 5, 5, TOGETHER), 0);
    assert_int_equal(arrays("tests/golden/exported/vit", NULL, 5, 5, TOGETHER), 0);
    assert_int_equal(arrays("tests/golden/exported/vit_dynamo", "outputs", 5, 5, TOGETHER), 0);
}

/* x, a row of 16, through `count` layers: h0, h1, ... Each is a product and an activation. */
static void layers(struct onnxwrite *w, const char *x, uint32_t first, uint32_t count, int width)
{
    char weight[20], product[20], from[20], to[20], in[48];
    snprintf(from, sizeof from, "%s", x);
    for (uint32_t i = first; i < first + count; i++) {
        snprintf(weight, sizeof weight, "w%u", i);
        snprintf(product, sizeof product, "p%u", i);
        snprintf(to, sizeof to, "h%u", i);
        ow_random(w, weight, 0.5f, 2, (int64_t[]){width, width});
        snprintf(in, sizeof in, "%s %s", from, weight);
        ow_node(w, "MatMul", in, product, NULL);
        ow_node(w, "Tanh", product, to, NULL);
        snprintf(from, sizeof from, "%s", to);
    }
}

static char *file_in(const char *name)
{
    char *path = mem_printf("%s/%s.onnx", dir, name);
    assert_non_null(path);
    return path;
}

static uint32_t written(struct onnxwrite *w, const char *name, const char *task, uint32_t least, const char *shared)
{
    char *path = file_in(name);
    assert_int_equal(ow_write(w, path), 0);
    uint32_t failed = arrays(path, task, 4, least, shared);
    mem_free(path);
    return failed;
}

/* Outputs from early and late, one that is the input itself, and the input once more at the end. */
static void test_outputs(void **state)
{
    (void)state;
    struct onnxwrite w;
    ow_begin(&w, 1);
    ow_input(&w, "x", OW_F32, 2, (int64_t[]){-1, 16});
    layers(&w, "x", 0, 6, 16);
    ow_node(&w, "Add", "h5 x", "y", NULL);
    ow_node(&w, "Identity", "x", "same", NULL);
    ow_node(&w, "ReduceSum", "h2 axis", "s", "keepdims=0");
    ow_ints(&w, "axis", 1, (int64_t[]){1});
    ow_output(&w, "y", OW_F32, 2, (int64_t[]){-1, 16});
    ow_output(&w, "h1", OW_F32, 2, (int64_t[]){-1, 16});
    ow_output(&w, "same", OW_F32, 2, (int64_t[]){-1, 16});
    ow_output(&w, "s", OW_F32, 1, (int64_t[]){-1});
    assert_int_equal(written(&w, "outputs", NULL, 5, TOGETHER), 0);
}

/* Whole-number convolutions and products, scales and zero points. */
static void test_quantised(void **state)
{
    (void)state;
    struct onnxwrite w;
    uint8_t u8[4 * 3 * 9];
    int8_t i8[16 * 16];
    for (size_t i = 0; i < sizeof u8; i++)
        u8[i] = (uint8_t)draw(256);
    for (size_t i = 0; i < sizeof i8; i++)
        i8[i] = (int8_t)(draw(255) - 127);
    ow_begin(&w, 2);
    ow_input(&w, "x", OW_F32, 4, (int64_t[]){-1, 3, 8, 8});
    ow_tensor(&w, "scale", OW_F32, 0, NULL, &(float){0.02f}, 4);
    ow_tensor(&w, "zero", OW_U8, 0, NULL, &(uint8_t){128}, 1);
    ow_tensor(&w, "signed", OW_I8, 0, NULL, &(int8_t){0}, 1);
    ow_tensor(&w, "k", OW_U8, 4, (int64_t[]){4, 3, 3, 3}, u8, sizeof u8);
    ow_tensor(&w, "m", OW_I8, 2, (int64_t[]){16, 16}, i8, sizeof i8);
    ow_node(&w, "QuantizeLinear", "x scale zero", "q", NULL);
    ow_node(&w, "QLinearConv", "q scale zero k scale zero scale zero", "c", "pads=1,1,1,1 strides=2,2");
    ow_ints(&w, "flat", 2, (int64_t[]){-1, 16});
    ow_node(&w, "Flatten", "c", "f", NULL);
    ow_ints(&w, "from", 1, (int64_t[]){0});
    ow_ints(&w, "to", 1, (int64_t[]){16});
    ow_ints(&w, "axis", 1, (int64_t[]){1});
    ow_node(&w, "Slice", "f from to axis", "g", NULL);
    ow_node(&w, "QLinearMatMul", "g scale zero m scale signed scale zero", "h", NULL);
    ow_node(&w, "DequantizeLinear", "h scale zero", "d", NULL);
    ow_node(&w, "DynamicQuantizeLinear", "d", "e e_scale e_zero", NULL);
    ow_node(&w, "MatMulInteger", "e m e_zero", "i", NULL);
    ow_node(&w, "Cast", "i", "j", "to=1");
    ow_node(&w, "Mul", "j e_scale", "y", NULL);
    ow_output(&w, "y", OW_F32, 2, (int64_t[]){-1, 16});
    /* a scale for all records: they go alone */
    assert_int_equal(written(&w, "quantised", NULL, 3, ONE_BY_ONE), 0);
}

/* An If and a Loop with layers in them, which stay whole. */
static void test_control(void **state)
{
    (void)state;
    struct onnxwrite w, yes, no, again;
    ow_begin(&w, 3);
    ow_input(&w, "x", OW_F32, 2, (int64_t[]){-1, 16});
    layers(&w, "x", 0, 3, 16);
    ow_node(&w, "ReduceMax", "h2", "most", "keepdims=0");
    ow_tensor(&w, "zero", OW_F32, 0, NULL, &(float){0.97f}, 4);
    ow_node(&w, "Greater", "most zero", "is", NULL);
    ow_begin(&yes, 4);
    ow_node(&yes, "MatMul", "h2 w1", "yes", NULL); /* captures */
    ow_output(&yes, "yes", OW_F32, 2, (int64_t[]){-1, 16});
    ow_begin(&no, 5);
    ow_random(&no, "wn", 1, 2, (int64_t[]){16, 16});
    ow_node(&no, "MatMul", "h0 wn", "no", NULL);
    ow_output(&no, "no", OW_F32, 2, (int64_t[]){-1, 16});
    ow_control(&w, "If", "is", "z", "then_branch", &yes, "else_branch", &no);
    ow_begin(&again, 6);
    ow_input(&again, "i", OW_I64, 0, NULL);
    ow_input(&again, "go", OW_BOOL, 0, NULL);
    ow_input(&again, "v", OW_F32, 2, (int64_t[]){-1, 16});
    ow_node(&again, "MatMul", "v w0", "vw", NULL);
    ow_node(&again, "Sigmoid", "vw", "v2", NULL);
    ow_node(&again, "Identity", "go", "on", NULL);
    ow_output(&again, "on", OW_BOOL, 0, NULL);
    ow_output(&again, "v2", OW_F32, 2, (int64_t[]){-1, 16});
    ow_int(&w, "times", 3);
    ow_control(&w, "Loop", "times - z", "l", "body", &again, NULL, NULL);
    layers(&w, "l", 5, 3, 16);
    ow_output(&w, "h7", OW_F32, 2, (int64_t[]){-1, 16});
    assert_int_equal(written(&w, "control", NULL, 5, ONE_BY_ONE), 0);
}

/* The mean of a batch goes into each record: each has a batch of its own. */
static void test_mixing(void **state)
{
    (void)state;
    struct onnxwrite w;
    ow_begin(&w, 7);
    ow_input(&w, "x", OW_F32, 3, (int64_t[]){-1, -2, 16});
    layers(&w, "x", 0, 3, 16);
    ow_node(&w, "ReduceMean", "h2", "mean", "axes=0,1 keepdims=1");
    ow_node(&w, "Sub", "h2 mean", "c", NULL);
    /* sizes that are looked at early, and used late */
    ow_node(&w, "Shape", "h0", "sizes", NULL);
    layers(&w, "c", 3, 3, 16);
    ow_node(&w, "Transpose", "h5", "t", "perm=2,0,1");
    ow_node(&w, "Reshape", "t sizes", "r", NULL);
    layers(&w, "r", 6, 2, 16);
    ow_output(&w, "h7", OW_F32, 3, (int64_t[]){-1, -2, 16});
    assert_int_equal(written(&w, "mixing", NULL, 5, ONE_BY_ONE), 0);
}

/* Sizes with the batch in them cross, and a record that fails late fails alone: its first number, which travels along, chooses a row of a short table. */
static void test_failing(void **state)
{
    (void)state;
    struct onnxwrite w;
    ow_begin(&w, 8);
    ow_input(&w, "x", OW_F32, 3, (int64_t[]){-1, -2, 16});
    layers(&w, "x", 0, 3, 16);
    ow_node(&w, "Shape", "h0", "sizes", NULL);
    ow_node(&w, "Transpose", "h2", "t", "perm=1,0,2"); /* records along axis 1 */
    layers(&w, "t", 3, 2, 16);
    ow_node(&w, "Transpose", "h4", "u", "perm=1,2,0");
    ow_node(&w, "Reshape", "u sizes", "v", NULL);
    layers(&w, "v", 5, 2, 16);
    ow_ints(&w, "from", 2, (int64_t[]){0, 0});
    ow_ints(&w, "to", 2, (int64_t[]){1, 1});
    ow_ints(&w, "axes", 2, (int64_t[]){1, 2});
    ow_node(&w, "Slice", "x from to axes", "firsts", NULL);
    ow_ints(&w, "flat", 1, (int64_t[]){-1});
    ow_node(&w, "Reshape", "firsts flat", "first", NULL);
    ow_node(&w, "Cast", "first", "row", "to=7");
    ow_random(&w, "table", 1, 2, (int64_t[]){3, 16});
    ow_node(&w, "Gather", "table row", "y", NULL);
    ow_output(&w, "y", OW_F32, 2, (int64_t[]){-1, 16});
    ow_output(&w, "h6", OW_F32, 3, (int64_t[]){-1, -2, 16});
    assert_int_equal(written(&w, "failing", NULL, 5, TOGETHER), 2);
}

/* A sequence of tensors does not cross: there is no cut while it is alive. */
static void test_sequence(void **state)
{
    (void)state;
    struct onnxwrite w;
    ow_begin(&w, 11);
    ow_input(&w, "x", OW_F32, 2, (int64_t[]){-1, 16});
    layers(&w, "x", 0, 4, 16);
    ow_int(&w, "half", 8);
    ow_int(&w, "first", 0);
    ow_int(&w, "second", 1);
    ow_node(&w, "SplitToSequence", "h3 half", "seq", "axis=1");
    ow_node(&w, "SequenceAt", "seq first", "left", NULL);
    ow_node(&w, "SequenceAt", "seq second", "right", NULL);
    ow_node(&w, "Concat", "right left", "a", "axis=1");
    layers(&w, "a", 6, 3, 16);
    ow_output(&w, "h8", OW_F32, 2, (int64_t[]){-1, 16});
    assert_int_equal(written(&w, "sequence", NULL, 4, ONE_BY_ONE), 0);
}

/* What is made of constants alone, and too large to be folded, is made where it is needed. */
static void test_made_of_constants(void **state)
{
    (void)state;
    struct onnxwrite w;
    struct cut c = {.tokens = 1};
    struct model_info info;
    struct err e;
    ow_begin(&w, 12);
    ow_input(&w, "x", OW_F32, 2, (int64_t[]){-1, 16});
    ow_ints(&w, "sizes", 2, (int64_t[]){16, 263000});
    ow_ints(&w, "axis", 1, (int64_t[]){1});
    ow_node(&w, "ConstantOfShape", "sizes", "zeros", NULL);
    ow_tensor(&w, "one", OW_F32, 0, NULL, &(float){1}, 4);
    ow_node(&w, "Add", "zeros one", "ones", NULL);
    layers(&w, "x", 0, 3, 16);
    ow_node(&w, "MatMul", "h2 ones", "y", NULL);
    ow_node(&w, "ReduceMax", "y", "m", "axes=1, keepdims=1");
    ow_node(&w, "Add", "m h2", "z", NULL);
    layers(&w, "z", 3, 2, 16);
    ow_node(&w, "MatMul", "h4 ones", "y2", NULL);
    ow_node(&w, "ReduceMax", "y2", "m2", "axes=1, keepdims=0");
    ow_output(&w, "m2", OW_F32, 1, (int64_t[]){-1});
    assert_int_equal(written(&w, "constants", NULL, 2, ""), 0);
    char *path = file_in("constants");
    must(model_probe_cut(path, NULL, &info, &c, &e), &e, path);
    for (uint32_t i = 0; i < c.count; i++)
        assert_true(c.list[i].out_bytes < 16 * 263000);
    cut_release(&c);
    mem_free(path);
}

/* More texts ------------------------------------------------------------------------------------------------------------------------------------ */

/* Texts whose ids are looked up again late, in a table that is too short for some; `mixes`: a text's tokens are looked at together, in a way that does not pack.
   length: -2, or how long each is. */
static void late_texts(const char *name, int mixes, int64_t length, const char *task, const char *shared)
{
    struct onnxwrite w;
    struct rig r;
    struct given g;
    char *path = text_model(name, NULL), *file = mem_printf("%s/model.onnx", path);
    ow_begin(&w, 9);
    ow_input(&w, "input_ids", OW_I64, 2, (int64_t[]){-1, length});
    if (length > 0)
        ow_input(&w, "attention_mask", OW_I64, 2, (int64_t[]){-1, length});
    ow_random(&w, "table", 1, 2, (int64_t[]){20, 16});
    ow_random(&w, "short", 1, 2, (int64_t[]){18, 16});
    ow_node(&w, "Gather", "table input_ids", "x", NULL);
    layers(&w, "x", 0, 3, 16);
    if (mixes)
        ow_node(&w, "Softmax", "h2", "s", "axis=1");
    else
        ow_node(&w, "Abs", "h2", "s", NULL);
    layers(&w, "s", 3, 2, 16);
    ow_node(&w, "Gather", "short input_ids", "more", NULL);
    ow_node(&w, "Add", "h4 more", "a", NULL);
    if (length > 0) {
        ow_ints(&w, "axis", 1, (int64_t[]){2});
        ow_node(&w, "Cast", "attention_mask", "mask", "to=1");
        ow_node(&w, "Unsqueeze", "mask axis", "masks", NULL);
        ow_node(&w, "Mul", "a masks", "b", NULL);
    }
    layers(&w, length > 0 ? "b" : "a", 5, 2, 16);
    ow_output(&w, "h6", OW_F32, 3, (int64_t[]){-1, length, 16});
    assert_int_equal(ow_write(&w, file), 0);
    open_rig(&r, path, task);
    if (!strstr(model_info(r.whole)->ops, shared) || model_info(r.whole)->arrays)
        fail_msg("%s: %s", name, model_info(r.whole)->ops);
    assert_true(r.segments >= 5);
    give_texts(&g, 20, 6);
    for (uint32_t i = 0; i < TOKENS_MOST; i++)
        g.ids[i] = g.ids[i] > 17 ? 2 : g.ids[i];
    g.ids[0] = g.ids[g.lengths[0] + g.lengths[1]] = 18; /* the first text, and the third */
    assert_int_equal(all_cuts(&r, &g), 2);
    close_rig(&r);
    mem_free(path);
    mem_free(file);
}

static void test_late_texts(void **state)
{
    (void)state;
    late_texts("packed", 0, -2, "embed", "packed");
    late_texts("packed-masks", 0, -2, "fill-mask", "packed");
    late_texts("packed-tokens", 0, -2, "token-classify", "packed");
    late_texts("equal", 1, -2, "embed", "of one length");
    late_texts("filled", 0, 8, "token-classify", "of one length");
}

/* A text that shares a run is taken out of what has crossed, whatever it crosses in, and has its own result then. */
static void test_taken_out(void **state)
{
    (void)state;
    static const char *const names[] = {"bert-sdpa-17", "bert-eager-dynamo", "bert-dynamic-17", "mpnet-eager-14"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[100];
        struct given g;
        struct err e;
        struct graph_model *whole;
        struct graph_lane *alone;
        struct cut cut = {.tokens = 9};
        const struct kernels *k;
        const float *want, *got;
        uint32_t width, start = 0;
        int by_token;
        snprintf(path, sizeof path, "tests/golden/exports/%s.onnx", names[i]);
        assert_int_equal(cpu_kernels(NULL, &k, &e), ST_OK);
        give_texts(&g, 20, 8);
        must(graph_model_open(path, k, &(struct graph_model_opts){.text = 1}, &whole, &e), &e, path);
        must(graph_lane_new(whole, &alone, &e), &e, path);
        must(graph_model_cut(whole, &cut, &e), &e, path);
        for (uint32_t at = 1; at < cut.count; at++) {
            struct graph_model *before, *behind;
            struct graph_lane *a, *b;
            struct carry_out out = {0};
            struct carry_in in;
            struct carry_run run;
            int more;
            uint32_t all[RECORDS] = {0, 1, 2, 3, 4, 5, 6};
            must(graph_model_open(path, k, &(struct graph_model_opts){.text = 1, .part = 1, .end = at}, &before, &e), &e, path);
            must(graph_model_open(path, k, &(struct graph_model_opts){.text = 1, .part = 1, .first = at, .end = cut.count}, &behind, &e), &e, path);
            must(graph_lane_new(before, &a, &e), &e, path);
            must(graph_lane_new(behind, &b, &e), &e, path);
            must(graph_lane_texts(a, g.n, g.lengths, g.ids, NULL, 0, &e), &e, path);
            must(carry_begin(&out, 5, g.n, &e), &e, path);
            must(carry_run(&out, g.n, all, &e), &e, path);
            must(graph_lane_carry(a, &out, &e), &e, path);
            carry_end(&out);
            must(carry_open(&in, out.b.data, out.b.len, 5, g.n, &e), &e, path);
            must(carry_next(&in, &run, &more, &e), &e, path);
            must(graph_lane_take(b, &in, g.n, g.lengths, &e), &e, path);
            start = 0;
            for (uint32_t r = 0; r < g.n; r++) {
                must(graph_lane_take_one(b, r, start, g.lengths[r], &e), &e, path);
                must(graph_lane_texts(b, 1, &g.lengths[r], g.ids + start, NULL, 0, &e), &e, path);
                must(graph_lane_texts(alone, 1, &g.lengths[r], g.ids + start, NULL, 0, &e), &e, path);
                must(graph_lane_rows(b, 0, &got, &width, &by_token, &e), &e, path);
                must(graph_lane_rows(alone, 0, &want, &width, &by_token, &e), &e, path);
                assert_memory_equal(got, want, (by_token ? g.lengths[r] : 1) * width * sizeof *got);
                start += g.lengths[r];
            }
            carry_close(&in);
            buf_release(&out.b);
            graph_lane_free(a);
            graph_lane_free(b);
            graph_model_free(before);
            graph_model_free(behind);
        }
        cut_release(&cut);
        graph_lane_free(alone);
        graph_model_free(whole);
    }
}

/* Memory ----------------------------------------------------------------------------------------------------------------------------------------- */

static size_t held(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Eight layers of 4 MiB: a quarter of them is a quarter of the memory. */
static void test_memory(void **state)
{
    (void)state;
    struct onnxwrite w;
    struct err e;
    struct model *m;
    struct model_info info;
    struct cut c = {.tokens = 1};
    char *path = file_in("large");
    ow_begin(&w, 10);
    ow_input(&w, "x", OW_F32, 2, (int64_t[]){-1, 1024});
    layers(&w, "x", 0, 8, 1024);
    ow_output(&w, "h7", OW_F32, 2, (int64_t[]){-1, 1024});
    assert_int_equal(ow_write(&w, path), 0);
    must(model_probe_cut(path, NULL, &info, &c, &e), &e, path);
    assert_true(c.count >= 8);
    uint64_t layer = 1024 * 1024 * 4, sum = 0;
    for (uint32_t first = 0; first < c.count;) {
        uint32_t end = first;
        uint64_t bytes = 0;
        while (end < c.count && bytes + c.list[end].weight_bytes <= 2 * layer)
            bytes += c.list[end++].weight_bytes;
        size_t before = held();
        must(model_open(path, &(struct model_opts){.part = 1, .first = first, .end = end}, &m, &e), &e, path);
        size_t took = held() - before;
        assert_int_equal(model_info(m)->weight_bytes, bytes);
        sum += bytes;
#ifndef __SANITIZE_ADDRESS__ /* which has an allocator of its own */
        if (took < bytes || took > bytes + layer / 2)
            fail_msg("segments %u to %u: %zu bytes of memory for %llu of weights", first, end, took, (unsigned long long)bytes);
#endif
        model_free(m);
        first = end;
    }
    assert_int_equal(sum, 8 * layer);
    /* a member that is leaving holds nothing, and knows what the model is */
    must(model_open(path, &(struct model_opts){.part = 1, .first = 2, .end = 2}, &m, &e), &e, path);
    assert_int_equal(model_info(m)->weight_bytes, 0);
    assert_string_equal(model_info(m)->outputs, "h7 float32[1024]");
    model_free(m);
    assert_int_equal(model_open(path, &(struct model_opts){.part = 1, .first = 2, .end = c.count + 1}, &m, &e), ST_USER);
    if (!strstr(e.text, "of a model with"))
        fail_msg("%s", e.text);
    /* nor does it take more than it may */
    assert_int_equal(model_open(path, &(struct model_opts){.memory_bytes = 30 << 20}, &m, &e), ST_ENV);
    if (!strstr(e.text, "takes more than 32 MiB and may take 30: layers of an ONNX model are not held by turns"))
        fail_msg("%s", e.text);
    must(model_open(path, &(struct model_opts){.memory_bytes = 30 << 20, .precision = "int8"}, &m, &e), &e, path);
    model_free(m);
    must(model_open(path, &(struct model_opts){.memory_bytes = 30 << 20, .part = 1, .end = c.count / 2}, &m, &e), &e, path);
    model_free(m);
    cut_release(&c);
    mem_free(path);
}

/* Damage ----------------------------------------------------------------------------------------------------------------------------------------- */

struct victim {
    struct model *m;
    struct model_ctx *c;
    struct given g;
    int arrays, takes; /* takes: results are read, not what crosses */
};

static enum status attack(struct victim *v, const void *data, size_t len)
{
    struct err e = {0};
    const struct model_result *result;
    const void *out;
    size_t out_len;
    struct gathered got = {0};
    char *copy = malloc(len + 1); /* so that what is read behind it is seen */
    assert_non_null(copy);
    memcpy(copy, data, len);
    enum status st = v->takes    ? model_arrays_take(v->m, v->c, v->g.n, copy, len, gather, &got, &e)
                     : v->arrays ? model_stage_arrays(v->m, v->c, v->g.n, copy, len, &out, &out_len, &e)
                                 : model_stage(v->m, v->c, &v->g.texts, copy, len, &out, &out_len, &result, &e);
    for (uint32_t r = 0; r < RECORDS; r++)
        buf_release(&got.of[r]);
    free(copy);
    if (st != ST_OK && (st != ST_CORRUPT || !e.text[0]))
        fail_msg("status %d: %s", (int)st, e.text);
    return st;
}

static void damage(struct victim *v, const char *data, size_t len)
{
    char *x = malloc(len + 1);
    uint32_t refused = 0;
    assert_non_null(x);
    memcpy(x, data, len);
    assert_int_equal(attack(v, x, len), ST_OK);
    for (size_t n = 0; n < len; n += n < 200 ? 1 : 97)
        assert_int_equal(attack(v, x, n), ST_CORRUPT);
    assert_int_equal(attack(v, x, len - 1), ST_CORRUPT);
    x[len] = 0;
    assert_int_equal(attack(v, x, len + 1), ST_CORRUPT);
    for (size_t i = 0; i < len; i += i < 400 ? 1 : 53)
        for (int bit = 0; bit < 8; bit += i < 400 ? 1 : 3) {
            x[i] = (char)(data[i] ^ 1 << bit);
            refused += attack(v, x, len) == ST_CORRUPT;
            x[i] = data[i];
        }
    for (uint32_t k = 0; k < 2000; k++) { /* several at once, of the part that has sizes more often */
        memcpy(x, data, len);
        for (uint32_t n = 1 + draw(4); n > 0; n--)
            x[draw(k % 2 && len > 160 ? 160 : (uint32_t)len)] = (char)draw(256);
        refused += attack(v, x, len) == ST_CORRUPT;
    }
    assert_true(refused > 200);
    free(x);
}

static void test_damage(void **state)
{
    (void)state;
    char *path = text_model("damaged", "tests/golden/exports/mpnet-eager-14.onnx");
    struct rig r;
    struct given g;
    struct err e;
    const void *out;
    size_t len;
    const struct model_result *result;
    open_rig(&r, path, NULL);
    give_texts(&g, 20, 5);
    for (uint32_t at = 1; at < r.segments; at += r.segments / 3) {
        open_part(&r, 0, at);
        open_part(&r, at, r.segments);
        must(model_stage(r.part[0][at], r.ctx[0][at], &g.texts, NULL, 0, &out, &len, &result, &e), &e, path);
        damage(&(struct victim){r.part[at][r.segments], r.ctx[at][r.segments], g, 0, 0}, out, len);
    }
    close_rig(&r);
    mem_free(path);

    path = file_in("failing");
    open_rig(&r, path, NULL);
    give_arrays(&g, r.whole, 4);
    uint32_t mid = r.segments / 2;
    open_part(&r, 0, mid);
    open_part(&r, mid, r.segments);
    struct model *a = r.part[0][mid], *b = r.part[mid][r.segments];
    struct model_ctx *ac = r.ctx[0][mid], *bc = r.ctx[mid][r.segments];
    void *room = NULL;
    const char *in;
    must(model_arrays_pack(b, bc, g.n, g.in, &out, &len, &e), &e, path);
    in = move(&room, out, len);
    damage(&(struct victim){a, ac, g, 1, 0}, in, len);
    must(model_stage_arrays(a, ac, g.n, in, len, &out, &len, &e), &e, path);
    in = move(&room, out, len);
    damage(&(struct victim){b, bc, g, 1, 0}, in, len);
    must(model_stage_arrays(b, bc, g.n, in, len, &out, &len, &e), &e, path);
    in = move(&room, out, len);
    damage(&(struct victim){a, ac, g, 1, 1}, in, len);
    free(room);
    free_arrays(&g);
    close_rig(&r);
    mem_free(path);
}

/* Strings, which are not as long as their numbers say. */
static void test_strings(void **state)
{
    (void)state;
    static const struct str words[6] = {{"ebb", 3}, {"", 0}, {"and flow", 8}, {"\0x", 2}, {"longer than eight bytes", 23}, {"é", 2}};
    struct array a = {.dtype = DT_STR, .rank = 2, .dims = {2, 3}, .data = words}, got;
    struct carry_out o = {0};
    struct carry_in in;
    struct carry_run run;
    struct err e;
    struct str to[6];
    int more;
    must(carry_begin(&o, 9, 2, &e), &e, "carry");
    must(carry_error(&o, 1, "why not", &e), &e, "carry");
    must(carry_run(&o, 1, (uint32_t[]){0}, &e), &e, "carry");
    must(carry_tensor(&o, &a, &e), &e, "carry");
    carry_end(&o);
    for (size_t len = 0; len <= o.b.len; len++) {
        enum status st = carry_open(&in, o.b.data, len, 9, 2, &e);
        if (st == ST_OK)
            st = carry_next(&in, &run, &more, &e);
        if (st == ST_OK) {
            assert_true(more && run.n == 1 && run.records[0] == 1 && run.error_len == 7 && memcmp(run.error, "why not", 7) == 0);
            st = carry_next(&in, &run, &more, &e);
        }
        if (st == ST_OK)
            st = carry_read_tensor(&in, "words", &got, &e);
        if (st == ST_OK) {
            assert_true(run.records[0] == 0 && !run.error && got.dtype == DT_STR && got.rank == 2 && got.dims[0] == 2 && got.dims[1] == 3);
            assert_int_equal(carry_bytes(&got), sizeof to);
            carry_unpack(&got, to);
            for (int i = 0; i < 6; i++)
                assert_true(to[i].len == words[i].len && memcmp(to[i].data, words[i].data, words[i].len) == 0);
            st = carry_next(&in, &run, &more, &e);
        }
        carry_close(&in);
        assert_int_equal(st, len == o.b.len ? ST_OK : ST_CORRUPT);
    }
    assert_int_equal(carry_open(&in, o.b.data, o.b.len, 8, 2, &e), ST_CORRUPT);
    assert_string_equal(e.text, "what came from the stage before is of another model, or of another cut of it");
    carry_close(&in);
    assert_int_equal(carry_open(&in, o.b.data, o.b.len, 9, 3, &e), ST_CORRUPT);
    assert_string_equal(e.text, "what came from the stage before is of 2 records, not 3");
    carry_close(&in);
    buf_release(&o.b);
}

/* Each allocation may fail: of opening a part, and of the run of a stage. */
static enum status all_of_it(const char *path, const struct given *g, const void *in, size_t len, uint32_t at, uint32_t end, struct err *e)
{
    struct model *m = NULL;
    struct model_ctx *c = NULL;
    const struct model_result *result;
    const void *out;
    size_t out_len;
    TRY(model_open(path, &(struct model_opts){.part = 1, .first = at, .end = end}, &m, e));
    enum status st = model_ctx_new(m, TOKENS_MOST, RECORDS, &c, e);
    if (st == ST_OK && model_info(m)->arrays)
        st = model_stage_arrays(m, c, g->n, in, len, &out, &out_len, e);
    else if (st == ST_OK)
        st = model_stage(m, c, &g->texts, in, len, &out, &out_len, &result, e);
    model_ctx_free(c);
    model_free(m);
    return st;
}

static void test_memory_out(void **state)
{
    (void)state;
    struct err e;
    for (int texts = 0; texts < 2; texts++) {
        char *path = texts ? text_model("packed", NULL) : file_in("failing");
        struct rig r;
        struct given g = {0};
        const void *out;
        size_t len;
        const struct model_result *result;
        void *room = NULL;
        const char *in;
        open_rig(&r, path, NULL);
        uint32_t mid = r.segments / 2;
        open_part(&r, 0, mid);
        if (texts) {
            give_texts(&g, 20, 5);
            must(model_stage(r.part[0][mid], r.ctx[0][mid], &g.texts, NULL, 0, &out, &len, &result, &e), &e, path);
        } else {
            give_arrays(&g, r.whole, 3);
            must(model_arrays_pack(r.part[0][mid], r.ctx[0][mid], g.n, g.in, &out, &len, &e), &e, path);
            in = move(&room, out, len);
            must(model_stage_arrays(r.part[0][mid], r.ctx[0][mid], g.n, in, len, &out, &len, &e), &e, path);
        }
        in = move(&room, out, len);
        enum status st = ST_NOMEM;
        for (uint64_t n = 1; st == ST_NOMEM; n += n < 300 ? 1 : 7) {
            mem_fail_nth(n);
            st = all_of_it(path, &g, in, len, mid, r.segments, &e);
            if (mem_fail_nth(0) < n)
                break;
            assert_true(n < 100000);
        }
        must(st, &e, path);
        free(room);
        free_arrays(&g);
        close_rig(&r);
        mem_free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),      cmocka_unit_test(test_precisions), cmocka_unit_test(test_exported),   cmocka_unit_test(test_outputs), cmocka_unit_test(test_quantised), cmocka_unit_test(test_control),
        cmocka_unit_test(test_mixing),     cmocka_unit_test(test_failing),    cmocka_unit_test(test_late_texts), cmocka_unit_test(test_taken_out), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_damage),     cmocka_unit_test(test_memory_out), cmocka_unit_test(test_sequence), cmocka_unit_test(test_made_of_constants), cmocka_unit_test(test_strings),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
