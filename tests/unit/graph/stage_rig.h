/* A model of ONNX whole and in all its parts, and what records bring to it and get. */
#ifndef EBB_TESTS_GRAPH_STAGE_RIG_H
#define EBB_TESTS_GRAPH_STAGE_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

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

static inline int make_dir(void **state)
{
    (void)state;
    strcpy(dir + strlen(dir) - 6, "XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int drop_dir(void **state)
{
    (void)state;
    return path_remove_tree(dir, NULL) != ST_OK;
}

static uint32_t seed = 1;

static inline uint32_t draw(uint32_t below)
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

static inline void add(struct buf *b, const void *data, size_t len)
{
    assert_int_equal(buf_add(b, data, len), 0);
}

static inline void put_result(struct buf *b, const struct model_result *r, uint32_t n)
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

static inline void gather(void *arg, uint32_t record, const struct array *out, uint32_t n_out, const char *error)
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

static inline void join(struct gathered *g, uint32_t n, struct buf *to)
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

static inline void must(enum status st, const struct err *e, const char *what)
{
    if (st != ST_OK)
        fail_msg("%s: %s", what, e->text);
}

static const char *precision, *pack_dir; /* of the rigs that follow */

static inline void open_rig(struct rig *r, const char *path, const char *task)
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

static inline void open_part(struct rig *r, uint32_t first, uint32_t end)
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

static inline void close_rig(struct rig *r)
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
static inline const char *move(void **room, const void *data, size_t len)
{
    char *to = malloc(len + 1);
    assert_non_null(to);
    memcpy(to + 1, data, len);
    free(*room);
    *room = to;
    return to + 1;
}

static inline void run_whole(struct rig *r, const struct given *g, struct buf *out, uint32_t *failed)
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
static inline void run_parts(struct rig *r, const struct given *g, uint32_t k, const uint32_t *at, struct buf *out)
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

static inline void compare(struct rig *r, const struct given *g, const struct buf *want, uint32_t k, const uint32_t *at)
{
    struct buf got = {0};
    run_parts(r, g, k, at, &got);
    if (got.len != want->len || memcmp(got.data, want->data, got.len) != 0)
        fail_msg("%s: %u parts, at %u %u %u, of %u segments: %zu bytes, not %zu, or others", r->path, k, at[1], k > 2 ? at[2] : 0, k > 3 ? at[3] : 0, r->segments, got.len, want->len);
    buf_release(&got);
}

/* Every cut into 1..4 parts, or many of them where there are too many. */
static inline uint32_t all_cuts(struct rig *r, const struct given *g)
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

static inline void give_texts(struct given *g, uint32_t vocab, uint32_t longest)
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

static inline char *text_model(const char *name, const char *from)
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

/* Arrays -------------------------------------------------------------------------------------------------------------------------------------- */

/* Open sizes are `open`, or one more for some records. */
static inline void give_arrays(struct given *g, const struct model *m, uint32_t open)
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

static inline void free_arrays(struct given *g)
{
    for (uint32_t r = 0; r < RECORDS; r++)
        for (uint32_t i = 0; i < 8; i++)
            free(g->data[r][i]);
}

/* Returns how many records failed. */
static inline uint32_t arrays(const char *path, const char *task, uint32_t open, uint32_t least, const char *shared)
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

/* x, a row of 16, through `count` layers: h0, h1, ... Each is a product and an activation. */
static inline void layers(struct onnxwrite *w, const char *x, uint32_t first, uint32_t count, int width)
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

static inline char *file_in(const char *name)
{
    char *path = mem_printf("%s/%s.onnx", dir, name);
    assert_non_null(path);
    return path;
}

static inline uint32_t written(struct onnxwrite *w, const char *name, const char *task, uint32_t least, const char *shared)
{
    char *path = file_in(name);
    assert_int_equal(ow_write(w, path), 0);
    uint32_t failed = arrays(path, task, 4, least, shared);
    mem_free(path);
    return failed;
}

#endif
