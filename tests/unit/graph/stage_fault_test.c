/* Stages of ONNX models where something fails: records that do, late or early, what is damaged on the way, memory. */
#include "tests/unit/graph/stage_rig.h"

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
        cmocka_unit_test(test_failing),
        cmocka_unit_test(test_late_texts),
        cmocka_unit_test(test_taken_out),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_memory_out),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
