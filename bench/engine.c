/* How fast the engine runs a model on this machine in each precision, and how near that is to what the processor can do at all.

     build/bench/engine [--model DIR] [--threads N] [--seconds S] [--isa ISA] [--precision P]

   Measured: a loop of nothing but the instructions that the precision's products rest on (the limit), with as many independent chains as hide
   their latency; each linear layer of the model over 256 rows; the whole model over 32 x 128 tokens and over short texts of mixed length,
   packed. Each thread has its own context over the shared model.

   A machine is seldom idle, so the thing measured and the limit take turns in short steps; a step's time is its thread's processor time. The
   percentages compare the best step with what nine in ten turns of the loop do not exceed. Tokens per second are the mean over all steps. The last line is one JSON object. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "workers/engine/cpuinfo.h"
#include "workers/engine/model.h"
#include "workers/engine/ops/linear.h"

enum { MAX_THREADS = 64 };

static const char *model_dir = "build/demo/all-MiniLM-L6-v2", *isa = "auto", *precisions = "all";
static uint32_t threads = 1;
static double seconds = 2;
static const struct kernels *kernels;

/* The limit ------------------------------------------------------------------------------------------------------------------------ */

typedef float v16f __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));

/* Ten chains; `code` has the chain as %0 and, where it needs one, a register of its own as %1; returns operations, two for a multiply-add. */
#define BURN(name, feature, type, kind, words, code)                                                                             \
    __attribute__((target(feature))) static double name(uint64_t rounds, float *sink)                                            \
    {                                                                                                                            \
        type x = (type){0}, y = x, t = x, a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x;                  \
        for (uint64_t r = 0; r < rounds; r++) {                                                                                  \
            CHAIN(a, kind, code) CHAIN(b, kind, code) CHAIN(c, kind, code) CHAIN(d, kind, code) CHAIN(e, kind, code)             \
            CHAIN(f, kind, code) CHAIN(g, kind, code) CHAIN(h, kind, code) CHAIN(i, kind, code) CHAIN(j, kind, code)             \
        }                                                                                                                        \
        *sink += a[0] + b[0] + c[0] + d[0] + e[0] + f[0] + g[0] + h[0] + i[0] + j[0] + t[0];                                     \
        return (double)rounds * 10 * 2 * (words);                                                                                \
    }
#define CHAIN(r, kind, code) __asm__ volatile(code : "+" kind(r), "=&" kind(t) : kind(x), kind(y));
BURN(fma_avx512, "avx512f", v16f, "v", 16, "vfmadd231ps %2, %3, %0")
BURN(fma_avx2, "avx2,fma", v8f, "x", 8, "vfmadd231ps %2, %3, %0")
BURN(dot_bf16, "avx512f,avx512bf16", v16f, "v", 32, "vdpbf16ps %2, %3, %0")
BURN(bytes_avx512, "avx512f,avx512vnni", v16f, "v", 64, "vpdpbusd %2, %3, %0")
BURN(bytes_avx2, "avx2,avxvnni", v8f, "x", 32, "%{vex%} vpdpbusd %2, %3, %0")
BURN(words_avx512, "avx512f,avx512bw", v16f, "v", 32, "vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0")
BURN(words_avx2, "avx2", v8f, "x", 16, "vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0")

typedef double burn_fn(uint64_t rounds, float *sink);

static int is(const char *name)
{
    return strcmp(kernels->name, name) == 0;
}

/* NULL: no such loop for this table */
static burn_fn *burn_of(enum precision p)
{
    int wide = strncmp(kernels->name, "avx512", 6) == 0;
    if (is("generic") || is("reference"))
        return NULL;
    if (p == PREC_BF16 && is("avx512bf16"))
        return dot_bf16;
    if (p != PREC_INT8)
        return wide ? fma_avx512 : fma_avx2;
    if (is("avx512"))
        return words_avx512;
    return wide ? bytes_avx512 : is("avx2vnni") ? bytes_avx2 : words_avx2;
}

/* Measuring ------------------------------------------------------------------------------------------------------------------------ */

struct meter { /* one thread's */
    double (*step)(void *arg); /* returns what it did */
    void *arg;
    burn_fn *burn;
    double best, mean, peak; /* per second */
};

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *run_meter(void *p)
{
    enum { LIMITS = 4096 };
    struct meter *m = p;
    float sink = 0;
    double done = 0, took = 0, limit[LIMITS];
    uint32_t n = 0;
    m->step(m->arg); /* warm */
    uint64_t start = clock_ns();
    do {
        double t0 = thread_seconds(), work = m->burn ? m->burn(100000, &sink) : 0, t1 = thread_seconds();
        limit[n++ % LIMITS] = work / (t1 - t0);
        uint64_t wall = clock_ns();
        t0 = thread_seconds();
        work = m->step(m->arg);
        t1 = thread_seconds();
        m->best = work / (t1 - t0) > m->best ? work / (t1 - t0) : m->best;
        done += work;
        took += (double)(clock_ns() - wall) * 1e-9;
    } while ((double)(clock_ns() - start) < seconds * 1e9);
    n = n < LIMITS ? n : LIMITS;
    qsort(limit, n, sizeof *limit, by_size);
    m->peak = limit[(n - 1) * 9 / 10]; /* not the best: a moment of a higher clock is no limit for longer steps */
    m->mean = done / took;
    return NULL;
}

/* Per second, over all threads; the limit is kept in *peak. */
static struct meter measure(double (*step)(void *), void *const arg[], burn_fn *burn)
{
    struct meter m[MAX_THREADS] = {0}, all = {0};
    pthread_t t[MAX_THREADS];
    for (uint32_t i = 0; i < threads; i++) {
        m[i] = (struct meter){.step = step, .arg = arg[i], .burn = burn};
        if (pthread_create(&t[i], NULL, run_meter, &m[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(t[i], NULL);
        all.best += m[i].best;
        all.mean += m[i].mean;
        all.peak += m[i].peak;
    }
    return all;
}

/* Linear layers -------------------------------------------------------------------------------------------------------------------- */

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

static struct meter bench_linear(enum precision p, uint32_t n, uint32_t in)
{
    struct linear l;
    struct linear_job job[MAX_THREADS];
    void *arg[MAX_THREADS];
    float *w = mem_zalloc(sizeof(float) * (size_t)n * in), *bias = mem_zalloc(sizeof(float) * n);
    if (!w || !bias || linear_init(&l, kernels, p, n, in, NULL) != ST_OK)
        abort();
    for (size_t i = 0; i < (size_t)n * in; i++)
        w[i] = (float)(i % 97) / 97 - 0.5f;
    linear_set(&l, 0, n, w, bias);
    for (uint32_t i = 0; i < threads; i++) {
        job[i].l = &l;
        job[i].ld = ((n > in ? n : in) / 16 | 1) * 16 + 16;
        job[i].x = mem_aligned(sizeof(float) * ROWS * job[i].ld);
        job[i].y = mem_aligned(sizeof(float) * ROWS * job[i].ld);
        if (!job[i].x || !job[i].y)
            abort();
        for (size_t j = 0; j < ROWS * job[i].ld; j++)
            job[i].x[j] = (float)(j % 89) / 89 - 0.5f;
        arg[i] = &job[i];
    }
    struct meter m = measure(step_linear, arg, burn_of(p));
    for (uint32_t i = 0; i < threads; i++) {
        mem_free(job[i].x);
        mem_free(job[i].y);
    }
    mem_free(w);
    mem_free(bias);
    linear_release(&l);
    return m;
}

/* The model ------------------------------------------------------------------------------------------------------------------------ */

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
static struct meter bench_model(const struct model *m, enum precision p, uint32_t n, uint32_t min, uint32_t max, double *flops_per_token)
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
    struct meter r = measure(step_model, arg, burn_of(p));
    for (uint32_t t = 0; t < threads; t++) {
        mem_free(job[t].lengths);
        mem_free(job[t].ids);
        mem_free(job[t].out);
        model_ctx_free(job[t].c);
    }
    return r;
}

static double part(double x, double of)
{
    return of > 0 ? x / of : 0;
}

/* One precision, as a part of the JSON object. */
static enum status bench_precision(enum precision p, const char *name, char *json, size_t cap, struct err *e)
{
    struct model *m;
    uint64_t start = clock_ns();
    TRY(model_open(model_dir, &(struct model_opts){.isa = isa, .precision = name}, &m, e));
    const struct model_info *i = model_info(m);
    printf("%s, %s (%s), loaded in %.2f s\n", name, i->isa, i->numerics, (double)(clock_ns() - start) * 1e-9);
    struct {
        const char *name;
        uint32_t n, k;
    } layer[] = {{"qkv", 3 * i->hidden, i->hidden}, {"out", i->hidden, i->hidden}, {"up", i->ffn, i->hidden}, {"down", i->hidden, i->ffn}};
    double work = 0, time = 0, peak = 0;
    for (int l = 0; l < 4; l++) {
        struct meter r = bench_linear(p, layer[l].n, layer[l].k);
        double flops = 2.0 * layer[l].n * layer[l].k;
        work += flops;
        time += flops / r.best;
        peak = r.peak > peak ? r.peak : peak;
        printf("  linear %-5s %5u x %-5u     %8.1f of %8.1f GFLOP/s  %5.1f %%\n", layer[l].name, layer[l].n, layer[l].k, r.best * 1e-9,
               r.peak * 1e-9, 100 * part(r.best, r.peak));
    }
    uint32_t length = 128 < i->max_tokens ? 128 : i->max_tokens;
    double per_long, per_short;
    struct meter big = bench_model(m, p, 32, length, length, &per_long), small = bench_model(m, p, 64, 4, 40, &per_short);
    peak = big.peak > peak ? big.peak : peak;
    peak = small.peak > peak ? small.peak : peak;
    printf("  model, 32 x %-3u tokens       %8.1f of %8.1f GFLOP/s  %5.1f %%  %8.0f tokens/s at best, %.0f in the mean\n", length,
           big.best * per_long * 1e-9, peak * 1e-9, 100 * part(big.best * per_long, peak), big.best, big.mean);
    printf("  model, 64 texts of 4-40      %8.1f of %8.1f GFLOP/s  %5.1f %%  %8.0f tokens/s at best, %.0f in the mean\n",
           small.best * per_short * 1e-9, peak * 1e-9, 100 * part(small.best * per_short, peak), small.best, small.mean);
    snprintf(json, cap,
             ",\"%s\":{\"numerics\":\"%s\",\"peak_gflops\":%.1f,\"linear_gflops\":%.1f,\"linear_of_peak\":%.3f,\"tokens_per_s_32x128\":%.0f,"
             "\"mean_tokens_per_s_32x128\":%.0f,\"model_of_peak_32x128\":%.3f,\"tokens_per_s_short\":%.0f,\"model_of_peak_short\":%.3f}",
             name, i->numerics, peak * 1e-9, work / time * 1e-9, part(work / time, peak), big.best, big.mean,
             part(big.best * per_long, peak), small.best, part(small.best * per_short, peak));
    model_free(m);
    return ST_OK;
}

int main(int argc, char **argv)
{
    static const char *const names[PRECISIONS] = {"f32", "bf16", "int8"};
    for (int i = 1; i < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!v || strncmp(argv[i], "--", 2) != 0) {
            fprintf(stderr, "usage: engine [--model DIR] [--threads N] [--seconds S] [--isa ISA] [--precision P]\n");
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
        else if (strcmp(argv[i], "--precision") == 0)
            precisions = v;
        else {
            fprintf(stderr, "engine: cannot take '%s %s'\n", argv[i], v);
            return 2;
        }
    }
    struct err e;
    char json[PRECISIONS][512] = {""};
    int any = 0;
    if (cpu_kernels(isa, &kernels, &e) != ST_OK)
        goto failed;
    for (int p = 0; p < PRECISIONS; p++)
        if (strcmp(precisions, "all") == 0 || strcmp(precisions, names[p]) == 0) {
            any = 1;
            if (bench_precision((enum precision)p, names[p], json[p], sizeof json[p], &e) != ST_OK)
                goto failed;
        }
    if (!any) {
        fprintf(stderr, "engine: precision '%s' is not one of all, f32, bf16, int8\n", precisions);
        return 2;
    }
    printf("{\"bench\":\"engine\",\"isa\":\"%s\",\"threads\":%u%s%s%s}\n", kernels->name, threads, json[0], json[1], json[2]);
    return 0;
failed:
    fprintf(stderr, "engine: %s\n", e.text);
    return status_exit_code(e.code);
}
