/* Times one ONNX model on one input and compares what comes out.

     build/bench/tools/onnx_run DIR [SECONDS [PRECISION [ISA]]]

   DIR is a test directory as ONNX has them: model.onnx, test_data_set_0/input_K.pb and output_K.pb. Prints one JSON object: runs per second, and the
   largest difference of an output from what is expected, absolute and relative to that output's largest element. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/onnx/onnx.h"

static struct err e;

static void need(enum status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "onnx_run: %s\n", e.text);
    exit(1);
}

static double element(const struct tensor *t, int64_t i)
{
    const void *p = tensor_data(t);
    switch (t->dtype) {
    case DT_F32: return (double)((const float *)p)[i];
    case DT_F64: return ((const double *)p)[i];
    case DT_I64: return (double)((const int64_t *)p)[i];
    case DT_I32: return ((const int32_t *)p)[i];
    case DT_U8:
    case DT_BOOL: return ((const uint8_t *)p)[i];
    default: return NAN;
    }
}

int main(int argc, char **argv)
{
    char path[4096];
    struct onnx_model *m;
    const struct kernels *k;
    struct run *r;
    if (argc < 2) {
        fprintf(stderr, "usage: onnx_run DIR [SECONDS [PRECISION [ISA]]]\n");
        return 2;
    }
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    const char *precision = argc > 3 ? argv[3] : "f32";
    need(cpu_kernels(argc > 4 ? argv[4] : NULL, &k, &e));
    snprintf(path, sizeof path, "%s/model.onnx", argv[1]);
    need(onnx_load(path, k, &m, &e));
    struct graph *g = m->graph;
    struct graph_opts o = {.precision = strcmp(precision, "int8") == 0 ? PREC_INT8 : strcmp(precision, "bf16") == 0 ? PREC_BF16 : PREC_F32};
    uint64_t t0 = clock_ns();
    need(graph_finish(g, &o, &e));
    double load_ms = (double)(clock_ns() - t0) * 1e-6;
    need(run_new(g, &r, &e));
    unsigned fp = fp_enter();
    for (uint32_t i = 0; i < g->n_in; i++) {
        struct value v = {0};
        snprintf(path, sizeof path, "%s/test_data_set_0/input_%u.pb", argv[1], i);
        need(onnx_read_value(path, &g->values[g->in[i]].type, &v, &e));
        need(run_set(r, i, v.tensor.dtype, v.tensor.rank, v.tensor.dims, tensor_data(&v.tensor), &e));
    }
    need(run_graph(r, &e));
    double abs_max = 0, rel_max = 0;
    for (uint32_t i = 0; i < g->n_out; i++) {
        struct value want = {0};
        const struct tensor *got = &run_result(r, i)->tensor;
        snprintf(path, sizeof path, "%s/test_data_set_0/output_%u.pb", argv[1], i);
        need(onnx_read_value(path, &m->outputs[i], &want, &e));
        if (tensor_count(got) != tensor_count(&want.tensor)) {
            fprintf(stderr, "onnx_run: output %u has %lld elements, not %lld\n", i, (long long)tensor_count(got), (long long)tensor_count(&want.tensor));
            return 1;
        }
        double diff = 0, top = 0;
        for (int64_t j = 0; j < tensor_count(got); j++) {
            double d = fabs(element(got, j) - element(&want.tensor, j)), w = fabs(element(&want.tensor, j));
            diff = d > diff || isnan(d) ? d : diff;
            top = w > top ? w : top;
        }
        abs_max = diff > abs_max || isnan(diff) ? diff : abs_max;
        rel_max = diff / (top > 0 ? top : 1) > rel_max ? diff / (top > 0 ? top : 1) : rel_max;
        onnx_value_free(&want);
    }
    uint64_t start = clock_ns(), now;
    uint32_t runs = 0;
    do {
        need(run_graph(r, &e));
        runs++;
        now = clock_ns();
    } while ((double)(now - start) < seconds * 1e9);
    printf("{\"runs_per_s\":%.3f,\"abs\":%.3g,\"rel\":%.3g,\"nodes\":%u,\"load_ms\":%.0f,\"bytes\":%zu,\"isa\":\"%s\"}\n", runs / ((double)(now - start) * 1e-9),
           abs_max, rel_max, g->n_nodes, load_ms, run_bytes(r), k->name);
    fp_leave(fp);
    run_free(r);
    onnx_free(m);
    return 0;
}
