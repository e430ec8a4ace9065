/* A model file: looked over, unpacked, made a graph, typed and folded. */
#include <stdint.h>
#include <stdlib.h>

#include "workers/engine/cpuinfo.h"
#include "workers/engine/onnx/onnx.h"

#define MUST(x) ((x) ? (void)0 : abort())

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
        st = graph_finish(m->graph, &(struct graph_opts){0}, &e);
        MUST(st == ST_OK || st == ST_USER || st == ST_NOMEM);
        onnx_free(m);
    }
    return 0;
}
