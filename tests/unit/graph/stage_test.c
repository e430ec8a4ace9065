/* Stages of ONNX models: whatever the cuts, a row of stages gives the bytes of the whole model; each holds its share of the weights. */
#include "tests/unit/graph/stage_rig.h"

#include <malloc.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_precisions),
        cmocka_unit_test(test_exported),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_mixing),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_made_of_constants),
        cmocka_unit_test(test_strings),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
