/* How fast the engine runs a model on this machine, and how near that is to what the processor can do at all.

     build/bench/engine [--model DIR] [--threads N] [--seconds S] [--isa ISA]

   Measured: multiply-adds per second of a loop that does nothing else (the limit); each linear layer of the model over 256 rows;
   the whole model over 32 x 128 tokens and over short texts of mixed length, packed. Each thread has its own context over the
   shared model. The last line is one JSON object. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/model.h"
#include "workers/engine/ops/linear.h"

enum { MAX_THREADS = 64 };

static const char *model_dir = "build/demo/all-MiniLM-L6-v2", *isa = "auto";
static uint32_t threads = 1;
static double seconds = 2;

typedef float v16f __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));

/* Ten chains hide the latency of a multiply-add; returns floating point operations, two for each. */
__attribute__((target("avx512f"))) static double burn_avx512(uint64_t rounds, float *sink)
{
    v16f a[10], x = a[0] = (v16f){0} + 1e-3f, y = x + 0.5f;
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        a[i] = x * (float)i;
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 10
        for (int i = 0; i < 10; i++)
            __asm__("vfmadd231ps %1, %2, %0" : "+v"(a[i]) : "v"(x), "v"(y));
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        *sink += a[i][0];
    return (double)rounds * 10 * 16 * 2;
}

__attribute__((target("avx2,fma"))) static double burn_avx2(uint64_t rounds, float *sink)
{
    v8f a[10], x = a[0] = (v8f){0} + 1e-3f, y = x + 0.5f;
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        a[i] = x * (float)i;
    for (uint64_t r = 0; r < rounds; r++)
#pragma GCC unroll 10
        for (int i = 0; i < 10; i++)
            __asm__("vfmadd231ps %1, %2, %0" : "+x"(a[i]) : "x"(x), "x"(y));
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        *sink += a[i][0];
    return (double)rounds * 10 * 8 * 2;
}

/* One thread's share of a measurement: repeats `step` until the time is up, counts what it says it did. */
struct meter {
    double (*step)(void *arg);
    void *arg;
    double done, took;
};

static void *run_meter(void *p)
{
    struct meter *m = p;
    m->step(m->arg); /* warm */
    uint64_t start = clock_ns(), now;
    do {
        m->done += m->step(m->arg);
        now = clock_ns();
    } while ((double)(now - start) < seconds * 1e9);
    m->took = (double)(now - start) * 1e-9;
    return NULL;
}

/* Per second, over all threads. */
static double measure(double (*step)(void *), void *const arg[])
{
    struct meter m[MAX_THREADS] = {0};
    pthread_t t[MAX_THREADS];
    double rate = 0;
    for (uint32_t i = 0; i < threads; i++) {
        m[i] = (struct meter){.step = step, .arg = arg[i]};
        if (pthread_create(&t[i], NULL, run_meter, &m[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(t[i], NULL);
        rate += m[i].done / m[i].took;
    }
    return rate;
}

static double step_peak(void *arg)
{
    float *sink = arg;
    const struct kernels *k;
    if (cpu_kernels(isa, &k, NULL) != ST_OK)
        abort();
    return k == &kernels_avx512 ? burn_avx512(1 << 20, sink) : k == &kernels_avx2 ? burn_avx2(1 << 20, sink) : 0;
}

enum { ROWS = 256 };
struct linear_job {
    struct linear *l;
    float *x, *y;
    size_t ld;
};

static double step_linear(void *arg)
{
    struct linear_job *j = arg;
    linear_run(j->l, ROWS, j->x, j->ld, ACT_NONE, NULL, 0, j->y, j->ld);
    return 2.0 * ROWS * j->l->n * j->l->k;
}

static double bench_linear(const struct kernels *k, uint32_t n, uint32_t in)
{
    struct linear l;
    struct linear_job job[MAX_THREADS];
    void *arg[MAX_THREADS];
    float *w = mem_zalloc(sizeof(float) * (size_t)n * in), *bias = mem_zalloc(sizeof(float) * n);
    if (!w || !bias || linear_init(&l, k, PREC_F32, n, in, NULL) != ST_OK)
        abort();
    for (size_t i = 0; i < (size_t)n * in; i++)
        w[i] = (float)(i % 97) / 97;
    linear_set(&l, 0, n, w, bias);
    for (uint32_t i = 0; i < threads; i++) {
        job[i].l = &l;
        job[i].ld = ((n > in ? n : in) / 16 | 1) * 16 + 16;
        job[i].x = mem_aligned(sizeof(float) * ROWS * job[i].ld);
        job[i].y = mem_aligned(sizeof(float) * ROWS * job[i].ld);
        if (!job[i].x || !job[i].y)
            abort();
        for (size_t j = 0; j < ROWS * job[i].ld; j++)
            job[i].x[j] = (float)(j % 89) / 89;
        arg[i] = &job[i];
    }
    double rate = measure(step_linear, arg);
    for (uint32_t i = 0; i < threads; i++) {
        mem_free(job[i].x);
        mem_free(job[i].y);
    }
    mem_free(w);
    mem_free(bias);
    linear_release(&l);
    return rate;
}

struct model_job {
    const struct model *m;
    struct model_ctx *c;
    uint32_t n, *lengths, tokens;
    int32_t *ids;
    float *out;
};

static double step_model(void *arg)
{
    struct model_job *j = arg;
    model_run(j->m, j->c, j->n, j->lengths, j->ids, j->out);
    return j->tokens;
}

/* n sequences of min..max tokens; tokens per second. */
static double bench_model(const struct model *m, uint32_t n, uint32_t min, uint32_t max, double *flops_per_token)
{
    const struct model_info *info = model_info(m);
    struct model_job job[MAX_THREADS] = {0};
    void *arg[MAX_THREADS];
    double flops = 0;
    for (uint32_t t = 0; t < threads; t++) {
        struct model_job *j = &job[t];
        *j = (struct model_job){.m = m, .n = n, .lengths = mem_array(n, 4)};
        if (!j->lengths)
            abort();
        uint32_t state = 1;
        for (uint32_t i = 0; i < n; i++) {
            state = state * 1664525 + 1013904223;
            j->tokens += j->lengths[i] = min + (state >> 8) % (max - min + 1);
            double len = j->lengths[i], h = info->hidden, f = info->ffn;
            if (t == 0)
                flops += info->layers * len * (2 * (4 * h * h + 2 * h * f) + 4 * len * h);
        }
        j->ids = mem_array(j->tokens, 4);
        j->out = mem_array(n, info->dims * sizeof(float));
        if (!j->ids || !j->out || model_ctx_new(m, j->tokens, n, &j->c, NULL) != ST_OK)
            abort();
        for (uint32_t i = 0; i < j->tokens; i++)
            j->ids[i] = (int32_t)((i * 7919ull + 13) % info->vocab);
        arg[t] = j;
    }
    *flops_per_token = flops / job[0].tokens;
    double rate = measure(step_model, arg);
    for (uint32_t t = 0; t < threads; t++) {
        mem_free(job[t].lengths);
        mem_free(job[t].ids);
        mem_free(job[t].out);
        model_ctx_free(job[t].c);
    }
    return rate;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!v || strncmp(argv[i], "--", 2) != 0) {
            fprintf(stderr, "usage: engine [--model DIR] [--threads N] [--seconds S] [--isa ISA]\n");
            return 2;
        }
        if (strcmp(argv[i], "--model") == 0)
            model_dir = v;
        else if (strcmp(argv[i], "--threads") == 0 && atoi(v) >= 1 && atoi(v) <= MAX_THREADS)
            threads = (uint32_t)atoi(v);
        else if (strcmp(argv[i], "--seconds") == 0 && atof(v) > 0)
            seconds = atof(v);
        else if (strcmp(argv[i], "--isa") == 0)
            isa = v;
        else {
            fprintf(stderr, "engine: cannot take '%s %s'\n", argv[i], v);
            return 2;
        }
    }
    struct err e;
    struct model *m;
    const struct kernels *k;
    uint64_t start = clock_ns();
    if (model_open(model_dir, &(struct model_opts){.isa = isa}, &m, &e) != ST_OK || cpu_kernels(isa, &k, &e) != ST_OK) {
        fprintf(stderr, "engine: %s\n", e.text);
        return status_exit_code(e.code);
    }
    double load = (double)(clock_ns() - start) * 1e-9, peak = 0;
    const struct model_info *i = model_info(m);
    printf("%s: %s, %u layers of %u, %s, %u thread(s), loaded in %.2f s\n", i->name, i->architecture, i->layers, i->hidden, i->isa,
           threads, load);
    if (k != &kernels_generic) {
        float sink[MAX_THREADS * 16] = {0};
        void *arg[MAX_THREADS];
        for (uint32_t t = 0; t < threads; t++)
            arg[t] = &sink[t * 16];
        peak = measure(step_peak, arg);
        printf("multiply-adds alone          %8.1f GFLOP/s\n", peak * 1e-9);
    }
    struct {
        const char *name;
        uint32_t n, k;
    } layer[] = {{"qkv", 3 * i->hidden, i->hidden}, {"out", i->hidden, i->hidden}, {"up", i->ffn, i->hidden},
                 {"down", i->hidden, i->ffn}};
    double work = 0, time = 0;
    for (int l = 0; l < 4; l++) {
        double rate = bench_linear(k, layer[l].n, layer[l].k), flops = 2.0 * layer[l].n * layer[l].k;
        work += flops;
        time += flops / rate;
        printf("linear %-5s %5u x %-5u     %8.1f GFLOP/s  %5.1f %%\n", layer[l].name, layer[l].n, layer[l].k, rate * 1e-9,
               peak > 0 ? 100 * rate / peak : 0);
    }
    double linear = work / time, fpt_long, fpt_short;
    double tokens_long = bench_model(m, 32, 128 < i->max_tokens ? 128 : i->max_tokens, 128 < i->max_tokens ? 128 : i->max_tokens, &fpt_long);
    printf("model, 32 x 128 tokens       %8.1f GFLOP/s  %5.1f %%  %.0f tokens/s\n", tokens_long * fpt_long * 1e-9,
           peak > 0 ? 100 * tokens_long * fpt_long / peak : 0, tokens_long);
    double tokens_short = bench_model(m, 64, 4, 40, &fpt_short);
    printf("model, 64 texts of 4-40      %8.1f GFLOP/s  %5.1f %%  %.0f tokens/s\n", tokens_short * fpt_short * 1e-9,
           peak > 0 ? 100 * tokens_short * fpt_short / peak : 0, tokens_short);
    printf("{\"bench\":\"engine\",\"model\":\"%s\",\"isa\":\"%s\",\"threads\":%u,\"load_s\":%.3f,\"peak_gflops\":%.1f,"
           "\"linear_gflops\":%.1f,\"linear_of_peak\":%.3f,\"tokens_per_s_32x128\":%.0f,\"model_of_peak_32x128\":%.3f,"
           "\"tokens_per_s_short\":%.0f,\"model_of_peak_short\":%.3f}\n",
           i->name, i->isa, threads, load, peak * 1e-9, linear * 1e-9, peak > 0 ? linear / peak : 0, tokens_long,
           peak > 0 ? tokens_long * fpt_long / peak : 0, tokens_short, peak > 0 ? tokens_short * fpt_short / peak : 0);
    model_free(m);
    return 0;
}
