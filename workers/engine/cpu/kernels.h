/* The arithmetic of the engine, as one table of functions per instruction set. Whatever the table, the bits are the same
   (docs/engine.md); the tables differ in speed and in the width of a weight panel. */
#ifndef EBB_ENGINE_KERNELS_H
#define EBB_ENGINE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum act { ACT_NONE, ACT_GELU, ACT_GELU_TANH, ACT_RELU, ACT_TANH };
enum pooling { POOL_MEAN, POOL_CLS, POOL_MAX, POOL_MEAN_SQRT, POOL_WEIGHTED, POOL_LAST }; /* the last two are ops/pool.c's own */

/* c[i][j] = act(chain over k of a[i][k] * w[j][k], then + bias[j]) + res[i][j] */
struct gemm_args {
    uint32_t m, n, k;
    const float *a; /* m rows of k */
    size_t lda;
    const float *packed; /* ceil(n / nr) panels of k rows of nr: packed[j / nr][k][j % nr], zeros beyond n */
    const float *bias;   /* as many as the panels have columns; NULL for none */
    enum act act;
    const float *res; /* m rows of n; NULL for none */
    size_t ldres;
    float *c; /* m rows of n; overlaps neither a nor res */
    size_t ldc;
};

/* One head of one sequence: out = softmax(q k^T * scale + bias) v, row by row. */
struct attention_args {
    uint32_t len, dim;
    const float *q, *k, *v; /* len rows of dim, each `ld` floats behind the last */
    size_t ld;
    float scale;
    const float *bias; /* NULL: none; of query i and key j: bias[i * ldbias + j], and ldbias may be negative */
    ptrdiff_t ldbias;
    float *out; /* len rows of dim */
    size_t ldo;
    float *scratch; /* attention_scratch(kernels, len, dim) floats, 64-byte aligned */
};

struct kernels {
    const char *name;
    uint32_t mr, nr; /* rows and columns of the register tile; nr is the width of a panel */
    void (*gemm)(const struct gemm_args *g);
    void (*attention)(const struct attention_args *a);
    /* y = (x - mean) / sqrt(variance + eps) * gamma + beta, for each row of n; y may be x */
    void (*norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps, float *y,
                 size_t ldy);
    /* y[i] = (word[ids[i]] + type) + position[i], for the tokens of one sequence; tables have rows of n */
    void (*embed)(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type,
                  float *y, size_t ldy);
    void (*pool)(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y);
    void (*unit)(uint32_t n, float *x); /* x / max(|x|, 1e-12) */
};

extern const struct kernels kernels_avx512, kernels_avx2, kernels_generic;
extern const struct kernels kernels_reference; /* naive loops, kept for ever: what the others are compared with */

/* Floats: the keys and values of a head in panels, and a tile of scores. */
static inline size_t attention_scratch(const struct kernels *k, uint32_t len, uint32_t dim)
{
    size_t nr = k->nr, cols = (len + nr - 1) / nr * nr, dims = (dim + nr - 1) / nr * nr;
    size_t score_cols = (cols + 15) / 16 * 16;
    return cols * dim + len * dims + k->mr * score_cols + 64; /* each part starts on a 16-float boundary */
}

#endif
