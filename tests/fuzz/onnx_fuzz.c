/* A model file: looked over, unpacked, made a graph, typed and folded; then run once with small inputs and little memory. */
#include <stdint.h>
#include <stdlib.h>

#include "workers/engine/cpuinfo.h"
#include "workers/engine/onnx/onnx.h"

#define MUST(x) ((x) ? (void)0 : abort())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RUN_BYTES = 256 << 10, INPUT_BYTES = 16 << 10 };

/* A body may loop for ever, which is the business of whoever watches the worker. */
static int has_bodies(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; k < g->nodes[i]->n_attr; k++)
            if (g->nodes[i]->attr[k].graphs)
                return 1;
    return 0;
}

/* Open sizes are 2; elements are small numbers. 0: there is an input that this does not make. */
static int give(struct run *r, const struct graph *g, uint32_t i)
{
    static union {
        uint8_t bytes[INPUT_BYTES];
        float floats[INPUT_BYTES / 4];
        int64_t longs[INPUT_BYTES / 8];
    } some;
    const struct type *t = &g->values[g->in[i]].type;
    int64_t dims[RANK_MAX] = {0};
    struct err e;
    if (t->kind != VALUE_TENSOR || t->dtype == DT_STR || t->dtype == DT_NONE || t->rank > RANK_MAX)
        return 0;
    for (int k = 0; k < t->rank; k++)
        dims[k] = dim_known(t->dims[k]) ? t->dims[k] : 2;
    int64_t bytes = tensor_size(t->dtype, t->rank < 0 ? 0 : (uint32_t)t->rank, dims);
    if (bytes < 0 || bytes > INPUT_BYTES)
        return 0;
    for (int k = 0; k < INPUT_BYTES / 8 && dtype_bytes(t->dtype) == 8; k++)
        some.longs[k] = k % 3;
    for (int k = 0; k < INPUT_BYTES / 4 && t->dtype == DT_F32; k++)
        some.floats[k] = (float)(k % 5) - 1.5f;
    for (int k = 0; k < INPUT_BYTES && (dtype_bytes(t->dtype) == 1 || dtype_bytes(t->dtype) == 2); k++)
        some.bytes[k] = k % 2 && dtype_bytes(t->dtype) == 2 ? 0x3c : (uint8_t)(k & 1);
    enum status st = run_set(r, i, t->dtype, t->rank < 0 ? 0 : (uint32_t)t->rank, dims, &some, &e);
    MUST(st == ST_OK || st == ST_USER);
    return st == ST_OK;
}

static void run(const struct graph *g)
{
    struct run *r;
    struct err e;
    int ready = 1;
    MUST(run_new(g, &r, &e) == ST_OK);
    for (uint32_t i = 0; i < g->n_in && ready; i++)
        ready = g->values[g->in[i]].constant.buffer || give(r, g, i);
    for (int turn = 0; ready && turn < 2; turn++) {
        enum status st = run_graph(r, &e);
        MUST(st == ST_OK || st == ST_USER || st == ST_NOMEM);
        MUST(run_bytes(r) <= RUN_BYTES);
    }
    run_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct kernels *k;
    struct onnx_model *m = NULL;
    struct err e;
    if (!k)
        MUST(cpu_kernels("generic", &k, &e) == ST_OK);
    enum status st = onnx_load_bytes(data, size, "model.onnx", NULL, k, &m, &e);
    MUST(st == ST_OK || st == ST_USER || st == ST_NOMEM);
    if (st == ST_OK) {
        st = graph_finish(m->graph, &(struct graph_opts){.run_bytes = RUN_BYTES}, &e);
        MUST(st == ST_OK || st == ST_USER || st == ST_NOMEM);
        if (st == ST_OK && !has_bodies(m->graph))
            run(m->graph);
        onnx_free(m);
    }
    return 0;
}
