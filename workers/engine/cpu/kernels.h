/* The arithmetic of the engine, as one table of functions per instruction set. Within a numeric class the bits are the same whatever
   the table (docs/engine.md); the tables differ in speed and in the form in which they want weights.
   "Row" is always a record's or token's own: no function lets one row's neighbours change its bits. */
#ifndef EBB_ENGINE_KERNELS_H
#define EBB_ENGINE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Functions of one element, with up to two parameters. Those after ACT_QUICK_GELU serve graphs more than layers. */
enum act {
    ACT_NONE,
    ACT_GELU,         /* x/2 (1 + erf(x / sqrt 2)) */
    ACT_GELU_TANH,    /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    ACT_RELU,
    ACT_TANH,
    ACT_SILU,         /* x sigmoid(x) */
    ACT_SIGMOID,
    ACT_CLIP,         /* at least p, at most q; ReLU6 is (0, 6) */
    ACT_LEAKY_RELU,   /* x < 0 ? p x : x */
    ACT_HARD_SIGMOID, /* p x + q, clipped to 0..1 */
    ACT_HARD_SWISH,   /* x times that; ONNX's p = 1/6, q = 0.5 */
    ACT_QUICK_GELU,   /* x sigmoid(p x), p = 1.702 */
    ACT_ELU,          /* x < 0 ? p (exp(x) - 1) : x */
    ACT_SOFTPLUS,     /* log(1 + exp(x)) */
    ACT_EXP,
    ACT_LOG,
    ACT_ERF,
    ACTS
};
enum pooling { POOL_MEAN, POOL_CLS, POOL_MAX, POOL_MEAN_SQRT, POOL_WEIGHTED, POOL_LAST }; /* the last two are ops/pool.c's own */

/* What follows the last of k, element by element, in this order. All zero: nothing. */
struct epilogue {
    const float *bias;     /* one for each column; NULL: none */
    const float *row_bias; /* one for each row (a convolution's channels, where they are the rows); NULL: none */
    enum act act;
    float p, q;            /* of act */
    const float *res;      /* m rows of n, added after act; NULL: none */
    size_t ldres;
    int res_first;         /* 1: added before act (a residual block's last ReLU) */
};

/* Weights stay packed; activations are f32 on both sides, whatever the precision inside:
   f32   an element is one chain of fused multiply-adds over k, from zero
   bf16  both operands rounded to bf16 (nearest even). Class x86-bf16-fma: the same chain over the rounded values. Class x86-bf16-dp: the
         processor's own instruction, which takes k in pairs and rounds and flushes in its own way
   int8  both symmetric, to -127..127: weights with a scale per output, activations per row and block of 128 k; a block's sum is exact and goes,
         with the row's scale, into one chain over the blocks, from zero; that times the output's scale */
enum precision { PREC_F32, PREC_BF16, PREC_INT8, PRECISIONS };
enum { INT8_BLOCK = 128 };

struct gemm_args { /* c = epilogue(a w^T) */
    uint32_t m, n, k;
    const float *a; /* m rows of k */
    size_t lda;
    const void *packed; /* as `pack` of the same product left it */
    struct epilogue e;
    float *c; /* m rows of n; overlaps neither a nor res */
    size_t ldc;
};

struct weight_product {  /* by one table in one precision */
    const char *numerics; /* its class: "x86-f32", "x86-bf16-fma", "x86-bf16-dp", "x86-int8" */
    const char *layout;   /* two tables with the same layout can share packed weights: "f32p16" */
    /* Bytes, a multiple of 64; the block must be 64-byte aligned and may be moved or mapped. */
    size_t (*packed_bytes)(uint32_t n, uint32_t k);
    /* Outputs first..first+count-1 of n: weight (j, i) of those is w[j * row + i * column]. All other outputs' weights stay as they are; a block
       of zero bytes holds zero weights. */
    void (*pack)(uint32_t n, uint32_t k, uint32_t first, uint32_t count, const float *w, size_t row, size_t column, void *packed);
    void (*run)(const struct gemm_args *g);
};

/* For products of two things that are made at run time: c[b] = epilogue(a[b] b[b]) for b < batches, f32. Any strides, 0 to repeat; k may be 0. */
struct matmul_args {
    uint32_t batches, m, n, k;
    const float *a, *b;
    size_t a_batch, a_row, a_col; /* a(i, k) is a[batch * a_batch + i * a_row + k * a_col] */
    size_t b_batch, b_row, b_col; /* b(k, j) is b[batch * b_batch + k * b_row + j * b_col] */
    struct epilogue e;            /* res moves on by c_batch with each batch; the biases are the same for all */
    float *c;                     /* overlaps neither a, b nor res */
    size_t c_batch, ldc;
    float *scratch;               /* matmul_scratch floats, 64-byte aligned */
};

/* One head of one sequence: out = softmax(q k^T * scale + bias) v, row by row. */
struct attention_args {
    uint32_t len, dim;
    const float *q, *k, *v; /* len rows of dim, each `ld` floats behind the last */
    size_t ld;
    float scale;
    const float *bias; /* NULL: none; of query i and key j: bias[i * ldbias + j], and ldbias may be negative */
    ptrdiff_t ldbias;
    enum precision precision; /* PREC_BF16: q, k, v and the weights of the values are rounded to bf16; else f32 */
    float *out; /* len rows of dim */
    size_t ldo;
    float *scratch; /* attention_scratch(kernels, len, dim) floats, 64-byte aligned */
};

/* Over arrays; y may be x. Reductions take element j into lane j % 16 of sixteen, which meet in one tree. */
struct vec {
    void (*map)(enum act f, float p, float q, size_t n, const float *x, float *y);
    float (*sum)(size_t n, const float *x);
    float (*max)(size_t n, const float *x); /* n >= 1; NaN is passed over */
    float (*min)(size_t n, const float *x);
    float (*squares)(size_t n, const float *x, float mean);        /* the sum of (x - mean)^2 */
    float (*dot)(size_t n, const float *x, const float *y);
    void (*softmax)(size_t n, const float *x, float *y);           /* exp(x - max) / sum */
    void (*log_softmax)(size_t n, const float *x, float *y);       /* x - max - log(sum) */
};

struct kernels {
    const char *name;
    uint32_t mr, nr; /* rows and columns of the register tile of f32 */
    struct weight_product product[PRECISIONS];
    size_t (*matmul_scratch)(const struct matmul_args *g); /* floats */
    void (*matmul)(const struct matmul_args *g);
    /* c = epilogue(c) for rows row0.. of m of a product made elsewhere; bias and res as for the whole of it */
    void (*finish)(const struct epilogue *e, uint32_t row0, uint32_t rows, uint32_t n, float *c, size_t ldc);
    void (*attention)(const struct attention_args *a);
    /* y = (x - mean) / sqrt(variance + eps) * gamma + beta, for each row of n; y may be x; gamma and beta may be NULL */
    void (*norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, const float *beta, float eps, float *y,
                 size_t ldy);
    /* y = x / sqrt(mean of squares + eps) * gamma; gamma may be NULL */
    void (*rms_norm)(uint32_t rows, uint32_t n, const float *x, size_t ldx, const float *gamma, float eps, float *y, size_t ldy);
    /* y[i] = (word[ids[i]] + type) + position[i], for the tokens of one sequence; tables have rows of n */
    void (*embed)(uint32_t len, uint32_t n, const int32_t *ids, const float *word, const float *position, const float *type,
                  float *y, size_t ldy);
    void (*pool)(enum pooling how, uint32_t len, uint32_t n, const float *x, size_t ldx, float *y);
    void (*unit)(uint32_t n, float *x); /* x / max(|x|, 1e-12) */
    struct vec vec;
};

/* avx512vnni has VNNI too, avx512bf16 VNNI and BF16, avx2vnni AVX-VNNI */
extern const struct kernels kernels_avx512bf16, kernels_avx512vnni, kernels_avx512, kernels_avx2vnni, kernels_avx2, kernels_generic;
extern const struct kernels kernels_reference; /* naive loops, kept for ever: what the others are compared with */

/* Floats: the keys and values of a head in panels, a tile of scores, and one of queries where they are rounded. */
static inline size_t attention_scratch(const struct kernels *k, uint32_t len, uint32_t dim)
{
    size_t nr = k->nr, cols = (len + nr - 1) / nr * nr, dims = (dim + nr - 1) / nr * nr;
    size_t score_cols = (cols + 15) / 16 * 16;
    return cols * dim + len * dims + k->mr * (score_cols + dims) + 64; /* each part starts on a 16-float boundary */
}

#endif
